//! `shrimp doctor`: is this machine, this user and this environment fit for us, in plain words.
//!
//! Each finding says what was looked at, what was found, what it means, and what to do if it is
//! not well. What can be tried is tried, rather than concluded from a version number.

mod cluster;
mod copies;
mod daemon;
mod fabric;
mod kernel;
mod settings;

use crate::exit::{Context, Exit, Failure};
use crate::text;
use serde::Serialize;
use std::fmt::Write;

/// Explain this machine in plain words
///
/// Looks at the kernel, limits, processors, the daemon, the settings and our own files; and at the other nodes of the
/// cluster, if the daemon has a part in one. Changes nothing and starts nothing. A node that does not answer takes
/// some seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  shrimp doctor
  shrimp doctor --json | jq '.findings[] | select(.state == \"attention\")'

Exit code: 0 all is well, 1 something needs attention.";

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Worth knowing, nothing to do.
    Info,
    /// Something does not work, or not well.
    Attention,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// Group, as headed in the text.
    area: &'static str,
    /// What was looked at.
    what: String,
    state: State,
    /// What was found and what it means.
    found: String,
    /// What to do, when attention is needed.
    remedy: Option<String>,
}

impl Finding {
    fn ok(area: &'static str, what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { area, what: what.into(), state: State::Ok, found: found.into(), remedy: None }
    }

    fn info(area: &'static str, what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { state: State::Info, ..Finding::ok(area, what, found) }
    }

    fn attention(
        area: &'static str,
        what: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            state: State::Attention,
            remedy: Some(remedy.into()),
            ..Finding::ok(area, what, found)
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    healthy: bool,
    machine: crate::machine::Machine,
    findings: Vec<Finding>,
    settings: Vec<settings::Setting>,
}

/// Looks at everything and tells.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let mut findings = kernel::findings();
    findings.push(copies::finding());
    let (of_daemon, daemon) = daemon::findings();
    findings.extend(of_daemon);
    findings.extend(fabric::findings());
    // One that does not answer is told of already.
    findings.extend(daemon.into_iter().flat_map(cluster::findings));
    let (settings, more) = settings::look(&|name| std::env::var(name).ok());
    findings.extend(more);
    let healthy = findings.iter().all(|finding| finding.state != State::Attention);
    let machine = crate::machine::Machine::here();
    let report = Report { schema: 1, healthy, machine, findings, settings };
    text::emit(&if args.json {
        serde_json::to_string_pretty(&report).context(|| "encoding JSON".into())? + "\n"
    } else {
        render(&report)
    });
    Ok(if healthy { Exit::Ok } else { Exit::Failed })
}

fn render(report: &Report) -> String {
    let mut out = report.machine.describe() + "\n";
    let mut area = "";
    for finding in &report.findings {
        if finding.area != area {
            area = finding.area;
            let _ = writeln!(out, "\n{area}");
        }
        let mark = match finding.state {
            State::Ok => "ok",
            State::Info => "--",
            State::Attention => "!!",
        };
        let _ = writeln!(out, "  {mark}  {}: {}", finding.what, finding.found);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(out, "      do: {remedy}");
        }
    }
    let mut table = text::Table::new(&["setting", "in force", "unit", ""], &[]);
    for setting in &report.settings {
        table.row([
            setting.name.to_owned(),
            setting.describe(),
            setting.unit.to_owned(),
            setting.help.to_owned(),
        ]);
    }
    let _ = write!(out, "\nSettings (environment)\n{table}");
    let mut attention: Vec<&str> = report
        .findings
        .iter()
        .filter(|finding| finding.state == State::Attention)
        .map(|finding| finding.what.as_str())
        .collect();
    attention.dedup(); // a node may have more than one trouble
    if attention.is_empty() {
        out.push_str("\nAll is well.\n");
    } else {
        let _ = writeln!(out, "\nNeeds attention: {}.", attention.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_needs_attention_says_what_to_do_and_is_named_at_the_end() {
        let findings = vec![
            Finding::ok("Kernel", "one", "fine"),
            Finding::attention("Kernel", "other", "broken", "mend it"),
            Finding::attention("Kernel", "other", "crooked", "straighten it"),
        ];
        let machine = crate::machine::Machine::here();
        let report = Report { schema: 1, healthy: false, machine, findings, settings: vec![] };
        let text = render(&report);
        assert!(text.contains("do: mend it"));
        assert!(text.trim_end().ends_with("Needs attention: other."));
    }
}
