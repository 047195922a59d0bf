//! Two ends over one segment in one process; then an end that lies.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::handle::{decoder, encoder};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vmmc::mem::copy;
use vmmc::sys::doorbell::Doorbell;
use vmmc::sys::memfd;

const RING: u32 = 8192;

struct Pair {
    memory: Fd,
    client: Channel,
    server: Channel,
    bells: [Doorbell; 2],
    /// What would be the TCP connection.
    sockets: [UnixStream; 2],
}

fn pair() -> Pair {
    let memory = memfd::create("test", segment::CONTROL_LEN as u64 + 2 * u64::from(RING)).unwrap();
    let bells = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
    let other = |bell: &Doorbell| bell.button().unwrap();
    let client = Channel::attach(&memory, RING, 0, other(&bells[1])).unwrap();
    let server = Channel::attach(&memory, RING, 1, other(&bells[0])).unwrap();
    let sockets = UnixStream::pair().unwrap().into();
    Pair { memory, client, server, bells, sockets }
}

impl Pair {
    /// Puts a 32-bit word of the segment, as a hostile peer can.
    fn scribble(&self, at: usize, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, at as u64).unwrap(), bytes.len());
    }

    /// What the server gets next, with all pieces that the client still has put in meanwhile.
    fn received(&mut self) -> Result<Vec<u8>, Broken> {
        loop {
            self.client.flush()?;
            if let Some(record) = self.server.next_whole()? {
                let bytes = bytes_of(record);
                self.server.release()?;
                return Ok(bytes);
            }
            if self.server.looks_readable() {
                continue;
            }
            assert!(self.client.is_behind(), "no record, and nothing waits to be sent");
        }
    }
}

fn bytes_of(mut record: Source<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut byte = 0u8;
    // SAFETY: one byte of our own.
    while unsafe { record.fill(&raw mut byte, 1) } {
        bytes.push(byte);
    }
    bytes
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn send(channel: &Channel, record: &[u8]) {
    let mut writer = channel.writer(Long::IsKept).unwrap();
    assert!(writer.put(record));
    channel.submit(writer);
}

fn patience<'p>(bell: &'p Doorbell, socket: &'p UnixStream, call: Option<u32>) -> Patience<'p> {
    Patience { bell, socket: socket.as_fd(), deadline: Deadline::Never, call }
}

/// R4: the ring wraps at every offset that a record can begin at.
#[test]
fn a_record_may_begin_at_any_offset_of_the_ring() {
    let mut pair = pair();
    let record = bytes(5000, 1);
    for offset in (0..RING as usize).step_by(4) {
        send(&pair.client, &record);
        assert_eq!(pair.received().unwrap(), record, "offset {offset}");
        // Fills up to where the next begins: 5004 + 4 + n, modulo the ring, is 4.
        let rest = RING as usize - 5000 - 4;
        send(&pair.client, &bytes(rest, 2));
        assert_eq!(pair.received().unwrap().len(), rest);
    }
}

/// R4: in pieces; and R3: a record that fits is not copied a second time.
#[test]
fn records_longer_than_the_ring_arrive_whole_and_in_order() {
    let mut pair = pair();
    for len in [8192 - 68, 8192 - 4, 8192, 8193, 20_000, 300_000] {
        send(&pair.client, &bytes(len, 1));
        send(&pair.client, &bytes(10, 2));
        assert_eq!(pair.received().unwrap(), bytes(len, 1), "{len}");
        assert_eq!(pair.received().unwrap(), bytes(10, 2));
    }
    assert!(!pair.client.is_behind());
}

/// A record is shown at its end (R5).
#[test]
fn what_was_never_submitted_was_never_there() {
    let mut pair = pair();
    for _ in 0..3 {
        let mut writer = pair.client.writer(Long::IsKept).unwrap();
        assert!(writer.put(&bytes(3000, 9)));
        drop(writer);
    }
    assert_eq!(pair.server.next_whole().map(|it| it.is_some()), Ok(false));
    send(&pair.client, b"real");
    assert_eq!(pair.received().unwrap(), b"real");
}

#[test]
fn a_server_with_replies_that_wait_is_not_serviceable() {
    let pair = pair();
    send(&pair.server, &bytes(20_000, 1));
    assert_eq!(pair.server.flush(), Ok(false));
    send(&pair.client, b"more");
    assert!(!pair.server.looks_serviceable());
    let mut got = None;
    while got.is_none() {
        got = pair.client.next_whole().unwrap().map(bytes_of);
        pair.client.release().unwrap();
        let _ = pair.server.flush().unwrap();
    }
    assert_eq!(got.unwrap(), bytes(20_000, 1));
    assert!(pair.server.looks_serviceable() && pair.server.next_whole().unwrap().is_some());
}

/// A peer that takes out while we put in makes ever more room: a turn ends all the same.
#[test]
fn a_turn_puts_about_a_piece_into_the_ring_and_says_that_there_is_more() {
    let pair = pair();
    let answers = [bytes(3000, 1), bytes(3000, 2), bytes(100, 3)];
    for answer in &answers {
        let mut kept = held::Kept::nothing(pair.server.pool);
        // SAFETY: the slice's own bytes.
        unsafe { kept.put(0, answer.as_ptr(), answer.len()) }.unwrap();
        pair.server.backlog.borrow_mut().push_back(kept);
    }
    for answer in answers.iter().take(2) {
        // More than a quarter of the ring, and there is room for the next, too.
        assert_eq!(pair.server.flush(), Ok(false));
        assert!(pair.server.looks_serviceable());
        assert_eq!(bytes_of(pair.client.next_whole().unwrap().unwrap()), *answer);
        pair.client.release().unwrap();
        assert!(pair.client.next_whole().unwrap().is_none(), "one at a time");
    }
    assert_eq!(pair.server.flush(), Ok(true));
    assert_eq!(bytes_of(pair.client.next_whole().unwrap().unwrap()), answers[2]);
}

/// Both ends as those that can wait are: pieces of many rings, without memory for them at either end. What
/// is in the present piece can be overwritten, and nothing before it.
#[test]
fn who_can_wait_sends_and_takes_records_of_many_rings_as_they_come() {
    const LENGTHS: [usize; 6] = [8192 - 8, 8192 - 7, 8192, 9000, 100_000, 3_000_001];
    let Pair { client, server, bells: [ours, theirs], sockets: [socket, other], .. } = pair();
    let sender = std::thread::spawn(move || {
        let patience = patience(&ours, &socket, None);
        for len in LENGTHS {
            let mut writer = client.writer(Long::Waits(patience)).unwrap();
            let record = bytes(len, 1);
            for part in record.chunks(100) {
                // Wrong at first, and then put right.
                let at = writer.position();
                assert!(writer.put(&bytes(part.len(), 2)));
                let behind = writer.position();
                if writer.set_position(at) {
                    assert!(writer.put(part));
                    assert_eq!(writer.position(), behind);
                } else {
                    assert!(at < behind && behind > RING as usize / 4, "in the present piece");
                    // As it should be from where it may be changed.
                    let from = (at..behind).find(|&from| writer.set_position(from)).unwrap();
                    assert!(writer.put(&part[from - at..]));
                }
            }
            client.submit(writer);
            assert!(!client.is_behind());
        }
        (client, ours, socket)
    });
    let patience = patience(&theirs, &other, None);
    for len in LENGTHS {
        let mut record = loop {
            match server.next_as_it_comes(patience).unwrap() {
                Some(record) => break record,
                None => server.wait_readable(&patience).unwrap(),
            }
        };
        let (right, wrong) = (bytes(len, 1), bytes(100, 2));
        let mut got = vec![0; len];
        // SAFETY: that many bytes of our own.
        assert!(unsafe { record.fill(got.as_mut_ptr(), len) });
        let mut rest = 0u8;
        // SAFETY: a byte of our own.
        assert!(!unsafe { record.fill(&raw mut rest, 1) }, "more than was sent");
        assert_eq!((record.position(), record.broken()), (len, None));
        let mut unmended = 0;
        for (at, byte) in got.into_iter().enumerate() {
            assert!(byte == right[at] || byte == wrong[at % 100], "{len}: byte {at}");
            unmended += usize::from(byte != right[at]);
        }
        // At most what lay before the end of a piece when it was shown.
        assert!(unmended <= len.div_ceil(RING as usize / 8) * 100, "{len}: {unmended}");
        assert!(len > RING as usize - 8 || unmended == 0, "{len}: {unmended}");
        drop(record);
        server.release().unwrap();
    }
    assert!(
        server.assembly.borrow().is_unused()
            && server.next_as_it_comes(patience).unwrap().is_none()
    );
    drop(sender.join().unwrap());
}

/// What a sender gives up after some of it was shown is forgotten, however the other end takes it.
#[test]
fn a_long_record_that_is_given_up_is_forgotten_by_either_kind_of_reader() {
    let pair = pair();
    let patience = patience(&pair.bells[1], &pair.sockets[1], None);
    for round in 0..3000 {
        let mut writer = pair.client.writer(Long::IsKept).unwrap();
        assert!(writer.put(&bytes(RING as usize + 100, 1)));
        drop(writer);
        if round % 2 == 0 {
            assert!(pair.server.next_whole().unwrap().is_none());
        } else {
            let mut record = pair.server.next_as_it_comes(patience).unwrap().unwrap();
            assert!(record.skip(RING as usize - 100));
            assert!(!record.skip(8000), "it has no end");
            assert_eq!(record.broken(), None);
        }
        pair.server.release().unwrap();
        while pair.server.next_whole().unwrap().is_none() && pair.server.looks_readable() {}
        send(&pair.client, b"next");
        assert_eq!(bytes_of(pair.server.next_whole().unwrap().unwrap()), b"next");
        pair.server.release().unwrap();
    }
}

/// A process that sleeps until it is killed, and is within a record of this side.
fn another_inside(channel: &Channel) -> std::process::Child {
    let mut sleeper = std::process::Command::new("sleep");
    let sleeper = sleeper.arg("1000").spawn().unwrap();
    // Pieces, as far as there is room; their end never comes.
    let mut writer = channel.writer(Long::IsKept).unwrap();
    assert!(writer.put(&bytes(RING as usize + 100, 1)));
    std::mem::forget(writer);
    channel.own.open().store(sleeper.id().into(), Ordering::Relaxed);
    sleeper
}

/// Of a server that forks to answer: a child dies, or gives up, within a long answer. The next is whole, also
/// one that is encoded in memory, and one that is there before the other process has ended.
#[test]
fn an_answer_is_never_glued_to_what_another_process_left_half() {
    for before in [false, true] {
        for long in [Long::InMemory, Long::IsKept] {
            let pair = pair();
            let mut other = another_inside(&pair.server);
            let end = |other: &mut std::process::Child| {
                other.kill().unwrap();
                // Not waited for: a zombie is dead, too.
                rustix::process::waitid(
                    rustix::process::WaitId::Pid(rustix::process::Pid::from_child(other)),
                    rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
                )
                .unwrap();
            };
            if !before {
                end(&mut other);
            }
            let mut writer = pair.server.writer(long).unwrap();
            assert!(writer.put(b"whole"));
            pair.server.submit(writer);
            if before {
                // Room there is, but not for us.
                assert!(pair.client.next_whole().unwrap().is_none());
                assert_eq!(pair.server.flush(), Ok(false));
                assert!(!pair.server.looks_serviceable());
                end(&mut other);
            }
            let answer = loop {
                let _ = pair.server.flush().unwrap();
                if let Some(answer) = pair.client.next_whole().unwrap() {
                    break answer;
                }
            };
            assert_eq!(bytes_of(answer), b"whole");
            other.wait().unwrap();
        }
    }
}

/// A record that nobody reads to its end is passed over when its rest comes.
#[test]
fn the_rest_of_a_record_that_was_not_read_is_passed_over() {
    let pair = pair();
    let patience = patience(&pair.bells[1], &pair.sockets[1], None);
    send(&pair.client, &bytes(100_001, 1));
    let mut record = pair.server.next_as_it_comes(patience).unwrap().unwrap();
    assert!(record.skip(3000));
    drop(record);
    pair.server.release().unwrap();
    send(&pair.client, b"after it");
    while !pair.client.flush().unwrap() {
        assert!(pair.server.next_as_it_comes(patience).unwrap().is_none());
    }
    let record = loop {
        if let Some(record) = pair.server.next_as_it_comes(patience).unwrap() {
            break record;
        }
    };
    assert_eq!(bytes_of(record), b"after it");
}

/// A client whose server is stuck with answers that nobody waits for takes them out while it sends; its own
/// stays, even one that comes before all of the call.
#[test]
fn late_answers_are_taken_out_by_who_waits_for_room_but_its_own_stays() {
    let pair = pair();
    let patience = patience(&pair.bells[0], &pair.sockets[0], Some(7));
    for call in [5u32, 6, 7] {
        let answer = [&call.to_be_bytes()[..], &bytes(500, 1)].concat();
        send(&pair.server, &answer);
    }
    assert_eq!(pair.client.forget_late(Some(7)), Ok(true));
    assert_eq!(pair.client.forget_late(Some(7)), Ok(true));
    assert_eq!(pair.client.forget_late(Some(7)), Ok(false));
    let answer = bytes_of(pair.client.reply(patience).unwrap());
    assert_eq!(answer[..4], 7u32.to_be_bytes());
}

/// A server that goes on answering calls that nobody waits for does not hold its client beyond its deadline.
#[test]
fn a_deadline_holds_against_a_server_that_never_stops_talking() {
    let Pair { client, server, bells: [ours, _theirs], sockets: [socket, other], .. } = pair();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let talker = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            if server.flush().unwrap() {
                send(&server, &[&1u32.to_be_bytes()[..], &bytes(3 * RING as usize, 1)].concat());
            }
        }
        drop((server, other));
    });
    let mut patience = patience(&ours, &socket, Some(2));
    patience.deadline = Deadline::At(Instant::now() + Duration::from_millis(30));
    assert_eq!(client.reply(patience).err(), Some(Broken::TimedOut));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    talker.join().unwrap();
}

/// A sender that never ends its record is not listened to for ever: not beyond the deadline, though there is
/// always more, and not beyond the longest record.
#[test]
fn time_and_length_end_a_record_that_never_ends() {
    for (limit, time, end) in [
        (4000, Deadline::Never, Broken::TooLong),
        (MAX_RECORD, Deadline::At(Instant::now()), Broken::TimedOut),
    ] {
        let pair = pair();
        pair.server.limit(limit);
        let patience =
            Patience { deadline: time, ..patience(&pair.bells[1], &pair.sockets[1], None) };
        send(&pair.client, &bytes(300_000, 1));
        let mut record = pair.server.next_as_it_comes(patience).unwrap().unwrap();
        assert_eq!(record.remaining(), limit);
        assert!(record.skip(RING as usize / 8));
        // All of this is in the ring.
        assert!(!record.skip(RING as usize / 2));
        assert_eq!(record.broken(), Some(end));
    }
}

/// Whoever waits for room of a peer that takes nothing gives up in time, and the channel is as it was.
#[test]
fn a_deadline_inside_a_record_leaves_the_channel_usable() {
    let pair = pair();
    let mut patience = patience(&pair.bells[0], &pair.sockets[0], None);
    patience.deadline = Deadline::At(Instant::now() + Duration::from_millis(5));
    let mut writer = pair.client.writer(Long::Waits(patience)).unwrap();
    assert!(!writer.put(&bytes(100_000, 1)));
    assert_eq!(writer.broken(), Some(Broken::TimedOut));
    drop(writer);
    while pair.server.looks_readable() {
        assert!(pair.server.next_whole().unwrap().is_none());
    }
    send(&pair.client, b"next");
    assert_eq!(bytes_of(pair.server.next_whole().unwrap().unwrap()), b"next");
}

/// A pair whose server takes its memory from `pool`.
fn pair_of(pool: &'static held::Pool) -> Pair {
    let mut pair = pair();
    pair.server.assembly = std::cell::RefCell::new(Pieces::of(pool));
    pair.server.pool = pool;
    pair
}

/// Sends without end; what the server says at last.
fn stuff(pair: &Pair) -> Broken {
    let mut writer = pair.client.writer(Long::IsKept).unwrap();
    assert!(writer.put(&bytes(4_000_000, 3)));
    pair.client.submit(writer);
    loop {
        let _ = pair.client.flush().unwrap();
        match pair.server.next_whole() {
            Ok(None) => {}
            Ok(Some(record)) => panic!("{} bytes", record.remaining()),
            Err(broken) => return broken,
        }
    }
}

/// Memory for requests that are put together and for answers that nobody takes is bounded over all channels.
/// What no more is there for costs its own call or connection, and comes back.
#[test]
fn no_number_of_long_records_takes_all_the_memory() {
    static FOR_ALL: held::Pool = held::Pool::new(4_000_000);
    let pairs: [Pair; 8] = std::array::from_fn(|_| pair_of(&FOR_ALL));
    for (number, pair) in pairs.iter().enumerate() {
        if number % 2 == 0 {
            assert_eq!(stuff(pair), Broken::TooLong);
        } else {
            // An answer, and the call is told that there is no room for it.
            let mut writer = pair.server.writer(Long::IsKept).unwrap();
            assert!(!writer.put(&bytes(4_000_000, 4)));
            assert_eq!(writer.broken(), Some(Broken::TooLong));
            drop(writer);
            // A shorter one is kept.
            let mut kept = pair.server.writer(Long::IsKept).unwrap();
            assert!(kept.put(&bytes(50_000, 5)));
            pair.server.submit(kept);
            assert!(pair.server.is_behind());
        }
        assert!(FOR_ALL.held() <= 4_000_000, "{number}: {}", FOR_ALL.held());
    }
    assert!(FOR_ALL.held() > 2_000_000, "{}", FOR_ALL.held());
    // Who answers is not closed for it: what was too long is not seen by its client, what was not is.
    for pair in pairs.iter().skip(1).step_by(2) {
        let answer = loop {
            let _ = pair.server.flush().unwrap();
            if let Some(answer) = pair.client.next_whole().unwrap() {
                break answer;
            }
        };
        assert_eq!(bytes_of(answer), bytes(50_000, 5));
    }
    drop(pairs);
    assert_eq!(FOR_ALL.held(), 0);
}

/// It is given back as it is read.
#[test]
fn pieces_in_memory_are_counted_and_given_back_as_they_are_read() {
    static ITS_OWN: held::Pool = held::Pool::new(4_000_000);
    let pair = pair_of(&ITS_OWN);
    send(&pair.client, &bytes(1_000_000, 3));
    let record = loop {
        let _ = pair.client.flush().unwrap();
        if let Some(record) = pair.server.next_whole().unwrap() {
            break record;
        }
    };
    assert_eq!(record.remaining(), 1_000_000);
    assert!(ITS_OWN.held() >= 1_000_000);
    let mut record = record;
    assert!(record.skip(900_000));
    assert!(ITS_OWN.held() < 1_000_000, "{}", ITS_OWN.held());
    assert!(record.inline(4).is_some());
    assert_eq!(record.position(), 900_004);
    drop(record);
}

/// The memory of a long record serves the next ones, of this channel or another; so much of it as a process may keep.
#[test]
fn the_pieces_of_a_record_serve_the_next_one() {
    static ITS_OWN: held::Pool = held::Pool::new(80_000_000);
    let pairs = [pair_of(&ITS_OWN), pair_of(&ITS_OWN)];
    let whole = |pair: &Pair, len: usize, read: usize| {
        send(&pair.client, &bytes(len, 3));
        let mut record = loop {
            let _ = pair.client.flush().unwrap();
            if let Some(record) = pair.server.next_whole().unwrap() {
                break record;
            }
        };
        assert!(record.skip(read));
        drop(record);
        ITS_OWN.spare()
    };
    let (kept, pieces) = whole(&pairs[0], 1_000_000, 1_000_000);
    assert!(kept >= 1_000_000 && pieces > 1, "{kept} bytes");
    // Also when nobody reads it to its end.
    assert_eq!(whole(&pairs[1], 1_000_000, 100), (kept, pieces));
    let (most, _) = whole(&pairs[0], 20_000_000, 20_000_000);
    assert!((15 << 20..=16 << 20).contains(&most), "{most} bytes");
    assert_eq!(ITS_OWN.held(), 0);
}

/// Ahead of what there is memory for.
#[test]
fn a_place_that_cannot_be_reached_leaves_the_writer_where_it_was() {
    static ITS_OWN: held::Pool = held::Pool::new(RING as usize);
    let pair = pair_of(&ITS_OWN);
    let mut writer = pair.server.writer(Long::InMemory).unwrap();
    assert!(writer.put(&bytes(100, 1)));
    assert!(writer.set_position(40));
    assert!(!writer.set_position(100 + RING as usize));
    assert_eq!((writer.position(), writer.broken()), (40, Some(Broken::TooLong)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// `XDR_SETPOS` and inline parts, in the ring, in the spill and over the border: as in plain
    /// memory.
    #[test]
    fn a_writer_is_memory_that_grows(
        steps in proptest::collection::vec((0u8..4, 0usize..4000, any::<u8>()), 1..30),
        before in 0usize..2000,
        in_memory in any::<bool>(),
        begins in any::<bool>(),
    ) {
        let mut pair = pair();
        send(&pair.client, &bytes(before * 4 + 4, 0)); // not yet taken: less room
        let long = if in_memory { Long::InMemory } else { Long::IsKept };
        let mut writer = pair.client.writer(long).unwrap();
        let (mut model, mut at) = (Vec::<u8>::new(), 0usize);
        if begins {
            prop_assert!(writer.begin([0x0102_0304; 10]));
            (model, at) = ([1, 2, 3, 4].repeat(10), 40);
        }
        for (kind, number, seed) in steps {
            match kind {
                0 => {
                    // Back, or ahead over what is written later.
                    let to = number % (model.len() + 100);
                    let there = writer.set_position(to);
                    prop_assert!(there || !in_memory && model.len() > RING as usize - before * 4 - 200);
                    if there {
                        at = to;
                        model.resize(model.len().max(at), 0);
                    }
                    prop_assert!(!writer.set_position(model.len() + RING as usize + 1));
                }
                1 => {
                    let len = (number % 64) * 4 + 4;
                    if let Some(place) = writer.inline(len) {
                        let part = bytes(len, seed);
                        // SAFETY: `inline` gives that many bytes to write at once.
                        unsafe { vmmc::mem::copy::bytes(part.as_ptr(), place.as_ptr(), len) };
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].copy_from_slice(&part);
                        at += len;
                    }
                }
                _ => {
                    let part = bytes(number, seed);
                    prop_assert!(writer.put(&part));
                    model.resize(model.len().max(at + number), 0);
                    model[at..at + number].copy_from_slice(&part);
                    at += number;
                }
            }
            prop_assert_eq!(writer.position(), at);
        }
        prop_assume!(!model.is_empty());
        pair.client.submit(writer);
        prop_assert_eq!(pair.received().unwrap().len(), before * 4 + 4);
        prop_assert_eq!(pair.received().unwrap(), model);
    }

    /// Whatever a peer writes, wherever: an error or a record of bytes that are there; no panic,
    /// no access outside, and no end of records that come from nothing.
    #[test]
    fn a_hostile_peer_gets_an_error_or_nonsense_through(
        scribbles in proptest::collection::vec((0usize..2048, any::<u32>()), 1..20),
        streams in any::<bool>(),
        tail in prop_oneof![Just(None), any::<u64>().prop_map(Some), (0u64..3 * u64::from(RING)).prop_map(Some)],
    ) {
        let pair = pair();
        // Its time is over already: it waits for nothing.
        let mut patience = patience(&pair.bells[1], &pair.sockets[1], None);
        patience.deadline = Deadline::At(Instant::now());
        send(&pair.client, &bytes(100, 3));
        for (at, word) in scribbles {
            // In ring 0, or in the control part.
            let place = if at % 4 == 0 { at / 4 * 4 % 768 } else { segment::CONTROL_LEN + at * 4 };
            pair.scribble(place, &word.to_ne_bytes());
        }
        if let Some(tail) = tail {
            pair.scribble(0, &tail.to_ne_bytes());
        }
        for _ in 0..4096 {
            let next = if streams {
                pair.server.next_as_it_comes(patience)
            } else {
                pair.server.next_whole()
            };
            match next {
                Ok(Some(record)) => {
                    let most = RING as usize * 2;
                    prop_assert!(streams || record.remaining() <= most);
                    prop_assert!(bytes_of(record).len() <= most);
                    let _ = pair.server.release();
                }
                Ok(None) | Err(_) => break,
            }
        }
        let long = if streams { Long::Waits(patience) } else { Long::IsKept };
        if let Ok(mut writer) = pair.server.writer(long) {
            if writer.put(&bytes(9000, 1)) {
                pair.server.submit(writer);
            }
            let _ = pair.server.flush();
        }
    }
}

#[test]
fn lies_about_positions_and_lengths_end_the_channel() {
    // Tail beyond the ring, tail going back, a fragment longer than what is there, an empty one.
    let beyond = pair();
    beyond.scribble(0, &(u64::from(RING) + 1).to_ne_bytes());
    assert_eq!(beyond.server.next_whole().err(), Some(Broken::Nonsense));

    let mut back = pair();
    send(&back.client, &bytes(100, 0));
    assert!(back.received().is_ok());
    back.scribble(0, &4u64.to_ne_bytes());
    assert_eq!(back.server.next_whole().err(), Some(Broken::Nonsense));

    for word in [
        200u32,
        segment::LAST | 101,
        u32::MAX,
        0,
        segment::LAST,
        segment::FORGET,
        segment::FORGET | 96,
    ] {
        let lying = pair();
        send(&lying.client, &bytes(96, 0));
        lying.scribble(segment::CONTROL_LEN, &word.to_ne_bytes());
        assert_eq!(lying.server.next_whole().err(), Some(Broken::Nonsense), "{word:#x}");
    }

    // A head that is ahead of what was sent.
    let ahead = pair();
    ahead.scribble(128, &64u64.to_ne_bytes());
    let mut writer = ahead.client.writer(Long::InMemory).unwrap();
    assert!(writer.put(&bytes(20_000, 0)));
    ahead.client.submit(writer);
    assert_eq!(ahead.client.flush(), Err(Broken::Nonsense));
}

/// A length that is changed after the record was handed out changes nothing: it was loaded once.
#[test]
fn a_length_changed_after_the_check_is_not_looked_at_again() {
    let pair = pair();
    send(&pair.client, &bytes(96, 5));
    let record = pair.server.next_whole().unwrap().unwrap();
    pair.scribble(segment::CONTROL_LEN, &u32::MAX.to_ne_bytes());
    assert_eq!((record.remaining(), bytes_of(record)), (96, bytes(96, 5)));
    pair.server.release().unwrap();
    assert!(pair.server.next_whole().unwrap().is_none());
}

/// Nothing of a head is in the ring before its record's end, where who waits for it may look at its line.
#[test]
fn a_head_is_stored_with_its_record() {
    let mut pair = pair();
    let mut writer = pair.client.writer(Long::IsKept).unwrap();
    assert!(writer.begin([7; 6]) && writer.put(b"rest"));
    let mut there = [9; 32];
    rustix::io::pread(&pair.memory, &mut there, segment::CONTROL_LEN as u64).unwrap();
    assert_eq!(there, *[&[0; 28][..], b"rest"].concat());
    pair.client.submit(writer);
    assert_eq!(pair.received().unwrap(), [&[0, 0, 0, 7].repeat(6)[..], b"rest"].concat());
}

/// An answer and the room of its question are shown together, and each wakes who sleeps for it.
#[test]
fn an_answer_gives_the_room_back_and_wakes_for_both() {
    for (for_data, for_space) in [(false, false), (true, false), (false, true)] {
        let pair = pair();
        send(&pair.client, b"question");
        let question = pair.server.next_whole().unwrap().unwrap();
        assert_eq!(bytes_of(question), b"question");
        let own = pair.client.segment.own();
        for (word, armed) in [(own.armed_data(), for_data), (own.armed_space(), for_space)] {
            word.store(armed.into(), Ordering::Release);
        }
        let mut writer = pair.server.writer(Long::IsKept).unwrap();
        assert!(writer.put(b"answer"));
        pair.server.submit_and_release(writer).unwrap();
        assert_eq!(own.armed_data().load(Ordering::Relaxed), 0);
        assert_eq!(own.armed_space().load(Ordering::Relaxed), 0);
        let bell = pair.bells[0].fd();
        let mut rung = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let rung = rustix::event::poll(&mut rung, Some(&now)).unwrap();
        assert_eq!(rung == 1, for_data || for_space);
        assert_eq!(pair.client.tx().room(), Ok(u64::from(RING)));
        assert_eq!(pair.client.next_whole().unwrap().map(bytes_of).unwrap(), b"answer");
    }
}

/// The operations of the handles, as libtirpc calls them.
#[test]
fn handles_encode_into_one_ring_and_decode_out_of_it() {
    let pair = pair();
    let mut writer = pair.client.writer(Long::IsKept).unwrap();
    let mut xdr = encoder(&mut writer);
    // SAFETY: the table of our own handle.
    let ops = unsafe { xdr.x_ops.read() };
    for word in [1i64, -2, 1 << 40 | 3] {
        // SAFETY: our own handle and a long.
        assert_eq!(unsafe { (ops.x_putlong)(&raw mut xdr, &raw const word) }, 1);
    }
    pair.client.submit(writer);
    let mut source = pair.server.next_whole().unwrap().unwrap();
    let mut xdr = decoder(&mut source);
    // SAFETY: as above.
    let ops = unsafe { xdr.x_ops.read() };
    let mut word = 0i64;
    for (done, expected) in [(1, 1), (1, -2), (1, 3), (0, 3)] {
        // SAFETY: our own handle and a long.
        assert_eq!(unsafe { (ops.x_getlong)(&raw mut xdr, &raw mut word) }, done);
        assert_eq!(word, expected);
    }
}

/// Whoever runs the tests has not been forked by them.
const OWNER: i32 = 0;

/// R11: what a service was lent stays as it was sent until it is given back, however much the client sends; then
/// there is room again.
#[test]
fn what_is_lent_is_not_overwritten_until_it_is_given_back() {
    let pair = pair();
    let first = bytes(1000, 1);
    let send = |record: &[u8]| {
        let mut writer = pair.client.writer(Long::IsKept).unwrap();
        assert!(writer.put(record));
        pair.client.submit(writer);
        pair.client.flush().unwrap()
    };
    assert!(send(&first));
    let mut record = pair.server.next_whole().unwrap().unwrap().lending(OWNER);
    assert!(record.lends() && !record.has_lent());
    let lent = record.lend(first.len()).unwrap();
    assert!(record.has_lent() && is_lent(lent.as_ptr()));
    let mut sent = 0;
    while send(&bytes(1000, 2)) {
        sent += 1;
    }
    assert!(sent > 0 && sent <= RING as usize / 1000);
    let mut now = vec![0; first.len()];
    // SAFETY: lent.
    unsafe { copy::bytes(lent.as_ptr(), now.as_mut_ptr(), now.len()) };
    assert_eq!(now, first);
    drop(record);
    assert!(!is_lent(lent.as_ptr()));
    pair.server.release().unwrap();
    assert!(pair.client.flush().unwrap());
}

#[test]
fn only_what_is_there_is_lent() {
    let pair = pair();
    let mut writer = pair.client.writer(Long::IsKept).unwrap();
    assert!(writer.put(&bytes(10, 1)));
    pair.client.submit(writer);
    assert!(pair.client.flush().unwrap());
    let record = pair.server.next_whole().unwrap().unwrap();
    assert!(!record.lends(), "unless it was said to stay");
    let mut record = record.lending(OWNER);
    assert!(record.lend(11).is_none() && record.lend(usize::MAX).is_none());
    assert_eq!(record.position(), 0);
    assert!(record.lend(8).is_some());
    assert!(record.lend(2).is_none(), "its padding is not there");
}
