//! The first packet of a connection: accepted only with our magic and version.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmmc::control::codec::{HANDSHAKE_LEN, check_handshake, handshake};

fuzz_target!(|bytes: &[u8]| {
    if check_handshake(bytes).is_ok() {
        assert_eq!(bytes.len(), HANDSHAKE_LEN);
        // The reserved bytes may be anything; the rest is fixed.
        assert_eq!(bytes.get(..8), handshake().get(..8));
    }
});
