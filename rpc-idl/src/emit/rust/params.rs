//! Parameters: their names and types in the signatures, and what comes back.

use super::{Emitter, in_place};
use crate::ast::Direction;
use crate::emit::names::{Scope, camel, snake};
pub(super) use crate::emit::param::Param;
use crate::model::{Bulk, Element, Procedure, Type, TypeKind};

/// Names that the bodies of generated functions use.
pub(super) const LOCALS: [&str; 20] = [
    "request",
    "reply",
    "counter",
    "call",
    "args",
    "source",
    "sink",
    "answer",
    "context",
    "procedure",
    "binding",
    "results",
    "replier",
    "implementation",
    "spawn",
    "caller",
    "finished",
    "fault",
    "sent",
    "error",
];

/// A value that a procedure gives back.
pub(super) struct Output {
    pub(super) name: String,
    pub(super) ty: Type,
    /// Of a bulk parameter.
    pub(super) bulk: Option<Bulk>,
    pub(super) direction: Direction,
    pub(super) doc: Vec<String>,
}

/// What a procedure gives back, and the Rust type that holds it.
pub(super) struct Outputs {
    pub(super) list: Vec<Output>,
    /// `()`, the type of the only one, or the name of a struct.
    pub(super) ty: String,
}

impl Outputs {
    /// The place of an output, within a variable that holds all of them.
    pub(super) fn place(&self, variable: &str, index: usize) -> String {
        if self.list.len() == 1 {
            variable.to_owned()
        } else {
            format!("{variable}.{}", self.list[index].name)
        }
    }

    /// An expression that makes the whole from variables named like the outputs.
    pub(super) fn whole(&self) -> String {
        match &self.list[..] {
            [] => "()".to_owned(),
            [only] => only.name.clone(),
            list => {
                let names: Vec<&str> = list.iter().map(|o| o.name.as_str()).collect();
                format!("{} {{ {} }}", self.ty, names.join(", "))
            }
        }
    }
}

impl Emitter<'_> {
    pub(super) fn params<'m>(&self, procedure: &'m Procedure) -> Vec<Param<'m>> {
        let mut scope = Scope::with(&LOCALS);
        let parameters = procedure.parameters.iter();
        parameters.map(|idl| Param { name: scope.claim(&snake(&idl.name)), idl }).collect()
    }

    /// What comes back: the result, and the parameters that `keep` keeps.
    pub(super) fn outputs(
        &mut self,
        procedure: &Procedure,
        params: &[Param<'_>],
        name: &str,
        keep: impl Fn(&Param<'_>) -> bool,
    ) -> Outputs {
        let mut list = Vec::new();
        let mut scope = Scope::with(&LOCALS);
        for param in params {
            scope.claim(&param.name);
        }
        if procedure.result != Type::Void {
            // `result` is none of the locals, but may be a parameter.
            list.push(Output {
                name: scope.claim("result"),
                ty: procedure.result.clone(),
                bulk: None,
                direction: Direction::Out,
                doc: Vec::new(),
            });
        }
        for param in params.iter().filter(|p| p.comes_out() && keep(p)) {
            list.push(Output {
                name: param.name.clone(),
                ty: param.idl.ty.clone(),
                bulk: param.idl.bulk.clone(),
                direction: param.idl.direction,
                doc: param.idl.doc.clone(),
            });
        }
        let ty = match &list[..] {
            [] => "()".to_owned(),
            [only] => self.output_ty(only),
            _ => self.types.claim(&format!("{}{name}", camel(&procedure.name))),
        };
        Outputs { list, ty }
    }

    /// The owned type of an output: of a bulk one, a vector.
    pub(super) fn output_ty(&self, output: &Output) -> String {
        match &output.bulk {
            Some(bulk) => format!("Vec<{}>", self.element(bulk)),
            None => self.ty(&output.ty),
        }
    }

    /// The struct that holds several outputs.
    pub(super) fn outputs_struct(&mut self, outputs: &Outputs, title: &str) {
        if outputs.list.len() < 2 {
            return;
        }
        self.out.line("");
        self.doc(&[], title);
        self.out.line("#[derive(Clone, Debug, PartialEq)]");
        self.out.line(format!("pub struct {} {{", outputs.ty));
        for output in &outputs.list {
            self.doc(&output.doc, &format!("Output `{}`.", output.name));
            let line = format!("pub {}: {},", output.name, self.output_ty(output));
            self.out.line(line);
        }
        self.out.line("}");
    }

    /// Rust type of the elements of a bulk parameter.
    pub(super) fn element(&self, bulk: &Bulk) -> String {
        match &bulk.element {
            Element::Byte => "u8".to_owned(),
            Element::Number(ty) => self.ty(ty),
            Element::Struct(id) => self.names[id].clone(),
        }
    }

    /// How a client passes a plain value: the type in the signature, and the expression of a
    /// reference to it.
    pub(super) fn passed(&self, ty: &Type, name: &str) -> (String, String) {
        let by_reference = |ty: String| (format!("&{ty}"), name.to_owned());
        let by_value = |ty: String| (ty, format!("&{name}"));
        match self.model.resolve(ty) {
            Type::Text(_) if !self.options.strings_as_bytes => by_reference("str".to_owned()),
            Type::Text(_) | Type::Opaque(_) => by_reference("[u8]".to_owned()),
            // Long arrays are vectors.
            Type::OpaqueArray(len) if !in_place(u64::from(*len)) => by_reference("[u8]".to_owned()),
            Type::Array(element, len) if !self.array_in_place(element, *len) => {
                by_reference(format!("[{}]", self.ty(element)))
            }
            Type::Vec(element, _) => by_reference(format!("[{}]", self.ty(element))),
            // Those that are vectors here.
            Type::OpaqueArray(len) if !in_place(u64::from(*len)) => by_reference("[u8]".to_owned()),
            Type::Array(element, len) if !self.array_in_place(element, *len) => {
                by_reference(format!("[{}]", self.ty(element)))
            }
            resolved @ Type::Optional(_) if let Some(id) = self.model.list_of(resolved) => {
                by_reference(format!("[{}]", self.names[&id]))
            }
            Type::Bool | Type::Int { .. } | Type::Float | Type::Double | Type::Quad => {
                by_value(self.ty(ty))
            }
            Type::Named(id) if matches!(self.model.def(*id).kind, TypeKind::Enum(_)) => {
                by_value(self.ty(ty))
            }
            _ => by_reference(self.ty(ty)),
        }
    }

    /// The head of a procedure's method up to `&self`; `more` and `errors` say what the interface does not.
    pub(super) fn method_head(
        &mut self,
        (procedure, params): (&Procedure, &[Param<'_>]),
        more: &str,
        errors: &str,
        function: &str,
    ) {
        self.procedure_doc(procedure, params, more);
        self.out.plain("///");
        self.out.plain("/// # Errors");
        self.out.plain(&format!("/// {errors}"));
        self.allow_many(params.len() + 2);
        self.out.line(format!("{function}("));
        self.out.line("&self,");
    }

    /// In front of a function of so many parameters, perhaps: how many there are is the interface's affair.
    pub(super) fn allow_many(&mut self, parameters: usize) {
        const CLIPPYS: usize = 7;
        if parameters > CLIPPYS {
            self.out.line("#[allow(clippy::too_many_arguments)]");
        }
    }

    /// The documentation of a procedure with that of its parameters.
    pub(super) fn procedure_doc(
        &mut self,
        procedure: &Procedure,
        params: &[Param<'_>],
        more: &str,
    ) {
        self.doc(&procedure.doc, &format!("Procedure `{}`.", procedure.name));
        let documented: Vec<&Param<'_>> = params.iter().filter(|p| !p.idl.doc.is_empty()).collect();
        if !documented.is_empty() {
            self.out.plain("///");
            for param in documented {
                let text = param.idl.doc.join(" ");
                self.out.plain(&format!("/// * `{}`: {text}", param.name));
            }
        }
        if !more.is_empty() {
            self.out.plain("///");
            self.out.plain(&format!("/// {more}"));
        }
    }
}
