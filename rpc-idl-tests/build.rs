//! Generates the stubs of `idl/`: for SHRIMP RPC, for Sun RPC, and types alone.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("run by cargo only")?);
    for (dir, builder) in [
        ("shrimp", rpc_idl::Builder::shrimp_rpc().no_async()),
        // The seam of Sun RPC is in the codec; the library that carries the calls is not needed.
        ("sunrpc", rpc_idl::Builder::sun_rpc().runtime("crate")),
    ] {
        let dir = out.join(dir);
        std::fs::create_dir_all(&dir)?;
        builder.out_dir(&dir).compile(Path::new("idl/everything.x"))?;
    }
    Ok(())
}
