//! The front end on any input: an answer, never a panic, and never out of proportion.

use proptest::prelude::*;
use rpc_idl::{Options, RustOptions, Stubs, compile, format};

/// Everything that can be done with a text.
fn everything(text: &str) {
    let compilation = compile("any.x", text, &Options::new());
    let rendered = compilation.render();
    assert_eq!(compilation.diagnostics().is_empty(), rendered.is_empty());
    if let Some(model) = compilation.model() {
        for stubs in [Stubs::Shrimp, Stubs::SunRpc, Stubs::None] {
            let _ = rpc_idl::emit::rust::generate(model, &RustOptions::new(stubs), "any.x");
        }
        let _ = rpc_idl::emit::c::generate(model, "any");
    }
    let formatted = format("any.x", text);
    if let Err(error) = &formatted {
        // It would be the formatter's fault.
        assert!(!error.to_string().contains("[format-changes]"), "{text:?}: {error}");
    }
    if !compilation.has_errors() {
        // The formatter reads what the preprocessor leaves out, too.
        let Ok(formatted) = formatted else {
            assert!(text.contains("#if"), "what compiles can be formatted");
            return;
        };
        assert_eq!(format("any.x", &formatted).as_ref(), Ok(&formatted), "formatted again");
        let again = compile("any.x", &formatted, &Options::new());
        assert_eq!(again.file(), compilation.file(), "it says the same:\n{formatted}");
    }
}

#[test]
fn a_line_for_c_that_ends_in_a_backslash_joins_nothing() {
    for text in [
        "%\\",
        "%\\\n",
        "%a\\\r\n",
        "%a\\\n\n",
        "% ",
        "%a \n",
        "%a\\\r\nb",
        "#1/t\0/*/#\\\u{c}\n%x",
        "%a\\ \n%b",
    ] {
        everything(text);
    }
}

#[test]
fn a_backslash_at_the_end_of_a_line_for_c_does_not_reach_the_header() {
    let compilation = compile("any.x", "%#define A 1 \\ \\ \nconst B = 2;", &Options::new());
    let files = rpc_idl::emit::c::generate(compilation.model().expect("it is right"), "any");
    assert!(files.header.contains("#define A 1\n"), "{}", files.header);
}

#[test]
fn a_brace_at_the_end_of_a_line_for_c_or_of_a_comment_is_no_brace() {
    for text in ["%c\\\n}\n;", "enum e { A = 1 }\n%}\n;", "enum e { A = 1 } // }\n;", "#a }\n;"] {
        everything(text);
    }
    // The line that a backslash joins may be empty.
    everything("%c\\\n\n\"a\"");
}

#[test]
fn what_stands_between_a_brace_and_its_semicolon_stays_there() {
    for between in ["// c\n", " /* c */ ", "\n/* c */\n", "\n%c\n", "\n#ifdef a\n#endif\n"] {
        everything(&format!("enum e {{ A = 1 }}{between};"));
        everything(&format!("program P {{ version V {{ void F(void) = 1; }}{between}= 1; }} = 2;"));
    }
}

/// Text that is left out may be anything, and a comment on a preprocessor line may be longer than that.
#[test]
fn what_the_preprocessor_leaves_out_is_not_looked_at() {
    for text in [
        "#if 0\nthis isn't $ 0x 09 \"text\n#endif\nconst A = 1;",
        "#if 1\nconst A = 1;\n#else\n'oops\n#endif",
        "#ifdef B\n$\n#if 1\n$\n#endif\n$\n#endif\n#define A 1 /* which goes\n on */\nconst C = A;",
        "#define S \"/* no comment\" // nor */\nconst C = S;",
    ] {
        let compilation = compile("any.x", text, &Options::new());
        assert_eq!(compilation.render(), "", "{text}");
        everything(text);
    }
    for text in ["#if 1\n$\n#endif", "#if 0\n$\n#else\n$\n#endif", "#if 0\n#endif\n$ const A = 1;"]
    {
        assert_eq!(compile("any.x", text, &Options::new()).diagnostics().len(), 1, "{text}");
        everything(text);
    }
}

/// Words of the language, so that random texts get far.
const WORDS: [&str; 62] = [
    "struct",
    "union",
    "enum",
    "typedef",
    "const",
    "program",
    "version",
    "switch",
    "case",
    "default",
    "void",
    "int",
    "unsigned",
    "hyper",
    "string",
    "opaque",
    "bool",
    "float",
    "double",
    "quadruple",
    "char",
    "short",
    "long",
    "in",
    "out",
    "inout",
    "bulk",
    "plain",
    "oneway",
    "copyin",
    "deferred",
    "a",
    "b",
    "c",
    "a",
    "b",
    "c",
    "T",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ";",
    ",",
    ":",
    "=",
    "*",
    "-",
    "0",
    "1",
    "077",
    "0xff",
    "/* c */",
    "// c\n",
    "\n#ifdef a\n",
    "\n#endif\n",
    "\n%c\n",
];

fn words() -> impl Strategy<Value = String> {
    prop::collection::vec(0..WORDS.len(), 0..60)
        .prop_map(|picks| picks.iter().map(|p| WORDS[*p]).collect::<Vec<_>>().join(" "))
}

/// Lines and comments between words, which the formatter has to leave where they are.
fn lines() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "struct",
        "enum",
        "union",
        "switch",
        "case",
        "default",
        "a",
        "1",
        "\"a\"",
        "'b'",
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        ";",
        ",",
        "=",
        ":",
        "-",
        "*",
        "/* c */",
        "/**/",
        "// c\n",
        "// }\n",
        "\n#x\n",
        "\n#}\n",
        "\n%c\n",
        "\n%}\n",
        "\n%c\\\n",
        "\n#a /*\n*/ b\n",
        " ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        "\u{c}",
        "\\\n",
        "\u{a0}",
    ]);
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

/// Valid definitions, and a few that are not.
fn definitions() -> impl Strategy<Value = String> {
    let ty = prop::sample::select(vec![
        "int x",
        "unsigned hyper x<>",
        "string x<9>",
        "opaque x[4]",
        "T0 x",
        "T1 *x",
        "T2 x<3>",
        "bool x",
        "double x[2]",
        "struct { int y; } x",
        "enum { A, B } x",
    ]);
    let definition =
        (0..5u8, prop::collection::vec(ty, 1..4), 0..4u8).prop_map(|(n, types, kind)| {
            let fields: String = types
                .iter()
                .enumerate()
                .map(|(i, t)| {
                    format!(
                        "  /* {i} */ {};\n",
                        t.replace(" x", &format!(" x{i}")).replace("*x", &format!("*x{i}"))
                    )
                })
                .collect();
            match kind {
                0 => format!("struct T{n} {{\n{fields}}};\n"),
                1 => format!("/** doc */ typedef {};\n", types[0].replace('x', &format!("T{n}"))),
                2 => format!(
                    "union T{n} switch (int d) {{ case {n}: {}; default: void; }};\n",
                    types[0]
                ),
                _ => format!(
                    "program P{n} {{ version V{n} {{ int F(in {}, out {}) = 1; }} = 1; }} = {n};\n",
                    types[0].replace(" x", " p").replace("*x", "*p"),
                    types[types.len() - 1]
                ),
            }
        });
    prop::collection::vec(definition, 0..6).prop_map(|list| list.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_has_an_answer(text in "\\PC{0,200}") {
        everything(&text);
    }

    #[test]
    fn any_bytes_have_an_answer(bytes: Vec<u8>) {
        everything(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_words_have_an_answer(text in words()) {
        everything(&text);
    }

    #[test]
    fn any_lines_between_words_have_an_answer(text in lines()) {
        everything(&text);
    }

    #[test]
    fn any_definitions_have_an_answer(text in definitions()) {
        everything(&text);
    }

    #[test]
    fn a_damaged_file_has_an_answer(at in 0usize..2000, with in 0..WORDS.len()) {
        let text = include_str!("golden/generated/kv.x");
        let at = at % text.len();
        if text.is_char_boundary(at) {
            everything(&format!("{}{}{}", &text[..at], WORDS[with], &text[at..]));
            everything(&text[..at]);
        }
    }
}

fn code(text: &str) -> Vec<&'static str> {
    compile("big.x", text, &Options::new()).diagnostics().iter().map(|d| d.code).collect()
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let text = " ".repeat(rpc_idl::source::MAX_FILE + 1);
    assert_eq!(code(&text), ["file-too-large"]);
    assert!(format("big.x", &text).is_err());
}

#[test]
fn macros_cannot_multiply_without_end() {
    let mut text = String::from("#define M0 a a a a a a a a a a\n");
    for n in 1..9 {
        text += &format!("#define M{n} {}\n", format!("M{} ", n - 1).repeat(10));
    }
    text += "M8";
    assert!(code(&text).contains(&"too-many-tokens"));
}

/// A definition at the start of a line ends a list of parameters that was left open.
#[test]
fn an_unfinished_list_of_parameters_ends_at_the_next_definition() {
    for open in ["F(", "F(in int a", "F(in int a,", "F(in int a,\nint"] {
        for next in ["const X = 3;", "typedef int t;", "program Q {", "struct s { int a; };", ""] {
            let text = format!("program P {{ version V {{ int {open}\n{next}");
            everything(&text);
            assert!(!code(&text).is_empty(), "{text:?}");
        }
    }
}

#[test]
fn a_hundred_errors_are_enough() {
    let text = "struct s { nope x; };\n".repeat(3000);
    let compilation = compile("bad.x", &text, &Options::new());
    assert_eq!(compilation.diagnostics().len(), rpc_idl::diag::MAX_DIAGNOSTICS);
    assert!(compilation.render().ends_with("stopped after 100 errors\n"));
}

/// Long chains and deep nests: walks are loops, and what recurses is limited.
#[test]
fn long_chains_and_deep_nests_do_not_overflow_the_stack() {
    let chain: String = (0..30_000).map(|n| format!("typedef t{} t{n};\n", n + 1)).collect();
    everything(&(chain + "typedef int t30000;"));
    let chain: String = (0..50_000).map(|n| format!("const c{n} = c{};\n", n + 1)).collect();
    everything(&(chain + "const c50000 = 1;"));
    let circle: String =
        (0..50_000).map(|n| format!("struct t{n} {{ t{} x; }};\n", (n + 1) % 50_000)).collect();
    everything(&circle);
    for nest in ["struct s { ", "struct {", "(", "{", "[", "<", "-", "*", "#if (", "#if 1\n", "/* "]
    {
        everything(&nest.repeat(30_000));
    }
}

#[test]
fn diagnostics_have_the_line_of_the_original_file() {
    let text = "# 1 \"kv.x\"\n# 1 \"<built-in>\"\n# 40 \"kv.x\" 2\n\nstruct s { nope x; };\n";
    let rendered = compile("<stdin>", text, &Options::new()).render();
    assert!(rendered.contains("here: kv.x, line 41"), "{rendered}");
}

#[test]
fn words_of_the_extensions_are_names_where_they_can_be() {
    let text = "typedef int in; struct out { in oneway; int bulk; };
        program P { version V {
            in inout(in) = 1; oneway oneway(out) = 2; void copyin(in in, out out) = 3;
        } = 1; } = 1; typedef int oneway;";
    let compilation = compile("names.x", text, &Options::new());
    assert!(!compilation.has_errors(), "{}", compilation.render());
}

#[test]
fn formatting_says_so_when_it_cannot() {
    for text in ["struct @", "/* open", "const A = \"open"] {
        let error = format("bad.x", text).expect_err("it has errors").to_string();
        assert!(error.contains("bad.x:1:"), "{error}");
    }
}
