//! A connection of which every call is over by the same moment, however the other end drips.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Timed<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
    /// Bytes written.
    pub(super) written: usize,
}

impl<'s> Timed<'s> {
    pub(super) fn new(stream: &'s TcpStream, deadline: Instant) -> Timed<'s> {
        Timed { stream, deadline, written: 0 }
    }

    fn left(&self) -> std::io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Whether the time is over; the kernel's own `ETIMEDOUT` is the connection's end.
pub(super) fn is_late(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// The kernel says that a call would have blocked for longer.
fn in_time<T>(result: std::io::Result<T>) -> std::io::Result<T> {
    result.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    })
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        in_time(self.stream.read(buffer))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let written = in_time(self.stream.write(bytes))?;
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
