//! Tokens to a syntax tree, by recursive descent. After an error the parser goes on at the next
//! member or definition, so that one run shows everything that is wrong.
//!
//! The grammar is that of RFC 4506 section 6.3 and RFC 5531 section 12.2, with what rpcgen takes
//! beside it (`struct name` as a type, empty parameter lists, `char`, `short`, `long`) and the
//! extensions for SHRIMP RPC. The words of the extensions (`in`, `out`, `inout`, `bulk`, `plain`,
//! `oneway`, `copyin`, `deferred`) are words only where they can be nothing else, so that files
//! which use them as names stay valid.

mod program;
mod recover;
mod types;

use crate::ast::{Definition, DefinitionKind, Doc, File, Name, Value, ValueKind};
use crate::diag::{Diagnostic, Diagnostics};
use crate::lex::{Kind, char_value, number_value, shown};
use crate::prep::{Stream, Word};
use crate::source::{SourceMap, Span};
use std::collections::BTreeSet;

/// Most nested unnamed types.
const MAX_DEPTH: usize = 32;

/// Words that cannot be names.
pub(crate) const KEYWORDS: [&str; 24] = [
    "bool",
    "case",
    "char",
    "const",
    "default",
    "double",
    "enum",
    "float",
    "hyper",
    "int",
    "long",
    "opaque",
    "program",
    "quadruple",
    "short",
    "string",
    "struct",
    "switch",
    "typedef",
    "union",
    "unsigned",
    "version",
    "void",
    "signed",
];

/// What was reported already.
#[derive(Debug)]
struct Reported;
type Parsed<T> = Result<T, Reported>;

struct Parser<'a> {
    sources: &'a SourceMap,
    stream: &'a Stream,
    diagnostics: &'a mut Diagnostics,
    at: usize,
    depth: usize,
    passthrough: Vec<Definition>,
    /// See [`File::unread`].
    unread: BTreeSet<String>,
}

/// Parses a whole file.
pub(crate) fn parse(sources: &SourceMap, stream: &Stream, diagnostics: &mut Diagnostics) -> File {
    let passthrough = Vec::new();
    let unread = BTreeSet::new();
    let mut parser = Parser { sources, stream, diagnostics, at: 0, depth: 0, passthrough, unread };
    let mut file = File::default();
    parser.skip_passthrough();
    while parser.word().kind != Kind::End && !parser.diagnostics.is_full() {
        let before = parser.at;
        let definition = parser.definition();
        // Lines for C inside a definition go before it, as rpcgen puts them.
        file.definitions.append(&mut parser.passthrough);
        match definition {
            Ok(definition) => file.definitions.push(definition),
            Err(Reported) => parser.next_definition(before),
        }
    }
    file.definitions.append(&mut parser.passthrough);
    file.unread = parser.unread;
    file
}

impl Parser<'_> {
    fn word(&self) -> Word {
        self.stream.words[self.at]
    }

    /// The word `n` places ahead, passed-through lines not counted.
    fn ahead(&self, n: usize) -> Word {
        let words = &self.stream.words[self.at..];
        let mut kept = words.iter().filter(|w| w.kind != Kind::Passthrough);
        *kept.nth(n).unwrap_or(&words[words.len() - 1])
    }

    fn text(&self, word: Word) -> &str {
        match word.kind {
            Kind::End => "",
            _ => self.sources.slice(word.text),
        }
    }

    fn advance(&mut self) -> Word {
        let word = self.word();
        if word.kind != Kind::End {
            self.at += 1;
        }
        self.skip_passthrough();
        word
    }

    fn skip_passthrough(&mut self) {
        while self.word().kind == Kind::Passthrough {
            let word = self.word();
            // A last line that ends in a backslash joins nothing, whether a line break follows or not: the backslash is
            // left out, as it would join what is emitted next. White space at its end is nothing to C.
            let ends_it = |c: char| c == '\\' || c.is_whitespace();
            let lines: Vec<&str> = self.text(word)[1..].trim_end_matches(ends_it).lines().collect();
            let text = lines.join("\n");
            self.passthrough.push(Definition {
                name: Name { text: String::new(), span: word.span },
                doc: Doc::new(),
                kind: DefinitionKind::Passthrough(text),
            });
            self.at += 1;
        }
    }

    fn is_punct(&self, punct: u8) -> bool {
        self.word().kind == Kind::Punct(punct)
    }

    fn is_ident(&self, text: &str) -> bool {
        self.word().kind == Kind::Ident && self.text(self.word()) == text
    }

    fn eat(&mut self, punct: u8) -> Option<Word> {
        self.is_punct(punct).then(|| self.advance())
    }

    fn found(&self) -> String {
        let word = self.word();
        match word.kind {
            Kind::End => "the end of the file".to_owned(),
            Kind::Ident if KEYWORDS.contains(&self.text(word)) => {
                format!("keyword `{}`", self.text(word))
            }
            _ => format!("`{}`", shown(self.text(word))),
        }
    }

    fn syntax<T>(&mut self, expected: &str, help: &str) -> Parsed<T> {
        let diagnostic = Diagnostic::error(
            "syntax",
            self.word().span,
            format!("{expected} expected, found {}", self.found()),
        )
        .label(format!("{expected} expected"))
        .help(help);
        self.diagnostics.push(diagnostic);
        Err(Reported)
    }

    fn expect(&mut self, punct: u8, help: &str) -> Parsed<Word> {
        match self.eat(punct) {
            Some(word) => Ok(word),
            None => self.syntax(&format!("`{}`", char::from(punct)), help),
        }
    }

    /// A `;`. If it is missing at the end of a line, the end of the line is shown.
    fn semicolon(&mut self, help: &str) -> Parsed<Word> {
        if let Some(word) = self.eat(b';') {
            return Ok(word);
        }
        let previous = self.previous();
        let (line, _) = self.sources.line_column(previous);
        let (here, _) = self.sources.line_column(self.word().span);
        if line == here {
            return self.syntax("`;`", help);
        }
        let place = Span { start: previous.end, ..previous };
        let diagnostic =
            Diagnostic::error("syntax", place, format!("`;` expected, found {}", self.found()))
                .label("`;` expected")
                .related(self.word().span, "found this instead")
                .help(help);
        self.diagnostics.push(diagnostic);
        // The line is complete but for its end: no reason to give up what it says.
        Ok(self.stream.words[self.at.saturating_sub(1)])
    }

    fn previous(&self) -> Span {
        self.stream.words[self.at.saturating_sub(1)].span
    }

    /// A name; `help` shows where it stands.
    fn name(&mut self, what: &str, help: &str) -> Parsed<Name> {
        let word = self.word();
        if word.kind != Kind::Ident {
            return self.syntax(what, help);
        }
        let text = self.text(word).to_owned();
        if KEYWORDS.contains(&text.as_str()) {
            let reported = self.syntax(what, "keywords cannot be names; choose another");
            // On the line of what it names it begins nothing.
            if self.sources.line_column(self.previous()).0 == self.sources.line_column(word.span).0
            {
                self.advance();
            }
            return reported;
        }
        self.advance();
        Ok(Name { text, span: word.span })
    }

    /// The name of what has a body: a broken one is empty, so that the body is looked at all the same.
    fn name_of_body(&mut self, what: &str, help: &str) -> Parsed<Name> {
        let span = self.word().span;
        self.name(what, help).or_else(|reported| match self.is_punct(b'{') {
            true => Ok(Name { text: String::new(), span }),
            false => Err(reported),
        })
    }

    fn value(&mut self) -> Parsed<Value> {
        let word = self.word();
        let kind = match word.kind {
            Kind::Ident if !KEYWORDS.contains(&self.text(word)) => {
                ValueKind::Name(self.text(word).to_owned())
            }
            Kind::Number => match number_value(self.text(word)) {
                Some(number) => ValueKind::Number(number),
                None => return self.no_value(word),
            },
            Kind::Char => match char_value(self.text(word)) {
                Some(number) => ValueKind::Number(number),
                None => return self.no_value(word),
            },
            Kind::Str => ValueKind::Text(self.text(word).to_owned()),
            Kind::Punct(b'-') => {
                self.advance();
                let digits = self.word();
                let number = match digits.kind {
                    Kind::Number => number_value(self.text(digits)),
                    _ => return self.syntax("a number", "a minus stands before digits only"),
                };
                let Some(number) = number else {
                    return self.no_value(digits);
                };
                self.advance();
                let kind = ValueKind::Number(-number);
                return Ok(Value { kind, span: word.span.to(digits.span) });
            }
            _ => return self.syntax("a constant", "write a number, or the name of a constant"),
        };
        self.advance();
        Ok(Value { kind, span: word.span })
    }

    fn no_value<T>(&mut self, word: Word) -> Parsed<T> {
        // The lexer complained about a number that is none.
        if word.kind == Kind::Char {
            let text = shown(self.text(word));
            self.diagnostics.push(
                Diagnostic::error("bad-value", word.span, format!("`{text}` is no constant"))
                    .help("a character literal is one ASCII character"),
            );
        }
        Err(Reported)
    }

    fn doc(&self, word: Word) -> Doc {
        word.doc.map_or_else(Doc::new, |index| self.stream.docs[index as usize].clone())
    }

    /// Adds what is documented behind the last word.
    fn doc_after(&self, doc: &mut Doc) {
        let last = self.at.checked_sub(1).map(|at| self.stream.words[at]);
        if let Some(index) = last.and_then(|word| word.doc_after) {
            if !doc.is_empty() {
                doc.push(String::new());
            }
            doc.extend(self.stream.docs[index as usize].iter().cloned());
        }
    }

    fn definition(&mut self) -> Parsed<Definition> {
        let first = self.word();
        let mut doc = self.doc(first);
        let keyword = match first.kind {
            Kind::Ident => self.text(first).to_owned(),
            _ => String::new(),
        };
        let (name, kind) = match keyword.as_str() {
            "const" => self.constant()?,
            "enum" => self.named_enum()?,
            "struct" => self.named_struct()?,
            "union" => self.named_union()?,
            "typedef" => self.typedef()?,
            "program" => self.program()?,
            _ => {
                let help = match keyword.as_str() {
                    "" if first.kind == Kind::Punct(b';') => "remove it: one `;` ends a definition",
                    "extern" | "static" | "class" | "service" | "interface" | "import"
                    | "message" => "this is the RPC language (RFC 4506, RFC 5531), no other one",
                    "int" | "unsigned" | "hyper" | "string" | "opaque" | "bool" | "float"
                    | "double" | "char" | "short" | "long" => {
                        "a file defines types, constants and programs, no variables"
                    }
                    _ => "definitions begin with const, enum, struct, union, typedef or program",
                };
                return self.syntax("a definition", help);
            }
        };
        self.semicolon("every definition ends with `;`")?;
        self.doc_after(&mut doc);
        Ok(Definition { name, doc, kind })
    }

    fn constant(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name("the name of a constant", "write `const NAME = value;`")?;
        self.expect(b'=', "a constant has a value: `const NAME = value;`")?;
        let value = self.value()?;
        Ok((name, DefinitionKind::Const(value)))
    }
}
