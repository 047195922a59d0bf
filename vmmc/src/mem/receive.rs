//! Receiving from a socket straight into shared memory.

use super::View;
use std::os::fd::{AsFd, AsRawFd};

/// Receives what is there into shared memory, without waiting; 0 at the end of the stream. A slice
/// would be a reference to memory that others write.
///
/// # Errors
/// As recv(2); `EAGAIN` when nothing is there.
pub fn receive_into(socket: impl AsFd, target: View<'_>) -> rustix::io::Result<usize> {
    // SAFETY: `target` is mapped and writable for the call; the kernel checks it once more.
    let got = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            socket.as_fd().as_raw_fd(),
            target.as_ptr().as_ptr(),
            target.len(),
            libc::MSG_DONTWAIT,
            std::ptr::null_mut::<libc::sockaddr>(),
            std::ptr::null_mut::<libc::socklen_t>(),
        )
    };
    usize::try_from(got).map_err(|_| {
        rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::IO)
    })
}
