//! Network namespaces. For the daemon.

use std::net::{IpAddr, UdpSocket};

/// Whether an address is one of the calling thread's network namespace: no other can be bound to.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
