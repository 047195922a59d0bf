//! Two ends over one segment in one process; then an end that lies.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::handle::{Source, decoder, encoder};
use proptest::prelude::*;
use vmmc::sys::memfd;

const RING: u32 = 8192;

struct Pair {
    memory: Fd,
    client: Channel,
    server: Channel,
    _bells: [Doorbell; 2],
}

fn pair() -> Pair {
    let memory = memfd::create("test", segment::CONTROL_LEN as u64 + 2 * u64::from(RING)).unwrap();
    let bells = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
    let other = |bell: &Doorbell| bell.write_end().dup_above(3).unwrap();
    let client = Channel::attach(&memory, RING, 0, other(&bells[1])).unwrap();
    let server = Channel::attach(&memory, RING, 1, other(&bells[0])).unwrap();
    Pair { memory, client, server, _bells: bells }
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
            if let Some(record) = self.server.next_record()? {
                let bytes = bytes_of(record);
                self.server.release();
                return Ok(bytes);
            }
            assert!(self.client.is_behind(), "no record, and nothing waits to be sent");
        }
    }
}

fn bytes_of(record: Incoming) -> Vec<u8> {
    let mut bytes = vec![0; record.len];
    // SAFETY: a record that `next_record` has handed out, copied into as many bytes.
    unsafe { vmmc::mem::copy::bytes(record.start.as_ptr(), bytes.as_mut_ptr(), record.len) };
    bytes
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn send(channel: &mut Channel, record: &[u8], in_memory: bool) {
    let mut writer = channel.writer(in_memory).unwrap();
    assert!(writer.put(record));
    channel.submit(writer);
}

/// R4: the ring wraps at every offset that a record can begin at.
#[test]
fn a_record_may_begin_at_any_offset_of_the_ring() {
    let mut pair = pair();
    let record = bytes(5000, 1);
    for offset in (0..RING as usize).step_by(4) {
        send(&mut pair.client, &record, false);
        assert_eq!(pair.received().unwrap(), record, "offset {offset}");
        // Fills up to where the next begins: 5004 + 4 + n, modulo the ring, is 4.
        let rest = RING as usize - 5000 - 4;
        send(&mut pair.client, &bytes(rest, 2), false);
        assert_eq!(pair.received().unwrap().len(), rest);
    }
}

/// R4: in pieces; and R3: a record that fits is not copied a second time.
#[test]
fn records_longer_than_the_ring_arrive_whole_and_in_order() {
    let mut pair = pair();
    for len in [8192 - 68, 8192 - 4, 8192, 8193, 20_000, 300_000] {
        send(&mut pair.client, &bytes(len, 1), false);
        send(&mut pair.client, &bytes(10, 2), false);
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
        let mut writer = pair.client.writer(false).unwrap();
        assert!(writer.put(&bytes(3000, 9)));
        drop(writer);
    }
    assert_eq!(pair.server.next_record().map(|it| it.is_some()), Ok(false));
    send(&mut pair.client, b"real", false);
    assert_eq!(pair.received().unwrap(), b"real");
}

#[test]
fn a_server_with_replies_that_wait_takes_no_request() {
    let mut pair = pair();
    send(&mut pair.server, &bytes(20_000, 1), false);
    assert_eq!(pair.server.flush(), Ok(false));
    send(&mut pair.client, b"more", false);
    assert!(pair.server.next_request().unwrap().is_none());
    assert!(!pair.server.looks_serviceable());
    let mut got = None;
    while got.is_none() {
        got = pair.client.next_record().unwrap().map(bytes_of);
        pair.client.release();
        let _ = pair.server.flush().unwrap();
    }
    assert_eq!(got.unwrap(), bytes(20_000, 1));
    assert!(pair.server.next_request().unwrap().is_some());
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
    ) {
        let mut pair = pair();
        send(&mut pair.client, &bytes(before * 4 + 4, 0), false); // not yet taken: less room
        let mut writer = pair.client.writer(in_memory).unwrap();
        let (mut model, mut at) = (Vec::<u8>::new(), 0usize);
        for (kind, number, seed) in steps {
            match kind {
                0 => {
                    let back = number % (model.len() + 1);
                    prop_assert!(writer.set_position(back));
                    at = back;
                    prop_assert!(!writer.set_position(model.len() + 1));
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
        tail in prop_oneof![Just(None), any::<u64>().prop_map(Some), (0u64..3 * u64::from(RING)).prop_map(Some)],
    ) {
        let mut pair = pair();
        send(&mut pair.client, &bytes(100, 3), false);
        for (at, word) in scribbles {
            // In ring 0, or in the control part.
            let place = if at % 4 == 0 { at / 4 * 4 % 768 } else { segment::CONTROL_LEN + at * 4 };
            pair.scribble(place, &word.to_ne_bytes());
        }
        if let Some(tail) = tail {
            pair.scribble(0, &tail.to_ne_bytes());
        }
        for _ in 0..4096 {
            match pair.server.next_request() {
                Ok(Some(record)) => {
                    prop_assert!(record.len <= RING as usize * 2);
                    prop_assert_eq!(bytes_of(record).len(), record.len);
                    pair.server.release();
                }
                Ok(None) | Err(_) => break,
            }
        }
        if let Ok(mut writer) = pair.server.writer(false) {
            writer.put(&bytes(9000, 1));
            pair.server.submit(writer);
            let _ = pair.server.flush();
        }
    }
}

#[test]
fn lies_about_positions_and_lengths_end_the_channel() {
    // Tail beyond the ring, tail going back, a fragment longer than what is there, an empty one.
    let mut beyond = pair();
    beyond.scribble(0, &(u64::from(RING) + 1).to_ne_bytes());
    assert_eq!(beyond.server.next_record().err(), Some(Broken::Nonsense));

    let mut back = pair();
    send(&mut back.client, &bytes(100, 0), false);
    assert!(back.received().is_ok());
    back.scribble(0, &4u64.to_ne_bytes());
    assert_eq!(back.server.next_record().err(), Some(Broken::Nonsense));

    for word in [200u32, segment::LAST | 101, u32::MAX, 0, segment::LAST] {
        let mut lying = pair();
        send(&mut lying.client, &bytes(96, 0), false);
        lying.scribble(segment::CONTROL_LEN, &word.to_ne_bytes());
        assert_eq!(lying.server.next_record().err(), Some(Broken::Nonsense), "{word:#x}");
    }

    // A head that is ahead of what was sent.
    let mut ahead = pair();
    ahead.scribble(128, &64u64.to_ne_bytes());
    send(&mut ahead.client, &bytes(20_000, 0), true);
    assert_eq!(ahead.client.flush(), Err(Broken::Nonsense));
}

/// A length that is changed after the record was handed out changes nothing: it was loaded once.
#[test]
fn a_length_changed_after_the_check_is_not_looked_at_again() {
    let mut pair = pair();
    send(&mut pair.client, &bytes(96, 5), false);
    let record = pair.server.next_record().unwrap().unwrap();
    pair.scribble(segment::CONTROL_LEN, &u32::MAX.to_ne_bytes());
    assert_eq!((record.len, bytes_of(record)), (96, bytes(96, 5)));
    pair.server.release();
    assert!(pair.server.next_record().unwrap().is_none());
}

/// The operations of the handles, as libtirpc calls them.
#[test]
fn handles_encode_into_one_ring_and_decode_out_of_it() {
    let mut pair = pair();
    let mut writer = pair.client.writer(false).unwrap();
    let mut xdr = encoder(&mut writer);
    // SAFETY: the table of our own handle.
    let ops = unsafe { xdr.x_ops.read() };
    for word in [1i64, -2, 1 << 40 | 3] {
        // SAFETY: our own handle and a long.
        assert_eq!(unsafe { (ops.x_putlong)(&raw mut xdr, &raw const word) }, 1);
    }
    pair.client.submit(writer);
    let record = pair.server.next_record().unwrap().unwrap();
    assert_eq!(bytes_of(record), [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 3]);
    let mut source = Source::new(record);
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
