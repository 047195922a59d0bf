//! Generates the stubs of `idl/`, for SHRIMP RPC and for Sun RPC, and those of random programs over random types.
//!
//! `RPC_IDL_TESTS_SEED=7` makes another batch.

#[path = "src/random.rs"]
#[allow(dead_code)]
mod random;

#[path = "src/random_program.rs"]
#[allow(dead_code)]
mod random_program;

#[path = "build/glue.rs"]
mod glue;

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Definitions in the batch: some seconds of compiling.
const COUNT: usize = 150;

/// Procedures of the programs.
const PROCEDURES: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/glue.rs");
    println!("cargo::rerun-if-changed=src/random.rs");
    println!("cargo::rerun-if-changed=src/random_program.rs");
    println!("cargo::rerun-if-env-changed=RPC_IDL_TESTS_SEED");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("run by cargo only")?);
    for (dir, builder) in [
        ("shrimp", rpc_idl::Builder::shrimp_rpc()),
        // The seam of Sun RPC is in the codec; the library that carries the calls is not needed.
        ("sunrpc", rpc_idl::Builder::sun_rpc().runtime("crate")),
    ] {
        let dir = out.join(dir);
        std::fs::create_dir_all(&dir)?;
        for file in ["alike", "everything", "names", "hostile", "steady"] {
            let file = Path::new("idl").join(file).with_extension("x");
            builder.clone().out_dir(&dir).compile(&file)?;
        }
    }

    // What compat-sunrpc tries against rpcgen's programs, and others' clients.
    for file in ["c/types.x", "peers/nfs3.x"] {
        let file = Path::new("../compat-sunrpc/tests").join(file);
        rpc_idl::Builder::sun_rpc().runtime("crate").compile(&file)?;
    }

    let seed: u64 = match std::env::var("RPC_IDL_TESTS_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => 1,
    };
    let defs = random::definitions(seed, COUNT);
    let procedures = random_program::procedures(seed, &defs, PROCEDURES);
    let versions = random_program::versions(seed, PROCEDURES);
    let text = random_program::text(&defs, &versions, &procedures);
    let batch = out.join("random.x");
    // The builder has cargo watch it: written anew it would be newer than this run, at each of them.
    if std::fs::read_to_string(&batch).ok().as_ref() != Some(&text) {
        std::fs::write(&batch, text)?;
    }
    let stubs = rpc_idl::Builder::shrimp_rpc().compile(&batch)?;
    let glue = glue::generate(&std::fs::read_to_string(stubs)?, &versions, &procedures);
    std::fs::write(out.join("glue.rs"), glue)?;
    let sun_rpc = rpc_idl::Builder::sun_rpc().runtime("crate").out_dir(out.join("sunrpc"));
    let stubs = std::fs::read_to_string(sun_rpc.compile(&batch)?)?;
    let glue = glue::generate_sun(&stubs, &versions, &procedures);
    std::fs::write(out.join("sun_glue.rs"), glue)?;
    let mut table = String::new();
    writeln!(table, "/// What the batch was made from.\npub const SEED: u64 = {seed};")?;
    writeln!(table, "/// Definitions of the batch.\npub const COUNT: usize = {COUNT};")?;
    writeln!(table, "/// Procedures of the batch.\npub const PROCEDURES: usize = {PROCEDURES};")?;
    writeln!(table, "/// Decodes and encodes a value of definition `index`.\n#[must_use]")?;
    writeln!(
        table,
        "pub fn again(index: usize, bytes: &[u8]) -> Option<Result<Vec<u8>, xdr::DecodeError>> {{"
    )?;
    writeln!(table, "    match index {{")?;
    for (index, def) in defs.iter().enumerate() {
        // A typedef has no codec of its own, and the node of a list only as a part of the list:
        // they are tried where they are used.
        if !matches!(def, random::Def::Typedef(_) | random::Def::List(_)) {
            writeln!(table, "        {index} => Some(again_as::<batch::T{index}>(bytes)),")?;
        }
    }
    writeln!(table, "        _ => None,\n    }}\n}}")?;
    std::fs::write(out.join("table.rs"), table)?;
    Ok(())
}
