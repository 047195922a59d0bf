//! `shrimp daemon`: start, stop, look at and replace vmmcd.
//!
//! A daemon started here stays until it is stopped, and writes its log to a file beside its
//! socket. It is started in the root directory, which it keeps no file system busy by; so what the user
//! named is made absolute before. One that takes over is started with the options of the one before
//! ([`Inherited`]), unless others are given.

use crate::artefacts::{self, Artefact};
use crate::client::{self, Daemon};
use crate::exit::{Coded, Context, Exit, Failure, Io};
use crate::text;
use clap::Subcommand;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::connect::{self, SYSTEM_SOCKET};

/// Start, stop, look at or replace the daemon
///
/// Nobody needs this for ordinary use: the first program that needs a daemon starts one, and it
/// leaves when idle. A daemon started here stays.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start one; does nothing if one runs
    Start(StartArgs),
    /// End the one that runs; upgraded connections and links that exist keep working
    Stop,
    /// Tell whether one runs, whose, which version
    Status,
    /// Start a new one that takes over clients and state from the running one (--replace), and its options unless others are given
    Restart(StartArgs),
    /// Show the end of its log
    Log {
        /// Lines
        #[arg(short = 'n', long, default_value_t = 50)]
        lines: usize,
        /// Go on showing what is added, until interrupted
        #[arg(short, long)]
        follow: bool,
    },
}

#[derive(Debug, Default, clap::Args)]
struct StartArgs {
    /// Options for vmmcd itself (see vmmcd --help)
    #[arg(last = true, value_name = "VMMCD OPTIONS")]
    options: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  shrimp daemon start
  shrimp daemon start -- --exports-per-user 100000 --ring-kib 256
  shrimp daemon status
  shrimp daemon restart          hands clients and state to a new vmmcd, with the same options
  VMMC_LOG=debug shrimp daemon restart; shrimp daemon log -f

The socket is VMMC_SOCKET, else the system-wide daemon's if there is one, else your own. Root's own is
the system-wide one: what root starts goes on as other users often (nginx's workers, a database). One
of root's at VMMC_SOCKET is root's alone, unless it is started with `-- --all-users`.
Exit code: 0, 1 it did not start or stop, 3 none is running (status, stop, log),
4 it refused or did not answer, 5 the program vmmcd is missing.";

/// Why the daemon is not as it was asked to be.
#[derive(Debug, thiserror::Error)]
enum DaemonError {
    #[error("{program:?} ended ({how}) before it listened at {socket:?}; its last words: {log}")]
    NotStarted { program: PathBuf, how: String, socket: PathBuf, log: String },
    #[error("VMMC_DAEMON=none forbids starting a daemon; unset it, or set it to a vmmcd program")]
    Forbidden,
    #[error(
        "the directory {dir:?} belongs to user {owner}, not to you ({us}); remove it, or set VMMC_SOCKET to a path in a directory of your own"
    )]
    UnsafeDirectory { dir: PathBuf, owner: u32, us: u32 },
    #[error(
        "no log at {0:?}: this daemon was started by hand, and writes to where it was told; `shrimp daemon restart` starts one that logs there"
    )]
    NoLog(PathBuf),
    #[error("the system-wide daemon is systemd's: use `systemctl restart vmmcd`")]
    Systemd,
}

impl Coded for DaemonError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Does what was asked.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let config = Config::from_env()?;
    let socket = connect::socket_path(&config);
    match &args.action {
        Action::Start(start) => {
            if let Ok(mut daemon) = Daemon::connect(&socket) {
                text::emit(&format!("already running: {}", describe(&mut daemon, &socket)?));
                return Ok(Exit::Ok);
            }
            launch(&config, &socket, start, false)?;
        }
        Action::Restart(start) => {
            if is_systemds(&socket) {
                return Err(DaemonError::Systemd.into());
            }
            let running = Daemon::connect(&socket).is_ok();
            launch(&config, &socket, start, running)?;
        }
        Action::Stop => {
            Daemon::connect(&socket)?.shut_down()?;
            text::emit(&format!("stopped the daemon at {}\n", socket.display()));
        }
        Action::Status => {
            let mut daemon = Daemon::connect(&socket)?;
            text::emit(&format!("running: {}", describe(&mut daemon, &socket)?));
        }
        Action::Log { lines, follow } => {
            // An old log is worth reading also when nothing runs: often it tells why.
            show_log(&connect::log_path(&socket), &socket, *lines, *follow)?;
        }
    }
    Ok(Exit::Ok)
}

/// Whether the daemon at `socket` is systemd's to start and end. One that was started otherwise holds a lock beside
/// its socket.
fn is_systemds(socket: &Path) -> bool {
    socket == Path::new(SYSTEM_SOCKET)
        && socket.exists()
        && !socket.with_extension("sock.lock").exists()
}

fn describe(daemon: &mut Daemon, socket: &Path) -> Result<String, Failure> {
    let owner = daemon.owner()?;
    let snapshot = daemon.snapshot()?;
    Ok(format!(
        "vmmcd {}, process {}, user {}, up {} s, {} clients, {}\n",
        snapshot.version,
        snapshot.pid,
        owner.uid,
        snapshot.uptime_s,
        snapshot.clients.len(),
        socket.display()
    ))
}

/// Starts a daemon and waits until it listens.
fn launch(config: &Config, socket: &Path, start: &StartArgs, replace: bool) -> Result<(), Failure> {
    let program = match &config.daemon {
        DaemonStart::Program(program) => program.clone(),
        DaemonStart::Never => return Err(DaemonError::Forbidden.into()),
        DaemonStart::Search => artefacts::find_or_build(&[Artefact::Daemon], false)?.swap_remove(0),
    };
    if config.socket.is_none() {
        own_directory(socket)?;
    }
    let log = connect::log_path(socket);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&log)
        .context(|| format!("opening the log {log:?}"))?;
    let begin = file.metadata().map_or(0, |meta| meta.len());
    let old = Daemon::connect(socket).ok();
    let inherited = match &old {
        Some(daemon) if replace => Inherited::of(daemon),
        _ => Inherited::default(),
    };
    let repeats = start.options.is_empty();
    let mut command = Command::new(&program);
    command.arg("--socket").arg(socket);
    if replace {
        command.arg("--replace");
    }
    if repeats {
        command.args(&inherited.options);
    } else {
        command.args(with_absolute_paths(&start.options, Path::new("")));
    }
    if let Some(cluster) = std::env::var_os(CLUSTER).filter(|path| !path.is_empty()) {
        command.env(CLUSTER, std::path::absolute(&cluster).unwrap_or_else(|_| cluster.into()));
    }
    command
        .env_remove("LD_PRELOAD")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file.try_clone().context(|| "the log".into())?)
        .stderr(file)
        // Of its own group: Ctrl-C in this terminal is not meant for it.
        .process_group(0);
    let old = old.and_then(|mut daemon| daemon.snapshot().ok()?.pid.into());
    let mut child = command.spawn().context(|| format!("starting {program:?}"))?;
    let mut ended = None;
    let mut daemon = loop {
        let daemon = client::wait_for(socket, || {
            ended = child.try_wait().ok().flatten();
            ended.is_none()
        });
        match daemon {
            Ok(mut daemon) => {
                // During a take-over the old one may answer first.
                let pid = daemon.snapshot().map(|snapshot| snapshot.pid);
                if old.is_none() || pid.ok() != old {
                    break daemon;
                }
                ended = child.try_wait().ok().flatten();
                if ended.is_none() {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            }
            Err(failure) if ended.is_none() => return Err(failure),
            Err(_) => {}
        }
        let how = ended.map_or_else(|| "unknown".into(), |status| status.to_string());
        let log = last_words(&log, begin, &how);
        return Err(DaemonError::NotStarted { program, how, socket: socket.into(), log }.into());
    };
    text::emit(&format!(
        "{}: {}log: {}\n",
        if replace { "replaced" } else { "started" },
        describe(&mut daemon, socket)?,
        log.display()
    ));
    text::emit(&inherited.told(repeats));
    Ok(())
}

/// Names the cluster file where no option does.
const CLUSTER: &str = "VMMC_CLUSTER";

/// What the daemon that is replaced was started with.
#[derive(Debug, Default)]
struct Inherited {
    /// Without what says where it listens, and how it was started.
    options: Vec<OsString>,
    /// Why they are not known.
    unknown: Option<String>,
}

impl Inherited {
    /// Asks the kernel who listens, and with what it was started. Of another user's process nothing is taken.
    fn of(daemon: &Daemon) -> Inherited {
        let unknown = |why: String| Inherited { unknown: Some(why), ..Inherited::default() };
        let (pid, uid) = match daemon.owner() {
            Ok(owner) => (owner.pid, owner.uid),
            Err(error) => return unknown(error.to_string()),
        };
        if uid != rustix::process::geteuid().as_raw() {
            return unknown(format!("process {pid} is user {uid}'s"));
        }
        let strings = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            let bytes = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
            Ok::<Vec<OsString>, String>(
                bytes
                    .split(|byte| *byte == 0)
                    .map(|part| OsStr::from_bytes(part).to_owned())
                    .collect(),
            )
        };
        let (mut words, environment) = match (strings("cmdline"), strings("environ")) {
            (Ok(words), Ok(environment)) => (words, environment),
            (Err(why), _) | (_, Err(why)) => return unknown(why),
        };
        words.pop(); // behind the last end of a string
        let place = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| "/".into());
        let mut words = repeated(words);
        if std::env::var_os(CLUSTER).is_some() {
            words = without(words.into_iter(), "--cluster", &[]); // the environment says which now
        }
        let mut options = with_absolute_paths(&words, &place);
        let names = |option: &OsString| option.as_bytes().starts_with(b"--cluster");
        let prefix = format!("{CLUSTER}=");
        let set = environment.iter().find_map(|it| it.as_bytes().strip_prefix(prefix.as_bytes()));
        if let Some(file) = set.filter(|file| !file.is_empty())
            && !options.iter().any(names)
            && std::env::var_os(CLUSTER).is_none()
        {
            options.extend(with_absolute_paths(
                &["--cluster".into(), OsStr::from_bytes(file).to_owned()],
                &place,
            ));
        }
        Inherited { options, unknown: None }
    }

    /// For people, if there is anything to be told.
    fn told(&self, repeats: bool) -> String {
        let options: Vec<String> =
            self.options.iter().map(|it| text::printable(&it.to_string_lossy())).collect();
        let options = options.join(" ");
        match (&self.unknown, repeats) {
            (Some(why), true) => {
                format!(
                    "options of the one before: not known ({why}); give them again if it had some\n"
                )
            }
            (None, true) if !options.is_empty() => {
                format!("options, as the one before had them: {options}\n")
            }
            (None, false) if !options.is_empty() => {
                format!(
                    "options of the one before, not repeated because others were given: {options}\n"
                )
            }
            _ => String::new(),
        }
    }
}

/// The options of a command line that hold for another daemon at the same place.
fn repeated(words: Vec<OsString>) -> Vec<OsString> {
    without(words.into_iter().skip(1), "--socket", &["--replace", "--auto"])
}

/// Words of a command line but for an option with its value, and for some without.
fn without(
    mut words: impl Iterator<Item = OsString>,
    valued: &str,
    flags: &[&str],
) -> Vec<OsString> {
    let mut left = Vec::new();
    while let Some(word) = words.next() {
        match word.as_bytes().strip_prefix(valued.as_bytes()) {
            Some(b"") => drop(words.next()),
            Some(rest) if rest.starts_with(b"=") => {}
            _ if flags.iter().any(|flag| word == *flag) => {}
            _ => left.push(word),
        }
    }
    left
}

/// Options with the paths in them seen from the directory `from`; from where this process is, if that is empty.
fn with_absolute_paths(options: &[OsString], from: &Path) -> Vec<OsString> {
    let absolute = |path: &[u8]| {
        let path = from.join(OsStr::from_bytes(path));
        std::path::absolute(&path).unwrap_or(path).into_os_string()
    };
    let mut is_path = false;
    let mut all = Vec::new();
    for option in options {
        let bytes = option.as_bytes();
        let names = std::mem::replace(&mut is_path, bytes == b"--cluster");
        all.push(match bytes.strip_prefix(b"--cluster=") {
            _ if names => absolute(bytes),
            Some(path) => {
                let mut option = OsString::from("--cluster=");
                option.push(absolute(path));
                option
            }
            None => option.clone(),
        });
    }
    all
}

/// What a daemon that ended has written, or why it could not.
fn last_words(log: &Path, begin: u64, how: &str) -> String {
    let said = tail(log, 5, begin).unwrap_or_default();
    if !said.is_empty() {
        return said.trim().to_owned();
    }
    let file = OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(log);
    match file.and_then(|mut file| writeln!(file, "shrimp daemon: vmmcd ended ({how})")) {
        Ok(()) => "none".to_owned(),
        Err(error) => format!("none, because its log {log:?} cannot be written ({error})"),
    }
}

/// Makes the directory of the user's own socket, 0700 (of the system-wide one, 0755), and refuses somebody else's.
fn own_directory(socket: &Path) -> Result<(), Failure> {
    let Some(dir) = socket.parent() else { return Ok(()) };
    DirBuilder::new()
        .recursive(true)
        .mode(if socket == Path::new(SYSTEM_SOCKET) { 0o755 } else { 0o700 })
        .create(dir)
        .context(|| format!("making the directory {dir:?}"))?;
    let meta = std::fs::symlink_metadata(dir).context(|| format!("looking at {dir:?}"))?;
    let us = rustix::process::geteuid().as_raw();
    if meta.uid() != us || !meta.is_dir() {
        return Err(DaemonError::UnsafeDirectory { dir: dir.into(), owner: meta.uid(), us }.into());
    }
    Ok(())
}

fn show_log(log: &Path, socket: &Path, lines: usize, follow: bool) -> Result<(), Failure> {
    if is_systemds(socket) {
        let mut command = Command::new("journalctl");
        command.args(["--unit", "vmmcd", "--lines"]).arg(lines.to_string());
        if follow {
            command.arg("--follow");
        }
        return Err(command.exec()).context(|| "running journalctl".into()).map_err(Failure::from);
    }
    if !log.exists() {
        // Tell apart "no daemon" and "a daemon without a log".
        Daemon::connect(socket)?;
        return Err(DaemonError::NoLog(log.into()).into());
    }
    text::emit(&tail(log, lines, 0)?);
    let mut at = std::fs::metadata(log).map_or(0, |meta| meta.len());
    if !follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = std::fs::metadata(log).map_or(0, |meta| meta.len());
        if now > at {
            text::emit(&read_from(log, at)?);
            at = now;
        }
    }
}

/// Most of a log that is looked at for its last lines.
const TAIL_BYTES: u64 = 1 << 20;

/// The last `lines` lines after the first `from` bytes.
fn tail(log: &Path, lines: usize, from: u64) -> Result<String, Io> {
    let len = std::fs::metadata(log).map_or(0, |meta| meta.len());
    let text = read_from(log, from.max(len.saturating_sub(TAIL_BYTES)))?;
    let all: Vec<&str> = text.lines().collect();
    let kept = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    Ok(kept.iter().map(|line| format!("{line}\n")).collect())
}

fn read_from(log: &Path, at: u64) -> Result<String, Io> {
    let mut file = File::open(log).context(|| format!("opening the log {log:?}"))?;
    file.seek(SeekFrom::Start(at)).context(|| format!("reading the log {log:?}"))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).context(|| format!("reading the log {log:?}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predecessors_options_are_repeated_without_its_place_and_with_paths_seen_from_there() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let options = repeated(words(
            "vmmcd --socket /s --auto --replace --socket=/t --cluster c.toml --cluster=/d --pair-users any",
        ));
        assert_eq!(options, words("--cluster c.toml --cluster=/d --pair-users any"));
        assert_eq!(
            with_absolute_paths(&options, Path::new("/there")),
            words("--cluster /there/c.toml --cluster=/d --pair-users any")
        );
    }
}
