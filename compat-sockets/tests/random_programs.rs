//! Random programs of socket calls: two ends of one connection, several processes and threads,
//! fork, exec, spawning, descriptor passing, copies, half-close, close, kill, and calls that send
//! the connection back to TCP at random points. What every call gives is compared with what TCP
//! promises, first with the kernel alone (which proves the model of this file), then with the library
//! without a daemon, then with both (S1 to S14). `random_crowds` has many connections at once.
//!
//! A program is a list of [`Op`]; those that make no sense where they stand are passed over, so any
//! part of a failing program is a program and proptest shrinks it. Besides fixed seeds each run takes one
//! that nobody has chosen. To repeat or to search:
//! `RANDOM_PROGRAMS=FIRST..LAST cargo test -p compat-sockets --test random_programs`; a failure names
//! its seed, and is shrunk by so many steps as `RANDOM_PROGRAMS_SHRINK` says. What a race decides shows
//! itself in one run of many: `RANDOM_PROGRAMS_TURNS` runs each program so often.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Daemon, Leg, artefacts, compile_of};
use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use rustix::io::Errno;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ends a program that hangs. Never an assertion on speed.
const WATCHDOG: Duration = Duration::from_secs(120);
/// What programs are made of.
#[derive(Clone, Copy, Debug)]
struct Mix {
    /// Most bytes unread in one direction: less than the kernel's smallest buffer.
    most: u64,
    /// Most bytes of a write, of those that are no message.
    longest: u64,
    /// How often one writes, and reads, where other calls have frequencies of 1 to 4.
    writes: u32,
    reads: u32,
    /// The same of [`MORE`]'s.
    more: u32,
    /// `VMMC_SOCKETS_FULL_MS`.
    full_ms: u64,
}

/// Less than the smallest ring.
const LITTLE: Mix =
    Mix { most: 20_000, longest: 9_000, writes: 12, reads: 12, more: 0, full_ms: 500 };
/// With the calls of [`MORE`].
const WIDE: Mix = Mix { more: 5, ..LITTLE };
/// Several times what the smallest ring holds.
const MUCH: Mix =
    Mix { most: 60_000, longest: 25_000, writes: 24, reads: 12, more: 0, full_ms: 500 };
/// Rings that rest for moments, and are seldom left for good.
const AGAIN: Mix = Mix { writes: 200, reads: 160, full_ms: 1, ..MUCH };
/// Processes of one end at most.
const MOST_ACTORS: usize = 5;
/// Seeds that CI runs.
const SEEDS: std::ops::Range<u64> = 0..12;
/// And those that once found something.
const FOUND: [u64; 16] =
    [59, 197, 237, 291, 331, 1072, 1238, 1332, 1420, 1530, 1708, 2053, 2215, 2374, 2466, 3482];
const FOUND_AGAIN: [u64; 2] = [30034, 40020];
const FOUND_WIDE: [u64; 3] = [25, 30, 42];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    Read,
    ReadNothing,
    Ready,
    Fork,
    Exec,
    Spawn,
    Pass,
    Copy,
    Close,
    Kill,
    Shut,
    Nonblocking,
    ToTcp,
    Bulk,
    Awaited,
    AskSet,
    LookAtSet,
    Reset,
    TimeLimit,
    Urgent,
}

/// Kinds that [`Mix::more`] brings, with how often one is meant where that is 1.
const MORE: [(u32, Kind); 5] = [
    (2, Kind::AskSet),
    (3, Kind::LookAtSet),
    (1, Kind::Reset),
    (1, Kind::TimeLimit),
    (1, Kind::Urgent),
];

/// What a process wants its epoll set to tell, where it keeps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Levels,
    Edges,
    Once,
}

/// The epoll set that a process keeps.
#[derive(Clone, Copy, Debug)]
struct Set {
    wish: Wish,
    of_end: bool,
    /// Something has happened that is to be told: since the set was last looked at, or for [`Wish::Once`] since it was asked.
    news: bool,
}

/// Whether the connection was reset by the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reset {
    #[default]
    No,
    Untold,
    Told,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    end: usize,
    who: usize,
    amount: u64,
    how: u64,
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    use Kind::*;
    let kinds = [
        (mix.writes, Write),
        (mix.reads, Read),
        (2, ReadNothing),
        (4, Ready),
        (3, Fork),
        (2, Exec),
        (2, Spawn),
        (2, Pass),
        (2, Copy),
        (2, Close),
        (1, Kill),
        (1, Shut),
        (1, Nonblocking),
        (1, ToTcp),
        (2, Bulk),
        (3, Awaited),
    ];
    let more = MORE.map(|(often, kind)| (often * mix.more, kind));
    let kinds = kinds.into_iter().chain(more).filter(|(often, _)| *often > 0);
    let kind = Union::new_weighted(kinds.map(|(often, kind)| (often, Just(kind))).collect());
    (kind, 0..2usize, 0..8usize, prop_oneof![1..40u64, 1..mix.longest], 0..64u64)
        .prop_map(|(kind, end, who, amount, how)| Op { kind, end, who, amount, how })
}

/// A process that has the socket of one end.
struct Actor {
    id: usize,
    pid: i32,
    stream: BufReader<UnixStream>,
    set: Option<Set>,
}

impl Actor {
    fn say(&mut self, command: &str) -> Result<(), TestCaseError> {
        let sent = self.stream.get_mut().write_all(command.as_bytes());
        sent.map_err(|error| TestCaseError::fail(format!("actor {}: {command}: {error}", self.id)))
    }

    fn hear(&mut self, command: &str) -> Result<(i64, i32), TestCaseError> {
        let mut line = String::new();
        let fail =
            |why: String| TestCaseError::fail(format!("actor {}: {command}: {why}", self.id));
        self.stream.read_line(&mut line).map_err(|error| fail(format!("hangs: {error}")))?;
        let mut words = line.split_whitespace();
        let result = words.next().and_then(|word| word.parse().ok());
        let errno = words.next().and_then(|word| word.parse().ok());
        result.zip(errno).ok_or_else(|| fail("it has died".to_owned()))
    }

    fn ask(&mut self, command: &str) -> Result<(i64, i32), TestCaseError> {
        self.say(command)?;
        self.hear(command)
    }

    /// A read for which nothing is there.
    fn finds_nothing(&mut self, command: &str) -> Result<(), TestCaseError> {
        let found = self.ask(command)?;
        let nothing = (-1, Errno::AGAIN.raw_os_error());
        prop_assert_eq!(found, nothing, "actor {}: {}", self.id, command);
        Ok(())
    }

    /// A command with a certain result.
    fn must(&mut self, command: &str, want: i64) -> Result<(), TestCaseError> {
        let (result, errno) = self.ask(command)?;
        let id = self.id;
        prop_assert_eq!(result, want, "actor {}: {} (errno {})", id, command, errno);
        Ok(())
    }
}

/// One end of the connection, and what the model knows of it.
#[derive(Default)]
struct End {
    actors: Vec<Actor>,
    /// Bytes its processes have sent, and received.
    sent: u64,
    received: u64,
    shut: bool,
    nonblocking: bool,
    /// Its last process has gone, or has closed.
    gone: bool,
    reset: Reset,
}

impl End {
    /// Something has come, or ended, of which sets tell edges.
    fn is_news(&mut self) {
        for actor in &mut self.actors {
            if let Some(set) = &mut actor.set {
                set.news |= set.wish != Wish::Once;
            }
        }
    }

    /// The result and the error of a call that finds the connection reset, with what follows once that is told.
    fn after_reset(&mut self, then: (i64, i32)) -> (i64, i32) {
        match std::mem::replace(&mut self.reset, Reset::Told) {
            Reset::Untold => (-1, Errno::CONNRESET.raw_os_error()),
            Reset::Told | Reset::No => then,
        }
    }
}

struct World {
    listener: UnixListener,
    dir: tempfile::TempDir,
    children: Vec<Child>,
    ends: [End; 2],
    next_id: usize,
    leg: Leg,
    daemon: PathBuf,
    /// The library may have left the connection to the kernel.
    demoted: bool,
    most_unread: u64,
    is_wide: bool,
    full_ms: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        for end in &mut self.ends {
            for actor in end.actors.drain(..) {
                kill(actor.pid);
            }
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile_of("actor", &["actor"]))
}

impl World {
    fn new(leg: Leg, daemon: &std::path::Path, mix: Mix) -> World {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("actors")).unwrap();
        listener.set_nonblocking(true).unwrap();
        World {
            listener,
            dir,
            children: Vec::new(),
            ends: Default::default(),
            next_id: 0,
            leg,
            daemon: daemon.to_owned(),
            demoted: false,
            most_unread: mix.most,
            is_wide: mix.more > 0,
            full_ms: mix.full_ms,
        }
    }

    fn id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }

    fn start(&mut self, socket: &str) {
        let id = self.id().to_string();
        let mut command = common::without_settings(Command::new(program()));
        command
            .args([&id, socket])
            .env("ACTOR_SOCKET", self.dir.path().join("actors"))
            .env("VMMC_DAEMON", "none")
            .env("VMMC_SOCKETS_FULL_MS", self.full_ms.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if self.leg != Leg::Plain {
            command.env("LD_PRELOAD", &artefacts().library).env("VMMC_SOCKET", &self.daemon);
        }
        if self.leg == Leg::NoDaemon {
            command.env("VMMC_SOCKET", self.dir.path().join("nobody"));
        }
        self.children.push(command.spawn().unwrap());
    }

    /// The next process that introduces itself, with the cookie and the port of its socket.
    fn meet(&mut self) -> Result<(Actor, u64, u16), TestCaseError> {
        let deadline = Instant::now() + WATCHDOG;
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if Instant::now() > deadline => {
                    return Err(TestCaseError::fail("a process does not introduce itself"));
                }
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let words: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let &[id, cookie, port, pid] = words.as_slice() else {
            return Err(TestCaseError::fail(format!("a strange introduction: {line:?}")));
        };
        Ok((Actor { id: id as usize, pid: pid as i32, stream, set: None }, cookie, port as u16))
    }

    /// Makes the connection; returns the cookie of one end.
    fn connect(&mut self) -> Result<u64, TestCaseError> {
        self.start("listen");
        let (_listening, _, port) = self.meet()?;
        self.start(&format!("connect:{port}"));
        let (first, second) = (self.meet()?, self.meet()?);
        let client_first = first.2 != port;
        let (client, server) = if client_first { (first, second) } else { (second, first) };
        self.ends[0].actors.push(server.0);
        self.ends[1].actors.push(client.0);
        Ok(client.1)
    }

    fn unread(&self, end: usize) -> u64 {
        self.ends[1 - end].sent - self.ends[end].received
    }

    fn transfer(
        &mut self,
        from: usize,
        who: [usize; 2],
        amount: u64,
        how: u64,
    ) -> Result<(), TestCaseError> {
        let (at, amount) = (self.ends[from].sent, amount as i64);
        let writer = &mut self.ends[from].actors[who[0]];
        writer.must(&format!("B {amount} {at} {how}"), 0)?;
        let reader = &mut self.ends[1 - from].actors[who[1]];
        reader.must(&format!("R {amount} {at} {}", how / 2), amount)?;
        let writer = &mut self.ends[from].actors[who[0]];
        writer.must("j", amount)?;
        self.ends[from].sent += amount as u64;
        self.ends[1 - from].received += amount as u64;
        self.ends[1 - from].is_news();
        Ok(())
    }

    /// Small exchanges until the daemon says that both directions go by the ring.
    fn warm_up(&mut self, daemon: &mut Daemon, cookie: u64) -> Result<(), TestCaseError> {
        let deadline = Instant::now() + WATCHDOG;
        for turn in 0.. {
            for from in [0, 1] {
                self.transfer(from, [0, 0], 10 + turn % 7, turn)?;
            }
            // Without a daemon until the library has looked for one.
            if turn >= 40 && self.leg != Leg::Ring {
                return Ok(());
            }
            if turn >= 8 && self.leg == Leg::Ring && daemon.ring_carries(cookie).is_ok() {
                return Ok(());
            }
            // An offer that found the other end late is made again after thousands of calls.
            if turn >= 200 && Instant::now() > deadline {
                break;
            }
        }
        Err(TestCaseError::fail("never upgraded: the program would prove nothing"))
    }

    fn run(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        for (number, op) in ops.iter().enumerate() {
            let step = self.step(op);
            step.map_err(|error| TestCaseError::fail(format!("step {number}: {error}")))?;
        }
        self.finish()
    }

    /// Everything that is on its way arrives, and then the end.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for end in [0, 1] {
            if self.ends[end].actors.is_empty() {
                continue;
            }
            let (unread, at) = (self.unread(end), self.ends[end].received);
            if unread > 0 {
                self.ends[end].actors[0].must(&format!("R {unread} {at} 0"), unread as i64)?;
                self.ends[end].received += unread;
            }
        }
        for end in [0, 1] {
            while let Some(mut actor) = self.ends[end].actors.pop() {
                actor.must("c", 0)?;
            }
            self.ends[end].gone = true;
            if !self.ends[1 - end].actors.is_empty() {
                self.ends[1 - end].actors[0].must("n 0 0", 0)?;
                if self.ends[1 - end].reset == Reset::Untold {
                    self.reset_is_told(1 - end, 0, "r 10 0 0", (0, 0))?;
                }
                self.ends[1 - end].actors[0].must("r 10 0 0", 0)?;
            }
        }
        Ok(())
    }

    /// A process of this end has left; the last one leaves the other end with its end.
    fn has_gone(&mut self, end: usize, how: Reset) {
        self.ends[end].gone = self.ends[end].actors.is_empty();
        if self.ends[end].gone {
            self.ends[1 - end].reset = how;
            self.ends[1 - end].is_news();
        }
    }

    /// A call of a process whose connection was reset gives that once, and then what TCP gives.
    fn reset_is_told(
        &mut self,
        end: usize,
        who: usize,
        command: &str,
        then: (i64, i32),
    ) -> Result<(), TestCaseError> {
        let want = self.ends[end].after_reset(then);
        let (result, errno) = self.ends[end].actors[who].ask(command)?;
        // Who succeeds says nothing of the error.
        let found = (result, if result < 0 { errno } else { 0 });
        prop_assert_eq!(found, want, "actor {}: {} after a reset", end, command);
        Ok(())
    }

    /// Whether the bytes that an end has not read could still be sent to it by TCP. Nothing can
    /// follow a FIN: what is left in a ring then cannot reach a program without the library.
    fn may_leave(&self, end: usize) -> bool {
        self.unread(end) == 0 || !(self.ends[1 - end].shut || self.ends[1 - end].gone)
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let &Op { kind, end, amount, how, .. } = op;
        let peer = 1 - end;
        let count = self.ends[end].actors.len();
        if count == 0 {
            return Ok(());
        }
        let who = op.who % count;
        let unread = self.unread(end);
        let peer_ended = self.ends[peer].shut || self.ends[peer].gone;
        let at = self.ends[end].received;
        // Whoever gets the socket hears of no error that a wait has seen before.
        let hands_on = matches!(kind, Kind::Exec | Kind::Spawn | Kind::Pass);
        if hands_on && self.ends[end].reset == Reset::Untold {
            return Ok(());
        }
        self.demoted |= hands_on || matches!(kind, Kind::ToTcp);
        match kind {
            Kind::Write => {
                if self.ends[end].reset != Reset::No && !self.ends[end].shut {
                    let at = self.ends[end].sent;
                    let command = format!("w {amount} {at} {how}");
                    return self.reset_is_told(
                        end,
                        who,
                        &command,
                        (-1, Errno::PIPE.raw_os_error()),
                    );
                }
                let room = self.most_unread.saturating_sub(self.unread(peer));
                let amount = amount.min(room);
                if amount == 0 || self.ends[end].shut || self.ends[peer].gone {
                    return Ok(());
                }
                let at = self.ends[end].sent;
                let actor = &mut self.ends[end].actors[who];
                // One that does not wait may take a part, where less room is than the kernel would have.
                let call = if self.most_unread > LITTLE.most { 'W' } else { 'w' };
                actor.must(&format!("{call} {amount} {at} {how}"), amount as i64)?;
                self.ends[end].sent += amount;
                self.ends[peer].is_news();
            }
            Kind::Read => {
                if unread == 0 && !peer_ended {
                    return Ok(());
                }
                // recvmmsg(2) looks for an error before it looks for bytes, where one message cannot be had without another.
                if how % 8 == 5 && unread > 0 && self.ends[end].reset == Reset::Untold {
                    return Ok(());
                }
                if unread == 0 && self.ends[end].reset != Reset::No {
                    let command = format!("r {amount} {at} {how}");
                    return self.reset_is_told(end, who, &command, (0, 0));
                }
                // A ring that rests is come back to by who has read all that was sent.
                let amount = if self.full_ms == AGAIN.full_ms && how % 2 == 0 {
                    unread.max(1)
                } else {
                    amount
                };
                let want = amount.min(unread);
                let actor = &mut self.ends[end].actors[who];
                if unread > 0 {
                    actor.must(&format!("u {unread}"), unread as i64)?;
                } else {
                    // The FIN may be on its way.
                    actor.must("n 0 0", 0)?;
                    self.ends[end].nonblocking = false;
                }
                let actor = &mut self.ends[end].actors[who];
                actor.must(&format!("r {amount} {at} {how}"), want as i64)?;
                self.ends[end].received += want;
            }
            Kind::ReadNothing => {
                if unread > 0 || peer_ended || !self.ends[end].nonblocking {
                    return Ok(());
                }
                self.ends[end].actors[who].finds_nothing(&format!("r {amount} {at} {how}"))?;
            }
            Kind::Ready => {
                let readable = unread > 0 || peer_ended;
                let rdhup = peer_ended && how % 3 != 1;
                let room = self.unread(peer) == 0;
                let want = i64::from(readable) + i64::from(room) * 2 + i64::from(rdhup) * 4;
                let actor = &mut self.ends[end].actors[who];
                let (found, _) = actor.ask(&format!("p {how} {want}"))?;
                let wrong = found & !want & !2;
                let id = actor.id;
                prop_assert_eq!(wrong, 0, "actor {}: ready for {} and not {}", id, found, want);
            }
            Kind::Fork if count < MOST_ACTORS => {
                let id = self.id();
                let actor = &mut self.ends[end].actors[who];
                actor.must(&format!("f {id} 0 {how}"), 0)?;
                let (child, _, _) = self.meet()?;
                self.ends[end].actors.push(child);
            }
            Kind::Exec | Kind::Spawn if count < MOST_ACTORS && self.may_leave(end) => {
                let spawn = matches!(kind, Kind::Spawn);
                let id = self.id();
                let with_library = u8::from(self.leg == Leg::Plain || how % 2 == 0);
                let actor = &mut self.ends[end].actors[who];
                if spawn {
                    actor.must(&format!("s {id} {with_library}"), 0)?;
                } else {
                    actor.say(&format!("x {id} {with_library}"))?;
                    drop(self.ends[end].actors.remove(who));
                }
                let (fresh, _, _) = self.meet()?;
                self.ends[end].actors.push(fresh);
            }
            Kind::Pass if count > 1 && self.may_leave(end) => {
                let to = (who + 1) % count;
                let number = self.id();
                let path = self.dir.path().join(format!("pass-{number}"));
                let path = path.display();
                self.ends[end].actors[to].must(&format!("g 0 0 0 {path}"), 0)?;
                self.ends[end].actors[who].must(&format!("G 0 0 0 {path}"), 0)?;
                self.ends[end].actors[to].hear("g")?;
                self.ends[end].actors[to].set = None;
            }
            Kind::Copy => {
                self.ends[end].actors[who].must(&format!("d {how} {amount}"), 0)?;
            }
            Kind::Close | Kind::Kill => {
                // The last one with bytes unread would reset the connection.
                if count == 1 && unread > 0 {
                    return Ok(());
                }
                // With the library gone from the other end a doorbell that dies unread is an RST, which also takes with it
                // what is on its way by TCP because a ring was full.
                let by_tcp = self.demoted || self.most_unread > LITTLE.most;
                let kills = matches!(kind, Kind::Kill) && !(by_tcp && count == 1);
                let mut actor = self.ends[end].actors.remove(who);
                if kills {
                    kill(actor.pid);
                    // Its descriptors are closed before its control socket, or with it.
                    let mut rest = String::new();
                    let _ = actor.stream.read_line(&mut rest);
                    // The RST by which its kernel answers a doorbell may come last; whoever goes back to TCP before it is told.
                    if let Some(witness) =
                        self.ends[peer].actors.first_mut().filter(|_| self.is_wide && count == 1)
                    {
                        witness.ask("p 0 4")?;
                    }
                } else {
                    actor.must("c", 0)?;
                }
                self.has_gone(end, Reset::No);
            }
            Kind::Reset => {
                // After a FIN a reset is told as EPIPE, or not at all; and what a full ring left on its way by TCP goes with it.
                if count > 1
                    || self.ends[end].shut
                    || self.ends[peer].gone
                    || self.most_unread > LITTLE.most
                {
                    return Ok(());
                }
                // It drops what TCP has not sent yet.
                let sent = self.unread(peer);
                self.ends[peer].actors[0].must(&format!("u {sent}"), sent as i64)?;
                if unread > 0 {
                    self.ends[end].actors[who].must(&format!("u {unread}"), unread as i64)?;
                }
                let command = if unread > 0 && how % 2 == 0 { "c" } else { "l" };
                self.ends[end].actors.remove(who).must(command, 0)?;
                self.ends[peer].actors[0].must("v 7", 7)?;
                self.has_gone(end, Reset::Untold);
            }
            Kind::TimeLimit => {
                if unread > 0 || peer_ended {
                    return Ok(());
                }
                self.ends[end].actors[who].finds_nothing(&format!("t {amount} {at} {how}"))?;
            }
            Kind::Urgent => {
                let others = self.ends[peer].actors.len();
                if self.ends[end].shut || others == 0 || self.unread(peer) > 0 {
                    return Ok(());
                }
                self.demoted = true;
                self.ends[end].actors[who].must("q", 1)?;
                self.ends[peer].actors[op.who / 2 % others].must("Q", i64::from(b'!'))?;
                // Behind its mark, where TCP says again how much is there.
                self.transfer(end, [who, op.who / 2 % others], amount, how)?;
            }
            Kind::AskSet => {
                let wish = [Wish::Levels, Wish::Edges, Wish::Once][how as usize % 3];
                let of_end = how / 3 % 2 == 1;
                let asks = match wish {
                    Wish::Levels => 0,
                    Wish::Edges => 1,
                    Wish::Once => 2 + how / 6 % 2,
                };
                let actor = &mut self.ends[end].actors[who];
                actor.must(&format!("e {}", asks + 4 * u64::from(of_end)), 0)?;
                actor.set = Some(Set { wish, of_end, news: true });
            }
            Kind::LookAtSet => {
                let Some(set) = self.ends[end].actors[who].set else { return Ok(()) };
                if unread > 0 {
                    self.ends[end].actors[who].must(&format!("u {unread}"), unread as i64)?;
                }
                if peer_ended {
                    self.ends[end].actors[who].ask("p 0 4")?;
                }
                let now =
                    i64::from(unread > 0 || peer_ended) + i64::from(set.of_end && peer_ended) * 4;
                let told = if set.wish == Wish::Levels || set.news { now } else { 0 };
                let again = if set.wish == Wish::Levels { now } else { 0 };
                let is_shut = self.ends[end].shut;
                let actor = &mut self.ends[end].actors[who];
                let (found, _) = actor.ask(&format!("E {told}"))?;
                // An end may be told in more edges than one, as of a FIN that the kernel tells in two, also later.
                let may_repeat = set.wish == Wish::Edges && (peer_ended || is_shut);
                let (first, second) = (found & 7, found >> 3);
                let more = may_repeat && [told, now].contains(&first) && [0, now].contains(&second);
                let id = actor.id;
                prop_assert!(
                    found == told + 8 * again || more,
                    "actor {}: told {}, not {}",
                    id,
                    found,
                    told
                );
                let is_spent = set.wish != Wish::Once || told > 0;
                actor.set = Some(Set { news: set.news && !is_spent, ..set });
            }
            Kind::Shut if !self.ends[end].shut => {
                if self.ends[peer].gone {
                    return Ok(());
                }
                self.ends[end].actors[who].must("h", 0)?;
                if self.is_wide {
                    // Its acknowledgement would be an edge of its own.
                    self.ends[end].actors[who].must("v 0", 0)?;
                }
                self.ends[end].shut = true;
                self.ends[end].is_news();
                self.ends[peer].is_news();
            }
            Kind::Nonblocking => {
                let on = u8::from(how % 2 == 0);
                self.ends[end].actors[who].must(&format!("n {on} {}", how / 2 % 2), 0)?;
                self.ends[end].nonblocking = on == 1;
            }
            Kind::ToTcp if self.may_leave(end) => {
                self.ends[end].actors[who].must(&format!("o {how}"), 0)?;
            }
            Kind::Bulk => {
                let others = self.ends[peer].actors.len();
                if self.ends[end].shut || others == 0 || self.unread(peer) > 0 {
                    return Ok(());
                }
                self.transfer(end, [who, op.who / 2 % others], amount * 40, how)?;
            }
            Kind::Awaited => {
                // A thread waits for bytes that come only then; another process may be at it too.
                let others = self.ends[peer].actors.len();
                if unread > 0 || self.ends[peer].shut || others == 0 {
                    return Ok(());
                }
                self.ends[end].actors[who].must(&format!("b {amount} {at} {how}"), 0)?;
                let writer = &mut self.ends[peer].actors[op.who / 2 % others];
                writer.must(&format!("W {amount} {at} {}", how / 2), amount as i64)?;
                self.ends[end].actors[who].must("j", amount as i64)?;
                self.ends[peer].sent += amount;
                self.ends[end].received += amount;
                self.ends[end].is_news();
            }
            _ => {}
        }
        Ok(())
    }
}

fn three_ways(
    mix: Mix,
    ops: &[Op],
    daemon: &std::cell::RefCell<Daemon>,
) -> Result<(), TestCaseError> {
    for leg in [Leg::Plain, Leg::NoDaemon, Leg::Ring] {
        let mut daemon = daemon.borrow_mut();
        let mut world = World::new(leg, &daemon.path.clone(), mix);
        let result = (|| {
            let cookie = world.connect()?;
            world.warm_up(&mut daemon, cookie)?;
            world.run(ops)
        })();
        result.map_err(|error| TestCaseError::fail(format!("{}: {error}", leg.name())))?;
    }
    Ok(())
}

#[test]
fn random_programs_give_what_tcp_gives() {
    give_what_tcp_gives(Daemon::start(), LITTLE, &FOUND);
}

/// With epoll sets that are kept, resets, time limits and urgent data.
#[test]
fn random_programs_of_more_calls_give_what_tcp_gives() {
    give_what_tcp_gives(Daemon::start(), WIDE, &FOUND_WIDE);
}

/// Rings of which the receiver leaves more unread than they hold: the stream goes on by TCP.
#[test]
fn random_programs_give_what_tcp_gives_over_rings_that_fill() {
    give_what_tcp_gives(Daemon::with(&["--ring-kib", "16"]), MUCH, &[]);
}

/// The same, and the stream comes back to the ring soon.
#[test]
fn random_programs_give_what_tcp_gives_over_rings_that_fill_and_rest() {
    give_what_tcp_gives(Daemon::with(&["--ring-kib", "16"]), AGAIN, &FOUND_AGAIN);
}

fn give_what_tcp_gives(daemon: Daemon, mix: Mix, found: &[u64]) {
    let daemon = std::cell::RefCell::new(daemon);
    let seeds: Vec<u64> = match std::env::var("RANDOM_PROGRAMS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("RANDOM_PROGRAMS=FIRST..LAST");
            (first.parse().unwrap()..last.parse().unwrap()).collect()
        }
        Err(_) => {
            let found = found.iter().copied();
            SEEDS.chain(found).chain([common::seed_of_this_run()]).collect()
        }
    };
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().unwrap());
    let shrinks = number("RANDOM_PROGRAMS_SHRINK").unwrap_or(200);
    let turns = number("RANDOM_PROGRAMS_TURNS").unwrap_or(1);
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: shrinks,
            // A program that hangs takes the whole watchdog each time.
            max_shrink_time: 120_000,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let programs = proptest::collection::vec(op(mix), 20..70);
        let all_turns = |ops: Vec<Op>| (0..turns).try_for_each(|_| three_ways(mix, &ops, &daemon));
        match runner.run(&programs, all_turns) {
            Ok(()) => {}
            Err(TestError::Fail(why, ops)) => {
                let list: Vec<String> = ops.iter().map(|op| format!("  {op:?}")).collect();
                panic!("seed {seed}: {why}\n{}", list.join("\n"));
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
}
