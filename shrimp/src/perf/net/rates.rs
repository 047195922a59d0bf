//! How many bytes go through in a stream, and how many by bare TCP.

use super::LEN;
use super::sides::Sides;
use super::world::World;
use crate::cpu::{self, Pair};
use crate::exit::{Context, Io};
use crate::perf::time_of;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Transfers of [`LEN`] in one sample of a rate.
const TRANSFERS: usize = 16;

impl World {
    /// [`TRANSFERS`] of [`LEN`], and a fence; bytes per second.
    pub(super) fn rate(&self, window: Duration) -> Result<f64, String> {
        let source = vec![5; LEN];
        let mut failed = None;
        let time = time_under_way(window, || {
            let sent = (0..TRANSFERS).try_for_each(|_| self.import.send(0, &source));
            failed = sent.err().map(|error| error.to_string());
            if failed.is_none() {
                failed = self.import.fence().err().map(|error| error.to_string());
            }
        });
        failed.map_or(Ok(()), Err)?;
        Ok((LEN * TRANSFERS) as f64 / time.as_secs_f64())
    }
}

/// Of an operation of a stream that is under way: what a first window of as long takes is not counted, in which TCP finds
/// out how much its buffers should have.
pub(super) fn time_under_way(window: Duration, mut operation: impl FnMut()) -> Duration {
    time_of(window, &mut operation);
    time_of(window, operation)
}

/// Bare TCP in the same shape: transfers to a thread on the other processor that receives into one
/// buffer, and an answer of one byte.
pub(super) fn tcp_rate(pair: Pair, sides: &Sides, window: Duration) -> Result<f64, Io> {
    let listener = sides.listen()?;
    let to = listener.local_addr().context(|| "listening".into())?;
    let mut stream = TcpStream::connect(to).context(|| "connecting".into())?;
    let (mut other, _) = listener.accept().context(|| "accepting".into())?;
    stream.set_nodelay(true).context(|| "TCP_NODELAY".into())?;
    let receiver = std::thread::spawn(move || -> Result<(), Io> {
        if !pair.is_single() {
            cpu::pin(pair.b)?;
        }
        let mut buffer = vec![0; LEN];
        loop {
            for i in 0..TRANSFERS {
                if let Err(error) = other.read_exact(&mut buffer) {
                    // The end of the measurement is the end of the stream, between two samples.
                    let end = i == 0 && error.kind() == std::io::ErrorKind::UnexpectedEof;
                    return if end { Ok(()) } else { Err(error).context(|| "receiving".into()) };
                }
            }
            other.write_all(&[1]).context(|| "answering".into())?;
        }
    });
    let source = vec![5; LEN];
    let mut failed = None;
    let time = time_under_way(window, || {
        let sent = (0..TRANSFERS).try_for_each(|_| stream.write_all(&source));
        failed = sent.and_then(|()| stream.read_exact(&mut [0])).err();
    });
    drop(stream);
    if let Ok(result) = receiver.join() {
        result?;
    }
    match failed {
        Some(error) => Err(error).context(|| "sending".into()),
        None => Ok((LEN * TRANSFERS) as f64 / time.as_secs_f64()),
    }
}
