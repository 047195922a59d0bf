//! The daemon's socket.
//!
//! Several daemons may be started at the same moment, by clients that all found none. A lock file beside the
//! socket decides: who holds its `flock` owns the socket's name. The owner checks
//! what is there (a socket that answers: somebody listens without a lock; one that refuses: left over
//! by a crash, removed; not a socket: not ours, an error), binds and listens under another
//! name, and renames it into place. So a client never meets a socket that is bound but
//! does not listen yet, and never one with the wrong mode.
//!
//! Each start without a predecessor's state gets a number higher than all before it, the
//! *incarnation*: the time since the machine was booted, and more than the number in the lock
//! file, which covers starts in quick succession. The file is removed with the socket at an
//! orderly end.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vmmc::sys::{Fd, packet};

/// Most connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another daemon is there.
    #[error("another vmmcd serves {path:?}; use --replace to take over from it")]
    AlreadyRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The directory may be written by others.
    #[error(
        "directory {path:?} is not safe for a socket ({why}); use one that only you can write, or set VMMC_SOCKET"
    )]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Something that is no socket is in the way.
    #[error("{path:?} exists and is not a socket; remove it, or use another --socket")]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The path does not fit in a socket address.
    #[error("socket path {path:?} is too long (at most 100 bytes); use a shorter --socket")]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{call} {path:?}: {errno}")]
    System {
        /// Which.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// How.
        errno: Errno,
    },
}

fn system<'a>(call: &'static str, path: &'a Path) -> impl FnOnce(Errno) -> ListenError + 'a {
    move |errno| ListenError::System { call, path: path.into(), errno }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Fd,
    /// What to remove at the end; nothing for a socket of the service manager.
    pub(crate) name: Option<OwnedName>,
    pub(crate) incarnation: u64,
}

/// The socket's name in the file system, which this process owns.
#[derive(Debug)]
pub(crate) struct OwnedName {
    pub(crate) path: PathBuf,
    /// Locked for as long as it is open.
    pub(crate) lock: Fd,
    /// The socket's file as it was made, if that is known: a service manager puts its own in place of what is there.
    made: Option<(u64, u64)>,
}

impl OwnedName {
    /// The name of a socket that is there.
    pub(crate) fn new(path: PathBuf, lock: Fd) -> OwnedName {
        let made = identity(&path);
        OwnedName { path, lock, made }
    }

    /// Whether the file at `path`, where the socket was put, is still that one.
    fn is_ours(&self, path: &Path) -> bool {
        self.made.is_some() && identity(path) == self.made
    }
}

/// What tells a file from any other that is there.
fn identity(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Who may connect. What each may do then the broker decides, from the kernel's word on who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The daemon's user, and root.
    Owner,
    /// Every user of the machine.
    Everyone,
}

impl Audience {
    fn directory_mode(self) -> Mode {
        match self {
            Audience::Owner => Mode::RWXU,
            Audience::Everyone => Mode::from_raw_mode(0o755),
        }
    }

    fn socket_mode(self) -> Mode {
        match self {
            Audience::Owner => Mode::RUSR | Mode::WUSR,
            Audience::Everyone => Mode::from_raw_mode(0o666),
        }
    }
}

impl Listener {
    /// Takes the name `path` and listens there.
    ///
    /// # Errors
    /// See [`ListenError`]; [`ListenError::AlreadyRunning`] when another daemon has the name.
    pub fn bind(path: &Path, audience: Audience) -> Result<Listener, ListenError> {
        if path.as_os_str().len() > 100 {
            return Err(ListenError::TooLong { path: path.into() });
        }
        check_directory(
            path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new(".")),
            audience,
        )?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let incarnation = count_start(&lock).map_err(system("write the lock file of", path))?;
        let temporary = beside(path, ".new");
        let _ = rustix::fs::unlink(&temporary);
        let socket = packet::socket().map_err(system("make a socket for", path))?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(system("make a socket for", path))?;
        let address = SocketAddrUnix::new(&temporary).map_err(system("address", &temporary))?;
        rustix::net::bind(&socket, &address).map_err(system("bind", &temporary))?;
        rustix::fs::chmod(&temporary, audience.socket_mode())
            .map_err(system("chmod", &temporary))?;
        rustix::net::listen(&socket, BACKLOG).map_err(system("listen at", path))?;
        rustix::fs::rename(&temporary, path).map_err(system("rename", &temporary))?;
        Ok(Listener { socket, name: Some(OwnedName::new(path.into(), lock)), incarnation })
    }

    /// Uses a socket that listens already, of the service manager.
    #[must_use]
    pub fn from_activation(socket: Fd) -> Listener {
        // The service manager does not start services eight times a second.
        Listener { socket, name: None, incarnation: clock() }
    }

    /// Listens again, so that clients see this process as the socket's owner (`SO_PEERCRED` is
    /// that of the last listen(2)): after a fork or a takeover.
    ///
    /// # Errors
    /// As listen(2).
    pub fn adopt(&self) -> rustix::io::Result<()> {
        rustix::net::listen(&self.socket, BACKLOG)
    }

    /// Where clients find the socket, if it has a name of ours.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.name.as_ref().map(|name| name.path.as_path())
    }

    /// Takes the name away, so that new clients find no daemon. `false` when it is not ours.
    pub(crate) fn hide(&self) -> bool {
        self.name.as_ref().is_some_and(|name| {
            name.is_ours(&name.path)
                && rustix::fs::rename(&name.path, beside(&name.path, ".new")).is_ok()
        })
    }

    /// Puts the name back.
    pub(crate) fn show(&self) {
        if let Some(name) = &self.name
            && let Err(errno) = rustix::fs::rename(beside(&name.path, ".new"), &name.path)
        {
            tracing::error!(%errno, path = ?name.path, "cannot put the socket back");
        }
    }

    /// Removes the names.
    pub(crate) fn remove(self) {
        if let Some(name) = self.name {
            for path in [beside(&name.path, ".new"), name.path.clone()] {
                if name.is_ours(&path) {
                    let _ = rustix::fs::unlink(&path);
                }
            }
            // Last, and still locked: whoever waits for the lock finds that the file is gone.
            let _ = rustix::fs::unlink(beside(&name.path, ".lock"));
        }
    }
}

/// The socket's directory must not let others replace the socket. A missing one is made, for who may
/// connect.
fn check_directory(dir: &Path, audience: Audience) -> Result<(), ListenError> {
    let stat = match rustix::fs::stat(dir) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => {
            if let Some(parent) = dir.parent()
                && let Err(error) = std::fs::create_dir_all(parent)
            {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return Err(system("make directory", parent)(errno));
            }
            match rustix::fs::mkdir(dir, audience.directory_mode()) {
                // Whatever the mask of this process.
                Ok(()) => rustix::fs::chmod(dir, audience.directory_mode())
                    .map_err(system("chmod", dir))?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(system("make directory", dir)(errno)),
            }
            rustix::fs::stat(dir).map_err(system("look at", dir))?
        }
        Err(errno) => return Err(system("look at", dir)(errno)),
    };
    let unsafe_because = |why| Err(ListenError::UnsafeDirectory { path: dir.into(), why });
    let us = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return unsafe_because("not a directory");
    }
    if stat.st_uid != us && stat.st_uid != 0 {
        return unsafe_because("it belongs to another user");
    }
    if stat.st_mode & 0o022 != 0 && stat.st_mode & 0o1000 == 0 {
        return unsafe_because("other users can write in it");
    }
    Ok(())
}

fn lock(path: &Path) -> Result<Fd, ListenError> {
    let file = beside(path, ".lock");
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR)
            .map(Fd::from)
            .map_err(system("open", &file))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(ListenError::AlreadyRunning { path: path.into() });
            }
            Err(errno) => return Err(system("lock", &file)(errno)),
        }
        // The last owner may have removed the file between our open and our lock.
        let ours = rustix::fs::fstat(&lock).map_err(system("look at", &file))?;
        match rustix::fs::lstat(&file) {
            Ok(there) if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) => {
                return Ok(lock);
            }
            _ => {}
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(system("look at", path)(errno)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(ListenError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    let probe = packet::socket().map_err(system("make a socket for", path))?;
    let address =
        SocketAddrUnix::new(path.as_os_str().as_bytes()).map_err(system("address", path))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => {
            tracing::info!(?path, "removing the socket that a crashed daemon left");
            rustix::fs::unlink(path).map_err(system("remove", path))
        }
        Err(Errno::NOENT) => Ok(()),
        _ => Err(ListenError::AlreadyRunning { path: path.into() }),
    }
}

/// Highest incarnation: two more bits and a count of 32 bits fit into a `u64` with it.
const MAX_INCARNATION: u64 = (1 << 30) - 1;

/// Eighths of a second since the machine was booted, plus one: enough for four years.
fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let eighths = now.tv_sec as u64 * 8 + now.tv_nsec as u64 / 125_000_000;
    (eighths + 1).min(MAX_INCARNATION)
}

/// The next incarnation: the clock, but more than the one before, which it replaces in the file.
/// It is written over the old one at full width: to cut a file off first waits for the disk that
/// may be writing it, for seconds when the disk is busy.
fn count_start(lock: &Fd) -> rustix::io::Result<u64> {
    let mut text = [0u8; 20];
    let len = rustix::io::pread(lock, &mut text, 0)?;
    let before: u64 = std::str::from_utf8(text.get(..len).unwrap_or_default())
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let now = clock().max(before.saturating_add(1)).min(MAX_INCARNATION);
    rustix::io::pwrite(lock, format!("{now:<20}\n").as_bytes(), 0)?;
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_told_and_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.sock");
        let first = Listener::bind(&path, Audience::Owner).unwrap();
        let before = first.incarnation;
        assert!(before > 0);
        assert!(matches!(
            Listener::bind(&path, Audience::Owner),
            Err(ListenError::AlreadyRunning { .. })
        ));
        drop(first); // as a crash: the socket's file and the lock's stay
        let second = Listener::bind(&path, Audience::Owner).unwrap();
        assert!(second.incarnation > before, "also in quick succession");
        second.remove();
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "an orderly end leaves nothing"
        );
    }

    #[test]
    fn a_socket_that_took_the_place_of_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.sock");
        let listener = Listener::bind(&path, Audience::Owner).unwrap();
        // As systemd does, which unlinks what is in its socket's way.
        std::fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!listener.hide());
        listener.remove();
        assert!(path.exists());
    }

    #[test]
    fn what_is_not_a_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(
            Listener::bind(&path, Audience::Owner),
            Err(ListenError::NotASocket { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        rustix::fs::chmod(&open, Mode::from_raw_mode(0o777)).unwrap();
        let refused = Listener::bind(&open.join("d.sock"), Audience::Owner);
        assert!(matches!(refused, Err(ListenError::UnsafeDirectory { .. })));
    }

    #[test]
    fn the_directory_is_made_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/d.sock");
        let _listener = Listener::bind(&path, Audience::Owner).unwrap();
        let mode = |path: &Path| rustix::fs::stat(path).unwrap().st_mode & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn everyone_reaches_a_socket_for_everyone_and_only_its_owner_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/d.sock");
        let _listener = Listener::bind(&path, Audience::Everyone).unwrap();
        let mode = |path: &Path| rustix::fs::stat(path).unwrap().st_mode & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o755);
        assert_eq!(mode(&path), 0o666);
        assert_eq!(mode(&beside(&path, ".lock")), 0o600);
    }
}
