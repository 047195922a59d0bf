//! Programs, versions and procedures.

use super::{KEYWORDS, Parsed, Parser, Reported};
use crate::ast::{
    BaseKind, Declaration, DefinitionKind, Direction, Doc, Name, Parameter, Procedure, Program,
    Shape, Transfer, Value, ValueKind, Version,
};
use crate::lex::Kind;
use crate::source::Span;

/// How a program, a version and a procedure are written.
const PROGRAM: &str = "write `program NAME { version ... } = number;`";
const VERSION: &str = "write `version NAME { procedures } = number;`";
const PROCEDURE: &str = "write `type NAME(parameters) = number;`";

impl Parser<'_> {
    pub(super) fn program(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name_of_body("the name of the program", PROGRAM)?;
        self.opening(PROGRAM, |it| it.is_ident("version"))?;
        let mut versions = Vec::new();
        let mut broken = None;
        while !self.is_punct(b'}') {
            if self.ends_early() {
                // A version that ends early here has said so.
                return match broken == Some(self.at) {
                    true => Err(Reported),
                    false => self.syntax("`}`", "a program ends with `} = number;`"),
                };
            }
            let start = self.at;
            let version = match self.is_ident("version") {
                true => self.version(),
                false => self.syntax(
                    "`version`",
                    "a program is made of versions; a procedure stands in one of them",
                ),
            };
            match version {
                Ok(version) => versions.push(version),
                Err(Reported) => {
                    self.next_version(start);
                    broken = Some(self.at);
                }
            }
        }
        if versions.is_empty() && broken.is_none() {
            return self.syntax("`version`", "a program has at least one version");
        }
        self.advance();
        let number = self.number("program", "} = 0x20000001;");
        Ok((name, DefinitionKind::Program(Program { versions, number })))
    }

    /// The `{` before a list. If it is missing, but what follows is of the list, the list is read all the same.
    fn opening(&mut self, help: &str, goes_on: impl FnOnce(&Self) -> bool) -> Parsed<()> {
        match self.expect(b'{', help) {
            Err(reported) if !goes_on(self) => Err(reported),
            _ => Ok(()),
        }
    }

    /// The number of something. After an error, stands before the `;`.
    fn number(&mut self, what: &str, example: &str) -> Value {
        let span = self.word().span;
        let help = format!("a {what} has a number: `{example}`");
        let number = self.expect(b'=', &help).and_then(|_| self.value());
        number.unwrap_or_else(|Reported| {
            // A brace belongs to what is around it, and a word at the start of a line may begin the next.
            let ends = |it: &Self| {
                matches!(it.word().kind, Kind::End | Kind::Punct(b';' | b'{' | b'}'))
                    || it.is_ident("version")
                    || it.ends_early()
            };
            while !ends(self) {
                self.advance();
            }
            Value { kind: ValueKind::Unread, span }
        })
    }

    /// The `;` behind a number, unless that was broken.
    fn end_of(&mut self, number: &Value, help: &str) -> Parsed<()> {
        if number.kind == ValueKind::Unread {
            self.eat(b';');
            return Ok(());
        }
        self.semicolon(help).map(drop)
    }

    fn version(&mut self) -> Parsed<Version> {
        let mut doc = self.doc(self.word());
        self.advance();
        let name = self.name_of_body("the name of the version", VERSION)?;
        self.opening(VERSION, |it| it.word().kind == Kind::Ident)?;
        let early = ("`}`", "a version ends with `} = number;`");
        let none = ("a procedure", "a version has at least one procedure");
        let over = |it: &Self| it.ends_early() || it.is_ident("version");
        let procedures = self.list(over, early, Self::procedure, none)?;
        let number = self.number("version", "} = 1;");
        self.end_of(&number, "a version ends with `} = number;`")?;
        self.doc_after(&mut doc);
        Ok(Version { name, doc, procedures, number })
    }

    /// Takes a word of the extensions, if `holds`.
    fn extension(&mut self, word: &str, holds: impl FnOnce(&Self) -> bool) -> Option<Span> {
        (self.is_ident(word) && holds(self)).then(|| self.advance().span)
    }

    fn procedure(&mut self) -> Parsed<Procedure> {
        let mut doc = self.doc(self.word());
        let (mut oneway, mut copyin, mut deferred) = (None, None, None);
        // `oneway F(...)` is a procedure F that returns type `oneway`; `oneway void F(...)` is not.
        let before_type = |parser: &Self| {
            parser.ahead(1).kind == Kind::Ident && parser.ahead(2).kind != Kind::Punct(b'(')
        };
        loop {
            if let Some(span) = self.extension("oneway", before_type) {
                oneway = Some(span);
            } else if let Some(span) = self.extension("copyin", before_type) {
                copyin = Some(span);
            } else if let Some(span) = self.extension("deferred", before_type) {
                deferred = Some(span);
            } else {
                break;
            }
        }
        let result = self.unnamed()?;
        let name = self.name("the name of the procedure", PROCEDURE)?;
        self.expect(b'(', PROCEDURE)?;
        let mut parameters = self.parameters()?;
        if let [only] = &parameters[..]
            && only.declaration.base.kind == BaseKind::Void
            && only.declaration.name.text.is_empty()
            && only.declaration.shape == Shape::One
        {
            parameters.clear();
        }
        let number = self.number("procedure", "int ADD(int, int) = 1;");
        self.end_of(&number, "a procedure ends with `;`")?;
        self.doc_after(&mut doc);
        Ok(Procedure { name, doc, oneway, copyin, deferred, result, parameters, number })
    }

    /// The parameters, and the `)` behind them. Those that are broken are left out.
    fn parameters(&mut self) -> Parsed<Vec<Parameter>> {
        let mut parameters = Vec::new();
        if self.eat(b')').is_some() {
            return Ok(parameters);
        }
        loop {
            let start = self.at;
            match self.parameter() {
                Ok(parameter) => parameters.push(parameter),
                Err(Reported) => self.next_parameter(start),
            }
            if self.eat(b',').is_some() {
                continue;
            }
            if self.eat(b')').is_some() {
                return Ok(parameters);
            }
            let start = self.at;
            let reported = self.syntax("`)`", "parameters are separated by `,`");
            if self.is_punct(b';') && self.ends_list() {
                self.advance();
            }
            // A type goes on as if the `,` were there; a definition ends the list.
            if self.word().kind != Kind::Ident || self.ends_early() {
                self.next_parameter(start);
                if self.eat(b',').is_none() && !self.is_punct(b')') {
                    return reported;
                }
            }
        }
    }

    /// Whether a `)` ends what begins here before another list or procedure begins.
    fn ends_list(&self) -> bool {
        let rest = &self.stream.words[self.at + 1..];
        let next = rest.iter().find(|word| {
            matches!(word.kind, Kind::End | Kind::Punct(b'(' | b')' | b';' | b'{' | b'}'))
        });
        next.is_some_and(|word| word.kind == Kind::Punct(b')'))
    }

    /// A type without a name: what a procedure returns.
    fn unnamed(&mut self) -> Parsed<Declaration> {
        let start = self.word().span;
        let base = self.base()?;
        let pointer = self.eat(b'*').is_some();
        let shape = self.shape(pointer)?;
        let name = Name { text: String::new(), span: base.span };
        let span = start.to(self.previous());
        Ok(Declaration { name, doc: Doc::new(), base, shape, span })
    }

    fn parameter(&mut self) -> Parsed<Parameter> {
        let doc = self.doc(self.word());
        let before_type = |parser: &Self| parser.ahead(1).kind == Kind::Ident;
        let direction = if self.extension("inout", before_type).is_some() {
            Direction::InOut
        } else if self.extension("out", before_type).is_some() {
            Direction::Out
        } else {
            self.extension("in", before_type);
            Direction::In
        };
        let transfer = if let Some(span) = self.extension("bulk", before_type) {
            Some((Transfer::Bulk, span))
        } else {
            self.extension("plain", before_type).map(|span| (Transfer::Plain, span))
        };
        let start = self.word().span;
        let base = self.base()?;
        let pointer = self.eat(b'*').is_some();
        let word = self.word();
        let named = word.kind == Kind::Ident && !KEYWORDS.contains(&self.text(word));
        let name = if named {
            self.advance();
            Name { text: self.text(word).to_owned(), span: word.span }
        } else {
            Name { text: String::new(), span: base.span }
        };
        let shape = self.shape(pointer)?;
        let span = start.to(self.previous());
        let mut doc = doc;
        self.doc_after(&mut doc);
        Ok(Parameter {
            direction,
            transfer,
            declaration: Declaration { name, doc, base, shape, span },
        })
    }
}
