//! What the kernel says about a TCP socket that a client passed. Nothing is taken from the message.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc::word::MappedU32;
use vmmc_ring::taken::Taken;
use vmmc_ring::tcp_count::{self, TcpInfo};

/// One end of an established TCP connection. Within one network namespace the pair of addresses of a live
/// connection is unique, so equal but mirrored endpoints are the two ends of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// `SO_NETNS_COOKIE`.
    pub(crate) namespace: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

impl Endpoint {
    /// What the other end looks like.
    pub(crate) fn mirrored(self) -> Endpoint {
        Endpoint { namespace: self.namespace, local: self.remote, remote: self.local }
    }

    /// Whether both ends look like ones of this machine: it has the same address at both, unless a program bound one
    /// otherwise on purpose.
    pub(crate) fn is_within_machine(&self) -> bool {
        self.local.ip() == self.remote.ip() || self.remote.ip().is_loopback()
    }
}

/// A socket as examined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Examined {
    /// `SO_COOKIE`.
    pub(crate) cookie: u64,
    pub(crate) endpoint: Endpoint,
    /// It is bound to an interface (`SO_BINDTODEVICE`): another socket may have the same addresses.
    pub(crate) is_bound: bool,
}

/// IPv4-mapped addresses as IPv4, and no flow label or scope: both ends must look the same.
fn normal(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Examines a descriptor; `None` when it is not an established TCP connection over IPv4 or IPv6.
pub(crate) fn examine(socket: impl AsFd + Copy) -> Option<Examined> {
    let domain = rustix::net::sockopt::socket_domain(socket).ok()?;
    if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
        return None;
    }
    if rustix::net::sockopt::socket_type(socket).ok()? != SocketType::STREAM {
        return None;
    }
    if rustix::net::sockopt::socket_protocol(socket).ok()? != Some(rustix::net::ipproto::TCP) {
        return None;
    }
    // The state is the first byte of struct tcp_info; the kernel cuts the struct to what we ask.
    if vmmc::sys::socket::tcp_state(socket)? != tcp_count::ESTABLISHED {
        return None;
    }
    let cookie = rustix::net::sockopt::socket_cookie(socket).ok()?;
    let namespace = vmmc::sys::socket::netns_cookie(socket)?;
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let remote = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    let endpoint = Endpoint { namespace, local: normal(local), remote: normal(remote) };
    let is_bound = vmmc::sys::socket::bound_interface(socket) != Some(0);
    Some(Examined { cookie, endpoint, is_bound })
}

/// The network namespace of the calling thread.
pub(crate) fn own_namespace() -> Option<u64> {
    let any = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    vmmc::sys::socket::netns_cookie(&any)
}

/// Bytes that were given to a TCP socket for sending ([`TcpInfo::given`]).
pub(crate) fn given(socket: impl AsFd) -> Option<u64> {
    TcpInfo::from_bytes(&vmmc::sys::socket::tcp_info(socket)?).given()
}

/// Size of its send buffer, and bytes in it; `None` where it has sent a FIN, or has ended.
fn send_queue(socket: impl AsFd + Copy) -> Option<(usize, u64)> {
    let info = TcpInfo::from_bytes(&vmmc::sys::socket::tcp_info(socket)?);
    let queued = info.given()?.saturating_sub(info.bytes_acked);
    Some((rustix::net::sockopt::socket_send_buffer_size(socket).unwrap_or(0), queued))
}

/// Bytes that it surely takes without waiting ([`tcp_count::send_room`]); `None` where it takes none any more.
pub(crate) fn send_room(socket: impl AsFd + Copy) -> Option<u64> {
    send_queue(socket).map(|(buffer, queued)| tcp_count::send_room(buffer, queued))
}

/// Whether the other kernel has all that was sent, and the FIN behind it; or the connection has ended.
pub(crate) fn has_sent_all(socket: impl AsFd) -> bool {
    use tcp_count::{CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT_1, LAST_ACK};
    let underway = [ESTABLISHED, FIN_WAIT_1, CLOSE_WAIT, LAST_ACK, CLOSING];
    !vmmc::sys::socket::tcp_state(socket).is_some_and(|state| underway.contains(&state))
}

/// Throws away what is unread of the bytes behind `from` and before `to`, if a process has read what comes before: they have
/// no meaning, and would make the socket's close an RST.
pub(crate) fn discard(socket: impl AsFd + Copy, from: u64, to: u64) {
    let unread = rustix::io::ioctl_fionread(socket).ok();
    let taken = unread.zip(vmmc::sys::socket::tcp_info(socket));
    let taken = taken.and_then(|(unread, info)| TcpInfo::from_bytes(&info).taken(unread));
    let Some(mut taken) = taken.filter(|&taken| taken >= from) else { return };
    let mut bytes = [0; 64];
    while let Some(part) = bytes.get_mut(..to.saturating_sub(taken).min(64) as usize)
        && let Ok((_, len @ 1..)) = rustix::net::recv(socket, part, RecvFlags::DONTWAIT)
    {
        taken += len as u64;
    }
}

/// Has a socket take so many bytes without waiting, as far as we may; whether it does. For who sends its last ones: its
/// `SO_SNDBUF`, which stays like that, concerns nobody then.
pub(crate) fn make_room(socket: impl AsFd + Copy, bytes: u64) -> bool {
    use rustix::net::sockopt;
    let has_room = || send_room(socket).is_some_and(|room| room >= bytes);
    let Some((held, queued)) = send_queue(socket).filter(|_| !has_room()) else {
        return has_room();
    };
    // The kernel takes twice what it is told, and `send_room` counts on a half of a half of that.
    let more = usize::try_from(bytes.saturating_mul(2).saturating_add(queued)).unwrap_or(held);
    if sockopt::set_socket_send_buffer_size_force(socket, more).is_err() {
        // As much as anybody may, unless the kernel has given it more of its own accord.
        let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max");
        let most = most.ok().and_then(|most| most.trim().parse::<usize>().ok()).unwrap_or(0);
        if most.min(more).saturating_mul(2) > held {
            let _ = sockopt::set_socket_send_buffer_size(socket, more.min(most));
        }
    }
    has_room()
}

/// Sends by a process's socket, waiting for nobody. An error of the connection that the kernel tells us, and so not the
/// process, is kept for it. `more`: a FIN is to follow at once, so that who is told of an edge is told of both.
pub(crate) fn send_for(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    kept: Option<Taken<MappedU32<'_>>>,
    more: bool,
) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let flags = if more { flags | SendFlags::MORE } else { flags };
    let send = || rustix::net::send(socket, bytes, flags);
    let is_over = || {
        let mut now = [PollFd::new(&socket, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = poll(&mut now, Some(&at_once));
        count.is_ok() && now.iter().any(|it| it.revents().contains(PollFlags::HUP))
    };
    let error = |sent: &rustix::io::Result<usize>| match sent {
        Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::PIPE) => None,
        Err(errno) => is_over().then(|| errno.raw_os_error()),
    };
    match kept {
        Some(kept) => kept.during(send, error),
        None => send(),
    }
}

/// Resets the connection of a process's socket. Linux 6.4 and 6.5, and what 5.15 and 6.1 were in the autumn of 2023, refuse that
/// while a thread waits in a call on the socket: there it is shut down, and the error kept for who finds the end (without
/// `kept` he takes it for one).
pub(crate) fn reset(socket: BorrowedFd<'_>, kept: Option<Taken<MappedU32<'_>>>) {
    if rustix::net::connect_unspec(socket) == Err(Errno::BUSY) {
        if let Some(kept) = kept {
            kept.during(|| (), |()| Some(Errno::CONNRESET.raw_os_error()));
        }
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

/// The cookie of any TCP socket, whatever its state.
pub(crate) fn cookie(socket: impl AsFd + Copy) -> Option<u64> {
    let protocol = rustix::net::sockopt::socket_protocol(socket).ok()?;
    if protocol != Some(rustix::net::ipproto::TCP) {
        return None;
    }
    rustix::net::sockopt::socket_cookie(socket).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn pair(at: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        (client, server)
    }

    #[test]
    fn the_two_ends_of_a_connection_mirror_each_other() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = pair(at);
            let ours = examine(client.as_fd()).unwrap();
            let theirs = examine(server.as_fd()).unwrap();
            assert_eq!(ours.endpoint.mirrored(), theirs.endpoint);
            assert_ne!(ours.cookie, theirs.cookie);
        }
    }

    #[test]
    fn a_v4_connection_to_a_v6_socket_mirrors_too() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        let ours = examine(client.as_fd()).unwrap();
        let theirs = examine(server.as_fd()).unwrap();
        assert!(server.local_addr().unwrap().is_ipv6());
        assert_eq!(ours.endpoint.mirrored(), theirs.endpoint);
    }

    /// Otherwise a daemon that ends would have to cut it off.
    #[test]
    fn the_kernel_takes_the_last_bytes_for_a_receiver_that_stands_still() {
        let (client, server) = pair("127.0.0.1:0");
        client.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&client, 4096).unwrap();
        let send = |bytes: &[u8]| send_for(client.as_fd(), bytes, None, true);
        let mut sent = 0;
        while let Ok(some) = send(&[1; 4096]) {
            sent += some;
        }
        assert_eq!(send(&[2; 50_000]), Err(Errno::AGAIN));
        assert!(make_room(client.as_fd(), 50_000));
        assert_eq!(send(&[2; 50_000]), Ok(50_000));
        drop(client);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut &server, &mut all).unwrap();
        assert_eq!(all.len(), sent + 50_000);
        assert!(all.ends_with(&[2; 50_000]));
    }

    #[test]
    fn anything_but_an_established_tcp_connection_is_nothing() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(udp.local_addr().unwrap()).unwrap();
        assert!(examine(udp.as_fd()).is_none());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(examine(listener.as_fd()).is_none());
        assert!(examine(std::fs::File::open("/dev/null").unwrap().as_fd()).is_none());
        let (client, server) = pair("127.0.0.1:0");
        drop(server);
        // The reader learns of the FIN, so the state has changed.
        std::io::Read::read(&mut &client, &mut [0]).unwrap();
        assert!(examine(client.as_fd()).is_none(), "CLOSE_WAIT is not established");
    }
}
