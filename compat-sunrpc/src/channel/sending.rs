//! Showing what was encoded to the peer, or keeping it until there is room: a record is published once, at its end
//! (R5); what finds no room waits in the backlog.
//!
//! Processes of one side may share a channel after a fork. Who has shown pieces of a record has it for itself until
//! the record's end, or its own: then the record is forgotten.

use super::held::Kept;
use super::segment::{FORGET, LAST};
use super::writer::{Head, LEAST_ROOM, WORD};
use super::{Broken, Channel, Patience, Writer};
use crate::counters::{self, Counter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use vmmc::mem::copy;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::bell;

/// Most memory that a channel keeps for the next record that does not lie in the ring whole, while there is
/// plenty for all.
const MOST_SPARE: usize = 2 << 20;

impl Channel {
    /// Ends a record and shows it to the peer. What found no room goes to the backlog.
    pub(crate) fn submit(&self, writer: Writer<'_>) {
        if self.show(writer) {
            self.wake_for_data();
        }
        self.counts.settle();
    }

    /// Ends a record that answers the one that was given last, which is released ([`Channel::release`]). The peer
    /// sees both, and then it is looked whether it sleeps: a fence between the two would wait for the record's
    /// lines before the tail's is asked for.
    pub(crate) fn submit_and_release(&self, writer: Writer<'_>) -> Result<(), Broken> {
        let gave = self.give_back()?;
        let shown = self.show(writer);
        bell::published();
        if shown {
            self.wake_if_armed_for_data();
        }
        if gave {
            self.wake_if_armed_for_space();
        }
        self.counts.settle();
        Ok(())
    }

    /// As [`Channel::submit`], but that nobody is rung: true when somebody may wait for it.
    fn show(&self, mut writer: Writer<'_>) -> bool {
        let len = std::mem::take(&mut writer.len);
        if !writer.in_memory {
            let head = std::mem::take(&mut writer.head);
            self.put_fragment(head, len - writer.base, true);
            self.counts.one(Counter::sent_records);
            self.counts.add(Counter::sent_bytes, len as u64);
            return true;
        }
        self.counts.one(Counter::sent_records);
        self.counts.add(Counter::sent_bytes, len as u64);
        let memory = std::mem::replace(&mut writer.memory, Kept::nothing(self.pool));
        counters::add(Counter::spilled_bytes, memory.bytes().len() as u64);
        let shown = self.put_whole(memory.bytes());
        if shown {
            self.keep(memory);
        } else {
            self.backlog.borrow_mut().push_back(memory);
        }
        shown
    }

    /// Puts the rest of a record into the ring as one fragment, if there is room for it now. Rings nobody.
    fn put_whole(&self, bytes: &[u8]) -> bool {
        let need = (WORD + bytes.len().next_multiple_of(4)) as u64;
        // A lie about the room is found at the next record.
        let fits = !bytes.is_empty() && self.tx().room().is_ok_and(|room| need <= room);
        if !fits || self.is_behind() || self.inside().is_some() {
            return false;
        }
        // SAFETY: there is room for the word and these bytes, which are our own.
        unsafe { self.put_copy(bytes.as_ptr(), bytes.len(), true) };
        true
    }

    /// Copies `len` bytes behind the tail's word and publishes them. Rings nobody.
    ///
    /// # Safety
    /// There must be room for the word and the bytes, which must be readable.
    unsafe fn put_copy(&self, bytes: *const u8, len: usize, last: bool) {
        // SAFETY: at most the ring's length, and twice that is mapped.
        let place = unsafe { self.outgoing_tail().add(WORD) };
        // SAFETY: the caller's word, for both sides.
        unsafe { copy::bytes(bytes, place.as_ptr(), len) };
        self.put_fragment(Head::default(), len, last);
    }

    /// Publishes `len` bytes that lie behind the word at the tail, for which the caller found room, but for the
    /// first ones, which are in `head`. Rings nobody.
    pub(super) fn put_fragment(&self, head: Head, len: usize, last: bool) {
        if !last {
            counters::one(Counter::pieces);
        }
        let open = if last { 0 } else { own_pid() };
        self.own.open().store(open, Ordering::Relaxed);
        self.put_word(len as u32 | if last { LAST } else { 0 }, head, len);
    }

    /// The record of which pieces have been shown is not to be.
    pub(super) fn forget(&self) {
        self.own.open().store(0, Ordering::Relaxed);
        self.put_word(FORGET, Head::default(), 0);
        self.wake_for_data();
    }

    fn put_word(&self, word: u32, head: Head, len: usize) {
        let tx = self.tx();
        let place = self.outgoing_tail();
        // SAFETY: the callers found room for the word and its bytes, of which the head is a part.
        unsafe { head.store_behind(word, place) };
        tx.filled(WORD + len.next_multiple_of(4));
        tx.publish();
    }

    /// Whether another process of this side is within a record, and how it is.
    fn inside(&self) -> Option<Inside> {
        let open = self.own.open().load(Ordering::Relaxed);
        if open == 0 || open == own_pid() {
            return None;
        }
        let pid = i32::try_from(open).ok().and_then(Pid::from_raw);
        Some(if pid.is_some_and(is_alive) { Inside::Alive } else { Inside::Dead })
    }

    /// Whether what waits to be sent must wait for another process of this side to end its record.
    pub(super) fn waits_for_another(&self) -> bool {
        self.inside() == Some(Inside::Alive)
    }

    /// Whether pieces wait for room.
    pub(crate) fn is_behind(&self) -> bool {
        !self.backlog.borrow().is_empty()
    }

    /// An error if nothing can be sent any more.
    pub(super) fn sends(&self) -> Result<(), Broken> {
        self.broken.get().map_or(Ok(()), Err)
    }

    /// Puts of the backlog into the ring what has room; about a piece in all, because a peer that takes it out
    /// meanwhile makes ever more. True when nothing is left.
    pub(crate) fn flush(&self) -> Result<bool, Broken> {
        self.sends()?;
        let mut backlog = self.backlog.borrow_mut();
        if !backlog.is_empty() {
            match self.inside() {
                None => {}
                Some(Inside::Alive) => return Ok(false),
                Some(Inside::Dead) => self.forget(),
            }
        }
        let mut put = 0;
        while let Some(rest) =
            backlog.front().and_then(|it| it.bytes().get(self.backlog_at.get()..))
        {
            let room = self.tx().room()?;
            if room < LEAST_ROOM || put >= self.piece_len() {
                return Ok(false);
            }
            let piece = rest.len().min((room as usize - 2 * WORD) & !3);
            let (bytes, last) = (rest.as_ptr(), piece == rest.len());
            // SAFETY: there is room for the word and `piece` bytes, which are our own.
            unsafe { self.put_copy(bytes, piece, last) };
            self.wake_for_data();
            put += piece;
            self.backlog_at.set(self.backlog_at.get() + piece);
            if last {
                self.backlog_at.set(0);
                if let Some(done) = backlog.pop_front() {
                    self.keep(done);
                }
            }
        }
        Ok(true)
    }

    /// Memory for a record, empty.
    pub(super) fn spare(&self) -> Kept {
        let mut memory = self.spare.take().unwrap_or_else(|| Kept::nothing(self.pool));
        memory.clear();
        memory
    }

    /// Memory for the next record that needs some; a very large one may be never seen again.
    fn keep(&self, memory: Kept) {
        if memory.capacity() <= MOST_SPARE && self.pool.is_ample() {
            self.spare.replace(Some(memory));
        }
    }

    /// Puts all of the backlog into the ring, waiting for room.
    pub(crate) fn flush_all(&self, patience: &Patience<'_>) -> Result<(), Broken> {
        while !self.flush()? {
            if self.waits_for_another() {
                patience.nap()?; // nobody says when it is done
            } else {
                self.wait_room(patience, LEAST_ROOM)?;
            }
        }
        Ok(())
    }
}

/// Another process that is within a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// It may end it.
    Alive,
    Dead,
}

/// This process.
fn own_pid() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned().into()
}

/// Whether a process has not ended; nobody need have waited for one that has. When that cannot be known, it is
/// taken to be alive.
fn is_alive(pid: Pid) -> bool {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(errno) => errno != Errno::SRCH,
        Ok(process) => {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            !matches!(poll(&mut fds, Some(&now)), Ok(1..))
        }
    }
}
