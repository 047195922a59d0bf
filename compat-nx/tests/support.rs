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

#[test]
fn every_exported_call_of_c_is_declared() {
    let header = read("include/nx.h");
    let declared = |name: &str| {
        header.split(|byte: char| !byte.is_alphanumeric() && byte != '_').any(|word| word == name)
    };
    for symbol in read("symbols.txt").lines().filter(|line| !line.starts_with(['#', '_'])) {
        let plain = symbol.trim_start_matches("nx32_");
        assert!(symbol.ends_with('_') || declared(plain) || declared(symbol), "{symbol}");
    }
}
