//! The settings in force, and those that are not understood.

use super::Finding;
use serde::Serialize;
use vmmc::config::{Config, TABLE};

const SETTINGS: &str = "Settings";

/// Variables that are read elsewhere than in the table's module.
const OTHERS: &[&str] = &["VMMC_LOG"];

/// One row of the table of tunables, with its value.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// As the environment has it.
    value: Option<String>,
    default: &'static str,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    /// Whether the value is understood.
    good: bool,
}

impl Setting {
    /// The value in force, for the table.
    pub(super) fn describe(&self) -> String {
        match (&self.value, self.good) {
            (Some(value), true) => format!("{value} (set)"),
            (Some(value), false) => format!("{value} (BAD)"),
            (None, _) if self.default.is_empty() => "(empty)".to_owned(),
            (None, _) => self.default.to_owned(),
        }
    }
}

/// Looks at every tunable by itself, so that one bad value does not hide another.
pub(super) fn look(get: &dyn Fn(&str) -> Option<String>) -> (Vec<Setting>, Vec<Finding>) {
    let mut settings = Vec::new();
    let mut findings = Vec::new();
    for row in TABLE {
        let value = get(row.name).filter(|value| !value.is_empty());
        let alone =
            Config::from_lookup(&|name| (name == row.name).then(|| value.clone()).flatten());
        if let Err(error) = &alone {
            let text = error.to_string();
            let (found, remedy) = text.split_once("; ").unwrap_or((&text, "unset it"));
            findings.push(Finding::attention(
                SETTINGS,
                row.name,
                found,
                format!("{remedy} (default {}, {})", row.default, row.unit),
            ));
        }
        settings.push(Setting {
            name: row.name,
            value,
            default: row.default,
            unit: row.unit,
            help: row.help,
            good: alone.is_ok(),
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(SETTINGS, "values", "all are understood"));
    }
    let known = |name: &str| OTHERS.contains(&name) || TABLE.iter().any(|row| row.name == name);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("VMMC_") && !known(&name) {
            findings.push(Finding::info(
                SETTINGS,
                name.clone(),
                "is set but is not one of the settings below; misspelt?",
            ));
        }
    }
    (settings, findings)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn every_bad_value_is_explained_not_only_the_first() {
        let (settings, findings) = look(&|name| match name {
            "VMMC_WAIT" => Some("sometimes".into()),
            "VMMC_SPIN_US" => Some("-1".into()),
            _ => None,
        });
        let bad: Vec<_> =
            findings.iter().filter(|finding| finding.state == State::Attention).collect();
        assert_eq!(bad.len(), 2);
        assert!(bad.iter().any(|finding| finding.found.contains("sometimes")));
        assert!(bad.iter().all(|finding| finding.remedy.is_some()));
        assert_eq!(settings.iter().filter(|setting| !setting.good).count(), 2);
        assert_eq!(settings.len(), TABLE.len());
    }
}
