//! Cargo, for tests that need programs and libraries of other packages as files.
#![allow(unreachable_pub)] // each test file has it for itself

use std::path::PathBuf;
use std::process::Command;

/// Cargo with the environment of whoever started the tests. What it tells a test of its package is left out:
/// build scripts that look at that (`ring`'s does) would run again, and all that depends on them be built again.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME", "OUT_DIR"];
    for (name, _) in std::env::vars_os() {
        if of_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// What is built with packages of the workspace by itself, so that its features are those of the whole: `benches`
/// asks for most of what is shared.
const AS_IN_THE_WORKSPACE: [&str; 4] = ["-p", "vmmc-daemon", "-p", "benches"];

/// Set by who has built all packages of the workspace, with examples, and starts tests: nothing is built again, which
/// by a selection of packages has other features.
const ALL_BUILT: &str = "VMMC_TEST_ALL_BUILT";

/// Where what is built of the profile that the tests have lies.
pub fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    test.ancestors().nth(2).expect("target directory").to_owned()
}

/// Builds these packages (`-p` and what else cargo is to be told), and vmmcd beside them, if they are not up to date, and
/// says where they are: `cargo test` of one package builds none of them as a file to run.
pub fn build(packages: &[&str]) -> PathBuf {
    let profile = profile();
    if std::env::var_os(ALL_BUILT).is_some() {
        return profile;
    }
    let mut cargo = cargo();
    cargo.args(["build", "--quiet"]).args(packages).args(AS_IN_THE_WORKSPACE);
    cargo.arg("--target-dir").arg(profile.parent().expect("target directory"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success(), "cannot build: {cargo:?}");
    profile
}
