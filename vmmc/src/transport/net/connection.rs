//! A process's data connection to another node's interface.
//!
//! Any thread sends, one at a time. What comes back (answers, ends of links) is read by whoever waits
//! for an answer while it spins, and by a thread of the connection's own otherwise, which a spinning
//! reader keeps asleep meanwhile, so that an answer wakes nobody who is not needed.

mod answers;
mod cut;
mod direct;

use super::frame::{CAPABILITY_LEN, Header, Kind};
use super::silence;
use super::wire::Wire;
use crate::control::message::CloseReason;
use crate::control::network::{Capability, Mask};
use crate::error::{SystemError, system};
use crate::fabric::Target;
use crate::process::KeptMeter;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering};
use crate::sys::thread::spawn_quiet;
use crate::transport::shm::outgoing::{decode, encode};
use crate::wait::{Poller, give_way};
use answers::Quiet;
use cut::LastCut;
pub use cut::{Back, Cut, OnCut};
use direct::Sent;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Why nothing was sent, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    Lost,
    /// The link has ended before.
    Ended(CloseReason),
}

impl From<Lost> for Unsent {
    fn from(Lost: Lost) -> Unsent {
        Unsent::Lost
    }
}

/// Why no slot was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unattached {
    /// The interface's words.
    Refused(String),
    /// The connection is lost.
    Lost,
    /// The interface has not answered in time.
    Late,
}

/// Called with the slot and the reason when a link has ended.
pub type OnClosed = Box<dyn Fn(u32, CloseReason) + Send + Sync>;

/// One import's place on the connection.
#[derive(Debug)]
pub struct Slot {
    pub(super) number: u32,
    pub(super) generation: u32,
    /// 0, or why the link has ended: `1 + CloseReason as u32`.
    ended: AtomicU32,
    /// Of the grant.
    mask: Mask,
    /// Where the exporter's pages may be written to by the fabric itself. Taken away with the connection's writer locked.
    window: Mutex<Option<Target>>,
    /// What the interface waits to hear of the link: bits of [`answers::bit`].
    owed: AtomicU32,
}

impl Slot {
    fn new(number: u32, mask: Mask) -> Slot {
        let (ended, window, owed) = (AtomicU32::new(0), Mutex::default(), AtomicU32::new(0));
        Slot { number, generation: number, ended, mask, window, owed }
    }

    /// Its number on the connection.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Why the link has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        decode(self.ended.load(Ordering::Acquire))
    }

    /// Ends it; the first reason stays.
    pub(super) fn end(&self, reason: CloseReason) {
        let reason = encode(reason);
        let _ = self.ended.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Answer {
    Waiting,
    Done,
    Data(Vec<u8>),
    Failed,
    /// Of an attachment.
    Attached,
    Refused(String),
    /// The same, for which nobody waits any more.
    GivenUp(Arc<Slot>),
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<u32, Arc<Slot>>,
    next_slot: u32,
    /// By tag; attachments by slot number above all tags.
    answers: HashMap<u64, Answer>,
    next_tag: u64,
    lost: bool,
    /// Links that the exporter withdrew, or whose windows, to be answered so; a thread does it while there are some.
    stopped: Vec<(Arc<Slot>, Kind)>,
    answering: bool,
}

/// Attachments are answered by slot; their numbers do not meet those of tags.
const ATTACHMENTS: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are filled.
    filled: usize,
}

/// See the module.
pub struct Connection {
    node: String,
    number: u64,
    wire: Wire,
    writer: Mutex<Sent>,
    /// Tag of the answer that came last: what was sent before it was asked for has been done.
    answered: AtomicU64,
    inbox: Mutex<Inbox>,
    state: Mutex<State>,
    changed: Condvar,
    /// Readers that spin.
    spinning: Mutex<u32>,
    /// How long they do.
    budget: Duration,
    poller: Mutex<Poller>,
    on_closed: OnClosed,
    /// `None`: a cut is its end.
    on_cut: Option<OnCut>,
    /// How often it has gone on after a cut.
    life: AtomicU64,
    /// Of the last cut.
    cut: Mutex<Option<LastCut>>,
    /// This end has ended it.
    is_closed: AtomicBool,
    /// Of the process.
    meter: Option<KeptMeter>,
    /// For the thread that answers.
    this: Weak<Connection>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Connection {
    /// Takes what is connected to an interface that knows who we are.
    ///
    /// # Errors
    /// No descriptor or thread to be had.
    pub fn new(
        node: String,
        wire: Wire,
        number: u64,
        budget: Duration,
        on_closed: OnClosed,
    ) -> Result<Arc<Connection>, SystemError> {
        Connection::counted(node, wire, number, budget, (on_closed, None, None))
    }

    /// The same, of a process that counts.
    pub(crate) fn counted(
        node: String,
        wire: Wire,
        number: u64,
        budget: Duration,
        (on_closed, on_cut, meter): (OnClosed, Option<OnCut>, Option<KeptMeter>),
    ) -> Result<Arc<Connection>, SystemError> {
        let connection = Arc::new_cyclic(|this| Connection {
            node,
            number,
            wire,
            writer: Mutex::default(),
            answered: AtomicU64::new(0),
            inbox: Mutex::new(Inbox { bytes: vec![0; 4096], filled: 0 }),
            state: Mutex::default(),
            changed: Condvar::new(),
            spinning: Mutex::default(),
            budget,
            poller: Mutex::default(),
            on_closed,
            on_cut,
            life: AtomicU64::new(0),
            cut: Mutex::default(),
            is_closed: AtomicBool::new(false),
            meter,
            this: this.clone(),
        });
        let reader = connection.clone();
        spawn_quiet("vmmc-net", move || while reader.read_in_turn() {})
            .map_err(system("thread of a data connection"))?;
        Ok(connection)
    }

    /// The node at the other end.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Its number, as given to [`Connection::new`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether its frames go over a fabric.
    #[must_use]
    pub fn is_over_fabric(&self) -> bool {
        self.wire.is_fabric()
    }

    /// Whether it is of no more use.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Ends it: all its links end, its thread too.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.wire.close();
    }

    // ---- sending ----

    /// Sends one frame. Blocks while the interface takes nothing more (H16).
    fn send(&self, header: &Header, body: &[u8]) -> Result<(), Lost> {
        self.send_frame(&mut self.writer.lock(), header, body)
    }

    /// Sends one frame of a link, unless that has ended.
    pub(super) fn send_for(&self, slot: &Slot, header: &Header, body: &[u8]) -> Result<(), Unsent> {
        self.send_all(slot, std::iter::once((*header, body)))
    }

    /// Sends several, with nothing between them: all of a message, or, of a link that has ended, nothing. So none follows
    /// the answer to an unexport.
    pub(super) fn send_all<'b>(
        &self,
        slot: &Slot,
        frames: impl Iterator<Item = (Header, &'b [u8])>,
    ) -> Result<(), Unsent> {
        let mut turn = self.writer.lock();
        if let Some(reason) = slot.ended() {
            return Err(Unsent::Ended(reason));
        }
        for (header, body) in frames {
            self.send_frame(&mut turn, &header, body)?;
        }
        Ok(())
    }

    /// The same of frames that lie one behind the other, with these headers.
    pub(super) fn send_packed(
        &self,
        slot: &Slot,
        headers: &[Header],
        frames: &[u8],
    ) -> Result<(), Unsent> {
        let mut turn = self.writer.lock();
        if let Some(reason) = slot.ended() {
            return Err(Unsent::Ended(reason));
        }
        headers.iter().for_each(|header| turn.note(header));
        Ok(self.send_bytes(&[], frames)?)
    }

    /// With the writer lock held.
    fn send_frame(&self, turn: &mut Sent, header: &Header, body: &[u8]) -> Result<(), Lost> {
        debug_assert_eq!(header.body_len(), body.len() as u64);
        turn.note(header);
        self.send_bytes(&header.encode(), body)
    }

    /// All of two pieces, with the writer lock held.
    fn send_bytes(&self, head: &[u8], body: &[u8]) -> Result<(), Lost> {
        let mut sent = 0;
        while sent < head.len() + body.len() {
            let life = self.life.load(Ordering::Acquire);
            let front = head.get(sent..).unwrap_or_default();
            let back = body.get(sent.saturating_sub(head.len())..).unwrap_or_default();
            match self.wire.send(front, back) {
                Ok(len) => sent += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Waits in slices, to notice a node that has gone without a word.
                    if !self.wire.wait_for_room(Duration::from_secs(1)) {
                        self.check_alive();
                    }
                    if self.is_lost() {
                        return Err(Lost);
                    }
                }
                // What was sent of the frame is sent, and the rest follows.
                Err(errno) if self.goes_on_after(errno, life) => {}
                Err(_) => {
                    // The reader finds it out and ends the links; half a frame must be the last.
                    self.close();
                    return Err(Lost);
                }
            }
        }
        Ok(())
    }

    /// Whether a frame could be sent without waiting.
    pub(super) fn has_room(&self) -> bool {
        !self.is_cut() && self.wire.wait_for_room(Duration::ZERO)
    }

    /// Gives the connection up when the other node has acknowledged nothing for [`silence::LIMIT`], not
    /// even that it has no room.
    fn check_alive(&self) {
        if self.wire.silence() > silence::LIMIT {
            self.wire.look_now();
        }
    }

    // ---- slots ----

    /// Opens a slot, by a time if there is one: what this process sent before may be held back.
    ///
    /// # Errors
    /// Why it was not opened.
    pub fn attach(
        &self,
        capability: Capability,
        mask: Mask,
        deadline: Option<Instant>,
    ) -> Result<Arc<Slot>, Unattached> {
        let slot = {
            let mut state = self.state.lock();
            if state.lost {
                return Err(Unattached::Lost);
            }
            state.next_slot = state.next_slot.wrapping_add(1);
            let number = state.next_slot;
            let slot = Arc::new(Slot::new(number, mask));
            state.slots.insert(number, slot.clone());
            state.answers.insert(ATTACHMENTS | u64::from(number), Answer::Waiting);
            slot
        };
        let mut header = Header::new(Kind::Attach, slot.number, slot.generation);
        header.len = CAPABILITY_LEN;
        let sent = self.send(&header, &capability.0);
        let tag = ATTACHMENTS | u64::from(slot.number);
        let answer = self.wait_by(tag, deadline);
        let mut state = self.state.lock();
        // It may have come just now.
        let answer = answer.and_then(|late| match late {
            None => Connection::take(&mut state, tag).transpose(),
            answer => Ok(answer),
        });
        if let (Ok(()), Ok(Some(Answer::Attached))) = (sent, &answer) {
            return Ok(slot);
        }
        state.slots.remove(&slot.number);
        match answer {
            Ok(Some(Answer::Refused(why))) => Err(Unattached::Refused(why)),
            Ok(None) => {
                state.answers.insert(tag, Answer::GivenUp(slot));
                Err(Unattached::Late)
            }
            _ => Err(Unattached::Lost),
        }
    }

    /// Closes a slot: nothing more is sent for it. Who drops an import waits neither for another connection, nor for room,
    /// nor for another sender that does.
    pub(super) fn detach(&self, slot: &Slot) {
        let Some(slot) = self.state.lock().slots.remove(&slot.number) else { return };
        // Who writes while there is room is soon done with it.
        let turn = self.has_room().then(|| self.writer.lock());
        match turn.filter(|_| self.has_room()) {
            Some(mut turn) => {
                let detach = Header::new(Kind::Detach, slot.number, slot.generation);
                let _ = self.send_frame(&mut turn, &detach, &[]);
            }
            None => self.say_later(slot, Kind::Detach),
        }
    }

    // ---- asking ----

    fn tag(&self) -> Result<u64, Lost> {
        let mut state = self.state.lock();
        if state.lost {
            return Err(Lost);
        }
        state.next_tag += 1;
        let tag = state.next_tag;
        state.answers.insert(tag, Answer::Waiting);
        Ok(tag)
    }

    /// Sends what asks for an answer under the tag that it is given, and waits until the interface has
    /// done that and all before, or the link has ended.
    pub(super) fn fence_with<E: From<Lost>>(
        &self,
        slot: &Arc<Slot>,
        send: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let tag = self.tag()?;
        if let Err(error) = send(tag) {
            self.state.lock().answers.remove(&tag); // nothing was asked, or nobody will answer
            return Err(error);
        }
        match self.wait(tag, slot)? {
            Some(Answer::Done) | None => Ok(()),
            Some(_) => Err(Lost.into()),
        }
    }

    /// Waits until the interface has done all that was sent before, or the link has ended.
    pub(super) fn fence(&self, slot: &Arc<Slot>) -> Result<(), Lost> {
        self.fence_with(slot, |tag| self.send(&Header::new(Kind::Fence, 0, 0).value(tag), &[]))
    }

    /// Reads bytes of an export. `None`: the link has ended.
    pub(super) fn read(&self, slot: &Arc<Slot>, header: Header) -> Result<Option<Vec<u8>>, Lost> {
        let tag = self.tag()?;
        let sent = self.send(&header.value(tag), &[]);
        let answer = self.wait(tag, slot)?;
        sent?;
        match answer {
            Some(Answer::Data(bytes)) if bytes.len() as u64 == header.len => Ok(Some(bytes)),
            Some(Answer::Failed) | None => Ok(None),
            Some(_) => Err(Lost),
        }
    }

    fn take(state: &mut State, tag: u64) -> Option<Result<Answer, Lost>> {
        match state.answers.get(&tag) {
            Some(Answer::Waiting) if !state.lost => None,
            Some(Answer::Waiting) | None => {
                state.answers.remove(&tag);
                Some(Err(Lost))
            }
            Some(_) => state.answers.remove(&tag).map(Ok),
        }
    }

    /// Waits for an answer that concerns a link. `None`: that has ended, and nobody need answer any more.
    fn wait(&self, tag: u64, slot: &Arc<Slot>) -> Result<Option<Answer>, Lost> {
        self.wait_unless(tag, None, |state| {
            let over = slot.ended().is_some();
            if over {
                state.answers.insert(tag, Answer::GivenUp(slot.clone()));
            }
            over
        })
    }

    /// Waits for an answer. `None`: there is none by then.
    fn wait_by(&self, tag: u64, deadline: Option<Instant>) -> Result<Option<Answer>, Lost> {
        self.wait_unless(tag, deadline, |_| false)
    }

    /// Waits for an answer: polls, reading, for the budget, if that pays; then sleeps, and the thread reads. `None`: there is none by then, or
    /// before something is `over`.
    fn wait_unless(
        &self,
        tag: u64,
        deadline: Option<Instant>,
        over: impl Fn(&mut State) -> bool,
    ) -> Result<Option<Answer>, Lost> {
        let start = Instant::now();
        let polls = !self.budget.is_zero() && self.poller.lock().pays(start);
        if polls {
            let quiet = Quiet::new(self);
            let end = start + self.budget;
            loop {
                if let Some(mut inbox) = self.inbox.try_lock() {
                    self.receive(&mut inbox);
                }
                if let Some(answer) = Connection::take(&mut self.state.lock(), tag) {
                    self.poller.lock().met();
                    return answer.map(Some);
                }
                if Instant::now() >= end {
                    self.poller.lock().missed();
                    break;
                }
                // The interface may be on this processor.
                if !give_way() {
                    self.poller.lock().interrupted();
                    break;
                }
            }
            drop(quiet);
        }
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = Connection::take(&mut state, tag) {
                drop(state);
                if !polls {
                    self.poller.lock().slept(start.elapsed(), self.budget);
                }
                return answer.map(Some);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) || over(&mut state) {
                return Ok(None);
            }
            let slice = now + Duration::from_secs(1);
            let wake = deadline.map_or(slice, |deadline| deadline.min(slice));
            state = self.changed.wait(state, Some(wake));
            if Instant::now() >= slice {
                drop(state);
                self.check_alive();
                state = self.state.lock();
            }
        }
    }

    /// Sleeps until something has come or `pause` is over, whichever is first. For a poll of a word of
    /// the other node.
    pub(super) fn doze(&self, pause: Duration) {
        self.doze_unless(pause, || false);
    }

    /// The same, unless something is so that is told of.
    fn doze_unless(&self, pause: Duration, over: impl FnOnce() -> bool) {
        let state = self.state.lock();
        if !state.lost && !over() {
            drop(self.changed.wait(state, Some(Instant::now() + pause)));
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests;
