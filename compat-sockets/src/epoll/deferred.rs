//! Changes of a registration that the kernel hears of later, or never.
//!
//! An event loop changes what it wants of a connection for every request: room, until it is
//! written; then data, until the answer is here. Each change is a system call, and costs more than
//! the rings do. But the rings tell of room and of data without the kernel; it has a say only while
//! somebody sleeps, and in how a connection ends. So while an upgraded member is active
//!
//! * a change is kept in our record, and the kernel keeps the registration it has;
//! * a member taken out stays in the kernel's set ([`Record::gone`]), and its events are dropped;
//! * put in again, it goes on as it was.
//!
//! Before anybody sleeps in the kernel, what still differs by then is made true there, which in a loop
//! as above is nothing: data is what one sleeps for.
//!
//! # What the kernel must know at once
//! A look at the kernel without sleep needs no registration of room, which the ring tells, but all
//! else that is wanted. And the kernel must know all when a member is no longer in its rings alone
//! ([`in_rings`]), and before anybody but this process's waits can look at the set: another process
//! ([`before_sharing`]), another set, poll or select ([`super::nested`]). A set that was passed to another
//! process defers no more, nor does one that a child has, until that ends.
//!
//! While a thread waits in the set nothing is deferred, also if it began to before there was anything upgraded
//! ([`super::wait::Waiter`]): its sleep would not hear of it.
//! PAIRS(waiters): a change looks for waiters under the lock; a waiter counts itself, and then takes the
//! lock to see what is deferred.
//!
//! Only plain level-triggered registrations take part: an edge is the kernel's to make.

use super::members::{Members, Record};
use super::{EpollSet, OUT, sets};
use crate::counters::{self, Counter};
use crate::side::{rx, tx};
use crate::sock::Sock;
use crate::{family, fd_table, raw};
use libc::epoll_event;
use vmmc::sync::Ordering;

/// What a set has deferred.
#[derive(Default)]
pub(super) struct Deferred {
    /// Members of which the kernel may have to hear; flagged in their records.
    late: Vec<i32>,
    /// Another process may have the set, for ever.
    pub(super) never: bool,
    /// Another process has it by a fork, as far as is known.
    forked: bool,
    /// Changes that were not deferred for that.
    told: u32,
}

/// Changes that the kernel is told of because another process has the set, before that is looked for.
const LOOK: u32 = 64;

/// Whether the registration has none of the flags that change how events are made.
fn is_plain(events: u32) -> bool {
    const FLAGS: u32 =
        (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;
    events & FLAGS == 0
}

/// Whether the connection's two rings tell all there is to tell of room and data, and to this set alone.
fn in_rings(record: &Record, fd: i32) -> bool {
    let Some(sock) = record.sock else { return false };
    let Some(link) = sock.enter(fd) else { return false };
    let side = link.side;
    let whole = side.tx_state.load(Ordering::Relaxed) == tx::RING
        && side.rx_state.load(Ordering::Relaxed) == rx::RING
        && side.rx_left.load(Ordering::Relaxed) == 0
        && !side.has_error()
        && side.shut.load(Ordering::Relaxed) == 0
        && !link.is_waited_for_elsewhere()
        && side.sharers.load(Ordering::Relaxed) == 1
        && sock.epoll_refs.load(Ordering::Relaxed) == 1
        && fd_table::is_last(sock);
    link.leave();
    whole
}

impl Record {
    /// Whether its registration may change without the kernel.
    fn may_defer(&self, fd: i32) -> bool {
        self.hot
            && is_plain(self.events)
            && !(self.masked || self.roused || self.spent || self.ended)
            && in_rings(self, fd)
    }
}

impl Deferred {
    /// Whether another process has the set still, which is asked now and then.
    fn is_shared(&mut self) -> bool {
        if self.forked {
            self.told += 1;
            self.forked = !self.told.is_multiple_of(LOOK) || !family::is_without_kin();
        }
        self.forked
    }
}

impl Members {
    /// epoll_ctl(2) without the kernel, where it need not hear of it now; `false`: nothing is done. `wish`: what
    /// the program wants to be registered, if that can be read.
    pub(super) fn defer(
        &mut self,
        set: &EpollSet,
        (epfd, op, fd): (i32, i32, i32),
        sock: &'static Sock,
        wish: Option<epoll_event>,
    ) -> bool {
        const KNOWN: [i32; 3] = [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_DEL, libc::EPOLL_CTL_MOD];
        let Some(&record) = self.records.get(&fd) else { return false };
        if !KNOWN.contains(&op)
            || self.deferred.never
            || self.nested
            || self.deferred.is_shared()
            || set.refs.load(Ordering::Relaxed) != 1
            || set.waiters.load(Ordering::SeqCst) != 0
            || record.gone != (op == libc::EPOLL_CTL_ADD)
            || self.by_data.get(&record.data).is_none_or(|&(count, _)| count != 1)
            || !record.is_of(sock)
            || !record.may_defer(fd)
        {
            return false;
        }
        let mut changed = record;
        if op == libc::EPOLL_CTL_DEL {
            changed.gone = true;
        } else {
            let Some(wish) = wish else { return false };
            if wish.u64 != record.data || !is_plain(wish.events) {
                return false;
            }
            changed.gone = false;
            changed.events = wish.events;
        }
        changed.idle = 0;
        if !changed.late {
            changed.late = true;
            self.deferred.late.push(fd);
        }
        set.descriptor.store(epfd as u32, Ordering::Relaxed);
        self.records.insert(fd, changed);
        counters::one(Counter::epoll_deferred);
        true
    }

    /// Whether the kernel may have to hear of some member.
    pub(super) fn has_late(&self) -> bool {
        !self.deferred.late.is_empty()
    }

    /// Makes the kernel's set what the program made it.
    pub(super) fn settle_all(&mut self, set: &EpollSet) {
        self.settle(set, |_, _| true);
    }

    /// Another process gets the set; `lasting`: and we go on with it.
    pub(super) fn share(&mut self, set: &EpollSet, lasting: bool) {
        self.settle_all(set);
        self.deferred.never |= lasting;
    }

    /// Before the kernel's set gets a registration with these data, which may be a late member's: events of data
    /// that several have are passed on as they are.
    pub(super) fn settle_before(&mut self, set: &EpollSet, data: Option<u64>) {
        self.settle(set, |record, _| record.gone || Some(record.data) == data);
    }

    /// An event of a late member that the program does not want: the kernel would tell of it each time.
    pub(super) fn settle_one(&mut self, set: &EpollSet, fd: i32) {
        self.deferred.late.retain(|&late| late != fd);
        self.stays_late(set, fd, |_, _| true);
    }

    /// Tells the kernel what it must know even while nobody sleeps.
    fn settle_due(&mut self, set: &EpollSet) {
        self.settle(set, |record, fd| {
            let lacks = !record.gone && record.events & !record.kernel & !OUT != 0;
            lacks || !record.hot || !in_rings(record, fd)
        });
    }

    fn settle(&mut self, set: &EpollSet, must: impl Fn(&Record, i32) -> bool) {
        if self.deferred.late.is_empty() {
            return;
        }
        let mut late = std::mem::take(&mut self.deferred.late);
        late.retain(|&fd| self.stays_late(set, fd, &must));
        self.deferred.late = late;
    }

    /// Settles one member if it must be.
    fn stays_late(&mut self, set: &EpollSet, fd: i32, must: impl Fn(&Record, i32) -> bool) -> bool {
        let epfd = set.descriptor.load(Ordering::Relaxed) as i32;
        let record = match self.records.get_mut(&fd) {
            Some(record) if record.late => record,
            _ => return false,
        };
        // Room that is masked, or lent, is told of with the mask.
        let same = record.kernel == record.events || record.masked || record.roused;
        if record.gone || !same {
            if !must(record, fd) {
                return true;
            }
            counters::one(Counter::epoll_settled);
        }
        record.late = false;
        if record.gone {
            raw::epoll_del(epfd, fd);
            self.leaves(set, fd);
        } else if !same {
            record.tell_kernel(epfd, fd, record.events);
        }
        false
    }
}

/// Before the kernel is asked; `asleep`: and may let us sleep.
#[inline]
pub(super) fn settle_before_asking(set: &EpollSet, asleep: bool) {
    if set.late.load(Ordering::Relaxed) != 0 {
        set.with(|members| {
            if asleep {
                members.settle_all(set);
            } else {
                members.settle_due(set);
            }
        });
    }
}

/// A socket has another descriptor, here or in another process: from now on the kernel keeps its
/// registrations until the last one is closed.
pub(crate) fn settle_member(sock: &Sock) {
    if sock.epoll_refs.load(Ordering::Relaxed) != 0 {
        for (_, set) in sets() {
            set.with(|members| members.settle(set, |record, _| record.is_of(sock)));
        }
    }
}

/// Before a fork: the child has all sets until it ends.
pub(crate) fn before_fork() {
    family::sets_are_shared();
    for (_, set) in sets() {
        set.with(|members| {
            members.settle_all(set);
            members.deferred.forked = true;
        });
    }
}

/// Before another process gets descriptors of ours, the sets among them perhaps; `lasting`: it and
/// we go on side by side.
pub(crate) fn before_sharing(lasting: bool) {
    for (_, set) in sets() {
        set.with(|members| members.share(set, lasting));
    }
}
