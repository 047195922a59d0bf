//! What two daemons say to each other of a connection whose ends speak by the kernel's connection too: sockets.
//!
//! Such an end meets three things in its segment that only the *other* node's socket can do: a doorbell is a byte that it
//! sends, a FIN is its, and what leaves the ring for the kernel goes through it. So whoever needs one asks the
//! other daemon, behind everything that it has sent before ([`Said`]):
//!
//! - *doorbells* are counted in this node's segment first, then the other daemon sends them: none can come uncounted;
//! - *FIN*: the process says in its segment that it wants one. Its daemon shuts its copy of the socket when all of the
//!   ring has been taken, or is in the kernel: what the other process has not taken by then leaves the ring first, as below,
//!   because it may leave for a program without the library, and nothing can be sent again behind a FIN. As with TCP the FIN waits
//!   for a receiver of whom more is unread than the kernel takes. A close is the same, but that the daemon has the last copy,
//!   which it keeps until the kernel has been told that all has come: a doorbell that is unread, or comes later, would
//!   have the kernel throw away what it has not sent;
//! - *back to the kernel*: a direction leaves its ring in one order only, whoever wishes it. First the receiving
//!   process can see where its ring part ends, and no doorbell follows; then "stop" is said; and what is behind the end
//!   is sent by a pump on the sender's node ([`crate::pump`]), after which the sender's library goes on by itself.
//!
//! ```text
//!   sender's node                              receiver's node
//!                             (the receiver wishes it: BACK in its segment)
//!                             <-- stop ------  ENDED where its process stands
//!   pump, library goes on
//!                             (the sender wishes it: "leave" in its segment)
//!   no more is carried -- end -->              ENDED where its process stands
//!                             <-- stop ------
//!   pump, library goes on
//! ```
//!
//! A receiver that has not seen a switch cannot say where it stands, so it asks whether there will be one, and waits.

use super::carrier::{FarError, Load, Other};
use super::said::Said;
use super::segment::{CLOSED, End, KernelSides, RESET};
use super::sent::{Failed, Far, Sent};
use crate::{pump, tcp};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::pump::request;
use vmmc_ring::switch::Standing;

/// How the direction in which this node's process sends goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// By the kernel until it has switched, then by its ring, which is carried.
    #[default]
    Carried,
    /// No more of its ring is carried; the other daemon has been told, and has not answered.
    Ending,
    /// By the kernel.
    Kernel,
}

/// How far it has come with one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Talk {
    way: Way,
    /// The other daemon knows that the process here wants to be sent to by the kernel.
    asked: bool,
    /// The process wants a FIN.
    fin: bool,
    /// Nobody has the process's end any more: its FIN is the close of the daemon's copy.
    pub(super) is_last: bool,
    /// The FIN waits until the far end's process has taken more of the ring.
    is_awaiting: bool,
    /// The daemon's copy, which is the last, waits until the FIN has arrived.
    pub(super) lingers: bool,
    /// It has it.
    fin_sent: bool,
    /// Nobody is at the other end any more.
    parted: bool,
    /// Something that the process has sent reached nobody, and the process will hear of it.
    lost: bool,
}

impl Load {
    fn say(&self, said: Said) -> Result<(), Failed<FarError>> {
        let sent = self.import.send_notification(0, 0, said.word());
        sent.map_err(|error| Failed::Far(error.into()))
    }

    fn ask_for_bells(&self, count: u32) -> Result<(), Failed<FarError>> {
        if count > 0 { self.say(Said::Ring(count)) } else { Ok(()) }
    }

    /// Acts on what the other daemon has said, on all of it.
    pub(super) fn hear(&self, talk: &mut Talk, sent: &mut Sent) -> Result<(), Failed<FarError>> {
        if self.stream.segment.kernel().is_none() {
            return Ok(());
        }
        let said = self.stream.take_said().into_iter();
        let heard = said.map(|said| self.hear_one(said, talk, sent));
        heard.fold(Ok(()), Result::and)?;
        self.ask_for_bells(self.stream.take_rings())
    }

    fn hear_one(
        &self,
        said: Said,
        talk: &mut Talk,
        sent: &mut Sent,
    ) -> Result<(), Failed<FarError>> {
        match said {
            Said::WantKernel => return self.send_by_kernel(talk, sent),
            Said::Taken => self.will_not_switch(),
            Said::End { room } if !sent.far_stops => return self.stop_far(sent, room.into()),
            Said::Stop if talk.way != Way::Kernel => self.give_back(talk, sent),
            _ => {}
        }
        Ok(())
    }

    /// The far end's process wants to be sent to by the kernel, and has not seen a switch.
    fn send_by_kernel(&self, talk: &mut Talk, sent: &mut Sent) -> Result<(), Failed<FarError>> {
        if !sent.switched {
            // It never sees one.
            if talk.way == Way::Carried {
                self.give_back(talk, sent);
            }
            return self.say(Said::Taken);
        }
        // It sees the switch now; until then only our process may end its ring part.
        if let Some(words) = self.stream.segment.direction(End::Near) {
            words.asks();
            self.stream.segment.wake_sender();
        }
        Ok(())
    }

    fn will_not_switch(&self) {
        if let Some(words) = self.stream.segment.direction(End::Far) {
            words.is_taken();
        }
    }

    /// The ring part of the far end's direction ends where our process stands, or `most` bytes before what has come, which
    /// the far end's daemon learns. What is behind comes by the kernel, once more: our process may leave for one that has
    /// no ring. What it takes meanwhile it throws away then.
    fn stop_far(&self, sent: &mut Sent, most: u64) -> Result<(), Failed<FarError>> {
        let segment = &self.stream.segment;
        sent.far_stops = true;
        self.ask_for_bells(self.stream.be_quiet())?;
        let Some(words) = segment.direction(End::Far) else { return Ok(()) };
        let (tail, head) = (words.tail.load(Ordering::Acquire), words.head.load(Ordering::Acquire));
        let unread = Some(tail.wrapping_sub(head)).filter(|&it| it <= segment.ring_len as u64);
        // A process that lies about where it stands has read all.
        let end = tail.wrapping_sub(unread.unwrap_or(0).min(most));
        words.switch.to_tcp(end, words.bells.load(Ordering::SeqCst));
        Other(&self.import).word(segment.consumed_at(End::Far), end).map_err(Failed::Far)?;
        self.say(Said::Stop)
    }

    /// The far end's process reads our process's direction by the kernel, behind what it has said that it has taken.
    fn give_back(&self, talk: &mut Talk, sent: &mut Sent) {
        talk.way = Way::Kernel;
        sent.stops = true;
        let segment = &self.stream.segment;
        let (Some(kernel), Some(words)) = (segment.kernel(), segment.direction(End::Near)) else {
            return;
        };
        // Whatever comes by the kernel is looked at for what it is.
        segment.word32(kernel.far.seen).store(1, Ordering::Release);
        if talk.fin_sent {
            // Nothing follows a FIN.
            if self.is_unread() {
                self.stream.lose(
                    "its process has ended its sending, and the other's wants its bytes again",
                );
            }
            return self.stream.gave_back();
        }
        let in_ring = || segment.in_ring(End::Near);
        let number = self.incarnation;
        let claimed = if in_ring() {
            words.seize(number)
        } else {
            // No doorbell was ever sent by it, so its library may do it too, should it switch just now.
            words.recall();
            in_ring() && words.claim(number)
        };
        if !claimed {
            return self.stream.gave_back();
        }
        let (stream, ends) = (self.stream.clone(), talk.fin || talk.is_last);
        // Refused, the connection would be lost. There are not more of them than the user may have connections.
        pump::leave(self.stream.users(), move || {
            match stream.give_back(ends) {
                Ok(sent) => tracing::debug!(sent, "gave a carried connection's bytes back"),
                Err(why) => stream.lose(why),
            }
            stream.gave_back();
        });
    }

    /// Does what the process asks for in its segment, all that it has put into its ring having been sent. True when there
    /// may be more to send.
    pub(super) fn comply(
        &self,
        talk: &mut Talk,
        sent: &mut Sent,
    ) -> Result<bool, Failed<FarError>> {
        let segment = &self.stream.segment;
        let (Some(kernel), Some(words)) = (segment.kernel(), segment.direction(End::Far)) else {
            return Ok(false);
        };
        match words.request.load(Ordering::SeqCst) {
            // The library knows what is left where nothing can follow.
            request::BACK if self.stream.has_ended() => words.give_up(),
            request::BACK if !sent.far_stops && segment.in_ring(End::Far) => {
                // It has stopped, and needs all.
                self.stop_far(sent, u64::MAX)?;
            }
            request::TCP if !sent.far_stops && !talk.asked => {
                talk.asked = true;
                self.say(Said::WantKernel)?;
            }
            _ => {}
        }
        let wants = |at: usize| segment.word32(at).load(Ordering::Acquire) != 0;
        if !talk.fin && wants(kernel.near.fin) {
            talk.fin = true;
            // What it has put in before it said so.
            return Ok(true);
        }
        if talk.way == Way::Carried && sent.switched {
            let ends = talk.fin || talk.is_last;
            if ends && !talk.fin_sent {
                self.end_emptied(talk, sent, &kernel)?;
            } else if !ends && wants(kernel.near.leave) {
                let room = self.stream.send_room().unwrap_or(0);
                self.end_ring(talk, sent, u32::try_from(room).unwrap_or(u32::MAX))?;
            }
        }
        self.end_sending(talk, &kernel)?;
        Ok(false)
    }

    /// No more of the process's ring is carried; of what is in it so much comes by the kernel.
    fn end_ring(
        &self,
        talk: &mut Talk,
        sent: &mut Sent,
        room: u32,
    ) -> Result<(), Failed<FarError>> {
        talk.way = Way::Ending;
        sent.stops = true;
        self.say(Said::End { room })
    }

    /// A FIN is to follow: what the far end's process has not taken goes before it by the kernel, as soon as that takes all.
    fn end_emptied(
        &self,
        talk: &mut Talk,
        sent: &mut Sent,
        kernel: &KernelSides,
    ) -> Result<(), Failed<FarError>> {
        let closed = self.stream.segment.word32(kernel.near.closed).load(Ordering::Acquire);
        // Before the look: what is taken from now on is told.
        self.stream.watch(true);
        let unread = self.unread();
        talk.is_awaiting = false;
        // An RST takes back what is unread; so does the connection's end.
        if unread == 0 || closed == RESET {
            self.stream.watch(false);
        } else if let Some(room) = self.stream.room_at_the_end(unread) {
            talk.is_awaiting = room < unread;
            if !talk.is_awaiting {
                self.stream.watch(false);
                return self.end_ring(talk, sent, u32::MAX);
            }
        }
        Ok(())
    }

    /// Sends the FIN that the process wants, once all that precedes it has arrived, or is in the kernel.
    fn end_sending(&self, talk: &mut Talk, kernel: &KernelSides) -> Result<(), Failed<FarError>> {
        if !talk.fin || talk.fin_sent {
            return Ok(());
        }
        let may = match talk.way {
            _ if talk.parted => true,
            Way::Carried if talk.is_awaiting => false,
            Way::Carried => {
                let arrived = self.import.fence();
                arrived.map_err(|error| Failed::Far(FarError::Fence(error)))?;
                true
            }
            Way::Ending => false,
            // A library that has learnt of it does it itself.
            Way::Kernel => {
                let at = kernel.near.direction.request as usize;
                let state = self.stream.segment.word32(at).load(Ordering::SeqCst);
                self.stream.has_given_back() && state == request::PUMPED
            }
        };
        if may {
            talk.fin_sent = true;
            self.stream.end_sending();
        }
        Ok(())
    }

    /// The other daemon has ended its links, in order. If its process has not gone on with the kernel alone, it is no
    /// more: ours is told so, and the kernel has the rest to say.
    pub(super) fn part(&self, talk: &mut Talk, sent: &mut Sent) -> Result<bool, Failed<FarError>> {
        let segment = &self.stream.segment;
        let Some(kernel) = segment.kernel() else { return Ok(false) };
        if !talk.parted {
            talk.parted = true;
            if talk.way != Way::Kernel && segment.far_is_attached() {
                // Had it used its rings, its daemon would have said how it has closed.
                let how = if sent.switched { RESET } else { CLOSED };
                let closed = segment.word32(kernel.far.closed);
                let _ = closed.compare_exchange(0, how, Ordering::SeqCst, Ordering::SeqCst);
                segment.wake_sender();
            }
            (sent.stops, sent.far_stops) = (true, true);
        }
        // Whoever asks whether the far end will switch: it will not.
        self.will_not_switch();
        if !talk.lost && talk.way != Way::Kernel && self.is_unread() {
            // Nobody will take it. The kernel of the other end answers data with a reset, as ever.
            talk.lost = true;
            self.stream.ring_far(1);
        }
        talk.fin |= segment.word32(kernel.near.fin).load(Ordering::Acquire) != 0;
        self.end_sending(talk, &kernel)?;
        Ok(false)
    }

    /// Whether our process's ring has what the far end has not taken.
    fn is_unread(&self) -> bool {
        self.unread() > 0
    }

    /// Bytes in our process's ring that the far end has not taken; a process that lies has as many as go in.
    fn unread(&self) -> u64 {
        let segment = &self.stream.segment;
        let words = segment.direction(End::Near).filter(|_| segment.in_ring(End::Near));
        words.map_or(0, |words| {
            let tail = words.tail.load(Ordering::Acquire);
            let unread = tail.wrapping_sub(words.head.load(Ordering::Acquire));
            unread.min(segment.ring_len as u64)
        })
    }

    /// The process has closed, and the last of its bytes went by the kernel: whether the daemon's copy of its socket may be
    /// closed. `begins`: to be told of by the socket's changes from now on. Where another program has the socket, it has
    /// not closed.
    pub(super) fn has_arrived(
        &self,
        talk: &mut Talk,
        begins: impl FnOnce(BorrowedFd<'_>) -> bool,
    ) -> bool {
        let segment = &self.stream.segment;
        let (Some(kernel), Some(socket)) = (segment.kernel(), self.stream.socket()) else {
            return true;
        };
        let closed = segment.word32(kernel.near.closed).load(Ordering::Acquire);
        if talk.way != Way::Kernel || closed != CLOSED {
            return true;
        }
        if !talk.lingers && !tcp::has_sent_all(socket.as_fd()) {
            talk.lingers = begins(socket.as_fd());
            self.stream.end_sending();
        }
        if talk.lingers && !tcp::has_sent_all(socket.as_fd()) {
            return false;
        }
        // Its doorbells are nobody's. Data would be: then the end is to be an RST.
        if let Some(words) = segment.direction(End::Far)
            && let Standing::Ring { prefix } = words.switch.standing()
        {
            let doorbells = words.bells.load(Ordering::SeqCst);
            tcp::discard(socket.as_fd(), prefix, prefix.wrapping_add(doorbells));
        }
        true
    }

    /// Whether nothing more is to be done for a process that is gone.
    pub(super) fn is_settled(&self, talk: &Talk) -> bool {
        match talk.way {
            Way::Carried => talk.parted || !talk.is_awaiting,
            Way::Ending => talk.parted,
            Way::Kernel => self.stream.has_given_back(),
        }
    }
}
