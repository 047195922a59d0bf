//! Hot restart: a successor takes everything over from the running daemon, descriptors included, and no
//! client notices. `vmmcd --replace`.
//!
//! ```text
//! successor                                   daemon
//! Hello (tool), TakeOver              ->
//!                                     <-      HandOver
//!                                     <-      header (16 bytes) + memory file with the state
//! go on                               ->
//!                                     <-      up to 250 descriptors
//! go on                               ->      (so on, until all are there)
//! taken                               ->      exits; never touches a client again
//! ```
//!
//! Each batch is confirmed before the next is sent, because the kernel bounds the descriptors that are under
//! way at once. The daemon serves nobody while it hands over (some milliseconds), but it
//! still has everything: if the successor fails before it says *taken*, the daemon goes on as
//! if nothing had been. If the daemon dies, the successor has everything or starts with nothing
//! (then clients come back as after a crash, see [`crate::resume`]).
//!
//! A node of a cluster listens to other nodes until it hears *taken*, and then no more, so that the successor can
//! ([`crate::net::entrance`]). What the successor cannot have after it has said that, it does without: nobody else has what it took.
//!
//! Header: `"VMHO"`, version u32, number of descriptors u32, reserved u32, little-endian. The state is a
//! `State` (state.rs) in postcard; a change to it raises [`VERSION`].

pub(crate) mod inherit;
mod save;
mod state;
pub mod store;

use crate::broker::Broker;
use crate::failpoint::{Failpoint, hit};
use crate::snapshot::memory_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use state::State;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vmmc::control::connect::{ConnectError, Connection};
use vmmc::control::message::{Event, Hello, Refusal, Request, Role};
use vmmc::id::{ClientId, RequestId};
use vmmc::sys::{Fd, process};

/// Version of the header's meaning and of the state.
pub const VERSION: u32 = 9;

/// Descriptors per packet; the kernel takes at most 253.
const BATCH: usize = 250;
const MAGIC: [u8; 4] = *b"VMHO";
const GO_ON: &[u8] = b"go on";
const TAKEN: &[u8] = b"taken";
/// How long each side waits for the other at each step.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a successor could not take over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// There is no daemon, or it died on the way: start with nothing.
    #[error("no daemon to take over from")]
    NoDaemon,
    /// The running daemon cannot be asked.
    #[error("cannot ask the running daemon: {0}")]
    Connect(#[from] ConnectError),
    /// It does not want to.
    #[error("the running daemon refused: {0}")]
    Refused(Refusal),
    /// It hands over in another form.
    #[error(
        "the running daemon hands over in version {theirs}, this one takes {ours}; stop the old one instead: clients come back by themselves"
    )]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// What it sent makes no sense.
    #[error("the running daemon sent a state that cannot be used: {0}; it goes on serving")]
    BadState(String),
    /// A system call failed.
    #[error("{call}: {errno}; the running daemon goes on serving")]
    System {
        /// Which.
        call: &'static str,
        /// How.
        errno: Errno,
    },
}

/// What a successor got.
#[derive(Debug)]
pub struct Inherited {
    pub(crate) state: State,
    pub(crate) fds: Vec<Option<Arc<Fd>>>,
    /// None when the predecessor has ended already (see [`store`]).
    taken: Option<Taken>,
}

impl Inherited {
    /// The service manager of the predecessor.
    #[must_use]
    pub fn manager(&self) -> crate::notify::Manager {
        self.state.manager.clone()
    }

    /// Where the predecessor listens, if at a path of its own.
    #[must_use]
    pub fn socket_path(&self) -> Option<std::path::PathBuf> {
        self.state.listener.path()
    }

    pub(crate) fn into_parts(self) -> (State, Vec<Option<Arc<Fd>>>, Option<Taken>) {
        (self.state, self.fds, self.taken)
    }
}

/// The last word that is still to be said.
#[derive(Debug)]
pub(crate) struct Taken {
    connection: Fd,
    /// Readable when the predecessor has ended.
    predecessor: Fd,
}

impl Taken {
    /// Tells the predecessor to go. After this the successor is the daemon.
    pub(crate) fn confirm(self) -> Result<(), TakeOverError> {
        hit(Failpoint::TakeoverReceived);
        match rustix::net::send(&self.connection, TAKEN, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            // It has died: all the better. If it lives, it has given up on us.
            Err(_) if is_readable(&self.predecessor, Duration::ZERO) => Ok(()),
            Err(errno) => Err(TakeOverError::System { call: "confirm", errno }),
        }
    }
}

fn is_readable(fd: impl AsFd, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&timeout)) {
            Err(Errno::INTR) => {}
            result => return result.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Asks the daemon at `path` for everything it has. Blocks for some milliseconds.
///
/// # Errors
/// [`TakeOverError::NoDaemon`] when a daemon is to be started with nothing; anything else when
/// the running one goes on.
pub fn take_over(path: &Path) -> Result<Inherited, TakeOverError> {
    let connection = match Connection::open_existing(path) {
        Err(ConnectError::NoDaemon { .. }) => return Err(TakeOverError::NoDaemon),
        connection => connection?,
    };
    let hello = Hello { role: Role::Tool, program: "vmmcd".to_owned(), resume: None };
    connection.hello(hello, &[])?;
    let request = RequestId(1);
    connection.send(&Request::TakeOver { request }, &[]).map_err(|_| TakeOverError::NoDaemon)?;
    let deadline = std::time::Instant::now() + PATIENCE;
    match connection.receive_until(deadline) {
        Ok(incoming) => match incoming.event {
            Event::HandOver { .. } => {}
            Event::Refused { refusal, .. } => return Err(TakeOverError::Refused(refusal)),
            other => return Err(TakeOverError::BadState(format!("it answered {other:?}"))),
        },
        Err(vmmc::control::connect::LinkError::Gone) => return Err(TakeOverError::NoDaemon),
        Err(error) => return Err(TakeOverError::BadState(error.to_string())),
    }
    let connection = connection.into_fd();
    // Who sends: the daemon that listened last, which is the one that lives (see `adopt`).
    let system = |call| move |errno| TakeOverError::System { call, errno };
    let pid = process::peer_credentials(&connection).map_err(system("SO_PEERCRED"))?.pid;
    let predecessor = process::peer_pidfd(&connection, pid).map_err(system("SO_PEERPIDFD"))?;
    let mut header = [0u8; 16];
    let (len, mut fds) = receive_batch(&connection, &mut header)?;
    let word = |at: usize| {
        header.get(at..at + 4).and_then(|it| it.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    if len != header.len() || header.get(..4) != Some(&MAGIC) {
        return Err(TakeOverError::BadState("no header".to_owned()));
    }
    if word(4) != VERSION {
        return Err(TakeOverError::Version { ours: VERSION, theirs: word(4) });
    }
    let expected = word(8) as usize;
    let blob = fds.pop().ok_or_else(|| TakeOverError::BadState("no state".to_owned()))?;
    let state = read_state(&blob)?;
    let mut all = Vec::new();
    while all.len() < expected {
        rustix::net::send(&connection, GO_ON, SendFlags::NOSIGNAL).map_err(gone_or("go on"))?;
        let (_, fds) = receive_batch(&connection, &mut [0u8; 16])?;
        if fds.is_empty() {
            return Err(TakeOverError::BadState(format!(
                "{} of {expected} descriptors",
                all.len()
            )));
        }
        all.extend(fds.into_iter().map(|fd| Some(Arc::new(fd))));
    }
    Ok(Inherited { state, fds: all, taken: Some(Taken { connection, predecessor }) })
}

fn gone_or(call: &'static str) -> impl Fn(Errno) -> TakeOverError {
    move |errno| match errno {
        Errno::PIPE | Errno::CONNRESET => TakeOverError::NoDaemon,
        errno => TakeOverError::System { call, errno },
    }
}

fn read_state(blob: &Fd) -> Result<State, TakeOverError> {
    let system = |errno| TakeOverError::System { call: "read the state", errno };
    let len = rustix::fs::fstat(blob).map_err(system)?.st_size as usize;
    let mut bytes = vec![0u8; len];
    let mut at = 0;
    while at < len {
        match rustix::io::pread(blob, bytes.get_mut(at..).unwrap_or_default(), at as u64) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(errno) => return Err(system(errno)),
        }
    }
    postcard::from_bytes(&bytes).map_err(|error| TakeOverError::BadState(error.to_string()))
}

fn receive_batch(socket: &Fd, bytes: &mut [u8]) -> Result<(usize, Vec<Fd>), TakeOverError> {
    if !is_readable(socket, PATIENCE) {
        return Err(TakeOverError::System { call: "wait for the daemon", errno: Errno::TIMEDOUT });
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(gone_or("receive"))?;
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received.map(Fd::from));
        }
    }
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        // Too few descriptors left in this process.
        return Err(TakeOverError::System { call: "receive descriptors", errno: Errno::MFILE });
    }
    if message.bytes == 0 {
        return Err(TakeOverError::NoDaemon);
    }
    Ok((message.bytes, fds))
}

fn send_batch(socket: &Fd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

/// Waits for a word of the successor.
fn expect(socket: &Fd, word: &[u8]) -> rustix::io::Result<()> {
    if !is_readable(socket, PATIENCE) {
        return Err(Errno::TIMEDOUT);
    }
    let mut bytes = [0u8; 16];
    let (len, _) = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
    match bytes.get(..len) {
        Some([]) => Err(Errno::CONNRESET),
        Some(said) if said == word => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

impl Broker {
    /// Hands everything to the client `id`, which has asked for it. `true` when it has taken it: this
    /// process must not touch a client any more.
    pub(crate) fn hand_over(&mut self, id: ClientId) -> bool {
        let Some(socket) = self.clients.get(&id).and_then(|it| it.socket.try_clone().ok()) else {
            return false;
        };
        // The successor's own connection is not part of what it takes.
        self.doom(id, crate::broker::Doom::Successor);
        self.bury();
        self.leave_examinations();
        self.leave_opening();
        let taken = match self.try_hand_over(&socket) {
            Ok(()) => true,
            Err(errno) => {
                // From here on it cannot say *taken*; it may have said it just before.
                let _ = rustix::net::shutdown(&socket, Shutdown::Both);
                let taken = expect(&socket, TAKEN).is_ok();
                if !taken {
                    tracing::warn!(%errno, "the successor did not take over; going on");
                    // It may have made itself the one that clients see.
                    if let Err(errno) = self.listener.adopt() {
                        tracing::warn!(%errno, "cannot listen again");
                    }
                }
                taken
            }
        };
        // First of all: the successor waits for the address.
        if taken && let Some(network) = &self.network {
            network.leave();
        }
        taken
    }

    fn try_hand_over(&self, socket: &Fd) -> rustix::io::Result<()> {
        let (state, fds) = self.state();
        let bytes = postcard::to_stdvec(&state).map_err(|_| Errno::OVERFLOW)?;
        let blob = memory_file("vmmcd-state", &bytes)?;
        let mut header = Vec::with_capacity(16);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((fds.len() as u32).to_le_bytes());
        header.extend(0u32.to_le_bytes());
        send_batch(socket, &header, &[blob.as_fd()])?;
        for batch in fds.chunks(BATCH) {
            expect(socket, GO_ON)?;
            send_batch(socket, &(batch.len() as u32).to_le_bytes(), batch)?;
            hit(Failpoint::TakeoverHalfSent);
        }
        hit(Failpoint::TakeoverSent);
        expect(socket, TAKEN)
    }
}
