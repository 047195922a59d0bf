//! Forks around tracked memory (H21): who has it, and what a child may do.
//!
//! The forks are made by second processes; see `fork.rs`.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/forked.rs"]
mod forked;
#[path = "support/proxy.rs"]
mod proxy;

use cluster::{KEY, address_of, node};
use common::{Daemon, PATIENCE, export, import, pause, say};
use forked::{check, in_child};
use proxy::Proxy;
use std::sync::Arc;
use vmmc::error::{Forked, PropagateError, SendError, StopError};
use vmmc::{Node, Region, Tracked, Tracking};

const PAGE: usize = 4096;
/// More than a connection that stands still takes.
const LARGE: usize = 32 << 20;

#[test]
fn second_process() {
    common::second_process(&[
        ("gives memory back", gives_memory_back),
        ("forks during a flush", forks_during_a_flush),
    ]);
}

/// A copy of what the parent has, for a forked child to use up; it ends without the parent's destructors.
fn inherited(tracked: &Tracked) -> Tracked {
    // SAFETY: only in a child, whose own `tracked` is never dropped.
    unsafe { std::ptr::read(tracked) }
}

/// Whether `memory` can be read where its length says so, without the fault that would end the process.
fn is_there(memory: &Region, wanted: &[u8]) -> bool {
    let place = memory.as_ptr().as_ptr().cast::<libc::c_void>();
    // SAFETY: the kernel looks at the mapping, and touches nothing.
    let mapped = unsafe { libc::msync(place, memory.len(), libc::MS_ASYNC) } == 0;
    mapped && memory.as_slice() == wanted
}

#[test]
fn children_have_memory_that_is_not_tracked_any_more() {
    let daemon = Daemon::start();
    let _target = export(&daemon.node(), "target", PAGE);
    let mut second = daemon.second("gives memory back", &[]);
    second.expect("good");
    second.finish();
}

fn gives_memory_back(_: &[String]) {
    let import = import(&Node::connect().unwrap(), "target");
    let mut memory = Region::new(PAGE).unwrap();
    memory.write(0, b"kept").unwrap();
    let wanted = memory.as_slice().to_vec();
    let tracked = import.track(0, memory, Tracking::SHARED).unwrap();
    let refused = in_child(|| {
        let flushed = tracked.flush();
        let stopped = inherited(&tracked).stop();
        let forked = Err(PropagateError::Send(SendError::Forked(Forked)));
        check(line!(), flushed == forked)
            & check(line!(), matches!(stopped, Err(StopError::Forked(Forked))))
    });
    assert!(refused, "a child can neither flush nor stop");
    let memory = tracked.stop().unwrap();
    assert!(in_child(|| check(line!(), is_there(&memory, &wanted))));
    // What was refused has not been kept from them either.
    let refused = import.track(1, memory, Tracking::SHARED).map(drop).unwrap_err();
    assert!(in_child(|| check(line!(), is_there(&refused.memory, &wanted))));
    say("good");
}

/// A thread that sends holds what a flush needs; in a child of that moment nobody ever gives it back.
#[test]
fn a_child_that_is_forked_during_a_flush_does_not_wait_for_it() {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let a = node("a", &address, &[], Some(KEY));
    let b = node("b", &address_of("b"), &[("a", proxy.address())], Some(KEY));
    let exporter = a.daemon.node();
    let _target = export(&exporter, "target", LARGE);
    let mut second = b.daemon.second("forks during a flush", &[]);
    second.expect("connected");
    proxy.hold();
    second.go_on();
    proxy.fills(PATIENCE.unwrap());
    second.go_on();
    second.expect("forked");
    proxy.go_on();
    second.expect("sent");
    second.finish();
}

fn forks_during_a_flush(_: &[String]) {
    let node = Node::connect().unwrap();
    let import = node.import("target").node("a").timeout(PATIENCE.unwrap()).open().unwrap();
    let memory = Region::new(LARGE).unwrap();
    let tracked = Arc::new(import.track(0, memory, Tracking::PAGES).unwrap());
    let other = tracked.clone();
    say("connected");
    pause();
    tracked.view().write(0, &vec![1; LARGE]).unwrap();
    let flush = std::thread::spawn(move || other.flush());
    pause();
    assert!(!flush.is_finished(), "{LARGE} bytes went to a connection that stands still");
    let forked = Err(PropagateError::Send(SendError::Forked(Forked)));
    assert!(in_child(|| check(line!(), tracked.flush() == forked)));
    assert!(in_child(|| {
        drop(inherited(&tracked));
        true
    }));
    say("forked");
    flush.join().unwrap().unwrap();
    tracked.fence().unwrap();
    say("sent");
}
