//! The documents say what the library is.

use std::collections::BTreeSet;

fn read(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// The plain name of a symbol.
fn call(symbol: &str) -> String {
    let name = symbol.trim_start_matches('_').trim_start_matches("nx32_");
    name.trim_end_matches('_').to_owned()
}

#[test]
fn every_exported_call_has_a_row_in_support_md() {
    let text = read("SUPPORT.md");
    let listed: BTreeSet<String> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .flat_map(|quoted| quoted.split(|byte: char| !byte.is_alphanumeric() && byte != '_'))
        .map(call)
        .collect();
    let symbols = read("symbols.txt");
    let missing: BTreeSet<String> = symbols
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(call)
        .filter(|name| !listed.contains(name))
        .collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
}

/// The table of what is unconfirmed has a row for each constant that decides something of it, and each is used.
#[test]
fn every_unconfirmed_constant_has_a_row_and_a_use() {
    let text = read("SUPPORT.md");
    let table = text.split("## What is unconfirmed").nth(1).expect("a section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let sources = sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let decided = read("src/unconfirmed.rs");
    let names = decided.lines().filter_map(|line| {
        let rest = line.strip_prefix("pub const fn ").or(line.strip_prefix("pub const "));
        let rest = rest.or(line.strip_prefix("pub fn "))?;
        rest.split(|byte: char| !byte.is_alphanumeric() && byte != '_').next()
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(table.contains(&format!("`{name}`")), "{name} has no row");
        assert!(sources.contains(name), "{name} decides nothing");
    }
}

/// All but what is declared there.
fn sources(dir: &std::path::Path) -> String {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: std::path::PathBuf| match path.is_dir() {
        true => sources(&path),
        false if path.ends_with("unconfirmed.rs") => String::new(),
        false => std::fs::read_to_string(path).unwrap(),
    };
    entries.map(text).collect()
}

#[test]
fn every_exported_call_of_c_is_declared() {
    let header = read("include/nx.h");
    let declared = |name: &str| {
        header.split(|byte: char| !byte.is_alphanumeric() && byte != '_').any(|word| word == name)
    };
    // Those of <sys/mman.h> are the C library's to declare.
    let listed = read("symbols.txt");
    let names = listed.lines().filter(|line| !line.starts_with(['#', '_']));
    for symbol in names.filter(|name| !["madvise", "mremap"].contains(name)) {
        let plain = symbol.trim_start_matches("nx32_");
        assert!(symbol.ends_with('_') || declared(plain) || declared(symbol), "{symbol}");
    }
}

#[test]
fn every_entry_of_fortran_is_called_by_a_program() {
    // A name with an underscore in front cannot be written in Fortran; it is there for C programs that pass all by reference.
    const NOT_OF_FORTRAN: &str = "_gopf_";
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fortran");
    let programs = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let programs = programs.chain([std::path::Path::new("examples/heat.f").to_owned()]);
    let text: String = programs
        .flat_map(|path| {
            let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
            // Of programs in fixed form, and of the table that others are made of.
            let comment: &[char] = if path.ends_with("bad.txt") { &['#'] } else { &['c', '*'] };
            let code = text.lines().filter(|line| !line.starts_with(comment)).map(str::to_owned);
            code.collect::<Vec<_>>()
        })
        .flat_map(|line| [line, "\n".to_owned()])
        .collect();
    let words: BTreeSet<&str> =
        text.split(|byte: char| !byte.is_alphanumeric() && byte != '_').collect();
    let missing: Vec<String> = read("symbols.txt")
        .lines()
        .filter(|symbol| symbol.ends_with('_') && *symbol != NOT_OF_FORTRAN)
        .map(|symbol| symbol.trim_end_matches('_').to_owned())
        .filter(|name| !words.contains(&name[..]))
        .collect();
    assert!(missing.is_empty(), "called by no program: {missing:?}");
}

/// Calls that no argument makes wrong: clocks, codes, what has no effect, what only reads `msginfo`, and
/// what other tests hold (nodes of this application, handlers on and off, ticks).
const CANNOT_FAIL: &[&str] = &["dclock", "mclock", "gray", "ginv", "led", "myphysnode", "mydirect"];

/// The names in `CASE(name`, and in the macros that stand for several cases of one call.
fn cases(file: &str) -> BTreeSet<String> {
    let text = read(file);
    let macros = ["CASE", "SENDS", "SEND", "RECVS", "XRECVS", "BOTH", "REDUCE", "FILES", "OFFS"];
    let names = macros.iter().flat_map(|name| {
        let call = format!("{name}(");
        let after = text.match_indices(&call).map(|(at, call)| &text[at + call.len()..]);
        after
            .map(|rest| rest.chars().take_while(char::is_ascii_alphanumeric).collect())
            .collect::<Vec<_>>()
    });
    names.filter(|name: &String| name != "name").collect()
}

#[test]
fn every_call_with_an_underscore_form_has_cases_of_bad_input() {
    let (bad, early) = (cases("tests/c/errors.c"), cases("tests/c/unstarted.c"));
    for symbol in read("symbols.txt").lines().filter(|line| line.starts_with('_')) {
        let name = call(symbol);
        let held = bad.contains(&name) || early.contains(&name);
        assert!(held || CANNOT_FAIL.contains(&name.as_str()), "no case for {symbol}");
    }
}
