//! Copies of the data connections of this node's processes.
//!
//! A process forked without exec has its parent's connection too, so the end of the parent does not close it. The
//! daemon sees that end by the pidfd, and shuts the connection down.

use super::lock;
use crate::receive;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use vmmc::id::{ClientId, PeerInfo};
use vmmc::sys::socket;

/// Most copies of one process. Of older ones a forked child may keep the connection.
const MOST: usize = 64;

/// By process. What is done with a socket is done apart: a child may hold it inside a call, or have its close wait.
#[derive(Debug, Default)]
pub(super) struct Lifelines(Mutex<HashMap<ClientId, Lines>>);

/// Those of one process.
#[derive(Debug)]
struct Lines {
    uid: u32,
    streams: VecDeque<Line>,
}

/// A copy of a connection, and the node to which it is.
#[derive(Debug)]
struct Line {
    node: String,
    stream: TcpStream,
}

impl Lifelines {
    /// A process that is here may be given a connection.
    pub(super) fn expect(&self, process: PeerInfo) {
        let none = || Lines { uid: process.uid, streams: VecDeque::new() };
        lock(&self.0).entry(process.client).or_insert_with(none);
    }

    /// It is given this one; ended at once if it has gone meanwhile.
    pub(super) fn keep(&self, process: PeerInfo, node: &str, stream: &TcpStream) {
        let Ok(copy) = stream.try_clone() else { return }; // a child may keep this one too
        let copy = Line { node: node.to_owned(), stream: copy };
        let mut over = VecDeque::new();
        let mut all = lock(&self.0);
        match all.get_mut(&process.client) {
            Some(Lines { streams, .. }) => {
                let (open, ended) = streams.drain(..).partition(|line| is_open(&line.stream));
                (*streams, over) = (open, ended);
                if streams.len() == MOST {
                    over.extend(streams.pop_front());
                }
                streams.push_back(copy);
                drop(all);
            }
            None => {
                drop(all);
                end(process.uid, vec![copy.stream]);
            }
        }
        over.into_iter().for_each(|line| close(process.uid, line.stream));
    }

    /// How many connections there are to a node.
    pub(super) fn count(&self, node: &str) -> u32 {
        let all = lock(&self.0);
        let lines = all.values().flat_map(|lines| &lines.streams);
        let there = lines.filter(|line| line.node == node && is_open(&line.stream));
        u32::try_from(there.count()).unwrap_or(u32::MAX)
    }

    /// The process has gone: `died`, and with it what it had; else it is only not known here any more.
    pub(super) fn forget(&self, process: ClientId, died: bool) {
        let Some(Lines { uid, streams }) = lock(&self.0).remove(&process) else { return };
        let streams = streams.into_iter().map(|line| line.stream);
        if died {
            end(uid, streams.collect());
        } else {
            streams.for_each(|stream| close(uid, stream));
        }
    }
}

/// Ends connections of a user's, whoever else has them.
pub(super) fn end(uid: u32, streams: Vec<TcpStream>) {
    if !streams.is_empty() {
        receive::apart(uid, move || {
            for stream in &streams {
                let _ = stream.shutdown(Shutdown::Both); // it may be closed already
            }
        });
    }
}

/// Ends one as if it had been cut on the way, whoever else has it.
pub(super) fn cut(uid: u32, stream: TcpStream) {
    receive::apart(uid, move || socket::reset(&stream));
}

/// Leaves a connection to whoever else has it.
fn close(uid: u32, stream: TcpStream) {
    receive::close(uid, OwnedFd::from(stream).into());
}

fn is_open(stream: &TcpStream) -> bool {
    let mut ends = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut ends, Some(&now)), Ok(1..))
}
