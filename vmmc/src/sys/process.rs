//! Who is at the other end of a socket, and does it live.

use super::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Credentials of a Unix socket's peer at the time it connected (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id in our pid namespace; 0 when it is not visible from here.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

fn sockopt<T: Copy>(socket: impl AsFd, name: libc::c_int, mut value: T) -> rustix::io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is a plain integer or C struct of `len` bytes that the kernel fills.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    };
    if rc == 0 { Ok(value) } else { Err(last_errno()) }
}

fn last_errno() -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
        .unwrap_or(rustix::io::Errno::INVAL)
}

/// Who connected, by the kernel's word.
///
/// # Errors
/// As getsockopt(2) `SO_PEERCRED`.
pub fn peer_credentials(socket: impl AsFd) -> rustix::io::Result<PeerCredentials> {
    let none = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let cred = sockopt(socket, libc::SO_PEERCRED, none)?;
    Ok(PeerCredentials { pid: cred.pid.max(0) as u32, uid: cred.uid, gid: cred.gid })
}

/// Supplementary groups of a Unix socket's peer when it connected (`SO_PEERGROUPS`).
///
/// # Errors
/// As getsockopt(2).
pub fn peer_groups(socket: impl AsFd) -> rustix::io::Result<Vec<u32>> {
    const SO_PEERGROUPS: libc::c_int = 59;
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` has `len` bytes for the kernel to fill.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        if rc == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let errno = last_errno();
        if errno != rustix::io::Errno::RANGE || count <= groups.len() {
            return Err(errno);
        }
        groups.resize(count, 0);
    }
}

/// A descriptor for the process at the other end of a Unix socket: readable when it has died.
/// Asks the socket (`SO_PEERPIDFD`, Linux 6.5), which cannot be fooled by a reused process id,
/// or opens `pid` on kernels that do not know that.
///
/// # Errors
/// As getsockopt(2) and pidfd_open(2); `ESRCH` when the process is gone already.
pub fn peer_pidfd(socket: impl AsFd, pid: u32) -> rustix::io::Result<Fd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    match sockopt(socket, SO_PEERPIDFD, -1 as libc::c_int) {
        // SAFETY: the kernel made this descriptor for us; nobody else owns it.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }.into()),
        // EINVAL: what older kernels say of a process that is gone. Its number may be another's by now.
        Ok(_) | Err(rustix::io::Errno::INVAL) => Err(rustix::io::Errno::SRCH),
        Err(errno) if errno != rustix::io::Errno::NOPROTOOPT => Err(errno),
        Err(_) => {
            let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH)?;
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map(Fd::from)
        }
    }
}

/// Whether the process of such a descriptor has ended. Until then its number is its own.
#[must_use]
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut ended, Some(&at_once))) != Ok(0)
}

/// Processors of the machine that are on line. Not those that this thread may use: a process pinned
/// to one of them still gains by polling while its peer runs on another.
#[must_use]
pub fn online_processors() -> usize {
    // SAFETY: sysconf(3) with a number; no pointers.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1).max(1)
}

/// File of the shared object (or program) that this code is linked into.
#[must_use]
pub fn library_path() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let here = library_path as *const libc::c_void;
    // SAFETY: an all-zero Dl_info is valid; dladdr fills it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `here` is an address in a loaded object; `info` is writable.
    let found = unsafe { libc::dladdr(here, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, alive as long as the object is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    Some(std::path::PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}
