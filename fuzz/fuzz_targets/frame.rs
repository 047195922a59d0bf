//! What a node's interface and a process read from each other: any bytes are a header or an error,
//! a header survives the wire, and its bounds hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmmc::transport::net::frame::{HEADER_LEN, Header, MAX_DATA, PAGE};

fuzz_target!(|bytes: &[u8]| {
    for chunk in bytes.chunks_exact(HEADER_LEN) {
        let Some(bytes) = chunk.first_chunk::<HEADER_LEN>() else { return };
        if let Ok(header) = Header::decode(bytes) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
            assert!(u64::from(header.offset) < PAGE);
            assert!(header.body_len() <= MAX_DATA);
        }
    }
});
