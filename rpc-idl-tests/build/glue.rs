//! Rust around the generated stubs of the random programs, so that a test can call any procedure with bytes: clients
//! that take and give XDR, of each kind that there is, and servers that do, for SHRIMP RPC and for Sun RPC.
//!
//! The signatures are those that the compiler generated; which value goes where is told from the names.

use crate::random_program::{Kind, Procedure, Version, Way};
use std::collections::HashMap;
use std::fmt::Write;

/// A method of the generated code.
struct Method {
    /// From `fn` on, without what follows the result.
    head: String,
    parameters: Vec<(String, String)>,
}

/// The methods of the block that begins with a line.
fn methods(code: &str, first: &str) -> HashMap<String, Method> {
    let block = code.split_once(first).map_or("", |(_, rest)| rest);
    let block = block.find("\n}\n").map_or(block, |end| &block[..=end]);
    let mut methods = HashMap::new();
    for part in block.split("fn ").skip(1) {
        let end = [part.find(";\n"), part.find(" {\n")].into_iter().flatten().min();
        let Some(head) = end.and_then(|end| part.get(..end)) else { continue };
        let Some((name, list)) = head.split_once("(\n") else { continue };
        let parameters = list
            .lines()
            .filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "))
            .map(|(name, ty)| (name.to_owned(), ty.to_owned()))
            .collect();
        methods.insert(name.to_owned(), Method { head: format!("fn {head}"), parameters });
    }
    methods
}

/// The glue, for the module that has the stubs.
pub fn generate(code: &str, versions: &[Version], procedures: &[Procedure]) -> String {
    let [mut calls, mut async_calls, mut in_place_calls, mut servers] =
        [(); 4].map(|()| String::new());
    let [mut fields, mut async_fields, mut bound, mut rebound] = [(); 4].map(|()| String::new());
    let (mut added, mut async_added) = (String::new(), String::new());
    for version in versions {
        let base = version.base();
        let field = base.to_lowercase();
        let client = methods(code, &format!("impl {base}Client {{"));
        let async_client = methods(code, &format!("impl {base}AsyncClient {{"));
        let server = methods(code, &format!("pub trait {base} {{"));
        let async_server =
            methods(code, &format!("pub trait {base}Async: Send + Sync + 'static {{"));
        let (mut served, mut async_served) = (String::new(), String::new());
        for index in version.procedures.clone() {
            let (procedure, name) = (&procedures[index], format!("p{index}"));
            call(&mut calls, index, procedure, &client[&name], (&field, ""));
            call(&mut async_calls, index, procedure, &async_client[&name], (&field, ".await"));
            if let Some(method) = client.get(&format!("{name}_in_place")) {
                call_in_place(&mut in_place_calls, index, procedure, method, &field);
            }
            // What is all plain has one struct for both.
            let owned = format!("P{index}Results");
            let is_own = code.contains(&format!("pub struct {owned} {{"));
            let owned = if is_own { owned } else { format!("P{index}Reply") };
            serve(&mut served, index, procedure, &server[&name], &owned);
            serve_async(&mut async_served, index, procedure, &async_server[&name], &owned);
        }
        fields += &format!("    pub {field}: {base}Client,\n");
        async_fields += &format!("    pub {field}: {base}AsyncClient,\n");
        let numbers = format!("{field}::PROGRAM, {field}::VERSION");
        bound += &format!("            {field}: {base}Client::new(bind({numbers})),\n");
        let again = format!("clients.{field}.binding().clone()");
        rebound += &format!("            {field}: {base}AsyncClient::new({again}),\n");
        added += &format!(".program({base}Service(answers()))");
        async_added += &format!(".program({base}AsyncService::new(answers(), spawn))");
        servers += &format!(
            "
#[allow(clippy::useless_conversion)] // what is an array in one place is a vector in the other, now and then
impl<F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault>> {base} for crate::Answers<F> {{
{served}}}

#[allow(clippy::useless_conversion)] // as above
impl<F> {base}Async for crate::Answers<F>
where
    F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault> + Send + Sync + 'static,
{{
{async_served}}}
"
        );
    }
    format!(
        "/// A client of each version.
pub struct Clients {{
{fields}}}

impl Clients {{
    /// Those whose bindings `bind` makes, from program and version.
    pub fn new(bind: impl Fn(u32, u32) -> ::shrimp_rpc::Binding) -> Clients {{
        Clients {{
{bound}        }}
    }}
}}

/// The same for `async` code.
pub struct AsyncClients {{
{async_fields}}}

impl AsyncClients {{
    /// With the bindings of others.
    pub fn new(clients: &Clients) -> AsyncClients {{
        AsyncClients {{
{rebound}        }}
    }}
}}

/// Adds all versions to a server.
pub fn add<F>(builder: ::shrimp_rpc::ServerBuilder, answers: impl Fn() -> crate::Answers<F>) -> ::shrimp_rpc::ServerBuilder
where
    F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault> + Send + Sync + 'static,
{{
    builder{added}
}}

/// The same for `async` code, of which `spawn` runs each task.
pub fn add_async<F>(
    builder: ::shrimp_rpc::ServerBuilder,
    answers: impl Fn() -> crate::Answers<F>,
    spawn: fn(::std::pin::Pin<Box<dyn ::core::future::Future<Output = ()> + Send>>),
) -> ::shrimp_rpc::ServerBuilder
where
    F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault> + Send + Sync + 'static,
{{
    builder{async_added}
}}

/// Calls procedure `index` with XDR, and gives the XDR of what came back. `before` is what the variables hold.
///
/// # Errors
/// Of the call.
pub fn call(
    clients: &Clients,
    index: usize,
    arguments: &[u8],
    before: &[u8],
) -> Result<Vec<u8>, ::shrimp_rpc::CallError> {{
    match index {{
{calls}        _ => unreachable!(\"there are no more\"),
    }}
}}

/// [`call`] of the client for `async` code.
///
/// # Errors
/// Of the call.
pub async fn call_async(
    clients: &AsyncClients,
    index: usize,
    arguments: &[u8],
    before: &[u8],
) -> Result<Vec<u8>, ::shrimp_rpc::CallError> {{
    match index {{
{async_calls}        _ => unreachable!(\"there are no more\"),
    }}
}}

/// [`call`] by the method that leaves bulk data where it lies. `None`: there is none, since there are no such data.
///
/// # Errors
/// Of the call.
pub fn call_in_place(
    clients: &Clients,
    index: usize,
    arguments: &[u8],
) -> Option<Result<Vec<u8>, ::shrimp_rpc::CallError>> {{
    let call = || match index {{
{in_place_calls}        _ => Ok(None),
    }};
    call().transpose()
}}
{servers}"
    )
}

/// `let iN { p0, mut p1 } = decoded;`
fn take(out: &mut String, of: &str, names: &[(String, bool)], from: &str) {
    let names: Vec<String> = names
        .iter()
        .map(|(name, changes)| if *changes { format!("mut {name}") } else { name.clone() })
        .collect();
    writeln!(out, "            let {of} {{ {}, .. }} = crate::decoded({from});", names.join(", "))
        .expect("a string takes it");
}

/// The glue for Sun RPC.
pub fn generate_sun(code: &str, versions: &[Version], procedures: &[Procedure]) -> String {
    let [mut calls, mut async_calls, mut servers, mut arms] = [(); 4].map(|()| String::new());
    for version in versions {
        let base = version.base();
        let field = base.to_lowercase();
        let of = |kind: &str, caller: &str| {
            methods(code, &format!("impl<C: crate::xdr::rpc::{caller}> {base}{kind}<C> {{"))
        };
        let (client, async_client) = (of("Client", "Caller"), of("AsyncClient", "AsyncCaller"));
        let server = methods(code, &format!("pub trait {base}<C: ?Sized> {{"));
        let mut served = String::new();
        for index in version.procedures.clone() {
            let (procedure, name) = (&procedures[index], format!("p{index}"));
            call(&mut calls, index, procedure, &client[&name], (&field, ""));
            call(&mut async_calls, index, procedure, &async_client[&name], (&field, ".await"));
            serve_sun(&mut served, index, procedure, &server[&name]);
        }
        for (calls, kind) in [(&mut calls, "Client"), (&mut async_calls, "AsyncClient")] {
            // Where it is used, a client is made.
            let made = format!("{base}{kind}::new(caller.clone())");
            *calls = calls.replace(&format!("clients.{field}."), &format!("{made}."));
        }
        arms += &format!(
            "        ({field}::PROGRAM, {field}::VERSION) => {base}Program(answers).dispatch(context, procedure, source, sink),\n"
        );
        servers += &format!(
            "
impl<F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault>> {base}<str> for &crate::Answers<F> {{
{served}}}
"
        );
    }
    format!(
        "/// Calls procedure `index` with XDR, and gives the XDR of what came back.
///
/// # Errors
/// Of the call.
pub fn call<C: crate::xdr::rpc::Caller + Clone>(
    caller: &C,
    index: usize,
    arguments: &[u8],
) -> Result<Vec<u8>, C::Error> {{
    match index {{
{calls}        _ => unreachable!(\"there are no more\"),
    }}
}}

/// [`call`] of the client for `async` code.
///
/// # Errors
/// Of the call.
pub async fn call_async<C: crate::xdr::rpc::AsyncCaller + Clone>(
    caller: &C,
    index: usize,
    arguments: &[u8],
) -> Result<Vec<u8>, C::Error> {{
    match index {{
{async_calls}        _ => unreachable!(\"there are no more\"),
    }}
}}

/// Serves a call of any version.
///
/// # Errors
/// Whatever the dispatcher says.
pub fn dispatch<F, R: crate::xdr::Source, K: crate::xdr::Sink>(
    answers: &crate::Answers<F>,
    version: (u32, u32),
    procedure: u32,
    (context, source, sink): (&str, &mut R, &mut K),
) -> Result<crate::xdr::rpc::Answer, crate::xdr::rpc::DispatchError>
where
    F: Fn(usize, Vec<u8>) -> Result<Vec<u8>, ::shrimp_rpc::Fault>,
{{
    use crate::xdr::rpc::Program;
    match version {{
{arms}        other => unreachable!(\"no such version: {{other:?}}\"),
    }}
}}
{servers}"
    )
}

/// A call of a method that takes and returns values, of that client; `wait` is what follows a call that is awaited.
fn call(
    out: &mut String,
    index: usize,
    procedure: &Procedure,
    method: &Method,
    (client, wait): (&str, &str),
) {
    writeln!(out, "        {index} => {{").expect("a string takes it");
    let of_bulk =
        |name: &str| method.parameters.iter().any(|(it, ty)| it == name && ty.starts_with("&mut"));
    let arguments: Vec<(String, bool)> =
        procedure.arguments().into_iter().map(|(name, _)| (name.clone(), of_bulk(&name))).collect();
    if !arguments.is_empty() {
        take(out, &format!("I{index}"), &arguments, "arguments");
    }
    let before: Vec<(String, bool)> = method
        .parameters
        .iter()
        .filter(|(name, _)| !arguments.iter().any(|(it, _)| it == name))
        .map(|(name, _)| (name.clone(), true))
        .collect();
    if !before.is_empty() {
        take(out, &format!("O{index}"), &before, "before");
    }
    let passed: Vec<String> = method
        .parameters
        .iter()
        .map(|(name, ty)| match ty {
            ty if ty.starts_with("&mut ") => format!("&mut {name}"),
            ty if ty.starts_with('&') => format!("&{name}"),
            _ => name.clone(),
        })
        .collect();
    let (pattern, whole) = answer(index, procedure, of_bulk);
    writeln!(
        out,
        "            {pattern}clients.{client}.p{index}({}){wait}?;\n            Ok({whole})\n        }}",
        passed.join(", ")
    )
    .expect("a string takes it");
}

/// `let P0Reply { p1, p2 } = ` of all results but those that come otherwise, and the XDR of all of them.
fn answer(
    index: usize,
    procedure: &Procedure,
    comes_otherwise: impl Fn(&str) -> bool,
) -> (String, String) {
    let results = procedure.results();
    let all: Vec<&str> = results.iter().map(|(name, _)| &name[..]).collect();
    let returned: Vec<&str> = all.iter().copied().filter(|name| !comes_otherwise(name)).collect();
    let pattern = match &returned[..] {
        [] => String::new(),
        [only] => format!("let {only} = "),
        list => format!("let P{index}Reply {{ {} }} = ", list.join(", ")),
    };
    let whole = match &all[..] {
        [] => "Vec::new()".to_owned(),
        list => format!("crate::encoded(&O{index} {{ {} }})", list.join(", ")),
    };
    (pattern, whole)
}

/// A call of a method that has bulk data written, and read, by closures.
fn call_in_place(
    out: &mut String,
    index: usize,
    procedure: &Procedure,
    method: &Method,
    client: &str,
) {
    writeln!(out, "        {index} => {{").expect("a string takes it");
    let arguments: Vec<(String, bool)> =
        procedure.arguments().into_iter().map(|(name, _)| (name, false)).collect();
    if !arguments.is_empty() {
        take(out, &format!("I{index}"), &arguments, "arguments");
    }
    let (mut passed, mut backs) = (Vec::new(), Vec::new());
    for (name, ty) in &method.parameters {
        let of = name.split_once('_').map_or(&name[..], |(of, _)| of);
        passed.push(match &ty[..] {
            "usize" if name.ends_with("_len") => format!("{of}.len()"),
            ty if ty.contains("::BulkMut<") => {
                format!("|mut bulk| bulk.write(0, &{name}[..]).expect(\"as long\")")
            }
            ty if ty.contains("::Bulk<") => {
                backs.push(of);
                format!("|bulk| {of}_back = Some(crate::owned(bulk.to_vec()))")
            }
            ty if ty.starts_with('&') => format!("&{name}"),
            _ => name.clone(),
        });
    }
    let (pattern, whole) = answer(index, procedure, |name| backs.contains(&name));
    let before: String = backs.iter().map(|of| format!("let mut {of}_back = None;\n")).collect();
    let after: String =
        backs.iter().map(|of| format!("let {of} = {of}_back.expect(\"it was read\");\n")).collect();
    writeln!(
        out,
        "{before}{pattern}clients.{client}.p{index}_in_place({})?;\n{after}            Ok(Some({whole}))\n        }}",
        passed.join(", ")
    )
    .expect("a string takes it");
}

/// A handler in `async` code: all values are its own.
fn serve_async(
    out: &mut String,
    index: usize,
    procedure: &Procedure,
    method: &Method,
    owned: &str,
) {
    let is_vector =
        |name: &str| method.parameters.iter().any(|(it, ty)| it == name && ty.starts_with("Vec<"));
    let fields: Vec<String> = procedure
        .arguments()
        .into_iter()
        .map(|(name, _)| match is_vector(&name) {
            // Of an array a vector can have been made, and the other way round.
            true => format!("{name}: crate::owned(Ok({name}))"),
            false => name,
        })
        .collect();
    let sent = match fields.is_empty() {
        true => "Vec::new()".to_owned(),
        false => format!("crate::encoded(&I{index} {{ {} }})", fields.join(", ")),
    };
    let names: Vec<String> = procedure.results().into_iter().map(|(name, _)| name).collect();
    let own = |name: &String| format!("{name}: results.{name}.into()");
    let (take, whole) = match &names[..] {
        [] => ("let _ = answer;".to_owned(), "Ok(())".to_owned()),
        list => {
            let whole = match list {
                [only] => format!("Ok(results.{only}.into())"),
                list => {
                    let list: Vec<String> = list.iter().map(own).collect();
                    format!("Ok({owned} {{ {} }})", list.join(", "))
                }
            };
            (format!("let results: O{index} = crate::decoded(&answer);"), whole)
        }
    };
    let head = method.head.replace("context:", "_:").trim_end().to_owned();
    writeln!(
        out,
        "    {head} {{
        ::core::future::ready((|| {{
            let answer = (self.0)({index}, {sent})?;
            {take}
            {whole}
        }})())
    }}
"
    )
    .expect("a string takes it");
}

/// A handler of Sun RPC: all values are its own.
fn serve_sun(out: &mut String, index: usize, procedure: &Procedure, method: &Method) {
    let names = |list: Vec<(String, _)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let sent = match &names(procedure.arguments())[..] {
        [] => "Vec::new()".to_owned(),
        list => format!("crate::encoded(&I{index} {{ {} }})", list.join(", ")),
    };
    let own = |name: &String| format!("{name}: results.{name}");
    let (results, whole) = match &names(procedure.results())[..] {
        [] => (String::new(), "Ok(())".to_owned()),
        [only] => (only.clone(), format!("Ok(results.{only})")),
        list => {
            let list: Vec<String> = list.iter().map(own).collect();
            (list.concat(), format!("Ok(P{index}Reply {{ {} }})", list.join(", ")))
        }
    };
    let take = match results.is_empty() {
        true => "let _ = answer;".to_owned(),
        false => format!("let results: O{index} = crate::decoded(&answer);"),
    };
    let head = method.head.replace("context: &C", "_: &str").trim_end().to_owned();
    writeln!(
        out,
        "    {head} {{
        let answer = (self.0)({index}, {sent}).map_err(crate::failed)?;
        {take}
        {whole}
    }}
"
    )
    .expect("a string takes it");
}

fn serve(out: &mut String, index: usize, procedure: &Procedure, method: &Method, owned: &str) {
    let later = procedure.kind == Kind::Later;
    let is_bulk = |n: usize| {
        let is_it = |ty: &str| ty.contains("::Bulk") || ty.starts_with("&mut [");
        method.parameters.iter().any(|(name, ty)| *name == format!("p{n}") && is_it(ty))
    };
    let mut body = String::new();
    let fields: Vec<String> = procedure
        .parameters
        .iter()
        .enumerate()
        .filter(|(_, it)| it.way != Way::Out)
        .map(|(n, _)| {
            let ty = method.parameters.iter().find(|(name, _)| *name == format!("p{n}"));
            match ty.map_or("", |(_, ty)| ty) {
                ty if ty.contains("::Bulk") => format!("p{n}: crate::owned(p{n}.to_vec())"),
                ty if ty.starts_with("&mut [") => format!("p{n}: crate::owned(Ok(p{n}.to_vec()))"),
                // Of a vector an array can have been made, and the other way round.
                ty if ty.starts_with("Vec<") => format!("p{n}: crate::owned(Ok(p{n}))"),
                _ => format!("p{n}"),
            }
        })
        .collect();
    let sent = match fields.is_empty() {
        true => "Vec::new()".to_owned(),
        false => format!("crate::encoded(&I{index} {{ {} }})", fields.join(", ")),
    };
    let answer = format!("(self.0)({index}, {sent})");
    let results = procedure.results();
    let names: Vec<&str> = results.iter().map(|(name, _)| &name[..]).collect();
    if later {
        let send = match &names[..] {
            [] => "replier.send()".to_owned(),
            [only] => format!("replier.send(results.{only}.into())"),
            list => {
                let list: Vec<String> =
                    list.iter().map(|it| format!("{it}: results.{it}.into()")).collect();
                format!("replier.send({owned} {{ {} }})", list.join(", "))
            }
        };
        let results = match names.is_empty() {
            true => String::new(),
            false => format!("let results: O{index} = crate::decoded(&answer);\n"),
        };
        let used = if names.is_empty() { "_" } else { "answer" };
        write!(
            body,
            "let answer = {answer};
        ::std::thread::spawn(move || match answer {{
            Ok({used}) => {{
                {results}                let _ = {send};
            }}
            Err(fault) => {{
                let _ = replier.fault(fault);
            }}
        }});"
        )
        .expect("a string takes it");
    } else {
        let mut returned = Vec::new();
        let mut writes = String::new();
        for (name, _) in &results {
            let n = name.strip_prefix('p').and_then(|n| n.parse().ok());
            let ty = method.parameters.iter().find(|(it, _)| it == name);
            match n {
                Some(n) if is_bulk(n) => {
                    if ty.is_some_and(|(_, ty)| ty.starts_with("&mut [")) {
                        writeln!(writes, "        {name}.copy_from_slice(&results.{name});")
                            .expect("a string takes it");
                        continue;
                    }
                    let open = ty.is_some_and(|(_, ty)| ty.contains("::BulkOut"));
                    let put = if open { "put(" } else { "write(0, " };
                    writeln!(
                        writes,
                        "        {name}.{put}&results.{name}).map_err(crate::no_room)?;"
                    )
                    .expect("a string takes it");
                }
                _ => returned.push(name.clone()),
            }
        }
        let whole = match &returned[..] {
            [] => "Ok(())".to_owned(),
            [only] => format!("Ok(results.{only})"),
            list => {
                let list: Vec<String> =
                    list.iter().map(|it| format!("{it}: results.{it}")).collect();
                format!("Ok(P{index}Reply {{ {} }})", list.join(", "))
            }
        };
        let results = match names.is_empty() {
            true => format!("{answer}?;\n"),
            false => {
                format!("let answer = {answer}?;\n        let results: O{index} = crate::decoded(&answer);\n")
            }
        };
        write!(body, "{results}{writes}        {whole}").expect("a string takes it");
    }
    let head = method.head.replace("context:", "_:").trim_end().to_owned();
    writeln!(out, "    {head} {{\n        {body}\n    }}\n").expect("a string takes it");
}
