//! A connection that was cut, by a reset on the way or because the other node was silent, goes on over another one.
//!
//! Its thread has the daemons make one. Both ends say how many bytes they have received, and send again what the other has not
//! ([`Kept`](crate::transport::net::kept::Kept)); so nothing comes twice, and a frame that was cut in two is whole. Whoever sends waits meanwhile, and
//! so does whoever waits for an answer. Where that cannot be (the interface does not know the connection any more, what it lacks is not kept,
//! or there is no way for too long) the connection is lost.

use super::Connection;
use crate::counters::index as count;
use crate::sync::Ordering;
use crate::sys::Fd;
use crate::transport::tcp::is_cut;
use crate::transport::tcp::seal::SealKeys;
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::time::{Duration, Instant};

/// A cut, as whoever has another connection made is told of it.
pub struct Cut<'c> {
    /// Bytes that were received.
    pub position: u64,
    /// Whether nobody wants the connection any more.
    pub is_over: &'c dyn Fn() -> bool,
}

impl std::fmt::Debug for Cut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cut").field("position", &self.position).finish_non_exhaustive()
    }
}

/// Called when the connection was cut; waits for another one. `None`: there is none.
pub type OnCut = Box<dyn Fn(&Cut<'_>) -> Option<Back> + Send + Sync>;

/// Another connection, on which a cut one goes on.
#[derive(Debug)]
pub struct Back {
    /// Its socket.
    pub socket: Fd,
    /// With what it is sealed.
    pub seal: Option<SealKeys>,
    /// Bytes that the interface has received.
    pub position: u64,
}

/// What is remembered of a cut, so that a connection that is cut again and again, and on which nothing gets through, ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastCut {
    /// When it went on.
    at: Instant,
    /// Since when it has so in vain.
    since: Instant,
    /// Bytes that either end had received.
    positions: [u64; 2],
    /// The interface lacked some that were sent.
    owed: bool,
    /// Bytes that the other node's kernel had acknowledged before any of this was sent.
    acknowledged: u64,
}

/// Shortest life of a connection; one that is cut sooner waits before the next.
const PAUSE: Duration = Duration::from_millis(200);
/// How long it may be cut again and again before any of what it owes gets through.
const IN_VAIN: Duration = Duration::from_secs(10);
/// A life of so long was not in vain if the other node's kernel has acknowledged anything: its interface may have no room.
const A_LIFE: Duration = Duration::from_secs(1);

impl Connection {
    /// Whether it was cut, and may go on.
    pub(super) fn is_cut(&self) -> bool {
        self.on_cut.is_some() && self.wire.is_cut() && !self.is_closed.load(Ordering::Acquire)
    }

    /// After a send that failed: waits for what the thread makes of it. `life`: of before the send. False where it was no cut.
    pub(super) fn goes_on_after(&self, errno: Errno, life: u64) -> bool {
        // Behind a cut that another has found, and behind an end, it is `EPIPE`; the thread finds either.
        let is_found = errno == Errno::PIPE || is_cut(errno);
        let mut state = self.state.lock();
        while is_found && self.on_cut.is_some() && !state.lost {
            if self.life.load(Ordering::Acquire) != life {
                return true;
            }
            state = self.changed.wait(state, None);
        }
        false
    }

    /// Goes on over another connection; false if there is none.
    pub(super) fn revive(&self) -> bool {
        let Some(on_cut) = &self.on_cut else { return false };
        // Until then nobody receives from either.
        let mut inbox = self.inbox.lock();
        self.receive(&mut inbox);
        if !self.is_cut() || self.is_lost() {
            return false;
        }
        let acknowledged = self.wire.acknowledged();
        self.wire.part();
        let taken = self.wire.taken();
        let last = *self.cut.lock();
        let life = last.map(|last| last.at.elapsed());
        let got_through =
            life >= Some(A_LIFE) && last.is_some_and(|last| acknowledged > last.acknowledged);
        if life.is_some_and(|life| life < PAUSE) {
            std::thread::sleep(PAUSE);
        }
        let is_over = || self.is_closed.load(Ordering::Acquire);
        let Some(back) = on_cut(&Cut { position: taken, is_over: &is_over }) else {
            return false;
        };
        let Back { socket, seal, position } = back;
        let in_vain =
            last.filter(|last| last.owed && last.positions == [taken, position] && !got_through);
        let since = in_vain.map_or_else(Instant::now, |last| last.since);
        let acknowledged = crate::sys::socket::acknowledged(&socket);
        let resumed = {
            let spinning = self.spinning.lock();
            self.wire.resume((&socket, seal.as_ref(), position), *spinning == 0)
        };
        if resumed.is_err() || is_over() || since.elapsed() > IN_VAIN {
            // The daemon has a copy of it.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            return false;
        }
        drop(socket);
        let owed = self.wire.sent() > position;
        *self.cut.lock() = Some(LastCut {
            at: Instant::now(),
            since,
            positions: [taken, position],
            owed,
            acknowledged,
        });
        if let Some(meter) = &self.meter {
            meter.add(count::NET_RESUMED, 1); // before anybody can see what came of it
        }
        let state = self.state.lock();
        self.life.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
        // Nobody may be sending. What comes meanwhile is received, so that the interface does, too.
        while let Err(Errno::AGAIN | Errno::INTR) = self.wire.settle() {
            self.receive(&mut inbox);
            if self.is_lost() || self.is_cut() {
                break; // the thread looks again
            }
            if !self.wire.wait_for_room(Duration::from_millis(100)) {
                self.wire.look();
            }
        }
        true
    }
}
