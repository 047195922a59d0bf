//! The supervisors of one application on several machines, and what they tell each other.
//!
//! Each watches the processes of its own host. What concerns the others goes through the launcher, which
//! all of them have a connection to ([`Up`], [`Down`]).
//!
//! ```text
//!   host a                 launcher                host b
//!   Tell 7: Kill ------->  Tell from a, 7 ------>  marks the processes that are meant, tells its others
//!                                        <-------  Heard a, 7;  Tell 3: Ending
//!   tells its processes <- Tell from b, 3
//!   Heard b, 3 ----------> AllHeard 3 ---------->  kills them
//! ```
//!
//! A program that is to run on another host goes there the same way ([`Up::Load`]), and how it ended comes back.
//!
//! So every process that is left has heard of a requested end before it can notice it. A supervisor that goes, or
//! the launcher, ends all: nobody waits for what does not come.

use crate::job::control::{Answer, Order};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use vmmc::sys::{Fd, packet};

/// What concerns the processes of all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// End these processes on request: as [`Message::Kill`](crate::job::control::Message::Kill), never all.
    Kill {
        /// Node, -1 for all.
        node: i32,
        /// Process type, -1 for all.
        ptype: i32,
    },
    /// These are about to be ended on request: node and process id.
    Ending(Vec<(u32, i32)>),
}

/// From a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// For all others; [`Down::AllHeard`] with the same number answers.
    Tell {
        /// The supervisor's own.
        id: u32,
        /// What.
        word: Word,
    },
    /// Answers [`Down::Tell`], once it is done.
    Heard {
        /// Of whom.
        from: u32,
        /// Its number.
        id: u32,
    },
    /// No process is left here, and nothing was wrong.
    Idle,
    /// Start this on its host.
    Load {
        /// The supervisor's own number of it.
        number: u32,
        /// What.
        order: Order,
    },
    /// What became of a [`Down::Load`].
    Answer {
        /// Whose it was.
        ticket: Ticket,
        /// What.
        answer: Answer,
    },
    /// Who waited for a process there does not any more: end it.
    Drop {
        /// Where it is.
        host: String,
        /// See [`Up::Load`].
        number: u32,
    },
}

/// An order of another host: which one, as the launcher counts them, and its number of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Which host.
    pub from: u32,
    /// See [`Up::Load`].
    pub number: u32,
}

/// To a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// One of the others says this.
    Tell {
        /// Which, as the launcher counts them.
        from: u32,
        /// Its number of it.
        id: u32,
        /// What.
        word: Word,
    },
    /// All others have heard what was told under this number.
    AllHeard {
        /// See [`Up::Tell`].
        id: u32,
    },
    /// No process is left on any host.
    Leave,
    /// Start this here.
    Load {
        /// Who wants it.
        ticket: Ticket,
        /// What.
        order: Order,
    },
    /// What became of an order of ours.
    Answer {
        /// See [`Up::Load`].
        number: u32,
        /// What.
        answer: Answer,
    },
    /// End what was started for this.
    Drop {
        /// Who wanted it.
        ticket: Ticket,
    },
}

/// A request to end processes that others have not all heard of yet.
#[derive(Debug)]
struct Asked {
    id: u32,
    node: i32,
    ptype: i32,
    /// It was asked for once more meanwhile.
    again: bool,
}

/// A process of another host that one of ours waits for.
#[derive(Debug)]
struct Ordered {
    number: u32,
    host: String,
    /// Where answers go.
    answers: Fd,
}

/// One supervisor's side of it.
pub(super) struct Others {
    say: Box<dyn Fn(Up) + Send>,
    last: u32,
    asked: Vec<Asked>,
    ordered: Vec<Ordered>,
    idle: bool,
    /// No process is left on any host.
    pub(super) leave: bool,
}

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Others")
    }
}

impl Others {
    pub(super) fn new(say: impl Fn(Up) + Send + 'static) -> Others {
        Others {
            say: Box::new(say),
            last: 0,
            asked: Vec::new(),
            ordered: Vec::new(),
            idle: false,
            leave: false,
        }
    }

    pub(super) fn say(&self, up: Up) {
        (self.say)(up);
    }

    /// Tells all others; the number under which they will have heard it.
    pub(super) fn tell(&mut self, word: Word) -> u32 {
        self.last = self.last.wrapping_add(1);
        let id = self.last;
        self.say(Up::Tell { id, word });
        id
    }

    /// Asks the others to end processes. What they have not heard yet is not asked for twice at a time, however often
    /// a program asks: it waits for the end by asking until there is nobody.
    pub(super) fn kill(&mut self, node: i32, ptype: i32) {
        let same = |asked: &&mut Asked| asked.node == node && asked.ptype == ptype;
        if let Some(asked) = self.asked.iter_mut().find(same) {
            asked.again = true;
            return;
        }
        let id = self.tell(Word::Kill { node, ptype });
        self.asked.push(Asked { id, node, ptype, again: false });
    }

    /// All have heard what was told under this number.
    pub(super) fn all_heard(&mut self, id: u32) {
        if let Some(at) = self.asked.iter().position(|asked| asked.id == id) {
            let Asked { node, ptype, again, .. } = self.asked.swap_remove(at);
            if again {
                self.kill(node, ptype);
            }
        }
    }

    /// One of ours wants a program started elsewhere.
    pub(super) fn load(&mut self, order: Order, answers: Fd) {
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        self.ordered.push(Ordered { number, host: order.host.clone(), answers });
        self.say(Up::Load { number, order });
    }

    /// What became of it.
    pub(super) fn answer(&mut self, number: u32, answer: Answer) {
        let Some(at) = self.ordered.iter().position(|ordered| ordered.number == number) else {
            return; // nobody waits for it any more
        };
        answer_to(&self.ordered[at].answers, answer);
        if !matches!(answer, Answer::Started(_)) {
            self.ordered.swap_remove(at);
        }
    }

    /// What to poll: the ends of those who wait for answers.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ordered.iter().map(|ordered| ordered.answers.as_fd())
    }

    /// Ends what nobody waits for any more.
    pub(super) fn drop_unawaited(&mut self) {
        let gone = |ordered: &mut Ordered| {
            let mut fds = [PollFd::new(&ordered.answers, PollFlags::empty())];
            matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
        };
        let gone: Vec<Ordered> = self.ordered.extract_if(.., gone).collect();
        for Ordered { host, number, .. } in gone {
            self.say(Up::Drop { host, number });
        }
    }

    /// Says so when the last process has gone.
    pub(super) fn are_left(&mut self, left: bool) {
        if !left && !self.idle {
            self.say(Up::Idle);
        }
        self.idle = !left;
    }
}

/// Answers whoever waits, if anybody does.
pub(super) fn answer_to(answers: &Fd, answer: Answer) {
    let mut buffer = [0; 16];
    if let Ok(bytes) = postcard::to_slice(&answer, &mut buffer) {
        let _ = packet::send(answers, bytes, &[], rustix::net::SendFlags::DONTWAIT);
    }
}
