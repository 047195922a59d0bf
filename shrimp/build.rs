//! Stubs of the calls that `shrimp perf rpc` measures, made as any program has its own made.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    rpc_idl::Builder::shrimp_rpc().compile("src/perf/rpc/figure8.x")?;
    Ok(())
}
