//! What systemd wants to know, and what it hands over (sd_notify(3), sd_listen_fds(3)), by hand: a few
//! environment variables and datagrams.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmmc::sys::Fd;

/// What the service manager offers. Passes to a successor, which was not started by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Its socket (`NOTIFY_SOCKET`).
    socket: Option<Vec<u8>>,
    /// It expects a sign of life this often, in microseconds (`WATCHDOG_USEC`); 0: never.
    watchdog_us: u64,
    /// How many descriptors it keeps for us over a restart.
    store: u32,
}

/// The one in use.
static MANAGER: Mutex<Manager> = Mutex::new(Manager { socket: None, watchdog_us: 0, store: 0 });

fn lock() -> MutexGuard<'static, Manager> {
    MANAGER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// By the environment; `store` is the number of descriptors it is configured to keep.
    #[must_use]
    pub fn from_env(store: u32) -> Manager {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog_us = number("WATCHDOG_USEC").filter(|_| ours && socket.is_some()).unwrap_or(0);
        let store = if socket.is_some() { store } else { 0 };
        Manager { socket: socket.map(OsStringExt::into_vec), watchdog_us, store }
    }

    /// Uses this one from here on.
    pub fn use_it(self) {
        *lock() = self;
    }

    /// What a predecessor was offered goes for its successor too, as far as that was told nothing: it
    /// was started by the old daemon's service or by hand.
    pub fn inherit(self) {
        let mut now = lock();
        if now.socket.is_none() {
            now.socket = self.socket;
        }
        now.watchdog_us = now.watchdog_us.max(self.watchdog_us);
        now.store = now.store.max(self.store);
    }
}

/// The one in use; by default one that offers nothing.
#[must_use]
pub fn manager() -> Manager {
    lock().clone()
}

/// How many descriptors may be kept over a restart; 0 when none.
#[must_use]
pub fn store_size() -> usize {
    lock().store as usize
}

/// How often to send `WATCHDOG=1`: twice as often as the service manager expects it.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let us = lock().watchdog_us;
    (us > 0).then(|| Duration::from_micros(us / 2))
}

/// Tells the service manager something, such as `READY=1`. Nothing happens without one. Waits for room
/// while it is busy, for some seconds at most; then it is `false`.
pub fn send(state: &str) -> bool {
    send_flags(state, SendFlags::empty())
}

/// A sign of life. Never waits: the next one is as good.
pub fn feed_watchdog() {
    send_flags("WATCHDOG=1", SendFlags::DONTWAIT);
}

fn send_flags(state: &str, flags: SendFlags) -> bool {
    let Some(path) = manager().socket else { return true };
    match send_to(&path, state, None, flags) {
        Ok(()) => true,
        Err(errno) => {
            let path = String::from_utf8_lossy(&path);
            tracing::warn!(%errno, %path, "cannot notify the service manager");
            false
        }
    }
}

/// Gives a descriptor to the service manager to keep under a name, whatever becomes of its other end.
/// Waits for room.
///
/// # Errors
/// As sendmsg(2); `ENOTCONN` without a service manager.
pub fn store(name: &str, fd: impl AsFd) -> rustix::io::Result<()> {
    // Without FDPOLL=0 it would drop a socket as soon as the client hangs up.
    send_waiting(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), Some(fd.as_fd()))
}

/// Waits until the service manager has read all that it was told, for at most `patience`.
///
/// # Errors
/// `ETIMEDOUT`, or as sendmsg(2).
pub fn barrier(patience: Duration) -> rustix::io::Result<()> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    send_waiting("BARRIER=1", Some(write.as_fd()))?;
    drop(write);
    // It closes its copy when its turn has come.
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    let mut fds = [PollFd::new(&read, PollFlags::empty())];
    loop {
        match poll(&mut fds, Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno::TIMEDOUT),
            result => return result.map(drop),
        }
    }
}

fn send_waiting(state: &str, fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let socket = manager().socket.ok_or(Errno::NOTCONN)?;
    send_to(&socket, state, fd, SendFlags::empty())
}

fn send_to(
    path: &[u8],
    state: &str,
    fd: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let address = match path.split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
        Some((b'/', _)) => SocketAddrUnix::new(path)?,
        _ => return Err(Errno::INVAL),
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // A service manager that does not read must not keep us for ever.
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(Duration::from_secs(5)),
    )?;
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = [IoSlice::new(state.as_bytes())];
    let flags = SendFlags::NOSIGNAL | flags;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg_addr(&socket, &address, &bytes, &mut control, flags)
    })
    .map(drop)
}

/// Checks a socket that the service manager passed.
///
/// # Errors
/// When it is no listening `SOCK_SEQPACKET` Unix socket.
pub fn check_activated(passed: Fd) -> Result<Fd, String> {
    let is = |check: rustix::io::Result<bool>| check.unwrap_or(false);
    let good = is(rustix::net::sockopt::socket_domain(&passed).map(|d| d == AddressFamily::UNIX))
        && is(rustix::net::sockopt::socket_type(&passed).map(|t| t == SocketType::SEQPACKET))
        && is(rustix::net::sockopt::socket_acceptconn(&passed));
    if !good {
        return Err("descriptor 3 is not a listening SOCK_SEQPACKET Unix socket; \
                    the unit needs ListenSequentialPacket="
            .to_owned());
    }
    // The service manager's sockets may be blocking.
    rustix::io::ioctl_fionbio(&passed, true).map_err(|errno| format!("descriptor 3: {errno}"))?;
    Ok(passed)
}
