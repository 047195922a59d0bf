//! A server that runs: of `tests/c`, or `examples/types_server.rs`.

use super::{Counted, Daemon, Mode, Process, Side, artefacts, finish, programs, watched};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Command;

/// A running server.
pub struct Server {
    pub process: Process,
    pub port: u16,
    pub udp: u16,
    dir: PathBuf,
}

impl Server {
    pub fn start(mode: Mode, waits: &str, side: Side, daemon: &Daemon) -> Server {
        Server::start_with(mode, waits, side, daemon, &[])
    }

    pub fn start_with(
        mode: Mode,
        waits: &str,
        side: Side,
        daemon: &Daemon,
        env: &[(&str, &str)],
    ) -> Server {
        Server::start_set(mode, waits, side, daemon, env, &[])
    }

    /// With an environment for the program, and settings for the library.
    pub fn start_set(
        mode: Mode,
        waits: &str,
        side: Side,
        daemon: &Daemon,
        env: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Server {
        let dir = programs(mode);
        let mut command = Command::new(dir.join("server"));
        command.arg(waits).envs(env.iter().copied());
        Server::of_process(Process::start_with(&mut command, side, daemon, settings), mode)
    }

    /// A server that says its ports; its clients are those of a mode.
    pub fn of_process(mut process: Process, mode: Mode) -> Server {
        let dir = programs(mode);
        let mut line = String::new();
        let mut stdout = BufReader::new(process.child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let mut ports = line.split_whitespace().map(|word| word.parse().unwrap());
        let (port, udp) = (ports.next().expect("no port"), ports.next().unwrap());
        Server { process, port, udp, dir }
    }

    /// A server that is given its listening socket as its standard input, as inetd does (`wait`).
    pub fn of_inetd(side: Side, daemon: &Daemon) -> Server {
        let dir = programs(Mode::Inetd);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut command = Command::new(dir.join("server"));
        command.stdin(std::os::fd::OwnedFd::from(socket));
        let process = Process::start_as(&mut command, side, daemon, &[]);
        Server { process, port, udp: 0, dir }
    }

    pub fn client_command(&self, case: &str, argument: &str) -> Command {
        let mut command = Command::new(self.dir.join("client"));
        command.arg(self.port.to_string()).arg(case).arg(argument);
        command
    }

    /// The same over UDP.
    pub fn udp_client_command(&self, case: &str, argument: &str) -> Command {
        let mut command = Command::new(self.dir.join("client"));
        command.arg(self.udp.to_string()).arg(case).arg(argument).env("CLIENT_UDP", "1");
        command
    }

    /// Runs one case to its end: its lines and what it counted.
    pub fn client(
        &self,
        case: &str,
        argument: &str,
        side: Side,
        daemon: &Daemon,
    ) -> (String, Counted) {
        let process = Process::start(&mut self.client_command(case, argument), side, daemon);
        finish(process, case)
    }

    /// Makes the server leave its loop; what it counted.
    pub fn quit(self, daemon: &Daemon) -> Counted {
        let (said, _) = self.client("quit", "", Side::Stock, daemon);
        assert_eq!(said, "quit 0\n");
        self.ended(true)
    }

    /// Waits for a server that was told to leave; what it counted.
    pub fn ended(self, well: bool) -> Counted {
        let mut process = self.process;
        let mut child =
            std::mem::replace(&mut process.child, Command::new("true").spawn().unwrap());
        let ended = watched("a server that was told to leave", move || child.wait().unwrap());
        assert_eq!(ended.success(), well, "server: {ended}: {}", process.by_hand);
        process.counted()
    }
}

/// A server in Rust: `examples/types_server.rs`.
pub fn rust_server(daemon: &Daemon) -> Server {
    rust_server_with(daemon, &[])
}

/// The same, with settings.
pub fn rust_server_with(daemon: &Daemon, settings: &[(&str, &str)]) -> Server {
    let mut command = Command::new(artefacts().examples.join("types_server"));
    Server::of_process(Process::start_plain(&mut command, daemon, settings), Mode::Default)
}

/// Servers that have the library: one for each of these loops, which take part over UDP too, and one in Rust.
pub fn servers(daemon: &Daemon, loops: &[&'static str]) -> Vec<(&'static str, Server)> {
    let settings = [("VMMC_RPC_UDP", "on")];
    let c = |&waits: &&'static str| {
        let server = Server::start_set(Mode::Default, waits, Side::Ours, daemon, &[], &settings);
        (waits, server)
    };
    loops.iter().map(c).chain([("Rust", rust_server(daemon))]).collect()
}
