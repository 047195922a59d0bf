//! The way to a share, and the way back, in `shrimp run --hosts`: its standard input, written by a thread of its own so
//! that nobody waits for a host that does not read; and its standard output, read by another, which waits for no reader of what is
//! printed: a third one prints, and tells the share how much.

use super::output;
use super::wire::{Frame, GREETING, Said};
use crate::exit::{Context, Failure};
use nx::job::supervise::others::Up;
use rustix::event::EventfdFlags;
use std::io::{BufReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A share's standard input. It ends with [`Lifeline::end`], with this process, and when it cannot be written.
#[derive(Clone, Debug)]
pub(super) struct Lifeline {
    /// `None` ends it.
    queue: mpsc::Sender<Option<Frame>>,
}

impl Lifeline {
    pub(super) fn new(mut pipe: PipeWriter) -> Result<Lifeline, Failure> {
        let (queue, frames) = mpsc::channel::<Option<Frame>>();
        let write = move || {
            for frame in frames.iter().map_while(|frame| frame) {
                if frame.write(&mut pipe).is_err() {
                    return; // its end is heard of otherwise
                }
            }
        };
        let thread = std::thread::Builder::new().name("lifeline".into());
        thread.spawn(write).context(|| "starting a thread".into())?;
        Ok(Lifeline { queue })
    }

    /// False when it has ended.
    pub(super) fn say(&self, frame: Frame) -> bool {
        self.queue.send(Some(frame)).is_ok()
    }

    /// Tells the share that the application ends.
    pub(super) fn end(&self) {
        let _ = self.queue.send(None);
    }
}

/// What the supervisors of all hosts say, in the order in which it came.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: mpsc::Receiver<(usize, Up)>,
    post: Post,
}

/// Where it is put.
#[derive(Clone, Debug)]
pub(super) struct Post {
    queue: mpsc::Sender<(usize, Up)>,
    /// An eventfd: readable while there is something.
    wake: Arc<OwnedFd>,
}

impl Inbox {
    pub(super) fn new() -> Result<Inbox, Failure> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).context(|| "eventfd".into())?);
        let (sender, queue) = mpsc::channel();
        Ok(Inbox { queue, post: Post { queue: sender, wake } })
    }

    pub(super) fn post(&self) -> Post {
        self.post.clone()
    }

    /// All that has come: of which part, and what.
    pub(super) fn take(&self) -> Vec<(usize, Up)> {
        let _ = rustix::io::read(&self.post.wake, &mut [0; 8]);
        self.queue.try_iter().collect()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.post.wake.as_fd()
    }
}

impl Post {
    fn put(&self, part: usize, up: Up) {
        let _ = self.queue.send((part, up));
        // Full is as good as written: the counter is not 0.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// What comes from a share, and where it goes.
pub(super) struct Way<R> {
    /// Number of the part.
    pub(super) part: usize,
    /// Its standard output.
    pub(super) from: R,
    pub(super) post: Post,
    pub(super) lifeline: Lifeline,
    /// Told when node 0 wants more input.
    pub(super) more: mpsc::Sender<()>,
}

impl<R: Read + Send + 'static> Way<R> {
    /// Starts the thread that reads it to its end.
    pub(super) fn start(self) -> Result<JoinHandle<()>, Failure> {
        let thread = std::thread::Builder::new().name("output".into());
        Ok(thread.spawn(move || self.follow()).context(|| "starting a thread".into())?)
    }

    fn follow(self) {
        let Way { part, from, post, lifeline, more } = self;
        let mut from = BufReader::new(from);
        let (output, bytes) = mpsc::channel::<Vec<u8>>();
        let printing = lifeline.clone();
        let printer = std::thread::Builder::new().name("printer".into());
        let Ok(printer) = printer.spawn(move || print(&bytes, &printing)) else {
            say!("shrimp run: a thread for the output of a host could not be started");
            return lifeline.end();
        };
        if greeted(&mut from, &mut |shown| {
            let _ = output.send(shown.to_vec());
        }) {
            Way { part, from, post, lifeline, more }.hear(&output);
        }
        drop(output);
        let _ = printer.join();
    }

    /// Does what a share says, to its end.
    fn hear(self, output: &mpsc::Sender<Vec<u8>>) {
        let Way { part, mut from, post, lifeline, more } = self;
        loop {
            match Said::read(&mut from) {
                Ok(Some(Said::Output(bytes))) => {
                    let _ = output.send(bytes); // as much as its window lets come
                }
                Ok(Some(Said::More)) => {
                    let _ = more.send(());
                }
                Ok(Some(Said::Up(up))) => post.put(part, up),
                Ok(None) => return,
                Err(error) => {
                    say!("shrimp run: what a host says cannot be understood: {error}");
                    return lifeline.end(); // its end ends all
                }
            }
        }
    }
}

/// Prints what comes of a share, and tells it how much.
fn print(output: &mpsc::Receiver<Vec<u8>>, lifeline: &Lifeline) {
    let mut out = output::own();
    for bytes in output.iter().filter(|bytes| !bytes.is_empty()) {
        if !out(&bytes) {
            lifeline.say(Frame::OutputEnd);
            return;
        }
        lifeline.say(Frame::Printed(u32::try_from(bytes.len()).unwrap_or(u32::MAX)));
    }
}

/// Passes on what a remote shell prints before the share's greeting. False when there is none.
fn greeted(from: &mut impl Read, print: &mut impl FnMut(&[u8])) -> bool {
    let mut held: Vec<u8> = Vec::new();
    let mut byte = [0];
    while let Ok(1) = from.read(&mut byte) {
        held.push(byte[0]);
        if held.ends_with(GREETING) {
            held.truncate(held.len() - GREETING.len());
            print(&held);
            return true;
        }
        if byte == *b"\n" && !held.contains(&0) {
            print(&std::mem::take(&mut held));
        }
    }
    print(&held);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_remote_shell_prints_comes_before_the_greeting() {
        let greet = |text: &[u8]| {
            let (mut from, mut printed) = (text, Vec::new());
            let greeted = greeted(&mut from, &mut |bytes| printed.extend_from_slice(bytes));
            (greeted, String::from_utf8(printed).unwrap(), from.len())
        };
        let with = |before: &str| [before.as_bytes(), GREETING, b"rest"].concat();
        assert_eq!(greet(&with("")), (true, String::new(), 4));
        assert_eq!(greet(&with("Welcome\nto a")), (true, "Welcome\nto a".into(), 4));
        assert_eq!(greet(b"no such\ncommand"), (false, "no such\ncommand".into(), 0));
    }
}
