//! Taking packets, and getting rid of the descriptors that came with them.
//!
//! A client may pass any descriptor at all, and the last close of some of them blocks: a TCP socket that lingers
//! with unsent data, a file of a file system that the client itself serves. The loop
//! must not wait for that. So every descriptor that comes is *suspect* until the code that wanted it has
//! looked at its kind and kept it; a suspect of a kind whose close cannot block is closed on the spot, any other by a
//! helper thread ([`crate::helpers`]). So is much memory, which takes the kernel long to give back.
//!
//! The same goes for a client's own socket: packets not read yet may hold such descriptors ([`close_connection`]).

use crate::descriptors;
use crate::helpers::{Helpers, Holder};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vmmc::control::message::Refusal;
use vmmc::sys::Fd;
use vmmc::sys::packet::{self, Unread};
use vmmc::sys::packet::{MAX_FDS, MAX_FDS_PER_MESSAGE};

/// A descriptor that came from a client and has not been looked at.
#[derive(Debug)]
pub(crate) struct Suspect {
    fd: Option<Fd>,
    /// Who sent it.
    uid: u32,
}

impl Suspect {
    /// Keeps the descriptor: its kind is one whose close does not block.
    pub(crate) fn keep(mut self) -> Option<Fd> {
        self.fd.take()
    }

    /// Whether it may stay for a while ([`descriptors::enough`]).
    pub(crate) fn is_of_enough(&self) -> bool {
        self.fd.as_ref().is_some_and(|fd| descriptors::enough(fd).is_ok())
    }

    /// Who passed it.
    pub(crate) fn sender(&self) -> u32 {
        self.uid
    }

    pub(crate) fn look(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close(self.uid, fd);
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

/// Receives one packet of a client of this user's; `None` at end of file.
///
/// # Errors
/// `EMSGSIZE` for a packet too long, or with more descriptors than any message has.
pub(crate) fn receive(
    socket: &Fd,
    uid: u32,
    buffer: &mut [u8],
) -> rustix::io::Result<Option<Received>> {
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
            fds.fds.extend(received.map(|fd| Suspect { fd: Some(fd.into()), uid }));
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

/// Whether a user could stop the daemon anyway: root, and the daemon's own.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// From this much memory on, in blocks of 512 bytes, its last close is left to a helper: the kernel gives back some 7 MiB in a
/// millisecond.
const LARGE: u64 = (16 << 20) / 512;

/// Whether it is so much memory.
fn is_large(fd: &Fd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
        && rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_blocks as u64 > LARGE)
}

/// Whether the last close of this can block, judged without taking any lock of its. Of another user's
/// everything but memory: whatever epoll watches takes the lock of the epoll descriptor, which somebody may have for as long as he likes.
fn may_block(uid: u32, fd: &Fd) -> bool {
    if rustix::fs::fcntl_get_seals(fd).is_ok() {
        return false;
    }
    match rustix::net::sockopt::socket_domain(fd) {
        Ok(AddressFamily::INET | AddressFamily::INET6) if is_trusted(uid) => {
            rustix::net::sockopt::socket_linger(fd)
                .map_or(true, |linger| linger.is_some_and(|time| !time.is_zero()))
        }
        _ => true,
    }
}

/// The threads that do it.
fn closers() -> &'static Helpers {
    static CLOSERS: OnceLock<Helpers> = OnceLock::new();
    CLOSERS.get_or_init(|| Helpers::new("closer", 64 * 1024))
}

/// Those that close memory: nobody can hold these up, and so have much of it kept here that no quota counts any more.
fn freers() -> &'static Helpers {
    static FREERS: OnceLock<Helpers> = OnceLock::new();
    FREERS.get_or_init(|| Helpers::new("freer", 64 * 1024))
}

/// Closes a descriptor without ever waiting for it. It came from a process of this user.
pub(crate) fn close(uid: u32, fd: Fd) {
    if is_large(&fd) {
        freers().leave((uid, uid), Box::new(move || drop(fd)));
    } else if may_block(uid, &fd) {
        apart(uid, move || drop(fd));
    }
}

/// The same of what several may have here.
pub(crate) fn close_last(uid: u32, fd: Arc<Fd>) {
    if let Some(fd) = Arc::into_inner(fd) {
        close(uid, fd);
    }
}

/// More packets than a Unix socket takes.
const MOST_UNREAD: usize = 1024;

/// Whether descriptors lie unread in a socket to which nothing comes any more. What lies before the first is thrown away.
fn holds_descriptors(socket: &Fd) -> bool {
    if rustix::net::sockopt::set_socket_passcred(socket, true).is_err() {
        return true;
    }
    for _ in 0..MOST_UNREAD {
        match packet::look(socket) {
            Ok(Unread::Descriptors) => return true,
            Ok(Unread::Nothing) => return false,
            Ok(Unread::Packet) => {
                let _ = rustix::net::recv(socket, &mut [0u8], RecvFlags::DONTWAIT);
            }
            // That the other end has been closed is told once, and before what is unread.
            Err(_) => {}
        }
    }
    true
}

/// Closes a client's own socket, of which nobody has a copy, and calls `closed` after that. On the spot where no descriptors lie in it: a user
/// whose closes wait cannot have such pile up. Otherwise in a helper.
pub(crate) fn close_connection(uid: u32, socket: Fd, closed: impl FnOnce() + Send + 'static) {
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    let may_block = holds_descriptors(&socket);
    let close = move || {
        drop(socket);
        closed();
    };
    match may_block {
        true => apart(uid, close),
        false => close(),
    }
}

/// Does something with a socket of this user's in a helper thread: the kernel waits for who is inside a call on it, and that one
/// may read memory that a client's own file system gives.
pub(crate) fn apart(uid: u32, work: impl FnOnce() + Send + 'static) {
    apart_for((uid, uid), work);
}

/// The same with something that either of two users can hold up.
pub(crate) fn apart_for(users: Holder, work: impl FnOnce() + Send + 'static) {
    closers().leave(users, Box::new(work));
}

/// Whether this user's descriptors come faster than they can be closed: what comes next should wait where it is.
pub(crate) fn is_behind(uid: u32) -> bool {
    is_behind_for((uid, uid))
}

/// The same of what two users have to do with each other.
pub(crate) fn is_behind_for(users: Holder) -> bool {
    closers().is_behind(users)
}

/// Waits until the helpers have done all that they were given, but no longer than this.
pub(crate) fn settle(limit: Duration) {
    let deadline = Instant::now() + limit;
    while closers().is_busy() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, Shutdown, SocketFlags, SocketType, socketpair};

    #[test]
    fn an_unread_descriptor_is_seen_behind_whatever_packets() {
        let packets: [&[u8]; 3] = [b"", b"a packet", b""];
        for (with_descriptor, peer_reads) in
            [(false, true), (true, true), (false, false), (true, false)]
        {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
            let send = |from: &Fd, bytes: &[u8], fds: &[BorrowedFd<'_>]| {
                vmmc::sys::packet::send(from, bytes, fds, SendFlags::empty()).unwrap();
            };
            for packet in packets {
                send(&theirs, packet, &[]);
            }
            if with_descriptor {
                send(&theirs, b"", &[ours.as_fd()]);
            }
            if !peer_reads {
                // Its close is an error of our socket.
                send(&ours, b"unread", &[]);
            }
            drop(theirs);
            rustix::net::shutdown(&ours, Shutdown::Both).unwrap();
            assert_eq!(holds_descriptors(&ours), with_descriptor, "{peer_reads}");
        }
    }
}
