//! A daemon of the test's own, and what it says about connections.

use rustix::event::{PollFd, PollFlags, poll};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::control::Connection;
use vmmc::control::message::{
    ConnectionInfo, ConnectionState, Event, Hello, Request, Role, Snapshot,
};
use vmmc::id::RequestId;

/// The option with which a daemon serves whoever comes.
pub const ALL_USERS: &str = "--all-users";

/// A private daemon, killed at the end, with a connection to ask it.
pub struct Daemon {
    child: Child,
    pub path: PathBuf,
    tool: Connection,
    requests: u64,
    _dir: tempfile::TempDir,
    _cluster: Option<tempfile::TempDir>,
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with(&[], None)
    }

    /// One with more options.
    pub fn with(options: &[&str]) -> Daemon {
        Daemon::start_with(options, None)
    }

    /// One that carries connections, as to another node, to itself: both ends are its own.
    pub fn carrying(options: &[&str]) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            path
        };
        write("key", "5a".repeat(32));
        // Nobody else is given the port meanwhile: it was bound, and closed without a connection.
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let file = write(
            "cluster.toml",
            format!(
                "node = \"self\"\nlisten = \"{at}\"\nkey = \"key\"\n\
                 [streams]\nbetween-nodes = \"loopback\"\n[users]\nroot = true\n"
            ),
        );
        let cluster = ["--cluster", file.to_str().unwrap()];
        let mut daemon = Daemon::with(&[&cluster, options].concat());
        daemon._cluster = Some(dir);
        while std::net::TcpStream::connect(at).is_err() {
            assert!(daemon.child.try_wait().unwrap().is_none(), "the daemon ended at once");
        }
        daemon
    }

    /// One that is to die at a named point (`vmmc_daemon::failpoint`).
    pub fn dying_at(point: &str) -> Daemon {
        Daemon::start_with(&[], Some(point))
    }

    /// Whether it ends. Who has seen its connection go has not seen it dead yet.
    pub fn dies(&mut self) -> bool {
        let deadline = Instant::now() + super::WATCHDOG;
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    fn start_with(options: &[&str], point: Option<&str>) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmmcd.sock");
        if options.contains(&ALL_USERS) {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut child = super::without_settings(Command::new(&super::artefacts().daemon))
            .arg("--socket")
            .arg(&path)
            .args(options)
            .envs(point.map(|point| ("VMMCD_FAILPOINT", point)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + super::WATCHDOG;
        let tool = loop {
            assert!(child.try_wait().unwrap().is_none(), "the daemon ended at once");
            assert!(Instant::now() < deadline, "the daemon does not listen");
            match Connection::open_existing(&path) {
                Ok(tool) => break tool,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let hello = Hello { role: Role::Tool, program: "semantics".to_owned(), resume: None };
        tool.hello(hello, &[]).unwrap();
        Daemon { child, path, tool, requests: 0, _dir: dir, _cluster: None }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the daemon knows now.
    pub fn snapshot(&mut self) -> Snapshot {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.tool.send(&Request::Snapshot { request }, &[]).unwrap();
        poll(&mut [PollFd::new(&self.tool, PollFlags::IN)], None).unwrap();
        let mut incoming = self.tool.receive().unwrap();
        let Event::Listing { request: answered, len } = incoming.event else {
            panic!("the daemon answered {:?} to a request for a snapshot", incoming.event);
        };
        assert_eq!(answered, request);
        let fd = incoming.fds.take().unwrap();
        let mut bytes = vec![0; len as usize];
        let mut done = 0;
        while done < bytes.len() {
            let got = rustix::io::pread(&fd, &mut bytes[done..], done as u64).unwrap();
            assert!(got > 0, "the listing is shorter than announced");
            done += got;
        }
        vmmc::control::codec::decode(&bytes).unwrap()
    }

    /// Whether both ends of the connection have put bytes into their rings.
    ///
    /// # Errors
    /// How it stands instead.
    pub fn ring_carries(&mut self, cookie: u64) -> Result<(), String> {
        let connections = self.snapshot().connections;
        let one = upgraded(&connections, cookie)?;
        let other = connections.iter().find(|other| {
            other.local == one.remote && other.remote == one.local && other.cookie != cookie
        });
        match other {
            Some(other) if one.ring_bytes > 0 && other.ring_bytes > 0 => Ok(()),
            Some(other) => Err(format!("{} and {} ring bytes", one.ring_bytes, other.ring_bytes)),
            None => Err("paired, but its other end is not listed".to_owned()),
        }
    }

    /// Whether this end of the connection has.
    ///
    /// # Errors
    /// How it stands instead.
    pub fn ring_carries_of(&mut self, cookie: u64) -> Result<(), String> {
        match upgraded(&self.snapshot().connections, cookie)?.ring_bytes {
            0 => Err("no ring bytes".to_owned()),
            _ => Ok(()),
        }
    }
}

fn upgraded(connections: &[ConnectionInfo], cookie: u64) -> Result<&ConnectionInfo, String> {
    let Some(one) = connections.iter().find(|one| one.cookie == cookie) else {
        return Err("the daemon does not know it".to_owned());
    };
    match one.state {
        ConnectionState::Paired | ConnectionState::Carried => Ok(one),
        other => Err(format!("{other:?}")),
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
