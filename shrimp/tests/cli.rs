//! Help, arguments, exit codes: what a person meets first.

mod common;

use common::{run, shrimp};
use rustix::event::{PollFd, PollFlags, poll};
use std::process::Stdio;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn help_lists_every_subcommand_and_every_exit_code() {
    let dir = dir();
    let help = run(shrimp(dir.path()).arg("--help")).expect(0).out;
    for word in ["demo", "exec", "stat", "perf", "doctor", "daemon", "Exit codes", "126", "127"] {
        assert!(help.contains(word), "no {word} in\n{help}");
    }
    assert!(!help.contains("__"), "internal subcommands show:\n{help}");
}

#[test]
fn the_help_of_every_subcommand_has_examples() {
    let dir = dir();
    for words in [
        &["demo"][..],
        &["exec"],
        &["stat"],
        &["perf", "raw"],
        &["perf", "vmmc"],
        &["doctor"],
        &["daemon"],
    ] {
        let help = run(shrimp(dir.path()).args(words).arg("--help")).expect(0).out;
        assert!(help.contains("Examples:") && help.contains("shrimp "), "{words:?}:\n{help}");
    }
}

#[test]
fn arguments_that_are_not_understood_end_with_2_and_name_them() {
    let dir = dir();
    for (words, named) in [
        (&["perf", "raw", "--cpus", "zero"][..], "two processor numbers"),
        (&["perf", "raw", "--cpus", "0,99999"], "two processor numbers"),
        (&["perf", "raw", "--rounds", "0"], "--rounds"),
        (&["stat", "--json", "--prometheus"], "--prometheus"),
        (&["stat", "--watch", "0"], "--watch"),
        (&["demo", "--program", "vim"], "vim"),
        (&["swim"], "swim"),
        (&["exec"], "PROG"),
    ] {
        let ended = run(shrimp(dir.path()).args(words)).expect(2);
        assert!(ended.err.contains(named), "{words:?}: {}", ended.err);
    }
}

#[test]
fn without_a_daemon_stat_and_daemon_say_so_and_start_none() {
    let dir = dir();
    let socket = dir.path().join("vmmcd.sock");
    for words in [
        &["stat"][..],
        &["stat", "--json"],
        &["daemon", "status"],
        &["daemon", "stop"],
        &["daemon", "log"],
    ] {
        let ended = run(shrimp(dir.path()).args(words)).expect(3);
        assert!(ended.out.is_empty(), "{ended:?}");
        assert!(ended.err.contains(socket.to_str().unwrap()), "{}", ended.err);
        assert!(ended.err.contains("shrimp daemon start"), "no remedy: {}", ended.err);
    }
    assert!(!socket.exists());
}

#[test]
fn another_nodes_stat_is_asked_through_the_remote_shell() {
    let (here, there) = (dir(), dir());
    let socket = there.path().join("vmmcd.sock");
    let reach = format!("env VMMC_SOCKET={}/{{}}.sock", there.path().display());
    let asked = |words: &[&str]| run(shrimp(here.path()).arg("stat").args(words));
    let ended = asked(&["--node", "vmmcd", "--rsh", &reach]).expect(3);
    assert!(ended.err.contains(socket.to_str().unwrap()), "{}", ended.err);
    // The flags go along.
    let ended =
        asked(&["--json", "--all", "--watch", "7", "--node", "b", "--rsh", "echo"]).expect(0);
    assert!(ended.out.trim_end().ends_with("stat --json --all --watch=7"), "{}", ended.out);
    assert!(ended.out.starts_with("b "), "{}", ended.out);
    let ended = asked(&["--node", "b", "--rsh", "/nonexistent-shell"]).expect(1);
    assert!(
        ended.err.contains("/nonexistent-shell") && ended.err.contains("\"b\""),
        "{}",
        ended.err
    );
}

#[test]
fn a_stale_socket_file_is_told_apart_from_a_daemon() {
    let dir = dir();
    let socket = dir.path().join("vmmcd.sock");
    // Bound, then closed: what a killed daemon leaves.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    run(shrimp(dir.path()).arg("stat")).expect(3);
    let doctor = run(shrimp(dir.path()).arg("doctor"));
    assert!(doctor.out.contains("stale socket file"), "{}", doctor.out);
}

#[test]
fn a_socket_of_something_else_is_refused_with_a_reason() {
    let dir = dir();
    let socket = dir.path().join("vmmcd.sock");
    std::fs::write(&socket, "not a socket").unwrap();
    let doctor = run(shrimp(dir.path()).arg("doctor")).expect(1);
    assert!(doctor.out.contains("is not a socket"), "{}", doctor.out);
}

#[test]
fn doctor_explains_a_bad_setting_and_ends_with_1() {
    let dir = dir();
    let mut command = shrimp(dir.path());
    let ended = run(command.args(["doctor", "--json"]).env("VMMC_WAIT", "sometimes")).expect(1);
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["healthy"], false);
    let findings = report["findings"].as_array().unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding["state"] == "attention").collect();
    assert!(
        bad.iter().any(|finding| finding["found"].as_str().unwrap().contains("sometimes")
            && finding["remedy"].is_string()),
        "{bad:#?}"
    );
}

#[test]
fn other_commands_refuse_a_bad_setting_by_name() {
    let dir = dir();
    let ended = run(shrimp(dir.path()).arg("stat").env("VMMC_SPIN_US", "-5")).expect(1);
    assert!(ended.err.contains("VMMC_SPIN_US") && ended.err.contains("-5"), "{}", ended.err);
}

#[test]
fn a_reader_that_goes_away_ends_the_output_without_a_panic() {
    let dir = dir();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // A child of another test may have it for a moment, until it runs its program.
    let mut broken = [PollFd::new(&writer, PollFlags::empty())];
    poll(&mut broken, None).unwrap();
    let output = shrimp(dir.path())
        .arg("doctor")
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(128 + 13));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_demo_whose_results_cannot_be_kept_says_so_before_it_begins() {
    let dir = dir();
    let ended = run(shrimp(dir.path()).args(["demo", "--json", "/nonexistent/x"])).expect(1);
    assert!(ended.err.contains("/nonexistent/x") && ended.out.is_empty(), "{ended:?}");
}

#[test]
fn an_output_that_cannot_be_written_is_said_and_ends_with_1() {
    let dir = dir();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = shrimp(dir.path()).arg("doctor").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("standard output") && said.contains("No space left"), "{said}");
}
