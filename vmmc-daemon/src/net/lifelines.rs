//! Copies of the data connections of this node's processes.
//!
//! A process forked without exec has its parent's connection too, so the end of the parent does not close it. The
//! daemon sees that end by the pidfd, and shuts the connection down.

use super::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use vmmc::id::ClientId;

/// By process.
#[derive(Debug, Default)]
pub(super) struct Lifelines(Mutex<HashMap<ClientId, Vec<TcpStream>>>);

impl Lifelines {
    /// A process that is here may be given a connection.
    pub(super) fn expect(&self, process: ClientId) {
        lock(&self.0).entry(process).or_default();
    }

    /// It is given this one; closed at once if it has gone meanwhile. Where there is no descriptor for a copy, a
    /// forked child may keep the connection.
    pub(super) fn keep(&self, process: ClientId, stream: &TcpStream) {
        let Ok(copy) = stream.try_clone() else { return };
        match lock(&self.0).get_mut(&process) {
            Some(streams) => {
                streams.retain(is_open);
                streams.push(copy);
            }
            None => end(&copy),
        }
    }

    /// The process has gone: `died`, and with it what it had; else it is only not known here any more.
    pub(super) fn forget(&self, process: ClientId, died: bool) {
        let streams = lock(&self.0).remove(&process).unwrap_or_default();
        if died {
            streams.iter().for_each(end);
        }
    }
}

fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both); // it may be closed already
}

fn is_open(stream: &TcpStream) -> bool {
    let mut ends = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut ends, Some(&now)), Ok(1..))
}
