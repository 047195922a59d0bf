//! The table of `SUPPORT.md`: S1 to S14 and the points of exact semantics are there, and the tests that it names
//! exist.

#[path = "../../vmmc/tests/table/mod.rs"]
mod table;

use table::Table;

#[test]
fn every_row_of_the_checklist_names_what_shows_it() {
    let points = (1..=15).map(|number| format!("2.7.{number}"));
    let rows = (1..=14).map(|number| format!("S{number}")).chain(points);
    Table::of(env!("CARGO_MANIFEST_DIR")).has_rows(rows);
}

#[test]
fn every_test_that_the_table_names_exists() {
    let found = Table::of(env!("CARGO_MANIFEST_DIR")).names_tests();
    assert!(found > 60, "only {found} tests were found in the table");
}
