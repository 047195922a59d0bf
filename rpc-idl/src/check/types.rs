//! Types in use, structs and unions.

use super::constants::builtin_type;
use super::{Checker, nearest};
use crate::ast::{Base, BaseKind, Declaration, Doc, Shape, Tag, UnionBody, Value, ValueKind};
use crate::diag::Diagnostic;
use crate::model::{Arm, Case, Field, Type, TypeId, TypeKind, Union};
use crate::source::Span;
use std::collections::{HashMap, HashSet};

/// Where a type is used: some are allowed in some places only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Field,
    Arm,
    Typedef,
    Switch,
    Result,
    Parameter,
}

impl<'a> Checker<'a> {
    /// The type of a declaration. What was reported becomes [`Type::Void`].
    pub(super) fn declared_type(
        &mut self,
        declaration: &'a Declaration,
        owner: &str,
        place: Place,
    ) -> Type {
        let base = &declaration.base;
        match base.kind {
            BaseKind::Void => {
                self.void(declaration, place);
                return Type::Void;
            }
            BaseKind::Opaque => return self.opaque(declaration),
            BaseKind::Text => return self.text(declaration, place),
            _ => {}
        }
        let element = self.base(base, &declaration.name.text, owner, place);
        match &declaration.shape {
            Shape::One => element,
            _ if element == Type::Void => Type::Void,
            Shape::Optional => Type::Optional(Box::new(element)),
            Shape::Fixed(length) => match self.length(length, 1) {
                Some(length) => Type::Array(Box::new(element), length),
                None => Type::Void,
            },
            Shape::Variable(max) => match self.max(max.as_ref()) {
                Some(max) => Type::Vec(Box::new(element), max),
                None => Type::Void,
            },
        }
    }

    fn void(&mut self, declaration: &Declaration, place: Place) {
        let named = !declaration.name.text.is_empty() || declaration.shape != Shape::One;
        if matches!(place, Place::Arm | Place::Result) && !named {
            return;
        }
        let help = match place {
            Place::Arm => "an arm without data is `void;`",
            Place::Result => "a procedure without a result returns `void`",
            Place::Parameter => "a procedure without parameters is written `F(void)`",
            _ => {
                "`void` stands for nothing, in an arm of a union or as a procedure's result; use `opaque` for bytes"
            }
        };
        self.push(
            Diagnostic::error("void-here", declaration.base.span, "`void` cannot be used here")
                .help(help),
        );
    }

    fn opaque(&mut self, declaration: &Declaration) -> Type {
        match &declaration.shape {
            Shape::Fixed(length) => self.length(length, 1).map_or(Type::Void, Type::OpaqueArray),
            Shape::Variable(max) => self.max(max.as_ref()).map_or(Type::Void, Type::Opaque),
            Shape::One | Shape::Optional => {
                self.push(
                    Diagnostic::error(
                        "opaque-needs-length",
                        declaration.span,
                        "`opaque` data has a length",
                    )
                    .help("write opaque name[n] for exactly n bytes, opaque name<n> for at most n, opaque name<> for any number"),
                );
                Type::Void
            }
        }
    }

    fn text(&mut self, declaration: &Declaration, place: Place) -> Type {
        match &declaration.shape {
            Shape::Variable(max) => self.max(max.as_ref()).map_or(Type::Void, Type::Text),
            // As rpcgen has it.
            Shape::One if matches!(place, Place::Parameter | Place::Result) => Type::Text(u32::MAX),
            shape => {
                let help = match shape {
                    Shape::Optional => "name the string type with typedef, then point to that",
                    Shape::Fixed(_) => {
                        "a string has a variable length: string name<n>; for exactly n bytes take opaque"
                    }
                    _ => "write string name<n> for at most n bytes, string name<> for any number",
                };
                self.push(
                    Diagnostic::error(
                        "string-needs-limit",
                        declaration.span,
                        "a `string` has a variable length",
                    )
                    .help(help),
                );
                Type::Void
            }
        }
    }

    fn length(&mut self, value: &Value, low: i128) -> Option<u32> {
        let number = self.number_within(value, "length", low, i128::from(u32::MAX))?;
        u32::try_from(number).ok()
    }

    fn max(&mut self, value: Option<&Value>) -> Option<u32> {
        value.map_or(Some(u32::MAX), |value| self.length(value, 0))
    }

    fn base(&mut self, base: &'a Base, name: &str, owner: &str, place: Place) -> Type {
        match &base.kind {
            BaseKind::Bool => Type::Bool,
            BaseKind::Char { unsigned } => Type::Int { bits: 8, unsigned: *unsigned },
            BaseKind::Short { unsigned } => Type::Int { bits: 16, unsigned: *unsigned },
            BaseKind::Int { unsigned } => Type::Int { bits: 32, unsigned: *unsigned },
            BaseKind::Hyper { unsigned } => Type::Int { bits: 64, unsigned: *unsigned },
            BaseKind::Float => Type::Float,
            BaseKind::Double => Type::Double,
            BaseKind::Quadruple => Type::Quad,
            BaseKind::Named(name, tag) => self.named(name, *tag, base.span),
            BaseKind::Void | BaseKind::Opaque | BaseKind::Text => Type::Void, // seen before
            BaseKind::Enum(_) | BaseKind::Struct(_) | BaseKind::Union(_) => {
                if matches!(place, Place::Result | Place::Parameter | Place::Switch) {
                    self.push(
                        Diagnostic::error("unnamed-type", base.span, "this type needs a name")
                            .help("define it before, and use its name here"),
                    );
                    return Type::Void;
                }
                Type::Named(self.inline(base, name, owner))
            }
        }
    }

    /// Defines an unnamed type, under a name made from those around it.
    fn inline(&mut self, base: &'a Base, name: &str, owner: &str) -> TypeId {
        let mut full = if owner == name { format!("{owner}_t") } else { format!("{owner}_{name}") };
        while self.types.contains_key(&full) {
            full.push('_');
        }
        let id = self.new_type(&full, &[], base.span);
        self.types.insert(full.clone(), (id, None, base.span));
        let kind = match &base.kind {
            BaseKind::Enum(items) => TypeKind::Enum(self.enum_values(items)),
            BaseKind::Struct(fields) => TypeKind::Struct(self.fields(fields, &full)),
            BaseKind::Union(body) => {
                self.unions.push((id, body));
                self.union(body, &full)
            }
            _ => TypeKind::Alias(Type::Void),
        };
        self.model.types[id.0].kind = kind;
        self.model.items.push(crate::model::Item::Type(id));
        id
    }

    fn named(&mut self, name: &str, tag: Option<Tag>, span: Span) -> Type {
        let Some((id, defined, place)) = self.types.get(name).copied() else {
            if let Some(ty) = builtin_type(name) {
                return ty;
            }
            if !self.diagnostics.is_full() && !self.unread.contains(name) {
                let near = nearest(name, self.types.keys()).cloned();
                let help = match near {
                    _ if matches!(name, "oneway" | "copyin" | "deferred") => {
                        let result = if name == "oneway" { "void" } else { "TYPE" };
                        format!("the result stands behind it: `{name} {result} NAME(...) = 1;`")
                    }
                    Some(near) => format!("there is `{near}`"),
                    None => "define it, include its file, or say where it is defined: \
                             --extern-type NAME=PATH, in a build script Builder::extern_type"
                        .to_owned(),
                };
                self.push(
                    Diagnostic::error(
                        "undefined-type",
                        span,
                        format!("type `{name}` is not defined"),
                    )
                    .help(help),
                );
            }
            return Type::Void;
        };
        if let (Some(tag), Some(defined)) = (tag, defined)
            && tag != defined
        {
            let word = |tag| match tag {
                Tag::Struct => "struct",
                Tag::Enum => "enum",
                Tag::Union => "union",
            };
            self.push(
                Diagnostic::error(
                    "tag-mismatch",
                    span,
                    format!("`{name}` is no {}, it is a {}", word(tag), word(defined)),
                )
                .related(place, "defined here")
                .help("the name alone is enough"),
            );
        }
        Type::Named(id)
    }

    pub(super) fn fields(&mut self, fields: &'a [Declaration], owner: &str) -> Vec<Field> {
        let mut seen: HashMap<&str, Span> = HashMap::new();
        let mut out = Vec::new();
        for field in fields {
            let name = &field.name.text;
            if let Some(earlier) = seen.insert(name, field.name.span)
                && !name.is_empty()
            {
                self.push(
                    Diagnostic::error(
                        "duplicate-field",
                        field.name.span,
                        format!("field `{name}` is declared twice"),
                    )
                    .label("declared again")
                    .related(earlier, "declared here")
                    .help("rename one"),
                );
                continue;
            }
            let ty = self.declared_type(field, owner, Place::Field);
            out.push(Field { name: name.clone(), doc: field.doc.clone(), ty });
        }
        out
    }

    /// A union, its cases not yet compared with its discriminant: see [`Checker::check_unions`].
    pub(super) fn union(&mut self, body: &'a UnionBody, owner: &str) -> TypeKind {
        let switch = self.declared_type(&body.switch, owner, Place::Switch);
        let mut seen: HashMap<&str, Span> = HashMap::new();
        let mut arms = Vec::new();
        for arm in &body.arms {
            let mut cases = Vec::new();
            for case in &arm.cases {
                let Some(value) = self.number(case) else { continue };
                let Ok(value) = i64::try_from(value) else { continue }; // reported later
                let name = match &case.kind {
                    ValueKind::Name(name) => Some(name.clone()),
                    _ => None,
                };
                cases.push(Case { value, name });
            }
            let field = self.arm(&arm.declaration, owner, &mut seen);
            arms.push(Arm { cases, field });
        }
        let default = body.default.as_ref().map(|d| self.arm(d, owner, &mut seen));
        TypeKind::Union(Union { switch_name: body.switch.name.text.clone(), switch, arms, default })
    }

    fn arm(
        &mut self,
        declaration: &'a Declaration,
        owner: &str,
        seen: &mut HashMap<&'a str, Span>,
    ) -> Field {
        let name = &declaration.name.text;
        if !name.is_empty()
            && let Some(earlier) = seen.insert(name, declaration.name.span)
        {
            self.push(
                Diagnostic::error(
                    "duplicate-field",
                    declaration.name.span,
                    format!("arm `{name}` is declared twice"),
                )
                .label("declared again")
                .related(earlier, "declared here")
                .help("rename one, or give one arm several cases"),
            );
        }
        let ty = self.declared_type(declaration, owner, Place::Arm);
        Field { name: name.clone(), doc: Doc::clone(&declaration.doc), ty }
    }

    /// Compares the cases of all unions with what they switch on, when every type is known.
    pub(super) fn check_unions(&mut self) {
        for (id, body) in std::mem::take(&mut self.unions) {
            let TypeKind::Union(union) = &self.model.def(id).kind else { continue };
            let switch = self.model.resolve(&union.switch).clone();
            let mut members: Option<HashSet<i64>> = None;
            let (what, low, high): (String, i128, i128) = match &switch {
                Type::Void => continue, // reported
                Type::Bool => ("bool".to_owned(), 0, 1),
                Type::Int { bits, unsigned: true } => {
                    // Cases are kept as `i64`; nobody numbers them from the other end.
                    let high = ((1i128 << bits) - 1).min(i128::from(i64::MAX));
                    ("unsigned number".to_owned(), 0, high)
                }
                Type::Int { bits, unsigned: false } => {
                    ("number".to_owned(), -(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                }
                Type::Named(id) if matches!(self.model.def(*id).kind, TypeKind::Enum(_)) => {
                    let def = self.model.def(*id);
                    if let TypeKind::Enum(values) = &def.kind {
                        members = Some(values.iter().map(|v| i64::from(v.value)).collect());
                    }
                    (format!("enum {}", def.name), i128::from(i32::MIN), i128::from(i32::MAX))
                }
                _ => {
                    self.push(
                        Diagnostic::error(
                            "bad-discriminant",
                            body.switch.span,
                            "a union cannot switch on this type",
                        )
                        .help(
                            "the discriminant is an integer, signed or unsigned, a bool or an enum",
                        ),
                    );
                    continue;
                }
            };
            let mut seen: HashMap<i128, Span> = HashMap::new();
            for case in body.arms.iter().flat_map(|arm| &arm.cases) {
                self.case(case, &what, (low, high), members.as_ref(), &mut seen);
            }
        }
    }

    fn case(
        &mut self,
        case: &Value,
        what: &str,
        (low, high): (i128, i128),
        members: Option<&HashSet<i64>>,
        seen: &mut HashMap<i128, Span>,
    ) {
        // A constant that is no number was reported when the union was defined.
        let before = self.diagnostics.mark();
        let Some(number) = self.number(case) else {
            self.diagnostics.forget(before);
            return;
        };
        let text = Self::value_text(&case.kind);
        if let Some(earlier) = seen.insert(number, case.span) {
            self.push(
                Diagnostic::error(
                    "duplicate-case",
                    case.span,
                    format!("case {text} occurs twice in the union"),
                )
                .label("this case again")
                .related(earlier, "first here")
                .help("remove one"),
            );
            return;
        }
        let member = members.is_none_or(|m| i64::try_from(number).is_ok_and(|it| m.contains(&it)));
        if !member || !(low..=high).contains(&number) {
            let help = if members.is_some() {
                "take one of the enum's values".to_owned()
            } else {
                format!("cases lie between {low} and {high}")
            };
            self.push(
                Diagnostic::error("bad-case", case.span, format!("{text} is no value of {what}"))
                    .help(help),
            );
        }
    }
}
