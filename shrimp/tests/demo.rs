//! `shrimp demo` end to end, and what it leaves behind: nothing.

mod common;

use common::{group_lives, interrupt, kill_group, run, shrimp};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A demo whose scratch directory is made in `dir`.
fn demo(dir: &Path) -> Command {
    common::prepare();
    let mut command = shrimp(dir);
    command.args(["demo", "--quick"]).env("TMPDIR", dir);
    command
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Charter section 5 (bytes really went over the ring): the demo checks it itself and says so.
#[test]
fn the_bytes_are_right_and_all_of_them_went_through_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let mut command = demo(dir.path());
    command.args(["--program", "none", "--json"]).arg(json.path());
    let ended = run(&mut command).expect(0);
    for word in ["plain TCP", "over shared memory", "gain", "Every byte was compared"] {
        assert!(ended.out.contains(word), "no {word:?} in\n{}", ended.out);
    }
    let report: Value = serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap();
    assert!(report["verified_bytes"].as_u64().unwrap() > 100_000);
    for way in ["plain", "over"] {
        assert!(report[way]["latency"]["median_ns"].as_f64().unwrap() > 0.0);
        assert!(report[way]["bytes_per_s"].as_f64().unwrap() > 0.0);
    }
    assert_empty(dir.path());
}

#[test]
fn a_program_of_the_system_is_run_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let ended = run(demo(dir.path()).args(["--program", "python3"]));
    // Python is no part of what the build needs; without it the demo must say what to install.
    let found = Command::new("python3").arg("-V").stdout(Stdio::null()).status().is_ok();
    if found {
        let ended = ended.expect(0);
        assert!(ended.out.contains("python3 echo of 8 bytes"), "{}", ended.out);
    } else {
        let ended = ended.expect(5);
        assert!(ended.err.contains("apt-get install python3"), "{}", ended.err);
    }
    assert_empty(dir.path());
}

#[test]
fn a_library_that_does_not_upgrade_is_a_failure_and_not_a_slow_success() {
    let dir = tempfile::tempdir().unwrap();
    common::prepare();
    // The same command beside a library that does nothing: an empty shared object.
    let bin = dir.path().join("bin");
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(&scratch).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_shrimp"));
    common::install(built, &bin.join("shrimp"));
    common::install(&built.with_file_name("vmmcd"), &bin.join("vmmcd"));
    let made = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(bin.join("libvmmc_sockets.so"))
        .status()
        .expect("cc is needed by Rust itself");
    assert!(made.success());
    let mut command = Command::new(bin.join("shrimp"));
    command.args(["demo", "--quick", "--program", "none"]).env("TMPDIR", &scratch);
    let ended = run(&mut command).expect(6);
    assert!(ended.err.contains("NOT THROUGH SHARED MEMORY"), "{}", ended.err);
    assert!(!ended.out.contains("Every byte"), "{}", ended.out);
    assert_empty(&scratch);
}

#[test]
fn ctrl_c_ends_every_process_and_removes_the_scratch_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path())
        .args(["--program", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = child.id();
    let watchdog = Instant::now() + Duration::from_secs(300);
    let limit = |what: &str| {
        if Instant::now() > watchdog {
            kill_group(group);
            panic!("{what} does not happen");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // Its daemon listens: from here on there are processes and files to be cleaned up.
    let socket_exists = || {
        std::fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .any(|entry| entry.path().join("vmmcd.sock").exists())
    };
    while !socket_exists() {
        limit("the start");
    }
    interrupt(group);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => limit("the end"),
        }
    };
    assert_eq!(status.code(), Some(130));
    // Orphans are reaped by init; until then the group exists.
    while group_lives(group) {
        limit("the end of its children");
    }
    assert_empty(dir.path());
}
