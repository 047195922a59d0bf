//! Global operations: every node calls, the host process does not. The first processes of all nodes call
//! together, and so do those that joined later, by the process type that they began with.
//!
//! They use a channel of their own, so that user messages and user receives of any type never meet
//! theirs, and exact partners, so that the order of messages between two nodes keeps successive
//! operations apart. With n nodes:
//!
//! * up to [`FLAT_NODES`] nodes of one machine, [`CELL_ROOM`] bytes of each and [`FLAT_BYTES`] of all: one round of an
//!   exchange ([`super::exchange`]), n(n - 1) stores. A node that has to wait is switched out once, and
//!   the last to come not at all.
//! * `gsync` of more: dissemination, in ceil(log2 n) rounds (Hensgen, Finkel, Manber, 1988).
//! * reductions of more: recursive doubling, and of long vectors halving ([`reduce`]).
//! * `gcol`, `gcolx` of more: in ceil(log2 n) rounds, each sending all that a node has (Bruck et al., 1997).
//!
//! Every node combines in the same order, what nodes of lower numbers have before what those of higher ones have, so all
//! get the same bits: the maximum of a NaN and a number, or of two zeros, or a sum of two NaNs, depends on the order. Where there are
//! cells, operations of more bytes announce themselves in them: nodes that call different ones are told, each when all have come
//! ([`round::Round`]). Messages carry the number of their round, so one that was sent in vain is taken for no later one.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

mod collect;
mod elements;
mod reduce;
mod round;

pub use elements::{Element, Reduction};

use super::Engine;
use super::layout::CELL_ROOM;
use super::peer::Peer;
use super::state::Letter;
use super::types::{Select, Source, Target};
use crate::error::NxError;

/// Channel of global operations.
const GLOBAL: u32 = 1;

/// Most nodes that give each other cells.
const FLAT_NODES: usize = 64;

/// Most bytes of all nodes that go by cells: so much each node writes, and reads. Of more, fewer bytes in more rounds are
/// faster where nodes have processors of their own. An estimate from what a line takes between two processors, for 16 of
/// them and more: there was no such machine to measure it on.
const FLAT_BYTES: usize = 16 * 1024;

/// Who this node is among how many.
#[derive(Clone, Copy)]
struct Place {
    me: usize,
    nodes: usize,
    /// Every node can write every other one's cells, and few enough do. All nodes find the same.
    cells: bool,
}

impl Place {
    /// Whether `len` bytes of each node go by cells. All nodes find the same.
    fn is_flat(self, len: usize) -> bool {
        self.cells && len <= CELL_ROOM && len * self.nodes <= FLAT_BYTES
    }

    fn others(self) -> impl Iterator<Item = usize> {
        (0..self.nodes).filter(move |&node| node != self.me)
    }
}

/// Whether nodes of these hosts ([`crate::Job::hosts`]; none: one machine) give each other cells.
pub(super) fn has_cells(nodes: usize, hosts: &[String]) -> bool {
    // The host process, which comes behind them, takes no part.
    let mut hosts = hosts.iter().take(nodes);
    let first = hosts.next();
    nodes <= FLAT_NODES && hosts.all(|host| Some(host) == first)
}

impl Engine {
    fn place(&self) -> Result<Place, NxError> {
        let inner = &*self.inner;
        inner.check()?;
        let (me, nodes) = (inner.own.node as usize, inner.job.size as usize);
        if me < nodes {
            Ok(Place { me, nodes, cells: inner.cells })
        } else {
            Err(NxError::HostGlobal)
        }
    }

    fn give(&self, to: usize, type_: i32, data: Source) -> Result<(), NxError> {
        let letter = Letter { channel: GLOBAL, type_, ptype: 0, data };
        self.send_blocking(self.partner(to)?, letter)
    }

    /// The process of another node that takes part with this one. It may not have joined yet.
    fn partner(&self, node: usize) -> Result<&Peer, NxError> {
        let inner = &*self.inner;
        if inner.own.group == 0 {
            return match inner.peer(node) {
                Some(peer) => Ok(peer),
                None => unreachable!("partners are other nodes"),
            };
        }
        super::joining::partner(inner, node as u32)
    }

    /// `stop` ends the wait with an error.
    fn get(
        &self,
        from: usize,
        type_: i32,
        room: Target,
        stop: impl FnMut() -> Option<NxError>,
    ) -> Result<(), NxError> {
        let select = Select { typesel: type_, node: from as i32, ptype: -1 };
        let info = self.receive_on(GLOBAL, select, room, stop)?;
        if info.count == room.len {
            return Ok(());
        }
        // A mistake of the program.
        let (given, expected) = (info.count, room.len);
        Err(NxError::OtherLength { node: from as u32, given, expected })
    }

    /// An exchange of `bytes` of each node, `len` of node 0 and so on. Returns the round, for
    /// [`Peer::read_round`].
    fn exchange(
        &self,
        place: Place,
        tag: i32,
        bytes: &[u8],
        len: impl Fn(usize) -> usize,
    ) -> Result<u32, NxError> {
        let inner = &*self.inner;
        let mut round = self.begin(place, tag, bytes.len(), bytes, len)?;
        // Who comes at about the same time is not waited for with the machinery of messages.
        let met = !inner.is_crowded()
            && inner.data.glance(|| matches!(round.absent(), Ok(None)).then_some(())).is_some();
        if !met {
            round.wait()?;
        }
        // All have come: whoever calls the wrong thing spoils no later round.
        round.verdict()?;
        Ok(round.number())
    }

    /// Waits until all nodes are here.
    ///
    /// # Errors
    /// [`NxError::HostGlobal`]; [`NxError::OtherGlobal`]; [`NxError::PeerDied`] and its like when the job has
    /// ended.
    pub fn gsync(&self) -> Result<(), NxError> {
        let place = self.place()?;
        if place.is_flat(0) {
            return self.exchange(place, TAG_SYNC, &[], |_| 0).map(drop);
        }
        let Place { me, nodes, .. } = place;
        let nothing = Source { start: std::ptr::null(), len: 0 };
        let nowhere = Target { start: std::ptr::null_mut(), len: 0 };
        let mut distance = 1;
        while distance < nodes {
            self.give((me + distance) % nodes, TAG_SYNC, nothing)?;
            self.get((me + nodes - distance) % nodes, TAG_SYNC, nowhere, || None)?;
            distance *= 2;
        }
        Ok(())
    }
}

/// Tags of rounds, in the types on the channel too, one per kind of operation: they only catch programs whose nodes
/// call different ones.
const TAG_SYNC: i32 = 1;
const TAG_REDUCE: i32 = 2;
const TAG_COLLECT: i32 = 3;

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_goes_by_cells_fits_one_and_is_not_much_for_all_nodes() {
        let longest = |nodes, cells| {
            let place = Place { me: 0, nodes, cells };
            (0..=2 * CELL_ROOM).rev().find(|&len| place.is_flat(len))
        };
        assert_eq!(longest(2, true), Some(CELL_ROOM));
        assert_eq!(longest(16, true), Some(CELL_ROOM));
        assert_eq!(longest(FLAT_NODES, true), Some(FLAT_BYTES / FLAT_NODES));
        assert_eq!(longest(2, false), None);
    }
}
