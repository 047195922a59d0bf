//! Clients over UDP, with `VMMC_RPC_UDP`: asked by a datagram whether it would, a server names a port of
//! its loopback address; the channel belongs to a connection there.
//!
//! The program keeps its datagram client: `clnt_control` asks and sets that one's values, and when the
//! connection ends, by a restart of the server, calls go by datagrams again, the interrupted one first. That
//! may serve a call twice, as repeating a datagram may.

use super::{agree, install, offered};
use crate::abi::{Client, Netbuf};
use crate::counters::{self, Counter};
use crate::{offer, real, settings};
use rustix::net::{AddressFamily, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// The client over TCP behind a client over UDP. Destroyed with it.
#[derive(Debug)]
pub(super) struct Companion {
    client: *mut Client,
    /// What the client is connected by, which it does not close.
    socket: OwnedFd,
}

// SAFETY: libtirpc's clients may be used from any thread; this one is only destroyed.
unsafe impl Send for Companion {}
// SAFETY: as above.
unsafe impl Sync for Companion {}

impl Drop for Companion {
    fn drop(&mut self) {
        // SAFETY: a client that nobody else knows, alive until here.
        let ops = unsafe { (*self.client).cl_ops };
        // SAFETY: libtirpc's table, complete.
        let destroy = unsafe { (*ops).cl_destroy };
        // SAFETY: as above.
        unsafe { destroy(self.client) };
    }
}

/// Tries to move a client over UDP that libtirpc has just made to a channel.
///
/// # Safety
/// `address` must be null or the address that the client was made with.
pub(crate) unsafe fn upgrade(client: *mut Client, address: *const Netbuf, prog: u32, vers: u32) {
    if prog == offer::RPCBIND || !settings::is_on() {
        return;
    }
    if settings::upgrades_udp() {
        // SAFETY: the caller's word.
        if unsafe { is_on_this_machine(address) } != Some(true) {
            counters::one(Counter::not_local);
        } else if move_over(client, prog, vers).is_some() {
            return;
        }
    }
    super::kernel::watch(client);
}

fn move_over(client: *mut Client, prog: u32, vers: u32) -> Option<()> {
    // SAFETY: libtirpc's new client, known to nobody else yet.
    let handle = unsafe { &mut *client };
    counters::one(Counter::offers);
    let Some(offer) = offered(handle) else {
        counters::one(Counter::unanswered);
        return None;
    };
    let Some(port) = offer.port() else {
        counters::one(Counter::declined);
        return None;
    };
    let companion = connect(port, prog, vers)?;
    let fd = companion.socket.as_raw_fd();
    // SAFETY: the companion's client, alive and known to nobody else.
    let agreed = agree(unsafe { &mut *companion.client }, fd)?;
    install(client, agreed, fd, (prog, vers), Some(companion));
    Some(())
}

/// A client over TCP to a port of the loopback address.
fn connect(port: u16, prog: u32, vers: u32) -> Option<Companion> {
    let create = real::clnt_vc_create()?;
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).ok()?;
    let mut place = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    let len = size_of::<libc::sockaddr_in>() as u32;
    let address = Netbuf { maxlen: len, len, buf: (&raw mut place).cast() };
    // SAFETY: a connected socket and the address it is connected to, which libtirpc copies.
    let client = unsafe { create(socket.as_raw_fd(), &raw const address, prog, vers, 0, 0) };
    (!client.is_null()).then_some(Companion { client, socket })
}

/// Whether an address is one of this machine's own: then a socket connected to it has it too.
///
/// # Safety
/// `address` must be null or a live `netbuf`.
unsafe fn is_on_this_machine(address: *const Netbuf) -> Option<bool> {
    // SAFETY: the caller's word.
    let address = unsafe { address.as_ref() }?;
    if address.buf.is_null() {
        return None;
    }
    let place = address.buf.cast::<libc::sockaddr_in6>();
    // SAFETY: an address of any family begins with it.
    let family = unsafe { address.buf.cast::<libc::sa_family_t>().read_unaligned() };
    let peer: SocketAddr = match i32::from(family) {
        libc::AF_INET if address.len as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: of this family, and as long as that.
            let it = unsafe { place.cast::<libc::sockaddr_in>().read_unaligned() };
            (Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr)), u16::from_be(it.sin_port)).into()
        }
        libc::AF_INET6 if address.len as usize >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: of this family, and as long as that.
            let it = unsafe { place.read_unaligned() };
            (Ipv6Addr::from(it.sin6_addr.s6_addr), u16::from_be(it.sin6_port)).into()
        }
        _ => return None,
    };
    if peer.ip().to_canonical().is_loopback() {
        return Some(true);
    }
    let domain = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC;
    let probe = rustix::net::socket_with(domain, SocketType::DGRAM, flags, None).ok()?;
    // Sends nothing: it only chooses the address that a datagram would have.
    match peer {
        SocketAddr::V4(it) => rustix::net::connect(&probe, &SocketAddrV4::new(*it.ip(), it.port())),
        SocketAddr::V6(it) => {
            rustix::net::connect(&probe, &SocketAddrV6::new(*it.ip(), it.port(), 0, it.scope_id()))
        }
    }
    .ok()?;
    let own = SocketAddr::try_from(rustix::net::getsockname(&probe).ok()?).ok()?;
    Some(own.ip().to_canonical() == peer.ip().to_canonical())
}
