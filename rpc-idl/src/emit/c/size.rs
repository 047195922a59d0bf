//! About how many bytes values take in C, without what they point to: which are too large for a stack.
//!
//! The thread that runs a handler has a stack of 2 MiB, and a client that calls a procedure has its arguments there
//! whether it sends any or not.

use super::Emitter;
use crate::model::{Model, Type, TypeId, TypeKind};
use std::collections::HashMap;

/// Values of more bytes are allocated.
const LARGE: u64 = 4096;

/// Bytes of each type, at least what the C compiler makes of it.
pub(super) type Sizes = HashMap<TypeId, u64>;

/// The sizes of all types. Types are nested by value 64 times at most, which the checker sees to.
pub(super) fn sizes(model: &Model) -> Sizes {
    let mut known = Sizes::new();
    for id in 0..model.types.len() {
        named(model, TypeId(id), &mut known);
    }
    known
}

fn named(model: &Model, id: TypeId, known: &mut Sizes) -> u64 {
    if let Some(size) = known.get(&id) {
        return *size;
    }
    let mut size = |ty: &Type| size(ty, &mut |id| named(model, id, known));
    let bytes = match &model.def(id).kind {
        TypeKind::Enum(_) => 4,
        TypeKind::Extern(_) => 0,
        TypeKind::Alias(target) => size(target),
        TypeKind::Struct(fields) => {
            fields.iter().fold(0, |sum: u64, field| sum.saturating_add(aligned(size(&field.ty))))
        }
        TypeKind::Union(union) => {
            let arms = union.arms.iter().map(|arm| &arm.field).chain(&union.default);
            let largest = arms.map(|field| size(&field.ty)).max().unwrap_or(0);
            aligned(largest).saturating_add(8)
        }
    };
    known.insert(id, bytes);
    bytes
}

fn aligned(size: u64) -> u64 {
    size.checked_next_multiple_of(8).unwrap_or(u64::MAX)
}

fn size(ty: &Type, named: &mut dyn FnMut(TypeId) -> u64) -> u64 {
    match ty {
        Type::Void => 0,
        Type::Bool | Type::Float => 4,
        Type::Int { bits, .. } => u64::from(*bits / 8),
        Type::Double | Type::Text(_) | Type::Optional(_) => 8,
        Type::Quad | Type::Opaque(_) | Type::Vec(..) => 16,
        Type::OpaqueArray(len) => u64::from(*len),
        Type::Array(element, len) => size(element, named).saturating_mul(u64::from(*len)),
        Type::Named(id) => named(*id),
    }
}

impl Emitter<'_> {
    /// Whether the server allocates a parameter, and has a pointer to it.
    pub(super) fn is_large(&self, ty: &Type) -> bool {
        size(ty, &mut |id| self.sizes.get(&id).copied().unwrap_or(0)) > LARGE
    }

    /// What stands for a plain parameter of that name at the server.
    pub(super) fn held(&self, ty: &Type, name: &str) -> String {
        if self.is_large(ty) { format!("(*{name}_held)") } else { name.to_owned() }
    }
}
