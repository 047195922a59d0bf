//! What a client decodes from the daemon: any bytes are a message or an error, and a message survives
//! being encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmmc::control::codec::{decode, encode};
use vmmc::control::message::{MAX_PACKET_LEN, Event};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode::<Event>(bytes) {
        let mut buffer = [0; MAX_PACKET_LEN];
        // A longer packet than any that is accepted may hold a message that does not fit one.
        if let Ok(packet) = encode(&message, &mut buffer) {
            assert_eq!(decode::<Event>(packet).as_ref(), Ok(&message));
        } else {
            assert!(bytes.len() > MAX_PACKET_LEN);
        }
    }
});
