//! The conversation with the daemon: one connection per process, opened at the first offer. The
//! daemon is never started from here: `shrimp exec --rpc` has done so.

use crate::channel::{Channel, segment};
use crate::counters;
use crate::settings;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vmmc::control::Connection;
use vmmc::control::connect::LinkError;
use vmmc::control::message::{Event, Hello, Request, Role};
use vmmc::sync::{AtomicU32, Ordering};
use vmmc::sys::doorbell::Doorbell;
use vmmc::sys::{Fd, memfd};

/// Longest ring accepted from the daemon, bytes.
const MAX_RING: u32 = 64 << 20;
/// Our descriptor has a number from here on, out of the way of `select`.
const FLOOR: i32 = 512;
/// Those of bells from here on.
const BELLS: i32 = libc::FD_SETSIZE as i32;
/// How long a missing daemon is left alone.
const RETRY: Duration = Duration::from_secs(1);
/// Addresses that are remembered; then all are asked about anew.
const MOST_NEIGHBOURS: usize = 1024;

/// What the daemon said of a connection.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Both ends are ours.
    Channel(Box<Channel>),
    /// It stays with TCP.
    Plain,
}

#[derive(Debug, Default)]
struct Link {
    connection: Option<Connection>,
    /// The process that opened it: a forked child opens its own.
    owner: u32,
    not_before: Option<Instant>,
    /// Answers that came while another was waited for, by cookie.
    answers: HashMap<u64, Answer>,
    /// Connections that still wait for theirs.
    waiting: Vec<u64>,
    /// Whether connections to other nodes may be offered at all.
    carries: bool,
    /// Addresses that were asked about: whether they are other nodes'.
    neighbours: HashMap<IpAddr, (bool, Instant)>,
    /// A daemon that does not answer is not asked again before.
    silent_until: Option<Instant>,
}

static LINK: Mutex<Option<Link>> = Mutex::new(None);

fn link() -> MutexGuard<'static, Option<Link>> {
    LINK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

impl Link {
    fn hang_up(&mut self) {
        self.connection = None;
        self.answers.clear();
        self.waiting.clear();
        self.neighbours.clear();
        self.not_before = Some(Instant::now() + RETRY);
    }

    fn connection(&mut self) -> Option<&Connection> {
        if self.owner != own_pid() {
            // In a child: the parent's connection is not ours, nor what it waits for.
            if self.owner != 0 {
                counters::PAGE.after_fork();
            }
            *self = Link { owner: own_pid(), ..Link::default() };
        }
        if self.connection.is_none() && self.not_before.is_none_or(|at| Instant::now() >= at) {
            match open() {
                Some((connection, carries)) => {
                    (self.connection, self.carries) = (Some(connection), carries);
                }
                None => self.not_before = Some(Instant::now() + RETRY),
            }
        }
        self.connection.as_ref()
    }

    /// Notes one answer.
    fn heard(&mut self, incoming: Result<vmmc::control::connect::Incoming, LinkError>) -> bool {
        let (cookie, answer) = match incoming {
            Ok(mut incoming) => match incoming.event {
                Event::Paired { cookie, side, ring_len, .. } => {
                    let fds = (incoming.fds.take(), incoming.fds.take());
                    (cookie, attach(fds, side, ring_len).map_or(Answer::Plain, Answer::Channel))
                }
                Event::NotPaired { cookie, .. } => (cookie, Answer::Plain),
                Event::Neighbour { address, is } => {
                    if self.neighbours.len() >= MOST_NEIGHBOURS {
                        self.neighbours.clear();
                    }
                    self.neighbours.insert(address, (is, Instant::now()));
                    return true;
                }
                _ => return true,
            },
            Err(LinkError::WouldBlock) => return false,
            Err(_) => {
                self.hang_up();
                return false;
            }
        };
        if self.waiting.contains(&cookie) {
            self.waiting.retain(|&it| it != cookie);
            self.answers.insert(cookie, answer);
        }
        true
    }
}

impl Link {
    /// Takes what the daemon has said until `look` finds something in it. `None`: it has said no more.
    fn listen<T>(&mut self, look: impl Fn(&mut Link) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = look(self) {
                return Some(found);
            }
            let incoming = self.connection.as_ref()?.try_receive();
            if !self.heard(incoming) && self.connection.is_some() {
                return None;
            }
        }
    }
}

/// At load: the place for our descriptors, while the process has one thread. A program that has more at its first connection would wait
/// for it there.
pub(crate) fn make_room() {
    if settings::is_on() {
        vmmc::sys::fd::lengthen_table(BELLS);
    }
}

/// A conversation, and whether connections to other nodes may be offered in it.
fn open() -> Option<(Connection, bool)> {
    let config = &settings::get()?.config;
    let connection = Connection::open(config).ok()?;
    let socket = connection.into_fd();
    let connection = Connection::from_fd(socket.dup_above(FLOOR).unwrap_or(socket));
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program)
        .file_name()
        .map(|name| name.to_string_lossy().chars().take(15).collect())
        .unwrap_or_default();
    let page = counters::PAGE.share()?;
    let hello = Hello { role: Role::Rpc, program, resume: None };
    let welcome = connection.hello(hello, &[page.as_fd()]).ok()?;
    settings::set_wake_cost(welcome.wake_cost_ns);
    Some((connection, welcome.carries))
}

fn attach(fds: (Option<Fd>, Option<Fd>), side: u8, ring_len: u32) -> Option<Box<Channel>> {
    let (memory, bell) = (fds.0?, fds.1?);
    let page = u32::try_from(vmmc::sys::mmap::page_size()).ok()?;
    if !ring_len.is_power_of_two() || !(page..=MAX_RING).contains(&ring_len) || side > 1 {
        return None;
    }
    memfd::verify(&memory, segment::CONTROL_LEN as u64 + 2 * u64::from(ring_len)).ok()?;
    // One for each connection: the numbers that `select` can take are the sockets'.
    let bell = bell.dup_above(BELLS).unwrap_or(bell);
    Channel::attach(&memory, ring_len, side, bell).ok().map(Box::new)
}

/// Offers a connection to the daemon. Waits for nothing but the daemon's greeting, once. False:
/// there is no daemon.
pub(crate) fn register(socket: BorrowedFd<'_>, cookie: u64, bell: &Doorbell) -> bool {
    let mut guard = link();
    let link = guard.get_or_insert_default();
    let Some(connection) = link.connection() else { return false };
    let request = Request::RegisterSocket { cookie, shape: segment::SHAPE };
    match connection.try_send(&request, &[socket, bell.fd().as_fd()]) {
        Ok(()) => {
            link.waiting.push(cookie);
            true
        }
        Err(LinkError::WouldBlock) => false,
        Err(_) => {
            link.hang_up();
            false
        }
    }
}

/// Makes the daemon's acquaintance, so that `shrimp stat` shows what is counted here even if no
/// connection is ever offered. Once per process; without a daemon nothing happens.
pub(crate) fn appear() {
    // The process that has done so; a fork begins anew.
    static DONE: AtomicU32 = AtomicU32::new(0);
    let own = own_pid();
    if DONE.swap(own, Ordering::Relaxed) == own || !settings::is_on() {
        return;
    }
    link().get_or_insert_default().connection();
}

/// The daemon's answer about a connection, if it has come.
pub(crate) fn answer(cookie: u64) -> Option<Answer> {
    link().as_mut()?.listen(|link| {
        let answer = link.answers.remove(&cookie);
        // Else the daemon is gone, and the question with it.
        answer.or_else(|| (!link.waiting.contains(&cookie)).then_some(Answer::Plain))
    })
}

/// Shortest wait for the daemon's answer.
const LEAST_WAIT: Duration = Duration::from_secs(2);

/// For a server, which has accepted: waits for the daemon's answer, until the client speaks over its connection (or
/// ends it). How long a daemon that does not answer is waited for is the client's affair: who gives up before it
/// would leave it with a ring that nobody serves, and who does so after it, with calls that nobody reads.
pub(crate) fn wait_answer_or_client(cookie: u64, client: BorrowedFd<'_>) -> Answer {
    wait_for(None, Some(client), || answer(cookie)).unwrap_or_else(|| {
        forget(cookie);
        Answer::Plain
    })
}

/// Waits for the daemon's answer, a bounded time: on one machine it gives up earlier. Between nodes it may wait for the
/// other one's word; should that come too late for us, the connection ends.
pub(crate) fn wait_answer(cookie: u64) -> Answer {
    let pair = settings::get().map_or(Duration::from_secs(1), |settings| settings.config.pair);
    let deadline = Instant::now() + pair.saturating_mul(2).max(LEAST_WAIT);
    wait_for(Some(deadline), None, || answer(cookie)).unwrap_or_else(|| {
        forget(cookie);
        Answer::Plain
    })
}

/// How long a daemon's word holds: host names in its cluster file may be found later, or mean other addresses.
const NEIGHBOURS_STAY: Duration = Duration::from_secs(30);

/// Whether an address is that of another node to which the daemon carries connections. Asked once in a while for each
/// address; of a daemon that carries none, never.
pub(crate) fn is_neighbour(address: IpAddr) -> bool {
    let known = |link: &mut Link| {
        if !link.carries {
            return Some(false);
        }
        let (is, since) = *link.neighbours.get(&address)?;
        (since.elapsed() < NEIGHBOURS_STAY).then_some(is)
    };
    {
        let mut guard = link();
        let link = guard.get_or_insert_default();
        // After a daemon's end: this may be all that the process ever asks.
        if link.connection.is_none() || link.owner != own_pid() {
            link.connection();
        }
        if link.connection.is_none() {
            return false;
        }
        if let Some(is) = known(link) {
            return is;
        }
        let Some(connection) = &link.connection else { return false };
        if link.silent_until.is_some_and(|until| Instant::now() < until)
            || connection.try_send(&Request::Neighbour { address }, &[]).is_err()
        {
            return false; // asked again with the next connection
        }
    }
    let deadline = Some(Instant::now() + LEAST_WAIT);
    let heard = wait_for(deadline, None, || link().as_mut()?.listen(known));
    heard.unwrap_or_else(|| {
        if let Some(link) = link().as_mut() {
            link.silent_until = Some(Instant::now() + RETRY);
        }
        false
    })
}

/// Looks until there is something. `None`: the time is over, the other one has something to read, or the daemon is
/// gone.
fn wait_for<T>(
    deadline: Option<Instant>,
    other: Option<BorrowedFd<'_>>,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut other_speaks = false;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let fd = link().as_ref()?.connection.as_ref()?.as_fd().try_clone_to_owned().ok()?;
        // Another thread may take what is ours out for us meanwhile: look again soon.
        let soon = Duration::from_millis(20);
        let left = deadline.map_or(soon, |it| it.saturating_duration_since(Instant::now()));
        if left.is_zero() || other_speaks {
            return None;
        }
        let slice = left.min(soon);
        let timeout =
            rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(slice.subsec_nanos()) };
        let fd = fd.as_fd();
        let mut fds =
            [fd, other.unwrap_or(fd)].map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) => other_speaks = other.is_some() && !fds[1].revents().is_empty(),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// A connection is closed, or its answer no longer wanted.
pub(crate) fn forget(cookie: u64) {
    let mut guard = link();
    let Some(link) = guard.as_mut() else { return };
    link.waiting.retain(|&it| it != cookie);
    link.answers.remove(&cookie);
    if link.owner == own_pid()
        && let Some(connection) = &link.connection
    {
        let _ = connection.try_send(&Request::ForgetSocket { cookie }, &[]);
    }
}
