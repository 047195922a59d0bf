//! Signatures: how parameters are passed, by client functions and to handlers; what the header declares
//! for them.

use super::in_place::has_bulk;
use super::words::{LOCALS, MACROS, WORDS};
use super::{Emitter, Place, join, pointer};
use crate::ast::Direction;
pub(super) use crate::emit::param::Param;
use crate::model::{Bulk, Element, Parameter, Procedure, Program, Type, TypeKind, Version};
use std::collections::HashSet;

/// What stands behind a parameter's or a field's name in those of variables that belong to it.
pub(super) const DERIVED: [&str; 7] = ["", "_len", "_val", "_at", "_count", "_bulk", "_held"];

pub(super) fn params(procedure: &Procedure) -> Vec<Param<'_>> {
    let names = LOCALS.iter().chain(&WORDS).chain(&MACROS);
    let mut taken: HashSet<String> = names.map(|name| (*name).to_owned()).collect();
    // Those of the interface first: a name that is not derived stays as it is.
    let given: HashSet<&str> = procedure.parameters.iter().map(|it| it.name.as_str()).collect();
    let parameters = procedure.parameters.iter();
    let named = parameters.map(|idl| {
        let mut name = idl.name.clone();
        let is_free = |name: &str| {
            DERIVED.iter().all(|behind| {
                let derived = format!("{name}{behind}");
                !taken.contains(&derived) && (derived == idl.name || !given.contains(&*derived))
            })
        };
        while !is_free(&name) {
            name.push('_');
        }
        taken.extend(DERIVED.iter().map(|behind| format!("{name}{behind}")));
        Param { name, idl }
    });
    named.collect()
}

/// Small letters, as rpcgen has it, unless another procedure differs in that only.
pub(super) fn function(procedure: &Procedure, version: &Version) -> String {
    let is_same = |other: &&Procedure| other.name.eq_ignore_ascii_case(&procedure.name);
    let name = match version.procedures.iter().filter(is_same).count() {
        1 => procedure.name.to_ascii_lowercase(),
        _ => procedure.name.clone(),
    };
    format!("{name}_{}", version.number)
}

pub(super) fn ops(version: &Version) -> String {
    format!("{}_ops", version.name.to_ascii_lowercase())
}

/// The parameters of the function that answers.
pub(super) fn answer_list(list: &[String]) -> String {
    let more: String = list.iter().map(|param| format!(", {param}")).collect();
    format!("shrimp_rpc_call *call{more}")
}

impl Emitter<'_> {
    /// What a reply carries, as parameters.
    pub(super) fn answer_params(&self, procedure: &Procedure, params: &[Param<'_>]) -> Vec<String> {
        let mut list = Vec::new();
        if procedure.result != Type::Void {
            list.push(self.by_pointer(&procedure.result, "result").0);
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => list.push(self.by_pointer(&param.idl.ty, &param.name).0),
                (Some(_), Direction::Out) => list.push(format!("shrimp_out *{}", param.name)),
                _ => {}
            }
        }
        list
    }

    pub(super) fn element_ty(&self, bulk: &Bulk) -> String {
        match &bulk.element {
            Element::Byte => "unsigned char".to_owned(),
            Element::Number(ty) => self.ty(ty),
            Element::Struct(id) => self.ty(&Type::Named(*id)),
        }
    }

    /// Bytes of an element in a block.
    pub(super) fn element_size(&self, bulk: &Bulk) -> u64 {
        match &bulk.element {
            Element::Byte => 1,
            Element::Number(Type::Int { bits, .. }) => u64::from(*bits / 8),
            Element::Number(ty) => self.model.min_len(ty),
            Element::Struct(id) => self.model.def(*id).min_len,
        }
    }

    /// A parameter by reference, and the place of its value behind that.
    pub(super) fn by_pointer(&self, ty: &Type, name: &str) -> (String, Place) {
        match ty {
            // Unnamed shapes have no type to point to: length and elements are passed apart.
            Type::Opaque(_) | Type::Vec(..) => (
                format!("uint32_t *{name}_len, {}{name}", pointer(&pointer(&self.ty(ty)))),
                Place::Pair { len: format!("(*{name}_len)"), val: format!("(*{name})") },
            ),
            Type::OpaqueArray(_) | Type::Array(..) => {
                (self.declare(ty, name), Place::One(name.to_owned()))
            }
            _ => (join(&pointer(&self.ty(ty)), name), self.place(ty, &format!("(*{name})"), "")),
        }
    }

    /// A parameter that is only read.
    pub(super) fn by_value(&self, ty: &Type, name: &str) -> (String, Place) {
        match ty {
            Type::Text(_) => (format!("const char *{name}"), Place::One(name.to_owned())),
            Type::Opaque(_) | Type::Vec(..) => (
                format!("uint32_t {name}_len, const {}{name}", pointer(&self.ty(ty))),
                Place::Pair { len: format!("{name}_len"), val: name.to_owned() },
            ),
            // In C a pointer to arrays is not one to constant arrays.
            Type::Array(element, _) if self.is_array(element) => {
                (self.declare(ty, name), Place::One(name.to_owned()))
            }
            Type::OpaqueArray(_) | Type::Array(..) => {
                (format!("const {}", self.declare(ty, name)), Place::One(name.to_owned()))
            }
            Type::Optional(target) => {
                (format!("const {}{name}", pointer(&self.ty(target))), Place::One(name.to_owned()))
            }
            Type::Named(id) => match &self.model.def(*id).kind {
                TypeKind::Enum(_) => (join(&self.ty(ty), name), Place::One(name.to_owned())),
                TypeKind::Alias(target) if !matches!(target, Type::Opaque(_) | Type::Vec(..)) => {
                    self.by_value(target, name)
                }
                _ => (
                    format!("const {}{name}", pointer(&self.ty(ty))),
                    self.place(ty, &format!("(*{name})"), ""),
                ),
            },
            _ => (join(&self.ty(ty), name), Place::One(name.to_owned())),
        }
    }

    fn is_array(&self, ty: &Type) -> bool {
        matches!(self.model.resolve(ty), Type::OpaqueArray(_) | Type::Array(..))
    }

    /// The client's signature.
    pub(super) fn signature(&self, procedure: &Procedure, version: &Version) -> String {
        let mut list = vec!["shrimp_rpc_binding *binding".to_owned()];
        for param in params(procedure) {
            let name = &param.name;
            list.push(match (&param.idl.bulk, param.idl.direction) {
                (Some(bulk), Direction::In) => {
                    format!("uint32_t {name}_len, const {}{name}", pointer(&self.element_ty(bulk)))
                }
                (Some(bulk), Direction::InOut) => {
                    format!("uint32_t {name}_len, {}{name}", pointer(&self.element_ty(bulk)))
                }
                // Room for *len elements; how many came is in *len then.
                (Some(bulk), Direction::Out) => {
                    format!("uint32_t *{name}_len, {}{name}", pointer(&self.element_ty(bulk)))
                }
                (None, Direction::In) => self.by_value(&param.idl.ty, name).0,
                (None, _) => self.by_pointer(&param.idl.ty, name).0,
            });
        }
        if procedure.result != Type::Void {
            list.push(self.by_pointer(&procedure.result, "result").0);
        }
        format!("int {}({})", function(procedure, version), list.join(", "))
    }

    /// The signature of a handler, without its name.
    fn handler(&self, procedure: &Procedure) -> String {
        let mut list = vec!["void *user".to_owned(), "shrimp_rpc_call *call".to_owned()];
        for param in params(procedure) {
            let name = &param.name;
            list.push(match (&param.idl.bulk, param.idl.direction) {
                (Some(bulk), Direction::In) if procedure.copyin => {
                    format!("uint32_t {name}_len, const {}{name}", pointer(&self.element_ty(bulk)))
                }
                (Some(bulk), Direction::InOut) if procedure.copyin => {
                    format!("uint32_t {name}_len, {}{name}", pointer(&self.element_ty(bulk)))
                }
                (Some(_), Direction::In) => format!("const shrimp_bulk *{name}"),
                (Some(_), Direction::InOut) => format!("shrimp_bulk *{name}"),
                (Some(_), Direction::Out) => format!("shrimp_out *{name}"),
                (None, Direction::In) => self.by_value(&param.idl.ty, name).0,
                (None, _) => self.by_pointer(&param.idl.ty, name).0,
            });
        }
        if procedure.result != Type::Void {
            list.push(self.by_pointer(&procedure.result, "result").0);
        }
        list.join(", ")
    }

    pub(super) fn element_name(&self, bulk: &Bulk) -> String {
        match &bulk.element {
            Element::Struct(id) => self.model.def(*id).name.clone(),
            _ => String::new(),
        }
    }

    /// What is said of the parameters, each with its name in front.
    fn parameters_doc(&mut self, procedure: &Procedure) {
        for parameter in &procedure.parameters {
            let mut doc = parameter.doc.clone();
            if let Some(first) = doc.first_mut() {
                *first = format!("{}: {first}", parameter.name);
            }
            self.doc(&doc);
        }
    }

    pub(super) fn prototypes(&mut self, program: &Program, version: &Version) {
        self.out.line("");
        self.doc(&program.doc);
        self.define(&program.name, &format!("{}U", program.number));
        self.doc(&version.doc);
        self.define(&version.name, &format!("{}U", version.number));
        for procedure in &version.procedures {
            self.define(&procedure.name, &format!("{}U", procedure.number));
        }
        self.out.line("");
        for line in [
            "/* Calls: 0, or why not. What comes back is the caller's to free, by shrimp_free_TYPE(&value) where the interface names its type,",
            "   and by free() where it does not; after an error there is nothing to free. */",
        ] {
            self.out.plain(line);
        }
        let is_filled = |it: &Parameter| it.bulk.is_some() && it.direction == Direction::Out;
        if version.procedures.iter().any(|it| it.parameters.iter().any(is_filled)) {
            for line in [
                "/* Of an OUT array of bulk data *_len is the room, and then the number of elements. Where the room is too small the call",
                "   fails by SHRIMP_CODEC_NO_SPACE, and that is the number that the server had. */",
            ] {
                self.out.plain(line);
            }
        }
        for procedure in &version.procedures {
            self.doc(&procedure.doc);
            self.parameters_doc(procedure);
            let line = format!("{};", self.signature(procedure, version));
            self.out.line(line);
        }
        if version.procedures.iter().any(has_bulk) {
            self.out.line("");
            for line in [
                "/* Calls that copy no bulk data: begin, write the blocks that go in, call, read those that come out,",
                "   shrimp_rpc_end. What fails ends the call, and so does the call of a one-way procedure. A block",
                "   holds anything at first; the other side can look at it, and change it, until the end. */",
            ] {
                self.out.plain(line);
            }
            for procedure in &version.procedures {
                self.declare_in_place(procedure, version);
            }
        }
        let ops = ops(version);
        self.out.line("");
        self.out.line("#ifndef SHRIMP_OUT");
        self.out.line("#define SHRIMP_OUT");
        self.out
            .line("/* Bulk data for the client: open it, then write into it while computing. */");
        self.out.line("typedef struct {");
        self.out.line("shrimp_rpc_call *call;");
        self.out.line("uint32_t max, distance;");
        self.out.line("shrimp_bulk bulk;");
        self.out.line("} shrimp_out;");
        self.out
            .line("static inline shrimp_bulk *shrimp_out_open(shrimp_out *out, uint32_t len) {");
        self.out.line("if (len > out->max || out->bulk.at != NULL)");
        self.out.line("    return NULL;");
        self.out.line("out->bulk.at = (volatile unsigned char *)shrimp_rpc_out(out->call, (size_t)len * out->bulk.size, &out->distance);");
        self.out.line("out->bulk.len = out->bulk.at == NULL ? 0 : len;");
        self.out.line("return out->bulk.at == NULL ? NULL : &out->bulk;");
        self.out.line("}");
        self.out.line("#endif");
        self.out.line("");
        for line in [
            "/* The procedures: 0, or an error that the client gets instead of results; with a number (below 0xfffffffc) and words",
            "   of the handler's by `return shrimp_rpc_reply_fault(call, 42, \"no such key\");`. What they leave in plain outputs is",
            "   freed when it was sent. One that puts its answer off keeps what shrimp_rpc_defer gives it, copies those plain",
            "   arguments that it still needs, and returns SHRIMP_RPC_DEFERRED. */",
        ] {
            self.out.plain(line);
        }
        self.out.line(format!("typedef struct {ops} {{"));
        for procedure in &version.procedures {
            let line =
                format!("int (*{})({});", function(procedure, version), self.handler(procedure));
            self.out.line(line);
        }
        self.out.line("void *user;");
        self.out.line(format!("}} {ops};"));
        let base = version.name.to_ascii_lowercase();
        self.out.line(format!(
            "int {base}_dispatch(void *ops, uint32_t procedure, shrimp_rpc_call *call);"
        ));
        let answered: Vec<_> = version.procedures.iter().filter(|p| !p.oneway).collect();
        if !answered.is_empty() {
            for line in [
                "/* Answer calls that were put off. What is sent stays the caller's to free. The call is gone once this has returned",
                "   0, whether its client was still there or not; after an error it is still there, and shrimp_rpc_reply_fault ends",
                "   it. An OUT block is {call, most elements, 0, {NULL, 0, bytes of one}}, opened after shrimp_rpc_defer; INOUT",
                "   blocks are where they were. */",
            ] {
                self.out.plain(line);
            }
        }
        for procedure in answered {
            let list = self.answer_params(procedure, &params(procedure));
            let name = function(procedure, version);
            self.out.line(format!("int {name}_answer({});", answer_list(&list)));
        }
        self.out.line("/* Serves until the process ends. */");
        self.out.line(format!("int {base}_serve(const char *name, {ops} *ops);"));
        self.out.line("/* Adds it to a server that has other programs or versions, too. */");
        self.out.line(format!("int {base}_add(shrimp_rpc_builder *builder, {ops} *ops);"));
    }
}
