//! Processes that join a job which has begun: another process type on a node.
//!
//! ```text
//!   who joins                                who is there
//!   exports its door: has a number
//!   exports its lanes, sets NEW in a door -> its progress thread looks for doors of numbers that it
//!                                            does not know, opens links, says "here"
//!   has heard "here" from all, says that
//!   it has joined
//! ```
//!
//! Who started the new process waits for that last word, so that whoever hears of the new one through
//! it can already send there.
//!
//! Several may join at once, on several hosts. Each exports its door before it looks for those of others: so of any two at
//! least one finds the other, and opens links with it before it waits for anybody. If only one does, the other had looked
//! before, and meets it once it has met all that it found itself. Nobody waits in a circle: whoever does not open links at
//! once had looked before the door was there that it is to look for next.

use super::inner::{Inner, OnEnd};
use super::layout;
use super::opening::{Home, Nodes, Opening, door_name};
use super::peer::{Own, Peer};
use super::peers::Peers;
use super::points::Point;
use super::settings::Settings;
use crate::error::{NxError, StartError};
use crate::job::Late;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use vmmc::sync::Ordering;
use vmmc::{Import, Node};

/// Numbers of one host without a door that are passed over in the search for later ones: of processes that came and left
/// meanwhile.
const PASSED_OVER: usize = 4;

/// How often a thread that waits for another process looks whether that one has died.
const LOOK: Duration = Duration::from_millis(20);

/// How long to wait for others.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) deadline: Instant,
    pub(super) seconds: u64,
}

/// The door of a process; `None` when it has none: it is gone, or not there yet.
fn door(bell: &Node, own: &Own, number: u32, wait: Duration) -> Option<Import> {
    own.import(bell, number, door_name(own, number)).timeout(wait).open().ok()
}

/// Calls `meet` for each process that joined later, is there, and is not known yet, until it fails. Numbers below `given`, and
/// those of this host below our own, have been given: one of them without a door was that of a process that has left.
fn find_later<E>(
    bell: &Node,
    own: &Own,
    peers: &Peers,
    given: u32,
    mut meet: impl FnMut(u32, Import) -> Result<(), E>,
) -> Result<(), E> {
    let look = |number| door(bell, own, number, Duration::ZERO);
    for numbers in peers.unknown() {
        let mut passed_over = Vec::new();
        for number in numbers.filter(|&number| number != own.number) {
            match look(number) {
                Some(door) => {
                    // Those before it were given before: who was not there a moment ago is there now, or has left.
                    for number in passed_over.drain(..) {
                        look(number).map_or(Ok(()), |door| meet(number, door))?;
                    }
                    meet(number, door)?;
                }
                None if number < given => {}
                None if number < own.number && own.elsewhere(number).is_none() => {}
                None if passed_over.len() == PASSED_OVER => break,
                None => passed_over.push(number),
            }
        }
    }
    Ok(())
}

/// Opens links with every process that is there.
pub(super) fn meet_all(
    home: &Home,
    peers: &Peers,
    on_end: &OnEnd,
    settings: &Settings,
    late: Late,
    patience: Patience,
) -> Result<(), StartError> {
    let Late { from, begun } = late;
    let Home { own, data, bell, .. } = home;
    let nodes = Nodes { data, bell };
    let stride = settings.stride(peers.first());
    let mut openings = VecDeque::new();
    let mut open = |number, door: Import| -> Result<(), StartError> {
        let opening = Opening::start(nodes, own, number, stride, on_end.handler())?;
        Peer::call_to_meet(&door);
        settings.at(Point::Called, own.node);
        openings.push_back((opening, door));
        Ok(())
    };
    for number in (0..own.numbers.first()).filter(|&number| number != own.number) {
        let left = patience.deadline.saturating_duration_since(Instant::now());
        match door(bell, own, number, if begun { Duration::ZERO } else { left }) {
            Some(door) => open(number, door)?,
            None if begun => {} // it has left
            None => return Err(StartError::Missing { node: number, seconds: patience.seconds }),
        }
    }
    find_later(bell, own, peers, from, &mut open)?;
    // In whatever order they come: one that joins just now, too, may wait for our word before it answers somebody else.
    let mut in_vain = 0;
    while let Some((mut opening, door)) = openings.pop_front() {
        let wait = if in_vain > openings.len() { LOOK } else { Duration::ZERO };
        match look(&mut opening, &door, wait, patience)? {
            Look::There => {
                if let Some(peer) = meet(opening, patience)? {
                    peer.say_here();
                    peers.add(peer);
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
    peers.know_all_below(from as usize);
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
fn look(
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
        match look(&mut opening, door, LOOK, patience)? {
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
    let Ok(()) = find_later(bell, own, peers, 0, |number, door| -> Result<(), Infallible> {
        let patience =
            Patience { deadline: Instant::now() + Duration::from_secs(seconds), seconds };
        let opened = Opening::start(nodes, own, number, inner.stride, inner.on_end.handler())
            .and_then(|opening| finish(opening, &door, patience));
        // One that could not be met is its own loss: it will not hear "here", and say why.
        if let Ok(Some(peer)) = opened {
            add(inner, peer);
        }
        Ok(())
    });
}

fn add(inner: &Inner, peer: Peer) {
    let number = peer.number as usize;
    let mut state = inner.state.lock();
    if inner.left.load(Ordering::Acquire) {
        // Whoever leaves says so to those whom it knows, and may have done it already.
        peer.out.say32(layout::BYE, layout::BYE_ORDERLY);
        peer.out.settle();
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
