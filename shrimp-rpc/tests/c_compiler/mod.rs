//! Compiles C programs as a user would: against `include/` and `libshrimp_rpc.so`.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::Command;

/// This package.
pub fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `sources`, which find headers in `dir` too, to the program `dir/name`.
pub fn compile(name: &str, sources: &[PathBuf], dir: &Path) -> PathBuf {
    compile_with(name, sources, dir, &[])
}

/// The same, with more options.
pub fn compile_with(name: &str, sources: &[PathBuf], dir: &Path, more: &[&str]) -> PathBuf {
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(libraries.join("libshrimp_rpc.so").exists(), "no shared library in {libraries:?}");
    let program = dir.join(name);
    let status = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&program)
        .args(more)
        .args(sources)
        .arg("-I")
        .arg(dir)
        .arg("-I")
        .arg(package().join("../shrimp-rpc/include")) // another package's tests compile too
        .arg("-L")
        .arg(&libraries)
        .arg("-lshrimp_rpc")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .status()
        .expect("a C compiler: apt-get install gcc");
    assert!(status.success(), "{name} does not compile");
    program
}
