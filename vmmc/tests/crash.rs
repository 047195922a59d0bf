//! `kill -9` of an exporter, of an importer and of the daemon, at each point where it could hurt
//! (G1, G2). After each: whoever waited for the dead is awake with a clear error, the daemon knows
//! nothing of the dead any more, and the daemon and the survivor hold exactly the descriptors and
//! mappings that they held before.
//!
//! Three processes: this one looks on; the *survivor* and the *victim* are second processes. The
//! points are reached by what the two say and by what the kernel says of them, never by time.

mod common;
mod support;

use common::{Daemon, PATIENCE, Second, export, import, open, pause, say, until, vmmcd};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{
    Footprint, Tripwire, Watchdog, at_rest, bytes_of, daemon_forgets, die_with_parent, footprint,
    nothing_in_dev_shm, settles, until_asleep,
};
use vmmc::config::Config;
use vmmc::control::connect::ConnectError;
use vmmc::control::message::Refusal;
use vmmc::error::{ImportError, SendError, SendNotifyError, TrySendError, WaitError};
use vmmc::{CloseReason, Event, Node, Region, Rights};

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
        ("full_exporter", full_exporter),
        ("full_importer", full_importer),
    ]);
}

/// Length of the large buffer: a message, then a page with its flag.
const LARGE: usize = 4 << 20;
const LARGE_FLAG: usize = LARGE;

fn connect() -> Node {
    die_with_parent();
    // Long enough that a test in which only the drain's limit helps is seen to hang.
    let config = Config { drain: Duration::from_secs(300), ..Config::from_env().unwrap() };
    Node::builder().config(config).connect().unwrap()
}

// ---- the stage ----

struct Stage {
    daemon: Daemon,
    watcher: Node,
    survivor: Second,
    daemon_before: Footprint,
    survivor_before: Footprint,
    dog: Watchdog,
}

impl Stage {
    /// A daemon, and a survivor that is connected and has nothing else.
    fn new(test: &str, survivor: &str) -> Stage {
        let dog = Watchdog::new(test);
        let daemon = Daemon::start();
        let watcher = daemon.node();
        let mut survivor = daemon.second(survivor, &[]);
        survivor.expect("connected");
        let (daemon_before, survivor_before) =
            (at_rest(daemon.pid(), 2), footprint(survivor.pid()));
        survivor.go_on();
        Stage { daemon, watcher, survivor, daemon_before, survivor_before, dog }
    }

    fn victim(&self, part: &str) -> Second {
        self.dog.step(format!("the victim plays {part}"));
        self.daemon.second(part, &[])
    }

    fn hears(&mut self, word: &str) -> String {
        self.dog.step(format!("the survivor says {word}"));
        self.survivor.expect(word)
    }

    /// Kills, and checks all that must be so afterwards. `end` is what the survivor must report.
    fn kill(mut self, mut victim: Second, end: &str) {
        let dead = victim.pid();
        victim.kill();
        assert_eq!(self.hears("ended"), end);
        self.dog.step("the daemon forgets the dead");
        daemon_forgets(&self.watcher, dead);
        self.dog.step("nothing is left");
        settles("the survivor", self.survivor.pid(), &self.survivor_before);
        settles("the daemon", self.daemon.pid(), &self.daemon_before);
        let now = self.watcher.snapshot().unwrap();
        assert!(now.exports.is_empty() && now.links.is_empty(), "left: {now:?}");
        nothing_in_dev_shm();
        self.dog.step("the survivor ends");
        self.survivor.finish();
    }
}

/// In the survivor: what it does, and what it reports. All handles are dropped by then.
fn survive(body: impl FnOnce(&Node) -> String) {
    let node = connect();
    say("connected");
    pause();
    let end = body(&node);
    assert!(node.exports().is_empty() && node.imports().is_empty());
    say(&format!("ended {end}"));
    pause();
}

fn of_wait<T: std::fmt::Debug>(result: Result<T, WaitError>) -> String {
    match result {
        Err(WaitError::Closed(closed)) => format!("WaitError::Closed {:?}", closed.reason),
        other => format!("{other:?}"),
    }
}

fn of_send(result: Result<(), SendError>) -> String {
    match result {
        Err(SendError::Closed(closed)) => format!("SendError::Closed {:?}", closed.reason),
        other => format!("{other:?}"),
    }
}

// ---- the victims ----

fn victim_connects(_: &[String]) {
    let _node = connect();
    say("there");
    pause();
}

fn victim_exports(_: &[String]) {
    let node = connect();
    let region = Region::new(LARGE + 4096).unwrap();
    let _export = open(node.export(region).name("x").queue());
    say("there");
    pause();
}

fn victim_unexports(_: &[String]) {
    let node = connect();
    let export = export(&node, "x", LARGE + 4096);
    export.wait_importers(1, PATIENCE).unwrap();
    say("linked");
    pause();
    drop(export.unexport());
    say("unexported"); // never: the survivor is in the middle of a transfer
}

fn victim_waits_for_import(_: &[String]) {
    let node = connect();
    say("there");
    let _import = node.import("later").open();
}

fn victim_imports(_: &[String]) {
    let node = connect();
    let _import = import(&node, "x");
    say("there");
    pause();
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

fn import_waits(_: &[String]) {
    survive(|node| {
        let mut pending = node.import("x").start().unwrap();
        say("there");
        pause();
        let granted = pending.poll().unwrap();
        pending.cancel();
        (if granted { "granted" } else { "still waiting" }).to_owned()
    });
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
    let mut stage =
        Stage::new("exporter_killed_while_an_importer_waits_for_a_flag", "importer_waits_for_flag");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    stage.hears("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "WaitError::Closed PeerDied");
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
    let mut stage =
        Stage::new("exporter_killed_while_a_binding_waits_for_a_flag", "binder_waits_for_flag");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    stage.hears("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "WaitError::Closed PeerDied");
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
    let mut stage =
        Stage::new("exporter_killed_with_a_full_notification_queue", "importer_fills_queue");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    stage.hears("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "SendError::Closed PeerDied");
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

fn exporter_of_later(_: &[String]) {
    survive(|node| {
        pause();
        let export = export(node, "later", 4096);
        // The daemon would have told us of a link before it answers this.
        node.list().unwrap();
        format!("{} importers", export.importers().len())
    });
}

/// After its import, while the exporter sleeps on a flag.
#[test]
fn importer_killed_while_its_exporter_waits_for_a_flag() {
    let mut stage = Stage::new(
        "importer_killed_while_its_exporter_waits_for_a_flag",
        "exporter_waits_for_flag",
    );
    let mut victim = stage.victim("victim_imports");
    victim.expect("there");
    stage.hears("there");
    until_asleep(stage.survivor.pid());
    stage.kill(victim, "WaitError::Closed PeerDied");
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
        let partial = bytes[0] == 7 && bytes[LARGE - 1] == 0;
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
        let partial = bytes[0] == 7 && bytes[LARGE - 1] == 0;
        (if partial { "unexported, partial" } else { "unexported, not partial" }).to_owned()
    });
}

// ---- the daemon dies ----

/// What a fresh daemon with one client holds.
fn fresh_daemon() -> Footprint {
    let daemon = Daemon::start();
    let _watcher = daemon.node();
    at_rest(daemon.pid(), 1)
}

/// Everything that two processes do with each other, through the death and the return of the
/// daemon at a point of it: nothing fails, nothing is lost, nothing is left.
fn killed_at(point: &str) {
    let dog = Watchdog::new(point);
    let before = fresh_daemon();
    let mut daemon = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", point)]);
    let mut exporter = daemon.second("full_exporter", &[]);
    let mut importer = daemon.second("full_importer", &[]);
    dog.step("the daemon dies at the point");
    daemon.wait_dead();
    daemon.restart();
    dog.step("the importer ends");
    importer.expect("done");
    dog.step("the exporter ends");
    exporter.expect("done");
    let watcher = daemon.node();
    dog.step("no export and no link is left");
    until("no export and no link is left", || {
        let now = watcher.snapshot().unwrap();
        now.exports.is_empty() && now.links.is_empty()
    });
    dog.step("the processes end");
    importer.finish();
    exporter.finish();
    settles("the daemon", daemon.pid(), &before);
    nothing_in_dev_shm();
}

/// A daemon that dies while it greets us has not greeted us; the program tries again.
fn connect_patiently() -> Node {
    die_with_parent();
    let config = Config::from_env().unwrap();
    let mut node = None;
    until("there is a daemon", || {
        match Node::builder().config(config.clone()).connect() {
            Ok(connected) => node = Some(connected),
            Err(ConnectError::NoAnswer { .. } | ConnectError::NoDaemon { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        node.is_some()
    });
    node.unwrap()
}

const ROUNDS: u32 = 2;
const MESSAGES: u32 = 20;

fn full_exporter(_: &[String]) {
    let node = connect_patiently();
    for round in 0..ROUNDS {
        let region = Region::new(8192).unwrap();
        let export = open(node.export(region).name(format!("full {round}").as_str()).queue());
        for i in 1..=MESSAGES {
            let flag = export.flag32(4096).unwrap();
            flag.wait_until(|value| value == i, PATIENCE).unwrap();
            assert!(bytes_of(export.view())[..1000].iter().all(|&byte| byte == i as u8));
            match export.next_notification(PATIENCE).unwrap().event {
                Event::Message { last_word, .. } => assert_eq!(last_word, u64::from(i)),
                other => panic!("{other:?}"),
            }
            export.flag32(4100).unwrap().signal(i).unwrap();
        }
        let region = export.unexport().unwrap();
        assert!(region.as_slice()[..1000].iter().all(|&byte| byte == MESSAGES as u8));
    }
    say("done");
    pause();
}

fn full_importer(_: &[String]) {
    let node = connect_patiently();
    for round in 0..ROUNDS {
        let import =
            node.import(format!("full {round}").as_str()).rights(Rights::all()).open().unwrap();
        for i in 1..=MESSAGES {
            import.send(0, &[i as u8; 1000]).unwrap();
            import.send_notification(0, 1000, u64::from(i)).unwrap();
            import.flag32(4096).unwrap().signal(i).unwrap();
            import.flag32(4100).unwrap().wait_until(|value| value == i, PATIENCE).unwrap();
        }
        let end = import.flag32(4100).unwrap().wait_until(|_| false, PATIENCE);
        match end {
            Err(WaitError::Closed(closed)) => assert_eq!(closed.reason, CloseReason::Unexported),
            other => panic!("{other:?}"),
        }
    }
    assert!(node.imports().is_empty());
    say("done");
    pause();
}

macro_rules! daemon_killed {
    ($($name:ident: $point:literal,)*) => { $(
        #[test]
        fn $name() {
            killed_at($point);
        }
    )* };
}

daemon_killed! {
    daemon_killed_when_a_hello_is_accepted: "hello-accepted",
    daemon_killed_when_an_export_is_registered: "export-registered",
    daemon_killed_when_an_import_is_granted: "import-granted",
    daemon_killed_when_the_importer_is_told: "imported-sent",
    daemon_killed_when_both_are_told: "link-opened-sent",
    daemon_killed_when_an_export_is_withdrawn: "unexported",
    daemon_killed_when_an_export_is_revoked: "revoked",
}

/// A region that was exported is the program's again when the daemon is gone, and unexport and
/// drop do not hang for it.
#[test]
fn without_a_daemon_links_work_and_handles_can_be_dropped() {
    let _dog = Watchdog::new("without_a_daemon_links_work_and_handles_can_be_dropped");
    let mut daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let export = export(&a, "orphan", 4096);
    let import = import(&b, "orphan");
    export.wait_importers(1, PATIENCE).unwrap();
    daemon.kill();
    until("both know", || !a.daemon_is_connected() && !b.daemon_is_connected());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            import.send(0, b"without").unwrap();
            import.flag32(64).unwrap().signal(1).unwrap();
        });
        export.flag32(64).unwrap().wait_until(|value| value == 1, PATIENCE).unwrap();
    });
    let region = export.unexport().unwrap();
    assert_eq!(&region.as_slice()[..7], b"without");
    assert!(import.send(0, b"x").is_err());
}

/// While it hands over: the old one dies at a point of it, or the new one does. Whatever is
/// left of the two, links go on, and after another start everything else does.
fn killed_in_takeover_at(point: &str, who: &str) {
    let dog = Watchdog::new(point);
    let before = fresh_daemon();
    let armed = [("VMMCD_FAILPOINT", point)];
    let (old, new): (&[_], &[_]) = if who == "old" { (&armed, &[]) } else { (&[], &armed) };
    let mut daemon = Daemon::start_with(&[], old);
    let mut exporter = daemon.second("victim_exports", &[]);
    exporter.expect("there");
    let node = daemon.node();
    let import = import(&node, "x");
    dog.step("the successor takes over");
    let mut successor = Ended(
        Command::new(vmmcd())
            .args(["--replace", "--socket"])
            .arg(daemon.socket())
            .envs(new.iter().copied())
            .env("VMMC_LOG", "off")
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    match who {
        "old" => {
            dog.step("the old daemon dies");
            daemon.wait_dead();
        }
        _ => {
            dog.step("the successor dies");
            let status = successor.0.wait().unwrap();
            assert!(!status.success(), "{point} killed nobody");
        }
    }
    import.send(0, b"meanwhile").unwrap();
    // Whether half a takeover leaves a daemon is not promised; that a link survives it is.
    dog.step("there is a daemon");
    until("there is a daemon", || {
        if vmmc::control::Connection::open_existing(&daemon.socket()).is_ok() {
            return true;
        }
        if who == "old" && matches!(successor.0.try_wait(), Ok(Some(_))) {
            daemon.restart();
        }
        false
    });
    dog.step("a new export");
    let late = export(&node, "late", 4096);
    assert!(import.check_open().is_ok());
    import.send(0, b"afterwards").unwrap();
    dog.step("the link is known");
    until("the link is known", || node.snapshot().unwrap().links.len() == 1);
    let dead = exporter.pid();
    exporter.kill();
    dog.step("its death is noticed");
    let end = of_wait(import.flag32(0).unwrap().wait_until(|_| false, None));
    assert_eq!(end, "WaitError::Closed PeerDied");
    daemon_forgets(&node, dead);
    drop((import, late));
    let pid = node.snapshot().unwrap().pid;
    settles("the daemon", pid, &before);
}

/// A process that is ended when the test ends, however it does.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn daemon_killed_when_half_is_handed_over() {
    killed_in_takeover_at("takeover-half-sent", "old");
}

#[test]
fn daemon_killed_when_all_is_handed_over() {
    killed_in_takeover_at("takeover-sent", "old");
}

#[test]
fn successor_killed_before_it_confirms() {
    killed_in_takeover_at("takeover-received", "new");
}
