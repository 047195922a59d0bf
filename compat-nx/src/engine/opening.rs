//! How a process comes to its links: its door, and the lanes and doors of each peer.

use super::door;
use super::layout;
use super::numbers::Numbers;
use super::out::{self, OutLane};
use super::peer::{self, Bye, Own, Peer};
use crate::error::StartError;
use crate::job::Job;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use vmmc::{Export, Import, Node, PendingImport, Region, Who};

/// What a process has before it knows its peers.
pub(super) struct Home {
    pub(super) own: Own,
    pub(super) data: Node,
    pub(super) bell: Node,
}

pub(super) fn set_up<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::SetUp { what, reason: error.to_string() }
}

fn lane_name(own: &Own, writer: u32, owner: u32) -> String {
    format!("nx/{}/{writer}>{owner}", own.id)
}

impl Home {
    /// Who joins later has no number yet: that in `own` is its node's.
    pub(super) fn open(job: &Job, numbers: Numbers) -> Result<Home, StartError> {
        let data = Node::connect()?;
        let mut config = vmmc::Config::from_env().map_err(set_up("settings"))?;
        // The progress thread never spins: it would take the processor from the program.
        config.wait = vmmc::config::WaitChoice::Fixed(vmmc::config::WaitPolicy::Block);
        let bell = Node::builder().config(config).program("nx-progress").connect()?;
        let Job { node, token, .. } = *job;
        let ptype = job.late.and(job.ptype);
        let group = ptype.map_or(0, |ptype| ptype as u32 + 1);
        let own = Own { id: job.id.clone(), token, number: node, node, group, numbers };
        Ok(Home { own, data, bell })
    }
}

/// Our two connections to the daemon.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'h> {
    pub(super) data: &'h Node,
    pub(super) bell: &'h Node,
}

/// The links to one peer in the making.
pub(super) struct Opening {
    number: u32,
    lane: Export,
    out: PendingImport,
    door: Way,
}

/// The way to a peer's door.
enum Way {
    /// Wanted; `None` only while it is looked at.
    Wanted(Option<PendingImport>),
    There(Import),
}

/// How often who waits at the start looks whether somebody has died.
const LOOK: Duration = Duration::from_millis(20);

impl Opening {
    /// Exports our lane and starts importing the peer's. `ended` is called when the peer is gone, in
    /// a thread that waits or in the progress thread.
    pub(super) fn start(
        home: Nodes<'_>,
        own: &Own,
        peer: u32,
        stride: usize,
        ended: impl Fn(u32) + Send + Clone + 'static,
    ) -> Result<Opening, StartError> {
        let mut region =
            Region::new(layout::lane_len(stride)).map_err(set_up("memory of a lane"))?;
        let head: [(usize, &[u8]); 5] = [
            (layout::HEAD_MAGIC, &layout::MAGIC.to_ne_bytes()),
            (layout::HEAD_VERSION, &layout::VERSION.to_ne_bytes()),
            (layout::HEAD_STRIDE, &(stride as u32).to_ne_bytes()),
            (layout::HEAD_NODE, &own.node.to_ne_bytes()),
            (layout::HEAD_GROUP, &own.group.to_ne_bytes()),
        ];
        for (at, bytes) in head {
            region.write(at, bytes).map_err(set_up("head of a lane"))?;
        }
        let lane = home
            .data
            .export(region)
            .name(lane_name(own, peer, own.number))
            .grant(Who::SameUser, out::rights(own.elsewhere(peer).is_some()))
            .token(own.token)
            .open()
            .map_err(set_up("exporting a lane"))?;
        let on_end = move |ended: &(dyn Fn(u32) + Send), event| {
            if let vmmc::Event::Closed { .. } = event {
                ended(peer);
            }
        };
        let (one, other) = (ended.clone(), ended);
        let out = own
            .import(home.data, peer, lane_name(own, own.number, peer))
            .rights(out::rights(own.elsewhere(peer).is_some()))
            .handler(move |notification| on_end(&one, notification.event))
            .start()
            .map_err(set_up("importing a lane"))?;
        let door = door::import(own, home.bell, peer)
            .handler(move |notification| on_end(&other, notification.event))
            .start()
            .map_err(set_up("importing a door"))?;
        Ok(Opening { number: peer, lane, out, door: Way::Wanted(Some(door)) })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Waits a while for the peer; whether it is there.
    pub(super) fn wait(&mut self, time: Duration) -> Result<bool, StartError> {
        Ok(self.out.wait_for(Some(time)).map_err(set_up("importing a lane"))?
            && self.wait_for_door(time)?)
    }

    fn wait_for_door(&mut self, time: Duration) -> Result<bool, StartError> {
        let Way::Wanted(wanted) = &mut self.door else { return Ok(true) };
        let failed = set_up("importing a door");
        let there = match wanted {
            Some(wanted) => wanted.wait_for(Some(time)).map_err(&failed)?,
            None => false,
        };
        if there && let Some(wanted) = wanted.take() {
            self.door = Way::There(wanted.wait().map_err(&failed)?);
        }
        Ok(there)
    }

    /// The peer, if it was there and is no more, with its last word.
    fn gone(&mut self) -> Result<Option<Gone>, StartError> {
        if !self.wait_for_door(Duration::ZERO)? {
            return Ok(None);
        }
        let Way::There(door) = &self.door else { return Ok(None) };
        let lost = door.check_open().is_err();
        Ok(lost.then(|| Gone { peer: self.number, bye: peer::bye(&self.lane) }))
    }

    /// The peer that is there, at most until `deadline`; it is not told.
    pub(super) fn meet(mut self, deadline: Instant, seconds: u64) -> Result<Peer, StartError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if !self.wait(left.max(Duration::from_millis(1)))? {
            return Err(StartError::Missing { node: self.number, seconds });
        }
        let Opening { number, lane, out, door } = self;
        let out = out.wait().map_err(set_up("importing a lane"))?;
        let Way::There(door) = door else { unreachable!("waited for just now") };
        let (out, head) = OutLane::open(out, number)?;
        Ok(Peer::new(number, lane, out, &head, door))
    }
}

/// A peer that was there and is no more.
#[derive(Clone, Copy)]
struct Gone {
    peer: u32,
    bye: Option<Bye>,
}

/// Who is to blame: with several gone, whom one of them names, who went because of another, before one that
/// said nothing; and the first of those. A word that cannot be true (see `Inner::lost`) is none.
fn culprit(gone: &[Gone], own: u32, processes: u32) -> Option<u32> {
    let named = gone.iter().find_map(|gone| match gone.bye {
        Some(Bye::Failed { culprit }) if culprit != own && culprit < processes => Some(culprit),
        _ => None,
    });
    named.or_else(|| gone.first().map(|gone| gone.peer))
}

/// Waits for all peers, and tells each our process type, and that we can do without it. One that dies meanwhile, unless it is
/// excused, ends the start, and those who can hear it are told who it was.
pub(super) fn meet_all(
    mut openings: VecDeque<Opening>,
    (own, processes, ptype): (u32, u32, i32),
    (deadline, seconds): (Instant, u64),
    excused: impl Fn(&Peer) -> bool,
    mut met: impl FnMut(&Peer),
) -> Result<Vec<Peer>, StartError> {
    let mut peers: Vec<Peer> = Vec::new();
    while let Some(next) = openings.front_mut() {
        if next.wait(LOOK)? {
            if let Some(next) = openings.pop_front() {
                let peer = next.meet(deadline, seconds)?;
                peer.say_ptype(ptype); // before: who hears the other knows this
                peer.say_here();
                met(&peer);
                peers.push(peer);
            }
            continue;
        }
        if Instant::now() >= deadline {
            return Err(StartError::Missing { node: next.number, seconds });
        }
        let gone = all_gone(&peers, &excused, &mut openings)?;
        if let Some(node) = culprit(&gone, own, processes) {
            tell_all(peers, openings, node);
            return Err(StartError::Died { node });
        }
    }
    Ok(peers)
}

fn all_gone(
    peers: &[Peer],
    excused: impl Fn(&Peer) -> bool,
    openings: &mut VecDeque<Opening>,
) -> Result<Vec<Gone>, StartError> {
    let mut all = Vec::new();
    // Who left in order had met everybody, us too.
    for peer in peers.iter().filter(|peer| !peer.is_linked()) {
        let bye = peer.bye();
        if bye != Some(Bye::Orderly) && (bye.is_some() || !excused(peer)) {
            all.push(Gone { peer: peer.number, bye });
        }
    }
    for opening in openings {
        all.extend(opening.gone()?);
    }
    Ok(all)
}

/// Whoever is there should not take our end for the cause.
fn tell_all(peers: Vec<Peer>, openings: VecDeque<Opening>, node: u32) {
    let now = Instant::now();
    let there = openings.into_iter().filter_map(|mut opening| {
        let there = opening.wait(Duration::ZERO).is_ok_and(|there| there);
        there.then(|| opening.meet(now, 0).ok()).flatten()
    });
    for peer in peers.into_iter().chain(there) {
        peer.out.say32(layout::BYE, layout::BYE_FAILED.saturating_add(node));
        peer.out.settle();
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn whom_a_peer_names_is_to_blame_before_who_says_nothing() {
        let silent = |peer| Gone { peer, bye: None };
        let names = |peer, culprit| Gone { peer, bye: Some(Bye::Failed { culprit }) };
        let blamed = |gone: &[Gone]| culprit(gone, 0, 4);
        assert_eq!(blamed(&[]), None);
        assert_eq!(blamed(&[silent(2), silent(1)]), Some(2));
        assert_eq!(blamed(&[silent(2), names(3, 1)]), Some(1));
        assert_eq!(blamed(&[names(3, 3)]), Some(3));
        // Not us, who are here, and nobody who does not exist.
        assert_eq!(blamed(&[names(3, 0), silent(2)]), Some(3));
        assert_eq!(blamed(&[names(3, 4)]), Some(3));
        assert_eq!(blamed(&[names(3, 0), names(2, 1)]), Some(1));
    }
}
