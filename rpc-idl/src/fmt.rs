//! The formatter: one layout for every file, with all comments kept.
//!
//! It works on tokens and not on the tree, so that comments, preprocessor lines and lines for C
//! stay where they are, even in files of which a part is switched off. Line breaks come from the
//! grammar (after `;`, around `{` and `}`, between the values of an enum), with what the author
//! decided kept where it is a matter of taste: single empty lines, and parameters on lines of
//! their own.
//!
//! The result says the same: its tokens are compared with those of the input before it is given.

use crate::diag::{Diagnostic, Diagnostics};
use crate::lex::{Kind, Token, lex};
use crate::prep::too_large;
use crate::source::{MAX_FILE, SourceMap, Span};

/// Most nested braces.
const MAX_DEPTH: usize = 64;

/// Why a file was not formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub struct FormatError(
    /// The errors with their excerpts.
    pub String,
);

/// Formats the text of an interface file; `name` is for messages.
///
/// # Errors
/// The text has characters or comments that the language does not have, or is too large. What it
/// says is not asked: that is for [`crate::compile`].
pub fn format(name: &str, text: &str) -> Result<String, FormatError> {
    let mut sources = SourceMap::new();
    let mut diagnostics = Diagnostics::default();
    let file = sources.add(name, text);
    if text.len() > MAX_FILE {
        return Err(FormatError(too_large(file, text.len()).render(&sources)));
    }
    let tokens = lex(&sources, file, &mut diagnostics);
    let mut open = 0usize;
    for token in &tokens {
        match token.kind {
            Kind::Punct(b'{') => open += 1,
            Kind::Punct(b'}') => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MAX_DEPTH {
            diagnostics.push(
                Diagnostic::error(
                    "too-deep",
                    token.span,
                    format!("braces are nested deeper than {MAX_DEPTH}"),
                )
                .help("give the inner types names"),
            );
            break;
        }
    }
    if !diagnostics.has_errors() {
        let formatted = Formatter::new(&sources, &tokens).run();
        match same(&sources, &tokens, &formatted) {
            Ok(()) => return Ok(formatted),
            Err(span) => diagnostics.push(
                Diagnostic::error("format-changes", span, "formatting would change this")
                    .help("put the comment or the line for the preprocessor elsewhere"),
            ),
        }
    }
    let list = diagnostics.into_sorted();
    Err(FormatError(list.iter().map(|d| d.render(&sources) + "\n").collect()))
}

/// Whether two texts have the same tokens, white space within comments aside.
fn same(sources: &SourceMap, tokens: &[Token], formatted: &str) -> Result<(), Span> {
    let mut other = SourceMap::new();
    let mut diagnostics = Diagnostics::default();
    let file = other.add("", formatted);
    let after = lex(&other, file, &mut diagnostics);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for (index, token) in tokens.iter().enumerate() {
        let equal = after.get(index).is_some_and(|new| {
            new.kind == token.kind
                && words(sources.slice(token.span)) == words(other.slice(new.span))
        });
        if !equal {
            return Err(token.span);
        }
    }
    if after.len() == tokens.len() && !diagnostics.has_errors() {
        Ok(())
    } else {
        Err(Span::default())
    }
}

/// What an open brace belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brace {
    /// Values, separated by commas.
    Enum,
    /// Arms, under `case` labels.
    Union,
    /// Anything whose members end with `;`.
    Other,
}

/// An open brace.
#[derive(Clone, Copy, Debug)]
struct Open {
    brace: Brace,
    /// The declaration of an arm, which is indented further, stands here.
    in_arm: bool,
    /// The parentheses around it.
    outer: Parentheses,
}

/// Those that are open since the last open brace.
#[derive(Clone, Copy, Debug, Default)]
struct Parentheses {
    count: usize,
    /// Their parameters stand on lines of their own.
    broken: bool,
}

struct Formatter<'a> {
    sources: &'a SourceMap,
    tokens: &'a [Token],
    out: String,
    /// Where the last line of `out` begins.
    line: usize,
    braces: Vec<Open>,
    parentheses: Parentheses,
    /// Where the last closing brace ends in `out`.
    brace: usize,
    /// A line break is due before the next token.
    newline: bool,
    /// The last token was a comment.
    after_comment: bool,
    /// Keyword that began the current definition or type.
    keyword: Brace,
    /// The text of the last token that is no comment.
    last: &'a str,
}

impl<'a> Formatter<'a> {
    fn new(sources: &'a SourceMap, tokens: &'a [Token]) -> Formatter<'a> {
        Formatter {
            sources,
            tokens,
            out: String::new(),
            line: 0,
            braces: Vec::new(),
            parentheses: Parentheses::default(),
            brace: 0,
            newline: false,
            after_comment: false,
            keyword: Brace::Other,
            last: "",
        }
    }

    fn run(mut self) -> String {
        let mut end_of_last = 0usize;
        for index in 0..self.tokens.len() {
            let token = self.tokens[index];
            let start = token.span.start as usize;
            let between = self.sources.text(token.span.file).get(end_of_last..start).unwrap_or("");
            let breaks = between.bytes().filter(|b| *b == b'\n').count();
            end_of_last = token.span.end as usize;
            if token.kind == Kind::End {
                break;
            }
            self.token(index, token, breaks);
        }
        while self.out.ends_with(['\n', ' ']) {
            self.out.pop();
        }
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        self.out
    }

    fn indent(&self, closing: bool) -> usize {
        let (open, parentheses) = match self.braces.split_last() {
            Some((last, others)) if closing => (others, last.outer),
            _ => (&self.braces[..], self.parentheses),
        };
        let further = |open: &Open| usize::from(open.in_arm) + usize::from(open.outer.broken);
        let depth: usize = open.iter().map(|open| 1 + further(open)).sum();
        depth + usize::from(parentheses.broken)
    }

    /// Ends the line, and leaves an empty one if the author did.
    fn start_line(&mut self, breaks: usize, depth: usize) {
        if !self.out.is_empty() {
            while self.out.ends_with(' ') && !self.out.ends_with("\\ ") {
                self.out.pop();
            }
            self.out.push('\n');
            if breaks > 1 && !self.out.ends_with("{\n") {
                self.out.push('\n');
            }
        }
        self.line = self.out.len();
        self.out.extend(std::iter::repeat_n("    ", depth));
        self.newline = false;
    }

    fn at_line_start(&self) -> bool {
        self.out[self.line..].trim_start().is_empty()
    }

    fn token(&mut self, index: usize, token: Token, breaks: usize) {
        let text = self.sources.slice(token.span);
        match token.kind {
            Kind::Directive | Kind::Passthrough => {
                self.start_line(breaks, 0);
                // Not by `lines`: an empty last line is what a backslash before it joins.
                for (number, line) in text.split('\n').enumerate() {
                    let line = line.strip_suffix('\r').unwrap_or(line);
                    let kept = line.trim_end();
                    let newline = if number > 0 { "\n" } else { "" };
                    // White space behind a backslash is why it joins no line here.
                    let space = if kept.ends_with('\\') && kept != line { " " } else { "" };
                    self.out.extend([newline, kept, space]);
                }
                self.newline = true;
            }
            Kind::BlockComment | Kind::LineComment => {
                self.comment(index, token.kind, text, breaks);
                self.after_comment = true;
                return;
            }
            _ => self.word(text, breaks),
        }
        self.after_comment = false;
    }

    fn comment(&mut self, index: usize, kind: Kind, text: &str, breaks: usize) {
        if breaks > 0 && self.label_follows(index) {
            self.end_arm();
        }
        let depth = self.indent(false);
        if breaks > 0 || self.out.is_empty() {
            self.start_line(breaks, depth);
        } else if !self.at_line_start() && !self.out.ends_with(['(', '[', '<']) {
            self.out.push(' ');
        }
        let mut lines = text.lines();
        self.out.push_str(lines.next().unwrap_or("").trim_end());
        for line in lines {
            self.out.push('\n');
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            self.out.extend(std::iter::repeat_n("    ", depth));
            // The stars of a block stand in a column.
            self.out.push_str(if line.starts_with('*') { " " } else { "   " });
            self.out.push_str(line);
        }
        // After a comment a line ends, unless the next word stood beside it.
        self.newline |= kind == Kind::LineComment;
    }

    /// Whether the next word begins another arm, or ends the union.
    fn label_follows(&self, index: usize) -> bool {
        let next = self.tokens[index + 1..].iter().find(|token| {
            matches!(token.kind, Kind::Ident | Kind::Number | Kind::Punct(_) | Kind::End)
        });
        next.is_some_and(|t| matches!(self.sources.slice(t.span), "case" | "default" | "}"))
    }

    fn end_arm(&mut self) {
        if let Some(open) = self.braces.last_mut() {
            open.in_arm = false;
        }
    }

    fn is_in(&self, brace: Brace) -> bool {
        self.braces.last().is_some_and(|open| open.brace == brace)
    }

    fn word(&mut self, text: &'a str, breaks: usize) {
        let closing = text == "}";
        let label = matches!(text, "case" | "default") && self.is_in(Brace::Union);
        if label || closing {
            self.end_arm();
        }
        self.newline |= self.after_comment && breaks > 0;
        // What follows its brace closely, unless a comment or a line for the preprocessor came between.
        let after_brace = matches!(text, ";" | "=") && self.brace == self.out.len();
        let parameter =
            self.parentheses.count > 0 && breaks > 0 && !matches!(text, ")" | "," | "}");
        if parameter {
            self.parentheses.broken = true;
        }
        if self.out.is_empty() {
            // Nothing stands before the first word.
        } else if (self.newline && !after_brace) || closing || label || parameter {
            let depth = self.indent(closing);
            if text == ")" {
                self.start_line(0, depth);
            } else {
                self.start_line(if closing { 0 } else { breaks }, depth);
            }
        } else if self.space_before(text) {
            self.out.push(' ');
        }
        self.newline = false;
        self.out.push_str(text);
        if closing {
            self.brace = self.out.len();
        }
        match text {
            "enum" => self.keyword = Brace::Enum,
            "union" => self.keyword = Brace::Union,
            "struct" | "program" | "version" => self.keyword = Brace::Other,
            "{" => {
                let outer = std::mem::take(&mut self.parentheses);
                self.braces.push(Open { brace: self.keyword, in_arm: false, outer });
                self.newline = true;
                self.keyword = Brace::Other;
            }
            "}" => {
                if let Some(open) = self.braces.pop() {
                    self.parentheses = open.outer;
                }
            }
            "(" => self.parentheses.count += 1,
            ")" => {
                self.parentheses.count = self.parentheses.count.saturating_sub(1);
                self.parentheses.broken &= self.parentheses.count > 0;
            }
            ";" => self.newline = true,
            "," => self.newline = self.parentheses.count == 0 && self.is_in(Brace::Enum),
            ":" if self.is_in(Brace::Union) => {
                self.newline = true;
                if let Some(open) = self.braces.last_mut() {
                    open.in_arm = true;
                }
            }
            _ => {}
        }
        self.last = text;
    }

    fn space_before(&self, text: &str) -> bool {
        if self.at_line_start() {
            return false;
        }
        match (self.last, text) {
            (_, ";" | "," | ":" | ")" | "]" | ">" | "[" | "<") => false,
            ("(" | "[" | "<" | "*" | "-", _) => false,
            // `switch (`, but `F(`.
            ("switch", "(") => true,
            (_, "(") => false,
            _ => true,
        }
    }
}
