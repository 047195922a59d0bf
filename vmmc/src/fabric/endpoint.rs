//! Endpoints, with the memory that their peers may write.

use super::abi::{self, CqEntry};
use super::domain::{Domain, Owned, QUEUE};
use super::library::FabricError;
use crate::mem::View;
use crate::sys::memfd;
use crate::sys::mmap::{Access, GuardedMapping};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;

/// Longest address of an endpoint in bytes.
pub const MAX_ADDRESS: usize = 256;

const NO_TABLE: FabricError = FabricError::Nonsense { what: "a provider without what it offered" };

/// Memory of an endpoint, as its peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Opens it.
    pub key: u64,
    /// Its first byte.
    pub base: u64,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A write of ours has left its source.
    Sent,
    /// A write of the peer is in our memory; its 32 bits.
    Arrived(u32),
}

/// Memory that the library knows.
#[derive(Debug)]
struct Registered {
    /// Closed before the pages go.
    mr: Owned<abi::Mr>,
    pages: GuardedMapping,
}

impl Registered {
    fn desc(&self) -> *mut c_void {
        self.mr.object().desc
    }
}

/// One end of a connection over a fabric: an endpoint with one peer, memory that the peer may write,
/// and memory of the same length from which we write to the peer's.
#[derive(Debug)]
pub struct Endpoint {
    // Closed in this order.
    ep: Owned<abi::Ep>,
    incoming: Registered,
    outgoing: Registered,
    cq: Owned<abi::Cq>,
    av: Owned<abi::Av>,
    wait: RawFd,
    peer: u64,
    target: Target,
    on_their_way: usize,
    /// The provider takes a posted receive for every write that it tells of.
    posts: bool,
    domain: Arc<Domain>,
}

// SAFETY: opened with FI_THREAD_SAFE; its own state is behind `&mut`.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// An endpoint whose peer will be able to write `len` bytes (whole pages).
    ///
    /// # Errors
    /// As the library says.
    pub fn open(domain: &Arc<Domain>, len: usize) -> Result<Endpoint, FabricError> {
        let library = domain.library;
        let domain_ptr = domain.domain.get();
        let ops = domain.domain.object().ops;

        let mut attr = abi::AvAttr {
            kind: abi::FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 1,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let mut av = null_mut();
        // SAFETY: an open domain; `attr` and `av` are ours.
        let code = unsafe { (ops.av_open)(domain_ptr, &mut attr, &mut av, null_mut()) };
        library.check("fi_av_open", code)?;
        let av = Owned::of(av, "fi_av_open")?;

        let mut attr = abi::CqAttr {
            size: 4 * QUEUE,
            flags: 0,
            format: abi::FI_CQ_FORMAT_DATA,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let mut cq = null_mut();
        // SAFETY: as above.
        let code = unsafe { (ops.cq_open)(domain_ptr, &mut attr, &mut cq, null_mut()) };
        library.check("fi_cq_open", code)?;
        let cq = Owned::of(cq, "fi_cq_open")?;
        let mut wait: RawFd = -1;
        let code = cq.control(abi::FI_GETWAIT, (&raw mut wait).cast()); // stores a descriptor
        library.check("fi_control(FI_GETWAIT)", code)?;

        let mut ep = null_mut();
        // SAFETY: as above; the info is the domain's.
        let code = unsafe { (ops.endpoint)(domain_ptr, domain.info.first(), &mut ep, null_mut()) };
        library.check("fi_endpoint", code)?;
        let ep = Owned::of(ep, "fi_endpoint")?;
        library.check("fi_ep_bind", ep.bind(&av, 0))?;
        library.check("fi_ep_bind", ep.bind(&cq, abi::FI_TRANSMIT | abi::FI_RECV))?;
        library.check("fi_enable", ep.control(abi::FI_ENABLE, null_mut()))?;

        let incoming = register(domain, &ep, len, abi::FI_REMOTE_WRITE)?;
        let outgoing = register(domain, &ep, len, abi::FI_WRITE)?;
        let posts = domain.info.mode() & abi::FI_RX_CQ_DATA != 0;
        let domain = domain.clone();
        let target = Target { key: 0, base: 0 };
        let peer = u64::MAX;
        let mut endpoint = Endpoint {
            ep,
            incoming,
            outgoing,
            cq,
            av,
            wait,
            peer,
            target,
            on_their_way: 0,
            posts,
            domain,
        };
        if posts {
            for _ in 0..QUEUE {
                endpoint.post()?;
            }
        }
        Ok(endpoint)
    }

    /// A receive of nothing, for a provider that takes one per write that it tells of.
    fn post(&mut self) -> Result<(), FabricError> {
        let msg = self.ep.object().msg.ok_or(NO_TABLE)?;
        // SAFETY: an enabled endpoint; no bytes are received.
        let code =
            unsafe { (msg.recv)(self.ep.get(), null_mut(), 0, null_mut(), u64::MAX, null_mut()) };
        self.domain.library.check("fi_recv", i32::try_from(code).unwrap_or(i32::MIN))
    }

    /// What the peer needs to reach this endpoint.
    ///
    /// # Errors
    /// As the library says.
    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        let mut bytes = vec![0u8; MAX_ADDRESS];
        let mut len = bytes.len();
        let cm = self.ep.object().cm.ok_or(NO_TABLE)?;
        // SAFETY: `len` bytes are there to be filled.
        let code = unsafe { (cm.getname)(self.ep.fid(), bytes.as_mut_ptr().cast(), &mut len) };
        self.domain.library.check("fi_getname", code)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// The memory that the peer may write, as it must name it.
    #[must_use]
    pub fn target(&self) -> Target {
        let key = self.incoming.mr.object().key;
        let by_address = self.domain.mr_mode() & abi::FI_MR_VIRT_ADDR != 0;
        let start = self.incoming.pages.as_ptr().as_ptr() as usize as u64;
        Target { key, base: if by_address { start } else { 0 } }
    }

    /// Names the peer. Packets go there from now on.
    ///
    /// # Errors
    /// It is no address.
    pub fn connect(&mut self, address: &[u8], target: Target) -> Result<(), FabricError> {
        if address.is_empty() || address.len() > MAX_ADDRESS {
            return Err(FabricError::Nonsense { what: "an address of impossible length" });
        }
        // As long as the longest, so that the library reads nothing beyond.
        let mut bytes = [0u8; MAX_ADDRESS];
        if let Some(place) = bytes.get_mut(..address.len()) {
            place.copy_from_slice(address);
        }
        let mut peer = u64::MAX;
        let insert = self.av.object().ops.insert;
        // SAFETY: an open address vector; an address in a buffer longer than any.
        let inserted =
            unsafe { insert(self.av.get(), bytes.as_ptr().cast(), 1, &mut peer, 0, null_mut()) };
        if inserted != 1 {
            return Err(FabricError::Nonsense { what: "an address that the provider refuses" });
        }
        (self.peer, self.target) = (peer, target);
        Ok(())
    }

    /// What the peer writes.
    #[must_use]
    pub fn incoming(&self) -> View<'_> {
        View::of(&self.incoming.pages)
    }

    /// What we write to the peer.
    #[must_use]
    pub fn outgoing(&self) -> View<'_> {
        View::of(&self.outgoing.pages)
    }

    /// Writes `len` bytes at `at` of [`Endpoint::outgoing`] to the same place of the peer's memory, and
    /// tells it, with 32 bits. The bytes stay as they are until [`Happened::Sent`]. False: not now.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    pub fn write(&mut self, at: usize, len: usize, data: u32) -> Result<bool, FabricError> {
        if self.on_their_way >= QUEUE {
            return Ok(false);
        }
        let source = self.outgoing().slice(at, len);
        let source =
            source.map_err(|_| FabricError::Nonsense { what: "a write beyond its end" })?;
        let to = self.target.base.wrapping_add(at as u64);
        let rma = self.ep.object().rma.ok_or(NO_TABLE)?;
        let (start, desc) = (source.as_ptr().as_ptr(), self.outgoing.desc());
        let (data, key) = (u64::from(data), self.target.key);
        // SAFETY: an enabled endpoint; the source is registered, and stays until the endpoint is
        // closed.
        let code = unsafe {
            let ep = self.ep.get();
            (rma.writedata)(ep, start.cast(), len, desc, data, self.peer, to, key, null_mut())
        };
        if code == 0 {
            self.on_their_way += 1;
            return Ok(true);
        }
        if code == -(libc::EAGAIN as isize) {
            return Ok(false);
        }
        let why = self.domain.library.words(code as i64);
        Err(FabricError::Call { call: "fi_writedata", why })
    }

    /// Makes progress, and takes what has happened.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn poll(&mut self, mut happened: impl FnMut(Happened)) -> Result<(), FabricError> {
        const NONE: CqEntry =
            CqEntry { context: null_mut(), flags: 0, len: 0, buf: null_mut(), data: 0 };
        loop {
            let mut entries = [NONE; 16];
            let read = self.cq.object().ops.read;
            // SAFETY: room for so many entries of the queue's format.
            let found = unsafe { read(self.cq.get(), entries.as_mut_ptr().cast(), entries.len()) };
            if found == -(libc::EAGAIN as isize) || found == 0 {
                return Ok(());
            }
            let Ok(found) = usize::try_from(found) else { return Err(self.completion(found)) };
            for entry in entries.iter().take(found) {
                if entry.flags & abi::FI_REMOTE_CQ_DATA != 0 && entry.flags & abi::FI_WRITE == 0 {
                    happened(Happened::Arrived(entry.data as u32)); // we sent 32 bits
                    if self.posts {
                        self.post()?;
                    }
                } else if entry.flags & abi::FI_RECV == 0 {
                    self.on_their_way = self.on_their_way.saturating_sub(1);
                    happened(Happened::Sent);
                }
            }
            if found < entries.len() {
                return Ok(());
            }
        }
    }

    /// Why the queue has an error instead of a completion.
    #[cold]
    fn completion(&mut self, code: isize) -> FabricError {
        let library = self.domain.library;
        let mut why = library.words(code as i64);
        if code == -abi::FI_EAVAIL {
            // SAFETY: all zero is a valid value of this C structure.
            let mut error: abi::CqError = unsafe { std::mem::zeroed() };
            let readerr = self.cq.object().ops.readerr;
            // SAFETY: an open queue; room for one entry, with no buffer for more.
            let read = unsafe { readerr(self.cq.get(), &mut error, 0) };
            if read == 1 {
                why = library.words(i64::from(error.err));
            }
        }
        FabricError::Call { call: "a completion", why }
    }

    /// Whether a wait on [`Endpoint::wait_fd`] would notice whatever happens next. False: poll again.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let mut fid = self.cq.fid();
        let fabric = &self.domain.fabric;
        // SAFETY: an open fabric, and one queue of it.
        unsafe { (fabric.object().ops.trywait)(fabric.get(), &mut fid, 1) == 0 }
    }

    /// Readable when there is something for [`Endpoint::poll`].
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue's own descriptor, open as long as it is.
        unsafe { BorrowedFd::borrow_raw(self.wait) }
    }
}

fn register(
    domain: &Arc<Domain>,
    ep: &Owned<abi::Ep>,
    len: usize,
    access: u64,
) -> Result<Registered, FabricError> {
    let library = domain.library;
    let failed = |errno: rustix::io::Errno| {
        let why = errno.to_string();
        FabricError::Call { call: "memory for an endpoint", why }
    };
    let file = memfd::create("vmmc-fabric", len as u64).map_err(failed)?;
    let pages = GuardedMapping::new(&file, len, Access::ReadWrite).map_err(failed)?;
    // Hardware writes to these very pages, whatever a child does.
    pages.keep_from_children().map_err(failed)?;
    let key = domain.random_key()?;
    let mut mr = null_mut();
    let reg = domain.domain.object().mr.reg;
    let start = pages.as_ptr().as_ptr().cast_const().cast();
    // SAFETY: the pages stay until the registration is closed; see the order of fields.
    let code =
        unsafe { reg(domain.domain.fid(), start, len, access, 0, key, 0, &mut mr, null_mut()) };
    library.check("fi_mr_reg", code)?;
    let mr = Owned::of(mr, "fi_mr_reg")?;
    if domain.mr_mode() & abi::FI_MR_ENDPOINT != 0 {
        library.check("fi_mr_bind", mr.bind(ep, 0))?;
        library.check("fi_mr_enable", mr.control(abi::FI_ENABLE, null_mut()))?;
    }
    Ok(Registered { mr, pages })
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    const LEN: usize = 4096;

    const WRONG: u32 = 1;
    const RIGHT: u32 = 2;

    /// One write with a target that may be wrong, then others as they should be until one has come, maybe over
    /// another connection: what was told before it, and what stands in the memory then.
    fn write(wrong: impl FnOnce(Target) -> Target) -> (Vec<u32>, Vec<u8>) {
        let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
        let [from, to] = &mut ends;
        let (address, target) = (to.address().unwrap(), to.target());
        from.connect(&address, wrong(target)).unwrap();
        from.outgoing().write(64, &[9; 8]).unwrap();
        from.outgoing().write(128, &[8; 8]).unwrap();
        while !from.write(64, 8, WRONG).unwrap() {
            let _ = from.poll(|_| {});
        }
        from.target = target;
        let mut told = Vec::new();
        while told.last() != Some(&RIGHT) {
            let _ = from.write(128, 8, RIGHT);
            let _ = from.poll(|_| {}); // it may learn that its write was refused
            // The other side takes part: there is no hardware.
            let _ = to.poll(|happened| match happened {
                Happened::Arrived(data) if told.last() != Some(&RIGHT) => told.push(data),
                _ => {}
            });
        }
        let mut seen = vec![0; LEN];
        to.incoming().read(0, &mut seen).unwrap();
        (told, seen)
    }

    fn memory(written: &[(usize, u8)]) -> Vec<u8> {
        let mut memory = vec![0; LEN];
        for &(at, byte) in written {
            memory[at..at + 8].fill(byte);
        }
        memory
    }

    #[test]
    fn a_write_lands_where_it_was_meant_to() {
        assert_eq!(write(|target| target), (vec![WRONG, RIGHT], memory(&[(64, 9), (128, 8)])));
    }

    #[test]
    fn without_the_key_nothing_is_written_or_told() {
        let forged = |target: Target| Target { key: target.key ^ 1, ..target };
        assert_eq!(write(forged), (vec![RIGHT], memory(&[(128, 8)])));
    }

    #[test]
    fn nothing_is_written_beyond_the_memory() {
        let beyond = |target: Target| Target { base: target.base + LEN as u64, ..target };
        assert_eq!(write(beyond), (vec![RIGHT], memory(&[(128, 8)])));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        let mut endpoint = Endpoint::open(&domain, LEN).unwrap();
        let target = endpoint.target();
        for address in [&[][..], &[0; MAX_ADDRESS + 1]] {
            let refused = endpoint.connect(address, target);
            assert!(matches!(refused, Err(FabricError::Nonsense { .. })));
        }
    }
}
