//! Client functions and the server's dispatcher.

use super::codec::Verb;
use super::{Emitter, Place, join, pointer};
use crate::ast::Direction;
use crate::model::{Bulk, Element, Parameter, Procedure, Program, Type, TypeKind, Version};

/// Names that generated functions use, and words that C has for itself.
const TAKEN: [&str; 58] = [
    "binding",
    "shrimp_rc",
    "w",
    "r",
    "at",
    "len",
    "reply",
    "size",
    "call",
    "user",
    "ops",
    "start",
    "begin",
    "result",
    "out",
    "end",
    "i0",
    "i1",
    "auto",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "typedef",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
    "class",
    "new",
    "this",
    "private",
    "delete",
    "template",
];

struct Param<'m> {
    name: String,
    idl: &'m Parameter,
}

impl Param<'_> {
    fn goes_in(&self) -> bool {
        self.idl.direction != Direction::Out
    }
    fn comes_out(&self) -> bool {
        self.idl.direction != Direction::In
    }
}

fn params(procedure: &Procedure) -> Vec<Param<'_>> {
    let mut scope = super::super::names::Scope::with(&TAKEN);
    procedure.parameters.iter().map(|idl| Param { name: scope.claim(&idl.name), idl }).collect()
}

fn function(procedure: &Procedure, version: &Version) -> String {
    format!("{}_{}", procedure.name.to_ascii_lowercase(), version.number)
}

fn ops(version: &Version) -> String {
    format!("{}_ops", version.name.to_ascii_lowercase())
}

impl Emitter<'_> {
    fn element_ty(&self, bulk: &Bulk) -> String {
        match &bulk.element {
            Element::Byte => "unsigned char".to_owned(),
            Element::Number(ty) => self.ty(ty),
            Element::Struct(id) => self.ty(&Type::Named(*id)),
        }
    }

    /// Bytes of an element in a block.
    fn element_size(&self, bulk: &Bulk) -> u64 {
        match &bulk.element {
            Element::Byte => 1,
            Element::Number(Type::Int { bits, .. }) => u64::from(*bits / 8),
            Element::Number(ty) => self.model.min_len(ty),
            Element::Struct(id) => self.model.def(*id).min_len,
        }
    }

    /// A parameter by reference, and the place of its value behind that.
    fn by_pointer(&self, ty: &Type, name: &str) -> (String, Place) {
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
    fn by_value(&self, ty: &Type, name: &str) -> (String, Place) {
        match ty {
            Type::Text(_) => (format!("const char *{name}"), Place::One(name.to_owned())),
            Type::Opaque(_) | Type::Vec(..) => (
                format!("uint32_t {name}_len, const {}{name}", pointer(&self.ty(ty))),
                Place::Pair { len: format!("{name}_len"), val: name.to_owned() },
            ),
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

    /// The client's signature.
    fn signature(&self, procedure: &Procedure, version: &Version) -> String {
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

    pub(super) fn prototypes(&mut self, program: &Program, version: &Version) {
        self.out.line("");
        self.doc(&program.doc);
        self.out.line(format!("#ifndef {}", program.name));
        self.out.line(format!("#define {} {}U", program.name, program.number));
        self.out.line("#endif");
        self.doc(&version.doc);
        self.out.line(format!("#define {} {}U", version.name, version.number));
        for procedure in &version.procedures {
            self.out.line(format!("#define {} {}U", procedure.name, procedure.number));
        }
        self.out.line("");
        self.out
            .line("/* Calls: 0, or why not. Memory in what comes back is the caller's to free. */");
        for procedure in &version.procedures {
            self.doc(&procedure.doc);
            let line = format!("{};", self.signature(procedure, version));
            self.out.line(line);
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
        self.out.line(
            "/* The procedures: 0, or a shrimp_rc that the client gets instead of results. What they",
        );
        self.out.line("   leave in plain outputs is freed when it was sent. */");
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
        self.out.line("/* Serves until the process ends. */");
        self.out.line(format!("int {base}_serve(const char *name, {ops} *ops);"));
    }

    pub(super) fn client(&mut self, program: &Program, version: &Version) {
        for procedure in &version.procedures {
            self.out.line("");
            self.encode_args(procedure, version);
            let line = self.signature(procedure, version);
            self.out.line(line);
            self.out.line("{");
            self.client_body(procedure, version);
            self.out.line("}");
        }
        let _ = program;
    }

    /// A static function that writes the plain part of the arguments.
    fn encode_args(&mut self, procedure: &Procedure, version: &Version) {
        let params = params(procedure);
        let mut list = vec!["shrimp_writer *w".to_owned()];
        for param in params.iter().filter(|p| p.goes_in()) {
            list.push(match (&param.idl.bulk, param.idl.direction) {
                (Some(_), _) => format!("uint32_t {}_len", param.name),
                (None, Direction::In) => self.by_value(&param.idl.ty, &param.name).0,
                (None, _) => self.by_pointer(&param.idl.ty, &param.name).0,
            });
        }
        if list.len() == 1 {
            return;
        }
        let name = function(procedure, version);
        self.out.line(format!("static int {name}_args({})", list.join(", ")));
        self.out.line("{");
        self.out.line("int shrimp_rc;");
        for param in params.iter().filter(|p| p.goes_in()) {
            match &param.idl.bulk {
                Some(bulk) => {
                    if bulk.fixed {
                        self.out.line(format!("if ({}_len != {}U)", param.name, bulk.len));
                        self.out.line("    return SHRIMP_CODEC_TOO_LONG;");
                    }
                    self.step(&format!("shrimp_put_count(w, {}_len, {}U)", param.name, bulk.len));
                }
                None => {
                    let place = match param.idl.direction {
                        Direction::In => self.by_value(&param.idl.ty, &param.name).1,
                        _ => self.by_pointer(&param.idl.ty, &param.name).1,
                    };
                    self.value(Verb::Put, &param.idl.ty, &place, 0);
                }
            }
        }
        self.out.line("return 0;");
        self.out.line("}");
        self.out.line("");
    }

    fn client_body(&mut self, procedure: &Procedure, version: &Version) {
        let params = params(procedure);
        let name = function(procedure, version);
        let mut names = String::new();
        for param in params.iter().filter(|p| p.goes_in()) {
            if param.idl.bulk.is_some() {
                names += &format!(", {}_len", param.name);
            } else if matches!(param.idl.ty, Type::Opaque(_) | Type::Vec(..)) {
                names += &format!(", {0}_len, {0}", param.name);
            } else {
                names += &format!(", {}", param.name);
            }
        }
        let plain = !names.is_empty();
        self.out.line("shrimp_writer w = shrimp_counter();");
        self.out.line("void *at = NULL;");
        self.out.line("size_t size = 0;");
        self.out.line("int shrimp_rc;");
        if plain {
            self.step(&format!("{name}_args(&w{names})"));
            self.out.line("size = shrimp_padded8(w.len);");
        }
        let blocks: Vec<&Param<'_>> =
            params.iter().filter(|p| p.goes_in() && p.idl.bulk.is_some()).collect();
        for param in &blocks {
            let Some(bulk) = &param.idl.bulk else { continue };
            let size = self.element_size(bulk);
            self.out.line(format!("const size_t {}_at = size;", param.name));
            self.out.line(format!("size += shrimp_padded8((size_t){}_len * {size}U);", param.name));
        }
        self.step(&format!("shrimp_rpc_begin(binding, {}, size, &at)", procedure.name));
        self.out.line("w = shrimp_writer_at(at, size);");
        self.out.line("(void)w;");
        self.out.line("do {");
        if plain {
            self.out.line(format!("if ((shrimp_rc = {name}_args(&w{names})) != 0)"));
            self.out.line("    break;");
        }
        for param in &blocks {
            let Some(bulk) = &param.idl.bulk else { continue };
            let (at, size) =
                (format!("(unsigned char *)at + {}_at", param.name), self.element_size(bulk));
            if let Element::Struct(id) = &bulk.element {
                let element = self.model.def(*id).name.clone();
                self.out.line(format!(
                    "w = shrimp_writer_at({at}, (size_t){}_len * {size}U);",
                    param.name
                ));
                self.out.line(format!("for (uint32_t i0 = 0; i0 < {}_len; i0++)", param.name));
                self.out.line(format!("    (void)shrimp_put_{element}(&w, &{}[i0]);", param.name));
            } else {
                self.out.line(format!("if ({}_len > 0)", param.name));
                self.out
                    .line(format!("    memcpy({at}, {0}, (size_t){0}_len * {size}U);", param.name));
            }
        }
        if procedure.oneway {
            self.out.line("return shrimp_rpc_send(binding);");
            self.out.line("} while (0);");
            self.out.line("shrimp_rpc_end(binding);");
            self.out.line("return shrimp_rc;");
            return;
        }
        self.out.line("const volatile void *reply = NULL;");
        self.out.line("size_t len = 0;");
        self.out.line("if ((shrimp_rc = shrimp_rpc_call_wait(binding, &reply, &len)) != 0)");
        self.out.line("    break;");
        self.out.line(format!("shrimp_rc = {name}_results(binding, reply, len"));
        let mut line = String::new();
        let mut parameters = Vec::new();
        if procedure.result != Type::Void {
            match procedure.result {
                Type::Opaque(_) | Type::Vec(..) => line += ", result_len, result",
                _ => line += ", result",
            }
            parameters.push(self.by_pointer(&procedure.result, "result").0);
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match &param.idl.bulk {
                Some(bulk) => {
                    let element = pointer(&self.element_ty(bulk));
                    if param.idl.direction == Direction::InOut {
                        line += &format!(", {0}_at, {0}_len, {0}", param.name);
                        parameters.push(format!(
                            "size_t {0}_at, uint32_t {0}_len, {element}{0}",
                            param.name
                        ));
                    } else {
                        line += &format!(", {0}_len, {0}", param.name);
                        parameters.push(format!("uint32_t *{0}_len, {element}{0}", param.name));
                    }
                }
                None => {
                    if matches!(param.idl.ty, Type::Opaque(_) | Type::Vec(..)) {
                        line += &format!(", {0}_len", param.name);
                    }
                    line += &format!(", {}", param.name);
                    parameters.push(self.by_pointer(&param.idl.ty, &param.name).0);
                }
            }
        }
        self.out.line(format!("    {line});"));
        self.out.line("} while (0);");
        self.out.line("shrimp_rpc_end(binding);");
        self.out.line("return shrimp_rc;");
        self.results(procedure, &name, &params, &parameters);
    }

    /// The function that reads the results, before the one that calls it.
    fn results(
        &mut self,
        procedure: &Procedure,
        name: &str,
        params: &[Param<'_>],
        parameters: &[String],
    ) {
        let body = std::mem::take(&mut self.out);
        let mut list = vec![
            "shrimp_rpc_binding *binding".to_owned(),
            "const volatile void *reply".to_owned(),
            "size_t len".to_owned(),
        ];
        list.extend(parameters.iter().cloned());
        self.out.line(format!("static int {name}_results({})", list.join(", ")));
        self.out.line("{");
        self.out.line("shrimp_reader reader = shrimp_reader_at(reply, len), *r = &reader;");
        self.out.line("int shrimp_rc = 0;");
        self.out.line("(void)binding;");
        self.out.line("(void)r;");
        if procedure.result != Type::Void {
            self.fresh(&procedure.result, "result");
        }
        for param in params.iter().filter(|p| p.comes_out() && p.idl.bulk.is_none()) {
            // What went in was the caller's, and stays so; what comes back is new.
            self.fresh(&param.idl.ty, &param.name);
        }
        if procedure.result != Type::Void {
            let place = self.by_pointer(&procedure.result, "result").1;
            self.value(Verb::Get, &procedure.result, &place, 0);
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            let name = &param.name;
            let Some(bulk) = &param.idl.bulk else {
                let place = self.by_pointer(&param.idl.ty, name).1;
                self.value(Verb::Get, &param.idl.ty, &place, 0);
                continue;
            };
            if param.idl.direction == Direction::InOut {
                continue;
            }
            let size = self.element_size(bulk);
            self.out.line("{");
            self.out.line("uint32_t distance = 0, count = 0;");
            self.step("shrimp_get_u32(r, &distance)");
            self.step("shrimp_get_u32(r, &count)");
            let wrong = if bulk.fixed {
                format!("count != {}U", bulk.len)
            } else {
                format!("count > {}U", bulk.len)
            };
            self.out.line(format!("if ({wrong} || count > *{name}_len)"));
            self.out.line("    return SHRIMP_CODEC_TOO_LONG;");
            self.out.line(format!("if (distance > len || count > distance / {size}U)"));
            self.out.line("    return SHRIMP_CODEC_SHORT;");
            self.out.line(format!(
                "shrimp_bulk block = {{(volatile unsigned char *)reply + (len - distance), count, {size}U}};"
            ));
            self.copy_out(bulk, name, "count");
            self.out.line(format!("*{name}_len = count;"));
            self.out.line("}");
        }
        for param in params.iter().filter(|p| p.idl.direction == Direction::InOut) {
            let (name, Some(bulk)) = (&param.name, &param.idl.bulk) else { continue };
            let size = self.element_size(bulk);
            if let Element::Struct(_) = bulk.element {
                self.out.line(format!("for (uint32_t i0 = 0; i0 < {name}_len; i0++) {{"));
                self.out.line(format!("unsigned char bytes[{size}];"));
                self.step(&format!(
                    "shrimp_rpc_inout(binding, {name}_at + (size_t)i0 * {size}U, bytes, {size}U)"
                ));
                self.out.line(format!("shrimp_bulk block = {{bytes, 1, {size}U}};"));
                self.out.line("shrimp_reader element = shrimp_bulk_reader(&block, 0);");
                let element = self.element_name(bulk);
                self.step(&format!("shrimp_get_{element}(&element, &{name}[i0])"));
                self.out.line("}");
            } else {
                self.step(&format!(
                    "shrimp_rpc_inout(binding, {name}_at, {name}, (size_t){name}_len * {size}U)"
                ));
            }
        }
        self.out.line("return shrimp_rc;");
        self.out.line("}");
        self.out.line("");
        // The function goes before the one that calls it, whose text is the end of `body`.
        let function = std::mem::replace(&mut self.out, body);
        self.out.insert_before_last_function(&function.finish());
    }

    fn element_name(&self, bulk: &Bulk) -> String {
        match &bulk.element {
            Element::Struct(id) => self.model.def(*id).name.clone(),
            _ => String::new(),
        }
    }

    fn copy_out(&mut self, bulk: &Bulk, name: &str, count: &str) {
        if let Element::Struct(_) = bulk.element {
            let element = self.element_name(bulk);
            self.out.line(format!("for (uint32_t i0 = 0; i0 < {count}; i0++) {{"));
            self.out.line("shrimp_reader element = shrimp_bulk_reader(&block, i0);");
            self.step(&format!("shrimp_get_{element}(&element, &{name}[i0])"));
            self.out.line("}");
        } else {
            self.step(&format!("shrimp_bulk_read(&block, 0, {name}, {count})"));
        }
    }

    /// Zeroes an output before it is filled.
    fn fresh(&mut self, ty: &Type, name: &str) {
        match ty {
            Type::Opaque(_) | Type::Vec(..) => {
                self.out.line(format!("*{name}_len = 0;"));
                self.out.line(format!("*{name} = NULL;"));
            }
            Type::OpaqueArray(len) | Type::Array(_, len) => {
                self.out.line(format!("memset({name}, 0, {len}U * sizeof *{name});"));
            }
            _ => self.out.line(format!("memset({name}, 0, sizeof *{name});")),
        }
    }

    pub(super) fn server(&mut self, program: &Program, version: &Version) {
        let (base, ops) = (version.name.to_ascii_lowercase(), ops(version));
        for procedure in &version.procedures {
            self.out.line("");
            self.serve(procedure, version, &ops);
        }
        self.out.line("");
        self.out.line(format!(
            "int {base}_dispatch(void *ops, uint32_t procedure, shrimp_rpc_call *call)"
        ));
        self.out.line("{");
        self.out.line("void *at;");
        self.out.line("int shrimp_rc;");
        self.out.line("switch (procedure) {");
        for procedure in &version.procedures {
            self.out.line(format!("case {}:", procedure.name));
            self.out.line(format!(
                "    shrimp_rc = {}_serve(ops, call);",
                function(procedure, version)
            ));
            self.out.line("    break;");
        }
        if !version.procedures.iter().any(|p| p.number == 0) {
            self.out.line("case 0:");
            self.out.line("    shrimp_rc = shrimp_rpc_reply(call, 0, &at);");
            self.out.line("    if (shrimp_rc == 0)");
            self.out.line("        shrimp_rc = shrimp_rpc_reply_send(call);");
            self.out.line("    break;");
        }
        self.out.line("default:");
        self.out.line("    return SHRIMP_RPC_PROC_UNAVAIL;");
        self.out.line("}");
        self.out.line("(void)at;");
        self.out.line("return shrimp_rc;");
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("int {base}_serve(const char *name, {ops} *ops)"));
        self.out.line("{");
        self.out.line(format!(
            "return shrimp_rpc_serve(name, {}, {}, {base}_dispatch, ops);",
            program.name, version.name
        ));
        self.out.line("}");
    }

    /// Local variables of a plain parameter at the server, and how it is passed on.
    fn local(&mut self, ty: &Type, name: &str) -> Place {
        match ty {
            Type::Opaque(_) | Type::Vec(..) => {
                self.out.line(format!("uint32_t {name}_len = 0;"));
                self.out.line(format!("{}{name} = NULL;", pointer(&self.ty(ty))));
                Place::Pair { len: format!("{name}_len"), val: name.to_owned() }
            }
            _ => {
                let line = format!("{};", self.declare(ty, name));
                self.out.line(line);
                self.out.line(format!("memset(&{name}, 0, sizeof {name});"));
                self.place(ty, name, "")
            }
        }
    }

    /// How a local variable is passed to a handler.
    fn pass(&self, ty: &Type, name: &str, pointer: bool) -> String {
        match ty {
            Type::Opaque(_) | Type::Vec(..) if pointer => format!("&{name}_len, &{name}"),
            Type::Opaque(_) | Type::Vec(..) => format!("{name}_len, {name}"),
            Type::OpaqueArray(_) | Type::Array(..) => name.to_owned(),
            _ if pointer => format!("&{name}"),
            Type::Named(id) => match &self.model.def(*id).kind {
                TypeKind::Enum(_) => name.to_owned(),
                TypeKind::Alias(target) if !matches!(target, Type::Opaque(_) | Type::Vec(..)) => {
                    self.pass(target, name, false)
                }
                _ => format!("&{name}"),
            },
            _ => name.to_owned(),
        }
    }

    fn serve(&mut self, procedure: &Procedure, version: &Version, ops: &str) {
        let params = params(procedure);
        let name = function(procedure, version);
        self.out.line(format!("static int {name}_serve({ops} *ops, shrimp_rpc_call *call)"));
        self.out.line("{");
        self.out.line("const volatile void *start = NULL;");
        self.out.line("size_t len = 0;");
        self.out.line("shrimp_reader reader, *r = &reader;");
        self.out.line("int shrimp_rc = 0;");
        let mut places = Vec::new();
        if procedure.result != Type::Void {
            places.push((procedure.result.clone(), self.local(&procedure.result, "result"), true));
        }
        let mut arguments = vec!["ops->user".to_owned(), "call".to_owned()];
        for param in &params {
            let name = &param.name;
            match (&param.idl.bulk, param.idl.direction) {
                (None, direction) => {
                    let place = self.local(&param.idl.ty, name);
                    places.push((param.idl.ty.clone(), place, direction != Direction::In));
                    arguments.push(self.pass(&param.idl.ty, name, direction != Direction::In));
                }
                (Some(bulk), Direction::Out) => {
                    let size = self.element_size(bulk);
                    self.out.line(format!(
                        "shrimp_out {name} = {{call, {}U, 0, {{NULL, 0, {size}U}}}};",
                        bulk.len
                    ));
                    arguments.push(format!("&{name}"));
                }
                (Some(bulk), Direction::In) if procedure.copyin => {
                    self.out.line(format!("uint32_t {name}_len = 0;"));
                    self.out.line(format!("{}{name} = NULL;", pointer(&self.element_ty(bulk))));
                    arguments.push(format!("{name}_len, {name}"));
                }
                (Some(bulk), _) => {
                    let size = self.element_size(bulk);
                    self.out.line(format!("shrimp_bulk {name} = {{NULL, 0, {size}U}};"));
                    arguments.push(format!("&{name}"));
                }
            }
        }
        if procedure.result != Type::Void {
            arguments.push(self.pass(&procedure.result, "result", true));
        }
        self.out.line(format!("if (ops->{name} == NULL)"));
        self.out.line("    return SHRIMP_RPC_PROC_UNAVAIL;");
        self.out.line("shrimp_rpc_args(call, &start, &len);");
        self.out.line("reader = shrimp_reader_at(start, len);");
        self.out.line("do {");
        // Decoding may return from the middle: it stands in a function of its own.
        self.decode_args(procedure, &params, &name);
        self.out.line(format!("shrimp_rc = ops->{name}({});", arguments.join(", ")));
        if !procedure.oneway {
            self.out.line("if (shrimp_rc != 0)");
            self.out.line("    break;");
            self.reply(procedure, &params, &name);
        }
        self.out.line("} while (0);");
        self.out.line("(void)r;");
        for (ty, place, _) in &places {
            self.value(Verb::Free, ty, place, 0);
        }
        for param in params.iter().filter(|p| p.idl.bulk.is_some()) {
            if procedure.copyin && param.idl.direction == Direction::In {
                self.out.line(format!("free({});", param.name));
            }
        }
        self.out.line("return shrimp_rc;");
        self.out.line("}");
    }

    fn decode_args(&mut self, procedure: &Procedure, params: &[Param<'_>], name: &str) {
        let incoming: Vec<&Param<'_>> = params.iter().filter(|p| p.goes_in()).collect();
        if incoming.is_empty() {
            return;
        }
        let mut list = vec!["shrimp_reader *r".to_owned()];
        let mut passed = vec!["r".to_owned()];
        for param in &incoming {
            if param.idl.bulk.is_some() {
                list.push(format!("uint32_t *{}_count", param.name));
                self.out.line(format!("uint32_t {}_count = 0;", param.name));
                passed.push(format!("&{}_count", param.name));
            } else {
                list.push(self.by_pointer(&param.idl.ty, &param.name).0);
                passed.push(self.pass(&param.idl.ty, &param.name, true));
            }
        }
        self.out.line(format!("if ({name}_decode({}) != 0) {{", passed.join(", ")));
        self.out.line("shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
        self.out.line("break;");
        self.out.line("}");
        let blocks: Vec<&&Param<'_>> = incoming.iter().filter(|p| p.idl.bulk.is_some()).collect();
        if !blocks.is_empty() {
            self.out.line("size_t at = shrimp_padded8(len - reader.left);");
        }
        for param in blocks {
            let (name, Some(bulk)) = (&param.name, &param.idl.bulk) else { continue };
            let size = self.element_size(bulk);
            self.out.line(format!("if (at > len || {name}_count > (len - at) / {size}U) {{"));
            self.out.line("shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
            self.out.line("break;");
            self.out.line("}");
            if procedure.copyin && param.idl.direction == Direction::In {
                let ty = self.element_ty(bulk);
                self.out.line(format!("shrimp_bulk {name}_bulk = {{(volatile unsigned char *)start + at, {name}_count, {size}U}};"));
                self.out.line(format!("{name} = calloc((size_t){name}_count + 1, sizeof({ty}));"));
                self.out.line(format!("if ({name} == NULL) {{"));
                self.out.line("shrimp_rc = SHRIMP_RPC_SYSTEM_ERR;");
                self.out.line("break;");
                self.out.line("}");
                self.out.line(format!("{name}_len = {name}_count;"));
                if let Element::Struct(_) = bulk.element {
                    let element = self.element_name(bulk);
                    self.out.line(format!(
                        "for (uint32_t i0 = 0; shrimp_rc == 0 && i0 < {name}_len; i0++) {{"
                    ));
                    self.out.line(format!(
                        "shrimp_reader element = shrimp_bulk_reader(&{name}_bulk, i0);"
                    ));
                    self.out.line(format!("if (shrimp_get_{element}(&element, &{name}[i0]) != 0)"));
                    self.out.line("    shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
                    self.out.line("}");
                    self.out.line("if (shrimp_rc != 0)");
                    self.out.line("    break;");
                } else {
                    self.out.line(format!(
                        "(void)shrimp_bulk_read(&{name}_bulk, 0, {name}, {name}_len);"
                    ));
                }
            } else if param.idl.direction == Direction::In {
                self.out.line(format!("{name}.at = (volatile unsigned char *)start + at;"));
                self.out.line(format!("{name}.len = {name}_count;"));
            } else {
                self.out.line(format!(
                    "{name}.at = shrimp_rpc_inplace(call, at, (size_t){name}_count * {size}U);"
                ));
                self.out.line(format!("if ({name}.at == NULL) {{"));
                self.out.line("shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
                self.out.line("break;");
                self.out.line("}");
                self.out.line(format!("{name}.len = {name}_count;"));
            }
            self.out.line(format!("at += shrimp_padded8((size_t){name}_count * {size}U);"));
        }
        let body = std::mem::take(&mut self.out);
        self.out.line(format!("static int {name}_decode({})", list.join(", ")));
        self.out.line("{");
        self.out.line("int shrimp_rc;");
        for param in &incoming {
            match &param.idl.bulk {
                Some(bulk) => {
                    self.step(&format!(
                        "shrimp_get_count(r, {}_count, {}U, 0)",
                        param.name, bulk.len
                    ));
                    if bulk.fixed {
                        self.out.line(format!("if (*{}_count != {}U)", param.name, bulk.len));
                        self.out.line("    return SHRIMP_CODEC_TOO_LONG;");
                    }
                }
                None => {
                    let place = self.by_pointer(&param.idl.ty, &param.name).1;
                    self.value(Verb::Get, &param.idl.ty, &place, 0);
                }
            }
        }
        self.out.line("return 0;");
        self.out.line("}");
        self.out.line("");
        let function = std::mem::replace(&mut self.out, body);
        self.out.insert_before_last_function(&function.finish());
    }

    fn reply(&mut self, procedure: &Procedure, params: &[Param<'_>], name: &str) {
        let mut list = vec!["shrimp_writer *w".to_owned()];
        let mut passed = Vec::new();
        if procedure.result != Type::Void {
            list.push(self.by_pointer(&procedure.result, "result").0);
            passed.push(self.pass(&procedure.result, "result", true));
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => {
                    list.push(self.by_pointer(&param.idl.ty, &param.name).0);
                    passed.push(self.pass(&param.idl.ty, &param.name, true));
                }
                (Some(bulk), Direction::Out) => {
                    if bulk.fixed {
                        // A fixed array is there whether it was written or not.
                        self.out.line(format!("if ({0}.bulk.at == NULL)", param.name));
                        self.out.line(format!(
                            "    (void)shrimp_out_open(&{}, {}U);",
                            param.name, bulk.len
                        ));
                    }
                    list.push(format!("const shrimp_out *{}", param.name));
                    passed.push(format!("&{}", param.name));
                }
                _ => {}
            }
        }
        self.out.line("shrimp_writer w = shrimp_counter();");
        self.out.line("void *place = NULL;");
        let names: String = passed.iter().map(|p| format!(", {p}")).collect();
        if passed.is_empty() {
            self.out.line("if ((shrimp_rc = shrimp_rpc_reply(call, 0, &place)) == 0)");
            self.out.line("    shrimp_rc = shrimp_rpc_reply_send(call);");
            self.out.line("(void)w;");
            return;
        }
        self.out.line(format!("if ({name}_reply(&w{names}) != 0) {{"));
        self.out.line("shrimp_rc = SHRIMP_RPC_SYSTEM_ERR;");
        self.out.line("break;");
        self.out.line("}");
        self.out.line("size_t plain = w.len;");
        self.out.line("if ((shrimp_rc = shrimp_rpc_reply(call, plain, &place)) != 0)");
        self.out.line("    break;");
        self.out.line("w = shrimp_writer_at(place, plain);");
        self.out.line(format!("(void){name}_reply(&w{names});"));
        self.out.line("shrimp_rc = shrimp_rpc_reply_send(call);");

        let body = std::mem::take(&mut self.out);
        self.out.line(format!("static int {name}_reply({})", list.join(", ")));
        self.out.line("{");
        self.out.line("int shrimp_rc;");
        if procedure.result != Type::Void {
            let place = self.by_pointer(&procedure.result, "result").1;
            self.value(Verb::Put, &procedure.result, &place, 0);
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => {
                    let place = self.by_pointer(&param.idl.ty, &param.name).1;
                    self.value(Verb::Put, &param.idl.ty, &place, 0);
                }
                (Some(_), Direction::Out) => {
                    self.step(&format!("shrimp_put_u32(w, {}->distance)", param.name));
                    self.step(&format!("shrimp_put_u32(w, {}->bulk.len)", param.name));
                }
                _ => {}
            }
        }
        self.out.line("return 0;");
        self.out.line("}");
        self.out.line("");
        let function = std::mem::replace(&mut self.out, body);
        self.out.insert_before_last_function(&function.finish());
    }
}
