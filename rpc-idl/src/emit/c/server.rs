//! The server's dispatcher: read the arguments, run the handler, write the results.

use super::codec::Verb;
use super::signature::{Param, answer_list, function, ops, params};
use super::{Emitter, Place, pointer};
use crate::ast::Direction;
use crate::model::{Element, Procedure, Program, Type, TypeKind, Version};

impl Emitter<'_> {
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
            self.out.line(format!("case {}U: /* {} */", procedure.number, procedure.name));
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
            "return shrimp_rpc_serve(name, {}U, {}U, {base}_dispatch, ops);",
            program.number, version.number
        ));
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("int {base}_add(shrimp_rpc_builder *builder, {ops} *ops)"));
        self.out.line("{");
        self.out.line(format!(
            "return shrimp_rpc_builder_program(builder, {}U, {}U, {base}_dispatch, ops);",
            program.number, version.number
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
            _ if self.is_large(ty) => {
                let held = self.held(ty, name);
                let line = format!("{} = NULL;", self.declare(ty, &held));
                self.out.line(line);
                self.place(ty, &held, "")
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
            let (ty, name) = (procedure.result.clone(), "result".to_owned());
            places.push((ty, self.local(&procedure.result, "result"), name));
        }
        let mut arguments = vec!["ops->user".to_owned(), "call".to_owned()];
        for param in &params {
            let name = &param.name;
            match (&param.idl.bulk, param.idl.direction) {
                (None, direction) => {
                    let place = self.local(&param.idl.ty, name);
                    places.push((param.idl.ty.clone(), place, name.clone()));
                    let held = self.held(&param.idl.ty, name);
                    arguments.push(self.pass(&param.idl.ty, &held, direction != Direction::In));
                }
                (Some(bulk), Direction::Out) => {
                    let size = self.element_size(bulk);
                    self.out.line(format!(
                        "shrimp_out {name} = {{call, {}U, 0, {{NULL, 0, {size}U}}}};",
                        bulk.len
                    ));
                    arguments.push(format!("&{name}"));
                }
                (Some(bulk), _) if procedure.copyin => {
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
            let held = self.held(&procedure.result, "result");
            arguments.push(self.pass(&procedure.result, &held, true));
        }
        self.out.line(format!("if (ops->{name} == NULL)"));
        self.out.line("    return SHRIMP_RPC_PROC_UNAVAIL;");
        self.out.line("shrimp_rpc_args(call, &start, &len);");
        self.out.line("reader = shrimp_reader_at(start, len);");
        self.out.line("do {");
        // What is too short to have them allocates nothing.
        let least = |param: &&Param<'_>| self.model.min_len(&param.idl.ty);
        let plain = params.iter().filter(|p| p.goes_in() && !p.is_bulk());
        let least = plain.map(|param| least(&param)).fold(0, u64::saturating_add);
        if places.iter().any(|(ty, ..)| self.is_large(ty)) && least > 0 {
            self.out.line(format!("if (len < {least}U) {{"));
            self.out.line("shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
            self.out.line("break;");
            self.out.line("}");
        }
        for (ty, _, name) in &places {
            if !self.is_large(ty) {
                continue;
            }
            self.out
                .line(format!("if (({name}_held = calloc(1, sizeof *{name}_held)) == NULL) {{"));
            self.out.line("shrimp_rc = SHRIMP_RPC_SYSTEM_ERR;");
            self.out.line("break;");
            self.out.line("}");
        }
        // Decoding may return from the middle: it stands in a function of its own.
        self.decode_args(procedure, &params, &name);
        self.out.line(format!("shrimp_rc = ops->{name}({});", arguments.join(", ")));
        if !procedure.oneway {
            self.out.line("if (shrimp_rc != 0)");
            self.out.line("    break;");
            // A handler that fails has changed nothing.
            for param in params.iter().filter(|param| param.is_copied(procedure)) {
                self.store(param);
            }
            self.reply(procedure, &params, &name);
        }
        self.out.line("} while (0);");
        self.out.line("(void)r;");
        for (ty, place, name) in &places {
            if !self.is_large(ty) {
                self.value(Verb::Free, ty, place, 0);
                continue;
            }
            if self.owns_memory(ty) {
                self.out.line(format!("if ({name}_held != NULL) {{"));
                self.value(Verb::Free, ty, place, 0);
                self.out.line("}");
            }
            self.out.line(format!("free({name}_held);"));
        }
        for param in params.iter().filter(|p| p.idl.bulk.is_some()) {
            if procedure.copyin && param.goes_in() {
                self.out.line(format!("free({});", param.name));
            }
        }
        self.out.line("return shrimp_rc;");
        self.out.line("}");
    }

    /// Writes the copy of an INOUT parameter to where the client reads it.
    fn store(&mut self, param: &Param<'_>) {
        let (name, Some(bulk)) = (&param.name, &param.idl.bulk) else { return };
        if let Element::Struct(_) = bulk.element {
            let element = self.element_name(bulk);
            self.out.line(format!("for (uint32_t i0 = 0; i0 < {name}_len; i0++) {{"));
            self.out.line(format!("shrimp_writer element = shrimp_bulk_writer(&{name}_bulk, i0);"));
            self.out.line(format!("if (shrimp_put_{element}(&element, &{name}[i0]) != 0)"));
            self.out.line("    shrimp_rc = SHRIMP_RPC_GARBAGE_RESULTS;");
            self.out.line("}");
            self.out.line("if (shrimp_rc != 0)");
            self.out.line("    break;");
        } else {
            let arguments = format!("&{name}_bulk, 0, {name}, {name}_len");
            self.out.line(format!("(void)shrimp_bulk_write({arguments});"));
        }
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
                let held = self.held(&param.idl.ty, &param.name);
                passed.push(self.pass(&param.idl.ty, &held, true));
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
            if procedure.copyin {
                let ty = self.element_ty(bulk);
                let at = match param.idl.direction {
                    Direction::InOut => {
                        format!("shrimp_rpc_inplace(call, at, (size_t){name}_count * {size}U)")
                    }
                    _ => "(volatile unsigned char *)start + at".to_owned(),
                };
                self.out
                    .line(format!("shrimp_bulk {name}_bulk = {{{at}, {name}_count, {size}U}};"));
                if param.idl.direction == Direction::InOut {
                    self.out.line(format!("if ({name}_bulk.at == NULL) {{"));
                    self.out.line("shrimp_rc = SHRIMP_RPC_GARBAGE_ARGS;");
                    self.out.line("break;");
                    self.out.line("}");
                }
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
                        "shrimp_codec_get_count(r, {}_count, {}U, 0)",
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

    /// The function that answers, which handlers call themselves for calls that they put off, and its call.
    fn reply(&mut self, procedure: &Procedure, params: &[Param<'_>], name: &str) {
        let (list, passed) = self.outputs(procedure, params);
        let names: String = passed.iter().map(|p| format!(", {p}")).collect();
        self.out.line(format!("shrimp_rc = {name}_answer(call{names});"));

        let body = std::mem::take(&mut self.out);
        if !list.is_empty() {
            self.encode_reply(procedure, params, name, &list);
        }
        self.out.line(format!("int {name}_answer({})", answer_list(&list)));
        self.out.line("{");
        self.out.line("void *place = NULL;");
        for param in params.iter().filter(|p| p.comes_out()) {
            let (Some(bulk), Direction::Out) = (&param.idl.bulk, param.idl.direction) else {
                continue;
            };
            if bulk.fixed {
                // A fixed array is there whether it was written or not: all zeros then.
                let (name, size) = (&param.name, self.element_size(bulk));
                self.out.line(format!("if ({name}->bulk.at == NULL) {{"));
                self.out.line(format!("if (shrimp_out_open({name}, {}U) == NULL)", bulk.len));
                self.out.line("    return SHRIMP_RPC_SYSTEM_ERR;");
                self.out.line(format!(
                    "memset((void *){name}->bulk.at, 0, (size_t){}U * {size}U);",
                    bulk.len
                ));
                self.out.line("}");
            }
        }
        if list.is_empty() {
            self.out.line("int shrimp_rc = shrimp_rpc_reply(call, 0, &place);");
            self.out.line("return shrimp_rc != 0 ? shrimp_rc : shrimp_rpc_reply_send(call);");
        } else {
            let own: String = self.own_outputs(procedure, params);
            self.out.line("shrimp_writer w = shrimp_counter();");
            self.out.line(format!("if ({name}_reply(&w{own}) != 0)"));
            self.out.line("    return SHRIMP_RPC_GARBAGE_RESULTS;");
            self.out.line("size_t plain = w.len;");
            self.out.line("int shrimp_rc = shrimp_rpc_reply(call, plain, &place);");
            self.out.line("if (shrimp_rc != 0)");
            self.out.line("    return shrimp_rc;");
            self.out.line("w = shrimp_writer_at(place, plain);");
            self.out.line(format!("(void){name}_reply(&w{own});"));
            self.out.line("return shrimp_rpc_reply_send(call);");
        }
        self.out.line("}");
        self.out.line("");
        let functions = std::mem::replace(&mut self.out, body);
        self.out.insert_before_last_function(&functions.finish());
    }

    /// What a reply carries: as parameters, and as they are passed where they are local variables.
    fn outputs(&self, procedure: &Procedure, params: &[Param<'_>]) -> (Vec<String>, Vec<String>) {
        let (list, mut passed) = (self.answer_params(procedure, params), Vec::new());
        if procedure.result != Type::Void {
            let held = self.held(&procedure.result, "result");
            passed.push(self.pass(&procedure.result, &held, true));
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => {
                    let held = self.held(&param.idl.ty, &param.name);
                    passed.push(self.pass(&param.idl.ty, &held, true));
                }
                (Some(_), Direction::Out) => passed.push(format!("&{}", param.name)),
                _ => {}
            }
        }
        (list, passed)
    }

    /// The parameters of [`Emitter::answer_params`], passed on.
    fn own_outputs(&self, procedure: &Procedure, params: &[Param<'_>]) -> String {
        let mut own = String::new();
        let mut pass = |ty: Option<&Type>, name: &str| match ty {
            Some(Type::Opaque(_) | Type::Vec(..)) => {
                own.push_str(&format!(", {name}_len, {name}"));
            }
            _ => own.push_str(&format!(", {name}")),
        };
        if procedure.result != Type::Void {
            pass(Some(&procedure.result), "result");
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => pass(Some(&param.idl.ty), &param.name),
                (Some(_), Direction::Out) => pass(None, &param.name),
                _ => {}
            }
        }
        own
    }

    /// The function that writes the plain part of a reply.
    fn encode_reply(
        &mut self,
        procedure: &Procedure,
        params: &[Param<'_>],
        name: &str,
        list: &[String],
    ) {
        self.out.line(format!("static int {name}_reply(shrimp_writer *w, {})", list.join(", ")));
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
                    self.step(&format!("shrimp_codec_put_u32(w, {}->distance)", param.name));
                    self.step(&format!("shrimp_codec_put_u32(w, {}->bulk.len)", param.name));
                }
                _ => {}
            }
        }
        self.out.line("return 0;");
        self.out.line("}");
        self.out.line("");
    }
}
