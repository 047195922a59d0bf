//! Encoding, decoding and freeing.

use super::{Emitter, Place, int_literal};
use crate::model::{EnumValue, Field, Type, TypeId, TypeKind, Union};
use std::collections::HashSet;

/// What is done with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Put,
    Get,
    Free,
}

impl Emitter<'_> {
    /// A statement that ends the function if a step fails.
    pub(super) fn step(&mut self, call: &str) {
        self.out.line(format!("if ((shrimp_rc = {call}) != 0)"));
        self.out.line("    return shrimp_rc;");
    }

    pub(super) fn codec(&mut self, id: TypeId) {
        let model = self.model;
        let def = model.def(id);
        let (name, ty) = (&def.name, self.ty(&Type::Named(id)));
        if let TypeKind::Alias(target) = &def.kind {
            // Reading and writing stand where it is used.
            if self.owns_memory(target) {
                self.out.line("");
                self.out.line(format!("void shrimp_free_{name}({ty} *v)"));
                self.out.line("{");
                let place = self.place(&Type::Named(id), "(*v)", "");
                self.value(Verb::Free, target, &place, 0);
                self.end(Verb::Free, false);
                self.out.line("}");
            }
            return;
        }
        if matches!(def.kind, TypeKind::Extern(_)) {
            return;
        }
        for verb in [Verb::Put, Verb::Get, Verb::Free] {
            self.out.line("");
            match verb {
                Verb::Put => {
                    self.out.line(format!("int shrimp_put_{name}(shrimp_writer *w, const {ty} *v)"))
                }
                Verb::Get => {
                    self.out.line(format!("int shrimp_get_{name}(shrimp_reader *r, {ty} *v)"))
                }
                Verb::Free => self.out.line(format!("void shrimp_free_{name}({ty} *v)")),
            }
            self.out.line("{");
            if verb != Verb::Free {
                self.out.line("int shrimp_rc;");
            }
            if verb == Verb::Get {
                self.out.line("memset(v, 0, sizeof *v);");
                if def.recursive {
                    self.step("shrimp_enter(r)");
                }
            }
            match &def.kind {
                TypeKind::Enum(values) => match verb {
                    Verb::Put => {
                        self.is_value("*v", values);
                        self.out.line("return shrimp_rc = shrimp_codec_put_u32(w, (uint32_t)*v);");
                    }
                    Verb::Get => {
                        self.out.line("uint32_t bits = 0;");
                        self.step("shrimp_codec_get_u32(r, &bits)");
                        self.is_value("bits", values);
                        self.out.line(format!("*v = ({ty})(int32_t)bits;"));
                        self.out.line("return 0;");
                    }
                    Verb::Free => self.out.line("(void)v;"),
                },
                TypeKind::Struct(fields) if def.list => self.list(verb, fields),
                TypeKind::Struct(fields) => {
                    for field in fields {
                        self.field(verb, field, &format!("v->{}", field.name));
                    }
                    self.end(verb, def.recursive);
                }
                TypeKind::Union(union) => {
                    self.union(verb, union, name);
                    self.end(verb, def.recursive);
                }
                TypeKind::Alias(_) | TypeKind::Extern(_) => {}
            }
            self.out.line("}");
        }
    }

    /// Ends the function if a number is no value of an enumeration.
    fn is_value(&mut self, number: &str, values: &[EnumValue]) {
        self.out.line(format!("switch ((int32_t){number}) {{"));
        let mut seen = HashSet::new();
        for value in values.iter().filter(|v| seen.insert(v.value)) {
            let number = int_literal(value.value);
            self.out.line(format!("case {number}: /* {} */", value.name));
        }
        self.out.line("    break;");
        self.out.line("default:");
        self.out.line("    return SHRIMP_CODEC_BAD_VALUE;");
        self.out.line("}");
    }

    fn end(&mut self, verb: Verb, recursive: bool) {
        match verb {
            Verb::Put => self.out.line("return 0;"),
            Verb::Get => {
                if recursive {
                    self.out.line("shrimp_leave(r);");
                }
                self.out.line("return 0;");
            }
            Verb::Free => self.out.line("memset(v, 0, sizeof *v);"),
        }
    }

    fn field(&mut self, verb: Verb, field: &Field, access: &str) {
        let place = self.place(&field.ty, access, &field.name);
        self.value(verb, &field.ty, &place, 0);
    }

    /// A list, in a loop: it may be long.
    fn list(&mut self, verb: Verb, fields: &[Field]) {
        let (next, fields) = match fields {
            [fields @ .., next] => (&next.name, fields),
            [] => return,
        };
        if verb == Verb::Free {
            self.out.line("void *rest = NULL, *node = NULL;");
        }
        self.out.line("for (;;) {");
        for field in fields {
            self.field(verb, field, &format!("v->{}", field.name));
        }
        match verb {
            Verb::Put => {
                self.step(&format!("shrimp_codec_put_u32(w, v->{next} != NULL)"));
                self.out.line(format!("if (v->{next} == NULL)"));
                self.out.line("    return 0;");
                self.out.line(format!("v = v->{next};"));
            }
            Verb::Get => {
                self.out.line("shrimp_bool more;");
                self.step("shrimp_codec_get_bool(r, &more)");
                self.out.line("if (!more)");
                self.out.line("    return 0;");
                self.out.line(format!("v->{next} = shrimp_alloc(r, 1, sizeof *v, &shrimp_rc);"));
                self.out.line("if (shrimp_rc != 0)");
                self.out.line("    return shrimp_rc;");
                self.out.line(format!("v = v->{next};"));
            }
            Verb::Free => {
                // The first node is the caller's.
                self.out.line(format!("rest = v->{next};"));
                self.out.line("memset(v, 0, sizeof *v);");
                self.out.line("free(node);");
                self.out.line("if (rest == NULL)");
                self.out.line("    return;");
                self.out.line("v = node = rest;");
            }
        }
        self.out.line("}");
    }

    fn union(&mut self, verb: Verb, union: &Union, name: &str) {
        let switch = format!("v->{}", union.switch_name);
        self.value(verb, &union.switch, &Place::One(switch.clone()), 0);
        let number = match self.model.resolve(&union.switch) {
            Type::Int { bits: 64, .. } => format!("(int64_t){switch}"),
            Type::Int { unsigned: true, .. } => format!("(int64_t){switch}"),
            _ => format!("(int){switch}"),
        };
        self.out.line(format!("switch ({number}) {{"));
        for arm in &union.arms {
            for case in &arm.cases {
                let value = match case.value {
                    i64::MIN => "INT64_MIN".to_owned(),
                    value if value == i64::from(i32::MIN) => "(-2147483647 - 1)".to_owned(),
                    value if i32::try_from(value).is_ok() => value.to_string(),
                    value => format!("{value}LL"),
                };
                self.out.line(format!("case {value}:"));
            }
            self.arm(verb, &arm.field, name);
        }
        self.out.line("default:");
        match &union.default {
            Some(field) => self.arm(verb, field, name),
            None if verb == Verb::Free => self.out.line("break;"),
            None => self.out.line("return SHRIMP_CODEC_BAD_VALUE;"),
        }
        self.out.line("}");
    }

    fn arm(&mut self, verb: Verb, field: &Field, name: &str) {
        self.out.line("{");
        if field.ty != Type::Void {
            self.field(verb, field, &format!("v->{name}_u.{}", field.name));
        }
        self.out.line("break;");
        self.out.line("}");
    }

    /// The statements for one value.
    pub(super) fn value(&mut self, verb: Verb, ty: &Type, place: &Place, depth: usize) {
        let one = match place {
            Place::One(one) => one.clone(),
            Place::Pair { val, .. } => val.clone(),
        };
        if verb == Verb::Free && !self.owns_memory(ty) {
            return;
        }
        match ty {
            Type::Void => {}
            Type::Named(id) => {
                let model = self.model;
                let def = model.def(*id);
                match &def.kind {
                    TypeKind::Alias(target) => self.value(verb, target, place, depth),
                    _ => {
                        let name = &def.name;
                        match verb {
                            Verb::Put => self.step(&format!("shrimp_put_{name}(w, &{one})")),
                            Verb::Get => self.step(&format!("shrimp_get_{name}(r, &{one})")),
                            Verb::Free => self.out.line(format!("shrimp_free_{name}(&{one});")),
                        }
                    }
                }
            }
            Type::Text(max) => match verb {
                Verb::Put => self.step(&format!("shrimp_codec_put_string(w, {one}, {max}U)")),
                Verb::Get => self.step(&format!("shrimp_codec_get_string(r, &{one}, {max}U)")),
                Verb::Free => self.out.line(format!("free({one});")),
            },
            Type::OpaqueArray(len) => match verb {
                Verb::Put => self.step(&format!("shrimp_codec_put_bytes(w, {one}, {len}U)")),
                _ => self.step(&format!("shrimp_codec_get_bytes(r, {one}, {len}U)")),
            },
            Type::Opaque(max) => {
                let Place::Pair { len, val } = place else { return };
                match verb {
                    Verb::Put => {
                        self.step(&format!("shrimp_codec_put_opaque(w, {val}, {len}, {max}U)"))
                    }
                    Verb::Get => {
                        self.step(&format!("shrimp_codec_get_opaque(r, &{val}, &{len}, {max}U)"))
                    }
                    Verb::Free => self.out.line(format!("free({val});")),
                }
            }
            Type::Array(element, len) => {
                self.elements(verb, element, &one, &format!("{len}U"), depth)
            }
            Type::Vec(element, max) => {
                let Place::Pair { len, val } = place else { return };
                let each = self.model.min_len(element).max(1);
                match verb {
                    Verb::Put => self.step(&format!("shrimp_codec_put_count(w, {len}, {max}U)")),
                    Verb::Get => {
                        self.step(&format!("shrimp_codec_get_count(r, &{len}, {max}U, {each}U)"));
                        self.out.line(format!(
                            "{val} = shrimp_alloc(r, {len}, sizeof *{val}, &shrimp_rc);"
                        ));
                        self.out.line("if (shrimp_rc != 0) {");
                        self.out.line(format!("{len} = 0;"));
                        self.out.line("return shrimp_rc;");
                        self.out.line("}");
                    }
                    Verb::Free => {}
                }
                if verb != Verb::Free || self.owns_memory(element) {
                    self.elements(verb, element, val, len, depth);
                }
                if verb == Verb::Free {
                    self.out.line(format!("free({val});"));
                }
            }
            Type::Optional(target) => {
                match verb {
                    Verb::Put => {
                        self.step(&format!("shrimp_codec_put_u32(w, {one} != NULL)"));
                        self.out.line(format!("if ({one} != NULL) {{"));
                    }
                    Verb::Get => {
                        self.out.line("{");
                        self.out.line("shrimp_bool there;");
                        self.step("shrimp_codec_get_bool(r, &there)");
                        self.out.line("if (there) {");
                        self.step("shrimp_enter(r)");
                        self.out.line(format!(
                            "{one} = shrimp_alloc(r, 1, sizeof *{one}, &shrimp_rc);"
                        ));
                        self.out.line("if (shrimp_rc != 0)");
                        self.out.line("    return shrimp_rc;");
                    }
                    Verb::Free => self.out.line(format!("if ({one} != NULL) {{")),
                }
                let inner = self.place(target, &format!("(*{one})"), "");
                self.value(verb, target, &inner, depth + 1);
                match verb {
                    Verb::Put => self.out.line("}"),
                    Verb::Get => {
                        self.out.line("shrimp_leave(r);");
                        self.out.line("}");
                        self.out.line("}");
                    }
                    Verb::Free => {
                        self.out.line(format!("free({one});"));
                        self.out.line("}");
                    }
                }
            }
            _ => self.scalar(verb, ty, &one),
        }
    }

    fn elements(&mut self, verb: Verb, element: &Type, val: &str, len: &str, depth: usize) {
        let index = format!("i{depth}");
        self.out.line(format!("for (uint32_t {index} = 0; {index} < {len}; {index}++) {{"));
        let inner = self.place(element, &format!("{val}[{index}]"), "");
        self.value(verb, element, &inner, depth + 1);
        self.out.line("}");
    }

    fn scalar(&mut self, verb: Verb, ty: &Type, one: &str) {
        if verb == Verb::Put {
            self.step(&match ty {
                Type::Bool => format!("shrimp_codec_put_u32(w, {one} != 0)"),
                Type::Int { bits: 64, .. } => format!("shrimp_codec_put_u64(w, (uint64_t){one})"),
                Type::Int { unsigned: true, .. } => format!("shrimp_codec_put_u32(w, {one})"),
                Type::Int { .. } => format!("shrimp_codec_put_u32(w, (uint32_t)(int32_t){one})"),
                Type::Float => format!("shrimp_codec_put_float(w, {one})"),
                Type::Double => format!("shrimp_codec_put_double(w, {one})"),
                _ => format!("shrimp_codec_put_quad(w, &{one})"),
            });
            return;
        }
        let c_type = self.ty(ty);
        match ty {
            Type::Bool => self.step(&format!("shrimp_codec_get_bool(r, &{one})")),
            Type::Int { bits: 64, .. } => {
                self.out.line("{");
                self.out.line("uint64_t bits = 0;");
                self.step("shrimp_codec_get_u64(r, &bits)");
                self.out.line(format!("{one} = ({c_type})bits;"));
                self.out.line("}");
            }
            Type::Int { bits: 32, .. } => {
                self.out.line("{");
                self.out.line("uint32_t bits = 0;");
                self.step("shrimp_codec_get_u32(r, &bits)");
                self.out.line(format!("{one} = ({c_type})bits;"));
                self.out.line("}");
            }
            Type::Int { bits, .. } => {
                let (low, high) = (-(1i32 << (bits - 1)), (1i32 << bits) - 1);
                self.out.line("{");
                self.out.line("int32_t small = 0;");
                self.step(&format!("shrimp_codec_get_small(r, &small, {low}, {high})"));
                self.out.line(format!("{one} = ({c_type})small;"));
                self.out.line("}");
            }
            Type::Float => self.step(&format!("shrimp_codec_get_float(r, &{one})")),
            Type::Double => self.step(&format!("shrimp_codec_get_double(r, &{one})")),
            _ => self.step(&format!("shrimp_codec_get_quad(r, &{one})")),
        }
    }
}
