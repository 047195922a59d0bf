//! What one end of an upgraded connection must be able to rely on: its positions, its locks,
//! how much it has consumed.
//!
//! It lives in anonymous memory of this process that forked children share, and that the peer
//! cannot reach. So parent and child can both use a connection after a fork, and a hostile peer
//! cannot make us wait on a lock or believe a position.
//!
//! The memory comes from chunks that are never unmapped. A side is given back when the last
//! process that shares it does; one whose process was killed is lost until its relatives end.

use crate::lock::Lock;
use rustix::mm::{MapFlags, ProtFlags};
use vmmc::sync::{AtomicU32, AtomicU64, Ordering};

/// States of our sending direction ([`Side::tx_state`]).
pub(crate) mod tx {
    /// Data goes to the kernel, for now.
    pub(crate) const TCP: u32 = 0;
    /// Data goes to the ring.
    pub(crate) const RING: u32 = 1;
    /// The last ring part is over; data goes to the kernel for good.
    pub(crate) const ENDED: u32 = 2;
    /// The peer wrote nonsense: every call fails.
    pub(crate) const POISONED: u32 = 3;
}

/// States of our receiving direction ([`Side::rx_state`]).
pub(crate) mod rx {
    /// The peer has not been seen to switch, or not since its last ring part was read to the end.
    pub(crate) const TCP: u32 = 0;
    /// It has: `rx_left` bytes of TCP, then the ring.
    pub(crate) const RING: u32 = 1;
    /// The last ring part was read to its end; data comes from the kernel for good.
    pub(crate) const ENDED: u32 = 2;
    /// The peer wrote nonsense: every call fails.
    pub(crate) const POISONED: u32 = 3;
}

/// One end's own state. Two lines for sending, two for receiving, and two for what changes with a ring part.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Side {
    /// Held for every use of the sending end.
    pub(crate) tx_lock: Lock,
    /// One of [`tx`]; changed under `tx_lock`.
    pub(crate) tx_state: AtomicU32,
    /// The direction stays, or is to be, TCP for good.
    pub(crate) tx_frozen: AtomicU32,
    /// Sends since the peer's head last moved while the ring was not empty.
    pub(crate) tx_stuck: AtomicU32,
    /// True tail. Under `tx_lock`.
    pub(crate) tail: AtomicU64,
    /// Last valid head of the peer. Under `tx_lock`.
    pub(crate) head_seen: AtomicU64,
    /// Doorbells sent in this ring part, on our way of the TCP connection.
    pub(crate) bells: AtomicU64,
    /// Of these, ones that the kernel had no room for: sent before anything else.
    pub(crate) bells_owed: AtomicU32,
    /// Threads now sending a doorbell, and [`GATE_CLOSED`] outside of ring parts, where none may be sent.
    pub(crate) bell_gate: AtomicU32,
    /// Counts sends that found the ring full and said `EAGAIN`: each waits for an edge of writability.
    pub(crate) tx_refused: AtomicU32,
    /// Forked children that are not in `members` yet ([`crate::family`]).
    pub(crate) born: AtomicU32,
    /// Processes that have the socket, by pid ([`crate::family`]); 0: free.
    pub(crate) members: [AtomicU32; 14],

    /// Held for every use of the receiving end.
    pub(crate) rx_lock: Lock,
    /// One of [`rx`]; changed under `rx_lock`.
    pub(crate) rx_state: AtomicU32,
    /// Data bytes still to come by TCP before the ring. Under `rx_lock`.
    pub(crate) rx_left: AtomicU64,
    /// True head. Under `rx_lock`.
    pub(crate) head: AtomicU64,
    /// Last valid tail of the peer. Under `rx_lock`.
    pub(crate) tail_seen: AtomicU64,
    /// Doorbells of this ring part thrown away. Under `rx_lock`.
    pub(crate) drained: AtomicU64,
    /// Threads asleep in the kernel for data of this connection.
    pub(crate) rx_sleepers: AtomicU32,
    /// Error that the kernel told once, to us: to a receive it is told after the data of the ring, to a send at once
    /// ([`Side::keep_error`]).
    kept_error: AtomicU32,
    /// `stream::SHUT_READ`, `SHUT_WRITE` (by ourselves), `GONE`, `SENT_AFTER`, `FIN_OWED`.
    pub(crate) shut: AtomicU32,
    /// Processes that share the connection: by fork, or because it was passed to them ([`crate::family`]).
    pub(crate) sharers: AtomicU32,
    /// Whether readers must leave the connection armed: somebody we cannot see may wait. Bits [`NESTED`] and [`FORKED`].
    pub(crate) eager: AtomicU32,
    /// Threads inside a plain send of the C library that began when the connection had its segment.
    pub(crate) plain_tx: AtomicU32,
    /// Number plus one of the doorbell of the daemon that carries the connection to another node; 0: nobody does
    /// ([`crate::carrier`]).
    pub(crate) carrier: AtomicU32,
    /// What that number stood for.
    pub(crate) carrier_is: AtomicU64,
    /// Times a reader has left it armed for another process.
    pub(crate) armed_for_others: AtomicU32,
    /// Forks at which it was there; never goes back.
    pub(crate) births: AtomicU32,
    /// Where the peer's head stood when our ring was found full ([`crate::stream::full`]).
    pub(crate) full_at: AtomicU64,
    /// When that was, in nanoseconds; 0: never.
    pub(crate) full_since: AtomicU64,
    /// When a receive last polled in vain and said `EAGAIN`, in nanoseconds; 0: bytes were taken since
    /// ([`crate::stream::second_look`]).
    pub(crate) empty_at: AtomicU64,
    pad: [u32; 2],

    /// When our direction last came to rest, in nanoseconds; under `tx_lock`, as the next ([`crate::stream::full`]).
    pub(crate) rested_at: AtomicU64,
    /// How long it rests, in nanoseconds; 0: it never has.
    pub(crate) rest: AtomicU64,
    /// What the kernel's count of bytes sent lacks because of the ring parts before this one, less the tail at which it began.
    pub(crate) tx_before: AtomicU64,
    /// The same of bytes received, less the head.
    pub(crate) rx_before: AtomicU64,
    /// When a ring part was last read to its end, in nanoseconds; 0: none was. Under `rx_lock`.
    pub(crate) part_over_at: AtomicU64,
    /// Ring parts read to their end, after which another may come. Under `rx_lock`.
    pub(crate) parts_read: AtomicU32,
    /// We have asked the peer to send by TCP. Under `rx_lock`.
    pub(crate) asked: AtomicU32,
    /// Somebody is putting right what the next ring part needs, or has died at it. Under `rx_lock`.
    pub(crate) comes_back: AtomicU32,
    /// A process has asked for urgent data: the kernel may count unread bytes up to its place only.
    pub(crate) took_urgent: AtomicU32,
    /// The socket was left to a program, or to the kernel, where we do not see it ([`crate::family::is_left_to_others`]).
    pub(crate) given: AtomicU32,
    pad2: [u32; 17],
}

/// Bit of [`Side::eager`]: in a set that is in a set, in a poll or in a select.
pub(crate) const NESTED: u32 = 1;
/// Bit of [`Side::eager`]: another process has it by a fork.
pub(crate) const FORKED: u32 = 2;

/// Bit of [`Side::bell_gate`].
pub(crate) const GATE_CLOSED: u32 = 1 << 31;

const _: () = assert!(size_of::<Side>() == 384, "a side is three pairs of lines");

const CHUNK: usize = 64 * 1024;

/// Free sides of this process, linked through `tail`, and the chunk in use.
struct Pool {
    lock: Lock,
    /// Address of the first free side, 0 for none.
    free: AtomicU64,
}

static POOL: Pool = Pool { lock: Lock::new(), free: AtomicU64::new(0) };

/// A fresh side, all zero but for one sharer.
pub(crate) fn allocate() -> Option<&'static Side> {
    POOL.lock.lock().ok()?;
    if POOL.free.load(Ordering::Relaxed) == 0 {
        refill();
    }
    let address = POOL.free.load(Ordering::Relaxed);
    let side = (address != 0).then(|| {
        // SAFETY: only addresses of sides in chunks that are never unmapped are in the list.
        let side = unsafe { &*std::ptr::with_exposed_provenance::<Side>(address as usize) };
        POOL.free.store(side.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        side
    });
    POOL.lock.unlock();
    let side = side?;
    side.clear();
    Some(side)
}

/// Gives up this process's share.
pub(crate) fn release(side: &'static Side) {
    release_after(side, |_| ());
}

/// The same: `last` is done with the side when the share is given up, and before anybody can have it anew.
pub(crate) fn release_after(side: &'static Side, last: impl FnOnce(&Side)) {
    let was_last = side.sharers.fetch_sub(1, Ordering::AcqRel) == 1;
    last(side);
    if !was_last || POOL.lock.lock().is_err() {
        return;
    }
    push(side);
    POOL.lock.unlock();
}

fn push(side: &'static Side) {
    side.tail.store(POOL.free.load(Ordering::Relaxed), Ordering::Relaxed);
    let address = std::ptr::from_ref(side).expose_provenance();
    POOL.free.store(address as u64, Ordering::Relaxed);
}

fn refill() {
    // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
    let chunk = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            CHUNK,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    };
    let Ok(chunk) = chunk else { return };
    for i in 0..CHUNK / size_of::<Side>() {
        // SAFETY: inside the chunk.
        let side = unsafe { chunk.cast::<Side>().add(i) };
        // SAFETY: mapped for ever, page aligned, all zero, which is valid for every field;
        // accessed through atomics only.
        push(unsafe { &*side });
    }
}

/// In a forked child: the free list belongs to the parent.
pub(crate) fn after_fork() {
    POOL.lock.reset();
    POOL.free.store(0, Ordering::Relaxed);
}

impl Side {
    /// Keeps an error of the connection that the kernel has told us, and tells once, for a later call of the program. What
    /// concerns one call alone is nobody else's.
    #[cold]
    pub(crate) fn keep_error(&self, errno: i32) {
        let is_of_connection = matches!(
            errno,
            libc::ECONNRESET
                | libc::ECONNABORTED
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::ENETRESET
                | libc::EPROTO
        );
        if is_of_connection {
            self.kept_error.store(errno as u32, Ordering::Relaxed);
        }
    }

    /// Whether one is kept.
    #[inline]
    pub(crate) fn has_error(&self) -> bool {
        self.kept_error.load(Ordering::Relaxed) != 0
    }

    /// Takes the error that was kept, to tell it.
    #[inline]
    pub(crate) fn take_error(&self) -> Option<i32> {
        if !self.has_error() {
            return None;
        }
        match self.kept_error.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(errno as i32),
        }
    }

    fn clear(&self) {
        for word in [
            &self.tx_state,
            &self.plain_tx,
            &self.tx_frozen,
            &self.tx_stuck,
            &self.bells_owed,
            &self.tx_refused,
            &self.rx_state,
            &self.rx_sleepers,
            &self.kept_error,
            &self.shut,
            &self.eager,
            &self.armed_for_others,
            &self.born,
            &self.carrier,
            &self.parts_read,
            &self.asked,
            &self.comes_back,
            &self.took_urgent,
            &self.given,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for member in &self.members {
            member.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.tail,
            &self.head_seen,
            &self.bells,
            &self.rx_left,
            &self.head,
            &self.tail_seen,
            &self.drained,
            &self.full_since,
            &self.rest,
            &self.tx_before,
            &self.rx_before,
            &self.part_over_at,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.bell_gate.store(GATE_CLOSED, Ordering::Relaxed);
        self.tx_lock.reset();
        self.rx_lock.reset();
        self.sharers.store(1, Ordering::Release);
    }
}
