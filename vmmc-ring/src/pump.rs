//! Giving a ring's bytes back to the kernel connection when its receiver has stopped reading.
//!
//! A receiver that hands its descriptor to somebody without this library (exec, descriptor
//! passing, stdio) asks for the bytes it has not read: they must reach its kernel queue, and only
//! the sending end of the kernel connection can put them there. Normally the sender does it, in
//! its next call. For a sender that makes no call a third party does, the *pump*, which has
//! obtained a descriptor of the sender's socket and maps the segment.
//!
//! ```text
//!   request word   BACK ──sender──▶ TAKEN                           sent again by the sender
//!   (receiver's)     └───pump────▶ PUMP ─────▶ PUMPED ──sender──▶ TAKEN    (it learns of it)
//!                                   ▲             │
//!                                   └─ the sender published meanwhile
//! ```
//!
//! # Nothing twice, nothing lost
//! A sender publishes its tail, fences, and looks at the request. The pump stores PUMPED, fences,
//! and looks at the tail. So either the sender sees PUMPED and claims what lies behind `pumped`,
//! or the pump sees the new tail; when both do, the claim of the word decides
//! (`loom_the_pump_loses_and_doubles_nothing`). A sender that ends its part for reasons of its own takes the word first, so that
//! nobody else begins (`loom_a_sender_that_ends_and_the_pump_send_once`).
//!
//! # No doorbell behind data
//! A doorbell is counted before it is sent, and between the two its sender looks at the request
//! ([`Words::may_ring`]). The pump sends nothing before the kernel's own count of what was sent
//! equals the prefix and every counted doorbell ([`Words::settled`]): then nobody is in between,
//! and whoever counts later sees the claim and does not send (`loom_no_bell_follows_pumped_data`).

use crate::switch::{Standing, Switch};
use vmmc::sync::{Ordering, fence};
use vmmc::word::Word;

/// Values of a side's request word. Stored by the side, except from [`request::REFUSED`] on.
pub mod request {
    /// Send by the kernel from now on.
    pub const TCP: u32 = 1;
    /// The same, and take back what is unread: the receiver has stopped.
    pub const BACK: u32 = 2;
    /// As [`BACK`]; the pump was asked and cannot help.
    pub const REFUSED: u32 = 3;
    /// The sender does it, or has done it.
    pub const TAKEN: u32 = 4;
    /// The pump does it.
    pub const PUMP: u32 = 5;
    /// The pump has done it, up to the position in `pumped`.
    pub const PUMPED: u32 = 6;
}

/// A request becomes another so often at most.
const MOST_CHANGES: u32 = 100;

/// The words of one direction that this concerns.
#[derive(Clone, Copy, Debug)]
pub struct Words<M, W> {
    /// The receiver's request.
    pub request: M,
    /// How the direction stands.
    pub switch: Switch<M, W>,
    /// Bytes ever put into the ring.
    pub tail: W,
    /// Bytes ever taken out.
    pub head: W,
    /// Doorbells counted by the sender.
    pub bells: W,
    /// Of these, ones for which the kernel had no room.
    pub owed: W,
    /// Ring position up to which the pump has sent.
    pub pumped: W,
    /// Which pump: a number that only the living know ([`Words::claim`]).
    pub pumper: W,
}

/// What the sender finds when it wants to end its ring part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The receiver has not stopped: the part ends at the tail.
    AtTail,
    /// It has, and this caller takes back what is unread.
    AtHead,
    /// The pump has sent everything up to this position; the rest is this caller's.
    Pumped {
        /// Ring position.
        to: u64,
    },
    /// The pump is at it: nothing may be done now.
    Busy,
}

impl<M: Word<Value = u32>, W: Word<Value = u64>> Words<M, W> {
    fn exchange(&self, from: u32, to: u32) -> bool {
        self.request.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    // ---- the sender ----

    /// Who ends the ring part, and where. After anything but [`Claim::Busy`] and
    /// [`Claim::AtTail`] the request word is [`request::TAKEN`].
    pub fn sender_claims(&self) -> Claim {
        loop {
            match self.request.load(Ordering::SeqCst) {
                found @ (request::BACK | request::REFUSED) => {
                    if self.exchange(found, request::TAKEN) {
                        return Claim::AtHead;
                    }
                }
                request::PUMP => return Claim::Busy,
                request::PUMPED => {
                    if self.exchange(request::PUMPED, request::TAKEN) {
                        // Only now: before, the pump could have gone on.
                        return Claim::Pumped { to: self.pumped.load(Ordering::Acquire) };
                    }
                }
                _ => return Claim::AtTail,
            }
        }
    }

    /// The same for a sender that ends its ring part in any case: it has the word after [`Claim::AtTail`] too. Else the
    /// receiver could stop, and the pump send, between this and the end, and both would have sent the same.
    pub fn sender_ends(&self) -> Claim {
        // More often the word does not change; a receiver that plays with it spoils its own stream.
        for _ in 0..MOST_CHANGES {
            let claim = self.sender_claims();
            if claim != Claim::AtTail {
                return claim;
            }
            let found = self.request.load(Ordering::SeqCst);
            let begun =
                [request::BACK, request::REFUSED, request::PUMP, request::PUMPED].contains(&found);
            if !begun && self.exchange(found, request::TAKEN) {
                break;
            }
        }
        Claim::AtTail
    }

    /// After a doorbell was counted and before it is sent: whether it may be. If not, the caller
    /// takes its count back.
    #[inline]
    pub fn may_ring(&self) -> bool {
        // PAIRS(pump bells): with the fence in `claim_from`.
        fence(Ordering::SeqCst);
        self.request.load(Ordering::SeqCst) < request::TAKEN
    }

    /// The pump has died at its work: the caller, who knows that, takes over. Where to go on
    /// follows from the kernel's count ([`Words::pumped_by_count`]).
    pub fn sender_inherits(&self) -> bool {
        self.exchange(request::PUMP, request::TAKEN)
    }

    /// Ring position up to which a dead pump has sent, by the kernel's count of all bytes `given`
    /// to the connection, and how many owed doorbells it has left. `None` when it had not begun.
    pub fn pumped_by_count(&self, given: u64) -> Option<(u64, u64)> {
        let ended = matches!(self.switch.standing(), Standing::Ended { .. });
        ended.then(|| self.switch.sent_since(given))
    }

    // ---- the pump ----

    /// Claims the work for the pump with this number.
    pub fn claim(&self, number: u64) -> bool {
        self.claim_from(&[request::BACK], number)
    }

    /// As [`Words::claim`], by a pump that stands in for the receiver too, and makes its request.
    pub fn seize(&self, number: u64) -> bool {
        self.claim_from(&[0, request::TCP, request::BACK], number)
    }

    fn claim_from(&self, requests: &[u32], number: u64) -> bool {
        self.pumper.store(number, Ordering::Relaxed);
        let claimed = requests.iter().any(|&from| self.exchange(from, request::PUMP));
        // PAIRS(pump bells): with the fence in `may_ring`.
        fence(Ordering::SeqCst);
        claimed
    }

    /// A stand-in of the receiver's makes its request: send by the kernel from now on.
    pub fn asks(&self) {
        let _ = self.exchange(0, request::TCP);
    }

    /// A stand-in of the receiver's makes its request: the receiver has stopped. The caller looks at the switch after this,
    /// whose sender looks at the request after it has switched.
    pub fn recall(&self) {
        let _ = self.exchange(0, request::BACK) || self.exchange(request::TCP, request::BACK);
        // PAIRS(pump): with the fence in `bell::published`, after which the sender looks.
        fence(Ordering::SeqCst);
    }

    /// A stand-in of the sender's answers a receiver that asked for the kernel: it is so.
    pub fn is_taken(&self) {
        let _ = self.exchange(request::TCP, request::TAKEN);
    }

    /// Gives the claim up: nothing was sent.
    pub fn give_up(&self) {
        let _ = self.exchange(request::PUMP, request::REFUSED)
            || self.exchange(request::BACK, request::REFUSED);
    }

    /// Whether every counted doorbell is in the kernel or owed, by the kernel's count of all bytes
    /// `given` to the connection; returns how many are owed. `None`: not now.
    pub fn settled(&self, given: u64) -> Option<u64> {
        let Standing::Ring { prefix } = self.switch.standing() else { return None };
        let owed = self.owed.load(Ordering::SeqCst);
        let counted = self.bells.load(Ordering::SeqCst);
        (prefix.wrapping_add(counted).wrapping_sub(owed) == given).then_some(owed)
    }

    /// Ends the ring part where the receiver stands; returns what is to be sent, from where to
    /// where. `None` when the words cannot be true.
    pub fn begin(&self, capacity: u64) -> Option<(u64, u64)> {
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        if tail.wrapping_sub(head) > capacity {
            return None;
        }
        self.switch.to_tcp(head, self.bells.load(Ordering::SeqCst));
        Some((head, tail))
    }

    /// Everything up to `to` is sent. `Some` with a new end when the sender has published more
    /// and has not claimed it.
    pub fn finish(&self, to: u64) -> Option<u64> {
        self.pumped.store(to, Ordering::Release);
        if !self.exchange(request::PUMP, request::PUMPED) {
            return None;
        }
        // PAIRS(pump): with the fence in `bell::published`, after which the sender looks.
        fence(Ordering::SeqCst);
        let tail = self.tail.load(Ordering::Acquire);
        (tail != to && self.exchange(request::PUMPED, request::PUMP)).then_some(tail)
    }
}
