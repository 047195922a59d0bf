//! C around the generated stubs of the random programs: a client that takes and gives XDR, and a server that does. What
//! `build/glue.rs` is for Rust.
//!
//! The codec is compiled twice: as it is for the stubs, and in the order of XDR, with other names, for what is compared.

#![allow(unreachable_pub)] // each test file has it for itself

use crate::c_stubs_of;
use crate::random_calls::Program;
use rpc_idl_tests::random::{Def, Ty};
use rpc_idl_tests::random_program::{Exchange, Procedure, Way};
use std::fmt::Write;
use std::path::Path;

/// Parameters of a C function: name, and the type before and behind it.
type Parameters = Vec<(String, String)>;

/// The parameters of the function whose declaration begins so.
fn parameters(header: &str, begins: &str) -> Parameters {
    let (_, rest) = header.split_once(begins).unwrap_or_else(|| panic!("no {begins}"));
    let (list, _) = rest.split_once(");").expect("the declaration ends");
    let split = |parameter: &str| {
        let end = parameter.find('[').unwrap_or(parameter.len());
        let start = parameter[..end].rfind([' ', '*']).map_or(0, |at| at + 1);
        (parameter[start..end].to_owned(), parameter[..start].to_owned())
    };
    list.split(", ").map(split).collect()
}

fn has<'l>(list: &'l Parameters, name: &str) -> Option<&'l str> {
    list.iter().find(|(it, _)| it == name).map(|(_, ty)| &ty[..])
}

/// How a field is laid out.
enum Shape {
    /// Length, elements, what they are, and most of them.
    Vector {
        len: String,
        val: String,
        element: Option<usize>,
        max: u64,
    },
    /// An array of so many elements.
    Array {
        len: u64,
        element: Option<usize>,
    },
    One,
}

/// A field of a type, reached by `access` and declared as `name`.
fn shape(defs: &[Def], ty: &Ty, access: &str, name: &str) -> Shape {
    let of = |ty: &Ty| match ty {
        Ty::Named(index) if matches!(defs[*index], Def::Struct(_)) => Some(*index),
        _ => None,
    };
    let (len, val) = (format!("{access}.{name}_len"), format!("{access}.{name}_val"));
    match ty {
        Ty::Opaque(max) => Shape::Vector { len, val, element: None, max: *max },
        Ty::Vector(inner, max) => Shape::Vector { len, val, element: of(inner), max: *max },
        Ty::OpaqueArray(len) => Shape::Array { len: *len, element: None },
        Ty::Array(inner, len) => Shape::Array { len: *len, element: of(inner) },
        Ty::Named(index) => match &defs[*index] {
            Def::Typedef(ty) => shape(defs, ty, access, &format!("t{index}")),
            _ => Shape::One,
        },
        _ => Shape::One,
    }
}

/// Whether a value is passed by reference where it is only read.
fn by_reference(defs: &[Def], ty: &Ty) -> bool {
    match ty {
        Ty::Named(index) => match &defs[*index] {
            Def::Typedef(ty) => {
                matches!(ty, Ty::Opaque(_) | Ty::Vector(..)) || by_reference(defs, ty)
            }
            Def::Enum(_) => false,
            _ => true,
        },
        _ => false,
    }
}

/// What is passed for `access` where the stub writes.
fn by_pointer(ty: &Ty, access: &str, name: &str) -> String {
    match ty {
        Ty::Opaque(_) | Ty::Vector(..) => format!("&{access}.{name}_len, &{access}.{name}_val"),
        Ty::OpaqueArray(_) | Ty::Array(..) => access.to_owned(),
        _ => format!("&{access}"),
    }
}

/// Copies between a field and what a handler has a pointer to.
fn through_pointer(ty: &Ty, access: &str, name: &str, out: bool) -> String {
    match ty {
        Ty::Opaque(_) | Ty::Vector(..) if out => {
            format!("*{name}_len = {access}.{name}_len; *{name} = {access}.{name}_val;")
        }
        Ty::Opaque(_) | Ty::Vector(..) => {
            format!("{access}.{name}_len = *{name}_len; {access}.{name}_val = *{name};")
        }
        _ if out => format!("memcpy({name}, &{access}, sizeof {access});"),
        _ => format!("memcpy(&{access}, {name}, sizeof {access});"),
    }
}

/// What is to be compiled with `program.c`.
pub const SOURCES: [&str; 4] = ["glue.c", "random_codec.c", "random_client.c", "random_server.c"];

/// Writes the stubs, the glue, and the file of the calls, so many of each procedure.
pub fn write(dir: &Path, calls: &Path, each: u64) {
    let program = Program::new();
    c_stubs_of::generate(dir, "random", &program.text());
    let header = std::fs::read_to_string(dir.join("random.h")).expect("it was written");
    let glue = generate(&program.defs, &program, &header);
    std::fs::write(dir.join("glue.c"), glue).expect("the directory is ours");
    let mut records = Vec::new();
    for (index, Exchange { arguments, results, .. }) in program.calls(each) {
        for number in [index, arguments.len(), results.len()] {
            records.extend((number as u32).to_ne_bytes());
        }
        records.extend([arguments, results].concat());
    }
    std::fs::write(calls, records).expect("the directory is ours");
}

/// `glue.c`: `call_any` and `ops`, for `program.c`.
fn generate(defs: &[Def], program: &Program, header: &str) -> String {
    let mut out = String::from("#define SHRIMP_CODEC_NETWORK\n");
    // All that the header declares: members that have no name in the interface have types of their own.
    let types = header.split("void shrimp_free_").skip(1).filter_map(|rest| rest.split('(').next());
    for name in types {
        for verb in ["get", "put", "free"] {
            writeln!(out, "#define shrimp_{verb}_{name} net_{verb}_{name}").expect("it takes it");
        }
    }
    out += "#include \"random.h\"\n#include \"random_codec.c\"\n#include \"program.h\"\n";
    for index in (0..defs.len()).filter(|index| matches!(defs[*index], Def::Struct(_))) {
        writeln!(
            out,
            "int le_get_t{index}(shrimp_reader *, struct t{index} *) __asm__(\"shrimp_get_t{index}\");\n\
             int le_put_t{index}(shrimp_writer *, const struct t{index} *) __asm__(\"shrimp_put_t{index}\");"
        )
        .expect("it takes it");
    }
    let [mut calls, mut ops, mut adds, mut connects] = [(); 4].map(|()| String::new());
    for (place, version) in program.versions.iter().enumerate() {
        let (base, number) = (version.name.to_lowercase(), version.number);
        ops += &format!("static {base}_ops {base} = {{\n");
        for index in version.procedures.clone() {
            let (procedure, name) = (&program.procedures[index], format!("p{index}_{number}"));
            let client = parameters(header, &format!("\nint {name}("));
            call(&mut calls, defs, (index, &name, place), procedure, &client);
            let handler = parameters(header, &format!("int (*{name})("));
            let (_, list) = header.split_once(&format!("int (*{name})(")).expect("it is there");
            let (list, _) = list.split_once(");").expect("it ends");
            writeln!(out, "static int serve_p{index}({list})\n{{").expect("it takes it");
            serve(&mut out, defs, index, procedure, &handler);
            out += "}\n";
            writeln!(ops, "    .{name} = serve_p{index},").expect("it takes it");
        }
        ops += "};\n";
        adds += &format!("if ({base}_add(builder, &{base}) != 0) return -1;\n");
        let numbers = format!("{}U, {number}U", version.program.1);
        connects +=
            &format!("if (shrimp_rpc_connect(name, {numbers}, &all[{place}]) != 0) return -1;\n");
    }
    out + &format!(
        "const uint32_t version_count = {};\n\
         int connect_all(const char *name, shrimp_rpc_binding **all)\n{{\n{connects}return 0;\n}}\n\
         int call_any(shrimp_rpc_binding **all, uint32_t index, struct bytes arguments, struct bytes *got)\n\
         {{\nint rc = -1;\nswitch (index) {{\n{calls}}}\nreturn rc;\n}}\n\
         {ops}\
         int serve_all(const char *name)\n{{\n\
         shrimp_rpc_server *server;\nshrimp_rpc_builder *builder = shrimp_rpc_builder_new(name);\n\
         {adds}return shrimp_rpc_builder_start(builder, &server);\n}}\n",
        program.versions.len()
    )
}

/// A call of a procedure by that function, through one of the bindings.
fn call(
    out: &mut String,
    defs: &[Def],
    (index, function, binding): (usize, &str, usize),
    procedure: &Procedure,
    sig: &Parameters,
) {
    let goes_in = !procedure.arguments().is_empty();
    let comes_out = !procedure.results().is_empty();
    let mut before = String::new();
    let mut after = String::new();
    let mut passed = vec![format!("all[{binding}]")];
    for (n, parameter) in procedure.parameters.iter().enumerate() {
        let name = format!("p{n}");
        let (ty, len_ty) = (&parameter.ty, has(sig, &format!("{name}_len")));
        match parameter.way {
            Way::In => {
                let access = format!("in.{name}");
                passed.push(match (shape(defs, ty, &access, &name), len_ty) {
                    (Shape::Vector { len, val, .. }, Some(_)) => format!("{len}, {val}"),
                    (Shape::Array { len, .. }, Some(_)) => format!("{len}, {access}"),
                    _ if by_reference(defs, ty) => format!("&{access}"),
                    _ => access,
                });
            }
            Way::InOut => {
                let access = format!("out.{name}");
                before += &format!("memcpy(&{access}, &again.{name}, sizeof {access});\n");
                if len_ty.is_some_and(|ty| !ty.contains('*')) {
                    // What is written in place stays where it was.
                    before += &format!("memset(&again.{name}, 0, sizeof again.{name});\n");
                    passed.push(match shape(defs, ty, &access, &name) {
                        Shape::Vector { len, val, .. } => format!("{len}, {val}"),
                        Shape::Array { len, .. } => format!("{len}, {access}"),
                        Shape::One => unreachable!("bulk data is an array"),
                    });
                } else {
                    passed.push(by_pointer(ty, &access, &name));
                }
            }
            Way::Out => {
                let access = format!("out.{name}");
                let stars = has(sig, &name).map_or(0, |ty| ty.matches('*').count());
                if len_ty.is_some() && stars == 1 {
                    match shape(defs, ty, &access, &name) {
                        Shape::Vector { len, val, max, .. } => {
                            before += &format!(
                                "{len} = {max}; {val} = calloc({max} + 1, sizeof *{val});\n"
                            );
                            passed.push(format!("&{len}, {val}"));
                        }
                        Shape::Array { len, .. } => {
                            before += &format!("uint32_t {name}_room = {len};\n");
                            after += &format!("if ({name}_room != {len}) rc = -2;\n");
                            passed.push(format!("&{name}_room, {access}"));
                        }
                        Shape::One => unreachable!("bulk data is an array"),
                    }
                } else {
                    passed.push(by_pointer(ty, &access, &name));
                }
            }
        }
    }
    if let Some(ty) = &procedure.result {
        passed.push(by_pointer(ty, "out.result", "result"));
    }
    let (mut first, mut last) = (String::new(), String::new());
    if goes_in {
        first += &format!(
            "struct i{index} in, again; shrimp_reader r = shrimp_reader_at(arguments.at, arguments.len);\n\
             if (net_get_i{index}(&r, &in) != 0) return -3;\n\
             r = shrimp_reader_at(arguments.at, arguments.len);\n\
             if (net_get_i{index}(&r, &again) != 0) return -3;\n"
        );
        last += &format!("net_free_i{index}(&in); net_free_i{index}(&again);\n");
    }
    let mut results = String::new();
    if comes_out {
        first += &format!("struct o{index} out; memset(&out, 0, sizeof out);\n");
        results += &format!("if (rc == 0) PUT(got, net_put_o{index}, &out);\n");
        last += &format!("net_free_o{index}(&out);\n");
    }
    let list = passed.join(", ");
    writeln!(out, "case {index}: {{\n{first}{before}rc = {function}({list});\n{after}{results}")
        .expect("it takes it");
    writeln!(out, "{last}break; }}").expect("it takes it");
}

/// The lines that read a bulk block into a field, or write it there.
fn block(shape: &Shape, access: &str, bulk: &str, write: bool) -> String {
    let (len, val, element) = match shape {
        Shape::Vector { len, val, element, .. } => (len.clone(), val.clone(), element),
        Shape::Array { len, element } => (len.to_string(), access.to_owned(), element),
        Shape::One => unreachable!("bulk data is an array"),
    };
    let (kind, at, verb, how) = match write {
        true => ("writer", "w", "put", "write"),
        false => ("reader", "r", "get", "read"),
    };
    match element {
        Some(index) => format!(
            "for (uint32_t n = 0; n < {len}; n++) {{\n\
             shrimp_{kind} {at} = shrimp_bulk_{kind}({bulk}, n);\n\
             CHECK(le_{verb}_t{index}(&{at}, &{val}[n]) == 0);\n}}\n"
        ),
        None => format!("CHECK(shrimp_bulk_{how}({bulk}, 0, {val}, {len}) == 0);\n"),
    }
}

fn serve(out: &mut String, defs: &[Def], index: usize, procedure: &Procedure, sig: &Parameters) {
    *out += "(void)user; (void)call;\n";
    let mut sets = String::new();
    let mut frees = String::new();
    if procedure.arguments().is_empty() {
        *out += &format!("const struct record *record = next_record({index});\n");
        *out += "(void)record;\n";
    } else {
        *out += &format!("struct i{index} in; memset(&in, 0, sizeof in);\n");
    }
    for (n, parameter) in procedure.parameters.iter().enumerate() {
        let name = format!("p{n}");
        let ty = &parameter.ty;
        let declared = has(sig, &name).expect("it is a parameter");
        // INOUT data that the stub copies, there and back.
        let by_value = |len: &str| !len.contains('*');
        let is_copied =
            parameter.way == Way::InOut && has(sig, &format!("{name}_len")).is_some_and(by_value);
        if parameter.way != Way::Out {
            let access = format!("in.{name}");
            let shape = shape(defs, ty, &access, &name);
            if declared.contains("shrimp_bulk") {
                match &shape {
                    Shape::Vector { len, val, .. } => {
                        *out += &format!(
                            "{len} = {name}->len; {val} = calloc({len} + 1, sizeof *{val});\n"
                        );
                        frees += &format!("free({val});\n");
                    }
                    Shape::Array { len, .. } => *out += &format!("CHECK({name}->len == {len});\n"),
                    Shape::One => unreachable!("bulk data is an array"),
                }
                *out += &block(&shape, &access, name.as_str(), false);
            } else if parameter.way == Way::InOut && !is_copied {
                *out += &through_pointer(ty, &access, &name, false);
                // The answer takes its place.
                sets += &format!(
                    "{{ struct i{index} old; memset(&old, 0, sizeof old);\n\
                     memcpy(&old.{name}, &in.{name}, sizeof in.{name}); net_free_i{index}(&old); }}\n"
                );
            } else {
                *out += &match (shape, has(sig, &format!("{name}_len"))) {
                    (Shape::Vector { len, val, .. }, Some(_)) => {
                        format!("{len} = {name}_len; {val} = (void *){name};")
                    }
                    (Shape::Array { len, .. }, Some(_)) => {
                        format!("CHECK({name}_len == {len}); memcpy({access}, {name}, sizeof {access});")
                    }
                    (Shape::Array { .. }, None) => {
                        format!("memcpy({access}, {name}, sizeof {access});")
                    }
                    _ if by_reference(defs, ty) => format!("{access} = *{name};"),
                    _ => format!("{access} = (__typeof__({access})){name};"),
                };
            }
            *out += "\n";
        }
        if parameter.way != Way::In {
            let access = format!("out.{name}");
            let shape = shape(defs, ty, &access, &name);
            if declared.contains("shrimp_bulk") || declared.contains("shrimp_out") {
                let bulk = if declared.contains("shrimp_out") {
                    let len = match &shape {
                        Shape::Vector { len, .. } => len.clone(),
                        Shape::Array { len, .. } => len.to_string(),
                        Shape::One => unreachable!("bulk data is an array"),
                    };
                    sets +=
                        &format!("shrimp_bulk *{name}_open = shrimp_out_open({name}, {len});\n");
                    sets += &format!("CHECK({name}_open != NULL);\n");
                    format!("{name}_open")
                } else {
                    name.clone()
                };
                sets += &block(&shape, &access, &bulk, true);
                if let Shape::Vector { val, .. } = &shape {
                    sets += &format!("free({val});\n");
                }
            } else if is_copied {
                sets += &match &shape {
                    Shape::Vector { len, val, .. } => format!(
                        "CHECK({len} == {name}_len); if ({len} > 0) memcpy({name}, {val}, {len} * sizeof *{val}); free({val});"
                    ),
                    Shape::Array { .. } => format!("memcpy({name}, {access}, sizeof {access});"),
                    Shape::One => unreachable!("bulk data is an array"),
                };
            } else {
                sets += &through_pointer(ty, &access, &name, true);
            }
            sets += "\n";
        }
    }
    if let Some(ty) = &procedure.result {
        sets += &through_pointer(ty, "out.result", "result", true);
        sets += "\n";
    }
    if !procedure.arguments().is_empty() {
        *out += "struct bytes got = {0, NULL};\n";
        *out += &format!("PUT(&got, net_put_i{index}, &in);\n");
        *out += &format!("const struct record *record = next_record({index});\n");
        *out +=
            &format!("compare(\"arguments\", {index}, record->arguments, got);\nfree(got.at);\n");
        *out += &frees;
    }
    if !procedure.results().is_empty() {
        *out += &format!(
            "struct o{index} out;\n\
             shrimp_reader results = shrimp_reader_at(record->results.at, record->results.len);\n\
             CHECK(net_get_o{index}(&results, &out) == 0);\n"
        );
    }
    *out += &sets;
    *out += "return 0;\n";
}
