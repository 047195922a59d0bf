//! What systemd wants to know, and what it hands over (sd_notify(3), sd_listen_fds(3)), by hand: two
//! environment variables and one datagram.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use vmmc::sys::Fd;

const LISTEN_FDS_START: i32 = 3;

/// Tells the service manager something, such as `READY=1`. Nothing happens without one.
pub fn send(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(errno) = send_to(path.as_bytes(), state) {
        tracing::warn!(%errno, ?path, "cannot notify the service manager");
    }
}

fn send_to(path: &[u8], state: &str) -> rustix::io::Result<()> {
    let address = match path.split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
        Some((b'/', _)) => SocketAddrUnix::new(path)?,
        _ => return Err(rustix::io::Errno::INVAL),
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendto(&socket, state.as_bytes(), flags, &address).map(drop)
}

/// The listening socket that the service manager passed, if any.
///
/// # Errors
/// When something else than exactly one listening `SOCK_SEQPACKET` Unix socket was passed.
pub fn activated_socket() -> Result<Option<Fd>, String> {
    let ours = std::env::var("LISTEN_PID").ok().and_then(|pid| pid.parse::<u32>().ok())
        == Some(std::process::id());
    if !ours {
        return Ok(None);
    }
    match std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse::<i32>().ok()) {
        Some(1) => {}
        count => return Err(format!("LISTEN_FDS is {count:?}, expected exactly one socket")),
    }
    // SAFETY: only looked at, and only while this process runs; checked before it is owned.
    let passed = unsafe { BorrowedFd::borrow_raw(LISTEN_FDS_START) };
    let is = |check: rustix::io::Result<bool>| check.unwrap_or(false);
    let good = is(rustix::net::sockopt::socket_domain(passed).map(|d| d == AddressFamily::UNIX))
        && is(rustix::net::sockopt::socket_type(passed).map(|t| t == SocketType::SEQPACKET))
        && is(rustix::net::sockopt::socket_acceptconn(passed));
    if !good {
        return Err("descriptor 3 is not a listening SOCK_SEQPACKET Unix socket; \
                    the unit needs ListenSequentialPacket="
            .to_owned());
    }
    rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| format!("descriptor 3: {errno}"))?;
    // SAFETY: by the protocol of LISTEN_FDS the descriptor is this process's own; nothing else
    // in the program uses the number.
    let owned = unsafe { OwnedFd::from_raw_fd(LISTEN_FDS_START) };
    // The service manager's sockets may be blocking.
    rustix::io::ioctl_fionbio(owned.as_fd(), true)
        .map_err(|errno| format!("descriptor 3: {errno}"))?;
    Ok(Some(owned.into()))
}
