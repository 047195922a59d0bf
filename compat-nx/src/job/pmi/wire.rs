//! The byte stream to the launcher: lines and counted messages, whole or not at all.

use super::PmiError;
use rustix::net::{RecvFlags, SendFlags};
use vmmc::sys::Fd;

/// Longest answer that is accepted.
const MAX_ANSWER: usize = 64 * 1024;

/// A connected stream socket.
#[derive(Debug)]
pub(super) struct Stream {
    fd: Fd,
    /// Read and not yet used.
    rest: Vec<u8>,
}

fn io(what: &'static str) -> impl Fn(rustix::io::Errno) -> PmiError {
    move |errno| PmiError::Io { what, source: errno.into() }
}

impl Stream {
    pub(super) fn new(fd: Fd) -> Stream {
        Stream { fd, rest: Vec::new() }
    }

    pub(super) fn connect(address: &str) -> Result<Stream, PmiError> {
        let stream = std::net::TcpStream::connect(address)
            .map_err(|source| PmiError::Io { what: "connecting to PMI_PORT", source })?;
        Ok(Stream::new(std::os::fd::OwnedFd::from(stream).into()))
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), PmiError> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io("sending")(errno)),
            }
        }
        Ok(())
    }

    fn more(&mut self) -> Result<(), PmiError> {
        let mut buffer = [0; 1024];
        loop {
            match rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(io("reading")(rustix::io::Errno::CONNRESET)),
                Ok((len, _)) if self.rest.len() + len > MAX_ANSWER => {
                    return Err(io("reading")(rustix::io::Errno::MSGSIZE));
                }
                Ok((len, _)) => {
                    self.rest.extend_from_slice(&buffer[..len]);
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io("reading")(errno)),
            }
        }
    }

    /// One line, without its newline.
    pub(super) fn line(&mut self) -> Result<String, PmiError> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                self.rest.drain(..=end);
                return Ok(line);
            }
            self.more()?;
        }
    }

    /// Exactly `len` bytes.
    pub(super) fn exactly(&mut self, len: usize) -> Result<String, PmiError> {
        while self.rest.len() < len {
            self.more()?;
        }
        let text = String::from_utf8_lossy(&self.rest[..len]).into_owned();
        self.rest.drain(..len);
        Ok(text)
    }
}

/// The value of `key` among `key=value` pairs that `separator` parts.
pub(super) fn value<'a>(answer: &'a str, separator: char, key: &str) -> Option<&'a str> {
    answer.split(separator).find_map(|pair| pair.trim().strip_prefix(key)?.strip_prefix('='))
}
