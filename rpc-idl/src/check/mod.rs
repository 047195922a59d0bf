//! The checker: from a syntax tree to a [`Model`], with every rule that the grammar cannot say.
//!
//! Names first, so that definitions may stand in any order; then constants, types, the shape of
//! types (recursion, sizes, lists), and programs. A type that is wrong is replaced by a harmless
//! one, so that its uses do not complain again.

mod constants;
mod layout;
mod programs;
mod types;

use crate::ast::{BaseKind, DefinitionKind, File, Name, Shape, Tag, UnionBody, ValueKind};
use crate::diag::{Diagnostic, Diagnostics};
use crate::model::{Constant, Item, Model, Type, TypeDef, TypeId, TypeKind};
use crate::source::Span;
use constants::Known;
pub(crate) use programs::{MAX_ELEMENT, MAX_IN_PLACE};
use std::collections::{BTreeSet, HashMap};

/// What the checker is told from outside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Types defined elsewhere: name in the file, path of the Rust type.
    pub(crate) externs: Vec<(String, String)>,
    /// Parameters that may be longer than so many bytes travel in place.
    pub(crate) bulk_threshold: u64,
}

struct Checker<'a> {
    diagnostics: &'a mut Diagnostics,
    settings: &'a Settings,
    /// See [`File::unread`].
    unread: &'a BTreeSet<String>,
    model: Model,
    /// Where each type was defined, and its id.
    types: HashMap<String, (TypeId, Option<Tag>, Span)>,
    constants: HashMap<String, Known>,
    /// Where each type of the model is defined.
    spans: Vec<Span>,
    /// Unions whose cases are still to be compared with their discriminants.
    unions: Vec<(TypeId, &'a UnionBody)>,
}

/// Checks a file. The model is of use only if there were no errors.
pub(crate) fn check<'a>(
    file: &'a File,
    settings: &'a Settings,
    diagnostics: &'a mut Diagnostics,
) -> Model {
    let mut checker = Checker {
        diagnostics,
        settings,
        unread: &file.unread,
        model: Model::default(),
        types: HashMap::new(),
        constants: HashMap::new(),
        spans: Vec::new(),
        unions: Vec::new(),
    };
    checker.declare(file);
    checker.constants(file);
    checker.define(file);
    checker.layout();
    checker.check_unions();
    checker.programs(file);
    checker.lists();
    checker.model
}

impl<'a> Checker<'a> {
    fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    fn new_type(&mut self, name: &str, doc: &[String], span: Span) -> TypeId {
        let id = TypeId(self.model.types.len());
        self.model.types.push(TypeDef {
            name: name.to_owned(),
            doc: doc.to_vec(),
            kind: TypeKind::Alias(Type::Void),
            min_len: 0,
            fixed_len: Some(0),
            list: false,
            recursive: false,
        });
        self.spans.push(span);
        id
    }

    fn duplicate(&mut self, name: &Name, earlier: Span) {
        let diagnostic = Diagnostic::error(
            "duplicate-definition",
            name.span,
            format!("`{}` is defined twice", name.text),
        )
        .label("defined again")
        .related(earlier, "defined here");
        self.push(diagnostic.help("all types of a file share their names; rename one"));
    }

    /// Notes the names of all types, so that they may be used before their definition.
    fn declare(&mut self, file: &File) {
        for definition in &file.definitions {
            let tag = match &definition.kind {
                DefinitionKind::Enum(_) => Some(Tag::Enum),
                DefinitionKind::Struct(_) => Some(Tag::Struct),
                DefinitionKind::Union(_) => Some(Tag::Union),
                DefinitionKind::Typedef(declaration) => {
                    // `typedef struct a a;` says in C what the RPC language says anyway.
                    if let BaseKind::Named(name, Some(_)) = &declaration.base.kind
                        && *name == definition.name.text
                        && declaration.shape == Shape::One
                    {
                        continue;
                    }
                    None
                }
                _ => continue,
            };
            let name = &definition.name;
            if name.text.is_empty() {
                continue; // complained about, or a typedef of void, which is later
            }
            if let Some((_, _, earlier)) = self.types.get(&name.text) {
                let earlier = *earlier;
                self.duplicate(name, earlier);
                continue;
            }
            let id = self.new_type(&name.text, &definition.doc, name.span);
            self.types.insert(name.text.clone(), (id, tag, name.span));
        }
        for (name, path) in &self.settings.externs {
            if !self.types.contains_key(name) {
                let id = self.new_type(name, &[], Span::default());
                self.model.types[id.0].kind = TypeKind::Extern(path.clone());
                self.types.insert(name.clone(), (id, None, Span::default()));
            }
        }
    }

    /// Gives every declared type its meaning, and lists the items of the model.
    fn define(&mut self, file: &'a File) {
        let mut defined = vec![false; self.model.types.len()];
        for definition in &file.definitions {
            if self.diagnostics.is_full() {
                return;
            }
            let item = match &definition.kind {
                DefinitionKind::Const(_) => {
                    let Some(value) = self.constant_value(&definition.name.text) else {
                        continue;
                    };
                    let name = definition.name.text.clone();
                    Item::Const(Constant { name, doc: definition.doc.clone(), value })
                }
                DefinitionKind::Passthrough(line) => Item::Passthrough(line.clone()),
                DefinitionKind::Program(_) => continue,
                kind => {
                    let name = &definition.name.text;
                    // A second definition of the name was complained about, and so was a missing
                    // name; the inside still is looked at.
                    let first = self.types.get(name).copied().filter(|(id, _, span)| {
                        span.start == definition.name.span.start
                            && span.file == definition.name.span.file
                            && !std::mem::replace(&mut defined[id.0], true)
                    });
                    if let Some((id, ..)) = first
                        && let DefinitionKind::Union(body) = kind
                    {
                        self.unions.push((id, body));
                    }
                    let kind = match kind {
                        DefinitionKind::Enum(items) => TypeKind::Enum(self.enum_values(items)),
                        DefinitionKind::Struct(fields) => {
                            TypeKind::Struct(self.fields(fields, name))
                        }
                        DefinitionKind::Union(body) => self.union(body, name),
                        DefinitionKind::Typedef(declaration) => TypeKind::Alias(
                            self.declared_type(declaration, name, types::Place::Typedef),
                        ),
                        _ => continue,
                    };
                    let Some((id, ..)) = first else { continue };
                    self.model.types[id.0].kind = kind;
                    Item::Type(id)
                }
            };
            self.model.items.push(item);
        }
    }

    fn constants(&mut self, file: &File) {
        constants::collect(self, file);
    }

    /// The name in a value, for messages.
    fn value_text(kind: &ValueKind) -> String {
        match kind {
            ValueKind::Number(number) => number.to_string(),
            ValueKind::Name(name) => name.clone(),
            ValueKind::Text(text) => crate::lex::shown(text),
            ValueKind::Unread => String::new(),
        }
    }
}

/// The nearest of some names, for "did you mean".
fn nearest<'n>(wanted: &str, names: impl Iterator<Item = &'n String>) -> Option<&'n String> {
    let limit = (wanted.len() / 3).clamp(1, 3);
    names
        .filter(|name| name.len().abs_diff(wanted.len()) <= limit)
        .map(|name| (distance(wanted.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, name)| (*distance, *name))
        .map(|(_, name)| name)
}

/// Edits between two names; names longer than 64 bytes are compared by their beginnings.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let (a, b) = (&a[..a.len().min(64)], &b[..b.len().min(64)]);
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let same = x.eq_ignore_ascii_case(y);
            let change = diagonal + usize::from(!same);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
