//! `shrimp exec`: the program must not notice that it was started by us.

mod common;

use common::{run, shrimp};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn dir() -> tempfile::TempDir {
    common::prepare();
    tempfile::tempdir().unwrap()
}

/// No daemon: these tests are about the program alone.
fn exec(dir: &Path, words: &[&str]) -> common::Finished {
    run(shrimp(dir).env("VMMC_DAEMON", "none").args(["exec", "--sockets", "--"]).args(words))
}

#[test]
fn a_daemon_is_started_when_none_listens_and_its_absence_is_no_obstacle() {
    let dir = dir();
    let socket = dir.path().join("vmmcd.sock");
    let started = run(shrimp(dir.path()).args(["exec", "--sockets", "--", "true"])).expect(0);
    assert_eq!(started.err, "");
    assert!(socket.exists());
    run(shrimp(dir.path()).args(["daemon", "stop"])).expect(0);
    exec(dir.path(), &["true"]).expect(0);
    assert!(!socket.exists(), "VMMC_DAEMON=none was not obeyed");
    let broken = run(shrimp(dir.path()).env("VMMC_DAEMON", "/no/such/vmmcd").args([
        "exec",
        "--sockets",
        "--",
        "true",
    ]))
    .expect(0);
    for word in ["plain TCP", "/no/such/vmmcd\" cannot be run", "VMMC_DAEMON"] {
        assert!(broken.err.contains(word), "no {word:?} in {}", broken.err);
    }
}

#[test]
fn a_program_that_is_not_there_ends_with_127_and_one_that_cannot_run_with_126() {
    let dir = dir();
    let missing = exec(dir.path(), &["no-such-program-here"]).expect(127);
    assert!(missing.err.contains("no-such-program-here"), "{}", missing.err);
    let file = dir.path().join("plain.txt");
    std::fs::write(&file, "text").unwrap();
    let plain = exec(dir.path(), &[file.to_str().unwrap()]).expect(126);
    assert!(plain.err.contains("plain.txt") && plain.err.contains("chmod"), "{}", plain.err);
}

#[test]
fn the_exit_code_and_the_fatal_signal_are_the_programs_own() {
    let dir = dir();
    exec(dir.path(), &["sh", "-c", "exit 42"]).expect(42);
    let killed = exec(dir.path(), &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15), "{killed:?}");
}

#[test]
fn arguments_and_output_pass_unchanged() {
    let dir = dir();
    let ended = exec(dir.path(), &["printf", "%s|", "--version", "-v", "a b", ""]).expect(0);
    assert_eq!(ended.out, "--version|-v|a b||");
    assert_eq!(ended.err, "");
}

#[test]
fn the_process_is_replaced_and_not_wrapped() {
    let dir = dir();
    // The shell that becomes shrimp that becomes sh keeps its process id.
    let script = "echo $$; exec \"$0\" exec --sockets -- sh -c 'echo $$'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_shrimp")]);
    command.env("VMMC_SOCKET", dir.path().join("vmmcd.sock")).env("VMMC_DAEMON", "none");
    let ended = run(&mut command).expect(0);
    let ids: Vec<&str> = ended.out.lines().collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn the_library_is_preloaded_in_front_of_what_was_there() {
    let dir = dir();
    let theirs = libc();
    let mut command = shrimp(dir.path());
    command.args([
        "exec",
        "--sockets",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD; grep -c vmmc_sockets /proc/self/maps",
    ]);
    let ended = run(command.env("LD_PRELOAD", &theirs)).expect(0);
    let mut lines = ended.out.lines();
    let preload = lines.next().unwrap();
    let (ours, rest) = preload.split_once(':').unwrap();
    assert!(ours.ends_with("/libvmmc_sockets.so"), "{preload}");
    assert_eq!(rest, theirs.to_str().unwrap());
    let mapped: u32 = lines.next().unwrap().parse().unwrap();
    assert!(mapped > 0, "preloaded but not mapped");
}

/// Some library that the loader finds anyway.
fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files.find(|path| path.contains("/libc.so")).expect("no libc").into()
}

#[test]
fn rules_reach_the_program_in_front_of_those_that_were_there() {
    let dir = dir();
    let show = ["--", "sh", "-c", "echo $VMMC_SOCKETS_RULES"];
    let mut command = shrimp(dir.path());
    command.args(["exec", "--rule", "allow port=6379", "--rule", "deny"]).args(show);
    let ended = run(command.env("VMMC_SOCKETS_RULES", "deny uid=7")).expect(0);
    assert_eq!(ended.out.trim(), "allow port=6379; deny; deny uid=7");
}

#[test]
fn a_bad_rule_is_named_with_reason_and_remedy_and_nothing_is_run() {
    let dir = dir();
    let mut command = shrimp(dir.path());
    let ended = run(command.args(["exec", "--rule", "deny port=0", "--", "echo", "ran"])).expect(2);
    for part in ["deny port=0", "is no port", "65535"] {
        assert!(ended.err.contains(part), "{}", ended.err);
    }
    let mut command = shrimp(dir.path());
    command.args(["exec", "--", "echo", "ran"]).env("VMMC_SOCKETS_RULES", "permit");
    let ended = run(&mut command).expect(1);
    assert!(ended.err.contains("permit") && !ended.out.contains("ran"), "{}", ended.err);
}

#[test]
fn explain_tells_what_is_preloaded() {
    let dir = dir();
    let ended = run(shrimp(dir.path()).args(["exec", "-v", "--", "true"])).expect(0);
    assert!(ended.err.contains("libvmmc_sockets.so"), "{}", ended.err);
}

#[test]
fn a_static_program_runs_plain_after_a_warning() {
    let dir = dir();
    let source = dir.path().join("static.c");
    let program = dir.path().join("static");
    std::fs::write(&source, "int main(void) { return 7; }\n").unwrap();
    let built = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&program)
        .arg(&source)
        .status()
        .expect("cc is needed by Rust itself");
    assert!(built.success(), "cc -static failed: install the static C library (libc6-dev)");
    let ended = exec(dir.path(), &[program.to_str().unwrap()]).expect(7);
    assert!(ended.err.contains("statically linked"), "{}", ended.err);
}

#[test]
fn a_program_with_the_address_sanitizer_runs_with_the_library() {
    let dir = dir();
    let (source, program) = (dir.path().join("sane.c"), dir.path().join("sane"));
    let text = "#include <stdlib.h>\n#include <string.h>\nint main(void) {
        return strstr(getenv(\"LD_PRELOAD\"), \"vmmc_sockets\") ? 7 : 8; }\n";
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    let built = cc.args(["-fsanitize=address", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(built.success(), "cc -fsanitize=address failed: install gcc's libasan");
    let ended = exec(dir.path(), &[program.to_str().unwrap()]).expect(7);
    assert_eq!(ended.err, "");
}

#[test]
fn a_script_runs_by_its_interpreter_with_the_library() {
    let dir = dir();
    let (text, script) = (dir.path().join("text"), dir.path().join("script"));
    std::fs::write(&text, "#!/bin/sh\ncase $LD_PRELOAD in *vmmc_sockets*) exit 9;; esac\n")
        .unwrap();
    common::install(&text, &script);
    let ended = exec(dir.path(), &[script.to_str().unwrap()]).expect(9);
    assert_eq!(ended.err, "");
}

#[test]
fn a_missing_library_is_named_with_the_remedy() {
    let dir = dir();
    // A copy outside any target directory has nothing beside it and no tree to build from.
    let copy = dir.path().join("bin").join("shrimp");
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    common::install(Path::new(env!("CARGO_BIN_EXE_shrimp")), &copy);
    let mut command = Command::new(&copy);
    command.args(["exec", "--", "true"]).env("PATH", "/usr/bin:/bin");
    let ended = run(&mut command).expect(5);
    for word in ["libvmmc_sockets.so", "looked at", "cargo build --release -p compat-sockets"] {
        assert!(ended.err.contains(word), "no {word:?} in {}", ended.err);
    }
}
