//! Constants and the values of enumerations: one name space, any order, no circles.

use super::{Checker, nearest};
use crate::ast::{BaseKind, Declaration, DefinitionKind, EnumItem, File, Name, Value, ValueKind};
use crate::diag::Diagnostic;
use crate::model::{ConstValue, EnumValue};
use crate::source::Span;
use std::collections::HashMap;

/// What is known of a constant.
#[derive(Clone, Debug)]
pub(super) struct Known {
    span: Span,
    value: Option<ConstValue>,
}

/// How a constant is given.
enum Given<'a> {
    Value(&'a Value),
    /// By something that is no constant for rpcgen but one for C: the name of a procedure, a
    /// passed-through `#define`. A real definition of the name goes first.
    Aside(&'a Value),
    Number(i128),
    /// So many more than another one, or than zero.
    After(Option<&'a str>, i128),
}

struct Pending<'a> {
    name: &'a Name,
    given: Given<'a>,
}

/// Finds and evaluates all constants of a file.
pub(super) fn collect(checker: &mut Checker<'_>, file: &File) {
    let mut passed = Vec::new();
    let mut pending = Vec::new();
    for definition in &file.definitions {
        match &definition.kind {
            DefinitionKind::Const(value) => {
                pending.push(Pending { name: &definition.name, given: Given::Value(value) });
            }
            DefinitionKind::Enum(items) => enum_items(items, &mut pending),
            DefinitionKind::Struct(fields) => {
                fields.iter().for_each(|f| inline(f, &mut pending));
            }
            DefinitionKind::Typedef(declaration) => inline(declaration, &mut pending),
            DefinitionKind::Union(body) => {
                body.arms.iter().for_each(|arm| inline(&arm.declaration, &mut pending));
                body.default.iter().for_each(|d| inline(d, &mut pending));
            }
            DefinitionKind::Passthrough(_) | DefinitionKind::Program(_) => {}
        }
    }
    let first_aside = pending.len();
    for definition in &file.definitions {
        match &definition.kind {
            DefinitionKind::Program(program) => {
                let name = &definition.name;
                pending.push(Pending { name, given: Given::Aside(&program.number) });
                for version in &program.versions {
                    let given = Given::Aside(&version.number);
                    pending.push(Pending { name: &version.name, given });
                    for procedure in &version.procedures {
                        let given = Given::Aside(&procedure.number);
                        pending.push(Pending { name: &procedure.name, given });
                    }
                }
            }
            DefinitionKind::Passthrough(line) => {
                if let Some((name, number)) = passed_define(line) {
                    passed.push((Name { text: name, span: definition.name.span }, number));
                }
            }
            _ => {}
        }
    }
    for (name, number) in &passed {
        pending.push(Pending { name, given: Given::Number(*number) });
    }
    evaluate(checker, &pending, first_aside);
}

/// Name and number of a line `#define NAME number` that is passed through to C.
fn passed_define(line: &str) -> Option<(String, i128)> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?;
    let mut words = rest.split_whitespace();
    let name = words.next()?;
    let value = words.next()?.trim_start_matches('(').trim_end_matches(')');
    let comment = words.next().is_none_or(|w| w.starts_with("/*") || w.starts_with("//"));
    let valid = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let (minus, digits) = match value.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    if !(valid && comment && digits.starts_with(|c: char| c.is_ascii_digit())) {
        return None;
    }
    let number = crate::lex::number_value(digits.trim_end_matches(['u', 'U', 'l', 'L']))?;
    Some((name.to_owned(), if minus { -number } else { number }))
}

fn enum_items<'a>(items: &'a [EnumItem], pending: &mut Vec<Pending<'a>>) {
    // Value of the last item: a name and a distance, so that a long enum is no deep recursion.
    let mut last: (Option<&'a str>, i128) = (None, -1);
    for item in items {
        let given = match &item.value {
            Some(value) => {
                last = (Some(&item.name.text), 0);
                Given::Value(value)
            }
            None => {
                last.1 += 1;
                Given::After(last.0, last.1)
            }
        };
        pending.push(Pending { name: &item.name, given });
    }
}

/// The unnamed enumerations within a declaration.
fn inline<'a>(declaration: &'a Declaration, pending: &mut Vec<Pending<'a>>) {
    match &declaration.base.kind {
        BaseKind::Enum(items) => enum_items(items, pending),
        BaseKind::Struct(fields) => fields.iter().for_each(|f| inline(f, pending)),
        BaseKind::Union(body) => {
            body.arms.iter().for_each(|arm| inline(&arm.declaration, pending));
            body.default.iter().for_each(|d| inline(d, pending));
        }
        _ => {}
    }
}

fn evaluate(checker: &mut Checker<'_>, pending: &[Pending<'_>], first_aside: usize) {
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (position, constant) in pending.iter().enumerate() {
        if let Some(earlier) = index.get(constant.name.text.as_str()) {
            if position >= first_aside {
                continue;
            }
            let earlier = pending[*earlier].name.span;
            let diagnostic = Diagnostic::error(
                "duplicate-constant",
                constant.name.span,
                format!("constant `{}` is defined twice", constant.name.text),
            )
            .label("defined again")
            .related(earlier, "defined here");
            checker
                .push(diagnostic.help("constants and the values of all enums share their names"));
        } else {
            index.insert(&constant.name.text, position);
        }
    }
    // Each constant refers to at most one other: follow the chain, then go back along it.
    let mut done: Vec<Option<Option<ConstValue>>> = vec![None; pending.len()];
    let mut on_chain = vec![false; pending.len()];
    for start in 0..pending.len() {
        let mut chain = Vec::new();
        let mut at = start;
        let mut value = loop {
            if let Some(value) = &done[at] {
                break value.clone();
            }
            if on_chain[at] {
                circle(checker, pending, &chain, at);
                break None;
            }
            on_chain[at] = true;
            chain.push(at);
            let reference = match &pending[at].given {
                Given::Value(value) | Given::Aside(value) => match &value.kind {
                    ValueKind::Number(number) => break Some(ConstValue::Number(*number)),
                    ValueKind::Text(text) => break Some(ConstValue::Text(text.clone())),
                    ValueKind::Unread => break None,
                    ValueKind::Name(name) => (name.as_str(), value.span),
                },
                Given::Number(distance) | Given::After(None, distance) => {
                    break Some(ConstValue::Number(*distance));
                }
                Given::After(Some(name), _) => (*name, pending[at].name.span),
            };
            match index.get(reference.0) {
                Some(next) => at = *next,
                None => match builtin(reference.0) {
                    Some(number) => break Some(ConstValue::Number(number)),
                    // The number of a procedure: complained about where it is used as one.
                    None if at >= first_aside => break None,
                    None => {
                        undefined(checker, reference.0, reference.1, &index);
                        break None;
                    }
                },
            }
        };
        for at in chain.into_iter().rev() {
            on_chain[at] = false;
            if let Given::After(Some(_), distance) = pending[at].given {
                value = match value {
                    Some(ConstValue::Number(number)) => {
                        Some(ConstValue::Number(number.saturating_add(distance)))
                    }
                    _ => None,
                };
            }
            done[at] = Some(value.clone());
        }
    }
    for (constant, value) in pending.iter().zip(done) {
        let known = Known { span: constant.name.span, value: value.flatten() };
        checker.constants.entry(constant.name.text.clone()).or_insert(known);
    }
}

fn circle(checker: &mut Checker<'_>, pending: &[Pending<'_>], chain: &[usize], at: usize) {
    let first = chain.iter().position(|c| *c == at).unwrap_or(0);
    let mut names: Vec<&str> =
        chain[first..].iter().map(|c| pending[*c].name.text.as_str()).collect();
    names.truncate(8);
    names.push(&pending[at].name.text);
    checker.push(
        Diagnostic::error(
            "constant-cycle",
            pending[at].name.span,
            format!(
                "constant `{}` is defined by itself: {}",
                pending[at].name.text,
                names.join(" = ")
            ),
        )
        .help("give one of them a number"),
    );
}

/// The constants that every file knows (RFC 4506, section 4.4).
fn builtin(name: &str) -> Option<i128> {
    match name {
        "TRUE" => Some(1),
        "FALSE" => Some(0),
        _ => None,
    }
}

fn undefined(checker: &mut Checker<'_>, name: &str, span: Span, known: &HashMap<&str, usize>) {
    if checker.diagnostics.is_full() || checker.unread.contains(name) {
        return;
    }
    let names: Vec<String> = known.keys().map(|n| (*n).to_owned()).collect();
    let finding =
        Diagnostic::error("undefined-constant", span, format!("constant `{name}` is not defined"));
    let diagnostic = match nearest(name, names.iter()) {
        Some(near) => finding.help(format!("there is `{near}`")),
        None => finding.help(format!(
            "define it: `const {name} = ...;`, or on the command line: -D {name}=..."
        )),
    };
    checker.push(diagnostic);
}

impl Checker<'_> {
    /// The value of the constant that a definition defines.
    pub(super) fn constant_value(&self, name: &str) -> Option<ConstValue> {
        self.constants.get(name)?.value.clone()
    }

    /// The number that a value stands for. `None` was reported.
    pub(super) fn number(&mut self, value: &Value) -> Option<i128> {
        let (known, span) = match &value.kind {
            ValueKind::Number(number) => return Some(*number),
            ValueKind::Text(_) => (Some(None), value.span),
            ValueKind::Unread => return None,
            ValueKind::Name(name) => match self.constants.get(name) {
                None => match builtin(name) {
                    Some(number) => return Some(number),
                    None if self.unread.contains(name) => return None,
                    None => (None, value.span),
                },
                Some(known) => match &known.value {
                    Some(ConstValue::Number(number)) => return Some(*number),
                    Some(ConstValue::Text(_)) => (Some(Some(known.span)), value.span),
                    None => return None, // was reported
                },
            },
        };
        if self.diagnostics.is_full() {
            return None;
        }
        let text = Self::value_text(&value.kind);
        let diagnostic = match known {
            None => {
                let near = nearest(&text, self.constants.keys()).cloned();
                let finding = Diagnostic::error(
                    "undefined-constant",
                    span,
                    format!("constant `{text}` is not defined"),
                );
                match near {
                    Some(near) => finding.help(format!("there is `{near}`")),
                    None => finding.help(format!(
                        "define it: `const {text} = ...;`, or on the command line: -D {text}=..."
                    )),
                }
            }
            Some(definition) => {
                let finding = Diagnostic::error(
                    "not-a-number",
                    span,
                    format!("{text} is a string where a number is needed"),
                );
                match definition {
                    Some(definition) => finding.related(definition, "defined here"),
                    None => finding,
                }
                .help("write a number, or the name of a constant that is one")
            }
        };
        self.push(diagnostic);
        None
    }

    /// A number within limits. `None` was reported.
    pub(super) fn number_within(
        &mut self,
        value: &Value,
        what: &str,
        low: i128,
        high: i128,
    ) -> Option<i128> {
        let number = self.number(value)?;
        if (low..=high).contains(&number) {
            return Some(number);
        }
        let shown = match &value.kind {
            ValueKind::Name(name) => format!("{name}, which is {number},"),
            _ => number.to_string(),
        };
        self.push(
            Diagnostic::error("out-of-range", value.span, format!("{shown} is no {what}"))
                .help(format!("it lies between {low} and {high}")),
        );
        None
    }

    /// The values of an enumeration: each fits 32 bits.
    pub(super) fn enum_values(&mut self, items: &[EnumItem]) -> Vec<EnumValue> {
        let mut values = Vec::new();
        for item in items {
            let known = self.constants.get(&item.name.text).and_then(|k| k.value.clone());
            let value = match known {
                Some(ConstValue::Number(number)) => number,
                Some(ConstValue::Text(_)) => {
                    if let Some(value) = &item.value {
                        self.number(value);
                    }
                    continue;
                }
                None => continue,
            };
            match i32::try_from(value) {
                Ok(value) => values.push(EnumValue {
                    name: item.name.text.clone(),
                    doc: item.doc.clone(),
                    value,
                }),
                Err(_) => {
                    let span = item.value.as_ref().map_or(item.name.span, |v| v.span);
                    self.push(
                        Diagnostic::error(
                            "out-of-range",
                            span,
                            format!(
                                "`{}` is {value}, which is no value of an enum",
                                item.name.text
                            ),
                        )
                        .help(format!(
                            "it lies between {} and {}",
                            i32::MIN,
                            i32::MAX
                        )),
                    );
                }
            }
        }
        values
    }
}

/// Names that rpcgen's output or the C library of RPC define: types that a file may use without
/// defining them.
pub(super) fn builtin_type(name: &str) -> Option<crate::model::Type> {
    use crate::model::Type;
    let int = |bits, unsigned| Some(Type::Int { bits, unsigned });
    match name {
        "bool_t" => Some(Type::Bool),
        "int8_t" => int(8, false),
        "u_char" | "uint8_t" | "u_int8_t" => int(8, true),
        "int16_t" => int(16, false),
        "u_short" | "uint16_t" | "u_int16_t" | "ushort" => int(16, true),
        "int32_t" => int(32, false),
        "u_int" | "u_long" | "uint32_t" | "u_int32_t" | "uint" | "ulong" | "rpcprog_t"
        | "rpcvers_t" | "rpcproc_t" | "rpcport_t" => int(32, true),
        "int64_t" | "quad_t" | "longlong_t" => int(64, false),
        "uint64_t" | "u_int64_t" | "u_quad_t" | "u_longlong_t" | "u_hyper" => int(64, true),
        "netobj" => Some(Type::Opaque(1024)),
        _ => None,
    }
}
