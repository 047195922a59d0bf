//! The shape of types: no type contains itself by value, none is absurdly large or deep; how many
//! bytes they take; which of them are lists.
//!
//! All walks are loops with a list of their own: a hostile file can make a chain of a hundred
//! thousand types.

use super::Checker;
use crate::ast::Direction;
use crate::diag::Diagnostic;
use crate::model::{Item, Model, Type, TypeId, TypeKind};

/// Largest number of bytes that a value may need at least.
const MAX_LEN: u64 = i32::MAX as u64;
/// Deepest nesting of types by value, and of names for arrays of names for arrays.
const MAX_NESTING: usize = 64;

/// The types that a definition mentions, and how.
fn mentions(kind: &TypeKind) -> Vec<&Type> {
    match kind {
        TypeKind::Enum(_) | TypeKind::Extern(_) => Vec::new(),
        TypeKind::Struct(fields) => fields.iter().map(|f| &f.ty).collect(),
        TypeKind::Union(union) => [&union.switch]
            .into_iter()
            .chain(union.arms.iter().map(|arm| &arm.field.ty))
            .chain(union.default.iter().map(|d| &d.ty))
            .collect(),
        TypeKind::Alias(target) => vec![target],
    }
}

/// What stands between a type and the one it mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Value,
    Vec,
    Optional,
}

/// The defined type that a type mentions.
fn mentioned(mut ty: &Type) -> Option<(TypeId, Link)> {
    let mut link = Link::Value;
    loop {
        match ty {
            Type::Named(id) => return Some((*id, link)),
            Type::Array(element, _) => ty = element,
            Type::Vec(element, _) => (ty, link) = (element, Link::Vec),
            Type::Optional(target) => (ty, link) = (target, Link::Optional),
            _ => return None,
        }
    }
}

fn edges(model: &Model, id: usize) -> Vec<(usize, Link)> {
    let kind = &model.types[id].kind;
    mentions(kind).into_iter().filter_map(mentioned).map(|(id, link)| (id.0, link)).collect()
}

impl Checker<'_> {
    pub(super) fn layout(&mut self) {
        let order = self.order();
        self.lengths(&order);
        self.mark_recursive();
    }

    /// The types, each after those that it contains. Circles are reported and cut.
    fn order(&mut self) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let count = self.model.types.len();
        let mut marks = vec![Mark::New; count];
        let mut nesting = vec![0usize; count];
        let mut order = Vec::with_capacity(count);
        for root in 0..count {
            if marks[root] != Mark::New {
                continue;
            }
            marks[root] = Mark::Open;
            let mut stack = vec![(root, self.inner(root), 0usize)];
            while let Some((id, inner, next)) = stack.last_mut() {
                let id = *id;
                if let Some(child) = inner.get(*next).copied() {
                    *next += 1;
                    match marks[child] {
                        Mark::New => {
                            marks[child] = Mark::Open;
                            let inner = self.inner(child);
                            stack.push((child, inner, 0));
                        }
                        Mark::Open => {
                            self.circle(child);
                            self.model.types[id].kind = TypeKind::Alias(Type::Void);
                        }
                        Mark::Done => nesting[id] = nesting[id].max(nesting[child] + 1),
                    }
                } else {
                    stack.pop();
                    marks[id] = Mark::Done;
                    order.push(id);
                    if nesting[id] == MAX_NESTING {
                        self.push(
                            Diagnostic::error(
                                "too-deep",
                                self.spans[id],
                                format!(
                                    "`{}` contains types nested deeper than {MAX_NESTING}",
                                    self.model.types[id].name
                                ),
                            )
                            .help("flatten the types it is made of"),
                        );
                    }
                    if let Some((parent, ..)) = stack.last() {
                        nesting[*parent] = nesting[*parent].max(nesting[id] + 1);
                    }
                }
            }
        }
        order
    }

    /// The types that a value of this type contains in place; and, of another name for a type,
    /// those it mentions in any way, because names of arrays of each other have no end.
    fn inner(&self, id: usize) -> Vec<usize> {
        let model = &self.model;
        let alias = |id: usize| matches!(model.types[id].kind, TypeKind::Alias(_));
        edges(model, id)
            .into_iter()
            .filter(|(to, link)| *link == Link::Value || (alias(id) && alias(*to)))
            .map(|(to, _)| to)
            .collect()
    }

    fn circle(&mut self, id: usize) {
        let def = &self.model.types[id];
        let diagnostic = if matches!(def.kind, TypeKind::Alias(_)) {
            Diagnostic::error(
                "recursive-type",
                self.spans[id],
                format!("`{}` is another name for something made of itself", def.name),
            )
            .help(
                "only structs and unions can contain their own kind, through a pointer or an array",
            )
        } else {
            Diagnostic::error(
                "recursive-type",
                self.spans[id],
                format!("`{}` contains itself, without end", def.name),
            )
            .help(format!("point to the inner one: `{} *name`, or make it an array <>", def.name))
        };
        self.push(diagnostic);
    }

    fn lengths(&mut self, order: &[usize]) {
        for id in order.iter().copied() {
            let model = &self.model;
            let (min_len, fixed_len) = match &model.types[id].kind {
                TypeKind::Enum(_) => (4, Some(4)),
                TypeKind::Extern(_) => (0, None),
                TypeKind::Alias(target) => (model.min_len(target), model.fixed_len(target)),
                TypeKind::Struct(fields) => (
                    fields.iter().fold(0, |sum, f| model.min_len(&f.ty).saturating_add(sum)),
                    fields
                        .iter()
                        .try_fold(0u64, |sum, f| Some(model.fixed_len(&f.ty)?.saturating_add(sum))),
                ),
                TypeKind::Union(union) => {
                    let arms = union.arms.iter().map(|a| &a.field).chain(&union.default);
                    let least = arms.map(|f| model.min_len(&f.ty)).min().unwrap_or(0);
                    (model.min_len(&union.switch).saturating_add(least), None)
                }
            };
            let def = &mut self.model.types[id];
            (def.min_len, def.fixed_len) = (min_len, fixed_len);
            if min_len > MAX_LEN {
                def.kind = TypeKind::Alias(Type::Void);
                (def.min_len, def.fixed_len) = (0, Some(0));
                let message = format!("a `{}` takes at least {min_len} bytes", def.name);
                self.push(Diagnostic::error("type-too-large", self.spans[id], message).help(
                    format!("values have at most {MAX_LEN} bytes; use arrays of variable length"),
                ));
            }
        }
    }

    /// Marks the types that contain themselves through arrays: taking away the types that mention
    /// no others, and those that no others mention, leaves circles.
    fn mark_recursive(&mut self) {
        let count = self.model.types.len();
        let mut forward: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut backward: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (id, forward) in forward.iter_mut().enumerate() {
            for (to, link) in edges(&self.model, id) {
                if link != Link::Optional {
                    forward.push(to);
                    backward[to].push(id);
                }
            }
        }
        let mut alive = vec![true; count];
        for (out, into) in [(&forward, &backward), (&backward, &forward)] {
            let mut degree: Vec<usize> =
                (0..count).map(|id| out[id].iter().filter(|to| alive[**to]).count()).collect();
            let mut ends: Vec<usize> =
                (0..count).filter(|id| alive[*id] && degree[*id] == 0).collect();
            while let Some(end) = ends.pop() {
                alive[end] = false;
                for id in &into[end] {
                    degree[*id] = degree[*id].saturating_sub(1);
                    if alive[*id] && degree[*id] == 0 {
                        ends.push(*id);
                    }
                }
            }
        }
        for (def, alive) in self.model.types.iter_mut().zip(alive) {
            def.recursive = alive;
        }
    }

    /// Finds the nodes of linked lists.
    pub(super) fn lists(&mut self) {
        let model = &self.model;
        let target = |ty: &Type| match model.resolve(ty) {
            Type::Optional(target) => match model.resolve(target) {
                Type::Named(id) => Some(*id),
                _ => None,
            },
            _ => None,
        };
        let mut list: Vec<bool> = (0..model.types.len())
            .map(|id| match &model.types[id].kind {
                TypeKind::Struct(fields) => {
                    // A node with nothing but the pointer would be a list of nothings.
                    // And with a second pointer to its kind it is a tree.
                    let own = fields.iter().filter(|f| target(&f.ty) == Some(TypeId(id)));
                    fields.len() > 1
                        && own.count() == 1
                        && fields.last().is_some_and(|f| target(&f.ty) == Some(TypeId(id)))
                }
                _ => false,
            })
            .collect();
        let mut by_value = |ty: &Type| {
            // Walk to the defined type; a pointer to it is the use that a list allows.
            let mut ty = ty;
            let mut pointer = false;
            loop {
                match ty {
                    Type::Named(id) => match &model.def(*id).kind {
                        TypeKind::Alias(target) => ty = target,
                        _ => {
                            list[id.0] &= pointer;
                            return;
                        }
                    },
                    Type::Array(inner, _) | Type::Vec(inner, _) => (ty, pointer) = (inner, false),
                    Type::Optional(inner) => (ty, pointer) = (inner, true),
                    _ => return,
                }
            }
        };
        for def in &model.types {
            if !matches!(def.kind, TypeKind::Alias(_)) {
                mentions(&def.kind).into_iter().for_each(&mut by_value);
            }
        }
        for item in &model.items {
            let Item::Program(program) = item else { continue };
            for procedure in program.versions.iter().flat_map(|v| &v.procedures) {
                by_value(&procedure.result);
                for parameter in &procedure.parameters {
                    debug_assert!(matches!(
                        parameter.direction,
                        Direction::In | Direction::Out | Direction::InOut
                    ));
                    by_value(&parameter.ty);
                }
            }
        }
        for (def, list) in self.model.types.iter_mut().zip(list) {
            def.list = list;
        }
    }
}
