//! Without a cluster key: whose the other end of a connection is, by the word of this machine's kernel.
//!
//! All nodes are on this machine then, where any process can connect and nobody proves anything. But the kernel knows who
//! made the socket at the other end (sock_diag(7)). Root's daemon speaks for every user, any other for its own alone.

use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// `SOCK_DIAG_BY_FAMILY`, of a question and of its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// Length of `struct nlmsghdr`.
const HEAD_LEN: usize = 16;
/// Length of `struct inet_diag_req_v2`.
const QUESTION_LEN: usize = 56;
/// Where the addresses are in a question; in an answer they are at 4.
const ID_AT: usize = 8;
/// Both ports and both addresses.
const PAIR_LEN: usize = 36;

/// Whether the other end of a connection may speak for a user: whose it is; or why not, and what is to be done.
pub(super) fn vouches(stream: &TcpStream, uid: u32) -> Result<u32, String> {
    let remedy = "name a key with `key` in the cluster file of every node";
    match owner(stream) {
        Ok(Some(owner)) if owner == 0 || owner == uid => Ok(owner),
        Ok(Some(owner)) => Err(format!(
            "user {owner} speaks for user {uid} there, and without a cluster key only root's daemon may speak for others; {remedy}, or run that daemon as root"
        )),
        Ok(None) => Err(format!(
            "user {uid} was named over a connection that has no owner any more, and without a cluster key it must have one; {remedy}"
        )),
        Err(errno) => Err(format!(
            "user {uid} was named without a cluster key, and the kernel does not say by whom (sock_diag: {errno}); {remedy}"
        )),
    }
}

/// The user who made the socket at the other end; `None` where it is not one of this machine, or has been closed.
fn owner(stream: &TcpStream) -> Result<Option<u32>, Errno> {
    let address = |found: std::io::Result<SocketAddr>| {
        found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOTCONN))
    };
    let (theirs, ours) = (address(stream.peer_addr())?, address(stream.local_addr())?);
    let flags = SocketFlags::CLOEXEC;
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?;
    let question = question(theirs, ours);
    rustix::net::send(&kernel, &question, SendFlags::empty())?;
    let mut buffer = [0; 1024];
    let (len, _) = rustix::net::recv(&kernel, &mut buffer, RecvFlags::empty())?;
    Ok(owner_in(buffer.get(..len).unwrap_or_default(), &question))
}

/// Asks about the socket that is bound to one address and connected to another.
fn question(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut bytes = Vec::with_capacity(HEAD_LEN + QUESTION_LEN);
    bytes.extend_from_slice(&((HEAD_LEN + QUESTION_LEN) as u32).to_ne_bytes());
    bytes.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[family.as_raw() as u8, IPPROTO_TCP, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
    bytes.extend_from_slice(&local.port().to_be_bytes());
    bytes.extend_from_slice(&remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        let mut words = [0; 16];
        match address {
            IpAddr::V4(it) => words[..4].copy_from_slice(&it.octets()),
            IpAddr::V6(it) => words = it.octets(),
        }
        bytes.extend_from_slice(&words);
    }
    bytes.extend_from_slice(&0u32.to_ne_bytes()); // by any interface
    bytes.extend_from_slice(&[0xff; 8]); // whatever its cookie
    bytes
}

/// What `struct inet_diag_msg` says, if it is about what was asked: the kernel finds a listener where there is no connection.
fn owner_in(answer: &[u8], question: &[u8]) -> Option<u32> {
    let word = |at: usize| answer.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let kind = answer.get(4..)?.first_chunk().map(|kind| u16::from_ne_bytes(*kind))?;
    let asked = question.get(HEAD_LEN + ID_AT..)?.get(..PAIR_LEN)?;
    let told = answer.get(HEAD_LEN + 4..)?.get(..PAIR_LEN)?;
    let state = *answer.get(HEAD_LEN + 1)?;
    if kind != BY_FAMILY || asked != told || state != TCP_ESTABLISHED {
        return None;
    }
    let (uid, inode) = (word(HEAD_LEN + 64)?, word(HEAD_LEN + 68)?);
    // A socket that no process has any more is told as root's.
    (inode != 0).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_owner_of_the_other_end_is_known_until_it_is_closed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (theirs, _) = listener.accept().unwrap();
            let me = rustix::process::geteuid().as_raw();
            assert_eq!([owner(&ours), owner(&theirs)], [Ok(Some(me)); 2]);
            drop(theirs);
            assert_eq!(owner(&ours), Ok(None), "and not root");
        }
    }
}
