//! Every message of the compiler, and the code it generates, as files to read.
//!
//! After a change: `UPDATE_GOLDEN=1 cargo test -p rpc-idl --test golden`, and read the difference.

use rpc_idl::{Options, RustOptions, Stubs, compile};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Files of a directory with this extension, in order.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the directory is part of the tree");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no {extension} files in {}", dir.display());
    files
}

/// Compares with the file, or writes it if `UPDATE_GOLDEN` is set.
fn compare(path: &Path, text: &str, differences: &mut Vec<String>) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).expect("the tree is writable");
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if expected != text {
        differences.push(format!("--- {} is now:\n{text}", path.display()));
    }
}

fn check(differences: &[String]) {
    assert!(
        differences.is_empty(),
        "{}\nIf that is what is wanted: UPDATE_GOLDEN=1 cargo test -p rpc-idl --test golden",
        differences.join("\n")
    );
}

/// The files with errors, and what is reported of each.
fn reports() -> Vec<(PathBuf, String)> {
    let report = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let compilation = compile(&name, &text, &Options::new());
        assert!(compilation.has_errors(), "{name} has errors");
        assert!(compilation.model().is_none(), "{name}: no model with errors");
        (path, compilation.render())
    };
    files(&golden().join("errors"), "x").into_iter().map(report).collect()
}

#[test]
fn errors_are_reported_as_in_their_golden_files() {
    let mut differences = Vec::new();
    for (path, report) in reports() {
        compare(&path.with_extension("txt"), &report, &mut differences);
    }
    check(&differences);
}

/// The codes that the sources can report.
fn codes(dir: &Path, codes: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("the sources are there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            self::codes(&path, codes);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        for constructor in ["Diagnostic::error(", "Diagnostic::warning("] {
            for (at, _) in text.match_indices(constructor) {
                let rest = text[at + constructor.len()..].trim_start();
                if let Some(literal) = rest.strip_prefix('"') {
                    codes.extend(literal.split('"').next().map(str::to_owned));
                }
            }
        }
    }
}

/// Codes that a small file cannot show; each has a test in `limits.rs` or in `format.rs`.
const ELSEWHERE: [&str; 3] = ["file-too-large", "too-many-tokens", "format-changes"];

#[test]
fn every_error_has_a_golden_file() {
    let mut known = BTreeSet::new();
    codes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut known);
    assert!(known.len() > 30, "the sources are searched: {known:?}");
    // Not read from the files, which the other test may be writing: it compares them.
    let shown: String = reports().into_iter().map(|(_, report)| report).collect();
    let missing: Vec<&String> = known
        .iter()
        .filter(|code| !ELSEWHERE.contains(&code.as_str()) && !shown.contains(&format!("[{code}]")))
        .collect();
    assert!(missing.is_empty(), "no golden file shows {missing:?}");
}

#[test]
fn generated_code_is_as_in_its_golden_files() {
    let mut differences = Vec::new();
    for path in files(&golden().join("generated"), "x") {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let compilation = compile(&name, &text, &Options::new());
        let model = compilation.model().unwrap_or_else(|| panic!("{}", compilation.render()));
        for (stubs, extension) in [(Stubs::Shrimp, "shrimp.rs"), (Stubs::SunRpc, "sunrpc.rs")] {
            let generated = rpc_idl::emit::rust::generate(model, &RustOptions::new(stubs), &name);
            compare(&path.with_extension(extension), &generated, &mut differences);
        }
        let stem = path.file_stem().expect("a file").to_string_lossy();
        let c = rpc_idl::emit::c::generate(model, &stem);
        let parts =
            [("h", c.header), ("codec.c", c.codec), ("client.c", c.client), ("server.c", c.server)];
        for (extension, generated) in parts {
            compare(&path.with_extension(extension), &generated, &mut differences);
        }
    }
    check(&differences);
}
