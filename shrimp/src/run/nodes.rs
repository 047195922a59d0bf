//! The inner process: starts the nodes and watches them.
#![allow(unsafe_code)] // between fork and exec

use super::output::{self, Relay, Source, Sources, Stream};
use super::{NodesArgs, RunError, end_with, signals, strays};
use crate::artefacts::{self, Artefact};
use crate::exit::{Context, Exit, Failure, Io};
use nx::job::supervise::others::Up;
use nx::job::supervise::{Cause, Inbox, Member, Outcome, Settings, Supervisor};
use nx::job::{Job, control, env};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use vmmc::sys::Fd;

/// What the nodes on this machine run.
pub(super) struct Plan {
    /// The program's file.
    pub(super) path: PathBuf,
    /// Program, as it was named, and arguments.
    pub(super) words: Vec<OsString>,
    pub(super) label: bool,
    /// Each node's place.
    pub(super) places: Vec<Job>,
    /// Variables besides our own.
    pub(super) environment: Vec<(String, String)>,
    /// Standard input of node 0, if it is not ours.
    pub(super) input: Option<OwnedFd>,
    pub(super) settings: Settings,
    /// How to reach the supervisors of other hosts, if there are some.
    pub(super) others: Option<Say>,
}

/// Where the output of nodes goes.
pub(super) enum Goes {
    /// It is merged here, and standard output goes on to there.
    Here(output::Out),
    /// To another process, that merges it.
    On(Relay),
}

/// Says something to the supervisors of other hosts.
pub(super) type Say = Box<dyn Fn(Up) + Send>;

/// Runs the nodes to their end; does not return when they were started.
pub(crate) fn run(own: &NodesArgs) -> Result<Exit, Failure> {
    let args = &own.args;
    let outer = outer_process(own.parent)?;
    let relay = relay(own.output)?;
    let signals = signals::Signals::catch().context(|| "signalfd".into())?;
    strays::adopt();
    if own.terminal {
        signals::take_terminal(rustix::process::getpgrp());
    }
    if !args.hosts.is_empty() {
        return super::hosts::run(args, &signals, &outer);
    }
    let job = Job::new(args.size()?).context(|| "random bytes".into())?;
    let plan = Plan {
        path: args.find()?,
        words: args.program.clone(),
        label: args.label,
        places: (0..job.size).map(|node| Job { node, ..job.clone() }).collect(),
        environment: Vec::new(),
        input: None,
        settings: Settings { grace: args.grace()?, ..Settings::default() },
        others: None,
    };
    let outcome = serve(plan, Goes::On(relay), signals, Some(outer), |_| Ok(()))?;
    tell(&outcome);
    end_with(outcome.code())
}

/// Says why, if there is something to say.
pub(super) fn tell(outcome: &Outcome) {
    match &outcome.cause {
        None | Some(Cause::Signal(_) | Cause::Orphaned) => {}
        Some(_) => say!("shrimp run: {outcome}"),
    }
}

/// What who starts processes later needs for it.
pub(super) struct Later {
    pub(super) inbox: Inbox,
    pub(super) start: Start,
    pub(super) sources: Arc<Sources>,
}

/// Starts nodes and watches them to their end. They end with the process of `outer`, if there is one;
/// `started` is called once they run.
pub(super) fn serve(
    mut plan: Plan,
    output: Goes,
    signals: signals::Signals,
    outer: Option<OwnedFd>,
    started: impl FnOnce(Later) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    let mut supervisor = Supervisor::new(plan.settings.clone()).context(|| "eventfd".into())?;
    if let Some(say) = plan.others.take() {
        supervisor.join_others(say);
    }
    let inbox = supervisor.inbox();
    let (sources, out) = match output {
        Goes::Here(out) => {
            (Sources::beginning(Vec::new()).context(|| "eventfd".into())?, Some(out))
        }
        Goes::On(relay) => (Sources::passed(relay), None),
    };
    let sources = Arc::new(sources);
    let start = Start { own: rustix::process::getpid(), mask: signals.before() };
    for place in std::mem::take(&mut plan.places) {
        match start_node(&mut plan, place, start, &sources) {
            Ok(member) => supervisor.add(member),
            Err(failure) => {
                strays::kill_all();
                return Err(failure);
            }
        }
    }
    let merging = sources.clone();
    let merge = |out| {
        let merger = std::thread::Builder::new().name("output".into());
        merger.spawn(move || output::merge(&merging, out))
    };
    let merger = out.map(merge).transpose().context(|| "starting a thread".into())?;
    let listening = inbox.clone();
    let listen = move || loop {
        let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
        fds.extend(outer.iter().map(|outer| PollFd::new(outer, PollFlags::IN)));
        let _ = poll(&mut fds, None);
        if fds.get(1).is_some_and(|outer| !outer.revents().is_empty()) {
            listening.end(Cause::Orphaned);
            return;
        }
        for (signal, sent) in signals.take() {
            match signal {
                Signal::CHILD => {}
                signal if sent => listening.signal(signal),
                signal => listening.noted(signal),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .context(|| "starting a thread".into())?;
    if let Err(failure) = started(Later { inbox, start, sources: sources.clone() }) {
        strays::kill_all();
        return Err(failure);
    }
    let outcome = supervisor.run();
    // Whatever the nodes started goes with them; then every pipe comes to its end.
    strays::kill_all();
    sources.close();
    if let Some(merger) = merger {
        let _ = merger.join();
    }
    Ok(outcome)
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

/// The way to the process that merges what the nodes say: a descriptor that we were started with.
fn relay(number: i32) -> Result<Relay, Io> {
    // SAFETY: only looked at, and not after the next line if it is closed.
    let inherited = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let kept = rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC);
    kept.map_err(std::io::Error::from).context(|| "--output".into())?;
    // SAFETY: open, and the outer process's gift to this one.
    let own = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(Relay(own.into()))
}

/// What a node needs to know between fork and exec.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// This process.
    own: Pid,
    /// Signals to block.
    mask: signals::Mask,
}

fn start_node(
    plan: &mut Plan,
    place: Job,
    start: Start,
    sources: &Sources,
) -> Result<Member, Failure> {
    let mut command = Command::new(&plan.path);
    command.arg0(plan.words.first().cloned().unwrap_or_default());
    command.args(plan.words.iter().skip(1));
    command.envs(plan.environment.iter().map(|(name, value)| (name, value)));
    command.envs(place.to_env());
    command.envs(library_path().map(|path| ("LD_LIBRARY_PATH", path)));
    command.stdin(match (place.node, plan.input.take()) {
        (0, Some(input)) => input.into(),
        (0, None) => Stdio::inherit(),
        _ => Stdio::null(),
    });
    let prefix = match place.hosts.get(place.node as usize) {
        _ if !plan.label => String::new(),
        Some(host) => format!("[{}@{host}] ", place.node),
        None => format!("[{}] ", place.node),
    };
    let failed = |source| RunError::Start { program: plan.path.clone(), source };
    let (child, control) = start.run(&mut command, &prefix, sources).map_err(failed)?;
    let member = Member::child(Some(place.node), 0, child, Some(control));
    Ok(member.context(|| "pidfd_open of a node".into())?)
}

impl Start {
    /// Starts a process that ends with this thread, with a control channel, and with its output merged into ours.
    pub(super) fn run(
        self,
        command: &mut Command,
        prefix: &str,
        sources: &Sources,
    ) -> std::io::Result<(Pid, Fd)> {
        let (theirs, ours) = control::pair()?;
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let ((out, out_writer), (err, err_writer)) = (pipe()?, pipe()?);
        command.env(env::CONTROL, theirs.as_raw_fd().to_string());
        // gfortran's own buffers would hold lines back.
        command.env("GFORTRAN_UNBUFFERED_PRECONNECTED", "y");
        command.stdout(out_writer).stderr(err_writer);
        let number = theirs.as_raw_fd();
        let prepare = move || {
            self.mask.restore();
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(self.own) {
                return Err(std::io::Error::other("the parent has gone"));
            }
            // SAFETY: the channel is open in the child, as it was in the parent.
            let channel = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
            Ok(rustix::io::fcntl_setfd(channel, rustix::io::FdFlags::empty())?)
        };
        // SAFETY: only system calls that are safe between fork and exec.
        unsafe { command.pre_exec(prepare) };
        // Before it can say anything: it may be the last thing that we hear of it, or it of us.
        sources.add(Source { pipe: out, prefix: prefix.into(), stream: Stream::Out });
        sources.add(Source { pipe: err, prefix: prefix.into(), stream: Stream::Err });
        let child = command.spawn()?;
        Ok((Pid::from_child(&child), ours))
    }
}

/// Where libnx.so is, after what the user has chosen: a program that was linked in the source
/// tree finds it.
pub(super) fn library_path() -> Option<OsString> {
    let found = artefacts::find(Artefact::Nx).ok()?;
    let mut path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(found.parent()?);
    Some(path)
}
