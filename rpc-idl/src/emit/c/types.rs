//! Types.

use super::{Emitter, int_literal};
use crate::model::{Type, TypeId, TypeKind};

impl Emitter<'_> {
    /// A type, once, behind those that C must know before: an interface file may use them before it defines them.
    pub(super) fn type_after_its_parts(&mut self, id: TypeId) {
        // Of each: those that are still to be written before it.
        if !self.written.insert(id) {
            return;
        }
        let mut open = vec![(id, self.parts(id))];
        while let Some((id, parts)) = open.last_mut() {
            let id = *id;
            match parts.pop() {
                Some(part) if self.written.insert(part) => open.push((part, self.parts(part))),
                Some(_) => {}
                None => {
                    open.pop();
                    self.type_def(id);
                }
            }
        }
    }

    /// What the declaration of a type names and is no struct behind a pointer.
    fn parts(&self, id: TypeId) -> Vec<TypeId> {
        let mut parts = Vec::new();
        match &self.model.def(id).kind {
            TypeKind::Alias(target) => self.named(target, false, &mut parts),
            TypeKind::Struct(fields) => {
                fields.iter().for_each(|field| self.named(&field.ty, false, &mut parts));
            }
            TypeKind::Union(union) => {
                self.named(&union.switch, false, &mut parts);
                for field in union.arms.iter().map(|arm| &arm.field).chain(&union.default) {
                    self.named(&field.ty, false, &mut parts);
                }
            }
            TypeKind::Enum(_) | TypeKind::Extern(_) => {}
        }
        parts.reverse();
        parts
    }

    fn named(&self, ty: &Type, behind_pointer: bool, parts: &mut Vec<TypeId>) {
        match ty {
            Type::Array(element, _) => self.named(element, behind_pointer, parts),
            Type::Vec(element, _) | Type::Optional(element) => self.named(element, true, parts),
            Type::Named(id) => match self.model.def(*id).kind {
                TypeKind::Struct(_) | TypeKind::Union(_) if behind_pointer => {}
                _ => parts.push(*id),
            },
            _ => {}
        }
    }

    fn type_def(&mut self, id: TypeId) {
        let model = self.model;
        let def = model.def(id);
        let name = &def.name;
        self.out.line("");
        self.doc(&def.doc);
        match &def.kind {
            TypeKind::Extern(_) => {}
            TypeKind::Enum(values) => {
                self.out.line(format!("enum {name} {{"));
                for value in values {
                    self.doc(&value.doc);
                    let number = int_literal(value.value);
                    self.out.line(format!("{} = {number},", value.name));
                }
                self.out.line("};");
                self.out.line(format!("typedef enum {name} {name};"));
            }
            TypeKind::Alias(target) => {
                let line = format!("typedef {};", self.declare(target, name));
                self.out.line(line);
            }
            TypeKind::Struct(fields) => {
                self.out.line(format!("struct {name} {{"));
                for field in fields {
                    self.doc(&field.doc);
                    let line = format!("{};", self.declare(&field.ty, &field.name));
                    self.out.line(line);
                }
                self.out.line("};");
                self.out.line(format!("typedef struct {name} {name};"));
            }
            TypeKind::Union(union) => {
                self.out.line(format!("struct {name} {{"));
                let line = format!("{};", self.declare(&union.switch, &union.switch_name));
                self.out.line(line);
                let arms: Vec<_> =
                    union.arms.iter().map(|a| &a.field).chain(&union.default).collect();
                if arms.iter().any(|f| f.ty != Type::Void) {
                    self.out.line("union {");
                    for field in arms.iter().filter(|f| f.ty != Type::Void) {
                        self.doc(&field.doc);
                        let line = format!("{};", self.declare(&field.ty, &field.name));
                        self.out.line(line);
                    }
                    self.out.line(format!("}} {name}_u;"));
                }
                self.out.line("};");
                self.out.line(format!("typedef struct {name} {name};"));
            }
        }
        let ty = self.ty(&Type::Named(id));
        if self.hidden.contains(&id) {
            self.out.line(format!(
                "typedef {name} {ty}; /* the same, where {name} is something else */"
            ));
        }
        if let TypeKind::Alias(target) = &def.kind {
            if self.owns_memory(target) {
                self.out.line(format!("void shrimp_free_{name}({ty} *v);"));
            }
        } else if !matches!(def.kind, TypeKind::Extern(_)) {
            self.out.line(format!("int shrimp_put_{name}(shrimp_writer *w, const {ty} *v);"));
            self.out.line(format!("int shrimp_get_{name}(shrimp_reader *r, {ty} *v);"));
            self.out.line(format!("void shrimp_free_{name}({ty} *v);"));
        }
    }
}
