//! One process under supervision.

use super::Who;
use super::others::Ticket;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc::sys::Fd;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// It exited.
    Code(u8),
    /// A signal killed it.
    Signal(i32),
    /// It is not our child, or somebody else has reaped it.
    Unknown,
}

/// One process of the application.
#[derive(Debug)]
pub struct Member {
    /// `None` for the host.
    pub(super) node: Option<u32>,
    pub(super) ptype: i32,
    pid: i32,
    /// Cannot hit a process that took over the number. Dropped once it has ended.
    pidfd: Option<Fd>,
    /// Whether this process started it, and so can wait for it.
    pub(super) child: bool,
    control: Option<Fd>,
    /// It said that it leaves in the ordinary way.
    pub(super) finished: bool,
    /// It said that it cannot go on without a node that has gone.
    pub(super) bereaved: bool,
    /// It is ended because a process asked for that, which is nobody's fault: the number under which the supervisors
    /// of other hosts were told, 0 where there are none.
    pub(super) request: Option<u32>,
    /// Who on another host waits for its end.
    pub(super) ticket: Option<Ticket>,
}

impl Member {
    /// A child of this process.
    ///
    /// # Errors
    /// As `pidfd_open(2)`: no descriptors left.
    pub fn child(
        node: Option<u32>,
        ptype: i32,
        pid: Pid,
        control: Option<Fd>,
    ) -> rustix::io::Result<Member> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let pid = pid.as_raw_nonzero().get();
        Ok(Member { child: true, ..Member::relative(node, ptype, pid, pidfd.into(), control) })
    }

    /// A process that a child started and told us of.
    #[must_use]
    pub fn relative(
        node: Option<u32>,
        ptype: i32,
        pid: i32,
        pidfd: Fd,
        control: Option<Fd>,
    ) -> Member {
        Member {
            node,
            ptype,
            pid,
            pidfd: Some(pidfd),
            child: false,
            control,
            finished: false,
            bereaved: false,
            request: None,
            ticket: None,
        }
    }

    /// A process of another host ordered it, and waits for its end.
    #[must_use]
    pub fn ordered(self, ticket: Ticket) -> Member {
        Member { ticket: Some(ticket), ..self }
    }

    /// For people.
    #[must_use]
    pub fn who(&self) -> Who {
        Who { node: self.node, ptype: self.ptype, pid: self.pid }
    }

    pub(super) fn is_running(&self) -> bool {
        self.pidfd.is_some()
    }

    pub(super) fn control(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn close_control(&mut self) {
        self.control = None;
    }

    /// What to poll.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pidfd.iter().chain(&self.control).map(AsFd::as_fd)
    }

    /// Sends a signal; one that has ended needs none.
    pub(super) fn kill(&self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            let _ = rustix::process::pidfd_send_signal(pidfd, signal);
        }
    }

    /// How it ended, once.
    pub(super) fn look(&mut self, reap: bool) -> Option<Ended> {
        let pidfd = self.pidfd.as_ref()?;
        let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        if !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..)) {
            return None;
        }
        let mut options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        if !reap {
            options |= WaitIdOptions::NOWAIT;
        }
        let ended = match self
            .child
            .then(|| rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options))
        {
            // A pidfd is readable a moment before its process can be waited for when a thread of
            // it is traced or still ending: look again.
            Some(Ok(None)) => return None,
            Some(Ok(Some(status))) => of_status(&status),
            Some(Err(_)) | None => zombie(self.pid),
        };
        self.pidfd = None;
        Some(ended)
    }
}

fn of_status(status: &WaitIdStatus) -> Ended {
    if let Some(code) = status.exit_status() {
        Ended::Code(code as u8)
    } else {
        status.terminating_signal().map_or(Ended::Unknown, Ended::Signal)
    }
}

/// The end of a process that is another's child, if its parent has not reaped it yet: the last
/// field of `/proc/PID/stat` is its status (proc(5), field 52).
fn zombie(pid: i32) -> Ended {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Ended::Unknown;
    };
    // The name in parentheses may hold anything; what follows the last one are plain words.
    let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    if words.next() != Some("Z") {
        return Ended::Unknown;
    }
    match words.next_back().and_then(|word| word.parse::<i32>().ok()) {
        Some(status) if status & 0x7f != 0 => Ended::Signal(status & 0x7f),
        Some(status) => Ended::Code((status >> 8) as u8),
        None => Ended::Unknown,
    }
}
