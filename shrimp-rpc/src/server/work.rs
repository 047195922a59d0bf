//! The threads that serve.

use super::Shared;
use super::call::{self, Desk, Far, ServerCall};
use super::poll::Poll;
use super::post::Post;
use super::slot::{Ready, Slot, Step};
use crate::error::{DispatchError, Fault, ReplyError};
use crate::layout::{FlagWord, Status};
use crate::pace::time_of;
use crate::process::count;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use vmmc::Look;
use vmmc::config::WaitPolicy;
use vmmc::counters::index;
use vmmc::error::WaitError;
use vmmc::sync::{AtomicU32, MutexGuard, Ordering};
use vmmc::sys::sched::current_cpu;
use vmmc::wait::{self, Spun};
use vmmc::word::Word;
use vmmc::word::arm::{Ringer, Sleeper};

/// Calls between two looks at the door while the server never sleeps.
const CALLS_PER_DISPATCH: u32 = 64;

/// How often the deputy looks whether the poller is stuck in a handler, and how long a handler may take,
/// about, before others take over.
const PATROL: Duration = Duration::from_millis(1);

/// Who polls, and who could.
///
/// One thread polls, and runs the handlers of what it finds. While it is in a handler it does not hold
/// the lock of the poll, so another may take over: the **deputy**, one of the threads that do not
/// poll, looks every millisecond whether the poller has been in one and the same handler since it
/// looked before, and if so becomes the poller. The former one finds the lock taken when its
/// handler returns, and joins those who wait. So handlers that block keep nobody waiting as long as there are
/// threads, and short handlers pay one store for it. While nothing is served the deputy sleeps; it is
/// woken by the arm-and-sleep handshake ([`vmmc::word::arm`]) of the next call.
#[derive(Debug)]
pub(super) struct Staff {
    sleeper: Sleeper<Armed>,
    ringer: Ringer<Armed>,
    lounge: Mutex<Lounge>,
    change: Condvar,
}

/// The deputy's armed word, which both ends of the handshake hold.
#[derive(Clone, Debug, Default)]
struct Armed(Arc<AtomicU32>);

impl Word for Armed {
    type Value = u32;
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.0.compare_exchange(current, new, success, failure)
    }
}

#[derive(Debug, Default)]
struct Lounge {
    /// Somebody patrols.
    deputy: bool,
    /// The deputy was rung for.
    rung: bool,
    stop: bool,
}

impl Staff {
    pub(super) fn new() -> Staff {
        let armed = Armed::default();
        Staff {
            sleeper: Sleeper::new(armed.clone()),
            ringer: Ringer::new(armed),
            lounge: Mutex::default(),
            change: Condvar::new(),
        }
    }

    fn lounge(&self) -> std::sync::MutexGuard<'_, Lounge> {
        self.lounge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server ends.
    pub(super) fn wake_all(&self) {
        self.lounge().stop = true;
        self.change.notify_all();
    }

    /// Leaves the poll for a handler, and tells the deputy, if it sleeps.
    #[inline]
    fn leave(&self, post: &Post<Poll>, poll: MutexGuard<'_, Poll>) {
        post.leave(poll);
        if self.ringer.must_ring() {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        self.lounge().rung = true;
        self.change.notify_all();
    }

    /// Waits until the poll is to be taken over, and takes it.
    fn relieve<'p>(&self, post: &'p Post<Poll>) -> Option<MutexGuard<'p, Poll>> {
        let mut lounge = self.lounge();
        while lounge.deputy && !lounge.stop {
            lounge = self.change.wait(lounge).unwrap_or_else(PoisonError::into_inner);
        }
        lounge.deputy = true;
        let mut seen = post.steps();
        let mut idle = 0;
        let taken = loop {
            if lounge.stop {
                break None;
            }
            // No call since several patrols: sleep until one comes.
            if idle > 3 {
                lounge.rung = false;
                self.sleeper.arm();
                while post.steps() == seen && !lounge.rung && !lounge.stop {
                    lounge = self.change.wait(lounge).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleeper.disarm();
            }
            let waited = self.change.wait_timeout(lounge, PATROL);
            lounge = waited.unwrap_or_else(PoisonError::into_inner).0;
            let now = post.steps();
            if Post::<Poll>::is_deserted(seen, now)
                && let Some(poll) = post.try_take()
            {
                break Some(poll);
            }
            idle = if now == seen { idle + 1 } else { 0 };
            seen = now;
        };
        lounge.deputy = false;
        self.change.notify_all();
        taken
    }
}

/// What a wait found.
enum Found {
    /// Number of the hot slot, and its flag; at the first looks, which is still to be counted.
    AtOnce(usize, u64),
    /// The same, later.
    Message(usize, u64),
    /// Slots came or went, or the server ends.
    Change,
}

pub(super) fn worker(shared: &Arc<Shared>) {
    // Of the client served last; often it is the next one too.
    let mut desk: Option<Desk> = None;
    let alone = shared.settings.workers == 1;
    let mut slept = false;
    let mut last = None; // bytes of the message that a call was run for just now
    let mut calls = 0u32;
    let mut held = shared.post.try_take();
    while !shared.is_stopping() {
        if held.is_none() {
            desk = None; // the wait may be long, and the client be gone before it ends
        }
        let Some(mut poll) = held.take().or_else(|| shared.staff.relieve(&shared.post)) else {
            return;
        };
        // Before each look: where every look finds a message, nothing else would come to it.
        if shared.has_changed() {
            change(shared, &mut poll);
            // Nothing of a client that has gone is kept.
            desk = desk.filter(|desk: &Desk| desk.slot().is_open());
        }
        poll.heed_cold(&shared.node);
        let found = next(shared, &mut poll, &mut slept, desk.as_ref().zip(last.take()));
        let at_once = matches!(found, Some(Found::AtOnce(..)));
        match found {
            Some(Found::AtOnce(hot, word) | Found::Message(hot, word)) => {
                let taken = poll.slot(hot).and_then(|slot| take(shared, &mut desk, slot, word));
                let served = u64::from(taken.is_some());
                last = taken.is_some().then(|| FlagWord::len_of(word));
                // The books are kept when the reply has been sent: nobody waits for them then.
                held = match taken {
                    Some((desk, far)) if alone => {
                        run(shared, desk, far);
                        poll.note(hot);
                        Some(poll)
                    }
                    Some((given, far)) => {
                        poll.note(hot);
                        shared.staff.leave(&shared.post, poll);
                        run(shared, given, far);
                        // If it was taken meanwhile, another polls now.
                        let held = shared.post.try_take();
                        if !given.slot().is_open() {
                            desk = None; // the other one may have heard of that
                        }
                        held
                    }
                    None => {
                        poll.note(hot);
                        Some(poll)
                    }
                };
                let tally = shared.node.counters().tally();
                tally.add(index::SPIN_HITS, u64::from(at_once));
                tally.add(count::SERVED, served);
                calls = calls.wrapping_add(1);
                if calls.is_multiple_of(CALLS_PER_DISPATCH) {
                    shared.node.dispatch();
                }
            }
            Some(Found::Change) => held = Some(poll),
            None => return,
        }
    }
}

/// How long a server that was woken for a call looks for the next one, at least. The client that rang is
/// likely to sleep too by the time it is answered: with a budget shorter than its wake-up both
/// would go on to sleep at every call.
const LINGER: Duration = Duration::from_micros(120);

/// The longest that a server looks for the next call of a client that has much data.
const MUCH_DATA: Duration = Duration::from_millis(1);

/// How long the client whose call was run just now is busy with its data before it can call again: it takes the results out and puts
/// the next arguments in, of as many bytes if they are alike. None where it waits for a reply that is put off, or needs our
/// processor. (A call or reply in pieces has its client come for the next one sooner.)
fn time_at_client((desk, request): (&Desk, usize)) -> Duration {
    if desk.is_put_off() {
        return Duration::ZERO;
    }
    let time = (time_of(request) + time_of(desk.bytes_of_results())).min(MUCH_DATA);
    let shares = || desk.slot().reply_buffer().import().peer_was_on(current_cpu());
    if time.is_zero() || shares() { Duration::ZERO } else { time }
}

/// The next thing to do, found without waiting for long: kept apart so that a call reaches its handler in
/// registers.
#[inline(always)]
fn next(
    shared: &Shared,
    poll: &mut MutexGuard<'_, Poll>,
    slept: &mut bool,
    last: Option<(&Desk, usize)>,
) -> Option<Found> {
    let look = || poll.look(Look::Quick, &shared.node);
    if let Some((hot, word)) = wait::glance(shared.node.wait_policy(), look) {
        *slept = false;
        return Some(Found::AtOnce(hot, word));
    }
    await_next(shared, poll, slept, last)
}

#[cold]
fn await_next(
    shared: &Shared,
    poll: &mut MutexGuard<'_, Poll>,
    slept: &mut bool,
    last: Option<(&Desk, usize)>,
) -> Option<Found> {
    let mut find = |look| {
        if let Some((hot, word)) = poll.look(look, &shared.node) {
            return Some(Found::Message(hot, word));
        }
        shared.has_changed().then_some(Found::Change)
    };
    let hybrid =
        matches!(shared.node.wait_policy(), WaitPolicy::Hybrid { budget } if !budget.is_zero());
    let linger = if std::mem::take(slept) { LINGER } else { Duration::ZERO };
    let budget = linger.max(last.map_or(Duration::ZERO, time_at_client));
    if hybrid && !budget.is_zero() {
        let policy = WaitPolicy::Hybrid { budget };
        if let Spun::Found(found) = wait::spin(policy, None, || false, || find(Look::Quick)) {
            return Some(found);
        }
    }
    let found = shared.node.wait_until(
        None,
        |_| false,
        |look| {
            *slept |= look == Look::Complete;
            find(look)
        },
    );
    match found {
        Ok(found) => Some(found),
        // It cannot sleep, and looks now and then: who calls would wait for ever.
        Err(WaitError::System(_)) => {
            std::thread::sleep(PATROL);
            Some(Found::Change)
        }
        Err(_) => None, // in a forked child there is nothing to serve
    }
}

#[cold]
fn change(shared: &Shared, poll: &mut MutexGuard<'_, Poll>) {
    shared.changed.store(false, Ordering::Relaxed);
    vmmc::sync::fence(Ordering::SeqCst);
    let fresh = std::mem::take(&mut *shared.fresh());
    for slot in fresh {
        poll.add(slot);
    }
    poll.forget_ended();
}

/// Takes a message; `Some` when it is a call to run, which is on the desk, but for arguments that came in pieces.
#[inline(always)]
fn take<'d>(
    shared: &Shared,
    last: &'d mut Option<Desk>,
    slot: &Arc<Slot>,
    word: u64,
) -> Option<(&'d Desk, Option<Box<Far>>)> {
    let (ready, far) = match slot.accept(word) {
        Some(ready) => (ready, None),
        None => take_rare(shared, slot, word).map(|(ready, far)| (ready, Some(far)))?,
    };
    if last.as_ref().is_some_and(|desk| !desk.is_of(slot)) {
        *last = None;
    }
    let desk = last.get_or_insert_with(|| Desk::new(slot.clone()));
    desk.renew(&ready);
    Some((desk, far))
}

/// Takes a message that is no whole call; `Some` when it completes one.
#[cold]
fn take_rare(shared: &Shared, slot: &Arc<Slot>, word: u64) -> Option<(Ready, Box<Far>)> {
    match slot.accept_rare(word) {
        Step::Call(ready, message) => Some((ready, Far::of(message))),
        Step::Done => None,
        Step::NoRoom(turn, full) => {
            let fault = Fault::with_text(0, full.to_string());
            let _ = call::send_fault(slot, turn, Status::NoRoom, &fault); // the client may have gone
            None
        }
        Step::TooLong(turn, len) => {
            let _ = call::send_too_long(slot, turn, len, slot.call_max); // as above
            None
        }
        Step::Faulty => {
            faulty(shared, slot);
            None
        }
    }
}

/// The client wrote what no client writes: it is not listened to any more.
#[cold]
fn faulty(shared: &Shared, slot: &Arc<Slot>) {
    slot.node().counters().add(count::FAULTY_PEERS, 1);
    slot.end();
    let key =
        shared.slots().iter().find(|(_, one)| Arc::ptr_eq(one, slot)).map(|(key, _)| key.clone());
    if let Some(key) = key {
        shared.tasks.push_end(key);
    }
}

/// Runs the handler of a call.
#[inline(always)]
fn run(shared: &Shared, desk: &Desk, far: Option<Box<Far>>) {
    let procedure = desk.context().procedure();
    let Some(program) = shared.programs.get(desk.slot().program) else {
        unreachable!("a slot is of one of the server's programs")
    };
    let call = ServerCall::new(desk, far);
    let dispatch = AssertUnwindSafe(|| (program.dispatch)(procedure, call));
    match catch_unwind(dispatch) {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => refuse(desk, &error),
        Err(_) => {
            let fault = Fault::new(Fault::PANICKED, "the handler panicked");
            refuse(desk, &DispatchError::Fault(fault));
        }
    }
}

/// Tells the client why there is no reply, unless there was one, or there will be: then two would answer, and the later one
/// would write over the reply to a later call.
#[cold]
fn refuse(desk: &Desk, error: &DispatchError) {
    let (slot, turn) = (desk.slot(), desk.turn());
    if desk.is_put_off() || !slot.is_unanswered(turn) {
        return;
    }
    let (status, fault) = match error {
        DispatchError::UnknownProcedure(_) => {
            (Status::UnknownProcedure, Fault::new(0, "no such procedure"))
        }
        DispatchError::BadArguments(error) => {
            (Status::BadArguments, Fault::with_text(0, error.to_string()))
        }
        DispatchError::Refused(text) => (Status::BadArguments, Fault::with_text(0, text.clone())),
        DispatchError::BadResults(error) => {
            (Status::BadResults, Fault::with_text(0, error.to_string()))
        }
        DispatchError::RefusedResults(text) => {
            (Status::BadResults, Fault::with_text(0, text.clone()))
        }
        DispatchError::Fault(fault) => (Status::Fault, fault.clone()),
        DispatchError::Reply(ReplyError::TooLong { len, max }) => {
            let _ = call::send_too_long(slot, turn, *len, *max); // the client may have gone
            return;
        }
        DispatchError::Reply(error) => (Status::BadResults, Fault::with_text(0, error.to_string())),
    };
    let _ = call::send_fault(slot, turn, status, &fault); // the client may have gone
}
