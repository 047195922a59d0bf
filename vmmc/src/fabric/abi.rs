//! The C structures of libfabric that we touch, as its symbol version FABRIC_1.3 has them
//! (`rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_eq.h`, `fi_rma.h`, `fi_cm.h`).
//!
//! Almost everything in libfabric is reached by tables of functions in these; entries that we
//! do not call are untyped words. The tables are static data of the providers. Later versions append to the
//! tables, and keep this layout for programs that ask for FABRIC_1.3.
//!
//! An entry may be null: `opx` of 1.17 has no `trywait`.

use std::ffi::{c_char, c_int, c_void};

/// `FI_VERSION(1, 17)`: what we were written against. A later library behaves like this one.
pub(super) const VERSION: u32 = 1 << 16 | 17;

pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_TRANSMIT: u64 = 1 << 11;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// As a capability and a flag of an operation: it begins when all before it, to that peer, are done.
pub(super) const FI_FENCE: u64 = 1 << 21;
/// As a flag of an operation: its source may change at once.
pub(super) const FI_INJECT: u64 = 1 << 25;
/// As a flag of an operation: it shall be told of when it is done.
pub(super) const FI_COMPLETION: u64 = 1 << 24;
/// As a flag of an operation: done is what is in the peer's memory.
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_NUMERICHOST: u64 = 1 << 55;
pub(super) const FI_RX_CQ_DATA: u64 = 1 << 56;
/// As a flag of `fi_getinfo`: the address is our own.
pub(super) const FI_SOURCE: u64 = 1 << 57;

/// Of `msg_order`: messages come after the remote writes that were made before them.
pub(super) const FI_ORDER_SAW: u64 = 1 << 7;
/// Of `msg_order`: remote writes land in the order in which they were made.
pub(super) const FI_ORDER_RMA_WAW: u64 = 1 << 35;

/// Formats of address that `fi_getinfo` finds by an IP address: FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6,
/// FI_SOCKADDR_IB.
pub(super) const SOCKET_ADDRESSES: [u32; 5] = [0, 1, 2, 3, 4];

pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;
pub(super) const FI_MR_ENDPOINT: c_int = 1 << 9;

pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_AV_TABLE: c_int = 2;
pub(super) const FI_CQ_FORMAT_DATA: c_int = 3;
pub(super) const FI_WAIT_FD: c_int = 3;
pub(super) const FI_THREAD_SAFE: c_int = 1;
pub(super) const FI_RM_ENABLED: c_int = 2;
/// Commands of `fi_control`.
pub(super) const FI_GETWAIT: c_int = 5;
pub(super) const FI_ENABLE: c_int = 6;
/// An error is to be read from the completion queue.
pub(super) const FI_EAVAIL: isize = 259;
/// A flag of an operation that the provider does not have.
pub(super) const FI_EBADFLAGS: c_int = 260;

type Word = usize;

#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut Fid,
    pub(super) tx_attr: *mut TxAttr,
    pub(super) rx_attr: *mut RxAttr,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
    pub(super) nic: *mut c_void,
}

#[repr(C)]
pub(super) struct TxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
    pub(super) rma_iov_limit: usize,
    pub(super) tclass: u32,
}

#[repr(C)]
pub(super) struct RxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) total_buffered_recv: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
}

#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    others: [Word; 3],
    pub(super) max_order_waw_size: usize,
    rest: [Word; 5],
}

#[repr(C)]
pub(super) struct DomainAttr {
    pub(super) domain: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
    rest: [Word; 17],
}

#[repr(C)]
pub(super) struct FabricAttr {
    pub(super) fabric: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

#[repr(C)]
pub(super) struct Fid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: &'static FidOps,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FidOps {
    pub(super) size: usize,
    pub(super) close: Option<unsafe extern "C" fn(*mut Fid) -> c_int>,
    pub(super) bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
    pub(super) control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int>,
}

#[repr(C)]
pub(super) struct Fabric {
    pub(super) fid: Fid,
    pub(super) ops: &'static FabricOps,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricOps {
    pub(super) size: usize,
    pub(super) domain: Option<
        unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    >,
    passive_ep: Word,
    eq_open: Word,
    wait_open: Word,
    pub(super) trywait: Option<unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int>,
}

#[repr(C)]
pub(super) struct Domain {
    pub(super) fid: Fid,
    pub(super) ops: &'static DomainOps,
    pub(super) mr: Option<&'static MrOps>,
}

#[repr(C)]
pub(super) struct DomainOps {
    pub(super) size: usize,
    pub(super) av_open:
        Option<unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int>,
    pub(super) cq_open:
        Option<unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int>,
    pub(super) endpoint:
        Option<unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int>,
}

#[repr(C)]
pub(super) struct MrOps {
    pub(super) size: usize,
    pub(super) reg: Option<
        unsafe extern "C" fn(
            domain: *mut Fid,
            start: *const c_void,
            len: usize,
            access: u64,
            offset: u64,
            key: u64,
            flags: u64,
            made: *mut *mut Mr,
            context: *mut c_void,
        ) -> c_int,
    >,
}

#[repr(C)]
pub(super) struct Mr {
    pub(super) fid: Fid,
    pub(super) desc: *mut c_void,
    pub(super) key: u64,
}

#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct Av {
    pub(super) fid: Fid,
    pub(super) ops: &'static AvOps,
}

#[repr(C)]
pub(super) struct AvOps {
    pub(super) size: usize,
    pub(super) insert: Option<
        unsafe extern "C" fn(
            av: *mut Av,
            address: *const c_void,
            count: usize,
            made: *mut u64,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
}

#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

#[repr(C)]
pub(super) struct Cq {
    pub(super) fid: Fid,
    pub(super) ops: &'static CqOps,
}

#[repr(C)]
pub(super) struct CqOps {
    pub(super) size: usize,
    pub(super) read: Option<unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize>,
    readfrom: Word,
    pub(super) readerr: Option<unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize>,
}

/// A completion, in the format FI_CQ_FORMAT_DATA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
}

#[repr(C)]
pub(super) struct CqError {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    /// Later versions of the entry are longer (1.20: `src_addr`), and it is for the provider to know
    /// that we asked for this one.
    later: [Word; 8],
}

#[repr(C)]
pub(super) struct Ep {
    pub(super) fid: Fid,
    ops: Word,
    pub(super) cm: Option<&'static CmOps>,
    pub(super) msg: Option<&'static MsgOps>,
    pub(super) rma: Option<&'static RmaOps>,
}

#[repr(C)]
pub(super) struct CmOps {
    pub(super) size: usize,
    setname: Word,
    pub(super) getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MsgOps {
    pub(super) size: usize,
    pub(super) recv: Option<
        unsafe extern "C" fn(
            ep: *mut Ep,
            buf: *mut c_void,
            len: usize,
            desc: *mut c_void,
            from: u64,
            context: *mut c_void,
        ) -> isize,
    >,
    others: [Word; 4],
    pub(super) sendmsg: Option<unsafe extern "C" fn(*mut Ep, *const Msg, flags: u64) -> isize>,
}

/// `struct fi_msg`.
#[repr(C)]
pub(super) struct Msg {
    pub(super) sources: *const libc::iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) source_count: usize,
    pub(super) to: u64,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RmaOps {
    pub(super) size: usize,
    read: [Word; 3],
    write: [Word; 2],
    pub(super) writemsg: Option<unsafe extern "C" fn(*mut Ep, *const RmaMsg, flags: u64) -> isize>,
    inject: Word,
    pub(super) writedata: Option<
        unsafe extern "C" fn(
            ep: *mut Ep,
            buf: *const c_void,
            len: usize,
            desc: *mut c_void,
            data: u64,
            to: u64,
            address: u64,
            key: u64,
            context: *mut c_void,
        ) -> isize,
    >,
}

/// `struct fi_rma_iov`.
#[repr(C)]
pub(super) struct RmaTarget {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) key: u64,
}

/// `struct fi_msg_rma`.
#[repr(C)]
pub(super) struct RmaMsg {
    pub(super) sources: *const libc::iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) source_count: usize,
    pub(super) to: u64,
    pub(super) targets: *const RmaTarget,
    pub(super) target_count: usize,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

// What rdma/*.h of 1.17 say on 64-bit machines; another size would be another structure.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Info>() == 120 && offset_of!(Info, domain_attr) == 96);
    assert!(size_of::<TxAttr>() == 80 && size_of::<RxAttr>() == 64);
    assert!(size_of::<EpAttr>() == 96 && offset_of!(EpAttr, max_msg_size) == 16);
    assert!(size_of::<DomainAttr>() == 192 && offset_of!(DomainAttr, mr_mode) == 36);
    assert!(offset_of!(DomainAttr, cq_data_size) == 48 && size_of::<FabricAttr>() == 32);
    assert!(size_of::<CqAttr>() == 40 && size_of::<AvAttr>() == 48);
    assert!(size_of::<CqEntry>() == 40 && offset_of!(CqError, later) == 80);
    assert!(size_of::<Mr>() == 40 && offset_of!(Mr, key) == 32);
    assert!(offset_of!(EpAttr, max_order_waw_size) == 48);
    assert!(offset_of!(Ep, rma) == 48 && offset_of!(RmaOps, writedata) == 64);
    assert!(offset_of!(RmaOps, writemsg) == 48 && size_of::<RmaMsg>() == 64);
    assert!(size_of::<RmaTarget>() == 24 && size_of::<Msg>() == 48);
    assert!(offset_of!(MsgOps, sendmsg) == 48);
    assert!(offset_of!(FabricOps, trywait) == 40 && offset_of!(DomainOps, endpoint) == 24);
    assert!(offset_of!(CqOps, readerr) == 24 && offset_of!(CmOps, getname) == 16);
};
