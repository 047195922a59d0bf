//! Reductions: `gdsum` and its like, and `gopf` with an operation of the program's own.
//!
//! What does not go by cells goes by messages, in two ways:
//!
//! * recursive doubling: in each of log2 n rounds two nodes give each other all that they have, and both combine it.
//! * of long vectors, recursive halving: in each of these rounds two nodes part what they have between them. Each gives one half,
//!   and combines the other, until each has an n-th of the result; then the rounds go backwards, and what is done is
//!   given (Rabenseifner, *Optimization of Collective Reduction Operations*, ICCS 2004). Less than two vectors of
//!   bytes per node, and less than one combined, instead of log2 n of either; but twice the messages. Not for `gopf`,
//!   whose operation takes whole vectors.
//!
//! With n no power of two, the nodes that are too many first give their values to a neighbour and get the result from it.
//! Both ways combine by the same tree, so a length has no bits of its own, but for which of two NaNs a sum is.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

use super::elements::{Element, Pairs, Reduction};
use super::round::Round;
use super::{Place, TAG_REDUCE};
use crate::engine::layout::CELL_ROOM;
use crate::engine::types::{Source, Target};
use crate::engine::{Engine, check_memory, mem};
use crate::error::NxError;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;

/// From here on a vector is halved, in bytes, with [`HALVING_NODES`] and more.
const HALVED: usize = 8 * 1024;
/// Fewer nodes give each other all: the second message of a round costs more than it saves.
const HALVING_NODES: usize = 4;

/// A node's values, and room for another one's.
struct Vectors<'c> {
    x: *mut u8,
    work: *mut u8,
    /// Bytes per element, where an operation may be done in parts.
    element: Option<usize>,
    /// Combines these bytes of both, into `x`.
    combine: &'c mut dyn FnMut(Range<usize>),
}

impl Vectors<'_> {
    fn mine(&self, part: &Range<usize>) -> Source {
        Source { start: self.x.wrapping_add(part.start).cast_const(), len: part.len() }
    }

    fn result(&self, part: &Range<usize>) -> Target {
        Target { start: self.x.wrapping_add(part.start), len: part.len() }
    }

    fn theirs(&self, part: &Range<usize>) -> Target {
        Target { start: self.work.wrapping_add(part.start), len: part.len() }
    }

    /// Gets this part of a partner's and combines it: what nodes of lower numbers have comes first, which is where the result is.
    ///
    /// # Safety
    /// Both vectors have that part, are ours, and do not overlap.
    unsafe fn take<F: Fn(usize) -> usize>(
        &mut self,
        round: &mut Round<'_, F>,
        (me, partner): (usize, usize),
        part: Range<usize>,
    ) -> Result<(), NxError> {
        if partner < me {
            // SAFETY: writable and ours by the caller's word; the slice ends before `combine`.
            let room = unsafe { mem::room(self.theirs(&part), 0, part.len()) };
            // SAFETY: readable by the caller's word, and not in `room`.
            room.copy_from_slice(unsafe { mem::source(self.mine(&part)) });
            round.get(partner, self.result(&part))?;
        } else {
            round.get(partner, self.theirs(&part))?;
        }
        (self.combine)(part);
        Ok(())
    }

    /// What of `part` a node keeps in a round of this distance, and what its partner does.
    fn halve(&self, part: &Range<usize>, is_lower: bool) -> Option<(Range<usize>, Range<usize>)> {
        let element = self.element?;
        let middle = part.start + part.len() / element / 2 * element;
        let (low, high) = (part.start..middle, middle..part.end);
        Some(if is_lower { (low, high) } else { (high, low) })
    }
}

impl Engine {
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
        check_memory(x.is_null(), len)?;
        check_memory(work.is_null(), len)?;
        if !T::allows(op) {
            return Err(NxError::BadReduction { op }); // on every node, and before any is waited for
        }
        let mut combine = |part: Range<usize>| {
            let (first, n) = (part.start / size_of::<T>(), part.len() / size_of::<T>());
            let (x, work) = (x.wrapping_add(first), work.wrapping_add(first));
            // SAFETY: a part of the vectors, by the caller's word; nobody touches them meanwhile.
            unsafe { Pairs::new(x, work, n) }.combine(op);
        };
        use Reduction::{LogicalAnd, LogicalOr, LogicalXor};
        if self.inner.job.size == 1 && matches!(op, LogicalAnd | LogicalOr | LogicalXor) {
            // Nothing is combined, and yet the result is a truth value.
            // SAFETY: by the caller's word.
            unsafe { Pairs::new(x, x, n) }.combine(LogicalOr);
        }
        let (x, work, element) = (x.cast(), work.cast(), Some(size_of::<T>()));
        let vectors = Vectors { x, work, element, combine: &mut combine };
        // SAFETY: passed on.
        unsafe { self.combine_all(vectors, len) }
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
        check_memory(x.is_null(), len)?;
        check_memory(work.is_null(), len)?;
        let mut whole = |_: Range<usize>| combine(x, work);
        let (x, work) = (x.cast(), work.cast());
        let vectors = Vectors { x, work, element: None, combine: &mut whole };
        // SAFETY: passed on.
        unsafe { self.combine_all(vectors, len) }
    }

    /// # Safety
    /// The vectors must be `len` bytes each, writable, used by nobody else during the call, and not overlap.
    unsafe fn combine_all(&self, mut vectors: Vectors<'_>, len: usize) -> Result<(), NxError> {
        let place = self.place()?;
        let Place { me, nodes, .. } = place;
        let all = 0..len;
        if place.is_flat(len) {
            let mut own = [MaybeUninit::uninit(); CELL_ROOM];
            // SAFETY: readable by the caller's word.
            let own = own[..len].write_copy_of_slice(unsafe { mem::source(vectors.mine(&all)) });
            let round = self.exchange(place, TAG_REDUCE, own, |_| len)?;
            for node in 0..nodes {
                let room = if node == 0 { vectors.result(&all) } else { vectors.theirs(&all) };
                // SAFETY: writable and ours by the caller's word; the slice ends before `combine`.
                let room = unsafe { mem::room(room, 0, len) };
                match node == me {
                    true => room.copy_from_slice(own),
                    false => self.partner(node)?.read_round(round, room),
                }
                if node > 0 {
                    (vectors.combine)(all.clone());
                }
            }
            return Ok(());
        }
        let mut round = self.begin(place, TAG_REDUCE, len, &[], |_| len)?;
        // `even` is the number of nodes that go on; the first `odd` pairs are too many.
        let even = 1 << nodes.ilog2();
        let odd = nodes - even;
        let folded = me < 2 * odd;
        if folded && me % 2 == 0 {
            round.give(me + 1, vectors.mine(&all))?;
            return round.get(me + 1, vectors.result(&all));
        }
        if folded {
            // SAFETY: by the caller's word.
            unsafe { vectors.take(&mut round, (me, me - 1), all.clone()) }?;
        }
        let rank = if folded { me / 2 } else { me - odd };
        let node = |rank: usize| if rank < odd { 2 * rank + 1 } else { rank + odd };
        let is_halved = len >= HALVED && nodes >= HALVING_NODES;
        let mut part = all.clone();
        // What was kept and given, by rounds.
        let mut halves = Vec::new();
        let mut distance = 1;
        while distance < even {
            let partner = node(rank ^ distance);
            let parted = vectors.halve(&part, rank & distance == 0).filter(|_| is_halved);
            let (kept, given) = parted.clone().unwrap_or((part.clone(), part.clone()));
            round.give(partner, vectors.mine(&given))?;
            // SAFETY: parts of the vectors, by the caller's word.
            unsafe { vectors.take(&mut round, (me, partner), kept.clone()) }?;
            halves.extend(parted.map(|parted| (partner, parted)));
            part = kept;
            distance *= 2;
        }
        for (partner, (kept, given)) in halves.into_iter().rev() {
            round.give(partner, vectors.mine(&kept))?;
            round.get(partner, vectors.result(&given))?;
        }
        if folded { round.give(me - 1, vectors.mine(&all)) } else { Ok(()) }
    }
}
