//! The examples: their stubs are what the compiler makes, and they run.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use common::Daemon;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "no {path:?}: cargo build -p shrimp-rpc --examples");
    path
}

fn command(daemon: &Daemon, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(example(name));
    command.args(args).env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command
}

/// A client waits until its server is there.
fn run(daemon: &Daemon, name: &str, args: &[&str]) -> Output {
    command(daemon, name, args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_stubs_are_what_the_compiler_makes() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["kv", "matrix"] {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let made = dir.path().join(name).with_extension("rs");
        let status = Command::new(env!("CARGO_BIN_EXE_shrimpc"))
            .args(["rust", &format!("{name}.x"), "-o"])
            .arg(&made)
            .current_dir(&examples)
            .status()
            .unwrap();
        assert!(status.success());
        let kept = examples.join("generated").join(name).with_extension("rs");
        assert!(
            std::fs::read(&made).unwrap() == std::fs::read(&kept).unwrap(),
            "{kept:?} is not what shrimpc makes of {name}.x; run in shrimp-rpc/examples: \
             shrimpc rust {name}.x -o generated/{name}.rs"
        );
    }
}

#[test]
fn the_store_keeps_values_small_and_large() {
    let daemon = Daemon::start();
    let _server = Serving(command(&daemon, "kv", &["serve"]).spawn().unwrap());
    assert_eq!(said(&run(&daemon, "kv", &["put", "a", "small"])), "stored\n");
    let large = "large ".repeat(20_000);
    assert_eq!(said(&run(&daemon, "kv", &["put", "b", &large])), "stored\n");
    assert_eq!(said(&run(&daemon, "kv", &["put", "b", &large])), "replaced\n");
    assert_eq!(said(&run(&daemon, "kv", &["get", "a"])), "small\n");
    assert_eq!(said(&run(&daemon, "kv", &["get", "b"])), format!("{large}\n"));
    let missing = run(&daemon, "kv", &["get", "c"]);
    assert!(!missing.status.success());
}

#[test]
fn matrices_come_back_scaled_and_turned() {
    let daemon = Daemon::start();
    let _server = Serving(command(&daemon, "matrix", &["serve"]).spawn().unwrap());
    for (rows, columns) in [("1", "1"), ("3", "7"), ("500", "300"), ("1500", "1600")] {
        assert_eq!(said(&run(&daemon, "matrix", &["try", rows, columns])), "as expected\n");
    }
}
