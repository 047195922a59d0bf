//! The table "Where the checklist is held" of `SUPPORT.md`: every row is there, and what it names is a test.

use std::collections::BTreeMap;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// What each row names, in quotes of code.
fn rows() -> BTreeMap<String, Vec<String>> {
    let text = read("SUPPORT.md");
    let (_, table) = text.split_once("## Where the checklist is held").expect("the section");
    let table = table.lines().skip_while(|line| !line.starts_with("|---"));
    let row = |line: &str| {
        let (id, rest) = line.trim_matches('|').split_once('|').expect("two columns");
        (id.trim().to_owned(), rest.split('`').skip(1).step_by(2).map(str::to_owned).collect())
    };
    table.skip(1).take_while(|line| line.starts_with('|')).map(row).collect()
}

#[test]
fn every_row_of_the_checklist_and_every_corner_case_is_held_by_something() {
    let rows = rows();
    let ids = (1..=21).flat_map(|number| [format!("N{number}"), format!("5.{number}")]);
    for id in ids {
        let held = rows.get(&id).unwrap_or_else(|| panic!("no row {id}"));
        assert!(!held.is_empty(), "{id} names nothing");
    }
    assert_eq!(rows.len(), 42);
}

/// A Rust test has `#[test]` before it; a C part is called by the `main` of its program, which a test runs.
#[test]
fn what_the_rows_name_is_run() {
    let programs = read("tests/programs.rs") + &read("tests/launch.rs");
    for (id, held) in rows() {
        for name in held.iter().filter(|name| name.contains("::")) {
            let (file, function) = name.rsplit_once("::").expect("file::function");
            if file.ends_with(".c") {
                let text = read(&format!("tests/c/{file}"));
                assert!(text.contains(&format!("static void {function}(")), "{id}: no {name}");
                let (_, main) = text.split_once("\nint main(").expect("a main");
                assert!(main.contains(&format!("\t{function}(")), "{id}: {name} is not called");
                assert!(programs.contains(&format!("\"{file}\"")), "{id}: {file} is not run");
                continue;
            }
            let text = read(&format!("{file}.rs"));
            let start =
                text.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{id}: no {name}"));
            assert!(text[..start].trim_end().ends_with(']'), "{id}: {name} is no test");
        }
    }
}
