//! What daemons of two nodes, and a process and its network service, decode from each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmmc::control::codec::decode;
use vmmc::control::network::{Accepted, Opening, Question, Resumed, Seen, Sight, Told};

fuzz_target!(|bytes: &[u8]| {
    let _ = decode::<Opening>(bytes);
    let _ = decode::<Accepted>(bytes);
    let _ = decode::<Question>(bytes);
    let _ = decode::<Resumed>(bytes);
    let _ = decode::<Told>(bytes);
    let _ = decode::<Seen>(bytes);
    let _ = decode::<Sight>(bytes);
});
