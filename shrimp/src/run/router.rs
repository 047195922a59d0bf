//! What the supervisors of an application on several hosts tell each other, in the middle.

use nx::job::supervise::others::{Down, Up};

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
    /// By part; false: it has ended.
    there: Vec<bool>,
    idle: Vec<bool>,
    told: Vec<Told>,
}

/// What is to be said, and to which part.
pub(super) type Orders = Vec<(usize, Down)>;

impl Router {
    pub(super) fn new(parts: usize) -> Router {
        Router { there: vec![true; parts], idle: vec![false; parts], told: Vec::new() }
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
    use nx::job::supervise::others::Word;

    fn tell(id: u32) -> Up {
        Up::Tell { id, word: Word::Kill { node: 1, ptype: -1 } }
    }

    #[test]
    fn what_one_tells_comes_to_all_others_and_is_answered_when_all_have_heard_it() {
        let mut router = Router::new(3);
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
        let mut router = Router::new(2);
        assert_eq!(router.hear(0, tell(1)).len(), 1);
        assert_eq!(router.ended(1), [(0, Down::AllHeard { id: 1 })]);
        assert_eq!(router.hear(0, tell(2)), [(0, Down::AllHeard { id: 2 })]);
    }

    #[test]
    fn all_leave_when_the_last_one_has_nobody() {
        let mut router = Router::new(2);
        assert_eq!(router.hear(1, Up::Idle), []);
        assert_eq!(router.hear(0, Up::Idle), [(0, Down::Leave), (1, Down::Leave)]);
    }
}
