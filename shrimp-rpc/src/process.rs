//! What one process has once: its node, the numbers of its buffers, its counters.

use crate::layout;
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc::control::connect::ConnectError;
use vmmc::sys::own::OwnMutex;
use vmmc::{Export, ExportBuilder, Node, PeerInfo, Region, Who};

/// The counters of this library, behind those of `vmmc` in the process page.
pub mod count {
    macro_rules! counters {
        ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
            counters!(@ super::FIRST_COUNTER; $($(#[$doc])* $name),*);
            /// Their names, in order.
            pub const NAMES: &[&str] = &[$($text),*];
        };
        (@ $at:expr; $(#[$doc:meta])* $name:ident $(, $($rest:tt)*)?) => {
            $(#[$doc])*
            pub const $name: usize = $at;
            $(counters!(@ $at + 1usize; $($rest)*);)?
        };
        (@ $at:expr;) => {};
    }
    counters! {
        /// Messages sent: calls, replies, pieces. Each is one ascending run of stores that ends with
        /// its flag.
        PACKETS = "rpc_packets",
        /// Bytes of those messages that were stored when they were sent; not what a handler had
        /// written to OUT and INOUT data before.
        PACKET_BYTES = "rpc_packet_bytes",
        /// Calls made.
        CALLS = "rpc_calls",
        /// Calls served.
        SERVED = "rpc_served",
        /// Bulk bytes that the server's side copied besides: replies and calls in pieces.
        COPIED_BYTES = "rpc_copied_bytes",
        /// Bindings made by this process as a client.
        BOUND = "rpc_bound",
        /// Bindings accepted by this process as a server.
        ACCEPTED = "rpc_accepted",
        /// Calls given up because of a timeout.
        TIMEOUTS = "rpc_timeouts",
        /// Calls found by looking at clients that had been idle.
        COLD = "rpc_cold",
        /// Peers that broke the protocol.
        FAULTY_PEERS = "rpc_faulty_peers",
    }
}

/// Where this library's counters begin among the 64 of a process page.
const FIRST_COUNTER: usize = 40;

const _: () = assert!(vmmc::counters::index::NAMES.len() <= FIRST_COUNTER, "counters collide");
const _: () = assert!(FIRST_COUNTER + count::NAMES.len() <= 64, "too many counters");

/// Gives the counters their names in the process page.
pub(crate) fn name_counters(node: &Node) {
    let mut names = vmmc::counters::index::NAMES.to_vec();
    names.resize(FIRST_COUNTER, "");
    names.extend_from_slice(count::NAMES);
    node.counters().name_all(&names);
}

/// The node that clients and servers of this process use unless they are given one; made at first
/// use, and again in a forked child.
pub(crate) fn shared_node() -> Result<Node, ConnectError> {
    static NODE: OwnMutex<Option<Node>> = OwnMutex::new();
    let mut shared = NODE.lock();
    match &*shared {
        Some(node) => Ok(node.clone()),
        None => Ok(shared.insert(Node::connect()?).clone()),
    }
}

/// Exports a buffer under a number that is free in this process, for one process alone; to another node,
/// where processes cannot be told apart before they come, for the processes of one user.
pub(crate) fn export_for(
    node: &Node,
    len: usize,
    (peer, elsewhere): (PeerInfo, bool),
    prepare: impl Fn(&mut Region) -> Result<(), vmmc::mem::OutOfBounds>,
    finish: impl Fn(ExportBuilder) -> ExportBuilder,
) -> Result<(u32, Export), crate::TransportError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut tries = 0;
    loop {
        let number = layout::FIRST_NUMBER.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let mut region = Region::new(len)?;
        prepare(&mut region)?;
        let who = if elsewhere { Who::User(peer.uid) } else { Who::Process(peer.pid) };
        let builder = node.export(region).name(number).grant(who, layout::rights(elsewhere));
        match finish(builder).open() {
            // Somebody else's number, or an old one of ours after 2^32 bindings.
            Err(vmmc::error::ExportError::Refused(
                vmmc::control::message::Refusal::NameTaken { .. },
            )) if tries < 100 => tries += 1,
            result => return Ok((number, result?)),
        }
    }
}
