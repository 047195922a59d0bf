//! What the kernel says about a TCP socket that a client passed. Nothing is taken from the message.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType};
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
}

const TCP_ESTABLISHED: u8 = 1;

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
    if vmmc::sys::socket::tcp_state(socket)? != TCP_ESTABLISHED {
        return None;
    }
    let cookie = rustix::net::sockopt::socket_cookie(socket).ok()?;
    let namespace = vmmc::sys::socket::netns_cookie(socket)?;
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let remote = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    let endpoint = Endpoint { namespace, local: normal(local), remote: normal(remote) };
    Some(Examined { cookie, endpoint })
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

/// Bytes that it surely takes without waiting ([`tcp_count::send_room`]).
pub(crate) fn send_room(socket: impl AsFd + Copy) -> u64 {
    let info = vmmc::sys::socket::tcp_info(socket).map(|info| TcpInfo::from_bytes(&info));
    let Some((given, info)) = info.and_then(|info| Some((info.given()?, info))) else { return 0 };
    let buffer = rustix::net::sockopt::socket_send_buffer_size(socket).unwrap_or(0);
    tcp_count::send_room(buffer, given.saturating_sub(info.bytes_acked))
}

/// Sends by a process's socket, waiting for nobody. An error of the connection that the kernel tells us, and so not the
/// process, is kept for it.
pub(crate) fn send_for(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    kept: Option<Taken<MappedU32<'_>>>,
) -> rustix::io::Result<usize> {
    let send = || rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
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
