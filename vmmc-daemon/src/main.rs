//! `vmmcd`: the broker as a program. Arguments only; the work is in the library.

use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use vmmc_daemon::listener::{ListenError, Listener};
use vmmc_daemon::policy::{Limits, PairUsers};
use vmmc_daemon::{Broker, Options, failpoint, notify, signals, wakecost};

/// Broker of protected memory mappings: makes them between the processes of this machine, and
/// destroys them. One per user, started by the first program that needs it, or one per machine, by
/// systemd. Never on the data path.
#[derive(Debug, Parser)]
#[command(name = "vmmcd", version, max_term_width = 100)]
struct Arguments {
    /// Where to listen [default: VMMC_SOCKET, else the user's own place]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Detach once listening, log to a file beside the socket, and end when idle. Succeeds at once if
    /// a daemon listens there already
    #[arg(long)]
    auto: bool,
    /// End after so many seconds without clients [default: never; 30 with --auto]
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// Take over from the running daemon, if there is one; its clients notice nothing
    #[arg(long)]
    replace: bool,
    /// How to write the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Longest export
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_export_bytes)]
    max_export_bytes: u64,
    /// Connected processes of one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().clients)]
    clients_per_user: u64,
    /// Exports of one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().exports)]
    exports_per_user: u64,
    /// Imports of one user, waiting ones included
    #[arg(long, value_name = "N", default_value_t = Limits::default().imports)]
    imports_per_user: u64,
    /// Bytes exported by one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().bytes)]
    bytes_per_user: u64,
    /// Ends of upgraded and waiting TCP connections of one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    connections_per_user: u64,
    /// Ring capacity of upgraded connections per direction, in KiB; a power of two from 16 to 4096
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = ring_kib)]
    ring_kib: u32,
    /// Which users' TCP connections may be upgraded to shared memory
    #[arg(long, value_enum, default_value_t = Pair::Same)]
    pair_users: Pair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pair {
    /// Both ends of one user, or root with anyone
    Same,
    /// Any two users
    Any,
}

fn ring_kib(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(kib) if kib.is_power_of_two() && (16..=4096).contains(&kib) => Ok(kib),
        _ => Err("must be a power of two from 16 to 4096".to_owned()),
    }
}

impl Arguments {
    fn socket(&self) -> PathBuf {
        let from_env = || std::env::var_os("VMMC_SOCKET").filter(|path| !path.is_empty());
        let path = self
            .socket
            .clone()
            .or_else(|| from_env().map(Into::into))
            .unwrap_or_else(vmmc::control::connect::user_socket_path);
        // The daemon does not stay in the directory it was started in.
        std::path::absolute(&path).unwrap_or(path)
    }

    fn options(&self) -> Options {
        let default_idle = self.auto.then_some(30);
        Options {
            limits: Limits {
                max_export_bytes: self.max_export_bytes,
                clients: self.clients_per_user,
                exports: self.exports_per_user,
                imports: self.imports_per_user,
                bytes: self.bytes_per_user,
                connections: self.connections_per_user,
                pair_users: match self.pair_users {
                    Pair::Same => PairUsers::Same,
                    Pair::Any => PairUsers::Any,
                },
            },
            ring_len: self.ring_kib * 1024,
            idle_exit: self.idle_exit.or(default_idle).map(Duration::from_secs),
            ..Options::default()
        }
    }

    fn start_log(&self) {
        let filter = EnvFilter::try_from_env("VMMC_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
        let builder =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_target(false).with_ansi(false).init(),
            LogFormat::Json => builder.json().init(),
        }
    }
}

/// How long `--auto` waits for another daemon that is starting or leaving.
const AUTO_PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("vmmcd: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    failpoint::arm_from_env().map_err(|name| {
        let known: Vec<&str> = failpoint::ALL.iter().map(|(name, _)| *name).collect();
        format!("VMMCD_FAILPOINT={name:?} is no failpoint; there are {}", known.join(", "))
    })?;
    let stop = signals::termination().map_err(|error| format!("signalfd: {error}"))?;
    raise_descriptor_limit();
    let listener = match notify::activated_socket()? {
        Some(socket) => Listener::from_activation(socket),
        None => match listen(&arguments.socket(), arguments.auto)? {
            Some(listener) => listener,
            None => return Ok(()), // another one listens
        },
    };
    if arguments.auto {
        let path = listener.path().map(Path::to_path_buf);
        if !detach(path.as_deref())? {
            return Ok(());
        }
    }
    arguments.start_log();
    let mut options = arguments.options();
    options.wake_cost = wakecost::measure();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        socket = ?listener.path(),
        wake_cost_us = options.wake_cost.as_micros() as u64,
        "serving"
    );
    let broker = Broker::new(listener, options, Some(stop)).map_err(|error| error.to_string())?;
    notify::send("READY=1");
    let ending = broker.run().map_err(|error| error.to_string())?;
    tracing::info!(?ending, "ended");
    notify::send("STOPPING=1");
    Ok(())
}

/// Listens; `None` when `auto` and another daemon does.
fn listen(path: &Path, auto: bool) -> Result<Option<Listener>, String> {
    let deadline = Instant::now() + AUTO_PATIENCE;
    loop {
        match Listener::bind(path) {
            Ok(listener) => return Ok(Some(listener)),
            Err(ListenError::AlreadyRunning { .. }) if auto => {
                // It listens, or is about to, or is leaving.
                match vmmc::control::Connection::open_existing(path) {
                    Ok(_) => return Ok(None),
                    Err(error) if Instant::now() >= deadline => return Err(error.to_string()),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Every export and link costs a descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const ENOUGH: u64 = 1 << 18;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(ENOUGH);
    // Root may raise the hard limit as well.
    let more = hard.max(ENOUGH);
    let raised = Rlimit { current: Some(more), maximum: Some(more) };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) });
    }
}

/// Goes on in a child of its own session, with the log in a file beside the socket. `false` in
/// the parent, which is done: the socket listens already.
fn detach(socket: Option<&Path>) -> Result<bool, String> {
    // SAFETY: the process has one thread, so the child may go on as if nothing had happened.
    match unsafe { libc::fork() } {
        -1 => return Err(format!("fork: {}", std::io::Error::last_os_error())),
        0 => {}
        _ => return Ok(false),
    }
    let fail = |what: &str, errno: rustix::io::Errno| format!("{what}: {errno}");
    rustix::process::setsid().map_err(|errno| fail("setsid", errno))?;
    rustix::process::chdir("/").map_err(|errno| fail("chdir", errno))?;
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdin(&null).map_err(|errno| fail("dup2", errno))?;
    rustix::stdio::dup2_stdout(&null).map_err(|errno| fail("dup2", errno))?;
    let log = socket.and_then(|socket| {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(socket.with_file_name("vmmcd.log"))
            .ok()
    });
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))
        .map_err(|errno| fail("dup2", errno))?;
    Ok(true)
}
