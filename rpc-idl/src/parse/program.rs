//! Programs, versions and procedures.

use super::{KEYWORDS, Parsed, Parser, Reported};
use crate::ast::{
    BaseKind, Declaration, DefinitionKind, Direction, Doc, Name, Parameter, Procedure, Program,
    Shape, Transfer, Value, Version,
};
use crate::lex::Kind;
use crate::source::Span;

impl Parser<'_> {
    pub(super) fn program(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name("the name of the program")?;
        self.expect(b'{', None)?;
        let mut versions = Vec::new();
        while self.is_ident("version") {
            versions.push(self.version()?);
        }
        if versions.is_empty() {
            return self.syntax("`version`", Some("a program has at least one version"));
        }
        self.expect(b'}', None)?;
        let number = self.number("program", "} = 0x20000001;")?;
        Ok((name, DefinitionKind::Program(Program { versions, number })))
    }

    fn number(&mut self, what: &str, example: &str) -> Parsed<Value> {
        let help = format!("a {what} has a number: `{example}`");
        self.expect(b'=', Some(&help))?;
        self.value()
    }

    fn version(&mut self) -> Parsed<Version> {
        let mut doc = self.doc(self.word());
        self.advance();
        let name = self.name("the name of the version")?;
        self.expect(b'{', None)?;
        let mut procedures = Vec::new();
        let mut broken = false;
        while !self.is_punct(b'}') {
            if self.word().kind == Kind::End || self.diagnostics.is_full() {
                return self.syntax("`}`", Some("a version ends with `} = number;`"));
            }
            match self.procedure() {
                Ok(procedure) => procedures.push(procedure),
                Err(Reported) => {
                    broken = true;
                    self.next_member();
                }
            }
        }
        if procedures.is_empty() && !broken {
            return self.syntax("a procedure", Some("a version has at least one procedure"));
        }
        self.advance();
        let number = self.number("version", "} = 1;")?;
        self.semicolon(None)?;
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
        let name = self.name("the name of the procedure")?;
        self.expect(b'(', None)?;
        let mut parameters = Vec::new();
        if !self.is_punct(b')') {
            loop {
                let parameter = self.parameter()?;
                parameters.push(parameter);
                if self.eat(b',').is_none() {
                    break;
                }
            }
        }
        self.expect(b')', Some("parameters are separated by `,`"))?;
        if let [only] = &parameters[..]
            && only.declaration.base.kind == BaseKind::Void
            && only.declaration.name.text.is_empty()
            && only.declaration.shape == Shape::One
        {
            parameters.clear();
        }
        let number = self.number("procedure", "int ADD(int, int) = 1;")?;
        self.semicolon(None)?;
        self.doc_after(&mut doc);
        Ok(Procedure { name, doc, oneway, copyin, deferred, result, parameters, number })
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
        let named = self.word().kind == Kind::Ident && !KEYWORDS.contains(&self.text(self.word()));
        let name = if named {
            self.name("the name of the parameter")?
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
