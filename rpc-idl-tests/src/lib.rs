//! Stubs generated from `idl/` and from random definitions, so that the tests can try them.

#[allow(missing_docs)]
pub mod random;
#[allow(missing_docs)]
pub mod random_program;

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

/// `alike.x` for SHRIMP RPC.
pub mod alike {
    include!(concat!(env!("OUT_DIR"), "/shrimp/alike.rs"));
}

/// `alike.x` for Sun RPC.
pub mod sunrpc_alike {
    include!(concat!(env!("OUT_DIR"), "/sunrpc/alike.rs"));
}

/// `hostile.x` for SHRIMP RPC.
pub mod hostile {
    include!(concat!(env!("OUT_DIR"), "/shrimp/hostile.rs"));
}

/// `steady.x` for SHRIMP RPC.
pub mod steady {
    include!(concat!(env!("OUT_DIR"), "/shrimp/steady.rs"));
}

/// `types.x` of compat-sunrpc, which rpcgen takes too, for Sun RPC.
pub mod types {
    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// `nfs3.x` of compat-sunrpc, for Sun RPC.
pub mod nfs3 {
    include!(concat!(env!("OUT_DIR"), "/nfs3.rs"));
}

/// The random types, the stubs of the random programs, and what calls and serves them with bytes.
pub mod batch {
    include!(concat!(env!("OUT_DIR"), "/random.rs"));
    include!(concat!(env!("OUT_DIR"), "/glue.rs"));
}

/// The same for Sun RPC.
pub mod sun_batch {
    include!(concat!(env!("OUT_DIR"), "/sunrpc/random.rs"));
    include!(concat!(env!("OUT_DIR"), "/sun_glue.rs"));
}

/// Serves the random programs by a function from the number of a procedure and the XDR of its arguments to that of its
/// results.
pub struct Answers<F>(pub F);

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

fn decoded<T: xdr::Decode>(bytes: &[u8]) -> T {
    let mut reader = xdr::Reader::<xdr::Network>::new(bytes);
    let value = T::decode(&mut reader).expect("the test made it");
    reader.finish().expect("the test made it");
    value
}

fn encoded<T: xdr::Encode>(value: &T) -> Vec<u8> {
    let mut writer = xdr::Writer::<xdr::Network>::new();
    value.encode(&mut writer).expect("what came is within its limits");
    writer.into_bytes()
}

/// Bulk data as a field of the same type has it: a vector or an array.
fn owned<T, C: TryFrom<Vec<T>>>(data: Result<Vec<T>, xdr::DecodeError>) -> C {
    let whole = C::try_from(data.expect("the elements are right"));
    whole.unwrap_or_else(|_| panic!("there are too few or too many"))
}

fn no_room<E: std::fmt::Debug>(error: E) -> shrimp_rpc::Fault {
    shrimp_rpc::Fault::with_text(2, format!("no room: {error:?}"))
}

fn failed(fault: shrimp_rpc::Fault) -> xdr::rpc::Failed {
    xdr::rpc::Failed::new(fault.text().to_owned())
}
