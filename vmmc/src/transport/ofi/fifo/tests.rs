use super::*;
use crate::fabric::Notice;
use crate::transport::net::silence;
use crate::transport::ofi::receipts::{Carrier, Saying};
use std::net::{IpAddr, Ipv4Addr};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn at(provider: &str) -> FabricAt {
    FabricAt { provider: provider.to_owned(), local: LOCAL, notice: Notice::Auto }
}

fn pair(provider: &str) -> (Fifo, Fifo) {
    pair_at(&at(provider))
}

fn pair_at(at: &FabricAt) -> (Fifo, Fifo) {
    let (mut a, mut b) = (Fifo::open(at).unwrap(), Fifo::open(at).unwrap());
    a.meet(&b.meeting().unwrap()).unwrap();
    b.meet(&a.meeting().unwrap()).unwrap();
    while !(a.greet().unwrap() & b.greet().unwrap()) {}
    while !(a.is_greeted().unwrap() & b.is_greeted().unwrap()) {}
    (a, b)
}

/// Bytes of the stream from a position on.
fn bytes(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// More than the FIFO holds, in pieces of every length, both ways at once.
fn stream(provider: &str) {
    stream_at(&at(provider));
}

fn stream_at(at: &FabricAt) {
    let (mut a, mut b) = pair_at(at);
    let provider = &at.provider;
    let total = 5 * LEN as u64 + 12_345;
    let lens = [1, 7, 8, 9, 32, 40, 4095, 65_528, 65_529, 200_000];
    let mut sent = [0u64; 2];
    let mut got = [0u64; 2];
    let mut turn = 0usize;
    while got != [total; 2] {
        turn += 1;
        for (i, from, to) in [(0, 0, 1), (1, 1, 0)] {
            let ends: &mut [&mut Fifo; 2] = &mut [&mut a, &mut b];
            let len = lens[(turn + i) % lens.len()].min((total - sent[i]) as usize);
            if len > 0 && turn % 3 != i {
                let chunk = bytes(sent[i], len);
                let (front, back) = chunk.split_at(len / 3);
                match ends[from].send(&[front, back]) {
                    Ok(len) => sent[i] += len as u64,
                    Err(errno) => assert_eq!(errno, Errno::AGAIN, "{provider}"),
                }
            }
            let mut room = vec![0; lens[(turn / 2) % lens.len()]];
            match ends[to].receive(&mut room) {
                Ok(len) => {
                    assert!(room[..len] == bytes(got[i], len), "{provider}: at {}", got[i]);
                    got[i] += len as u64;
                }
                Err(errno) => assert_eq!(errno, Errno::AGAIN, "{provider}"),
            }
        }
    }
    assert_eq!(b.front().err(), Some(Errno::AGAIN));
}

#[test]
fn a_stream_arrives_as_it_was_sent_over_tcp_with_messages() {
    stream("tcp;ofi_rxm");
}

#[test]
fn a_stream_arrives_as_it_was_sent_over_reliable_datagrams() {
    stream("net");
}

/// Each record is told of by a message behind it: by the provider's order (the first two), by a fence (`sockets`).
#[test]
fn a_stream_arrives_as_it_was_sent_without_completion_data() {
    for provider in ["tcp;ofi_rxm", "net", "sockets"] {
        stream_at(&FabricAt { notice: Notice::Message, ..at(provider) });
    }
}

#[test]
fn a_full_fifo_takes_nothing_more_until_room_is_given_back() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    let chunk = bytes(0, 10_000);
    let mut sent = 0u64;
    // The receiver must make progress too, and takes nothing.
    let mut idle = 0;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    // What was sent is on its way for as long as the kernel likes.
    while idle < 1000 || (sent <= LEN as u64 / 2 && std::time::Instant::now() < end) {
        match a.send(&[&chunk]) {
            Ok(len) => sent += len as u64,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                idle += 1;
            }
        }
        b.poll().unwrap();
    }
    assert!(sent > LEN as u64 / 2 && sent <= LEN as u64, "{sent}");
    assert_eq!(a.has_room(), Ok(false));
    let mut room = vec![0; LEN];
    let mut got = 0;
    while got < sent {
        got += b.receive(&mut room).unwrap_or(0) as u64;
    }
    while !a.has_room().unwrap() {
        b.poll().unwrap();
    }
    assert_eq!(a.send(&[&chunk]), Ok(chunk.len()));
}

#[test]
fn a_sleeper_is_woken() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    let woken = std::thread::spawn(move || {
        let mut byte = [0];
        loop {
            match b.receive(&mut byte) {
                Ok(1) => return byte[0],
                Err(Errno::AGAIN) => {}
                other => panic!("{other:?}"),
            }
            if b.may_sleep() {
                let fd = b.wait_fd();
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(&mut fds, None);
            }
        }
    });
    a.send(&[b"y"]).unwrap();
    while !woken.is_finished() {
        let _ = a.poll();
    }
    assert_eq!(woken.join().unwrap(), b'y');
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    let error = Fifo::open(&at("nosuch")).unwrap_err().to_string();
    assert!(error.contains("\"nosuch\"") && error.contains("127.0.0.1"), "{error}");
}

/// A peer that writes what it likes into a FIFO: a record, and the 32 bits that come with it.
fn forged(record: &[u8], data: u32) -> Result<usize, Errno> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let domain = Domain::open("net", local, Notice::Auto).unwrap();
    let mut hostile = Endpoint::open(&domain, AREA).unwrap();
    // Of one domain: either's progress is both's.
    let mut fifo = Fifo::within(&domain, "net").unwrap();
    let Meeting { address, key, base, .. } = fifo.meeting().unwrap();
    hostile.connect(&address, Target { key, base }).unwrap();
    hostile.outgoing().write(0, record).unwrap();
    let mut arrived = false;
    while !hostile.write(0, record.len(), data).unwrap() {
        hostile.poll(|_| {}).unwrap();
    }
    loop {
        match fifo.receive(&mut [0; 64]) {
            // Seen, and nothing came of it: give it another moment.
            Err(Errno::AGAIN) if arrived => return Err(Errno::AGAIN),
            Err(Errno::AGAIN) => {}
            other => return other,
        }
        // Its completion comes only when the other side has taken it.
        hostile.poll(|happened| arrived |= happened == Happened::Sent).unwrap();
    }
}

fn record(len: u32, number: u32) -> Vec<u8> {
    [&len.to_le_bytes()[..], &number.to_le_bytes(), &[7; 8]].concat()
}

#[test]
fn a_record_that_no_fifo_writes_ends_the_connection() {
    assert_eq!(forged(&record(8, 0), 0), Ok(8));
    assert_eq!(forged(&record(LEN as u32, 0), 0), Err(Errno::PROTO));
    assert_eq!(forged(&record(u32::MAX, 0), 0), Err(Errno::PROTO));
    assert_eq!(forged(&record(8, 1), 0), Err(Errno::PROTO));
    assert_eq!(forged(&record(8, 0), NUMBERS), Err(Errno::PROTO));
}

#[test]
fn room_that_was_never_used_is_not_given_back() {
    assert_eq!(forged(&record(8, 0), FREED | 1), Err(Errno::AGAIN));
}

/// What the provider lacks is the reason that its process hears, and not that a connection was lost.
#[test]
fn an_end_whose_provider_tells_of_no_writes_does_not_join_and_says_why() {
    let (mut a, mut b) = (Fifo::open(&at("net")).unwrap(), Fifo::open(&at("net")).unwrap());
    a.meet(&b.meeting().unwrap()).unwrap();
    a.endpoint.without_data(true);
    a.endpoint.without_messages(true);
    let (silent, _other) = crate::sys::packet::pair().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A message is sent when the write has been delivered, for which the other end must do something.
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = b.poll();
            }
        });
        let joined = a.join(&silent, true);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        joined.unwrap_err()
    });
    assert!(matches!(error, JoinError::Unfit(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("libfabric's net") && text.contains("completion data"), "{text}");
}

/// Polls both ends until all that `from` has sent has come to `to`.
fn carry(from: &mut Fifo, to: &mut Fifo) {
    while to.come != from.sent {
        from.poll().unwrap();
        to.poll().unwrap();
    }
}

/// What `b` says when `a` asks; `a` has not heard it yet.
fn answer(a: &mut Fifo, b: &mut Fifo) -> Saying {
    let question = a.ask().unwrap();
    assert_eq!(a.ask(), None, "one at a time");
    b.hear(question, Instant::now()).unwrap().unwrap()
}

#[test]
fn what_came_is_owed_no_more_though_it_is_not_taken() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    a.send(&[&[1; 100]]).unwrap();
    assert!(a.is_owed().unwrap());
    carry(&mut a, &mut b);
    let said = answer(&mut a, &mut b);
    assert_eq!(a.hear(said, Instant::now()), Ok(None));
    assert!(!a.is_owed().unwrap());
}

#[test]
fn what_does_not_come_between_two_answers_far_apart_is_lost() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    let (start, long) = (Instant::now(), silence::LIMIT + Duration::from_millis(1));
    let late = Saying::Answer { come: a.known, taken: a.freed };
    a.send(&[&[1; 100]]).unwrap();
    let hear = |a: &mut Fifo, after: Duration| {
        a.ask().unwrap();
        a.hear(late, start + after)
    };
    // Once is not lost, nor twice shortly.
    assert_eq!(hear(&mut a, Duration::ZERO), Ok(None));
    assert_eq!(hear(&mut a, silence::LIMIT), Ok(None));
    assert_eq!(hear(&mut a, long), Err(Errno::TIMEDOUT));
    // Something that comes is a new beginning.
    carry(&mut a, &mut b);
    let said = answer(&mut a, &mut b);
    a.send(&[&[1; 100]]).unwrap();
    assert_eq!(a.hear(said, start + long), Ok(None));
    let late = Saying::Answer { come: a.known, taken: a.freed };
    for after in [long, 2 * long - Duration::from_secs(1)] {
        a.ask().unwrap();
        assert_eq!(a.hear(late, start + after), Ok(None));
    }
    a.ask().unwrap();
    assert_eq!(a.hear(late, start + 3 * long), Err(Errno::TIMEDOUT));
}

#[test]
fn what_was_sent_behind_a_question_is_no_fault_of_the_answer() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    let long = silence::LIMIT + Duration::from_millis(1);
    for round in 0..4u32 {
        a.send(&[&[1; 100]]).unwrap();
        carry(&mut a, &mut b);
        let said = answer(&mut a, &mut b);
        a.send(&[&[2; 100]]).unwrap();
        assert_eq!(a.hear(said, Instant::now() + round * long), Ok(None));
    }
}

/// As when the fabric has lost the write that gives it back.
#[test]
fn room_is_given_back_by_an_answer_too() {
    let (mut a, mut b) = pair("tcp;ofi_rxm");
    while a.room() >= LEN / 2 {
        let _ = a.send(&[&[1; 10_000]]);
        let _ = b.poll();
    }
    carry(&mut a, &mut b);
    assert!(a.is_owed().unwrap());
    let said = Saying::Answer { come: b.come, taken: b.come };
    a.ask().unwrap();
    assert_eq!(a.hear(said, Instant::now()), Ok(None));
    assert_eq!(a.room(), LEN);
    assert!(!a.is_owed().unwrap());
}

#[test]
fn answers_that_nobody_asked_for_and_nonsense_free_nothing() {
    let (mut a, _b) = pair("tcp;ofi_rxm");
    a.send(&[&[1; 100]]).unwrap();
    let before = (a.room(), a.known);
    let nonsense = Saying::Answer { come: a.sent + 7, taken: NUMBERS };
    assert_eq!(a.hear(nonsense, Instant::now()), Err(Errno::PROTO));
    a.ask().unwrap();
    assert_eq!(a.hear(nonsense, Instant::now()), Ok(None));
    assert_eq!((a.room(), a.known), before);
}
