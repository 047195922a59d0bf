//! Stubs generated from `idl/` and from random definitions, so that the tests can try them.

#[allow(missing_docs)]
pub mod random;

pub use xdr;

/// `everything.x` for SHRIMP RPC.
pub mod shrimp {
    include!(concat!(env!("OUT_DIR"), "/shrimp/everything.rs"));
}

/// `everything.x` for Sun RPC.
pub mod sunrpc {
    include!(concat!(env!("OUT_DIR"), "/sunrpc/everything.rs"));
}

/// `names.x` for SHRIMP RPC.
pub mod names {
    include!(concat!(env!("OUT_DIR"), "/shrimp/names.rs"));
}

/// `names.x` for Sun RPC.
pub mod sunrpc_names {
    include!(concat!(env!("OUT_DIR"), "/sunrpc/names.rs"));
}

/// `types.x` of compat-sunrpc, which rpcgen takes too, for Sun RPC.
pub mod types {
    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// `nfs3.x` of compat-sunrpc, for Sun RPC.
pub mod nfs3 {
    include!(concat!(env!("OUT_DIR"), "/nfs3.rs"));
}

/// The random types.
pub mod batch {
    include!(concat!(env!("OUT_DIR"), "/random.rs"));
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));

fn again_as<T: xdr::Decode + xdr::Encode>(bytes: &[u8]) -> Result<Vec<u8>, xdr::DecodeError> {
    let mut reader = xdr::Reader::<xdr::Network>::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    let mut counter = xdr::Counter::new();
    let mut writer = xdr::Writer::<xdr::Network>::new();
    value.encode(&mut counter).expect("what was decoded is within its limits");
    value.encode(&mut writer).expect("what was decoded is within its limits");
    assert_eq!(counter.len(), writer.bytes().len());
    Ok(writer.into_bytes())
}
