//! Parallel I/O of Fortran programs: files are units there.
//!
//! A unit that `GOPEN` has opened is a descriptor of ours. One that the program's `OPEN` has opened is the Fortran library's:
//! gfortran says which descriptor that is (its `FNUM`), and what it has buffered is written before ours is. So either way of
//! opening serves; a unit is for these calls or for READ and WRITE, and not for both in turns, because the Fortran library
//! keeps a buffer and a position of its own.

use super::esize::ESize;
use super::io;
use super::modes;
use super::strings::fortran_string;
use super::together::{self, OnError};
use super::{Failure, deref, plain};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors of units that `GOPEN` has opened.
static OPENED: Mutex<Option<HashMap<i32, c_int>>> = Mutex::new(None);

fn opened() -> MutexGuard<'static, Option<HashMap<i32, c_int>>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`deref`], of each.
///
/// # Safety
/// As [`deref`].
unsafe fn derefs<const N: usize>(all: [*const i32; N]) -> [i32; N] {
    // SAFETY: passed on.
    all.map(|at| unsafe { deref(at) })
}

/// A function of the Fortran library that takes a unit, if that library is here.
fn of_library(name: &CStr) -> Option<unsafe extern "C" fn(*const i32) -> i32> {
    // SAFETY: any name may be asked for.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: libgfortran's functions of the names that we ask for take the address of an INTEGER; one answers an INTEGER, the
    // other nothing, which is not looked at.
    (!function.is_null()).then(|| unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const i32) -> i32>(function)
    })
}

/// The descriptor of a unit.
fn descriptor(unit: i32) -> Result<c_int, Failure> {
    if let Some(&fd) = opened().as_ref().and_then(|opened| opened.get(&unit)) {
        return Ok(fd);
    }
    // SAFETY: a unit may be any number.
    let fd = of_library(c"_gfortran_fnum_i4").map_or(-1, |fnum| unsafe { fnum(&raw const unit) });
    if fd < 0 {
        let why = format!("unit {unit} is not open; open it with GOPEN or OPEN");
        return Err(Failure::System(super::errno::EQBADFIL, why));
    }
    if let Some(flush) = of_library(c"_gfortran_flush_i4") {
        // SAFETY: as above.
        unsafe { flush(&raw const unit) };
    }
    Ok(fd)
}

/// Opens a file for reading and writing, or for reading if that is all that may be done with it; it is made if it is not there.
fn open(unit: i32, path: &str, mode: i32) -> Result<(), Failure> {
    let name = CString::new(path)
        .map_err(|_| Failure::System(super::errno::EQPARAM, "a name with a zero byte".into()))?;
    let flags = libc::O_CLOEXEC | libc::O_CREAT | libc::O_RDWR;
    let fd = together::open(flags, mode, OnError::EndsAll, |flags| {
        // SAFETY: a string.
        let mut fd = unsafe { libc::open(name.as_ptr(), flags, 0o666) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        if fd < 0 && matches!(errno, Some(libc::EACCES | libc::EROFS)) {
            // SAFETY: as above.
            fd = unsafe { libc::open(name.as_ptr(), libc::O_CLOEXEC | libc::O_RDONLY) };
        }
        together::owned(fd, path)
    })?;
    if let Some(before) = opened().get_or_insert_default().insert(unit, fd.into_raw_fd()) {
        // SAFETY: the unit's own, which nothing else has.
        unsafe { libc::close(before) };
    }
    Ok(())
}

/// `CALL GOPEN(unit, name, iomode)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gopen_(
    unit: *const i32,
    path: *const c_char,
    mode: *const i32,
    len: c_long,
) {
    // SAFETY: Fortran passes the address of an INTEGER.
    let unit = unsafe { deref(unit) };
    // SAFETY: as above.
    let mode = unsafe { deref(mode) };
    // SAFETY: Fortran passes the string's own length.
    let path = unsafe { fortran_string(path, len) };
    plain("gopen", || open(unit, &path, mode));
}

macro_rules! transfers {
    ($($fortran:ident $name:literal $transfer:ident $wrap:path;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(unit: *const i32, buf: *mut c_void, count: *const i32) -> i32 {
            // SAFETY: Fortran passes the address of an INTEGER.
            let unit = unsafe { deref(unit) };
            // SAFETY: as above.
            let count = unsafe { deref(count) };
            plain($name, || $wrap(io::$transfer(descriptor(unit)?, buf, count)))
        }
    )* };
}

transfers! {
    cread_ "cread" read io::plainly;
    cwrite_ "cwrite" write io::plainly;
    iread_ "iread" read io::id;
    iwrite_ "iwrite" write io::id;
}

macro_rules! transfers_at {
    ($($fortran:ident $name:literal $system:ident $wrap:path;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(
            unit: *const i32, offset: *const ESize, buf: *mut c_void, count: *const i32,
        ) -> i32 {
            // SAFETY: Fortran passes the address of an INTEGER.
            let unit = unsafe { deref(unit) };
            // SAFETY: as above.
            let count = unsafe { deref(count) };
            // SAFETY: as above, of an array of two.
            let offset = unsafe { offset.read_unaligned() }.to_i64();
            plain($name, || {
                let (fd, count) = (descriptor(unit)?, io::len(count)?);
                // SAFETY: the caller's buffer; the kernel checks it.
                $wrap(io::bytes(unsafe { libc::$system(fd, buf.cast(), count, offset) }, $name))
            })
        }
    )* };
}

transfers_at! {
    readoff_ "readoff" pread io::plainly;
    writeoff_ "writeoff" pwrite io::plainly;
    ireadoff_ "ireadoff" pread io::id;
    iwriteoff_ "iwriteoff" pwrite io::id;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn iodone_(id: *const i32) -> i32 {
    // SAFETY: Fortran passes the address of an INTEGER.
    let id = unsafe { deref(id) };
    plain("iodone", || io::done(id))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn iowait_(id: *const i32) {
    // SAFETY: Fortran passes the address of an INTEGER.
    let id = unsafe { deref(id) };
    plain("iowait", || io::done(id).map(|_| ()));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn iseof_(unit: *const i32) -> i32 {
    // SAFETY: Fortran passes the address of an INTEGER.
    let unit = unsafe { deref(unit) };
    plain("iseof", || io::is_at_end(descriptor(unit)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lsize_(unit: *const i32, offset: *const i32, whence: *const i32) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let [unit, offset, whence] = unsafe { derefs([unit, offset, whence]) };
    plain("lsize", || {
        let size = io::size(descriptor(unit)?, offset.into(), whence)?;
        Ok(i32::try_from(size).unwrap_or(i32::MAX))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek_(unit: *const i32, offset: *const i32, whence: *const i32) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let [unit, offset, whence] = unsafe { derefs([unit, offset, whence]) };
    plain("lseek", || {
        let at = io::seek(descriptor(unit)?, ESize::from_i64(offset.into()), whence)?;
        Ok(i32::try_from(at.to_i64()).unwrap_or(i32::MAX))
    })
}

macro_rules! extended {
    ($($fortran:ident $name:literal |$fd:ident, $offset:ident, $whence:ident| $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(
            unit: *const i32, offset: *const ESize, whence: *const i32, result: *mut ESize,
        ) {
            // SAFETY: Fortran passes the address of an INTEGER.
            let unit = unsafe { deref(unit) };
            // SAFETY: as above.
            let $whence = unsafe { deref(whence) };
            // SAFETY: as above, of an array of two.
            let $offset = unsafe { offset.read_unaligned() };
            let value = plain($name, || {
                let $fd = descriptor(unit)?;
                $value
            });
            // SAFETY: as above.
            unsafe { result.write_unaligned(value) };
        }
    )* };
}

extended! {
    eseek_ "eseek" |fd, offset, whence| io::seek(fd, offset, whence);
    esize_ "esize" |fd, offset, whence| io::size(fd, offset.to_i64(), whence).map(ESize::from_i64);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setiomode_(unit: *const i32, mode: *const i32) {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let [unit, mode] = unsafe { derefs([unit, mode]) };
    plain("setiomode", || together::set_mode(descriptor(unit)?, mode, OnError::EndsAll));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn iomode_(unit: *const i32) -> i32 {
    // SAFETY: Fortran passes the address of an INTEGER.
    let unit = unsafe { deref(unit) };
    plain("iomode", || modes::mode(descriptor(unit)?))
}
