//! The doorbell of a carried connection: a pair of stream sockets.
//!
//! The daemon has one end, and every process that has the connection a copy of the other. A byte rings; when no copy is left the daemon
//! sees its end hung up, and knows that the connection is closed.
//!
//! Each end's calls wait for nobody at the other end, whatever that one does. Only the last close of a descriptor that was sent along could:
//! so the daemon receives with room for descriptors, and gets rid of them elsewhere.

use super::Fd;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::AsFd;

/// The daemon's end and the process's.
///
/// # Errors
/// As socketpair(2).
pub fn pair() -> rustix::io::Result<(Fd, Fd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map(|(daemon, process)| (daemon.into(), process.into()))
}

/// Whether a descriptor is the process's end of a line, and no [button](super::doorbell).
pub fn is_line(fd: impl AsFd) -> bool {
    rustix::net::sockopt::socket_domain(fd).is_ok()
}

/// Rings. Nothing is lost where there is no room: as many rings are unheard then. Waits for nobody, and does no harm where the
/// daemon is gone.
pub fn ring(line: impl AsFd) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while rustix::net::send(&line, &[1], flags) == Err(rustix::io::Errno::INTR) {}
}
