//! Stubs for Sun RPC, over the seam in `xdr::rpc`.

use super::Emitter;
use super::params::{Outputs, Param};
use crate::emit::names::{Scope, camel, snake, upper};
use crate::model::{Procedure, Program, Version};

struct Proc<'m> {
    idl: &'m Procedure,
    method: String,
    number: String,
    params: Vec<Param<'m>>,
    outputs: Outputs,
    /// Private types of its arguments and results.
    args: String,
    results: String,
}

impl Emitter<'_> {
    pub(super) fn sunrpc_version(&mut self, program: &Program, version: &Version) {
        let module = self.numbers(program, version, "");
        let base = camel(&version.name);
        let mut methods = Scope::with(&["new", "caller", "clone"]);
        let mut constants = Scope::with(&["PROGRAM", "VERSION"]);
        let mut procs = Vec::new();
        for procedure in &version.procedures {
            let params = self.params(procedure);
            let outputs = self.outputs(procedure, &params, "Reply", |_| true);
            // Over Sun RPC nothing is bulk: everything is XDR.
            let outputs = Outputs {
                ty: match &outputs.list[..] {
                    [only] => self.ty(&only.ty),
                    _ => outputs.ty,
                },
                list: outputs
                    .list
                    .into_iter()
                    .map(|o| super::params::Output { bulk: None, ..o })
                    .collect(),
            };
            self.outputs_struct(&outputs, &format!("What `{}` gives back.", procedure.name));
            let name = camel(&procedure.name);
            procs.push(Proc {
                idl: procedure,
                method: methods.claim(&snake(&procedure.name)),
                number: format!("{module}::{}", constants.claim(&upper(&procedure.name))),
                params,
                outputs,
                args: self.types.claim(&format!("{base}{name}Args")),
                results: self.types.claim(&format!("{base}{name}Results")),
            });
        }
        for procedure in &procs {
            self.sunrpc_args(procedure);
            self.sunrpc_results(procedure);
        }
        self.sunrpc_client(&base, &module, version, &procs, false);
        if self.options.asynchronous {
            self.sunrpc_client(&base, &module, version, &procs, true);
        }
        self.sunrpc_server(&base, &module, version, &procs);
    }

    /// The arguments as one value that can be encoded.
    fn sunrpc_args(&mut self, procedure: &Proc<'_>) {
        let xdr = self.xdr.clone();
        let incoming: Vec<&Param<'_>> = procedure.params.iter().filter(|p| p.goes_in()).collect();
        if incoming.is_empty() {
            return;
        }
        let mut lifetime = "";
        let mut fields = Vec::new();
        let mut puts = Vec::new();
        for param in &incoming {
            let (ty, value) = self.passed(&param.idl.ty, &param.name);
            if let Some(target) = ty.strip_prefix('&') {
                lifetime = "<'a>";
                fields.push(format!("{}: &'a {target},", param.name));
                puts.push(format!(
                    "{}?;",
                    self.put(&param.idl.ty, &format!("self.{}", param.name))
                ));
            } else {
                fields.push(format!("{}: {ty},", param.name));
                debug_assert!(value.starts_with('&'));
                puts.push(format!(
                    "{}?;",
                    self.put(&param.idl.ty, &format!("&self.{}", param.name))
                ));
            }
        }
        self.out.line("");
        self.out.line(format!("struct {}{lifetime} {{", procedure.args));
        for field in fields {
            self.out.line(field);
        }
        self.out.line("}");
        self.out.line("");
        let anonymous = if lifetime.is_empty() { "" } else { "<'_>" };
        self.out.line(format!("impl {xdr}::Encode for {}{anonymous} {{", procedure.args));
        self.out.line(format!(
            "fn encode<S: {xdr}::Sink + ?Sized>(&self, sink: &mut S) -> Result<(), {xdr}::EncodeError> {{"
        ));
        for put in puts {
            self.out.line(put);
        }
        self.out.line("Ok(())");
        self.out.line("}");
        self.out.line("}");
    }

    /// The results as one value that can be decoded.
    fn sunrpc_results(&mut self, procedure: &Proc<'_>) {
        if procedure.outputs.list.is_empty() || procedure.idl.oneway {
            return;
        }
        let xdr = self.xdr.clone();
        let name = &procedure.results;
        self.out.line("");
        self.out.line(format!("struct {name}({});", procedure.outputs.ty));
        self.out.line("");
        self.out.line(format!("impl {xdr}::Decode for {name} {{"));
        self.out.line(format!(
            "fn decode<S: {xdr}::Source + ?Sized>(source: &mut S) -> Result<Self, {xdr}::DecodeError> {{"
        ));
        for output in &procedure.outputs.list {
            self.out.line(format!("let {} = {}?;", output.name, self.get(&output.ty)));
        }
        self.out.line(format!("Ok(Self({}))", procedure.outputs.whole()));
        self.out.line("}");
        self.out.line("}");
    }

    fn sunrpc_client(
        &mut self,
        base: &str,
        module: &str,
        version: &Version,
        procs: &[Proc<'_>],
        asynchronous: bool,
    ) {
        let xdr = self.xdr.clone();
        let (kind, bound) =
            if asynchronous { ("AsyncClient", "AsyncCaller") } else { ("Client", "Caller") };
        let name = self.types.claim(&format!("{base}{kind}"));
        self.out.line("");
        let how = if asynchronous { ", for `async` code" } else { "" };
        self.doc(&[], &format!("Calls the procedures of `{}`{how}.", version.name));
        self.out.line("#[derive(Clone, Debug)]");
        self.out.line(format!("pub struct {name}<C> {{"));
        self.out.line("caller: C,");
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("impl<C: {xdr}::rpc::{bound}> {name}<C> {{"));
        self.doc(&[], "Calls through `caller`: a connection.");
        self.out.line("#[must_use]");
        self.out.line("pub fn new(caller: C) -> Self {");
        self.out.line("Self { caller }");
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "What carries the calls.");
        self.out.line("#[must_use]");
        self.out.line("pub fn caller(&self) -> &C {");
        self.out.line("&self.caller");
        self.out.line("}");
        for procedure in procs {
            self.out.line("");
            self.sunrpc_method(procedure, module, asynchronous);
        }
        self.out.line("}");
    }

    fn sunrpc_method(&mut self, procedure: &Proc<'_>, module: &str, asynchronous: bool) {
        let (keyword, wait) = if asynchronous { ("async ", ".await") } else { ("", "") };
        self.method_head(
            (procedure.idl, &procedure.params),
            "",
            "The call could not be made or was not answered.",
            &format!("pub {keyword}fn {}", procedure.method),
        );
        let incoming: Vec<&Param<'_>> = procedure.params.iter().filter(|p| p.goes_in()).collect();
        for param in &incoming {
            let line = format!("{}: {},", param.name, self.passed(&param.idl.ty, &param.name).0);
            self.out.line(line);
        }
        self.out.line(format!(") -> Result<{}, C::Error> {{", procedure.outputs.ty));
        let args = if incoming.is_empty() {
            "()".to_owned()
        } else {
            let names: Vec<&str> = incoming.iter().map(|p| p.name.as_str()).collect();
            format!("{} {{ {} }}", procedure.args, names.join(", "))
        };
        self.out.line(format!("let args = {args};"));
        let numbers = format!("{module}::PROGRAM, {module}::VERSION, {}", procedure.number);
        if procedure.idl.oneway {
            self.out.line(format!("self.caller.send({numbers}, &args){wait}"));
        } else if procedure.outputs.list.is_empty() {
            self.out.line(format!("self.caller.call::<_, ()>({numbers}, &args){wait}"));
        } else {
            let results = &procedure.results;
            self.out.line(format!(
                "let {results}(results) = self.caller.call({numbers}, &args){wait}?;"
            ));
            self.out.line("Ok(results)");
        }
        self.out.line("}");
    }

    fn sunrpc_server(&mut self, base: &str, module: &str, version: &Version, procs: &[Proc<'_>]) {
        let rpc = format!("{}::rpc", self.xdr);
        let xdr = self.xdr.clone();
        let name = self.types.claim(base);
        self.out.line("");
        let title = format!(
            "Implements the procedures of `{}`. `C` is what the transport tells about the caller.",
            version.name
        );
        let doc = if version.doc.is_empty() { vec![title] } else { version.doc.clone() };
        self.doc(&doc, "");
        self.out.line(format!("pub trait {name}<C: ?Sized> {{"));
        for (index, procedure) in procs.iter().enumerate() {
            if index > 0 {
                self.out.line("");
            }
            self.method_head(
                (procedure.idl, &procedure.params),
                "",
                "A failure reaches the client as SYSTEM_ERR.",
                &format!("fn {}", procedure.method),
            );
            self.out.line("context: &C,");
            for param in procedure.params.iter().filter(|p| p.goes_in()) {
                let line = format!("{}: {},", param.name, self.ty(&param.idl.ty));
                self.out.line(line);
            }
            self.out.line(format!(") -> Result<{}, {rpc}::Failed>;", procedure.outputs.ty));
        }
        self.out.line("}");

        let service = self.types.claim(&format!("{base}Program"));
        self.out.line("");
        self.doc(&[], &format!("Serves an implementation of [`{name}`]."));
        self.out.line("#[derive(Clone, Debug)]");
        self.out.line(format!("pub struct {service}<S>(pub S);"));
        self.out.line("");
        self.out
            .line(format!("impl<C: ?Sized, S: {name}<C>> {rpc}::Program<C> for {service}<S> {{"));
        self.out.line(format!("const PROGRAM: u32 = {module}::PROGRAM;"));
        self.out.line(format!("const VERSION: u32 = {module}::VERSION;"));
        self.out.line(format!("const NAME: &'static str = {:?};", version.name));
        self.out.line("");
        self.out.line(format!("fn dispatch<R: {xdr}::Source, K: {xdr}::Sink>("));
        self.out.line("&self,");
        self.out.line("context: &C,");
        self.out.line("procedure: u32,");
        self.out.line("source: &mut R,");
        self.out.line("sink: &mut K,");
        self.out.line(format!(") -> Result<{rpc}::Answer, {rpc}::DispatchError> {{"));
        self.out.line("let Self(implementation) = self;");
        let has = |has: fn(&Proc<'_>) -> bool| procs.iter().any(has);
        for (name, is_used) in [
            ("source", has(|it| it.params.iter().any(Param::goes_in))),
            ("sink", has(|it| !it.outputs.list.is_empty() && !it.idl.oneway)),
        ] {
            if !is_used {
                self.out.line(format!("let _ = {name};"));
            }
        }
        self.out.line("match procedure {");
        for procedure in procs {
            self.out.line(format!("{} => {{", procedure.number));
            let mut arguments = vec!["implementation".to_owned(), "context".to_owned()];
            for param in procedure.params.iter().filter(|p| p.goes_in()) {
                self.out.line(format!("let {} = {}?;", param.name, self.get(&param.idl.ty)));
                arguments.push(param.name.clone());
            }
            let method = format!("<S as {name}<C>>::{}", procedure.method);
            let call = format!("{method}({})?;", arguments.join(", "));
            if procedure.outputs.list.is_empty() {
                self.out.line(call);
            } else {
                self.out.line(format!("let answer = {call}"));
            }
            let several = procedure.outputs.list.len() > 1;
            for (index, output) in procedure.outputs.list.iter().enumerate() {
                let place = procedure.outputs.place("answer", index);
                debug_assert!(several || place == "answer");
                self.out.line(format!("{}?;", self.put(&output.ty, &format!("&{place}"))));
            }
            let answer = if procedure.idl.oneway { "Nothing" } else { "Reply" };
            self.out.line(format!("Ok({rpc}::Answer::{answer})"));
            self.out.line("}");
        }
        if !version.procedures.iter().any(|p| p.number == 0) {
            self.out.line(format!("0 => Ok({rpc}::Answer::Reply),"));
        }
        self.out.line(format!("_ => Err({rpc}::DispatchError::UnknownProcedure(procedure)),"));
        self.out.line("}");
        self.out.line("}");
        self.out.line("}");
    }
}
