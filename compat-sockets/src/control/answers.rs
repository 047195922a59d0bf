//! What the daemon says: who it is, and whether an offered socket gets a segment.
//!
//! All of it is under the lock of the conversation.

use super::{connection, forget};
use crate::counters::Counter;
use crate::offers::{self, Offer};
use crate::segment::{MAX_RING, Segment};
use crate::sock::Sock;
use crate::{carrier, raw, settings, side, sleeps, upgrade};
use vmmc::control::codec;
use vmmc::control::message::{Event, NotPairedReason};
use vmmc::id::ClientId;
use vmmc::sync::Ordering;
use vmmc::sys::{Fd, memfd, mmap, packet};

/// Acts on one packet; false when it makes no sense.
pub(super) fn understood(packet: &[u8], fds: &mut packet::Fds) -> bool {
    if connection::first_packet() {
        return codec::check_handshake(packet).is_ok();
    }
    match codec::decode::<Event>(packet) {
        Ok(Event::Welcome(welcome)) => {
            connection::greeted(&welcome);
            settings::set_wake_cost(welcome.wake_cost_ns);
        }
        Ok(Event::Paired { cookie, side, ring_len, peer }) => {
            // Without room for one of them, none is of use.
            let all = !fds.cut_short();
            let (memory, carrier) = (fds.take().filter(|_| all), fds.take());
            let waiting = offers::find(cookie).and_then(Offer::take);
            match (waiting, memory) {
                (Some((sock, fd)), Some(memory))
                    if attach(sock, fd, &memory, side, ring_len, peer, carrier) => {}
                _ => {
                    // Nobody here will use the segment, nor say so when the socket is closed.
                    forget(cookie);
                    if let Some((sock, fd)) = waiting {
                        sock.make_plain(fd, Counter::plain_resources);
                    }
                }
            }
            if let Some((sock, _)) = waiting {
                sock.leave();
            }
        }
        Ok(Event::NotPaired { cookie, reason }) => {
            if let Some((sock, fd)) = offers::find(cookie).and_then(Offer::take) {
                match reason {
                    NotPairedReason::NoPartner => {
                        upgrade::not_now(sock, fd, Counter::plain_no_partner);
                    }
                    NotPairedReason::Resources => {
                        upgrade::not_now(sock, fd, Counter::plain_resources);
                    }
                    // Nothing may have been said while packets were awaited.
                    NotPairedReason::OtherNamespace => {
                        upgrade::not_now(sock, fd, Counter::plain_refused);
                    }
                    NotPairedReason::Remote => sock.make_plain(fd, Counter::plain_remote),
                    _ => sock.make_plain(fd, Counter::plain_refused),
                }
                sock.leave();
            }
        }
        Ok(Event::Refused { .. }) | Err(_) => return false,
        Ok(_) => {}
    }
    true
}

/// Maps the segment and makes the socket, which the caller holds, active.
pub(super) fn attach(
    sock: &'static Sock,
    fd: i32,
    memory: &Fd,
    side_number: u8,
    ring_len: u32,
    peer: ClientId,
    carrier: Option<Fd>,
) -> bool {
    if !ring_len.is_power_of_two()
        || !(4096..=MAX_RING).contains(&ring_len)
        || side_number > 1
        || raw::socket_cookie(fd) != Ok(sock.cookie.load(Ordering::Relaxed))
    {
        return false;
    }
    let len = Segment::mapping_len(ring_len as usize);
    if memfd::verify(memory, len as u64).is_err() {
        return false;
    }
    let Some(side) = side::allocate() else { return false };
    let Ok(mapping) = mmap::GuardedMapping::new(memory, len, mmap::Access::ReadWrite) else {
        side::release(side);
        return false;
    };
    if let Some(carrier) = carrier {
        if !carrier::keep(side, &carrier) {
            side::release(side);
            return false;
        }
    } else {
        sock.peer.store(sleeps::meet(peer.0, connection::incarnation()), Ordering::Relaxed);
    }
    let active = upgrade::attached(sock, fd, mapping.as_ptr(), ring_len, side_number, side);
    if active {
        // Unmapped by `Sock` when the last user has left, which is the caller at the earliest.
        std::mem::forget(mapping);
    } else {
        sleeps::part(sock.peer.swap(0, Ordering::Relaxed));
        carrier::let_go(side);
        side::release(side);
    }
    active
}
