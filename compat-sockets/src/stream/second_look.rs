//! A receive that finds nothing and does not wait, by a thread that only serves.
//!
//! In servers where one thread waits for all connections and others serve them (Apache's event MPM, Java's selectors
//! with workers), a worker that is told `EAGAIN` gives its connection back, and the next request takes two wake-ups of threads to
//! reach a worker again. By TCP the client is woken by the reply before the worker has looked, and often on its processor, so
//! that the worker finds the next request. By a ring it looks some microseconds too early. So a worker polls the ring before
//! it is told, as long as that pays ([`super::spin`]), and learns from when the next bytes were taken.
//!
//! Who waits for several connections himself never polls for one here: others may be ready.

use super::{demote, wait};
use crate::raw;
use crate::side::rx;
use crate::sock::Link;
use std::cell::Cell;
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// The longest poll, in nanoseconds, however long the program's waits may poll: what two wake-ups cost.
const MOST_NS: u64 = 50_000;

std::thread_local! {
    // `const` and without a destructor: usable anywhere, no registration.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread waits for several connections at once.
pub(crate) fn waits_for_many() {
    WAITS.set(true);
}

/// Nothing was found: whether something came while the ring was polled.
pub(super) fn finds_more(link: &Link) -> bool {
    let side = link.side;
    let in_ring = side.rx_state.load(Ordering::Relaxed) == rx::RING
        && side.rx_left.load(Ordering::Relaxed) == 0;
    if !in_ring || !link.sock.is_watched() || WAITS.get() {
        return false;
    }
    // What the kernel has to say is not waited for here.
    let is_over = || link.peer().closed().load(Ordering::Relaxed) != 0;
    if is_over() || side.has_error() || demote::is_urgent(link) || wait::shares_cpu(link) {
        return false;
    }
    let consumer = link.consumer();
    let polled = link.sock.spins.spin(Some(MOST_NS), || {
        consumer.prefetch();
        consumer.looks_readable() || is_over()
    });
    let found = polled && link.ring_has_more();
    if !found {
        side.empty_at.store(raw::now_ns(), Ordering::Relaxed);
    }
    found
}

/// Bytes were taken.
#[inline]
pub(super) fn found(link: &Link) {
    if link.side.empty_at.load(Ordering::Relaxed) != 0 {
        learns(link);
    }
}

#[cold]
fn learns(link: &Link) {
    let empty_at = link.side.empty_at.swap(0, Ordering::Relaxed);
    link.sock.spins.slept(empty_at);
}
