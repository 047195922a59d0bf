//! Types and declarations.

use super::{MAX_DEPTH, Parsed, Parser, Reported};
use crate::ast::{
    Arm, Base, BaseKind, Declaration, DefinitionKind, Doc, EnumItem, Name, Shape, Tag, UnionBody,
    Value,
};
use crate::diag::Diagnostic;
use crate::lex::Kind;

impl Parser<'_> {
    pub(super) fn named_enum(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name("the name of the enum")?;
        Ok((name, DefinitionKind::Enum(self.enum_body()?)))
    }

    pub(super) fn named_struct(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name("the name of the struct")?;
        if self.is_punct(b'*') {
            return self.syntax("`{`", Some("name a pointer type with typedef"));
        }
        Ok((name, DefinitionKind::Struct(self.struct_body()?)))
    }

    pub(super) fn named_union(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let name = self.name("the name of the union")?;
        Ok((name, DefinitionKind::Union(Box::new(self.union_body()?))))
    }

    pub(super) fn typedef(&mut self) -> Parsed<(Name, DefinitionKind)> {
        self.advance();
        let mut declaration = self.declaration()?;
        if self.is_punct(b',') {
            return self.syntax("`;`", Some("one name per typedef: write it again for the next"));
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
        self.expect(b'{', None)?;
        let mut items = Vec::new();
        loop {
            if self.is_punct(b'}') && !items.is_empty() {
                // A comma before the brace: C takes it, rpcgen does not, nobody is harmed.
                break;
            }
            let mut doc = self.doc(self.word());
            let name = self.name("the name of a value")?;
            let value = match self.eat(b'=') {
                Some(_) => Some(self.value()?),
                None => None,
            };
            let more = self.eat(b',').is_some();
            self.doc_after(&mut doc);
            items.push(EnumItem { name, doc, value });
            if !more {
                break;
            }
        }
        self.expect(b'}', Some("values are separated by `,`"))?;
        Ok(items)
    }

    fn struct_body(&mut self) -> Parsed<Vec<Declaration>> {
        self.expect(b'{', None)?;
        let mut fields = Vec::new();
        let mut broken = false;
        while !self.is_punct(b'}') {
            if self.word().kind == Kind::End || self.diagnostics.is_full() {
                return self.syntax("`}`", Some("a struct ends with `};`"));
            }
            match self.member() {
                Ok(field) => fields.push(field),
                Err(Reported) => {
                    broken = true;
                    self.next_member();
                }
            }
        }
        if fields.is_empty() && !broken {
            return self.syntax("a field", Some("a struct has at least one field"));
        }
        self.advance();
        Ok(fields)
    }

    fn member(&mut self) -> Parsed<Declaration> {
        let mut declaration = self.declaration()?;
        if self.is_punct(b',') {
            return self.syntax("`;`", Some("one name per declaration: repeat the type"));
        }
        if self.is_punct(b'[') || self.is_punct(b'<') {
            return self.syntax(
                "`;`",
                Some("arrays have one dimension: name the inner array with typedef"),
            );
        }
        self.semicolon(None)?;
        let mut doc = std::mem::take(&mut declaration.doc);
        self.doc_after(&mut doc);
        declaration.doc = doc;
        Ok(declaration)
    }

    fn union_body(&mut self) -> Parsed<UnionBody> {
        if !self.is_ident("switch") {
            return self.syntax(
                "`switch`",
                Some("unions are discriminated: union name switch (type name) { case ... }"),
            );
        }
        self.advance();
        self.expect(b'(', None)?;
        let switch = self.declaration()?;
        self.expect(b')', None)?;
        self.expect(b'{', None)?;
        let mut arms: Vec<Arm> = Vec::new();
        let mut default = None;
        loop {
            let doc = self.doc(self.word());
            if self.is_ident("case") {
                if default.is_some() {
                    return self.syntax("`}`", Some("the default arm is the last one"));
                }
                match self.arm(doc) {
                    Ok(arm) => arms.push(arm),
                    Err(Reported) => self.next_member(),
                }
            } else if self.is_ident("default") {
                self.advance();
                self.expect(b':', None)?;
                default = Some(self.arm_declaration(doc)?);
            } else {
                break;
            }
        }
        if arms.is_empty() {
            return self.syntax("`case`", Some("a union has at least one case"));
        }
        self.expect(b'}', Some("an arm is `case value: declaration;` or `default: ...`"))?;
        Ok(UnionBody { switch, arms, default })
    }

    fn arm(&mut self, doc: Doc) -> Parsed<Arm> {
        let mut cases: Vec<Value> = Vec::new();
        while self.is_ident("case") {
            self.advance();
            cases.push(self.value()?);
            self.expect(b':', None)?;
        }
        if self.is_ident("default") {
            return self.syntax(
                "a declaration",
                Some("`default` stands alone: its arm covers every value without a case"),
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
            return self.syntax("a name", Some("one `*`: name the inner pointer with typedef"));
        }
        let name = self.name("a name")?;
        let shape = self.shape(pointer)?;
        let span = first.span.to(self.previous());
        Ok(Declaration { name, doc, base, shape, span })
    }

    /// What stands behind a name: `[n]`, `<n>`, `<>`, or nothing.
    pub(super) fn shape(&mut self, pointer: bool) -> Parsed<Shape> {
        let opening = self.word();
        let shape = if self.eat(b'[').is_some() {
            if self.is_punct(b']') {
                return self.syntax(
                    "a length",
                    Some("write <> for a variable length, [n] for a fixed one"),
                );
            }
            let length = self.value()?;
            self.expect(b']', None)?;
            Shape::Fixed(length)
        } else if self.eat(b'<').is_some() {
            let max = if self.is_punct(b'>') { None } else { Some(self.value()?) };
            self.expect(b'>', None)?;
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
            return self.syntax("a type", None);
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
                return self
                    .syntax("a type", Some("numbers are signed unless `unsigned`: remove it"));
            }
            "enum" | "struct" | "union" => return self.tagged(&text),
            _ => match self.integer(&text, false) {
                Some(kind) => {
                    self.advance();
                    return self.no_second_word(Base { kind, span: word.span });
                }
                None => {
                    let name = self.name("a type")?;
                    return Ok(Base { kind: BaseKind::Named(name.text, None), span: name.span });
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
                Some("write `hyper` for 64 bits, `int` for 32; types are one word, or two with `unsigned`"),
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
        let name = self.name("the name of a type")?;
        if self.is_punct(b'{') {
            return self.syntax(
                "a name",
                Some("types are not defined within others by name: define it before"),
            );
        }
        Ok(Base { kind: BaseKind::Named(name.text, Some(tag)), span: start.to(name.span) })
    }
}
