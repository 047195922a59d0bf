//! Stubs for SHRIMP RPC: deferred replies, and the server for `async` on top of them. Both own
//! their arguments and their results.

use super::Emitter;
use super::shrimp::Proc;
use crate::ast::Direction;
use crate::model::Version;

impl Emitter<'_> {
    /// The parameters as owned values.
    pub(super) fn owned_params(&mut self, procedure: &Proc<'_>) {
        for param in procedure.params.iter().filter(|p| p.goes_in()) {
            let ty = match &param.idl.bulk {
                Some(bulk) => format!("Vec<{}>", self.element(bulk)),
                None => self.ty(&param.idl.ty),
            };
            self.out.line(format!("{}: {ty},", param.name));
        }
    }

    /// Turns the counts of bulk arguments into the arguments.
    fn take_blocks(&mut self, procedure: &Proc<'_>) {
        for (_, param) in procedure.blocks() {
            let element = param.idl.bulk.as_ref().map(|b| self.element(b)).unwrap_or_default();
            let name = &param.name;
            let take = match param.idl.direction {
                Direction::In => "block",
                _ => "block_mut",
            };
            self.out.line(format!("let {name} = call.{take}::<{element}>({name})?.to_vec()?;"));
        }
    }

    /// The lines that send owned results through `call`, a deferred call.
    fn reply_owned(&mut self, procedure: &Proc<'_>) {
        // Bulk outputs first: their places go into the plain part.
        for (index, output) in procedure.owned.list.iter().enumerate() {
            let Some(bulk) = &output.bulk else { continue };
            let place = procedure.owned.place("results", index);
            if output.direction == Direction::Out {
                let out = if bulk.fixed { "out_array" } else { "out" };
                let line = format!("let {} = call.{out}(&{place}, {})?;", output.name, bulk.len);
                self.out.line(line);
            } else {
                let block = procedure.blocks().find(|(_, p)| p.name == output.name);
                let block = block.map_or(0, |(index, _)| index);
                self.out.line(format!("call.inout({block}, &{place})?;"));
            }
        }
        let same = procedure.plain.list.len() == procedure.owned.list.len();
        let answer = if same || procedure.plain.list.is_empty() {
            "results".to_owned()
        } else {
            let mut names = Vec::new();
            for (index, output) in procedure.owned.list.iter().enumerate() {
                if output.bulk.is_none() {
                    names.push((output.name.clone(), procedure.owned.place("results", index)));
                }
            }
            match &names[..] {
                [(_, place)] => self.out.line(format!("let answer = {place};")),
                names => {
                    self.out.line(format!("let answer = {} {{", procedure.plain.ty));
                    for (name, place) in names {
                        self.out.line(format!("{name}: {place},"));
                    }
                    self.out.line("};");
                }
            }
            "answer".to_owned()
        };
        self.send_reply(procedure, "call", &answer, &|name: &str| name.to_owned());
    }

    /// The type that sends a deferred reply.
    pub(super) fn replier(&mut self, procedure: &Proc<'_>) {
        let runtime = self.runtime.clone();
        let name = procedure.replier.clone();
        self.out.line("");
        self.doc(
            &[],
            &format!(
                "Replies to one call of `{}`. Dropped without a reply, the client gets a fault.",
                procedure.idl.name
            ),
        );
        self.out.line("#[derive(Debug)]");
        self.out.line(format!("pub struct {name} {{"));
        self.out.line(format!("call: {runtime}::DeferredCall,"));
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("impl {name} {{"));
        self.doc(&[], "Who calls.");
        self.out.line("#[must_use]");
        self.out.line(format!("pub fn context(&self) -> &{runtime}::Context {{"));
        self.out.line("self.call.context()");
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "Sends the results.");
        self.out.plain("///");
        self.out.plain("/// # Errors");
        self.out.plain("/// The client is gone, or the results do not fit the interface.");
        if procedure.owned.list.is_empty() {
            self.out.line(format!("pub fn send(self) -> Result<(), {runtime}::ReplyError> {{"));
        } else {
            self.out.line(format!(
                "pub fn send(self, results: {}) -> Result<(), {runtime}::ReplyError> {{",
                procedure.owned.ty
            ));
        }
        self.out.line("let call = self.call;");
        self.out.line(format!("let sent = (|| -> Result<(), {runtime}::ReplyError> {{"));
        self.reply_owned(procedure);
        self.out.line("})();");
        // The client is told as well.
        self.out.line("if let Err(error) = &sent {");
        self.out.line("call.cannot_reply(error);");
        self.out.line("}");
        self.out.line("sent");
        self.out.line("}");
        self.out.line("");
        self.doc(&[], "Answers that there is no answer.");
        self.out.plain("///");
        self.out.plain("/// # Errors");
        self.out.plain("/// The client is gone.");
        self.out.line(format!(
            "pub fn fault(self, fault: {runtime}::Fault) -> Result<(), {runtime}::ReplyError> {{"
        ));
        self.out.line("self.call.fault(fault)");
        self.out.line("}");
        self.out.line("}");
    }

    pub(super) fn dispatch_deferred(&mut self, procedure: &Proc<'_>, service: &str) {
        self.take_args(procedure);
        self.take_blocks(procedure);
        self.out.line("let (call, finished) = call.defer();");
        let mut arguments = vec!["implementation".to_owned()];
        arguments.extend(procedure.params.iter().filter(|p| p.goes_in()).map(|p| p.name.clone()));
        arguments.push(format!("{} {{ call }}", procedure.replier));
        let method = procedure.method_of(service);
        self.out.line(format!("{method}({});", arguments.join(", ")));
        self.out.line("Ok(finished)");
    }

    pub(super) fn async_server(
        &mut self,
        base: &str,
        module: &str,
        version: &Version,
        procs: &[Proc<'_>],
    ) {
        let runtime = self.runtime.clone();
        let name = self.types.claim(&format!("{base}Async"));
        self.out.line("");
        self.doc(&[], &format!("Implements the procedures of `{}` in `async` code.", version.name));
        self.out.line(format!("pub trait {name}: Send + Sync + 'static {{"));
        for (index, procedure) in procs.iter().enumerate() {
            if index > 0 {
                self.out.line("");
            }
            self.method_head(
                (procedure.idl, &procedure.params),
                "",
                "A fault reaches the client instead of results.",
                &format!("fn {}", procedure.method),
            );
            self.out.line(format!("context: &{runtime}::Context,"));
            self.owned_params(procedure);
            self.out.line(format!(
                ") -> impl ::core::future::Future<Output = Result<{}, {runtime}::Fault>> + Send;",
                procedure.owned.ty
            ));
        }
        self.out.line("}");

        let service = self.types.claim(&format!("{base}AsyncService"));
        let task = "::std::pin::Pin<Box<dyn ::core::future::Future<Output = ()> + Send>>";
        self.out.line("");
        self.doc(&[], &format!(
            "Serves an implementation of [`{name}`]: `spawn` gives each call's task to an executor."
        ));
        self.out.line("#[derive(Clone, Debug)]");
        self.out.line(format!("pub struct {service}<S, E> {{"));
        self.out.line("implementation: ::std::sync::Arc<S>,");
        self.out.line("spawn: E,");
        self.out.line("}");
        self.out.line("");
        self.out.line(format!("impl<S: {name}, E: Fn({task}) + Send + Sync> {service}<S, E> {{"));
        self.doc(&[], "Serves `implementation` on the executor behind `spawn`.");
        self.out.line("#[must_use]");
        self.out.line("pub fn new(implementation: S, spawn: E) -> Self {");
        self.out.line("Self { implementation: ::std::sync::Arc::new(implementation), spawn }");
        self.out.line("}");
        self.out.line("}");
        self.service_impl(
            &service,
            "<S",
            &format!("{name}, E: Fn({task}) + Send + Sync>"),
            "<S, E>",
            module,
            version,
        );
        self.out.line("match procedure {");
        for procedure in procs {
            self.out.line(format!("{} => {{", procedure.number));
            self.dispatch_async(procedure, &name);
            self.out.line("}");
        }
        self.rest_of_dispatch(version, &runtime);
    }

    fn dispatch_async(&mut self, procedure: &Proc<'_>, service: &str) {
        let runtime = self.runtime.clone();
        self.take_args(procedure);
        self.take_blocks(procedure);
        self.out.line("let (call, finished) = call.defer();");
        self.out.line("let implementation = ::std::sync::Arc::clone(&self.implementation);");
        self.out.line("(self.spawn)(Box::pin(async move {");
        let mut arguments = vec!["&*implementation".to_owned(), "call.context()".to_owned()];
        arguments.extend(procedure.params.iter().filter(|p| p.goes_in()).map(|p| p.name.clone()));
        let method = procedure.method_of(service);
        let invoke = format!("{method}({}).await", arguments.join(", "));
        if procedure.idl.oneway {
            // A fault of a one-way call reaches nobody; a reply says that it is done.
            self.out.line(format!("let _ = {invoke};"));
            self.out.line("if let Ok(reply) = call.reply(0) {");
            self.out.line("let _ = reply.send();");
            self.out.line("}");
            self.out.line("}));");
            self.out.line("Ok(finished)");
            return;
        }
        self.out.line(format!("match {invoke} {{"));
        let bind = if procedure.owned.list.is_empty() { "()" } else { "results" };
        self.out.line(format!("Ok({bind}) => {{"));
        self.out.line(format!("let sent = (|| -> Result<(), {runtime}::ReplyError> {{"));
        self.reply_owned(procedure);
        self.out.line("})();");
        self.out.line("if let Err(error) = sent {");
        self.out.line("call.cannot_reply(&error);");
        self.out.line("}");
        self.out.line("}");
        // The client may have gone meanwhile; nobody else wants to know.
        self.out.line("Err(fault) => ::core::mem::drop(call.fault(fault)),");
        self.out.line("}");
        self.out.line("}));");
        self.out.line("Ok(finished)");
    }
}
