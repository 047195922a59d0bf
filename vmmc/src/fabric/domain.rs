//! Objects of libfabric, and the domain: access to a provider by way of one address.

use super::abi;
use super::gate::Gate;
use super::library::{FabricError, InfoList, Library, Wish};
use super::needs::{Need, why_not};
use std::ffi::c_void;
use std::net::IpAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Operations on their way at once, of one endpoint.
pub(super) const QUEUE: usize = 64;

/// What a call is told that the provider does not have.
pub(super) const NOT_THERE: i32 = -libc::ENOSYS;
pub(super) const NO_ENTRY: FabricError =
    FabricError::Nonsense { what: "a provider without what it offered" };

/// An object of libfabric that is closed when dropped, except in a forked child. Fields of this type close
/// in the order in which they stand.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    gate: Arc<Gate>,
    closed: bool,
}

impl<T> std::fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.object.fmt(f)
    }
}

impl<T> Owned<T> {
    /// What `make` makes, which is a call of the library that has nobody beside it. [`NO_ENTRY`] when what it
    /// made cannot be closed, and so stays for ever.
    pub(super) fn make(
        library: &Library,
        gate: &Arc<Gate>,
        call: &'static str,
        make: impl FnOnce(&mut *mut T) -> i32,
    ) -> Result<Owned<T>, FabricError> {
        let mut made = null_mut();
        let alone = gate.alone();
        let code = make(&mut made);
        drop(alone);
        library.check(call, code)?;
        let nothing = || FabricError::Call { call, why: "it made nothing".to_owned() };
        let object = NonNull::new(made).ok_or_else(nothing)?;
        let made = Owned { object, gate: gate.clone(), closed: false };
        made.ops().close.ok_or(NO_ENTRY)?;
        Ok(made)
    }

    /// Closes it. 0, or why the library keeps it. In a forked child nothing is done.
    pub(super) fn close(mut self) -> i32 {
        self.close_once()
    }

    fn close_once(&mut self) -> i32 {
        if std::mem::replace(&mut self.closed, true) || !self.gate.is_ours() {
            return 0; // in a child the lock, too, may have been held when the process was forked
        }
        let Some(close) = self.ops().close else { return NOT_THERE };
        let _alone = self.gate.alone();
        // SAFETY: an object that is open, closed once, after those that were made from it.
        unsafe { close(self.fid()) }
    }

    pub(super) fn get(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// What we read of it does not change while it is open.
    pub(super) fn object(&self) -> &T {
        // SAFETY: open as long as this value is there.
        unsafe { self.object.as_ref() }
    }

    /// Every object of libfabric begins with its `fid`.
    pub(super) fn fid(&self) -> *mut abi::Fid {
        self.object.as_ptr().cast()
    }

    fn ops(&self) -> &'static abi::FidOps {
        // SAFETY: as above.
        let fid = unsafe { &*self.fid() };
        fid.ops
    }

    pub(super) fn control(&self, command: i32, argument: *mut c_void) -> i32 {
        let Some(control) = self.ops().control else { return NOT_THERE };
        let _alone = self.gate.alone();
        // SAFETY: an open object; the callers' commands take their arguments.
        unsafe { control(self.fid(), command, argument) }
    }

    pub(super) fn bind<O>(&self, to: &Owned<O>, flags: u64) -> i32 {
        let Some(bind) = self.ops().bind else { return NOT_THERE };
        let _alone = self.gate.alone();
        // SAFETY: open objects of one domain.
        unsafe { bind(self.fid(), to.fid(), flags) }
    }
}

impl Owned<abi::Fabric> {
    /// `fi_trywait` of one queue: 0 when a wait on its descriptor would notice what comes next, -EAGAIN when it
    /// must be read first.
    pub(super) fn try_wait(&self, cq: &Owned<abi::Cq>) -> i32 {
        let Some(trywait) = self.object().ops.trywait else { return NOT_THERE };
        let mut fid = cq.fid();
        let _beside = self.gate.beside_others();
        // SAFETY: an open fabric, and one queue of it.
        unsafe { trywait(self.get(), &mut fid, 1) }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.close_once();
    }
}

/// How the other end is told of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Notice {
    /// By data that come with it, where the provider has them and bears their end, and by a message where not.
    #[default]
    Auto,
    /// By a message behind it.
    Message,
}

/// What a provider is asked for, the best first: completion data; what puts a message behind a write; order of writes.
fn wishes(notice: Notice) -> impl Iterator<Item = Wish> {
    let wish = |data, order, caps| Wish { queue: QUEUE, order, caps, data };
    let waw = abi::FI_ORDER_RMA_WAW;
    let data = [wish(true, waw, 0), wish(true, 0, 0)];
    let orders = [abi::FI_ORDER_SAW | waw, abi::FI_ORDER_SAW, waw, 0];
    let message = [0, abi::FI_FENCE].into_iter().flat_map(move |caps| {
        let ordered = if caps == 0 { &orders[..2] } else { &orders[2..] };
        ordered.iter().map(move |&order| wish(false, order, caps)).collect::<Vec<_>>()
    });
    let unfenced = [wish(false, waw, 0), wish(false, 0, 0)];
    let data = data.into_iter().filter(move |_| notice == Notice::Auto);
    data.chain(message).chain(unfenced)
}

/// Access to a provider, by way of one address of this machine. Shared by its endpoints.
///
/// A key opens memory to whoever reaches an endpoint of its domain. So each connection has a domain of its own: there keys are
/// of no use to the peers of others, whether they are random or (`FI_MR_PROV_KEY`) the hardware's own and easily guessed. And
/// when the endpoint is closed nothing writes into memory that was registered for it any more: providers that are software look a key
/// up when a write begins, and then write for as long as bytes come.
#[derive(Debug)]
pub struct Domain {
    pub(super) domain: Owned<abi::Domain>,
    pub(super) fabric: Owned<abi::Fabric>,
    pub(super) info: InfoList,
    pub(super) library: &'static Library,
    pub(super) gate: Arc<Gate>,
    /// As it was asked for.
    pub(super) provider: String,
    pub(super) notice: Notice,
}

// SAFETY: opened with FI_THREAD_SAFE: the library takes its own locks, and the gate is ours.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain of a provider on an address of this machine, of the caller's own.
    ///
    /// # Errors
    /// No library, no such provider, no such address.
    pub fn open(provider: &str, local: IpAddr, notice: Notice) -> Result<Arc<Domain>, FabricError> {
        Ok(Arc::new(Domain::make(provider, local, notice)?))
    }

    fn make(provider: &str, local: IpAddr, notice: Notice) -> Result<Domain, FabricError> {
        let library = Library::get()?;
        // A provider that has not what it is asked for is not found.
        let offered = |notice, at| {
            let of = |wish| InfoList::of(Need::Room, Some(provider), at, wish).ok();
            wishes(notice).find_map(of)
        };
        let find = |notice| {
            // The addresses of some are their devices' own (`cxi0`), and no IP address finds them.
            let device = || offered(notice, None).filter(InfoList::is_by_device);
            offered(notice, Some(local)).or_else(device).ok_or_else(|| why_not(provider, local))
        };
        let mut info = find(notice)?;
        let trips = info.trips_over_data();
        let notice = if trips { Notice::Message } else { notice };
        if trips {
            info = find(notice)?;
        }
        let gate = Arc::new(Gate::new());
        let fabric = Owned::make(library, &gate, "fi_fabric", |fabric| {
            // SAFETY: the list is whole and lives; `fabric` is ours.
            unsafe { (library.fabric)(info.fabric_attr(), fabric, null_mut()) }
        })?;
        let open = fabric.object().ops.domain.ok_or(NO_ENTRY)?;
        let domain = Owned::make(library, &gate, "fi_domain", |domain| {
            // SAFETY: an open fabric, and its own info.
            unsafe { open(fabric.get(), info.first(), domain, null_mut()) }
        })?;
        let provider = provider.to_owned();
        Ok(Domain { domain, fabric, info, library, gate, provider, notice })
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

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::super::endpoint::Endpoint;
    use super::*;
    use std::ffi::c_int;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CLOSED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn close(_: *mut abi::Fid) -> c_int {
        CLOSED.fetch_add(1, Ordering::Relaxed);
        0
    }

    fn object(fid: &mut abi::Fid) -> Result<Owned<abi::Fid>, FabricError> {
        let (library, gate) = (Library::get().unwrap(), Arc::new(Gate::new()));
        Owned::make(library, &gate, "nothing", |made| {
            *made = fid;
            0
        })
    }

    /// As some of the providers have them.
    #[test]
    fn an_entry_that_is_null_is_an_error_and_not_called() {
        static OPS: abi::FidOps =
            abi::FidOps { size: 32, close: Some(close), bind: None, control: None };
        let mut fid = abi::Fid { class: 0, context: null_mut(), ops: &OPS };
        let made = object(&mut fid).unwrap();
        assert_eq!(made.control(abi::FI_ENABLE, null_mut()), NOT_THERE);
        assert_eq!(made.bind(&made, 0), NOT_THERE);
        drop(made);
        let made = object(&mut fid).unwrap();
        assert_eq!(made.close(), 0);
        assert_eq!(CLOSED.load(Ordering::Relaxed), 2, "each was closed once");
    }

    #[test]
    fn what_cannot_be_closed_is_refused() {
        static OPS: abi::FidOps = abi::FidOps { size: 32, close: None, bind: None, control: None };
        let mut fid = abi::Fid { class: 0, context: null_mut(), ops: &OPS };
        assert!(matches!(object(&mut fid), Err(FabricError::Nonsense { .. })));
    }

    /// Its parent's are of no use to it.
    #[test]
    fn a_forked_child_opens_a_domain_of_its_own() {
        let test = "a_forked_child_opens_a_domain_of_its_own";
        if !crate::testing::alone(&format!("fabric::domain::tests::{test}")) {
            return;
        }
        let open = || Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
        let domain = open();
        assert!(crate::testing::ends_well_in_a_child(|| !Arc::ptr_eq(&open(), &domain)));
        assert!(domain.gate.is_ours());
    }

    unsafe extern "C" fn no_trywait(_: *mut abi::Fabric, _: *mut *mut abi::Fid, _: c_int) -> c_int {
        NOT_THERE
    }

    /// `opx` has no entry, and others one that says so: who slept would not be woken, and who did not would
    /// take a processor for ever.
    #[test]
    fn a_provider_that_cannot_be_waited_for_is_refused() {
        for trywait in [None, Some(no_trywait as _)] {
            let domain =
                Domain::make("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
            let mut ops = *domain.fabric.object().ops;
            (ops.size, ops.trywait) = (size_of::<abi::FabricOps>(), trywait);
            // SAFETY: the fabric is this test's alone; its table is there for ever.
            unsafe { (*domain.fabric.get()).ops = Box::leak(Box::new(ops)) };
            let refused = Endpoint::open(&Arc::new(domain), 4096).map(|_| ());
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("net") && text.contains("wait for completions"), "{text}");
        }
    }

    /// As `shm` is, in libfabric 1.17 and 2.6.
    #[test]
    fn a_provider_without_a_descriptor_to_wait_by_is_named_with_what_helps() {
        let domain = Domain::open("shm", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
        let refused = Endpoint::open(&domain, 4096).map(|_| ()).unwrap_err();
        assert!(matches!(refused, FabricError::Unfit { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains("libfabric's shm") && text.contains("over TCP then"), "{text}");
    }
}
