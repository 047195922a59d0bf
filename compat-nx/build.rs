//! Link options of libnx.so.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnx.so");
    // Handlers and helper threads may run at any time: never unmapped. Not -Bsymbolic: a program
    // may hold `msginfo` in its own data.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
