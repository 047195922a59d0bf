//! `gcol`, `gcolx`: what all nodes have, in node order.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

use super::{Place, TAG_COLLECT};
use crate::engine::types::{Source, Target};
use crate::engine::{Engine, check_memory, mem};
use crate::error::NxError;

impl Engine {
    /// `gcol`: concatenates what the nodes have, in node order; returns the length of all.
    ///
    /// # Errors
    /// [`NxError::NoRoomForAll`] when `y` is too short: it holds the beginning. As
    /// [`Engine::gsync`].
    ///
    /// # Safety
    /// `x` must be readable and `y` writable during the call, and not overlap.
    pub unsafe fn gcol(&self, x: Source, y: Target) -> Result<usize, NxError> {
        check_memory(x.start.is_null(), x.len)?;
        check_memory(y.start.is_null(), y.len)?;
        // SAFETY: readable by the caller's word.
        let all = self.gather(unsafe { mem::source(x) })?;
        // SAFETY: writable and ours by the caller's word.
        let target = unsafe { mem::room(y, 0, all.len()) };
        target.copy_from_slice(&all[..target.len()]);
        self.fits(all.len(), y.len).map(|()| all.len())
    }

    /// What all nodes have, in node order, with lengths that only each itself knows.
    pub(crate) fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, NxError> {
        let Place { nodes, .. } = self.place()?;
        let lens: Vec<usize> = self
            .collect(&(mine.len() as u64).to_ne_bytes(), &vec![8; nodes])?
            .chunks_exact(8)
            .map(|len| len.try_into().map_or(0, u64::from_ne_bytes) as usize)
            .collect();
        self.collect(mine, &lens)
    }

    /// Whether so much fits such a room.
    pub(crate) fn fits(&self, count: usize, room: usize) -> Result<(), NxError> {
        if count <= room { Ok(()) } else { Err(NxError::NoRoomForAll { all: count, room }) }
    }

    /// `gcolx`: the same with lengths that every node knows, in bytes, one per node.
    ///
    /// # Errors
    /// [`NxError::BadLength`] when there are not as many lengths as nodes. As [`Engine::gsync`].
    ///
    /// # Safety
    /// `x` must be readable for this node's length and `y` writable for the sum, during the call,
    /// and not overlap.
    pub unsafe fn gcolx(&self, x: *const u8, lens: &[usize], y: *mut u8) -> Result<(), NxError> {
        let Place { me, nodes, .. } = self.place()?;
        let Some(&len) = lens.get(me).filter(|_| lens.len() == nodes) else {
            return Err(NxError::BadLength { len: lens.len() as i64 });
        };
        let total = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
        let total = total.ok_or(NxError::BadLength { len: -1 })?;
        check_memory(x.is_null(), len)?;
        check_memory(y.is_null(), total)?;
        // SAFETY: readable by the caller's word.
        let all = self.collect(unsafe { mem::source(Source { start: x, len }) }, lens)?;
        // SAFETY: writable and ours by the caller's word.
        unsafe { mem::room(Target { start: y, len: total }, 0, total) }.copy_from_slice(&all);
        Ok(())
    }

    /// What all nodes have, in node order. The others' lengths must be those of the list, and there one per node.
    pub(crate) fn collect(&self, mine: &[u8], lens: &[usize]) -> Result<Vec<u8>, NxError> {
        let place = self.place()?;
        let Place { me, nodes, .. } = place;
        let len = |node: usize| lens.get(node).copied().unwrap_or_default();
        // Lengths may be other nodes' word.
        let total = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
        let what = "memory for what all nodes have";
        let too_much = |reason: String| NxError::System { what, reason };
        let total = total.ok_or_else(|| too_much("lengths beyond all memory".into()))?;
        if place.is_flat(lens.iter().copied().max().unwrap_or_default()) {
            let round = self.exchange(place, TAG_COLLECT, mine, len)?;
            let mut all = vec![0; total];
            let mut rest = &mut all[..];
            for node in 0..nodes {
                let (room, after) = rest.split_at_mut(len(node));
                match node == me {
                    true => room.copy_from_slice(mine),
                    false => self.partner(node)?.read_round(round, room),
                }
                rest = after;
            }
            return Ok(all);
        }
        let mut round = self.begin(place, TAG_COLLECT, len(me), &[], len)?;
        let sum = |from: usize, count: usize| -> usize {
            (from..from + count).filter_map(|node| lens.get(node % nodes)).sum()
        };
        // What this node has: of the nodes me, me + 1 ... in this order.
        let mut all = Vec::new();
        all.try_reserve_exact(total).map_err(|error| too_much(error.to_string()))?;
        all.extend_from_slice(mine);
        let mut have = 1;
        while have < nodes {
            let count = have.min(nodes - have);
            let given = Source { start: all.as_ptr(), len: sum(me, count) };
            round.give((me + nodes - have) % nodes, given)?;
            let from = (me + have) % nodes;
            let start = all.len();
            all.resize(start + sum(from, count), 0);
            let len = all.len() - start;
            let room = Target { start: all[start..].as_mut_ptr(), len };
            round.get(from, room)?;
            have += count;
        }
        all.rotate_right(sum(0, me));
        Ok(all)
    }
}
