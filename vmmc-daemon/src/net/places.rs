//! Places of which nobody takes all: each holder has a few at most.

use super::lock;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::thread::Thread;

/// How many each holder has now.
#[derive(Clone, Debug)]
pub(crate) struct Places<K> {
    each: usize,
    taken: Arc<Mutex<HashMap<K, Taken>>>,
}

/// Those of one holder.
#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// Who waits for one, the first one first.
    waiting: VecDeque<Thread>,
}

/// One of them. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place<K: Eq + Hash> {
    places: Places<K>,
    holder: K,
}

impl<K: Clone + Eq + Hash> Places<K> {
    /// Nobody has one; of one holder at most so many.
    pub(crate) fn new(each: usize) -> Places<K> {
        Places { each, taken: Arc::default() }
    }

    /// Another one for a holder; `None` when it has all of its own.
    pub(crate) fn take(&self, holder: &K) -> Option<Place<K>> {
        let mut taken = lock(&self.taken);
        self.take_in(taken.entry(holder.clone()).or_default(), holder)
    }

    /// The same, once it has one left.
    pub(crate) fn wait(&self, holder: &K) -> Place<K> {
        let thread = std::thread::current();
        loop {
            let mut taken = lock(&self.taken);
            let of = taken.entry(holder.clone()).or_default();
            of.waiting.retain(|it| it.id() != thread.id());
            if let Some(place) = self.take_in(of, holder) {
                return place;
            }
            of.waiting.push_back(thread.clone());
            drop(taken);
            std::thread::park();
        }
    }

    fn take_in(&self, of: &mut Taken, holder: &K) -> Option<Place<K>> {
        if of.count >= self.each {
            return None;
        }
        of.count += 1;
        Some(Place { places: self.clone(), holder: holder.clone() })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        if let Some(of) = taken.get_mut(&self.holder) {
            of.count -= 1;
            match of.waiting.pop_front() {
                Some(next) => next.unpark(),
                None if of.count == 0 => drop(taken.remove(&self.holder)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_its_places_and_leaves_the_others_to_others() {
        let places = Places::new(2);
        let first = places.take(&"a").unwrap();
        let second = places.take(&"a").unwrap();
        assert!(places.take(&"a").is_none());
        let other = places.take(&"b").unwrap();
        drop(first);
        let again = places.take(&"a").unwrap();
        assert!(places.take(&"a").is_none());
        drop((again, second, other));
        assert!(places.taken.lock().unwrap().is_empty());
    }

    #[test]
    fn a_holder_that_waits_has_the_next_place_of_its_own() {
        let places = Places::new(1);
        let (first, other) = (places.wait(&"a"), places.wait(&"b"));
        let waiting = places.clone();
        let (say, told) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || say.send(waiting.wait(&"a").holder).unwrap());
        drop(other);
        assert!(told.try_recv().is_err());
        drop(first);
        assert_eq!(told.recv(), Ok("a"));
        waits.join().unwrap();
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
