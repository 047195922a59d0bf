//! A connection between nodes that is cut on the way goes on over another one: links stay, nothing is lost, and nothing comes twice.
//! Where it cannot, every waiter is told.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;

use cluster::{KEY, Place, address_of, node_with};
use common::{PATIENCE, export, until};
use proxy::Proxy;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use vmmc::counters::index::NET_RESUMED;
use vmmc::error::WaitError;
use vmmc::{CloseReason, Combining, Event, Import, Node, Region, Rights, Who};

/// In the cluster files.
const PLAIN_AND_SEALED: [&str; 2] = ["", "[data]\nseal = true\n"];

/// Two nodes with a proxy on the way from `b` to `a`.
fn apart(more: &str) -> (Place, Place, Proxy) {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let a = node_with("a", &address, &[], Some(KEY), more);
    let b = node_with("b", &address_of("b"), &[("a", proxy.address())], Some(KEY), more);
    (a, b, proxy)
}

fn import(node: &Node, name: &str) -> Import {
    let import = node.import(name).node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(PATIENCE.unwrap()).open().unwrap()
}

fn resumed(node: &Node) -> u64 {
    node.counters().get(NET_RESUMED)
}

/// Resets what goes by a proxy again and again, until it is dropped.
struct Breaker<'s>(&'s AtomicBool);

impl<'s> Breaker<'s> {
    fn start<'e>(
        scope: &'s std::thread::Scope<'s, 'e>,
        proxy: &'s Proxy,
        importer: &'s Node,
        is_over: &'s AtomicBool,
    ) -> Breaker<'s> {
        scope.spawn(move || {
            for round in 0.. {
                // From at once to a tenth of a second later, as the rounds go.
                std::thread::sleep(Duration::from_millis(round * 37 % 100));
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let before = resumed(importer);
                proxy.reset();
                // What makes another one is cut, too, and has ten seconds for it on a busy machine: it is let be for a while.
                let start = std::time::Instant::now();
                while resumed(importer) == before && start.elapsed() < Duration::from_secs(2) {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Breaker(is_over)
    }
}

impl Drop for Breaker<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn messages_come_once_and_in_order_whenever_the_connection_is_reset() {
    for more in PLAIN_AND_SEALED {
        let (a, b, proxy) = apart(more);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let region = Region::new(1 << 16).unwrap();
        let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
        let export = builder.queue().open().unwrap();
        let link = import(&importer, "x");
        let (is_over, taken) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let breaker = Breaker::start(scope, &proxy, &importer, &is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let number = taken.load(Ordering::SeqCst);
                    let next = export.next_notification(Some(Duration::from_millis(100)));
                    let Ok(next) = next else { continue };
                    let Event::Message { offset, len, .. } = next.event else {
                        panic!("{more:?}: {next:?} after {number}");
                    };
                    let mut bytes = vec![0; len];
                    export.read(offset, &mut bytes).unwrap();
                    assert!(bytes == message(number), "{more:?}: message {number}");
                    taken.store(number + 1, Ordering::SeqCst);
                }
            });
            let mut number = 0u32;
            while number < 2000 || resumed(&importer) < 10 {
                // Each has a place of its own until they are taken.
                let at = (number as usize % 16) * 4096;
                link.send_with_notify(at, &message(number)).unwrap();
                number += 1;
                if number.is_multiple_of(16) {
                    link.fence().unwrap();
                    until("they are taken", || taken.load(Ordering::SeqCst) == number);
                }
            }
            link.fence().unwrap();
            until("all are taken", || taken.load(Ordering::SeqCst) == number);
            drop(breaker);
        });
        assert!(link.check_open().is_ok());
    }
}

/// Message `number`, unlike any other.
fn message(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; 4 + (number as usize * 977) % 4000];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// Words, automatic updates, reads and fences: what was fenced is there, though the connection is reset again and again.
#[test]
fn all_kinds_of_packets_go_on() {
    for more in PLAIN_AND_SEALED {
        let (a, b, proxy) = apart(more);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 1 << 16);
        let link = import(&importer, "x");
        let writer = link.auto_update(Combining::ON).unwrap();
        let (word, back) = (link.flag64(0).unwrap(), export.flag64(8).unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _breaker = Breaker::start(scope, &proxy, &importer, &is_over);
            let mut round = 0u64;
            while round < 500 || resumed(&importer) < 10 {
                round += 1;
                let bytes = vec![round as u8; 1 + (round as usize * 131) % 6000];
                writer.store(8192, &bytes).unwrap();
                writer.flush().unwrap();
                word.store(round).unwrap();
                link.fence().unwrap();
                assert_eq!(export.flag64(0).unwrap().load().unwrap(), round, "{more:?}");
                let mut found = vec![0; bytes.len()];
                export.read(8192, &mut found).unwrap();
                assert!(found == bytes, "{more:?}: round {round}");
                back.store(round).unwrap();
                let mut found = [0; 4000];
                link.read(8, &mut found).unwrap();
                assert_eq!(found[..8], round.to_ne_bytes(), "{more:?}");
            }
        });
        assert!(link.check_open().is_ok());
    }
}

/// Imports made meanwhile are of the same connection, and those that end are ended.
#[test]
fn imports_come_and_go_meanwhile() {
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 4096);
    let first = import(&importer, "x");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _breaker = Breaker::start(scope, &proxy, &importer, &is_over);
        let mut round = 0u32;
        while round < 100 || resumed(&importer) < 10 {
            round += 1;
            // Set-up goes by connections of its own, which are cut as well, and for which there is no other.
            let Ok(next) = importer.import("x").node("a").rights(Rights::WRITE).open() else {
                continue;
            };
            next.flag32(0).unwrap().store(round).unwrap();
            next.fence().unwrap();
            assert_eq!(export.flag32(0).unwrap().load().unwrap(), round);
        }
    });
    first.fence().unwrap();
    until("one link is left", || export.importers().len() == 1);
}

/// A half-open connection, and a way to the node by another one.
#[test]
fn a_node_that_was_silent_is_there_again() {
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(4096).unwrap();
    let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    let link = import(&importer, "x");
    let next = || export.next_notification(PATIENCE).unwrap().event;
    link.send_with_notify(0, &[1; 8]).unwrap();
    assert!(matches!(next(), Event::Message { len: 8, .. }));
    proxy.vanish();
    // Nobody waits for anything here, so that the timer must find it.
    link.send_with_notify(0, &[2; 16]).unwrap();
    assert!(matches!(next(), Event::Message { len: 16, .. }));
    assert_eq!(resumed(&importer), 1);
    link.send_with_notify(0, &[3; 24]).unwrap();
    assert!(matches!(next(), Event::Message { len: 24, .. }));
    link.fence().unwrap();
}

/// What a long message consists of is not kept: it is there whole, or neither it nor its notification, and the link has ended.
#[test]
fn a_long_message_is_whole_or_its_link_ends() {
    const LEN: usize = 1 << 20;
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(LEN).unwrap();
    let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    proxy.resets();
    let mut link = import(&importer, "x");
    for (round, cut) in [1u64, 33, 5000, 300_000, 700_000, (1 << 20) + 130].into_iter().enumerate()
    {
        let byte = round as u8 + 1;
        proxy.cut_after(cut);
        let sent = link.send_with_notify(0, &vec![byte; LEN]).is_ok() && link.fence().is_ok();
        match export.next_notification(PATIENCE).unwrap().event {
            Event::Message { len, .. } => {
                assert!(sent && len == LEN, "{cut}");
                let mut found = vec![0; LEN];
                export.read(0, &mut found).unwrap();
                assert!(found.iter().all(|&it| it == byte), "{cut}");
            }
            Event::Closed { reason: CloseReason::PeerDied } => {
                assert!(!sent, "{cut}");
                assert_eq!(link.check_open().unwrap_err().reason, CloseReason::Unreachable);
                link = import(&importer, "x");
            }
            other => panic!("{cut}: {other:?}"),
        }
    }
    // One that has arrived is in nobody's way.
    link.send_with_notify(0, &vec![7; LEN]).unwrap();
    link.fence().unwrap();
    let before = resumed(&importer);
    proxy.reset();
    link.send_with_notify(0, &[8; 8]).unwrap();
    for wanted in [LEN, 8] {
        let next = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(next, Event::Message { len, .. } if len == wanted), "{next:?}");
    }
    assert_eq!(resumed(&importer), before + 1);
}

/// The node is there, and no way to it.
#[test]
fn where_there_is_no_way_every_waiter_is_told() {
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 4096);
    let link = import(&importer, "x");
    link.flag32(0).unwrap().store(1).unwrap();
    link.fence().unwrap();
    proxy.bar(true);
    proxy.reset();
    let reason = |end: Result<u32, WaitError>| match end {
        Err(WaitError::Closed(closed)) => closed.reason,
        other => panic!("{other:?}"),
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| link.flag32(64).unwrap().wait_until(|it| it == 1, PATIENCE));
        let flag = export.flag32(0).unwrap();
        let other = scope.spawn(move || flag.wait_until(|it| it == 2, PATIENCE));
        assert!(link.fence().is_err());
        assert_eq!(reason(waits.join().unwrap()), CloseReason::Unreachable);
        assert_eq!(reason(other.join().unwrap()), CloseReason::PeerDied);
    });
    proxy.bar(false);
    import(&importer, "x").flag32(0).unwrap().store(3).unwrap();
    export.flag32(0).unwrap().wait_until(|it| it == 3, PATIENCE).unwrap();
}

/// Each cut has its own time, however little has come back since the last one.
#[test]
fn a_connection_that_only_sends_outlasts_a_cut_much_later_too() {
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 4096);
    let link = import(&importer, "x");
    for cut in 1..=2u32 {
        proxy.reset();
        until("it has gone on", || resumed(&importer) == u64::from(cut));
        link.flag32(0).unwrap().signal(cut).unwrap();
        export.flag32(0).unwrap().wait_until(|it| it == cut, PATIENCE).unwrap();
        if cut < 2 {
            std::thread::sleep(Duration::from_secs(11)); // longer than there may be no way
        }
    }
    assert!(link.check_open().is_ok());
}

/// Nor is a cut in vain because the other end has no room: it takes what it has been sent once its page is enabled again.
#[test]
fn a_receiver_that_stands_still_is_waited_for_over_every_cut() {
    let (a, b, proxy) = apart("");
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 8192);
    let link = import(&importer, "x");
    export.disable(0..4096).unwrap();
    for number in 1..=20u32 {
        link.send(0, &[number as u8; 4096]).unwrap();
    }
    link.flag32(4096).unwrap().signal(1).unwrap();
    for cut in 1..=3u32 {
        proxy.reset();
        until("it has gone on", || resumed(&importer) == u64::from(cut));
        if cut == 2 {
            std::thread::sleep(Duration::from_secs(11)); // longer than there may be no way
        }
    }
    assert_eq!(export.flag32(4096).unwrap().load().unwrap(), 0);
    export.enable(0..4096).unwrap();
    export.flag32(4096).unwrap().wait_until(|it| it == 1, PATIENCE).unwrap();
    let mut found = [0; 4096];
    export.read(0, &mut found).unwrap();
    assert!(found == [20; 4096]);
    assert!(link.check_open().is_ok());
}
