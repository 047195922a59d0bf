//! The sender's copies of a large message: to its safe copy, or straight to the receiver's memory.

use super::Inner;
use crate::engine::counters as count;
use crate::engine::direct::Spot;
use crate::engine::layout;
use crate::engine::mem;
use crate::engine::out::word64;
use crate::engine::peer::Peer;
use crate::engine::points::Point;
use crate::engine::share::{self, Shared};
use crate::engine::state::Staging;
use crate::engine::types::Source;
use crate::error::NxError;
use std::ops::Range;
use std::time::{Duration, Instant};
use vmmc::Import;
use vmmc::sync::spin_hint;
use vmmc::word::MappedU64;

impl Inner {
    /// Makes the safe copy of an announced message (N10), or sends from user memory as soon as the reply
    /// is there (N13). `may_lock`: the caller does not hold the state's lock; one that does ends the offer itself.
    pub(in crate::engine) fn stage(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        may_lock: bool,
    ) -> Result<(), NxError> {
        let result = self.stage_offered(peer, staging, data, may_lock);
        if let Some(offer) = staging.offer.filter(|_| may_lock) {
            self.state.lock().end_offer(peer, &offer);
        }
        result
    }

    fn stage_offered(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        may_lock: bool,
    ) -> Result<(), NxError> {
        let staged = |word| peer.out.say64(layout::STAGED + 8 * staging.block as usize, word);
        let mut may_go = may_lock;
        // In at least four pieces, so that the receiver fetches while the rest is copied.
        let chunk = self.settings.stage_chunk.min((data.len / 4).max(4096));
        let mut done = 0;
        self.at(Point::ScoutWritten);
        // The question to the kernel is asked while the receiver asks for its own buffer.
        let offer = staging.offer.filter(|_| may_lock);
        let offer = offer.filter(|offer| self.state.lock().confirm(peer, offer));
        let offer = offer.zip(shared_word(peer, staging));
        if let Some((_, word)) = offer {
            share::open(word);
        }
        while done < data.len {
            if may_go && let Some(go) = Spot::read(peer, staging.block) {
                let shared = offer.map(|(offer, word)| (Shared::of(&go, &offer), word));
                let shared = shared.filter(|(shared, _)| !shared.range().is_empty());
                if self.send_direct(peer, staging, data, done, &go, shared)? {
                    self.count(count::STAGED_BYTES, done as u64);
                    return Ok(());
                }
                may_go = false;
            }
            let part = mem::part(data, done, chunk);
            stage_part(staging, part, done);
            self.at(Point::PartWritten);
            done += part.len;
            // PAIRS(staged): with the acquire in `fetch_some`.
            staged(done as u64);
            self.at(Point::StageHalf);
        }
        self.at(Point::Staged);
        peer.out.ring();
        self.interrupt_who_wants(peer);
        self.count(count::STAGED_BYTES, done as u64);
        self.count(count::SAFE_COPIES, 1);
        Ok(())
    }

    /// Sends from user memory to user memory; a part that both can copy only as far as the receiver does not. False when the
    /// window is gone.
    fn send_direct(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        done: usize,
        go: &Spot,
        shared: Option<(Shared, MappedU64<'_>)>,
    ) -> Result<bool, NxError> {
        let Some(import) = self.state.lock().window(self, peer, go, data.len)? else {
            return Ok(false);
        };
        let staged = |word| peer.out.say64(layout::STAGED + 8 * staging.block as usize, word);
        // What lies outside whole pages of the receiver's buffer goes by the safe copy.
        let (first, len) = (go.first as usize, go.len as usize);
        for (from, to) in [(0, first), (first + len, data.len)] {
            if to > done {
                stage_part(staging, mem::part(data, from, to - from), from);
            }
        }
        staged(layout::STAGED_DIRECT | done as u64);
        self.at(Point::DirectBegun);
        let push = |range: Range<usize>| push(&import, go, data, range);
        let sent = match shared {
            Some((shared, word)) => {
                let (range, pieces) = (shared.range(), shared.pieces());
                push(first..range.start)
                    && push(range.end..first + len)
                    && std::iter::from_fn(|| share::take_front(word, pieces))
                        .all(|number| push(shared.piece(number)))
            }
            None => push(first..first + len),
        };
        if !sent {
            staged(done as u64);
            return Ok(false);
        }
        self.at(Point::DirectWritten);
        let all = layout::STAGED_DIRECT | layout::STAGED_DONE | data.len as u64;
        // PAIRS(staged): with the acquire in `fetch_some`.
        staged(all);
        peer.out.ring();
        self.interrupt_who_wants(peer);
        self.count(count::DIRECT, 1);
        self.count(count::DIRECT_BYTES, data.len as u64);
        if let Some((_, word)) = shared {
            self.await_copied(peer, word)?;
        }
        Ok(true)
    }

    /// Waits until the receiver has copied what it took: it is in the middle of that, unless it has lost its processor, or is
    /// stopped. One that was ended on request copies no more.
    fn await_copied(&self, peer: &Peer, word: MappedU64<'_>) -> Result<(), NxError> {
        let begun = Instant::now();
        while !share::are_copied(word) {
            self.look_at_ends();
            self.check()?;
            if !peer.is_linked() {
                break;
            }
            match begun.elapsed() {
                waited if waited < SPINNING && !self.is_crowded() => spin_hint(),
                waited if waited < YIELDING => std::thread::yield_now(),
                waited => std::thread::sleep((waited / 8).min(LONGEST_SLEEP)),
            }
        }
        Ok(())
    }
}

/// How long a sender spins for the receiver's last piece, and gives its processor away, before it sleeps between looks.
const SPINNING: Duration = Duration::from_micros(50);
const YIELDING: Duration = Duration::from_millis(1);
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Who copies which pieces, if the receiver is on this machine.
fn shared_word<'p>(peer: &'p Peer, staging: &Staging) -> Option<MappedU64<'p>> {
    peer.out.view().map(|view| word64(view, layout::SHARED + 8 * staging.block as usize))
}

/// Sends these bytes of a message to where they belong. False when the window is gone.
fn push(import: &Import, go: &Spot, data: Source, range: Range<usize>) -> bool {
    let at = go.offset as usize + range.start - go.first as usize;
    // SAFETY: the operation is not complete before this returns.
    #[allow(unsafe_code)]
    let bytes = unsafe { mem::source(mem::part(data, range.start, range.len())) };
    bytes.is_empty() || import.send(at, bytes).is_ok()
}

/// Copies a part of a message to where it belongs in the safe copy.
fn stage_part(staging: &Staging, part: Source, at: usize) {
    // SAFETY: the operation is not complete before this returns.
    #[allow(unsafe_code)]
    let bytes = unsafe { mem::source(part) };
    if staging.export.view().write(staging.offset + at, bytes).is_err() {
        unreachable!("the place is as long as the message");
    }
}
