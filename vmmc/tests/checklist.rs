//! The table of `SUPPORT.md`: every row of the checklist is there, and the tests that it names exist.

mod table;

use table::Table;

#[test]
fn every_row_of_the_checklist_names_what_shows_it() {
    let rows = |letter: char, last: u32| (1..=last).map(move |number| format!("{letter}{number}"));
    let figure = ["M1", "M4", "M5", "M6", "M32", "M34"].map(str::to_owned);
    let ids = rows('V', 28).chain(rows('G', 12)).chain(figure).chain(rows('C', 10));
    let ids = ids.chain(rows('D', 14)).chain(rows('H', 23));
    Table::of(env!("CARGO_MANIFEST_DIR")).has_rows(ids);
}

#[test]
fn every_test_that_the_table_names_exists() {
    let found = Table::of(env!("CARGO_MANIFEST_DIR")).names_tests();
    assert!(found > 80, "only {found} tests were found in the table");
}
