//! TCP connections: those that the daemon knows, and the others of the processes that take part.
//!
//! The daemon hears of a connection when it is offered. What stays plain before that (it is short, a rule forbids
//! it, the other end is elsewhere) or goes back to TCP later, its process notes in the page that it shares,
//! by the socket's inode ([`vmmc::notes`]). `/proc` has the inodes of a process's sockets, and their addresses;
//! so connections without a note pay nothing to be listed. Of programs over Sun RPC those with a note are listed:
//! their clients offer each connection, once.

use crate::client::Page;
use crate::text::printable;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use vmmc::control::message::{ClientInfo, ConnectionInfo, ConnectionState, NotPairedReason, Role};

#[derive(Debug, Serialize)]
pub(super) struct ConnectionPart {
    /// Null for one that was not offered to the daemon.
    pub(super) cookie: Option<u64>,
    pub(super) client: u64,
    /// Also of a process that is gone.
    pub(super) pid: u32,
    pub(super) program: String,
    /// Whether that process is there.
    pub(super) alive: bool,
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) upgraded: bool,
    /// `upgraded`, `waiting`, `plain`, or `demoted`: a direction was upgraded, or could have been, and stays with TCP.
    pub(super) state: &'static str,
    /// Why it is plain or demoted; a word for programs.
    pub(super) reason: Option<String>,
    /// The same for people.
    pub(super) why: Option<String>,
    pub(super) ring_bytes: u64,
}

/// Words for programs, which stay when the text for people is improved: what the sockets library counts as
/// `plain_WORD`, and those of [`RPC_REASONS`].
const REASONS: &[(&str, &str)] = &[
    ("short", "too short so far, or made where the library does not see it"),
    ("no_daemon", "there was no daemon when it was to be offered"),
    ("no_partner", "the other end takes no part"),
    ("unanswered", "the server did not answer the offer in time"),
    ("refused", "refused by the daemon"),
    ("remote", "the other end has another address"),
    ("not_tcp", "not TCP, or not connected"),
    ("forked", "another process has it, or may have it: fork, exec, or passed on"),
    ("option", "an option or call that needs the kernel"),
    ("io_uring", "the program uses io_uring (shrimp exec --io-uring-files, if only for files)"),
    ("rule", "a rule of the user's"),
    ("resources", "no memory or table space, or too many offers at once"),
    ("stdio", "it is standard input, output or error"),
    ("waiter", "only the kernel can wake who waits for room"),
    ("full", "for a while, because the ring was full and nobody read"),
    ("stopped", "another process that has it was stopped while it sent"),
    ("peer", "the other end wants it so"),
    (FORGOTTEN, "not known: its process has gone, or has noted many others since"),
];

/// Of one that has left its ring, by the daemon's word, where no process says why.
const FORGOTTEN: &str = "forgotten";

/// What libvrpc.so counts, and the word for it.
const RPC_REASONS: &[(&str, &str)] = &[
    ("declined", "no_partner"),
    ("unanswered", "unanswered"),
    ("not_local", "remote"),
    ("no_daemon", "no_daemon"),
];

fn text(word: &str) -> String {
    let known = REASONS.iter().find(|(known, _)| *known == word);
    known.map_or_else(|| printable(word), |(_, text)| (*text).to_owned())
}

/// What the kernel knows of a TCP socket of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tcp {
    inode: u64,
    local: SocketAddr,
    remote: SocketAddr,
}

/// A connection's end, wherever the addresses mean the same.
type Place = (Option<PathBuf>, SocketAddr, SocketAddr);

/// The connected TCP sockets of every process that takes part, as they are now.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Client, network namespace, sockets.
    of: Vec<(ClientInfo, Option<PathBuf>, Vec<Tcp>)>,
}

impl Live {
    /// Looks in `/proc`. Processes that may not be looked into have none.
    pub(super) fn of(clients: &[ClientInfo]) -> Live {
        let mut of: Vec<(ClientInfo, Option<PathBuf>, Vec<Tcp>)> = Vec::new();
        // Of a process with both libraries the sockets library knows more.
        let of_role = |role| clients.iter().filter(move |client| client.role == role);
        for client in of_role(Role::Sockets).chain(of_role(Role::Rpc)) {
            let pid = client.peer.pid;
            if of.iter().all(|(known, ..)| known.peer.pid != pid) {
                of.push((client.clone(), namespace(pid), sockets(pid)));
            }
        }
        Live { of }
    }

    fn inode(&self, pid: u32, place: &Place) -> Option<u64> {
        let (_, _, sockets) = self.of.iter().find(|(client, ..)| client.peer.pid == pid)?;
        let found = sockets.iter().find(|tcp| tcp.local == place.1 && tcp.remote == place.2)?;
        Some(found.inode)
    }
}

fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

fn sockets(pid: u32) -> Vec<Tcp> {
    let Ok(listing) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let own: HashSet<u64> = listing
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines.filter_map(connected).filter(|tcp| own.contains(&tcp.inode)).collect()
}

/// A line of `/proc/net/tcp` or `tcp6`, if it is of a connection.
fn connected(line: &str) -> Option<Tcp> {
    const SYN_SENT: &str = "02";
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    if [SYN_SENT, LISTEN].contains(&state) {
        return None;
    }
    Some(Tcp { inode: inode.parse().ok()?, local: address(local)?, remote: address(remote)? })
}

/// An address as the kernel prints it: words in the machine's order of bytes, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words: Option<Vec<u8>> = (0..ip.len() / 8)
        .map(|i| u32::from_str_radix(ip.get(8 * i..8 * i + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect::<Option<Vec<_>>>()
        .map(|words| words.concat());
    let words = words?;
    let ip: IpAddr = match words.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(words).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}

/// Without scope and flow, and IPv4 as itself.
fn canonical(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.parse().ok()?;
    Some((address.ip().to_canonical(), address.port()).into())
}

/// What processes say of sockets, by inode. Of sockets of its own user's at most is a process believed, since it may
/// write any number into its page.
struct Notes<'p> {
    /// By process.
    own: HashMap<(u32, u64), &'p str>,
    /// By user: a socket that was inherited has its note with the parent.
    shared: HashMap<(u32, u64), &'p str>,
    /// By process, of clients over Sun RPC.
    rpc: HashMap<(u32, u64), &'static str>,
}

impl<'p> Notes<'p> {
    fn of(pages: &'p [(ClientInfo, Option<Page>)]) -> Notes<'p> {
        let (own, shared, rpc) = Default::default();
        let mut notes = Notes { own, shared, rpc };
        for (client, page) in pages {
            for (inode, counter) in page.iter().flat_map(|page| &page.notes) {
                if client.role == Role::Rpc {
                    let known = RPC_REASONS.iter().find(|(known, _)| known == counter);
                    notes.rpc.extend(known.map(|(_, word)| ((client.peer.pid, *inode), *word)));
                    continue;
                }
                if let Some(word) = counter.strip_prefix("plain_") {
                    notes.own.insert((client.peer.pid, *inode), word);
                    notes.shared.insert((client.peer.uid, *inode), word);
                }
            }
        }
        notes
    }

    /// Why a connection that the daemon does not list is plain; `None`: nothing is to be said of it.
    fn of_socket(&self, client: &ClientInfo, inode: u64) -> Option<&'p str> {
        if client.role == Role::Rpc {
            return self.rpc.get(&(client.peer.pid, inode)).copied();
        }
        let own = self.own.get(&(client.peer.pid, inode));
        let known = own.or_else(|| self.shared.get(&(client.peer.uid, inode))).copied();
        Some(known.unwrap_or("short"))
    }
}

/// All connections: what the daemon lists, then what is only `live`.
pub(super) fn all(
    listed: &[ConnectionInfo],
    live: &Live,
    pages: &[(ClientInfo, Option<Page>)],
) -> Vec<ConnectionPart> {
    let notes = Notes::of(pages);
    let mut parts = Vec::new();
    let mut places: HashSet<Place> = HashSet::new();
    for connection in listed {
        let mut part = connection_part(connection);
        let ends = canonical(&connection.local).zip(canonical(&connection.remote));
        if let Some((local, remote)) = ends.filter(|_| connection.alive) {
            let known = live.of.iter().find(|(it, ..)| it.peer.pid == connection.pid);
            let place = (known.and_then(|(_, space, _)| space.clone()), local, remote);
            let inode = live.inode(connection.pid, &place);
            let note = inode.zip(known).and_then(|(inode, (client, ..))| {
                let others = connection.has_left.then_some(&notes.shared);
                let own = notes.own.get(&(connection.pid, inode));
                own.or_else(|| others?.get(&(client.peer.uid, inode)))
            });
            if let (ConnectionState::Paired, Some(word)) = (connection.state, note) {
                part.is_demoted(word);
            }
            places.insert(place);
        }
        parts.push(part);
    }
    for (client, space, sockets) in &live.of {
        for tcp in sockets {
            if places.contains(&(space.clone(), tcp.local, tcp.remote)) {
                continue;
            }
            let Some(word) = notes.of_socket(client, tcp.inode) else { continue };
            parts.push(ConnectionPart {
                cookie: None,
                client: client.peer.client.0,
                pid: client.peer.pid,
                program: printable(&client.program),
                alive: true,
                local: tcp.local.to_string(),
                remote: tcp.remote.to_string(),
                upgraded: false,
                state: "plain",
                reason: Some(printable(word)),
                why: Some(text(word)),
                ring_bytes: 0,
            });
        }
    }
    parts
}

impl ConnectionPart {
    fn is_demoted(&mut self, word: &str) {
        self.upgraded = false;
        self.state = "demoted";
        self.reason = Some(printable(word));
        self.why = Some(text(word));
    }
}

fn connection_part(connection: &ConnectionInfo) -> ConnectionPart {
    let (state, reason, why) = match connection.state {
        ConnectionState::Waiting => ("waiting", None, None),
        ConnectionState::Paired => ("upgraded", None, None),
        ConnectionState::Carried => ("carried", None, None),
        ConnectionState::Plain(reason) => {
            ("plain", Some(word(reason).to_owned()), Some(reason.to_string()))
        }
    };
    let mut part = ConnectionPart {
        cookie: Some(connection.cookie),
        client: connection.client.0,
        pid: connection.pid,
        program: printable(&connection.program),
        alive: connection.alive,
        local: printable(&connection.local),
        remote: printable(&connection.remote),
        upgraded: matches!(connection.state, ConnectionState::Paired | ConnectionState::Carried),
        state,
        reason,
        why,
        ring_bytes: connection.ring_bytes,
    };
    if connection.has_left {
        part.is_demoted(FORGOTTEN);
    }
    part
}

/// The daemon's reasons.
fn word(reason: NotPairedReason) -> &'static str {
    match reason {
        NotPairedReason::NoPartner => "no_partner",
        NotPairedReason::NotEstablished => "not_established",
        NotPairedReason::OtherNamespace => "other_namespace",
        NotPairedReason::Policy => "policy",
        NotPairedReason::Quota => "quota",
        NotPairedReason::Conflict => "conflict",
        NotPairedReason::OtherVersion => "other_version",
        NotPairedReason::Resources => "resources",
        NotPairedReason::Remote => "remote",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_sockets_library_counts_as_plain_has_a_text() {
        let counters = include_str!("../../../compat-sockets/src/counters.rs");
        let plain = |line: &'static str| line.trim().split_once(": \"")?.0.strip_prefix("plain_");
        let words: Vec<&str> = counters.lines().filter_map(plain).collect();
        assert!(words.contains(&"no_partner"), "{words:?}");
        for word in words {
            assert!(REASONS.iter().any(|(known, _)| *known == word), "no text for plain_{word}");
        }
    }

    #[test]
    fn the_kernels_lines_are_read() {
        let line = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4242 1";
        let found = connected(line).unwrap();
        assert_eq!(found.inode, 4242);
        assert_eq!(found.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(found.remote, "127.0.0.1:50000".parse().unwrap());
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(address(mapped), Some("127.0.0.1:80".parse().unwrap()));
        let six = "00000000000000000000000001000000:0050";
        assert_eq!(address(six), Some("[::1]:80".parse().unwrap()));
        assert_eq!(connected(&line.replace(" 01 ", " 0A ")), None);
        assert_eq!(connected("nonsense"), None);
    }
}
