//! The examples: their stubs are what the compiler makes, and they run.

mod c_compiler;
#[path = "../../vmmc/tests/cargo/mod.rs"]
mod cargo;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use common::Daemon;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Built first if it must be: `cargo test --test examples` builds no example.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir =
        BUILT.get_or_init(|| cargo::build(&["--examples", "-p", "shrimp-rpc"]).join("examples"));
    dir.join(name)
}

fn command(daemon: &Daemon, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(example(name));
    command.args(args).env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command.env("SHRIMP_RPC_CONNECT_MS", "120000");
    command
}

/// A client waits until its server is there.
fn run(daemon: &Daemon, name: &str, args: &[&str]) -> Output {
    command(daemon, name, args).output().unwrap()
}

/// The same example's client in C, with the stubs that the compiler makes for it.
fn c_client(name: &str, dir: &Path) -> PathBuf {
    c_program(name, name, "client", dir)
}

/// A program of `examples/c`, with the stubs of one side that the compiler makes for an interface.
fn c_program(name: &str, interface: &str, side: &str, dir: &Path) -> PathBuf {
    let examples = c_compiler::package().join("examples");
    let status = Command::new(env!("CARGO_BIN_EXE_shrimpc"))
        .arg("c")
        .arg(examples.join(interface).with_extension("x"))
        .arg("--out-dir")
        .arg(dir)
        .status()
        .unwrap();
    assert!(status.success());
    let sources = [
        examples.join("c").join(name).with_extension("c"),
        dir.join(format!("{interface}_{side}.c")),
        dir.join(format!("{interface}_codec.c")),
    ];
    c_compiler::compile(name, &sources, dir)
}

fn command_c(daemon: &Daemon, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command.env("SHRIMP_RPC_CONNECT_MS", "120000");
    command
}

fn run_c(daemon: &Daemon, program: &Path, args: &[&str]) -> Output {
    command_c(daemon, program, args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_stubs_are_what_the_compiler_makes() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["add", "find", "kv", "matrix"] {
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

/// The README quotes it.
#[test]
fn the_smallest_service_adds_and_says_when_it_cannot() {
    let daemon = Daemon::start();
    let _server = Serving(command(&daemon, "add", &["serve"]).spawn().unwrap());
    assert_eq!(said(&run(&daemon, "add", &["40", "2"])), "42\n");
    assert_eq!(said(&run(&daemon, "add", &["-3", "-4"])), "-7\n");
    let overflow = run(&daemon, "add", &["2147483647", "1"]);
    assert!(!overflow.status.success());
    let why = String::from_utf8_lossy(&overflow.stderr).into_owned();
    assert_eq!(why, "add: fault 1: the sum does not fit\n");
}

/// The README quotes it, too.
#[test]
fn outcomes_are_told_apart_and_answers_come_later_in_both_languages() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let client = c_client("find", dir.path());
    let _server = Serving(command(&daemon, "find", &["serve"]).spawn().unwrap());
    let get = |key| [run(&daemon, "find", &["get", key]), run_c(&daemon, &client, &[key])];
    assert_eq!(get("a").map(|output| said(&output)), ["there is none\n", "there is none\n"]);
    let [hidden, hidden_c] = get(".a").map(|output| said(&output));
    assert_eq!((&hidden[..], &hidden_c[..]), ("Denied: it is hidden\n", "2: it is hidden\n"));
    // Both workers go on while somebody waits.
    let waiting = command(&daemon, "find", &["wait", "a", "120"]).stdout(Stdio::piped()).spawn();
    assert!(!run(&daemon, "find", &["wait", "a", "0"]).status.success(), "given up");
    assert!(run(&daemon, "find", &["store", "a", "value"]).status.success());
    assert_eq!(said(&waiting.unwrap().wait_with_output().unwrap()), "value\n");
    assert_eq!(get("a").map(|output| said(&output)), ["value\n", "value\n"]);
    let too_long = run_c(&daemon, &client, &[&"k".repeat(65)]);
    assert!(!too_long.status.success());
    let why = String::from_utf8_lossy(&too_long.stderr).into_owned();
    assert_eq!(
        why.matches("more elements, or bytes, than the interface allows").count(),
        2,
        "{why}"
    );
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
    assert_eq!(said(&run(&daemon, "kv", &["count"])), "2\n");
}

/// Has a program read a value from its standard input.
fn put_from_input(mut command: Command, value: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), value).unwrap();
    child.wait_with_output().unwrap()
}

/// The longest value there may be, of bytes of every kind, and one byte more: by both clients.
#[test]
fn values_of_sixteen_mebibytes_are_kept_and_longer_ones_refused() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let client = c_client("kv", dir.path());
    let _server = Serving(command(&daemon, "kv", &["serve"]).spawn().unwrap());
    let longest: Vec<u8> =
        (0..16u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let put = |key, value: &[u8], by_c: bool| match by_c {
        true => put_from_input(command_c(&daemon, &client, &["put", key, "-"]), value),
        false => put_from_input(command(&daemon, "kv", &["put", key, "-"]), value),
    };
    assert_eq!(said(&put("a", &longest, true)), "stored\n");
    assert_eq!(said(&put("b", &longest, false)), "stored\n");
    let got = |key| [run(&daemon, "kv", &["get", key]), run_c(&daemon, &client, &["get", key])];
    for output in ["a", "b"].into_iter().flat_map(got) {
        assert!(output.status.success());
        let value = output.stdout.strip_suffix(b"\n").unwrap();
        assert!(value == longest, "{} bytes", value.len());
    }
    let longer = [&longest[..], b"x"].concat();
    for by_c in [true, false] {
        let refused = put("c", &longer, by_c);
        assert!(!refused.status.success());
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(why.contains("the interface allows"), "{why}");
    }
    assert_eq!(said(&run(&daemon, "kv", &["count"])), "2\n");
}

#[test]
fn matrices_come_back_scaled_and_turned() {
    let daemon = Daemon::start();
    let _server = Serving(command(&daemon, "matrix", &["serve"]).spawn().unwrap());
    for (rows, columns) in [("1", "1"), ("3", "7"), ("500", "300"), ("1500", "1600")] {
        assert_eq!(said(&run(&daemon, "matrix", &["try", rows, columns])), "as expected\n");
    }
}

#[test]
fn a_c_client_of_the_store_and_a_rust_client_see_the_same_values() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let client = c_client("kv", dir.path());
    let _server = Serving(command(&daemon, "kv", &["serve"]).spawn().unwrap());
    let c = |args: &[&str]| run_c(&daemon, &client, args);
    // Longer than a buffer: it goes in pieces.
    let large = "large ".repeat(20_000);
    assert_eq!(said(&c(&["put", "a", "small"])), "stored\n");
    assert_eq!(said(&c(&["put", "b", &large])), "stored\n");
    assert_eq!(said(&run(&daemon, "kv", &["put", "b", &large])), "replaced\n");
    assert_eq!(said(&run(&daemon, "kv", &["put", "c", ""])), "stored\n");
    assert_eq!(said(&c(&["get", "a"])), "small\n");
    assert_eq!(said(&c(&["get", "b"])), format!("{large}\n"));
    assert_eq!(said(&c(&["get", "c"])), "\n");
    assert_eq!(said(&c(&["count"])), "3\n");
    assert_eq!(said(&run(&daemon, "kv", &["get", "a"])), "small\n");
    let missing = c(&["get", "d"]);
    assert!(!missing.status.success());
    assert_eq!(String::from_utf8_lossy(&missing.stderr), "no value for \"d\"\n");
    let too_long = c(&["put", &"k".repeat(65), "v"]);
    assert!(!too_long.status.success(), "a key of 65 bytes is refused");
    let why = String::from_utf8_lossy(&too_long.stderr);
    assert!(why.contains("more elements, or bytes, than the interface allows"), "{why}");
}

#[test]
fn clients_of_the_store_in_c_and_in_rust_call_its_server_in_c() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let client = c_client("kv", dir.path());
    let store = c_program("kv_store", "kv", "server", dir.path());
    let _server = Serving(command_c(&daemon, &store, &[]).spawn().unwrap());
    let c = |args: &[&str]| run_c(&daemon, &client, args);
    let large = "large ".repeat(20_000);
    assert_eq!(said(&c(&["put", "a", "small"])), "stored\n");
    assert_eq!(said(&c(&["put", "b", &large])), "stored\n");
    assert_eq!(said(&run(&daemon, "kv", &["put", "b", &large])), "replaced\n");
    assert_eq!(said(&run(&daemon, "kv", &["put", "c", ""])), "stored\n");
    for (key, value) in [("a", "small"), ("b", &large), ("c", "")] {
        assert_eq!(said(&c(&["get", key])), format!("{value}\n"));
        assert_eq!(said(&run(&daemon, "kv", &["get", key])), format!("{value}\n"));
    }
    assert_eq!(said(&c(&["count"])), "3\n");
    assert!(!c(&["get", "d"]).status.success());
    assert!(!run(&daemon, "kv", &["get", "d"]).status.success());
}

#[test]
fn matrices_of_c_come_back_scaled_and_turned_whole_and_in_pieces() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let client = c_client("matrix", dir.path());
    let _server = Serving(command(&daemon, "matrix", &["serve"]).spawn().unwrap());
    for (rows, columns) in [("1", "1"), ("3", "7"), ("500", "300"), ("1500", "1600")] {
        let output = run_c(&daemon, &client, &["try", rows, columns]);
        assert_eq!(said(&output), "as expected\n", "{output:?}");
        // In pieces: 64 KiB at a time.
        let mut small = Command::new(&client);
        small.args(["try", rows, columns]).env("SHRIMP_RPC_BUFFER", "65536");
        small.env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
        assert_eq!(said(&small.output().unwrap()), "as expected\n");
    }
}
