//! What a client stores, seen from the buffer: by a server that is no server (F3 to F5).

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
mod raw;

use common::{Daemon, until};
use raw::Heard;
use shrimp_rpc::layout::{self, Kind, Turn};
use shrimp_rpc::{Binding, CallError};
use std::time::Duration;
use xdr::{Encode, Sink};

const PROGRAM: u32 = 9;

/// F3: the flag is at one and the same place for every call of a binding, directly behind the data, whatever
/// the signature; F4: one message carries both.
#[test]
fn data_of_any_length_ends_at_the_flag_which_is_always_at_the_same_place() {
    let daemon = Daemon::start();
    let (server_node, client_node) = (daemon.node(), daemon.node());
    // Bytes of the plain part, and elements of two blocks.
    let shapes: Vec<(usize, usize, usize)> = [0, 4, 8, 12, 100, 120, 1000]
        .into_iter()
        .flat_map(|plain| [(plain, 0, 0), (plain, 1, 0), (plain, 7, 9), (plain, 500, 64)])
        .collect();
    let padded = |bytes: usize| layout::padded(bytes).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let server = Heard::hear(&server_node, "wire", || {}).answer(&server_node);
            let mut last = Turn::NONE;
            for (plain, one, two) in &shapes {
                let flag = server.call(last);
                let len = padded(*plain) + padded(*one) + padded(*two);
                assert_eq!((flag.kind, flag.len_bytes()), (Kind::Whole, len));
                let mut message = vec![0; len];
                let start = layout::flag_at(server.calls.len()) - len;
                server.calls.view().read(start, &mut message).unwrap();
                let (words, blocks) = message.split_at(padded(*plain));
                assert!(words[..*plain].iter().all(|byte| *byte == 0x11), "plain of {plain}");
                let (first, second) = blocks.split_at(padded(*one));
                assert!(first[..*one].iter().all(|byte| *byte == 0x22), "block of {one}");
                assert!(second[..*two].iter().all(|byte| *byte == 0x33), "block of {two}");
                server.reply(flag.turn, Kind::Whole, 0);
                last = flag.turn;
            }
        });
        let binding =
            Binding::builder("wire", PROGRAM, 1).node(&client_node).lanes(1).connect().unwrap();
        for (plain, one, two) in &shapes {
            let mut request = binding.request(1, *plain, padded(*one) + padded(*two)).unwrap();
            for _ in 0..plain / 4 {
                0x1111_1111u32.encode(&mut request).unwrap();
            }
            assert!(request.put_u32(0).is_err(), "more than was announced");
            request.block(&vec![0x22u8; *one]).unwrap();
            // The same as a block that is copied.
            request.loan::<u8>(*two).unwrap().fill(0x33);
            request.call().unwrap();
        }
        server.join().unwrap();
    });
}

/// The turn of a call that was given up comes again. By then the head speaks of no call.
#[test]
fn a_call_given_up_is_not_given_up_any_more_when_the_next_one_comes() {
    let daemon = Daemon::start();
    let (server_node, client_node) = (daemon.node(), daemon.node());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let server = Heard::hear(&server_node, "late", || {}).answer(&server_node);
            let given_up = server.calls.flag32(layout::CALL_CANCELLED).unwrap();
            let mut last = Turn::NONE;
            for _ in 0..3 {
                let turn = server.call(last).turn;
                // Nobody rings for it.
                until("it is given up", || given_up.load().unwrap() == turn.number());
                server.reply(turn, Kind::Whole, 0);
                last = server.call(turn).turn;
                assert_eq!(given_up.load().unwrap(), 0);
                server.reply(last, Kind::Whole, 0);
            }
        });
        let binding =
            Binding::builder("late", PROGRAM, 1).node(&client_node).lanes(1).connect().unwrap();
        for _ in 0..3 {
            binding.set_timeout(Some(Duration::from_millis(2)));
            let late = binding.request(1, 0, 0).unwrap().call().map(drop);
            assert!(matches!(late, Err(CallError::TimedOut { .. })), "{late:?}");
            binding.set_timeout(None);
            binding.request(1, 0, 0).unwrap().call().unwrap();
        }
        server.join().unwrap();
    });
}
