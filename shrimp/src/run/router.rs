//! What the supervisors of an application on several hosts tell each other, in the middle.

use nx::job::control::Answer;
use nx::job::supervise::others::{Down, Ticket, Up};

/// Something that not all others have heard yet.
#[derive(Debug)]
struct Told {
    from: usize,
    id: u32,
    /// Who has not.
    left: Vec<usize>,
}

/// Knows who waits for what.
#[derive(Debug)]
pub(super) struct Router {
    /// Where each part is.
    hosts: Vec<String>,
    /// By part; false: it has ended.
    there: Vec<bool>,
    idle: Vec<bool>,
    told: Vec<Told>,
}

/// What is to be said, and to which part.
pub(super) type Orders = Vec<(usize, Down)>;

impl Router {
    pub(super) fn new(hosts: Vec<String>) -> Router {
        let parts = hosts.len();
        Router { hosts, there: vec![true; parts], idle: vec![false; parts], told: Vec::new() }
    }

    /// The part on a host, if it is there.
    fn on(&self, host: &str) -> Option<usize> {
        self.hosts.iter().position(|it| it == host).filter(|&part| self.there[part])
    }

    /// One part says this.
    pub(super) fn hear(&mut self, from: usize, up: Up) -> Orders {
        match up {
            Up::Tell { id, word } => {
                let others = (0..self.there.len()).filter(|&part| part != from && self.there[part]);
                let left: Vec<usize> = others.collect();
                let mut orders: Orders = left
                    .iter()
                    .map(|&part| (part, Down::Tell { from: from as u32, id, word: word.clone() }))
                    .collect();
                self.told.push(Told { from, id, left });
                orders.append(&mut self.all_heard());
                orders
            }
            Up::Heard { from: teller, id } => {
                let same = |told: &&mut Told| told.from == teller as usize && told.id == id;
                if let Some(told) = self.told.iter_mut().find(same) {
                    told.left.retain(|&part| part != from);
                }
                self.all_heard()
            }
            Up::Load { number, order } => match self.on(&order.host) {
                Some(to) => {
                    let ticket = Ticket { from: from as u32, number };
                    vec![(to, Down::Load { ticket, order })]
                }
                None => {
                    let answer = Answer::Failed(libc::EHOSTUNREACH);
                    vec![(from, Down::Answer { number, answer })]
                }
            },
            Up::Answer { ticket: Ticket { from: to, number }, answer } => {
                // What it said before of having nobody is no longer so.
                if matches!(answer, Answer::Started(_))
                    && let Some(idle) = self.idle.get_mut(from)
                {
                    *idle = false;
                }
                vec![(to as usize, Down::Answer { number, answer })]
            }
            Up::Drop { host, number } => {
                let ticket = Ticket { from: from as u32, number };
                self.on(&host).map(|to| (to, Down::Drop { ticket })).into_iter().collect()
            }
            Up::Idle => {
                if let Some(idle) = self.idle.get_mut(from) {
                    *idle = true;
                }
                self.leave()
            }
        }
    }

    /// One part has ended: it hears nothing any more.
    pub(super) fn ended(&mut self, part: usize) -> Orders {
        self.there[part] = false;
        self.idle[part] = true;
        self.told.iter_mut().for_each(|told| told.left.retain(|&left| left != part));
        let mut orders = self.all_heard();
        orders.append(&mut self.leave());
        orders
    }

    fn all_heard(&mut self) -> Orders {
        let done = self.told.extract_if(.., |told| told.left.is_empty());
        done.map(|told| (told.from, Down::AllHeard { id: told.id })).collect()
    }

    /// When nobody has a process any more.
    fn leave(&self) -> Orders {
        if !self.idle.iter().all(|idle| *idle) {
            return Vec::new();
        }
        let there = (0..self.there.len()).filter(|&part| self.there[part]);
        there.map(|part| (part, Down::Leave)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nx::job::control::Order;
    use nx::job::supervise::others::Word;

    fn router(parts: usize) -> Router {
        Router::new(["a", "b", "c"].into_iter().take(parts).map(str::to_owned).collect())
    }

    fn tell(id: u32) -> Up {
        Up::Tell { id, word: Word::Kill { node: 1, ptype: -1 } }
    }

    #[test]
    fn what_one_tells_comes_to_all_others_and_is_answered_when_all_have_heard_it() {
        let mut router = router(3);
        let told = router.hear(1, tell(7));
        assert_eq!(told.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [0, 2]);
        assert!(matches!(told[0].1, Down::Tell { from: 1, id: 7, .. }));
        assert_eq!(router.hear(0, Up::Heard { from: 1, id: 7 }), []);
        assert_eq!(router.hear(2, Up::Heard { from: 1, id: 8 }), []);
        let all = [(1, Down::AllHeard { id: 7 })];
        assert_eq!(router.hear(2, Up::Heard { from: 1, id: 7 }), all);
    }

    #[test]
    fn who_has_ended_need_not_hear_and_one_alone_has_told_all() {
        let mut router = router(2);
        assert_eq!(router.hear(0, tell(1)).len(), 1);
        assert_eq!(router.ended(1), [(0, Down::AllHeard { id: 1 })]);
        assert_eq!(router.hear(0, tell(2)), [(0, Down::AllHeard { id: 2 })]);
    }

    #[test]
    fn an_order_goes_to_its_host_and_its_answers_come_back() {
        let mut router = router(2);
        let order = |host: &str| Order {
            host: host.into(),
            node: 2,
            ptype: 0,
            path: b"prog".to_vec(),
            arguments: Vec::new(),
            place: Vec::new(),
            environment: Vec::new(),
            whole: false,
            directory: b"/".to_vec(),
        };
        let ticket = Ticket { from: 0, number: 7 };
        assert_eq!(router.hear(1, Up::Idle), []);
        let load = |host| Up::Load { number: 7, order: order(host) };
        assert_eq!(router.hear(0, load("b")), [(1, Down::Load { ticket, order: order("b") })]);
        let answered = router.hear(1, Up::Answer { ticket, answer: Answer::Started(77) });
        assert_eq!(answered, [(0, Down::Answer { number: 7, answer: Answer::Started(77) })]);
        // That one has a process again.
        assert_eq!(router.hear(0, Up::Idle), []);
        let dropped = router.hear(0, Up::Drop { host: "b".into(), number: 7 });
        assert_eq!(dropped, [(1, Down::Drop { ticket })]);
        let nowhere = router.hear(0, load("elsewhere"));
        assert!(matches!(nowhere[..], [(0, Down::Answer { answer: Answer::Failed(_), .. })]));
    }

    #[test]
    fn all_leave_when_the_last_one_has_nobody() {
        let mut router = router(2);
        assert_eq!(router.hear(1, Up::Idle), []);
        assert_eq!(router.hear(0, Up::Idle), [(0, Down::Leave), (1, Down::Leave)]);
    }
}
