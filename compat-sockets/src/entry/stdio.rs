//! stdio on a socket: its own calls do not pass through us, so the socket stays with TCP, and what it
//! closes must be noticed here.

use super::export;
use super::lifecycle::about_to_close;
use crate::fd_table::{self, Known};
use crate::{close, real};
use libc::{FILE, c_char, c_int, c_void};

/// Before the C library closes the descriptor of a stream: the number may mean something else at once.
///
/// # Safety
/// `stream` must be one of stdio's.
unsafe fn before_stream_closes(stream: *mut FILE) {
    if stream.is_null() {
        return;
    }
    // A close that succeeds leaves it alone.
    let errno = real::errno();
    // SAFETY: the caller's word; -1 for a stream without a descriptor.
    let fd = unsafe { libc::fileno(stream) };
    if fd >= 0 && !matches!(fd_table::get(fd), Known::Nothing) {
        // What is buffered goes before anything that a close does.
        // SAFETY: the caller's word.
        unsafe { libc::fflush(stream) };
        about_to_close(fd);
    }
    real::set_errno(errno);
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// fdopen(3).
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        close::leave_to_kernel(fd);
        // SAFETY: as above.
        unsafe { real::stream(&real::FDOPEN, fd as usize, mode) }
    }

    /// fclose(3).
    fn fclose(stream: *mut FILE) -> c_int {
        // SAFETY: as above.
        unsafe { before_stream_closes(stream) };
        // SAFETY: as above.
        unsafe { real::fclose(stream) }
    }

    /// [`fdopen`], by the other name that the C library has for it.
    #[allow(non_snake_case)] // its name
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        // SAFETY: as above.
        unsafe { fdopen(fd, mode) }
    }

    /// [`fclose`], likewise.
    #[allow(non_snake_case)] // its name
    fn _IO_fclose(stream: *mut FILE) -> c_int {
        // SAFETY: as above.
        unsafe { fclose(stream) }
    }

    /// freopen(3).
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut c_void {
        // SAFETY: as above.
        unsafe { before_stream_closes(stream) };
        // SAFETY: as above.
        unsafe { real::reopen(&real::FREOPEN, path, mode, stream) }
    }

    /// freopen(3), large files.
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut c_void {
        // SAFETY: as above.
        unsafe { before_stream_closes(stream) };
        // SAFETY: as above.
        unsafe { real::reopen(&real::FREOPEN64, path, mode, stream) }
    }
}
