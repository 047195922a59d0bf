//! Stubs for SHRIMP RPC: clients.

use super::Emitter;
use super::params::{Outputs, Param};
use crate::ast::Direction;
use crate::emit::names::{Scope, camel, snake, upper};
use crate::model::{Procedure, Program, Version};

/// A procedure with all its names.
pub(super) struct Proc<'m> {
    pub(super) idl: &'m Procedure,
    /// Name of its method.
    pub(super) method: String,
    /// Name of its method that has bulk data in the buffers themselves; empty without bulk data.
    pub(super) in_place: String,
    /// Name of the type that answers it later; empty where it is answered at once.
    pub(super) replier: String,
    /// Its number, as a path.
    pub(super) number: String,
    /// Name of the functions that encode its arguments and its results.
    pub(super) encode: String,
    pub(super) params: Vec<Param<'m>>,
    /// What comes back outside bulk parameters.
    pub(super) plain: Outputs,
    /// What comes back, bulk parameters as vectors.
    pub(super) owned: Outputs,
}

/// What callers are to know of a procedure that answers nothing.
pub(super) fn one_way(procedure: &Procedure) -> &'static str {
    match procedure.oneway {
        true => {
            "Nobody waits for it, and later calls may overtake it; not where `BindingBuilder::lanes` says 1."
        }
        false => "",
    }
}

impl Proc<'_> {
    /// The method of the trait `service`, which `S` implements. By its full name: one without may be another trait's.
    pub(super) fn method_of(&self, service: &str) -> String {
        format!("<S as {service}>::{}", self.method)
    }

    /// The bulk parameters of the request, in the order of their blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &Param<'_>)> {
        self.params.iter().filter(|p| p.goes_in() && p.idl.bulk.is_some()).enumerate()
    }

    pub(super) fn has_plain_args(&self) -> bool {
        self.params.iter().any(Param::goes_in)
    }
}

impl Emitter<'_> {
    pub(super) fn shrimp_version(&mut self, program: &Program, version: &Version) {
        let module = self.numbers(program, version, "");
        let base = camel(&version.name);
        let bare = |name: &str| name.trim_start_matches("r#").trim_end_matches('_').to_owned();
        let bare_module = bare(&module);
        let mut methods = Scope::with(&["connect", "new", "binding", "clone", "with_timeout"]);
        let mut constants = Scope::with(&["PROGRAM", "VERSION"]);
        let mut procs = Vec::new();
        for procedure in &version.procedures {
            let params = self.params(procedure);
            let method = methods.claim(&snake(&procedure.name));
            let plain = self.outputs(procedure, &params, "Reply", |p| p.idl.bulk.is_none());
            let bulk_back = params.iter().any(|p| p.comes_out() && p.idl.bulk.is_some());
            let owned = if bulk_back {
                self.outputs(procedure, &params, "Results", |_| true)
            } else {
                self.outputs_again(&plain)
            };
            let title = format!("What `{}` gives back.", procedure.name);
            self.outputs_struct(&plain, &title);
            if bulk_back && (self.options.asynchronous || procedure.deferred) {
                let title = format!("What `{}` gives back, bulk data included.", procedure.name);
                self.outputs_struct(&owned, &title);
            }
            let constant = constants.claim(&upper(&procedure.name));
            procs.push(Proc {
                idl: procedure,
                number: format!("{module}::{constant}"),
                encode: self.functions.claim_part(&format!("{bare_module}_{}", bare(&method))),
                replier: if procedure.deferred {
                    let name = format!("{base}{}Replier", camel(&procedure.name));
                    self.types.claim(&name)
                } else {
                    String::new()
                },
                method,
                in_place: String::new(),
                params,
                plain,
                owned,
            });
        }
        // After all methods: those of the interface keep their names.
        for procedure in procs.iter_mut().filter(|it| it.params.iter().any(Param::is_bulk)) {
            let name = format!("{}_in_place", procedure.method.trim_start_matches("r#"));
            procedure.in_place = methods.claim(&name);
        }
        for procedure in &procs {
            self.encode_args(procedure);
            self.encode_reply(procedure);
        }
        self.client(&base, &module, version, &procs, false);
        if self.options.asynchronous {
            self.client(&base, &module, version, &procs, true);
        }
        self.server(&base, &module, version, &procs);
        if self.options.asynchronous {
            self.async_server(&base, &module, version, &procs);
        }
    }

    /// The same outputs again.
    fn outputs_again(&self, outputs: &Outputs) -> Outputs {
        let list = outputs
            .list
            .iter()
            .map(|o| super::params::Output {
                name: o.name.clone(),
                ty: o.ty.clone(),
                bulk: o.bulk.clone(),
                direction: o.direction,
                doc: o.doc.clone(),
            })
            .collect();
        Outputs { list, ty: outputs.ty.clone() }
    }

    /// The function that writes the plain part of a request.
    fn encode_args(&mut self, procedure: &Proc<'_>) {
        if !procedure.has_plain_args() {
            return;
        }
        let xdr = self.xdr.clone();
        let mut parameters = vec!["sink: &mut S".to_owned()];
        let mut lines = Vec::new();
        for param in procedure.params.iter().filter(|p| p.goes_in()) {
            match &param.idl.bulk {
                Some(bulk) => {
                    parameters.push(format!("{}: usize", param.name));
                    let put = if bulk.fixed { "put_exact_count" } else { "put_count" };
                    lines.push(format!("{xdr}::{put}(sink, {}, {})?;", param.name, bulk.len));
                }
                None => {
                    let (ty, value) = self.passed(&param.idl.ty, &param.name);
                    parameters.push(format!("{}: {ty}", param.name));
                    lines.push(format!("{}?;", self.put(&param.idl.ty, &value)));
                }
            }
        }
        self.out.line("");
        self.allow_many(parameters.len());
        self.out.line(format!("fn {}_args<S: {xdr}::Sink + ?Sized>(", procedure.encode));
        for parameter in parameters {
            self.out.line(format!("{parameter},"));
        }
        self.out.line(format!(") -> Result<(), {xdr}::EncodeError> {{"));
        for line in lines {
            self.out.line(line);
        }
        self.out.line("Ok(())");
        self.out.line("}");
    }

    /// The function that writes the plain part of a reply: what is plain, and where bulk outputs
    /// are.
    fn encode_reply(&mut self, procedure: &Proc<'_>) {
        let xdr = self.xdr.clone();
        if procedure.idl.oneway || procedure.owned.list.is_empty() {
            return;
        }
        let mut parameters = vec!["sink: &mut S".to_owned()];
        match &procedure.plain.list[..] {
            [] => {}
            // A slice, if it is a vector.
            [only] => {
                let ty = self.passed(&only.ty, "results").0;
                let ty = if ty.starts_with('&') { ty } else { format!("&{ty}") };
                parameters.push(format!("results: {ty}"));
            }
            _ => parameters.push(format!("results: &{}", procedure.plain.ty)),
        }
        let mut lines = Vec::new();
        let mut plain = 0;
        for output in &procedure.owned.list {
            if output.bulk.is_none() {
                let place = procedure.plain.place("results", plain);
                let value =
                    if procedure.plain.list.len() == 1 { place } else { format!("&{place}") };
                lines.push(format!("{}?;", self.put(&output.ty, &value)));
                plain += 1;
            } else if output.direction == Direction::Out {
                parameters.push(format!("{}: (u32, u32)", output.name));
                lines.push(format!("sink.put_u32({}.0)?;", output.name));
                lines.push(format!("sink.put_u32({}.1)?;", output.name));
            }
        }
        if lines.is_empty() {
            return;
        }
        self.out.line("");
        self.allow_many(parameters.len());
        self.out.line(format!("fn {}_reply<S: {xdr}::Sink + ?Sized>(", procedure.encode));
        for parameter in parameters {
            self.out.line(format!("{parameter},"));
        }
        self.out.line(format!(") -> Result<(), {xdr}::EncodeError> {{"));
        for line in lines {
            self.out.line(line);
        }
        self.out.line("Ok(())");
        self.out.line("}");
    }

    fn client(
        &mut self,
        base: &str,
        module: &str,
        version: &Version,
        procs: &[Proc<'_>],
        asynchronous: bool,
    ) {
        let runtime = self.runtime.clone();
        let kind = if asynchronous { "AsyncClient" } else { "Client" };
        let name = self.types.claim(&format!("{base}{kind}"));
        self.out.line("");
        let how = if asynchronous { ", for `async` code of any executor" } else { "" };
        self.doc(&[], &format!("Calls the procedures of `{}`{how}.", version.name));
        self.out.line("#[derive(Clone, Debug)]");
        self.out.line(format!("pub struct {name} {{"));
        self.out.line(format!("binding: {runtime}::Binding,"));
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("impl {name} {{"));
        self.doc(&[], "Binds to the service of this name.");
        self.out.plain("///");
        self.out.plain("/// # Errors");
        self.out.plain("/// There is no such service, or it refuses this client.");
        let (keyword, suffix, wait) =
            if asynchronous { ("async ", "_async", ".await") } else { ("", "", "") };
        self.out.line(format!(
            "pub {keyword}fn connect(name: &str) -> Result<Self, {runtime}::ConnectError> {{"
        ));
        self.out.line(format!(
            "{runtime}::Binding::connect{suffix}(name, {module}::PROGRAM, {module}::VERSION){wait}.map(Self::new)"
        ));
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "Uses a binding made elsewhere.");
        self.out.line("#[must_use]");
        self.out.line(format!("pub fn new(binding: {runtime}::Binding) -> Self {{"));
        self.out.line("Self { binding }");
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "The binding.");
        self.out.line("#[must_use]");
        self.out.line(format!("pub fn binding(&self) -> &{runtime}::Binding {{"));
        self.out.line("&self.binding");
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "Another client with the same binding, whose calls may take so long each.");
        self.out.line("#[must_use]");
        self.out.line("pub fn with_timeout(&self, timeout: ::core::time::Duration) -> Self {");
        self.out.line("Self::new(self.binding.with_timeout(timeout))");
        self.out.line("}");
        for procedure in procs {
            self.out.line("");
            self.client_method(procedure, asynchronous);
            if !asynchronous && !procedure.in_place.is_empty() {
                self.out.line("");
                self.client_method_in_place(procedure);
            }
        }
        self.out.line("}");
    }

    fn client_method(&mut self, procedure: &Proc<'_>, asynchronous: bool) {
        let runtime = self.runtime.clone();
        let (keyword, suffix, wait) =
            if asynchronous { ("async ", "_async", ".await") } else { ("", "", "") };
        self.method_head(
            (procedure.idl, &procedure.params),
            one_way(procedure.idl),
            "The call could not be made or was not answered.",
            &format!("pub {keyword}fn {}", procedure.method),
        );
        for param in &procedure.params {
            let ty = match &param.idl.bulk {
                Some(bulk) => {
                    let element = self.element(bulk);
                    match (param.idl.direction, bulk.fixed) {
                        (Direction::In, _) => format!("&[{element}]"),
                        (Direction::Out, false) => format!("&mut Vec<{element}>"),
                        _ => format!("&mut [{element}]"),
                    }
                }
                None if param.is_out() => continue,
                None => self.passed(&param.idl.ty, &param.name).0,
            };
            self.out.line(format!("{}: {ty},", param.name));
        }
        self.out.line(format!(") -> Result<{}, {runtime}::CallError> {{", procedure.plain.ty));

        self.open_request(procedure, &|p| format!("{}.len()", p.name), (suffix, wait));
        for (_, param) in procedure.blocks() {
            self.out.line(format!(
                "request.block::<{}>({})?;",
                param.idl.bulk.as_ref().map(|b| self.element(b)).unwrap_or_default(),
                param.name
            ));
        }
        if procedure.idl.oneway {
            self.out.line(format!("request.send{suffix}(){wait}"));
            self.out.line("}");
            return;
        }
        self.read_reply(procedure, (suffix, wait), true, |emitter, output| {
            if let Some(bulk) = &output.bulk {
                let call = if bulk.fixed {
                    format!("out_array({})", output.name)
                } else {
                    format!("out_vec({}, {})", bulk.len, output.name)
                };
                emitter.out.line(format!("reply.{call}?;"));
            }
        });
        for (index, param) in procedure.blocks().filter(|(_, p)| p.comes_out()) {
            self.out.line(format!("reply.inout({index}, {})?;", param.name));
        }
        self.out.line("reply.finish()?;");
        self.out.line(format!("Ok({})", procedure.plain.whole()));
        self.out.line("}");
    }

    /// The lines from the size of a request to its plain part. `len` is the expression of a bulk
    /// parameter's number of elements.
    pub(super) fn open_request(
        &mut self,
        procedure: &Proc<'_>,
        len: &dyn Fn(&Param<'_>) -> String,
        (suffix, wait): (&str, &str),
    ) {
        let (xdr, runtime) = (self.xdr.clone(), self.runtime.clone());
        let incoming = procedure.params.iter().filter(|p| p.goes_in());
        let values = incoming.map(|p| match p.idl.bulk {
            Some(_) => format!(", {}", len(p)),
            None => format!(", {}", p.name),
        });
        let values: String = values.collect();
        let (plain, mutable) = if procedure.has_plain_args() {
            self.out.line(format!("let mut counter = {xdr}::Counter::new();"));
            self.out.line(format!("{}_args(&mut counter{values})?;", procedure.encode));
            ("counter.len()", "mut ")
        } else {
            ("0", "")
        };
        let size = |param: &Param<'_>| {
            let element = param.idl.bulk.as_ref().map(|b| self.element(b)).unwrap_or_default();
            format!(
                "{xdr}::padded8({}.saturating_mul(<{element} as {runtime}::Element>::SIZE))",
                len(param)
            )
        };
        let sum = procedure.blocks().map(|(_, param)| size(param));
        let sum = sum.reduce(|sum, size| format!("{sum}.saturating_add({size})"));
        let bulk = sum.unwrap_or_else(|| "0".to_owned());
        self.out.line(format!(
            "let {mutable}request = self.binding.request{suffix}({}, {plain}, {bulk}){wait}?;",
            procedure.number
        ));
        if procedure.has_plain_args() {
            self.out.line(format!("{}_args(&mut request{values})?;", procedure.encode));
        }
    }

    /// The lines that make the call and read its reply's plain part; `bulk` those of bulk OUT data.
    /// `copies_back`: INOUT data is copied out of the reply.
    pub(super) fn read_reply(
        &mut self,
        procedure: &Proc<'_>,
        (suffix, wait): (&str, &str),
        copies_back: bool,
        bulk: impl Fn(&mut Self, &super::params::Output),
    ) {
        // Reading moves on in the reply; INOUT data that is read in place does not.
        let reads = |o: &super::params::Output| {
            o.bulk.is_none() || o.direction == Direction::Out || copies_back
        };
        let mutable = if procedure.owned.list.iter().any(reads) { "mut " } else { "" };
        self.out.line(format!("let {mutable}reply = request.call{suffix}(){wait}?;"));
        for output in &procedure.owned.list {
            if output.bulk.is_none() {
                self.out.line("let source = &mut reply;");
                self.out.line(format!("let {} = {}?;", output.name, self.get(&output.ty)));
            } else if output.direction == Direction::Out {
                bulk(self, output);
            }
        }
    }
}
