//! Waiting for the other end: for something to read, or for room.

use super::{Broken, Channel};
use crate::counters::{self, Counter};
use crate::settings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use vmmc::config::WaitPolicy;
use vmmc::sync::Ordering;
use vmmc::sys::doorbell::Doorbell;
use vmmc::wait::{self, Spun};
use vmmc::word::Word;
use vmmc_ring::bell;

/// How long a client may leave a child's answer in the ring: what libtirpc's write would wait.
const CHILD_TIMEOUT: Duration = Duration::from_secs(35);
/// Looks at the rings between two looks at the connection.
const LOOKS_PER_POLL: u32 = 1 << 16;
/// How long who may not wait looks for room, when the other end runs: it takes a piece in less.
const MOMENT: Duration = Duration::from_micros(50);

/// Who waits, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'p> {
    /// Ours, which the other side rings.
    pub(crate) bell: &'p Doorbell,
    /// The TCP connection: its end is the channel's.
    pub(crate) socket: BorrowedFd<'p>,
    /// When it ends.
    pub(crate) deadline: Deadline<'p>,
    /// Of a client: the number of its call. What comes while it still sends, and is of another number,
    /// is the answer to a call that it does not wait for any more.
    pub(crate) call: Option<u32>,
}

/// When a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline<'p> {
    Never,
    At(Instant),
    /// After so much time.
    After(&'p Allowance),
}

/// Time from when it is first asked about, which is not at once: a call among two that spin reads no clock.
#[derive(Debug)]
pub(crate) struct Allowance {
    time: Duration,
    /// When it ends, once it runs; `None`: never.
    end: Cell<Option<Option<Instant>>>,
}

impl Allowance {
    pub(crate) fn of(time: Duration) -> Allowance {
        Allowance { time, end: Cell::new(None) }
    }

    #[cold]
    fn end(&self) -> Option<Instant> {
        let end = self.end.get().unwrap_or_else(|| Instant::now().checked_add(self.time));
        self.end.set(Some(end));
        end
    }
}

impl Deadline<'_> {
    fn end(self) -> Option<Instant> {
        match self {
            Deadline::Never => None,
            Deadline::At(end) => Some(end),
            Deadline::After(allowance) => allowance.end(),
        }
    }
}

impl Patience<'_> {
    /// Whether its time is over.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.end().is_some_and(|end| Instant::now() >= end)
    }

    /// Waits a moment for what nobody rings for.
    pub(super) fn nap(&self) -> Result<(), Broken> {
        nap(self.socket)?;
        if self.is_over() { Err(Broken::TimedOut) } else { Ok(()) }
    }
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Data,
    Space,
    Either,
}

impl Channel {
    /// Waits for something to read.
    pub(crate) fn wait_readable(&self, patience: &Patience<'_>) -> Result<(), Broken> {
        let rx = self.rx();
        self.wait(patience, Waiting::Data, || {
            rx.prefetch(); // comes together with the tail's line
            rx.looks_readable()
        })
    }

    /// For a server: waits until the client speaks, over the channel (true) or over the connection, which then has
    /// something to read or its end: it may have given the channel up before this end was told of it. A client that has
    /// begun with one stays with it.
    pub(crate) fn is_begun_with(&self, patience: &Patience<'_>) -> Result<bool, Broken> {
        let Patience { bell, socket, .. } = *patience;
        let armed = self.segment.own().armed_data();
        loop {
            bell::arm(&armed);
            if !self.looks_readable() {
                let mut fds = [
                    PollFd::new(bell.fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(socket, PollFlags::IN | PollFlags::RDHUP),
                ];
                let ended = poll(&mut fds, None);
                bell.drain();
                if !self.looks_readable() {
                    match ended {
                        Ok(_) if fds[1].revents().is_empty() => continue,
                        Err(Errno::INTR) => continue,
                        Ok(_) => {}
                        Err(errno) => return Err(Broken::Gone(errno)),
                    }
                    bell::disarm(&armed);
                    return Ok(false);
                }
            }
            bell::disarm(&armed);
            return Ok(true);
        }
    }

    /// Waits for `need` bytes of room in the ring in which we send. A client takes late answers out
    /// meanwhile: a server that cannot get rid of them takes no call.
    pub(crate) fn wait_room(&self, patience: &Patience<'_>, need: u64) -> Result<(), Broken> {
        let tx = self.tx();
        let has_room = || tx.room().map_or(true, |room| room >= need);
        let mut takes_late = patience.call.is_some();
        while !has_room() {
            if !takes_late {
                self.wait(patience, Waiting::Space, has_room)?;
                continue;
            }
            self.wait(patience, Waiting::Either, || has_room() || self.looks_readable())?;
            takes_late = self.forget_late(patience.call)?;
            if patience.is_over() {
                return Err(Broken::TimedOut); // a server may talk for ever
            }
        }
        tx.room().map(|_| ()).map_err(Broken::from)
    }

    /// Looks for `need` bytes of room for a moment, if it makes sense. Never sleeps.
    pub(super) fn room_in_a_moment(&self, need: u64) -> Result<bool, Broken> {
        let tx = self.tx();
        let look = || match tx.room() {
            Ok(room) if room < need => None,
            Ok(_) => Some(Ok(true)),
            Err(poisoned) => Some(Err(Broken::from(poisoned))),
        };
        let policy = match settings::wait_policy() {
            WaitPolicy::Block => WaitPolicy::Block,
            _ => WaitPolicy::Hybrid { budget: MOMENT },
        };
        match wait::spin(policy, None, || self.shares_cpu(), look) {
            Spun::Found(found) => found,
            Spun::Spent | Spun::Late => Ok(false),
        }
    }

    /// Tells the other side where we wait; whether it waits there too: who shares a processor with
    /// us does not spin.
    fn shares_cpu(&self) -> bool {
        let cpu = self.note_cpu();
        self.segment.peer().cpu().load(Ordering::Relaxed) == cpu
    }

    /// For the child of a server that has forked to answer: puts all of the backlog into the ring. The
    /// doorbell that the peer would ring is its parent's, so it looks every now and then.
    pub(crate) fn flush_as_child(&self, socket: BorrowedFd<'_>) -> Result<(), Broken> {
        let deadline = Instant::now() + CHILD_TIMEOUT;
        while !self.flush()? {
            if !self.looks_serviceable() {
                nap(socket)?;
            }
            if Instant::now() >= deadline {
                return Err(Broken::TimedOut);
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        patience: &Patience<'_>,
        what: Waiting,
        look: impl Fn() -> bool,
    ) -> Result<(), Broken> {
        let policy = settings::wait_policy();
        if wait::glance(policy, || look().then_some(())).is_some() {
            self.counts.one(Counter::spin_hits);
            return Ok(());
        }
        let Patience { bell, socket, deadline, .. } = *patience;
        let deadline = deadline.end();
        // Who only ever spins would not see the connection end.
        let mut looks = 0u32;
        let shares = || self.shares_cpu();
        let spun = wait::spin_on(policy, deadline, shares, || {
            looks = looks.wrapping_add(1);
            if look() {
                return Some(Ok(()));
            }
            // What came before the end goes first.
            (looks.is_multiple_of(LOOKS_PER_POLL) && has_ended(socket))
                .then(|| if look() { Ok(()) } else { Err(Broken::Gone(Errno::CONNRESET)) })
        });
        match spun {
            Spun::Found(found) => {
                self.counts.one(Counter::spin_hits);
                return found;
            }
            Spun::Late => return Err(Broken::TimedOut),
            Spun::Spent => {}
        }
        let own = self.segment.own();
        let arms = |set: bool| {
            for (word, wanted) in [
                (own.armed_data(), what != Waiting::Space),
                (own.armed_space(), what != Waiting::Data),
            ] {
                match (wanted, set) {
                    (true, true) => bell::arm(&word),
                    (true, false) => _ = bell::disarm(&word),
                    (false, _) => {}
                }
            }
        };
        loop {
            arms(true);
            if look() {
                arms(false);
                return Ok(());
            }
            counters::one(Counter::sleeps);
            let ended = sleep(bell, socket, deadline);
            arms(false);
            bell.drain();
            if look() {
                return Ok(());
            }
            ended?;
        }
    }
}

/// Whether the connection is over.
fn has_ended(socket: BorrowedFd<'_>) -> bool {
    ends_within(socket, 0)
}

/// Waits a millisecond, unless the connection ends.
fn nap(socket: BorrowedFd<'_>) -> Result<(), Broken> {
    if ends_within(socket, 1_000_000) { Err(Broken::Gone(Errno::CONNRESET)) } else { Ok(()) }
}

fn ends_within(socket: BorrowedFd<'_>, nanoseconds: i64) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    matches!(poll(&mut fds, Some(&timeout)), Ok(1..))
}

/// Sleeps until rung, or until the connection has ended.
fn sleep(bell: &Doorbell, socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<(), Broken> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Broken::TimedOut);
    }
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let mut fds =
        [PollFd::new(bell.fd(), PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(errno) => return Err(Broken::Gone(errno)),
    }
    let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    if fds[1].revents().intersects(over) {
        return Err(Broken::Gone(Errno::CONNRESET));
    }
    Ok(())
}
