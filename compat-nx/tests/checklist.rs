//! The table "Where the checklist is held" of `SUPPORT.md`: N1 to N21 and the corner cases are there, and the
//! tests that it names exist and are run.

#[path = "../../vmmc/tests/table/mod.rs"]
mod table;

use std::path::Path;
use table::Table;

#[test]
fn every_row_of_the_checklist_and_every_corner_case_is_held_by_something() {
    let ids = (1..=21).flat_map(|number| [format!("N{number}"), format!("5.{number}")]);
    Table::of(env!("CARGO_MANIFEST_DIR")).has_rows(ids);
}

#[test]
fn every_test_that_the_table_names_exists() {
    let found = Table::of(env!("CARGO_MANIFEST_DIR")).names_tests();
    assert!(found > 40, "only {found} tests were found in the table");
}

/// A part of a C program is a test only if a test runs the program.
#[test]
fn every_c_program_is_run() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = |dir: &Path, ext: &str| -> Vec<_> {
        let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|it| it == ext)).collect()
    };
    let texts = files(&tests, "rs").into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    let text: String = texts.collect();
    let programs = files(&tests.join("c"), "c");
    assert!(!programs.is_empty());
    for program in programs {
        let name = program.file_name().unwrap().to_string_lossy().into_owned();
        let run = text.contains(&format!("compile(\"{name}\""))
            || text.contains(&format!("plain(\"{name}\""));
        assert!(run, "{name} is run by no test");
    }
}
