//! Servers that send replies in pieces as slowly as they can.

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod raw;
#[path = "../../vmmc/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use common::{Daemon, PATIENCE};
use shrimp_rpc::layout::{self, FlagWord, Kind, Turn};
use shrimp_rpc::{Binding, CallError};
use std::time::Duration;
use support::Watchdog;

const PROGRAM: u32 = 0x2000_0004;

/// What a call fails by, to whose client a server sends a reply of 64 MiB in pieces of that length, each after that time.
fn fails_by(name: &str, piece: usize, after: Duration, timeout: Duration) -> CallError {
    let daemon = Daemon::start();
    let (node, liar) = (daemon.node(), daemon.node());
    let (ready, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let heard = raw::Heard::hear(&liar, name, || ready.send(()).unwrap());
            let server = heard.answer(&liar);
            server.replies.write(layout::REPLY_TOTAL, &(64u64 << 20).to_ne_bytes()).unwrap();
            let (mut turn, mut kind) = (Turn::NONE, Kind::First);
            while let Some(call) = server.next_call(turn) {
                turn = call.turn;
                std::thread::sleep(after);
                // The client may have had enough.
                let units = (piece / layout::UNIT) as u32;
                server.flag(FlagWord { turn, kind, code: 0, units }.pack());
                kind = Kind::Next;
            }
        });
        opened.recv().unwrap();
        let builder = Binding::builder(name, PROGRAM, 1).node(&node).buffer_len(raw::LEN);
        let builder = builder.timeout(timeout).connect_timeout(PATIENCE.unwrap());
        let binding = builder.connect().unwrap();
        binding.request(1, 0, 0).unwrap().call().map(drop).expect_err("it is never complete")
    })
}

/// Each piece had the whole time, so that a call took as many times as much as it has pieces.
#[test]
fn all_pieces_of_a_reply_share_a_time_limit() {
    let _watchdog = Watchdog::new("all_pieces_of_a_reply");
    let timeout = Duration::from_millis(400);
    let failed = fails_by("slow", layout::room(raw::LEN), Duration::from_millis(100), timeout);
    match failed {
        CallError::TimedOut { after } => assert_eq!(after, timeout),
        other => panic!("{other:?}"),
    }
}

/// The pieces could be as short as eight bytes.
#[test]
fn a_short_piece_of_a_reply_ends_the_binding() {
    let _watchdog = Watchdog::new("a_short_piece_of_a_reply");
    let failed = fails_by("short", 8, Duration::ZERO, PATIENCE.unwrap());
    assert!(matches!(failed, CallError::Protocol { .. }), "{failed:?}");
}
