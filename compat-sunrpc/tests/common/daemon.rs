//! A daemon of the test's own.

use rustix::process::{Pid, Signal};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::control::Connection;

/// A private daemon, killed at the end; or one that somebody else has started.
pub struct Daemon {
    child: Option<Child>,
    pub path: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Daemon {
    pub fn start() -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmmcd.sock");
        let mut child = Command::new(&super::artefacts().daemon)
            .arg("--socket")
            .arg(&path)
            .env("VMMC_PAIR_MS", super::PAIR_MS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + super::WATCHDOG;
        while Connection::open_existing(&path).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the daemon ended at once");
            assert!(Instant::now() < deadline, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        Daemon { child: Some(child), path, _dir: Some(dir) }
    }

    /// Stops it in the middle of what it does.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().unwrap());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// One that listens already.
    pub fn of_another(path: PathBuf) -> Daemon {
        Daemon { child: None, path, _dir: None }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
