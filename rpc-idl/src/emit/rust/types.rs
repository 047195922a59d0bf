//! Types and their codec.

use super::Emitter;
use crate::emit::names::{Scope, camel, snake};
use crate::model::{Arm, Case, EnumValue, Field, Type, TypeId, TypeKind, Union};

/// A variant of the Rust enum that stands for a union.
struct Variant<'m> {
    name: String,
    case: &'m Case,
    field: &'m Field,
}

impl Emitter<'_> {
    pub(super) fn type_def(&mut self, id: TypeId) {
        let model = self.model;
        let def = model.def(id);
        let name = self.names[&id].clone();
        if matches!(def.kind, TypeKind::Extern(_)) {
            return;
        }
        self.out.line("");
        match &def.kind {
            TypeKind::Extern(_) => {}
            TypeKind::Alias(target) => {
                self.doc(&def.doc, &format!("Type `{}`.", def.name));
                let ty = self.ty(target);
                self.out.line(format!("pub type {name} = {ty};"));
            }
            TypeKind::Enum(values) => {
                self.doc(&def.doc, &format!("Enumeration `{}`.", def.name));
                self.enumeration(&name, &def.name, values);
            }
            TypeKind::Struct(fields) => {
                self.doc(&def.doc, &format!("Struct `{}`.", def.name));
                if def.list {
                    let next = &fields[fields.len() - 1].name;
                    self.out.plain("///");
                    self.out.plain(&format!(
                        "/// A node of a list: a pointer to it is a `Vec` of it here, so that `{next}` is left out."
                    ));
                }
                let kept = fields.len() - usize::from(def.list);
                self.structure(&name, id, &fields[..kept]);
            }
            TypeKind::Union(union) => {
                self.doc(&def.doc, &format!("Union `{}`.", def.name));
                self.union(&name, id, union);
            }
        }
    }

    fn derives(&mut self, copy: bool, eq: bool) {
        let mut derives = vec!["Clone", "Debug", "PartialEq"];
        if copy {
            derives.insert(1, "Copy");
        }
        if eq {
            derives.extend(["Eq", "Hash"]);
        }
        for more in &self.options.derives {
            let name = more.rsplit("::").next().unwrap_or_default().trim();
            if !derives.contains(&name) {
                derives.push(more);
            }
        }
        let line = format!("#[derive({})]", derives.join(", "));
        self.out.line(line);
    }

    /// Whether a type can be `Eq` and `Hash`: no floating-point number in it. Types that refer to
    /// others are searched with a list, as they may be circular.
    fn is_eq(&self, id: TypeId) -> bool {
        let mut seen = vec![false; self.model.types.len()];
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            if std::mem::replace(&mut seen[id.0], true) {
                continue;
            }
            let mut types: Vec<&Type> = match &self.model.def(id).kind {
                TypeKind::Enum(_) => Vec::new(),
                TypeKind::Extern(_) => return false,
                TypeKind::Alias(target) => vec![target],
                TypeKind::Struct(fields) => fields.iter().map(|f| &f.ty).collect(),
                TypeKind::Union(union) => union
                    .arms
                    .iter()
                    .map(|arm| &arm.field.ty)
                    .chain(union.default.iter().map(|d| &d.ty))
                    .collect(),
            };
            while let Some(ty) = types.pop() {
                match ty {
                    Type::Float | Type::Double => return false,
                    Type::Array(inner, _) | Type::Vec(inner, _) | Type::Optional(inner) => {
                        types.push(inner);
                    }
                    Type::Named(id) => todo.push(*id),
                    _ => {}
                }
            }
        }
        true
    }

    fn encode_impl(&mut self, name: &str, lines: &[String]) {
        let xdr = self.xdr.clone();
        self.out.line("");
        self.out.line(format!("impl {xdr}::Encode for {name} {{"));
        self.out.line(format!(
            "fn encode<S: {xdr}::Sink + ?Sized>(&self, sink: &mut S) -> Result<(), {xdr}::EncodeError> {{"
        ));
        for line in lines {
            self.out.line(line);
        }
        self.out.line("}");
        self.out.line("}");
    }

    fn decode_impl(&mut self, name: &str, recursive: bool, lines: &[String]) {
        let xdr = self.xdr.clone();
        self.out.line("");
        self.out.line(format!("impl {xdr}::Decode for {name} {{"));
        self.out.line(format!(
            "fn decode<S: {xdr}::Source + ?Sized>(source: &mut S) -> Result<Self, {xdr}::DecodeError> {{"
        ));
        if recursive {
            self.out.line(format!("{xdr}::enter::<Self, S>(source)?;"));
            self.out.line("let value: Result<Self, _> = {");
        }
        for line in lines {
            self.out.line(line);
        }
        if recursive {
            self.out.line("};");
            self.out.line(format!("{xdr}::leave::<Self, S>(source);"));
            self.out.line("value");
        }
        self.out.line("}");
        self.out.line("}");
    }

    fn enumeration(&mut self, name: &str, idl_name: &str, values: &[EnumValue]) {
        self.derives(true, true);
        self.out.line("#[repr(i32)]");
        self.out.line(format!("pub enum {name} {{"));
        let mut scope = Scope::with(&["Self"]);
        let mut variants: Vec<(String, i32)> = Vec::new();
        let mut others = Vec::new();
        for value in values {
            let variant = scope.claim(&camel(&value.name));
            // C allows two names of one value, a Rust enum does not.
            if let Some((first, _)) = variants.iter().find(|(_, v)| *v == value.value) {
                others.push((variant, first.clone(), value));
                continue;
            }
            self.doc(&value.doc, &format!("`{}`", value.name));
            self.out.line(format!("{variant} = {},", value.value));
            variants.push((variant, value.value));
        }
        self.out.line("}");
        if !others.is_empty() {
            self.out.line("");
            self.out.line("#[allow(non_upper_case_globals)]");
            self.out.line(format!("impl {name} {{"));
            for (variant, first, value) in &others {
                self.doc(&value.doc, &format!("`{}`, the same as [`Self::{first}`].", value.name));
                self.out.line(format!("pub const {variant}: Self = Self::{first};"));
            }
            self.out.line("}");
        }
        self.encode_impl(name, &["sink.put_u32((*self as i32).cast_unsigned())".to_owned()]);
        let mut lines = vec!["match source.get_u32()?.cast_signed() {".to_owned()];
        for (variant, value) in &variants {
            lines.push(format!("{value} => Ok(Self::{variant}),"));
        }
        lines.push(format!(
            "value => Err({}::DecodeError::NotInEnum {{ name: {idl_name:?}, value }}),",
            self.xdr
        ));
        lines.push("}".to_owned());
        self.decode_impl(name, false, &lines);
    }

    fn structure(&mut self, name: &str, id: TypeId, fields: &[Field]) {
        let copy = self.is_copy(&Type::Named(id));
        let eq = self.is_eq(id);
        self.derives(copy, eq);
        self.out.line(format!("pub struct {name} {{"));
        let mut scope = Scope::default();
        let names: Vec<String> = fields.iter().map(|f| scope.claim(&snake(&f.name))).collect();
        for (field, rust_name) in fields.iter().zip(&names) {
            self.doc(&field.doc, &format!("Field `{}`.", field.name));
            let ty = self.ty(&field.ty);
            self.out.line(format!("pub {rust_name}: {ty},"));
        }
        self.out.line("}");

        let mut lines: Vec<String> = fields
            .iter()
            .zip(&names)
            .map(|(field, name)| format!("{}?;", self.put(&field.ty, &format!("&self.{name}"))))
            .collect();
        lines.push("Ok(())".to_owned());
        self.encode_impl(name, &lines);
        // Field by field: a struct expression evaluates in the order of writing.
        let mut lines = vec!["Ok(Self {".to_owned()];
        for (field, name) in fields.iter().zip(&names) {
            lines.push(format!("{name}: {}?,", self.get(&field.ty)));
        }
        lines.push("})".to_owned());
        let recursive = self.model.def(id).recursive;
        self.decode_impl(name, recursive, &lines);
        if self.options.stubs == super::Stubs::Shrimp && copy {
            self.element_impl(name, id);
        }
    }

    /// A struct of fixed size can be an element of a bulk array.
    fn element_impl(&mut self, name: &str, id: TypeId) {
        let (xdr, runtime) = (self.xdr.clone(), self.runtime.clone());
        let size = self.model.def(id).fixed_len.unwrap_or(0);
        self.out.line("");
        self.out.line(format!("impl {runtime}::Element for {name} {{"));
        self.out.line(format!("const SIZE: usize = {size};"));
        self.out.line("");
        self.out.line("fn store(&self, to: &mut [u8]) {");
        self.out.line(format!("let mut writer = {xdr}::SliceWriter::<{xdr}::Little>::new(to);"));
        self.out.line(format!("let stored = {xdr}::Encode::encode(self, &mut writer);"));
        self.out.line("debug_assert!(stored.is_ok(), \"an element has a fixed size\");");
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("fn load(from: &[u8]) -> Result<Self, {xdr}::DecodeError> {{"));
        self.out
            .line(format!("{xdr}::Decode::decode(&mut {xdr}::Reader::<{xdr}::Little>::new(from))"));
        self.out.line("}");
        self.out.line("}");
    }

    /// The variants of a union, one for each case.
    fn variants<'m>(&self, union: &'m Union, scope: &mut Scope) -> Vec<Variant<'m>> {
        let boolean = *self.model.resolve(&union.switch) == Type::Bool;
        let mut variants = Vec::new();
        for Arm { cases, field } in &union.arms {
            for case in cases {
                let name = match &case.name {
                    Some(name) => camel(name),
                    None if boolean => camel(if case.value == 0 { "FALSE" } else { "TRUE" }),
                    None if case.value < 0 => format!("CaseMinus{}", case.value.unsigned_abs()),
                    None => match self.enum_value_name(&union.switch, case.value) {
                        Some(name) => camel(&name),
                        None => format!("Case{}", case.value),
                    },
                };
                variants.push(Variant { name: scope.claim(&name), case, field });
            }
        }
        variants
    }

    fn enum_value_name(&self, ty: &Type, value: i64) -> Option<String> {
        let Type::Named(id) = self.model.resolve(ty) else { return None };
        let TypeKind::Enum(values) = &self.model.def(*id).kind else { return None };
        values.iter().find(|v| i64::from(v.value) == value).map(|v| v.name.clone())
    }

    /// The discriminant as an expression of its Rust type.
    fn discriminant(&self, switch: &Type, value: i64) -> String {
        match self.model.resolve(switch) {
            Type::Bool => (value != 0).to_string(),
            Type::Named(id) => {
                let TypeKind::Enum(values) = &self.model.def(*id).kind else {
                    return value.to_string();
                };
                let mut scope = Scope::with(&["Self"]);
                let names: Vec<String> =
                    values.iter().map(|v| scope.claim(&camel(&v.name))).collect();
                // The first of several names of a value is the variant.
                values.iter().zip(names).find(|(v, _)| i64::from(v.value) == value).map_or_else(
                    || value.to_string(),
                    |(_, name)| format!("{}::{name}", self.names[id]),
                )
            }
            _ => value.to_string(),
        }
    }

    fn union(&mut self, name: &str, id: TypeId, union: &Union) {
        let (xdr, idl_name) = (self.xdr.clone(), self.model.def(id).name.clone());
        let mut scope = Scope::with(&["Self"]);
        let variants = self.variants(union, &mut scope);
        let default = union.default.as_ref().map(|field| (scope.claim("Default"), field));
        let switch = self.ty(&union.switch);
        let eq = self.is_eq(id);
        self.derives(false, eq);
        self.out.line(format!("pub enum {name} {{"));
        for Variant { name, case, field } in &variants {
            let case = case.name.clone().unwrap_or_else(|| case.value.to_string());
            self.doc(&field.doc, &format!("Case `{case}`."));
            match self.ty(&field.ty).as_str() {
                "()" => self.out.line(format!("{name},")),
                ty => self.out.line(format!("{name}({ty}),")),
            }
        }
        if let Some((name, field)) = &default {
            self.doc(&field.doc, "Any other discriminant, which comes first.");
            match self.ty(&field.ty).as_str() {
                "()" => self.out.line(format!("{name}({switch}),")),
                ty => self.out.line(format!("{name}({switch}, {ty}),")),
            }
        }
        self.out.line("}");

        let mut encode = vec!["match self {".to_owned()];
        let mut decode = vec![
            format!("let discriminant = {}?;", self.get(&union.switch)),
            "match discriminant {".to_owned(),
        ];
        for Variant { name, case, field } in &variants {
            let discriminant = self.discriminant(&union.switch, case.value);
            let value = self.typed(&union.switch, &discriminant);
            if field.ty == Type::Void {
                encode.push(format!(
                    "Self::{name} => {},",
                    self.put(&union.switch, &format!("&{value}"))
                ));
                decode.push(format!("{discriminant} => Ok(Self::{name}),"));
            } else {
                encode.push(format!("Self::{name}(value) => {{"));
                encode.push(format!("{}?;", self.put(&union.switch, &format!("&{value}"))));
                encode.push(self.put(&field.ty, "value"));
                encode.push("}".to_owned());
                decode
                    .push(format!("{discriminant} => Ok(Self::{name}({}?)),", self.get(&field.ty)));
            }
        }
        let number = match self.model.resolve(&union.switch) {
            Type::Int { bits: 64, unsigned: true } => "discriminant.cast_signed()",
            Type::Int { bits: 64, .. } => "discriminant",
            Type::Int { .. } | Type::Bool => "i64::from(discriminant)",
            _ => "discriminant as i64",
        };
        let all = self.all_covered(union, variants.len());
        if let Some((name, field)) = &default {
            let cases: Vec<String> =
                variants.iter().map(|v| self.discriminant(&union.switch, v.case.value)).collect();
            let bind = if field.ty == Type::Void { "discriminant" } else { "discriminant, value" };
            encode.push(format!("Self::{name}({bind}) => {{"));
            encode.push("let discriminant = *discriminant;".to_owned());
            // Of a bool there is one case, or no other one.
            let is_case = match &cases.join(" | ")[..] {
                "true" => "discriminant".to_owned(),
                "false" => "!discriminant".to_owned(),
                cases => format!("matches!(discriminant, {cases})"),
            };
            encode.push(format!("if {is_case} {{"));
            encode.push(format!(
                "return Err({xdr}::EncodeError::NotDefault {{ union: {idl_name:?}, value: {number} }});"
            ));
            encode.push("}".to_owned());
            encode.push(format!("{}?;", self.put(&union.switch, "&discriminant")));
            encode.push(self.put(&field.ty, "value"));
            encode.push("}".to_owned());
            if !all {
                decode.push(match field.ty {
                    Type::Void => format!("_ => Ok(Self::{name}(discriminant)),"),
                    _ => format!("_ => Ok(Self::{name}(discriminant, {}?)),", self.get(&field.ty)),
                });
            }
        } else if !all {
            decode.push(format!(
                "_ => Err({xdr}::DecodeError::NoArm {{ union: {idl_name:?}, value: {number} }}),"
            ));
        }
        encode.push("}".to_owned());
        decode.push("}".to_owned());
        self.encode_impl(name, &encode);
        let recursive = self.model.def(id).recursive;
        self.decode_impl(name, recursive, &decode);
    }

    /// Whether the cases are all that the discriminant can be.
    fn all_covered(&self, union: &Union, cases: usize) -> bool {
        match self.model.resolve(&union.switch) {
            Type::Bool => cases == 2,
            Type::Named(id) => match &self.model.def(*id).kind {
                TypeKind::Enum(values) => {
                    let mut numbers: Vec<i32> = values.iter().map(|v| v.value).collect();
                    numbers.sort_unstable();
                    numbers.dedup();
                    numbers.len() == cases
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// A number literal with its type, so that nothing is inferred.
    fn typed(&self, switch: &Type, value: &str) -> String {
        match self.model.resolve(switch) {
            ty @ Type::Int { .. } => {
                let ty = self.ty(ty);
                if value.starts_with('-') {
                    format!("({value}{ty})")
                } else {
                    format!("{value}{ty}")
                }
            }
            _ => value.to_owned(),
        }
    }
}
