//! A table of a `SUPPORT.md` against the tree: its rows are there, and the tests that they name exist.

#![allow(unreachable_pub)] // each member's test has it as a module

use std::path::{Path, PathBuf};

/// A table, and how the tests are found that it names.
pub struct Table {
    text: String,
    /// The member whose table it is.
    member: PathBuf,
}

impl Table {
    /// Of the member in this directory (its `CARGO_MANIFEST_DIR`).
    pub fn of(member: &str) -> Table {
        let member = Path::new(member).to_owned();
        let text = std::fs::read_to_string(member.join("SUPPORT.md")).unwrap();
        Table { text, member }
    }

    /// Each of these rows is there, and its last column names something.
    pub fn has_rows(&self, ids: impl Iterator<Item = String>) {
        for id in ids {
            let row = self.text.lines().find(|line| line.starts_with(&format!("| {id} |")));
            let row = row.unwrap_or_else(|| panic!("no row {id}"));
            let shows = row.trim_end_matches('|').rsplit('|').next().unwrap();
            assert!(shows.contains('`'), "{id} names nothing");
        }
    }

    /// The file of a test: in the member's `tests`, in its `tests/c` (with its extension, `.c`), in those of
    /// `daemon`, or a path from the top.
    fn file_of(&self, path: &str) -> PathBuf {
        let tree = self.member.parent().unwrap();
        if path.ends_with(".c") {
            return self.member.join("tests/c").join(path);
        }
        match path.split_once('/') {
            None => self.member.join("tests").join(path),
            Some(("daemon", rest)) => tree.join("vmmc-daemon/tests").join(rest),
            Some(_) => tree.join(path),
        }
        .with_extension("rs")
    }

    /// Everything of the form `file::name` is a test. Returns how many there are.
    pub fn names_tests(&self) -> usize {
        let mut found = 0;
        let quoted = self.text.split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| name.contains("::") && *name != "file::name") {
            let (path, test) = name.rsplit_once("::").unwrap();
            let file = self.file_of(path);
            let text =
                std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{name}: no {file:?}"));
            assert!(is_test(&text, test), "{name} is no test");
            found += 1;
        }
        found
    }
}

/// Whether there is a test of this name: a function with an attribute, a line of a macro's list of names, or a C
/// program's case: the name in quotes, or as what a macro makes a case of, or a function that its `main` calls.
fn is_test(text: &str, test: &str) -> bool {
    let function = text.find(&format!("fn {test}("));
    let listed = |line: &str| line.trim().trim_end_matches([',', ';']) == test;
    let made_by = ["PAIR", "PAIR_OF_PROCESSES", "PAIR_OF_THREADS", "COLD_PAIR", "LONER"];
    let is_case = |line: &str| {
        line.contains(&format!("{{\"{test}\""))
            || made_by.iter().any(|maker| line.contains(&format!("{maker}({test})")))
    };
    let main = text.split_once("\nint main(").map_or("", |(_, main)| main);
    if main.lines().any(|line| line.trim() == format!("{test}();")) {
        return true;
    }
    function.is_some_and(|start| text[..start].trim_end().ends_with(']'))
        || text.lines().any(|line| listed(line) || is_case(line))
}
