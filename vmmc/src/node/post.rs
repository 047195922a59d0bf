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

use crate::control::connect::{Connection, LinkError};
use crate::control::message::Request;
use crate::sync::Mutex;
use crate::sys::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When to try again after the kernel ran out of something that nothing can be polled for.
const SHORTAGE_RETRY: Duration = Duration::from_millis(2);

/// One connection to a daemon, with what waits to be sent on it.
#[derive(Debug)]
pub(super) struct Post {
    connection: Connection,
    /// In order. Sent under this lock, so that nothing overtakes.
    queue: Mutex<VecDeque<Parcel>>,
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
    pub(super) fn new(connection: Connection) -> Post {
        Post { connection, queue: Mutex::default() }
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
            match self.flush() {
                Left::Nothing => return,
                Left::NoRoom => self.poll(PollFlags::OUT, None),
                Left::Shortage => std::thread::sleep(SHORTAGE_RETRY),
            }
        }
    }

    /// The reader's sleep: until there is something to receive (or the end), or the deadline, or
    /// a signal. Sends what is queued as there is room.
    pub(super) fn wait(&self, deadline: Option<Instant>) {
        let soon = Instant::now() + SHORTAGE_RETRY;
        match self.flush() {
            Left::Nothing => self.poll(PollFlags::IN, deadline),
            Left::NoRoom => self.poll(PollFlags::IN | PollFlags::OUT, deadline),
            Left::Shortage => {
                self.poll(PollFlags::IN, deadline.map_or(Some(soon), |at| Some(at.min(soon))))
            }
        }
    }

    fn poll(&self, flags: PollFlags, deadline: Option<Instant>) {
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let _ = poll(&mut [PollFd::new(&self.connection, flags)], timeout.as_ref());
    }
}
