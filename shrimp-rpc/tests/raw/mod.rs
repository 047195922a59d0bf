//! Clients and servers that speak the bare protocol of `shrimp_rpc::layout`, step by step: to lie, or
//! to die between any two steps.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::PATIENCE;
use shrimp_rpc::layout::{self, Answer, FlagWord, Kind, Turn};
use shrimp_rpc::name;
use std::time::Duration;
use vmmc::error::{ImportError, SendError};
use vmmc::{Binding, Event, Export, Import, Node, PeerInfo, Region, Rights, Who};

/// Length of the buffers here.
pub const LEN: usize = 8192;

/// The kernel's word for what a thread of this process does.
pub fn state(tid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Asks for a program in the head of a fresh buffer of that length, which only the server may map.
fn replies(node: &Node, server: PeerInfo, number: u32, program: u32, len: usize) -> Export {
    let mut region = Region::new(len).unwrap();
    for (at, value) in [
        (layout::BIND_VERSION, layout::VERSION),
        (layout::BIND_PROGRAM, program),
        (layout::BIND_PROGRAM_VERSION, 1),
        (layout::BIND_LEN, LEN as u32),
    ] {
        region.write(at, &value.to_ne_bytes()).unwrap();
    }
    region.write(layout::BIND_MAGIC, &layout::MAGIC.to_ne_bytes()).unwrap();
    let who = Who::Process(server.pid);
    node.export(region).name(number).grant(who, Rights::BIND).open().unwrap()
}

/// A client that has knocked.
pub struct Knocked {
    door: Import,
    replies: Export,
}

impl Knocked {
    pub fn knock(node: &Node, service: &str, number: u32, program: u32) -> Knocked {
        Knocked::knock_with(node, service, number, program, LEN)
    }

    /// Knocks with a buffer of that length.
    pub fn knock_with(
        node: &Node,
        service: &str,
        number: u32,
        program: u32,
        len: usize,
    ) -> Knocked {
        let door = node.import(name::door(service)).open().unwrap();
        let replies = replies(node, door.exporter(), number, program, len);
        door.send_notification(0, 0, u64::from(number)).unwrap();
        Knocked { door, replies }
    }

    /// Knocks for the same buffer again when it is bound, and waits for another answer.
    pub fn knock_again(&self, number: u32) -> Option<Answer> {
        self.door.send_notification(0, 0, u64::from(number)).unwrap();
        let answer = self.replies.flag32(layout::BIND_ANSWER).unwrap();
        let other = |it| it != Answer::Bound as u32;
        Answer::from_word(answer.wait_until(other, PATIENCE).unwrap())
    }

    /// Whether there is an answer.
    pub fn is_answered(&self) -> bool {
        self.replies.flag32(layout::BIND_ANSWER).unwrap().load().unwrap() != 0
    }

    /// Waits for the answer.
    pub fn any_answer(&self) -> Option<Answer> {
        let answer = self.replies.flag32(layout::BIND_ANSWER).unwrap();
        Answer::from_word(answer.wait_until(|it| it != 0, PATIENCE).unwrap())
    }

    /// Waits for the answer, and returns the number of the server's buffer.
    pub fn answer(&self) -> u32 {
        assert_eq!(self.any_answer(), Some(Answer::Bound));
        let mut export = [0; 4];
        self.replies.read(layout::BIND_EXPORT, &mut export).unwrap();
        u32::from_ne_bytes(export)
    }

    /// Maps the server's buffer.
    pub fn bind(self, node: &Node, export: u32) -> Client {
        let link = node
            .import(export)
            .process(self.door.exporter().pid)
            .rights(Rights::BIND)
            .open()
            .unwrap();
        let calls = link.bind(0..link.len()).unwrap();
        Client { replies: self.replies, calls, link, turn: Turn::NONE }
    }
}

/// A client.
pub struct Client {
    pub replies: Export,
    pub calls: Binding,
    /// For further mappings of the server's buffer, and to see its end.
    pub link: Import,
    turn: Turn,
}

impl Client {
    pub fn bind(node: &Node, service: &str, number: u32, program: u32) -> Client {
        let knocked = Knocked::knock(node, service, number, program);
        let export = knocked.answer();
        knocked.bind(node, export)
    }

    /// Where a message of `len` bytes begins.
    pub fn start(&self, len: usize) -> usize {
        layout::flag_at(self.calls.len()) - len
    }

    /// Stores any word where the flag is.
    pub fn flag(&self, word: u64) {
        let _ = self.calls.flag64(layout::flag_at(self.calls.len())).unwrap().signal(word);
    }

    /// Ends a message of `len` bytes, which has been written.
    pub fn send(&mut self, kind: Kind, procedure: u16, len: usize) {
        self.turn = self.turn.next();
        let units = (len / layout::UNIT) as u32;
        self.flag(FlagWord { turn: self.turn, kind, code: procedure, units }.pack());
    }

    /// Ends a message by the flag of the next turn; the rest of the word is any.
    pub fn send_word(&mut self, rest: u64) {
        self.turn = self.turn.next();
        self.flag(u64::from(self.turn.number()) << 44 | rest & ((1 << 44) - 1));
    }

    /// Waits for the reply, or for the server to give the binding up.
    pub fn outcome(&self, mut meanwhile: impl FnMut()) -> Option<FlagWord> {
        let flag = self.replies.flag64(layout::flag_at(self.replies.len())).unwrap();
        let start = std::time::Instant::now();
        loop {
            let closed = self.link.check_open().is_err();
            let word = flag.load().unwrap();
            if FlagWord::turn_of(word) == self.turn {
                return Some(FlagWord::unpack(word).unwrap());
            }
            if closed {
                return None;
            }
            assert!(start.elapsed() < PATIENCE.unwrap(), "no answer, and no end");
            meanwhile();
        }
    }

    /// Gives the call that was sent last up.
    pub fn cancel(&self) {
        let turn = self.turn.number().to_ne_bytes();
        self.calls.write(layout::CALL_CANCELLED, &turn).unwrap();
    }

    /// Waits for the reply.
    pub fn reply(&self) -> FlagWord {
        let flag = self.replies.flag64(layout::flag_at(self.replies.len())).unwrap();
        let due = |word| FlagWord::turn_of(word) == self.turn;
        FlagWord::unpack(flag.wait_until(due, PATIENCE).unwrap()).unwrap()
    }
}

/// A server of one client.
pub struct Server {
    pub calls: Export,
    pub replies: Binding,
    /// For further mappings of the client's buffer, and to see its end.
    pub link: Import,
}

/// A server that has heard a client knock.
pub struct Heard {
    door: Export,
    replies: Binding,
    link: Import,
    client: PeerInfo,
}

impl Heard {
    /// Opens the door, says so by `ready`, and waits for the first client.
    pub fn hear(node: &Node, service: &str, ready: impl FnOnce()) -> Heard {
        let door = node
            .export(Region::new(64).unwrap())
            .name(name::door(service))
            .grant(Who::SameUser, Rights::WRITE)
            .queue()
            .open()
            .unwrap();
        ready();
        loop {
            let knock = door.next_notification(PATIENCE).unwrap();
            let Event::Message { last_word, .. } = knock.event else { continue };
            let link = node.import(last_word as u32).process(knock.from.pid);
            // The time of a client may be over before we come to it.
            let link = match link.rights(layout::rights(false)).timeout(Duration::ZERO).open() {
                Err(ImportError::Refused(_)) => continue,
                link => link.unwrap(),
            };
            let replies = match link.bind(0..link.len()) {
                Err(_) if link.check_open().is_err() => continue,
                replies => replies.unwrap(),
            };
            return Heard { door, replies, link, client: knock.from };
        }
    }

    /// Bytes of the buffer that the client wants for its calls.
    pub fn asked_len(&self) -> u32 {
        self.replies.flag32(layout::BIND_LEN).unwrap().load().unwrap()
    }

    /// Answers that there is no binding, and why.
    pub fn refuse(self, answer: Answer, limit: u32) {
        self.replies.write(layout::BIND_HIGHEST, &limit.to_ne_bytes()).unwrap();
        self.replies.flag32(layout::BIND_ANSWER).unwrap().signal(answer as u32).unwrap();
    }

    /// Makes a buffer and answers.
    pub fn answer(self, node: &Node) -> Server {
        self.answer_with(node, LEN)
    }

    /// Answers with a buffer of that length.
    pub fn answer_with(self, node: &Node, len: usize) -> Server {
        self.answer_if_there(node, len).unwrap()
    }

    /// Answers with a buffer of that length a client that has not given up meanwhile.
    pub fn answer_if_there(self, node: &Node, len: usize) -> Result<Server, SendError> {
        const NUMBER: u32 = 77;
        let calls = node
            .export(Region::new(len).unwrap())
            .name(NUMBER)
            .grant(Who::Process(self.client.pid), Rights::BIND)
            .open()
            .unwrap();
        self.replies.write(layout::BIND_EXPORT, &NUMBER.to_ne_bytes()).unwrap();
        let answer = self.replies.flag32(layout::BIND_ANSWER).unwrap();
        answer.signal(Answer::Bound as u32)?;
        drop(self.door);
        Ok(Server { calls, replies: self.replies, link: self.link })
    }
}

impl Server {
    /// Waits for the message after that of `last`.
    pub fn call(&self, last: Turn) -> FlagWord {
        let flag = self.calls.flag64(layout::flag_at(self.calls.len())).unwrap();
        let due = |word| FlagWord::turn_of(word) == last.next();
        FlagWord::unpack(flag.wait_until(due, PATIENCE).unwrap()).unwrap()
    }

    /// Waits for the message after that of `last`, or for the client to give the binding up.
    pub fn next_call(&self, last: Turn) -> Option<FlagWord> {
        let flag = self.calls.flag64(layout::flag_at(self.calls.len())).unwrap();
        let start = std::time::Instant::now();
        loop {
            let closed = self.link.check_open().is_err();
            let word = flag.load().unwrap();
            if FlagWord::turn_of(word) == last.next() {
                return Some(FlagWord::unpack(word).unwrap());
            }
            if closed {
                return None;
            }
            assert!(start.elapsed() < PATIENCE.unwrap(), "no call, and no end");
            std::thread::yield_now();
        }
    }

    /// Stores any word where the flag is.
    pub fn flag(&self, word: u64) {
        let at = layout::flag_at(self.replies.len());
        let _ = self.replies.flag64(at).unwrap().signal(word);
    }

    /// Where a reply of `len` bytes begins.
    pub fn start(&self, len: usize) -> usize {
        layout::flag_at(self.replies.len()) - len
    }

    /// Ends a reply of `len` bytes.
    pub fn reply(&self, turn: Turn, kind: Kind, len: usize) {
        let units = (len / layout::UNIT) as u32;
        let word = FlagWord { turn, kind, code: 0, units }.pack();
        let at = layout::flag_at(self.replies.len());
        self.replies.flag64(at).unwrap().signal(word).unwrap();
    }
}
