//! Sending to the daemon without ever waiting for it where that could be for ever.
//!
//! The daemon stops reading from a client that leaves many of its messages unread. So whoever
//! reads, and whoever holds what the reader needs, must not wait for the daemon to read: both
//! sides would wait for each other. Messages are therefore queued, and go as far as the socket
//! takes them:
//!
//! * [`Post::send`] never blocks. The reader, and callers that hold locks, use it alone.
//! * Everybody else sees the queue off afterwards, holding nothing ([`Post::see_off`]).
//! * The reader's sleep ends when there is something to receive, *or* room for what is queued
//!   ([`Post::wait`]).
//!
//! # Who is woken by a message
//! The kernel wakes every thread that polls a socket, and the control thread would be woken by each
//! answer that a caller reads itself: two switches between threads per request, which cost more than
//! the daemon does. So the control thread does not poll the socket but an epoll descriptor with the
//! socket in it, and a caller that reads takes the socket's event out meanwhile ([`Post::quiet`]).
//! Putting it back wakes the control thread if something has arrived since.

use crate::control::connect::{Connection, Incoming, LinkError};
use crate::control::message::Request;
use crate::sync::Mutex;
use crate::sys::Fd;
use crate::wait::Poller;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When to try again after the kernel ran out of something that nothing can be polled for.
const SHORTAGE_RETRY: Duration = Duration::from_millis(2);

/// The watch has one entry.
const WATCH_TOKEN: epoll::EventData = epoll::EventData::new_u64(0);

/// One connection to a daemon, with what waits to be sent on it.
#[derive(Debug)]
pub(crate) struct Post {
    connection: Connection,
    /// Readable when the control thread has something to receive.
    watch: Fd,
    turns: Mutex<Turns>,
    /// In order. Sent under this lock, so that nothing overtakes.
    queue: Mutex<VecDeque<Parcel>>,
}

/// Whose turn it is to read.
#[derive(Debug, Default)]
struct Turns {
    /// Guards of [`Post::quiet`].
    quiet: u32,
    /// Threads that wait for room to send: some of those guards may be theirs.
    blocked: u32,
}

impl Turns {
    fn control_reads(&self) -> bool {
        self.quiet == 0 || self.blocked > 0
    }
}

#[derive(Debug)]
struct Parcel {
    request: Request,
    fds: Vec<Arc<Fd>>,
}

/// How far the queue has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// The socket is full.
    NoRoom,
    /// The kernel lacks memory, or too many descriptors are on their way already.
    Shortage,
}

impl Post {
    /// # Errors
    /// As epoll_create(2), epoll_ctl(2).
    pub(super) fn new(connection: Connection) -> rustix::io::Result<Post> {
        let watch = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&watch, &connection, WATCH_TOKEN, epoll::EventFlags::IN)?;
        Ok(Post { connection, watch, turns: Mutex::default(), queue: Mutex::default() })
    }

    /// Keeps the control thread asleep until the guard is dropped. For threads that will read, or wait
    /// for one that does, before they drop it. (The end of the connection wakes it all the same.)
    pub(super) fn quiet(self: &Arc<Post>) -> Quiet {
        self.change_turns(|turns| turns.quiet += 1);
        Quiet(self.clone())
    }

    /// Lets the control thread be woken, or not, as `change` leaves things.
    fn change_turns(&self, change: impl FnOnce(&mut Turns)) {
        let mut turns = self.turns.lock();
        let before = turns.control_reads();
        change(&mut turns);
        let after = turns.control_reads();
        if before != after {
            let events = if after { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            // Changes an entry that is there, for which the kernel needs no memory.
            let _ = epoll::modify(&self.watch, &self.connection, WATCH_TOKEN, events);
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Queues a message and sends what the socket takes. Does not block.
    pub(super) fn send(&self, request: Request, fds: Vec<Arc<Fd>>) {
        let mut queue = self.queue.lock();
        queue.push_back(Parcel { request, fds });
        self.send_some(&mut queue);
    }

    fn flush(&self) -> Left {
        self.send_some(&mut self.queue.lock())
    }

    fn send_some(&self, queue: &mut VecDeque<Parcel>) -> Left {
        while let Some(Parcel { request, fds }) = queue.front() {
            let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.connection.try_send(request, &fds) {
                Err(LinkError::WouldBlock) => return Left::NoRoom,
                Err(LinkError::System(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Left::Shortage;
                }
                Ok(()) => drop(queue.pop_front()),
                // It says nothing (see `Control::ask_at_once`), and those behind it do.
                Err(LinkError::Codec(_)) => drop(queue.pop_front()),
                // The daemon is gone: whoever reads notices, and calls are sent to the next one.
                Err(_) => queue.clear(),
            }
        }
        Left::Nothing
    }

    /// Waits until everything queued is sent, or the daemon is gone. Not for the reader, and not
    /// under a lock: another thread must be free to read meanwhile.
    pub(super) fn see_off(&self) {
        loop {
            let left = self.flush();
            if left == Left::Nothing {
                return;
            }
            // The daemon may wait for us to read before it reads on.
            self.change_turns(|turns| turns.blocked += 1);
            if left == Left::NoRoom {
                sleep_at(&mut [PollFd::new(&self.connection, PollFlags::OUT)], None);
            } else {
                std::thread::sleep(SHORTAGE_RETRY);
            }
            self.change_turns(|turns| turns.blocked -= 1);
        }
    }

    /// The sleep of a caller that reads: until there is something to receive (or the end), or the
    /// deadline, or a signal. Sends what is queued as there is room.
    pub(super) fn wait(&self, deadline: Option<Instant>) {
        self.wait_at(&self.connection, deadline);
    }

    /// The same for the control thread: no caller's answers.
    pub(super) fn wait_in_turn(&self, deadline: Option<Instant>) {
        self.wait_at(&self.watch, deadline);
    }

    /// The next message, or the end, if one comes within `budget` and it pays to poll for it. `None` too
    /// while something waits to be sent.
    pub(super) fn poll(
        &self,
        poller: &mut Poller,
        budget: Duration,
    ) -> Option<Result<Incoming, LinkError>> {
        if self.flush() != Left::Nothing {
            return None;
        }
        poller.poll(budget, || match self.connection.try_receive() {
            Err(LinkError::WouldBlock) => None,
            received => Some(received),
        })
    }

    /// The next message, waiting for it. `None` where [`Post::wait`] is needed first: something is
    /// queued.
    pub(super) fn receive(&self) -> Option<Result<Incoming, LinkError>> {
        (self.flush() == Left::Nothing).then(|| self.connection.receive())
    }

    fn wait_at(&self, incoming: impl AsFd, deadline: Option<Instant>) {
        let soon = Instant::now() + SHORTAGE_RETRY;
        let (room, deadline) = match self.flush() {
            Left::Nothing => (PollFlags::empty(), deadline),
            Left::NoRoom => (PollFlags::OUT, deadline),
            Left::Shortage => {
                (PollFlags::empty(), deadline.map_or(Some(soon), |at| Some(at.min(soon))))
            }
        };
        let mut fds = [PollFd::new(&incoming, PollFlags::IN), PollFd::new(&self.connection, room)];
        let count = if room.is_empty() { 1 } else { 2 };
        sleep_at(fds.get_mut(..count).unwrap_or_default(), deadline);
    }
}

fn sleep_at(fds: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let timeout = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let _ = poll(fds, timeout.as_ref());
}

/// See [`Post::quiet`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Quiet(Arc<Post>);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.change_turns(|turns| turns.quiet -= 1);
    }
}
