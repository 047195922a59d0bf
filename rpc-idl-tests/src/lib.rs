//! Stubs generated from `idl/`, so that the tests can try them.

pub use xdr;

/// `everything.x` for SHRIMP RPC.
pub mod shrimp {
    include!(concat!(env!("OUT_DIR"), "/shrimp/everything.rs"));
}

/// `everything.x` for Sun RPC.
pub mod sunrpc {
    include!(concat!(env!("OUT_DIR"), "/sunrpc/everything.rs"));
}
