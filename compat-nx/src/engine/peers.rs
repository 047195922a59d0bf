//! All other processes of the job: those that it began with, and those that joined it later.

use super::numbers::Numbers;
use super::peer::Peer;
use std::sync::OnceLock;
use vmmc::sync::{AtomicUsize, Ordering};

/// How many may join later, for each process that the job began with.
const LATER_EACH: usize = 7;
/// And besides, on each host.
const LATER: usize = 64;

/// See the module. Grows only.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[OnceLock<Box<Peer>>]>,
    numbers: Numbers,
    /// One more than the highest number that is known.
    upto: AtomicUsize,
    /// Of each host the first number, of those who join later, that is not known.
    unknown: Box<[AtomicUsize]>,
    /// How many of the processes that are known are on this host, this one included.
    here: AtomicUsize,
}

impl Peers {
    /// For a job whose processes have these numbers.
    pub(super) fn new(numbers: Numbers) -> Peers {
        let first = numbers.first() as usize;
        let limit = first + first * LATER_EACH + LATER * numbers.turns().len();
        let unknown = |turn| AtomicUsize::new(numbers.of_turn(turn, first));
        Peers {
            places: (0..limit).map(|_| OnceLock::new()).collect(),
            upto: AtomicUsize::new(first),
            unknown: numbers.turns().map(unknown).collect(),
            here: AtomicUsize::new(1),
            numbers,
        }
    }

    /// Processes that the job began with, this one included.
    pub(super) fn first(&self) -> usize {
        self.numbers.first() as usize
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
        self.upto() == self.first()
    }

    /// How many processes are on this host, those that have left included.
    #[inline]
    pub(super) fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    /// Of each host the first number, of those who join later, that is not known; it and those that come after it, on that
    /// host.
    pub(super) fn unknown(&self) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        self.unknown.iter().map(|first| {
            let next = |&number: &usize| Some(self.numbers.next(number));
            let all = std::iter::successors(Some(first.load(Ordering::Relaxed)), next);
            all.take_while(|&number| number < self.limit()).map(|number| number as u32)
        })
    }

    /// How many processes may still join on the host of a node.
    pub(super) fn places_left(&self, node: u32) -> usize {
        let host = self.numbers.of_host_of(node, self.numbers.first());
        let turn = self.numbers.turn(host as usize);
        self.unknown().nth(turn).map_or(0, Iterator::count)
    }

    /// A number is known, and with it those before it of the same host. By one thread at a time.
    pub(super) fn know(&self, number: usize) {
        if number >= self.first()
            && let Some(unknown) = self.unknown.get(self.numbers.turn(number))
        {
            unknown.fetch_max(self.numbers.next(number), Ordering::Relaxed);
        }
        if self.upto.load(Ordering::Relaxed) <= number {
            // PAIRS(upto): with the acquire in `upto`.
            self.upto.store(number + 1, Ordering::Release);
        }
    }

    /// Who has a number below this one is known, or has left.
    pub(super) fn know_all_below(&self, number: usize) {
        for (turn, unknown) in self.unknown.iter().enumerate() {
            unknown.fetch_max(self.numbers.of_turn(turn, number), Ordering::Relaxed);
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
