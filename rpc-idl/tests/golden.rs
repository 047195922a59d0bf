//! Every message of the compiler, and the code it generates, as files to read.
//!
//! After a change: `UPDATE_GOLDEN=1 cargo test -p rpc-idl --test golden`, and read the difference.

mod source_texts;

use rpc_idl::{Loader, Options, RustOptions, Stubs, compile, compile_with, format};
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

/// Finds what the files with errors include beside them.
struct Beside;

impl Loader for Beside {
    fn load(&self, name: &str, _: &str) -> Result<(String, String), String> {
        let path = golden().join("errors/included").join(name);
        let text = std::fs::read_to_string(path).map_err(|_| "not found".to_owned())?;
        Ok((name.to_owned(), text))
    }
}

/// Files with errors that are too large to keep, or about their size.
fn made() -> Vec<(&'static str, String)> {
    let mut macros = String::from("#define M0 a a a a a a a a a a\n");
    for n in 1..8 {
        macros += &format!("#define M{n} {}\n", format!("M{} ", n - 1).repeat(10));
    }
    vec![
        ("made_too_large", " ".repeat(rpc_idl::source::MAX_FILE + 1)),
        ("made_too_many_tokens", macros + "const A = 1; M7"),
        ("made_too_many_files", "#include \"empty.x\"\n".repeat(300)),
        ("made_too_many_errors", "struct s { nope x; };\n".repeat(3000)),
        ("made_macro", "const A = MACRO;".to_owned()),
        ("format_too_large", " ".repeat(rpc_idl::source::MAX_FILE + 1)),
        ("made_long_line", format!("struct s {{ {}itn x; }};", " ".repeat(1000))),
    ]
}

/// The files with errors, and what is reported of each.
fn reports() -> Vec<(PathBuf, String)> {
    let dir = golden().join("errors");
    let kept = files(&dir, "x").into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).expect("readable");
        (path, text)
    });
    let made = made().into_iter().map(|(name, text)| (dir.join(name).with_extension("x"), text));
    let report = |(path, text): (PathBuf, String)| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let report = if name.starts_with("format_") {
            format(&name, &text).expect_err("it cannot be formatted").to_string()
        } else {
            let mut options = Options::new();
            if name.starts_with("made_macro") {
                options.defines.push(("MACRO".to_owned(), "1 $".to_owned()));
            }
            let compilation = match name.starts_with("alone_") {
                true => compile(&name, &text, &options),
                false => compile_with(&name, &text, &options, &Beside),
            };
            assert!(compilation.has_errors(), "{name} has errors");
            assert!(compilation.model().is_none(), "{name}: no model with errors");
            compilation.render()
        };
        let report = match name.starts_with("made_too_many_errors") {
            true => report.rsplit("\n\n").next().expect("the end is there").to_owned(),
            false => report,
        };
        (path, report)
    };
    let drivers = (dir.join("drivers"), drivers());
    kept.chain(made).map(report).chain([drivers]).collect()
}

/// What a build script is told.
fn drivers() -> String {
    let builder = rpc_idl::Builder::types();
    let told = [
        builder.compile("no/such/file.x").map(drop),
        builder.clone().out_dir("no/such/dir").compile("no/such/file.x").map(drop),
        builder.out_dir("no/such/dir").compile(golden().join("generated/kv.x")).map(drop),
    ];
    told.into_iter().map(|told| format!("{}\n\n", told.expect_err("nothing can be done"))).collect()
}

#[test]
fn errors_are_reported_as_in_their_golden_files() {
    let mut differences = Vec::new();
    for (path, report) in reports() {
        compare(&path.with_extension("txt"), &report, &mut differences);
    }
    check(&differences);
}

/// Texts that no report has.
const ELSEWHERE: [&str; 3] = [
    // Of what is told to cargo.
    "cargo::warning={}: {}",
    // The formatter looks at what it made, lest a fault of it change a file. It has none that anybody knows: see
    // `frontend.rs`, which tries it with random texts.
    "formatting would change this",
    "put the comment or the line for the preprocessor elsewhere",
];

#[test]
fn every_text_of_an_error_is_in_a_golden_file() {
    let mut known = BTreeSet::new();
    source_texts::find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut known);
    assert!(known.len() > 150, "the sources are searched: {known:?}");
    assert!(ELSEWHERE.iter().all(|text| known.contains(*text)), "one is gone");
    // Not read from the files, which the other test may be writing: it compares them.
    let shown: String = reports().into_iter().map(|(_, report)| report).collect();
    let lines: Vec<&str> = shown.lines().collect();
    let missing: Vec<&String> = known
        .iter()
        .filter(|text| !ELSEWHERE.contains(&text.as_str()) && !source_texts::is_shown(text, &lines))
        .collect();
    assert!(missing.is_empty(), "no golden file shows {missing:#?}");
}

#[test]
fn files_are_laid_out_as_in_their_golden_files() {
    let mut differences = Vec::new();
    for path in files(&golden().join("format"), "x") {
        let text = std::fs::read_to_string(&path).expect("readable");
        let laid_out = format("service.x", &text).expect("it can be formatted");
        assert_eq!(format("service.x", &laid_out).expect("still"), laid_out, "{path:?}");
        compare(&path.with_extension("txt"), &laid_out, &mut differences);
    }
    check(&differences);
}

#[test]
fn generated_code_is_as_in_its_golden_files() {
    let mut differences = Vec::new();
    // A small service, and every construct of the language.
    let everything =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../rpc-idl-tests/idl/everything.x");
    for source in files(&golden().join("generated"), "x").into_iter().chain([everything]) {
        let path = golden().join("generated").join(source.file_name().expect("a file"));
        let text = std::fs::read_to_string(&source).expect("readable");
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
