//! Hot members: upgraded, active lately, and looked at in every wait.

use super::nested::make_eager;
use super::{ALWAYS, EDGE, ENDS, EXCLUSIVE, EpollSet, IN, Members, ONCE, OUT, Record};
use crate::few::Few;
use crate::side::{rx, tx};
use crate::sock::{Link, Sock, state};
use crate::stream::recv::{Readiness, readiness};
use vmmc::sync::Ordering;
use vmmc::word::Word;

/// Hot members of a set, unless more have something to tell at the same time.
pub(super) const HOT: usize = 64;
/// Waits without an event after which a member is cold.
const IDLE_WAITS: u32 = 4096;

/// A hot member for the length of one wait.
#[derive(Clone, Copy)]
pub(super) struct Hot {
    /// The number under which it was registered.
    pub(super) fd: i32,
    /// A number that means the socket now.
    pub(super) number: i32,
    pub(super) link: Link,
    pub(super) events: u32,
    pub(super) reported: u64,
    pub(super) ended: bool,
}

/// Hot members for the length of one wait, which ends when the list is dropped, also when the thread is cancelled: on the
/// stack, unless there are more than usual, because many have bytes at once.
pub(super) struct HotList {
    items: Few<Hot, { HOT + 1 }>,
}

impl HotList {
    pub(super) fn collect(set: &EpollSet) -> HotList {
        let mut list = HotList { items: Few::new() };
        set.with(|members| {
            let Members { records, hot, .. } = members;
            // Nobody else is inside who may not have it in his list. PAIRS(waiters): who comes in from now on lists it.
            let alone = set.waiters.load(Ordering::SeqCst) == 1;
            for &fd in hot.iter() {
                let Some(record) = records.get(&fd) else { continue };
                if record.spent || record.gone {
                    continue;
                }
                if let Some((link, number)) = record.enter(fd) {
                    if alone {
                        counts_on_no_bell(link.sock);
                    }
                    let Record { events, reported, ended, .. } = *record;
                    list.items.push(Hot { fd, number, link, events, reported, ended });
                }
            }
        });
        list
    }

    pub(super) fn len(&self) -> usize {
        self.items.as_slice().len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hot> {
        self.items.as_slice().iter()
    }

    /// Whether the kernel may have more to say of a member than its ring has.
    pub(super) fn kernel_knows_more(&self) -> bool {
        self.iter().any(Hot::kernel_knows_more)
    }
}

impl Drop for HotList {
    fn drop(&mut self) {
        for hot in self.iter() {
            hot.link.leave();
        }
    }
}

impl Hot {
    /// Events that the rings alone give.
    #[inline]
    pub(super) fn ready(&self) -> u32 {
        let mut ready = 0;
        if self.events & IN != 0 && self.link.looks_readable(self.number) {
            let edge = self.events & EDGE != 0;
            if !edge || self.position() != self.reported {
                ready |= self.events & IN;
            }
        }
        // An edge of writability is the kernel's to make.
        if self.events & OUT != 0
            && self.events & EDGE == 0
            && self.link.side.tx_state.load(Ordering::Relaxed) == tx::RING
            && self.link.looks_writable()
        {
            ready |= self.events & OUT;
        }
        ready
    }

    /// Whether the kernel may have more to say than the ring: an end, an error, or what goes by TCP. A
    /// member that is only writable may have reached its end without our knowing.
    fn kernel_knows_more(&self) -> bool {
        let side = self.link.side;
        let by_tcp = || {
            side.rx_state.load(Ordering::Relaxed) != rx::RING
                || side.rx_left.load(Ordering::Relaxed) != 0
        };
        let only_writable = || self.events & OUT != 0 && !self.link.looks_readable(self.number);
        self.ended
            || side.shut.load(Ordering::Relaxed) != 0
            || (self.events & IN != 0 && (by_tcp() || only_writable()))
            || self.sends_by_tcp()
    }

    /// Whether room is wanted and the kernel's to tell of.
    fn sends_by_tcp(&self) -> bool {
        self.events & OUT != 0 && self.link.side.tx_state.load(Ordering::Relaxed) != tx::RING
    }

    /// The events of its end, if it has ended, where the program wants to hear of that or the peer has closed.
    pub(super) fn ends(&self) -> u32 {
        let wanted = self.events & ENDS;
        if wanted == 0 && self.link.peer().closed().load(Ordering::Acquire) == 0 {
            return 0;
        }
        let pending = crate::raw::pending_events(self.number, wanted as i16) as u16;
        let kept = if self.link.side.has_error() { libc::EPOLLERR as u32 } else { 0 };
        self.link.without_reset(pending.into()) & (wanted | ALWAYS) | kept
    }

    /// What the kernel adds to an event that the ring has given.
    pub(super) fn kernel_adds(&self) -> u32 {
        let room = if self.sends_by_tcp() { OUT } else { 0 };
        let asked = (self.events & (IN | ENDS | room)) as i16;
        let events = crate::raw::pending_events(self.number, asked) as u16;
        let mut events = self.link.without_reset(events.into()) & (self.events | ALWAYS);
        // An edge is the kernel's to make.
        if self.events & EDGE != 0 {
            events &= !(IN | OUT);
        }
        if events & IN != 0 && readiness(&self.link, self.number) == Readiness::NotReady {
            events &= !IN;
        }
        events
    }

    /// Whether a doorbell wakes a waiter of this set and whoever waits in the set is all that wants
    /// it: the sender may spare it when it has rung for another member ([`crate::sleeps`]).
    pub(super) fn wakes_this_set_alone(&self) -> bool {
        let side = self.link.side;
        self.events & IN != 0
            && self.events & (ONCE | EXCLUSIVE) == 0
            && self.link.sock.epoll_refs.load(Ordering::Relaxed) == 1
            && self.link.sock.cold.load(Ordering::SeqCst) == 0
            && !self.link.sock.has_early_waiter()
            && side.eager.load(Ordering::Relaxed) == 0
            && side.sharers.load(Ordering::Relaxed) == 1
            && side.rx_state.load(Ordering::Relaxed) == rx::RING
            && side.rx_left.load(Ordering::Relaxed) == 0
    }

    pub(super) fn position(&self) -> u64 {
        self.link.arrived()
    }

    pub(super) fn is_full(&self) -> bool {
        self.events & OUT != 0 && self.link.is_full()
    }
}

/// Whoever waits for the connection in this set counts himself in and arms for himself, as does everybody in poll,
/// select and receives.
fn counts_on_no_bell(sock: &Sock) {
    let alone = || sock.epoll_refs.load(Ordering::Relaxed) <= 1;
    if sock.cold.load(Ordering::Relaxed) != 0 && alone() {
        sock.cold.store(0, Ordering::SeqCst);
    }
}

impl Members {
    /// Puts an upgraded member on the hot list; `own`: of the threads inside a wait in the set, whether the caller is one.
    pub(super) fn warm(&mut self, set: &EpollSet, fd: i32, own: u32) {
        let nested = self.nested;
        let Some(record) = self.records.get_mut(&fd) else { return };
        record.idle = 0;
        let Some(sock) = record.sock else { return };
        if record.hot || sock.state.load(Ordering::Relaxed) != state::ACTIVE {
            return;
        }
        record.hot = true;
        self.hot.push(fd);
        // PAIRS(waiters): who comes in from now on lists it.
        if set.waiters.load(Ordering::SeqCst) > own {
            // It is in none of their lists: as long as they may sleep it must be armed.
            sock.cold.store(1, Ordering::SeqCst);
            if let Some((link, _)) = record.enter(fd) {
                link.arm_data();
                link.leave();
            }
        } else {
            counts_on_no_bell(sock);
        }
        if nested && let Some((link, number)) = record.enter(fd) {
            make_eager(&link, number);
            link.leave();
        }
        if self.hot.len() > HOT {
            self.cool_one();
        }
    }

    /// Makes the member that was idle longest cold.
    pub(super) fn cool_one(&mut self) {
        let records = &self.records;
        let idle = |fd: &i32| records.get(fd).map_or(u32::MAX, |record| record.idle);
        if let Some(at) = (0..self.hot.len()).max_by_key(|&i| self.hot.get(i).map_or(0, idle)) {
            let fd = self.hot.swap_remove(at);
            self.cool(fd);
        }
    }

    pub(super) fn cool(&mut self, fd: i32) {
        let Some(record) = self.records.get_mut(&fd) else { return };
        record.hot = false;
        let Some((link, number)) = record.enter(fd) else { return };
        link.sock.cold.store(1, Ordering::SeqCst);
        link.arm_data();
        // What is there already nobody rings for.
        let news = link.looks_readable(number);
        let ringing = link.side.tx_state.load(Ordering::Relaxed) == tx::RING;
        let refused = link.side.tx_refused.load(Ordering::Relaxed) != record.refused;
        let full = ringing && (refused || !link.looks_writable());
        // It waits for room, or for the edge that room makes.
        if record.events & OUT != 0 && (record.masked || full) && !self.full.contains(&fd) {
            self.full.push(fd);
        }
        if news {
            link.sock.cold.store(0, Ordering::SeqCst);
            record.hot = true;
            record.idle = 0;
            self.hot.push(fd);
        }
        link.leave();
    }

    /// The next wait begins with this member.
    pub(super) fn put_first(&mut self, fd: i32) {
        if let Some(at) = self.hot.iter().position(|&hot| hot == fd) {
            self.hot.rotate_left(at);
        }
    }

    /// One more wait has passed; members idle for long are left to the kernel.
    pub(super) fn age(&mut self) {
        let mut oldest = None;
        for &fd in &self.hot {
            if let Some(record) = self.records.get_mut(&fd) {
                // One that waits for room is not idle.
                record.idle = if record.masked { 0 } else { record.idle.saturating_add(1) };
                if record.idle > IDLE_WAITS {
                    oldest = Some(fd);
                }
            }
        }
        if let Some(fd) = oldest {
            self.hot.retain(|&hot| hot != fd);
            self.cool(fd);
        }
    }
}
