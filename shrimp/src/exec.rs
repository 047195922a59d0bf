//! `shrimp exec`: run a program with our libraries preloaded.
//!
//! The program *replaces* this process (`execve`), so its signals, exit code, process id,
//! terminal and descriptors are its own. Where nothing can be preloaded (a static program, another
//! word size, another C library, a set-user-id program) it is run all the same, plain, after a
//! warning: programs that it starts may still take part.

use crate::artefacts::{self, Artefact, ArtefactError};
use crate::elf::{self, Elf, Kind, SearchError};
use crate::exit::{Coded, Exit, Failure};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use vmmc::config::rules::{RuleError, Rules};
use vmmc::config::{Config, DaemonStart};
use vmmc::control::Connection;

/// Run a program over shared memory, unchanged
///
/// --sockets preloads libvmmc_sockets.so into PROG: TCP connections between two programs run this
/// way on one machine carry their bytes through shared memory. --rpc preloads libvrpc.so: Sun RPC
/// calls (libtirpc) between two such programs do. Every other connection and call, and every
/// program that nothing can be preloaded into, works as ever over the kernel's TCP.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Preload the sockets library (the default when neither is chosen)
    #[arg(long)]
    sockets: bool,
    /// Which connections may be upgraded; the first rule that holds decides [default: all may]
    #[arg(long = "rule", value_name = "RULE", value_parser = rule)]
    rules: Vec<String>,
    /// PROG uses io_uring for files and never for TCP sockets (MariaDB): it takes part all the same
    #[arg(long)]
    io_uring_files: bool,
    /// PROG gets no io_uring, as from a kernel without: one that does without (Node.js) takes part, which it cannot with a ring
    #[arg(long, conflicts_with = "io_uring_files")]
    no_io_uring: bool,
    /// Preload the Sun RPC library
    #[arg(long)]
    rpc: bool,
    /// Tell on standard error what is preloaded into what, or why nothing is
    #[arg(short = 'v', long, visible_alias = "explain")]
    verbose: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG ARGS"
    )]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  shrimp exec --sockets -- redis-server --port 7000
  shrimp exec --sockets -- redis-benchmark -p 7000 -c 1 -t get,set
  shrimp exec -v -- python3 -m http.server 8000
  shrimp exec --rpc -- ./my_rpc_server

  shrimp exec --io-uring-files -- mariadbd --user=mysql
  shrimp exec --no-io-uring -- node server.js

  shrimp exec --rule 'allow port=6379' --rule deny -- ./server
  shrimp exec --rule 'deny program=curl* address=10.0.0.0/8' -- ./script

A rule is \"allow\" or \"deny\" and any number of conditions, which must all hold:
  program=NAME       the program's name (* stands for any part); children have theirs
  port=N, port=N-M   port of either end
  address=IP[/BITS]  address of either end
  uid=N              user that the program runs as
A connection about which no rule decides may be upgraded. Rules go to the program and its children
as VMMC_SOCKETS_RULES, separated by semicolons.

Both ends must be run this way. `shrimp stat` shows which connections were upgraded, and why the
others were not. VMMC_SOCKETS=off and VMMC_RPC=off in the environment turn the libraries off;
VMMC_SPIN_US=0 makes every wait sleep at once, without polling.

If no daemon listens, one is started, and leaves when nobody has used it for a while.

Exit code: the program's own; 126 it cannot be run, 127 not found, 5 the library is missing.";

/// Why the program was not run.
#[derive(Debug, thiserror::Error)]
enum ExecError {
    #[error("{0:?} not found; give a path, or a name that is in PATH")]
    NotFound(PathBuf),
    #[error(
        "{0:?} is not an executable file; check its mode (chmod +x) and that it is no directory"
    )]
    NotExecutable(PathBuf),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("running {program:?}: {source}")]
    Exec { program: PathBuf, source: std::io::Error },
    #[error(
        "the library's path {0:?} contains a space or colon, at which the dynamic loader splits LD_PRELOAD; move it to another directory"
    )]
    LibraryPath(PathBuf),
}

impl Coded for ExecError {
    fn exit(&self) -> Exit {
        match self {
            ExecError::NotFound(_) => Exit::NotFound,
            ExecError::NotExecutable(_) => Exit::CannotRun,
            ExecError::LibraryPath(_) => Exit::Failed,
            ExecError::Rule(_) => Exit::Failed,
            ExecError::Exec { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::CannotRun,
            },
        }
    }
}

/// What preloading into a program comes to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It works.
    Preload,
    /// The program itself runs plain, and ignores `LD_PRELOAD` silently; its children may not.
    Ignored(String),
    /// The program runs plain, and its loader would complain about the library.
    Incompatible(String),
}

/// Runs the program; returns only when that fails.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Some((name, arguments)) = args.program.split_first() else { return Ok(()) };
    let program = elf::search(name).map_err(|error| match error {
        SearchError::NotFound => ExecError::NotFound(name.into()),
        SearchError::NotExecutable => ExecError::NotExecutable(name.into()),
    })?;
    let rules = rules(args)?;
    let chosen = Chosen { sockets: args.sockets || !args.rpc, rpc: args.rpc };
    let libraries = find_libraries(chosen, args.verbose)?;
    let verdict = judge(&program, 0);
    let mut command = std::process::Command::new(&program);
    command.arg0(name).args(arguments);
    match &verdict {
        Verdict::Preload | Verdict::Ignored(_) => {
            let inherited = std::env::var_os("LD_PRELOAD").unwrap_or_default();
            let value = preload_value(&libraries, &inherited, sanitizer(&program).as_deref())?;
            if args.verbose {
                say!("shrimp exec: {}: LD_PRELOAD={}", program.display(), value.display());
            }
            command.env("LD_PRELOAD", value);
            // The program may start others in another directory.
            if let Some(socket) = Config::from_env().ok().and_then(|config| config.socket) {
                command.env("VMMC_SOCKET", socket);
            }
            if let Some(rules) = rules {
                command.env("VMMC_SOCKETS_RULES", rules);
            }
            if args.io_uring_files {
                command.env("VMMC_SOCKETS_IO_URING", "files");
            }
            if args.no_io_uring {
                command.env("VMMC_SOCKETS_IO_URING", "refused");
            }
            ensure_daemon(chosen, args.verbose);
        }
        Verdict::Incompatible(_) => {}
    }
    if let Verdict::Ignored(why) | Verdict::Incompatible(why) = &verdict {
        say!("shrimp exec: warning: {}: {why}; it runs as plain", program.display());
    }
    Err(ExecError::Exec { source: command.exec(), program }.into())
}

/// A rule as it was given, if it is one.
fn rule(text: &str) -> Result<String, RuleError> {
    text.parse::<Rules>().map(|_| text.to_owned())
}

/// The rules for the program, if they are other than what is in the environment already: those given
/// here go before.
fn rules(args: &Args) -> Result<Option<String>, ExecError> {
    let inherited = std::env::var("VMMC_SOCKETS_RULES").unwrap_or_default();
    inherited.parse::<Rules>()?;
    let all = args.rules.iter().map(String::as_str).chain([inherited.as_str()]);
    let all: Vec<&str> = all.filter(|rule| !rule.trim().is_empty()).collect();
    Ok((!args.rules.is_empty()).then(|| all.join("; ")))
}

/// The libraries to preload.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    sockets: bool,
    rpc: bool,
}

/// The libraries, absolute. In a source tree they are built if one is missing, and the daemon
/// that they will want to start with them.
fn find_libraries(chosen: Chosen, verbose: bool) -> Result<Vec<PathBuf>, ArtefactError> {
    let wanted = [(chosen.sockets, Artefact::Sockets), (chosen.rpc, Artefact::Rpc)];
    let libraries = wanted.iter().filter(|(chosen, _)| *chosen).map(|(_, artefact)| *artefact);
    let mut all: Vec<Artefact> = libraries.clone().collect();
    all.push(Artefact::Daemon);
    if let (Err(error), true) = (artefacts::find_or_build(&all, false), verbose) {
        say!("shrimp exec: {error}");
    }
    // Without a daemon program there may still be a daemon.
    libraries.map(artefacts::find).collect()
}

/// Starts the user's own daemon if none listens: a program cannot do that from inside a preloaded
/// library. Without one the program runs all the same, over plain TCP; a warning says so, unless
/// the user has chosen that (`VMMC_DAEMON=none`, `VMMC_SOCKETS=off`).
fn ensure_daemon(chosen_libraries: Chosen, verbose: bool) {
    let chosen = |config: &Config| config.daemon == DaemonStart::Never && !verbose;
    let failure = match Config::from_env() {
        Err(error) => error.to_string(),
        Ok(config)
            if (!chosen_libraries.sockets || !config.sockets)
                && (!chosen_libraries.rpc || !config.rpc) =>
        {
            return;
        }
        Ok(config) => match Connection::open(&config) {
            Ok(_) => return,
            Err(_) if chosen(&config) => return,
            Err(error) => error.to_string(),
        },
    };
    say!("shrimp exec: warning: {failure}; connections stay plain TCP");
}

/// Whether a library is the runtime of the address sanitizer, which ends every program that has another one before it.
fn is_sanitizer(library: &OsStr) -> bool {
    let name = Path::new(library).file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"libasan.") || name.starts_with(b"libclang_rt.asan")
}

/// The sanitizer's runtime that a program names.
fn sanitizer(program: &Path) -> Option<OsString> {
    match elf::inspect(program) {
        Ok(Kind::Dynamic(elf)) => elf.needed.into_iter().find(|name| is_sanitizer(name)),
        _ => None,
    }
}

/// `LD_PRELOAD` with our libraries in front of what is there already, once; only a sanitizer stays before them, or
/// comes there when the program names one.
fn preload_value(
    ours: &[PathBuf],
    existing: &OsStr,
    sanitizer: Option<&OsStr>,
) -> Result<OsString, ExecError> {
    let separator = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    if let Some(library) = ours.iter().find(|it| it.as_os_str().as_bytes().iter().any(separator)) {
        return Err(ExecError::LibraryPath(library.clone()));
    }
    let ours = ours.iter().map(|library| library.as_os_str());
    let items = existing.as_bytes().split(separator).filter(|item| !item.is_empty());
    let (mut first, behind): (Vec<&OsStr>, Vec<&OsStr>) = items
        .map(OsStr::from_bytes)
        .filter(|item| ours.clone().all(|library| library != *item))
        .partition(|item| is_sanitizer(item));
    if first.is_empty() {
        first.extend(sanitizer);
    }
    let all: Vec<&OsStr> = first.into_iter().chain(ours).chain(behind).collect();
    Ok(all.join(OsStr::new(":")))
}

/// Interpreters of interpreters, as deep as the kernel follows them.
const MAX_SCRIPT_DEPTH: u32 = 4;

fn judge(program: &Path, depth: u32) -> Verdict {
    if elf::is_privileged(program) {
        return Verdict::Ignored(
            "it gains privileges when run (set-user-id or capabilities), so the loader ignores LD_PRELOAD".into(),
        );
    }
    match elf::inspect(program) {
        // Executable but not readable: the loader decides.
        Err(_) => Verdict::Preload,
        Ok(Kind::Dynamic(elf)) => judge_dynamic(&elf),
        Ok(Kind::Static(_)) => {
            Verdict::Ignored("statically linked, so nothing can be preloaded".into())
        }
        Ok(Kind::Script(interpreter)) if depth < MAX_SCRIPT_DEPTH => {
            match judge(&interpreter, depth + 1) {
                Verdict::Preload => Verdict::Preload,
                Verdict::Ignored(why) => {
                    Verdict::Ignored(format!("its interpreter {}: {why}", interpreter.display()))
                }
                Verdict::Incompatible(why) => Verdict::Incompatible(format!(
                    "its interpreter {}: {why}",
                    interpreter.display()
                )),
            }
        }
        Ok(Kind::Script(_) | Kind::Unknown) => Verdict::Preload,
    }
}

/// Compares with this very program, which was built for the same machine as the library.
fn judge_dynamic(elf: &Elf) -> Verdict {
    let Ok(Kind::Dynamic(us)) = elf::inspect(Path::new("/proc/self/exe")) else {
        return Verdict::Preload;
    };
    if elf.bits != us.bits || elf.machine != us.machine {
        return Verdict::Incompatible(format!(
            "a {}-bit program for machine type {}, the library is {}-bit for {}",
            elf.bits, elf.machine, us.bits, us.machine
        ));
    }
    let name =
        |elf: &Elf| elf.interpreter.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
    if name(elf) != name(&us) {
        return Verdict::Incompatible(format!(
            "it uses another C library (loader {}, ours {})",
            elf.interpreter.as_deref().unwrap_or(Path::new("none")).display(),
            us.interpreter.as_deref().unwrap_or(Path::new("none")).display()
        ));
    }
    Verdict::Preload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_already_stays_behind_ours_and_ours_comes_once() {
        let ours = |path: &str| [PathBuf::from(path)];
        let value = |existing: &str| {
            preload_value(&ours("/lib/ours.so"), OsStr::new(existing), None).unwrap()
        };
        assert_eq!(value(""), "/lib/ours.so");
        assert_eq!(value("/a.so /b.so"), "/lib/ours.so:/a.so:/b.so");
        assert_eq!(value("/a.so:/lib/ours.so"), "/lib/ours.so:/a.so");
        assert!(preload_value(&ours("/my lib/ours.so"), OsStr::new(""), None).is_err());
        let two = ["/1.so".into(), "/2.so".into()];
        assert_eq!(
            preload_value(&two, OsStr::new("/2.so:/a.so"), None).unwrap(),
            "/1.so:/2.so:/a.so"
        );
    }

    #[test]
    fn a_sanitizers_runtime_comes_before_ours() {
        let value = |existing: &str, named: Option<&str>| {
            preload_value(&["/ours.so".into()], OsStr::new(existing), named.map(OsStr::new))
                .unwrap()
        };
        assert_eq!(value("/a.so:/lib/libasan.so.8", None), "/lib/libasan.so.8:/ours.so:/a.so");
        assert_eq!(value("/a.so", Some("libasan.so.8")), "libasan.so.8:/ours.so:/a.so");
        // Not twice.
        assert_eq!(value("/lib/libasan.so.8", Some("libasan.so.8")), "/lib/libasan.so.8:/ours.so");
    }

    #[test]
    fn another_word_size_and_another_c_library_are_incompatible() {
        let Ok(Kind::Dynamic(us)) = elf::inspect(Path::new("/proc/self/exe")) else {
            panic!("the test program is not dynamic")
        };
        assert_eq!(judge_dynamic(&us), Verdict::Preload);
        assert!(matches!(
            judge_dynamic(&Elf { bits: 32, ..us.clone() }),
            Verdict::Incompatible(why) if why.contains("32-bit")
        ));
        let musl = Elf { interpreter: Some("/lib/ld-musl-x86_64.so.1".into()), ..us };
        assert!(matches!(
            judge_dynamic(&musl),
            Verdict::Incompatible(why) if why.contains("another C library")
        ));
    }
}
