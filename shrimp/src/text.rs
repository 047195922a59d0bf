//! What goes to the terminal: tables, numbers for people, progress.

use crate::exit::Exit;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Writes to standard output. A reader that has gone away (`shrimp stat | head`) ends the
/// program quietly, as it would end one written in C; anything else that is in the way, a full disk, is said.
pub(crate) fn emit(text: &str) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return };
    crate::children::end_all();
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(128 + 13);
    }
    say_unwritten(&error);
    std::process::exit(Exit::Failed as i32);
}

/// Says why standard output was not written, unless its reader has gone away, who knows.
pub(crate) fn say_unwritten(error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::BrokenPipe {
        say!("shrimp: writing to standard output: {error}");
    }
}

/// A text that somebody else chose, safe for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A table with aligned columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns aligned to the right.
    right: Vec<usize>,
}

impl Table {
    /// A table whose first row is the heading; columns in `right` are aligned to the right.
    pub(crate) fn new(heading: &[&str], right: &[usize]) -> Table {
        Table {
            rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()],
            right: right.to_vec(),
        }
    }

    /// Appends a row.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there is nothing below the heading.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::from(" ");
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                line.push(' ');
                if self.right.contains(&column) {
                    line.push_str(&pad);
                    line.push_str(cell);
                } else {
                    line.push_str(cell);
                    line.push_str(&pad);
                }
                line.push(' ');
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Nanoseconds with three digits and a unit.
pub(crate) fn nanos(ns: f64) -> String {
    if ns < 999.5 {
        format!("{} ns", three(ns))
    } else if ns < 999.5e3 {
        format!("{} us", three(ns / 1e3))
    } else if ns < 999.5e6 {
        format!("{} ms", three(ns / 1e6))
    } else {
        format!("{} s", three(ns / 1e9))
    }
}

/// Bytes per second, in decimal units as networks count.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    if bytes_per_s < 999.5e6 {
        format!("{} MB/s", three(bytes_per_s / 1e6))
    } else {
        format!("{} GB/s", three(bytes_per_s / 1e9))
    }
}

/// A size in binary units.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in UNITS {
        if bytes >= scale {
            return if bytes.is_multiple_of(scale) {
                format!("{} {unit}", bytes / scale)
            } else {
                format!("{} {unit}", three(bytes as f64 / scale as f64))
            };
        }
    }
    format!("{bytes} B")
}

/// A factor: `12x`, `1.04x`.
pub(crate) fn factor(value: f64) -> String {
    format!("{}x", three(value))
}

/// Three significant digits, no exponent.
pub(crate) fn three(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Tells on standard error what is going on, if it takes long and somebody may be watching.
///
/// On a terminal the line is rewritten in place; otherwise a line is written every two seconds
/// at most, so that a log shows where time went.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    terminal: bool,
    last: Instant,
    silent: bool,
}

impl Progress {
    /// Least time between two lines where they stay.
    const INTERVAL: Duration = Duration::from_secs(2);

    /// Starts the clock.
    pub(crate) fn new(silent: bool) -> Progress {
        Progress {
            started: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            last: Instant::now(),
            silent,
        }
    }

    /// Says what is done now.
    pub(crate) fn step(&mut self, what: &str) {
        if self.silent || !self.terminal && self.last.elapsed() < Progress::INTERVAL {
            return;
        }
        self.last = Instant::now();
        let mut err = std::io::stderr().lock();
        let seconds = self.started.elapsed().as_secs();
        // Progress is a courtesy: nobody misses it when standard error is closed.
        let _ = if self.terminal {
            write!(err, "\r\x1b[K  [{seconds:3} s] {what}")
        } else {
            writeln!(err, "  [{seconds:3} s] {what}")
        };
        let _ = err.flush();
    }

    /// Wipes the line.
    pub(crate) fn clear(&mut self) {
        if self.terminal && !self.silent {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K");
            let _ = err.flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_the_right_unit() {
        assert_eq!(nanos(145.2), "145 ns");
        assert_eq!(nanos(1_450.0), "1.45 us");
        assert_eq!(nanos(999.9), "1.00 us");
        assert_eq!(rate(12.34e9), "12.3 GB/s");
        assert_eq!(size(65536), "64 KiB");
        assert_eq!(size(1500), "1.46 KiB");
        assert_eq!(size(12), "12 B");
        assert_eq!(three(f64::NAN), "-");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "value"], &[1]);
        table.row(["a", "1"]);
        table.row(["long name", "1000"]);
        assert_eq!(
            table.to_string(),
            "  name       value\n  a              1\n  long name   1000\n"
        );
    }
}
