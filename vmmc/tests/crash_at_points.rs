//! `kill -9` of an exporter and of an importer while the daemon stands at each of its named points
//! (G1, G2): in the middle of what it does for the dead or for the survivor, or of its own hand-over.
//! The daemon goes on when the dead is dead; `support/stage.rs` says what is checked then.

mod common;
mod support;

use common::{PATIENCE, export, import, pause, say};
use support::stage::{
    FOR_LONG, Stage, connect, exporter_of_later, import_waits, of_wait, survive, victim_connects,
    victim_exports, victim_imports,
};
use support::{until_asleep, until_stopped};
use vmmc::Rights;

#[test]
fn second_process() {
    common::second_process(&[
        ("victim_connects", victim_connects),
        ("victim_exports", victim_exports),
        ("victim_imports", victim_imports),
        ("victim_waits_for_x", victim_waits_for_x),
        ("victim_unexports", victim_unexports),
        ("import_waits", import_waits),
        ("importer_of_x", importer_of_x),
        ("exporter_of_later", exporter_of_later),
        ("exporter_of_x", exporter_of_x),
        ("unexporter_of_x", unexporter_of_x),
    ]);
}

// ---- parts ----

fn victim_unexports(_: &[String]) {
    let node = connect();
    let export = export(&node, "x", 8192);
    export.wait_importers(1, PATIENCE).unwrap();
    say("linked");
    pause();
    drop(export.unexport());
    pause();
}

fn victim_waits_for_x(_: &[String]) {
    let node = connect();
    say("there");
    let _import = node.import("x").rights(Rights::all()).timeout(FOR_LONG).open();
    pause();
}

/// Imports when it is told to, and waits for what never comes.
fn importer_of_x(_: &[String]) {
    survive(|node| {
        say("ready");
        pause();
        let import = import(node, "x");
        say("linked");
        of_wait(import.flag32(0).unwrap().wait_until(|value| value != 0, None))
    });
}

/// Exports when it is told to, and waits for what never comes.
fn exporter_of_x(_: &[String]) {
    survive(|node| {
        say("ready");
        pause();
        let export = export(node, "x", 8192);
        say("there");
        let end = of_wait(export.flag32(0).unwrap().wait_until(|value| value != 0, None));
        assert!(export.importers().is_empty());
        end
    });
}

/// Unexports, when it is told to, what is imported.
fn unexporter_of_x(_: &[String]) {
    survive(|node| {
        let export = export(node, "x", 8192);
        export.wait_importers(1, PATIENCE).unwrap();
        say("linked");
        pause();
        let mut region = export.unexport().unwrap();
        region.as_mut_slice().fill(1);
        "unexported".to_owned()
    });
}

/// What a survivor reports whose peer died.
const DIED: &str = "WaitError::Closed PeerDied";

// ---- the exporter dies ----

/// The third to be greeted: after the test itself and the survivor.
#[test]
fn exporter_killed_while_it_is_greeted() {
    let mut stage = Stage::armed(
        "exporter_killed_while_it_is_greeted",
        "import_waits",
        "hello-accepted:stop:3",
    );
    stage.hears("there");
    let victim = stage.victim("victim_connects");
    until_stopped(stage.daemon.pid());
    stage.survivor.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, "still waiting");
}

/// The waiting import is granted what its exporter never heard to be exported.
#[test]
fn exporter_killed_while_its_export_is_registered() {
    let mut stage = Stage::armed(
        "exporter_killed_while_its_export_is_registered",
        "importer_of_x",
        "export-registered:stop",
    );
    stage.hears("ready");
    stage.survivor.go_on();
    until_asleep(stage.survivor.pid());
    let victim = stage.victim("victim_exports");
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, DIED);
}

fn exporter_killed_while_it_is_imported(test: &str, point: &str) {
    let mut stage = Stage::armed(test, "importer_of_x", point);
    stage.hears("ready");
    let mut victim = stage.victim("victim_exports");
    victim.expect("there");
    stage.survivor.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, DIED);
}

#[test]
fn exporter_killed_while_an_import_of_it_is_granted() {
    exporter_killed_while_it_is_imported(
        "exporter_killed_while_an_import_of_it_is_granted",
        "import-granted:stop",
    );
}

#[test]
fn exporter_killed_before_it_hears_of_the_link() {
    exporter_killed_while_it_is_imported(
        "exporter_killed_before_it_hears_of_the_link",
        "imported-sent:stop",
    );
}

#[test]
fn exporter_killed_when_both_have_been_told() {
    exporter_killed_while_it_is_imported(
        "exporter_killed_when_both_have_been_told",
        "link-opened-sent:stop",
    );
}

fn exporter_killed_while_it_unexports(test: &str, point: &str, end: &str) {
    let mut stage = Stage::armed(test, "importer_of_x", point);
    stage.hears("ready");
    let mut victim = stage.victim("victim_unexports");
    stage.survivor.go_on();
    stage.hears("linked");
    victim.expect("linked");
    victim.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, end);
}

#[test]
fn exporter_killed_while_its_name_is_withdrawn() {
    exporter_killed_while_it_unexports(
        "exporter_killed_while_its_name_is_withdrawn",
        "unexported:stop",
        DIED,
    );
}

#[test]
fn exporter_killed_after_it_revoked() {
    exporter_killed_while_it_unexports(
        "exporter_killed_after_it_revoked",
        "revoked:stop",
        "WaitError::Closed Unexported",
    );
}

// ---- the importer dies ----

#[test]
fn importer_killed_while_it_is_greeted() {
    let mut stage = Stage::armed(
        "importer_killed_while_it_is_greeted",
        "exporter_of_later",
        "hello-accepted:stop:3",
    );
    let victim = stage.victim("victim_connects");
    until_stopped(stage.daemon.pid());
    stage.survivor.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, "0 importers");
}

/// Its waiting import is granted when it is dead.
#[test]
fn importer_killed_while_what_it_waits_for_is_registered() {
    let mut stage = Stage::armed(
        "importer_killed_while_what_it_waits_for_is_registered",
        "exporter_of_x",
        "export-registered:stop",
    );
    stage.hears("ready");
    let mut victim = stage.victim("victim_waits_for_x");
    victim.expect("there");
    until_asleep(victim.pid());
    stage.survivor.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, DIED);
}

fn importer_killed_while_it_imports(test: &str, point: &str) {
    let mut stage = Stage::armed(test, "exporter_of_x", point);
    stage.hears("ready");
    stage.survivor.go_on();
    stage.hears("there");
    let victim = stage.victim("victim_waits_for_x");
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, DIED);
}

#[test]
fn importer_killed_while_its_import_is_granted() {
    importer_killed_while_it_imports(
        "importer_killed_while_its_import_is_granted",
        "import-granted:stop",
    );
}

#[test]
fn importer_killed_before_the_exporter_hears_of_the_link() {
    importer_killed_while_it_imports(
        "importer_killed_before_the_exporter_hears_of_the_link",
        "imported-sent:stop",
    );
}

#[test]
fn importer_killed_when_both_have_been_told() {
    importer_killed_while_it_imports(
        "importer_killed_when_both_have_been_told",
        "link-opened-sent:stop",
    );
}

fn importer_killed_while_its_exporter_unexports(test: &str, point: &str) {
    let mut stage = Stage::armed(test, "unexporter_of_x", point);
    let mut victim = stage.victim("victim_imports");
    victim.expect("there");
    stage.hears("linked");
    stage.survivor.go_on();
    let daemon = stage.daemon.pid();
    stage.kill_while_stopped(daemon, victim, "unexported");
}

#[test]
fn importer_killed_while_the_name_is_withdrawn() {
    importer_killed_while_its_exporter_unexports(
        "importer_killed_while_the_name_is_withdrawn",
        "unexported:stop",
    );
}

#[test]
fn importer_killed_when_the_export_is_revoked() {
    importer_killed_while_its_exporter_unexports(
        "importer_killed_when_the_export_is_revoked",
        "revoked:stop",
    );
}

// ---- in the middle of a hand-over ----

/// Which of the two daemons stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stops {
    Old,
    New,
}

fn killed_in_takeover(test: &str, survivor: &str, victim: &str, point: &str, stops: Stops) {
    let (old_point, new_point) = match stops {
        Stops::Old => (point, ""),
        Stops::New => ("", point),
    };
    let mut stage = Stage::armed(test, survivor, old_point);
    stage.hears("ready");
    // Whichever of the two exports comes first.
    let exports = survivor == "exporter_of_x";
    if exports {
        stage.survivor.go_on();
        stage.hears("there");
    }
    let mut victim = stage.victim(victim);
    victim.expect("there");
    if !exports {
        stage.survivor.go_on();
        stage.hears("linked");
    }
    let old = stage.daemon.pid();
    let _old = stage.daemon.begin_replace(&[], &[("VMMCD_FAILPOINT", new_point)]);
    let stopped = if stops == Stops::Old { old } else { stage.daemon.pid() };
    stage.kill_while_stopped(stopped, victim, DIED);
}

macro_rules! killed_in_takeover {
    ($($exporter:ident, $importer:ident: $point:literal of $stops:expr,)*) => { $(
        #[test]
        fn $exporter() {
            let test = stringify!($exporter);
            killed_in_takeover(test, "importer_of_x", "victim_exports", $point, $stops);
        }
        #[test]
        fn $importer() {
            let test = stringify!($importer);
            killed_in_takeover(test, "exporter_of_x", "victim_imports", $point, $stops);
        }
    )* };
}

killed_in_takeover! {
    exporter_killed_when_half_is_handed_over, importer_killed_when_half_is_handed_over:
        "takeover-half-sent:stop" of Stops::Old,
    exporter_killed_when_all_is_handed_over, importer_killed_when_all_is_handed_over:
        "takeover-sent:stop" of Stops::Old,
    exporter_killed_before_the_successor_confirms, importer_killed_before_the_successor_confirms:
        "takeover-received:stop" of Stops::New,
}
