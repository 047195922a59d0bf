//! Packets of an automatic update that wait, one behind the other as they go over the wire: one system call for many.
//!
//! What the paper's outgoing FIFO was (H16): the program's stores fill it, and the network takes from it. A packet that is
//! open takes the stores that follow it; its header is written when it is complete.

use super::frame::{HEADER_LEN, Header, PAGE};

/// Bytes that wait at most, with their headers. More would go no faster, and whoever waits for the first of them would wait for
/// longer.
pub(crate) const LEN: usize = 64 * 1024;
/// Most of one packet.
const MOST: usize = HEADER_LEN + PAGE as usize;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Of the complete packets.
    headers: Vec<Header>,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// First byte of the packet, in the export.
    at: usize,
    /// Where its header is to be in `bytes`.
    start: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether another packet might not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() + MOST > LEN
    }

    /// Whether a store at this byte follows the last one, in its page.
    pub(crate) fn follows(&self, at: usize) -> bool {
        let next = self.open.map(|open| open.at + (self.bytes.len() - open.start - HEADER_LEN));
        next == Some(at) && !(at as u64).is_multiple_of(PAGE)
    }

    /// Opens a packet; the one before it must be complete.
    pub(crate) fn begin(&mut self, at: usize) {
        debug_assert!(self.open.is_none(), "two packets are open");
        self.open = Some(Open { at, start: self.bytes.len() });
        self.bytes.extend_from_slice(&[0; HEADER_LEN]);
    }

    /// Adds to the packet that is open.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        debug_assert!(self.open.is_some(), "no packet is open");
        self.bytes.extend_from_slice(bytes);
    }

    /// Completes the packet that is open, if one is, with a header for its first byte and its data.
    pub(crate) fn complete<E>(
        &mut self,
        header: impl FnOnce(usize, &[u8]) -> Result<Header, E>,
    ) -> Result<(), E> {
        let Some(Open { at, start }) = self.open.take() else { return Ok(()) };
        let packet = self.bytes.get_mut(start..).unwrap_or_default();
        let Some((head, body)) = packet.split_first_chunk_mut::<HEADER_LEN>() else {
            return Ok(());
        };
        let made = header(at, body)?;
        *head = made.encode();
        self.headers.push(made);
        Ok(())
    }

    /// The headers of the complete packets, and all of their bytes.
    pub(crate) fn packets(&self) -> (&[Header], &[u8]) {
        let end = self.open.map_or(self.bytes.len(), |open| open.start);
        (&self.headers, self.bytes.get(..end).unwrap_or_default())
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.headers.clear();
        self.open = None;
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::super::frame::{Flags, Kind};
    use super::*;
    use std::convert::Infallible;

    fn header(at: usize, body: &[u8]) -> Result<Header, Infallible> {
        let header = Header::new(Kind::Write, 1, 1).flags(Flags::UPDATE);
        Ok(header.at(at as u64, body.len() as u64).unwrap())
    }

    #[test]
    fn packets_lie_one_behind_the_other_as_they_go_over_the_wire() {
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty() && !outbox.follows(0));
        outbox.begin(8);
        outbox.extend(b"ab");
        assert!(outbox.follows(10) && !outbox.follows(8) && !outbox.follows(11));
        outbox.extend(b"c");
        outbox.complete(header).unwrap();
        assert!(!outbox.follows(11), "it is complete");
        outbox.begin(5000);
        outbox.extend(b"d");
        assert_eq!(outbox.packets().0.len(), 1, "the open one is not of them");
        outbox.complete(header).unwrap();
        let (headers, bytes) = outbox.packets();
        assert_eq!(headers, [header(8, b"abc").unwrap(), header(5000, b"d").unwrap()]);
        let wire = [&headers[0].encode()[..], b"abc", &headers[1].encode(), b"d"].concat();
        assert_eq!(bytes, wire);
        outbox.clear();
        assert!(outbox.is_empty() && outbox.packets().1.is_empty());
    }

    #[test]
    fn a_page_ends_a_packet_and_a_page_always_fits_unless_it_is_full() {
        let mut outbox = Outbox::default();
        outbox.begin(4090);
        outbox.extend(b"abcdef");
        assert!(!outbox.follows(4096));
        outbox.complete(header).unwrap();
        while !outbox.is_full() {
            outbox.begin(0);
            outbox.extend(&[1; PAGE as usize]);
            outbox.complete(header).unwrap();
        }
        assert!(outbox.packets().1.len() <= LEN && outbox.packets().0.len() == 16);
    }
}
