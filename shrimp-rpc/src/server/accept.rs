//! Binding clients, and forgetting those that have gone. Runs in a thread of its own, because it asks the
//! daemon and waits for it.
//!
//! A client knocks with a notification at the service's door: its last word is the number of the
//! buffer that the client has exported for us. The door's own bytes mean nothing, since every client can write
//! them. What the client wants is in the head of its buffer, and so is our answer.
//!
//! Which process of which node knocks is the word of the daemons. Its buffer is imported from that very process,
//! so nobody knocks for another.

use super::budget::{Account, Charge};
use super::leaving::{Calls, FEW};
use super::slot::Slot;
use super::{Program, Shared};
use crate::error::TransportError;
use crate::layout::{self, Answer};
use crate::peer_buffer::PeerBuffer;
use crate::process::{count, export_for};
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use vmmc::PeerInfo;

/// A client at the door.
#[derive(Clone, Debug)]
pub(super) struct Knock {
    /// Its node, if it is another one.
    pub(super) node: Option<Arc<str>>,
    pub(super) peer: PeerInfo,
    /// Number of the client's buffer.
    pub(super) number: u32,
}

/// A client's buffer: node, process and number.
pub(super) type Key = (Option<Arc<str>>, u64, u32);

/// A client process: its node and its number there.
pub(super) type Process = (Option<Arc<str>>, u32);

impl Knock {
    pub(super) fn key(&self) -> Key {
        (self.node.clone(), self.peer.client.0, self.number)
    }

    pub(super) fn process(&self) -> Process {
        (self.node.clone(), self.peer.pid)
    }

    /// Whether the process that knocks is that binding's. It may have connected to its daemon more than once.
    pub(super) fn is_of(&self, slot: &Slot) -> bool {
        (slot.elsewhere(), slot.peer.pid) == (self.node.as_deref(), self.peer.pid)
    }
}

/// Answers a knock. An error is the client's loss: it waits for an answer and gets none, because there
/// is nowhere to put it.
pub(super) fn admit(shared: &Arc<Shared>, knock: &Knock) -> Result<(), TransportError> {
    let Some(replies) = replies_of(shared, knock)? else { return Ok(()) };
    match consider(shared, knock, &replies)? {
        Ok((program, len)) => open(shared, knock, replies, program, len),
        Err(answer) => reply(&replies, answer, 0),
    }
}

/// Answers a knock that came while as many of its process waited as may.
pub(super) fn turn_away(shared: &Arc<Shared>, knock: &Knock) -> Result<(), TransportError> {
    let Some(replies) = replies_of(shared, knock)? else { return Ok(()) };
    if shared.slots().contains_key(&knock.key()) {
        return Ok(()); // the buffer of a binding: no place for answers
    }
    replies.put32(layout::BIND_HIGHEST, limit(shared.settings.bindings_each))?;
    reply(&replies, Answer::TooManyWaiting, 0)
}

fn limit(max: usize) -> u32 {
    u32::try_from(max).unwrap_or(u32::MAX)
}

/// The buffer of who knocks; `None`: it is not theirs, or none.
fn replies_of(shared: &Arc<Shared>, knock: &Knock) -> Result<Option<PeerBuffer>, TransportError> {
    let weak = Arc::downgrade(shared);
    let key = knock.key();
    let mut link = shared
        .node
        .import(knock.number)
        .process(knock.peer.pid)
        .rights(layout::rights(knock.node.is_some()))
        .timeout(Duration::ZERO)
        .handler(move |_| {
            if let Some(shared) = weak.upgrade() {
                shared.tasks.push_end(key.clone());
            }
        });
    if let Some(node) = &knock.node {
        link = link.node(&**node);
    }
    let link = link.open()?;
    // The same number of another process, should process ids be used again; or a length of the client's choice, by which we
    // are about to allocate if it is of another node.
    if link.exporter() != knock.peer || !layout::is_buffer_len(link.len()) {
        return Ok(None);
    }
    Ok(Some(PeerBuffer::new(link)?))
}

fn number<const N: usize>(head: &[u8; layout::HEAD_LEN], at: usize) -> [u8; N] {
    head.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N]) // all lie within
}

/// Place of the program and length of our buffer, or why not.
type Decision = Result<(usize, usize), Answer>;

/// Reads the head, once, and decides.
fn consider(
    shared: &Shared,
    knock: &Knock,
    replies: &PeerBuffer,
) -> Result<Decision, TransportError> {
    let head = replies.head()?;
    let word = |at| u32::from_ne_bytes(number(&head, at));
    let magic = u64::from_ne_bytes(number(&head, layout::BIND_MAGIC));
    let theirs = word(layout::BIND_VERSION);
    if magic != layout::MAGIC || theirs != layout::VERSION {
        replies.put32(layout::BIND_LOWEST, layout::VERSION)?;
        replies.put32(layout::BIND_HIGHEST, layout::VERSION)?;
        return Ok(Err(Answer::OtherLayout));
    }
    if shared.is_stopping() {
        return Ok(Err(Answer::Ending));
    }
    if shared.slots().contains_key(&knock.key()) {
        return Ok(Err(Answer::Failed));
    }
    let number = word(layout::BIND_PROGRAM);
    let version = word(layout::BIND_PROGRAM_VERSION);
    let of_number = || shared.programs.iter().filter(|it| it.number == number);
    let wanted = |it: &Program| it.number == number && it.version == version;
    match shared.programs.iter().position(wanted) {
        Some(program) => {
            let len = word(layout::BIND_LEN) as usize;
            Ok(Ok((program, layout::buffer_len(len.min(shared.settings.buffer_len)))))
        }
        None => {
            let Some(lowest) = of_number().map(|it| it.version).min() else {
                return Ok(Err(Answer::NoProgram));
            };
            let highest = of_number().map(|it| it.version).max().unwrap_or(lowest);
            replies.put32(layout::BIND_LOWEST, lowest)?;
            replies.put32(layout::BIND_HIGHEST, highest)?;
            Ok(Err(Answer::NoVersion))
        }
    }
}

/// Why no further binding is made, and how many are allowed.
fn too_many(shared: &Shared, knock: &Knock) -> Option<(Answer, usize)> {
    let (kept, kept_of_process) = shared.left.kept(knock);
    let (gone, gone_of_process) = shared.tasks.gone(&knock.process());
    let (slots, settings) = (shared.slots(), &shared.settings);
    if slots.len() + kept >= settings.bindings_max || gone >= settings.bindings_max.max(FEW) {
        return Some((Answer::TooMany, settings.bindings_max));
    }
    let of_process = slots.values().filter(|slot| knock.is_of(slot)).count() + kept_of_process;
    let full =
        of_process >= settings.bindings_each || gone_of_process >= settings.bindings_each.max(FEW);
    full.then_some((Answer::TooManyOfProcess, settings.bindings_each))
}

/// What a binding is made of, but for the client's buffer.
struct Parts {
    account: Arc<Account>,
    /// Of a client on another node we keep its buffer's image.
    image: Option<Charge>,
    calls: Calls,
    /// Number of the buffer for its calls.
    number: u32,
}

/// Why no binding is made.
struct Refusal {
    answer: Answer,
    /// How many are allowed, where that is why.
    max: Option<usize>,
    error: Option<TransportError>,
}

impl From<Answer> for Refusal {
    fn from(answer: Answer) -> Refusal {
        Refusal { answer, max: None, error: None }
    }
}

/// Makes what is ours of a binding. Asks nobody but the daemon.
fn prepare(shared: &Shared, knock: &Knock, theirs: usize, ours: usize) -> Result<Parts, Refusal> {
    if let Some((answer, max)) = too_many(shared, knock) {
        return Err(Refusal { max: Some(max), ..answer.into() });
    }
    let account = shared.budget.account(knock.process());
    let image = knock.node.as_ref().map(|_| account.take(theirs));
    let image = image.transpose().map_err(|_| Answer::NoRoom)?;
    let who = (knock.peer, knock.node.is_some());
    let (number, calls) = export_for(&shared.node, ours, who, |_| Ok(()), |builder| builder)
        .map_err(|error| Refusal { error: Some(error), ..Answer::Failed.into() })?;
    let calls = Calls::new(calls, knock.process(), shared.tasks.clone());
    Ok(Parts { account, image, calls, number })
}

fn open(
    shared: &Arc<Shared>,
    knock: &Knock,
    replies: PeerBuffer,
    program: usize,
    len: usize,
) -> Result<(), TransportError> {
    // Clients of several nodes are admitted at a time. To answer one may take long, and waits for this to be over.
    let admission = shared.admission.lock().unwrap_or_else(PoisonError::into_inner);
    let Parts { account, image, calls, number } = match prepare(shared, knock, replies.len(), len) {
        Ok(parts) => parts,
        Err(Refusal { answer, max, error }) => {
            drop(admission);
            if let Some(max) = max {
                replies.put32(layout::BIND_HIGHEST, limit(max))?;
            }
            reply(&replies, answer, 0)?;
            return error.map_or(Ok(()), Err);
        }
    };
    let call_max = shared.settings.call_max;
    let buffers = (calls, replies, image);
    let of_server = (&shared.node, &shared.reactor);
    let slot = Slot::new(of_server, buffers, knock.peer, program, account, call_max);
    let slot = Arc::new(slot);
    let refused = insert(shared, knock, &slot);
    drop(admission);
    if let Some(answer) = refused {
        return slot.answer(answer, 0);
    }
    shared.node.counters().add(count::ACCEPTED, 1);
    slot.answer(Answer::Bound, number)
}

/// Makes a binding one of the server's, unless that is ending and drops all it has, or has one of the same buffer by now: why not.
fn insert(shared: &Shared, knock: &Knock, slot: &Arc<Slot>) -> Option<Answer> {
    let mut slots = shared.slots();
    if shared.is_stopping() {
        return Some(Answer::Ending);
    }
    match slots.entry(knock.key()) {
        Entry::Occupied(_) => return Some(Answer::Failed),
        Entry::Vacant(place) => place.insert(slot.clone()),
    };
    // Under the lock: whoever finds it there, to end it, finds it here, too.
    shared.add_fresh(slot.clone());
    drop(slots);
    // Its end may have come before there was anything to forget.
    if slot.reply_buffer().import().check_open().is_err() {
        shared.tasks.push_end(knock.key());
    }
    None
}

fn reply(replies: &PeerBuffer, answer: Answer, export: u32) -> Result<(), TransportError> {
    replies.put32(layout::BIND_EXPORT, export)?;
    Ok(replies.signal32(layout::BIND_ANSWER, answer as u32)?)
}

impl Slot {
    /// Tells the client that it is bound.
    fn answer(&self, answer: Answer, export: u32) -> Result<(), TransportError> {
        reply(self.reply_buffer(), answer, export)
    }
}

/// Ends the binding of a client that has gone.
pub(super) fn forget(shared: &Shared, key: &Key) {
    let slot = shared.slots().remove(key);
    if let Some(slot) = slot {
        shared.left.add(&slot);
        slot.end();
        shared.forget_fresh(&slot);
        shared.note_change();
        // The poller drops its own; a deferred call may hold another for long.
    }
}
