//! The parts of an engine that all its threads share.
//!
//! | file | what |
//! |---|---|
//! | `waiting` | how threads wait, and wake each other |
//! | `ends` | what ends the job, and links that end |
//! | `copying` | the sender's copies of a large message |

mod copying;
mod ends;
mod waiting;

pub(in crate::engine) use ends::is_wanted;
pub(in crate::engine) use waiting::LOOKS;

use super::counters as count;
use super::exchange;
use super::handlers::Handlers;
use super::handshake;
use super::layout;
use super::opening::Home;
use super::peer::{Own, Peer};
use super::peers::Peers;
use super::points::Point;
use super::settings::{SendMode, Settings};
use super::state::State;
use super::watch::Watch;
use crate::error::NxError;
use crate::job::Job;
use std::sync::{Arc, OnceLock};
use vmmc::Node;
use vmmc::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use vmmc::word::Word;
use vmmc::word::biased::Biased;

/// See [`super::Engine::on_failure`].
pub(in crate::engine) struct OnFailure(pub(in crate::engine) Box<dyn Fn(&NxError) + Send + Sync>);

/// See [`super::Engine::start_asking`].
pub(in crate::engine) struct OnRequest(
    pub(in crate::engine) Box<dyn Fn(u32, u32) -> bool + Send + Sync>,
);

impl std::fmt::Debug for OnRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRequest")
    }
}

impl std::fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnFailure")
    }
}

/// Set by the handlers of links when one ends.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct OnEnd(pub(in crate::engine) Arc<AtomicBool>);

impl OnEnd {
    /// What a link's handler calls.
    pub(in crate::engine) fn handler(&self) -> impl Fn(u32) + Send + Clone + 'static {
        let ended = self.0.clone();
        move |_| handshake::mark(&ended)
    }
}

/// What all threads of an engine share.
#[derive(Debug)]
pub(in crate::engine) struct Inner {
    pub(in crate::engine) job: Job,
    pub(in crate::engine) settings: Settings,
    /// Messages of fewer bytes take the short way, where they fit a slot.
    pub(in crate::engine) too_long: usize,
    /// Stride of the slots that we own.
    pub(in crate::engine) stride: usize,
    /// For threads that wait in calls.
    pub(in crate::engine) data: Node,
    /// For the progress thread.
    pub(in crate::engine) bell: Node,
    /// By process number; `None` is this process.
    pub(in crate::engine) peers: Peers,
    /// By what the links are named.
    pub(in crate::engine) own: Own,
    /// What links' handlers do when a link ends.
    pub(in crate::engine) on_end: OnEnd,
    cpus: usize,
    pub(in crate::engine) state: Biased<State>,
    pub(in crate::engine) handlers: Arc<Handlers>,
    pub(in crate::engine) watch: Watch,
    ptype: AtomicU32,
    /// Whether global operations may use cells: see [`super::global::has_cells`].
    pub(in crate::engine) cells: bool,
    /// Rounds of global operations begun.
    rounds: AtomicU32,
    /// `State::vain` is not empty.
    pub(in crate::engine) has_vain: AtomicBool,
    /// Counts completions that some thread may wait for.
    changes: AtomicU64,
    /// Threads waiting in calls.
    waiters: AtomicU32,
    /// Something ended the job; what, in `failure`.
    failed: AtomicBool,
    failure: Mutex<Option<NxError>>,
    /// Whether a process that ended without a word was ended on request.
    on_request: Option<OnRequest>,
    /// What the progress thread does about it.
    pub(in crate::engine) on_failure: OnceLock<OnFailure>,
    pub(in crate::engine) stop: AtomicBool,
    pub(in crate::engine) left: AtomicBool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

/// The parts that are there before the peers.
pub(in crate::engine) struct Parts {
    pub(in crate::engine) job: Job,
    pub(in crate::engine) settings: Settings,
    pub(in crate::engine) home: Home,
    pub(in crate::engine) peers: Peers,
    pub(in crate::engine) on_end: OnEnd,
    pub(in crate::engine) on_request: Option<OnRequest>,
}

impl Inner {
    pub(in crate::engine) fn new(parts: Parts) -> Inner {
        let Parts { job, settings, home, peers, on_end, on_request } = parts;
        let inner = Inner {
            too_long: match settings.send {
                SendMode::Automatic => settings.large.saturating_add(1),
                SendMode::Deliberate1 | SendMode::Deliberate2 => 0,
            },
            stride: settings.stride(peers.first()),
            cells: super::global::has_cells(job.size as usize, &job.hosts),
            ptype: AtomicU32::new(job.ptype.unwrap_or(super::types::INVALID_PTYPE) as u32),
            job,
            settings,
            data: home.data,
            bell: home.bell,
            own: home.own,
            state: Biased::new(State::new(peers.upto())),
            peers,
            handlers: Arc::default(),
            watch: Watch::default(),
            rounds: AtomicU32::new(0),
            has_vain: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            on_request,
            on_failure: OnceLock::new(),
            on_end,
            stop: AtomicBool::new(false),
            left: AtomicBool::new(false),
            cpus: vmmc::sys::process::online_processors(),
        };
        inner.data.counters().name_from(vmmc::counters::index::LIBRARY, count::NAMES);
        inner.count(count::LINKS, inner.peers().count() as u64);
        for peer in inner.peers() {
            inner.state.lock().expect_first(&inner, peer);
            peer.say_ptype(inner.ptype());
        }
        inner
    }

    #[inline]
    pub(in crate::engine) fn count(&self, counter: usize, amount: u64) {
        self.data.counters().add(counter, amount);
    }

    #[inline]
    pub(in crate::engine) fn ptype(&self) -> i32 {
        self.ptype.load(Ordering::Relaxed) as i32
    }

    pub(in crate::engine) fn set_ptype(&self, ptype: i32) {
        // Not while a process joins, which is told the type that was there.
        let mut state = self.state.lock();
        let before = self.changes();
        self.ptype.store(ptype as u32, Ordering::SeqCst);
        for peer in self.peers() {
            peer.say_ptype(ptype);
        }
        // Of a job that has ended the memory of receives is the program's again.
        if self.check().is_ok()
            && let Err(error) = state.match_anew(self)
        {
            self.fail(error);
        }
        self.changed(); // whoever waits in a receive looks again
        self.wake_others(state, before);
        self.fetch_rest();
    }

    /// Processes that the job began with.
    pub(in crate::engine) fn processes(&self) -> usize {
        self.peers.first()
    }

    /// More processes on this machine than processors: who waits had better sleep.
    #[inline]
    pub(in crate::engine) fn is_crowded(&self) -> bool {
        self.peers.here() > self.cpus
    }

    #[inline]
    pub(in crate::engine) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    #[inline]
    pub(in crate::engine) fn peer(&self, number: usize) -> Option<&Peer> {
        self.peers.get(number)
    }

    pub(in crate::engine) fn interrupt(&self, peer: &Peer) {
        self.count(count::INTERRUPTS, 1);
        peer.interrupt();
    }

    /// Interrupts a receiver whose handlers wait for messages, after it was rung for one.
    #[inline]
    pub(in crate::engine) fn interrupt_who_wants(&self, peer: &Peer) {
        // The fence of the ring is between what was said and this; the receiver sets the word,
        // and then looks for what was said after a fence of its own.
        // Over a network there is no such fence: a receiver that wants it watches (see `Watch`).
        if !peer.out.is_elsewhere() && peer.in32(layout::WANTS).load(Ordering::Relaxed) != 0 {
            self.interrupt(peer);
        }
    }

    /// Reaches a named point: see [`super::points`].
    #[inline]
    pub(in crate::engine) fn at(&self, point: Point) {
        self.settings.at(point, self.own.node);
    }

    /// The next round of global operations; never 0.
    pub(in crate::engine) fn next_round(&self) -> u32 {
        let next = |last| Some(exchange::next(last));
        let last = self.rounds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        exchange::next(last.unwrap_or_default())
    }

    /// Something completed that a thread may wait for.
    #[inline]
    pub(in crate::engine) fn changed(&self) {
        // Under the lock, as are the readers that count: no more than a load and a store.
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Release);
    }

    #[inline]
    pub(in crate::engine) fn has_news(&self) -> bool {
        self.peers().any(Peer::has_news)
    }

    /// What a thread that was interrupted does for a program that computes.
    pub(in crate::engine) fn serve_interrupt(&self) {
        let mut state = self.state.lock();
        let before = self.changes();
        if let Err(error) = state.interrupted(self) {
            self.fail(error);
        }
        self.wake_others(state, before);
        self.fetch_rest();
        self.state.lock().want_no_more(self);
    }

    /// Fetches what is ready of announced messages, for a program that computes. One step of it holds the lock at a time.
    pub(in crate::engine) fn fetch_rest(&self) {
        loop {
            let mut state = self.state.lock();
            if !state.can_fetch() || self.check().is_err() {
                return;
            }
            let before = self.changes();
            if let Err(error) = state.progress(self) {
                self.fail(error);
            }
            self.wake_others(state, before);
        }
    }
}
