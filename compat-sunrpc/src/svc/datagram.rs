//! Servers over UDP, with `VMMC_RPC_UDP`: a datagram cannot carry a channel, so the server takes connections
//! for it at a port of the loopback address, which rpcbind does not know. It is opened when the first
//! client asks.

use crate::abi::Svcxprt;
use crate::{real, settings};
use rustix::net::{AddressFamily, SocketAddrV4, SocketFlags, SocketType, sockopt};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::{Mutex, PoisonError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The port, and the process that opened it: a forked child opens its own.
static PORT: Mutex<Option<(i32, u16)>> = Mutex::new(None);

/// Whether a transport that is no connection is one over UDP, and those take part.
pub(super) fn takes_part(fd: i32) -> bool {
    if fd < 0 || !settings::upgrades_udp() {
        return false;
    }
    // SAFETY: for these calls only; a number that is closed meanwhile answers EBADF.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
        && matches!(sockopt::socket_domain(socket), Ok(AddressFamily::INET | AddressFamily::INET6))
}

/// Where connections are taken.
pub(super) fn port() -> Option<u16> {
    let own = super::own_pid();
    let mut port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    match *port {
        Some((process, port)) if process == own => Some(port),
        _ => {
            let opened = open()?;
            *port = Some((own, opened));
            Some(opened)
        }
    }
}

/// A connection that was taken there serves what is registered for UDP: services made by `rpc_reg` look at the name of the network.
pub(super) fn name_network(handle: &mut Svcxprt) {
    // A forked child serves those that its parent's port takes, too.
    let opened = PORT.lock().unwrap_or_else(PoisonError::into_inner).map(|(_, port)| port);
    // SAFETY: for this call only, of a transport that is open.
    let socket = unsafe { BorrowedFd::borrow_raw(handle.xp_fd) };
    let own = rustix::net::getsockname(socket).map(SocketAddr::try_from);
    let Ok(Ok(own)) = own else { return };
    if opened != Some(own.port()) || handle.xp_netid.is_null() {
        return;
    }
    // SAFETY: ends with NUL; copied into memory of the C library's, as libtirpc has it.
    let name = unsafe { libc::strdup(c"udp".as_ptr()) };
    if !name.is_null() {
        // SAFETY: libtirpc's own copy, which nobody has but this transport, whose destruction frees the other.
        unsafe { libc::free(std::mem::replace(&mut handle.xp_netid, name).cast()) };
    }
}

fn open() -> Option<u16> {
    let create = real::svc_vc_create()?;
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).ok()?;
    rustix::net::listen(&socket, BACKLOG).ok()?;
    let own = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
    // SAFETY: a listening socket, which libtirpc owns from here on.
    let transport = unsafe { create(socket.into_raw_fd(), 0, 0) };
    (!transport.is_null()).then(|| own.port())
}
