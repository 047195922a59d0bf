//! Sending a ring's unread bytes by TCP in the place of a process that makes no call.
//!
//! A process that hands its end of an upgraded connection to a program without the sockets
//! library (exec, descriptor passing, stdio) has stopped reading the ring; what it left there must
//! reach its kernel socket, and only the *other* end's socket can send it. When that end's
//! process makes no call, its holder cannot. So the daemon takes a descriptor of that socket out
//! of the process (`pidfd_getfd`, which the kernel permits to whoever may trace it: the same
//! user with no fewer capabilities, or who has `CAP_SYS_PTRACE`, which root has not where its bounding set lacks it; looking for
//! the socket in `/proc` takes the same), checks by `SO_COOKIE` that it is the right one, and sends. The protocol in the
//! segment is [`vmmc_ring::pump`].
//!
//! Each pump is a thread: the receiver may be slow to read, and the daemon waits for nobody. It
//! keeps the socket open until all is sent, so that a close by its process does not overtake the
//! bytes. A daemon that ends with nobody to go on waits for them a while ([`end_all`]). Two users have a
//! few at a time between their ends; more wait for their turn ([`crate::helpers`]). What cannot be done is
//! refused: the asker sees it in the segment and goes on without.

use crate::broker::Broker;
use crate::counters::Counter;
use crate::failpoint::{Failpoint, hit};
use crate::helpers::{Helpers, Holder, Work};
use crate::receive::{self, Suspect};
use crate::sayings::of_client;
use crate::tcp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vmmc::control::message::{StreamShape, StreamWords};
use vmmc::id::ClientId;
use vmmc::mem::View;
use vmmc::sys::Fd;
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::word::{MappedU32, MappedU64};
use vmmc_ring::pump::Words;
use vmmc_ring::switch::Switch;
use vmmc_ring::taken::Taken;

/// See [`tcp::send_for`].
type Kept<'m> = Taken<MappedU32<'m>>;

/// How long doorbells that are counted may take to reach the kernel.
const SETTLING: Duration = Duration::from_millis(500);
/// Bytes sent at a time.
const PART: usize = 16 * 1024;

/// Those that wait for their turn included.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How long a daemon that ends waits for its pumps.
const ENDING: Duration = Duration::from_secs(5);
/// How long they may take then to see that it does: each looks through the processes for others that have its socket.
const STOPPING: Duration = Duration::from_secs(10);
/// How often they look.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Pumps are to stop where they are.
static STOP: AtomicBool = AtomicBool::new(false);

/// Waits until every pump has sent its bytes: a daemon that leaves must not leave half of them.
pub fn wait_for_all() {
    wait(None);
}

/// The same for so long. Then the kernel is to take all that is left, whatever a receiver that stands still has read, and
/// delivers it without us. Where it may not take so much they stop where they are: it would end a stream whose last descriptor
/// is ours in order, and nobody could tell that it is cut off, so that one is reset. Whoever else has the socket goes on with it.
pub fn end_all() {
    if !wait(Some(ENDING)) {
        STOP.store(true, Ordering::Release);
        wait(Some(STOPPING));
    }
}

/// Whether none runs, at the end.
fn wait(limit: Option<Duration>) -> bool {
    let deadline = limit.map(|limit| Instant::now() + limit);
    while RUNNING.load(Ordering::Acquire) != 0 {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A process that may have a socket.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) pidfd: Fd,
}

impl Process {
    /// A copy of its descriptor of the socket with this cookie. The end is this user's.
    pub(crate) fn socket(&self, uid: u32, cookie: u64) -> Option<Fd> {
        let listing = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?;
        let numbers = listing.flatten().filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?;
            let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
            target.to_str()?.starts_with("socket:").then_some(number)
        });
        numbers.into_iter().find_map(|number| {
            let flags = PidfdGetfdFlags::empty();
            let copy = rustix::process::pidfd_getfd(&self.pidfd, number, flags).ok()?;
            let copy = Fd::from(copy);
            if tcp::cookie(copy.as_fd()) == Some(cookie) {
                return Some(copy);
            }
            receive::close(uid, copy);
            None
        })
    }
}

/// What a pump is to do.
struct Job {
    segment: Arc<Fd>,
    shape: StreamShape,
    ring_len: usize,
    words: StreamWords,
    /// Side that sends.
    sender: usize,
    /// The sender's socket.
    cookie: u64,
    holders: Vec<Process>,
    number: u64,
    /// The sender, and the asker.
    users: Holder,
}

impl Broker {
    /// [`vmmc::control::message::Request::PumpSocket`]. Possession of the socket is the right to
    /// its unread bytes.
    pub(crate) fn pump_socket(&mut self, id: ClientId, said: u64, socket: Option<Suspect>) {
        let examined = socket.as_ref().and_then(Suspect::look).and_then(tcp::cookie);
        drop(socket);
        let found = examined
            .filter(|&cookie| cookie == said)
            .and_then(|cookie| self.pairing.paired.get(&cookie).copied());
        let Some((number, receiver)) = found else {
            tracing::debug!(
                cookie = said,
                ?examined,
                "not a connection whose bytes can be given back"
            );
            return;
        };
        let Some(uid) = self.clients.get(&id).map(|client| client.peer.uid) else { return };
        let Some(pair) = self.pairing.pairs.get(&number) else { return };
        let sender = 1 - receiver;
        let Some(end) = pair.ends.get(sender) else { return };
        let words = pair.shape.words.and_then(|words| words.get(sender).copied());
        let Some(words) = words else { return };
        let holders = end.holders.iter().filter_map(|id| self.clients.get(id));
        let holders = holders.filter_map(|client| {
            let pidfd = client.pidfd.try_clone().ok()?;
            Some(Process { pid: client.peer.pid as i32, pidfd })
        });
        let job = Arc::new(Job {
            segment: pair.segment.clone(),
            shape: pair.shape,
            ring_len: pair.ring_len as usize,
            words,
            sender,
            cookie: end.cookie,
            holders: holders.collect(),
            number: self.incarnation,
            users: (end.uid, uid),
        });
        if !self.options.limits.pair_users.allows(uid, end.uid) {
            return job.refuse();
        }
        self.counters.add(Counter::Pumped);
        let pump = job.clone();
        let started = start(job.users, move || {
            let cookie = pump.cookie;
            match pump.run() {
                Ok(sent) => tracing::debug!(cookie, sent, "gave a connection's bytes back"),
                Err(why) => of_client(|untold| {
                    tracing::info!(cookie, why, untold, "cannot give a connection's bytes back");
                }),
            }
        });
        if !started {
            of_client(|untold| {
                tracing::warn!(
                    cookie = said,
                    untold,
                    "no thread to give a connection's bytes back"
                );
            });
            job.refuse();
        }
    }
}

/// Has a pump run between two users' ends, in its turn. False: there is no thread for it.
pub(crate) fn start(users: Holder, pump: impl FnOnce() + Send + 'static) -> bool {
    let started = helpers().put(users, counted(pump)).is_ok();
    if !started {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
    started
}

/// The same of one that cannot be refused: it waits until there is a thread.
pub(crate) fn leave(users: Holder, pump: impl FnOnce() + Send + 'static) {
    helpers().leave(users, counted(pump));
}

fn helpers() -> &'static Helpers {
    static PUMPS: OnceLock<Helpers> = OnceLock::new();
    PUMPS.get_or_init(|| Helpers::new("pump", 128 * 1024))
}

/// A pump that is running, as [`RUNNING`] counts, from now on.
fn counted(pump: impl FnOnce() + Send + 'static) -> Work {
    RUNNING.fetch_add(1, Ordering::AcqRel);
    Box::new(move || {
        pump();
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    })
}

impl Job {
    fn map(&self) -> Result<GuardedMapping, &'static str> {
        let len = self.shape.control_len as usize + 2 * self.ring_len;
        let mapping = GuardedMapping::new(&self.segment, len, Access::ReadWrite);
        mapping.map_err(|_| "the segment cannot be mapped")
    }

    /// Tells the asker that nothing comes of it.
    fn refuse(&self) {
        let Ok(mapping) = self.map() else { return };
        let tail = self.shape.produced_at.get(self.sender);
        if let Some(words) = tail.and_then(|&at| direction(View::of(&mapping), at, &self.words)) {
            words.give_up();
        }
    }

    fn run(&self) -> Result<u64, &'static str> {
        if STOP.load(Ordering::Acquire) {
            return Err("this daemon ends"); // the next one may be asked
        }
        let mapping = self.map()?;
        let view = View::of(&mapping);
        let ring = view
            .slice(self.shape.control_len as usize + self.sender * self.ring_len, self.ring_len)
            .map_err(|_| "the segment has another shape")?;
        let words = self.shape.produced_at.get(self.sender);
        let words = words.and_then(|&tail| direction(view, tail, &self.words));
        let words = words.ok_or("the segment has another shape")?;
        let Some(socket) = self.find_socket() else {
            words.give_up();
            return Err("no process that may be asked has the other end's socket");
        };
        let result = pump(&words, ring, socket.as_fd(), self.number);
        receive::close(self.users.0, socket);
        result
    }

    /// A descriptor of the sender's socket, from whichever holder has it, or from a process forked by
    /// one, which has told nobody.
    fn find_socket(&self) -> Option<Fd> {
        let socket = |holder: &Process| holder.socket(self.users.0, self.cookie);
        let known = self.holders.iter().find_map(socket);
        known.or_else(|| self.relatives().find_map(|holder| socket(&holder)))
    }

    /// Other processes that have the segment mapped. Its two ends' processes have, and whoever inherited
    /// it from one.
    fn relatives(&self) -> impl Iterator<Item = Process> {
        let segment = rustix::fs::fstat(&*self.segment).ok();
        let inode = segment.map_or(0, |stat| stat.st_ino).to_string();
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.filter_map(move |entry| {
            let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let maps = std::fs::read_to_string(entry.path().join("maps")).ok()?;
            // Address, rights, offset, device, inode, path.
            let has_segment = maps.lines().any(|line| {
                let mut words = line.split_ascii_whitespace().skip(4);
                words.next() == Some(inode.as_str())
                    && words.next().is_some_and(|path| path.starts_with("/memfd:"))
            });
            let pid = has_segment.then(|| rustix::process::Pid::from_raw(pid)).flatten()?;
            // Should the number mean another process by now, it has no socket with that cookie.
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some(Process { pid: pid.as_raw_nonzero().get(), pidfd: pidfd.into() })
        })
    }
}

/// The words of a direction; `None` where the segment ends before one of them. `tail` is the offset of the sender's position.
pub(crate) fn direction<'m>(
    view: View<'m>,
    tail: u32,
    words: &StreamWords,
) -> Option<Words<MappedU32<'m>, MappedU64<'m>>> {
    let word64 = |at: u32| view.word64(at as usize).ok();
    let word32 = |at: u32| view.word32(at as usize).ok();
    Some(Words {
        request: word32(words.request)?,
        switch: Switch {
            mode: word32(words.mode)?,
            prefix: word64(words.prefix)?,
            end: word64(words.end)?,
            bells: word64(words.final_bells)?,
        },
        tail: word64(tail)?,
        head: word64(words.consumed)?,
        bells: word64(words.bells)?,
        owed: word64(words.owed)?,
        pumped: word64(words.pumped)?,
        pumper: word64(words.pumper)?,
    })
}

/// Does the work, unless it is no longer wanted: the other end woke up, or the asker has thought better of it. Returns how
/// many bytes it sent.
fn pump(
    words: &Words<MappedU32<'_>, MappedU64<'_>>,
    ring: View<'_>,
    socket: BorrowedFd<'_>,
    number: u64,
) -> Result<u64, &'static str> {
    if words.claim(number) { give_back(words, ring, socket, None, false) } else { Ok(0) }
}

/// Sends what the ring's receiver has not taken, and ends the ring part. The caller has the claim. Blocks for as long
/// as the receiver does not read. Returns how many bytes it sent. `kept`: where an error of the connection is kept for the
/// process. `ends`: a FIN follows at once.
pub(crate) fn give_back(
    words: &Words<MappedU32<'_>, MappedU64<'_>>,
    ring: View<'_>,
    socket: BorrowedFd<'_>,
    kept: Option<Kept<'_>>,
    ends: bool,
) -> Result<u64, &'static str> {
    hit(Failpoint::PumpClaimed);
    let deadline = Instant::now() + SETTLING;
    let owed = loop {
        let Some(given) = tcp::given(socket) else {
            words.give_up();
            return Err("the other end has shut its sending side");
        };
        match words.settled(given) {
            Some(owed) => break owed,
            None if Instant::now() > deadline => {
                words.give_up();
                return Err("the kernel's count of what was sent does not fit");
            }
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    };
    let Some((mut from, mut to)) = words.begin(ring.len() as u64) else {
        words.give_up();
        return Err("the ring's positions cannot be true");
    };
    hit(Failpoint::PumpBegun);
    let begun = from;
    let alive = (0..owed).all(|_| send_all(socket, &[0], kept, ends));
    if alive {
        let mut part = vec![0; PART.min(ring.len())];
        loop {
            if !send_range(socket, ring, (&mut from, to), &mut part, (kept, ends)) {
                break;
            }
            hit(Failpoint::PumpSent);
            match words.finish(to) {
                Some(more) if more.wrapping_sub(from) <= ring.len() as u64 => to = more,
                _ => return Ok(from.wrapping_sub(begun)),
            }
        }
    }
    if STOP.load(Ordering::Acquire) {
        // Whoever has the socket finds by the kernel's count where to go on.
        if is_ours_alone(socket) {
            tcp::reset(socket, kept); // if it is still connected
        }
        return Err("this daemon ends");
    }
    // The connection is over: there is nobody to send anything to.
    let _ = words.finish(to);
    Ok(from.wrapping_sub(begun))
}

/// Sends ring bytes; false as [`send_all`].
fn send_range(
    socket: BorrowedFd<'_>,
    ring: View<'_>,
    (from, to): (&mut u64, u64),
    part: &mut [u8],
    (kept, ends): (Option<Kept<'_>>, bool),
) -> bool {
    let capacity = ring.len() as u64;
    while *from != to {
        let at = *from % capacity;
        let len = to.wrapping_sub(*from).min(capacity - at).min(part.len() as u64) as usize;
        let Some(bytes) = part.get_mut(..len) else { return false };
        if ring.read(at as usize, bytes).is_err() || !send_all(socket, bytes, kept, ends) {
            return false;
        }
        *from = from.wrapping_add(len as u64);
        hit(Failpoint::PumpHalfSent);
    }
    true
}

/// Whether no other process that we may look at has a socket.
fn is_ours_alone(socket: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(socket) else { return false };
    let name = PathBuf::from(format!("socket:[{}]", stat.st_ino));
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        (pid != std::process::id()).then(|| entry.path().join("fd"))
    });
    let has_it = |listing: PathBuf| {
        let mut fds = std::fs::read_dir(listing).into_iter().flatten().flatten();
        fds.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == name))
    };
    !others.any(has_it)
}

/// Sends bytes, however long it takes; false when the connection is over, or the daemon ends, and the kernel cannot be made
/// to take them. What that has taken it delivers without us.
fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8], kept: Option<Kept<'_>>, ends: bool) -> bool {
    while !bytes.is_empty() {
        match tcp::send_for(socket, bytes, kept, ends) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(Errno::AGAIN | Errno::NOBUFS) if STOP.load(Ordering::Acquire) => {
                let had_room =
                    tcp::send_room(socket).is_some_and(|room| room >= bytes.len() as u64);
                if had_room || !tcp::make_room(socket, bytes.len() as u64) {
                    return false;
                }
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                let _ = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&LOOK));
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
