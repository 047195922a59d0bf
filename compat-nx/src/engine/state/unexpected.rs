//! Messages that came before a receive was posted for them, in order of arrival.
//!
//! A program may let any number of them pile up and take them in any order, so neither a receive nor a
//! sender in want of slots may look at all of them. Three indexes are kept: all messages by arrival;
//! those of one channel, type and source; and those of each process that still occupy its slots and
//! safe copies, of which there are no more than it has.

use crate::engine::layout::Scout;
use crate::engine::ops::Head;
use crate::engine::types::Select;
use std::collections::{BTreeMap, VecDeque};

/// Where an unexpected message is.
#[derive(Debug)]
pub(super) enum Body {
    /// Still in its slot.
    Slot { slot: usize },
    /// In the sender's safe copy, now or soon.
    Staged(Scout),
    /// Here.
    Here(Box<[u8]>),
}

/// A message that no receive was posted for.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) head: Head,
    /// The process it came from.
    pub(super) from: usize,
    pub(super) body: Body,
}

/// A message's number: they count up as messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival(u64);

/// Channel, type and source node.
type Kind = (u32, i32, i32);

fn kind_of(head: &Head) -> Kind {
    (head.channel, head.info.type_, head.info.node)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unexpected {
    next: u64,
    all: BTreeMap<Arrival, Message>,
    /// Never empty lists.
    kinds: BTreeMap<Kind, VecDeque<Arrival>>,
    /// By process: those whose body is not here.
    away: BTreeMap<usize, VecDeque<Arrival>>,
}

impl Unexpected {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn push(&mut self, message: Message) {
        let arrival = Arrival(self.next);
        self.next += 1;
        self.kinds.entry(kind_of(&message.head)).or_default().push_back(arrival);
        if !matches!(message.body, Body::Here(_)) {
            self.away.entry(message.from).or_default().push_back(arrival);
        }
        self.all.insert(arrival, message);
    }

    pub(super) fn get(&self, arrival: Arrival) -> Option<&Message> {
        self.all.get(&arrival)
    }

    /// The first message of a channel that is selected, and for the process type `own` if one is asked for.
    pub(super) fn first(&self, channel: u32, select: Select, own: Option<i32>) -> Option<Arrival> {
        let fits = |arrival: &&Arrival| {
            self.all.get(arrival).is_some_and(|message| {
                own.is_none_or(|own| message.head.ptype == own)
                    && (select.ptype == -1 || message.head.info.ptype == select.ptype)
            })
        };
        let earliest = |kinds: &mut dyn Iterator<Item = (&Kind, &VecDeque<Arrival>)>| {
            kinds
                .filter(|((_, type_, node), _)| select.takes(*type_, *node, select.ptype))
                .filter_map(|(_, arrivals)| arrivals.iter().find(fits))
                .min()
                .copied()
        };
        match (select.typesel, select.node) {
            (type_ @ 0.., -1) => {
                let nodes = (channel, type_, i32::MIN)..=(channel, type_, i32::MAX);
                earliest(&mut self.kinds.range(nodes))
            }
            (type_ @ 0.., node) => {
                self.kinds.get(&(channel, type_, node))?.iter().find(fits).copied()
            }
            // Almost always the first of all.
            (-1, -1) => self
                .all
                .iter()
                .filter(|(_, message)| message.head.channel == channel)
                .find(|(arrival, message)| {
                    let info = message.head.info;
                    select.takes(info.type_, info.node, info.ptype) && fits(arrival)
                })
                .map(|(arrival, _)| *arrival),
            _ => {
                let types = (channel, i32::MIN, i32::MIN)..=(channel, i32::MAX, i32::MAX);
                earliest(&mut self.kinds.range(types))
            }
        }
    }

    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<Message> {
        let message = self.all.remove(&arrival)?;
        let kind = kind_of(&message.head);
        if let Some(arrivals) = self.kinds.get_mut(&kind) {
            forget(arrivals, arrival);
            if arrivals.is_empty() {
                self.kinds.remove(&kind);
            }
        }
        if !matches!(message.body, Body::Here(_)) {
            self.is_here(message.from, arrival);
        }
        Some(message)
    }

    /// Messages of this process that occupy its slots and safe copies, first come first.
    pub(super) fn away(&self, from: usize) -> Vec<Arrival> {
        self.away.get(&from).into_iter().flatten().copied().collect()
    }

    /// Forgets those of a process that are in its safe copies.
    pub(super) fn forget_staged(&mut self, from: usize) {
        for arrival in self.away(from) {
            if matches!(self.get(arrival), Some(Message { body: Body::Staged(_), .. })) {
                self.remove(arrival);
            }
        }
    }

    /// The message's bytes have been copied to this process's own memory.
    pub(super) fn bring(&mut self, arrival: Arrival, bytes: Box<[u8]>) {
        if let Some(message) = self.all.get_mut(&arrival) {
            message.body = Body::Here(bytes);
            let from = message.from;
            self.is_here(from, arrival);
        }
    }

    fn is_here(&mut self, from: usize, arrival: Arrival) {
        if let Some(arrivals) = self.away.get_mut(&from) {
            forget(arrivals, arrival);
        }
    }
}

/// Takes a number out of a sorted list; almost always its first.
fn forget(arrivals: &mut VecDeque<Arrival>, arrival: Arrival) {
    if arrivals.front() == Some(&arrival) {
        arrivals.pop_front();
    } else if let Ok(index) = arrivals.binary_search(&arrival) {
        arrivals.remove(index);
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::engine::types::{FORCE_TYPE, Info};
    use proptest::prelude::*;

    fn message(channel: u32, type_: i32, from: usize, source: i32, ptype: i32) -> Message {
        let info = Info { type_, count: 0, node: from as i32, ptype: source };
        let body = match type_ % 3 {
            0 => Body::Here(Box::default()),
            _ => Body::Slot { slot: 0 },
        };
        Message { head: Head { channel, info, ptype }, from, body }
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let types = prop_oneof![0..4i32, 28..34i32, Just(FORCE_TYPE)];
        (0..2u32, types, 0..3usize, 0..2i32, 0..2i32).prop_map(
            |(channel, type_, from, source, own)| message(channel, type_, from, source, own),
        )
    }

    fn any_select() -> impl Strategy<Value = Select> {
        let typesel = prop_oneof![
            0..4i32,
            28..34i32,
            Just(-1),
            Just(FORCE_TYPE),
            any::<i32>().prop_map(|mask| mask | i32::MIN)
        ];
        (typesel, -1..3i32, -1..2i32).prop_map(|(typesel, node, ptype)| Select {
            typesel,
            node,
            ptype,
        })
    }

    proptest! {
        /// The oracle looks at all messages in order of arrival.
        #[test]
        fn the_first_that_is_selected_is_found_as_by_looking_at_all(
            steps in proptest::collection::vec(
                (any_message(), any_select(), 0..2u32, proptest::option::of(0..2i32), any::<bool>()),
                1..120,
            ),
        ) {
            let mut unexpected = Unexpected::default();
            let mut oracle: Vec<(u64, Head)> = Vec::new();
            for (number, (message, select, channel, own, take)) in steps.into_iter().enumerate() {
                oracle.push((number as u64, message.head));
                unexpected.push(message);
                let expected = oracle.iter().position(|(_, head)| {
                    head.channel == channel
                        && own.is_none_or(|own| head.ptype == own)
                        && select.takes(head.info.type_, head.info.node, head.info.ptype)
                });
                let found = unexpected.first(channel, select, own);
                prop_assert_eq!(found.map(|it| it.0), expected.map(|index| oracle[index].0));
                if take && let (Some(found), Some(index)) = (found, expected) {
                    prop_assert!(unexpected.remove(found).is_some());
                    oracle.remove(index);
                }
            }
            let away = |it: &Unexpected| (0..3).map(|from| it.away(from).len()).sum::<usize>();
            let not_here = oracle.iter().filter(|(_, head)| head.info.type_ % 3 != 0).count();
            prop_assert_eq!(away(&unexpected), not_here);
            for from in 0..3 {
                for arrival in unexpected.away(from) {
                    unexpected.bring(arrival, Box::default());
                }
            }
            prop_assert_eq!(away(&unexpected), 0);
            for (number, _) in oracle {
                prop_assert!(unexpected.remove(Arrival(number)).is_some());
            }
            prop_assert!(unexpected.is_empty() && unexpected.kinds.is_empty());
        }
    }
}
