//! The part of an application that runs on one of several nodes: started through a remote shell by
//! `shrimp run --hosts`, which says over the standard input what to run ([`wire`](super::wire)). Node 0's own
//! standard input comes the same way. When it ends, so do we.

use super::nodes::{Plan, serve, tell};
use super::wire::{Frame, Share};
use super::{RunError, end_with, outer, signals, strays};
use crate::exit::{Context, Exit, Failure};
use nx::Job;
use nx::job::supervise::{Cause, Inbox, Settings};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// Runs our nodes to their end; does not return when they were started.
pub(crate) fn run() -> Result<Exit, Failure> {
    let mut lifeline = std::io::stdin().lock();
    let share = match Frame::read(&mut lifeline).context(|| "what to run".into())? {
        Some(Frame::Share(share)) => *share,
        _ => return Err(RunError::NoShare.into()),
    };
    drop(lifeline);
    let signals = signals::Signals::catch().context(|| "signalfd".into())?;
    strays::adopt();
    outer::ensure_daemon()?;
    let (input, feed) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(|| "pipe".into())?;
    let plan = plan(share, input)?;
    let start = move |inbox: Inbox| {
        let thread = std::thread::Builder::new().name("lifeline".into());
        thread.spawn(move || follow(&inbox, feed)).context(|| "starting a thread".into())?;
        Ok(())
    };
    let outcome = serve(plan, signals, None, start)?;
    tell(&outcome);
    end_with(outcome.code())
}

fn plan(share: Share, input: OwnedFd) -> Result<Plan, Failure> {
    let Share { job, hosts, first, count, words, directory, settings, label, grace_ms } = share;
    let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
    let directory = OsString::from_vec(directory);
    std::env::set_current_dir(&directory)
        .context(|| format!("{} on this node", directory.display()))?;
    let path = super::find(words.first().map(OsString::as_os_str).unwrap_or_default())?;
    let job = Job::from_word(&job, first).map_err(|error| RunError::Job(error.to_string()))?;
    let job = Job { hosts: hosts.into(), ..job };
    let places = (first..first.saturating_add(count).min(job.size))
        .map(|node| Job { node, ..job.clone() })
        .collect();
    let grace = Duration::from_millis(grace_ms);
    Ok(Plan {
        path,
        words,
        label,
        places,
        environment: settings,
        input: Some(input),
        settings: Settings { grace, elsewhere: true, ..Settings::default() },
    })
}

/// Does what comes over the lifeline, until its end.
fn follow(inbox: &Inbox, feed: OwnedFd) {
    let mut feed = Some(feed);
    let mut lifeline = std::io::stdin().lock();
    loop {
        match Frame::read(&mut lifeline) {
            Ok(Some(Frame::Input(bytes))) => {
                let fed = feed.as_ref().map(|pipe| pass(pipe, &bytes));
                match fed {
                    Some(Fed::Closed) => feed = None, // node 0 reads no more
                    Some(Fed::Cut) => return inbox.end(Cause::Orphaned),
                    Some(Fed::All) | None => {}
                }
            }
            Ok(Some(Frame::InputEnd)) => feed = None,
            Ok(Some(Frame::Signal(number))) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    inbox.signal(signal);
                }
            }
            Ok(Some(Frame::Share(_)) | None) | Err(_) => return inbox.end(Cause::Orphaned),
        }
    }
}

enum Fed {
    All,
    Closed,
    /// The lifeline ended while node 0 did not read.
    Cut,
}

/// Passes input on; a node that does not read its input must not hide the end of the lifeline.
fn pass(pipe: &OwnedFd, bytes: &[u8]) -> Fed {
    let mut rest = bytes;
    while !rest.is_empty() {
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(pipe, PollFlags::OUT), PollFd::new(&stdin, PollFlags::empty())];
        let _ = poll(&mut fds, None);
        let (room, end) = (fds[0].revents(), fds[1].revents());
        if room.contains(PollFlags::OUT) {
            // At most what a pipe takes at once: a write that blocks would be as bad.
            match rustix::io::write(pipe, rest.get(..rest.len().min(4096)).unwrap_or_default()) {
                Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Fed::Closed,
            }
        } else if !room.is_empty() {
            return Fed::Closed;
        } else if !end.is_empty() {
            return Fed::Cut;
        }
    }
    Fed::All
}
