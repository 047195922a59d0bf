//! Programs, versions, procedures, and how parameters travel.

use super::Checker;
use super::types::Place;
use crate::ast::{self, BaseKind, DefinitionKind, Direction, File, Name, Transfer};
use crate::diag::Diagnostic;
use crate::model::{Bulk, Element, Item, Parameter, Procedure, Program, Type, TypeKind, Version};
use crate::source::Span;
use std::collections::HashMap;

/// Fixed arrays that take more bytes than this are vectors in Rust.
pub(crate) const MAX_IN_PLACE: u64 = 4096;

/// Structs larger than this are no elements of bulk arrays. Half of [`MAX_IN_PLACE`], so that
/// their arrays are arrays, and they can be copied.
pub(crate) const MAX_ELEMENT: u64 = MAX_IN_PLACE / 2;

/// Names and numbers that must differ.
#[derive(Default)]
struct Unique {
    names: HashMap<String, Span>,
    numbers: HashMap<u32, Span>,
}

impl<'a> Checker<'a> {
    pub(super) fn programs(&mut self, file: &'a File) {
        let mut unique = Unique::default();
        for definition in &file.definitions {
            let DefinitionKind::Program(program) = &definition.kind else { continue };
            let number = self.unique(&mut unique, "program", &definition.name, &program.number);
            let mut versions = Vec::new();
            let mut unique = Unique::default();
            for version in &program.versions {
                let number = self.unique(&mut unique, "version", &version.name, &version.number);
                versions.push(Version {
                    name: version.name.text.clone(),
                    doc: version.doc.clone(),
                    number: number.unwrap_or_default(),
                    procedures: self.procedures(version),
                });
            }
            self.model.items.push(Item::Program(Program {
                name: definition.name.text.clone(),
                doc: definition.doc.clone(),
                number: number.unwrap_or_default(),
                versions,
            }));
        }
    }

    /// Checks that a name and a number occur once; gives the number, unless it was refused.
    fn unique(
        &mut self,
        unique: &mut Unique,
        what: &str,
        name: &Name,
        number: &ast::Value,
    ) -> Option<u32> {
        let earlier = match name.text.as_str() {
            "" => None, // reported
            text => unique.names.insert(text.to_owned(), name.span),
        };
        if let Some(earlier) = earlier {
            self.push(
                Diagnostic::error(
                    "duplicate-name",
                    name.span,
                    format!("{what} `{}` is defined twice", name.text),
                )
                .label("defined again")
                .related(earlier, "defined here")
                .help("rename one"),
            );
        }
        let kind = format!("{what} number");
        let value = self.number_within(number, &kind, 0, i128::from(u32::MAX))?;
        let value = u32::try_from(value).ok()?;
        if let Some(earlier) = unique.numbers.insert(value, number.span) {
            self.push(
                Diagnostic::error(
                    "duplicate-number",
                    number.span,
                    format!("{what} number {value} is taken"),
                )
                .label(format!("`{}` has it too", name.text))
                .related(earlier, "taken here")
                .help("give it another number; numbers once published never change"),
            );
        }
        Some(value)
    }

    fn procedures(&mut self, version: &'a ast::Version) -> Vec<Procedure> {
        let mut unique = Unique::default();
        let mut out = Vec::new();
        for procedure in &version.procedures {
            let number = self.unique(&mut unique, "procedure", &procedure.name, &procedure.number);
            let result = self.declared_type(&procedure.result, "", Place::Result);
            let parameters = self.parameters(procedure);
            self.modifiers(procedure);
            if number == Some(0) && (!parameters.is_empty() || result != Type::Void) {
                self.push(
                    Diagnostic::error(
                        "null-procedure",
                        procedure.name.span,
                        format!("procedure 0 does nothing, `{}` does", procedure.name.text),
                    )
                    .help("number 0 is for `void NULL(void)` (RFC 5531, section 12.1); start at 1"),
                );
            }
            out.push(Procedure {
                name: procedure.name.text.clone(),
                doc: procedure.doc.clone(),
                number: number.unwrap_or_default(),
                oneway: procedure.oneway.is_some(),
                copyin: procedure.copyin.is_some(),
                deferred: procedure.deferred.is_some(),
                result,
                parameters,
            });
        }
        out
    }

    fn modifiers(&mut self, procedure: &ast::Procedure) {
        let name = &procedure.name.text;
        let Some(oneway) = procedure.oneway else { return };
        if procedure.result.base.kind != BaseKind::Void {
            self.push(
                Diagnostic::error(
                    "oneway-result",
                    procedure.result.span,
                    format!("one-way procedure `{name}` cannot return anything"),
                )
                .related(oneway, "one-way")
                .help("make it `oneway void`, or drop `oneway`"),
            );
        }
        for parameter in &procedure.parameters {
            if parameter.direction != Direction::In {
                self.push(
                    Diagnostic::error(
                        "oneway-result",
                        parameter.declaration.span,
                        format!("one-way procedure `{name}` cannot have out or inout parameters"),
                    )
                    .related(oneway, "one-way")
                    .help("nothing comes back from it; drop `oneway`, or the parameter"),
                );
            }
        }
        if let Some(deferred) = procedure.deferred {
            self.push(
                Diagnostic::error(
                    "oneway-deferred",
                    deferred,
                    format!("procedure `{name}` has no reply that could be deferred"),
                )
                .related(oneway, "one-way")
                .help("drop one of the two words"),
            );
        }
    }

    fn parameters(&mut self, procedure: &'a ast::Procedure) -> Vec<Parameter> {
        let mut seen: HashMap<&str, Span> = HashMap::new();
        for parameter in &procedure.parameters {
            let name = &parameter.declaration.name;
            if name.text.is_empty() {
                continue;
            }
            if let Some(earlier) = seen.insert(&name.text, name.span) {
                self.push(
                    Diagnostic::error(
                        "duplicate-parameter",
                        name.span,
                        format!("parameter `{}` is declared twice", name.text),
                    )
                    .label("declared again")
                    .related(earlier, "declared here")
                    .help("rename one"),
                );
            }
        }
        let mut out: Vec<Parameter> = Vec::new();
        for (index, parameter) in procedure.parameters.iter().enumerate() {
            let ty = self.declared_type(&parameter.declaration, "", Place::Parameter);
            let bulk = self.bulk(parameter, &ty);
            let name = match parameter.declaration.name.text.as_str() {
                "" => {
                    let mut name = match procedure.parameters.len() {
                        1 => "arg".to_owned(),
                        _ => format!("arg{}", index + 1),
                    };
                    while seen.contains_key(name.as_str()) {
                        name.push('_');
                    }
                    name
                }
                name => name.to_owned(),
            };
            let (doc, direction) = (parameter.declaration.doc.clone(), parameter.direction);
            out.push(Parameter { name, doc, direction, ty, bulk });
        }
        out
    }

    /// Whether and how a parameter travels in place.
    fn bulk(&mut self, parameter: &ast::Parameter, ty: &Type) -> Option<Bulk> {
        let possible = self.possible_bulk(ty);
        match parameter.transfer {
            Some((Transfer::Plain, _)) => None,
            Some((Transfer::Bulk, span)) => {
                if possible.is_none() && *ty != Type::Void {
                    self.push(
                        Diagnostic::error(
                            "not-bulk",
                            parameter.declaration.span,
                            "this parameter cannot travel in place",
                        )
                        .related(span, "marked here")
                        .help(format!("bulk parameters are opaque data, or arrays of numbers or of structs of fixed size (at most {MAX_ELEMENT} bytes each)")),
                    );
                }
                possible
            }
            None => possible.filter(|bulk| {
                let each = match &bulk.element {
                    Element::Byte => 1,
                    Element::Number(ty) => self.model.min_len(ty),
                    Element::Struct(id) => self.model.def(*id).min_len,
                };
                each.saturating_mul(u64::from(bulk.len)) > self.settings.bulk_threshold
            }),
        }
    }

    fn possible_bulk(&self, ty: &Type) -> Option<Bulk> {
        let (element, len, fixed) = match self.model.resolve(ty) {
            Type::OpaqueArray(len) => {
                return Some(Bulk { element: Element::Byte, len: *len, fixed: true });
            }
            Type::Opaque(max) => {
                return Some(Bulk { element: Element::Byte, len: *max, fixed: false });
            }
            Type::Array(element, len) => (element, *len, true),
            Type::Vec(element, max) => (element, *max, false),
            _ => return None,
        };
        let element = match self.model.resolve(element) {
            number @ (Type::Int { .. } | Type::Float | Type::Double) => {
                Element::Number(number.clone())
            }
            Type::Named(id) => {
                let def = self.model.def(*id);
                let fits = def.fixed_len.is_some_and(|len| len <= MAX_ELEMENT);
                if !(fits && matches!(def.kind, TypeKind::Struct(_))) {
                    return None;
                }
                Element::Struct(*id)
            }
            _ => return None,
        };
        Some(Bulk { element, len, fixed })
    }
}
