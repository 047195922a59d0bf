//! Where another node is: an address, or a host name that is looked up again for each connection.

use super::cluster::Cluster;
use super::lock;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::sys::thread::spawn_quiet;

/// See the module.
pub struct Address {
    /// As the cluster file has it: `HOST:PORT`.
    text: String,
    is_name: bool,
    /// As it was last looked up.
    known: Mutex<Vec<SocketAddr>>,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address { text: address.to_string(), is_name: false, known: Mutex::new(vec![address]) }
    }
}

impl Address {
    /// Reads `HOST:PORT`, where the host is an IPv4 address, an IPv6 address in brackets, or a name (RFC 1123, section 2.1,
    /// and underscores). Looks nothing up.
    #[must_use]
    pub fn parse(text: &str) -> Option<Address> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(address.into());
        }
        let (host, port) = text.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        // Digits and dots alone would be an address.
        let is_name =
            host.bytes().all(is_of_names) && host.bytes().any(|it| it.is_ascii_alphabetic());
        is_name.then(|| Address { text: text.to_owned(), is_name, known: Mutex::default() })
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.text.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }

    /// Whether it is a name, whose addresses may change.
    #[must_use]
    pub fn is_name(&self) -> bool {
        self.is_name
    }

    /// Its addresses, one at least. Looks a name up, for as long as the resolver takes.
    ///
    /// # Errors
    /// The resolver's; what was known stays.
    pub fn look_up(&self) -> std::io::Result<Vec<SocketAddr>> {
        if !self.is_name {
            return Ok(lock(&self.known).clone());
        }
        let found: Vec<SocketAddr> = self.text.to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(std::io::Error::other("the name has no address"));
        }
        lock(&self.known).clone_from(&found);
        Ok(found)
    }

    /// Whether it is at an address by what is known, after [`IpAddr::to_canonical`] and `as_seen`.
    #[must_use]
    pub fn is_at(&self, address: IpAddr, as_seen: fn(IpAddr) -> IpAddr) -> bool {
        let is_it =
            |at: &SocketAddr| as_seen(at.ip().to_canonical()) == as_seen(address.to_canonical());
        lock(&self.known).iter().any(is_it)
    }
}

/// Between two rounds of all names.
const AGAIN: Duration = Duration::from_secs(300);
/// Between two looks at one that was not found.
const SOON: Duration = Duration::from_secs(10);

/// Looks the names of a cluster up now and then: who comes from one of their addresses, and whose program has a connection there,
/// is asked where nobody can wait for a resolver.
///
/// # Errors
/// No thread to be had.
pub(super) fn follow_names(cluster: Arc<Cluster>) -> rustix::io::Result<()> {
    let rounds = move || {
        let mut lost = BTreeSet::new();
        loop {
            let begun = Instant::now();
            for (node, address) in cluster.nodes().iter().filter(|(_, at)| at.is_name()) {
                if let Err(error) = address.look_up() {
                    tracing::warn!(node, %address, %error, "the host of a node is not found");
                    lost.insert(node.clone());
                }
            }
            while begun.elapsed() < AGAIN {
                std::thread::sleep(if lost.is_empty() { AGAIN } else { SOON });
                let nodes = cluster.nodes();
                lost.retain(|node| nodes.get(node).is_some_and(|it| it.look_up().is_err()));
            }
        }
    };
    spawn_quiet("net-names", rounds).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_name_with_a_port_is_one_and_nothing_else() {
        for (text, is_name) in [
            ("10.0.0.1:4790", false),
            ("[fe80::1]:4790", false),
            ("localhost:1", true),
            ("node-1.example.org:65535", true),
            ("7.rack_2:1", true),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.is_name(), address.to_string().as_str()), (is_name, text));
        }
        for text in
            ["", "nowhere", "a:", "a:65536", ":1", "10.0.0:1", "10.0.0.256:1", "a b:1", "fe80::1:x"]
        {
            assert!(Address::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_name_is_at_its_addresses_once_it_was_looked_up() {
        let loopback = "127.0.0.1".parse().unwrap();
        let same = |address| address;
        let name = Address::parse("localhost:7").unwrap();
        assert!(!name.is_at(loopback, same));
        assert!(name.look_up().unwrap().iter().all(|at| at.ip().is_loopback() && at.port() == 7));
        assert!(name.is_at(loopback, same));
        assert!(Address::parse("127.0.0.1:7").unwrap().is_at(loopback, same));
        // Names of that kind never are (RFC 6761, section 6.4).
        assert!(Address::parse("nowhere.invalid:7").unwrap().look_up().is_err());
    }
}
