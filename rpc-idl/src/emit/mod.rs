//! From a checked interface to source text.

pub mod c;
pub mod names;
mod param;
pub mod rust;

/// Text with indentation.
#[derive(Debug, Default)]
pub(crate) struct Out {
    text: String,
    depth: usize,
}

impl Out {
    pub(crate) fn new() -> Out {
        Out::default()
    }

    /// One line. A line that ends with an opening bracket indents what follows, one that begins
    /// with a closing one ends that.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if line.is_empty() {
            self.text.push('\n');
            return;
        }
        if line.starts_with(['}', ')', ']']) {
            self.depth = self.depth.saturating_sub(1);
        }
        for _ in 0..self.depth {
            self.text.push_str("    ");
        }
        self.text.push_str(line);
        self.text.push('\n');
        if line.ends_with(['{', '(', '[']) {
            self.depth += 1;
        }
    }

    /// A line that neither opens nor closes anything, whatever it ends with.
    pub(crate) fn plain(&mut self, line: &str) {
        for _ in 0..self.depth {
            self.text.push_str("    ");
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Puts text in front of the function that is being written: of the last line that begins
    /// without indentation and ends with a parenthesis, as a C function's first line does.
    pub(crate) fn insert_before_last_function(&mut self, text: &str) {
        let mut at = 0;
        let mut place = None;
        for line in self.text.split_inclusive('\n') {
            if line.ends_with(")\n") && !line.starts_with([' ', '#', '/']) {
                place = Some(at);
            }
            at += line.len();
        }
        self.text.insert_str(place.unwrap_or(self.text.len()), text);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}
