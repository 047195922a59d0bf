//! Parallel I/O (table 1.10) over ordinary files.
//!
//! There is no parallel file system: what the modes say of pointers is done here, see [`super::modes`]. The asynchronous calls do
//! their work at once; their ids are complete from the start. What concerns the file system itself answers -1 with
//! `ENOSYS`. Files of Fortran: see [`super::units`].

use super::esize::ESize;
use super::modes::{self, Way};
use super::together::{self, OnError};
use super::{Failure, calls};
use libc::iovec;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Table {
    ids: Vec<i32>,
    last: i32,
}

static TABLE: Mutex<Table> = Mutex::new(Table { ids: Vec::new(), last: 0 });

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn bytes(result: isize, what: &str) -> Result<i32, Failure> {
    if result < 0 { Err(Failure::last(what)) } else { Ok(result.min(i32::MAX as isize) as i32) }
}

pub(super) fn len(count: i32) -> Result<usize, Failure> {
    Ok(super::length(count)?)
}

fn one(way: Way, fd: i32, buf: *mut c_void, count: i32, what: &str) -> Result<i32, Failure> {
    let len = len(count);
    let piece = iovec { iov_base: buf, iov_len: *len.as_ref().unwrap_or(&0) };
    // SAFETY: one element, of the caller's buffer.
    unsafe { modes::transfer(way, fd, &raw const piece, len.map(|_| 1), what) }
}

pub(super) fn read(fd: i32, buf: *mut c_void, count: i32) -> Result<i32, Failure> {
    one(Way::Read, fd, buf, count, "read")
}

pub(super) fn write(fd: i32, buf: *mut c_void, count: i32) -> Result<i32, Failure> {
    one(Way::Write, fd, buf, count, "write")
}

fn readv(fd: i32, iov: *mut c_void, count: i32) -> Result<i32, Failure> {
    // SAFETY: the caller's array.
    unsafe { modes::transfer(Way::Read, fd, iov.cast(), Ok(count), "readv") }
}

fn writev(fd: i32, iov: *mut c_void, count: i32) -> Result<i32, Failure> {
    // SAFETY: the caller's array.
    unsafe { modes::transfer(Way::Write, fd, iov.cast(), Ok(count), "writev") }
}

/// An id for work that is done.
pub(super) fn id(result: Result<i32, Failure>) -> Result<i32, Failure> {
    result?;
    let mut table = table();
    table.last = table.last % 0x3fff_ffff + 1;
    let id = table.last;
    table.ids.push(id);
    Ok(id)
}

pub(super) fn done(id: i32) -> Result<i32, Failure> {
    let mut table = table();
    match table.ids.iter().position(|&known| known == id) {
        Some(index) => {
            table.ids.swap_remove(index);
            Ok(1)
        }
        None => Err(crate::error::NxError::BadMid { mid: id }.into()),
    }
}

pub(super) fn is_at_end(fd: i32) -> Result<i32, Failure> {
    let (at, size) = modes::next(fd)?;
    Ok(i32::from(at >= size))
}

fn none() -> Result<i32, Failure> {
    Err(Failure::System(libc::ENOSYS, "there is no parallel file system".into()))
}

calls! {
    fn cread, _cread: (fd: int, buf: ptr, count: int) -> long { read(fd, buf, count) }
    fn cwrite, _cwrite: (fd: int, buf: ptr, count: int) -> long { write(fd, buf, count) }
    fn creadv, _creadv: (fd: int, iov: ptr, count: int) -> long { readv(fd, iov, count) }
    fn cwritev, _cwritev: (fd: int, iov: ptr, count: int) -> long { writev(fd, iov, count) }
    fn iread, _iread: (fd: int, buf: ptr, count: int) -> long { id(read(fd, buf, count)) }
    fn iwrite, _iwrite: (fd: int, buf: ptr, count: int) -> long { id(write(fd, buf, count)) }
    fn ireadv, _ireadv: (fd: int, iov: ptr, count: int) -> long { id(readv(fd, iov, count)) }
    fn iwritev, _iwritev: (fd: int, iov: ptr, count: int) -> long { id(writev(fd, iov, count)) }
    fn iodone, _iodone: (id: int) -> long { done(id) }
    fn iowait, _iowait: (id: int) -> void { done(id).map(|_| ()) }
    fn iomode, _iomode: (fd: int) -> long { modes::mode(fd) }
    fn iseof, _iseof: (fd: int) -> long { is_at_end(fd) }
    fn lsize, _lsize: (fd: int, offset: int, whence: int) -> long {
        size(fd, offset.into(), whence).map(|size| i32::try_from(size).unwrap_or(i32::MAX))
    }
    fn estat, _estat, estat_: (path: ptr, buf: ptr) -> long { none() }
    fn festat, _festat, festat_: (fd: int, buf: ptr) -> long { none() }
    fn lestat, _lestat, lestat_: (path: ptr, buf: ptr) -> long { none() }
    fn statpfs, _statpfs, statpfs_: (path: ptr, buf: ptr, attr: ptr, len: int) -> long { none() }
    fn fstatpfs, _fstatpfs, fstatpfs_: (fd: int, buf: ptr, attr: ptr, len: int) -> long { none() }
    fn getpfsinfo, _getpfsinfo, getpfsinfo_: (buf: ptr) -> long { none() }
    fn restrictvol, _restrictvol, restrictvol_: (fd: int, count: int, list: ptr) -> long { none() }
}

/// `SIZE_SET` 0, `SIZE_CUR` 1, `SIZE_END` 2: makes the file at least that long.
pub(super) fn size(fd: i32, offset: i64, whence: i32) -> Result<i64, Failure> {
    // SAFETY: an all-zero stat is a valid value to fill in.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        return Err(Failure::last(format!("descriptor {fd}")));
    }
    let base = match whence {
        0 => 0,
        // SAFETY: any number may be asked for.
        1 => unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) },
        2 => stat.st_size,
        other => return Err(Failure::System(super::errno::EQPARAM, format!("whence {other}"))),
    };
    let wanted = base.saturating_add(offset);
    // SAFETY: any number may be asked for.
    if wanted > stat.st_size && unsafe { libc::ftruncate(fd, wanted) } < 0 {
        return Err(Failure::last("ftruncate"));
    }
    Ok(wanted.max(stat.st_size))
}

/// Opens a file in every node, with a mode.
///
/// # Safety
/// A string, or null.
unsafe fn open(
    path: *const c_char,
    flags: c_int,
    mode: c_int,
    permissions: libc::mode_t,
    on_error: OnError,
) -> Result<i32, Failure> {
    // SAFETY: the caller's word.
    let name = unsafe { super::strings::string(path) };
    let name = name.as_deref().unwrap_or("a null pointer for the name");
    let fd = together::open(flags, mode, on_error, |flags| {
        // SAFETY: a string; the kernel checks it.
        together::owned(unsafe { libc::open(path, flags, permissions) }, name)
    })?;
    Ok(fd.into_raw_fd())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gopen(
    path: *const c_char,
    flags: c_int,
    mode: c_int,
    permissions: libc::mode_t,
) -> c_int {
    // SAFETY: the caller passes a string or null.
    super::plain("gopen", || unsafe { open(path, flags, mode, permissions, OnError::EndsAll) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _gopen(
    path: *const c_char,
    flags: c_int,
    mode: c_int,
    permissions: libc::mode_t,
) -> c_int {
    // SAFETY: as above.
    super::under(|| unsafe { open(path, flags, mode, permissions, OnError::IsAnswered) }) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn setiomode(fd: c_long, mode: c_long) {
    super::plain("setiomode", || together::set_mode(fd as i32, mode as i32, OnError::EndsAll));
}

#[unsafe(no_mangle)]
pub extern "C" fn _setiomode(fd: c_long, mode: c_long) -> c_long {
    super::under(|| together::set_mode(fd as i32, mode as i32, OnError::IsAnswered))
}

macro_rules! at_offset {
    ($($name:ident, $under:ident, $system:ident, $wrap:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, offset: ESize, buf: *mut c_void, count: c_int) -> c_long {
            super::plain(stringify!($name), || {
                let count = len(count)?;
                // SAFETY: the caller's buffer or array; the kernel checks it.
                let moved = unsafe { libc::$system(fd, buf.cast(), count as _, offset.to_i64()) };
                $wrap(bytes(moved, stringify!($name)))
            }).into()
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $under(fd: c_int, offset: ESize, buf: *mut c_void, count: c_int) -> c_long {
            super::under(|| {
                let count = len(count)?;
                // SAFETY: the caller's buffer or array; the kernel checks it.
                let moved = unsafe { libc::$system(fd, buf.cast(), count as _, offset.to_i64()) };
                $wrap(bytes(moved, stringify!($name)))
            })
        }
    )* };
}

pub(super) fn plainly(result: Result<i32, Failure>) -> Result<i32, Failure> {
    result
}

at_offset! {
    readoff, _readoff, pread, plainly;
    writeoff, _writeoff, pwrite, plainly;
    readvoff, _readvoff, preadv, plainly;
    writevoff, _writevoff, pwritev, plainly;
    ireadoff, _ireadoff, pread, id;
    iwriteoff, _iwriteoff, pwrite, id;
    ireadvoff, _ireadvoff, preadv, id;
    iwritevoff, _iwritevoff, pwritev, id;
}

pub(super) fn seek(fd: i32, offset: ESize, whence: i32) -> Result<ESize, Failure> {
    // SAFETY: any number may be asked for.
    let at = unsafe { libc::lseek(fd, offset.to_i64(), whence) };
    if at < 0 { Err(Failure::last("lseek")) } else { Ok(ESize::from_i64(at)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn eseek(fd: c_int, offset: ESize, whence: c_int) -> ESize {
    super::plain("eseek", || seek(fd, offset, whence))
}

#[unsafe(no_mangle)]
pub extern "C" fn _eseek(fd: c_int, offset: ESize, whence: c_int) -> ESize {
    match super::run(|| seek(fd, offset, whence)) {
        Ok(at) => at,
        Err(failure) => {
            super::errno::set(failure.errno());
            ESize::from_i64(-1)
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn esize(fd: c_int, offset: ESize, whence: c_int) -> ESize {
    super::plain("esize", || size(fd, offset.to_i64(), whence).map(ESize::from_i64))
}

#[unsafe(no_mangle)]
pub extern "C" fn _esize(fd: c_int, offset: ESize, whence: c_int) -> ESize {
    match super::run(|| size(fd, offset.to_i64(), whence)) {
        Ok(size) => ESize::from_i64(size),
        Err(failure) => {
            super::errno::set(failure.errno());
            ESize::from_i64(-1)
        }
    }
}
