//! Sealed data connections: whatever happens to the records on their way, what opens is what was sent, from its beginning,
//! or less of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmmc::transport::tcp::seal::{Opener, Sealer};

const KEY: [u8; 32] = [9; 32];

/// Messages; what is changed on their way, where and how; the parts that come at once; the rooms into which they are received.
type Input = (Vec<Vec<u8>>, Vec<(u16, u8)>, Vec<u8>, Vec<u8>);

fuzz_target!(|input: Input| {
    let (messages, changes, cuts, rooms) = input;
    let (mut sealer, mut wire) = (Sealer::new(&KEY), Vec::new());
    for message in &messages {
        let mut sent = 0;
        while sent < message.len() {
            let write = |bytes: &[u8]| {
                wire.extend_from_slice(bytes);
                Ok(bytes.len())
            };
            sent += sealer.send(&message[sent..], &[], write).unwrap();
        }
    }
    let expected = messages.concat();
    for (at, change) in &changes {
        if let Some(byte) = wire.get_mut(usize::from(*at)) {
            *byte ^= change;
        }
    }
    let (mut opener, mut at, mut found) = (Opener::new(&KEY), 0, Vec::new());
    let mut cuts = cuts.into_iter().map(|cut| usize::from(cut) + 1).chain(std::iter::repeat(4096));
    let mut rooms = rooms.into_iter().map(|room| usize::from(room) + 1).chain(std::iter::repeat(4096));
    loop {
        let mut room = vec![0; rooms.next().unwrap()];
        let read = |into: &mut [u8]| {
            let len = into.len().min(cuts.next().unwrap()).min(wire.len() - at);
            into[..len].copy_from_slice(&wire[at..at + len]);
            at += len;
            Ok(len)
        };
        match opener.receive(&mut room, read) {
            Ok(0) | Err(_) => break,
            Ok(len) => found.extend_from_slice(&room[..len]),
        }
    }
    assert!(expected.starts_with(&found));
    if changes.iter().all(|(at, change)| *change == 0 || usize::from(*at) >= wire.len()) {
        assert_eq!(found, expected);
    }
});
