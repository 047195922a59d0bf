//! The ordinary programs of the demo: a TCP server and a TCP client that know nothing of us.
//!
//! They use `std::net` with blocking reads and writes and nothing else of this workspace; the demo
//! runs them as `shrimp __echo-server` and `shrimp __echo-client`. The server has two services:
//! *echo* sends back what it gets; *collect* reads to the end, compares every byte with the
//! agreed pattern, and answers with two numbers (right bytes, wrong bytes; 8 bytes each,
//! little-endian).
//!
//! The client is told on standard input what to do and answers each line with one line:
//!
//! | command | does | answers |
//! |---|---|---|
//! | `warm` | some round trips and some streaming | `ok ECHOED STREAMED` |
//! | `echo MS` | 8-byte round trips for that long | `ok ROUND_TRIPS MEDIAN_NS P99_NS` (one way) |
//! | `stream MS` | streams for that long, then closes the stream | `ok BYTES NANOSECONDS` |
//!
//! Every byte is compared; a wrong one ends the client with `wrong ...`.

use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Length of the pattern. A prime, so that a lost, doubled or moved block of any usual size
/// shows.
const PERIOD: usize = 65_521;
/// Bytes per write of the stream.
pub(super) const CHUNK: usize = 64 << 10;
/// Bytes of a round trip.
pub(super) const MESSAGE: usize = 8;

/// The pattern, long enough to cut a chunk out at any phase.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let one: Vec<u8> = (0..PERIOD)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    one.iter().copied().cycle().take(PERIOD + CHUNK).collect()
}

/// The server. Prints its two ports (echo, collect) and serves until it is ended.
pub(crate) fn serve() -> std::io::Result<()> {
    let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let collect = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{} {}", echo.local_addr()?.port(), collect.local_addr()?.port());
    std::thread::spawn(move || each(&collect, collect_one));
    each(&echo, echo_one);
    Ok(())
}

/// One connection after the other; a broken one does not end the server, and a client that has
/// left is nothing to report.
fn each(listener: &TcpListener, service: fn(TcpStream) -> std::io::Result<()>) {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    for stream in listener.incoming().flatten() {
        match service(stream) {
            Err(error) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                say!("echo server: {error}");
            }
            _ => {}
        }
    }
}

fn echo_one(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        stream.write_all(buffer.get(..len).unwrap_or_default())?;
    }
}

fn collect_one(mut stream: TcpStream) -> std::io::Result<()> {
    let pattern = pattern();
    let mut buffer = vec![0; CHUNK];
    let (mut phase, mut right, mut wrong) = (0usize, 0u64, 0u64);
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        let got = buffer.get(..len).unwrap_or_default();
        let want = pattern.get(phase..phase + len).unwrap_or_default();
        if got == want {
            right += len as u64;
        } else {
            wrong += got.iter().zip(want).filter(|(a, b)| a != b).count() as u64;
        }
        phase = (phase + len) % PERIOD;
    }
    stream.write_all(&right.to_le_bytes())?;
    stream.write_all(&wrong.to_le_bytes())
}

/// The client.
pub(crate) fn connect(echo: u16, collect: u16) -> std::io::Result<()> {
    let mut client = Client {
        echo: TcpStream::connect((Ipv4Addr::LOCALHOST, echo))?,
        collect: TcpStream::connect((Ipv4Addr::LOCALHOST, collect))?,
        pattern: pattern(),
        counter: 0,
        streamed: 0,
    };
    client.echo.set_nodelay(true)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let duration =
            Duration::from_millis(words.next().and_then(|ms| ms.parse().ok()).unwrap_or(0));
        let answer = match command {
            "warm" => client.warm(),
            "echo" => client.round_trips(duration),
            "stream" => client.stream(duration),
            _ => Err(std::io::Error::other(format!("unknown command {line:?}"))),
        };
        match answer {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => {
                println!("wrong {error}");
                return Err(error);
            }
        }
    }
    Ok(())
}

struct Client {
    echo: TcpStream,
    collect: TcpStream,
    pattern: Vec<u8>,
    /// Round trips made; also what the messages hold.
    counter: u64,
    /// Bytes streamed.
    streamed: u64,
}

impl Client {
    fn round_trip(&mut self) -> std::io::Result<()> {
        let message = self.counter.wrapping_mul(0x0101_0101_0101_0101).to_le_bytes();
        self.counter += 1;
        self.echo.write_all(&message)?;
        let mut answer = [0; MESSAGE];
        self.echo.read_exact(&mut answer)?;
        if answer == message {
            Ok(())
        } else {
            Err(std::io::Error::other(format!(
                "round trip {}: sent {message:02x?}, got {answer:02x?}",
                self.counter
            )))
        }
    }

    fn chunk(&mut self) -> std::io::Result<()> {
        let phase = (self.streamed % PERIOD as u64) as usize;
        let chunk = self.pattern.get(phase..phase + CHUNK).unwrap_or_default();
        self.collect.write_all(chunk)?;
        self.streamed += CHUNK as u64;
        Ok(())
    }

    fn warm(&mut self) -> std::io::Result<String> {
        for _ in 0..1000 {
            self.round_trip()?;
        }
        for _ in 0..8 {
            self.chunk()?;
        }
        Ok(format!("{} {}", self.counter * MESSAGE as u64, self.streamed))
    }

    fn round_trips(&mut self, duration: Duration) -> std::io::Result<String> {
        let begin = Instant::now();
        let mut samples = Vec::with_capacity(1 << 16);
        let mut last = begin;
        // One reading of the clock per round trip serves as end and as beginning.
        while last - begin < duration || samples.len() < 10 {
            self.round_trip()?;
            let now = Instant::now();
            samples.push((now - last).as_nanos() as f64 / 2.0);
            last = now;
        }
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize];
        Ok(format!("{} {} {}", samples.len(), at(0.5), at(0.99)))
    }

    fn stream(&mut self, duration: Duration) -> std::io::Result<String> {
        let before = self.streamed;
        let begin = Instant::now();
        while begin.elapsed() < duration {
            self.chunk()?;
        }
        self.collect.shutdown(std::net::Shutdown::Write)?;
        let (mut right, mut wrong) = ([0; 8], [0; 8]);
        self.collect.read_exact(&mut right)?;
        self.collect.read_exact(&mut wrong)?;
        let elapsed = begin.elapsed();
        let (right, wrong) = (u64::from_le_bytes(right), u64::from_le_bytes(wrong));
        if right != self.streamed || wrong != 0 {
            return Err(std::io::Error::other(format!(
                "{} bytes streamed, {right} arrived right, {wrong} wrong",
                self.streamed
            )));
        }
        Ok(format!("{} {}", self.streamed - before, elapsed.as_nanos()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(bytes: &[u8]) -> (u64, u64) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || collect_one(listener.accept().unwrap().0));
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        server.join().unwrap().unwrap();
        let number = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
        (number(0), number(8))
    }

    #[test]
    fn one_wrong_byte_and_one_lost_block_are_noticed() {
        let good: Vec<u8> = pattern().into_iter().take(PERIOD).cycle().take(300_000).collect();
        assert_eq!(collected(&good), (300_000, 0));
        let mut flipped = good.clone();
        flipped[200_000] ^= 1;
        assert_eq!(collected(&flipped).1, 1);
        let mut lost = good.clone();
        lost.drain(100_000..104_096);
        let (right, wrong) = collected(&lost);
        assert!(right < 300_000 && wrong > 0);
    }
}
