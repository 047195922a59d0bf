//! What the Rust client and server decode from their peers: heads of calls and replies, credentials, and
//! values of every type that rpcgen knows. What is taken is encoded again, and means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_idl_tests::types::Everything;
use vrpc::msg::{AuthSys, CallHead, ReplyHead};
use vrpc::xdr::{Decode, Encode, Network, Reader, Writer};

fn again<T: Decode + Encode>(bytes: &[u8]) {
    let Ok(value) = T::decode(&mut Reader::<Network>::new(bytes)) else { return };
    let encode = |value: &T| {
        let mut writer = Writer::<Network>::new();
        value.encode(&mut writer).expect("what was decoded is within its limits");
        writer.into_bytes()
    };
    let first = encode(&value);
    let second = T::decode(&mut Reader::<Network>::new(&first)).expect("our own encoding");
    assert_eq!(first, encode(&second));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => again::<CallHead>(bytes),
        1 => again::<ReplyHead>(bytes),
        2 => again::<AuthSys>(bytes),
        _ => again::<Everything>(bytes),
    }
});
