//! Nodes on one machine: a daemon each, with an address of its own in 127.0.0.0/8. With
//! `VMMC_TEST_NETNS=PREFIX` (see `ci/net`) the daemons of the nodes `a` and `b` run in the network
//! namespaces `PREFIXa` and `PREFIXb`, which know each other as 10.77.0.1 and 10.77.0.2; with
//! `VMMC_TEST_HOSTS=NAMESPACE=ADDRESS,NAMESPACE=ADDRESS` (`ci/nodes`) in these two.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// The key of every cluster here.
pub const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// An address that no other test has: the process is in the address, the test in the port.
pub fn address() -> String {
    static LAST: AtomicU16 = AtomicU16::new(0);
    let pid = std::process::id();
    // In namespaces the process is not in the address: see `testing/alone.rs`.
    let alone =
        std::env::var("VMMC_TEST_ALONE").map_or(0, |number| number.parse().expect("number"));
    let port = 20_000 + 1_000 * alone + LAST.fetch_add(1, Ordering::Relaxed);
    // Never 127.0.0.x, where everybody else is.
    format!("127.{}.{}.{}:{port}", 64 + (pid >> 16 & 0x7f), pid >> 8 & 0xff, pid & 0xff)
}

/// Where the node `a` is in its namespace.
pub const HOST_A: &str = "10.77.0.1";

/// The namespace of a node and its address, when there is one.
fn namespace(name: &str) -> Option<(String, String)> {
    let (number, host) = match name {
        "a" => (0, HOST_A),
        "b" => (1, "10.77.0.2"),
        _ => return None,
    };
    if let Ok(hosts) = std::env::var("VMMC_TEST_HOSTS") {
        let (namespace, host) = hosts.split(',').nth(number)?.split_once('=')?;
        return Some((namespace.to_owned(), host.to_owned()));
    }
    let prefix = std::env::var("VMMC_TEST_NETNS").ok()?;
    Some((format!("{prefix}{name}"), host.to_owned()))
}

/// Whether the nodes are in namespaces, and this process is not.
pub fn in_namespaces() -> bool {
    std::env::var_os("VMMC_TEST_NETNS").is_some()
}

/// An address for a node: [`address`], or one in its namespace.
pub fn address_of(name: &str) -> String {
    let address = address();
    match (namespace(name), address.rsplit_once(':')) {
        (Some((_, host)), Some((_, port))) => format!("{host}:{port}"),
        _ => address,
    }
}

/// The words before a command that is to run on a node.
pub fn starter_of(name: &str) -> Vec<String> {
    let words = |(namespace, _)| vec!["ip".into(), "netns".into(), "exec".into(), namespace];
    namespace(name).map_or_else(Vec::new, words)
}

/// A node's place: directory, cluster file, daemon.
pub struct Place {
    pub name: String,
    pub address: String,
    pub daemon: Daemon,
    dir: tempfile::TempDir,
}

impl Place {
    /// Waits until it listens to other nodes, which comes after its socket. Not for namespaces.
    pub fn wait_for_others(&self) {
        let start = std::time::Instant::now();
        while namespace(&self.name).is_none()
            && std::net::TcpStream::connect(&self.address).is_err()
        {
            assert!(start.elapsed().as_secs() < 120, "{} does not listen", self.address);
            std::thread::yield_now();
        }
    }

    /// Another key, for the next daemon.
    pub fn change_key(&self, key: &str) {
        write(self.dir.path().join("key"), key);
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("cluster.toml")
    }

    /// What starts the daemon of this node, before its own name.
    pub fn starter(&self) -> Vec<String> {
        starter_of(&self.name)
    }
}

fn write(path: PathBuf, text: &str) {
    std::fs::write(&path, text).expect("writes");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// A node that knows of others by name and address.
pub fn node(name: &str, address: &str, others: &[(&str, &str)], key: Option<&str>) -> Place {
    node_with(name, address, others, key, "")
}

/// As [`node`], over a provider of libfabric.
pub fn node_over(
    name: &str,
    address: &str,
    others: &[(&str, &str)],
    key: Option<&str>,
    fabric: Option<&str>,
) -> Place {
    let more = fabric.map(|provider| format!("[fabric]\nprovider = {provider:?}\n"));
    node_with(name, address, others, key, &more.unwrap_or_default())
}

/// As [`node`], with more in its cluster file.
pub fn node_with(
    name: &str,
    address: &str,
    others: &[(&str, &str)],
    key: Option<&str>,
    more: &str,
) -> Place {
    node_in(name, address, others, key, more, &[])
}

/// As [`node_with`], with settings in the daemon's environment.
pub fn node_in(
    name: &str,
    address: &str,
    others: &[(&str, &str)],
    key: Option<&str>,
    more: &str,
    env: &[(&str, &str)],
) -> Place {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut text = format!("node = {name:?}\nlisten = {address:?}\n");
    if let Some(key) = key {
        write(dir.path().join("key"), key);
        text += "key = \"key\"\n";
    }
    text += "[nodes]\n";
    for (name, address) in others {
        text += &format!("{name} = {address:?}\n");
    }
    text += more;
    // Tests may run as root.
    text += "[users]\nroot = true\n";
    let file = dir.path().join("cluster.toml");
    write(file.clone(), &text);
    let arguments = ["--cluster", file.to_str().expect("text")];
    let daemon = match namespace(name) {
        Some((namespace, _)) => {
            Daemon::start_by(&["ip", "netns", "exec", &namespace], &arguments, env)
        }
        None => Daemon::start_with(&arguments, env),
    };
    Place { name: name.to_owned(), address: address.to_owned(), daemon, dir }
}

/// Two nodes, `a` and `b`, that know each other and the key.
pub fn pair() -> (Place, Place) {
    let (a, b) = (address_of("a"), address_of("b"));
    (node("a", &a, &[("b", &b)], Some(KEY)), node("b", &b, &[("a", &a)], Some(KEY)))
}

/// As [`pair`], where `b` reaches `a` by another address than it listens at.
pub fn pair_by(a: &str, way_to_a: &str) -> (Place, Place) {
    let b = address_of("b");
    (node("a", a, &[("b", &b)], Some(KEY)), node("b", &b, &[("a", way_to_a)], Some(KEY)))
}

/// As [`pair`], over a provider of libfabric.
pub fn pair_over(provider: &str) -> (Place, Place) {
    pair_with(&format!("[fabric]\nprovider = {provider:?}\n"))
}

/// As [`pair`], with more in the cluster files.
pub fn pair_with(more: &str) -> (Place, Place) {
    pair_in(more, &[])
}

/// As [`pair_with`], with settings in the daemons' environment.
pub fn pair_in(more: &str, env: &[(&str, &str)]) -> (Place, Place) {
    let (a, b) = (address_of("a"), address_of("b"));
    let node = |name, at: &str, other| node_in(name, at, &[other], Some(KEY), more, env);
    let nodes = (node("a", &a, ("b", &b)), node("b", &b, ("a", &a)));
    nodes.0.wait_for_others();
    nodes.1.wait_for_others();
    nodes
}
