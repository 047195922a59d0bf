//! One pair of buffers, as the client has it: one call at a time.

use super::Binding;
use super::cancel::Mark;
use super::limit::Limit;
use crate::config::Settings;
use crate::error::{CallError, ConnectError, TransportError};
use crate::layout::{self, Answer, FlagWord, Kind, Turn};
use crate::memory::Small;
use crate::name;
use crate::pace::time_of;
use crate::peer_buffer::PeerBuffer;
use crate::process::{count, export_for};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::config::WaitPolicy;
use vmmc::counters::{Tally, index};
use vmmc::error::Closed;
use vmmc::error::{SendError, SendNotifyError, WaitError};
use vmmc::mem::View;
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};
use vmmc::sys::sched::current_cpu;
use vmmc::wait::{Spun, glance, spin_on};
use vmmc::word::{MappedU64, Word as _};
use vmmc::{Export, Import, ImportBuilder, Name, Node, PeerInfo, Rights, Token};

/// What a client wants to be bound to.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) service: String,
    /// The service's node, if it is another one.
    pub(crate) elsewhere: Option<String>,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) token: Option<Token>,
    pub(crate) settings: Settings,
}

impl Wanted {
    /// The service as its client names it, for messages.
    pub(super) fn named(&self) -> String {
        match &self.elsewhere {
            Some(node) => format!("{}{}{node}", self.service, name::AT),
            None => self.service.clone(),
        }
    }
}

/// What shows whether a reply is there.
#[derive(Debug)]
pub(super) struct Watch {
    /// The server's buffer.
    calls: PeerBuffer,
    /// Our buffer.
    replies: Export,
    /// Turn of the last message sent, and the group of its call ([`Mark`]). Written by whoever has the lane.
    sent: AtomicU64,
    /// Turn of the last message sent when the call was cancelled, by any thread; 0: it was not.
    cancelled: AtomicU32,
}

/// Units of the longest message that is stored in one go.
pub(super) const SHORT_UNITS: usize = 15;

/// Units of the longest message that lies in the flag's own line, which is fetched for it. For a longer one that
/// line waits for others, and the server, which polls it, takes it back meanwhile.
pub(super) const CLOSE_UNITS: usize = 7;

/// How often who waits for a service to appear looks whether its call was given up.
const LOOK: Duration = Duration::from_millis(20);

/// How much later than its time limit an import's answer may come. The daemons end it themselves at the limit, and with the
/// better reason, unless one of them stands still.
const GRACE: Duration = Duration::from_secs(1);
/// How long a lane is kept for the late reply to a call that was given up. Long enough for most handlers to end, so that
/// lanes are seldom bound anew.
const OVERDUE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    watch: Arc<Watch>,
    /// The reply to `turn` was not waited for.
    owed: bool,
    /// Since when the head says that a call was given up.
    given_up: Option<Instant>,
    /// What the head says of a deadline.
    deadline: u64,
    /// Replies that came at the first looks, and are counted with the next message.
    spin_hits: u64,
    /// Where the flags lie in the server's buffer and in ours.
    pub(super) ends: (usize, usize),
    /// Where a short call is put together.
    pub(super) short: Small<SHORT_UNITS>,
    /// Of the call in progress: offset in the message and bytes of each block.
    pub(super) blocks: Vec<(usize, usize)>,
}

impl Lane {
    /// Binds: knocks at the service's door and maps what the server makes for us. It takes so long at most, and no longer
    /// than any binding may; `None`: than that. Ends when `is_cancelled` by somebody who wakes the node's waiters.
    pub(crate) fn open(
        node: &Node,
        wanted: &Wanted,
        left: Option<Duration>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Lane, ConnectError> {
        let patience = wanted.settings.connect_timeout;
        let patience = left.map_or(patience, |left| left.min(patience));
        let start = Instant::now();
        let mut door = import(node, wanted, name::door(&wanted.service))
            .rights(Rights::WRITE)
            .timeout(patience);
        if let Some(token) = wanted.token {
            door = door.token(token);
        }
        let service = |source| ConnectError::Service { service: wanted.named(), source };
        let late = || {
            let service = wanted.named();
            ConnectError::TimedOut { service, after: patience }
        };
        let mut door = door.start().map_err(service)?;
        while !door.wait_for(Some(LOOK)).map_err(service)? {
            if is_cancelled() {
                return Err(ConnectError::Cancelled);
            }
            if start.elapsed() >= patience.saturating_add(GRACE) {
                return Err(late());
            }
        }
        let door = door.wait().map_err(service)?;
        let server = door.exporter();
        let (number, replies) = our_half(node, wanted, server)?;
        let transport = |error: SendNotifyError| ConnectError::Transport(error.into());
        door.send_notification(0, 0, u64::from(number)).map_err(transport)?;
        let answer = await_answer(node, wanted, &door, &replies, (start, patience), is_cancelled)?;
        let export = read32(replies.view(), layout::BIND_EXPORT);
        if answer != Answer::Bound {
            return Err(refused(wanted, answer, replies.view()));
        }
        let left = patience.saturating_sub(start.elapsed());
        let mut link = import(node, wanted, export)
            .process(server.pid)
            .rights(layout::rights(wanted.elsewhere.is_some()))
            .timeout(left)
            .start()
            .map_err(TransportError::from)?;
        if !link.wait_for(Some(left.saturating_add(GRACE))).map_err(TransportError::from)? {
            return Err(late());
        }
        let link = link.wait().map_err(TransportError::from)?;
        if !layout::is_buffer_len(link.len()) {
            let what = "its buffer is of no possible length";
            return Err(ConnectError::Protocol { service: wanted.named(), what });
        }
        let calls = PeerBuffer::new(link).map_err(TransportError::from)?;
        node.counters().add(count::BOUND, 1);
        let ends = (layout::flag_at(calls.len()), layout::flag_at(replies.view().len()));
        Ok(Lane {
            ends,
            watch: Arc::new(Watch {
                calls,
                replies,
                sent: AtomicU64::new(Mark::default().with(Turn::NONE)),
                cancelled: AtomicU32::new(0),
            }),
            owed: false,
            given_up: None,
            deadline: 0,
            spin_hits: 0,
            short: Small::new(),
            blocks: Vec::with_capacity(4),
        })
    }

    /// The server's buffer, or our image of it.
    #[inline]
    pub(crate) fn calls(&self) -> View<'_> {
        self.watch.calls.view()
    }

    /// Whether the server's buffer shows what the server writes there.
    #[inline]
    pub(crate) fn sees_inout(&self) -> bool {
        !self.watch.calls.is_elsewhere()
    }

    /// Our buffer.
    #[inline]
    pub(crate) fn replies(&self) -> View<'_> {
        self.watch.replies.view()
    }

    /// Longest call that fits.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        layout::room(self.watch.calls.len())
    }

    pub(crate) fn server(&self) -> PeerInfo {
        self.watch.calls.import().exporter()
    }

    /// Whether the server is still there.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Closed> {
        self.watch.calls.import().check_open()
    }

    /// A call within the flag's line follows at once: the line is fetched while it is put together.
    #[inline]
    pub(super) fn expect_send(&self) {
        if let Ok(flag) = self.calls().word64(self.ends.0) {
            flag.prefetch_for_write();
        }
    }

    /// Stores the flag behind a message of `len` bytes, and wakes the server if it sleeps. Returns where to
    /// count what else belongs to the message: counting is left to the time in which it travels.
    #[inline(always)]
    pub(crate) fn send<'n>(
        &mut self,
        binding: &'n Binding,
        kind: Kind,
        code: u16,
        len: usize,
    ) -> Result<Tally<'n>, SendError> {
        if self.given_up.is_some() {
            self.take_back()?;
        }
        let turn = self.watch.turn().next();
        let units = (len / layout::UNIT) as u32; // at most the room of a buffer
        let word = FlagWord { turn, kind, code, units }.pack();
        self.watch.calls.signal(len, word)?;
        self.watch.sent.store(binding.mark().with(turn), Ordering::Relaxed);
        self.owed = true;
        let tally = binding.node().counters().tally();
        tally.add(count::PACKETS, 1);
        tally.add(index::SPIN_HITS, std::mem::take(&mut self.spin_hits));
        Ok(tally)
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Waits for the reply to the last message.
    #[inline(always)]
    pub(crate) fn wait(&mut self, node: &Node, limit: Limit) -> Result<u64, CallError> {
        let watch = &*self.watch;
        match glance(node.wait_policy(), || watch.arrived()) {
            Some(word) => {
                self.owed = false;
                self.spin_hits += 1;
                Ok(word)
            }
            None => self.wait_longer(node, limit, self.turn()),
        }
    }

    /// Turn of the last message sent.
    pub(super) fn turn(&self) -> Turn {
        self.watch.turn()
    }

    /// Whether a call was cancelled that began with that message.
    pub(super) fn is_cancelled(&self, began: Turn) -> bool {
        self.watch.is_cancelled(began)
    }

    /// As [`Lane::wait`], unless the call is cancelled, which began with that message.
    #[cold]
    pub(super) fn wait_longer(
        &mut self,
        node: &Node,
        limit: Limit,
        began: Turn,
    ) -> Result<u64, CallError> {
        let timeout = limit.left();
        let watch = &*self.watch;
        let shares = |cpu| watch.calls.import().peer_was_on(cpu);
        let cancelled = || watch.is_cancelled(began).then_some(Err(None));
        let look = || watch.look().map(|found| found.map_err(Some)).or_else(cancelled);
        let found = match self.spin_through_data(node, timeout, shares, look) {
            Ok(found) => Ok(found),
            Err(left) => node.wait_until(left, shares, |_| look()),
        };
        match found {
            Ok(Ok(word)) => {
                self.owed = false;
                Ok(word)
            }
            Ok(Err(Some(closed))) => Err(CallError::ServerGone { closed }),
            Ok(Err(None)) => {
                self.give_up(node);
                Err(CallError::Cancelled { sent: true })
            }
            Err(WaitError::TimedOut { .. }) => {
                self.give_up(node);
                Err(limit.late())
            }
            Err(error) => Err(CallError::from_wait(error)),
        }
    }

    /// Waits for the late reply to a call that was given up, unless `is_cancelled`; false if it has not come within that `part` of the
    /// limit.
    #[cold]
    pub(super) fn wait_for_late(
        &mut self,
        node: &Node,
        (limit, part): (Limit, Limit),
        is_cancelled: impl Fn() -> bool,
    ) -> Result<bool, CallError> {
        let watch = &*self.watch;
        let shares = |cpu| watch.calls.import().peer_was_on(cpu);
        let look = || match watch.look() {
            Some(Ok(_)) => Some(Ok(())),
            Some(Err(closed)) => Some(Err(CallError::ServerGone { closed })),
            None => is_cancelled().then_some(Err(CallError::Cancelled { sent: true })),
        };
        // The message before is another call's: who waits here gives nothing up.
        match node.wait_until(part.left(), shares, |_| look()) {
            Ok(found) => found?,
            Err(WaitError::TimedOut { .. }) if !limit.is_over() => return Ok(false),
            Err(WaitError::TimedOut { .. }) => return Err(limit.late()),
            Err(error) => return Err(CallError::from_wait(error)),
        }
        self.owed = false;
        Ok(true)
    }

    /// The server cannot answer before it has gone through the call's blocks: where a waiter spins at all, that time is not taken from
    /// what it may spin. No reply yet: what is left of the time.
    fn spin_through_data<T>(
        &self,
        node: &Node,
        timeout: Option<Duration>,
        shares: impl Fn(u32) -> bool,
        look: impl FnMut() -> Option<T>,
    ) -> Result<T, Option<Duration>> {
        let bytes: usize = self.blocks.iter().map(|&(_, bytes)| bytes).sum();
        let budget = time_of(bytes);
        match node.wait_policy() {
            WaitPolicy::Hybrid { budget: own } if !own.is_zero() && !budget.is_zero() => {
                let deadline = vmmc::wait::deadline_after(timeout);
                let policy = WaitPolicy::Hybrid { budget };
                match spin_on(policy, deadline, || shares(current_cpu()), look) {
                    Spun::Found(found) => Ok(found),
                    Spun::Spent | Spun::Late => {
                        Err(deadline.map(|at| at.saturating_duration_since(Instant::now())))
                    }
                }
            }
            _ => Err(timeout),
        }
    }

    /// The reply to the last message was taken, or will never come.
    pub(super) fn settle(&mut self) {
        self.owed = false;
    }

    /// Whether a call may be made: no reply is outstanding.
    #[inline]
    pub(crate) fn is_settled(&mut self) -> bool {
        if self.owed && self.watch.arrived().is_some() {
            self.owed = false;
        }
        !self.owed
    }

    /// Tells the server that nobody waits for the last call any more.
    #[cold]
    pub(super) fn give_up(&mut self, node: &Node) {
        // Wakes who awaits it there. A server that has gone needs not be told.
        let _ = self.watch.calls.signal32(layout::CALL_CANCELLED, self.watch.turn().number());
        self.given_up = Some(Instant::now());
        node.counters().add(count::TIMEOUTS, 1);
    }

    /// How long the late reply is still waited for, if the last call was given up: some servers never answer one. Zero: it is
    /// overdue, and who needs a lane binds one in this one's stead.
    pub(super) fn overdue_in(&self) -> Option<Duration> {
        self.given_up.map(|since| OVERDUE.saturating_sub(since.elapsed()))
    }

    /// The call that was given up is over. Its turn comes again, after 2^20 - 1 messages, and means another call then.
    #[cold]
    fn take_back(&mut self) -> Result<(), SendError> {
        self.put32(layout::CALL_CANCELLED, Turn::NONE.number())?;
        self.given_up = None;
        Ok(())
    }

    /// Says in the head how long we wait for the next call. Another node has another clock: it is
    /// told how long, and not until when.
    #[inline(always)]
    pub(crate) fn set_limit(&mut self, limit: Limit) -> Result<(), SendError> {
        match (limit.deadline(), self.deadline) {
            (0, 0) => Ok(()),
            _ => self.change_limit(limit),
        }
    }

    #[cold]
    fn change_limit(&mut self, limit: Limit) -> Result<(), SendError> {
        let nanoseconds = match self.watch.calls.is_elsewhere() {
            true => super::limit::nanoseconds(limit.left()),
            false => limit.deadline(),
        };
        if self.deadline != nanoseconds {
            self.deadline = nanoseconds;
            self.put64(layout::CALL_DEADLINE, nanoseconds)?;
        }
        Ok(())
    }

    pub(crate) fn put32(&self, at: usize, value: u32) -> Result<(), SendError> {
        self.watch.calls.put32(at, value)
    }

    pub(crate) fn put64(&self, at: usize, value: u64) -> Result<(), SendError> {
        self.watch.calls.put64(at, value)
    }

    /// A word of our head.
    pub(crate) fn head64(&self, at: usize) -> u64 {
        self.watch.replies.view().word64(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl Watch {
    #[inline]
    fn turn(&self) -> Turn {
        Mark::split(self.sent.load(Ordering::Relaxed)).1
    }

    #[inline]
    fn flag(&self) -> MappedU64<'_> {
        let view = self.replies.view();
        match view.word64(layout::flag_at(view.len())) {
            Ok(word) => word,
            Err(error) => unreachable!("our own buffer: {error}"),
        }
    }

    /// The reply's flag, if it is there.
    #[inline]
    fn arrived(&self) -> Option<u64> {
        // PAIRS(message): with the release in Slot::send, by Flag::signal.
        let word = self.flag().load(Ordering::Acquire);
        (FlagWord::turn_of(word) == self.turn()).then_some(word)
    }

    /// Cancels the call whose message was the last one, if it is of that group; `None`: of any.
    pub(super) fn cancel(&self, whose: Option<Mark>) {
        let (mark, turn) = Mark::split(self.sent.load(Ordering::Relaxed));
        if whose.is_none_or(|whose| whose == mark) {
            self.cancelled.store(turn.number(), Ordering::Release);
        }
    }

    /// Whether it was cancelled at the message `began`, or at a later one.
    fn is_cancelled(&self, began: Turn) -> bool {
        let at = self.cancelled.load(Ordering::Acquire);
        let since = |turn: u32| Turn::from_number(turn.wrapping_sub(began.number())).number();
        if at == 0 || since(at) <= since(self.turn().number()) {
            return at != 0;
        }
        // Of a call that is over: its turn comes again, after 2^20 - 1 messages, and means another call then.
        let _ = self.cancelled.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// The reply's flag, or the end of the server.
    #[inline]
    pub(super) fn look(&self) -> Option<Result<u64, Closed>> {
        if let Some(word) = self.arrived() {
            return Some(Ok(word));
        }
        let closed = self.calls.import().check_open().err()?;
        // A server that replies and then dies has replied.
        Some(self.arrived().ok_or(closed))
    }
}

fn read32(view: View<'_>, at: usize) -> u32 {
    view.word32(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// An import from the server's node.
fn import(node: &Node, wanted: &Wanted, name: impl Into<Name>) -> ImportBuilder {
    let import = node.import(name);
    match &wanted.elsewhere {
        Some(elsewhere) => import.node(elsewhere),
        None => import,
    }
}

/// Exports our buffer, with what we want in its head.
fn our_half(
    node: &Node,
    wanted: &Wanted,
    server: PeerInfo,
) -> Result<(u32, Export), TransportError> {
    let len = wanted.settings.buffer_len;
    export_for(
        node,
        len,
        (server, wanted.elsewhere.is_some()),
        |region| {
            region.write(layout::BIND_MAGIC, &layout::MAGIC.to_ne_bytes())?;
            region.write(layout::BIND_VERSION, &layout::VERSION.to_ne_bytes())?;
            region.write(layout::BIND_PROGRAM, &wanted.program.to_ne_bytes())?;
            region.write(layout::BIND_PROGRAM_VERSION, &wanted.version.to_ne_bytes())?;
            region.write(layout::BIND_LEN, &(len as u32).to_ne_bytes()) // at most BUFFER_MAX
        },
        |builder| builder,
    )
}

/// The server's answer, until so long after we began.
fn await_answer(
    node: &Node,
    wanted: &Wanted,
    door: &Import,
    replies: &Export,
    (start, patience): (Instant, Duration),
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Answer, ConnectError> {
    let word = replies.view().word32(layout::BIND_ANSWER).map_err(TransportError::from)?;
    let look = || (word.load(Ordering::Acquire) != 0).then(|| word.load(Ordering::Acquire));
    let shares = |cpu| door.peer_was_on(cpu);
    let left = patience.saturating_sub(start.elapsed());
    let found = node.wait_until(Some(left), shares, |_| match (look(), door.check_open()) {
        (Some(word), _) => Some(Ok(word)),
        (None, Err(closed)) => Some(look().ok_or(Some(closed))),
        (None, Ok(())) => is_cancelled().then_some(Err(None)),
    });
    let service = wanted.named();
    match found {
        Ok(Ok(word)) => Answer::from_word(word)
            .ok_or(ConnectError::Protocol { service, what: "its answer makes no sense" }),
        Ok(Err(Some(_))) => Err(ConnectError::Ending { service }),
        Ok(Err(None)) => Err(ConnectError::Cancelled),
        Err(WaitError::TimedOut { .. }) => Err(ConnectError::TimedOut { service, after: patience }),
        Err(error) => Err(TransportError::from(error).into()),
    }
}

#[cold]
fn refused(wanted: &Wanted, answer: Answer, replies: View<'_>) -> ConnectError {
    let service = wanted.named();
    let lowest = read32(replies, layout::BIND_LOWEST);
    let highest = read32(replies, layout::BIND_HIGHEST);
    match answer {
        Answer::NoProgram => ConnectError::UnknownProgram { service, program: wanted.program },
        Answer::NoVersion => ConnectError::VersionMismatch {
            service,
            program: wanted.program,
            version: wanted.version,
            lowest,
            highest,
        },
        Answer::OtherLayout => {
            ConnectError::LayoutMismatch { ours: layout::VERSION, theirs: highest }
        }
        Answer::TooMany => ConnectError::TooManyBindings { service, max: highest },
        Answer::TooManyOfProcess => ConnectError::TooManyOfProcess { service, max: highest },
        Answer::TooManyWaiting => ConnectError::TooManyWaiting { service, max: highest },
        Answer::NoRoom => ConnectError::NoRoom { service },
        Answer::Ending => ConnectError::Ending { service },
        Answer::Failed | Answer::Bound => ConnectError::Failed { service },
    }
}
