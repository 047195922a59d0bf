//! Network namespaces of sockets, their addresses, and the packets that reach one. Most is for the daemon, where it has the
//! rights.

use crate::sys::Fd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The network namespace of a socket (`SIOCGSKNS`). Needs `CAP_NET_ADMIN` there.
///
/// # Errors
/// As ioctl(2).
pub fn of_socket(socket: impl AsFd) -> rustix::io::Result<Fd> {
    const SIOCGSKNS: libc::Ioctl = 0x894C;
    // SAFETY: takes no pointer, and answers with a new descriptor or -1.
    let raw = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
    if raw < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(Fd::from(unsafe { OwnedFd::from_raw_fd(raw) }))
}

/// The network namespace of the calling thread.
///
/// # Errors
/// As open(2).
pub fn of_thread() -> rustix::io::Result<Fd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let mode = rustix::fs::Mode::empty();
    rustix::fs::open("/proc/thread-self/ns/net", flags, mode).map(Fd::from)
}

/// Moves the calling thread, and no other, to a network namespace. Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// As setns(2).
pub fn enter(namespace: &Fd) -> rustix::io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
}

/// Whether an address is one of the calling thread's network namespace. Its port does not matter.
///
/// That it can be bound to is not enough: where `net.ipv4.ip_nonlocal_bind` is set, as beside many proxies, any address
/// can. So the kernel is asked for a way from the address (IPv4 has none from one that is not its own), or for its own address
/// on the way there. Nothing is sent.
#[must_use]
pub fn is_local(address: SocketAddr) -> bool {
    /// Of a way that nobody goes; 0 would be refused.
    const ANY_PORT: u16 = 9;
    let (mut from, mut to) = (address, address);
    from.set_port(0);
    to.set_port(ANY_PORT);
    let (family, v4) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, true),
        SocketAddr::V6(_) => (AddressFamily::INET6, false),
    };
    let flags = SocketFlags::CLOEXEC;
    let Ok(socket) = rustix::net::socket_with(family, SocketType::DGRAM, flags, None) else {
        return false;
    };
    let socket = Fd::from(socket);
    // Of several IPv4 addresses, a packet to any comes from the first, unless it is told.
    if v4 && rustix::net::bind(&socket, &from).is_err() {
        return false;
    }
    rustix::net::connect(&socket, &to).is_ok()
        && rustix::net::getsockname(&socket)
            .ok()
            .and_then(|own| SocketAddr::try_from(own).ok())
            .is_some_and(|own| own.ip() == address.ip())
}

/// TCP packets of one direction of a connection, as they reach the network namespace in which this was made.
#[derive(Debug)]
pub struct Tap {
    socket: Fd,
    hop_limit_at: usize,
}

/// As much of a packet as is looked at: an IP header without options.
const HEADER: usize = 40;

impl Tap {
    /// In the calling thread's namespace. Needs `CAP_NET_RAW` there.
    ///
    /// # Errors
    /// As socket(2), setsockopt(2) and bind(2); `EINVAL` for addresses of two families.
    pub fn new(from: SocketAddr, to: SocketAddr) -> rustix::io::Result<Tap> {
        let (program, protocol, hop_limit_at) = match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let words = [(12, u32::from(source)), (16, u32::from(target))];
                (filter(&words, (from.port(), to.port()), true), libc::ETH_P_IP, 8)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let words: Vec<(u32, u32)> = [(8, source), (24, target)]
                    .into_iter()
                    .flat_map(|(at, address)| {
                        let bits = u128::from(address);
                        (0..4).map(move |i| (at + 4 * i, (bits >> (96 - 32 * i)) as u32))
                    })
                    .collect();
                (filter(&words, (from.port(), to.port()), false), libc::ETH_P_IPV6, 7)
            }
            _ => return Err(Errno::INVAL),
        };
        // Of no protocol yet: nothing comes before the filter is there.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        let socket = Fd::from(socket);
        attach(&socket, &program)?;
        bind(&socket, protocol as u16)?;
        Ok(Tap { socket, hop_limit_at })
    }

    /// The hop limit with which the next packet has come; `None` when none waits.
    ///
    /// # Errors
    /// As recv(2).
    pub fn next_hop_limit(&self) -> rustix::io::Result<Option<u8>> {
        let mut header = [0u8; HEADER];
        match rustix::net::recv(&self.socket, &mut header[..], RecvFlags::DONTWAIT) {
            Ok(_) => Ok(header.get(self.hop_limit_at).copied()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Readable when a packet waits.
impl AsFd for Tap {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket filter that lets packets through that are for this host, TCP, not a later fragment, and have these words at
/// these offsets and these ports. `v4`: the header says how long it is.
fn filter(words: &[(u32, u32)], ports: (u16, u16), v4: bool) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_BEHIND_HEADER: u16 = 0x40;
    const HEADER_TO_X: u16 = 0xb1;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_BITS: u16 = 0x45;
    const RETURN: u16 = 0x06;
    // SKF_AD_OFF + SKF_AD_PKTTYPE.
    const PACKET_TYPE: u32 = 0xffff_f004;
    const TO_THIS_HOST: u32 = 0;
    let both = u32::from(ports.0) << 16 | u32::from(ports.1);
    let protocol_at = if v4 { 9 } else { 6 };
    let mut steps = vec![(LOAD_WORD, PACKET_TYPE), (JUMP_EQUAL, TO_THIS_HOST)];
    steps.extend([(LOAD_BYTE, protocol_at), (JUMP_EQUAL, libc::IPPROTO_TCP as u32)]);
    for &(at, word) in words {
        steps.extend([(LOAD_WORD, at), (JUMP_EQUAL, word)]);
    }
    if v4 {
        steps.extend([(LOAD_HALF, 6), (JUMP_BITS, 0x1fff)]);
        steps.extend([(HEADER_TO_X, 0), (LOAD_BEHIND_HEADER, 0), (JUMP_EQUAL, both)]);
    } else {
        steps.extend([(LOAD_WORD, 40), (JUMP_EQUAL, both)]);
    }
    steps.extend([(RETURN, HEADER as u32), (RETURN, 0)]);
    let refusal = steps.len() - 1;
    let step = |(at, &(code, k)): (usize, &(u16, u32))| {
        let away = (refusal - at).saturating_sub(1) as u8;
        let (jt, jf) = match code {
            JUMP_EQUAL => (0, away),
            JUMP_BITS => (away, 0),
            _ => (0, 0),
        };
        libc::sock_filter { code, jt, jf, k }
    };
    steps.iter().enumerate().map(step).collect()
}

fn attach(socket: &Fd, program: &[libc::sock_filter]) -> rustix::io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call, and writes nothing.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(last_error()) }
}

fn bind(socket: &Fd, protocol: u16) -> rustix::io::Result<()> {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    // SAFETY: an address of this length, on this stack.
    let rc = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The hop limit (IPv4: time to live) of what a socket sends.
///
/// # Errors
/// As getsockopt(2).
pub fn hop_limit(socket: impl AsFd, v4: bool) -> rustix::io::Result<u8> {
    match v4 {
        true => rustix::net::sockopt::ip_ttl(socket).map(|limit| limit as u8),
        false => rustix::net::sockopt::ipv6_unicast_hops(socket),
    }
}

/// The least hop limit of packets that a socket takes (`IP_MINTTL`, `IPV6_MINHOPCOUNT`): 0 for all.
#[must_use]
pub fn least_hop_limit(socket: impl AsFd, v4: bool) -> Option<i32> {
    const IPV6_MINHOPCOUNT: i32 = 73;
    let (level, name) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_MINTTL),
        false => (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT),
    };
    let (value, len) = super::socket::option(socket, level, name)?;
    (len == size_of::<i32>()).then(|| i32::from_ne_bytes(value))
}

/// Sets the hop limit of what it sends. `None`: the namespace's default.
///
/// # Errors
/// As setsockopt(2).
pub fn set_hop_limit(socket: impl AsFd, v4: bool, limit: Option<u8>) -> rustix::io::Result<()> {
    match v4 {
        // -1 asks for the default.
        true => rustix::net::sockopt::set_ip_ttl(socket, limit.map_or(u32::MAX, u32::from)),
        false => rustix::net::sockopt::set_ipv6_unicast_hops(socket, limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does something in a new network namespace; not at all, and says so, without the right to make one.
    fn in_a_new_one(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes no pointer, and moves this thread only.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                    eprintln!("not run: network namespaces need root");
                    return;
                }
                for words in [
                    "link set lo up",
                    "addr add 10.9.8.1/32 dev lo",
                    "addr add 10.9.8.2/32 dev lo",
                    "-6 addr add fd09::1/64 dev lo",
                    "-6 addr add fd09::2/64 dev lo",
                    "route add default dev lo",
                    "-6 route add default dev lo",
                ] {
                    let done = std::process::Command::new("ip").args(words.split(' ')).status();
                    assert!(done.expect("iproute2 is needed, see ci/deps").success(), "ip {words}");
                }
                work();
            });
        });
    }

    #[test]
    fn an_address_is_local_where_any_can_be_bound_to_only_if_it_is_one() {
        let is = |ip: &str| is_local(SocketAddr::new(ip.parse().unwrap(), 0));
        in_a_new_one(|| {
            for nonlocal in ["0", "1"] {
                for family in ["ipv4", "ipv6"] {
                    let at = format!("/proc/sys/net/{family}/ip_nonlocal_bind");
                    std::fs::write(at, nonlocal).unwrap();
                }
                for ours in
                    ["127.0.0.1", "127.3.2.1", "10.9.8.1", "10.9.8.2", "::1", "fd09::1", "fd09::2"]
                {
                    assert!(is(ours), "{ours}");
                }
                for other in ["10.9.8.3", "192.0.2.1", "fd09::3", "2001:db8::1"] {
                    assert!(!is(other), "{other}");
                }
            }
        });
    }
}
