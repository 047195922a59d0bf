//! Which processes have a socket, or a set, that was there when its process forked.
//!
//! While several have a socket that is not yet upgraded, it stays plain: which process takes which byte from TCP could
//! not be told apart at the switch. One that is upgraded goes on in all of them, but at a price: none sees who else
//! sleeps on it, so each asks to be rung for whatever comes ([`FORKED`]), and none may think that its close is the end. A
//! set that several have defers no changes.
//!
//! But most servers that fork for a connection close it in the parent, and children of other kinds end soon (redis
//! forks to save). So the processes are listed in memory that they share, and who finds itself to be the last has all
//! to itself again.
//!
//! ```text
//!   before fork    myself into the list; born + 1
//!   child          its pid into a free place, then born - 1
//!   no child       born - 1 (fork failed)
//!   unseen child   its parent's pid and its own into the list (raw clone)
//!   last close     its pid out
//!   asking         I am alone when born is 0 and every other pid in the list is dead
//! ```
//!
//! A process that was killed is dead by its pid, also while its parent has not waited for it; one that ran another
//! program lives on, and may have the socket still. A pid that was reused keeps a socket shared, which is always safe.
//! Who finds no place in the list, and who has the socket by other ways than a fork, is one that is never born. A child
//! never has the sets to itself: what its parent has deferred in them is the parent's to settle, seen or not.

use crate::lock::Lock;
use crate::raw;
use crate::side::{self, FORKED, Side};
use crate::sock::Sock;
use std::sync::atomic::AtomicPtr;
use vmmc::sync::{AtomicU32, Ordering};

/// The part of a [`Side`] that a list uses: `born`, `members` and, for what is no side of a connection, `sharers`.
pub(crate) type Family = &'static Side;

/// Held while a process begins to share what it has and while one finds itself alone. Behind all other locks.
static FORKS: Lock = Lock::new();

/// In a forked child: whoever held the lock is not here.
pub(crate) fn after_fork() {
    FORKS.reset();
}

/// Calls `body` while no other thread does so.
fn excluding_forks<R>(body: impl FnOnce() -> R) -> R {
    // Not in a signal handler that interrupted the same: there nothing else can be done.
    let locked = FORKS.lock().is_ok();
    let result = body();
    if locked {
        FORKS.unlock();
    }
    result
}

/// Puts this process into a list. False: there is no place.
fn enter(list: &Side, me: u32) -> bool {
    let is = |member: &AtomicU32| member.load(Ordering::SeqCst) == me;
    list.members.iter().any(is)
        || list.members.iter().any(|member| {
            let held = member.load(Ordering::SeqCst);
            (held == 0 || !raw::process_lives(held))
                && member.compare_exchange(held, me, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })
}

/// Before a fork.
fn bears(list: &Side) {
    // PAIRS(births): with `has_only_me`: before anything else of this child can be seen.
    list.births.fetch_add(1, Ordering::SeqCst);
    list.sharers.fetch_add(1, Ordering::AcqRel);
    // Who is not in the list is not found to be alive.
    let unlisted = u32::from(!enter(list, raw::getpid()));
    list.born.fetch_add(1 + unlisted, Ordering::SeqCst);
}

/// There is no child after all.
fn did_not_bear(list: &Side) {
    let fewer = |born: u32| born.checked_sub(1);
    if list.born.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
        list.sharers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// In the child. False when there is no place: nobody will find out when it ends.
fn is_born(list: &Side) -> bool {
    // In a new namespace of pids the others' numbers mean nothing.
    let listed = raw::getppid() != 0 && enter(list, raw::getpid());
    if listed {
        // Nothing was counted for what was upgraded since `bears`.
        let _ =
            list.born.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |born| born.checked_sub(1));
    }
    listed
}

/// Whether this process is the only one of the list that has what it is for. A process that is not looked at any more may
/// bear one and end meanwhile: then births have changed.
fn has_only_me(list: &Side) -> bool {
    let me = raw::getpid();
    // PAIRS(births): with `bears`.
    let births = list.births.load(Ordering::SeqCst);
    list.born.load(Ordering::SeqCst) == 0
        && list.members.iter().all(|member| {
            let pid = member.load(Ordering::SeqCst);
            pid == 0 || pid == me || !raw::process_lives(pid)
        })
        && list.births.load(Ordering::SeqCst) == births
}

/// This process is no member any more.
fn departs(list: &Side) {
    let me = raw::getpid();
    for member in &list.members {
        let _ = member.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

// Sockets that are not upgraded.

/// Before a fork: the child will have the socket too. False when that cannot be written down.
pub(crate) fn before_fork(sock: &Sock) -> bool {
    let family = match sock.family() {
        Some(family) => family,
        None => {
            let Some(family) = side::allocate() else { return false };
            sock.set_family(Some(family));
            family
        }
    };
    bears(family);
    true
}

/// In the forked child. False when there is no place: the socket must stay plain.
pub(crate) fn in_child(sock: &Sock) -> bool {
    sock.family().is_some_and(is_born)
}

/// The fork has failed.
pub(crate) fn not_forked(sock: &Sock) {
    if let Some(family) = sock.family() {
        did_not_bear(family);
    }
}

/// Whether this process is the only one that has the socket.
pub(crate) fn is_alone(sock: &Sock) -> bool {
    sock.family().is_none_or(has_only_me)
}

/// This process has closed the socket.
pub(crate) fn leave(sock: &Sock) {
    let Some(family) = sock.family() else { return };
    sock.set_family(None);
    parts(family);
}

// Upgraded connections, by their side.

/// Before a fork: the child will have the connection too.
pub(crate) fn shares(side: &Side) {
    excluding_forks(|| {
        bears(side);
        side.eager.fetch_or(FORKED, Ordering::SeqCst);
    });
}

/// In the forked child.
pub(crate) fn has_share(side: &Side) {
    // Without a place it is never known to have ended, and the connection stays shared.
    is_born(side);
}

/// In a child that its `parent` knows nothing of: it does what that would have done.
pub(crate) fn was_born_unseen(side: &Side, parent: u32) {
    excluding_forks(|| {
        // PAIRS(births): with `has_only_me`, as in `bears`.
        side.births.fetch_add(1, Ordering::SeqCst);
        side.sharers.fetch_add(1, Ordering::AcqRel);
        // In a new namespace of pids the parent's number means nothing.
        let listed = raw::getppid() != 0 && enter(side, parent) && enter(side, raw::getpid());
        side.born.fetch_add(u32::from(!listed), Ordering::SeqCst);
        side.eager.fetch_or(FORKED, Ordering::SeqCst);
    });
}

/// The fork has failed.
pub(crate) fn shares_not(side: &Side) {
    excluding_forks(|| did_not_bear(side));
}

/// Another process has it, and nobody will know how long.
pub(crate) fn lives_elsewhere(side: &Side) {
    excluding_forks(|| {
        side.sharers.fetch_add(1, Ordering::AcqRel);
        side.born.fetch_add(1, Ordering::SeqCst);
    });
}

/// A program that is started now has it, or the kernel uses it by itself: nobody knows how long, so no close of ours may be
/// told as the connection's end ([`is_left_to_others`]). As to who sees the ring, it is as if nobody else had it.
pub(crate) fn leaves_to_others(side: &Side) {
    side.given.store(1, Ordering::Release);
}

/// Whether somebody that takes no part may use the socket when all who do have closed it.
pub(crate) fn is_left_to_others(side: &Side) -> bool {
    side.given.load(Ordering::Acquire) != 0
}

/// Whether this process is the only one that has the upgraded connection. If others had it by a fork and are gone, it
/// is as if they had never been.
pub(crate) fn is_last(side: &Side) -> bool {
    if side.eager.load(Ordering::Relaxed) & FORKED == 0 {
        return side.sharers.load(Ordering::Acquire) == 1;
    }
    excluding_forks(|| {
        let alone = side.sharers.load(Ordering::Acquire) == 1 || has_only_me(side);
        if alone {
            // A number that is given to another process must not keep a later fork's share.
            let me = raw::getpid();
            for member in side.members.iter().filter(|it| it.load(Ordering::SeqCst) != me) {
                member.store(0, Ordering::SeqCst);
            }
            side.born.store(0, Ordering::SeqCst);
            side.sharers.store(1, Ordering::Release);
            side.eager.fetch_and(!FORKED, Ordering::SeqCst);
        }
        alone
    })
}

/// This process has closed it, and gives its share back. It is in the list until the share is: who found himself alone
/// in between would think the other's share his own.
pub(crate) fn parts(side: &'static Side) {
    side::release_after(side, departs);
}

// Sets, all of a process alike.

/// The list of this process, and of those that were forked since its first fork.
static KIN: AtomicPtr<Side> = AtomicPtr::new(std::ptr::null_mut());

fn kin() -> Option<Family> {
    // SAFETY: null, or a side, which is never unmapped.
    unsafe { KIN.load(Ordering::Acquire).as_ref() }
}

/// Before a fork: the child will have all sets.
pub(crate) fn sets_are_shared() {
    excluding_forks(|| {
        let list = kin().or_else(|| {
            let list = side::allocate()?;
            KIN.store(std::ptr::from_ref(list).cast_mut(), Ordering::Release);
            Some(list)
        });
        if let Some(list) = list {
            bears(list);
        }
    });
}

/// In the forked child.
pub(crate) fn sets_are_here() {
    if let Some(list) = kin() {
        is_born(list);
    }
}

/// The fork has failed.
pub(crate) fn sets_are_not_shared() {
    if let Some(list) = kin() {
        did_not_bear(list);
    }
}

/// Whether no process that was forked from this one, or from which it was, is there any more.
pub(crate) fn is_without_kin() -> bool {
    kin().is_some_and(has_only_me)
}
