//! Endpoints, with the memory that their peers may write.

mod notice;
mod staging;
mod window;

use super::abi::{self, CqEntry};
use super::domain::{Domain, NO_ENTRY, NOT_THERE, Owned, QUEUE};
use super::library::FabricError;
use super::needs::{is_not_there, no_wait};
use crate::mem::View;
use crate::sys::memfd;
use crate::sys::mmap::{Access, GuardedMapping};
use notice::Notices;
pub use staging::PIECE;
use staging::Staging;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use window::Window;

/// Longest address of an endpoint in bytes.
pub const MAX_ADDRESS: usize = 256;
/// What `fi_trywait` answers while a completion is unread.
const AGAIN: i32 = -libc::EAGAIN;

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
    mr: ManuallyDrop<Owned<abi::Mr>>,
    pages: ManuallyDrop<GuardedMapping>,
}

impl Registered {
    fn desc(&self) -> *mut c_void {
        self.mr.object().desc
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the value goes, and nobody uses it after this.
        let mr = unsafe { ManuallyDrop::take(&mut self.mr) };
        // Pages that the library has not let go of may still be written to: they stay for ever.
        if mr.close() == 0 {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// One end of a connection over a fabric: an endpoint with one peer, memory that the peer may write,
/// and memory of the same length from which we write to the peer's.
#[derive(Debug)]
pub struct Endpoint {
    // Closed in this order. What the peer may write is unmapped when nothing can come any more.
    ep: Owned<abi::Ep>,
    incoming: Registered,
    outgoing: Registered,
    windows: Vec<Window>,
    staging: Option<Staging>,
    cq: Owned<abi::Cq>,
    av: Owned<abi::Av>,
    wait: RawFd,
    peer: u64,
    target: Target,
    on_their_way: usize,
    /// Of the memory that the peer may write.
    len: usize,
    notices: Notices,
    /// The provider takes a posted receive for every write that it tells of.
    posts: bool,
    /// Its order is not to be relied upon, whatever it says.
    unordered: bool,
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
        let (library, gate) = (domain.library, &domain.gate);
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
        let av_open = ops.av_open.ok_or(NO_ENTRY)?;
        let av = Owned::make(library, gate, "fi_av_open", |av| {
            // SAFETY: an open domain; `attr` and `av` are ours.
            unsafe { av_open(domain_ptr, &mut attr, av, null_mut()) }
        })?;

        let mut attr = abi::CqAttr {
            size: 4 * QUEUE,
            flags: 0,
            format: abi::FI_CQ_FORMAT_DATA,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let cq_open = ops.cq_open.ok_or(NO_ENTRY)?;
        let unwaited =
            |call: &str, why: String| no_wait(&domain.provider, format!("{call}: {why}"));
        let mut code = 0;
        let cq = Owned::make(library, gate, "fi_cq_open", |cq| {
            // SAFETY: as above.
            code = unsafe { cq_open(domain_ptr, &mut attr, cq, null_mut()) };
            code
        });
        let cq = cq.map_err(|error| match error {
            FabricError::Call { why, .. } if is_not_there(code as isize) => {
                unwaited("fi_cq_open", why)
            }
            other => other,
        })?;
        let mut wait: RawFd = -1;
        let code = cq.control(abi::FI_GETWAIT, (&raw mut wait).cast()); // stores a descriptor
        if code != 0 {
            return Err(unwaited("fi_control(FI_GETWAIT)", library.words(code.into())));
        }

        let endpoint = ops.endpoint.ok_or(NO_ENTRY)?;
        let ep = Owned::make(library, gate, "fi_endpoint", |ep| {
            // SAFETY: as above; the info is the domain's.
            unsafe { endpoint(domain_ptr, domain.info.first(), ep, null_mut()) }
        })?;
        library.check("fi_ep_bind", ep.bind(&av, 0))?;
        library.check("fi_ep_bind", ep.bind(&cq, abi::FI_TRANSMIT | abi::FI_RECV))?;
        library.check("fi_enable", ep.control(abi::FI_ENABLE, null_mut()))?;

        let incoming = register(domain, &ep, len, abi::FI_REMOTE_WRITE)?;
        // Messages come in behind it.
        let outgoing = register(domain, &ep, len + notice::ROOM, abi::FI_WRITE | abi::FI_RECV)?;
        let notices = Notices::new(&domain.info, domain.notice);
        let posts = domain.info.mode() & abi::FI_RX_CQ_DATA != 0;
        let domain = domain.clone();
        let target = Target { key: 0, base: 0 };
        let peer = u64::MAX;
        let mut endpoint = Endpoint {
            ep,
            incoming,
            outgoing,
            windows: Vec::new(),
            staging: None,
            cq,
            av,
            wait,
            peer,
            target,
            on_their_way: 0,
            len,
            notices,
            posts,
            unordered: false,
            domain,
        };
        endpoint.post_all()?;
        match endpoint.domain.fabric.try_wait(&endpoint.cq) {
            NOT_THERE => {
                Err(no_wait(&endpoint.domain.provider, "fi_trywait is not there".to_owned()))
            }
            AGAIN => Ok(endpoint),
            code => library.check("fi_trywait", code).map(|()| endpoint),
        }
    }

    /// What the peer needs to reach this endpoint.
    ///
    /// # Errors
    /// As the library says.
    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        let mut bytes = vec![0u8; MAX_ADDRESS];
        let mut len = bytes.len();
        let getname = self.ep.object().cm.and_then(|cm| cm.getname).ok_or(NO_ENTRY)?;
        let _beside = self.domain.gate.beside_others();
        // SAFETY: `len` bytes are there to be filled.
        let code = unsafe { getname(self.ep.fid(), bytes.as_mut_ptr().cast(), &mut len) };
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
        // As long as the longest, so that the library reads nothing beyond, and with a zero: some
        // providers' addresses are texts.
        let mut bytes = [0u8; MAX_ADDRESS + 1];
        if let Some(place) = bytes.get_mut(..address.len()) {
            place.copy_from_slice(address);
        }
        let mut peer = u64::MAX;
        let insert = self.av.object().ops.insert.ok_or(NO_ENTRY)?;
        let _alone = self.domain.gate.alone();
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
        let pages = View::of(&self.outgoing.pages);
        pages.slice(0, self.len).unwrap_or(pages)
    }

    /// Makes progress, and takes what has happened.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn poll(&mut self, mut happened: impl FnMut(Happened)) -> Result<(), FabricError> {
        const NONE: CqEntry =
            CqEntry { context: null_mut(), flags: 0, len: 0, buf: null_mut(), data: 0 };
        let read = self.cq.object().ops.read.ok_or(NO_ENTRY)?;
        loop {
            let mut entries = [NONE; 16];
            let beside = self.domain.gate.beside_others();
            // SAFETY: room for so many entries of the queue's format.
            let found = unsafe { read(self.cq.get(), entries.as_mut_ptr().cast(), entries.len()) };
            drop(beside);
            if found == -(libc::EAGAIN as isize) || found == 0 {
                return self.tell();
            }
            let Ok(found) = usize::try_from(found) else { return Err(self.completion(found)) };
            for entry in entries.iter().take(found) {
                if entry.flags & abi::FI_REMOTE_CQ_DATA != 0 && entry.flags & abi::FI_WRITE == 0 {
                    happened(Happened::Arrived(entry.data as u32)); // we sent 32 bits
                    if self.posts {
                        self.received(entry.context, None)?;
                    }
                } else if entry.flags & abi::FI_RECV != 0 {
                    happened(Happened::Arrived(self.received(entry.context, Some(entry.len))?));
                } else {
                    self.on_their_way = self.on_their_way.saturating_sub(1);
                    match &mut self.staging {
                        Some(staging) if !entry.context.is_null() => staging.free(entry.context),
                        _ => happened(Happened::Sent),
                    }
                }
            }
            if found < entries.len() {
                return self.tell();
            }
        }
    }

    /// Why the queue has an error instead of a completion.
    #[cold]
    fn completion(&mut self, code: isize) -> FabricError {
        let library = self.domain.library;
        let mut why = library.words(code as i64);
        if code == -abi::FI_EAVAIL
            && let Some(readerr) = self.cq.object().ops.readerr
        {
            // SAFETY: all zero is a valid value of this C structure.
            let mut error: abi::CqError = unsafe { std::mem::zeroed() };
            let _beside = self.domain.gate.beside_others();
            // SAFETY: an open queue; room for one entry, with no buffer for more.
            let read = unsafe { readerr(self.cq.get(), &mut error, 0) };
            if read == 1 {
                why = library.words(i64::from(error.err));
                if !error.context.is_null() {
                    return FabricError::Refused { why };
                }
            }
        }
        FabricError::Call { call: "a completion", why }
    }

    /// Whether a wait on [`Endpoint::wait_fd`] would notice whatever happens next. False: poll again.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        // Any other answer would be the same the next time.
        self.domain.fabric.try_wait(&self.cq) != AGAIN && !self.is_to_tell()
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
    let reg = domain.domain.object().mr.and_then(|mr| mr.reg).ok_or(NO_ENTRY)?;
    let start = pages.as_ptr().as_ptr().cast_const().cast();
    let mr = Owned::make(library, &domain.gate, "fi_mr_reg", |mr| {
        // SAFETY: the pages stay until the registration is closed, for ever where it cannot be: here, if
        // there is no entry for that, and in `Registered::drop`.
        unsafe { reg(domain.domain.fid(), start, len, access, 0, key, 0, mr, null_mut()) }
    });
    let (mr, pages) = match mr {
        Ok(mr) => (ManuallyDrop::new(mr), ManuallyDrop::new(pages)),
        Err(error) => {
            if matches!(error, FabricError::Nonsense { .. }) {
                std::mem::forget(pages); // registered, and never to be closed
            }
            return Err(error);
        }
    };
    let made = Registered { mr, pages };
    if domain.mr_mode() & abi::FI_MR_ENDPOINT != 0 {
        library.check("fi_mr_bind", made.mr.bind(ep, 0))?;
        library.check("fi_mr_enable", made.mr.control(abi::FI_ENABLE, null_mut()))?;
    }
    Ok(made)
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests;
#[cfg(all(test, not(vmmc_loom)))]
mod window_tests;
