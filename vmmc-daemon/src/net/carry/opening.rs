//! Opening a connection: the two segments find each other by their names, and the daemons agree.
//!
//! ```text
//!   side 0's daemon                               side 1's daemon
//!   export segment, import the other's            the same, at its own time: the first waits until the second says "met"
//!   greeting: "my process is user U"  --------->  policy
//!   policy                            <---------  greeting: "mine is user V"
//!   agreed; carried                   --------->  carried
//! ```
//!
//! Side 0 is the end with the smaller address. Whoever does not want to go on ends its links, and before "agreed" that is
//! all: the connection stays with TCP. Side 0 agrees with all in hand that it needs. Should its word be lost, one end would
//! use a ring that nobody reads: so side 1, once it has greeted, waits for that word or for the end of the link, which
//! comes behind it, whatever time either takes. If the link is lost it shuts the connection down; and where its
//! process has had enough meanwhile it ends the link, at which the other daemon does. That is an error, and no silence.

use super::carrier::{Carrier, Load};
use super::said::Said;
use super::segment::Segment;
use super::stream::{Standing, Stream};
use super::{Carried, Carry, Cost, Wanted, side_of};
use crate::doorbell::Shared;
use crate::tcp::Endpoint;
use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::control::message::{NotPairedReason, Refusal};
use vmmc::error::ImportError;
use vmmc::id::{ClientId, PeerInfo, RESERVED};
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::sys::{Fd, bell_line};
use vmmc::{Export, Import, Node, Region, Rights, Token, Who};

/// Opens one; blocks for as long as the other end is waited for.
pub(super) fn open(carry: &Carry, wanted: &Wanted, cost: Cost) -> Result<Carried, NotPairedReason> {
    let deadline = Instant::now() + wanted.wait;
    let node = carry.node().ok_or(NotPairedReason::Resources)?;
    let carrier = carry.carrier(&wanted.node, wanted.uid).map_err(no_means("carrier"))?;
    let Opened { stream, memory, export, bells } = make(carry, &node, wanted)?;
    let import = meet(carry, &node, wanted, &stream, deadline)?;
    if import.len() != export.len() {
        tracing::warn!(
            node = wanted.node,
            ours = export.len(),
            theirs = import.len(),
            "segments of different lengths; give vmmcd the same --ring-kib on both nodes"
        );
        return Err(NotPairedReason::OtherVersion);
    }
    agree(carry, wanted, &stream, &import, deadline)?;
    let (rung, bell) = bells;
    Carrier::add(Load {
        stream: stream.clone(),
        _export: export,
        import,
        bell: Shared::new(rung, (wanted.uid, wanted.uid)),
        node,
        incarnation: wanted.incarnation,
        carrier,
        _cost: cost,
    });
    let side = side_of(&wanted.endpoint);
    let bell = Arc::new(Shared::new(bell, (wanted.uid, wanted.uid)));
    let carried = Carried { memory: Arc::new(memory), bell, side, stream, told: false };
    // Who has had enough is dropped untold, which ends the connection.
    if wanted.attempt.is_cancelled() {
        return Err(NotPairedReason::NoPartner);
    }
    Ok(carried)
}

/// What this node has of it.
struct Opened {
    stream: Arc<Stream>,
    memory: Fd,
    export: Export,
    bells: (Fd, Fd),
}

fn no_means<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> NotPairedReason {
    move |error| {
        tracing::warn!(%error, what, "a connection to another node cannot be carried");
        NotPairedReason::Resources
    }
}

/// What the segment of the end at an endpoint is exported as.
fn name(endpoint: &Endpoint, version: u32) -> String {
    format!("{RESERVED}carried {} {} v{version}", endpoint.local, endpoint.remote)
}

/// The secret that an importer of that name must know: nobody without the cluster key does.
fn token(carry: &Carry, name: &str) -> Option<Token> {
    let key = carry.cluster.key.as_ref()?;
    let mut mac = Blake2sMac::<U16>::new_from_slice(key).ok()?;
    mac.update(b"vmmc carried connection");
    mac.update(name.as_bytes());
    Some(Token(mac.finalize_fixed().into()))
}

/// Makes and exports the segment of this end.
fn make(carry: &Carry, node: &Node, wanted: &Wanted) -> Result<Opened, NotPairedReason> {
    let name = name(&wanted.endpoint, wanted.shape.version);
    let token = token(carry, &name).ok_or(NotPairedReason::Policy)?;
    let ring_len = wanted.ring_len as usize;
    let len = wanted.shape.control_len as usize + 2 * ring_len;
    let mut region = Region::new(len).map_err(no_means("segment"))?;
    let memory = region.share().map_err(no_means("segment"))?;
    let mapping =
        GuardedMapping::new(&memory, len, Access::ReadWrite).map_err(no_means("mapping"))?;
    let side = side_of(&wanted.endpoint);
    let segment = Segment::new(mapping, &wanted.shape, &wanted.words, ring_len, side);
    segment.attach();
    let (rung, bell) = bell_line::pair().map_err(no_means("doorbell"))?;
    let stream = Stream::new(segment, wanted.bell.clone(), wanted.attempt.clone());
    let export = node
        .export(region)
        .name(name)
        .grant(Who::Anyone, Rights::WRITE)
        .token(token)
        .handler(stream.on_export(node));
    // The same addresses twice: the connection before was closed, and its carrier is about to see it.
    let export = export.open().map_err(no_means("export"))?;
    Ok(Opened { stream, memory, export, bells: (rung, bell) })
}

/// Waits for the other end's segment.
fn meet(
    carry: &Carry,
    node: &Node,
    wanted: &Wanted,
    stream: &Arc<Stream>,
    deadline: Instant,
) -> Result<Import, NotPairedReason> {
    let name = name(&wanted.endpoint.mirrored(), wanted.shape.version);
    let token = token(carry, &name).ok_or(NotPairedReason::Policy)?;
    let import = |wait: Duration| {
        let import = node
            .import(name.clone())
            .node(&wanted.node)
            .rights(Rights::WRITE)
            .token(token)
            .timeout(wait)
            .handler(stream.on_import());
        import.open()
    };
    let mut import_result = import(Duration::ZERO);
    // Both export before they import: the second to come finds the first, and says so.
    if let Err(ImportError::Refused(Refusal::NoSuchExport { .. })) = import_result
        && stream.wait_met(deadline)
    {
        import_result = import(deadline.saturating_duration_since(Instant::now()));
    }
    let import = import_result.map_err(|error| {
        match error {
            ImportError::Refused(Refusal::NoSuchExport { .. }) => {}
            error => {
                tracing::warn!(%error, node = wanted.node, "cannot carry a connection");
            }
        }
        NotPairedReason::NoPartner
    })?;
    say(&import, wanted, Said::Met)?;
    Ok(import)
}

fn say(import: &Import, wanted: &Wanted, what: Said) -> Result<(), NotPairedReason> {
    if wanted.attempt.is_cancelled() {
        return Err(NotPairedReason::NoPartner);
    }
    import.send_notification(0, 0, what.word()).map_err(|error| {
        tracing::info!(%error, node = wanted.node, "cannot carry a connection");
        NotPairedReason::NoPartner
    })
}

/// Both greet, side 0 agrees.
fn agree(
    carry: &Carry,
    wanted: &Wanted,
    stream: &Stream,
    import: &Import,
    deadline: Instant,
) -> Result<(), NotPairedReason> {
    let policy = || {
        let theirs = stream.wait_greeting(deadline).ok_or(NotPairedReason::NoPartner)?;
        let them = PeerInfo { client: ClientId(0), pid: 0, uid: theirs, gid: theirs };
        let counts_as = carry.cluster.counts_as(&wanted.node, them).uid;
        match wanted.users.allows(wanted.uid, counts_as) {
            true => Ok(()),
            false => Err(NotPairedReason::Policy),
        }
    };
    let guard = || {
        let held = carry.guard.hold(wanted.number, &wanted.attempt, wanted.bell.as_ref());
        held.map_err(no_means("guard"))
    };
    let greeting = Said::Greeting { uid: wanted.uid };
    if side_of(&wanted.endpoint) == 0 {
        say(import, wanted, greeting)?;
        policy()?;
        guard()?;
        stream.bind();
        return say(import, wanted, Said::Agreed);
    }
    policy()?;
    guard()?;
    stream.bind();
    say(import, wanted, greeting)?;
    // However long it takes: to give up now would end a connection that its programs may be using. A daemon that does
    // not agree ends its link, and one that is gone has lost it. Meanwhile the process goes on by TCP.
    if stream.wait_agreement() {
        return Ok(());
    }
    match stream.standing() {
        // The process has had enough, and the word may be on its way.
        Standing::Open => stream.lose("its process has gone before the other node agreed"),
        // Its link has ended behind all that it had to say, and that was not it.
        Standing::Ended => stream.unbind(),
        Standing::Lost => {}
    }
    Err(NotPairedReason::NoPartner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(local: &str, remote: &str) -> Endpoint {
        Endpoint { namespace: 0, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn the_two_ends_take_different_sides_and_each_other_s_names() {
        for (one, other) in [
            ("10.0.0.1:1", "10.0.0.2:1"),
            ("10.0.0.1:1", "10.0.0.1:2"),
            ("[fe80::1]:9", "[fe80::2]:8"),
        ] {
            let (here, there) = (endpoint(one, other), endpoint(other, one));
            assert_ne!(side_of(&here), side_of(&there));
            assert_eq!(name(&here.mirrored(), 3), name(&there, 3));
            assert_ne!(name(&here, 3), name(&there, 3));
            assert_ne!(name(&here, 3), name(&here, 4));
        }
    }
}
