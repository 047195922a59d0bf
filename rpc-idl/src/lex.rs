//! Text to tokens. Nothing is dropped but white space: comments, preprocessor lines and lines that
//! rpcgen passes through are tokens too, so that the formatter can keep them.

use crate::diag::{Diagnostic, Diagnostics};
use crate::source::{SourceMap, Span};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Ident,
    /// Decimal, octal (0...) or hexadecimal (0x...) digits.
    Number,
    /// A string literal with its quotes.
    Str,
    /// A character literal with its quotes.
    Char,
    /// One of `{ } ( ) [ ] < > ; , : = * -`.
    Punct(u8),
    /// `/* ... */`.
    BlockComment,
    /// `// ...` without the line's end.
    LineComment,
    /// A line that begins with `%`: goes to the generated C code as it is.
    Passthrough,
    /// A line that begins with `#`, with its continuation lines.
    Directive,
    /// The end of the file.
    End,
}

/// A token: its text is the span's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    /// What it is.
    pub(crate) kind: Kind,
    /// Where it is.
    pub(crate) span: Span,
}

/// The tokens of a part of a file: the body of a macro.
pub(crate) fn lex_range(
    sources: &SourceMap,
    file: u32,
    start: usize,
    end: usize,
    diagnostics: &mut Diagnostics,
) -> Vec<Token> {
    let text = sources.text(file).get(..end).unwrap_or("");
    let mut lexer = Lexer { text, file, at: start, tokens: Vec::new(), line_start: false };
    while !diagnostics.is_full() && lexer.step(diagnostics) {}
    lexer.tokens
}

struct Lexer<'a> {
    text: &'a str,
    file: u32,
    at: usize,
    tokens: Vec<Token>,
    line_start: bool,
}

/// The tokens of a file, ended by [`Kind::End`]. Characters that belong to no token are reported
/// and left out.
pub(crate) fn lex(sources: &SourceMap, file: u32, diagnostics: &mut Diagnostics) -> Vec<Token> {
    let mut lexer =
        Lexer { text: sources.text(file), file, at: 0, tokens: Vec::new(), line_start: true };
    while lexer.step(diagnostics) {}
    let end = lexer.text.len();
    lexer.push(Kind::End, end, end);
    lexer.tokens
}

impl Lexer<'_> {
    fn span(&self, start: usize, end: usize) -> Span {
        // A file is at most MAX_FILE long.
        Span { file: self.file, start: start as u32, end: end as u32 }
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        let span = self.span(start, end);
        self.tokens.push(Token { kind, span });
        self.at = end;
        self.line_start = false;
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Length of the longest prefix of the rest whose bytes satisfy `accept`.
    fn run(&self, accept: impl Fn(u8) -> bool) -> usize {
        self.rest().bytes().take_while(|byte| accept(*byte)).count()
    }

    /// End of the current line, its newline excluded; with `continued`, a backslash before the
    /// newline joins the next line.
    fn line_end(&self, continued: bool) -> usize {
        let bytes = self.text.as_bytes();
        let mut at = self.at;
        loop {
            let end = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n);
            let line = bytes[at..end].strip_suffix(b"\r").unwrap_or(&bytes[at..end]);
            if end == bytes.len() || !(continued && line.ends_with(b"\\")) {
                return at + line.len();
            }
            at = end + 1;
        }
    }

    /// End of the preprocessor line that begins here, its newline excluded. A comment in it may go on in the next line, and the line behind
    /// that.
    fn directive_end(&self) -> usize {
        let bytes = self.text.as_bytes();
        let mut line = self.line_end(true);
        let mut at = self.at;
        while at < line {
            match &bytes[at..] {
                [b'/', b'/', ..] => break,
                [b'/', b'*', ..] => match self.text[at + 2..].find("*/") {
                    Some(end) => {
                        at += 2 + end + 2;
                        if at > line {
                            line = Lexer { at, tokens: Vec::new(), ..*self }.line_end(true);
                        }
                    }
                    None => break, // reported when it is looked for
                },
                [quote @ (b'"' | b'\''), ..] => {
                    let close = bytes[at + 1..line].iter().position(|byte| byte == quote);
                    at += close.map_or(1, |close| close + 2);
                }
                _ => at += 1,
            }
        }
        line
    }

    fn step(&mut self, diagnostics: &mut Diagnostics) -> bool {
        let bytes = self.text.as_bytes();
        let Some(&byte) = bytes.get(self.at) else { return false };
        let start = self.at;
        match byte {
            b'\n' => {
                self.at += 1;
                self.line_start = true;
            }
            b' ' | b'\t' | b'\r' | 0x0c | 0x0b => self.at += 1,
            // Within a preprocessor line: the line goes on.
            b'\\' if matches!(bytes.get(start + 1), Some(b'\n' | b'\r')) => self.at += 1,
            // A byte order mark at the very start.
            0xef if start == 0 && self.rest().starts_with('\u{feff}') => self.at += 3,
            b'%' if self.line_start => {
                // cpp, which runs before rpcgen, joins continued lines of these too.
                let end = self.line_end(true);
                self.push(Kind::Passthrough, start, end);
            }
            b'#' if self.line_start => {
                let end = self.directive_end();
                self.push(Kind::Directive, start, end);
            }
            b'/' if self.rest().starts_with("/*") => self.block_comment(diagnostics),
            b'/' if self.rest().starts_with("//") => {
                let end = self.line_end(false);
                self.push(Kind::LineComment, start, end);
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let len = self.run(|b| b.is_ascii_alphanumeric() || b == b'_');
                self.push(Kind::Ident, start, start + len);
            }
            b'0'..=b'9' => self.number(diagnostics),
            b'"' | b'\'' => self.quoted(byte, diagnostics),
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b';' | b',' | b':' | b'='
            | b'*' | b'-' => self.push(Kind::Punct(byte), start, start + 1),
            _ => self.stray(diagnostics),
        }
        true
    }

    fn block_comment(&mut self, diagnostics: &mut Diagnostics) {
        let start = self.at;
        match self.rest()[2..].find("*/") {
            Some(end) => self.push(Kind::BlockComment, start, start + 2 + end + 2),
            None => {
                diagnostics.push(
                    Diagnostic::error(
                        "unterminated-comment",
                        self.span(start, start + 2),
                        "this comment does not end",
                    )
                    .label("begins here")
                    .help("end it with `*/`"),
                );
                self.at = self.text.len();
            }
        }
    }

    fn number(&mut self, diagnostics: &mut Diagnostics) {
        let start = self.at;
        let len = self.run(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        let span = self.span(start, start + len);
        let text = &self.text[start..start + len];
        let fault = if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            (hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()))
                .then_some("after 0x come hexadecimal digits")
        } else if text.len() > 1 && text.starts_with('0') {
            (!text.bytes().all(|b| (b'0'..=b'7').contains(&b)))
                .then_some("a number that begins with 0 is octal: digits 0 to 7")
        } else {
            (!text.bytes().all(|b| b.is_ascii_digit()))
                .then_some("numbers are decimal, octal (0...) or hexadecimal (0x...) integers")
        };
        let fault =
            fault.or(number_value(text).is_none().then_some("numbers have at most 127 bits"));
        if let Some(help) = fault {
            diagnostics.push(
                Diagnostic::error("bad-number", span, format!("`{}` is no number", shown(text)))
                    .help(help),
            );
        }
        self.push(Kind::Number, start, start + len);
    }

    fn quoted(&mut self, quote: u8, diagnostics: &mut Diagnostics) {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'\n' => break,
                b'\\' if bytes.get(at + 1).is_some_and(|b| *b != b'\n') => at += 1,
                _ if byte == quote => {
                    let kind = if quote == b'"' { Kind::Str } else { Kind::Char };
                    self.push(kind, start, at + 1);
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        diagnostics.push(
            Diagnostic::error(
                "unterminated-quote",
                self.span(start, start + 1),
                "this quotation does not end on its line",
            )
            .label("begins here")
            .help(format!("end it with `{}`", char::from(quote))),
        );
        self.at = self.line_end(false);
    }

    fn stray(&mut self, diagnostics: &mut Diagnostics) {
        let start = self.at;
        let run = self.rest().find(|c: char| {
            c.is_ascii_alphanumeric() || c.is_whitespace() || "_{}()[]<>;,:=*-/\"'".contains(c)
        });
        // A lone slash is stray although it may begin a comment.
        let end = start + run.unwrap_or(self.rest().len()).max(self.char_len());
        let text = &self.text[start..end];
        let help = match text.as_bytes()[0] {
            b'#' | b'%' => "lines for a preprocessor (#) or for C (%) begin with that character",
            b'.' => "the RPC language has no floating-point constants",
            b'+' | b'|' | b'&' | b'^' | b'~' | b'!' | b'/' => {
                "the RPC language has no expressions: write the value, or the name of a constant"
            }
            _ => "remove it",
        };
        diagnostics.push(
            Diagnostic::error(
                "stray-character",
                self.span(start, end),
                format!("`{}` has no meaning here", shown(text)),
            )
            .help(help),
        );
        self.at = end;
        self.line_start = false;
    }

    fn char_len(&self) -> usize {
        self.rest().chars().next().map_or(1, char::len_utf8)
    }
}

/// Text for a message: control characters escaped, not too long.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(40)
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect();
    if text.chars().nth(40).is_some() {
        out.push_str("...");
    }
    out
}

/// The value of a number that the lexer accepted; `None` beyond 128 bits or if it is none.
#[must_use]
pub(crate) fn number_value(text: &str) -> Option<i128> {
    if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        i128::from_str_radix(hex, 16).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        i128::from_str_radix(text, 8).ok()
    } else {
        text.parse().ok()
    }
}

/// The value of a character literal with its quotes: one byte, or an escape as in C.
#[must_use]
pub(crate) fn char_value(text: &str) -> Option<i128> {
    let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
    let mut chars = inner.chars();
    let value = match chars.next()? {
        '\\' => match chars.next()? {
            'n' => 10,
            't' => 9,
            'r' => 13,
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            'x' => return i128::from_str_radix(chars.as_str(), 16).ok().filter(|v| *v < 256),
            '0'..='7' => {
                return i128::from_str_radix(&inner[1..], 8).ok().filter(|v| *v < 256);
            }
            c @ ('\\' | '\'' | '"' | '?') => c as i128,
            _ => return None,
        },
        c if c.is_ascii() => c as i128,
        _ => return None,
    };
    chars.next().is_none().then_some(value)
}
