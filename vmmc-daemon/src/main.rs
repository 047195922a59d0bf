//! `vmmcd`: the broker as a program. Arguments only; the work is in the library.
#![deny(unsafe_code)]

use clap::{Parser, ValueEnum};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use vmmc::control::connect::SYSTEM_SOCKET;
use vmmc::sys::{activation, fork, signal};
use vmmc_daemon::handover::store;
use vmmc_daemon::handover::{self, Inherited, TakeOverError};
use vmmc_daemon::listener::{Audience, ListenError, Listener};
use vmmc_daemon::net::StartError;
use vmmc_daemon::net::cluster::Cluster;
use vmmc_daemon::net::entrance::Entrance;
use vmmc_daemon::policy::{Limits, PairUsers};
use vmmc_daemon::{Broker, Ending, Options, descriptors, failpoint, net, notify, pump, wakecost};

/// Broker of protected memory mappings: makes them between the processes of this machine, and
/// destroys them. One per user, started by the first program that needs it, or one per machine, by
/// systemd. Never on the data path.
#[derive(Debug, Parser)]
#[command(name = "vmmcd", version, max_term_width = 100)]
struct Arguments {
    /// Where to listen [default: VMMC_SOCKET, else the user's own place, which is the system-wide one for root]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let every user connect; what each may do is decided from who it is [default: at the system-wide place]
    #[arg(long)]
    all_users: bool,
    /// Detach once listening, log to a file beside the socket, and end when idle. Succeeds at once if
    /// a daemon listens there already
    #[arg(long)]
    auto: bool,
    /// End after so many seconds without clients [default: never; 30 with --auto]
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// Take over from the running daemon, if there is one; its clients notice nothing, but what they have with other nodes ends
    #[arg(long)]
    replace: bool,
    /// What a daemon that carries connections starts beside it ([`net::carry::guard`])
    #[arg(long, hide = true)]
    guard: bool,
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
    /// Imports of one user, waiting ones included, and those of processes of other nodes that are mapped to him
    #[arg(long, value_name = "N", default_value_t = Limits::default().imports)]
    imports_per_user: u64,
    /// Bytes exported by one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().bytes)]
    bytes_per_user: u64,
    /// Ends of upgraded and waiting TCP connections of one user
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    connections_per_user: u64,
    /// Ring capacity of upgraded connections per direction, in KiB; a power of two from 16 to 4096
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = ring_kib)]
    ring_kib: u32,
    /// Descriptors that the service manager keeps over a restart, as FileDescriptorStoreMax= of the
    /// unit [default: 0, or what systemd says in FDSTORE]
    #[arg(
        long,
        value_name = "N",
        env = "FDSTORE",
        default_value_t = 0,
        hide_env = true,
        hide_default_value = true
    )]
    fd_store: u32,
    /// Cluster file: this node's name, address and key, and the other nodes (see README.md, "Several
    /// machines"). Without it the daemon knows no other nodes
    #[arg(long, value_name = "FILE", env = "VMMC_CLUSTER", hide_env_values = true)]
    cluster: Option<PathBuf>,
    /// Upgrade connections between network namespaces (containers) too, where their packets prove them to be
    /// connections. Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN and CAP_SYS_PTRACE
    #[arg(long)]
    across_namespaces: bool,
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

    fn audience(&self, path: &Path) -> Audience {
        if self.all_users || path == Path::new(SYSTEM_SOCKET) {
            Audience::Everyone
        } else {
            Audience::Owner
        }
    }

    /// `pair` is a setting of the environment.
    fn options(&self, pair: Duration) -> Options {
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
            pair,
            ..Options::default()
        }
    }

    fn start_log(&self) {
        let filter = EnvFilter::try_from_env("VMMC_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
        // A line that cannot be written (a full disk, a reader that has gone) is lost. Told of that on the same
        // standard error, the daemon would panic.
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => builder.with_target(false).with_ansi(false).init(),
            LogFormat::Json => builder.json().init(),
        }
    }
}

/// A line on standard error, whether or not it can be written there: `eprintln!` panics where it cannot.
fn say(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "vmmcd: {what}");
}

/// How long `--auto` waits for another daemon that is starting or leaving.
const AUTO_PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.guard {
        return net::carry::guard::run().map_err(|error| format!("guard: {error}"));
    }
    failpoint::arm_from_env().map_err(|value| {
        let known: Vec<&str> = failpoint::ALL.iter().map(|(name, _)| *name).collect();
        format!(
            "VMMCD_FAILPOINT={value:?} is no failpoint; there are {}, each also with :stop or :stop:N",
            known.join(", ")
        )
    })?;
    if arguments.auto {
        // What else its starter has open (a launcher's pipes) is to end when the starter does.
        vmmc::sys::fd::close_inherited();
        // The starter reports what becomes of the daemon; the daemon goes on alone.
        let (outcome, report) = std::io::pipe().map_err(|error| format!("pipe: {error}"))?;
        match fork::fork_single_threaded() {
            Err(error) => return Err(format!("fork: {error}")),
            Ok(fork::Side::Child) => drop(outcome),
            Ok(fork::Side::Parent) => {
                drop(report);
                return hear(outcome);
            }
        }
        let started = start(arguments).and_then(|started| {
            if let Some(started) = &started {
                detach(started.source.path().as_deref())?;
            }
            Ok(started)
        });
        return match started {
            Ok(started) => {
                let _ = (&report).write_all(LISTENS);
                drop(report);
                started.map_or(Ok(()), |started| serve(arguments, started))
            }
            Err(message) => {
                let _ = (&report).write_all(message.as_bytes());
                // Said by the starter.
                std::process::exit(1);
            }
        };
    }
    match start(arguments)? {
        Some(started) => serve(arguments, started),
        None => Ok(()), // another one listens
    }
}

/// What the daemon tells its starter when all is well.
const LISTENS: &[u8] = b"listens";

/// Waits for the daemon to listen, or to say why it does not.
fn hear(mut outcome: std::io::PipeReader) -> Result<(), String> {
    let mut said = Vec::new();
    let _ = outcome.read_to_end(&mut said);
    match said.as_slice() {
        LISTENS => Ok(()),
        [] => Err("the daemon died while it started".to_owned()),
        message => Err(String::from_utf8_lossy(message).into_owned()),
    }
}

/// A daemon that listens, or will have taken over, and does not serve yet.
struct Started {
    source: Source,
    stop: vmmc::sys::Fd,
    cluster: Option<Cluster>,
}

/// Gets a socket; `None` when there is nothing to do.
fn start(arguments: &Arguments) -> Result<Option<Started>, String> {
    let stop = signal::termination().map_err(|error| format!("signalfd: {error}"))?;
    descriptors::raise_limit();
    // A daemon that a client starts is not what the client's service manager waits for.
    if !arguments.auto {
        notify::Manager::from_env(arguments.fd_store).use_it();
    }
    // Before another daemon is asked for what it has: a file may be wrong, and a resolver slow.
    let cluster = arguments.cluster.as_deref().map(Cluster::read).transpose();
    let cluster = cluster.map_err(|error| error.to_string())?;
    Ok(find_source(arguments)?.map(|source| Started { source, stop, cluster }))
}

/// Serves until told to end.
fn serve(arguments: &Arguments, started: Started) -> Result<(), String> {
    let Started { source, stop, cluster } = started;
    arguments.start_log();
    let pair = match vmmc::Config::from_env() {
        Ok(config) => config.pair,
        Err(error) => {
            tracing::warn!(%error, "settings of the environment are ignored");
            Options::default().pair
        }
    };
    let mut options = arguments.options(pair);
    options.wake_cost = wakecost::measure();
    let wake_cost_us = options.wake_cost.as_micros() as u64;
    let took_over = matches!(source, Source::Predecessor(_));
    // What is wrong with the address is found while a predecessor can still go on.
    let node = cluster.map(|cluster| {
        let entrance = Entrance::new(&cluster, took_over)?;
        Ok((cluster, entrance))
    });
    let node = node.transpose().map_err(|error: StartError| error.to_string())?;
    let broker = match source {
        Source::Listener(listener) => Broker::new(listener, options, Some(stop)),
        Source::Predecessor(inherited) => {
            inherited.manager().inherit();
            let broker = Broker::inherit(*inherited, options, Some(stop));
            Ok(broker.map_err(|error| error.to_string())?)
        }
    };
    let mut broker = broker.map_err(|error| error.to_string())?;
    if let Some((cluster, entrance)) = node {
        let socket = broker.path().map(Path::to_path_buf).unwrap_or_else(|| arguments.socket());
        let network = net::start(cluster, entrance, socket).map_err(|error| error.to_string());
        let started = network
            .and_then(|network| broker.set_network(network).map_err(|error| error.to_string()));
        match started {
            // Nobody else has what was taken over.
            Err(error) if took_over => tracing::error!(error, "goes on without its cluster"),
            started => started?,
        }
    }
    if arguments.across_namespaces {
        broker.cross_namespaces().map_err(|error| error.to_string())?;
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        socket = ?broker.path(),
        wake_cost_us,
        took_over,
        "serving"
    );
    notify::send("READY=1");
    let ending = broker.run().map_err(|error| error.to_string())?;
    match ending {
        // The service goes on, in another process.
        Ending::HandedOver { successor } => {
            notify::send(&format!("MAINPID={successor}"));
            // To its clients the daemon lives on, and so must what it has begun.
            pump::wait_for_all();
        }
        // The service manager asked for the end, and has been told more than that.
        Ending::Stored => pump::wait_for_all(),
        _ => {
            notify::send("STOPPING=1");
            pump::end_all();
        }
    }
    Ok(())
}

/// Where the daemon starts from.
enum Source {
    /// With nothing but a socket.
    Listener(Listener),
    /// With everything that another daemon had.
    Predecessor(Box<Inherited>),
}

impl Source {
    fn path(&self) -> Option<PathBuf> {
        match self {
            Source::Listener(listener) => listener.path().map(Path::to_path_buf),
            Source::Predecessor(inherited) => inherited.socket_path(),
        }
    }
}

/// Where to start from; `None` when there is nothing to do.
fn find_source(arguments: &Arguments) -> Result<Option<Source>, String> {
    let passed = activation::take_passed()
        .map_err(|(raw, errno)| format!("descriptor {raw} was to be passed: {errno}"))?;
    let (stored, mut sockets): (Vec<_>, Vec<_>) = passed.into_iter().partition(store::is_stored);
    let socket = match sockets.pop().filter(|_| sockets.is_empty()) {
        Some(socket) => Some(notify::check_activated(socket.fd)?),
        None if sockets.is_empty() => None,
        None => return Err("several sockets were passed, expected exactly one".to_owned()),
    };
    if !stored.is_empty() {
        let listener = socket.as_ref().and_then(|socket| socket.try_clone().ok());
        match store::take_stored(stored, listener) {
            Ok(inherited) => return Ok(Some(Source::Predecessor(Box::new(inherited)))),
            Err(error) => say(&error),
        }
    }
    if let Some(socket) = socket {
        return Ok(Some(Source::Listener(Listener::from_activation(socket))));
    }
    let path = arguments.socket();
    if arguments.replace {
        match handover::take_over(&path) {
            Ok(inherited) => return Ok(Some(Source::Predecessor(Box::new(inherited)))),
            Err(TakeOverError::NoDaemon) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    // A daemon that died while it handed over may keep its lock for a moment.
    let patient = arguments.auto || arguments.replace;
    let audience = arguments.audience(&path);
    Ok(listen(&path, audience, patient, arguments.auto)?.map(Source::Listener))
}

/// Listens. Waits, if `patient`, for another daemon that is about to listen or to leave; `None` when
/// one listens and that will do.
fn listen(
    path: &Path,
    audience: Audience,
    patient: bool,
    other_will_do: bool,
) -> Result<Option<Listener>, String> {
    let deadline = Instant::now() + AUTO_PATIENCE;
    loop {
        match Listener::bind(path, audience) {
            Ok(listener) => return Ok(Some(listener)),
            Err(ListenError::AlreadyRunning { .. }) if patient && Instant::now() < deadline => {
                if other_will_do && vmmc::control::Connection::open_existing(path).is_ok() {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Leaves the starter's session and terminal; the log goes to a file beside the socket.
fn detach(socket: Option<&Path>) -> Result<(), String> {
    // Its starter may be bound to a processor; other clients are not.
    wakecost::use_all_processors();
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
        let path = vmmc::control::connect::log_path(socket);
        // A new file: to empty the old one would wait for a disk that may be writing it.
        let _ = std::fs::remove_file(&path);
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).ok()
    });
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))
        .map_err(|errno| fail("dup2", errno))?;
    Ok(())
}
