//! The cluster file: who this node is, where the others are, and the key that all of them know.
//!
//! ```toml
//! node = "a"                       # this node's name
//! listen = "10.0.0.1:4790"         # where other nodes' daemons reach this one
//! key = "/etc/vmmc/cluster.key"    # 64 hexadecimal digits; without it loopback addresses only
//!
//! [nodes]                          # the others, by name; a change counts at once, all others from the next start on
//! b = "10.0.0.2:4790"              # or a host name: "b.example.org:4790", looked up for each connection
//!
//! [fabric]                         # go over libfabric instead of TCP; the same on all nodes
//! provider = "verbs;ofi_rxm"       # as `fi_info` names it
//! direct = "auto"                  # whether long messages are written straight into exported pages of this node, past its
//!                                  # interface: "on", "off"; "auto": over RDMA hardware only
//! notice = "auto"                  # how the other end is told of what this node writes: "message": by a message behind it; "auto":
//!                                  # by data that come with it, where the provider has such and is the better for it
//!
//! [data]                           # what processes send to other nodes; the same on all nodes
//! seal = true                      # encrypted (ChaCha20-Poly1305), not over a fabric; default false. Needs a key
//! freeze-limit = 30                # seconds for which a packet for a page that its exporter has disabled holds up what comes
//!                                  # behind it; then its link ends. Of this node alone. Default: until the page is enabled
//!
//! [streams]                        # connections of programs that know one machine only: sockets, Sun RPC
//! between-nodes = "auto"           # carried to other nodes: "on", "off"; "auto": over RDMA hardware only,
//!                                  # because over anything else they win nothing; "loopback": as "on", and
//!                                  # those within this machine too, to try it without another. Needs a key
//!
//! [users]                          # whom processes of other nodes count as; all optional
//! same = true                      # the user of the same number (default)
//! root = false                     # whether user 0 elsewhere is user 0 here (default: nobody)
//! nobody = 65534
//! [users.map]                      # exceptions
//! "b:1000" = 1001
//! ```
//!
//! Of a process's groups the effective one counts, and only where its user is mapped to the same number; otherwise it is
//! that of `nobody`. A grant to a process is one to a process of this node.
//!
//! A node that knows the key may claim any user of its own: the cluster is one administration,
//! as with NFS's `AUTH_SYS`. Without a key only root's daemon may, and any other its own user alone, as the kernel tells whose
//! it is.

use super::address::Address;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use vmmc::control::message::RemoteCaller;
use vmmc::control::network::{FabricAt, NODE_NAME_MAX, Origin, is_node_name};
use vmmc::fabric::Notice;
use vmmc::id::{ClientId, PeerInfo};

/// Length of the cluster key in bytes.
pub const KEY_LEN: usize = 32;

/// Nodes by name.
pub type Nodes = BTreeMap<String, Address>;

/// What is different in a cluster file that was read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Nodes.
    pub added: Vec<String>,
    /// Nodes that it names no more.
    pub removed: Vec<String>,
    /// Nodes that are at another address.
    pub moved: Vec<String>,
    /// What else, which is not heeded.
    pub ignored: Vec<&'static str>,
}

impl Change {
    /// Nothing is.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Change::default()
    }
}

/// A cluster, as one of its nodes sees it.
pub struct Cluster {
    /// This node.
    pub node: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The key; `None`: loopback only.
    pub key: Option<[u8; KEY_LEN]>,
    /// The others, as the file names them now.
    nodes: RwLock<Arc<Nodes>>,
    /// The file.
    path: PathBuf,
    /// Provider of libfabric by which frames go.
    pub fabric: Option<String>,
    notice: Notice,
    /// Whether long messages over it are written straight into exported pages.
    direct: bool,
    /// Whether data connections are sealed.
    seals: bool,
    /// How long a packet for a disabled page is held back; `None`: for as long as it is disabled.
    pub freeze_limit: Option<Duration>,
    /// Whether connections of programs that know one machine only are carried to other nodes.
    carries: Carries,
    /// Whom their users count as.
    users: Users,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cluster { node, listen, fabric, .. } = self;
        f.debug_struct("Cluster")
            .field("node", node)
            .field("listen", listen)
            .field("nodes", &self.nodes())
            .field("fabric", fabric)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node: String,
    listen: String,
    key: Option<PathBuf>,
    #[serde(default)]
    nodes: BTreeMap<String, String>,
    fabric: Option<Fabric>,
    #[serde(default)]
    data: Data,
    #[serde(default)]
    streams: Streams,
    #[serde(default)]
    users: Users,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fabric {
    provider: String,
    #[serde(default)]
    direct: Direct,
    #[serde(default)]
    notice: Notice,
}

/// When long messages are written straight into exported pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direct {
    /// Over hardware.
    #[default]
    Auto,
    On,
    Off,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Data {
    seal: bool,
    freeze_limit: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Streams {
    between_nodes: BetweenNodes,
}

/// When connections to other nodes are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BetweenNodes {
    /// Over hardware.
    #[default]
    Auto,
    On,
    /// And those within this machine too, by this daemon to itself.
    Loopback,
    Off,
}

/// Which connections of programs that know one machine only are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    None,
    ToOthers,
    All,
}

/// Providers of libfabric that are hardware which writes into memory by itself. Others go over the kernel's network,
/// where a connection is as well off alone.
const HARDWARE: &[&str] =
    &["verbs", "efa", "cxi", "opx", "psm2", "psm3", "gni", "usnic", "mlx", "ucx"];

/// Whether a provider, as `fi_info` names it, is one of those.
fn is_hardware(provider: &str) -> bool {
    provider.split(';').any(|layer| HARDWARE.contains(&layer.trim()))
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Users {
    same: bool,
    root: bool,
    nobody: u32,
    map: BTreeMap<String, u32>,
}

impl Default for Users {
    fn default() -> Users {
        Users { same: true, root: false, nobody: 65534, map: BTreeMap::new() }
    }
}

/// What is wrong with a cluster file or a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// How it failed.
        error: std::io::Error,
    },
    /// It says something that no cluster file says.
    #[error("{}: {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What, where, and what to write in its place.
        what: String,
    },
    /// Others could read the key.
    #[error(
        "key {} is readable or writable by others than its owner (mode {mode:o}, owner {owner}); chmod 600 it, and give it to user {user} or root", path.display()
    )]
    OpenKey {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// It is no key.
    #[error("key {} is not 64 hexadecimal digits; make one: head -c 32 /dev/urandom | xxd -p -c 64", path.display())]
    Key {
        /// Which.
        path: PathBuf,
    },
    /// It is no file that holds something.
    #[error("key {} is not a file; `key` names one with 64 hexadecimal digits, beside the cluster file or by its whole path", path.display())]
    NoFile {
        /// Which.
        path: PathBuf,
    },
    /// Without a key nobody proves anything.
    #[error(
        "{address} is not a loopback address, and without a key only those are allowed; name one with `key`"
    )]
    NoKey {
        /// Which.
        address: SocketAddr,
    },
}

impl Cluster {
    /// Reads a cluster file and the key that it names.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn read(path: &Path) -> Result<Cluster, ClusterError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ClusterError::Read { path: path.to_owned(), error })?;
        let wrong = |what: String| ClusterError::File { path: path.to_owned(), what };
        let File { node, listen, key, nodes, fabric, data, streams, users } =
            toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for name in nodes.keys().chain([&node]) {
            if !is_node_name(name) {
                return Err(wrong(format!(
                    "{name:?} cannot name a node: 1 to {NODE_NAME_MAX} bytes, no blanks, no `@` or `,`, and no `-` first"
                )));
            }
        }
        for place in users.map.keys() {
            let user = place.rsplit_once(':').and_then(|(_, uid)| uid.parse::<u32>().ok());
            if user.is_none() {
                return Err(wrong(format!("users.map: {place:?} is not NODE:UID")));
            }
        }
        let parse = |what: &str, text: &str| {
            let no_address = || {
                format!(
                    "{what}: {text:?} is not ADDRESS:PORT, [IPV6-ADDRESS]:PORT or HOST-NAME:PORT"
                )
            };
            Address::parse(text).ok_or_else(|| wrong(no_address()))
        };
        let listen = own_address(&parse("listen", &listen)?)
            .map_err(|error| wrong(format!("listen: {listen:?} cannot be looked up: {error}")))?;
        let nodes = nodes.into_iter().map(|(name, at)| Ok((parse(&name, &at)?, name)));
        let nodes = nodes.map(|it| it.map(|(at, name)| (name, at)));
        let mut nodes = nodes.collect::<Result<BTreeMap<_, _>, ClusterError>>()?;
        // A file may be the same on all nodes but for its first lines.
        nodes.remove(&node);
        let of_others = nodes.iter().map(|(name, at)| (name.as_str(), at.port()));
        // Who only imports need not be found.
        let mine =
            (streams.between_nodes == BetweenNodes::Loopback).then_some(("listen", listen.port()));
        if let Some((what, _)) = of_others.chain(mine).find(|(_, port)| *port == 0) {
            return Err(wrong(format!(
                "{what}: nobody can find a node at port 0; write one that is free there (4790 by custom)"
            )));
        }
        let key =
            key.map(|file| read_key(&path.parent().unwrap_or(path).join(file))).transpose()?;
        if key.is_none() {
            // Names are asked about when they are looked up.
            let written = nodes.values().filter(|at| !at.is_name());
            let written = written.filter_map(|at| at.look_up().ok()).flatten();
            let mut all = written.chain([listen]);
            if let Some(address) = all.find(|address| !address.ip().is_loopback()) {
                return Err(ClusterError::NoKey { address });
            }
        }
        if fabric.as_ref().is_some_and(|fabric| fabric.provider.trim().is_empty()) {
            return Err(wrong(
                "fabric.provider is empty; name one of those that `shrimp doctor` lists, or leave [fabric] out for TCP"
                    .to_owned(),
            ));
        }
        let direct = fabric.as_ref().is_some_and(|fabric| match fabric.direct {
            Direct::Auto => is_hardware(&fabric.provider),
            Direct::On => true,
            Direct::Off => false,
        });
        let notice = fabric.as_ref().map(|fabric| fabric.notice).unwrap_or_default();
        let fabric = fabric.map(|fabric| fabric.provider);
        if data.seal && key.is_none() {
            return Err(wrong(
                "data.seal needs a key, by which the nodes prove who they are; name one with `key`"
                    .to_owned(),
            ));
        }
        if data.seal
            && let Some(provider) = &fabric
        {
            return Err(wrong(format!(
                "data.seal is for data that go over TCP, and [fabric] sends them by {provider:?}; take one of the two out"
            )));
        }
        let wanted = streams.between_nodes;
        if matches!(wanted, BetweenNodes::On | BetweenNodes::Loopback) && key.is_none() {
            return Err(wrong(
                "streams.between-nodes needs a key, which keeps other processes out of what is carried; name one with `key`".to_owned(),
            ));
        }
        let carries = match wanted {
            BetweenNodes::Loopback => Carries::All,
            BetweenNodes::On => Carries::ToOthers,
            BetweenNodes::Auto if key.is_some() && fabric.as_deref().is_some_and(is_hardware) => {
                Carries::ToOthers
            }
            BetweenNodes::Off | BetweenNodes::Auto => Carries::None,
        };
        if carries == Carries::All {
            nodes.insert(node.clone(), listen.into());
        }
        let freeze_limit = data.freeze_limit.map(|seconds| Duration::from_secs(seconds.into()));
        let seals = data.seal;
        Ok(Cluster {
            node,
            listen,
            key,
            nodes: RwLock::new(Arc::new(nodes)),
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            fabric,
            notice,
            direct,
            seals,
            freeze_limit,
            carries,
            users,
        })
    }

    /// The others.
    #[must_use]
    pub fn nodes(&self) -> Arc<Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again: the nodes that it names now count from here on. What else has changed is told, and not heeded.
    ///
    /// # Errors
    /// As [`Cluster::read`]; then all stays as it was.
    pub fn read_again(&self) -> Result<Change, ClusterError> {
        let now = Cluster::read(&self.path)?;
        let settings = [
            ("node", self.node == now.node),
            ("listen", self.listen == now.listen),
            ("key", self.key == now.key),
            (
                "fabric",
                (&self.fabric, self.notice, self.direct) == (&now.fabric, now.notice, now.direct),
            ),
            ("data", (self.seals, self.freeze_limit) == (now.seals, now.freeze_limit)),
            ("streams", self.carries == now.carries),
            ("users", self.users == now.users),
        ];
        let (before, nodes) = (self.nodes(), now.nodes());
        // Names are asked about where nobody can wait for a resolver.
        nodes.values().for_each(|at| drop(at.look_up()));
        let only_in = |one: &Nodes, other: &Nodes| {
            one.keys().filter(|&node| !other.contains_key(node)).cloned().collect()
        };
        let is_moved = |(node, at): &(&String, &Address)| {
            before.get(*node).is_some_and(|it| it.to_string() != at.to_string())
        };
        let change = Change {
            added: only_in(&nodes, &before),
            removed: only_in(&before, &nodes),
            moved: nodes.iter().filter(is_moved).map(|(node, _)| node.clone()).collect(),
            ignored: settings.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect(),
        };
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes;
        Ok(change)
    }

    /// Whether data connections are sealed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.seals
    }

    /// Whether connections of programs that know one machine only are carried to other nodes.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.carries != Carries::None
    }

    /// Whether those within this machine are too.
    #[must_use]
    pub fn carries_own(&self) -> bool {
        self.carries == Carries::All
    }

    /// The node whose daemon listens at an address; `None` also where several do.
    #[must_use]
    pub fn node_at(&self, address: IpAddr) -> Option<String> {
        let nodes = self.nodes();
        let mut there = nodes.iter().filter(|(_, at)| at.is_at(address, |it| it));
        let (name, _) = there.next()?;
        there.next().is_none().then(|| name.clone())
    }

    /// Whether processes of other nodes write long messages straight into exported pages of this one.
    #[must_use]
    pub fn writes_directly(&self) -> bool {
        self.direct
    }

    /// The fabric by which processes of this node reach others.
    #[must_use]
    pub fn fabric(&self) -> Option<FabricAt> {
        let provider = self.fabric.clone()?;
        Some(FabricAt { provider, local: self.listen.ip(), notice: self.notice })
    }

    /// Whom a process of another node counts as here.
    #[must_use]
    pub fn caller(&self, origin: &Origin) -> RemoteCaller {
        let Users { same, root, nobody, map } = &self.users;
        let uid = match map.get(&format!("{}:{}", origin.node, origin.uid)) {
            Some(&uid) => uid,
            None if origin.uid == 0 && !root => *nobody,
            None if *same => origin.uid,
            None => *nobody,
        };
        let gid = if *same && uid == origin.uid { origin.gid } else { *nobody };
        let Origin { node, client, pid, .. } = origin;
        RemoteCaller { node: node.clone(), client: ClientId(*client), pid: *pid, uid, gid }
    }
}

impl Cluster {
    /// A process of another node, as programs here see it: the user is whom it counts as.
    #[must_use]
    pub fn counts_as(&self, node: &str, peer: PeerInfo) -> PeerInfo {
        let PeerInfo { client, pid, uid, gid } = peer;
        let origin = Origin { node: node.to_owned(), client: client.0, pid, uid, gid };
        let RemoteCaller { uid, gid, .. } = self.caller(&origin);
        PeerInfo { uid, gid, ..peer }
    }
}

/// Where to listen: of a name's addresses one of IPv4, if there is one.
fn own_address(address: &Address) -> std::io::Result<SocketAddr> {
    let found = address.look_up()?;
    let first = found.iter().find(|it| it.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| std::io::Error::other("the name has no address"))
}

fn read_key(path: &Path) -> Result<[u8; KEY_LEN], ClusterError> {
    let failed = |error| ClusterError::Read { path: path.to_owned(), error };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(ClusterError::NoFile { path: path.to_owned() });
    }
    let user = rustix::process::geteuid().as_raw();
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & 0o077 != 0 || (owner != user && owner != 0) {
        return Err(ClusterError::OpenKey { path: path.to_owned(), mode, owner, user });
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let key = str::from_utf8(&bytes).ok().and_then(|text| parse_key(text.trim()));
    key.ok_or_else(|| ClusterError::Key { path: path.to_owned() })
}

fn parse_key(text: &str) -> Option<[u8; KEY_LEN]> {
    let mut key = [0; KEY_LEN];
    if text.len() != 2 * KEY_LEN || !text.is_ascii() {
        return None;
    }
    for (i, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn origin(node: &str, uid: u32) -> Origin {
        Origin { node: node.to_owned(), client: 1, pid: 2, uid, gid: uid }
    }

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn cluster(&self, text: &str) -> Result<Cluster, ClusterError> {
            Cluster::read(&self.write("cluster.toml", text, 0o644))
        }
    }

    #[test]
    fn the_other_end_of_a_fabric_is_told_by_data_or_messages() {
        let place = Place::new();
        let notice = |more: &str| {
            let text = format!("node='a'\nlisten='127.0.0.1:1'\n[fabric]\nprovider='net'\n{more}");
            place.cluster(&text).map(|cluster| cluster.fabric().unwrap().notice)
        };
        assert_eq!(notice("").unwrap(), Notice::Auto);
        assert_eq!(notice("notice='message'\n").unwrap(), Notice::Message);
        let error = notice("notice='pigeon'\n").unwrap_err().to_string();
        assert!(error.contains("pigeon") && error.contains("message"), "{error}");
    }

    #[test]
    fn a_fabric_writes_into_pages_by_itself_where_it_is_hardware_or_told_to() {
        let place = Place::new();
        let direct = |provider: &str, more: &str| {
            let text =
                format!("node='a'\nlisten='127.0.0.1:1'\n[fabric]\nprovider='{provider}'\n{more}");
            place.cluster(&text).map(|cluster| cluster.writes_directly())
        };
        for (provider, alone) in [("verbs;ofi_rxm", true), ("efa", true), ("net", false)] {
            assert_eq!(direct(provider, "").unwrap(), alone, "{provider}");
            assert_eq!(direct(provider, "direct='auto'\n").unwrap(), alone, "{provider}");
            assert!(direct(provider, "direct='on'\n").unwrap());
            assert!(!direct(provider, "direct='off'\n").unwrap());
        }
        let error = direct("net", "direct='yes'\n").unwrap_err().to_string();
        assert!(error.contains("direct") && error.contains("auto"), "{error}");
    }

    #[test]
    fn nodes_of_a_file_that_is_read_again_count_and_the_rest_is_told() {
        let place = Place::new();
        let text = |rest: &str, nodes: &str| {
            format!("node='a'\nlisten='127.0.0.1:1'\n{rest}[nodes]\n{nodes}")
        };
        let file = |rest: &str, nodes: &str| place.cluster(&text(rest, nodes));
        let cluster = file("", "b='127.0.0.2:2'\nc='127.0.0.3:3'\n").unwrap();
        assert_eq!(cluster.read_again().unwrap(), Change::default());
        file("", "a='127.0.0.1:1'\nc='127.0.0.3:4'\nd='127.0.0.4:5'\n").unwrap();
        let words = |words: &[&str]| words.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let expected = Change {
            added: words(&["d"]),
            removed: words(&["b"]),
            moved: words(&["c"]),
            ignored: Vec::new(),
        };
        assert_eq!(cluster.read_again().unwrap(), expected);
        let nodes = cluster.nodes();
        let known: Vec<_> = nodes.iter().map(|(node, at)| format!("{node} {at}")).collect();
        assert_eq!(known, ["c 127.0.0.3:4", "d 127.0.0.4:5"]);
        // What cannot be read changes nothing; what cannot change is told.
        assert!(file("", "e='nowhere'\n").is_err());
        assert!(cluster.read_again().is_err());
        assert_eq!(cluster.nodes().len(), 2);
        place.cluster("node='z'\nlisten='127.0.0.1:1'\n[users]\nsame=false\n").unwrap();
        let change = cluster.read_again().unwrap();
        assert_eq!((change.removed, change.ignored), (words(&["c", "d"]), vec!["node", "users"]));
        assert_eq!(cluster.node, "a");
    }

    #[test]
    fn without_a_key_only_loopback_addresses_are_allowed() {
        let place = Place::new();
        let at = |listen: &str, other: &str| {
            place.cluster(&format!("node='a'\nlisten='{listen}:1'\n[nodes]\nb='{other}:2'\n"))
        };
        assert!(at("127.0.0.1", "127.0.0.2").is_ok());
        assert!(matches!(at("10.0.0.1", "127.0.0.1"), Err(ClusterError::NoKey { .. })));
        assert!(matches!(at("127.0.0.1", "10.0.0.1"), Err(ClusterError::NoKey { .. })));
    }

    #[test]
    fn a_key_is_64_digits_that_nobody_else_can_read() {
        let place = Place::new();
        let text = "node='a'\nlisten='10.0.0.1:1'\nkey='key'\n";
        place.write("key", &"0f".repeat(32), 0o600);
        assert_eq!(place.cluster(text).unwrap().key, Some([0x0f; 32]));
        place.write("key", &"0f".repeat(32), 0o640);
        assert!(matches!(place.cluster(text), Err(ClusterError::OpenKey { mode: 0o640, .. })));
        place.write("key", &"0f".repeat(31), 0o600);
        assert!(matches!(place.cluster(text), Err(ClusterError::Key { .. })));
        place.write("key", &"zz".repeat(32), 0o600);
        assert!(matches!(place.cluster(text), Err(ClusterError::Key { .. })));
        std::fs::write(place.0.path().join("key"), [0xff; 32]).unwrap();
        assert!(matches!(place.cluster(text), Err(ClusterError::Key { .. })));
        for no_file in ["", ".", "/dev/null"] {
            let text = format!("node='a'\nlisten='10.0.0.1:1'\nkey={no_file:?}\n");
            assert!(matches!(place.cluster(&text), Err(ClusterError::NoFile { .. })), "{no_file}");
        }
    }

    #[test]
    fn users_are_mapped_as_the_file_says_and_root_is_nobody_unless_it_says_so() {
        let place = Place::new();
        let head = "node='a'\nlisten='127.0.0.1:1'\n";
        let uid = |text: &str, node: &str, uid: u32| {
            place.cluster(&format!("{head}{text}")).unwrap().caller(&origin(node, uid)).uid
        };
        assert_eq!(uid("", "b", 1000), 1000);
        assert_eq!(uid("", "b", 0), 65534);
        assert_eq!(uid("[users]\nroot=true\n", "b", 0), 0);
        assert_eq!(uid("[users]\nsame=false\nnobody=7\n", "b", 1000), 7);
        let map = "[users.map]\n'b:1000'=1001\n";
        assert_eq!((uid(map, "b", 1000), uid(map, "c", 1000)), (1001, 1000));
    }

    #[test]
    fn connections_are_carried_over_hardware_or_when_asked_and_never_without_a_key() {
        let place = Place::new();
        place.write("key", &"0f".repeat(32), 0o600);
        let carries = |key: &str, text: &str| {
            let head = format!("node='a'\nlisten='127.0.0.1:1'\n{key}");
            place.cluster(&format!("{head}{text}")).map(|cluster| cluster.carries())
        };
        let (key, on) = ("key='key'\n", "[streams]\nbetween-nodes='on'\n");
        assert!(!carries(key, "").unwrap());
        assert!(carries(key, on).unwrap());
        for (provider, expected) in
            [("tcp;ofi_rxm", false), ("net", false), ("verbs;ofi_rxm", true), ("efa", true)]
        {
            let fabric = format!("[fabric]\nprovider='{provider}'\n");
            assert_eq!(carries(key, &fabric).unwrap(), expected, "{provider}");
            assert!(!carries("", &fabric).unwrap());
            let off = format!("{fabric}[streams]\nbetween-nodes='off'\n");
            assert!(!carries(key, &off).unwrap());
        }
        let error = carries("", on).unwrap_err().to_string();
        assert!(error.contains("needs a key"), "{error}");
        assert!(carries(key, "[streams]\nbetween-nodes='maybe'\n").is_err());
    }

    #[test]
    fn data_are_sealed_when_asked_with_a_key_and_over_tcp_only() {
        let place = Place::new();
        place.write("key", &"0f".repeat(32), 0o600);
        let seals = |text: &str| {
            let head = "node='a'\nlisten='127.0.0.1:1'\n";
            place.cluster(&format!("{head}{text}")).map(|cluster| cluster.seals())
        };
        assert!(!seals("key='key'\n").unwrap());
        assert!(seals("key='key'\n[data]\nseal=true\n").unwrap());
        let error = seals("[data]\nseal=true\n").unwrap_err().to_string();
        assert!(error.contains("needs a key"), "{error}");
        let both = "key='key'\n[fabric]\nprovider='tcp;ofi_rxm'\n[data]\nseal=true\n";
        let error = seals(both).unwrap_err().to_string();
        assert!(error.contains("tcp;ofi_rxm") && error.contains("take one"), "{error}");
    }

    #[test]
    fn packets_for_disabled_pages_are_held_for_ever_or_for_so_many_seconds() {
        let place = Place::new();
        let limit = |text: &str| {
            let head = "node='a'\nlisten='127.0.0.1:1'\n[data]\n";
            place.cluster(&format!("{head}{text}")).map(|cluster| cluster.freeze_limit)
        };
        assert_eq!(limit("").unwrap(), None);
        assert_eq!(limit("freeze-limit = 0").unwrap(), Some(Duration::ZERO));
        assert_eq!(limit("freeze-limit = 30").unwrap(), Some(Duration::from_secs(30)));
        let error = limit("freeze-limit = -1").unwrap_err().to_string();
        assert!(error.contains("freeze-limit = -1"), "{error}");
    }

    #[test]
    fn a_node_is_known_by_its_address_where_that_is_its_alone() {
        let place = Place::new();
        let text = "node='a'\nlisten='127.0.0.1:1'\n[nodes]\n\
            b='127.0.0.2:1'\nc='127.0.0.3:1'\nd='127.0.0.3:2'\n";
        let cluster = place.cluster(text).unwrap();
        let at = |address: &str| cluster.node_at(address.parse().unwrap());
        assert_eq!(at("127.0.0.2").as_deref(), Some("b"));
        assert_eq!(at("::ffff:127.0.0.2").as_deref(), Some("b"));
        assert_eq!([at("127.0.0.1"), at("127.0.0.3"), at("127.0.0.4")], [const { None }; 3]);
    }

    #[test]
    fn what_is_no_cluster_file_is_refused_with_the_line() {
        let place = Place::new();
        let error = place.cluster("node='a'\nlisten='nowhere'\n").unwrap_err().to_string();
        assert!(error.contains("listen: \"nowhere\" is not ADDRESS:PORT"), "{error}");
        let other = "node='a'\nlisten='127.0.0.1:1'\n[nodes]\nb='10.0.0.300:1'\n";
        let error = place.cluster(other).unwrap_err().to_string();
        assert!(error.contains("b: \"10.0.0.300:1\" is not"), "{error}");
        let error =
            place.cluster("node='a'\nlisten='nowhere.invalid:1'\n").unwrap_err().to_string();
        assert!(error.contains("cannot be looked up"), "{error}");
        for name in ["a b", "kv@a", "a,b", "-oProxyCommand=x"] {
            let text = format!("node='{name}'\nlisten='127.0.0.1:1'\n");
            let error = place.cluster(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?} cannot name a node")), "{error}");
        }
        for text in [
            "listen='127.0.0.1:0'\n[streams]\nbetween-nodes='loopback'\n",
            "listen='127.0.0.1:1'\n[nodes]\nb='b.invalid:0'\n",
        ] {
            let error = place.cluster(&format!("node='a'\n{text}")).unwrap_err().to_string();
            assert!(error.contains("at port 0"), "{error}");
        }
        let empty = "node='a'\nlisten='127.0.0.1:1'\n[fabric]\nprovider=' '\n";
        let error = place.cluster(empty).unwrap_err().to_string();
        assert!(error.contains("fabric.provider is empty"), "{error}");
        let error = place.cluster("node='a'\nlisten='127.0.0.1:1'\n[fabric]\n").unwrap_err();
        assert!(error.to_string().contains("provider"), "{error}");
        let error = place.cluster("node='a'\nlisten='127.0.0.1:1'\nx=1\n").unwrap_err();
        assert!(error.to_string().contains('x'), "{error}");
    }
}
