//! Real programs, if they are installed: one of them is run as well, both ways.

use super::DemoError;
use super::session::{PATIENCE, Way, free_port, installed, pins, wait_listening};
use crate::children::{Child, Scratch};
use crate::cpu::Pair;
use crate::exit::{Context, Failure};
use crate::private::PrivateDaemon;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::control::message::ConnectionState;

/// A program, or a pair of programs, that the demo knows how to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Known {
    /// redis-server with redis-benchmark
    Redis,
    /// iperf3
    Iperf3,
    /// Two small Python scripts
    Python3,
    /// No program of the system
    None,
}

/// In the order of preference.
const ALL: [Known; 3] = [Known::Redis, Known::Iperf3, Known::Python3];

impl Known {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Known::Redis => "redis-server + redis-benchmark",
            Known::Iperf3 => "iperf3",
            Known::Python3 => "python3",
            Known::None => "none",
        }
    }

    fn files(self) -> &'static [&'static str] {
        match self {
            Known::Redis => &["redis-server", "redis-benchmark"],
            Known::Iperf3 => &["iperf3"],
            Known::Python3 => &["python3"],
            Known::None => &[],
        }
    }

    /// The Debian package, for the remedy.
    fn package(self) -> &'static str {
        match self {
            Known::Redis => "redis",
            Known::Iperf3 => "iperf3",
            Known::Python3 | Known::None => "python3",
        }
    }

    fn is_installed(self) -> bool {
        self.files().iter().all(|file| installed(file).is_some())
    }
}

/// Those that are installed, best first.
pub(super) fn found() -> Vec<Known> {
    ALL.into_iter().filter(|known| known.is_installed()).collect()
}

/// One figure of a program, both ways.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Figure {
    /// What was measured.
    pub(super) what: String,
    /// Unit; bigger is better for all of them.
    pub(super) unit: &'static str,
    pub(super) plain: f64,
    pub(super) over: f64,
}

/// Runs a program both ways. Fails if, run over us again and again, no byte went through a ring.
pub(super) fn run(
    known: Known,
    pair: Pair,
    daemon: &PrivateDaemon,
    scratch: &Scratch,
    seconds: f64,
) -> Result<Vec<Figure>, Failure> {
    if let Some(missing) = known.files().iter().find(|file| installed(file).is_none()) {
        return Err(DemoError::NotInstalled { program: missing, package: known.package() }.into());
    }
    let runner = Runner { known, pair, scratch, seconds };
    let plain = runner.once(&Way::Plain)?;
    let begin = Instant::now();
    let over = loop {
        let (before, _) = carried(daemon)?;
        let over = runner.once(&Way::Over { socket: daemon.socket.clone() })?;
        let (after, plain) = carried(daemon)?;
        if after > before {
            break over;
        }
        // On a busy machine a short run may be over before the daemon has had its turn.
        if begin.elapsed() > PATIENCE {
            let why = plain.unwrap_or_else(|| "no ring carried a byte".into());
            let why = format!("{}: {why}", known.name());
            return Err(DemoError::NotUpgraded { why, log: daemon.last_words() }.into());
        }
    };
    Ok(plain
        .into_iter()
        .zip(over)
        .map(|((what, unit, plain), (_, _, over))| Figure { what, unit, plain, over })
        .collect())
}

/// Bytes that rings have carried since the daemon began, of connections that have ended too; why one is plain.
fn carried(daemon: &PrivateDaemon) -> Result<(u64, Option<String>), Failure> {
    let snapshot = daemon.look()?.snapshot()?;
    let ended = snapshot.counters.iter().find(|(name, _)| name == "ended_ring_bytes");
    let mut bytes = ended.map_or(0, |(_, value)| *value);
    let mut why = None;
    for connection in snapshot.connections {
        bytes += connection.ring_bytes;
        if let ConnectionState::Plain(reason) = connection.state {
            why = Some(reason.to_string());
        }
    }
    Ok((bytes, why))
}

type Measured = Vec<(String, &'static str, f64)>;

struct Runner<'a> {
    known: Known,
    pair: Pair,
    scratch: &'a Scratch,
    seconds: f64,
}

impl Runner<'_> {
    fn once(&self, way: &Way) -> Result<Measured, Failure> {
        match self.known {
            Known::Redis => self.redis(way),
            Known::Iperf3 => self.iperf3(way),
            Known::Python3 => self.python3(way),
            Known::None => Ok(vec![]),
        }
    }

    /// Starts a program, on the server's processor or the client's.
    fn program(&self, way: &Way, name: &'static str, is_server: bool) -> Result<Command, Failure> {
        let path = installed(name)
            .ok_or(DemoError::NotInstalled { program: name, package: self.known.package() })?;
        let (server_cpu, client_cpu) = pins(self.pair);
        let mut command = way.command(&path, if is_server { server_cpu } else { client_cpu });
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(self.scratch.path());
        Ok(command)
    }

    /// Runs a client to its end and returns what it printed.
    fn client(mut command: Command, name: &str) -> Result<String, Failure> {
        command.stdout(Stdio::piped());
        let mut client = Child::spawn(command, name)?;
        let Some(mut out) = client.pipes().stdout.take() else { return Ok(String::new()) };
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        let begin = Instant::now();
        while client.ended().is_none() {
            if begin.elapsed() > PATIENCE {
                return Err(DemoError::Stuck {
                    name: name.into(),
                    what: "its run".into(),
                    seconds: PATIENCE.as_secs(),
                }
                .into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = client.wait()?;
        let text = match reader.join() {
            Ok(text) => text.context(|| format!("reading what {name} printed"))?,
            Err(_) => String::new(),
        };
        if !status.success() {
            let said = format!("{status}: {}", text.trim());
            return Err(DemoError::Program { name: name.into(), said }.into());
        }
        Ok(text)
    }

    fn unreadable(name: &str, said: &str) -> Failure {
        DemoError::Program { name: name.into(), said: said.trim().chars().take(300).collect() }
            .into()
    }

    fn redis(&self, way: &Way) -> Result<Measured, Failure> {
        let port = free_port()?;
        let mut command = self.program(way, "redis-server", true)?;
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let mut server = Child::spawn(command, "redis-server")?;
        wait_listening(port, &mut server)?;
        let mut command = self.program(way, "redis-benchmark", false)?;
        // Some 20,000 requests per second plain, each of two commands.
        let requests = (self.seconds * 20_000.0) as u64;
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "1"]);
        command.args(["-n", &requests.max(2000).to_string(), "-t", "set,get", "--csv"]);
        let text = Runner::client(command, "redis-benchmark")?;
        let mut measured = Measured::new();
        for line in text.lines() {
            let mut cells = line.split(',').map(|cell| cell.trim_matches('"'));
            if let (Some(test @ ("SET" | "GET")), Some(Ok(rate))) =
                (cells.next(), cells.next().map(str::parse::<f64>))
            {
                measured.push((format!("redis {test}, one client"), "requests/s", rate));
            }
        }
        if measured.is_empty() {
            return Err(Runner::unreadable("redis-benchmark", &text));
        }
        Ok(measured)
    }

    fn iperf3(&self, way: &Way) -> Result<Measured, Failure> {
        let port = free_port()?;
        let mut command = self.program(way, "iperf3", true)?;
        command.args(["--server", "--one-off", "--port", &port.to_string(), "--bind", "127.0.0.1"]);
        let mut server = Child::spawn(command, "the iperf3 server")?;
        wait_listening(port, &mut server)?;
        let mut command = self.program(way, "iperf3", false)?;
        let seconds = self.seconds.ceil().to_string();
        command.args(["--client", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--time", &seconds, "--json"]);
        let text = Runner::client(command, "iperf3")?;
        let rate = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|json| json["end"]["sum_received"]["bits_per_second"].as_f64())
            .ok_or_else(|| Runner::unreadable("iperf3", &text))?;
        Ok(vec![("iperf3, one stream".into(), "Gbit/s", rate / 1e9)])
    }

    fn python3(&self, way: &Way) -> Result<Measured, Failure> {
        let port = free_port()?;
        let script = |name: &str, text: &str| -> Result<PathBuf, Failure> {
            let path = self.scratch.path().join(name);
            std::fs::write(&path, text).context(|| format!("writing {path:?}"))?;
            Ok(path)
        };
        let mut command = self.program(way, "python3", true)?;
        command.arg(script("server.py", PYTHON_SERVER)?).arg(port.to_string());
        let mut server = Child::spawn(command, "the Python server")?;
        wait_listening(port, &mut server)?;
        let mut command = self.program(way, "python3", false)?;
        command
            .arg(script("client.py", PYTHON_CLIENT)?)
            .arg(port.to_string())
            .arg(self.seconds.to_string());
        let text = Runner::client(command, "the Python client")?;
        let rate =
            text.trim().parse().map_err(|_| Runner::unreadable("the Python client", &text))?;
        Ok(vec![("python3 echo of 8 bytes".into(), "round trips/s", rate)])
    }
}

const PYTHON_SERVER: &str = "\
import socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
";

const PYTHON_CLIENT: &str = "\
import socket, sys, time
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
begin, count = time.perf_counter(), 0
while time.perf_counter() - begin < float(sys.argv[2]):
    message = count.to_bytes(8, 'little')
    connection.sendall(message)
    answer = b''
    while len(answer) < 8:
        more = connection.recv(8 - len(answer))
        assert more, 'connection closed'
        answer += more
    assert answer == message, (answer, message)
    count += 1
print(count / (time.perf_counter() - begin))
";
