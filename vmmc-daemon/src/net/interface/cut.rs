//! Connections that were cut on the way, and go on over others: see [`vmmc::transport::net::connection`].
//!
//! Until its process is heard of, a connection is kept as it is: its links, the packet that is being received, and what it has
//! to say. It may still seem to be whole here when its process asks: then what has come is taken first.

use super::connection::Connection;
use super::{Interface, count};
use crate::net::secure::PATIENCE;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use vmmc::Node;
use vmmc::control::network::{Origin, Pass};
use vmmc::sys::Fd;
use vmmc::transport::tcp::seal::SealKeys;

/// How much longer it is kept than its process tries, which may have found it out later.
const LATER: Duration = Duration::from_secs(5);
/// Longest time that a process may try.
const LONGEST: Duration = Duration::from_secs(1000);

impl Interface {
    /// A connection was cut: nothing comes for now, nor goes.
    pub(super) fn was_cut(&mut self, epoll: &Fd, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.wire.unwatch(epoll);
        let patience = connection.lasting().map_or(0, |it| it.patience_s);
        let patience = Duration::from_secs(patience.into()).min(LONGEST);
        let until = Instant::now() + patience + LATER;
        connection.break_off(until);
        self.cut_due = Some(self.cut_due.map_or(until, |due| due.min(until)));
        self.unfinished.remove(&id);
        self.keepers.remove(&id);
        self.resting.remove(&id);
        self.cut.insert(id);
    }

    /// The process of one asks to go on, and has received so many bytes: how many came here, and which
    /// time that is; or why it cannot.
    pub(super) fn break_off(
        &mut self,
        epoll: &Fd,
        node: &Node,
        (pass, origin): (Pass, &Origin),
        position: u64,
    ) -> Result<(u64, u64), String> {
        let unknown = || "the connection has ended".to_owned();
        let id = *self.passes.get(&pass).ok_or_else(unknown)?;
        let known = |it: &Interface| it.connections.get(&id).is_some_and(|it| it.is_of(origin));
        if !known(self) {
            return Err(unknown());
        }
        // What has come so far: a sender that does not stop is not waited for.
        let taken = |it: &Interface| {
            let connection = it.connections.get(&id).filter(|it| !it.is_cut() && !it.is_stalled());
            connection.and_then(|it| it.wire.tcp()).map(|tcp| (tcp.taken(), tcp.waiting()))
        };
        let enough = taken(self).map_or(0, |(taken, waiting)| taken + waiting);
        while taken(self).is_some_and(|(taken, _)| taken < enough) && self.turn(epoll, node, id) {}
        if !known(self) {
            return Err(unknown());
        }
        if !self.cut.contains(&id) {
            self.was_cut(epoll, id);
        }
        let Interface { connections, offers, links, .. } = &mut *self;
        let connection = connections.get_mut(&id).ok_or_else(unknown)?;
        if !connection.take_and_part(node, offers, links) {
            self.end(epoll, id);
            return Err(unknown());
        }
        let connection = self.connections.get_mut(&id).ok_or_else(unknown)?;
        match connection.wire.tcp().filter(|tcp| tcp.reaches(position)) {
            Some(tcp) => {
                let taken = tcp.taken();
                Ok((taken, connection.expect(position, Instant::now() + PATIENCE)))
            }
            None => {
                self.end(epoll, id);
                Err("what it has not received of the answers is not kept any more".to_owned())
            }
        }
    }

    /// Goes on over another one.
    pub(super) fn resume(
        &mut self,
        epoll: &Fd,
        node: &Node,
        ((pass, asked), stream, seal): ((Pass, u64), TcpStream, Option<&SealKeys>),
    ) {
        let Some(&id) = self.passes.get(&pass).filter(|id| self.cut.contains(*id)) else { return };
        let found = self.connections.get_mut(&id).filter(|it| it.expects(asked));
        let Some(connection) = found else { return };
        if connection.resume(stream, seal).and_then(|()| connection.wire.watch(epoll, id)).is_err()
        {
            return self.end(epoll, id);
        }
        node.counters().add(count::RESUMED, 1);
        self.cut.remove(&id);
        self.debtors.add(id);
        if connection.wire.keeps_bytes() {
            self.keepers.insert(id);
        }
        self.unfinished.insert(id);
    }

    /// Those of a process end that imports over another one now: it does not try any more.
    pub(super) fn end_those_of(&mut self, epoll: &Fd, origin: &Origin) {
        let is_theirs = |id: &&u64| self.connections.get(id).is_some_and(|it| it.is_of(origin));
        let theirs: Vec<u64> = self.cut.iter().filter(is_theirs).copied().collect();
        for id in theirs {
            self.end(epoll, id);
        }
    }

    /// Ends the one that was to be kept for the shortest time; false if none is cut.
    pub(super) fn end_a_cut_one(&mut self, epoll: &Fd) -> bool {
        let until = |id: &u64| self.connections.get(id).and_then(Connection::cut_until);
        let first = self.cut.iter().copied().min_by_key(until);
        first.inspect(|&id| self.end(epoll, id)).is_some()
    }

    /// Those that have been kept for long enough end.
    pub(super) fn look_at_cut(&mut self, epoll: &Fd) {
        let now = Instant::now();
        if self.cut_due.is_none_or(|due| due > now) {
            return;
        }
        let until = |id: &u64| self.connections.get(id).and_then(Connection::cut_until);
        let (over, kept): (Vec<u64>, Vec<u64>) =
            self.cut.iter().copied().partition(|id| until(id).is_none_or(|at| at <= now));
        self.cut_due = kept.iter().filter_map(until).min();
        for id in over {
            self.end(epoll, id);
        }
    }
}
