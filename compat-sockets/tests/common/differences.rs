//! The list of known differences, `known_differences.txt`.

use super::Leg;
use std::path::Path;

struct Difference {
    program: String,
    case: String,
    leg: String,
    check: String,
    text: String,
}

/// All of them.
pub struct Differences(Vec<Difference>);

/// Those of one case in one leg, and which of them were seen.
pub struct Known<'a>(Vec<(&'a Difference, bool)>);

impl Differences {
    /// Lines `PROGRAM VARIANT/CASE LEG CHECK | REASON`; `#` starts a comment.
    pub fn read(path: &Path) -> Differences {
        let text = std::fs::read_to_string(path).unwrap();
        let mut all = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (what, reason) =
                line.split_once(" | ").unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(!reason.trim().is_empty(), "no reason: {line}");
            let mut words = what.splitn(4, ' ').map(str::to_owned);
            let mut word = || words.next().unwrap_or_else(|| panic!("not understood: {line}"));
            let (program, case, leg, check) = (word(), word(), word(), word());
            assert!(
                ["ring", "no-daemon", "carried"].contains(&leg.as_str()),
                "no such leg: {line}"
            );
            all.push(Difference { program, case, leg, check, text: what.to_owned() });
        }
        Differences(all)
    }

    pub fn of(&self, program: &str, case: &str, leg: Leg) -> Known<'_> {
        let concerns =
            |one: &&Difference| one.program == program && one.case == case && one.leg == leg.name();
        Known(self.0.iter().filter(concerns).map(|one| (one, false)).collect())
    }
}

impl Known<'_> {
    /// Whether a line that is not ok is listed: by its whole check, or by `*` for all of the case.
    pub fn covers(&mut self, line: &str) -> bool {
        let mut covered = false;
        for (one, seen) in &mut self.0 {
            if one.check == "*" || line.contains(&one.check) {
                *seen = true;
                covered = true;
            }
        }
        covered
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, seen)| !seen).map(|(one, _)| one.text.as_str())
    }
}
