//! Messages between real processes, through a daemon of the test's own.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::{Dest, Engine, Info, NxError, Select, Source, Target};

fn send(engine: &Engine, type_: i32, bytes: &[u8], node: i32) {
    let data = Source { start: bytes.as_ptr(), len: bytes.len() };
    // SAFETY: `bytes` is borrowed for the call.
    unsafe { engine.csend(type_, data, Dest { node, ptype: 0 }) }.expect("csend");
}

fn receive(engine: &Engine, select: Select, room: &mut [u8]) -> Result<Info, NxError> {
    let target = Target { start: room.as_mut_ptr(), len: room.len() };
    // SAFETY: `room` is borrowed exclusively for the call.
    unsafe { engine.crecv(select, target) }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

/// Every length that takes another path, there and back.
fn ping_pong(engine: &Engine, _: &str) {
    let lens = [
        0,
        1,
        7,
        8,
        40,
        41,
        5000,
        8231,
        8232,
        8233,
        10_000,
        16384,
        100_000,
        1 << 20,
        (4 << 20) + 3,
    ];
    let other = 1 - engine.node();
    for (i, &len) in lens.iter().enumerate() {
        let mut room = vec![0; len + 3];
        let expected = pattern(i as u64, len);
        for _ in 0..3 {
            if engine.node() == 0 {
                send(engine, i as i32, &expected, other);
            }
            room.fill(0xee);
            let info = receive(engine, Select::types(i as i32), &mut room).expect("crecv");
            assert_eq!(info, Info { type_: i as i32, count: len, node: other, ptype: 0 });
            assert!(room[..len] == expected[..], "bytes of a message of {len}");
            assert_eq!(room[len..], [0xee; 3]);
            if engine.node() == 1 {
                send(engine, i as i32, &room[..len], other);
            }
        }
    }
}

#[test]
fn rank() {
    common::play(&[("ping_pong", ping_pong)]);
}

#[test]
fn messages_of_every_length_arrive_whole_in_every_mode() {
    let daemon = Daemon::start();
    for mode in ["au", "du1", "du2"] {
        daemon.run(2, "ping_pong", "", &[("NX_SEND", mode)]);
    }
}
