//! Finding `vmmcd` and the libraries to preload, and building them in a source tree.
//!
//! They are installed beside `shrimp` (or, for tests and examples, one directory up). A plain
//! `cargo run -p shrimp` builds only `shrimp`; then the missing ones are built here, once, by the
//! cargo that built us.

use crate::exit::{Coded, Exit};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file that belongs to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Artefact {
    /// The daemon.
    Daemon,
    /// The library that `exec --sockets` preloads.
    Sockets,
    /// The library that NX programs are linked with.
    Nx,
    /// The library that `exec --rpc` preloads.
    Rpc,
    /// What `perf rpc` measures beside ours.
    RpcPeers,
}

impl Artefact {
    /// Its file name.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Artefact::Daemon => "vmmcd",
            Artefact::Sockets => "libvmmc_sockets.so",
            Artefact::Nx => "libnx.so",
            Artefact::Rpc => "libvrpc.so",
            Artefact::RpcPeers => "rpc-peers",
        }
    }

    /// The package that builds it.
    fn package(self) -> &'static str {
        match self {
            Artefact::Daemon => "vmmc-daemon",
            Artefact::Sockets => "compat-sockets",
            Artefact::Nx => "compat-nx",
            Artefact::Rpc => "compat-sunrpc",
            Artefact::RpcPeers => "benches",
        }
    }
}

/// Why a file of ours is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtefactError {
    /// Not where it should be, and not a source tree.
    #[error(
        "{name} not found (looked at {looked:?}); put it beside shrimp, or in the source tree run `cargo build --release -p {package}`"
    )]
    Missing { name: &'static str, package: &'static str, looked: Vec<PathBuf> },
    /// Nobody knows where it should be.
    #[error(
        "{name}: not found, because shrimp cannot find out where it is itself ({error}); mount /proc"
    )]
    Lost { name: &'static str, error: std::io::Error },
    /// The build did not work.
    #[error("`{command}` failed ({reason}); run it by hand in {root:?} to see why, then try again")]
    Build { command: String, reason: String, root: PathBuf },
}

impl Coded for ArtefactError {
    fn exit(&self) -> Exit {
        Exit::Missing
    }
}

/// Where the file may be, best first.
pub(crate) fn candidates(artefact: Artefact) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(program) = std::env::current_exe() {
        for dir in program.ancestors().skip(1).take(2) {
            found.push(dir.join(artefact.file_name()));
        }
        // An installed tree: bin/shrimp and lib/libvmmc_sockets.so, lib/libvrpc.so.
        if artefact != Artefact::Daemon
            && let Some(prefix) = program.ancestors().nth(2)
        {
            found.push(prefix.join("lib").join(artefact.file_name()));
        }
    }
    if artefact == Artefact::Daemon {
        let path = std::env::var_os("PATH").unwrap_or_default();
        found.extend(std::env::split_paths(&path).map(|dir| dir.join(artefact.file_name())));
    }
    found
}

/// The file, if it is there.
pub(crate) fn find(artefact: Artefact) -> Result<PathBuf, ArtefactError> {
    let looked = candidates(artefact);
    match (looked.iter().find(|path| path.is_file()), std::env::current_exe()) {
        (Some(path), _) => Ok(path.clone()),
        (None, Err(error)) => Err(ArtefactError::Lost { name: artefact.file_name(), error }),
        (None, Ok(_)) => Err(ArtefactError::Missing {
            name: artefact.file_name(),
            package: artefact.package(),
            looked,
        }),
    }
}

/// The file, built first if we run from a cargo target directory and it is missing. With
/// `refresh`, and under `cargo run`, cargo is asked in any case whether it is up to date: a
/// stale library beside a fresh `shrimp` would be confusing.
pub(crate) fn find_or_build(
    artefacts: &[Artefact],
    refresh: bool,
) -> Result<Vec<PathBuf>, ArtefactError> {
    let all = |artefacts: &[Artefact]| artefacts.iter().map(|&a| find(a)).collect();
    let found: Result<Vec<_>, _> = all(artefacts);
    let under_cargo = std::env::var_os("CARGO").is_some();
    match (&found, CargoTree::of_running_program()) {
        (Err(_), Some(tree)) => tree.build(artefacts)?,
        (Ok(_), Some(tree)) if refresh && under_cargo => tree.build(artefacts)?,
        _ => return found,
    }
    all(artefacts)
}

/// The source tree whose target directory we run from.
#[derive(Debug)]
pub(crate) struct CargoTree {
    /// The workspace.
    pub(crate) root: PathBuf,
    target: PathBuf,
    release: bool,
}

impl CargoTree {
    /// `TARGET/release/shrimp` or `TARGET/debug/shrimp` of a tree that has our packages.
    pub(crate) fn of_running_program() -> Option<CargoTree> {
        CargoTree::of(&std::env::current_exe().ok()?)
    }

    fn of(program: &Path) -> Option<CargoTree> {
        let profile = program.parent()?;
        let release = match profile.file_name()?.to_str()? {
            "release" => true,
            "debug" => false,
            _ => return None,
        };
        if !profile.join(".fingerprint").is_dir() {
            return None;
        }
        let target = profile.parent()?;
        // The target directory may be outside the tree; `cargo run` tells where the tree is.
        let told = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = profile
            .ancestors()
            .chain(told.iter().flat_map(|dir| dir.ancestors()))
            .find(|dir| dir.join("vmmc-daemon/Cargo.toml").is_file())?;
        Some(CargoTree { root: root.to_owned(), target: target.to_owned(), release })
    }

    fn build(&self, artefacts: &[Artefact]) -> Result<(), ArtefactError> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(&cargo);
        command.arg("build");
        if self.release {
            command.arg("--release");
        }
        let mut shown = format!("cargo build{}", if self.release { " --release" } else { "" });
        for artefact in artefacts {
            command.args(["-p", artefact.package()]);
            shown += &format!(" -p {}", artefact.package());
        }
        // Cargo's own progress goes to standard error; our standard output stays ours. What
        // cargo set for running us would make the build differ from a build by hand.
        command
            .arg("--target-dir")
            .arg(&self.target)
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        say!("shrimp: making sure that {} are built: {shown}", names(artefacts));
        let failed = |reason: String| ArtefactError::Build {
            command: shown.clone(),
            reason,
            root: self.root.clone(),
        };
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(status.to_string())),
            Err(error) => Err(failed(format!("{}: {error}", cargo.display()))),
        }
    }
}

fn names(artefacts: &[Artefact]) -> String {
    artefacts.iter().map(|artefact| artefact.file_name()).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outside_a_target_directory_has_no_tree() {
        assert!(CargoTree::of(Path::new("/usr/bin/shrimp")).is_none());
        assert!(CargoTree::of(Path::new("/nowhere/release/shrimp")).is_none());
    }

    #[test]
    fn what_is_missing_is_named_with_the_places_and_the_remedy() {
        let error = ArtefactError::Missing {
            name: "vmmcd",
            package: "vmmc-daemon",
            looked: vec!["/x/vmmcd".into()],
        };
        let text = error.to_string();
        assert!(text.contains("/x/vmmcd") && text.contains("cargo build --release -p vmmc-daemon"));
        assert_eq!(error.exit(), Exit::Missing);
    }
}
