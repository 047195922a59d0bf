//! What `shrimpc c` writes.
#![allow(unreachable_pub)] // each test file has it for itself

use std::path::Path;

/// Writes the stubs of an interface, and what they include, to `dir`.
pub fn generate(dir: &Path, stem: &str, interface: &str) {
    let compilation = rpc_idl::compile(stem, interface, &rpc_idl::Options::new());
    let model = compilation.model().unwrap_or_else(|| panic!("{}", compilation.render()));
    let files = rpc_idl::emit::c::generate(model, stem);
    for (name, text) in [
        (format!("{stem}.h"), &files.header[..]),
        (format!("{stem}_codec.c"), &files.codec),
        (format!("{stem}_client.c"), &files.client),
        (format!("{stem}_server.c"), &files.server),
        ("shrimp_codec.h".to_owned(), rpc_idl::emit::c::CODEC_HEADER),
    ] {
        std::fs::write(dir.join(name), text).expect("the directory is ours");
    }
}
