//! Any text through the compiler of interface files and its formatter: what `rpc-idl/tests/frontend.rs` does with its own
//! texts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_idl::{Options, RustOptions, Stubs, compile, format};

fuzz_target!(|text: &str| {
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
        assert!(!error.to_string().contains("[format-changes]"), "{error}");
    }
    if !compilation.has_errors() {
        // The formatter reads what the preprocessor leaves out, too.
        let Ok(formatted) = formatted else {
            assert!(text.contains("#if"), "what compiles can be formatted");
            return;
        };
        assert_eq!(format("any.x", &formatted).as_ref(), Ok(&formatted), "formatted again");
        let again = compile("any.x", &formatted, &Options::new());
        assert_eq!(again.file(), compilation.file(), "it says the same");
    }
});
