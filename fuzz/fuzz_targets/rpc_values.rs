//! Arguments and results as a peer sends them: any bytes, decoded as values of random types.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_idl_tests::{COUNT, again};

fuzz_target!(|input: (u16, &[u8])| {
    let (index, bytes) = (usize::from(input.0) % COUNT, input.1);
    if let Some(Ok(encoded)) = again(index, bytes) {
        // What was accepted is a value: it goes there and back.
        assert_eq!(again(index, &encoded), Some(Ok(encoded)));
    }
});
