//! A fabric's descriptor that is readable for nothing.
//!
//! `fi_trywait` of some providers does nothing (`net` of libfabric 1.17): once something has happened, the queue's
//! descriptor stays readable for ever, and whoever sleeps on it polls at full speed. [`Fifo::is_vain`](crate::transport::ofi::fifo::Fifo::is_vain) has found that out
//! while the connection was made. Then only the descriptor's changes wake (`EPOLLET`); and because what such a provider leaves to
//! its next turn changes nothing, who was woken polls for a while ([`POLL`]), and somebody looks every [`LOOK`].

use rustix::event::epoll::EventFlags;
use std::time::Duration;

/// How often somebody looks without being woken.
pub const LOOK: Duration = Duration::from_millis(10);
/// How long is polled after a change.
pub const POLL: Duration = Duration::from_micros(100);
/// So many looks in a row at a descriptor, each after there was nothing to do, find it out.
pub(in crate::transport) const LOOKS: u32 = 100;

/// What epoll is to tell of a descriptor.
#[must_use]
pub fn flags(is_vain: bool) -> EventFlags {
    if is_vain { EventFlags::IN | EventFlags::ET } else { EventFlags::IN }
}
