//! All other processes of the job: those that it began with, and those that joined it later.

use super::door::Door;
use super::numbers::Numbers;
use super::peer::Peer;
use std::sync::OnceLock;
use vmmc::sync::{AtomicUsize, Ordering};

/// See the module. Grows only.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[OnceLock<Box<Peer>>]>,
    numbers: Numbers,
    /// Where they call at this process.
    door: Door,
    /// One more than the highest number that is known.
    upto: AtomicUsize,
    /// Of each host the first number, of those who join later, that is not known.
    unknown: Box<[AtomicUsize]>,
    /// How many of the processes that are known are on this host, this one included.
    here: AtomicUsize,
}

impl Peers {
    /// For a job whose processes have these numbers. `given`: of each host the first number, of those who join later, whose
    /// process is neither known from now on, nor has left.
    pub(super) fn new(numbers: Numbers, door: Door, given: &[usize]) -> Peers {
        for (turn, &number) in given.iter().enumerate() {
            door.tell_given(turn, number);
        }
        Peers {
            places: (0..numbers.limit()).map(|_| OnceLock::new()).collect(),
            upto: AtomicUsize::new(numbers.first() as usize),
            unknown: given.iter().copied().map(AtomicUsize::new).collect(),
            here: AtomicUsize::new(1),
            numbers,
            door,
        }
    }

    /// This process's door.
    pub(super) fn door(&self) -> &Door {
        &self.door
    }

    /// Processes that the job began with, this one included.
    pub(super) fn first(&self) -> usize {
        self.numbers.first() as usize
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
        self.upto() == self.first()
    }

    /// How many processes are on this host, those that have left included.
    #[inline]
    pub(super) fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    /// Of each host the first number, of those who join later, that is not known.
    pub(super) fn unknown(&self) -> Vec<usize> {
        self.unknown.iter().map(|first| first.load(Ordering::Relaxed)).collect()
    }

    /// How many processes may still join on the host of a node.
    pub(super) fn places_left(&self, node: u32) -> usize {
        let unknown = self.unknown.get(self.numbers.turn_of_host_of(node));
        unknown.map_or(0, |first| self.numbers.from(first.load(Ordering::Relaxed)).count())
    }

    /// A number is known, and with it those before it of the same host. By one thread at a time.
    pub(super) fn know(&self, number: usize) {
        let turn = self.numbers.turn(number);
        let next = self.numbers.next(number);
        if number >= self.first()
            && let Some(unknown) = self.unknown.get(turn)
            && unknown.fetch_max(next, Ordering::Relaxed) < next
        {
            self.door.tell_given(turn, next);
        }
        if self.upto.load(Ordering::Relaxed) <= number {
            // PAIRS(upto): with the acquire in `upto`.
            self.upto.store(number + 1, Ordering::Release);
        }
    }

    /// A process that links are open with.
    pub(super) fn add(&self, peer: Peer) {
        let number = peer.number as usize;
        if let Some(place) = self.places.get(number) {
            if !peer.out.is_elsewhere() {
                self.here.fetch_add(1, Ordering::Relaxed);
            }
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
