//! Processes that join a job which has begun: another process type on a node.
//!
//! ```text
//!   who joins                                who is there
//!   reads in their doors which numbers have
//!   been given, first in that of who has
//!   started it; exports its own: has a number
//!   reads them again, and those of who came
//!   meanwhile: another number if somebody has
//!   met one that had this one
//!   exports its lanes, sets NEW in a door -> its progress thread looks for doors of numbers that it
//!                                            does not know, opens links, says "here"
//!   has heard "here" from all, says that
//!   it has joined
//! ```
//!
//! Who started the new process waits for that last word, so that whoever hears of the new one through
//! it can already send there.
//!
//! A number is never given again when somebody has met a process that had it, who would not look for it again. While a process
//! has a number the daemon gives it to nobody. Who has met it says in its own door that the number is given before it says
//! "here", and a process leaves in order when all whom it has met have said that. (The end of one that is killed ends all, unless
//! somebody asked for it: one that joins in that moment may get the same number, and wait in vain.)
//!
//! Several may join at once, on several hosts. Each exports its door before its last look for those of others: so of any two at
//! least one finds the other, and opens links with it before it waits for anybody. If only one does, the other had looked
//! before, and meets it once it has met all that it found itself. Nobody waits in a circle: whoever does not open links at
//! once had looked before the door was there that it is to look for next.

use super::door::{self, Door};
use super::given::Given;
use super::inner::{Inner, OnEnd};
use super::layout;
use super::opening::{Home, Nodes, Opening, set_up};
use super::peer::{Own, Peer};
use super::peers::Peers;
use super::points::Point;
use super::settings::Settings;
use crate::error::{NxError, StartError};
use crate::job::Late;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::{Duration, Instant};
use vmmc::control::message::Refusal;
use vmmc::error::{ImportError, WaitError};
use vmmc::sync::Ordering;
use vmmc::{Import, Node};

/// Numbers of one host without a door, which nobody is known to have met, that are passed over in the search for later ones: of
/// processes that gave them up, or left meanwhile.
const PASSED_OVER: usize = 4;

/// How often a thread that waits for another process looks whether that one has died.
const LOOK: Duration = Duration::from_millis(20);

/// How long to wait for others.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) deadline: Instant,
    pub(super) seconds: u64,
}

/// Who is there, for a process that joins, and who has been.
pub(super) struct Found {
    doors: BTreeMap<u32, Import>,
    given: Given,
    /// Of those that have been given, whose processes have left.
    left: BTreeSet<u32>,
}

/// Gives this process a number, and finds all who are there.
pub(super) fn take_number(
    home: &mut Home,
    late: Late,
    patience: Patience,
) -> Result<(Door, Found), StartError> {
    let Home { own, bell, .. } = home;
    let mut found = Found {
        doors: BTreeMap::new(),
        given: Given::none(own.numbers.limit()),
        left: BTreeSet::new(),
    };
    if let Late::Begun { by } = late
        && by < own.numbers.limit() as u32
        && let Some(door) = door_of(bell, own, by, Duration::ZERO)?
    {
        // It knows of all who have left: it is there until we have joined.
        found.doors.insert(by, door);
        found.hear(own.numbers.limit());
    }
    let mut begun = late != Late::Starting;
    let mut door = None;
    while Instant::now() < patience.deadline {
        let mine = door.as_ref().map(|_| own.number);
        found.search(bell, own, mine, begun, patience)?;
        // Who was there is there, or has left.
        begun = true;
        // What is new may be numbers of more processes, or ours: of one that has left, and that somebody has met.
        let news = found.hear(own.numbers.limit());
        let held = door.take_if(|_| !found.given.has(own.number as usize));
        match held {
            Some(door) if !news => return Ok((door, found)),
            Some(held) => door = Some(held),
            None => door = Some(free_number(bell, own, &found.given)?),
        }
        // Before the next look: who takes a number meanwhile hears it from us, if whoever knew it leaves.
        if let Some(door) = &door {
            for (at, &word) in found.given.words().iter().enumerate() {
                door.tell_given(at, word);
            }
        }
    }
    Err(StartError::Missing { node: own.node, seconds: patience.seconds })
}

/// Takes the first number of this host that was not given.
fn free_number(bell: &Node, own: &mut Own, given: &Given) -> Result<Door, StartError> {
    let numbers = own.numbers.clone();
    let free = |number: &u32| !given.has(*number as usize);
    for number in numbers.later(numbers.turn_of_host_of(own.node)).filter(free) {
        own.number = number;
        if let Some(door) = Door::open_if_free(bell, own)? {
            return Ok(door);
        }
    }
    Err(StartError::Full { limit: numbers.limit() })
}

impl Found {
    /// Which numbers have been given.
    pub(super) fn given(&self) -> &Given {
        &self.given
    }

    /// Looks for all who are there but this process, if it has a number yet.
    fn search(
        &mut self,
        bell: &Node,
        own: &Own,
        mine: Option<u32>,
        begun: bool,
        patience: Patience,
    ) -> Result<(), StartError> {
        // Who is there no more has left, or another one has the number next, which nobody had met: to be looked at again.
        self.doors.retain(|_, door| door.check_open().is_ok());
        let mut wait = Duration::ZERO;
        while let Some(missing) = self.look_for_known(bell, own, begun, wait)? {
            if Instant::now() >= patience.deadline {
                return Err(StartError::Missing { node: missing, seconds: patience.seconds });
            }
            // Others may have met it, and it has left since.
            self.hear(own.numbers.limit());
            wait = LOOK;
        }
        let Found { doors, given, .. } = self;
        let mut new = Vec::new();
        let look = |number| {
            if mine == Some(number) || doors.contains_key(&number) {
                return Some(None);
            }
            door_of(bell, own, number, Duration::ZERO).ok().flatten().map(Some)
        };
        let Ok(()) = find_unmet(
            own,
            given,
            || given.clone(),
            look,
            |number, door| {
                new.extend(door.map(|door| (number, door)));
                Ok::<_, Infallible>(())
            },
        );
        doors.extend(new);
        Ok(())
    }

    /// Looks for those that the job began with, each of them a while, and for those whom somebody has met, each once: there, or
    /// gone for good. One that may still come.
    fn look_for_known(
        &mut self,
        bell: &Node,
        own: &Own,
        begun: bool,
        wait: Duration,
    ) -> Result<Option<u32>, StartError> {
        let mut missing = None;
        for number in 0..own.numbers.limit() as u32 {
            let is_given = self.given.has(number as usize);
            if !(is_given || number < own.numbers.first())
                || self.doors.contains_key(&number)
                || self.left.contains(&number)
            {
                continue;
            }
            let wait = if is_given { Duration::ZERO } else { wait };
            match door_of(bell, own, number, wait)? {
                Some(door) => drop(self.doors.insert(number, door)),
                None if begun || is_given => drop(self.left.insert(number)),
                None => missing = missing.or(Some(number)),
            }
        }
        Ok(missing)
    }

    /// Takes from all who were found which numbers have been given; whether some were not known to be.
    fn hear(&mut self, limit: usize) -> bool {
        let mut news = false;
        for door in self.doors.values() {
            news |= self.given.hear(door::given(door, limit));
        }
        news
    }
}

/// The door of a process; `None` when it has none: it is gone, or not there yet.
fn door_of(
    bell: &Node,
    own: &Own,
    number: u32,
    wait: Duration,
) -> Result<Option<Import>, StartError> {
    match door::import(own, bell, number).timeout(wait).open() {
        Err(ImportError::Refused(Refusal::NoSuchExport { .. })) => Ok(None),
        opened => opened.map(Some).map_err(set_up("looking for a door")),
    }
}

/// Calls `meet` for each process of those that joined later, but for those that are `given`, which `look` finds, until it fails.
/// What others have `heard` to be given is asked for only where many are missing: those have left.
fn find_unmet<D, E>(
    own: &Own,
    given: &Given,
    heard: impl Fn() -> Given,
    look: impl Fn(u32) -> Option<D>,
    mut meet: impl FnMut(u32, D) -> Result<(), E>,
) -> Result<(), E> {
    let mut all_heard = None;
    for turn in own.numbers.turns() {
        let mut passed_over = Vec::new();
        for number in own.numbers.later(turn).filter(|&number| !given.has(number as usize)) {
            match look(number) {
                Some(door) => {
                    // Those before it were taken before: who was not there a moment ago is there now, or has left.
                    for number in passed_over.drain(..) {
                        look(number).map_or(Ok(()), |door| meet(number, door))?;
                    }
                    meet(number, door)?;
                }
                // Of this host, where ours was the first that was free.
                None if number < own.number && own.elsewhere(number).is_none() => {}
                None => passed_over.push(number),
            }
            if passed_over.len() > PASSED_OVER {
                let heard = all_heard.get_or_insert_with(&heard);
                passed_over.retain(|&number| !heard.has(number as usize));
                if passed_over.len() > PASSED_OVER {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Opens links with all who were found.
pub(super) fn meet_all(
    home: &Home,
    peers: &Peers,
    found: Found,
    on_end: &OnEnd,
    settings: &Settings,
    patience: Patience,
) -> Result<(), StartError> {
    let Home { own, data, bell } = home;
    let nodes = Nodes { data, bell };
    let stride = settings.stride(peers.first());
    let mut openings = VecDeque::new();
    for (number, door) in found.doors {
        let opening = Opening::start(nodes, own, number, stride, on_end.handler())?;
        door::call_to_meet(&door);
        settings.at(Point::Called, own.node);
        openings.push_back((opening, door));
    }
    // In whatever order they come: one that joins just now, too, may wait for our word before it answers somebody else.
    let mut in_vain = 0;
    while let Some((mut opening, door)) = openings.pop_front() {
        let wait = if in_vain > openings.len() { LOOK } else { Duration::ZERO };
        match await_peer(&mut opening, &door, wait, patience)? {
            Look::There => {
                if let Some(peer) = meet(opening, patience)? {
                    let number = peer.number as usize;
                    // Before it hears us and may leave: nobody has its number again then.
                    peers.add(peer);
                    if let Some(peer) = peers.get(number) {
                        peer.say_here();
                    }
                }
                in_vain = 0;
            }
            Look::Gone => in_vain = 0,
            Look::NotYet => {
                openings.push_back((opening, door));
                in_vain += 1;
            }
        }
    }
    peers.know(own.number as usize);
    for peer in peers.iter() {
        // Told by a ring, so that the thread sleeps; a peer that dies rings nobody here.
        while !peer.is_here() && peer.out.import().check_open().is_ok() {
            if Instant::now() >= patience.deadline {
                let (node, seconds) = (peer.node, patience.seconds);
                return Err(StartError::Missing { node, seconds });
            }
            let _ = data.wait_until(Some(LOOK), |_| true, |_| peer.is_here().then_some(()));
        }
    }
    Ok(())
}

/// What has become of a peer that is to open its links with us.
enum Look {
    There,
    NotYet,
    Gone,
}

/// Waits a while for a peer.
fn await_peer(
    opening: &mut Opening,
    door: &Import,
    wait: Duration,
    patience: Patience,
) -> Result<Look, StartError> {
    if opening.wait(wait)? {
        return Ok(Look::There);
    }
    if door.check_open().is_err() {
        return Ok(Look::Gone);
    }
    if Instant::now() >= patience.deadline {
        let (node, seconds) = (opening.number(), patience.seconds);
        return Err(StartError::Missing { node, seconds });
    }
    Ok(Look::NotYet)
}

/// The peer that is there; `None` when it has gone meanwhile.
fn meet(opening: Opening, patience: Patience) -> Result<Option<Peer>, StartError> {
    match opening.meet(patience.deadline, patience.seconds) {
        Err(StartError::Died { .. }) => Ok(None),
        met => met.map(Some),
    }
}

/// Waits for a peer; `None` when it has gone.
fn finish(
    mut opening: Opening,
    door: &Import,
    patience: Patience,
) -> Result<Option<Peer>, StartError> {
    loop {
        match await_peer(&mut opening, door, LOOK, patience)? {
            Look::There => return meet(opening, patience),
            Look::Gone => return Ok(None),
            Look::NotYet => {}
        }
    }
}

/// In the progress thread: opens links with those who have joined since.
pub(super) fn welcome(inner: &Inner) {
    let Inner { bell, own, peers, data, settings, .. } = inner;
    let seconds = settings.start_s;
    let nodes = Nodes { data, bell };
    let look = |number| door_of(bell, own, number, Duration::ZERO).ok().flatten();
    // Of those whom we have not met some may have met others, and have left.
    let heard = || {
        let mut given = peers.given();
        for peer in inner.peers().filter(|peer| peer.is_linked()) {
            given.hear(peer.given(own.numbers.limit()));
        }
        given
    };
    let Ok(()) = find_unmet(own, &peers.given(), heard, look, |number, door| {
        let patience =
            Patience { deadline: Instant::now() + Duration::from_secs(seconds), seconds };
        let opened = Opening::start(nodes, own, number, inner.stride, inner.on_end.handler())
            .and_then(|opening| finish(opening, &door, patience));
        // One that could not be met is its own loss: it will not hear "here", and say why.
        if let Ok(Some(peer)) = opened {
            add(inner, peer);
        }
        Ok::<_, Infallible>(())
    });
}

fn add(inner: &Inner, peer: Peer) {
    let number = peer.number as usize;
    let mut state = inner.state.lock();
    if inner.left.load(Ordering::Acquire) {
        // Whoever leaves says so to those whom it knows, and may have done it already.
        peer.out.say32(layout::BYE, layout::BYE_ORDERLY);
        peer.out.settle();
        drop(state);
        see_off(inner, &peer);
        return;
    }
    let before = inner.changes();
    state.make_pair(number);
    state.expect_first(inner, &peer);
    inner.peers.add(peer);
    if let Some(peer) = inner.peers.get(number) {
        // After it can be found by `set_ptype`, which has stored ours before.
        peer.say_ptype(inner.ptype());
        state.tell_wants(peer);
        inner.at(Point::Welcomed);
        peer.say_here();
    }
    inner.changed();
    inner.wake_others(state, before);
}

/// Waits for one that joins as this process leaves, until it knows this number for one that was given: nobody has it again
/// while the door is there. In a job that has failed nobody joins any more.
fn see_off(inner: &Inner, peer: &Peer) {
    let deadline = Instant::now() + Duration::from_secs(inner.settings.start_s);
    while matches!(inner.check(), Ok(()) | Err(NxError::NotStarted))
        && !peer.is_here()
        && peer.is_linked()
        && Instant::now() < deadline
    {
        let waited = inner.data.wait_until(Some(LOOK), |_| true, |_| peer.is_here().then_some(()));
        if waited.is_err_and(|error| !matches!(error, WaitError::TimedOut { .. })) {
            return;
        }
    }
}

/// See [`super::Engine::wait_for_all`].
pub(super) fn wait_for_all(inner: &Inner) -> Result<(), NxError> {
    let first = || inner.peers().filter(|peer| (peer.number as usize) < inner.processes());
    let all = || first().all(|peer| peer.is_here() || !peer.is_linked());
    while !all() {
        inner.check()?;
        let _ = inner.data.wait_until(Some(LOOK), |_| true, |_| all().then_some(()));
    }
    Ok(())
}

/// See [`super::Engine::wait_for_process`].
pub(super) fn wait_for_process(
    inner: &Inner,
    pid: u32,
    node: u32,
    alive: impl Fn() -> bool,
) -> Result<(), StartError> {
    let seconds = inner.settings.start_s;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let joined = || {
        let is_meant = |peer: &Peer| {
            peer.node == node && peer.out.import().exporter().pid == pid && peer.has_joined()
        };
        inner.peers().any(is_meant)
    };
    while !joined() {
        if Instant::now() >= deadline || !alive() {
            return Err(StartError::Missing { node, seconds });
        }
        let _ = inner.data.wait_until(Some(LOOK), |_| true, |_| joined().then_some(()));
    }
    Ok(())
}

/// The process of this one's group on another node. Waits for one that has not joined yet.
pub(super) fn partner(inner: &Inner, node: u32) -> Result<&Peer, NxError> {
    let find = || inner.peers().find(|peer| peer.node == node && peer.group == inner.own.group);
    let seconds = inner.settings.start_s;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(peer) = find() {
            return Ok(peer);
        }
        inner.check()?;
        if Instant::now() >= deadline {
            return Err(NxError::NoProcess { node, ptype: inner.own.group as i32 - 1, seconds });
        }
        let _ = inner.data.wait_until(Some(LOOK), |_| true, |_| find().map(drop));
    }
}
