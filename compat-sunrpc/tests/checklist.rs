//! The tables of `SUPPORT.md`: R1 to R12 are there, and the tests that they name exist.

#[path = "../../vmmc/tests/table/mod.rs"]
mod table;

use table::Table;

#[test]
fn every_row_of_the_checklist_names_what_shows_it() {
    Table::of(env!("CARGO_MANIFEST_DIR")).has_rows((1..=12).map(|number| format!("R{number}")));
}

#[test]
fn every_test_that_the_tables_name_exists() {
    let found = Table::of(env!("CARGO_MANIFEST_DIR")).names_tests();
    assert!(found > 20, "only {found} tests were found in the tables");
}
