//! How this node and all others are, for a tool that explains it (`shrimp doctor`).
//!
//! A few threads look at the other nodes, each at one of them at a time, so that one that does not answer holds up few others. A
//! connection of its own shows that the node is there and what it proves; questions over it, once it stands, show how
//! long the way is. What a node says of itself is its daemon's word.

use super::cluster::Cluster;
use super::conversation::{connect, origin};
use super::places::{Place, Places};
use super::secure::{PATIENCE, SecureError};
use super::{Service, lock, owner};
use rustix::net::SendFlags;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmmc::control::codec;
use vmmc::control::message::{MAX_PACKET_LEN, Refusal};
use vmmc::control::network::{
    NODE_NAME_MAX, Opening, Presence, Purpose, Seen, Sight, WIRE_VERSION,
};
use vmmc::fabric::{Domain, Endpoint};
use vmmc::id::PeerInfo;
use vmmc::sys::thread::spawn_quiet;
use vmmc::sys::{Fd, packet};

/// Surveys of one user at once.
const MAX_EACH: usize = 4;
/// Nodes that one survey looks at, at once.
const ABREAST: usize = 8;
/// Questions by which the way is measured; the fastest counts.
const QUESTIONS: u32 = 4;
/// Memory of an endpoint that is opened to see whether it can be, in bytes.
const MEMORY: usize = 4096;
/// Longest text that is told, in bytes: a packet holds two.
const MAX_TEXT: usize = 1024;

/// Places for all users.
pub(super) fn places() -> Places<u32> {
    Places::new(MAX_EACH)
}

/// One survey, until the last of its threads has ended; that ends the conversation.
struct Survey {
    service: Service,
    caller: PeerInfo,
    /// Names of nodes that nobody has looked at yet.
    left: Mutex<Vec<String>>,
    tool: Fd,
    _place: Place<u32>,
}

/// Begins one.
pub(super) fn start(service: Service, caller: PeerInfo, tool: Fd) -> Result<(), Refusal> {
    let Some(place) = service.surveys.take(&caller.uid) else {
        let why =
            format!("look at the other nodes: {MAX_EACH} of user {} do that already", caller.uid);
        return Err(Refusal::Internal { why });
    };
    let left: Vec<String> = service.cluster.nodes().keys().rev().cloned().collect();
    let survey = Survey { service, caller, left: Mutex::new(left), tool, _place: place };
    let thread = spawn_quiet("net-survey", move || begin(survey));
    thread.map(drop).map_err(|errno| Refusal::Internal { why: format!("make a thread ({errno})") })
}

fn begin(survey: Survey) {
    let survey = Arc::new(survey);
    let cluster = &survey.service.cluster;
    let own = Sight::Own {
        presence: presence(cluster, true, 0),
        listen: cluster.listen.to_string(),
        has_key: cluster.key.is_some(),
        wire: WIRE_VERSION,
        others: u32::try_from(cluster.nodes().len()).unwrap_or(u32::MAX),
    };
    if !survey.tell(&own) {
        return;
    }
    for _ in 1..ABREAST.min(cluster.nodes().len()) {
        let beside = survey.clone();
        // Without it the others look at more.
        let _ = spawn_quiet("net-survey", move || beside.work());
    }
    survey.work();
}

/// How this node is. `tries`: opens its provider, where it has one.
pub(super) fn presence(cluster: &Cluster, tries: bool, connections: u32) -> Presence {
    let fabric = cluster.fabric();
    let opened = fabric.as_ref().filter(|_| tries).map(|at| {
        Domain::open(&at.provider, at.local, at.notice)
            .and_then(|it| Endpoint::open(&it, MEMORY).map(drop))
    });
    let trouble = opened.and_then(Result::err).map(|error| short(error.to_string()));
    Presence {
        node: cluster.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seals: cluster.seals(),
        fabric: fabric.map(|at| short(at.provider)),
        direct: cluster.writes_directly(),
        trouble,
        connections,
    }
}

/// A text that leaves room for others in its packet.
fn short(text: String) -> String {
    cut(text, MAX_TEXT)
}

fn cut(mut text: String, most: usize) -> String {
    while text.len() > most {
        text.pop();
    }
    text
}

/// What another node said, with no text longer than one of ours.
fn clipped(said: Presence) -> Presence {
    let Presence { node, version, fabric, trouble, .. } = said;
    let (fabric, trouble) = (fabric.map(short), trouble.map(short));
    Presence {
        node: cut(node, NODE_NAME_MAX),
        version: cut(version, NODE_NAME_MAX),
        fabric,
        trouble,
        ..said
    }
}

impl Survey {
    /// Looks at nodes until none is left, or nobody wants to know.
    fn work(&self) {
        loop {
            let Some(node) = lock(&self.left).pop() else { return };
            let address = self.service.cluster.nodes().get(&node).map(ToString::to_string);
            let sight = Sight::Other {
                address: short(address.unwrap_or_default()),
                connections: self.service.lifelines.count(&node),
                seen: self.look(&node).map_err(short),
                node,
            };
            if !self.tell(&sight) {
                return;
            }
        }
    }

    /// Whether the tool still listens.
    fn tell(&self, sight: &Sight) -> bool {
        let mut buffer = [0; MAX_PACKET_LEN];
        let Ok(packet) = codec::encode(sight, &mut buffer) else { return true };
        packet::send(&self.tool, packet, &[], SendFlags::empty()).is_ok()
    }

    /// How another node is, and how long the way to it and back is, in nanoseconds.
    fn look(&self, node: &str) -> Result<(Presence, u64), String> {
        let mut other = connect(&self.service, node, self.caller.uid).map_err(text)?;
        if self.service.cluster.key.is_none() {
            owner::vouches(other.stream(), self.caller.uid)?;
        }
        let origin = origin(&self.service, self.caller);
        let mut ask = |tries| -> Seen {
            let (to, origin) = (node.to_owned(), origin.clone());
            let opening = Opening { to, origin, purpose: Purpose::Look { tries } };
            other.send(&opening).map_err(text)?;
            other.receive::<Seen>(Some(PATIENCE)).map_err(text)?
        };
        let presence = clipped(ask(true)?);
        let mut best = Duration::MAX;
        for _ in 0..QUESTIONS {
            let begun = Instant::now();
            ask(false)?;
            best = best.min(begun.elapsed());
        }
        self.service.idle.put(node, other);
        Ok((presence, u64::try_from(best.as_nanos()).unwrap_or(u64::MAX)))
    }
}

fn text(error: SecureError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_sight_fits_a_packet() {
        let long = || "x".repeat(1 << 16);
        let presence = clipped(Presence {
            node: long(),
            version: long(),
            seals: true,
            fabric: Some(long()),
            direct: true,
            trouble: Some(long()),
            connections: u32::MAX,
        });
        let other = Sight::Other {
            node: "n".repeat(64),
            address: short(long()),
            connections: u32::MAX,
            seen: Ok((presence, u64::MAX)),
        };
        assert!(codec::encode(&other, &mut [0; MAX_PACKET_LEN]).is_ok());
    }
}
