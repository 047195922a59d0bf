//! What a handler may do, and what it may own.

mod common;

use common::{Daemon, PATIENCE, export, import, open, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmmc::counters::index as count;
use vmmc::error::WaitError;
use vmmc::{Combining, Event, Export, Node, Notification, Region, Rights, Who};

#[test]
fn second_process() {
    common::second_process(&[("dying", dying)]);
}

/// More than the receiver's queue takes.
const MANY: u64 = 1000;

fn queue(node: &Node, name: &str) -> Export {
    open(node.export(Region::new(4096).unwrap()).name(name).queue())
}

fn handled(node: &Node, name: &str, handler: impl FnMut(Notification) + Send + 'static) -> Export {
    open(node.export(Region::new(4096).unwrap()).name(name).handler(handler))
}

/// Receives that many, of which the sender waits for room for most.
fn receive_many(from: &Export) {
    for number in 0..MANY {
        let next = from.next_notification(PATIENCE).unwrap();
        assert!(matches!(next.event, Event::Message { last_word, .. } if last_word == number));
    }
}

/// The thread that runs it was the one that hears the doorbell: while it runs another is.
#[test]
fn a_handler_in_the_handler_thread_waits_for_room() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let answers = queue(&a, "answers");
    let to_answers = import(&b, "answers");
    let _asked = handled(&b, "asked", move |notification| {
        if let Event::Message { .. } = notification.event {
            for number in 0..MANY {
                to_answers.send_with_notify(0, &number.to_ne_bytes()).unwrap();
            }
        }
    });
    let _handlers = b.start_handler_thread().unwrap();
    let ask = import(&a, "asked");
    ask.send_with_notify(0, b"go").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    receive_many(&answers);
}

/// Nor does a handler that takes its time hold up those that wait for other things.
#[test]
fn others_are_woken_while_a_handler_runs() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let (has_begun, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (begins, over) = (has_begun.clone(), is_over.clone());
    let _slow = handled(&b, "slow", move |notification| {
        if let Event::Message { .. } = notification.event {
            begins.store(1, Ordering::Relaxed);
            until("the other thread was woken", || over.load(Ordering::Relaxed) > 0);
        }
    });
    let flags = export(&b, "flags", 64);
    let _handlers = b.start_handler_thread().unwrap();
    let (slow, to_flags) = (import(&a, "slow"), import(&a, "flags"));
    slow.send_with_notify(0, b"1").unwrap();
    // Else the thread that waits would run it.
    until("the handler runs", || has_begun.load(Ordering::Relaxed) > 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flag = flags.flag32(0).unwrap();
            flag.wait_until(|value| value == 1, PATIENCE).unwrap();
            is_over.store(1, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(100));
        to_flags.flag32(0).unwrap().signal(1).unwrap();
    });
}

/// The daemon is told of the end of what it owns, by whichever thread drops it.
#[test]
fn a_handler_owns_an_import_and_an_export() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let _taken = export(&a, "taken", 64);
    let owned = || {
        let ours = (export(&b, "owned", 64), import(&b, "taken"));
        move |_| {
            let _ = &ours;
        }
    };
    let pending = b.import("never").handler(owned()).start().unwrap();
    pending.cancel();
    let refused = b.import("never").timeout(Duration::ZERO).handler(owned()).open();
    refused.unwrap_err();
    let region = Region::new(64).unwrap();
    let builder = b.export(region).name("taken").grant(Who::SameUser, Rights::all());
    builder.handler(owned()).open().unwrap_err();
    // What they owned has gone, and the conversation goes on.
    let _owned = export(&b, "owned", 64);
}

/// While a store waits for room, handlers run.
#[test]
fn a_handler_stores_by_the_writer_that_waits_for_room() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let packets = queue(&a, "packets");
    let writer = import(&b, "packets").auto_update(Combining::OFF.notifying()).unwrap();
    let writer = Arc::new(writer);
    let (by_handler, stored) = (writer.clone(), Arc::new(AtomicU64::new(0)));
    let counts = stored.clone();
    let _kicked = handled(&b, "kicked", move |notification| {
        if let Event::Message { .. } = notification.event {
            by_handler.store(8, &7u64.to_ne_bytes()).unwrap();
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let kick = import(&a, "kicked");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MANY {
                writer.store(0, &number.to_ne_bytes()).unwrap();
            }
        });
        until("the writer waits for room", || b.counters().get(count::NOTIFY_STALLS) > 0);
        kick.send_with_notify(0, b"k").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut last = 0;
        for _ in 0..=MANY {
            let next = packets.next_notification(PATIENCE).unwrap();
            if let Event::Message { offset: 0, last_word, .. } = next.event {
                last = last_word;
            }
        }
        assert_eq!(last, MANY - 1);
        until("the handler has stored", || stored.load(Ordering::Relaxed) == 1);
    });
}

fn dying(_: &[String]) {
    let node = Node::connect().unwrap();
    std::mem::forget(import(&node, "mourned"));
    common::say("there");
    common::pause();
}

/// A wait ends by the death of an importer, each by another one's.
#[test]
fn each_of_two_deaths_ends_a_wait() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mourned = export(&node, "mourned", 64);
    let mut importers = [(); 2].map(|()| daemon.second("dying", &[]));
    for importer in &mut importers {
        importer.expect("there");
    }
    let mut pids = importers.each_ref().map(|it| it.pid());
    mourned.wait_importers(2, PATIENCE).unwrap();
    importers.iter_mut().for_each(|it| it.kill());
    until("both are known to be dead", || node.exports()[0].importers.is_empty());
    let flag = mourned.flag32(0).unwrap();
    let mut told = [(); 2].map(|()| match flag.wait_until(|_| false, PATIENCE) {
        Err(WaitError::Closed(closed)) => closed.peer.pid,
        other => panic!("{other:?}"),
    });
    pids.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, pids);
    let third = flag.wait_until(|_| false, Some(Duration::from_millis(1)));
    assert!(matches!(third, Err(WaitError::TimedOut { .. })), "{third:?}");
}
