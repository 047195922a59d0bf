//! The output of all nodes, merged line by line.
//!
//! Each node writes to two pipes of its own. One thread reads them all and passes on whole lines:
//! lines of two nodes never mix. What a node leaves without a newline at its end is passed on then.
//! A line longer than [`MAX_LINE`] goes in parts. On a terminal a part of a line that stays alone
//! for a moment is shown: it may be a question. Processes that are started later bring pipes of their own.
//!
//! On one machine the outer process is who merges: the inner one passes its ends of the pipes on ([`Relay`]). It may be killed with the
//! nodes, and what they had said before would go with it.

use crate::text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use vmmc::sys::{Fd, packet};

/// Longest prefix that is passed on, and its stream.
const MAX_PASSED: usize = 1024;

/// Longest line that is held back.
const MAX_LINE: usize = 64 << 10;

/// How long a part of a line is alone on a terminal before it is shown.
const ALONE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Which of our two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// One pipe from a node.
#[derive(Debug)]
pub(super) struct Source {
    /// Read end.
    pub(super) pipe: OwnedFd,
    /// What begins its lines; may be empty.
    pub(super) prefix: String,
    pub(super) stream: Stream,
}

/// A source and what it has not completed yet.
struct Line {
    source: Source,
    held: Vec<u8>,
    /// A part of the line was shown: the rest needs no prefix.
    begun: bool,
}

/// Takes whole lines of standard output; false: nobody wants them.
pub(super) type Out = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// Our own standard output.
pub(super) fn own() -> Out {
    Box::new(|bytes| {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.inspect_err(text::say_unwritten).is_ok()
    })
}

/// All pipes, also those that come later.
#[derive(Debug)]
pub(super) struct Sources {
    new: Mutex<New>,
    /// An eventfd: readable when something has changed; `None` when all were there from the start.
    wake: Option<OwnedFd>,
    /// Who has them, if not this process.
    relay: Option<Relay>,
}

/// To the process that merges.
#[derive(Debug)]
pub(super) struct Relay(pub(super) Fd);

impl Relay {
    fn pass(&self, source: &Source) {
        let stream = match source.stream {
            Stream::Out => 0,
            Stream::Err => 1,
        };
        let bytes = [&[stream], source.prefix.as_bytes()].concat();
        // When that one has gone so do we.
        let _ = packet::send(&self.0, &bytes, &[source.pipe.as_fd()], SendFlags::empty());
    }

    /// Returns when all that was passed on has been merged.
    fn finish(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
        let _ = packet::receive(&self.0, &mut [0], RecvFlags::empty());
    }
}

/// Merges what the relay at the other end passes on, until that one has finished, or gone, and every pipe is at its end.
pub(super) fn merge_relayed(relay: &Fd) -> std::io::Result<()> {
    let sources = Arc::new(Sources::beginning(Vec::new())?);
    let merging = sources.clone();
    let merger = std::thread::Builder::new().name("output".into());
    let merger = merger.spawn(move || merge(&merging, own()))?;
    let mut buffer = [0; MAX_PASSED];
    while let Ok(Some((len, mut fds))) = packet::receive(relay, &mut buffer, RecvFlags::empty()) {
        if let (Some((stream, prefix)), Some(pipe)) = (buffer[..len].split_first(), fds.take()) {
            let stream = if *stream == 0 { Stream::Out } else { Stream::Err };
            let prefix = String::from_utf8_lossy(prefix).into_owned();
            sources.add(Source { pipe: pipe.into(), prefix, stream });
        }
    }
    sources.close();
    let _ = merger.join();
    Ok(())
}

#[derive(Debug)]
struct New {
    sources: Vec<Source>,
    /// No more will come.
    closed: bool,
}

impl Sources {
    /// These, and no others.
    pub(super) fn of(sources: Vec<Source>) -> Sources {
        Sources { new: Mutex::new(New { sources, closed: true }), wake: None, relay: None }
    }

    /// Whatever comes is passed on.
    pub(super) fn passed(relay: Relay) -> Sources {
        Sources { relay: Some(relay), ..Sources::of(Vec::new()) }
    }

    /// These, and others until [`Sources::close`].
    pub(super) fn beginning(sources: Vec<Source>) -> std::io::Result<Sources> {
        use rustix::event::EventfdFlags;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let new = Mutex::new(New { sources, closed: false });
        Ok(Sources { new, wake: Some(wake), relay: None })
    }

    fn change(&self, change: impl FnOnce(&mut New)) {
        change(&mut self.new.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(wake) = &self.wake {
            // Full is as good as written: the counter is not 0.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn add(&self, source: Source) {
        match &self.relay {
            Some(relay) => relay.pass(&source),
            None => self.change(|new| new.sources.push(source)),
        }
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        match &self.relay {
            Some(relay) => relay.finish(),
            None => self.change(|new| new.closed = true),
        }
    }

    /// Those that have come, and whether more may come.
    fn take(&self) -> (Vec<Source>, bool) {
        if let Some(wake) = &self.wake {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut new.sources), !new.closed)
    }
}

/// Merges until every pipe is at its end, and no more come.
pub(super) fn merge(sources: &Sources, out: Out) {
    let mut sinks = Sinks { out: Some(out), err: true };
    let prompts = std::io::stdout().is_terminal();
    let mut lines: Vec<Line> = Vec::new();
    loop {
        let (new, more) = sources.take();
        let line = |source| Line { source, held: Vec::new(), begun: false };
        lines.extend(new.into_iter().map(line));
        if lines.is_empty() && !more {
            return;
        }
        let Some(ready) = wait(&lines, sources.wake.as_ref(), prompts) else { continue };
        if ready.is_empty() {
            lines.iter_mut().for_each(|line| line.show_part(&mut sinks));
            continue;
        }
        let mut closed = Vec::new();
        for index in ready {
            if !lines[index].read(&mut sinks) {
                closed.push(index);
            }
        }
        for index in closed.into_iter().rev() {
            lines.remove(index).finish(&mut sinks);
        }
    }
}

/// Indices of those that can be read; none when only parts of lines have been there for a moment; `None` when there may be
/// new ones.
fn wait(lines: &[Line], wake: Option<&OwnedFd>, prompts: bool) -> Option<Vec<usize>> {
    let pipes = lines.iter().map(|line| &line.source.pipe);
    let mut fds: Vec<PollFd<'_>> =
        pipes.chain(wake).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let parts = prompts && lines.iter().any(|line| !line.held.is_empty());
    while poll(&mut fds, parts.then_some(&ALONE)) == Err(rustix::io::Errno::INTR) {}
    if wake.is_some() && fds.pop().is_some_and(|fd| !fd.revents().is_empty()) {
        return None;
    }
    let ready = |(at, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(at);
    Some(fds.iter().enumerate().filter_map(ready).collect())
}

impl Line {
    /// Reads once; false at the end, or when nobody wants it any more.
    fn read(&mut self, sinks: &mut Sinks) -> bool {
        let mut buffer = [0; 16 << 10];
        match rustix::io::read(&self.source.pipe, &mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                self.held.extend_from_slice(&buffer[..len]);
                self.pass_lines(sinks);
                sinks.wanted(self.source.stream)
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    fn pass_lines(&mut self, sinks: &mut Sinks) {
        let end = match self.held.iter().rposition(|&byte| byte == b'\n') {
            Some(at) => at + 1,
            None if self.held.len() >= MAX_LINE => self.held.len(),
            None => return,
        };
        let rest = self.held.split_off(end);
        let whole = std::mem::replace(&mut self.held, rest);
        self.pass(&whole, sinks);
    }

    fn pass(&mut self, bytes: &[u8], sinks: &mut Sinks) {
        if bytes.is_empty() {
            return;
        }
        if self.source.prefix.is_empty() {
            return sinks.write(self.source.stream, bytes);
        }
        let mut marked = Vec::with_capacity(bytes.len() + self.source.prefix.len());
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if !self.begun {
                marked.extend_from_slice(self.source.prefix.as_bytes());
            }
            marked.extend_from_slice(line);
            self.begun = !line.ends_with(b"\n");
        }
        sinks.write(self.source.stream, &marked);
    }

    fn show_part(&mut self, sinks: &mut Sinks) {
        let part = std::mem::take(&mut self.held);
        self.pass(&part, sinks);
    }

    /// Its end: what is left is a line, too.
    fn finish(mut self, sinks: &mut Sinks) {
        if !self.held.is_empty() && !self.source.prefix.is_empty() {
            self.held.push(b'\n');
        }
        self.show_part(sinks);
    }
}

/// Our own streams, as long as somebody reads them. When nobody does, the pipes of the nodes are
/// closed, so that they get the SIGPIPE that they would have got without us.
struct Sinks {
    out: Option<Out>,
    err: bool,
}

impl Sinks {
    fn wanted(&self, stream: Stream) -> bool {
        match stream {
            Stream::Out => self.out.is_some(),
            Stream::Err => self.err,
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Out => {
                if let Some(out) = &mut self.out
                    && !out(bytes)
                {
                    self.out = None;
                }
            }
            Stream::Err if self.err => {
                self.err = std::io::stderr().lock().write_all(bytes).is_ok();
            }
            Stream::Err => {}
        }
    }
}
