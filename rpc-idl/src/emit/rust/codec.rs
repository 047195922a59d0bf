//! Expressions that encode and decode a type in use.

use super::{Emitter, in_place};
use crate::model::{Type, TypeKind};

impl Emitter<'_> {
    /// An expression that writes `value`, an expression of a reference, to `sink`.
    pub(super) fn put(&self, ty: &Type, value: &str) -> String {
        let xdr = &self.xdr;
        match ty {
            Type::Void => "Ok(())".to_owned(),
            Type::Opaque(max) => format!("{xdr}::put_opaque(sink, {value}, {max})"),
            Type::OpaqueArray(len) if in_place(u64::from(*len)) => {
                format!("{xdr}::put_opaque_array(sink, {value})")
            }
            Type::OpaqueArray(len) => format!("{xdr}::put_long_opaque_array(sink, {value}, {len})"),
            Type::Text(max) if self.options.strings_as_bytes => {
                format!("{xdr}::put_opaque(sink, {value}, {max})")
            }
            Type::Text(max) => format!("{xdr}::put_string(sink, {value}, {max})"),
            Type::Array(element, len) => {
                let put = self.put(element, "element");
                if self.array_in_place(element, *len) {
                    format!("{xdr}::put_array(sink, {value}, |sink, element| {put})")
                } else {
                    format!("{xdr}::put_long_array(sink, {value}, {len}, |sink, element| {put})")
                }
            }
            Type::Vec(element, max) => {
                let put = self.put(element, "element");
                format!("{xdr}::put_vec(sink, {value}, {max}, |sink, element| {put})")
            }
            Type::Optional(target) => match self.model.list_of(ty) {
                Some(_) => format!(
                    "{xdr}::put_list(sink, {value}, |sink, element| {xdr}::Encode::encode(element, sink))"
                ),
                None => {
                    let put = self.put(target, "element");
                    let value = value.trim_start_matches('&');
                    format!("{xdr}::put_optional(sink, {value}.as_deref(), |sink, element| {put})")
                }
            },
            Type::Named(id) => match &self.model.def(*id).kind {
                TypeKind::Alias(target) => self.put(target, value),
                _ => format!("{xdr}::Encode::encode({value}, sink)"),
            },
            _ => format!("{xdr}::Encode::encode({value}, sink)"),
        }
    }

    /// A function that reads a value: a path if there is one, else a closure.
    fn getter(&self, ty: &Type) -> String {
        let get = self.get(ty);
        match get.strip_suffix("(source)") {
            Some(path) if !path.contains('(') => path.to_owned(),
            _ => format!("|source| {get}"),
        }
    }

    /// An expression that reads a value from `source`.
    pub(super) fn get(&self, ty: &Type) -> String {
        let xdr = &self.xdr;
        match ty {
            Type::Void => "Ok(())".to_owned(),
            Type::Opaque(max) => format!("{xdr}::get_opaque(source, {max})"),
            Type::OpaqueArray(len) if in_place(u64::from(*len)) => {
                format!("{xdr}::get_opaque_array::<{len}, _>(source)")
            }
            Type::OpaqueArray(len) => format!("{xdr}::get_long_opaque_array(source, {len})"),
            Type::Text(max) if self.options.strings_as_bytes => {
                format!("{xdr}::get_opaque(source, {max})")
            }
            Type::Text(max) => format!("{xdr}::get_string(source, {max})"),
            Type::Array(element, len) => {
                let (get, each) = (self.getter(element), self.model.min_len(element));
                if self.array_in_place(element, *len) {
                    format!("{xdr}::get_array::<{len}, _, _>(source, {get})")
                } else {
                    format!("{xdr}::get_long_array(source, {len}, {each}, {get})")
                }
            }
            Type::Vec(element, max) => {
                let (get, each) = (self.getter(element), self.model.min_len(element));
                format!("{xdr}::get_vec(source, {max}, {each}, {get})")
            }
            Type::Optional(target) => match self.model.list_of(ty) {
                Some(id) => format!(
                    "{xdr}::get_list(source, <{} as {xdr}::Decode>::decode)",
                    self.names[&id]
                ),
                None => format!("{xdr}::get_optional(source, {})", self.getter(target)),
            },
            Type::Named(id) => match &self.model.def(*id).kind {
                TypeKind::Alias(target) => self.get(target),
                _ => format!("<{} as {xdr}::Decode>::decode(source)", self.names[id]),
            },
            _ => format!("<{} as {xdr}::Decode>::decode(source)", self.ty(ty)),
        }
    }
}
