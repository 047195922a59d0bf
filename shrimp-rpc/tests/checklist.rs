//! The table of `SUPPORT.md`: F1 to F15 are there, and the tests that it names exist.

#[path = "../../vmmc/tests/table/mod.rs"]
mod table;

use table::Table;

#[test]
fn every_row_of_the_checklist_names_what_shows_it() {
    Table::of(env!("CARGO_MANIFEST_DIR")).has_rows((1..=15).map(|number| format!("F{number}")));
}

#[test]
fn every_test_that_the_table_names_exists() {
    let found = Table::of(env!("CARGO_MANIFEST_DIR")).names_tests();
    assert!(found > 25, "only {found} tests were found in the table");
}
