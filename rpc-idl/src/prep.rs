//! Preprocessor lines: what stock rpcgen leaves to cpp.
//!
//! Conditionals, `#include`, `#define` without parameters, `#undef`, `#error`, and the line
//! markers of a file that already went through cpp. That is what interface files use; a macro
//! with parameters is refused with the advice to run cpp first.
//!
//! The output is tokens without comments. Documentation comments (`/** */`, `///`, and `/**< */`
//! for what stands before) are kept beside the tokens they belong to.

use crate::diag::{Diagnostic, Diagnostics};
use crate::lex::{self, Kind, Token};
use crate::prep_expr;
use crate::source::{MAX_FILE, SourceMap, Span};
use std::collections::HashMap;

/// Most tokens after preprocessing.
const MAX_TOKENS: usize = 1 << 20;
/// Most nested includes, and most nested macros.
const MAX_NESTING: usize = 32;
/// Most files.
const MAX_FILES: usize = 256;

/// Finds the files of `#include` lines.
pub trait Loader {
    /// The name and the text of file `name`, wanted by file `from`.
    ///
    /// # Errors
    /// Why it cannot be read, for the message.
    fn load(&self, name: &str, from: &str) -> Result<(String, String), String>;
}

/// A [`Loader`] that has no files.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

impl Loader for NoFiles {
    fn load(&self, _: &str, _: &str) -> Result<(String, String), String> {
        Err("no files can be included here".to_owned())
    }
}

/// A token after preprocessing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) kind: Kind,
    /// Where it stands, for messages: of a macro, where it is used.
    pub(crate) span: Span,
    /// Where its text is.
    pub(crate) text: Span,
    /// Documentation before it: index into [`Stream::docs`].
    pub(crate) doc: Option<u32>,
    /// Documentation after it, meant for what stands before.
    pub(crate) doc_after: Option<u32>,
}

/// What preprocessing leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) words: Vec<Word>,
    pub(crate) docs: Vec<Vec<String>>,
}

struct Conditional {
    /// This branch is read.
    taken: bool,
    /// A branch of this conditional was read already, or none may be.
    done: bool,
    span: Span,
    otherwise: bool,
}

pub(crate) struct Preprocessor<'a> {
    sources: &'a mut SourceMap,
    diagnostics: &'a mut Diagnostics,
    loader: &'a dyn Loader,
    macros: HashMap<String, Vec<Token>>,
    stream: Stream,
    doc: Option<u32>,
    /// There is too much of something, which was reported.
    overflow: bool,
}

impl<'a> Preprocessor<'a> {
    pub(crate) fn new(
        sources: &'a mut SourceMap,
        diagnostics: &'a mut Diagnostics,
        loader: &'a dyn Loader,
    ) -> Preprocessor<'a> {
        let (macros, stream) = (HashMap::new(), Stream::default());
        Preprocessor { sources, diagnostics, loader, macros, stream, doc: None, overflow: false }
    }

    /// Defines a macro from outside, as `cpp -D` does.
    pub(crate) fn define(&mut self, name: &str, value: &str) {
        let file = self.sources.add(format!("<-D {name}>"), value);
        let tokens = self.lex_body(file, 0, value.len());
        self.macros.insert(name.to_owned(), tokens);
    }

    /// Reads a file and all that it includes.
    pub(crate) fn run(mut self, file: u32) -> Stream {
        self.file(file, 0);
        if self.overflow {
            // What is left of such a file has errors of its own.
            self.stream.words.clear();
        }
        let end = self.sources.text(file).len() as u32;
        let span = Span { file, start: end, end };
        self.stream.words.push(Word {
            kind: Kind::End,
            span,
            text: span,
            doc: self.doc,
            doc_after: None,
        });
        self.stream
    }

    fn file(&mut self, file: u32, nesting: usize) {
        let text_len = self.sources.text(file).len();
        if text_len > MAX_FILE {
            return self.diagnostics.push(too_large(file, text_len));
        }
        let mut lexical = Diagnostics::default();
        let tokens = lex::lex(self.sources, file, &mut lexical);
        let mut conditionals: Vec<Conditional> = Vec::new();
        // Where text begins to be left out, and ends to be, in turn: it may be anything.
        let mut borders: Vec<u32> = Vec::new();
        for token in tokens {
            if self.diagnostics.is_full() || self.overflow {
                break;
            }
            let active = conditionals.last().is_none_or(|c| c.taken);
            match token.kind {
                Kind::End => break,
                Kind::Directive => {
                    self.directive(token.span, active, &mut conditionals, nesting);
                    if active != conditionals.last().is_none_or(|c| c.taken) {
                        borders.push(token.span.end);
                    }
                }
                _ if !active => {}
                Kind::BlockComment | Kind::LineComment => self.comment(token.span),
                _ => self.expand(token, token.span, &mut Vec::new()),
            }
        }
        for diagnostic in lexical.into_sorted() {
            let before = borders.partition_point(|border| *border <= diagnostic.span.start);
            if before.is_multiple_of(2) {
                self.diagnostics.push(diagnostic);
            }
        }
        for open in conditionals {
            self.diagnostics.push(
                Diagnostic::error("unterminated-conditional", open.span, "this #if has no #endif")
                    .label("begins here")
                    .help("end it with #endif"),
            );
        }
    }

    fn emit(&mut self, word: Word) {
        if self.stream.words.len() >= MAX_TOKENS {
            if !self.overflow {
                self.diagnostics.push(
                    Diagnostic::error(
                        "too-many-tokens",
                        word.span,
                        format!("more than {MAX_TOKENS} tokens after preprocessing"),
                    )
                    .help("split the file"),
                );
            }
            self.overflow = true;
            return;
        }
        self.stream.words.push(word);
    }

    fn expand(&mut self, token: Token, use_site: Span, active: &mut Vec<String>) {
        if token.kind == Kind::Ident && !self.macros.is_empty() {
            let name = self.sources.slice(token.span);
            if active.len() < MAX_NESTING
                && !active.iter().any(|a| a == name)
                && let Some(body) = self.macros.get(name)
            {
                let (name, body) = (name.to_owned(), body.clone());
                active.push(name);
                for token in body {
                    if self.overflow {
                        break;
                    }
                    self.expand(token, use_site, active);
                }
                active.pop();
                return;
            }
        }
        let doc = self.doc.take();
        let (kind, text) = (token.kind, token.span);
        self.emit(Word { kind, span: use_site, text, doc, doc_after: None });
    }

    fn comment(&mut self, span: Span) {
        let text = self.sources.slice(span);
        let Some((after, lines)) = documentation(text) else { return };
        if after {
            let Some(last) = self.stream.words.last_mut() else { return };
            match last.doc_after {
                Some(index) => self.stream.docs[index as usize].extend(lines),
                None => {
                    last.doc_after = Some(self.stream.docs.len() as u32);
                    self.stream.docs.push(lines);
                }
            }
        } else if let Some(index) = self.doc {
            let doc = &mut self.stream.docs[index as usize];
            // A block begins a paragraph of its own; line comments continue one.
            if !text.starts_with("///") {
                doc.push(String::new());
            }
            doc.extend(lines);
        } else {
            self.doc = Some(self.stream.docs.len() as u32);
            self.stream.docs.push(lines);
        }
    }

    fn lex_body(&mut self, file: u32, start: usize, end: usize) -> Vec<Token> {
        let mut tokens = lex::lex_range(self.sources, file, start, end, self.diagnostics);
        tokens.retain(|t| !matches!(t.kind, Kind::End | Kind::BlockComment | Kind::LineComment));
        tokens
    }

    fn bad_directive(&mut self, span: Span, message: String, help: &str) {
        self.diagnostics.push(Diagnostic::error("bad-directive", span, message).help(help));
    }

    fn directive(
        &mut self,
        span: Span,
        active: bool,
        conditionals: &mut Vec<Conditional>,
        nesting: usize,
    ) {
        let line = self.sources.slice(span).replace("\\\r\n", " ").replace("\\\n", " ");
        let line = without_comments(&line);
        let body = line[1..].trim();
        let split = body.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(body.len());
        let (name, rest) = (&body[..split], body[split..].trim());
        match name {
            "if" | "ifdef" | "ifndef" => {
                let holds = active
                    && match name {
                        "if" => self.condition(rest, span),
                        "ifdef" => self.macros.contains_key(rest),
                        _ => !self.macros.contains_key(rest),
                    };
                let done = holds || !active;
                conditionals.push(Conditional { taken: holds, done, span, otherwise: false });
            }
            "elif" | "else" => {
                let Some(mut top) = conditionals.pop() else {
                    return self.bad_directive(span, format!("#{name} without #if"), "remove it");
                };
                if top.otherwise {
                    self.bad_directive(span, format!("#{name} after #else"), "remove it");
                }
                top.taken = !top.done && (name == "else" || self.condition(rest, span));
                top.done |= top.taken;
                top.otherwise |= name == "else";
                conditionals.push(top);
            }
            "endif" => {
                if conditionals.pop().is_none() {
                    self.bad_directive(span, "#endif without #if".to_owned(), "remove it");
                }
            }
            _ if !active => {}
            "define" => self.define_line(span),
            "undef" => {
                self.macros.remove(rest);
            }
            "include" => self.include(rest, span, nesting),
            "error" => self.diagnostics.push(
                Diagnostic::error("error-directive", span, format!("#error {}", lex::shown(rest)))
                    .help("the file says so; macros are defined by -D NAME=VALUE"),
            ),
            "warning" => self.diagnostics.push(
                Diagnostic::warning(
                    "warning-directive",
                    span,
                    format!("#warning {}", lex::shown(rest)),
                )
                .help("the file asks for attention and is compiled all the same"),
            ),
            "line" | "" if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                self.marker(rest, span);
            }
            "" if rest.is_empty() => {}
            "pragma" | "ident" | "sccs" => {}
            _ => self.bad_directive(
                span,
                format!("#{} is not a preprocessor line of interface files", lex::shown(name)),
                "known are if, ifdef, ifndef, elif, else, endif, define, undef, include, error, warning, line, pragma",
            ),
        }
    }

    fn condition(&mut self, text: &str, span: Span) -> bool {
        let value = {
            let lookup = |name: &str| -> Option<String> {
                let body = self.macros.get(name)?;
                Some(body.iter().map(|t| self.sources.slice(t.span)).collect::<Vec<_>>().join(" "))
            };
            prep_expr::evaluate(text, &lookup)
        };
        match value {
            Ok(value) => value != 0,
            Err(reason) => {
                self.bad_directive(
                    span,
                    format!("this condition cannot be evaluated: {reason}"),
                    "conditions are made of integers, names, defined(), ! && || and comparisons",
                );
                false
            }
        }
    }

    fn define_line(&mut self, span: Span) {
        let text = self.sources.slice(span);
        let offset = text.find("define").map_or(0, |at| at + "define".len());
        let rest = &text[offset..];
        let start = offset + rest.len() - rest.trim_start().len();
        let name_len = text[start..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(text.len() - start);
        let name = text[start..start + name_len].to_owned();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return self.bad_directive(
                span,
                "#define without a name".to_owned(),
                "write #define NAME, or #define NAME value",
            );
        }
        if text[start + name_len..].starts_with('(') {
            return self.bad_directive(
                span,
                format!("macro `{name}` has parameters"),
                "run the file through a C preprocessor first: `cpp file.x | shrimpc rust -`",
            );
        }
        let start = span.start as usize + start + name_len;
        let body = self.lex_body(span.file, start, span.end as usize);
        self.macros.insert(name, body);
    }

    fn include(&mut self, rest: &str, span: Span, nesting: usize) {
        let name = match rest.as_bytes() {
            [b'"', name @ .., b'"'] | [b'<', name @ .., b'>'] if !name.is_empty() => {
                String::from_utf8_lossy(name).into_owned()
            }
            _ => {
                return self.bad_directive(
                    span,
                    "#include without a file name".to_owned(),
                    "write #include \"file.x\"",
                );
            }
        };
        if nesting >= MAX_NESTING {
            return self.bad_directive(
                span,
                format!("files include each other {nesting} deep"),
                "break the circle with #ifndef NAME, #define NAME ... #endif",
            );
        }
        if self.sources.len() >= MAX_FILES {
            self.overflow = true;
            return self.bad_directive(
                span,
                format!("more than {MAX_FILES} files are included"),
                "put several into one, or include each of them once",
            );
        }
        let from = self.sources.file_name(span.file).to_owned();
        match self.loader.load(&name, &from) {
            Ok((name, text)) => {
                let file = self.sources.add(name, text);
                self.file(file, nesting + 1);
            }
            Err(reason) => self.diagnostics.push(
                Diagnostic::error(
                    "include-not-found",
                    span,
                    format!("cannot include `{}`: {reason}", lex::shown(&name)),
                )
                .help("name its directory with -I; lines meant for C begin with %"),
            ),
        }
    }

    fn marker(&mut self, rest: &str, span: Span) {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let Ok(line) = rest[..digits].parse::<u32>() else { return };
        let name = rest[digits..].split('"').nth(1).unwrap_or("").to_owned();
        if !name.is_empty() {
            self.sources.mark(span.file, span.start, line, &name);
        }
    }
}

/// Says that a file is longer than [`MAX_FILE`].
pub(crate) fn too_large(file: u32, len: usize) -> Diagnostic {
    Diagnostic::error(
        "file-too-large",
        Span { file, start: 0, end: 0 },
        format!("the file has {len} bytes, more than {MAX_FILE}"),
    )
    .help("split it, or generate from the interface part alone")
}

/// The line with comments replaced by a space.
fn without_comments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('/') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        if after.starts_with("//") {
            return out;
        }
        if let Some(comment) = after.strip_prefix("/*") {
            out.push(' ');
            match comment.find("*/") {
                Some(end) => rest = &comment[end + 2..],
                None => return out,
            }
        } else {
            out.push('/');
            rest = &after[1..];
        }
    }
    out.push_str(rest);
    out
}

/// Whether a comment is documentation: for what stands before it, and its lines.
pub(crate) fn documentation(text: &str) -> Option<(bool, Vec<String>)> {
    let (body, block) = if let Some(line) = text.strip_prefix("///") {
        if line.starts_with('/') {
            return None;
        }
        (line, false)
    } else {
        let body = text.strip_prefix("/**")?.strip_suffix("*/")?;
        if body.starts_with('*') {
            return None;
        }
        (body, true)
    };
    let (after, body) = match body.strip_prefix('<') {
        Some(body) => (true, body),
        None => (false, body),
    };
    let clean = |line: &str| -> String {
        let line = line.trim_end();
        let line = if block {
            let trimmed = line.trim_start();
            match trimmed.strip_prefix('*') {
                Some(rest) => rest.strip_prefix(' ').unwrap_or(rest),
                None => trimmed,
            }
        } else {
            line.strip_prefix(' ').unwrap_or(line)
        };
        line.chars().filter(|c| !c.is_control() || *c == '\t').collect()
    };
    let mut lines: Vec<String> = body.split('\n').map(clean).collect();
    if block {
        if let Some(first) = lines.first_mut() {
            *first = first.trim_start().to_owned();
        }
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        while lines.first().is_some_and(String::is_empty) {
            lines.remove(0);
        }
    }
    Some((after, lines))
}
