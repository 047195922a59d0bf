//! libfabric as loaded at run time.

use super::abi::{self, Info};
use super::environment;
use super::needs::{DATA_LEN, Need};
use crate::sys::own::OwnMutex;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr::NonNull;

/// Why something did not go over a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The library is not there, or is not usable.
    #[error("libfabric: {why}; install the Debian package libfabric1")]
    Missing {
        /// The loader's words.
        why: String,
    },
    /// No such provider, or it cannot do what we need on this address.
    #[error(
        "libfabric has no provider {provider:?} for remote writes on {local} ({why}); `fi_info` lists what there is"
    )]
    Provider {
        /// As it was asked for.
        provider: String,
        /// Of this node.
        local: IpAddr,
        /// The library's words.
        why: String,
    },
    /// It offered what we need, and when it came to that had it not.
    #[error("libfabric's {provider} cannot carry packets: {missing} ({why}); {remedy}")]
    Unfit {
        /// As it was asked for.
        provider: String,
        /// What it has not.
        missing: &'static str,
        /// What it said instead.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A call failed.
    #[error("{call} of libfabric: {why}")]
    Call {
        /// Which.
        call: &'static str,
        /// The library's words.
        why: String,
    },
    /// The peer does not let us write there: the key opens nothing, or not that place. Or the connection was lost under it, which
    /// is how the providers over TCP refuse.
    #[error("a write into exported pages was refused, or cut off ({why})")]
    Refused {
        /// The library's words.
        why: String,
    },
    /// The provider or the other end cannot be what it says it is.
    #[error("libfabric endpoint: {what}")]
    Nonsense {
        /// What is wrong.
        what: &'static str,
    },
}

type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    found: *mut *mut Info,
) -> c_int;

/// The entry points. All else is reached from what they return.
#[derive(Debug)]
pub(super) struct Library {
    getinfo: GetInfo,
    freeinfo: unsafe extern "C" fn(*mut Info),
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) fabric:
        unsafe extern "C" fn(*mut abi::FabricAttr, *mut *mut abi::Fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn() -> u32,
}

fn loader_error() -> FabricError {
    // SAFETY: dlerror returns null, or a text that stays until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    let why = match owned_text(text) {
        text if text.is_empty() => "the loader does not say why".to_owned(),
        text => text,
    };
    FabricError::Missing { why }
}

/// An entry point, in the version of its structures that `abi` has.
fn symbol(
    library: NonNull<c_void>,
    name: &CStr,
    version: &CStr,
) -> Result<NonNull<c_void>, FabricError> {
    // SAFETY: the handle is of an open library, the texts end with a zero.
    let found = unsafe { libc::dlvsym(library.as_ptr(), name.as_ptr(), version.as_ptr()) };
    NonNull::new(found).ok_or_else(loader_error)
}

impl Library {
    /// The library, loaded once. (A forked child asks the loader again, which has it.)
    pub(super) fn get() -> Result<&'static Library, FabricError> {
        static LIBRARY: OwnMutex<Option<Result<&'static Library, FabricError>>> = OwnMutex::new();
        let load = || {
            let library = Library::load()?;
            environment::with_wanted(|| library.begin());
            Ok(&*Box::leak(Box::new(library)))
        };
        LIBRARY.lock().get_or_insert_with(load).clone()
    }

    fn load() -> Result<Library, FabricError> {
        // SAFETY: a text with its zero. The library's constructors are libfabric's own.
        let handle =
            unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(loader_error)?;
        let getinfo = symbol(handle, c"fi_getinfo", c"FABRIC_1.3")?;
        let freeinfo = symbol(handle, c"fi_freeinfo", c"FABRIC_1.3")?;
        let dupinfo = symbol(handle, c"fi_dupinfo", c"FABRIC_1.3")?;
        let fabric = symbol(handle, c"fi_fabric", c"FABRIC_1.1")?;
        let strerror = symbol(handle, c"fi_strerror", c"FABRIC_1.0")?;
        let version = symbol(handle, c"fi_version", c"FABRIC_1.0")?;
        // The library is never closed.
        Ok(Library {
            // SAFETY: the symbol has this type (rdma/fabric.h, symbol version FABRIC_1.3).
            getinfo: unsafe { std::mem::transmute::<NonNull<c_void>, GetInfo>(getinfo) },
            // SAFETY: as above.
            freeinfo: unsafe {
                std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut Info)>(freeinfo)
            },
            // SAFETY: as above.
            dupinfo: unsafe {
                std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*const Info) -> *mut Info>(
                    dupinfo,
                )
            },
            // SAFETY: as above, symbol version FABRIC_1.1.
            fabric: unsafe {
                std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(
                        *mut abi::FabricAttr,
                        *mut *mut abi::Fabric,
                        *mut c_void,
                    ) -> c_int,
                >(fabric)
            },
            // SAFETY: as above, symbol version FABRIC_1.0.
            strerror: unsafe {
                std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(c_int) -> *const c_char>(
                    strerror,
                )
            },
            // SAFETY: as above, symbol version FABRIC_1.0.
            version: unsafe {
                std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> u32>(version)
            },
        })
    }

    /// Its first use, for which providers are loaded and read what they are told by the environment.
    fn begin(&self) {
        let mut found = std::ptr::null_mut();
        // SAFETY: no texts, no hints, and `found` is ours.
        let code = unsafe {
            let none = std::ptr::null();
            (self.getinfo)(abi::VERSION, none, none, 0, std::ptr::null(), &mut found)
        };
        if code == 0 && !found.is_null() {
            // SAFETY: a list that the library made, freed once.
            unsafe { (self.freeinfo)(found) };
        }
    }

    /// What an error number means.
    pub(super) fn words(&self, code: i64) -> String {
        let code = c_int::try_from(code.unsigned_abs()).unwrap_or(c_int::MAX);
        // SAFETY: takes any number, returns a text of the library that stays.
        let text = unsafe { (self.strerror)(code) };
        match owned_text(text) {
            text if text.is_empty() => format!("error {code}"),
            text => text,
        }
    }

    /// `Ok` for zero.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), FabricError> {
        match code {
            0 => Ok(()),
            code => Err(FabricError::Call { call, why: self.words(i64::from(code)) }),
        }
    }
}

/// What else is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish {
    /// Operations on their way at once.
    pub(super) queue: usize,
    /// Bits of `msg_order`.
    pub(super) order: u64,
    /// Of `caps`.
    pub(super) caps: u64,
    /// Completion data.
    pub(super) data: bool,
}

/// A list that `fi_getinfo` made.
#[derive(Debug)]
pub(super) struct InfoList {
    library: &'static Library,
    first: NonNull<Info>,
}

// SAFETY: the list is plain memory that nobody else has.
unsafe impl Send for InfoList {}
// SAFETY: as above; nobody writes to it while it is shared.
unsafe impl Sync for InfoList {}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: ours, from fi_getinfo or fi_dupinfo, and freed once.
        unsafe { (self.library.freeinfo)(self.first.as_ptr()) };
    }
}

impl InfoList {
    pub(super) fn first(&self) -> *mut Info {
        self.first.as_ptr()
    }

    fn info(&self) -> &Info {
        // SAFETY: whole, and nobody writes to it while it is borrowed.
        unsafe { self.first.as_ref() }
    }

    pub(super) fn domain_attr(&self) -> &abi::DomainAttr {
        // SAFETY: as above.
        unsafe { &*self.info().domain_attr }
    }

    pub(super) fn fabric_attr(&self) -> *mut abi::FabricAttr {
        self.info().fabric_attr
    }

    /// Up to how many bytes remote writes land in the order in which they were made.
    pub(super) fn ordered_len(&self) -> usize {
        // SAFETY: whole, and nobody writes to it while it is borrowed.
        let tx = unsafe { &*self.info().tx_attr };
        // SAFETY: as above.
        let ep = unsafe { &*self.info().ep_attr };
        if tx.msg_order & abi::FI_ORDER_RMA_WAW != 0 { ep.max_order_waw_size } else { 0 }
    }

    /// Whether a write with data that has come in part when its connection is closed may end the process: `tcp` tells
    /// of it as an error that is nobody's, and `ofi_rxm` above it takes that for one of its own (SIGSEGV in 1.17).
    pub(super) fn trips_over_data(&self) -> bool {
        // SAFETY: whole, and nobody writes to it while it is borrowed.
        let name = owned_text(unsafe { (*self.fabric_attr()).prov_name });
        let layered = |names: &[&str]| name.split(';').any(|layer| names.contains(&layer));
        layered(&["ofi_rxm"]) && layered(&["tcp", "net", "sockets"])
    }

    /// Whether its addresses are of another kind than those of sockets.
    pub(super) fn is_by_device(&self) -> bool {
        !abi::SOCKET_ADDRESSES.contains(&self.info().addr_format)
    }

    /// Whether messages come after the writes before them.
    pub(super) fn orders_messages(&self) -> bool {
        // SAFETY: whole, and nobody writes to it while it is borrowed.
        let tx = unsafe { &*self.info().tx_attr };
        tx.msg_order & abi::FI_ORDER_SAW != 0
    }

    /// Whether an operation may wait for those before it.
    pub(super) fn fences(&self) -> bool {
        self.info().caps & abi::FI_FENCE != 0
    }

    /// What the provider asks of us.
    pub(super) fn mode(&self) -> u64 {
        // SAFETY: as above.
        let rx = unsafe { &*self.info().rx_attr };
        self.info().mode | rx.mode
    }

    /// What a provider offers up to a need, on an address of this machine; without a provider, all.
    pub(super) fn of(
        need: Need,
        provider: Option<&str>,
        local: Option<IpAddr>,
        wish: Wish,
    ) -> Result<InfoList, FabricError> {
        let library = Library::get()?;
        // SAFETY: null asks for an empty one.
        let hints = unsafe { (library.dupinfo)(std::ptr::null()) };
        let first = NonNull::new(hints)
            .ok_or_else(|| FabricError::Call { call: "fi_dupinfo", why: "no memory".to_owned() })?;
        let mut hints = InfoList { library, first };
        hints.ask_for(need, provider, wish);
        let local = local.filter(|_| need >= Need::Address);
        let node = local.and_then(|local| CString::new(local.to_string()).ok());
        let node_text = node.as_ref().map_or(std::ptr::null(), |node| node.as_ptr());
        let flags = if node.is_some() { abi::FI_SOURCE | abi::FI_NUMERICHOST } else { 0 };
        let mut found = std::ptr::null_mut();
        // SAFETY: the texts end with a zero, the hints are whole, and `found` is ours.
        let code = unsafe {
            let hints = hints.first();
            (library.getinfo)(abi::VERSION, node_text, std::ptr::null(), flags, hints, &mut found)
        };
        match NonNull::new(found) {
            Some(first) if code == 0 => Ok(InfoList { library, first }),
            _ => Err(FabricError::Call { call: "fi_getinfo", why: library.words(code.into()) }),
        }
    }

    /// Fills in hints.
    fn ask_for(&mut self, need: Need, provider: Option<&str>, wish: Wish) {
        let Wish { queue, order, caps, data } = wish;
        // SAFETY: from fi_dupinfo(NULL), which makes all the structures; they are ours alone.
        let info = unsafe { self.first.as_mut() };
        info.caps = need.caps() | caps;
        info.mode = u64::MAX; // asks nothing of providers
        if need >= Need::Writes {
            info.mode = abi::FI_RX_CQ_DATA;
        }
        // SAFETY: as above.
        let endpoint = unsafe { &mut *info.ep_attr };
        if need >= Need::Datagrams {
            endpoint.kind = abi::FI_EP_RDM;
        }
        // SAFETY: as above.
        let domain = unsafe { &mut *info.domain_attr };
        if need >= Need::Threads {
            domain.threading = abi::FI_THREAD_SAFE;
            domain.resource_mgmt = abi::FI_RM_ENABLED;
        }
        if data {
            domain.cq_data_size = DATA_LEN;
        }
        domain.mr_mode = abi::FI_MR_LOCAL
            | abi::FI_MR_VIRT_ADDR
            | abi::FI_MR_ALLOCATED
            | abi::FI_MR_PROV_KEY
            | abi::FI_MR_ENDPOINT;
        // SAFETY: as above.
        let (tx, rx) = (unsafe { &mut *info.tx_attr }, unsafe { &mut *info.rx_attr });
        if need >= Need::Room {
            (tx.size, rx.size) = (queue, queue);
            (tx.msg_order, rx.msg_order) = (order, order);
        }
        if let Some(name) = provider.and_then(|name| CString::new(name).ok()) {
            // SAFETY: as above.
            let fabric = unsafe { &mut *info.fabric_attr };
            // SAFETY: a text with its zero. The copy is freed with the rest, by free(3).
            fabric.prov_name = unsafe { libc::strdup(name.as_ptr()) };
        }
    }

    /// Names and addresses, one per entry.
    fn entries(&self) -> Vec<Provider> {
        let mut all = Vec::new();
        let mut next = self.first.as_ptr();
        while let Some(entry) = NonNull::new(next) {
            // SAFETY: an entry of a list that lives.
            let info = unsafe { entry.as_ref() };
            // SAFETY: as above.
            let fabric = unsafe { &*info.fabric_attr };
            // SAFETY: as above.
            let domain = unsafe { &*info.domain_attr };
            let found =
                Provider { name: owned_text(fabric.prov_name), domain: owned_text(domain.name) };
            if !all.contains(&found) {
                all.push(found);
            }
            next = info.next;
        }
        all
    }
}

/// A text of the library; null is none.
fn owned_text(text: *const c_char) -> String {
    match NonNull::new(text.cast_mut()) {
        None => String::new(),
        // SAFETY: the library's texts end with a zero, and stay while we copy.
        Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned(),
    }
}

/// What `shrimp doctor` tells of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name, as the cluster file would have it.
    pub name: String,
    /// The device or interface.
    pub domain: String,
}

/// Version of the library, major and minor, and the providers that offer what the engine needs.
///
/// # Errors
/// [`FabricError::Missing`]; no provider at all.
pub fn providers() -> Result<((u32, u32), Vec<Provider>), FabricError> {
    let library = Library::get()?;
    // SAFETY: takes nothing, returns a number.
    let version = unsafe { (library.version)() };
    let list = InfoList::of(Need::Room, None, None, Wish::default())?;
    Ok(((version >> 16, version & 0xffff), list.entries()))
}
