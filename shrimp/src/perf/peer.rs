//! The two sides of a ping-pong, over everything that the machine itself offers.
//!
//! The peer is this program again, as `shrimp __perf-peer KIND`. Its end of the channel comes as
//! its standard input (and output, for pipes), so nothing needs a name. It answers until it is
//! ended.

use crate::children::{self, Child};
use crate::exit::{Context, Failure, Io};
use crate::shm::{self, Shared};
use rustix::thread::futex;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use vmmc::mem::View;
use vmmc::sync::{Ordering, spin_hint};
use vmmc::word::{MappedU32, Word};

/// What carries the ball.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Two words on two cache lines of a shared page; both sides poll.
    Line,
    /// The same words, sleeping in futex(2).
    Futex,
    /// Two pipes, one byte.
    Pipe,
    /// TCP over loopback, 8 bytes, both sides polling a non-blocking socket.
    TcpSpin,
    /// TCP over loopback, 8 bytes, blocking.
    TcpBlock,
    /// AF_UNIX stream, 8 bytes, both sides polling.
    UnixSpin,
    /// AF_UNIX stream, 8 bytes, blocking.
    UnixBlock,
}

impl Kind {
    /// Whether both sides poll, which needs two processors.
    pub(crate) fn spins(self) -> bool {
        matches!(self, Kind::Line | Kind::TcpSpin | Kind::UnixSpin)
    }
}

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    kind: Kind,
}

/// Bytes of a message over a socket.
const MESSAGE: usize = 8;
/// Where the two words are: on different lines, and not on a pair that is prefetched together.
pub(super) const PING: usize = 0;
pub(super) const PONG: usize = 256;
pub(super) const PAGE: usize = 4096;

/// One end of a channel.
enum Channel {
    Words { page: Shared, sleep: bool, turn: u32 },
    Pipe { from: std::io::PipeReader, to: std::io::PipeWriter },
    Tcp { stream: TcpStream },
    Unix { stream: UnixStream },
}

pub(super) fn word<'m>(view: View<'m>, at: usize) -> Result<MappedU32<'m>, Io> {
    view.word32(at).map_err(std::io::Error::other).context(|| "ping-pong page".into())
}

/// Polls until a word is no longer `old`; every now and then asks `give_up`.
pub(super) fn poll_change(
    word: &MappedU32<'_>,
    old: u32,
    give_up: &mut dyn FnMut() -> bool,
) -> Result<u32, Io> {
    loop {
        for _ in 0..1 << 16 {
            let value = word.load(Ordering::Acquire);
            if value != old {
                return Ok(value);
            }
            spin_hint();
        }
        if give_up() {
            return Err(std::io::Error::other("it answers no more")).context(|| "the peer".into());
        }
    }
}

/// Sleeps until a word is no longer `old`.
fn sleep_change(
    word: &MappedU32<'_>,
    old: u32,
    give_up: &mut dyn FnMut() -> bool,
) -> Result<u32, Io> {
    let second = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    loop {
        let value = word.load(Ordering::Acquire);
        if value != old {
            return Ok(value);
        }
        let waited = futex::wait(shm::as_atomic(word), futex::Flags::empty(), old, Some(&second));
        if waited == Err(rustix::io::Errno::TIMEDOUT) && give_up() {
            return Err(std::io::Error::other("it has ended")).context(|| "the peer".into());
        }
    }
}

fn wake(word: &MappedU32<'_>) {
    let _ = futex::wake(shm::as_atomic(word), futex::Flags::empty(), 1);
}

/// Reads a whole message from a stream, blocking or polling as the stream is set.
fn read_message(stream: &mut impl Read) -> Result<[u8; MESSAGE], Io> {
    let mut message = [0; MESSAGE];
    let mut got = 0;
    while got < MESSAGE {
        match stream.read(message.get_mut(got..).unwrap_or_default()) {
            Ok(0) => {
                return Err(std::io::Error::other("it has closed the connection"))
                    .context(|| "the peer".into());
            }
            Ok(more) => got += more,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => spin_hint(),
            Err(error) => return Err(error).context(|| "reading from the peer".into()),
        }
    }
    Ok(message)
}

fn write_message(stream: &mut impl Write, message: &[u8]) -> Result<(), Io> {
    // Eight bytes always fit a socket whose last eight have been answered.
    stream.write_all(message).context(|| "writing to the peer".into())
}

impl Channel {
    /// One round trip, begun by this side.
    fn round_trip(&mut self, give_up: &mut dyn FnMut() -> bool) -> Result<(), Io> {
        match self {
            Channel::Words { page, sleep, turn } => {
                let (ping, pong) = (word(page.view(), PING)?, word(page.view(), PONG)?);
                let old = *turn;
                *turn = turn.wrapping_add(1);
                ping.store(*turn, Ordering::Release);
                if *sleep {
                    wake(&ping);
                    sleep_change(&pong, old, give_up)?;
                } else {
                    poll_change(&pong, old, give_up)?;
                }
            }
            Channel::Pipe { from, to } => {
                to.write_all(&[1]).context(|| "writing to the peer".into())?;
                from.read_exact(&mut [0]).context(|| "reading from the peer".into())?;
            }
            Channel::Tcp { stream } => {
                write_message(stream, &[7; MESSAGE])?;
                read_message(stream)?;
            }
            Channel::Unix { stream } => {
                write_message(stream, &[7; MESSAGE])?;
                read_message(stream)?;
            }
        }
        Ok(())
    }

    /// Answers for ever.
    fn answer(&mut self) -> Result<(), Io> {
        let mut never = || false;
        match self {
            Channel::Words { page, sleep, turn } => {
                let (ping, pong) = (word(page.view(), PING)?, word(page.view(), PONG)?);
                loop {
                    *turn = if *sleep {
                        sleep_change(&ping, *turn, &mut never)?
                    } else {
                        poll_change(&ping, *turn, &mut never)?
                    };
                    pong.store(*turn, Ordering::Release);
                    if *sleep {
                        wake(&pong);
                    }
                }
            }
            Channel::Pipe { from, to } => loop {
                let mut byte = [0];
                from.read_exact(&mut byte).context(|| "reading".into())?;
                to.write_all(&byte).context(|| "writing".into())?;
            },
            Channel::Tcp { stream } => loop {
                let message = read_message(stream)?;
                write_message(stream, &message)?;
            },
            Channel::Unix { stream } => loop {
                let message = read_message(stream)?;
                write_message(stream, &message)?;
            },
        }
    }
}

/// A running ping-pong: our end and the peer process.
pub(crate) struct PingPong {
    // Dropped first, so that the peer is ended before its channel breaks.
    peer: Child,
    channel: Channel,
}

impl PingPong {
    /// Starts the peer, pinned to `cpu`.
    pub(crate) fn start(kind: Kind, cpu: usize) -> Result<PingPong, Io> {
        PingPong::start_at(kind, cpu, || {
            TcpListener::bind(("127.0.0.1", 0)).context(|| "listening".into())
        })
    }

    /// As [`PingPong::start`], with the peer's end of TCP where `listen` listens.
    pub(crate) fn start_at(
        kind: Kind,
        cpu: usize,
        listen: impl FnOnce() -> Result<TcpListener, Io>,
    ) -> Result<PingPong, Io> {
        let mut command = children::command(&children::own_program(), Some(cpu));
        command.arg("__perf-peer").arg(clap_name(kind));
        let channel = match kind {
            Kind::Line | Kind::Futex => {
                let memory = vmmc::sys::memfd::create("ping-pong", PAGE as u64)
                    .context(|| "making a memory file".into())?;
                let page = Shared::map(&memory, PAGE)?;
                command.stdin(Stdio::from(OwnedFd::from(memory)));
                Channel::Words { page, sleep: kind == Kind::Futex, turn: 0 }
            }
            Kind::Pipe => {
                let (peer_reads, to) = std::io::pipe().context(|| "making a pipe".into())?;
                let (from, peer_writes) = std::io::pipe().context(|| "making a pipe".into())?;
                command.stdin(peer_reads).stdout(peer_writes);
                Channel::Pipe { from, to }
            }
            Kind::TcpSpin | Kind::TcpBlock => {
                let (stream, theirs) =
                    tcp_pair(&listen()?).context(|| "a TCP connection".into())?;
                stream.set_nonblocking(kind.spins()).context(|| "O_NONBLOCK".into())?;
                command.stdin(OwnedFd::from(theirs));
                Channel::Tcp { stream }
            }
            Kind::UnixSpin | Kind::UnixBlock => {
                let (stream, theirs) = UnixStream::pair().context(|| "socketpair".into())?;
                stream.set_nonblocking(kind.spins()).context(|| "O_NONBLOCK".into())?;
                command.stdin(OwnedFd::from(theirs));
                Channel::Unix { stream }
            }
        };
        let peer = Child::spawn(command, "the measuring peer")?;
        Ok(PingPong { peer, channel })
    }

    /// One round trip.
    pub(crate) fn round_trip(&mut self) -> Result<(), Io> {
        let peer = &mut self.peer;
        self.channel.round_trip(&mut || peer.ended().is_some())
    }
}

fn clap_name(kind: Kind) -> String {
    use clap::ValueEnum;
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn tcp_pair(listener: &TcpListener) -> std::io::Result<(TcpStream, TcpStream)> {
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

/// `shrimp __perf-peer`: answers until it is ended.
pub(crate) fn serve(args: &PeerArgs) -> Result<(), Failure> {
    let input =
        std::io::stdin().as_fd().try_clone_to_owned().context(|| "standard input".into())?;
    let mut channel = match args.kind {
        Kind::Line | Kind::Futex => Channel::Words {
            page: Shared::map(&input, PAGE)?,
            sleep: args.kind == Kind::Futex,
            turn: 0,
        },
        Kind::Pipe => {
            let output = std::io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .context(|| "standard output".into())?;
            Channel::Pipe { from: input.into(), to: output.into() }
        }
        Kind::TcpSpin | Kind::TcpBlock => {
            let stream = TcpStream::from(input);
            stream.set_nonblocking(args.kind.spins()).context(|| "O_NONBLOCK".into())?;
            Channel::Tcp { stream }
        }
        Kind::UnixSpin | Kind::UnixBlock => {
            let stream = UnixStream::from(input);
            stream.set_nonblocking(args.kind.spins()).context(|| "O_NONBLOCK".into())?;
            Channel::Unix { stream }
        }
    };
    channel.answer()?;
    Ok(())
}

/// Cost of an operation that needs no peer, in nanoseconds, as samples of one round.
pub(crate) fn alone(plan: &crate::stats::Plan, mut operation: impl FnMut()) -> (Vec<f64>, u32) {
    let result: Result<_, std::convert::Infallible> = plan.round(|| {
        operation();
        Ok(())
    });
    match result {
        Ok(samples) => samples,
        Err(never) => match never {},
    }
}

/// How long `operation` takes at best over `window`: for bandwidths, where the disturbance is
/// always one-sided.
pub(crate) fn time_of(window: Duration, mut operation: impl FnMut()) -> Duration {
    operation();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < window || times.len() < 3 {
        let start = Instant::now();
        operation();
        times.push(start.elapsed().as_nanos() as f64);
    }
    Duration::from_nanos(crate::stats::median(times) as u64)
}
