//! `shrimp daemon`: what a daemon is started with, and where.

mod common;

use common::{Finished, RunningDaemon, prepare, run, shrimp};
use std::path::Path;

fn daemon(dir: &Path, words: &[&str]) -> Finished {
    run(shrimp(dir).arg("daemon").args(words))
}

/// What the daemon that listens was started with.
fn started_with(dir: &Path) -> Vec<String> {
    let status = daemon(dir, &["status"]).expect(0).out;
    let (_, rest) = status.split_once("process ").unwrap();
    let (pid, _) = rest.split_once(',').unwrap();
    let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// A cluster file of a node alone, without a key.
fn write_cluster(file: &Path) {
    let text = "node = \"a\"\nlisten = \"127.0.0.1:0\"\n[nodes]\n";
    std::fs::write(file, text).unwrap();
}

#[test]
fn a_restarted_daemon_has_its_predecessors_options_and_says_so() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    let options = ["--exports-per-user", "7", "--pair-users=any"];
    daemon(dir.path(), &["start", "--", options[0], options[1], options[2]]).expect(0);
    let _running = RunningDaemon::started(dir.path());
    let restarted = daemon(dir.path(), &["restart"]).expect(0);
    assert!(restarted.out.contains(&options.join(" ")), "{}", restarted.out);
    let has = |option: &str| started_with(dir.path()).iter().any(|word| word == option);
    assert!(options.iter().all(|option| has(option)), "{:?}", started_with(dir.path()));
    // Others that are given count instead.
    let restarted = daemon(dir.path(), &["restart", "--", "--clients-per-user=9"]).expect(0);
    assert!(restarted.out.contains("not repeated"), "{}", restarted.out);
    assert!(has("--clients-per-user=9") && !has("--pair-users=any"));
}

#[test]
fn relative_paths_are_seen_from_where_the_user_is() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    write_cluster(&dir.path().join("x.toml"));
    let mut here = shrimp(dir.path());
    here.env("VMMC_SOCKET", "vmmcd.sock").current_dir(dir.path());
    run(here.args(["daemon", "start", "--", "--cluster", "x.toml"])).expect(0);
    let _running = RunningDaemon::started(dir.path());
    assert!(dir.path().join("vmmcd.log").exists());
    // What a program is run with holds for others that it starts elsewhere.
    let mut here = shrimp(dir.path());
    here.env("VMMC_SOCKET", "vmmcd.sock").current_dir(dir.path());
    let ended = run(here.args(["exec", "--", "sh", "-c", "echo $VMMC_SOCKET"])).expect(0);
    assert_eq!(ended.out.trim(), dir.path().join("vmmcd.sock").to_str().unwrap());
    // Also when it is replaced from elsewhere.
    let restarted = daemon(dir.path(), &["restart"]).expect(0);
    let cluster = format!("--cluster {}", dir.path().join("x.toml").display());
    assert!(restarted.out.contains(&cluster), "{}", restarted.out);
}
