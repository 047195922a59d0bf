//! Stubs for SHRIMP RPC: clients that build bulk arguments in the communication buffer, and read bulk results
//! there (the paper, section 5: OUT and INOUT by reference into the buffer). A closure for each bulk
//! parameter writes it, another reads what came back.

use super::Emitter;
use super::params::{LOCALS, Param};
use super::shrimp::Proc;
use crate::emit::names::Scope;
use std::collections::HashMap;

impl Emitter<'_> {
    /// The method whose bulk data is written and read where it lies, by closures.
    pub(super) fn client_method_in_place(&mut self, procedure: &Proc<'_>) {
        let runtime = self.runtime.clone();
        let mut scope = Scope::with(&LOCALS);
        for param in &procedure.params {
            scope.claim(&param.name);
        }
        let mut named = |param: &Param<'_>, what: &str| {
            scope.claim(&format!("{}_{what}", param.name.trim_start_matches("r#")))
        };
        let (mut lens, mut backs) = (HashMap::new(), HashMap::new());
        for param in procedure.params.iter().filter(|p| p.is_bulk()) {
            match &param.idl.bulk {
                Some(bulk) if bulk.fixed => {
                    lens.insert(param.name.clone(), format!("{}usize", bulk.len));
                }
                _ if param.goes_in() => {
                    lens.insert(param.name.clone(), named(param, "len"));
                }
                _ => {}
            }
            let back = if param.goes_in() { named(param, "back") } else { param.name.clone() };
            backs.insert(param.name.clone(), back);
        }
        let arguments = procedure.params.iter().map(|p| match &p.idl.bulk {
            Some(bulk) => {
                usize::from(p.goes_in()) * (2 - usize::from(bulk.fixed))
                    + usize::from(p.comes_out())
            }
            None => usize::from(p.goes_in()),
        });
        if arguments.sum::<usize>() > 6 {
            self.out.line("#[allow(clippy::too_many_arguments)] // two for each bulk parameter");
        }
        self.method_head(
            (procedure.idl, &procedure.params),
            "Bulk data is not copied: closures write it, and read what came back, where it lies.",
            "The call could not be made or was not answered.",
            &format!("pub fn {}", procedure.in_place),
        );
        for param in &procedure.params {
            let Some(bulk) = &param.idl.bulk else {
                if !param.is_out() {
                    let ty = self.passed(&param.idl.ty, &param.name).0;
                    self.out.line(format!("{}: {ty},", param.name));
                }
                continue;
            };
            let element = self.element(bulk);
            if param.goes_in() {
                if !bulk.fixed {
                    self.out.line(format!("{}: usize,", lens[&param.name]));
                }
                let write = format!("impl FnOnce({runtime}::BulkMut<'_, {element}>)");
                self.out.line(format!("{}: {write},", param.name));
            }
            if param.comes_out() {
                let read = format!("impl FnOnce({runtime}::Bulk<'_, {element}>)");
                self.out.line(format!("{}: {read},", backs[&param.name]));
            }
        }
        self.out.line(format!(") -> Result<{}, {runtime}::CallError> {{", procedure.plain.ty));
        let len = |param: &Param<'_>| lens.get(&param.name).cloned().unwrap_or_default();
        self.open_request(procedure, &len, ("", ""));
        for (_, param) in procedure.blocks() {
            let element = param.idl.bulk.as_ref().map(|b| self.element(b)).unwrap_or_default();
            self.out.line(format!("{}(request.loan::<{element}>({})?);", param.name, len(param)));
        }
        if procedure.idl.oneway {
            self.out.line("request.send()");
            self.out.line("}");
            return;
        }
        self.read_reply(procedure, ("", ""), false, |emitter, output| {
            if let Some(bulk) = &output.bulk {
                let element = emitter.element(bulk);
                let call = if bulk.fixed { "out_bulk_array" } else { "out_bulk" };
                emitter.out.line(format!(
                    "{}(reply.{call}::<{element}>({})?);",
                    backs[&output.name], bulk.len
                ));
            }
        });
        for (index, param) in procedure.blocks().filter(|(_, p)| p.comes_out()) {
            let element = param.idl.bulk.as_ref().map(|b| self.element(b)).unwrap_or_default();
            self.out
                .line(format!("{}(reply.inout_bulk::<{element}>({index})?);", backs[&param.name]));
        }
        self.out.line("reply.finish()?;");
        self.out.line(format!("Ok({})", procedure.plain.whole()));
        self.out.line("}");
    }
}
