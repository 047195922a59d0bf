//! Which process has which number, and which host it is on.
//!
//! The first process of each node has the node's number; the host process comes next. Who joins later takes the first
//! number of its host that was not given before (see [`super::joining`]), by exporting its door under it: the daemon of that
//! host gives a name once, and other hosts have other numbers, which go round.
//!
//! ```text
//!   nodes 0 to 3 on a, a, b, b, and a host process on a    those who join later
//!   0 1 2 3 4                                              on a: 5 7 9 ...   on b: 6 8 10 ...
//! ```

use std::sync::Arc;

/// How many may join later, for each process that the job began with.
const LATER_EACH: usize = 7;
/// And besides, on each host.
const LATER: usize = 64;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    first: u32,
    /// Of the processes that the job began with; empty: there is one host.
    hosts: Arc<[String]>,
    /// Each host once, in the order in which their numbers go round.
    turns: Arc<[String]>,
}

impl Numbers {
    /// For a job that began with `first` processes, on these hosts (see [`crate::Job::hosts`]).
    pub(super) fn new(first: u32, hosts: &Arc<[String]>) -> Numbers {
        let mut turns: Vec<String> = Vec::new();
        for host in hosts.iter() {
            if !turns.contains(host) {
                turns.push(host.clone());
            }
        }
        Numbers { first, hosts: hosts.clone(), turns: turns.into() }
    }

    /// How many processes the job began with.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The host of a process; `None` where there is but one.
    pub(super) fn host(&self, number: u32) -> Option<&str> {
        let host = match number.checked_sub(self.first) {
            None => self.hosts.get(number as usize),
            Some(later) => self.turns.get(later as usize % self.turns().len()),
        };
        host.map(String::as_str)
    }

    /// The turns of those who join later: one for each host.
    pub(super) fn turns(&self) -> std::ops::Range<usize> {
        0..self.turns.len().max(1)
    }

    /// The turn of those who join on the host of that node.
    pub(super) fn turn_of_host_of(&self, node: u32) -> usize {
        let host = self.hosts.get(node as usize);
        self.turns.iter().position(|it| Some(it) == host).unwrap_or(0)
    }

    /// How many numbers there are.
    pub(super) fn limit(&self) -> usize {
        let first = self.first as usize;
        first + first * LATER_EACH + LATER * self.turns().len()
    }

    /// Those of who joins later, of one turn.
    pub(super) fn later(&self, turn: usize) -> impl Iterator<Item = u32> {
        let first = self.first as usize + turn;
        (first..self.limit()).step_by(self.turns().len()).map(|number| number as u32)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    fn numbers(hosts: &[&str]) -> Numbers {
        let hosts: Arc<[String]> = hosts.iter().map(|&host| host.to_owned()).collect();
        Numbers::new(hosts.len() as u32, &hosts)
    }

    #[test]
    fn those_who_join_later_have_numbers_of_their_hosts() {
        let numbers = numbers(&["a", "a", "b", "b", "a"]);
        let hosts: Vec<_> = (0..9).map(|number| numbers.host(number).unwrap()).collect();
        assert_eq!(hosts, ["a", "a", "b", "b", "a", "a", "b", "a", "b"]);
        for (node, first) in [(0, [5, 7, 9]), (3, [6, 8, 10]), (4, [5, 7, 9])] {
            let later = numbers.later(numbers.turn_of_host_of(node));
            assert!(later.take(3).eq(first), "node {node}");
        }
        assert_eq!(numbers.later(0).chain(numbers.later(1)).count() + 5, numbers.limit());
        assert_eq!(numbers.limit(), 5 + 5 * LATER_EACH + 2 * LATER);
    }

    #[test]
    fn on_one_host_numbers_follow_each_other() {
        let numbers = Numbers::new(3, &Arc::default());
        assert_eq!(numbers.turns(), 0..1);
        assert_eq!(numbers.turn_of_host_of(2), 0);
        assert!(numbers.later(0).take(3).eq([3, 4, 5]));
        assert_eq!((numbers.host(0), numbers.host(7)), (None, None));
    }
}
