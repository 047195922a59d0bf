//! Types and declarations.

use super::{KEYWORDS, MAX_DEPTH, Parsed, Parser, Reported};
use crate::ast::{
    Arm, Base, BaseKind, Declaration, DefinitionKind, Doc, EnumItem, Name, Shape, Tag, UnionBody,
    Value, ValueKind,
};
use crate::diag::Diagnostic;
use crate::lex::Kind;

/// What a type is.
const TYPE: &str = "write int, hyper, string, opaque, ... or the name of a defined type";

/// How a union is written.
const UNION: &str = "write `union name switch (type name) { case value: declaration; ... };`";

impl Parser<'_> {
    pub(super) fn named_enum(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name =
            self.name_of_body("the name of the enum", "write `enum name { VALUE, ... };`")?;
        Ok((name, DefinitionKind::Enum(self.enum_body()?)))
    }

    pub(super) fn named_struct(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let help = "write `struct name { type field; ... };`";
        let name = self.name_of_body("the name of the struct", help)?;
        if self.is_punct(b'*') {
            return self.syntax("`{`", "name a pointer type with typedef");
        }
        Ok((name, DefinitionKind::Struct(self.struct_body()?)))
    }

    pub(super) fn named_union(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name_of_body("the name of the union", UNION)?;
        Ok((name, DefinitionKind::Union(Box::new(self.union_body()?))))
    }

    pub(super) fn typedef(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let mut declaration = self.declaration()?;
        if self.is_punct(b',') {
            return self.syntax("`;`", "one name per typedef: write it again for the next");
        }
        let name = declaration.name.clone();
        declaration.doc = Doc::new();
        Ok((name, DefinitionKind::Typedef(declaration)))
    }

    fn enter<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            self.diagnostics.push(
                Diagnostic::error(
                    "too-deep",
                    self.word().span,
                    format!("unnamed types are nested deeper than {MAX_DEPTH}"),
                )
                .help("give the inner ones names"),
            );
            return Err(Reported);
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn enum_body(&mut self) -> Parsed<Vec<EnumItem>> {
        self.expect(b'{', "the values of an enum stand in braces: `enum name { VALUE, ... };`")?;
        let mut items = Vec::new();
        let mut broken = false;
        // A comma before the brace: C takes it, rpcgen does not, nobody is harmed.
        while !self.is_punct(b'}') {
            if self.ends_early() || self.ends_without_brace() {
                let reported = self.syntax("`}`", "an enum ends with `};`");
                return if self.is_punct(b';') { Ok(items) } else { reported };
            }
            let start = self.at;
            match self.enum_item() {
                Ok(item) => items.push(item),
                Err(Reported) => {
                    broken = true;
                    self.next_value(start);
                }
            }
        }
        if items.is_empty() && !broken {
            return self.syntax("the name of a value", "an enum has at least one value");
        }
        self.advance();
        Ok(items)
    }

    /// A value of an enum, and the `,` behind it.
    fn enum_item(&mut self) -> Parsed<EnumItem> {
        let mut doc = self.doc(self.word());
        let name = self.name("the name of a value", "values are separated by one `,`")?;
        let start = self.at;
        let value = match self.eat(b'=').map(|_| self.value()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(Reported)) => {
                let value = Value { kind: ValueKind::Unread, span: self.word().span };
                self.next_value(start);
                return Ok(EnumItem { name, doc, value: Some(value) });
            }
        };
        let ends = self.is_punct(b'}') || self.ends_early() || self.ends_without_brace();
        if self.eat(b',').is_none() && !ends {
            let _: Parsed<()> = self.syntax("`}`", "values are separated by `,`");
            // A name goes on as if the `,` were there.
            if self.word().kind != Kind::Ident {
                self.next_value(self.at);
            }
        }
        self.doc_after(&mut doc);
        Ok(EnumItem { name, doc, value })
    }

    /// Whether here is a `;` and behind it no further value.
    fn ends_without_brace(&self) -> bool {
        let next = self.ahead(1);
        let value = next.kind == Kind::Ident && !KEYWORDS.contains(&self.text(next));
        self.is_punct(b';') && !value && next.kind != Kind::Punct(b'}')
    }

    fn struct_body(&mut self) -> Parsed<Vec<Declaration>> {
        self.expect(
            b'{',
            "the fields of a struct stand in braces: `struct name { type field; ... };`",
        )?;
        let early = ("`}`", "a struct ends with `};`");
        let none = ("a field", "a struct has at least one field");
        self.list(Self::ends_early, early, Self::member, none)
    }

    fn member(&mut self) -> Parsed<Declaration> {
        let mut declaration = self.declaration()?;
        if self.is_punct(b',') {
            return self.syntax("`;`", "one name per declaration: repeat the type");
        }
        if self.is_punct(b'[') || self.is_punct(b'<') {
            return self
                .syntax("`;`", "arrays have one dimension: name the inner array with typedef");
        }
        self.semicolon("every member ends with `;`")?;
        let mut doc = std::mem::take(&mut declaration.doc);
        self.doc_after(&mut doc);
        declaration.doc = doc;
        Ok(declaration)
    }

    fn union_body(&mut self) -> Parsed<UnionBody> {
        if !self.is_ident("switch") {
            return self.syntax(
                "`switch`",
                "unions are discriminated: union name switch (type name) { case ... }",
            );
        }
        self.advance();
        self.expect(b'(', UNION)?;
        let switch = self.declaration()?;
        self.expect(b')', "a union switches on one value: `switch (type name)`")?;
        self.expect(
            b'{',
            "the arms of a union stand in braces: `{ case value: declaration; ... }`",
        )?;
        let mut arms: Vec<Arm> = Vec::new();
        let mut default = None;
        let mut broken = false;
        while !self.is_punct(b'}') {
            if self.ends_early() {
                return self.syntax("`}`", "a union ends with `};`");
            }
            let start = self.at;
            if default.is_some() {
                broken = true;
                let _: Parsed<()> =
                    self.syntax("`}`", "there is one default arm, and it is the last one");
            }
            let doc = self.doc(self.word());
            let arm = if self.is_ident("case") {
                self.arm(doc).map(|arm| arms.push(arm))
            } else if self.is_ident("default") {
                self.default_arm(doc).map(|arm| default = Some(arm))
            } else if default.is_some() {
                Err(Reported)
            } else {
                self.syntax("`case`", "an arm is `case value: declaration;` or `default: ...`")
            };
            if let Err(Reported) = arm {
                broken = true;
                self.next_member(start);
            }
        }
        if arms.is_empty() && !broken {
            return self.syntax("`case`", "a union has at least one case");
        }
        self.advance();
        Ok(UnionBody { switch, arms, default })
    }

    fn default_arm(&mut self, doc: Doc) -> Parsed<Declaration> {
        self.advance();
        self.expect(b':', "write `default: declaration;`")?;
        self.arm_declaration(doc)
    }

    fn arm(&mut self, doc: Doc) -> Parsed<Arm> {
        let mut cases: Vec<Value> = Vec::new();
        while self.is_ident("case") {
            self.advance();
            cases.push(self.value()?);
            self.expect(b':', "write `case value: declaration;`")?;
        }
        if self.is_ident("default") {
            return self.syntax(
                "a declaration",
                "`default` stands alone: its arm covers every value without a case",
            );
        }
        Ok(Arm { cases, declaration: self.arm_declaration(doc)? })
    }

    fn arm_declaration(&mut self, mut doc: Doc) -> Parsed<Declaration> {
        let mut declaration = self.member()?;
        if !doc.is_empty() && !declaration.doc.is_empty() {
            doc.push(String::new());
        }
        doc.append(&mut declaration.doc);
        declaration.doc = doc;
        Ok(declaration)
    }

    /// `type name`, `type name[n]`, `type name<n>`, `type *name`, or `void`.
    pub(super) fn declaration(&mut self) -> Parsed<Declaration> {
        let first = self.word();
        let doc = self.doc(first);
        let base = self.base()?;
        if base.kind == BaseKind::Void
            && !matches!(self.word().kind, Kind::Ident | Kind::Punct(b'*'))
        {
            let name = Name { text: String::new(), span: base.span };
            let span = base.span;
            return Ok(Declaration { name, doc, base, shape: Shape::One, span });
        }
        let pointer = self.eat(b'*').is_some();
        if pointer && self.is_punct(b'*') {
            return self.syntax("a name", "one `*`: name the inner pointer with typedef");
        }
        let name = self.name("a name", "a declaration is a type and a name: `int x`")?;
        let shape = self.shape(pointer)?;
        let span = first.span.to(self.previous());
        Ok(Declaration { name, doc, base, shape, span })
    }

    /// What stands behind a name: `[n]`, `<n>`, `<>`, or nothing.
    pub(super) fn shape(&mut self, pointer: bool) -> Parsed<Shape> {
        let opening = self.word();
        let shape = if self.eat(b'[').is_some() {
            if self.is_punct(b']') {
                return self
                    .syntax("a length", "write <> for a variable length, [n] for a fixed one");
            }
            let length = self.value()?;
            self.expect(b']', "one length stands in brackets: `[n]`")?;
            Shape::Fixed(length)
        } else if self.eat(b'<').is_some() {
            let max = if self.is_punct(b'>') { None } else { Some(self.value()?) };
            self.expect(b'>', "one limit, or none, stands in angle brackets: `<n>`, `<>`")?;
            Shape::Variable(max)
        } else if pointer {
            return Ok(Shape::Optional);
        } else {
            return Ok(Shape::One);
        };
        if pointer {
            self.diagnostics.push(
                Diagnostic::error(
                    "array-of-pointers",
                    opening.span,
                    "an array of pointers cannot be declared at once",
                )
                .help("name the pointer type with typedef, then declare an array of that"),
            );
        }
        Ok(shape)
    }

    pub(super) fn base(&mut self) -> Parsed<Base> {
        let word = self.word();
        if word.kind != Kind::Ident {
            return self.syntax("a type", TYPE);
        }
        let text = self.text(word).to_owned();
        let kind = match text.as_str() {
            "void" => BaseKind::Void,
            "bool" => BaseKind::Bool,
            "float" => BaseKind::Float,
            "double" => BaseKind::Double,
            "quadruple" => BaseKind::Quadruple,
            "opaque" => BaseKind::Opaque,
            "string" => BaseKind::Text,
            "unsigned" => {
                self.advance();
                let next =
                    if self.word().kind == Kind::Ident { self.text(self.word()) } else { "" };
                match self.integer(next, true) {
                    Some(kind) => {
                        let span = word.span.to(self.word().span);
                        self.advance();
                        return self.no_second_word(Base { kind, span });
                    }
                    None => {
                        let kind = BaseKind::Int { unsigned: true };
                        return Ok(Base { kind, span: word.span });
                    }
                }
            }
            "signed" => {
                return self.syntax("a type", "numbers are signed unless `unsigned`: remove it");
            }
            "enum" | "struct" | "union" => return self.tagged(&text),
            _ => match self.integer(&text, false) {
                Some(kind) => {
                    self.advance();
                    return self.no_second_word(Base { kind, span: word.span });
                }
                None => {
                    if KEYWORDS.contains(&text.as_str()) {
                        return self.syntax("a type", TYPE);
                    }
                    self.advance();
                    return Ok(Base { kind: BaseKind::Named(text, None), span: word.span });
                }
            },
        };
        self.advance();
        Ok(Base { kind, span: word.span })
    }

    fn integer(&self, text: &str, unsigned: bool) -> Option<BaseKind> {
        Some(match text {
            "char" => BaseKind::Char { unsigned },
            "short" => BaseKind::Short { unsigned },
            "int" | "long" => BaseKind::Int { unsigned },
            "hyper" => BaseKind::Hyper { unsigned },
            _ => return None,
        })
    }

    /// `long long`, `long int` and the like are C.
    fn no_second_word(&mut self, base: Base) -> Parsed<Base> {
        if self.is_ident("long") || self.is_ident("int") {
            return self.syntax(
                "a name",
                "write `hyper` for 64 bits, `int` for 32; types are one word, or two with `unsigned`",
            );
        }
        Ok(base)
    }

    fn tagged(&mut self, keyword: &str) -> Parsed<Base> {
        let start = self.word().span;
        let next = self.ahead(1);
        let inline = match next.kind {
            Kind::Punct(b'{') => keyword != "union",
            Kind::Ident => keyword == "union" && self.text(next) == "switch",
            _ => false,
        };
        if inline {
            self.advance();
            let kind = self.enter(|parser| {
                Ok(match keyword {
                    "enum" => BaseKind::Enum(parser.enum_body()?),
                    "struct" => BaseKind::Struct(parser.struct_body()?),
                    _ => BaseKind::Union(Box::new(parser.union_body()?)),
                })
            })?;
            return Ok(Base { kind, span: start });
        }
        self.advance();
        let tag = match keyword {
            "enum" => Tag::Enum,
            "struct" => Tag::Struct,
            _ => Tag::Union,
        };
        let name =
            self.name("the name of a type", "a type is defined before, and used by its name")?;
        if self.is_punct(b'{') {
            return self
                .syntax("a name", "types are not defined within others by name: define it before");
        }
        Ok(Base { kind: BaseKind::Named(name.text, Some(tag)), span: start.to(name.span) })
    }
}
