//! What the kernel knows of this network namespace's TCP sockets by their addresses (sock_diag(7)). It takes no socket's lock
//! for that.

use crate::tcp::Endpoint;
use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use std::net::{IpAddr, SocketAddr};
use vmmc::sys::Fd;
use vmmc_ring::tcp_count::ESTABLISHED;

/// `SOCK_DIAG_BY_FAMILY`, of a question and of its answer.
const BY_FAMILY: u16 = 20;
/// An answer.
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Length of `struct nlmsghdr`.
const HEAD_LEN: usize = 16;
/// Length of `struct inet_diag_req_v2`.
const QUESTION_LEN: usize = 56;
/// Where an answer has the addresses.
const ID_AT: usize = HEAD_LEN + 4;
/// Both ports and both addresses.
const PAIR_LEN: usize = 36;

/// One to ask.
#[derive(Debug)]
pub(crate) struct SockDiag {
    kernel: Fd,
    /// The network namespace of which it tells.
    namespace: Option<u64>,
    asked: u32,
}

/// A socket that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) is_established: bool,
    /// Who made it.
    pub(crate) uid: u32,
    /// A process has it still.
    pub(crate) is_held: bool,
    /// Both ports and both addresses, as the kernel has them.
    pair: [u8; PAIR_LEN],
}

impl Found {
    /// Whether it has exactly these addresses: a listener is found where there is no connection.
    pub(crate) fn is_between(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.pair == pair(local, remote)
    }
}

fn pair(local: SocketAddr, remote: SocketAddr) -> [u8; PAIR_LEN] {
    let mut bytes = [0; PAIR_LEN];
    let (ports, addresses) = bytes.split_at_mut(4);
    ports[..2].copy_from_slice(&local.port().to_be_bytes());
    ports[2..].copy_from_slice(&remote.port().to_be_bytes());
    for (place, address) in addresses.chunks_exact_mut(16).zip([local.ip(), remote.ip()]) {
        match address {
            IpAddr::V4(it) => place[..4].copy_from_slice(&it.octets()),
            IpAddr::V6(it) => place.copy_from_slice(&it.octets()),
        }
    }
    bytes
}

impl SockDiag {
    /// # Errors
    /// As socket(2).
    pub(crate) fn new() -> Result<SockDiag, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?;
        let namespace = vmmc::sys::socket::netns_cookie(&kernel);
        Ok(SockDiag { kernel: kernel.into(), namespace, asked: 0 })
    }

    /// Whether the socket with this `SO_COOKIE` is established between these addresses, and bound to no interface. `None`: the
    /// kernel does not say.
    pub(crate) fn lives(&mut self, endpoint: &Endpoint, cookie: u64) -> Option<bool> {
        Some(self.of(endpoint, cookie)?.is_some_and(|it| it.is_established))
    }

    /// The socket with this `SO_COOKIE` between these addresses, likewise.
    pub(crate) fn of(&mut self, endpoint: &Endpoint, cookie: u64) -> Option<Option<Found>> {
        if self.namespace != Some(endpoint.namespace) {
            return None;
        }
        let found = self.find(endpoint.local, endpoint.remote, Some(cookie));
        found
            .inspect_err(
                |errno| tracing::debug!(%errno, "sock_diag does not say whose a connection is"),
            )
            .ok()
    }

    /// The socket that is connected from one address to another, by any interface, if it has this `SO_COOKIE`.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub(crate) fn find(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        cookie: Option<u64>,
    ) -> Result<Option<Found>, Errno> {
        self.asked = self.asked.wrapping_add(1);
        let question = question(self.asked, local, remote, cookie);
        rustix::net::send(&self.kernel, &question, SendFlags::empty())?;
        let mut buffer = [0; 1024];
        loop {
            // It answers before the send returns; what an earlier question left is passed over.
            let (len, _) = rustix::net::recv(&self.kernel, &mut buffer, RecvFlags::DONTWAIT)?;
            let answer = buffer.get(..len).unwrap_or_default();
            if word(answer, 8) == Some(self.asked) {
                return found(answer);
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn question(number: u32, local: SocketAddr, remote: SocketAddr, cookie: Option<u64>) -> Vec<u8> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut bytes = Vec::with_capacity(HEAD_LEN + QUESTION_LEN);
    bytes.extend_from_slice(&((HEAD_LEN + QUESTION_LEN) as u32).to_ne_bytes());
    bytes.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend_from_slice(&number.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
    bytes.extend_from_slice(&pair(local, remote));
    bytes.extend_from_slice(&0u32.to_ne_bytes()); // of those that are bound to no interface
    let cookie = cookie.unwrap_or(u64::MAX); // any
    bytes.extend_from_slice(&(cookie as u32).to_ne_bytes());
    bytes.extend_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    bytes
}

/// What `struct inet_diag_msg` says; or an error, which may mean that there is none.
fn found(answer: &[u8]) -> Result<Option<Found>, Errno> {
    let kind = answer.get(4..).and_then(<[u8]>::first_chunk).map(|kind| u16::from_ne_bytes(*kind));
    if kind == Some(ERROR) {
        let code = word(answer, HEAD_LEN).unwrap_or_default() as i32;
        return match Errno::from_raw_os_error(code.wrapping_neg()) {
            // None, or another than the one with this cookie.
            Errno::NOENT | Errno::STALE => Ok(None),
            errno => Err(errno),
        };
    }
    let told = || {
        let (uid, inode) = (word(answer, HEAD_LEN + 64)?, word(answer, HEAD_LEN + 68)?);
        let is_established = *answer.get(HEAD_LEN + 1)? == ESTABLISHED;
        let pair = *answer.get(ID_AT..)?.first_chunk()?;
        Some(Found { is_established, uid, is_held: inode != 0, pair })
    };
    match told().filter(|_| kind == Some(BY_FAMILY)) {
        Some(found) => Ok(Some(found)),
        None => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_found_by_its_addresses_and_cookie_while_it_lives() {
        let mut diag = SockDiag::new().unwrap();
        for (listen, host) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let listener = TcpListener::bind(listen).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((host, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (there, here) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
            for (socket, local, remote) in [(&client, here, there), (&server, there, here)] {
                let cookie = rustix::net::sockopt::socket_cookie(socket).unwrap();
                let found = diag.find(local, remote, Some(cookie)).unwrap().unwrap();
                assert!(found.is_established && found.is_held, "{listen}");
                assert!(diag.find(local, remote, Some(cookie + 1)).unwrap().is_none(), "{listen}");
            }
            let cookie = rustix::net::sockopt::socket_cookie(&client).unwrap();
            rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))
                .unwrap();
            drop(client);
            let gone = diag.find(here, there, Some(cookie)).unwrap();
            assert!(gone.is_none_or(|it| !it.is_established), "{listen}");
        }
    }
}
