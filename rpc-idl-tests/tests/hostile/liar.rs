//! A server that keeps to no rule: it binds who comes, and answers anything.

use super::values::{answer, mutate, nasty, Answer};
use crate::common::say;
use crate::raw::{self, Heard, Server};
use rpc_idl_tests::random::Random;
use shrimp_rpc::layout::{self, FlagWord, Kind, Turn};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use vmmc::Node;

/// Serves until it is killed. Says `ready` when the first client can come.
pub fn serve(args: &[String]) {
    let node = Node::connect().expect("connects");
    let mut r = Random::new(args[1].parse().expect("a seed"));
    let mut first = true;
    loop {
        let ready = || {
            if std::mem::take(&mut first) {
                say("ready");
            }
        };
        // Long calls to some of them go in pieces.
        let len = [raw::LEN, 8 * raw::LEN][r.below(2) as usize];
        let heard = Heard::hear(&node, &args[0], ready);
        // The time of the call that bound may be over already.
        let Ok(server) = heard.answer_if_there(&node, len) else { continue };
        // Half of the clients find what they read changed meanwhile.
        let (done, span) = (AtomicBool::new(false), AtomicU32::new(0));
        let flips = r.below(2) == 0;
        let seed = r.number();
        std::thread::scope(|scope| {
            if flips {
                scope.spawn(|| flip(&server, seed, &span, &done));
            }
            Liar { server: &server, turn: Turn::NONE, r: &mut r, span: &span }.lie();
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// Changes replies, and the requests in which INOUT data lies, until it is done.
fn flip(server: &Server, seed: u64, span: &AtomicU32, done: &AtomicBool) {
    let mut r = Random::new(seed);
    // The client may have gone already.
    let Ok(replies) = server.link.bind(0..server.replies.len()) else { return };
    let end = layout::flag_at(replies.len());
    let mut word = [0; 8];
    while !done.load(Ordering::Relaxed) {
        let len = u64::from(span.load(Ordering::Relaxed)).max(8);
        // Lengths and marks come first.
        let words = if r.below(2) == 0 { len / 4 } else { (len / 4).min(16) };
        let back = len - 4 * r.below(words);
        word[..4].copy_from_slice(&nasty(&mut r, back).to_le_bytes());
        let _ = replies.write(end - back as usize, &word[..4]);
        let at = layout::flag_at(server.calls.len()) - 8 * (1 + r.below(900)) as usize;
        let calls = server.calls.flag64(at).expect("ours");
        let _ = calls.store(u64::from_le_bytes(word));
        std::thread::yield_now();
    }
}

struct Liar<'a> {
    server: &'a Server,
    turn: Turn,
    r: &'a mut Random,
    span: &'a AtomicU32,
}

impl Liar<'_> {
    /// Until the client has had enough.
    fn lie(&mut self) {
        while let Some(call) = self.next() {
            if call.kind == Kind::More {
                self.say(0, Kind::Next, 0);
            } else if matches!(call.kind, Kind::First | Kind::Next | Kind::FirstOneWay)
                && self.r.below(16) > 0
            {
                self.say(0, Kind::More, 0);
            } else {
                self.answer(u32::from(call.code));
            }
        }
    }

    fn next(&mut self) -> Option<FlagWord> {
        let call = self.server.next_call(self.turn)?;
        self.turn = call.turn;
        Some(call)
    }

    fn say(&self, len: usize, kind: Kind, code: u16) {
        let units = (len / layout::UNIT) as u32;
        self.server.flag(FlagWord { turn: self.turn, kind, code, units }.pack());
    }

    fn write(&self, message: &[u8]) {
        let start = self.server.start(message.len());
        self.server.replies.write(start, message).expect("bound");
        self.span.store(message.len() as u32, Ordering::Relaxed);
    }

    fn answer(&mut self, procedure: u32) {
        let Answer { plain, mut message } = answer(self.r, procedure);
        let room = layout::room(self.server.replies.len());
        match self.r.below(16) {
            0 => {
                let len = self.r.below(room as u64 / 8) as usize * 8;
                message = (0..len).map(|_| self.r.number() as u8).collect();
            }
            1 => {
                let len = self.r.below(message.len() as u64 / 8 + 2) as usize * 8;
                message.resize(len, 0xff);
            }
            2 => {
                // A fault, or no status at all, with any text.
                message.truncate(room);
                self.write(&message);
                let code = [self.r.below(10), self.r.number()][self.r.below(2) as usize] as u16;
                return self.say(message.len(), Kind::Whole, code);
            }
            3 if self.r.below(8) == 0 => {
                // Most of these end the binding.
                let rest = self.r.number() & ((1 << 44) - 1);
                return self.server.flag(u64::from(self.turn.number()) << 44 | rest);
            }
            4 if self.r.below(16) == 0 => std::thread::sleep(Duration::from_millis(30)),
            5 | 6 => {}
            7..=9 => {
                if self.r.below(2) == 0 {
                    mutate(self.r, &mut message, plain);
                }
                return self.in_pieces(&message);
            }
            _ => mutate(self.r, &mut message, plain),
        }
        if message.len() > room {
            return self.in_pieces(&message);
        }
        self.write(&message);
        self.say(message.len(), Kind::Whole, 0);
    }

    /// A reply in pieces, some of whose numbers are wrong.
    fn in_pieces(&mut self, message: &[u8]) {
        let mut head = [message.len() as u64, 0, 0];
        if self.r.below(4) == 0 {
            let at = self.r.below(3) as usize;
            head[at] = u64::from(nasty(self.r, message.len() as u64));
            head[at] <<= [0, 32][self.r.below(2) as usize];
        }
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.server.replies.write(layout::REPLY_TOTAL, &head).expect("bound");
        let mut kind = Kind::First;
        let room = layout::room(self.server.replies.len());
        // Any but the last one that is not full is refused.
        let short = self.r.below(message.len() as u64 / 8 + 1) as usize * 8;
        let len = if self.r.below(8) == 0 { short.clamp(8, room) } else { room };
        for piece in message.chunks(len) {
            self.write(piece);
            self.say(piece.len(), kind, 0);
            kind = Kind::Next;
            // The last one is answered by the next call.
            if piece.len() < len {
                return;
            }
            match self.next() {
                Some(FlagWord { kind: Kind::More, .. }) => {}
                Some(call) => return self.answer(u32::from(call.code)),
                None => return,
            }
        }
        self.say(0, Kind::Next, 0);
    }
}
