//! All other processes of the job: those that it began with, and those that joined it later.

use super::door::Door;
use super::given::{self, Given};
use super::numbers::Numbers;
use super::peer::Peer;
use std::sync::OnceLock;
use vmmc::sync::{AtomicU32, AtomicUsize, Ordering};

/// See the module. Grows only.
#[derive(Debug)]
pub(super) struct Peers {
    places: Box<[OnceLock<Box<Peer>>]>,
    numbers: Numbers,
    /// Where they call at this process.
    door: Door,
    /// One more than the highest number that is known.
    upto: AtomicUsize,
    /// [`Given`].
    given: Box<[AtomicU32]>,
    /// How many of the processes that are known are on this host, this one included.
    here: AtomicUsize,
}

impl Peers {
    /// For a job whose processes have these numbers, of which these are known to have been given.
    pub(super) fn new(numbers: Numbers, door: Door, given: &Given) -> Peers {
        Peers {
            places: (0..numbers.limit()).map(|_| OnceLock::new()).collect(),
            upto: AtomicUsize::new(numbers.first() as usize),
            given: given.words().iter().copied().map(AtomicU32::new).collect(),
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

    /// Which numbers are known to have been given.
    pub(super) fn given(&self) -> Given {
        let mut given = Given::none(self.numbers.limit());
        given.hear(self.given.iter().map(|word| word.load(Ordering::Relaxed)));
        given
    }

    /// How many processes may still join on the host of a node.
    pub(super) fn places_left(&self, node: u32) -> usize {
        let given = self.given();
        let later = self.numbers.later(self.numbers.turn_of_host_of(node));
        later.filter(|&number| !given.has(number as usize)).count()
    }

    /// A number has been given, to this process or to one that links are open with; all others can hear of it. By one thread at a
    /// time.
    pub(super) fn know(&self, number: usize) {
        let (at, bit) = given::bit(number);
        if let Some(word) = self.given.get(at) {
            self.door.tell_given(at, word.fetch_or(bit, Ordering::Relaxed) | bit);
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
