//! The inner process: starts the nodes and watches them.
#![allow(unsafe_code)] // between fork and exec

use super::output::{self, Source, Stream};
use super::{Args, NodesArgs, RunError, end_with, signals, strays};
use crate::artefacts::{self, Artefact};
use crate::exit::{Context, Exit, Failure, Io};
use nx::job::supervise::{Cause, Member, Settings, Supervisor};
use nx::job::{Job, control, env};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the nodes to their end; does not return when they were started.
pub(crate) fn run(own: &NodesArgs) -> Result<Exit, Failure> {
    let args = &own.args;
    let program = args.find()?;
    let outer = outer_process(own.parent)?;
    let signals = signals::Signals::catch().context(|| "signalfd".into())?;
    strays::adopt();
    if own.terminal {
        signals::take_terminal(rustix::process::getpgrp());
    }
    let settings = Settings { grace: args.grace()?, ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).context(|| "eventfd".into())?;
    let inbox = supervisor.inbox();
    let job = Job::new(args.size()?).context(|| "random bytes".into())?;
    let mut sources = Vec::new();
    let start = Start { own: rustix::process::getpid(), mask: signals.before() };
    for node in 0..job.size {
        match start_node(args, &program, Job { node, ..job.clone() }, start, &mut sources) {
            Ok(member) => supervisor.add(member),
            Err(failure) => {
                strays::kill_all();
                return Err(failure);
            }
        }
    }
    let merger = std::thread::Builder::new()
        .name("output".into())
        .spawn(move || output::merge(sources))
        .context(|| "starting a thread".into())?;
    let listen = move || loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&outer, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            inbox.end(Cause::Orphaned);
            return;
        }
        for (signal, sent) in signals.take() {
            match signal {
                Signal::CHILD => {}
                signal if sent => inbox.signal(signal),
                signal => inbox.noted(signal),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .context(|| "starting a thread".into())?;
    let outcome = supervisor.run();
    // Whatever the nodes started goes with them; then every pipe comes to its end.
    strays::kill_all();
    let _ = merger.join();
    match &outcome.cause {
        None | Some(Cause::Signal(_) | Cause::Orphaned) => {}
        Some(_) => eprintln!("shrimp run: {outcome}"),
    }
    end_with(outcome.code())
}

/// The process that started us; when it ends, so do we.
fn outer_process(parent: u32) -> Result<OwnedFd, Io> {
    let gone = || std::io::Error::other("the process that started it has gone");
    let pid = Pid::from_raw(parent as i32).ok_or_else(gone).context(|| "--parent".into())?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .context(|| "pidfd_open of the parent".into())?;
    if rustix::process::getppid() != Some(pid) {
        return Err(gone()).context(|| "--parent".into());
    }
    Ok(pidfd)
}

/// What a node needs to know between fork and exec.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// This process.
    own: Pid,
    /// Signals to block.
    mask: signals::Mask,
}

fn start_node(
    args: &Args,
    program: &Path,
    place: Job,
    start: Start,
    sources: &mut Vec<Source>,
) -> Result<Member, Failure> {
    let (theirs, ours) = control::pair().context(|| "control channel".into())?;
    let pipe =
        || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(|| "pipe".into());
    let ((out, out_writer), (err, err_writer)) = (pipe()?, pipe()?);
    let mut command = Command::new(program);
    command.arg0(args.program.first().cloned().unwrap_or_default());
    command.args(args.program.iter().skip(1));
    command.envs(place.to_env()).env(env::CONTROL, theirs.as_raw_fd().to_string());
    // gfortran's own buffers would hold lines back.
    command.env("GFORTRAN_UNBUFFERED_PRECONNECTED", "y");
    command.envs(library_path().map(|path| ("LD_LIBRARY_PATH", path)));
    command.stdin(if place.node == 0 { Stdio::inherit() } else { Stdio::null() });
    command.stdout(out_writer).stderr(err_writer);
    let number = theirs.as_raw_fd();
    let prepare = move || {
        start.mask.restore();
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(start.own) {
            return Err(std::io::Error::other("the parent has gone"));
        }
        // SAFETY: the channel is open in the child, as it was in the parent.
        let channel = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(channel, rustix::io::FdFlags::empty())?)
    };
    // SAFETY: only system calls that are safe between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let child = command
        .spawn()
        .map_err(|source| RunError::Start { program: program.to_owned(), source })?;
    let prefix = if args.label { format!("[{}] ", place.node) } else { String::new() };
    sources.push(Source { pipe: out, prefix: prefix.clone(), stream: Stream::Out });
    sources.push(Source { pipe: err, prefix, stream: Stream::Err });
    let pid = Pid::from_child(&child);
    let member = Member::child(Some(place.node), 0, pid, Some(ours));
    Ok(member.context(|| "pidfd_open of a node".into())?)
}

/// Where libnx.so is, after what the user has chosen: a program that was linked in the source
/// tree finds it.
fn library_path() -> Option<OsString> {
    let found = artefacts::find(Artefact::Nx).ok()?;
    let mut path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(found.parent()?);
    Some(path)
}
