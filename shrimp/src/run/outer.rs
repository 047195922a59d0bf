//! The process that people see.
#![allow(unsafe_code)] // between fork and exec

use super::{Args, end_with, output, signals, strays};
use crate::children;
use crate::exit::{Context, Exit, Failure};
use rustix::process::{Pid, Signal, WaitOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Runs the application to its end; does not return when it got so far.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    // What is wrong with the arguments is said before anything is started.
    // On other hosts it is looked for there.
    let program = if args.hosts.is_empty() {
        args.find()?
    } else {
        args.program.first().map(PathBuf::from).unwrap_or_default()
    };
    let size = args.size()?;
    args.grace()?;
    if args.hosts.is_empty() {
        ensure_daemon()?;
    }
    if args.verbose {
        say!("shrimp run: {size} nodes of {}", program.display());
    }
    let signals = signals::Signals::catch().context(|| "signalfd".into())?;
    strays::adopt();
    // Who else is in a pipeline reads the terminal too, perhaps: nodes have it when they ask for it.
    let terminal = own_terminal() && !is_piped();
    let (relayed, relay) = vmmc::sys::packet::pair().context(|| "socketpair".into())?;
    let mut command = Command::new(children::own_program());
    command.arg("__run-nodes").arg("--parent").arg(std::process::id().to_string());
    command.arg("--output").arg(relay.as_raw_fd().to_string());
    if terminal {
        command.arg("--terminal");
    }
    command.args(std::env::args_os().skip_while(|word| word != "run").skip(1));
    command.process_group(0);
    let number = relay.as_raw_fd();
    let mask = signals.before();
    let prepare = move || {
        mask.restore();
        // SAFETY: the channel is open in the child, as it was in the parent.
        let relay = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(relay, rustix::io::FdFlags::empty())?)
    };
    // SAFETY: only system calls that are safe between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let inner = command.spawn().context(|| "starting the nodes".into())?;
    drop(relay);
    let inner = Pid::from_child(&inner);
    let merger = std::thread::Builder::new().name("relay".into());
    let merger = merger
        .spawn(move || output::merge_relayed(&relayed))
        .context(|| "starting a thread".into())?;
    let (status, terminal) = watch(inner, &signals, terminal);
    // The inner process has cleaned up, unless it was killed.
    let left = strays::kill_all();
    let _ = merger.join();
    let code = code_of(status);
    if terminal {
        signals::take_terminal(rustix::process::getpgrp());
    }
    if left > 0 && args.verbose {
        say!("shrimp run: {left} processes were left over and killed");
    }
    end_with(code)
}

/// Starts the user's daemon if none listens: one start is better than one of each node's.
pub(super) fn ensure_daemon() -> Result<(), super::RunError> {
    let config = vmmc::config::Config::from_env()
        .map_err(|error| super::RunError::Daemon(error.to_string()))?;
    // Programs that are no NX programs run without one; a node that needs it says so itself.
    let _ = vmmc::control::Connection::open(&config);
    Ok(())
}

/// Whether this process is in the foreground of the terminal that is its standard input.
fn own_terminal() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdin())
        .is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Whether what is printed goes to another program.
fn is_piped() -> bool {
    let is_pipe = |to: BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(to);
        stat.is_ok_and(|it| rustix::fs::FileType::from_raw_mode(it.st_mode).is_fifo())
    };
    is_pipe(std::io::stdout().as_fd()) || is_pipe(std::io::stderr().as_fd())
}

/// Passes signals in, until the inner process has ended; and whether it had the terminal then.
fn watch(inner: Pid, signals: &signals::Signals, mut terminal: bool) -> (ExitStatus, bool) {
    loop {
        for signal in signals.wait() {
            if signal == Signal::CHILD {
                continue;
            }
            let _ = rustix::process::kill_process(inner, signal);
        }
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let Ok(Some((_, status))) = rustix::process::waitpid(Some(inner), options) else {
            continue;
        };
        if status.stopped() {
            let by = status.stopping_signal();
            stop(inner, &mut terminal, by == Some(libc::SIGTTIN) || by == Some(libc::SIGTTOU));
            continue;
        }
        return (ExitStatus::from_raw(status.as_raw()), terminal);
    }
}

/// The exit code; says what has killed all.
fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => {
            say!("shrimp run: the application was killed by signal {signal}");
            128_u8.wrapping_add(signal as u8)
        }
        (None, None) => 1,
    }
}

/// The nodes were stopped. By a wish for the terminal: they have it, if it is ours to give. Otherwise (Ctrl-Z; a wish from the
/// background) stop as well, as the shell expects; go on together.
fn stop(inner: Pid, terminal: &mut bool, wish: bool) {
    if !wish || !own_terminal() {
        if *terminal {
            signals::take_terminal(rustix::process::getpgrp());
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }
    if (*terminal || wish) && own_terminal() {
        signals::take_terminal(inner);
        *terminal = true;
    }
    let _ = rustix::process::kill_process_group(inner, Signal::CONT);
}
