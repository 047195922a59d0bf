//! What the program is told about the bytes of an upgraded connection.
//!
//! The kernel counts what it carried: the bytes outside the ring part, and doorbells. The program
//! is told what it would have seen: every byte of its own, and no doorbell.

use crate::side::{rx, tx};
use crate::sock::Link;
use vmmc::sync::Ordering;
use vmmc::word::Word;
use vmmc_ring::switch::Standing;
use vmmc_ring::tcp_count;

/// Bytes in our ring that the peer has not read and that do not travel by TCP (`SIOCOUTQ`).
pub(crate) fn unread_by_peer(link: &Link) -> u64 {
    let tx = link.tx();
    let head = tx.head().load(Ordering::Relaxed);
    let end = match (link.side.tx_state.load(Ordering::Relaxed), tx.switch().standing()) {
        (tx::RING, _) => link.side.tail.load(Ordering::Relaxed),
        (_, Standing::Ended { end, .. }) => end,
        _ => head,
    };
    let unread = end.wrapping_sub(head);
    if unread > tx.bytes().0.len() as u64 { 0 } else { unread }
}

/// What to add to the kernel's counts of bytes sent, acknowledged and received; wrapping.
fn differences(link: &Link) -> [u64; 3] {
    let side = link.side;
    let mut sent = side.tx_before.load(Ordering::Relaxed);
    let mut received = side.rx_before.load(Ordering::Relaxed);
    let add = |sum: &mut u64, more: u64| *sum = sum.wrapping_add(more);
    let doorbells = |side: crate::segment::SideWords| {
        side.bells().load(Ordering::Relaxed).wrapping_sub(side.owed().load(Ordering::Relaxed))
    };
    match (side.tx_state.load(Ordering::Relaxed), link.tx().switch().standing()) {
        (tx::RING, _) => {
            let tail = side.tail.load(Ordering::Relaxed);
            add(&mut sent, tail.wrapping_sub(doorbells(link.mine())));
        }
        (tx::ENDED, Standing::Ended { end, bells, .. }) => add(&mut sent, end.wrapping_sub(bells)),
        // Where the last part ended; 0 when there was none.
        _ => add(&mut sent, side.tail.load(Ordering::Relaxed)),
    }
    match (side.rx_state.load(Ordering::Relaxed), link.rx().switch().standing()) {
        (rx::RING | rx::ENDED, Standing::Ended { end, bells, .. }) => {
            add(&mut received, end.wrapping_sub(bells));
        }
        (rx::RING, Standing::Ring { .. }) => {
            let tail = link.rx().tail().load(Ordering::Relaxed);
            add(&mut received, tail.wrapping_sub(doorbells(link.peer())));
        }
        _ => add(&mut received, side.head.load(Ordering::Relaxed)),
    }
    [sent, sent, received]
}

/// Corrects a `struct tcp_info` of `len` bytes that the kernel has just written.
///
/// # Safety
/// `info` must be writable for `len` bytes.
pub(crate) unsafe fn correct_tcp_info(link: &Link, info: *mut u8, len: usize) {
    let read = |at: usize| {
        (at + size_of::<u64>() <= len).then(|| {
            let place = info.wrapping_add(at).cast::<u64>();
            // SAFETY: inside the struct by the check before.
            unsafe { place.read_unaligned() }
        })
    };
    let [sent, mut acked, received] = differences(link);
    if link.side.tx_state.load(Ordering::Relaxed) == tx::RING
        && let Some(TcpBytes { sent, retrans, acked: known }) = TcpBytes::read(read)
    {
        // What is in the ring has arrived, which is when TCP acknowledges it; what is not
        // acknowledged are doorbells.
        acked = acked.wrapping_add(sent.saturating_sub(retrans).saturating_sub(known));
    }
    let places =
        [tcp_count::BYTES_SENT_AT, tcp_count::BYTES_ACKED_AT, tcp_count::BYTES_RECEIVED_AT];
    for (at, by) in places.into_iter().zip([sent, acked, received]) {
        let Some(value) = read(at) else { continue };
        let place = info.wrapping_add(at).cast::<u64>();
        // SAFETY: inside the struct, as it was read.
        unsafe { place.write_unaligned(value.wrapping_add(by)) };
    }
}

struct TcpBytes {
    sent: u64,
    retrans: u64,
    acked: u64,
}

impl TcpBytes {
    fn read(at: impl Fn(usize) -> Option<u64>) -> Option<TcpBytes> {
        Some(TcpBytes {
            sent: at(tcp_count::BYTES_SENT_AT)?,
            retrans: at(tcp_count::BYTES_RETRANS_AT)?,
            acked: at(tcp_count::BYTES_ACKED_AT)?,
        })
    }
}
