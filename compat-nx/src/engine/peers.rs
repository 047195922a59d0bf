//! All other processes of the job: those that it began with, and those that joined it later.
//!
//! A process has a number. The first process of each node has the node's; the host process comes next; who
//! joins later takes the first number that nobody has, by exporting its door under it.

use super::peer::Peer;
use std::sync::OnceLock;
use vmmc::sync::{AtomicUsize, Ordering};

/// How many may join later, for each process that the job began with.
const LATER_EACH: usize = 7;
/// And besides.
const LATER: usize = 64;

/// See the module. Grows only.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[OnceLock<Box<Peer>>]>,
    /// Processes that the job began with.
    first: usize,
    /// One more than the highest number that is known.
    upto: AtomicUsize,
}

impl Peers {
    /// For a job that began with `first` processes.
    pub(super) fn new(first: usize) -> Peers {
        let places = (0..first + first * LATER_EACH + LATER).map(|_| OnceLock::new()).collect();
        Peers { places, first, upto: AtomicUsize::new(first) }
    }

    /// Processes that the job began with, this one included.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Numbers that may be.
    pub(super) fn limit(&self) -> usize {
        self.places.len()
    }

    /// One more than the highest number that is known, this process's own included.
    #[inline]
    pub(super) fn upto(&self) -> usize {
        // PAIRS(upto): with the release in `know`.
        self.upto.load(Ordering::Acquire)
    }

    /// Whether each node has one process, so that its number says all.
    #[inline]
    pub(super) fn is_simple(&self) -> bool {
        self.upto() == self.first
    }

    /// Numbers up to this one are known. By one thread at a time.
    pub(super) fn know(&self, number: usize) {
        if self.upto.load(Ordering::Relaxed) <= number {
            // PAIRS(upto): with the acquire in `upto`.
            self.upto.store(number + 1, Ordering::Release);
        }
    }

    /// A process that links are open with.
    pub(super) fn add(&self, peer: Peer) {
        let number = peer.number as usize;
        if let Some(place) = self.places.get(number) {
            let _ = place.set(Box::new(peer)); // numbers are given once
            self.know(number);
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        let upto = self.upto();
        self.places.iter().take(upto).filter_map(OnceLock::get).map(|peer| &**peer)
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Peer> {
        self.places.get(number)?.get().map(|peer| &**peer)
    }
}
