//! One pair of buffers, as the server has it.
//!
//! A slot is **idle** until the flag of the turn that is due is found, and **busy** until that turn's reply is
//! sent, by whichever thread. Only the thread that polls makes it busy; it is made idle just
//! before the reply's flag is stored, because from then on the client may call again
//! ([`super::duty`]). It is **ended** for good when the client has gone.
//!
//! A slot knows its program by number: a deferred call holds its slot, the service may hold the deferred
//! call, and nothing may hold the service but the server.

use super::budget::{Account, Charge, Kept};
use super::duty::Duty;
use super::leaving::Calls;
use crate::error::{NoRoom, ReplyError};
use crate::layout::{self, FlagWord, Kind, Status, Turn};
use crate::memory::{Memory, copy};
use crate::peer_buffer::PeerBuffer;
use crate::process::count;
use crate::reactor::Reactor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmmc::counters::Tally;
use vmmc::mem::View;
use vmmc::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vmmc::word::Word as _;
use vmmc::{Node, PeerInfo};

/// See the module.
#[derive(Debug)]
pub(crate) struct Slot {
    node: Node,
    /// Wakes handlers that wait for [`Slot::is_given_up`].
    reactor: Arc<Reactor>,
    /// Our buffer.
    calls: Calls,
    /// The client's.
    replies: PeerBuffer,
    /// What its image is charged with, if it has one.
    _image: Option<Charge>,
    pub(crate) peer: PeerInfo,
    /// Place of the program among the server's.
    pub(super) program: usize,
    duty: Duty,
    ended: AtomicBool,
    /// Calls whose reply was put off, and that are still there.
    put_off: AtomicU32,
    /// See [`Slot::deadline`]; of another node's client.
    deadline: AtomicU64,
    /// Of a call or reply in pieces.
    pieces: Mutex<Pieces>,
    /// Something is kept there. Written rarely, by whoever serves the present call.
    keeps_pieces: AtomicBool,
    /// What the client's process may take for them.
    account: Arc<Account>,
    pub(crate) call_max: usize,
}

#[derive(Debug, Default)]
struct Pieces {
    /// A call that is not complete.
    call: Option<Partial>,
    /// A reply that is not all sent.
    reply: Option<Rest>,
}

/// A call that is not complete.
#[derive(Debug)]
struct Partial {
    memory: Kept,
    filled: usize,
    procedure: u32,
    one_way: bool,
}

/// A reply that is not all sent.
#[derive(Debug)]
struct Rest {
    memory: Kept,
    sent: usize,
}

/// A call that is complete.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) turn: Turn,
    pub(crate) procedure: u32,
    pub(crate) one_way: bool,
    /// Where the arguments begin in our buffer, if they are there.
    pub(crate) start: usize,
}

/// What a message of the client's comes to.
#[derive(Debug)]
pub(crate) enum Step {
    /// A call to serve, whose arguments were put together from pieces.
    Call(Ready, Kept),
    /// Something that was dealt with.
    Done,
    /// The first piece of a call that there is no room for.
    NoRoom(Turn, NoRoom),
    /// The first piece of a call of so many bytes, which is longer than allowed.
    TooLong(Turn, usize),
    /// The client broke the protocol.
    Faulty,
}

impl Slot {
    pub(crate) fn new(
        (node, reactor): (&Node, &Arc<Reactor>),
        (calls, replies, image): (Calls, PeerBuffer, Option<Charge>),
        peer: PeerInfo,
        program: usize,
        account: Arc<Account>,
        call_max: usize,
    ) -> Slot {
        Slot {
            node: node.clone(),
            reactor: reactor.clone(),
            calls,
            replies,
            _image: image,
            peer,
            program,
            duty: Duty::new(),
            ended: AtomicBool::new(false),
            put_off: AtomicU32::new(0),
            deadline: AtomicU64::new(0),
            pieces: Mutex::default(),
            keeps_pieces: AtomicBool::new(false),
            account,
            call_max,
        }
    }

    #[inline]
    pub(crate) fn calls(&self) -> View<'_> {
        self.calls.view()
    }

    #[inline]
    pub(crate) fn replies(&self) -> View<'_> {
        self.replies.view()
    }

    pub(super) fn reply_buffer(&self) -> &PeerBuffer {
        &self.replies
    }

    #[inline]
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// Longest reply that fits.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        layout::room(self.replies.len())
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A word of our head, which the client writes.
    pub(crate) fn head32(&self, at: usize) -> u32 {
        self.calls.view().word32(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// A word of our head, which the client writes.
    pub(crate) fn head64(&self, at: usize) -> u64 {
        self.calls.view().word64(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Whether INOUT data must go back with the reply: another node's client does not see what we write
    /// to our buffer.
    #[inline]
    pub(crate) fn returns_inout(&self) -> bool {
        self.replies.is_elsewhere()
    }

    /// The client's node, if it is another one.
    pub(crate) fn elsewhere(&self) -> Option<&str> {
        self.replies.import().remote_node()
    }

    /// When the client gives the present call up, by our monotonic clock in nanoseconds; 0: never.
    pub(crate) fn deadline(&self) -> u64 {
        if self.replies.is_elsewhere() {
            self.deadline.load(Ordering::Relaxed)
        } else {
            self.head64(layout::CALL_DEADLINE)
        }
    }

    /// Whether the client has given the call of that turn up, or has gone.
    pub(crate) fn is_given_up(&self, turn: Turn) -> bool {
        self.head32(layout::CALL_CANCELLED) == turn.number() || !self.is_open()
    }

    /// Another node has another clock, so its clients say how long they wait from now.
    #[cold]
    fn note_deadline(&self) {
        let at = match self.head64(layout::CALL_DEADLINE) {
            0 => 0,
            left => crate::client::clock_ns().saturating_add(left),
        };
        self.deadline.store(at, Ordering::Relaxed);
    }

    /// The flag of the turn that is due, if it is there and the slot is idle.
    #[inline(always)]
    pub(crate) fn look(&self) -> Option<u64> {
        let view = self.calls.view();
        let word = view.word64(layout::flag_at(view.len())).ok()?;
        // PAIRS(message): with the release in Lane::send, by Flag::signal.
        let word = word.load(Ordering::Acquire);
        let due = self.duty.is_due(FlagWord::turn_of(word)) && !self.ended.load(Ordering::Relaxed);
        due.then_some(word)
    }

    /// Takes the message that [`Slot::look`] found, if it is a whole call, as most are. Otherwise it is still to be
    /// taken by [`Slot::accept_rare`].
    #[inline(always)]
    pub(crate) fn accept(&self, word: u64) -> Option<Ready> {
        self.duty.take();
        let flag = FlagWord::unpack(word)?;
        let one_way = match flag.kind {
            Kind::Whole => false,
            Kind::OneWay => true,
            _ => return None,
        };
        let start = self.start_of(flag)?;
        // All of a short message, of a long one what it begins with: the plain part.
        let len = flag.len_bytes();
        let near = if len <= layout::NEAR { len } else { layout::UNIT };
        self.calls.view().prefetch(start, near);
        if self.keeps_pieces.load(Ordering::Relaxed) {
            self.drop_pieces();
        }
        if self.replies.is_elsewhere() {
            self.note_deadline();
        }
        let procedure = self.procedure(flag.code);
        Some(Ready { turn: flag.turn, procedure, one_way, start })
    }

    /// A new call ends an old one, or the reply to it, that was not finished: its client gave it up.
    #[cold]
    fn drop_pieces(&self) {
        *self.pieces() = Pieces::default();
        self.keeps_pieces.store(false, Ordering::Relaxed);
    }

    /// Where the message before a flag begins; `None`: it would reach into the head.
    #[inline(always)]
    fn start_of(&self, flag: FlagWord) -> Option<usize> {
        let end = layout::flag_at(self.calls.view().len());
        end.checked_sub(flag.len_bytes()).filter(|it| *it >= layout::HEAD_LEN)
    }

    /// Takes a message that [`Slot::accept`] did not take.
    #[cold]
    pub(crate) fn accept_rare(&self, word: u64) -> Step {
        let flag = FlagWord::unpack(word);
        match flag.and_then(|flag| Some((flag, self.start_of(flag)?))) {
            Some((flag, start)) if !matches!(flag.kind, Kind::Whole | Kind::OneWay) => {
                self.accept_piece(flag, flag.kind, start)
            }
            _ => Step::Faulty,
        }
    }

    #[inline]
    fn procedure(&self, code: u16) -> u32 {
        match code {
            layout::WIDE => self.head32(layout::CALL_PROCEDURE),
            code => u32::from(code),
        }
    }

    fn accept_piece(&self, flag: FlagWord, kind: Kind, start: usize) -> Step {
        if kind == Kind::More {
            return self.send_next(flag.turn);
        }
        let mut pieces = self.pieces();
        if kind != Kind::Next {
            (pieces.call, pieces.reply) = (None, None);
            let total = usize::try_from(self.head64(layout::CALL_TOTAL)).unwrap_or(usize::MAX);
            if total > self.call_max {
                return Step::TooLong(flag.turn, total);
            }
            let memory = match Kept::new(total, &self.account) {
                Ok(memory) => memory,
                Err(full) => return Step::NoRoom(flag.turn, full),
            };
            pieces.call = Some(Partial {
                memory,
                filled: 0,
                procedure: self.procedure(flag.code),
                one_way: kind == Kind::FirstOneWay,
            });
        }
        let Some(mut partial) = pieces.call.take() else { return Step::Faulty };
        let len = flag.len_bytes();
        let to = partial.memory.view().slice(partial.filled, len);
        let (Ok(from), Ok(to)) = (self.calls.view().slice(start, len), to) else {
            return Step::Faulty;
        };
        if len == 0 || copy(from, to).is_err() {
            return Step::Faulty;
        }
        self.node.counters().add(count::COPIED_BYTES, len as u64);
        partial.filled += len;
        if partial.filled == partial.memory.view().len() {
            self.note_deadline();
            let Partial { memory, procedure, one_way, .. } = partial;
            return Step::Call(Ready { turn: flag.turn, procedure, one_way, start }, memory);
        }
        pieces.call = Some(partial);
        self.keeps_pieces.store(true, Ordering::Relaxed);
        drop(pieces);
        let _ = self.send(flag.turn, Kind::More, Status::Ok, 0);
        Step::Done
    }

    /// Sends the message of `len` bytes that lies before the flag of the client's buffer. The slot is
    /// idle then. Returns where to count what else belongs to it: counting is left to the time in which it travels.
    ///
    /// # Errors
    /// [`ReplyError::Answered`] when that turn is over.
    #[inline(always)]
    pub(crate) fn send(
        &self,
        turn: Turn,
        kind: Kind,
        status: Status,
        len: usize,
    ) -> Result<Tally<'_>, ReplyError> {
        let units = (len / layout::UNIT) as u32; // at most the room of a buffer
        let word = FlagWord { turn, kind, code: status as u16, units }.pack();
        if !self.duty.hand_back(turn) {
            return Err(ReplyError::Answered);
        }
        self.replies.signal(len, word)?;
        let tally = self.node.counters().tally();
        tally.add(count::PACKETS, 1);
        Ok(tally)
    }

    /// Whether the call of that turn was not answered yet.
    pub(crate) fn is_unanswered(&self, turn: Turn) -> bool {
        self.duty.is_unanswered(turn)
    }

    /// Begins to send a reply that does not fit: `memory` is all of it.
    #[cold]
    pub(crate) fn send_long(
        &self,
        turn: Turn,
        memory: Memory,
        inout: (usize, usize),
    ) -> Result<(), ReplyError> {
        let total = memory.view().len();
        self.pieces().reply = None; // nobody asks for the rest of the one before
        if self.is_given_up(turn) {
            // Nor would its client ask for the rest of this one: it reads none of it.
            return self.send(turn, Kind::Whole, Status::Ok, 0).map(drop);
        }
        let memory = Kept::charge(memory, &self.account)?;
        for (at, value) in [
            (layout::REPLY_TOTAL, total),
            (layout::REPLY_INOUT_AT, inout.0),
            (layout::REPLY_INOUT_LEN, inout.1),
        ] {
            self.replies.put64(at, value as u64)?;
        }
        self.send_piece(turn, Kind::First, Rest { memory, sent: 0 })
    }

    fn send_piece(&self, turn: Turn, kind: Kind, mut rest: Rest) -> Result<(), ReplyError> {
        let total = rest.memory.view().len();
        let len = (total - rest.sent).min(self.room());
        let at = layout::flag_at(self.replies.len()) - len;
        copy(rest.memory.view().slice(rest.sent, len)?, self.replies.view().slice(at, len)?)?;
        rest.sent += len;
        let counters = self.node.counters();
        counters.add(count::COPIED_BYTES, len as u64);
        counters.add(count::PACKET_BYTES, (len + layout::FLAG_LEN) as u64);
        if rest.sent < total {
            self.pieces().reply = Some(rest);
            self.keeps_pieces.store(true, Ordering::Relaxed);
        }
        self.send(turn, kind, Status::Ok, len).map(drop)
    }

    fn send_next(&self, turn: Turn) -> Step {
        let Some(rest) = self.pieces().reply.take() else { return Step::Faulty };
        match self.send_piece(turn, Kind::Next, rest) {
            Ok(()) | Err(_) => Step::Done, // a client that has gone is noticed elsewhere
        }
    }

    /// Whether a call whose reply was put off keeps it.
    pub(crate) fn is_put_off(&self) -> bool {
        self.put_off.load(Ordering::Relaxed) > 0
    }

    /// The reply to a call is put off.
    pub(crate) fn begin_put_off(&self) {
        self.put_off.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a call is dropped, answered or not.
    pub(crate) fn end_put_off(&self) {
        self.put_off.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the client is still there.
    pub(crate) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// No more calls from here.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
