//! What the paper claims, counted rather than timed (F2 to F11).

#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use common::Daemon;
use shrimp_rpc::process::count;
use shrimp_rpc::{Binding, BulkMut, DispatchError, Server, layout};
use std::sync::{Arc, Mutex, mpsc};
use vmmc::Node;
use vmmc::counters::index;
use xdr::{Decode, Encode};

const PROGRAM: u32 = 0x2000_0004;
const NULL: u32 = 0;
const INOUT: u32 = 1;
const OUT: u32 = 2;
const NEXT: u32 = 3;
/// As NEXT, with as many words in the reply as the client wants.
const COUNTED: u32 = 4;
/// As many numbers as the client wants, from one on, as OUT data.
const NUMBERS: u32 = 5;
/// One way: its number among those, and words that tell it from all others.
const NOTE: u32 = 6;

struct Both {
    _daemon: Daemon,
    server_node: Node,
    client_node: Node,
    binding: Binding,
    /// What OUT waits for between its writing and its reply.
    go_on: mpsc::Sender<()>,
    written: mpsc::Receiver<usize>,
    notes: Arc<Mutex<Notes>>,
    _server: Server,
}

/// What the server heard one way.
#[derive(Debug, Default)]
struct Notes {
    heard: u32,
    /// Of their numbers.
    sum: u64,
    /// One that was not the next.
    early: Option<u32>,
    /// One that had other words.
    wrong: Option<String>,
}

impl Notes {
    /// What each word of a note is.
    fn word(number: u32) -> u32 {
        5 * number + 1
    }

    fn hear(&mut self, number: u32, words: &[u32]) {
        if words.iter().any(|word| *word != Notes::word(number)) {
            self.wrong = Some(format!("{number}: {words:?}"));
        }
        if number != self.heard {
            self.early = Some(number);
        }
        self.heard += 1;
        self.sum += u64::from(number);
    }
}

/// Every number becomes the one after it.
fn count_on(block: &mut BulkMut<'_, u32>) -> Result<(), DispatchError> {
    let mut numbers = block.to_vec()?;
    numbers.iter_mut().for_each(|number| *number = number.wrapping_add(1));
    let _ = block.write(0, &numbers); // as long
    Ok(())
}

fn both(buffer_len: usize) -> Both {
    both_with(buffer_len, 8)
}

fn both_with(buffer_len: usize, lanes: usize) -> Both {
    let daemon = Daemon::start();
    let (server_node, client_node) = (daemon.node(), daemon.node());
    let (go_on, wait) = mpsc::channel();
    let (tell, written) = mpsc::channel();
    let wait = Mutex::new(wait);
    let notes = Arc::<Mutex<Notes>>::default();
    let heard = notes.clone();
    let server = Server::builder("mechanism")
        .node(&server_node)
        .buffer_max(buffer_len)
        .raw_program(PROGRAM, 1, move |procedure, call| match procedure {
            NULL => call.reply(0)?.send(),
            INOUT => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                let mut block = call.block_mut::<u8>(len)?;
                if len > 0 {
                    block.fill(9);
                }
                call.reply(0)?.send()
            }
            NEXT => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                count_on(&mut call.block_mut(len)?)?;
                call.reply(0)?.send()
            }
            COUNTED => {
                let mut args = call.args();
                let [len, words, first] = [(); 3].map(|()| u32::decode(&mut args));
                let (len, words, first) = (len?, words?, first?);
                args.finish()?;
                if len > 0 {
                    count_on(&mut call.block_mut(len)?)?;
                }
                let mut reply = call.reply(4 * words as usize)?;
                for i in 0..words {
                    first.wrapping_add(i).encode(&mut reply)?;
                }
                reply.send()
            }
            OUT => {
                let mut args = call.args();
                let len = u32::decode(&mut args)?;
                args.finish()?;
                let mut out = call.out::<u8>(u32::MAX);
                out.open(len as usize)?.fill(0xab);
                let _ = tell.send(len as usize);
                let _ = wait.lock().unwrap().recv();
                let (distance, len) = out.descriptor();
                let mut reply = call.reply(8)?;
                distance.encode(&mut reply)?;
                len.encode(&mut reply)?;
                reply.send()
            }
            NUMBERS => {
                let mut args = call.args();
                let (len, first) = (u32::decode(&mut args)?, u32::decode(&mut args)?);
                args.finish()?;
                let numbers: Vec<u32> = (0..len).map(|i| first.wrapping_add(i)).collect();
                let mut out = call.out::<u32>(u32::MAX);
                out.put(&numbers)?;
                let (distance, len) = out.descriptor();
                let mut reply = call.reply(8)?;
                distance.encode(&mut reply)?;
                len.encode(&mut reply)?;
                reply.send()
            }
            NOTE => {
                let mut args = call.args();
                let (number, len) = (u32::decode(&mut args)?, u32::decode(&mut args)?);
                args.finish()?;
                let words = call.block::<u32>(len)?.to_vec()?;
                heard.lock().unwrap().hear(number, &words);
                Ok(call.finish_oneway())
            }
            other => Err(DispatchError::UnknownProcedure(other)),
        })
        .start()
        .unwrap();
    let binding = Binding::builder("mechanism", PROGRAM, 1)
        .node(&client_node)
        .buffer_len(buffer_len)
        .lanes(lanes)
        .connect()
        .unwrap();
    Both {
        _daemon: daemon,
        server_node,
        client_node,
        binding,
        go_on,
        written,
        notes,
        _server: server,
    }
}

/// Not how long it was wanted: the server makes the buffer for calls.
#[test]
fn a_binding_knows_how_long_a_call_in_one_piece_may_be() {
    let both = both(65536);
    let long =
        Binding::builder("mechanism", PROGRAM, 1).node(&both.client_node).buffer_len(1 << 20);
    let long = long.connect_later().unwrap();
    assert_eq!(long.in_place_max(), layout::room(1 << 20));
    long.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
    assert_eq!(long.in_place_max(), layout::room(65536));
    assert_eq!(long.clone().in_place_max(), layout::room(65536));
}

#[test]
fn a_small_call_is_one_packet_each_way_and_a_null_call_is_one_word_each_way() {
    let both = both(65536);
    let counts = |node: &Node| {
        let counters = node.counters();
        (counters.get(count::PACKETS), counters.get(count::PACKET_BYTES))
    };
    // F2: one buffer on each side, and the door.
    assert_eq!(both.client_node.exports().len(), 1);
    assert_eq!(both.server_node.exports().len(), 2);
    let before = (counts(&both.client_node), counts(&both.server_node));
    for _ in 0..1000 {
        both.binding.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
    }
    // The server counts after it has replied.
    let served = |calls| {
        common::until("the last call is counted", || {
            both.server_node.counters().get(count::SERVED) == calls
        });
    };
    served(1000);
    let after = (counts(&both.client_node), counts(&both.server_node));
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        assert_eq!(after.0 - before.0, 1000, "packets (F4)");
        assert_eq!(after.1 - before.1, 8000, "bytes: the flag word (F14)");
    }
    let mut data = [1u8; 40];
    for _ in 0..1000 {
        let mut request = both.binding.request(INOUT, 4, 40).unwrap();
        40u32.encode(&mut request).unwrap();
        request.block(&data).unwrap();
        let mut reply = request.call().unwrap();
        reply.inout(0, &mut data).unwrap();
    }
    assert_eq!(data, [9; 40]);
    served(2000);
    let last = (counts(&both.client_node), counts(&both.server_node));
    assert_eq!(last.0.0 - after.0.0, 1000);
    assert_eq!(last.0.1 - after.0.1, 1000 * (8 + 40 + 8));
    // F8: what the handler wrote is not sent again.
    assert_eq!(last.1.0 - after.1.0, 1000);
    assert_eq!(last.1.1 - after.1.1, 1000 * 8);
    let copied = both.server_node.counters().get(count::COPIED_BYTES);
    assert_eq!(copied, 0, "the server copies nothing (F6)");
    let notified = both.server_node.counters().get(index::NOTIFIES_DELIVERED);
    assert!(notified <= 2, "{notified}: only the knock and the door's closing (F11)");
}

#[test]
fn out_data_is_there_before_the_flag_and_what_follows_does_not_grow_with_it() {
    let both = both(4 << 20);
    for len in [4096usize, 1 << 20, 3 << 20] {
        let before = both.server_node.counters().get(count::PACKET_BYTES);
        let mut data: Vec<u8> = Vec::new();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let mut request = both.binding.request(OUT, 4, 0).unwrap();
                (len as u32).encode(&mut request).unwrap();
                let mut reply = request.call().unwrap();
                reply.out_vec(u32::MAX, &mut data).unwrap();
            });
            assert_eq!(both.written.recv().unwrap(), len);
            // The handler is still at work, and the bytes are in the client's memory (F8, F9),
            // which only this look past the interface shows.
            let buffer = both.client_node.exports().pop().unwrap();
            let region = region_of_this_process(buffer.len);
            let found = region.iter().filter(|byte| **byte == 0xab).count();
            assert!(found >= len - 48, "{found} of {len} bytes are there");
            assert!(!call.is_finished(), "nothing is readable before the flag");
            both.go_on.send(()).unwrap();
            call.join().unwrap();
        });
        assert!(data.len() == len && data.iter().all(|byte| *byte == 0xab));
        let sent = || both.server_node.counters().get(count::PACKET_BYTES) - before;
        common::until("the reply is counted", || sent() > 0);
        assert_eq!(sent(), 16, "bytes sent once the handler was done");
    }
    assert_eq!(both.server_node.counters().get(count::COPIED_BYTES), 0);
}

/// Arguments are built in the buffer that the server reads, and results read where it wrote them.
#[test]
fn loaned_blocks_go_there_and_back_without_a_copy_at_every_size() {
    let both = both(65536);
    // In one go, in the buffer, and, since it does not fit, in pieces.
    for len in [1u32, 20, 5000, 100_000] {
        let bytes = (4 * len as usize).next_multiple_of(8);
        let mut request = both.binding.request(NEXT, 4, bytes).unwrap();
        len.encode(&mut request).unwrap();
        let mut loan = request.loan::<u32>(len as usize).unwrap();
        assert_eq!(loan.len(), len as usize);
        for index in 0..len {
            loan.set(index as usize, index * 3).unwrap();
        }
        let reply = request.call().unwrap();
        let back = reply.inout_bulk::<u32>(0).unwrap();
        assert_eq!(back.len(), len as usize);
        for index in 0..len {
            assert_eq!(back.get(index as usize), Some(Ok(index * 3 + 1)), "of {len}");
        }
        assert!(back.get(len as usize).is_none());
        assert_eq!(reply.inout_bulk::<u32>(1).unwrap().len(), 0, "there is one block");
        drop(reply);

        let mut request = both.binding.request(OUT, 4, 0).unwrap();
        len.encode(&mut request).unwrap();
        both.go_on.send(()).unwrap();
        let mut reply = request.call().unwrap();
        assert!(reply.out_bulk::<u8>(len - 1).is_err(), "longer than the interface allows");
        drop(reply);
        both.written.recv().unwrap();
        let mut request = both.binding.request(OUT, 4, 0).unwrap();
        len.encode(&mut request).unwrap();
        both.go_on.send(()).unwrap();
        let mut reply = request.call().unwrap();
        let out = reply.out_bulk_array::<u8>(len as usize).unwrap();
        assert!(out.to_vec().unwrap().iter().all(|byte| *byte == 0xab));
        assert_eq!(out.len(), len as usize);
        drop(reply);
        both.written.recv().unwrap();
        // What was not announced is refused, and nothing is sent.
        let mut request = both.binding.request(NEXT, 4, 8).unwrap();
        3u32.encode(&mut request).unwrap();
        assert!(matches!(request.loan::<u32>(3), Err(shrimp_rpc::CallError::Encode(_))));
    }
}

/// The bytes of the mapping of a memory file of that length that has OUT data in it, by /proc.
fn region_of_this_process(len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut best = Vec::new();
    let mut most = 0;
    for line in maps.lines().filter(|line| line.contains("memfd:vmmc-region")) {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let start = u64::from_str_radix(from, 16).unwrap();
        let end = u64::from_str_radix(to, 16).unwrap();
        if (end - start) as usize != len {
            continue;
        }
        let mut bytes = vec![0; len];
        memory.read_exact_at(&mut bytes, start).unwrap();
        let found = bytes.iter().filter(|byte| **byte == 0xab).count();
        if found > most {
            (best, most) = (bytes, found);
        }
    }
    best
}

/// Random kinds of calls and lengths, and contents that tell each call and each reply from all others (F10).
/// With one lane each call has the buffers of the one before; with several, a call that follows a one-way one has others.
fn back_to_back(calls: u32, lanes: usize) {
    let both = both_with(16384, lanes);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut data = Vec::new();
    let mut notes = 0;
    for call in 0..calls {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Mostly short, some as long as the buffer, few in pieces.
        let len = match state >> 60 {
            0 => (state >> 33) as usize % 4000,
            1 if call % 64 == 0 => (state >> 33) as usize % 12_500,
            _ => (state >> 33) as usize % 50,
        };
        let words = match state >> 40 & 15 {
            0 => (state >> 44) as u32 % 1000,
            _ => (state >> 44) as u32 % 16,
        };
        if len == 0 && words == 0 {
            both.binding.request(NULL, 0, 0).unwrap().call().unwrap().finish().unwrap();
            continue;
        }
        let bytes = (4 * len).next_multiple_of(8);
        match state >> 36 & 7 {
            0 => {
                numbers(&both.binding, len as u32, 7 * call, &mut data);
                continue;
            }
            1 => {
                let mut request = both.binding.request(NOTE, 8, bytes).unwrap();
                notes.encode(&mut request).unwrap();
                (len as u32).encode(&mut request).unwrap();
                data.clear();
                data.resize(len, Notes::word(notes));
                request.block(&data).unwrap();
                request.send().unwrap();
                notes += 1;
                continue;
            }
            _ => {}
        }
        data.clear();
        data.resize(len, 2 * call);
        let mut request = both.binding.request(COUNTED, 12, bytes).unwrap();
        for word in [len as u32, words, 3 * call] {
            word.encode(&mut request).unwrap();
        }
        if len > 0 {
            request.block(&data).unwrap();
        }
        let mut reply = request.call().unwrap();
        for i in 0..words {
            let word = u32::decode(&mut reply).unwrap();
            assert_eq!(word, (3 * call).wrapping_add(i), "word {i} of {words} of call {call}");
        }
        if len > 0 {
            reply.inout(0, &mut data).unwrap();
        }
        assert!(
            data.iter().all(|number| *number == 2 * call + 1),
            "call {call} of {len} numbers: stale data"
        );
        reply.finish().unwrap();
    }
    common::until("every call was served, once", || {
        both.server_node.counters().get(count::SERVED) == u64::from(calls)
    });
    let heard = both.notes.lock().unwrap();
    assert_eq!((heard.heard, &heard.wrong), (notes, &None));
    assert_eq!(heard.sum, (0..u64::from(notes)).sum(), "each of them once");
    assert!(heard.early.is_none() || lanes > 1, "{heard:?}: one lane keeps their order");
    assert!(notes > calls / 16, "there are some");
}

/// OUT data of that many numbers, from the first one on.
fn numbers(binding: &Binding, len: u32, first: u32, data: &mut Vec<u32>) {
    let mut request = binding.request(NUMBERS, 8, 0).unwrap();
    len.encode(&mut request).unwrap();
    first.encode(&mut request).unwrap();
    let mut reply = request.call().unwrap();
    reply.out_vec(u32::MAX, data).unwrap();
    reply.finish().unwrap();
    let expected = (0..len).map(|i| first.wrapping_add(i));
    assert!(data.iter().copied().eq(expected), "{len} numbers from {first} on: stale data");
}

#[test]
fn successive_calls_are_never_confused() {
    back_to_back(100_000, 1);
    back_to_back(30_000, 3);
}

/// `SHRIMP_RPC_CALLS` makes more: ten million by hand, see `ci/scale`.
#[test]
#[ignore = "a million calls or more: seconds for each without optimisation"]
fn a_million_successive_calls_are_never_confused() {
    let calls = std::env::var("SHRIMP_RPC_CALLS");
    let calls = calls.map_or(1_000_000, |calls| calls.parse().expect("a number of calls"));
    back_to_back(calls, 1);
    back_to_back(calls / 10, 3);
}
