//! `shrimp run --hosts`: the nodes of an application on several nodes of a cluster.
//!
//! ```text
//!   shrimp run --hosts a,b ── ssh a shrimp __run-share ─┬─ node 0
//!                          │                            └─ node 1
//!                          └─ ssh b shrimp __run-share ─┬─ node 2
//!                                                       └─ node 3
//! ```
//!
//! One remote shell per host; what to run goes over its standard input ([`wire`](super::wire)), so that
//! nothing needs to be quoted and no secret is in a command line. Each share supervises its nodes as on one
//! machine, and ends with the exit code that counts; what one supervisor has to say to the others goes through here
//! ([`router`](super::router)). The first share that fails ends all; they stay until all have nobody left. A share ends when
//! its standard input does: so when this process is killed, and when a connection breaks, nothing stays.
#![allow(unsafe_code)] // between fork and exec

use super::lifeline::{Inbox, Lifeline, Post, Way};
use super::output::{self, Source, Sources, Stream};
use super::router::{Orders, Router};
use super::wire::{Frame, Share};
use super::{Args, RunError, end_with, signals, strays};
use crate::exit::{Context, Exit, Failure};
use nx::Job;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long shares may take to end before their remote shells are killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nodes on one host.
struct Part {
    host: String,
    first: u32,
    count: u32,
    shell: Child,
    lifeline: Lifeline,
    /// Reads its output.
    reader: Option<JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

/// What parts need to be started.
struct Start<'a> {
    args: &'a Args,
    signals: &'a signals::Signals,
    post: Post,
    more: mpsc::Sender<()>,
    /// Their standard error.
    sources: Vec<Source>,
}

/// Runs the application to its end; does not return when it was started.
pub(super) fn run(
    args: &Args,
    signals: &signals::Signals,
    outer: &OwnedFd,
) -> Result<Exit, Failure> {
    let size = args.size()?;
    let hosts = places(&args.hosts, size)?;
    let job = Job::new(size).context(|| "random bytes".into())?;
    let inbox = Inbox::new()?;
    let (more, wanted) = mpsc::channel();
    let mut start = Start { args, signals, post: inbox.post(), more, sources: Vec::new() };
    let mut parts: Vec<Part> = Vec::new();
    let mut first = 0;
    while let Some(host) = hosts.get(first as usize) {
        let same = |other: &&String| *other == host;
        let count = hosts.iter().skip(first as usize).take_while(same).count() as u32;
        let share = Share {
            job: job.to_word(),
            hosts: hosts.clone(),
            first,
            count,
            words: args.program.iter().map(|word| word.as_bytes().to_vec()).collect(),
            directory: directory()?,
            settings: settings(),
            label: args.label,
            grace_ms: args.grace()?.as_millis() as u64,
        };
        match start.part(parts.len(), host, share) {
            Ok(part) => parts.push(part),
            Err(failure) => {
                parts.iter().for_each(|part| part.lifeline.end());
                strays::kill_all();
                return Err(failure);
            }
        }
        first += count;
    }
    let sources = start.sources;
    let merger = std::thread::Builder::new().name("output".into());
    let merger = merger
        .spawn(move || output::merge(&Sources::of(sources), output::own()))
        .context(|| "starting a thread".into())?;
    if let Some(part) = parts.first() {
        let lifeline = part.lifeline.clone();
        let feeder = std::thread::Builder::new().name("input".into());
        feeder.spawn(move || feed(&lifeline, &wanted)).context(|| "starting a thread".into())?;
    }
    let code = watch(&mut parts, args.grace()?, signals, outer, &inbox);
    strays::kill_all();
    for reader in parts.iter_mut().filter_map(|part| part.reader.take()) {
        let _ = reader.join();
    }
    let _ = merger.join();
    end_with(code)
}

/// The host of each node: as many on each as goes, in the order in which they are named.
fn places(hosts: &[String], size: u32) -> Result<Vec<String>, RunError> {
    for (at, host) in hosts.iter().enumerate() {
        if !vmmc::control::network::is_node_name(host) {
            return Err(RunError::Host(host.clone()));
        }
        if hosts.iter().take(at).any(|other| other == host) {
            return Err(RunError::HostTwice(host.clone()));
        }
    }
    Ok(Job::spread(hosts, size))
}

fn directory() -> Result<Vec<u8>, Failure> {
    let directory = std::env::current_dir().context(|| "the current directory".into())?;
    Ok(directory.into_os_string().as_bytes().to_vec())
}

/// Settings of NX go along. Those of `vmmc` are a node's own.
fn settings() -> Vec<(String, String)> {
    std::env::vars().filter(|(name, _)| name.starts_with("NX_")).collect()
}

impl Start<'_> {
    fn part(&mut self, number: usize, host: &str, share: Share) -> Result<Part, Failure> {
        let mut command = self.args.rsh.command(host, "__run-share").ok_or(RunError::NoShell)?;
        let (input, lifeline) = std::io::pipe().context(|| "pipe".into())?;
        let pipe =
            || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(|| "pipe".into());
        let ((out, out_writer), (err, err_writer)) = (pipe()?, pipe()?);
        command.stdin(input).stdout(out_writer).stderr(err_writer);
        // What the terminal says (Ctrl-C) is for us, who pass it on; they would end by it themselves.
        command.process_group(0);
        let mask = self.signals.before();
        let prepare = move || {
            mask.restore();
            Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
        };
        // SAFETY: only system calls that are safe between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let shell = command
            .spawn()
            .map_err(|source| RunError::Start { program: command.get_program().into(), source })?;
        let (first, count) = (share.first, share.count);
        let lifeline = Lifeline::new(lifeline)?;
        // A shell that has failed already is found by its end.
        lifeline.say(Frame::Share(Box::new(share)));
        self.sources.push(Source { pipe: err, prefix: String::new(), stream: Stream::Err });
        let way = Way {
            part: number,
            from: File::from(out),
            post: self.post.clone(),
            lifeline: lifeline.clone(),
            more: self.more.clone(),
        };
        let reader = Some(way.start()?);
        Ok(Part { host: host.to_owned(), first, count, shell, lifeline, reader, ended: None })
    }
}

/// Passes our standard input to the share of node 0, a piece at a time as it takes them.
fn feed(lifeline: &Lifeline, wanted: &mpsc::Receiver<()>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let frame = match std::io::stdin().lock().read(&mut buffer) {
            Ok(0) => Frame::InputEnd,
            Ok(len) => Frame::Input(buffer.get(..len).unwrap_or_default().to_vec()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => Frame::InputEnd,
        };
        let end = frame == Frame::InputEnd;
        if !lifeline.say(frame) || end || wanted.recv().is_err() {
            return;
        }
    }
}

impl Part {
    fn kill(&self, signal: Signal) {
        if self.ended.is_none()
            && let Some(pid) = rustix::process::Pid::from_raw(self.shell.id() as i32)
        {
            let _ = rustix::process::kill_process(pid, signal); // not reaped: it is that process
        }
    }

    /// For people.
    fn name(&self) -> String {
        let Part { host, first, count, .. } = self;
        match count {
            1 => format!("node {first} on {host}"),
            _ => format!("nodes {first} to {} on {host}", first + count - 1),
        }
    }
}

/// Waits for all; the first that fails ends them, after a grace where a node came to its own end. The exit code.
fn watch(
    parts: &mut [Part],
    grace_of_exits: Duration,
    signals: &signals::Signals,
    outer: &OwnedFd,
    inbox: &Inbox,
) -> u8 {
    let mut router = Router::new(parts.iter().map(|part| part.host.clone()).collect());
    let mut code = 0;
    let mut asked: Option<Signal> = None;
    let mut ending: Option<Instant> = None;
    let mut by_exit = false;
    let mut orphaned = false;
    loop {
        let mut orders = Orders::new();
        for (number, part) in parts.iter_mut().enumerate() {
            if part.ended.is_some() {
                continue;
            }
            let Ok(Some(status)) = part.shell.try_wait() else { continue };
            part.ended = Some(status);
            orders.append(&mut router.ended(number));
            if status.success() {
                continue;
            }
            // Those who died of the signal say why it ended; others only missed them.
            if asked.is_some_and(|signal| exit_code(status) == code_of(signal)) {
                code = exit_code(status);
            }
            // Who was killed has come to no end of his own: as on one machine, nobody is waited for any longer.
            by_exit &= exit_code(status) < 128;
            if ending.is_none() {
                code = exit_code(status);
                if asked.is_none() && !orphaned {
                    say!("shrimp run: {}: {}; all others are ended", part.name(), words(status));
                }
                ending = Some(Instant::now());
                by_exit = status.code().is_some_and(|code| code < 128);
            }
        }
        if parts.iter().all(|part| part.ended.is_some()) {
            return code;
        }
        for (from, up) in inbox.take() {
            orders.append(&mut router.hear(from, up));
        }
        for (to, down) in orders {
            if let Some(part) = parts.get(to) {
                part.lifeline.say(Frame::Down(down));
            }
        }
        // With a signal on its way to all, each may come to its own end first.
        let grace = match asked {
            _ if orphaned => Duration::ZERO,
            Some(_) => PATIENCE,
            // As on one machine: who has run off the end of its main has not taken the others along.
            None if by_exit => grace_of_exits,
            None => Duration::ZERO,
        };
        let mut left = None;
        if let Some(since) = ending {
            left = Some(grace.saturating_sub(since.elapsed()));
            if since.elapsed() >= grace {
                parts.iter().for_each(|part| part.lifeline.end());
                left = Some((grace + PATIENCE).saturating_sub(since.elapsed()));
            }
            if since.elapsed() >= grace + PATIENCE {
                parts.iter().for_each(|part| part.kill(Signal::KILL));
                left = None; // their ends come as signals
            }
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let gone = if orphaned { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(outer, gone),
            PollFd::new(inbox, PollFlags::IN),
        ];
        let _ = poll(&mut fds, left.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            orphaned = true;
            code = code_of(Signal::KILL);
            ending.get_or_insert_with(Instant::now);
        }
        for (signal, _) in signals.take() {
            if signal == Signal::CHILD {
                continue;
            }
            // As on one machine: the second that asks to end, ends.
            if [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
                && asked.replace(signal).is_some()
            {
                code = code_of(signal);
                parts.iter().for_each(|part| part.lifeline.end());
                ending.get_or_insert_with(Instant::now);
            }
            for part in parts.iter() {
                part.lifeline.say(Frame::Signal(signal.as_raw()));
            }
        }
    }
}

/// As a shell has it.
fn code_of(signal: Signal) -> u8 {
    128_u8.wrapping_add(signal.as_raw() as u8)
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128_u8.wrapping_add(signal.unwrap_or(0) as u8),
    }
}

fn words(status: ExitStatus) -> String {
    match status.code() {
        Some(255) => "ended with code 255: the remote shell failed, or a node did".to_owned(),
        Some(code) => format!("ended with code {code}"),
        None => format!("the remote shell was ended ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_in_order_and_evenly() {
        let hosts = ["a", "b"].map(str::to_owned);
        assert_eq!(places(&hosts, 4).unwrap(), ["a", "a", "b", "b"]);
        assert_eq!(places(&hosts, 3).unwrap(), ["a", "a", "b"]);
        assert_eq!(places(&hosts, 1).unwrap(), ["a"]);
        let error = |hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
            places(&hosts, 2).unwrap_err().to_string()
        };
        assert!(error(&["a", "a"]).contains("twice"));
        assert!(error(&["a", ""]).contains("\"\""));
    }
}
