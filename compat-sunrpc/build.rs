//! Link options of the preload library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Calls between our own functions do not go through the program's symbol table.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads may be inside a hook at any time: never unmapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
