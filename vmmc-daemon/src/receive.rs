//! Taking packets, and getting rid of the descriptors that came with them.
//!
//! A client may pass any descriptor at all, and the last close of some of them blocks: a TCP socket that lingers
//! with unsent data, a file of a file system that the client itself serves. The loop
//! must not wait for that. So every descriptor that comes is *suspect* until the code that wanted it has
//! looked at its kind and kept it; a suspect of a kind whose close cannot block is closed on the spot, any other by a
//! helper thread. There are several, because a hostile client can keep some of them busy.
//!
//! The same goes for a client's own socket: packets not read yet may hold such descriptors.

use crate::{descriptors, placement};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use vmmc::control::message::Refusal;
use vmmc::sys::Fd;
use vmmc::sys::packet::{MAX_FDS, MAX_FDS_PER_MESSAGE};

/// A descriptor that came from a client and has not been looked at.
#[derive(Debug)]
pub(crate) struct Suspect(Option<Fd>);

impl Suspect {
    /// Keeps the descriptor: its kind is one whose close does not block.
    pub(crate) fn keep(mut self) -> Option<Fd> {
        self.0.take()
    }

    pub(crate) fn look(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close(fd);
        }
    }
}

/// Descriptors of one packet, in order.
#[derive(Debug, Default)]
pub(crate) struct Fds {
    fds: VecDeque<Suspect>,
    /// The daemon had no room for all of them: its fault, not the client's.
    cut: bool,
}

impl Fds {
    /// The next one.
    pub(crate) fn take(&mut self) -> Option<Suspect> {
        self.fds.pop_front()
    }

    /// The next one, which the message calls for.
    ///
    /// # Errors
    /// What to tell the client: whose fault it is that there is none.
    pub(crate) fn need(&mut self, missing: &str) -> Result<Suspect, Refusal> {
        self.take().ok_or_else(|| match self.cut {
            true => descriptors::none_left(),
            false => Refusal::BadSegment { why: missing.to_owned() },
        })
    }

    /// Gets rid of the rest.
    pub(crate) fn discard(&mut self) {
        self.fds.clear();
    }

    /// Whether some were lost for want of room.
    pub(crate) fn cut_short(&self) -> bool {
        self.cut
    }

    /// How many have not been taken.
    pub(crate) fn remaining(&self) -> usize {
        self.fds.len()
    }
}

/// What one packet brought.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) fds: Fds,
}

/// Receives one packet; `None` at end of file.
///
/// # Errors
/// `EMSGSIZE` for a packet too long, or with more descriptors than any message has.
pub(crate) fn receive(socket: &Fd, buffer: &mut [u8]) -> rustix::io::Result<Option<Received>> {
    // Room for as many as the kernel allows: it would close those without room itself, here.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    let mut fds = Fds::default();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.fds.extend(received.map(|fd| Suspect(Some(fd.into()))));
        }
    }
    if fds.remaining() > MAX_FDS_PER_MESSAGE || message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    fds.cut = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Some(Received { len: message.bytes, fds }))
}

/// Whether closing this can block, judged without asking any file system.
fn may_block(fd: &Fd) -> bool {
    if rustix::pipe::fcntl_getpipe_size(fd).is_ok() || rustix::fs::fcntl_get_seals(fd).is_ok() {
        return false;
    }
    match rustix::net::sockopt::socket_domain(fd) {
        Ok(AddressFamily::INET | AddressFamily::INET6) => {
            // Whoever passed it may set it just now; the helper's turn is then lost, not ours
            // for long: it also has to close its own copy first.
            rustix::net::sockopt::socket_linger(fd)
                .map_or(true, |linger| linger.is_some_and(|time| !time.is_zero()))
        }
        _ => true,
    }
}

/// Closes a descriptor without ever waiting for it.
pub(crate) fn close(fd: Fd) {
    if may_block(&fd) {
        Closer::get().close(Last::Close(fd));
    }
}

/// Does something with a client's socket in a helper thread: the kernel waits for who is inside a call on it, and that one
/// may read memory that a client's own file system gives.
pub(crate) fn apart(work: impl FnOnce() + Send + 'static) {
    Closer::get().close(Last::Work(Box::new(work)));
}

/// Waits until the helpers have done all that they were given, but no longer than this.
pub(crate) fn settle(limit: Duration) {
    let deadline = Instant::now() + limit;
    while Closer::get().is_busy() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The last that is done with a descriptor.
enum Last {
    /// Its close.
    Close(Fd),
    /// Something else.
    Work(Box<dyn FnOnce() + Send>),
}

impl Last {
    fn act(self) {
        match self {
            Last::Close(fd) => drop(fd),
            Last::Work(work) => work(),
        }
    }
}

/// Most helpers; beyond, descriptors wait for one that is free.
const MAX_HELPERS: usize = 64;
/// A helper without work ends after this, unless it is the only one.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Work {
    fds: VecDeque<Last>,
    helpers: usize,
    idle: usize,
}

/// The helpers' queue.
#[derive(Default)]
struct Closer {
    work: Mutex<Work>,
    more: Condvar,
}

impl Closer {
    fn get() -> &'static Closer {
        static CLOSER: OnceLock<Closer> = OnceLock::new();
        CLOSER.get_or_init(Closer::default)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_busy(&self) -> bool {
        let work = self.work();
        !work.fds.is_empty() || work.idle < work.helpers
    }

    fn close(&'static self, last: Last) {
        let mut work = self.work();
        work.fds.push_back(last);
        // Every one queued has an idle helper, or gets a new one.
        if work.fds.len() > work.idle && work.helpers < MAX_HELPERS {
            let helper = std::thread::Builder::new()
                .name("closer".to_owned())
                .stack_size(64 * 1024)
                .spawn(move || {
                    // The loop, whose affinity a new thread has, may be bound to one processor.
                    placement::unbind_thread();
                    self.help();
                });
            match helper {
                Ok(_) => work.helpers += 1,
                Err(error) => tracing::warn!(%error, "no helper to close a descriptor"),
            }
        }
        drop(work);
        self.more.notify_one();
    }

    fn help(&self) {
        let mut work = self.work();
        loop {
            if let Some(last) = work.fds.pop_front() {
                drop(work);
                last.act();
                work = self.work();
                continue;
            }
            work.idle += 1;
            let (again, waited) =
                self.more.wait_timeout(work, IDLE).unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if waited.timed_out() && work.fds.is_empty() && work.helpers > 1 {
                work.helpers -= 1;
                return;
            }
        }
    }
}
