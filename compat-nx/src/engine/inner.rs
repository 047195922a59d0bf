//! The parts of an engine, and how its threads wait and wake each other.

use super::counters as count;
use super::direct::Go;
use super::handlers::Handlers;
use super::layout;
use super::mem;
use super::ops::OpId;
use super::peer::{Bye, Own, Peer};
use super::peers::Peers;
use super::points::Point;
use super::settings::Settings;
use super::state::{Staging, State, Want};
use super::types::{Outcome, Source};
use super::watch::Watch;
use crate::error::NxError;
use crate::job::Job;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vmmc::config::WaitPolicy;
use vmmc::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use vmmc::wait::{self, Spun};
use vmmc::{Export, Node};

/// How long a thread gives its processor away before it sleeps, when there are more processes than
/// processors.
const YIELDING: Duration = Duration::from_micros(500);

/// See [`super::Engine::on_failure`].
pub(super) struct OnFailure(pub(super) Box<dyn Fn(&NxError) + Send + Sync>);

/// See [`super::Engine::start_asking`].
pub(super) struct OnRequest(pub(super) Box<dyn Fn(u32) -> bool + Send + Sync>);

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
pub(super) struct OnEnd(pub(super) Arc<AtomicBool>);

impl OnEnd {
    /// What a link's handler calls.
    pub(super) fn handler(&self) -> impl Fn(u32) + Send + Clone + 'static {
        let ended = self.0.clone();
        move |_| ended.store(true, Ordering::Release)
    }
}

/// What all threads of an engine share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) job: Job,
    pub(super) settings: Settings,
    /// Stride of the slots that we own.
    pub(super) stride: usize,
    /// For threads that wait in calls.
    pub(super) data: Node,
    /// For the progress thread.
    pub(super) bell: Node,
    pub(super) door: Export,
    /// By process number; `None` is this process.
    pub(super) peers: Peers,
    /// By what the links are named.
    pub(super) own: Own,
    /// What links' handlers do when a link ends.
    pub(super) on_end: OnEnd,
    cpus: usize,
    pub(super) state: Mutex<State>,
    pub(super) handlers: Arc<Handlers>,
    pub(super) watch: Watch,
    ptype: AtomicU32,
    /// Rounds of global operations begun.
    rounds: AtomicU32,
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
    pub(super) on_failure: OnceLock<OnFailure>,
    pub(super) stop: AtomicBool,
    pub(super) left: AtomicBool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

/// The parts that are there before the peers.
pub(super) struct Parts {
    pub(super) job: Job,
    pub(super) settings: Settings,
    pub(super) home: super::peer::Home,
    pub(super) peers: Peers,
    pub(super) on_end: OnEnd,
    pub(super) on_request: Option<OnRequest>,
}

impl Inner {
    pub(super) fn new(parts: Parts) -> Inner {
        let Parts { job, settings, home, peers, on_end, on_request } = parts;
        let inner = Inner {
            stride: settings.stride(peers.first()),
            ptype: AtomicU32::new(job.ptype.unwrap_or(super::types::INVALID_PTYPE) as u32),
            job,
            settings,
            data: home.data,
            bell: home.bell,
            door: home.door,
            own: home.own,
            state: Mutex::new(State::new(peers.upto())),
            peers,
            handlers: Arc::default(),
            watch: Watch::default(),
            rounds: AtomicU32::new(0),
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
    pub(super) fn count(&self, counter: usize, amount: u64) {
        self.data.counters().add(counter, amount);
    }

    #[inline]
    pub(super) fn ptype(&self) -> i32 {
        self.ptype.load(Ordering::Relaxed) as i32
    }

    pub(super) fn set_ptype(&self, ptype: i32) {
        self.ptype.store(ptype as u32, Ordering::SeqCst);
        for peer in self.peers() {
            peer.say_ptype(ptype);
        }
    }

    /// Processes that the job began with.
    pub(super) fn processes(&self) -> usize {
        self.peers.first()
    }

    /// More processes than processors: who waits had better sleep.
    fn is_crowded(&self) -> bool {
        self.peers.upto() > self.cpus
    }

    #[inline]
    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    #[inline]
    pub(super) fn peer(&self, number: usize) -> Option<&Peer> {
        self.peers.get(number)
    }

    pub(super) fn interrupt(&self, peer: &Peer) {
        self.count(count::INTERRUPTS, 1);
        peer.interrupt();
    }

    /// Reaches a named point: see [`super::points`].
    #[inline]
    pub(super) fn at(&self, point: Point) {
        if let Some(armed) = self.settings.failpoint {
            armed.reach(point, self.own.node);
        }
    }

    /// The next round of global operations; never 0.
    pub(super) fn next_round(&self) -> u32 {
        let next = |last: u32| last.checked_add(1).unwrap_or(1);
        let last =
            self.rounds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(next(it)));
        next(last.unwrap_or_default())
    }

    /// Something completed that a thread may wait for.
    #[inline]
    pub(super) fn changed(&self) {
        // Under the lock, as are the readers that count: no more than a load and a store.
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Release);
    }

    /// Ends the job for this process: every call that waits or comes answers `error`.
    #[cold]
    pub(super) fn fail(&self, error: NxError) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            *failure = Some(error);
            drop(failure);
            self.failed.store(true, Ordering::Release);
            self.data.wake_waiters();
            self.bell.wake_waiters();
        }
    }

    /// Ends the job with the error of a step of the protocol.
    #[inline]
    pub(super) fn or_fail<T>(&self, step: Result<T, NxError>) -> Result<T, NxError> {
        step.inspect_err(|error| self.fail(error.clone()))
    }

    /// What ended the job, if anything did.
    #[inline]
    pub(super) fn check(&self) -> Result<(), NxError> {
        if self.failed.load(Ordering::Relaxed) { self.failure() } else { Ok(()) }
    }

    /// Tells the program of a failure that no call of its may notice: it computes.
    pub(super) fn tell_failure(&self) {
        if let (Err(error), Some(OnFailure(tell))) = (self.check(), self.on_failure.get())
            && error != NxError::NotStarted
        {
            tell(&error);
        }
    }

    #[cold]
    fn failure(&self) -> Result<(), NxError> {
        match self.failure.lock().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks at links that ended: a peer that did not say bye has died.
    #[inline]
    pub(super) fn look_at_ends(&self) {
        if self.on_end.0.load(Ordering::Relaxed) {
            self.find_ends();
        }
    }

    #[cold]
    fn find_ends(&self) {
        self.on_end.0.store(false, Ordering::SeqCst);
        for peer in self.peers() {
            if peer.gone.load(Ordering::Relaxed) || peer.is_linked() {
                continue;
            }
            let bye = peer.bye();
            let on_request = || self.was_ended_on_request(peer);
            if bye == Some(Bye::Orderly) || (bye.is_none() && on_request()) {
                peer.gone.store(true, Ordering::Relaxed);
                self.data.wake_waiters();
            } else if !self.left.load(Ordering::Acquire) {
                let node = match bye {
                    // Nobody takes the blame from a peer's word for itself.
                    Some(Bye::Failed { culprit })
                        if culprit != self.own.node && culprit < self.processes() as u32 =>
                    {
                        culprit
                    }
                    _ => peer.node,
                };
                self.fail(NxError::PeerDied { node });
            }
        }
    }

    fn was_ended_on_request(&self, peer: &Peer) -> bool {
        // Process ids of another node are not those that we are told of.
        let asked = self.on_request.as_ref().filter(|_| !peer.out.is_elsewhere());
        asked.is_some_and(|asks| asks.0(peer.out.import().exporter().pid))
    }

    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.peers().any(Peer::has_news)
    }

    /// What a thread that was interrupted does for a program that computes.
    pub(super) fn serve_interrupt(&self) {
        let mut state = self.state.lock();
        let before = self.changes();
        if let Err(error) = state.interrupted(self) {
            self.fail(error);
        }
        state.want_no_more(self);
        self.wake_others(state, before);
    }

    fn shares_cpu(&self, cpu: u32) -> bool {
        self.is_crowded() || self.peers().take(4).any(|peer| peer.out.peer_was_on(cpu))
    }

    /// Waits until `done` finds something in the state; makes progress meanwhile.
    pub(super) fn wait<T>(
        &self,
        mut done: impl FnMut(&mut State) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        self.wait_turns(|state| {
            if let Err(error) = state.progress(self) {
                self.fail(error);
            }
            done(state)
        })
    }

    /// The same for a blocking receive: `found` is asked before and after each turn of progress.
    #[inline]
    pub(super) fn wait_for<T>(
        &self,
        want: &mut Want,
        mut found: impl FnMut(&mut State, &mut Want) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        self.wait_turns(|state| {
            if let Some(result) = found(state, want) {
                return Some(result);
            }
            if let Err(error) = state.progress_for(self, Some(want)) {
                self.fail(error);
            }
            match want.found {
                Some(_) => found(state, want),
                None => None,
            }
        })
    }

    #[inline]
    pub(super) fn wait_turns<T>(
        &self,
        mut turn: impl FnMut(&mut State) -> Option<Result<T, NxError>>,
    ) -> Result<T, NxError> {
        let mut state = self.state.lock();
        let mut before = self.changes.load(Ordering::Relaxed);
        let result = loop {
            if let Some(result) = turn(&mut state) {
                break result;
            }
            if let Err(error) = self.check() {
                break Err(error);
            }
            let seen = self.changes.load(Ordering::Relaxed);
            let starving = state.starving > 0;
            let waiters = self.waiters.load(Ordering::Relaxed);
            self.waiters.store(waiters + 1, Ordering::Relaxed);
            drop(state);
            if waiters > 0 && seen != before {
                self.data.wake_waiters(); // this thread did something for another, and goes on waiting
            }
            before = seen;
            let waited = self.sleep(seen, starving);
            state = self.state.lock();
            let waiters = self.waiters.load(Ordering::Relaxed);
            self.waiters.store(waiters - 1, Ordering::Relaxed);
            if let Err(error) = waited {
                break Err(error);
            }
        };
        self.wake_others(state, before);
        result
    }

    /// What this thread completed for others while it had the lock is told to them.
    #[inline]
    pub(super) fn wake_others(&self, state: vmmc::sync::MutexGuard<'_, State>, before: u64) {
        let others = self.waiters.load(Ordering::Relaxed) > 0
            && self.changes.load(Ordering::Relaxed) != before;
        drop(state);
        if others {
            self.data.wake_waiters();
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits for anything that the state should be looked at for.
    fn sleep(&self, seen: u64, starving: bool) -> Result<(), NxError> {
        let mut look = || {
            (self.has_news()
                || self.changes.load(Ordering::Acquire) != seen
                || self.on_end.0.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed))
            .then_some(())
        };
        let shares = |cpu| self.shares_cpu(cpu);
        if self.is_crowded() && self.data.wait_policy() != WaitPolicy::Block {
            // Whoever we wait for needs a processor: give it ours, which costs less than a
            // sleep and a wake-up as long as all make progress.
            let end = Instant::now() + YIELDING;
            while Instant::now() < end {
                if look().is_some() {
                    self.look_at_ends();
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        if starving {
            // Credits usually come by themselves; before sleeping for them, ask (N18, N19).
            let policy = match self.data.wait_policy() {
                WaitPolicy::Spin => WaitPolicy::Hybrid { budget: Duration::from_micros(50) },
                policy => policy,
            };
            let crowded = || self.is_crowded();
            match wait::spin(policy, None, crowded, &mut look) {
                Spun::Found(()) => {
                    self.look_at_ends();
                    return Ok(());
                }
                _ => self.state.lock().ask_all(self),
            }
        }
        self.data.wait_until(None, shares, |_| look())?;
        self.look_at_ends();
        Ok(())
    }

    /// Waits for an operation of this thread's and forgets it.
    pub(super) fn wait_op(&self, op: OpId) -> Result<Outcome, NxError> {
        self.wait(|state| state.ops.get(op).is_done().then(|| state.ops.remove(op).result))
    }

    /// Makes the safe copy of an announced message (N10), or sends from user memory as soon as the reply
    /// is there (N13). `may_lock`: the caller does not hold the state's lock.
    pub(super) fn stage(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        may_lock: bool,
    ) -> Result<(), NxError> {
        let staged = |word| peer.out.say64(layout::STAGED + 8 * staging.block as usize, word);
        let mut may_go = may_lock;
        // In at least four pieces, so that the receiver fetches while the rest is copied.
        let chunk = self.settings.stage_chunk.min((data.len / 4).max(4096));
        let mut done = 0;
        self.at(Point::ScoutWritten);
        while done < data.len {
            if may_go && let Some(go) = Go::read(peer, staging.block) {
                if self.send_direct(peer, staging, data, done, &go)? {
                    self.count(count::STAGED_BYTES, done as u64);
                    return Ok(());
                }
                may_go = false;
            }
            let part = mem::part(data, done, chunk);
            stage_part(staging, part, done);
            done += part.len;
            // PAIRS(staged): with the acquire in `fetch_some`.
            staged(done as u64);
            self.at(Point::StageHalf);
        }
        self.at(Point::Staged);
        peer.out.ring();
        self.count(count::STAGED_BYTES, done as u64);
        self.count(count::SAFE_COPIES, 1);
        Ok(())
    }

    /// Sends from user memory to user memory. False when the window is gone.
    fn send_direct(
        &self,
        peer: &Peer,
        staging: &Staging,
        data: Source,
        done: usize,
        go: &Go,
    ) -> Result<bool, NxError> {
        let Some(import) = self.state.lock().target(self, peer, go, data.len)? else {
            return Ok(false);
        };
        let staged = |word| peer.out.say64(layout::STAGED + 8 * staging.block as usize, word);
        // What lies outside whole pages of the receiver's buffer goes by the safe copy.
        let (first, len) = (go.first as usize, go.len as usize);
        for (from, to) in [(0, first), (first + len, data.len)] {
            if to > done {
                stage_part(staging, mem::part(data, from, to - from), from);
            }
        }
        staged(layout::STAGED_DIRECT | done as u64);
        self.at(Point::DirectBegun);
        let part = mem::part(data, first, len);
        // SAFETY: the operation is not complete before this returns.
        #[allow(unsafe_code)]
        let bytes = unsafe { mem::source(part) };
        if import.send(go.offset as usize, bytes).is_err() {
            staged(done as u64);
            return Ok(false);
        }
        self.at(Point::DirectWritten);
        let all = layout::STAGED_DIRECT | layout::STAGED_DONE | data.len as u64;
        // PAIRS(staged): with the acquire in `fetch_some`.
        staged(all);
        peer.out.ring();
        self.count(count::DIRECT, 1);
        self.count(count::DIRECT_BYTES, data.len as u64);
        Ok(true)
    }
}

/// Copies a part of a message to where it belongs in the safe copy.
fn stage_part(staging: &Staging, part: Source, at: usize) {
    // SAFETY: the operation is not complete before this returns.
    #[allow(unsafe_code)]
    let bytes = unsafe { mem::source(part) };
    if staging.export.view().write(staging.offset + at, bytes).is_err() {
        unreachable!("the place is as long as the message");
    }
}
