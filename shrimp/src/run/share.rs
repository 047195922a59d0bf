//! The part of an application that runs on one of several nodes: started through a remote shell by
//! `shrimp run --hosts`, which says over the standard input what to run ([`wire`](super::wire)). Node 0's own
//! standard input comes the same way; what our nodes print, and what our supervisor has to say to those of other hosts, goes
//! back over the standard output. When the input ends, so do we.

use super::nodes::{Goes, Later, Plan, serve, tell};
use super::order::Starter;
use super::window::Window;
use super::wire::{Frame, GREETING, Said, Share};
use super::{RunError, end_with, outer, signals, strays};
use crate::exit::{Context, Exit, Failure};
use nx::Job;
use nx::job::supervise::others::{Down, Up};
use nx::job::supervise::{Cause, Settings};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::mpsc;
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
    // Before what we start is ours to end.
    outer::ensure_daemon()?;
    strays::adopt();
    let mut out = std::io::stdout().lock();
    out.write_all(GREETING).and_then(|()| out.flush()).context(|| "greeting".into())?;
    drop(out);
    let (input, feed) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(|| "pipe".into())?;
    let window = Arc::new(Window::default());
    let sending = window.clone();
    let output = Goes::Here(Box::new(move |bytes| {
        sending.take(bytes.len()) && say(&Said::Output(bytes.to_vec()))
    }));
    let mut plan = plan(share, input)?;
    let up = uplink()?;
    let supervisors = up.clone();
    plan.others = Some(Box::new(move |said| {
        let _ = supervisors.send(said);
    }));
    let (environment, label) = (plan.environment.clone(), plan.label);
    let start = move |later: Later| {
        let (inputs, given) = mpsc::channel();
        thread("input", move || pass(&given, feed))?;
        let starter = Starter { later, environment, label, up };
        thread("lifeline", move || {
            follow(&starter, inputs, &window);
            window.close();
            starter.later.inbox.end(Cause::Orphaned);
            loop {
                std::thread::park(); // what this thread has started would be killed with it
            }
        })
    };
    let outcome = serve(plan, output, signals, None, start)?;
    tell(&outcome);
    end_with(outcome.code())
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(work).context(|| "starting a thread".into())?;
    Ok(())
}

/// Writes it whole, whoever else writes. False: nobody reads it.
fn say(said: &Said) -> bool {
    said.write(&mut std::io::stdout().lock()).is_ok()
}

/// What is to be said to other hosts goes by a thread: the supervisor, and who reads the lifeline, must not wait for a reader
/// of output.
fn uplink() -> Result<mpsc::Sender<Up>, Failure> {
    let (sender, queue) = mpsc::channel::<Up>();
    thread("uplink", move || {
        for up in queue {
            say(&Said::Up(up));
        }
    })?;
    Ok(sender)
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
        others: None,
        settings: Settings { grace, elsewhere: true, ..Settings::default() },
    })
}

/// Does what comes over the lifeline, until its end.
fn follow(starter: &Starter, inputs: mpsc::Sender<Vec<u8>>, window: &Window) {
    let inbox = &starter.later.inbox;
    let mut inputs = Some(inputs);
    let mut lifeline = std::io::stdin().lock();
    loop {
        match Frame::read(&mut lifeline) {
            Ok(Some(Frame::Input(bytes))) => {
                if let Some(inputs) = &inputs {
                    let _ = inputs.send(bytes); // fails when node 0 reads no more
                }
            }
            Ok(Some(Frame::InputEnd)) => inputs = None,
            Ok(Some(Frame::Signal(number))) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    inbox.signal(signal);
                }
            }
            Ok(Some(Frame::OutputEnd)) => window.close(),
            Ok(Some(Frame::Printed(bytes))) => window.give(bytes as usize),
            Ok(Some(Frame::Down(Down::Load { ticket, order }))) => {
                starter.obey(ticket, order);
            }
            Ok(Some(Frame::Down(down))) => inbox.down(down),
            Ok(Some(Frame::Share(_)) | None) | Err(_) => return,
        }
    }
}

/// Passes input on to node 0, and asks for more when it has been taken.
fn pass(given: &mpsc::Receiver<Vec<u8>>, feed: OwnedFd) {
    let mut feed = std::fs::File::from(feed);
    for bytes in given {
        if feed.write_all(&bytes).is_err() || !say(&Said::More) {
            return; // node 0 reads no more
        }
    }
}
