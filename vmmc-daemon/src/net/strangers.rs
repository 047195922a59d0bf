//! Connections that have not proved yet that they know the key: neither one address nor all of them together get
//! all places. Addresses that the cluster file names do not compete with the others: whoever fills the places of
//! strangers keeps out strangers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// From all addresses together that the cluster file does not name.
    pub(super) all: usize,
    /// From one of them.
    pub(super) each: usize,
}

/// How many there are, in all and of each address.
#[derive(Clone, Debug)]
pub(super) struct Strangers {
    most: Most,
    here: Arc<Mutex<Here>>,
}

#[derive(Debug, Default)]
struct Here {
    /// Of addresses that are not named.
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    from: IpAddr,
    /// How many places of all it takes.
    of_all: usize,
    all: Strangers,
}

/// What counts as one address: of IPv6 the network of 64 bits, which is the least that anybody is given (RFC 6177,
/// section 2; RFC 4291, section 2.5.1).
pub(super) fn neighbourhood(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(from) => Ipv6Addr::from_bits(from.to_bits() >> 64 << 64).into(),
        from => from,
    }
}

impl Strangers {
    /// Nobody yet.
    pub(super) fn new(most: Most) -> Strangers {
        Strangers { most, here: Arc::default() }
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more, unless there are too many. `named`: its address is in the cluster file.
    pub(super) fn come(&self, from: IpAddr, named: bool) -> Option<Stranger> {
        let (from, of_all) = (neighbourhood(from), usize::from(!named));
        let mut here = self.here();
        let of = here.of.get(&from).copied().unwrap_or(0);
        let all = here.all + of_all;
        if all > self.most.all || of >= self.most.each {
            return None;
        }
        here.all = all;
        here.of.insert(from, of + 1);
        drop(here);
        Some(Stranger { from, of_all, all: self.clone() })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut here = self.all.here();
        here.all -= self.of_all;
        if let Some(count) = here.of.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                here.of.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_its_share_and_others_theirs() {
        let all = Strangers::new(Most { all: 10, each: 2 });
        let (one, two) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let first = all.come(one, false).unwrap();
        let _second = all.come(one, false).unwrap();
        assert!(all.come(one, false).is_none());
        let other = all.come(two, false).unwrap();
        drop(first);
        assert!(all.come(one, false).is_some());
        drop(other);
        assert_eq!(all.here().of.keys().collect::<Vec<_>>(), [&one], "who has gone is forgotten");
    }

    #[test]
    fn many_addresses_together_have_a_share_too() {
        let from = |last| IpAddr::from([127, 0, 0, last]);
        let all = Strangers::new(Most { all: 4, each: 2 });
        let mut crowd: Vec<_> = (0..4).map(|last| all.come(from(last), false).unwrap()).collect();
        assert!(all.come(from(9), false).is_none());
        assert_eq!(all.here().of.len(), 4, "who was refused is not counted");
        let named = [all.come(from(20), true).unwrap(), all.come(from(20), true).unwrap()];
        assert!(
            all.come(from(20), true).is_none(),
            "whom the cluster file names has a share as well"
        );
        drop(named);
        assert!(all.come(from(9), false).is_none(), "and leaves no place to others");
        crowd.pop();
        assert!(all.come(from(9), false).is_some());
    }

    #[test]
    fn addresses_that_one_host_can_choose_among_are_one() {
        let all = Strangers::new(Most { all: 10, each: 1 });
        let here = |text: &str| all.come(text.parse().unwrap(), false);
        let _first = here("2001:db8:1:2:3:4:5:6").unwrap();
        assert!(here("2001:db8:1:2:ffff::1").is_none());
        let _next = here("2001:db8:1:3::1").unwrap();
        // IPv4, as a socket of both kinds tells it.
        let _mapped = here("::ffff:10.0.0.1").unwrap();
        let _other = here("::ffff:10.0.0.2").unwrap();
        assert!(here("10.0.0.1").is_none());
    }
}
