//! Objects of libfabric, and the domain: access to a provider by way of one address.

use super::abi;
use super::library::{FabricError, InfoList, Library};
use std::collections::HashMap;
use std::ffi::c_void;
use std::net::IpAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Operations on their way at once, of one endpoint.
pub(super) const QUEUE: usize = 64;

/// An object of libfabric that is closed when dropped. Fields of this type close in the order in which
/// they stand.
pub(super) struct Owned<T>(NonNull<T>);

impl<T> std::fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Owned<T> {
    /// What a call that makes something made.
    pub(super) fn of(made: *mut T, call: &'static str) -> Result<Owned<T>, FabricError> {
        let nothing = || FabricError::Call { call, why: "it made nothing".to_owned() };
        NonNull::new(made).map(Owned).ok_or_else(nothing)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// What we read of it does not change while it is open.
    pub(super) fn object(&self) -> &T {
        // SAFETY: open as long as this value is there.
        unsafe { self.0.as_ref() }
    }

    /// Every object of libfabric begins with its `fid`.
    pub(super) fn fid(&self) -> *mut abi::Fid {
        self.0.as_ptr().cast()
    }

    fn ops(&self) -> &'static abi::FidOps {
        // SAFETY: as above.
        let fid = unsafe { &*self.fid() };
        fid.ops
    }

    pub(super) fn control(&self, command: i32, argument: *mut c_void) -> i32 {
        // SAFETY: an open object; the callers' commands take their arguments.
        unsafe { (self.ops().control)(self.fid(), command, argument) }
    }

    pub(super) fn bind<O>(&self, to: &Owned<O>, flags: u64) -> i32 {
        // SAFETY: open objects of one domain.
        unsafe { (self.ops().bind)(self.fid(), to.fid(), flags) }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: an object that is open, closed once, after those that were made from it.
        unsafe { (self.ops().close)(self.fid()) };
    }
}

/// Access to a provider, by way of one address of this machine. Shared by its endpoints.
#[derive(Debug)]
pub struct Domain {
    pub(super) domain: Owned<abi::Domain>,
    pub(super) fabric: Owned<abi::Fabric>,
    pub(super) info: InfoList,
    pub(super) library: &'static Library,
}

// SAFETY: opened with FI_THREAD_SAFE: the library takes its own locks.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

type Known = Mutex<HashMap<(u32, String, IpAddr), Weak<Domain>>>;

impl Domain {
    /// The domain of a provider on an address of this machine; one per process, as long as somebody has
    /// it.
    ///
    /// # Errors
    /// No library, no such provider, no such address.
    pub fn open(provider: &str, local: IpAddr) -> Result<Arc<Domain>, FabricError> {
        static KNOWN: std::sync::OnceLock<Known> = std::sync::OnceLock::new();
        let mut known =
            KNOWN.get_or_init(Known::default).lock().unwrap_or_else(PoisonError::into_inner);
        // A forked child makes its own.
        let key = (std::process::id(), provider.to_owned(), local);
        if let Some(domain) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(domain);
        }
        let domain = Arc::new(Domain::make(provider, local)?);
        known.retain(|_, domain| domain.strong_count() > 0);
        known.insert(key, Arc::downgrade(&domain));
        Ok(domain)
    }

    fn make(provider: &str, local: IpAddr) -> Result<Domain, FabricError> {
        let library = Library::get()?;
        let provider_name = || provider.to_owned();
        let info =
            InfoList::of(Some(provider), Some(local), QUEUE).map_err(|error| match error {
                FabricError::Call { why, .. } => {
                    FabricError::Provider { provider: provider_name(), local, why }
                }
                other => other,
            })?;
        let mut fabric = null_mut();
        // SAFETY: the list is whole and lives; `fabric` is ours.
        let code = unsafe { (library.fabric)(info.fabric_attr(), &mut fabric, null_mut()) };
        library.check("fi_fabric", code)?;
        let fabric = Owned::of(fabric, "fi_fabric")?;
        let mut domain = null_mut();
        let open = fabric.object().ops.domain;
        // SAFETY: an open fabric, and its own info.
        let code = unsafe { open(fabric.get(), info.first(), &mut domain, null_mut()) };
        library.check("fi_domain", code)?;
        let domain = Owned::of(domain, "fi_domain")?;
        Ok(Domain { domain, fabric, info, library })
    }

    pub(super) fn mr_mode(&self) -> i32 {
        self.info.domain_attr().mr_mode
    }

    /// A key of as many random bits as the provider takes.
    pub(super) fn random_key(&self) -> Result<u64, FabricError> {
        let len = self.info.domain_attr().mr_key_size;
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(&mut bytes, flags)
            .map_err(|errno| FabricError::Call { call: "getrandom", why: errno.to_string() })?;
        let key = u64::from_ne_bytes(bytes);
        Ok(if len < 8 { key & ((1 << (8 * len)) - 1) } else { key })
    }
}
