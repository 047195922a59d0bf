//! Processes that join a job which has begun: another process type on a node.
//!
//! ```text
//!   who joins                                who is there
//!   exports its door: has a number
//!   exports its lanes, sets NEW in a door -> its progress thread looks for doors of numbers that it
//!                                            does not know, opens links, says "here"
//!   has heard "here" from all, says so
//! ```
//!
//! Who started the new process waits for that last word, so that whoever hears of the new one through
//! it can already send there. Links with a lower number are opened by the call of who joins; with a
//! higher one when that one calls.

use super::inner::{Inner, OnEnd};
use super::opening::{Home, Nodes, Opening, door_name};
use super::peer::{Own, Peer};
use super::peers::Peers;
use super::points::Point;
use super::settings::Settings;
use crate::error::{NxError, StartError};
use std::time::{Duration, Instant};
use vmmc::{Import, Node};

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

/// Opens links with every process whose number is lower. `begun`: those that the job began with are
/// there, or have left.
pub(super) fn meet_all(
    home: &Home,
    peers: &Peers,
    on_end: &OnEnd,
    settings: &Settings,
    begun: bool,
    patience: Patience,
) -> Result<(), StartError> {
    let nodes = Nodes { data: &home.data, bell: &home.bell };
    let stride = settings.stride(peers.first());
    for number in 0..home.own.number {
        let must_come = !begun && (number as usize) < peers.first();
        let left = patience.deadline.saturating_duration_since(Instant::now());
        let wait = if must_come { left } else { Duration::ZERO };
        let Some(door) = door(nodes.bell, &home.own, number, wait) else {
            match must_come {
                true => {
                    return Err(StartError::Missing { node: number, seconds: patience.seconds });
                }
                false => continue, // it has left
            }
        };
        let opening = Opening::start(nodes, &home.own, number, stride, on_end.handler())?;
        Peer::call_to_meet(&door);
        settings.at(Point::Called, home.own.node);
        if let Some(peer) = finish(opening, &door, patience)? {
            peers.add(peer);
        }
    }
    peers.know(home.own.number as usize);
    for peer in peers.iter() {
        // Told by a ring, so that the thread sleeps; a peer that dies rings nobody here.
        while !peer.is_here() && peer.out.import().check_open().is_ok() {
            if Instant::now() >= patience.deadline {
                let (node, seconds) = (peer.node, patience.seconds);
                return Err(StartError::Missing { node, seconds });
            }
            let _ = home.data.wait_until(Some(LOOK), |_| true, |_| peer.is_here().then_some(()));
        }
    }
    Ok(())
}

/// Waits for a peer; `None` when it has gone.
fn finish(
    mut opening: Opening,
    door: &Import,
    patience: Patience,
) -> Result<Option<Peer>, StartError> {
    while !opening.wait(LOOK)? {
        if door.check_open().is_err() {
            return Ok(None);
        }
        if Instant::now() >= patience.deadline {
            let (node, seconds) = (opening.number(), patience.seconds);
            return Err(StartError::Missing { node, seconds });
        }
    }
    opening.meet(patience.deadline, patience.seconds).map(Some)
}

/// In the progress thread: opens links with those who have joined since.
pub(super) fn welcome(inner: &Inner) {
    let seconds = inner.settings.start_s;
    while inner.peers.upto() < inner.peers.limit() {
        let number = inner.peers.upto() as u32;
        let Some(door) = door(&inner.bell, &inner.own, number, Duration::ZERO) else { return };
        let nodes = Nodes { data: &inner.data, bell: &inner.bell };
        let patience =
            Patience { deadline: Instant::now() + Duration::from_secs(seconds), seconds };
        let opened =
            Opening::start(nodes, &inner.own, number, inner.stride, inner.on_end.handler())
                .and_then(|opening| finish(opening, &door, patience));
        // One that could not be met is its own loss: it will not hear "here", and say why.
        let Ok(Some(peer)) = opened else { return };
        add(inner, peer);
    }
}

fn add(inner: &Inner, peer: Peer) {
    let number = peer.number as usize;
    let mut state = inner.state.lock();
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
    let joined =
        || inner.peers().any(|peer| peer.out.import().exporter().pid == pid && peer.is_here());
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
