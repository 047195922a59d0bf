//! Binding clients, and forgetting those that have gone. Runs in a thread of its own, because it asks the
//! daemon and waits for it.
//!
//! A client knocks with a notification at the service's door: its last word is the number of the
//! buffer that the client has exported for us. The door's own bytes mean nothing, since every client can write
//! them. What the client wants is in the head of its buffer, and so is our answer.

use super::slot::Slot;
use super::{Program, Shared};
use crate::error::TransportError;
use crate::layout::{self, Answer};
use crate::process::{count, export_for};
use std::sync::Arc;
use std::time::Duration;
use vmmc::mem::View;
use vmmc::sync::Ordering;
use vmmc::word::Word as _;
use vmmc::{Binding as Bound, PeerInfo};

/// A client at the door.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knock {
    pub(super) peer: PeerInfo,
    /// Number of the client's buffer.
    pub(super) number: u32,
}

/// A client's buffer: process and number.
pub(super) type Key = (u64, u32);

impl Knock {
    pub(super) fn key(&self) -> Key {
        (self.peer.client.0, self.number)
    }
}

/// Answers a knock. An error is the client's loss: it waits for an answer and gets none, because there
/// is nowhere to put it.
pub(super) fn admit(shared: &Arc<Shared>, knock: Knock) -> Result<(), TransportError> {
    let weak = Arc::downgrade(shared);
    let key = knock.key();
    let link = shared
        .node
        .import(knock.number)
        .process(knock.peer.pid)
        .rights(layout::RIGHTS)
        .timeout(Duration::ZERO)
        .handler(move |_| {
            if let Some(shared) = weak.upgrade() {
                shared.tasks.push_end(key);
            }
        })
        .open()?;
    // The same number of another process, should process ids be used again.
    if link.exporter() != knock.peer || link.len() < layout::BUFFER_MIN {
        return Ok(());
    }
    let replies = link.bind(0..link.len())?;
    drop(link);
    match consider(shared, knock, replies.view()) {
        Ok((program, len)) => open(shared, knock, replies, program, len),
        Err(answer) => reply(&replies, answer, 0),
    }
}

fn read32(view: View<'_>, at: usize) -> u32 {
    view.word32(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

fn write32(view: View<'_>, at: usize, value: u32) {
    if let Ok(word) = view.word32(at) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Reads the head, once each, and decides: place of the program, and length of our buffer.
fn consider(shared: &Shared, knock: Knock, head: View<'_>) -> Result<(usize, usize), Answer> {
    let magic = head.word64(layout::BIND_MAGIC).map_or(0, |word| word.load(Ordering::Relaxed));
    let theirs = read32(head, layout::BIND_VERSION);
    if magic != layout::MAGIC || theirs != layout::VERSION {
        write32(head, layout::BIND_LOWEST, layout::VERSION);
        write32(head, layout::BIND_HIGHEST, layout::VERSION);
        return Err(Answer::OtherLayout);
    }
    if shared.is_stopping() {
        return Err(Answer::Ending);
    }
    let slots = shared.slots();
    if slots.len() >= shared.settings.bindings_max || slots.contains_key(&knock.key()) {
        return Err(Answer::TooMany);
    }
    drop(slots);
    let number = read32(head, layout::BIND_PROGRAM);
    let version = read32(head, layout::BIND_PROGRAM_VERSION);
    let of_number = || shared.programs.iter().filter(|it| it.number == number);
    let wanted = |it: &Program| it.number == number && it.version == version;
    match shared.programs.iter().position(wanted) {
        Some(program) => {
            let len = read32(head, layout::BIND_LEN) as usize;
            Ok((program, layout::buffer_len(len.min(shared.settings.buffer_len))))
        }
        None => {
            let lowest = of_number().map(|it| it.version).min().ok_or(Answer::NoProgram)?;
            let highest = of_number().map(|it| it.version).max().unwrap_or(lowest);
            write32(head, layout::BIND_LOWEST, lowest);
            write32(head, layout::BIND_HIGHEST, highest);
            Err(Answer::NoVersion)
        }
    }
}

fn open(
    shared: &Arc<Shared>,
    knock: Knock,
    replies: Bound,
    program: usize,
    len: usize,
) -> Result<(), TransportError> {
    let made = export_for(&shared.node, len, knock.peer.pid, |_| Ok(()), |builder| builder);
    let (number, calls) = match made {
        Ok(made) => made,
        Err(error) => {
            reply(&replies, Answer::Failed, 0)?;
            return Err(error);
        }
    };
    // A view of its own: the slot takes the binding.
    let slot = Slot::new(&shared.node, calls, replies, knock.peer, program, &shared.settings);
    let slot = Arc::new(slot);
    shared.slots().insert(knock.key(), slot.clone());
    shared.add_fresh(slot.clone());
    shared.node.counters().add(count::ACCEPTED, 1);
    slot.answer(Answer::Bound, number)
}

fn reply(replies: &Bound, answer: Answer, export: u32) -> Result<(), TransportError> {
    write32(replies.view(), layout::BIND_EXPORT, export);
    replies.flag32(layout::BIND_ANSWER)?.signal(answer as u32)?;
    Ok(())
}

impl Slot {
    /// Tells the client that it is bound.
    fn answer(&self, answer: Answer, export: u32) -> Result<(), TransportError> {
        reply(self.reply_buffer(), answer, export)
    }
}

/// Ends the binding of a client that has gone. Blocks while its buffer is withdrawn.
pub(super) fn forget(shared: &Shared, key: Key) {
    let slot = shared.slots().remove(&key);
    if let Some(slot) = slot {
        slot.end();
        shared.note_change();
        // The poller drops its own; a deferred call may hold another for long. Whoever is
        // last withdraws the buffer.
        drop(slot);
    }
}
