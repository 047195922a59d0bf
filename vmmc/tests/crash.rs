//! `kill -9` of an exporter and of an importer, at each point of what they do where it could hurt
//! (G1); `support/stage.rs` says what is checked. The points are reached by what the two say and by
//! what the kernel says of them, never by time. `crash_daemon.rs` and `crash_at_points.rs` have the
//! rest.

mod common;
mod support;

use common::{Daemon, PATIENCE, export, import, open, pause, say, until};
use std::time::Duration;
use support::stage::{
    LARGE, LARGE_FLAG, Stage, connect, exporter_of_later, import_waits, of_send, of_wait, survive,
    victim_connects, victim_exports, victim_imports, victim_waits_for_import,
};
use support::{
    Tripwire, Watchdog, bytes_of, daemon_forgets, footprint, footprint_at_rest, settles,
    until_asleep,
};
use vmmc::control::message::Refusal;
use vmmc::error::{ImportError, SendError, SendNotifyError, TrySendError};
use vmmc::{CloseReason, Event, Region};

#[test]
fn second_process() {
    common::second_process(&[
        ("victim_connects", victim_connects),
        ("victim_exports", victim_exports),
        ("victim_unexports", victim_unexports),
        ("victim_waits_for_import", victim_waits_for_import),
        ("victim_imports", victim_imports),
        ("victim_sends_large", victim_sends_large),
        ("victim_fills_queue", victim_fills_queue),
        ("import_waits", import_waits),
        ("import_fails", import_fails),
        ("importer_waits_for_flag", importer_waits_for_flag),
        ("binder_waits_for_flag", binder_waits_for_flag),
        ("importer_streams", importer_streams),
        ("importer_fills_queue", importer_fills_queue),
        ("importer_sends_large", importer_sends_large),
        ("exporter_waits_for_flag", exporter_waits_for_flag),
        ("exporter_of_later", exporter_of_later),
        ("exporter_expects_message", exporter_expects_message),
        ("exporter_fetches_later", exporter_fetches_later),
        ("exporter_handles_death", exporter_handles_death),
        ("exporter_unexports", exporter_unexports),
        ("exporter_stays", exporter_stays),
        ("importer_comes_and_goes", importer_comes_and_goes),
    ]);
}

// ---- the victims ----

fn victim_unexports(_: &[String]) {
    let node = connect();
    let export = export(&node, "x", LARGE + 4096);
    export.wait_importers(1, PATIENCE).unwrap();
    say("linked");
    pause();
    drop(export.unexport());
    say("unexported"); // never: the survivor is in the middle of a transfer
}

/// So far from its ends a copy is made in order: the C library may leave the very ends to the last.
const INSIDE: usize = 4096;

/// Whether one end of what [`victim_sends_large`] sends is there, and the other is not.
fn is_partial(low: u8, high: u8) -> bool {
    matches!((low, high), (7, 0) | (0, 7))
}

fn victim_sends_large(_: &[String]) {
    let node = connect();
    let import = import(&node, "x");
    let wire = Tripwire::new(LARGE, 7);
    wire.send(&import).unwrap(); // says "midway"
    import.flag32(LARGE_FLAG).unwrap().signal(1).unwrap();
    pause();
}

fn victim_fills_queue(_: &[String]) {
    let node = connect();
    let import = import(&node, "x");
    for word in 0..128u64 {
        import.try_send_with_notify(0, &word.to_ne_bytes()).unwrap();
    }
    say("there");
    import.send_with_notify(0, &128u64.to_ne_bytes()).unwrap();
    say("sent too much");
}

/// Kills a victim that rests while the survivor sleeps in what it does.
fn killed_while_the_survivor_sleeps(test: &str, survivor: &str, victim: &str, end: &str) {
    let mut stage = Stage::new(test, survivor);
    let mut victim = stage.victim(victim);
    victim.expect("there");
    stage.hears("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, end);
}

// ---- the exporter dies ----

/// Before its export: an import that waits goes on waiting, and can be given up.
#[test]
fn exporter_killed_before_it_exports() {
    let mut stage = Stage::new("exporter_killed_before_it_exports", "import_waits");
    let mut victim = stage.victim("victim_connects");
    victim.expect("there");
    stage.hears("there");
    let dead = victim.pid();
    victim.kill();
    daemon_forgets(&stage.watcher, dead);
    stage.survivor.go_on();
    stage.kill(victim, "still waiting");
}

/// After its export, before any import: the name is gone at once.
#[test]
fn exporter_killed_after_it_exported() {
    let stage = Stage::new("exporter_killed_after_it_exported", "import_fails");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    let dead = victim.pid();
    victim.kill();
    daemon_forgets(&stage.watcher, dead);
    let mut stage = stage;
    stage.survivor.go_on();
    stage.kill(victim, "NoSuchExport");
}

fn import_fails(_: &[String]) {
    survive(|node| {
        pause();
        match node.import("x").timeout(Duration::ZERO).open() {
            Err(ImportError::Refused(Refusal::NoSuchExport { .. })) => "NoSuchExport".to_owned(),
            other => format!("{other:?}"),
        }
    });
}

/// While its importer sleeps on a flag.
#[test]
fn exporter_killed_while_an_importer_waits_for_a_flag() {
    killed_while_the_survivor_sleeps(
        "exporter_killed_while_an_importer_waits_for_a_flag",
        "importer_waits_for_flag",
        "victim_exports",
        "WaitError::Closed PeerDied",
    );
}

fn importer_waits_for_flag(_: &[String]) {
    survive(|node| {
        let import = import(node, "x");
        say("there");
        of_wait(import.flag32(0).unwrap().wait_until(|value| value != 0, None))
    });
}

/// While its importer sleeps on a flag in a binding; the bound memory stays usable, locally.
#[test]
fn exporter_killed_while_a_binding_waits_for_a_flag() {
    killed_while_the_survivor_sleeps(
        "exporter_killed_while_a_binding_waits_for_a_flag",
        "binder_waits_for_flag",
        "victim_exports",
        "WaitError::Closed PeerDied",
    );
}

fn binder_waits_for_flag(_: &[String]) {
    survive(|node| {
        let import = import(node, "x");
        let binding = import.bind(0..8192).unwrap();
        binding.write(5000, b"mine").unwrap();
        say("there");
        let end = of_wait(binding.flag32(0).unwrap().wait_until(|value| value != 0, None));
        assert!(matches!(binding.flag32(0).unwrap().store(1), Err(SendError::Closed(_))));
        let kept = binding.unbind().unwrap();
        assert_eq!(&kept.as_slice()[5000..5004], b"mine");
        end
    });
}

/// While an importer streams large messages to it: they end in an error, never in a fault.
#[test]
fn exporter_killed_in_a_stream_of_large_sends() {
    let mut stage = Stage::new("exporter_killed_in_a_stream_of_large_sends", "importer_streams");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    stage.hears("there");
    stage.kill(victim, "SendError::Closed PeerDied");
}

fn importer_streams(_: &[String]) {
    survive(|node| {
        let import = import(node, "x");
        let message = vec![9; LARGE];
        import.send(0, &message).unwrap();
        say("there");
        loop {
            if let Err(error) = import.send(0, &message) {
                return of_send(Err(error));
            }
        }
    });
}

/// While an importer waits for room in its full notification queue.
#[test]
fn exporter_killed_with_a_full_notification_queue() {
    killed_while_the_survivor_sleeps(
        "exporter_killed_with_a_full_notification_queue",
        "importer_fills_queue",
        "victim_exports",
        "SendError::Closed PeerDied",
    );
}

fn importer_fills_queue(_: &[String]) {
    survive(|node| {
        let import = import(node, "x");
        for word in 0..128u64 {
            import.try_send_with_notify(0, &word.to_ne_bytes()).unwrap();
        }
        let full = import.try_send_with_notify(0, b"more");
        assert_eq!(full, Err(TrySendError::WouldBlock));
        say("there");
        match import.send_with_notify(0, b"more") {
            Err(SendNotifyError::Send(error)) => of_send(Err(error)),
            other => format!("{other:?}"),
        }
    });
}

/// While its unexport waits for a transfer in progress: the transfer ends, the next one fails.
#[test]
fn exporter_killed_while_its_unexport_drains() {
    let mut stage = Stage::new("exporter_killed_while_its_unexport_drains", "importer_sends_large");
    let mut victim = stage.victim("victim_unexports");
    victim.expect("linked");
    stage.hears("midway");
    victim.go_on();
    stage.dog.step("the name is withdrawn");
    until("the name is withdrawn", || {
        matches!(
            stage.watcher.import("x").timeout(Duration::ZERO).open(),
            Err(ImportError::Refused(Refusal::NoSuchExport { .. }))
        )
    });
    let dead = victim.pid();
    victim.kill();
    daemon_forgets(&stage.watcher, dead);
    stage.survivor.go_on(); // the copy goes on, into memory that is nobody else's now
    stage.kill(victim, "Ok(()) then closed");
}

fn importer_sends_large(_: &[String]) {
    survive(|node| {
        let import = import(node, "x");
        let wire = Tripwire::new(LARGE, 3);
        let sent = wire.send(&import);
        let next = match import.send(0, b"next") {
            Err(SendError::Closed(_)) => "closed".to_owned(),
            other => format!("{other:?}"),
        };
        until(
            "the death is known",
            || matches!(import.check_open(), Err(closed) if closed.reason == CloseReason::PeerDied),
        );
        format!("{sent:?} then {next}")
    });
}

// ---- the importer dies ----

/// One that had let go of its import before, and had no other: the exporter, who goes on exporting, keeps
/// nothing of it. Nor of one that lives and has no link any more.
#[test]
fn an_exporter_keeps_nothing_of_a_process_that_had_unimported() {
    let dog = Watchdog::new("an_exporter_keeps_nothing_of_a_process_that_had_unimported");
    let daemon = Daemon::start();
    let watcher = daemon.node();
    let mut exporter = daemon.second("exporter_stays", &[]);
    exporter.expect("there");
    let before = footprint_at_rest(exporter.pid(), |_| true);
    for dies in [true, false] {
        let mut importer = daemon.second("importer_comes_and_goes", &[]);
        importer.expect("there");
        until("the exporter knows it", || footprint(exporter.pid()) != before);
        if dies {
            importer.kill();
            daemon_forgets(&watcher, importer.pid());
        } else {
            importer.go_on();
            importer.expect("gone");
        }
        dog.step(format!("nothing is kept, the importer {}", if dies { "died" } else { "lives" }));
        settles("the exporter", exporter.pid(), &before);
    }
    exporter.finish();
}

fn exporter_stays(_: &[String]) {
    let node = connect();
    let _exports = [export(&node, "x", 4096), export(&node, "y", 4096)];
    say("there");
    pause();
}

/// Unimports one of its two imports, and the other when it is told to.
fn importer_comes_and_goes(_: &[String]) {
    let node = connect();
    let other = import(&node, "y");
    drop(import(&node, "x"));
    node.list().unwrap();
    say("there");
    pause();
    drop(other);
    node.list().unwrap();
    say("gone");
    pause();
}

/// While its import waits: nothing of it is granted later.
#[test]
fn importer_killed_while_its_import_waits() {
    let mut stage = Stage::new("importer_killed_while_its_import_waits", "exporter_of_later");
    let mut victim = stage.victim("victim_waits_for_import");
    victim.expect("there");
    until_asleep(victim.pid());
    let dead = victim.pid();
    victim.kill();
    daemon_forgets(&stage.watcher, dead);
    stage.survivor.go_on();
    stage.kill(victim, "0 importers");
}

/// After its import, while the exporter sleeps on a flag.
#[test]
fn importer_killed_while_its_exporter_waits_for_a_flag() {
    killed_while_the_survivor_sleeps(
        "importer_killed_while_its_exporter_waits_for_a_flag",
        "exporter_waits_for_flag",
        "victim_imports",
        "WaitError::Closed PeerDied",
    );
}

fn exporter_waits_for_flag(_: &[String]) {
    survive(|node| {
        let export = export(node, "x", 8192);
        export.wait_importers(1, PATIENCE).unwrap();
        say("there");
        let end = of_wait(export.flag32(0).unwrap().wait_until(|value| value != 0, None));
        assert!(export.importers().is_empty());
        end
    });
}

/// In the middle of a large message: half of it is there, its flag is not, nobody takes it.
#[test]
fn importer_killed_in_the_middle_of_a_large_send() {
    let mut stage =
        Stage::new("importer_killed_in_the_middle_of_a_large_send", "exporter_expects_message");
    let mut victim = stage.victim("victim_sends_large");
    stage.hears("there");
    victim.expect("midway");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "WaitError::Closed PeerDied, partial and not consumed");
}

fn exporter_expects_message(_: &[String]) {
    survive(|node| {
        let export = export(node, "x", LARGE + 4096);
        export.wait_importers(1, PATIENCE).unwrap();
        say("there");
        let flag = export.flag32(LARGE_FLAG).unwrap();
        let mut consumed = false;
        let end = flag.wait_until(|value| value != 0, None);
        consumed |= end.is_ok();
        let bytes = bytes_of(export.view());
        let partial = is_partial(bytes[INSIDE], bytes[LARGE - INSIDE]);
        let what = match (partial, consumed) {
            (true, false) => "partial and not consumed",
            (false, false) => "not partial",
            (_, true) => "consumed",
        };
        format!("{}, {what}", of_wait(end))
    });
}

/// With a full queue of notifications, waiting for room: those that were sent are delivered, all
/// and once and in order, and then the end (V8, V26).
#[test]
fn importer_killed_with_a_full_notification_queue() {
    let mut stage =
        Stage::new("importer_killed_with_a_full_notification_queue", "exporter_fetches_later");
    let mut victim = stage.victim("victim_fills_queue");
    victim.expect("there");
    until_asleep(victim.pid());
    let dead = victim.pid();
    victim.kill();
    daemon_forgets(&stage.watcher, dead);
    stage.survivor.go_on();
    stage.kill(victim, "128 in order, Closed PeerDied");
}

fn exporter_fetches_later(_: &[String]) {
    survive(|node| {
        let export = open(node.export(Region::new(4096).unwrap()).name("x").queue());
        pause();
        let mut next = 0;
        loop {
            match export.next_notification(PATIENCE).unwrap().event {
                Event::Message { last_word, .. } => {
                    assert_eq!(last_word, next);
                    next += 1;
                }
                Event::Closed { reason } => {
                    assert_eq!(export.try_next_notification().unwrap(), None);
                    return format!("{next} in order, Closed {reason:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// The death of an importer reaches a handler, whose thread slept.
#[test]
fn importer_killed_while_a_handler_thread_sleeps() {
    let stage =
        Stage::new("importer_killed_while_a_handler_thread_sleeps", "exporter_handles_death");
    let mut victim = stage.victim("victim_imports");
    victim.expect("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "PeerDied");
}

fn exporter_handles_death(_: &[String]) {
    survive(|node| {
        let (ends, end) = std::sync::mpsc::channel();
        let builder = node.export(Region::new(8192).unwrap()).name("x");
        let export = open(builder.handler(move |notification| {
            if let Event::Closed { reason } = notification.event {
                let _ = ends.send(reason);
            }
        }));
        let thread = node.start_handler_thread().unwrap();
        let reason = end.recv().unwrap();
        drop(thread);
        drop(export);
        format!("{reason:?}")
    });
}

/// In the middle of a transfer for which the exporter's unexport waits: death ends the wait, long
/// before the drain's limit does.
#[test]
fn importer_killed_while_an_unexport_waits_for_its_transfer() {
    let mut stage = Stage::new(
        "importer_killed_while_an_unexport_waits_for_its_transfer",
        "exporter_unexports",
    );
    let mut victim = stage.victim("victim_sends_large");
    stage.hears("there");
    victim.expect("midway");
    stage.survivor.go_on();
    stage.dog.step("the name is withdrawn");
    until("the name is withdrawn", || {
        matches!(
            stage.watcher.import("x").timeout(Duration::ZERO).open(),
            Err(ImportError::Refused(Refusal::NoSuchExport { .. }))
        )
    });
    stage.kill(victim, "unexported, partial");
}

fn exporter_unexports(_: &[String]) {
    survive(|node| {
        let export = export(node, "x", LARGE + 4096);
        export.wait_importers(1, PATIENCE).unwrap();
        say("there");
        pause();
        let region = export.unexport().unwrap();
        let bytes = region.as_slice();
        let partial = is_partial(bytes[INSIDE], bytes[LARGE - INSIDE]);
        (if partial { "unexported, partial" } else { "unexported, not partial" }).to_owned()
    });
}
