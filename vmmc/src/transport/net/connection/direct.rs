//! Past the interface: writes of the fabric itself to the exporter's pages.
//!
//! The interface opens a *window* to the pages of a link ([`Kind::Window`]), and with it long messages are remote writes to the
//! pages, which no processor of that node takes part in. What orders them with packets:
//! - a packet behind such a write finds it there: the fabric keeps the order of writes, or the packet waits
//!   ([`crate::fabric::Endpoint::may_overtake`]);
//! - such a write behind a packet would overtake it: packets are copied by the interface when it comes to them. So a message
//!   goes directly only when the interface has answered a question behind every packet before it. There is a question in a fence and
//!   in a read; else a message that is worth it asks, and waits a moment. If there is no answer (a page is disabled, a queue
//!   full), it goes by packets, behind the others.

use super::answers::Quiet;
use super::{Connection, Lost, Slot, Unsent};
use crate::sync::Ordering;
use crate::transport::net::frame::{Flags, Header, Kind};
use std::time::{Duration, Instant};

/// In a tag: nobody waits for the answer by name.
pub(super) const QUESTION: u64 = 1 << 62;

/// Shortest message for which it asks. Shorter ones go by packets as fast as the answer comes.
const WORTH_ASKING: usize = 128 * 1024;
/// How long it waits for the answer.
const MOMENT: Duration = Duration::from_millis(1);

/// Bytes written between two looks at whether the exporter wants the window shut.
const AT_ONCE: usize = 256 * 1024;

/// What was sent, as far as direct writes must know it. With the writer's lock.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// A packet of which nobody has asked whether it was done.
    unasked: bool,
    /// The question behind all packets, if there is one; 0 before the first.
    asked: Option<u64>,
    /// The last question of our own.
    question: u64,
}

impl Sent {
    /// Before a frame is sent.
    pub(super) fn note(&mut self, header: &Header) {
        match header.kind {
            Kind::Fence | Kind::Read => self.ask(header.value),
            Kind::Write if header.flags.contains(Flags::FENCE) => self.ask(header.value),
            Kind::Write | Kind::Word | Kind::Notify => self.unasked = true,
            _ => {} // changes nothing that a message could overtake
        }
    }

    fn ask(&mut self, tag: u64) {
        (self.unasked, self.asked) = (false, Some(tag));
    }

    /// Whether all packets have been dealt with, if this is the tag that was answered last: questions are answered in their order.
    fn is_settled(&self, answered: u64) -> bool {
        !self.unasked && self.asked.is_none_or(|tag| tag == answered)
    }
}

impl Connection {
    /// Writes bytes straight to the exporter's pages; how many it were. The others must go by packets. What is sent later comes
    /// after them.
    pub(in crate::transport::net) fn write_directly(
        &self,
        slot: &Slot,
        at: u64,
        bytes: &[u8],
    ) -> Result<usize, Unsent> {
        if slot.window.lock().is_none() {
            return Ok(0);
        }
        let mut turn = self.writer.lock();
        if let Some(reason) = slot.ended() {
            return Err(Unsent::Ended(reason));
        }
        if !self.settle(&mut turn, bytes.len())? {
            return Ok(0);
        }
        let Some(window) = *slot.window.lock() else { return Ok(0) };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            // An exporter that wants the window shut waits for the end of this, and not for long; the answer waits for the
            // writer's lock. One that withdraws its pages has the message whole, as by packets (V8).
            if slot.owes_window() && slot.ended().is_none() {
                break;
            }
            let part = rest.get(..AT_ONCE).unwrap_or(rest);
            match self.wire.write_window(window, at + done as u64, part, done == 0) {
                Ok(len) => done += len,
                Err(rustix::io::Errno::AGAIN) => {
                    if !self.wire.wait_for_place(Duration::from_secs(1)) {
                        self.check_alive();
                    }
                    if self.is_lost() {
                        return Err(Lost.into());
                    }
                }
                Err(_) => {
                    self.close(); // the reader finds it out and ends the links
                    return Err(Lost.into());
                }
            }
        }
        Ok(done)
    }

    /// Whether the interface has dealt with every packet so far. Asks and waits for a moment if so many bytes are worth it.
    fn settle(&self, turn: &mut Sent, len: usize) -> Result<bool, Lost> {
        let is_settled = |turn: &Sent| turn.is_settled(self.answered.load(Ordering::Acquire));
        if is_settled(turn) {
            return Ok(true);
        }
        if len < WORTH_ASKING {
            return Ok(false);
        }
        if turn.unasked {
            turn.question += 1;
            let fence = Header::new(Kind::Fence, 0, 0).value(QUESTION | turn.question);
            self.send_frame(turn, &fence, &[])?;
        }
        let end = Instant::now() + MOMENT;
        let quiet = (!self.budget.is_zero()).then(|| Quiet::new(self));
        while !is_settled(turn) && Instant::now() < end && !self.is_lost() {
            if quiet.is_none() {
                self.doze_unless(MOMENT, || is_settled(turn));
            } else if let Some(mut inbox) = self.inbox.try_lock() {
                self.receive(&mut inbox);
            }
        }
        drop(quiet);
        Ok(is_settled(turn))
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        Header::new(kind, 1, 1)
    }

    #[test]
    fn a_message_waits_for_an_answer_behind_every_packet() {
        let mut sent = Sent::default();
        assert!(sent.is_settled(0), "there was none");
        for kind in [Kind::Write, Kind::Word, Kind::Notify] {
            sent.note(&header(kind));
            assert!(!sent.is_settled(0), "{kind:?}");
            sent.note(&header(Kind::Fence).value(7));
            assert!(!sent.is_settled(6), "{kind:?}");
            assert!(sent.is_settled(7), "{kind:?}");
        }
        sent.note(&header(Kind::Write));
        assert!(!sent.is_settled(7), "the answer is older");
        sent.note(&header(Kind::Read).value(8));
        assert!(!sent.is_settled(7) && sent.is_settled(8));
        sent.note(&header(Kind::Write).flags(Flags::FENCE).value(9));
        assert!(!sent.is_settled(8) && sent.is_settled(9));
        sent.note(&header(Kind::Attach));
        assert!(sent.is_settled(9), "nothing that could be overtaken");
    }
}
