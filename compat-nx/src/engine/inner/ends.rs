//! Ends: of the job, and of the links that tell of a peer's.

use super::{Inner, OnFailure, OnRequest};
use crate::engine::handshake;
use crate::engine::peer::{Bye, Peer};
use crate::error::NxError;
use vmmc::CloseReason;
use vmmc::sync::Ordering;

impl Inner {
    /// Ends the job for this process: every call that waits or comes answers `error`.
    #[cold]
    pub(in crate::engine) fn fail(&self, error: NxError) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            *failure = Some(error);
            drop(failure);
            self.failed.store(true, Ordering::Release);
            self.data.wake_waiters();
            self.bell.wake_waiters();
        }
    }

    /// Ends the job with the error of a step of the protocol.
    #[inline]
    pub(in crate::engine) fn or_fail<T>(&self, step: Result<T, NxError>) -> Result<T, NxError> {
        step.inspect_err(|error| self.fail(error.clone()))
    }

    /// What ended the job, if anything did.
    #[inline]
    pub(in crate::engine) fn check(&self) -> Result<(), NxError> {
        if self.failed.load(Ordering::Relaxed) { self.failure() } else { Ok(()) }
    }

    /// Tells the program of a failure that no call of its may notice: it computes.
    pub(in crate::engine) fn tell_failure(&self) {
        if let (Err(error), Some(OnFailure(tell))) = (self.check(), self.on_failure.get())
            && error != NxError::NotStarted
        {
            tell(&error);
        }
    }

    #[cold]
    fn failure(&self) -> Result<(), NxError> {
        match self.failure.lock().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks at links that ended: a peer that did not say bye has died.
    #[inline]
    pub(in crate::engine) fn look_at_ends(&self) {
        if self.on_end.0.load(Ordering::Relaxed) {
            self.find_ends();
        }
    }

    #[cold]
    fn find_ends(&self) {
        handshake::unmark(&self.on_end.0);
        for peer in self.peers() {
            if peer.gone.load(Ordering::Relaxed) || peer.is_linked() {
                continue;
            }
            let bye = peer.bye();
            let ended = bye.is_none() && self.was_ended(peer);
            // Who leaves itself has nothing to do without a peer.
            let leaving = self.left.load(Ordering::Acquire);
            if bye == Some(Bye::Orderly) || ended || leaving {
                // Who finds it gone finds what it announced forgotten: its next call takes this lock.
                let mut state = self.state.lock();
                // All that it has sent has arrived: later nobody would know that it lacks its end.
                let goes_on = self.check().is_ok(); // or memory of receives is the program's again
                let polled = if ended && goes_on { state.poll(self, peer) } else { Ok(()) };
                peer.gone.store(true, Ordering::Relaxed);
                // Whoever waits for that one looks again, whichever thread took the mark.
                let forgotten = polled.and_then(|()| match bye {
                    None => state.forget_announced(self, peer),
                    Some(_) => Ok(()),
                });
                self.changed();
                drop(state);
                if let Err(error) = forgotten {
                    self.fail(error);
                }
                self.data.wake_waiters();
            } else {
                self.fail(self.lost(peer));
            }
        }
    }

    /// What is sent by deliberate update cannot be sent any more: to a peer that left in order, or was ended on request, it need
    /// not be, as what is stored on one machine reaches nobody then.
    #[cold]
    pub(in crate::engine) fn unsent(&self, peer: &Peer) -> Result<(), NxError> {
        match peer.bye() {
            Some(Bye::Orderly) => Ok(()),
            None if self.was_ended(peer) => Ok(()),
            _ => Err(self.lost(peer)),
        }
    }

    /// What a peer has announced cannot be read any more. Of one that was ended on request nobody reads it.
    #[cold]
    pub(in crate::engine) fn unread(&self, peer: &Peer, error: NxError) -> Result<(), NxError> {
        let is_lost = matches!(error, NxError::PeerDied { .. } | NxError::PeerLost { .. });
        if is_lost && peer.bye().is_none() && self.was_ended(peer) {
            return Ok(());
        }
        Err(error)
    }

    /// Whether somebody asked for the end of this peer.
    fn was_ended(&self, peer: &Peer) -> bool {
        is_wanted(self.on_request.as_ref(), peer)
    }

    /// Why a peer cannot be reached any more: it died, or the way to it is lost, or it left because of another one, and said
    /// which.
    #[cold]
    pub(in crate::engine) fn lost(&self, peer: &Peer) -> NxError {
        let node = match peer.bye() {
            // Nobody takes the blame from a peer's word for itself.
            Some(Bye::Failed { culprit })
                if culprit != self.own.node && culprit < self.processes() as u32 =>
            {
                culprit
            }
            None if is_out_of_reach(peer) => return NxError::PeerLost { node: peer.node },
            _ => peer.node,
        };
        NxError::PeerDied { node }
    }
}

/// Whether the link to a peer has ended with the way to its host, and not with the peer.
fn is_out_of_reach(peer: &Peer) -> bool {
    let closed = peer.out.import().check_open().err();
    closed.is_some_and(|closed| closed.reason == CloseReason::Unreachable)
}

/// Whether somebody asked for the end of this peer.
pub(in crate::engine) fn is_wanted(on_request: Option<&OnRequest>, peer: &Peer) -> bool {
    on_request.is_some_and(|asks| asks.0(peer.node, peer.out.import().exporter().pid))
}
