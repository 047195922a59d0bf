//! Random programs in which everything happens at once: several connections, threads and processes of
//! both ends writing and reading each of them, and meanwhile forks, other programs, passed and copied descriptors,
//! calls that send a connection back to TCP, half-closes and deaths (`c/crowd.c`). No order is
//! demanded that TCP does not promise: each writer's bytes arrive whole and in its own order, then
//! the end; a killed peer's as far as they came. All three ways must print the same (S1, S3, S14).
//!
//! Besides fixed seeds each run takes one that nobody has chosen. To repeat or to search:
//! `RANDOM_CROWDS=FIRST..LAST cargo test -p compat-sockets --test random_crowds`. A failure names its
//! seed and the commands; `RANDOM_CROWDS_TURNS` runs each seed so often.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Daemon, Leg, artefacts, compile_of};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ends what hangs. Never an assertion on speed.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Seeds that CI runs.
const SEEDS: std::ops::Range<u64> = 0..16;
/// And those that once found something.
const FOUND: [u64; 3] = [20, 309, 392];

/// One of the two programs, with all that it started.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl End {
    fn start(seed: u64, role: &str, leg: Leg, daemon: &Path, dir: &Path) -> End {
        let program = compile_once();
        let mut command = common::without_settings(Command::new(program));
        command.arg(seed.to_string()).arg(role).arg(dir.join("world"));
        command.env("VMMC_DAEMON", "none").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(dir.join(format!("{role}.err"))).unwrap());
        match leg {
            Leg::Plain => {}
            Leg::NoDaemon => {
                command.env("LD_PRELOAD", &artefacts().library);
                command.env("VMMC_SOCKET", dir.join("nobody"));
            }
            Leg::Ring | Leg::Carried => {
                command.env("LD_PRELOAD", &artefacts().library).env("VMMC_SOCKET", daemon);
            }
        }
        if leg != Leg::Plain {
            command.env("VMMC_SOCKETS_REPORT", dir.join("report"));
        }
        End(command.spawn().unwrap())
    }
}

fn compile_once() -> &'static Path {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| compile_of("crowd", &["crowd"]))
}

/// What both ends printed; `Err` says how they failed.
fn run(seed: u64, leg: Leg, daemon: &mut Daemon) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = daemon.path.clone();
    let mut server = End::start(seed, "server", leg, &path, dir.path());
    let mut client = End::start(seed, "client", leg, &path, dir.path());
    let deadline = Instant::now() + WATCHDOG;
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut readers = Vec::new();
    let mut answers = client.0.stdin.take().unwrap();
    let outputs = [server.0.stdout.take().unwrap(), client.0.stdout.take().unwrap()];
    for (end, output) in outputs.into_iter().enumerate() {
        let sender = sender.clone();
        readers.push(std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send((end, line));
            }
        }));
    }
    drop(sender);
    let mut printed = [String::new(), String::new()];
    let failed = |why: &str| {
        let mut text = format!("{}: {why}", leg.name());
        for role in ["server", "client"] {
            let mut said = String::new();
            let log = std::fs::File::open(dir.path().join(format!("{role}.err")));
            let _ = log.unwrap().read_to_string(&mut said);
            text += &format!("\n--- {role}\n{said}");
        }
        text
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left) {
            Ok((_, line)) if line.starts_with("# warm ") => {
                let count = line["# warm ".len()..].parse().unwrap();
                let go =
                    leg != Leg::Ring || all_carry(daemon, [server.0.id(), client.0.id()], count);
                writeln!(answers, "{}", if go { "go" } else { "more" }).unwrap();
            }
            Ok((end, line)) => printed[end] += &format!("{line}\n"),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                if let Ok(pause) = std::env::var("RANDOM_CROWDS_PAUSE") {
                    eprintln!("hangs: {} {}", server.0.id(), client.0.id());
                    std::thread::sleep(Duration::from_secs(pause.parse().unwrap()));
                }
                return Err(failed("hangs"));
            }
        }
    }
    for (name, end) in [("server", &mut server), ("client", &mut client)] {
        let status = end.0.wait().unwrap();
        if !status.success() {
            return Err(failed(&format!("the {name} ended with {status}")));
        }
    }
    for reader in readers {
        reader.join().unwrap();
    }
    let report = std::fs::read_to_string(dir.path().join("report")).unwrap_or_default();
    if report
        .split_whitespace()
        .any(|word| word.strip_prefix("poisoned=").is_some_and(|count| count != "0"))
    {
        return Err(failed("nonsense was seen in a ring"));
    }
    if printed.iter().any(|lines| lines.contains("WRONG")) {
        return Err(failed(&printed.concat()));
    }
    Ok(printed.concat())
}

/// Whether both ends of so many connections between the two processes have put bytes into rings.
fn all_carry(daemon: &mut Daemon, pids: [u32; 2], count: usize) -> bool {
    let carrying = daemon.snapshot().connections.into_iter();
    carrying.filter(|one| pids.contains(&one.pid) && one.ring_bytes > 0).count() == 2 * count
}

#[test]
fn everything_at_once_gives_what_tcp_gives() {
    let mut daemon = Daemon::start();
    let seeds: Vec<u64> = match std::env::var("RANDOM_CROWDS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("RANDOM_CROWDS=FIRST..LAST");
            (first.parse().unwrap()..last.parse().unwrap()).collect()
        }
        Err(_) => SEEDS.chain(FOUND).chain([common::seed_of_this_run()]).collect(),
    };
    let turns = std::env::var("RANDOM_CROWDS_TURNS").map_or(1, |text| text.parse().unwrap());
    for seed in seeds {
        eprintln!("seed {seed}");
        for _ in 0..turns {
            let mut legs = [Leg::Plain, Leg::NoDaemon, Leg::Ring].map(|leg| {
                run(seed, leg, &mut daemon).unwrap_or_else(|why| panic!("seed {seed}, {why}"))
            });
            let plain = std::mem::take(&mut legs[0]);
            assert!(plain.contains("all is right"), "seed {seed}: {plain}");
            for (leg, printed) in ["no daemon", "ring"].into_iter().zip(&legs[1..]) {
                assert_eq!(*printed, plain, "seed {seed}, {leg}");
            }
        }
    }
}
