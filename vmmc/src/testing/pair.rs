//! Both halves of a link in one process.

use crate::error::SystemError;
use crate::id::{ClientId, PeerInfo, Rights};
use crate::local::Local;
use crate::mem::Region;
use crate::sys::Fd;
use crate::transport::Granted;
use crate::transport::engine::Engine;
use crate::transport::shm::segment::LinkSegment;
use crate::transport::shm::{ShmIncoming, ShmOutgoing};
use std::sync::Arc;

/// An export and an import of it, over real mappings.
#[derive(Debug)]
pub struct Pair {
    /// The importer's half.
    pub outgoing: ShmOutgoing,
    /// The exporter's half.
    pub incoming: ShmIncoming,
    /// The exporter's memory.
    pub region: Region,
    /// The link segment's file, for a peer that misbehaves.
    segment: Fd,
    /// Has the counters that `outgoing` counts in.
    _local: Arc<Local>,
}

impl Pair {
    /// A pair over `len` bytes of memory.
    ///
    /// # Errors
    /// [`SystemError`] when memory or descriptors are short.
    ///
    /// # Panics
    /// When `len` is 0: a test's own mistake.
    pub fn new(len: usize, rights: Rights) -> Result<Pair, SystemError> {
        let local = Arc::new(Local::new()?);
        let region = Region::new(len).expect("a length above 0, and memory");
        let (segment, file) = LinkSegment::create()?;
        let us = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let peer = PeerInfo { client: ClientId(0), pid: us, uid: 0, gid: 0 };
        let incoming = ShmIncoming::open(&file).expect("a segment made just now");
        let memory = region.file().try_clone().map_err(crate::error::system("dup"))?;
        let granted = Granted { len, rights, peer };
        let outgoing = ShmOutgoing::import((Arc::new(segment), memory), granted, local.meter)?;
        Ok(Pair { outgoing, incoming, region, segment: file, _local: local })
    }

    /// The link segment's file.
    #[must_use]
    pub fn segment(&self) -> &Fd {
        &self.segment
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::layout::link;
    use crate::testing::{Hostile, Nonsense};
    use crate::transport::engine::Engine;
    use crate::transport::shm::incoming::PeerFault;
    use crate::transport::{Entry, Item, TransportError};
    use crate::word::Word;

    #[test]
    fn what_does_not_fit_is_refused_by_both_halves() {
        let pair = Pair::new(100, Rights::WRITE).unwrap();
        let outside = pair.outgoing.write(99, b"xy");
        assert!(matches!(outside, Err(TransportError::OutOfBounds(_))), "{outside:?}");
        let entry = Entry { offset: 0, len: 1, last_word: 0 };
        for _ in 0..link::NOTIFY_SLOTS {
            assert_eq!(pair.outgoing.notify(entry), Ok(true));
        }
        assert_eq!(pair.outgoing.notify(entry), Err(TransportError::QueueFull));
        // An export of no length has room for none of these: the first is at fault.
        let fault = pair.incoming.take(9, 0, |_| panic!("taken"));
        assert_eq!(fault, Err(PeerFault::Entry { entry, export_len: 0 }));
        let segment = LinkSegment::open(pair.segment()).unwrap();
        segment.word(link::TAIL).store(u32::MAX / 2, crate::sync::Ordering::Release);
        let fault = pair.incoming.take(9, 100, |_| panic!("taken"));
        assert!(matches!(fault, Err(PeerFault::Position(_))), "{fault:?}");
    }

    #[test]
    fn bytes_and_notifications_pass_and_a_closing_link_refuses_them() {
        let pair = Pair::new(100, Rights::WRITE).unwrap();
        pair.outgoing.write(10, b"bytes").unwrap();
        assert_eq!(&pair.region.as_slice()[10..15], b"bytes");
        let entry = Entry { offset: 10, len: 5, last_word: 1 };
        assert_eq!(pair.outgoing.notify(entry), Ok(true));
        assert!(pair.incoming.has_news());
        let mut got = Vec::new();
        pair.incoming.take(9, 100, |item| got.push(item)).unwrap();
        assert_eq!(got, [Item::Message(entry)]);
        pair.incoming.set_accept(false);
        assert_eq!(pair.outgoing.notify(entry), Ok(false));
        pair.incoming.set_state(link::CLOSING);
        assert!(matches!(pair.outgoing.write(0, b"x"), Err(TransportError::Closed(_))));
        assert!(pair.incoming.is_idle());
        assert!(pair.outgoing.check_open().is_err());
    }

    #[test]
    fn words_by_their_place_are_the_words_of_the_view() {
        let pair = Pair::new(100, Rights::WRITE).unwrap();
        pair.outgoing.ship(8, (u64::MAX - 1, 8), false).unwrap();
        pair.outgoing.ship(20, (7, 4), false).unwrap();
        assert_eq!(pair.region.as_slice()[8..16], (u64::MAX - 1).to_ne_bytes());
        assert_eq!(pair.region.as_slice()[16..24], [[0; 4], 7u32.to_ne_bytes()].concat());
        assert_eq!(
            [(8, 8), (20, 4), (24, 4)].map(|(at, width)| pair.outgoing.fetch(at, width)),
            [u64::MAX - 1, 7, 0]
        );
        for (at, width) in [(100, 4), (96, 8), (2, 4), (usize::MAX, 8)] {
            let outside = pair.outgoing.ship(at, (1, width), false);
            assert!(matches!(outside, Err(TransportError::OutOfBounds(_))), "{at}: {outside:?}");
            assert_eq!(pair.outgoing.fetch(at, width), 0);
        }
        pair.incoming.set_state(link::CLOSING);
        let closed = pair.outgoing.ship(20, (8, 4), false);
        assert!(matches!(closed, Err(TransportError::Closed(_))), "{closed:?}");
        assert_eq!(pair.outgoing.fetch(20, 4), 7);
    }

    #[test]
    fn who_opens_a_segment_again_takes_nothing_twice_and_leaves_nothing_out() {
        let Pair { outgoing, incoming, region: _region, segment, _local } =
            Pair::new(100, Rights::WRITE).unwrap();
        let entry = |offset| Entry { offset, len: 1, last_word: 0 };
        for offset in 0..3 {
            assert_eq!(outgoing.notify(entry(offset)), Ok(true));
        }
        assert_eq!(incoming.take(2, 100, |_| {}), Ok(2));
        drop(incoming);
        let incoming = ShmIncoming::open(&segment).unwrap();
        assert!(incoming.has_news());
        let mut got = Vec::new();
        assert_eq!(incoming.take(9, 100, |item| got.push(item)), Ok(1));
        assert_eq!(got, [Item::Message(entry(2))]);
        assert!(!incoming.has_news());
    }

    #[test]
    fn nonsense_is_an_error_at_whichever_side_reads_it() {
        for nonsense in Nonsense::ALL {
            let pair = Pair::new(100, Rights::WRITE).unwrap();
            let peer = Hostile::new(&pair).unwrap();
            peer.write(nonsense);
            match nonsense {
                Nonsense::Tail | Nonsense::EntryOutside => {
                    assert!(pair.incoming.take(200, 100, |_| {}).is_err(), "{nonsense:?}");
                }
                Nonsense::Head => {
                    let entry = Entry { offset: 0, len: 0, last_word: 0 };
                    let result = (0..200).find_map(|_| pair.outgoing.notify(entry).err());
                    assert!(matches!(result, Some(TransportError::PeerFault(_))), "{result:?}");
                }
                Nonsense::State => {
                    let closed = pair.outgoing.write(0, b"x");
                    assert!(matches!(closed, Err(TransportError::Closed(_))));
                }
                Nonsense::Busy => assert!(!pair.incoming.is_idle()),
            }
        }
    }
}
