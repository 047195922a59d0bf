//! What the compiler has to say about a file: errors and warnings with place, excerpt and hint.

use crate::source::{SourceMap, Span};
use codespan_reporting::diagnostic::{Diagnostic as Report, Label};
use codespan_reporting::term::{self, Chars, Config, DisplayStyle};

/// After this many diagnostics a file is given up: more help nobody.
pub const MAX_DIAGNOSTICS: usize = 100;

/// Of lines longer than this, only what is around the place is shown.
const MAX_EXCERPT: usize = 400;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Nothing can be generated.
    Error,
    /// Something looks unintended.
    Warning,
}

/// One error or warning.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Short stable name of the rule, such as `undefined-type`.
    pub code: &'static str,
    /// What is wrong, with the names and values concerned.
    pub message: String,
    /// Where, and what is there.
    pub span: Span,
    /// A few words under the place.
    pub label: String,
    /// Other places that matter.
    pub related: Vec<(Span, String)>,
    /// What to do about it.
    pub help: String,
}

/// A diagnostic that does not yet say what to do: only [`Finding::help`] makes it one.
#[derive(Debug)]
pub(crate) struct Finding(Diagnostic);

impl Finding {
    pub(crate) fn label(mut self, label: impl Into<String>) -> Finding {
        self.0.label = label.into();
        self
    }

    pub(crate) fn related(mut self, span: Span, label: impl Into<String>) -> Finding {
        self.0.related.push((span, label.into()));
        self
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Diagnostic {
        Diagnostic { help: help.into(), ..self.0 }
    }
}

impl Diagnostic {
    /// An error.
    pub(crate) fn error(code: &'static str, span: Span, message: impl Into<String>) -> Finding {
        Finding(Diagnostic {
            severity: Severity::Error,
            code,
            message: message.into(),
            span,
            label: String::new(),
            related: Vec::new(),
            help: String::new(),
        })
    }

    /// A warning.
    pub(crate) fn warning(code: &'static str, span: Span, message: impl Into<String>) -> Finding {
        let Finding(error) = Diagnostic::error(code, span, message);
        Finding(Diagnostic { severity: Severity::Warning, ..error })
    }

    /// The diagnostic with its excerpt, as text without colours.
    #[must_use]
    pub fn render(&self, sources: &SourceMap) -> String {
        let (report, config) = self.report(sources);
        match term::emit_into_string(&config, sources, &report) {
            Ok(text) => text,
            Err(_) => format!("{}: {}\n", sources.file_name(self.span.file), self.message),
        }
    }

    fn report(&self, sources: &SourceMap) -> (Report<u32>, Config) {
        let mut report = match self.severity {
            Severity::Error => Report::error(),
            Severity::Warning => Report::warning(),
        }
        .with_code(self.code)
        .with_message(&self.message)
        .with_label(
            Label::primary(self.span.file, self.span.range()).with_message(self.label.as_str()),
        );
        let mut long = sources.line_len(self.span) > MAX_EXCERPT;
        for (span, label) in &self.related {
            long |= sources.line_len(*span) > MAX_EXCERPT;
            report = report
                .with_label(Label::secondary(span.file, span.range()).with_message(label.as_str()));
        }
        if let Some((name, line)) = sources.origin(self.span) {
            report = report.with_note(format!("here: {name}, line {line}"));
        }
        if long {
            report = report.with_note(format!("in: {}", sources.around(self.span)));
        }
        report = report.with_note(format!("help: {}", self.help));
        // Without the lines, but with the notes.
        let display_style = if long { DisplayStyle::Medium } else { DisplayStyle::Rich };
        let config =
            Config { display_style, tab_width: 8, chars: Chars::ascii(), ..Config::default() };
        (report, config)
    }
}

/// Collects diagnostics while a file is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Diagnostics {
    list: Vec<Diagnostic>,
    errors: usize,
}

impl Diagnostics {
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        if self.is_full() {
            return;
        }
        if diagnostic.severity == Severity::Error {
            self.errors += 1;
        }
        self.list.push(diagnostic);
    }

    /// Whether there are as many as are kept: no use going on.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MAX_DIAGNOSTICS
    }

    /// How many there are, for [`Diagnostics::forget`].
    pub(crate) fn mark(&self) -> usize {
        self.list.len()
    }

    /// Drops those that came after [`Diagnostics::mark`]: they were said before.
    pub(crate) fn forget(&mut self, mark: usize) {
        let gone = self.list.drain(mark..).filter(|d| d.severity == Severity::Error).count();
        self.errors -= gone;
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// All, in the order of the text.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.list.sort_by_key(|d| (d.span.file, d.span.start, d.span.end));
        self.list
    }
}
