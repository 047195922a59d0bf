//! What the descriptors must be that come with a request.

use crate::client::Attached;
use crate::descriptors;
use crate::doorbell::Doorbell;
use crate::receive::{Fds, Suspect};
use rustix::fs::{OFlags, SealFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use vmmc::control::message::{Refusal, Role};
use vmmc::layout;
use vmmc::sys::{Fd, memfd};

pub(super) const NO_SEGMENT: &str = "no descriptor came with the request";

fn bad_segment(why: impl std::fmt::Display) -> Refusal {
    Refusal::BadSegment { why: why.to_string() }
}

fn access_mode(fd: impl AsFd) -> OFlags {
    rustix::fs::fcntl_getfl(fd).map_or(OFlags::empty(), |flags| flags & OFlags::RWMODE)
}

/// A sealed, writable memory file of that length.
pub(super) fn segment_of(passed: Result<Suspect, Refusal>, len: u64) -> Result<Fd, Refusal> {
    let missing = || bad_segment(NO_SEGMENT);
    let passed = passed?;
    let fd = passed.look().ok_or_else(missing)?;
    memfd::verify(fd, len).map_err(bad_segment)?;
    if access_mode(fd) != OFlags::RDWR {
        return Err(bad_segment("the descriptor is not open for reading and writing"));
    }
    let fd = passed.keep().ok_or_else(missing)?;
    descriptors::enough(&fd)?;
    Ok(fd)
}

pub(super) fn cannot_reopen(what: &str, errno: rustix::io::Errno) -> String {
    let hint = match errno {
        rustix::io::Errno::NOENT => "; is /proc mounted where vmmcd runs?",
        rustix::io::Errno::ACCESS => "; vmmcd must run as the same user or as root",
        rustix::io::Errno::BUSY => "; its process has a lease on it (F_SETLEASE)",
        _ => "",
    };
    format!("open {what} anew ({errno}{hint})")
}

/// Checks the descriptors of a hello. The kinds are asked for before anything else: calls like
/// fstat(2) on a descriptor of a file system that a client runs could block.
pub(super) fn attach(role: Role, fds: &mut Fds) -> Result<Attached, Refusal> {
    const NO_PAGE: &str = "no process page came with hello";
    let no_page = || bad_segment(NO_PAGE);
    let passed = fds.need(NO_PAGE)?;
    let page = passed.look().ok_or_else(no_page)?;
    memfd::verify(page, layout::page::LEN as u64)
        .map_err(|error| bad_segment(format!("process page: {error}")))?;
    let seals = rustix::fs::fcntl_get_seals(page).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(bad_segment(
            "process page: others could write it (F_SEAL_FUTURE_WRITE missing)",
        ));
    }
    let page = memfd::reopen_read_only(page)
        .map_err(|errno| Refusal::Internal { why: cannot_reopen("the process page", errno) })?;
    let doorbell = match role {
        Role::Process => Some(Doorbell::of(fds.need("no doorbell came with hello")?)?),
        _ => None,
    };
    Ok(Attached { page: Arc::new(page), doorbell })
}
