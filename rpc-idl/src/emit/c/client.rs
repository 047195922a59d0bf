//! Client functions: write the arguments, call, read the results.

use super::codec::Verb;
use super::signature::{Param, function, params};
use super::{Emitter, pointer};
use crate::ast::Direction;
use crate::model::{Bulk, Element, Procedure, Program, Type, Version};

/// The end of a call: what the codec found, the runtime does not know.
pub(super) const ENDED: &str =
    "return shrimp_rc < 0 ? shrimp_rpc_failed(binding, shrimp_rc) : shrimp_rc;";

impl Emitter<'_> {
    pub(super) fn client(&mut self, program: &Program, version: &Version) {
        for procedure in &version.procedures {
            self.out.line("");
            self.encode_args(procedure, version);
            let line = self.signature(procedure, version);
            self.out.line(line);
            self.out.line("{");
            self.client_body(procedure, version);
            self.out.line("}");
            self.in_place(procedure, version);
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
                    self.step(&format!(
                        "shrimp_codec_put_count(w, {}_len, {}U)",
                        param.name, bulk.len
                    ));
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

    /// Ends the call if its arguments do not encode.
    pub(super) fn encoded(&mut self, call: &str) {
        self.out.line(format!("if ((shrimp_rc = {call}) != 0)"));
        self.out.line("    return shrimp_rpc_failed(binding, shrimp_rc);");
    }

    /// What that function is passed.
    pub(super) fn args(params: &[Param<'_>]) -> String {
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
        names
    }

    fn client_body(&mut self, procedure: &Procedure, version: &Version) {
        let params = params(procedure);
        let name = function(procedure, version);
        let names = Emitter::args(&params);
        let plain = !names.is_empty();
        self.out.line("shrimp_writer w = shrimp_counter();");
        self.out.line("void *at = NULL;");
        self.out.line("size_t size = 0;");
        self.out.line("int shrimp_rc;");
        if plain {
            self.encoded(&format!("{name}_args(&w{names})"));
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
        self.step(&format!("shrimp_rpc_begin(binding, {}U, size, &at)", procedure.number));
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
                self.out.line(format!(
                    "for (uint32_t i0 = 0; shrimp_rc == 0 && i0 < {}_len; i0++)",
                    param.name
                ));
                self.out.line(format!(
                    "    shrimp_rc = shrimp_put_{element}(&w, &{}[i0]);",
                    param.name
                ));
                self.out.line("if (shrimp_rc != 0)");
                self.out.line("    break;");
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
            self.out.line(ENDED);
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
        self.drop_results(procedure, &params);
        self.out.line("} while (0);");
        self.out.line("shrimp_rpc_end(binding);");
        self.out.line(ENDED);
        self.results(procedure, &name, &params, &parameters);
    }

    /// Frees what there is of results that could not be read: the caller is told that there are none.
    pub(super) fn drop_results(&mut self, procedure: &Procedure, params: &[Param<'_>]) {
        let plain = params.iter().filter(|p| p.comes_out() && !p.is_bulk());
        let mut owned = vec![(&procedure.result, "result")];
        owned.extend(plain.map(|param| (&param.idl.ty, &*param.name)));
        owned.retain(|(ty, _)| **ty != Type::Void && self.owns_memory(ty));
        if owned.is_empty() {
            return;
        }
        self.out.line("if (shrimp_rc != 0) {");
        for (ty, name) in owned {
            let place = self.by_pointer(ty, name).1;
            self.value(Verb::Free, ty, &place, 0);
            self.fresh(ty, name);
        }
        self.out.line("}");
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
            self.out_block(bulk);
            self.out.line(format!("if (count > *{name}_len) {{"));
            self.out.line(format!("*{name}_len = count;"));
            self.out.line("return SHRIMP_CODEC_NO_SPACE;");
            self.out.line("}");
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

    /// Reads and checks where an OUT block is: `distance` and `count`.
    pub(super) fn out_block(&mut self, bulk: &Bulk) {
        self.out.line("uint32_t distance = 0, count = 0;");
        self.step("shrimp_codec_get_u32(r, &distance)");
        self.step("shrimp_codec_get_u32(r, &count)");
        let wrong = if bulk.fixed { "!=" } else { ">" };
        self.out.line(format!("if (count {wrong} {}U)", bulk.len));
        self.out.line("    return SHRIMP_CODEC_TOO_LONG;");
        let size = self.element_size(bulk);
        self.out.line(format!("if (distance > len || count > distance / {size}U)"));
        self.out.line("    return SHRIMP_CODEC_SHORT;");
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
    pub(super) fn fresh(&mut self, ty: &Type, name: &str) {
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
}
