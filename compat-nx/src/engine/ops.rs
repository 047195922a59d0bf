//! Operations under way, and the numbers by which programs know them.

use super::types::{Handler, Info, InfoTarget, Mid, Outcome, Select, Target};
use crate::error::NxError;

/// Index of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpId(pub(super) u32);

/// Who hears of the end.
pub(super) enum Owner {
    /// A thread waits in a call.
    Caller,
    /// The program holds a message id.
    Program,
    /// Nobody (`msgignore`).
    Nobody,
    /// A handler, and of a receive what it selects; `None` once it was queued.
    Handler(Option<(Handler, Option<i32>)>),
    /// A merged id.
    Merged,
}

/// One operation.
pub(super) struct Op {
    pub(super) owner: Owner,
    /// Parts not complete yet: one, or two of a send with a receive; 0: done.
    pub(super) left: u32,
    /// What a receive part found, or what went wrong.
    pub(super) result: Result<Outcome, NxError>,
    /// Where a receive part puts its message.
    pub(super) room: Target,
    pub(super) info: Option<InfoTarget>,
    /// The operations of a merged id.
    pub(super) merged: Vec<OpId>,
    /// The program takes it back, and waits until nothing is on its way into its memory.
    pub(super) is_cancelled: bool,
    generation: u32,
}

impl Op {
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }
}

/// All operations: a slab.
#[derive(Default)]
pub(super) struct Ops {
    slab: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Those the program holds an id of.
    mids: usize,
    generation: u32,
}

/// Ids are `generation << INDEX_BITS | index`, plus 1, below 2^30.
const INDEX_BITS: u32 = 16;
const GENERATIONS: u32 = 1 << 13;

impl Ops {
    /// A new operation of `parts` parts.
    pub(super) fn add(
        &mut self,
        owner: Owner,
        parts: u32,
        room: Target,
        info: Option<InfoTarget>,
    ) -> OpId {
        if matches!(owner, Owner::Program) {
            self.mids += 1;
        }
        let free = if matches!(owner, Owner::Program) && self.slab.len() > 1 << INDEX_BITS {
            // One that fits an id.
            let at = self.free.iter().rposition(|&at| at < 1 << INDEX_BITS);
            at.map(|at| self.free.swap_remove(at))
        } else {
            self.free.pop()
        };
        self.generation = (self.generation + 1) % GENERATIONS;
        let op = Op {
            owner,
            left: parts,
            result: Ok(Outcome::Sent),
            room,
            info,
            merged: Vec::new(),
            is_cancelled: false,
            generation: self.generation,
        };
        match free {
            Some(index) => {
                if let Some(place) = self.slab.get_mut(index as usize) {
                    *place = Some(op);
                }
                OpId(index)
            }
            None => {
                self.slab.push(Some(op));
                OpId(self.slab.len() as u32 - 1)
            }
        }
    }

    pub(super) fn get(&self, id: OpId) -> &Op {
        match self.slab.get(id.0 as usize) {
            Some(Some(op)) => op,
            _ => unreachable!("operations are forgotten by their owners only"),
        }
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> &mut Op {
        match self.slab.get_mut(id.0 as usize) {
            Some(Some(op)) => op,
            _ => unreachable!("operations are forgotten by their owners only"),
        }
    }

    pub(super) fn remove(&mut self, id: OpId) -> Op {
        match self.slab.get_mut(id.0 as usize).and_then(Option::take) {
            Some(op) => {
                if matches!(op.owner, Owner::Program) {
                    self.mids -= 1;
                }
                self.free.push(id.0);
                op
            }
            None => unreachable!("operations are forgotten by their owners only"),
        }
    }

    /// The program gives its id away: into a merged one, or for nothing. Returns whose it was.
    pub(super) fn disown(&mut self, id: OpId, owner: Owner) -> Owner {
        let before = std::mem::replace(&mut self.get_mut(id).owner, owner);
        if matches!(before, Owner::Program) {
            self.mids -= 1;
        }
        before
    }

    /// Ids that the program holds.
    pub(super) fn mids(&self) -> usize {
        self.mids
    }

    /// Whether the next operation can have an id: those that ids were given away of are under way still, with their places.
    pub(super) fn has_place_for_mid(&self) -> bool {
        self.slab.len() < 1 << INDEX_BITS || self.free.iter().any(|&at| at < 1 << INDEX_BITS)
    }

    pub(super) fn mid(&self, id: OpId) -> Mid {
        Mid((self.get(id).generation << INDEX_BITS | id.0) as i32 + 1)
    }

    /// The operation of a program's id.
    pub(super) fn find(&self, mid: Mid) -> Result<OpId, NxError> {
        let bad = NxError::BadMid { mid: mid.0 };
        let Ok(value) = u32::try_from(mid.0.wrapping_sub(1)) else { return Err(bad) };
        let index = value & ((1 << INDEX_BITS) - 1);
        match self.slab.get(index as usize) {
            Some(Some(op))
                if op.generation == value >> INDEX_BITS && matches!(op.owner, Owner::Program) =>
            {
                Ok(OpId(index))
            }
            _ => Err(bad),
        }
    }

    /// Whether the operation, and all that it merges, is done.
    pub(super) fn is_done(&self, id: OpId) -> bool {
        let op = self.get(id);
        op.is_done() && op.merged.iter().all(|&part| self.is_done(part))
    }
}

/// A receive waiting for its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) op: OpId,
    pub(super) channel: u32,
    pub(super) select: Select,
}

/// What is known of a message that arrived or is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) channel: u32,
    pub(super) info: Info,
    /// Process type that it is for.
    pub(super) ptype: i32,
}
