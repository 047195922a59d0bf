//! The two ordinary programs that `perf sockets` measures: a server that sends back what it gets, and a
//! client that takes the time. They use the standard library's sockets and know nothing of us.
//!
//! One connection per message size: the client sends the size (8 bytes, little-endian), then
//! messages of that size, each of which comes back whole; or a stream of messages ([`super::flow`]). Reads and writes
//! block, or are tried again and again. Where the two have a line ([`super::super::line`]), a last connection takes turns with it: what a
//! message of all ones asks for.

use super::{alone, flow, sockmap};
use crate::exit::{Context, Failure, Io};
use crate::perf::line::{Line, TURN, turns_in};
use crate::stats::{self, Plan};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Round trips before anything is measured: enough for both ends to be asked and paired.
const WARM_UP: usize = 400;

/// Bytes of a message that is measured in turns with the line.
const SMALL: usize = 8;
/// Asks for a turn with the line; no message that is counted has this number.
const YOUR_TURN: [u8; SMALL] = [0xff; SMALL];

/// How long the other end of a connection may take to enter the socket map.
const PATIENCE: Duration = Duration::from_secs(2);

/// Kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// TCP, calls that block.
    Tcp,
    /// TCP, calls that do not block, repeated.
    TcpSpin,
    /// AF_UNIX, calls that block.
    Unix,
    /// TCP with both ends in a socket map of the kernel's, calls that block.
    Sockmap,
    /// What a program does that never meets a participating peer ([`super::alone`]).
    Alone,
}

/// The server: `shrimp __perf-sockets-server`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    kind: Kind,
    /// Of an AF_UNIX socket.
    path: PathBuf,
    /// Of a socket map, lent to this program.
    #[arg(long)]
    map: Option<i32>,
    /// Of a line that both programs map.
    #[arg(long)]
    line: Option<PathBuf>,
}

/// The client: `shrimp __perf-sockets-client`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    kind: Kind,
    path: PathBuf,
    /// Of a TCP socket.
    port: u16,
    /// Milliseconds per size.
    round_ms: u64,
    sizes: Vec<usize>,
    /// Streams of messages instead ([`flow`]).
    #[arg(long)]
    flow: bool,
    #[arg(long)]
    map: Option<i32>,
    #[arg(long)]
    line: Option<PathBuf>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A stream whose calls do not block and are repeated until they do something.
struct Spinning(TcpStream);

impl Read for Spinning {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => return result,
            }
        }
    }
}

impl Write for Spinning {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn tcp(kind: Kind, map: Option<i32>, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    if let Some(map) = map {
        sockmap::enter(map, &stream)?;
    }
    Ok(if kind == Kind::TcpSpin {
        stream.set_nonblocking(true)?;
        Box::new(Spinning(stream))
    } else {
        Box::new(stream)
    })
}

/// Serves one connection after the other until it is ended. Prints its port (0 for AF_UNIX).
pub(crate) fn serve(args: &ServerArgs) -> Result<(), Failure> {
    if args.kind == Kind::Alone {
        return Ok(alone::serve().context(|| "serving".into())?);
    }
    let line = args.line.as_deref().map(Line::open).transpose()?;
    let line = line.as_ref();
    let served = || -> std::io::Result<()> {
        if args.kind == Kind::Unix {
            let listener = UnixListener::bind(&args.path)?;
            println!("0");
            for stream in listener.incoming() {
                echo(Box::new(stream?), line)?;
            }
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        println!("{}", listener.local_addr()?.port());
        for stream in listener.incoming() {
            let mut stream = tcp(args.kind, args.map, stream?)?;
            // What is sent before the other end is in the map is refused.
            let begin = Instant::now();
            while args.kind == Kind::Sockmap
                && let Err(error) = stream.write_all(&[0])
            {
                let is_early = begin.elapsed() < PATIENCE;
                if error.kind() != ErrorKind::PermissionDenied || !is_early {
                    return Err(error);
                }
                std::thread::yield_now();
            }
            echo(stream, line)?;
        }
        Ok(())
    };
    Ok(served().context(|| "serving".into())?)
}

fn echo(mut stream: Box<dyn Stream>, line: Option<&Line>) -> std::io::Result<()> {
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    let len = usize::try_from(size & !flow::MARK).unwrap_or(0);
    if size & flow::MARK != 0 {
        return flow::serve(&mut stream, len);
    }
    let mut message = vec![0; len];
    loop {
        match stream.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            result => result?,
        }
        stream.write_all(&message)?;
        if let Some(line) = line
            && message == YOUR_TURN
        {
            line.answer().map_err(std::io::Error::other)?;
        }
    }
}

/// Measures every size; prints a line for each: size, batch, then one-way samples in nanoseconds; of streams, samples per
/// message. With a line, at last: `turns`, then R and the time of a small message, of each turn.
pub(crate) fn measure(args: &ClientArgs) -> Result<(), Failure> {
    if args.kind == Kind::Alone {
        return alone::take_turns(args.port);
    }
    for &size in &args.sizes {
        let (samples, batch) = one_size(args, size).context(|| format!("messages of {size} B"))?;
        let mut text = format!("{size} {batch}");
        for sample in samples {
            let _ = write!(text, " {:.1}", sample / 2.0);
        }
        println!("{text}");
    }
    for size in flow::SIZES.into_iter().filter(|_| args.flow) {
        let samples = connect(args)
            .and_then(|mut stream| flow::send(&mut stream, size))
            .context(|| format!("a stream of messages of {size} B"))?;
        let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.1}")).collect();
        println!("{size} 1 {}", samples.join(" "));
    }
    if let Some(path) = &args.line {
        let line = Line::open(path)?;
        println!("{}", turns(args, &line).context(|| "turns with the bare line".into())?);
    }
    Ok(())
}

/// A connection to the server.
fn connect(args: &ClientArgs) -> std::io::Result<Box<dyn Stream>> {
    let mut stream: Box<dyn Stream> = if args.kind == Kind::Unix {
        Box::new(UnixStream::connect(&args.path)?)
    } else {
        tcp(args.kind, args.map, TcpStream::connect((Ipv4Addr::LOCALHOST, args.port))?)?
    };
    if args.kind == Kind::Sockmap {
        stream.read_exact(&mut [0])?; // the server is in the map
    }
    Ok(stream)
}

/// A connection on which messages of one size go there and come back.
struct Trips {
    stream: Box<dyn Stream>,
    message: Vec<u8>,
    answer: Vec<u8>,
    count: u64,
}

impl Trips {
    /// Connects, and goes so often that both ends have been asked and paired.
    fn start(args: &ClientArgs, size: usize) -> std::io::Result<Trips> {
        let mut stream = connect(args)?;
        stream.write_all(&(size as u64).to_le_bytes())?;
        let mut trips = Trips { stream, message: vec![0; size], answer: vec![0; size], count: 0 };
        for _ in 0..WARM_UP {
            trips.go()?;
        }
        Ok(trips)
    }

    /// There and back, with a number that is looked for in the answer.
    fn go(&mut self) -> std::io::Result<()> {
        self.count += 1;
        let mark = self.count.to_le_bytes();
        let marked = self.message.len().min(mark.len());
        for (byte, mark) in self.message.iter_mut().zip(mark) {
            *byte = mark;
        }
        self.stream.write_all(&self.message)?;
        self.stream.read_exact(&mut self.answer)?;
        if self.answer.get(..marked) == self.message.get(..marked) {
            Ok(())
        } else {
            let count = self.count;
            Err(std::io::Error::other(format!("answer {count} is not what was sent")))
        }
    }
}

fn plan(round: Duration) -> Plan {
    Plan { round, sample: Duration::from_micros(3), max_samples: 2000 }
}

fn one_size(args: &ClientArgs, size: usize) -> std::io::Result<(Vec<f64>, u32)> {
    let mut trips = Trips::start(args, size)?;
    plan(Duration::from_millis(args.round_ms)).round(|| trips.go())
}

fn turns(args: &ClientArgs, line: &Line) -> std::io::Result<String> {
    let mut trips = Trips::start(args, SMALL)?;
    let plan = plan(TURN);
    let mut text = "turns".to_owned();
    for _ in 0..turns_in(Duration::from_millis(args.round_ms)) {
        trips.stream.write_all(&YOUR_TURN)?;
        trips.stream.read_exact(&mut [0; SMALL])?;
        let r = line.ask(&plan).map_err(std::io::Error::other)?;
        let (samples, _) = plan.round(|| trips.go())?;
        let _ = write!(text, " {r:.1} {:.1}", stats::median(samples) / 2.0);
    }
    Ok(text)
}

/// What the counters in a report file say of one pair of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Bytes put into rings.
    pub(super) sent: u64,
    /// Of these, by deliberate update.
    pub(super) deliberate: u64,
    /// Copied before a deliberate update.
    pub(super) staged: u64,
    /// Bytes copied out of rings.
    pub(super) received: u64,
}

impl Counted {
    /// Adds up what all processes reported.
    pub(super) fn read(path: &std::path::Path) -> Result<Counted, Io> {
        let text = std::fs::read_to_string(path).context(|| format!("reading {path:?}"))?;
        let mut counted = Counted::default();
        for (name, value) in text.split_whitespace().filter_map(|field| field.split_once('=')) {
            let value: u64 = value.parse().unwrap_or(0);
            match name {
                "ring_tx_bytes" => counted.sent += value,
                "deliberate_bytes" => counted.deliberate += value,
                "staged_bytes" => counted.staged += value,
                "ring_rx_bytes" => counted.received += value,
                _ => {}
            }
        }
        Ok(counted)
    }

    /// Copies by a processor per byte of message, deliberate updates apart.
    pub(super) fn copies(self) -> f64 {
        (self.sent - self.deliberate.min(self.sent) + self.staged + self.received) as f64
            / self.sent as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_as_the_paper_names_the_protocols() {
        let counted = |deliberate, staged| Counted { sent: 100, deliberate, staged, received: 100 };
        assert_eq!(counted(0, 0).copies(), 2.0);
        assert_eq!(counted(100, 0).copies(), 1.0);
        assert_eq!(counted(100, 100).copies(), 2.0);
    }
}
