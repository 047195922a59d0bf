//! The table of `SUPPORT.md`: every row of the checklist is there, and the tests that it names exist.

use std::path::{Path, PathBuf};

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn table() -> String {
    std::fs::read_to_string(crate_dir().join("SUPPORT.md")).unwrap()
}

/// The file of a test as the table abbreviates it.
fn file_of(path: &str) -> PathBuf {
    let tree = crate_dir().parent().unwrap();
    match path.split_once('/') {
        None => crate_dir().join("tests").join(path),
        Some(("daemon", rest)) => tree.join("vmmc-daemon/tests").join(rest),
        Some(_) => tree.join(path),
    }
    .with_extension("rs")
}

#[test]
fn every_row_of_the_checklist_names_what_shows_it() {
    let table = table();
    let rows = |letter: char, last: u32| (1..=last).map(move |number| format!("{letter}{number}"));
    let figure = ["M1", "M4", "M5", "M6"].map(str::to_owned);
    let ids = rows('V', 28).chain(rows('G', 10)).chain(figure).chain(rows('C', 10));
    for id in ids.chain(rows('D', 14)).chain(rows('H', 23)) {
        let row = table.lines().find(|line| line.starts_with(&format!("| {id} |")));
        let row = row.unwrap_or_else(|| panic!("no row {id}"));
        let shows = row.trim_end_matches('|').rsplit('|').next().unwrap();
        assert!(shows.contains('`'), "{id} names nothing");
    }
}

#[test]
fn every_test_that_the_table_names_exists() {
    let mut found = 0;
    for name in table().split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
        if name == "file::name" {
            continue;
        }
        let (path, test) = name.rsplit_once("::").unwrap();
        let file = file_of(path);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{name}: no {file:?}"));
        let start = text.find(&format!("fn {test}(")).unwrap_or_else(|| panic!("no {name}"));
        assert!(text[..start].trim_end().ends_with(']'), "{name} is no test");
        found += 1;
    }
    assert!(found > 80, "only {found} tests were found in the table");
}
