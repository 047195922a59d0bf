//! Connections that have not proved yet that they know the key: neither one address nor all of them together get
//! all places. Addresses that the cluster file names do not compete with the others.
//!
//! When the places of some are full, nobody who comes is turned away: the connection goes that has been there longest, of the
//! address that has the most. A proof takes milliseconds: whoever fills places with connections that say nothing ends his own before
//! one that is about to prove. (A flood that comes faster than proofs are made is for a packet filter.)

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// From all addresses together that the cluster file does not name.
    pub(super) all: usize,
    /// From one of them.
    pub(super) each: usize,
}

/// Who is here.
#[derive(Clone, Debug)]
pub(super) struct Strangers {
    most: Most,
    here: Arc<Mutex<Here>>,
}

#[derive(Debug, Default)]
struct Here {
    /// By arrival.
    of: BTreeMap<u64, One>,
    next: u64,
}

#[derive(Debug)]
struct One {
    from: IpAddr,
    named: bool,
    /// To end it.
    stream: TcpStream,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    number: u64,
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

impl Here {
    /// Takes out the one that has been here longest of those that are `meant`, of whichever has the most of them.
    fn oldest<K: Eq + std::hash::Hash>(
        &mut self,
        meant: impl Fn(&One) -> bool,
        key: impl Fn(&One) -> K,
    ) -> Option<One> {
        let mut counts = HashMap::new();
        for one in self.of.values().filter(|one| meant(one)) {
            *counts.entry(key(one)).or_insert(0usize) += 1;
        }
        let most = counts.values().copied().max()?;
        let of_most = |one: &One| meant(one) && counts.get(&key(one)) == Some(&most);
        let number = self.of.iter().find(|(_, one)| of_most(one)).map(|(&number, _)| number)?;
        self.of.remove(&number)
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

    /// Counts one more, and ends another if there are too many: from where, if so. `named`: the address is in the
    /// cluster file.
    ///
    /// # Errors
    /// No descriptor to be had.
    pub(super) fn come(
        &self,
        stream: &TcpStream,
        from: IpAddr,
        named: bool,
    ) -> std::io::Result<(Stranger, Option<IpAddr>)> {
        let stream = stream.try_clone()?;
        let (from, around) = (from.to_canonical(), neighbourhood(from));
        let mut here = self.here();
        let near = |one: &One| neighbourhood(one.from) == around;
        let mut ended = None;
        if here.of.values().filter(|one| near(one)).count() >= self.most.each {
            ended = here.oldest(near, |one| one.from);
        } else if !named && here.of.values().filter(|one| !one.named).count() >= self.most.all {
            ended = here.oldest(|one| !one.named, |one| neighbourhood(one.from));
        }
        let number = here.next;
        here.next += 1;
        here.of.insert(number, One { from, named, stream });
        drop(here);
        let ended = ended.map(|one| {
            let _ = one.stream.shutdown(Shutdown::Both);
            one.from
        });
        Ok((Stranger { number, all: self.clone() }, ended))
    }
}

impl Stranger {
    /// Whether it is still one of them, and was not ended for another.
    pub(super) fn is_here(&self) -> bool {
        self.all.here().of.contains_key(&self.number)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let gone = self.all.here().of.remove(&self.number);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    struct Door(TcpListener, Strangers);

    /// Our end, and what the server has.
    struct Guest(TcpStream, Stranger, Option<IpAddr>);

    impl Door {
        fn new(most: Most) -> Door {
            Door(TcpListener::bind("127.0.0.1:0").unwrap(), Strangers::new(most))
        }

        fn come(&self, from: &str, named: bool) -> Guest {
            let ours = TcpStream::connect(self.0.local_addr().unwrap()).unwrap();
            let (theirs, _) = self.0.accept().unwrap();
            let from = from.parse().unwrap();
            let (stranger, ended) = self.1.come(&theirs, from, named).unwrap();
            Guest(ours, stranger, ended)
        }
    }

    impl Guest {
        fn is_ended(&mut self) -> bool {
            use std::io::Read;
            self.0.set_nonblocking(true).unwrap();
            let read = self.0.read(&mut [0]);
            assert_eq!(matches!(read, Ok(0)), !self.1.is_here(), "{read:?}");
            !self.1.is_here()
        }
    }

    #[test]
    fn who_fills_the_places_of_an_address_ends_his_own_and_nobody_is_turned_away() {
        let door = Door::new(Most { all: 10, each: 2 });
        let mut first = door.come("127.0.0.1", false);
        let mut second = door.come("127.0.0.1", false);
        let mut other = door.come("127.0.0.2", false);
        assert!(other.2.is_none());
        let mut third = door.come("127.0.0.1", false);
        assert_eq!(third.2, Some(IpAddr::from([127, 0, 0, 1])));
        assert!(first.is_ended() && !second.is_ended() && !third.is_ended() && !other.is_ended());
        drop((first, second));
        let fourth = door.come("127.0.0.1", false);
        assert!(fourth.2.is_none(), "there is a place for who has gone");
        drop((third, fourth, other));
        assert!(door.1.here().of.is_empty(), "who has gone is forgotten");
    }

    #[test]
    fn many_addresses_together_have_a_share_too() {
        let door = Door::new(Most { all: 4, each: 3 });
        let mut named = [door.come("127.0.0.20", true), door.come("127.0.0.20", true)];
        let mut one = door.come("127.0.0.1", false);
        let mut two = [(); 3].map(|()| door.come("127.0.0.2", false));
        let mut three = door.come("127.0.0.3", false);
        assert!(three.2.is_some() && two[0].is_ended(), "of whom there are most");
        assert!(!one.is_ended() && !two[1].is_ended() && !three.is_ended());
        assert!(!named.iter_mut().any(Guest::is_ended), "whom the cluster file names is apart");
    }

    #[test]
    fn addresses_that_one_host_can_choose_among_are_one_and_who_has_the_most_makes_room() {
        let door = Door::new(Most { all: 10, each: 3 });
        let mut node = door.come("2001:db8:1:2::1", true);
        let mut crowd = [(); 2].map(|()| door.come("2001:db8:1:2::66", true));
        let mut last = door.come("2001:db8:1:2::66", true);
        assert!(crowd[0].is_ended() && !crowd[1].is_ended() && !last.is_ended());
        assert!(!node.is_ended(), "older than any, and alone");
        assert!(door.come("2001:db8:1:3::1", true).2.is_none(), "another network");
        // IPv4, as a socket of both kinds tells it.
        let _three = ["::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"].map(|from| door.come(from, true));
        assert!(door.come("::ffff:10.0.0.2", true).2.is_none());
        assert!(door.come("10.0.0.1", true).2.is_some());
    }
}
