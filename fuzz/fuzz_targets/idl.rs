//! Any text through the compiler of interface files and its formatter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_idl::{Options, RustOptions, Stubs, compile, format};

fuzz_target!(|text: &str| {
    let compilation = compile("any.x", text, &Options::new());
    let _ = compilation.render();
    let formatted = format("any.x", text);
    if let Some(model) = compilation.model() {
        let formatted = formatted.expect("what compiles can be formatted");
        let again = compile("any.x", &formatted, &Options::new());
        assert_eq!(again.file(), compilation.file());
        let _ = rpc_idl::emit::rust::generate(model, &RustOptions::new(Stubs::Shrimp), "any.x");
        let _ = rpc_idl::emit::c::generate(model, "any");
    }
});
