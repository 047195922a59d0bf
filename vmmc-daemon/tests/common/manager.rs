//! A stand-in for the service manager, by the documented protocol.

use super::{Daemon, eventually};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

pub const STORE: &[&str] = &["--fd-store", "1000"];

/// Keeps what it is told to keep, as systemd does with FileDescriptorStoreMax=.
pub struct Manager {
    pub dir: tempfile::TempDir,
    pub heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
pub struct Heard {
    pub store: BTreeMap<String, OwnedFd>,
    pub words: Vec<String>,
    pub watchdogs: u64,
    pub barriers: u64,
}

impl Manager {
    pub fn start() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let manager = Manager { dir, heard: heard.clone() };
        // Ends with the process: it owns nothing that outlives it.
        std::thread::spawn(move || {
            loop {
                let mut bytes = [0; 512];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let len = rustix::net::recvmsg(
                    &socket,
                    &mut [IoSliceMut::new(&mut bytes)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )
                .unwrap()
                .bytes;
                let mut fds = Vec::new();
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = item {
                        fds.extend(received);
                    }
                }
                let text = std::str::from_utf8(&bytes[..len]).unwrap();
                heard.lock().unwrap().take(text, fds);
            }
        });
        manager
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("notify")
    }

    pub fn names(&self) -> Vec<String> {
        self.heard.lock().unwrap().store.keys().cloned().collect()
    }

    pub fn hears(&self, word: &str) {
        eventually(word, || {
            self.heard.lock().unwrap().words.iter().any(|it| it == word).then_some(())
        });
    }
}

impl Heard {
    pub fn take(&mut self, text: &str, mut fds: Vec<OwnedFd>) {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        if field("FDSTORE=") == Some("1") {
            assert_eq!(field("FDPOLL="), Some("0"), "a client that hangs up would drop out");
            assert_eq!(fds.len(), 1);
            let old = self.store.insert(field("FDNAME=").unwrap().to_owned(), fds.remove(0));
            assert!(old.is_none(), "{text} twice");
        } else if field("FDSTOREREMOVE=") == Some("1") {
            assert!(self.store.remove(field("FDNAME=").unwrap()).is_some(), "{text}");
        } else if field("BARRIER=") == Some("1") {
            assert_eq!(fds.len(), 1); // closed here
            self.barriers += 1;
        } else if field("WATCHDOG=") == Some("1") {
            self.watchdogs += 1;
        } else {
            self.words.push(text.to_owned());
        }
    }
}

/// A listening socket as a socket unit makes it.
pub fn socket_unit(path: &Path) -> OwnedFd {
    let socket = vmmc::sys::packet::socket().unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket.into()
}

/// Starts the service as systemd does: the socket and what was stored, from descriptor 3 on.
pub fn start_service(
    manager: &Manager,
    dir: &Arc<tempfile::TempDir>,
    socket: &OwnedFd,
    arguments: &[&str],
    env: &[(&str, &str)],
) -> Daemon {
    // The store has no order; the socket is anywhere among them.
    let kept: Vec<(String, OwnedFd)> = {
        let heard = manager.heard.lock().unwrap();
        heard.store.iter().rev().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect()
    };
    let mut names: Vec<String> = kept.iter().map(|(name, _)| name.clone()).collect();
    let mut fds: Vec<i32> = kept.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    names.insert(names.len() / 2, "vmmcd.socket".to_owned());
    fds.insert(fds.len() / 2, socket.as_raw_fd());
    let count = fds.len();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_vmmcd"))
        .args(arguments)
        .env("NOTIFY_SOCKET", manager.path())
        .env("LISTEN_FDS", count.to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if std::env::var_os("VMMC_LOG").is_none() {
        command.env("VMMC_LOG", "off");
    }
    // Where nothing is that is still to be copied.
    let aside = fds.iter().copied().max().unwrap_or(0).max(2 + count as i32) + 1;
    let place = move || {
        // SAFETY: numbers only; none of them is owned by anything that would close it.
        let put = |from, to| match unsafe { libc::dup2(from, to) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        };
        for (at, &fd) in (aside..).zip(&fds) {
            put(fd, at)?;
        }
        for i in 0..fds.len() as i32 {
            put(aside + i, 3 + i)?;
            // SAFETY: made above.
            unsafe { libc::close(aside + i) };
        }
        Ok(())
    };
    // SAFETY: system calls only between fork and exec; no memory is allocated.
    unsafe { command.pre_exec(place) };
    let child = command.spawn().unwrap();
    Daemon { child, path: dir.path().join("vmmcd.sock"), dir: dir.clone(), log: None }
}
