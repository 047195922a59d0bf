//! What is to be written to a window of the peer's waits in registered memory: so a source may be used again at once, and need
//! not be registered, which costs more than to copy it.

use super::notice::Called;
use super::{Endpoint, QUEUE, Registered, Target, register};
use crate::fabric::abi;
use crate::fabric::domain::NO_ENTRY;
use crate::fabric::library::FabricError;
use crate::mem::View;
use std::ffi::c_void;

/// Most bytes of one write to a window.
pub const PIECE: usize = 64 * 1024;
/// Places for such.
const PLACES: usize = 8;

#[derive(Debug)]
pub(super) struct Staging {
    memory: Registered,
    /// A bit for each place that is free.
    free: u32,
    /// How often one has become free.
    freed: u64,
}

impl Staging {
    fn busy(&self) -> u32 {
        PLACES as u32 - self.free.count_ones()
    }

    /// A write has left its place, whose context this is.
    pub(super) fn free(&mut self, context: *mut c_void) {
        // Made by `context_of`; another number frees nothing that is in use.
        self.freed += 1;
        self.free |= 1u32.checked_shl(context as usize as u32 - 1).unwrap_or(0) & ALL;
    }
}

const ALL: u32 = (1 << PLACES) - 1;

/// Not null: that is the context of all else.
fn context_of(place: u32) -> *mut c_void {
    std::ptr::without_provenance_mut(place as usize + 1)
}

impl Endpoint {
    /// Writes up to [`PIECE`] bytes to a window of the peer's, in whose memory they are before what is written by
    /// [`Endpoint::write`] later is told of. Of those it writes itself, what a later one puts over an earlier one stays, if
    /// it is `alone`. The source may change at once. False: not now.
    ///
    /// # Errors
    /// The peer cannot be reached any more; nonsense.
    pub fn write_window(
        &mut self,
        window: Target,
        at: u64,
        bytes: &[u8],
        alone: bool,
    ) -> Result<bool, FabricError> {
        let outside = |_| FabricError::Nonsense { what: "a write longer than its place" };
        if self.staging.is_none() {
            let memory = register(&self.domain, &self.ep, PLACES * PIECE, abi::FI_WRITE)?;
            self.staging = Some(Staging { memory, free: ALL, freed: 0 });
        }
        let is_ordered = self.is_ordered();
        let Some(staging) = &mut self.staging else { return Ok(false) };
        let place = staging.free.trailing_zeros();
        let behind = alone && !is_ordered && staging.busy() > 0;
        if self.on_their_way >= QUEUE || place >= PLACES as u32 || behind {
            return Ok(false);
        }
        let memory = View::of(&staging.memory.pages);
        let source = memory.slice(place as usize * PIECE, bytes.len()).map_err(outside)?;
        source.write(0, bytes).map_err(outside)?;

        let desc = staging.memory.desc();
        let source = (source.as_ptr().as_ptr().cast_const().cast(), bytes.len(), desc);
        let target = Target { base: window.base.wrapping_add(at), ..window };
        // Done is what is there: that a write was refused nobody would tell of after it has only been sent.
        let flags = abi::FI_COMPLETION | abi::FI_DELIVERY_COMPLETE;
        // SAFETY: registered, there until the endpoint is closed, and written to again when its context has come back.
        let called = unsafe { self.write_message(source, target, context_of(place), flags) }?;
        match (called, &mut self.staging) {
            (Called::Done, Some(staging)) => {
                staging.free &= !(1 << place);
                Ok(true)
            }
            (Called::NotThere, _) => Err(NO_ENTRY),
            _ => Ok(false),
        }
    }

    /// Places that are free.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.staging.as_ref().map_or(PLACES as u32, |staging| staging.free.count_ones())
    }

    /// Whether a write to a window has not been delivered yet.
    #[must_use]
    pub fn is_delivering(&self) -> bool {
        self.staging.as_ref().is_some_and(|staging| staging.busy() > 0)
    }

    /// How many writes to windows have been delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.staging.as_ref().map_or(0, |staging| staging.freed)
    }

    /// Whether a write to a window could be made now, for all that is known here.
    #[must_use]
    pub fn has_place(&self) -> bool {
        let place = self
            .staging
            .as_ref()
            .is_none_or(|staging| staging.free != 0 && (self.is_ordered() || staging.free == ALL));
        place && self.on_their_way < QUEUE
    }

    /// Whether what was written to windows may be overtaken by what is written now: wait until it is there.
    #[must_use]
    pub fn may_overtake(&self) -> bool {
        !self.is_ordered() && self.is_delivering()
    }

    /// Whether the provider keeps the order of writes as long as ours.
    fn is_ordered(&self) -> bool {
        !self.unordered && self.domain.info.ordered_len() >= PIECE
    }

    /// As over a provider that keeps no order.
    #[cfg(test)]
    pub(crate) fn forget_order(&mut self) {
        self.unordered = true;
    }
}
