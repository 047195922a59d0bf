//! Stubs for SHRIMP RPC: the server's trait and its dispatcher.

use super::Emitter;
use super::params::Param;
use super::shrimp::Proc;
use crate::ast::Direction;
use crate::model::Version;

impl Emitter<'_> {
    pub(super) fn server(
        &mut self,
        base: &str,
        module: &str,
        version: &Version,
        procs: &[Proc<'_>],
    ) {
        let runtime = self.runtime.clone();
        for procedure in procs.iter().filter(|p| p.idl.deferred) {
            self.replier(procedure);
        }
        let name = self.types.claim(base);
        self.out.line("");
        let title =
            format!("Implements the procedures of `{}`. Any thread may call it.", version.name);
        let doc = if version.doc.is_empty() { vec![title] } else { version.doc.clone() };
        self.doc(&doc, "");
        self.out.line(format!("pub trait {name} {{"));
        for (index, procedure) in procs.iter().enumerate() {
            if index > 0 {
                self.out.line("");
            }
            self.server_method(procedure);
        }
        self.out.line("}");

        let service = self.types.claim(&format!("{base}Service"));
        self.out.line("");
        self.doc(&[], &format!("Serves an implementation of [`{name}`]."));
        self.out.line("#[derive(Clone, Debug)]");
        self.out.line(format!("pub struct {service}<S>(pub S);"));
        self.service_impl(&service, "<S", &format!("{name}>"), "<S>", module, version);
        let clippy = if procs.is_empty() { "" } else { "let Self(implementation) = self;" };
        self.out.line(clippy);
        self.out.line("match procedure {");
        for procedure in procs {
            self.out.line(format!("{} => {{", procedure.number));
            self.dispatch(procedure, &name);
            self.out.line("}");
        }
        self.rest_of_dispatch(version, &runtime);
    }

    /// The beginning of an implementation of `Service`, up to the body of `dispatch`.
    pub(super) fn service_impl(
        &mut self,
        service: &str,
        generics: &str,
        bound: &str,
        arguments: &str,
        module: &str,
        version: &Version,
    ) {
        let runtime = self.runtime.clone();
        self.out.line("");
        self.out.line(format!(
            "impl{generics}: {bound} {runtime}::Service for {service}{arguments} {{"
        ));
        self.out.line(format!("const PROGRAM: u32 = {module}::PROGRAM;"));
        self.out.line(format!("const VERSION: u32 = {module}::VERSION;"));
        self.out.line(format!("const NAME: &'static str = {:?};", version.name));
        self.out.line("");
        self.out.line("fn dispatch(");
        self.out.line("&self,");
        self.out.line("procedure: u32,");
        self.out.line(format!("call: {runtime}::ServerCall<'_>,"));
        self.out.line(format!(") -> Result<{runtime}::Finished, {runtime}::DispatchError> {{"));
    }

    /// The end of `dispatch`: procedure 0, which every program has, and the unknown ones.
    pub(super) fn rest_of_dispatch(&mut self, version: &Version, runtime: &str) {
        if !version.procedures.iter().any(|p| p.number == 0) {
            self.out.line("0 => call.reply(0)?.send(),");
        }
        self.out.line(format!("_ => Err({runtime}::DispatchError::UnknownProcedure(procedure)),"));
        self.out.line("}");
        self.out.line("}");
        self.out.line("}");
    }

    /// The type of a parameter in the server's trait; `None` if it is part of the return value.
    fn served(&self, param: &Param<'_>, copyin: bool) -> Option<String> {
        let runtime = &self.runtime;
        let Some(bulk) = &param.idl.bulk else {
            return (!param.is_out()).then(|| self.ty(&param.idl.ty));
        };
        let element = self.element(bulk);
        Some(match (param.idl.direction, bulk.fixed) {
            (Direction::In, _) if copyin => format!("Vec<{element}>"),
            (Direction::InOut, _) if copyin => format!("&mut [{element}]"),
            (Direction::In, _) => format!("{runtime}::Bulk<'_, {element}>"),
            (Direction::Out, false) => format!("&mut {runtime}::BulkOut<'_, {element}>"),
            _ => format!("&mut {runtime}::BulkMut<'_, {element}>"),
        })
    }

    fn server_method(&mut self, procedure: &Proc<'_>) {
        let runtime = self.runtime.clone();
        if procedure.idl.deferred {
            self.procedure_doc(
                procedure.idl,
                &procedure.params,
                "Replies through `replier`, from any thread, now or later.",
            );
            self.out.line(format!("fn {}(", procedure.method));
            self.out.line("&self,");
            self.owned_params(procedure);
            self.out.line(format!("replier: {},", procedure.replier));
            self.out.line(");");
            return;
        }
        self.method_head(
            (procedure.idl, &procedure.params),
            "",
            "A fault reaches the client instead of results.",
            &format!("fn {}", procedure.method),
        );
        self.out.line(format!("context: &{runtime}::Context,"));
        for param in &procedure.params {
            if let Some(ty) = self.served(param, procedure.idl.copyin) {
                self.out.line(format!("{}: {ty},", param.name));
            }
        }
        self.out.line(format!(") -> Result<{}, {runtime}::Fault>;", procedure.plain.ty));
    }

    /// Takes the plain part of the arguments, and the counts of the bulk ones.
    pub(super) fn take_args(&mut self, procedure: &Proc<'_>) {
        let xdr = self.xdr.clone();
        if !procedure.has_plain_args() {
            return;
        }
        self.out.line("let mut args = call.args();");
        for param in procedure.params.iter().filter(|p| p.goes_in()) {
            self.out.line("let source = &mut args;");
            match &param.idl.bulk {
                Some(bulk) => {
                    let get = if bulk.fixed { "get_exact_count" } else { "get_count" };
                    self.out
                        .line(format!("let {} = {xdr}::{get}(source, {})?;", param.name, bulk.len));
                }
                None => {
                    self.out.line(format!("let {} = {}?;", param.name, self.get(&param.idl.ty)));
                }
            }
        }
        self.out.line("args.finish()?;");
    }

    fn dispatch(&mut self, procedure: &Proc<'_>, service: &str) {
        if procedure.idl.deferred {
            self.dispatch_deferred(procedure, service);
            return;
        }
        self.take_args(procedure);
        let mut arguments = vec!["implementation".to_owned(), "call.context()".to_owned()];
        for param in &procedure.params {
            let name = &param.name;
            let Some(bulk) = &param.idl.bulk else {
                if !param.is_out() {
                    arguments.push(name.clone());
                }
                continue;
            };
            let element = self.element(bulk);
            let line = match (param.idl.direction, bulk.fixed) {
                (Direction::In, _) if procedure.idl.copyin => {
                    format!("let {name} = call.block::<{element}>({name})?.to_vec()?;")
                }
                (Direction::In, _) => format!("let {name} = call.block::<{element}>({name})?;"),
                (Direction::InOut, _) if procedure.idl.copyin => {
                    format!("let mut {name} = call.block_copied::<{element}>({name})?;")
                }
                (Direction::InOut, _) => {
                    format!("let mut {name} = call.block_mut::<{element}>({name})?;")
                }
                (Direction::Out, true) => {
                    format!("let mut {name} = call.out_array::<{element}>({})?;", bulk.len)
                }
                (Direction::Out, false) => {
                    format!("let mut {name} = call.out::<{element}>({});", bulk.len)
                }
            };
            self.out.line(line);
            arguments.push(match param.idl.direction {
                Direction::In => name.clone(),
                _ => format!("&mut {name}"),
            });
        }
        let call = format!("{}({})?;", procedure.method_of(service), arguments.join(", "));
        if procedure.plain.list.is_empty() {
            self.out.line(call);
        } else {
            self.out.line(format!("let answer = {call}"));
        }
        if procedure.idl.oneway {
            self.out.line("Ok(call.finish_oneway())");
            return;
        }
        // A fault has changed nothing.
        for param in procedure.params.iter().filter(|param| param.is_copied(procedure.idl)) {
            self.out.line(format!("{}.store()?;", param.name));
        }
        let descriptor = |name: &str| format!("{name}.descriptor()");
        self.send_reply(procedure, "call", "answer", &descriptor);
    }

    /// Encodes the plain part of a reply and sends it.
    pub(super) fn send_reply(
        &mut self,
        procedure: &Proc<'_>,
        call: &str,
        answer: &str,
        descriptor: &dyn Fn(&str) -> String,
    ) {
        let xdr = self.xdr.clone();
        let mut arguments = String::new();
        if !procedure.plain.list.is_empty() {
            arguments.push_str(&format!(", &{answer}"));
        }
        for output in &procedure.owned.list {
            if output.bulk.is_some() && output.direction == Direction::Out {
                arguments.push_str(&format!(", {}", descriptor(&output.name)));
            }
        }
        if arguments.is_empty() {
            self.out.line(format!("{call}.reply(0)?.send()"));
            return;
        }
        self.out.line(format!("let mut counter = {xdr}::Counter::new();"));
        self.out.line(format!("{}_reply(&mut counter{arguments})?;", procedure.encode));
        self.out.line(format!("let mut reply = {call}.reply(counter.len())?;"));
        self.out.line(format!("{}_reply(&mut reply{arguments})?;", procedure.encode));
        self.out.line("reply.send()");
    }
}
