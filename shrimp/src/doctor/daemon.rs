//! The daemon, and our own files.

use super::Finding;
use crate::artefacts::{self, Artefact};
use crate::client::Daemon;
use crate::exit::Exit;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::connect::{self, SYSTEM_SOCKET};

const DAEMON: &str = "Daemon";
const FILES: &str = "Our files";

/// All findings about the daemon and the files, and the daemon, if one answers. Never starts a daemon.
pub(super) fn findings() -> (Vec<Finding>, Option<Daemon>) {
    let mut found = Vec::new();
    // Bad settings are reported with the settings.
    let config = Config::from_env().ok();
    let socket = match &config {
        Some(config) => connect::socket_path(config),
        None => std::env::var_os("VMMC_SOCKET")
            .map_or_else(connect::user_socket_path, std::path::PathBuf::from),
    };
    let why = if config.as_ref().is_some_and(|config| config.socket.is_some()) {
        "set by VMMC_SOCKET"
    } else if socket == Path::new(SYSTEM_SOCKET) {
        "the system-wide one"
    } else {
        "your own"
    };
    found.push(Finding::info(DAEMON, "socket", format!("{} ({why})", socket.display())));
    let (is_running, daemon) = running(&socket, config.as_ref());
    found.push(is_running);
    found.extend(directory(&socket));
    found.push(file(Artefact::Daemon));
    found.push(file(Artefact::Sockets));
    found.push(file(Artefact::Rpc));
    if let Some(preload) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        found.push(Finding::info(
            FILES,
            "LD_PRELOAD",
            format!("is set to {}; `shrimp exec` keeps it", preload.display()),
        ));
    }
    (found, daemon)
}

fn running(socket: &Path, config: Option<&Config>) -> (Finding, Option<Daemon>) {
    let what = "running";
    let mut daemon = match Daemon::connect(socket) {
        Ok(daemon) => daemon,
        Err(failure) if failure.exit() == Exit::NoDaemon => return (absent(socket, config), None),
        Err(failure) => {
            // Errors say behind a semicolon what is to be done; some, to ask here.
            let text = failure.to_string();
            let said =
                text.split_once("; ").filter(|(_, remedy)| !remedy.contains("shrimp doctor"));
            let (found, remedy) = said.unwrap_or((
                &text,
                "`shrimp daemon restart`; if that does not help, end the process that listens there and remove the socket",
            ));
            return (Finding::attention(DAEMON, what, found, remedy), None);
        }
    };
    let owner = daemon.owner().map_or(u32::MAX, |owner| owner.uid);
    let snapshot = match daemon.snapshot() {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let text = error.to_string();
            return (Finding::attention(DAEMON, what, text, "`shrimp daemon restart`"), None);
        }
    };
    let text = format!(
        "yes: vmmcd {}, process {}, user {owner}, {} clients, waking a process costs {}",
        snapshot.version,
        snapshot.pid,
        snapshot.clients.len(),
        crate::text::nanos(daemon.welcome.wake_cost_ns as f64)
    );
    // "vmmcd 0.1.0" and "0.1.0" are the same.
    let is_ours = snapshot.version.split_whitespace().any(|word| word == env!("CARGO_PKG_VERSION"));
    let finding = if is_ours {
        Finding::ok(DAEMON, what, text)
    } else {
        Finding::attention(
            DAEMON,
            what,
            format!("{text}; this shrimp is {}", env!("CARGO_PKG_VERSION")),
            "`shrimp daemon restart` replaces it without losing anything",
        )
    };
    (finding, Some(daemon))
}

fn absent(socket: &Path, config: Option<&Config>) -> Finding {
    let what = "running";
    let there = std::fs::symlink_metadata(socket);
    let never = config.is_some_and(|config| config.daemon == DaemonStart::Never);
    match there {
        Ok(meta) if !meta.file_type().is_socket() => Finding::attention(
            DAEMON,
            what,
            format!("no, and {} is not a socket", socket.display()),
            "remove it, or set VMMC_SOCKET to another path",
        ),
        Ok(_) if socket == Path::new(SYSTEM_SOCKET) && !rustix::process::geteuid().is_root() => {
            Finding::attention(
                DAEMON,
                what,
                "no, though the system-wide socket exists",
                "as root `systemctl start vmmcd` or `shrimp daemon start`, or set VMMC_SOCKET to use your own",
            )
        }
        _ if never => Finding::attention(
            DAEMON,
            what,
            "no, and VMMC_DAEMON=none forbids starting one",
            "`shrimp daemon start` without it, or unset VMMC_DAEMON",
        ),
        Ok(_) => Finding::info(
            DAEMON,
            what,
            "no; a stale socket file was left by one that was killed. Nothing to do: the next one replaces it",
        ),
        Err(_) => Finding::ok(DAEMON, what, "no; the first program that needs one starts it"),
    }
}

/// Somebody else's directory is the one thing that stops the automatic start for good.
fn directory(socket: &Path) -> Option<Finding> {
    let dir = socket.parent()?;
    let meta = std::fs::symlink_metadata(dir).ok()?;
    let us = rustix::process::geteuid().as_raw();
    let strange = meta.uid() != us && meta.uid() != 0;
    strange.then(|| {
        Finding::attention(
            DAEMON,
            "directory of the socket",
            format!("{} belongs to user {}, not to you ({us})", dir.display(), meta.uid()),
            "remove it (or have root do so), or set VMMC_SOCKET to a path in a directory of your own",
        )
    })
}

fn file(artefact: Artefact) -> Finding {
    match artefacts::find(artefact) {
        Ok(path) => Finding::ok(FILES, artefact.file_name(), path.display().to_string()),
        Err(error) => {
            let text = error.to_string();
            let (found, remedy) = text.split_once("; ").unwrap_or((&text, ""));
            let file = format!("{}: ", artefact.file_name());
            Finding::attention(FILES, artefact.file_name(), found.trim_start_matches(&file), remedy)
        }
    }
}
