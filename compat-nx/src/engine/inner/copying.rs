//! The sender's copies of a large message: to its safe copy, or straight to the receiver's memory.

use super::Inner;
use crate::engine::counters as count;
use crate::engine::direct::Go;
use crate::engine::layout;
use crate::engine::mem;
use crate::engine::peer::Peer;
use crate::engine::points::Point;
use crate::engine::state::Staging;
use crate::engine::types::Source;
use crate::error::NxError;

impl Inner {
    /// Makes the safe copy of an announced message (N10), or sends from user memory as soon as the reply
    /// is there (N13). `may_lock`: the caller does not hold the state's lock.
    pub(in crate::engine) fn stage(
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
        while done < data.len {
            if may_go && let Some(go) = Go::read(peer, staging.block) {
                if self.send_direct(peer, staging, data, done, &go)? {
                    self.count(count::STAGED_BYTES, done as u64);
                    return Ok(());
                }
                may_go = false;
            }
            let part = mem::part(data, done, chunk);
            stage_part(staging, part, done);
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

    /// Sends from user memory to user memory. False when the window is gone.
    fn send_direct(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        done: usize,
        go: &Go,
    ) -> Result<bool, NxError> {
        let Some(import) = self.state.lock().target(self, peer, go, data.len)? else {
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
        let part = mem::part(data, first, len);
        // SAFETY: the operation is not complete before this returns.
        #[allow(unsafe_code)]
        let bytes = unsafe { mem::source(part) };
        if import.send(go.offset as usize, bytes).is_err() {
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
        Ok(true)
    }
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
