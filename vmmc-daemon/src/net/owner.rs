//! Without a cluster key: whose the other end of a connection is, by the word of this machine's kernel.
//!
//! All nodes are on this machine then, where any process can connect and nobody proves anything. But the kernel knows who
//! made the socket at the other end (sock_diag(7)). Root's daemon speaks for every user, any other for its own alone.

use crate::sock_diag::SockDiag;
use rustix::io::Errno;
use std::net::{SocketAddr, TcpStream};

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
    let found = SockDiag::new()?.find(theirs, ours, None)?;
    // The kernel finds a listener where there is no connection. A socket that no process has any more is told as root's.
    let found = found.filter(|it| it.is_established && it.is_between(theirs, ours) && it.is_held);
    Ok(found.map(|it| it.uid))
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
