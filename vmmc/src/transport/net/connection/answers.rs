//! What comes back over a connection: answers, and ends of links.

use super::{ATTACHMENTS, Answer, Connection, Inbox, Lost, Slot, direct};
use crate::control::message::CloseReason;
use crate::counters::index as count;
use crate::fabric::Target;
use crate::sync::Ordering;
use crate::sys::thread::spawn_quiet;
use crate::transport::net::frame::{
    Flags, HEADER_LEN, Header, Kind, MAX_DATA, reason_of, window_of,
};
use rustix::io::Errno;
use std::sync::Arc;

/// In [`Slot::owed`].
fn bit(kind: Kind) -> u32 {
    if kind == Kind::Yielded { 1 } else { 2 }
}

impl Slot {
    /// Whether the interface waits to hear that nothing is written to the window any more.
    pub(super) fn owes_window(&self) -> bool {
        self.owed.load(Ordering::Acquire) & bit(Kind::Yielded) != 0
    }
}

impl Connection {
    /// A turn of the connection's thread; false when the connection is lost.
    pub(super) fn read_in_turn(&self) -> bool {
        if !self.wire.sleep() {
            self.lose();
            return false;
        }
        self.receive(&mut self.inbox.lock());
        while self.is_cut() && !self.is_lost() {
            if !self.revive() {
                self.lose();
            }
        }
        !self.is_lost()
    }

    /// Receives and handles what is there. That it was cut is for its thread to find out.
    pub(super) fn receive(&self, inbox: &mut Inbox) {
        loop {
            let Some(room) = inbox.bytes.get_mut(inbox.filled..) else { return };
            let wanted = room.len();
            match self.wire.receive(room) {
                Ok(0) => return self.found_end(),
                Ok(len) => {
                    inbox.filled += len;
                    if self.handle(inbox).is_err() {
                        self.close();
                        return self.lose();
                    }
                    if len < wanted && self.wire.gives_all() {
                        return; // to ask again would be a system call that finds nothing
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.found_end(),
            }
        }
    }

    /// At the end of what comes.
    fn found_end(&self) {
        if !(self.wire.was_cut() && self.is_cut()) {
            self.lose();
        }
    }

    /// Handles the whole frames in the inbox.
    fn handle(&self, inbox: &mut Inbox) -> Result<(), Lost> {
        let mut at = 0;
        loop {
            let filled = inbox.bytes.get(at..inbox.filled).unwrap_or_default();
            let Some((head, rest)) = filled.split_first_chunk::<HEADER_LEN>() else { break };
            let header = Header::decode(head).map_err(|_| Lost)?;
            if header.kind.is_of_sender() {
                return Err(Lost);
            }
            let len = header.body_len() as usize; // at most MAX_DATA
            let Some(body) = rest.get(..len) else { break };
            self.handle_frame(&header, body)?;
            at += HEADER_LEN + len;
        }
        inbox.bytes.copy_within(at..inbox.filled, 0);
        inbox.filled -= at;
        if inbox.filled == inbox.bytes.len() {
            // A long answer: the largest fits in this.
            let largest = HEADER_LEN + MAX_DATA as usize;
            inbox.bytes.resize((2 * inbox.bytes.len()).min(2 * largest), 0);
        }
        Ok(())
    }

    pub(super) fn handle_frame(&self, header: &Header, body: &[u8]) -> Result<(), Lost> {
        let attachment = ATTACHMENTS | u64::from(header.slot);
        let (tag, answer) = match header.kind {
            Kind::Attached => (attachment, Answer::Attached),
            Kind::Refused => {
                (attachment, Answer::Refused(String::from_utf8_lossy(body).into_owned()))
            }
            Kind::Data if header.flags.contains(Flags::FAILED) => (header.value, Answer::Failed),
            Kind::Data => (header.value, Answer::Data(body.to_vec())),
            Kind::Done => (header.value, Answer::Done),
            Kind::Closed => {
                // That the importer has ended it, only the importer can say: it would be told nothing.
                let reason = reason_of(header.value).filter(|&it| it != CloseReason::Unimported);
                let reason = reason.ok_or(Lost)?;
                let slot = self.state.lock().slots.get(&header.slot).cloned();
                if let Some(slot) = slot.filter(|slot| slot.generation == header.generation) {
                    self.tell_end(&slot, reason);
                    if reason == CloseReason::Unexported {
                        self.answer(slot, Kind::Stopped);
                    }
                }
                self.changed.notify_all();
                return Ok(());
            }
            Kind::Window | Kind::Recall => {
                let slot = self.state.lock().slots.get(&header.slot).cloned();
                let slot = slot.filter(|slot| slot.generation == header.generation);
                match (slot, header.kind) {
                    (None, _) => {} // detached meanwhile
                    (Some(slot), Kind::Recall) => self.answer(slot, Kind::Yielded),
                    (Some(slot), _) => {
                        let (key, base) = window_of(body, slot.mask).ok_or(Lost)?;
                        *slot.window.lock() = Some(Target { key, base });
                    }
                }
                return Ok(());
            }
            _ => return Err(Lost),
        };
        if matches!(header.kind, Kind::Done | Kind::Data) {
            self.answered.store(header.value, Ordering::Release);
            if header.value & direct::QUESTION != 0 {
                drop(self.state.lock()); // whoever asked looks there, or sleeps
                self.changed.notify_all();
                return Ok(());
            }
        }
        let mut state = self.state.lock();
        match state.answers.get_mut(&tag) {
            Some(waiting @ Answer::Waiting) => *waiting = answer,
            Some(Answer::GivenUp(slot)) => {
                let slot = slot.clone();
                state.answers.remove(&tag);
                drop(state);
                if matches!(answer, Answer::Attached) {
                    self.answer(slot, Kind::Detach);
                }
                return Ok(());
            }
            _ => return Err(Lost), // nobody asked
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Says that nothing follows for a link, for which its exporter waits (V8), that only direct writes end, or that nobody wants
    /// it any more. By a thread: this one must not wait for room, which the interface may have only when what it has said was
    /// read.
    ///
    /// Whoever asks again before it is answered is not answered twice: what is kept of questions has a bound.
    fn answer(&self, slot: Arc<Slot>, kind: Kind) {
        if slot.owed.fetch_or(bit(kind), Ordering::AcqRel) & bit(kind) == 0 {
            self.say_later(slot, kind);
        }
    }

    /// Says it by a thread that may wait.
    pub(super) fn say_later(&self, slot: Arc<Slot>, kind: Kind) {
        let mut state = self.state.lock();
        state.stopped.push((slot, kind));
        if !state.answering
            && let Some(this) = self.this.upgrade()
        {
            // Without one the exporter waits as long as it does for a sender that does not run.
            state.answering = spawn_quiet("vmmc-net-end", move || this.answer_all()).is_ok();
        }
    }

    fn answer_all(&self) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.stopped.pop();
                state.answering = next.is_some();
                next
            };
            let Some((slot, kind)) = next else { return };
            let stopped = Header::new(kind, slot.number, slot.generation);
            let mut turn = self.writer.lock();
            *slot.window.lock() = None;
            slot.owed.fetch_and(!bit(kind), Ordering::AcqRel);
            // One that was detached says as much by that, and its slot is no more.
            let attached = self.state.lock().slots.contains_key(&slot.number);
            if (attached || kind == Kind::Detach)
                && self.send_frame(&mut turn, &stopped, &[]).is_err()
            {
                return; // all links have ended
            }
        }
    }

    /// All links end.
    pub(super) fn lose(&self) {
        let slots: Vec<Arc<Slot>> = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.lost, true) {
                return;
            }
            state.slots.drain().map(|(_, slot)| slot).collect()
        };
        self.close(); // senders that wait for room find out
        if let Some(meter) = self.meter.as_ref().filter(|_| self.wire.was_refused()) {
            meter.add(count::DIRECT_REFUSED, 1);
        }
        for slot in slots {
            self.tell_end(&slot, CloseReason::Unreachable);
        }
        self.changed.notify_all();
    }

    /// Ends a slot and tells the process, also where a sender has found out first: it tells only its caller.
    fn tell_end(&self, slot: &Slot, reason: CloseReason) {
        slot.end(reason);
        (self.on_closed)(slot.number, slot.ended().unwrap_or(reason));
    }
}

/// Keeps the connection's thread asleep while this one reads.
pub(super) struct Quiet<'c>(&'c Connection);

impl<'c> Quiet<'c> {
    pub(super) fn new(connection: &'c Connection) -> Quiet<'c> {
        let mut spinning = connection.spinning.lock();
        *spinning += 1;
        if *spinning == 1 {
            connection.watch(false);
        }
        Quiet(connection)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let mut spinning = self.0.spinning.lock();
        *spinning -= 1;
        if *spinning == 0 {
            self.0.watch(true);
            drop(spinning); // for which the thread waits that has the inbox
            // What came meanwhile may have told nobody. A lost connection takes nothing more, whatever comes.
            while !self.0.is_lost() && !self.0.wire.may_sleep() {
                self.0.receive(&mut self.0.inbox.lock());
            }
        }
    }
}

impl Connection {
    fn watch(&self, whether: bool) {
        if self.wire.watch(whether).is_err() {
            // Cannot be while the descriptors live; if it is, a silent thread would be worse.
            self.close();
        }
    }
}
