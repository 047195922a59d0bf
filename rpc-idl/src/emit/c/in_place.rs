//! Client functions that copy no bulk data: one encodes the plain arguments and says where the blocks lie in the
//! communication buffer, another calls and says where what came back lies. The caller writes and reads
//! there, and ends the call.

use super::Emitter;
use super::client::ENDED;
use super::codec::Verb;
use super::signature::{Param, function, params};
use crate::ast::Direction;
use crate::model::{Bulk, Procedure, Type, Version};

/// The bulk parameters that go in: their blocks, in order.
fn blocks<'p, 'm>(params: &'p [Param<'m>]) -> impl Iterator<Item = (&'p Param<'m>, &'m Bulk)> {
    params.iter().filter(|p| p.goes_in()).filter_map(|p| Some((p, p.idl.bulk.as_ref()?)))
}

/// The bulk parameters that go in and come out.
fn changed<'p, 'm>(params: &'p [Param<'m>]) -> impl Iterator<Item = (&'p Param<'m>, &'m Bulk)> {
    blocks(params).filter(|(param, _)| param.comes_out())
}

/// Whether there is anything to have in place.
pub(super) fn has_bulk(procedure: &Procedure) -> bool {
    procedure.parameters.iter().any(|param| param.bulk.is_some())
}

impl Emitter<'_> {
    /// The type and the functions, for the header.
    pub(super) fn declare_in_place(&mut self, procedure: &Procedure, version: &Version) {
        if !has_bulk(procedure) {
            return;
        }
        let (name, params) = (function(procedure, version), params(procedure));
        self.out.line(format!("typedef struct {name}_place {{"));
        for param in params.iter().filter(|p| p.is_bulk()) {
            self.out.line(format!("shrimp_bulk {};", param.name));
        }
        let inouts = changed(&params).count();
        if inouts > 0 {
            self.out.line(format!("size_t at[{inouts}]; /* the stubs' own */"));
        }
        self.out.line(format!("}} {name}_place;"));
        let (begin, call) =
            (self.begin_signature(procedure, version), self.call_signature(procedure, version));
        self.out.line(format!("{begin};"));
        self.out.line(format!("{call};"));
    }

    fn begin_signature(&self, procedure: &Procedure, version: &Version) -> String {
        let name = function(procedure, version);
        let mut list = vec!["shrimp_rpc_binding *binding".to_owned()];
        for param in params(procedure).iter().filter(|p| p.goes_in()) {
            match (&param.idl.bulk, param.idl.direction) {
                (Some(bulk), _) if bulk.fixed => {}
                (Some(_), _) => list.push(format!("uint32_t {}_len", param.name)),
                (None, Direction::In) => list.push(self.by_value(&param.idl.ty, &param.name).0),
                (None, _) => list.push(self.by_pointer(&param.idl.ty, &param.name).0),
            }
        }
        format!("int {name}_begin({}, {name}_place *place)", list.join(", "))
    }

    /// The results that are not bulk data: declarations, and how they are passed on.
    fn plain_results(&self, procedure: &Procedure) -> (String, String) {
        let (mut declared, mut passed) = (String::new(), String::new());
        let mut add = |ty: &Type, name: &str| {
            declared += &format!(", {}", self.by_pointer(ty, name).0);
            if matches!(ty, Type::Opaque(_) | Type::Vec(..)) {
                passed += &format!(", {name}_len");
            }
            passed += &format!(", {name}");
        };
        if procedure.result != Type::Void {
            add(&procedure.result, "result");
        }
        for param in params(procedure).iter().filter(|p| p.comes_out() && !p.is_bulk()) {
            add(&param.idl.ty, &param.name);
        }
        (declared, passed)
    }

    fn call_signature(&self, procedure: &Procedure, version: &Version) -> String {
        let name = function(procedure, version);
        let results = self.plain_results(procedure).0;
        format!("int {name}_call(shrimp_rpc_binding *binding, {name}_place *place{results})")
    }

    /// The functions.
    pub(super) fn in_place(&mut self, procedure: &Procedure, version: &Version) {
        if has_bulk(procedure) {
            self.begin_in_place(procedure, version);
            self.call_in_place(procedure, version);
        }
    }

    fn begin_in_place(&mut self, procedure: &Procedure, version: &Version) {
        let params = params(procedure);
        let name = function(procedure, version);
        self.out.line("");
        let signature = self.begin_signature(procedure, version);
        self.out.line(signature);
        self.out.line("{");
        self.out.line("shrimp_writer w = shrimp_counter();");
        self.out.line("void *at = NULL;");
        self.out.line("size_t size = 0;");
        self.out.line("int shrimp_rc;");
        for (param, bulk) in blocks(&params).filter(|(_, bulk)| bulk.fixed) {
            self.out.line(format!("const uint32_t {}_len = {}U;", param.name, bulk.len));
        }
        let names = Emitter::args(&params);
        if !names.is_empty() {
            self.encoded(&format!("{name}_args(&w{names})"));
            self.out.line("size = shrimp_padded8(w.len);");
        }
        for (param, bulk) in blocks(&params) {
            let (param, each) = (&param.name, self.element_size(bulk));
            self.out.line(format!("const size_t {param}_at = size;"));
            self.out.line(format!("size += shrimp_padded8((size_t){param}_len * {each}U);"));
        }
        self.step(&format!("shrimp_rpc_begin(binding, {}U, size, &at)", procedure.number));
        self.out.line("w = shrimp_writer_at(at, size);");
        if names.is_empty() {
            self.out.line("(void)w;");
        } else {
            self.out.line(format!("if ((shrimp_rc = {name}_args(&w{names})) != 0) {{"));
            self.out.line("shrimp_rpc_end(binding);");
            self.out.line("return shrimp_rpc_failed(binding, shrimp_rc);");
            self.out.line("}");
        }
        self.out.line("memset(place, 0, sizeof *place);");
        for (param, bulk) in blocks(&params) {
            let (param, each) = (&param.name, self.element_size(bulk));
            self.out
                .line(format!("place->{param}.at = (volatile unsigned char *)at + {param}_at;"));
            self.out.line(format!("place->{param}.len = {param}_len;"));
            self.out.line(format!("place->{param}.size = {each}U;"));
        }
        for (index, (param, _)) in changed(&params).enumerate() {
            self.out.line(format!("place->at[{index}] = {}_at;", param.name));
        }
        self.out.line("return 0;");
        self.out.line("}");
    }

    fn call_in_place(&mut self, procedure: &Procedure, version: &Version) {
        let name = function(procedure, version);
        let signature = self.call_signature(procedure, version);
        self.out.line("");
        if procedure.oneway {
            self.out.line(signature);
            self.out.line("{");
            self.out.line("(void)place;");
            self.out.line("return shrimp_rpc_send(binding);");
            self.out.line("}");
            return;
        }
        self.results_in_place(procedure, &name);
        self.out.line(signature);
        self.out.line("{");
        self.out.line("const volatile void *reply = NULL;");
        self.out.line("size_t len = 0;");
        self.out.line("int shrimp_rc;");
        self.step("shrimp_rpc_call_wait(binding, &reply, &len)");
        let passed = self.plain_results(procedure).1;
        self.out.line(format!("shrimp_rc = {name}_placed(binding, reply, len, place{passed});"));
        let params = params(procedure);
        self.drop_results(procedure, &params);
        self.out.line("if (shrimp_rc != 0)");
        self.out.line("    shrimp_rpc_end(binding);");
        self.out.line(ENDED);
        self.out.line("}");
    }

    /// The function that reads the plain results and finds the blocks.
    fn results_in_place(&mut self, procedure: &Procedure, name: &str) {
        let params = params(procedure);
        let declared = self.plain_results(procedure).0;
        self.out.line(format!(
            "static int {name}_placed(shrimp_rpc_binding *binding, const volatile void *reply, size_t len, \
             {name}_place *place{declared})"
        ));
        self.out.line("{");
        self.out.line("shrimp_reader reader = shrimp_reader_at(reply, len), *r = &reader;");
        self.out.line("int shrimp_rc = 0;");
        self.out.line("(void)binding, (void)r, (void)place;");
        if procedure.result != Type::Void {
            self.fresh(&procedure.result, "result");
        }
        for param in params.iter().filter(|p| p.comes_out() && !p.is_bulk()) {
            self.fresh(&param.idl.ty, &param.name);
        }
        if procedure.result != Type::Void {
            let place = self.by_pointer(&procedure.result, "result").1;
            self.value(Verb::Get, &procedure.result, &place, 0);
        }
        for param in params.iter().filter(|p| p.comes_out()) {
            match (&param.idl.bulk, param.idl.direction) {
                (None, _) => {
                    let place = self.by_pointer(&param.idl.ty, &param.name).1;
                    self.value(Verb::Get, &param.idl.ty, &place, 0);
                }
                (Some(bulk), Direction::Out) => {
                    self.out.line("{");
                    self.out_block(bulk);
                    let param = &param.name;
                    let at = "(volatile unsigned char *)reply + (len - distance)";
                    self.out.line(format!("place->{param}.at = {at};"));
                    self.out.line(format!("place->{param}.len = count;"));
                    self.out.line(format!("place->{param}.size = {}U;", self.element_size(bulk)));
                    self.out.line("}");
                }
                _ => {}
            }
        }
        for (index, (param, bulk)) in changed(&params).enumerate() {
            let (param, each) = (&param.name, self.element_size(bulk));
            self.out.line(format!(
                "place->{param}.at = (volatile unsigned char *)shrimp_rpc_inout_at(binding, place->at[{index}], \
                 (size_t)place->{param}.len * {each}U);"
            ));
            self.out.line(format!("if (place->{param}.at == NULL)"));
            self.out.line("    return SHRIMP_CODEC_SHORT;");
        }
        self.out.line("return shrimp_rc;");
        self.out.line("}");
        self.out.line("");
    }
}
