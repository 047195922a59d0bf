//! One operation of all nodes, from the view of one of them: who has come to it, and whether to the same.
//!
//! Where there are cells every operation is announced in them, with the length of the node that announces it, and with what else
//! all must mean: the lengths of all nodes in a `gcolx`, as a hash, and lengths that are too long for the head of a cell. So of nodes
//! that do not all mean the same each finds one that differs. A node that finds another one in a different operation, or in one
//! of other lengths, says so when all have come, and not before: nobody writes the cells of a round while another node may be in
//! the one before. Every node finds it, also those whose messages do not come, because what a node gets depends on all
//! others, and no node leaves the round, and overwrites what it has announced, before all are there.

use super::Place;
use crate::engine::Engine;
use crate::engine::counters as count;
use crate::engine::peer::Peer;
use crate::engine::points::Point;
use crate::engine::slots::LEN_MAX;
use crate::engine::types::{Select, Source, Target};
use crate::error::NxError;
use vmmc::sync::Ordering;

/// See the module. `F` answers how many bytes each node should bring.
pub(super) struct Round<'e, F> {
    engine: &'e Engine,
    place: Place,
    number: u32,
    tag: i32,
    len: F,
    /// What all nodes must mean, where their lengths do not say it.
    means: Option<u64>,
    /// All nodes before this one have come.
    next: usize,
    /// Whose coming is awaited in its [`Peer`].
    awaited: Option<&'e Peer>,
    wrong: Option<NxError>,
}

impl Engine {
    /// Comes to the next operation, with `own` bytes: those in `bytes`, or more that go by messages. All other nodes are told,
    /// if there are cells.
    pub(super) fn begin<F: Fn(usize) -> usize>(
        &self,
        place: Place,
        tag: i32,
        own: usize,
        bytes: &[u8],
        len: F,
    ) -> Result<Round<'_, F>, NxError> {
        let number = self.inner.next_round();
        if place.cells {
            self.clear_up(number)?;
        }
        let means = match tag {
            super::TAG_COLLECT => Some(hash((0..place.nodes).map(&len))),
            _ => (own >= LEN_MAX).then_some(own as u64),
        };
        if place.cells {
            for node in place.others() {
                self.partner(node)?.give_round(number, tag as u8, own, bytes, means);
                self.inner.at(Point::RoundHalf);
            }
            self.inner.at(Point::RoundGiven);
            self.inner.count(count::CELLS, place.nodes as u64 - 1);
            for node in place.others() {
                self.partner(node)?.out.ring();
            }
        }
        // Without cells nobody is known to have come.
        let next = if place.cells { 0 } else { place.nodes };
        let (awaited, wrong) = (None, None);
        Ok(Round { engine: self, place, number, tag, len, means, next, awaited, wrong })
    }
}

impl Engine {
    /// Throws away what was sent in vain in rounds that failed, and are two or more before this one: all nodes have left them, so
    /// all of it is here.
    fn clear_up(&self, number: u32) -> Result<(), NxError> {
        let inner = &*self.inner;
        if !inner.has_vain.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = inner.state.lock();
        let before = inner.changes();
        let all = std::mem::take(&mut state.vain).into_iter();
        let (old, rest): (Vec<u32>, _) = all.partition(|&failed| number.wrapping_sub(failed) >= 2);
        inner.has_vain.store(!rest.is_empty(), Ordering::Relaxed);
        state.vain = rest;
        let mut result = state.progress(inner);
        for failed in old {
            for tag in [super::TAG_SYNC, super::TAG_REDUCE, super::TAG_COLLECT] {
                let select = Select { typesel: type_of(failed, tag), node: -1, ptype: -1 };
                result = result.and_then(|()| state.throw_away(inner, super::GLOBAL, select));
            }
        }
        inner.wake_others(state, before);
        result.inspect_err(|error| inner.fail(error.clone()))
    }
}

/// What a message of a round is known by: tag and number, below the force types.
fn type_of(number: u32, tag: i32) -> i32 {
    (number << 2 & 0x3fff_fffc) as i32 | tag
}

impl<'e, F: Fn(usize) -> usize> Round<'e, F> {
    /// For [`Peer::read_round`].
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The first in order who has not come; `None`: all have.
    pub(super) fn absent(&mut self) -> Result<Option<&'e Peer>, NxError> {
        while self.next < self.place.nodes {
            let node = self.next;
            if node != self.place.me {
                let peer = self.engine.partner(node)?;
                let Some((tag, given)) = peer.given_round(self.number) else {
                    return Ok(Some(peer));
                };
                let meant = (self.len)(node);
                if tag != self.tag as u8 {
                    self.wrong.get_or_insert(NxError::OtherGlobal { node: node as u32 });
                } else if given != meant.min(LEN_MAX) {
                    let node = node as u32;
                    self.wrong.get_or_insert(NxError::OtherLength { node, given, expected: meant });
                } else if self.means.is_some_and(|means| means != peer.round_means(self.number)) {
                    self.wrong.get_or_insert(NxError::OtherLengths { node: node as u32 });
                }
            }
            self.next += 1;
        }
        Ok(None)
    }

    /// As [`Round::absent`], before a thread may sleep: it is woken when that one comes.
    fn awaits(&mut self) -> Result<bool, NxError> {
        let absent = self.absent()?;
        if let Some(peer) = self.awaited.take() {
            peer.await_round(0);
        }
        if let Some(peer) = absent {
            peer.await_round(self.number);
            self.awaited = absent;
        }
        Ok(absent.is_some())
    }

    /// Waits until all have come.
    pub(super) fn wait(&mut self) -> Result<(), NxError> {
        let inner = &*self.engine.inner;
        inner.wait_turns(|state| {
            match self.awaits() {
                Ok(true) => {}
                all => return Some(all.map(drop)),
            }
            if let Err(error) = state.progress(inner) {
                inner.fail(error);
            }
            None
        })
    }

    /// What was found wrong, when all have come.
    pub(super) fn verdict(&mut self) -> Result<(), NxError> {
        let verdict = self.wrong.take().map_or(Ok(()), Err);
        verdict.inspect_err(|_| self.has_failed())
    }

    fn type_(&self) -> i32 {
        type_of(self.number, self.tag)
    }

    /// Messages may have been sent in vain.
    fn has_failed(&self) {
        if !self.place.cells {
            return;
        }
        let mut state = self.engine.inner.state.lock();
        state.vain.push(self.number);
        self.engine.inner.has_vain.store(true, Ordering::Relaxed);
    }

    pub(super) fn give(&mut self, to: usize, data: Source) -> Result<(), NxError> {
        // While this waits for room nobody looks who has come: one that did would keep the thread from its sleep.
        if let Some(peer) = self.awaited.take() {
            peer.await_round(0);
        }
        self.engine.give(to, self.type_(), data)
    }

    /// Waits for what a node gives, or until all have come and not to the same.
    pub(super) fn get(&mut self, from: usize, room: Target) -> Result<(), NxError> {
        let (engine, type_) = (self.engine, self.type_());
        let stop = || match self.awaits() {
            Ok(true) => None,
            Ok(false) => self.wrong.clone(),
            Err(error) => Some(error),
        };
        let got = engine.get(from, type_, room, stop);
        if let Err(NxError::OtherLength { .. }) = got {
            self.wait()?;
        }
        got.inspect_err(|_| self.has_failed())
    }
}

/// What lists of lengths are known by. Two that differ in one length never have the same.
fn hash(lens: impl Iterator<Item = usize>) -> u64 {
    // FNV-1a, by words; the rotation brings high bits down.
    lens.fold(0xcbf2_9ce4_8422_2325, |hash: u64, len| {
        (hash ^ len as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}

impl<F> Drop for Round<'_, F> {
    fn drop(&mut self) {
        if let Some(peer) = self.awaited {
            peer.await_round(0);
        }
    }
}
