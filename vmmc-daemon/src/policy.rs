//! Who may do what, and how much of it. Identity is always the kernel's word about the socket's peer.

use crate::net::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use vmmc::control::message::{QuotaKind, Refusal};
use vmmc::id::{Grant, PeerInfo, Rights, Who};

/// How much one user may have, and which users may share connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest export, in bytes.
    pub max_export_bytes: u64,
    /// Connected processes per user.
    pub clients: u64,
    /// Live exports per user.
    pub exports: u64,
    /// Imports per user, waiting ones included.
    pub imports: u64,
    /// Exported bytes per user.
    pub bytes: u64,
    /// Registered ends of TCP connections per user.
    pub connections: u64,
    /// Which users' TCP connections are paired.
    pub pair_users: PairUsers,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_export_bytes: 64 << 30,
            clients: 8192,
            exports: 65_536,
            imports: 65_536,
            bytes: 1 << 40,
            connections: 65_536,
            pair_users: PairUsers::Same,
        }
    }
}

/// Between which users a TCP connection may be upgraded to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairUsers {
    /// The same user, or root with anyone.
    Same,
    /// Any two users.
    Any,
}

impl PairUsers {
    /// Whether the policy allows these two.
    #[must_use]
    pub fn allows(self, one: u32, other: u32) -> bool {
        self == PairUsers::Any || one == other || one == 0 || other == 0
    }
}

/// Connections per user beyond the quota of clients.
const SPARE_SOCKETS: u64 = 64;

/// What is counted for one user.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Connections, introduced or not, tools included.
    sockets: u64,
    clients: u64,
    exports: u64,
    imports: u64,
    bytes: u64,
    connections: u64,
}

impl Usage {
    fn field(&mut self, kind: QuotaKind) -> &mut u64 {
        match kind {
            QuotaKind::Clients => &mut self.clients,
            QuotaKind::Exports => &mut self.exports,
            QuotaKind::Imports => &mut self.imports,
            QuotaKind::Bytes => &mut self.bytes,
            QuotaKind::Connections => &mut self.connections,
        }
    }

    fn is_zero(&self) -> bool {
        self.sockets == 0
            && self.clients == 0
            && self.exports == 0
            && self.imports == 0
            && self.bytes == 0
            && self.connections == 0
    }
}

/// Quotas of all users.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) limits: Limits,
    users: HashMap<u32, Usage>,
    /// Users of connections that have been closed, and still count.
    closed: Arc<Mutex<Vec<u32>>>,
}

impl Quotas {
    pub(crate) fn new(limits: Limits) -> Quotas {
        Quotas { limits, users: HashMap::new(), closed: Arc::default() }
    }

    fn limit(&self, kind: QuotaKind) -> u64 {
        match kind {
            QuotaKind::Clients => self.limits.clients,
            QuotaKind::Exports => self.limits.exports,
            QuotaKind::Imports => self.limits.imports,
            QuotaKind::Bytes => self.limits.bytes,
            QuotaKind::Connections => self.limits.connections,
        }
    }

    /// Takes `amount` of a quota, or says why not.
    pub(crate) fn take(&mut self, uid: u32, kind: QuotaKind, amount: u64) -> Result<(), Refusal> {
        let limit = self.limit(kind);
        let used = self.users.entry(uid).or_default().field(kind);
        match used.checked_add(amount).filter(|&total| total <= limit) {
            Some(total) => {
                *used = total;
                Ok(())
            }
            None => Err(Refusal::Quota { uid, quota: kind, limit }),
        }
    }

    /// Takes without asking: for what a predecessor had granted.
    pub(crate) fn take_over(&mut self, uid: u32, kind: QuotaKind, amount: u64) {
        let used = self.users.entry(uid).or_default().field(kind);
        *used = used.saturating_add(amount);
    }

    /// Counts one more connection; some beyond the quota of clients, for tools and newcomers
    /// that are yet to be refused.
    pub(crate) fn take_socket(&mut self, uid: u32) -> bool {
        let closed = std::mem::take(&mut *lock(&self.closed));
        closed.into_iter().for_each(|uid| self.give_socket(uid));
        let limit = self.limits.clients.saturating_add(SPARE_SOCKETS);
        let usage = self.users.entry(uid).or_default();
        let room = usage.sockets < limit;
        usage.sockets += u64::from(room);
        room
    }

    /// Counts a connection of a predecessor.
    pub(crate) fn take_over_socket(&mut self, uid: u32) {
        self.users.entry(uid).or_default().sockets += 1;
    }

    /// What is to be called, in any thread, when one of a user's connections has been closed.
    pub(crate) fn socket_closed(&self, uid: u32) -> impl FnOnce() + Send + use<> {
        let closed = self.closed.clone();
        move || lock(&closed).push(uid)
    }

    /// One connection fewer.
    pub(crate) fn give_socket(&mut self, uid: u32) {
        if let Some(usage) = self.users.get_mut(&uid) {
            usage.sockets = usage.sockets.saturating_sub(1);
            if usage.is_zero() {
                self.users.remove(&uid);
            }
        }
    }

    /// Gives `amount` back.
    pub(crate) fn give(&mut self, uid: u32, kind: QuotaKind, amount: u64) {
        if let Some(usage) = self.users.get_mut(&uid) {
            let used = usage.field(kind);
            debug_assert!(*used >= amount, "{kind} of user {uid} given back twice");
            *used = used.saturating_sub(amount);
            if usage.is_zero() {
                self.users.remove(&uid);
            }
        }
    }
}

/// One entry of an access list as the daemon keeps it: a process is pinned down by its start time,
/// so that a later process with the same number gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) grant: Grant,
    /// Start time of the process of a [`Who::Process`] entry, in clock ticks since boot; `None`
    /// when there was no such process, which then matches nobody.
    pub(crate) started: Option<u64>,
}

impl Entry {
    pub(crate) fn new(grant: Grant) -> Entry {
        let started = match grant.who {
            Who::Process(pid) => start_time(pid),
            _ => None,
        };
        Entry { grant, started }
    }
}

/// When a process started (`/proc/PID/stat` field 22).
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold anything, parentheses included.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Who asks, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) peer: PeerInfo,
    /// Supplementary groups.
    pub(crate) groups: &'a [u32],
    /// When its process started, as it was read while that lived.
    pub(crate) started: Option<u64>,
}

/// The union of the rights of all entries that match the caller (V2, G7).
pub(crate) fn granted(entries: &[Entry], owner_uid: u32, caller: Caller<'_>) -> Rights {
    let matches = |entry: &Entry| match entry.grant.who {
        Who::Anyone => true,
        Who::SameUser => caller.peer.uid == owner_uid,
        Who::User(uid) => caller.peer.uid == uid,
        Who::Group(gid) => caller.peer.gid == gid || caller.groups.contains(&gid),
        Who::Process(pid) => {
            pid == caller.peer.pid && entry.started.is_some() && entry.started == caller.started
        }
    };
    entries
        .iter()
        .filter(|entry| matches(entry))
        .fold(Rights::empty(), |sum, entry| sum | (entry.grant.rights & Rights::all()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmmc::id::ClientId;

    fn caller(uid: u32, gid: u32, pid: u32, groups: &[u32]) -> Caller<'_> {
        let started = start_time(pid);
        Caller { peer: PeerInfo { client: ClientId(1), pid, uid, gid }, groups, started }
    }

    fn entry(who: Who, rights: Rights) -> Entry {
        Entry::new(Grant { who, rights })
    }

    /// V2, G7.
    #[test]
    fn rights_are_the_union_of_the_entries_that_match() {
        let list = [
            entry(Who::SameUser, Rights::READ),
            entry(Who::User(7), Rights::WRITE),
            entry(Who::Group(100), Rights::BIND),
        ];
        assert_eq!(granted(&list, 5, caller(5, 5, 1, &[])), Rights::READ);
        assert_eq!(granted(&list, 5, caller(7, 7, 1, &[])), Rights::WRITE);
        assert_eq!(granted(&list, 5, caller(7, 100, 1, &[])), Rights::WRITE | Rights::BIND);
        assert_eq!(granted(&list, 7, caller(7, 1, 1, &[3, 100])), Rights::all());
        assert_eq!(granted(&list, 5, caller(8, 8, 1, &[])), Rights::empty());
        assert_eq!(granted(&[], 5, caller(5, 5, 1, &[])), Rights::empty());
    }

    #[test]
    fn a_grant_to_a_process_is_for_that_process_and_not_for_its_number() {
        let us = std::process::id();
        let list = [entry(Who::Process(us), Rights::READ)];
        assert_eq!(granted(&list, 0, caller(0, 0, us, &[])), Rights::READ);
        assert_eq!(granted(&list, 0, caller(0, 0, us + 1, &[])), Rights::empty());
        let mut reused = list;
        reused[0].started = reused[0].started.map(|ticks| ticks - 1);
        assert_eq!(granted(&reused, 0, caller(0, 0, us, &[])), Rights::empty());
        reused[0].started = None;
        assert_eq!(granted(&reused, 0, caller(0, 0, us, &[])), Rights::empty());
    }

    /// G6.
    #[test]
    fn one_past_a_quota_is_refused_and_giving_back_makes_room() {
        let mut quotas = Quotas::new(Limits { exports: 2, ..Limits::default() });
        assert!(quotas.take(1, QuotaKind::Exports, 1).is_ok());
        assert!(quotas.take(1, QuotaKind::Exports, 1).is_ok());
        assert_eq!(
            quotas.take(1, QuotaKind::Exports, 1),
            Err(Refusal::Quota { uid: 1, quota: QuotaKind::Exports, limit: 2 })
        );
        assert!(quotas.take(2, QuotaKind::Exports, 1).is_ok(), "another user has its own");
        quotas.give(1, QuotaKind::Exports, 1);
        assert!(quotas.take(1, QuotaKind::Exports, 1).is_ok());
        assert!(quotas.take(1, QuotaKind::Bytes, u64::MAX).is_err());
    }
}
