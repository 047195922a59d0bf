//! A running pair of the demo's ordinary programs, plain or over us.

use super::DemoError;
use crate::children::{self, Child};
use crate::cpu::Pair;
use crate::exit::{Context, Failure, Io};
use crate::private::PrivateDaemon;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::control::message::{ConnectionInfo, ConnectionState, NotPairedReason};

/// How programs are run.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// As they are.
    Plain,
    /// Through `shrimp exec --sockets`, with the daemon at this socket.
    Over { socket: PathBuf },
}

impl Way {
    /// A command that runs `program` this way as a child of ours, pinned to `cpu`.
    pub(super) fn command(&self, program: &Path, cpu: Option<usize>) -> Command {
        let us = children::own_program();
        let mut command = match self {
            Way::Plain => children::command(program, cpu),
            Way::Over { socket } => {
                let mut command = children::command(&us, cpu);
                command.args(["exec", "--sockets", "--"]).arg(program);
                command.env("VMMC_SOCKET", socket).env("VMMC_DAEMON", "none");
                command
            }
        };
        // The user's own choices are for the user's programs: the plain run must be plain, and
        // the other must not be turned off.
        command.env_remove("LD_PRELOAD").env_remove("VMMC_SOCKETS");
        command
    }
}

/// How long a program may take for what needs seconds, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Processors for server and client; none where there is only one.
pub(super) fn pins(pair: Pair) -> (Option<usize>, Option<usize>) {
    if pair.is_single() { (None, None) } else { (Some(pair.b), Some(pair.a)) }
}

/// Server and client, connected.
pub(super) struct Session {
    // Dropped in this order: the client leaves at the end of its input, then the server goes.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    client: Child,
    _server: Child,
    echo_port: u16,
    collect_port: u16,
}

/// `VMMC_SOCKETS_FULL_MS` of both programs: who receives always comes to read, however late on a busy machine. Else what it did not
/// read in half a second would go by TCP.
const FULL_MS: &str = "60000";

/// How long a library may take to offer its connections, which it does by the number of calls.
const OFFERED: Duration = Duration::from_secs(10);

/// Bytes that one end put into its rings so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingBytes {
    pub(super) client_echo: u64,
    pub(super) server_echo: u64,
    pub(super) client_stream: u64,
}

impl RingBytes {
    fn all(self) -> [u64; 3] {
        [self.client_echo, self.server_echo, self.client_stream]
    }
}

impl Session {
    /// Starts both programs.
    pub(super) fn start(way: &Way, pair: Pair) -> Result<Session, Failure> {
        let us = children::own_program();
        let (server_cpu, client_cpu) = pins(pair);
        let mut command = way.command(&us, server_cpu);
        command.env("VMMC_SOCKETS_FULL_MS", FULL_MS);
        command.arg("__echo-server").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Child::spawn(command, "the echo server")?;
        let ports = first_line(&mut server)?;
        let mut numbers = ports.split_whitespace().map(|word| word.parse::<u16>().ok());
        let (Some(Some(echo_port)), Some(Some(collect_port))) = (numbers.next(), numbers.next())
        else {
            return Err(DemoError::Program { name: "the echo server".into(), said: ports }.into());
        };
        let mut command = way.command(&us, client_cpu);
        command
            .env("VMMC_SOCKETS_FULL_MS", FULL_MS)
            .arg("__echo-client")
            .arg(echo_port.to_string())
            .arg(collect_port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut client = Child::spawn(command, "the echo client")?;
        let commands = client.pipes().stdin.take();
        let Some(answers) = client.pipes().stdout.take() else {
            return Err(DemoError::Program {
                name: "the echo client".into(),
                said: "nothing: no pipe".into(),
            }
            .into());
        };
        Ok(Session {
            commands,
            answers: BufReader::new(answers),
            client,
            _server: server,
            echo_port,
            collect_port,
        })
    }

    /// Tells the client to do something; returns the numbers it answers with.
    fn ask(&mut self, command: &str) -> Result<Vec<f64>, Failure> {
        if let Some(commands) = &mut self.commands {
            writeln!(commands, "{command}").context(|| "telling the echo client".into())?;
        }
        self.wait_answer(command)?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context(|| "hearing the echo client".into())?;
        match line.trim().strip_prefix("ok ") {
            Some(numbers) => {
                Ok(numbers.split_whitespace().filter_map(|word| word.parse().ok()).collect())
            }
            None => Err(match line.trim().strip_prefix("wrong ") {
                Some(what) => DemoError::WrongBytes { what: what.into() },
                None => DemoError::Program {
                    name: self.client.name().into(),
                    said: match line.trim() {
                        "" => format!("nothing, and ended ({:?})", self.client.ended()),
                        text => text.into(),
                    },
                },
            }
            .into()),
        }
    }

    /// A client that never answers has lost bytes or a wake-up: that must end, and be told.
    fn wait_answer(&self, command: &str) -> Result<(), Failure> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
        match poll(&mut fds, Some(&patience)) {
            Ok(0) => Err(DemoError::Stuck {
                name: self.client.name().into(),
                what: command.into(),
                seconds: PATIENCE.as_secs(),
            }
            .into()),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno).context(|| "waiting for the echo client".into())?,
        }
    }

    /// Some of everything; bytes sent so far by echo and stream.
    pub(super) fn warm(&mut self) -> Result<[u64; 2], Failure> {
        match self.ask("warm")?[..] {
            [echoed, streamed] => Ok([echoed as u64, streamed as u64]),
            _ => Err(self.strange("warm")),
        }
    }

    /// Round trips for `duration`: their number, the one-way median and 99th percentile (ns).
    pub(super) fn echo(&mut self, duration: Duration) -> Result<(u64, f64, f64), Failure> {
        match self.ask(&format!("echo {}", duration.as_millis()))?[..] {
            [count, median, p99] => Ok((count as u64, median, p99)),
            _ => Err(self.strange("echo")),
        }
    }

    /// Streams for `duration`: bytes and nanoseconds. Only once: it closes the stream.
    pub(super) fn stream(&mut self, duration: Duration) -> Result<(u64, f64), Failure> {
        match self.ask(&format!("stream {}", duration.as_millis()))?[..] {
            [bytes, nanoseconds] => Ok((bytes as u64, nanoseconds)),
            _ => Err(self.strange("stream")),
        }
    }

    fn strange(&self, command: &str) -> Failure {
        let name = self.client.name().to_owned();
        DemoError::Program { name, said: format!("an unexpected answer to {command:?}") }.into()
    }

    /// Waits until all that both connections send goes through rings; the reason if one stays plain.
    pub(super) fn wait_upgraded(&mut self, daemon: &PrivateDaemon) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut look = daemon.look()?;
        let (mut sent, mut rings) = (self.warm()?, self.ring_bytes(daemon)?);
        loop {
            // Traffic is what makes a program's library notice.
            let (sent_before, rings_before) = (sent, rings);
            (sent, rings) = (self.warm()?, self.ring_bytes(daemon)?);
            let [echoed, streamed] = [0, 1].map(|which| sent[which] - sent_before[which]);
            let wanted = [echoed, echoed, streamed];
            let carried = rings.all().into_iter().zip(rings_before.all());
            if carried.map(|(now, before)| now.saturating_sub(before)).eq(wanted) {
                return Ok(());
            }
            let connections = look.snapshot()?.connections;
            let ours: Vec<_> = connections.iter().filter(|one| self.is_ours(one)).collect();
            let plain = ours.iter().find_map(|one| match &one.state {
                ConnectionState::Plain(reason) => Some(*reason),
                _ => None,
            });
            // On a busy machine the other end may just be late: both ask again.
            let is_late =
                plain.as_ref().is_none_or(|why| matches!(why, NotPairedReason::NoPartner));
            let patience = if ours.is_empty() { OFFERED } else { PATIENCE };
            if !is_late || begin.elapsed() > patience {
                let paired = ours.iter().filter(|one| one.state == ConnectionState::Paired).count();
                let seconds = patience.as_secs();
                let why = plain.map_or_else(
                    || match ours.len() {
                        0 => "the library registered no connection".to_owned(),
                        n => format!("{paired} of 4 ends paired, {n} registered, in {seconds} s"),
                    },
                    |reason| reason.to_string(),
                );
                return Err(DemoError::NotUpgraded { why, log: daemon.last_words() }.into());
            }
        }
    }

    fn port_of(address: &str) -> u16 {
        address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0)
    }

    fn is_ours(&self, connection: &ConnectionInfo) -> bool {
        let ports = [self.echo_port, self.collect_port];
        ports.contains(&Session::port_of(&connection.local))
            || ports.contains(&Session::port_of(&connection.remote))
    }

    /// What went through the rings so far, by the daemon's word.
    pub(super) fn ring_bytes(&self, daemon: &PrivateDaemon) -> Result<RingBytes, Failure> {
        let mut sum = RingBytes::default();
        for connection in daemon.look()?.snapshot()?.connections {
            let (local, remote) =
                (Session::port_of(&connection.local), Session::port_of(&connection.remote));
            if connection.state != ConnectionState::Paired {
                continue;
            }
            if remote == self.echo_port {
                sum.client_echo += connection.ring_bytes;
            } else if local == self.echo_port {
                sum.server_echo += connection.ring_bytes;
            } else if remote == self.collect_port {
                sum.client_stream += connection.ring_bytes;
            }
        }
        Ok(sum)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // End of input: the client closes its connections and leaves.
        drop(self.commands.take());
    }
}

/// The first line that a child prints.
fn first_line(child: &mut Child) -> Result<String, Io> {
    let name = child.name().to_owned();
    let mut line = String::new();
    if let Some(out) = child.pipes().stdout.as_mut() {
        BufReader::new(out).read_line(&mut line).context(|| format!("hearing {name}"))?;
    }
    Ok(line)
}

/// A port that nobody listens at now.
pub(super) fn free_port() -> Result<u16, Io> {
    std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .context(|| "finding a free port".into())
}

/// Waits until somebody listens at the port of 127.0.0.1. Looks at the kernel's table: a
/// connection made to find out would be a client to the server.
pub(super) fn wait_listening(port: u16, server: &mut Child) -> Result<(), Failure> {
    // Address in network order as the kernel prints it, port, any peer, state LISTEN.
    let row = format!("0100007F:{port:04X} 00000000:0000 0A");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if std::fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&row)) {
            return Ok(());
        }
        if server.ended().is_some() || Instant::now() > deadline {
            let name = server.name().to_owned();
            return Err(DemoError::Program { name, said: format!("no word at port {port}") }.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Finds a program of the system.
pub(super) fn installed(name: &str) -> Option<PathBuf> {
    crate::elf::search(OsStr::new(name)).ok()
}
