//! `c/hostile.c` with the stubs of its interface, under the sanitizers of the compiler.

use crate::common::Daemon;
use crate::{c_compiler, c_stubs_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles it.
pub fn compile(dir: &Path) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let interface = std::fs::read_to_string(package.join("idl/hostile.x")).expect("readable");
    c_stubs_of::generate(dir, "hostile", &interface);
    let mut sources = vec![package.join("c/hostile.c")];
    sources.extend(["codec", "client", "server"].map(|part| dir.join(format!("hostile_{part}.c"))));
    let sanitizers = ["-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    c_compiler::compile_with("hostile", &sources, dir, &sanitizers)
}

/// A command that runs it, at addresses that are the same each time where that may be asked for: see `c_stubs.rs`.
pub fn command(daemon: &Daemon, program: &Path, args: &[&str]) -> Command {
    let fixed = Command::new("setarch").args(["-R", "true"]).output();
    let mut command = if fixed.is_ok_and(|output| output.status.success()) {
        let mut command = Command::new("setarch");
        command.arg("-R").arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(args).env("VMMC_SOCKET", daemon.socket()).env("VMMC_DAEMON", "none");
    command.env("SHRIMP_RPC_CONNECT_MS", "20000");
    // What was freed is not kept for long: memory that is used does not grow by that.
    command.env("ASAN_OPTIONS", "quarantine_size_mb=1:detect_leaks=1");
    command
}
