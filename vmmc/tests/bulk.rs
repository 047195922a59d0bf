//! Many requests and events at once: the daemon stops reading from a client that leaves its
//! messages unread, so a client that could not read while it sends would wait for ever.

mod common;

use common::{Daemon, PATIENCE, export, pause, say, until};
use rustix::process::Signal;
use vmmc::{Node, Rights};

/// More than the daemon queues for a client before it pauses, and than two sockets hold.
const MANY: usize = 3000;

#[test]
fn second_process() {
    common::second_process(&[("exporter", exporter)]);
}

#[test]
fn many_requests_may_be_started_before_any_answer_is_taken() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = export(&node, "popular", 4096);
    let started: Vec<_> = (0..MANY).map(|_| node.import("popular").start().unwrap()).collect();
    for pending in started {
        assert_eq!(pending.wait().unwrap().len(), 4096);
    }
}

/// A crash of the daemon makes its clients announce all they have, and the answers are as many.
#[test]
fn many_exports_are_announced_again_after_a_crash_of_the_daemon() {
    let mut daemon = Daemon::start();
    let node = daemon.node();
    let exports: Vec<_> = (0..MANY).map(|i| export(&node, &format!("export {i}"), 4096)).collect();
    daemon.kill();
    daemon.restart();
    until("every export is known again", || {
        daemon.node().list().is_ok_and(|known| known.len() == exports.len())
    });
}

fn exporter(_: &[String]) {
    let node = Node::connect().unwrap();
    let export = export(&node, "stopped", 4096);
    say("exported");
    export.wait_importers(MANY, PATIENCE).unwrap();
    say("counted");
    pause();
}

/// Each event of a link that opened is answered by the exporter.
#[test]
fn an_exporter_that_was_stopped_catches_up_with_its_importers() {
    let daemon = Daemon::start();
    let mut exporter = daemon.second("exporter", &[]);
    exporter.expect("exported");
    exporter.signal(Signal::STOP);
    let node = daemon.node();
    let imports: Vec<_> =
        (0..MANY).map(|_| node.import("stopped").rights(Rights::WRITE).open().unwrap()).collect();
    exporter.signal(Signal::CONT);
    exporter.expect("counted");
    assert!(imports.iter().all(|import| import.check_open().is_ok()));
    exporter.go_on();
    exporter.finish();
}
