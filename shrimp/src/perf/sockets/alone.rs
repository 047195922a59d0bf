//! What a program pays that runs under us and never meets a peer that does too: one server that is not
//! preloaded, and three clients of it, new ones three times a round, that take turns of some milliseconds: two plain ones, the
//! second only to show what a difference means, and one that is preloaded and has a daemon.

use super::{Setting, SocketsError};
use crate::children::{self, Child};
use crate::exit::{Context, Failure};
use crate::stats::{self, Plan};
use crate::text::{self, Progress, Table};
use serde::Serialize;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

/// What is allowed, as a part of the plain time.
pub(super) const BUDGET: f64 = 1.02;

/// How long one turn takes.
const TURN: Duration = Duration::from_millis(10);
/// Clients: a plain one, one that is preloaded, and a plain one again.
const ROLES: usize = 3;
const PRELOADED: usize = 1;
/// Generations of clients in a round: each is the first of them once.
const GENERATIONS: u32 = ROLES as u32;
/// Turns of each client for each way to use a connection, for a millisecond of a round.
const TURNS_PER_MS: f64 = 0.07;
/// Length of a stream's parts, bytes.
const PART: usize = 16 << 10;
/// Questions on a connection that then ends: more than those after which it is offered to the daemon.
const QUESTIONS: usize = 50;
const SMALL: usize = 8;

/// What is done with connections.
#[derive(Clone, Copy, Debug)]
struct Use {
    name: &'static str,
    /// Tells the server, and the clients.
    letter: u8,
}

const USES: [Use; 4] = [
    Use { name: "8 B there and back", letter: b'p' },
    Use { name: "16 KiB sent, of a stream", letter: b's' },
    Use { name: "connect, ask once, close", letter: b'c' },
    Use { name: "connect, ask 50 times, close", letter: b't' },
];

/// What one use costs.
#[derive(Debug, Serialize)]
pub(super) struct Cost {
    what: &'static str,
    plain_ns: f64,
    /// Preloaded, as a part of plain: the median over turns.
    ratio: f64,
    /// The second plain client's.
    ratio_of_plain: f64,
}

/// The server: a thread for each connection, whose first byte says what it is for.
pub(super) fn serve() -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        let mut letter = [0];
        stream.read_exact(&mut letter)?;
        match letter {
            [b's'] => {
                drop(std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink())))
            }
            [b'p'] => drop(std::thread::spawn(move || echo(&mut stream))),
            // One at a time, as they come.
            _ => echo(&mut stream)?,
        }
    }
    Ok(())
}

fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut message = [0; SMALL];
    loop {
        match stream.read(&mut message)? {
            0 => return Ok(()),
            len => stream.write_all(message.get(..len).unwrap_or_default())?,
        }
    }
}

fn connect(port: u16, letter: u8) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.write_all(&[letter])?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(&[1; SMALL])?;
    stream.read_exact(&mut [0; SMALL])
}

/// A client: for each letter that it is told, takes a turn and says the median time in nanoseconds.
pub(super) fn take_turns(port: u16) -> Result<(), Failure> {
    let taken = || -> std::io::Result<()> {
        let mut ping = connect(port, b'p')?;
        let mut stream = connect(port, b's')?;
        let part = vec![7; PART];
        let plan = Plan { round: TURN, sample: Duration::from_micros(100), max_samples: 10_000 };
        for line in std::io::stdin().lines() {
            let line = line?;
            let (samples, _) = match line.as_bytes() {
                b"p" => plan.round(|| ask(&mut ping))?,
                b"s" => plan.round(|| stream.write_all(&part))?,
                b"c" => plan.round(|| ask(&mut connect(port, b'c')?))?,
                _ => plan.round(|| {
                    let mut stream = connect(port, b't')?;
                    (0..QUESTIONS).try_for_each(|_| ask(&mut stream))
                })?,
            };
            println!("{}", stats::median(samples));
        }
        Ok(())
    };
    Ok(taken().context(|| "taking turns".into())?)
}

/// A client as its parent sees it.
struct Client {
    _process: Child,
    ask: ChildStdin,
    told: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn turn(&mut self, letter: u8) -> Result<f64, Failure> {
        let wrong = |what: String| SocketsError::Program { way: "alone", what };
        writeln!(self.ask, "{}", char::from(letter)).context(|| "asking a client".into())?;
        let line = self.told.next().ok_or_else(|| wrong("a client has ended".into()))?;
        let line = line.context(|| "hearing a client".into())?;
        Ok(line.parse().map_err(|_| wrong(format!("a client says {line:?}")))?)
    }
}

/// Measures.
pub(super) fn run(
    setting: &Setting,
    rounds: u32,
    progress: &mut Progress,
) -> Result<Vec<Cost>, Failure> {
    let pinned = |cpu| (!setting.pair.is_single()).then_some(cpu);
    let start = |end: &str, cpu, port: &str, preloaded: bool| {
        let mut command = children::command(&children::own_program(), pinned(cpu));
        command.env_remove("LD_PRELOAD").env("VMMC_SOCKET", &setting.daemon.socket);
        if preloaded {
            command.env("LD_PRELOAD", &setting.library);
        }
        command.args([end, "alone", "-"]);
        if !port.is_empty() {
            command.args([port, "0"]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Child::spawn(command, "one of the alone")
    };
    let no_pipe = || SocketsError::Program { way: "alone", what: "it has no pipe".into() };
    let mut server = start("__perf-sockets-server", setting.pair.b, "", false)?;
    let output = server.pipes().stdout.take().ok_or_else(no_pipe)?;
    let mut port = String::new();
    BufReader::new(output).read_line(&mut port).context(|| "hearing the server".into())?;
    let mut times = USES.map(|_| [const { Vec::new() }; ROLES]);
    let generations = rounds * GENERATIONS;
    for generation in 0..generations {
        // New processes: where one's memory lies makes it faster or slower than its like for as long as it lives. And
        // another is the first: the server's threads are made in their order.
        let mut clients = Vec::new();
        for at in 0..ROLES {
            let role = (at + generation as usize) % ROLES;
            let mut process =
                start("__perf-sockets-client", setting.pair.a, port.trim(), role == PRELOADED)?;
            let ask = process.pipes().stdin.take().ok_or_else(no_pipe)?;
            let told = process.pipes().stdout.take().ok_or_else(no_pipe)?;
            let told = BufReader::new(told).lines();
            clients.push((role, Client { _process: process, ask, told }));
        }
        let turns = (setting.round_ms as f64 * TURNS_PER_MS).max(2.0) as usize;
        for (used, times) in USES.iter().zip(&mut times) {
            progress.step(&format!("alone, {} of {generations}: {}", generation + 1, used.name));
            // The first turns are for who has not been offered to the daemon yet.
            for turn in 0..turns + 2 {
                // In another order each time: a disturbance hits the next one too.
                clients.rotate_left(1);
                for (role, client) in &mut clients {
                    let time = client.turn(used.letter)?;
                    if turn >= 2
                        && let Some(times) = times.get_mut(*role)
                    {
                        times.push(time);
                    }
                }
            }
        }
    }
    let cost = |(used, [plain, ours, again]): (&Use, &[Vec<f64>; ROLES])| {
        let ratio = |of: &[f64]| stats::median(of.iter().zip(plain).map(|(a, b)| a / b).collect());
        Cost {
            what: used.name,
            plain_ns: stats::median(plain.clone()),
            ratio: ratio(ours),
            ratio_of_plain: ratio(again),
        }
    };
    Ok(USES.iter().zip(&times).map(cost).collect())
}

/// As a person reads it.
pub(super) fn table(costs: &[Cost]) -> Table {
    let mut table =
        Table::new(&["use", "plain TCP", "preloaded", "plain again", "budget"], &[1, 2, 3]);
    for cost in costs {
        let met = if cost.ratio <= BUDGET { "met" } else { "NOT MET" };
        table.row([
            cost.what.to_owned(),
            text::nanos(cost.plain_ns),
            format!("{:.3}", cost.ratio),
            format!("{:.3}", cost.ratio_of_plain),
            format!("<= {BUDGET}: {met}"),
        ]);
    }
    table
}
