//! Types.

use super::Emitter;
use crate::model::{Type, TypeId, TypeKind};

impl Emitter<'_> {
    pub(super) fn type_def(&mut self, id: TypeId) {
        let model = self.model;
        let def = model.def(id);
        let name = &def.name;
        self.out.line("");
        self.doc(&def.doc);
        match &def.kind {
            TypeKind::Extern(_) => return,
            TypeKind::Enum(values) => {
                self.out.line(format!("enum {name} {{"));
                for value in values {
                    self.doc(&value.doc);
                    let number = match value.value {
                        i32::MIN => "(-2147483647 - 1)".to_owned(),
                        value => value.to_string(),
                    };
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
        if !matches!(def.kind, TypeKind::Alias(_)) {
            let ty = self.ty(&Type::Named(id));
            self.out.line(format!("int shrimp_put_{name}(shrimp_writer *w, const {ty} *v);"));
            self.out.line(format!("int shrimp_get_{name}(shrimp_reader *r, {ty} *v);"));
            self.out.line(format!("void shrimp_free_{name}({ty} *v);"));
        }
    }
}
