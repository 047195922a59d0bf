//! Places of which nobody takes all: each holder has a few at most.

use super::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// How many each holder has now.
#[derive(Clone, Debug)]
pub(super) struct Places<K> {
    each: usize,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

/// One of them. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash> {
    places: Places<K>,
    holder: K,
}

impl<K: Clone + Eq + Hash> Places<K> {
    /// Nobody has one; of one holder at most so many.
    pub(super) fn new(each: usize) -> Places<K> {
        Places { each, taken: Arc::default() }
    }

    /// Another one for a holder; `None` when it has all of its own.
    pub(super) fn take(&self, holder: &K) -> Option<Place<K>> {
        let mut taken = lock(&self.taken);
        let count = taken.entry(holder.clone()).or_insert(0);
        if *count >= self.each {
            return None;
        }
        *count += 1;
        Some(Place { places: self.clone(), holder: holder.clone() })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        if let Some(count) = taken.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.holder);
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
}
