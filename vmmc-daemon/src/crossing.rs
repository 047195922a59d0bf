//! Proof that two sockets of different network namespaces are the ends of one connection.
//!
//! Within a namespace a live pair of addresses is unique, across namespaces it is not: anybody can make a namespace with
//! any addresses in it, and there a socket in any state, with any counts. What every user of a namespace can read of
//! another's socket (`sock_diag` gives the byte counts) or compute proves nothing either: initial sequence numbers and
//! timestamp offsets come of the addresses, the ports and keys that all namespaces share.
//!
//! So packets are followed. Each end's hop limit (IPv4: time to live) is set to numbers that nobody can foresee, one after the other,
//! and the packets that reach the namespace of the *other* end have to show them, both ways. No receiver minds a hop
//! limit (one that does, by `IP_MINTTL`, is left alone), no byte is added, and no tool shows it but to who may see the packets. Somebody who sees them can take a
//! connection over without us too.
//!
//! ```text
//!   socket a, namespace A                         socket b, namespace B
//!     its hop limit := 211     ----- packet ----->  tap in B: 211?
//!     tap in A: 94?            <---- packet -----   its hop limit := 94
//!     its hop limit := 152     ----- packet ----->  tap in B: 152?   ... [`ROUNDS`] times
//! ```
//!
//! The packets are those that the connection has anyway. Who forges the packets of one way, with `CAP_NET_RAW` in a
//! container beside it, does not see the other way's. Routers between the namespaces take one off each; the
//! first packet tells how many, and counts for nothing else.
//!
//! It takes rights in both namespaces (`CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_SYS_ADMIN`; `CAP_SYS_PTRACE` for the
//! processes' sockets), and is off unless asked for (`vmmcd --across-namespaces`).

use crate::broker::{Broker, BrokerError};
use crate::client::Client;
use crate::net::lock;
use crate::net::mailbox::Mailbox;
use crate::net::places::Places;
use crate::pairing::Offered;
use crate::pump::Process;
use crate::receive;
use crate::tcp::Endpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vmmc::control::message::NotPairedReason;
use vmmc::sys::Fd;
use vmmc::sys::namespace::{self, Tap};
use vmmc::sys::thread::spawn_quiet;

/// How long a connection has to show its packets.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it may take to see that the trial is not wanted any more: the daemon has the sockets meanwhile.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Numbers that have to be seen each way, beside the first. Of [`LIMITS`] each.
const ROUNDS: usize = 6;
/// Hop limits that are set: more than any default but the highest, so that even the first is told from what was before.
const LIMITS: std::ops::RangeInclusive<u8> = 70..=254;
/// Most routers between the two namespaces.
const MOST_HOPS: u8 = 4;
/// Trials at a time: all, and those that one user's offers began.
const MOST: (usize, usize) = (16, 4);

/// An end that is on trial. When it is not waited for any more, the trial ends.
#[derive(Debug)]
pub(crate) struct OnTrial(Arc<AtomicBool>);

impl Drop for OnTrial {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What became of one.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The ends, by cookie.
    ends: [u64; 2],
    /// Of this trial and no later one.
    wanted: Arc<AtomicBool>,
    proof: Result<(), &'static str>,
}

/// The trials of a daemon that makes them.
#[derive(Debug)]
pub(crate) struct Crossings {
    post: Arc<Mailbox<Verdict>>,
    places: (Places<()>, Places<u32>),
    changing: Arc<Changing>,
}

/// How many trials have changed hop limits and not given them back yet.
#[derive(Debug, Default)]
struct Changing {
    count: Mutex<usize>,
    none: Condvar,
}

impl Changing {
    fn begin(&self) -> InChange<'_> {
        *lock(&self.count) += 1;
        InChange(self)
    }

    /// Waits until there is none, but not for ever: the kernel may keep one waiting, for a process that stands in a call on its
    /// socket.
    fn settle(&self) {
        drop(self.none.wait_timeout_while(lock(&self.count), PATIENCE, |count| *count != 0));
    }
}

struct InChange<'a>(&'a Changing);

impl Drop for InChange<'_> {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.none.notify_all();
    }
}

impl Crossings {
    /// None yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(crate) fn new() -> rustix::io::Result<Crossings> {
        let places = (Places::new(MOST.0), Places::new(MOST.1));
        Ok(Crossings { post: Mailbox::new()?, places, changing: Arc::default() })
    }

    /// Readable when there are verdicts.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.post.as_fd()
    }
}

/// One end, as its thread has it.
struct End {
    cookie: u64,
    uid: u32,
    endpoint: Endpoint,
    holder: Process,
}

impl Broker {
    /// Pairs connections of which the ends are in different network namespaces, where it can be proved.
    ///
    /// # Errors
    /// As eventfd(2) and epoll_ctl(2).
    pub fn cross_namespaces(&mut self) -> Result<(), BrokerError> {
        let crossings = Crossings::new().map_err(crate::broker::system("eventfd"))?;
        self.watch_crossings(crossings.bell())?;
        self.crossings = Some(crossings);
        Ok(())
    }

    /// Puts two ends that wait, with mirrored addresses in different namespaces, on trial.
    pub(crate) fn try_crossing(&mut self, first: u64, second: u64) {
        let Some(crossings) = &self.crossings else { return };
        let (Some(one), Some(other)) =
            (self.pairing.waiting.get(&first), self.pairing.waiting.get(&second))
        else {
            return;
        };
        if [one, other].iter().any(|it| it.on_trial.is_some())
            || one.shape != other.shape
            || !self.options.limits.pair_users.allows(one.uid, other.uid)
        {
            return;
        }
        let end = |cookie, waiting: &crate::pairing::Waiting| {
            let holder = self.clients.get(&waiting.client).and_then(process)?;
            Some(End { cookie, uid: waiting.uid, endpoint: waiting.endpoint, holder })
        };
        let Some(ends) = end(first, one).zip(end(second, other)) else { return };
        let (all, users) = &crossings.places;
        let Some(places) = all.take(&()).zip(users.take(&other.uid)) else { return };
        let wanted = Arc::new(AtomicBool::new(true));
        let (post, still) = (crossings.post.clone(), wanted.clone());
        let changing = crossings.changing.clone();
        let started = spawn_quiet("crossing", move || {
            let ends = <[End; 2]>::from(ends);
            let proof = prove(&ends, &still, &changing);
            post.put(Verdict { ends: [first, second], wanted: still, proof });
            drop(places);
        });
        if let Err(errno) = started {
            tracing::warn!(%errno, "no thread to follow a connection between namespaces");
            return;
        }
        for cookie in [first, second] {
            if let Some(waiting) = self.pairing.waiting.get_mut(&cookie) {
                waiting.on_trial = Some(OnTrial(wanted.clone()));
            }
        }
    }

    /// Trials that have ended.
    pub(crate) fn hear_of_crossings(&mut self) {
        let Some(crossings) = &self.crossings else { return };
        for Verdict { ends, wanted, proof } in crossings.post.take() {
            let mut both = true;
            for cookie in &ends {
                // One that is gone may have been offered again.
                let waiting = self.pairing.waiting.get_mut(cookie);
                let end = waiting.map(|it| &mut it.on_trial).filter(|it| {
                    it.as_ref().is_some_and(|on_trial| Arc::ptr_eq(&on_trial.0, &wanted))
                });
                both &= end.map(Option::take).is_some();
            }
            match proof {
                Ok(()) if both => self.pair_proved(ends),
                Err(why) if both => {
                    tracing::debug!(cookies = ?ends, why, "not proved to be one connection");
                    for cookie in ends {
                        self.stop_waiting_socket(cookie, NotPairedReason::OtherNamespace);
                    }
                }
                // The one that is left waits on, for as long as ends wait.
                _ => {}
            }
        }
    }

    /// Before this process ends: the trials end, and every hop limit is the program's own again.
    pub(crate) fn leave_crossings(&mut self) {
        let Some(crossings) = &self.crossings else { return };
        for waiting in self.pairing.waiting.values_mut() {
            waiting.on_trial = None;
        }
        // Who comes later sees that nobody wants its trial.
        crossings.changing.settle();
    }

    fn pair_proved(&mut self, [first, second]: [u64; 2]) {
        let Some(waiting) = self.pairing.remove_waiting(second) else { return };
        self.timers.cancel(waiting.timer);
        let offered = Offered {
            client: waiting.client,
            uid: waiting.uid,
            cookie: second,
            endpoint: waiting.endpoint,
            shape: waiting.shape,
        };
        self.counters.add(crate::counters::Counter::Crossed);
        self.pair(first, offered, waiting.bell);
    }
}

fn process(client: &Client) -> Option<Process> {
    let pidfd = client.pidfd.try_clone().ok()?;
    Some(Process { pid: client.peer.pid as i32, pidfd })
}

/// The hop limit of what a socket sends, which is the program's own again when this is dropped.
struct HopLimit<'a> {
    socket: &'a Fd,
    v4: bool,
    before: u8,
    /// What was set last, if anything.
    last: Option<u8>,
}

impl HopLimit<'_> {
    fn new(socket: &Fd, v4: bool) -> Result<HopLimit<'_>, &'static str> {
        let before = namespace::hop_limit(socket, v4).map_err(|_| "a hop limit cannot be had")?;
        Ok(HopLimit { socket, v4, before, last: None })
    }

    fn set(&mut self, number: u8) -> Result<(), &'static str> {
        namespace::set_hop_limit(self.socket, self.v4, Some(number))
            .map_err(|_| "a hop limit cannot be set")?;
        self.last = Some(number);
        Ok(())
    }
}

impl Drop for HopLimit<'_> {
    fn drop(&mut self) {
        let now = || namespace::hop_limit(self.socket, self.v4).ok();
        // Untouched, or the program has set one meanwhile.
        if self.last.is_none() || now() != self.last {
            return;
        }
        let _ = namespace::set_hop_limit(self.socket, self.v4, None);
        // The default, unless the program had another.
        if now() != Some(self.before) {
            let _ = namespace::set_hop_limit(self.socket, self.v4, Some(self.before));
        }
    }
}

/// One direction of the connection.
struct Way<'a> {
    limit: HopLimit<'a>,
    /// In the namespace that its packets reach.
    tap: Tap,
    /// Routers between the namespaces.
    hops: u8,
}

/// The thread's work.
fn prove(ends: &[End; 2], wanted: &AtomicBool, changing: &Changing) -> Result<(), &'static str> {
    let [one, other] = ends;
    let find = |end: &End| end.holder.socket(end.uid, end.cookie);
    let Some(first) = find(one) else { return Err("the first end's socket cannot be had") };
    let Some(second) = find(other) else {
        receive::close(one.uid, first);
        return Err("the second end's socket cannot be had");
    };
    let sockets = [first, second];
    let proof = match namespace::of_thread() {
        Err(_) => Err("this thread's own namespace cannot be had"),
        Ok(home) => {
            let proof = follow(ends, &sockets, wanted, changing);
            // Threads that this one starts begin where it is.
            namespace::enter(&home).map_err(|_| "no way back").and(proof)
        }
    };
    for (socket, end) in sockets.into_iter().zip(ends) {
        receive::close(end.uid, socket);
    }
    proof
}

fn follow(
    [one, other]: &[End; 2],
    [first, second]: &[Fd; 2],
    wanted: &AtomicBool,
    changing: &Changing,
) -> Result<(), &'static str> {
    let deadline = Instant::now() + PATIENCE;
    let (there, here) = (tap(second, &other.endpoint)?, tap(first, &one.endpoint)?);
    let _changing = changing.begin();
    let v4 = one.endpoint.local.is_ipv4();
    let way = |from, tap| HopLimit::new(from, v4).map(|limit| Way { limit, tap, hops: 0 });
    let mut ways = [way(first, there)?, way(second, here)?];
    for _ in 0..=ROUNDS {
        for way in &mut ways {
            way.shows_a_number(deadline, wanted)?;
        }
    }
    Ok(())
}

/// Where packets reach a socket, which has this endpoint.
fn tap(to: &Fd, there: &Endpoint) -> Result<Tap, &'static str> {
    // A receiver that minds hop limits would throw packets away.
    if namespace::least_hop_limit(to, there.local.is_ipv4()) != Some(0) {
        return Err("an end takes packets of some hop limits only");
    }
    let place = namespace::of_socket(to).map_err(|_| "no right to a namespace")?;
    namespace::enter(&place).map_err(|_| "no right to enter a namespace")?;
    // A socket may be bound to an address that its namespace has not, and only passes packets on for.
    if !namespace::is_local(there.local) {
        return Err("an end has an address that is not its namespace's");
    }
    Tap::new(there.remote, there.local).map_err(|_| "no right to see packets")
}

impl Way<'_> {
    /// Sets a number that nobody knows, and waits for a packet with it.
    fn shows_a_number(
        &mut self,
        deadline: Instant,
        wanted: &AtomicBool,
    ) -> Result<(), &'static str> {
        let last = self.limit.last;
        let number = secret(last)?;
        // Before anything is changed, too.
        if !wanted.load(Ordering::Acquire) {
            return Err(GONE);
        }
        self.limit.set(number)?;
        loop {
            match (self.tap.next_hop_limit().map_err(|_| "packets cannot be seen")?, last) {
                (Some(seen), None) => {
                    // The first: older packets may be on their way.
                    if let Some(hops) = number.checked_sub(seen)
                        && hops <= MOST_HOPS
                    {
                        self.hops = hops;
                        break;
                    }
                }
                (Some(seen), Some(_)) if seen == number - self.hops => break,
                (Some(seen), Some(last)) if seen == last - self.hops => {}
                (Some(_), Some(_)) => return Err("a packet of another sender"),
                (None, _) if Instant::now() >= deadline => return Err("no packet came"),
                (None, _) => {
                    let _ = poll(&mut [PollFd::new(&self.tap, PollFlags::IN)], Some(&LOOK));
                }
            }
            if !wanted.load(Ordering::Acquire) {
                return Err(GONE);
            }
        }
        Ok(())
    }
}

const GONE: &str = "an end is gone";

/// A hop limit that nobody can foresee, other than the last.
fn secret(last: Option<u8>) -> Result<u8, &'static str> {
    loop {
        let mut byte = [0u8];
        rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| "no random numbers")?;
        let [number] = byte;
        if LIMITS.contains(&number) && Some(number) != last {
            return Ok(number);
        }
    }
}
