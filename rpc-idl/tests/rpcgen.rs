//! What Debian's rpcgen accepts, we accept; what it refuses and we accept is listed.

use rpc_idl::{Builder, Options, compile};
use std::path::Path;
use std::process::Command;

/// Whether rpcgen (multiple arguments allowed, `-N`) finds no fault with a file.
fn rpcgen_accepts(text: &str) -> bool {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("t.x"), text).expect("the directory is ours");
    let output = Command::new("rpcgen")
        .args(["-N", "-h", "t.x"])
        .current_dir(dir.path())
        .output()
        .expect("rpcgen is installed: see ci/deps");
    output.status.success()
}

fn we_accept(text: &str) -> bool {
    !compile("t.x", text, &Options::new()).has_errors()
}

/// A procedure with this result and these parameters.
fn procedure(text: &str) -> String {
    format!("program P {{ version V {{ {text} = 1; }} = 1; }} = 5;")
}

#[test]
fn what_both_accept() {
    for text in [
        "struct a { string x<>; opaque y<8>; opaque z[3]; int *p; int v<5>; int w[2]; };",
        "struct a { quadruple q; hyper h; unsigned hyper u; long l; unsigned long ul; short s; };",
        "struct a { unsigned short us; char c; unsigned char uc; unsigned u; float f; double d; };",
        "struct a { bool b; u_int i; u_long j; bool_t c; longlong_t x; u_quad_t y; uint64_t z; };",
        "enum e { A = -1, B = A, C, D = 0x10, E = 010 };",
        "const X = -5; const Y = 0x1F; const Z = 010; const S = \"abc\"; const W = Y;",
        "union u switch (int d) { case 1: case 2: int x; default: void; };",
        "union u switch (bool d) { case TRUE: int x; case FALSE: void; };",
        "union u switch (unsigned d) { case 1: int x; };",
        "union u switch (char d) { case 'a': int x; };",
        "enum e { A }; union u switch (e d) { case A: int x; };",
        "struct a { int x; }; typedef struct a b; typedef struct a *c; struct d { struct a x; };",
        "struct a { int x; a *next; }; typedef a *list;",
        "%#include <x.h>\nstruct a {\n%int y;\nint x; };",
        "#define N 4\nstruct a { int x[N]; };\n#ifdef M\nstruct b { int x; }\n#endif\n",
        &procedure("int F(void)"),
        &procedure("int F()"),
        &procedure("string F(string)"),
        &procedure("string F(string<10>)"),
        &procedure("void F(int, unsigned hyper)"),
        &procedure("void F(int a, string b)"),
        &procedure("int F(int *)"),
        "struct _a { int _x1; };",
        "struct a { int in; int out; int inout; int oneway; int bulk; int plain; };",
    ] {
        assert!(rpcgen_accepts(text), "rpcgen refuses {text}");
        let compilation = compile("t.x", text, &Options::new());
        assert!(!compilation.has_errors(), "we refuse {text}\n{}", compilation.render());
    }
}

#[test]
fn what_both_refuse() {
    for text in [
        "struct a { string x; };",
        "struct a { string x[4]; };",
        "struct a { opaque x; };",
        "struct a { void x; };",
        "struct a { };",
        "enum e { };",
        "typedef int a, b;",
        "struct a { int x, y; };",
        "struct a { int x[]; };",
        "struct a { int *x[3]; };",
        "struct a { int x[3][4]; };",
        "struct a { struct b { int y; } x; };",
        "union u switch (int d) { };",
        "union u switch (int d) { default: void; case 1: int x; };",
        "struct a { int x; } ;; struct b { int y; };",
        "struct a { long long x; };",
        "struct a { signed int x; };",
        "struct int { int x; };",
        "extern int x;",
        "program P { } = 5;",
        &procedure("opaque F(int)"),
        "program P { version V { } = 1; } = 5;",
        "program P { version V { int F(int) = 1; } = 1; };",
    ] {
        assert!(!rpcgen_accepts(text), "rpcgen accepts {text}");
        assert!(!we_accept(text), "we accept {text}");
    }
}

#[test]
fn what_we_accept_beyond_rpcgen() {
    for text in [
        // RFC 4506 has these.
        "struct a { enum { X, Y } x; struct { int z; } y; };",
        "typedef enum { A, B } b;",
        // Harmless.
        "enum e { A, B = 2, };",
        "struct a { int x; }; // a comment of C++",
        // The extensions.
        &procedure("int F(in int a, out int b, inout int c)"),
        &procedure("oneway void F(in opaque data<>)"),
    ] {
        assert!(!rpcgen_accepts(text), "rpcgen accepts {text}");
        assert!(we_accept(text), "we refuse {text}");
    }
}

/// rpcgen leaves these to the C compiler, or to nobody.
#[test]
fn what_we_refuse_and_rpcgen_does_not() {
    for text in [
        "struct a { foo x; };",                      // undefined
        "struct a { int x[N]; };",                   // undefined
        "struct a { int x; }; struct a { int y; };", // twice
        "struct a { int x; int x; };",               // twice
        "struct a { a x; };",                        // without end
        "struct a { int x[0]; };",                   // no length
        "struct a { int x<-1>; };",                  // no length
        "program P { version V { int A(int) = 1; int B(int) = 1; } = 1; } = 5;", // one number
    ] {
        assert!(rpcgen_accepts(text), "rpcgen refuses {text}");
        assert!(!we_accept(text), "we accept {text}");
    }
}

/// The interface files that come with Debian's rpcsvc-proto.
#[test]
fn debian_interface_files_compile() {
    // What rpcgen leaves to C headers has to be said.
    let builder = Builder::sun_rpc()
        .define("MAXNETNAMELEN", "255")
        .define("MAXNAMELEN", "1025")
        .extern_type("des_block", "crate::DesBlock")
        .extern_type("nis_object", "crate::NisObject")
        .extern_type("nis_error", "crate::NisError");
    let dir = Path::new("/usr/include/rpcsvc");
    let mut compiled = 0;
    for entry in std::fs::read_dir(dir).expect("rpcsvc-proto is installed: see ci/deps") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|e| e != "x") {
            continue;
        }
        let (compilation, _) = builder.read(&path).expect("readable");
        assert!(!compilation.has_errors(), "{}", compilation.render());
        builder.generate(&compilation).expect("it compiles");
        let text = std::fs::read_to_string(&path).expect("text");
        let formatted = rpc_idl::format("f.x", &text).expect("it can be formatted");
        assert_eq!(rpc_idl::format("f.x", &formatted).as_ref(), Ok(&formatted));
        compiled += 1;
    }
    assert!(compiled > 10, "{compiled} files in {}", dir.display());
}
