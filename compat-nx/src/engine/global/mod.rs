//! Global operations: every node calls, the host process does not. The first processes of all nodes call
//! together, and so do those that joined later, by the process type that they began with.
//!
//! They use a channel of their own, so that user messages and user receives of any type never meet
//! theirs, and exact partners, so that the order of messages between two nodes keeps successive
//! operations apart. With n nodes:
//!
//! * up to [`FLAT_NODES`] nodes of one machine and [`CELL_ROOM`] bytes of each: one round of an exchange
//!   ([`super::exchange`]), n(n - 1) stores. A node that has to wait is switched out once, and
//!   the last to come not at all.
//! * `gsync` of more: dissemination, in ceil(log2 n) rounds (Hensgen, Finkel, Manber, 1988).
//! * reductions of more: recursive doubling; with n no power of two, the nodes that are too many first
//!   give their values to a neighbour and get the result from it.
//! * `gcol`, `gcolx` of more: in ceil(log2 n) rounds, each sending all that a node has (Bruck et al., 1997).
//!
//! Every node combines in the same order, what nodes of lower numbers have before what those of higher ones have, so all
//! get the same bits: the maximum of a NaN and a number, or of two zeros, or a sum of two NaNs, depends on the order. Where there are
//! cells, operations of more bytes announce themselves in them: nodes that call different ones are told.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

mod collect;
mod elements;

pub use elements::{Element, Reduction};

use super::counters as count;
use super::layout::CELL_ROOM;
use super::peer::Peer;
use super::points::Point;
use super::state::Letter;
use super::types::{Info, Select, Source, Target};
use super::{Engine, mem};
use crate::error::NxError;
use std::ffi::c_void;

/// Channel of global operations.
const GLOBAL: u32 = 1;

/// Most nodes that give each other cells.
const FLAT_NODES: usize = 64;

/// Who this node is among how many.
#[derive(Clone, Copy)]
struct Place {
    me: usize,
    nodes: usize,
    /// Every node can write every other one's cells, and few enough do. All nodes find the same.
    cells: bool,
}

impl Place {
    /// Whether `len` bytes of each node go by cells.
    fn is_flat(self, len: usize) -> bool {
        self.cells && len <= CELL_ROOM
    }

    fn others(self) -> impl Iterator<Item = usize> {
        (0..self.nodes).filter(move |&node| node != self.me)
    }
}

/// Whether nodes of these hosts ([`crate::Job::hosts`]; none: one machine) give each other cells.
pub(super) fn has_cells(nodes: usize, hosts: &[String]) -> bool {
    nodes <= FLAT_NODES && hosts.windows(2).all(|pair| pair[0] == pair[1])
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

    fn give(&self, to: usize, tag: i32, data: Source) -> Result<(), NxError> {
        let letter = Letter { channel: GLOBAL, type_: tag, ptype: 0, data };
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

    fn get(&self, from: usize, tag: i32, room: Target) -> Result<(), NxError> {
        let select = Select { typesel: tag, node: from as i32, ptype: -1 };
        let info = self.receive_on(GLOBAL, select, room)?;
        if info.count == room.len {
            return Ok(());
        }
        // The nodes disagree about the length: a mistake of the program.
        Err(NxError::MessageTooLong { info, room: room.len })
    }

    /// Tells all other nodes that this one has come to its next operation, with `len` bytes of its own: those
    /// in `bytes`, or more that go by messages.
    fn announce(&self, place: Place, tag: i32, len: usize, bytes: &[u8]) -> Result<u32, NxError> {
        let round = self.inner.next_round();
        if place.cells {
            for node in place.others() {
                self.partner(node)?.give_round(round, tag as u8, len, bytes);
                self.inner.at(Point::RoundHalf);
            }
            self.inner.at(Point::RoundGiven);
            self.inner.count(count::CELLS, place.nodes as u64 - 1);
            for node in place.others() {
                self.partner(node)?.out.ring();
            }
        }
        Ok(round)
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
        let round = self.announce(place, tag, bytes.len(), bytes)?;
        let mut missing = place.others().peekable();
        let mut wrong = None;
        // The first in order who has not come; `None`: all have.
        let mut absent = || -> Result<Option<&Peer>, NxError> {
            while let Some(&node) = missing.peek() {
                let peer = self.partner(node)?;
                let Some((theirs, given)) = peer.given_round(round) else { return Ok(Some(peer)) };
                peer.await_round(0);
                if theirs != tag as u8 {
                    wrong.get_or_insert(NxError::OtherGlobal { node: node as u32 });
                } else if given != len(node) {
                    let (type_, ptype) = (0, peer.ptype());
                    let info = Info { type_, count: given, node: node as i32, ptype };
                    wrong.get_or_insert(NxError::MessageTooLong { info, room: len(node) });
                }
                missing.next();
            }
            Ok(None)
        };
        // Who comes at about the same time is not waited for with the machinery of messages.
        let met = !inner.is_crowded()
            && inner.data.glance(|| matches!(absent(), Ok(None)).then_some(())).is_some();
        if !met {
            inner.wait_turns(|state| {
                match absent() {
                    Ok(Some(peer)) => peer.await_round(round),
                    all => return Some(all.map(drop)),
                }
                if let Err(error) = state.progress(inner) {
                    inner.fail(error);
                }
                None
            })?;
        }
        // All have come: whoever calls the wrong thing spoils no later round.
        wrong.map_or(Ok(round), Err)
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
            self.get((me + nodes - distance) % nodes, TAG_SYNC, nowhere)?;
            distance *= 2;
        }
        Ok(())
    }

    /// `gdsum` and its like: combines `n` elements of all nodes, the result in `x` on every node.
    /// `work` is overwritten. No alignment is asked for.
    ///
    /// # Errors
    /// [`NxError::BadReduction`] for bits of floats; as [`Engine::gsync`].
    ///
    /// # Safety
    /// `x` and `work` must be `n` elements each, writable, used by nobody else during the call, and not
    /// overlap.
    pub unsafe fn reduce<T: Element>(
        &self,
        op: Reduction,
        x: *mut T,
        n: usize,
        work: *mut T,
    ) -> Result<(), NxError> {
        let len = n.checked_mul(size_of::<T>()).ok_or(NxError::BadLength { len: -1 })?;
        super::check_memory(x.is_null(), len)?;
        super::check_memory(work.is_null(), len)?;
        let mut bad = false;
        let mut combine = |x: *mut c_void, work: *mut c_void| {
            let (x, work) = (x.cast::<T>(), work.cast::<T>());
            for i in 0..n {
                let (x, work) = (x.wrapping_add(i), work.wrapping_add(i));
                // SAFETY: i < n elements, by the caller's word; any alignment.
                let a = unsafe { x.read_unaligned() };
                // SAFETY: as above.
                let b = unsafe { work.read_unaligned() };
                match T::combine(op, a, b) {
                    // SAFETY: as above.
                    Some(value) => unsafe { x.write_unaligned(value) },
                    None => bad = true,
                }
            }
        };
        // SAFETY: passed on.
        unsafe { self.gopf(x.cast(), len, work.cast(), &mut combine) }?;
        if bad { Err(NxError::BadReduction { op }) } else { Ok(()) }
    }

    /// `gopf`: an operation of the program's own, which must be associative and commutative.
    /// `combine(x, work)` leaves its result in `x`.
    ///
    /// # Errors
    /// As [`Engine::gsync`].
    ///
    /// # Safety
    /// `x` and `work` must be `len` bytes each, writable, used by nobody else during the call, and
    /// not overlap; `combine` is called with both.
    pub unsafe fn gopf(
        &self,
        x: *mut c_void,
        len: usize,
        work: *mut c_void,
        combine: &mut dyn FnMut(*mut c_void, *mut c_void),
    ) -> Result<(), NxError> {
        let place = self.place()?;
        super::check_memory(x.is_null(), len)?;
        super::check_memory(work.is_null(), len)?;
        let Place { me, nodes, .. } = place;
        let mine = Source { start: x.cast_const().cast(), len };
        let result = Target { start: x.cast(), len };
        let theirs = Target { start: work.cast(), len };
        if place.is_flat(len) {
            let mut own = [0; CELL_ROOM];
            let own = &mut own[..len];
            // SAFETY: readable by the caller's word.
            own.copy_from_slice(unsafe { mem::source(mine) });
            let round = self.exchange(place, TAG_REDUCE, own, |_| len)?;
            for node in 0..nodes {
                let room = if node == 0 { result } else { theirs };
                // SAFETY: writable and ours by the caller's word; the slice ends before `combine`.
                let room = unsafe { mem::room(room, 0, len) };
                match node == me {
                    true => room.copy_from_slice(own),
                    false => self.partner(node)?.read_round(round, room),
                }
                if node > 0 {
                    combine(x, work);
                }
            }
            return Ok(());
        }
        self.announce(place, TAG_REDUCE, len, &[])?;
        // `even` is the number of nodes that double; the first `odd` pairs are too many.
        let even = 1 << nodes.ilog2();
        let odd = nodes - even;
        let folded = me < 2 * odd;
        if folded && me % 2 == 0 {
            self.give(me + 1, TAG_REDUCE, mine)?;
            return self.get(me + 1, TAG_REDUCE, result);
        }
        let mut take = |partner: usize| -> Result<(), NxError> {
            if partner < me {
                // Theirs comes first, and `x` is where the first one is, and the result.
                // SAFETY: writable and ours by the caller's word; the slice ends before `combine`.
                let room = unsafe { mem::room(theirs, 0, len) };
                // SAFETY: readable by the caller's word, and not in `room`.
                room.copy_from_slice(unsafe { mem::source(mine) });
                self.get(partner, TAG_REDUCE, result)?;
            } else {
                self.get(partner, TAG_REDUCE, theirs)?;
            }
            combine(x, work);
            Ok(())
        };
        if folded {
            take(me - 1)?;
        }
        let rank = if folded { me / 2 } else { me - odd };
        let node = |rank: usize| if rank < odd { 2 * rank + 1 } else { rank + odd };
        let mut distance = 1;
        while distance < even {
            let partner = node(rank ^ distance);
            self.give(partner, TAG_REDUCE, mine)?;
            take(partner)?;
            distance *= 2;
        }
        if folded { self.give(me - 1, TAG_REDUCE, mine) } else { Ok(()) }
    }
}

/// Types on the channel and tags of rounds, one per kind of operation: they only catch programs whose nodes
/// call different ones.
const TAG_SYNC: i32 = 1;
const TAG_REDUCE: i32 = 2;
const TAG_COLLECT: i32 = 3;
