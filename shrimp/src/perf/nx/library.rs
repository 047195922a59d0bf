//! libnx.so as a C program has it: loaded by the dynamic loader, entered by its C entry points.
#![allow(unsafe_code)]

use super::rank::RankError;
use std::ffi::{CStr, CString, c_int, c_long, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A handler of `hrecv`: type, count, node, process type.
pub(super) type Handler = extern "C" fn(c_long, c_long, c_long, c_long);

type Send = unsafe extern "C" fn(c_long, *mut c_void, c_long, c_long, c_long);
type Receive = unsafe extern "C" fn(c_long, *mut c_void, c_long);
type StartSend = unsafe extern "C" fn(c_long, *mut c_void, c_long, c_long, c_long) -> c_long;
type StartReceive = unsafe extern "C" fn(c_long, *mut c_void, c_long) -> c_long;
type Wait = unsafe extern "C" fn(c_long);
type Handle = unsafe extern "C" fn(c_long, *mut c_void, c_long, Option<Handler>);
type Sync = unsafe extern "C" fn();
type Sum = unsafe extern "C" fn(*mut f64, c_long, *mut f64);
type Number = unsafe extern "C" fn() -> c_long;

/// The entry points that are measured. Each ends the process on an error, as in a C program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    csend: Send,
    crecv: Receive,
    isend: StartSend,
    irecv: StartReceive,
    msgwait: Wait,
    hrecv: Handle,
    gsync: Sync,
    gdsum: Sum,
    mynode: Number,
    numnodes: Number,
}

/// The address of a function of the library.
fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, RankError> {
    // SAFETY: a library that is loaded, and a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        Err(RankError::Library(format!("{name:?} is not in it")))
    } else {
        Ok(found)
    }
}

/// What went wrong in the loader.
fn loader_error() -> RankError {
    // SAFETY: no other thread of ours is in the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return RankError::Library("unknown error".into());
    }
    // SAFETY: a string that stays until the next call of the loader.
    RankError::Library(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

macro_rules! function {
    ($library:ident, $kind:ty, $name:literal) => {
        // SAFETY: `nx.h` declares the function with this type.
        unsafe { std::mem::transmute::<*mut c_void, $kind>(symbol($library, $name)?) }
    };
}

impl Library {
    /// Loads it. Its constructor joins the job that the environment tells of.
    pub(super) fn load(path: &Path) -> Result<Library, RankError> {
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|error| RankError::Library(error.to_string()))?;
        const HOW: c_int = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: a library of ours; what its constructor does is what we want.
        let library = unsafe { libc::dlopen(name.as_ptr(), HOW) };
        if library.is_null() {
            return Err(loader_error());
        }
        Ok(Library {
            csend: function!(library, Send, c"csend"),
            crecv: function!(library, Receive, c"crecv"),
            isend: function!(library, StartSend, c"isend"),
            irecv: function!(library, StartReceive, c"irecv"),
            msgwait: function!(library, Wait, c"msgwait"),
            hrecv: function!(library, Handle, c"hrecv"),
            gsync: function!(library, Sync, c"gsync"),
            gdsum: function!(library, Sum, c"gdsum"),
            mynode: function!(library, Number, c"mynode"),
            numnodes: function!(library, Number, c"numnodes"),
        })
    }

    pub(super) fn node(&self) -> u32 {
        // SAFETY: takes nothing.
        unsafe { (self.mynode)() as u32 }
    }

    pub(super) fn nodes(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.numnodes)() as usize }
    }

    #[inline]
    pub(super) fn csend(&self, type_: c_long, bytes: &mut [u8], node: c_long) {
        // SAFETY: the bytes are borrowed for the call.
        unsafe { (self.csend)(type_, bytes.as_mut_ptr().cast(), bytes.len() as c_long, node, 0) }
    }

    #[inline]
    pub(super) fn crecv(&self, type_: c_long, room: &mut [u8]) {
        // SAFETY: the room is borrowed for the call.
        unsafe { (self.crecv)(type_, room.as_mut_ptr().cast(), room.len() as c_long) }
    }

    /// `irecv`, `csend`, and the wait for what was posted.
    #[inline]
    pub(super) fn exchange(&self, type_: c_long, bytes: &mut [u8], room: &mut [u8], node: c_long) {
        let id = self.post(type_, room);
        self.send_at_once(type_, bytes, node);
        // SAFETY: an id of this library.
        unsafe { (self.msgwait)(id) }
    }

    /// `irecv`, the wait for it, and an answer.
    #[inline]
    pub(super) fn answer(&self, type_: c_long, bytes: &mut [u8], room: &mut [u8], node: c_long) {
        let id = self.post(type_, room);
        // SAFETY: an id of this library.
        unsafe { (self.msgwait)(id) }
        self.send_at_once(type_, bytes, node);
    }

    /// Both callers wait for the id before they return.
    fn post(&self, type_: c_long, room: &mut [u8]) -> c_long {
        // SAFETY: the room is borrowed by the caller until it has waited.
        unsafe { (self.irecv)(type_, room.as_mut_ptr().cast(), room.len() as c_long) }
    }

    fn send_at_once(&self, type_: c_long, bytes: &mut [u8], node: c_long) {
        let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len() as c_long);
        // SAFETY: the bytes are borrowed until the wait below.
        let id = unsafe { (self.isend)(type_, start, len, node, 0) };
        // SAFETY: an id of this library.
        unsafe { (self.msgwait)(id) }
    }

    /// Has `handler` called for the next message of a type, which goes into `room`; no handler
    /// and no room take that back.
    ///
    /// # Safety
    /// The room must stay, unused, until the handler runs or is taken back.
    pub(super) unsafe fn hrecv(
        &self,
        type_: c_long,
        room: *mut u8,
        len: usize,
        handler: Option<Handler>,
    ) {
        // SAFETY: passed on.
        unsafe { (self.hrecv)(type_, room.cast(), len as c_long, handler) }
    }

    #[inline]
    pub(super) fn gsync(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.gsync)() }
    }

    /// `work` is as long as `x`.
    #[inline]
    pub(super) fn gdsum(&self, x: &mut [f64], work: &mut [f64]) {
        let len = x.len().min(work.len());
        // SAFETY: both are borrowed for the call, and so long.
        unsafe { (self.gdsum)(x.as_mut_ptr(), len as c_long, work.as_mut_ptr()) }
    }
}
