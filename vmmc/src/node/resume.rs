//! A data connection to another node that was cut: has the daemons make another, on which it goes on.

use super::NodeInner;
use super::remote::{converse, is_answered};
use crate::control::codec;
use crate::control::message::MAX_PACKET_LEN;
use crate::control::network::{Lasting, NO_ROOM, Question, Resumed, TAKEN};
use crate::sys::packet;
use crate::transport::net::connection::{Back, OnCut};
use rustix::net::{RecvFlags, SendFlags};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Between two questions while there is no way: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];

/// What a process does when its connection to a node was cut.
pub(super) fn on_cut(process: Weak<NodeInner>, node: String, lasting: Lasting) -> OnCut {
    let Lasting { pass, patience_s, .. } = lasting;
    Box::new(move |cut| {
        let until = Instant::now() + Duration::from_secs(patience_s.into());
        let [mut pause, longest] = PAUSES;
        while !(cut.is_over)() {
            let question = Question::Resume { node: node.clone(), pass, position: cut.position };
            match ask(&process, &question, until, cut.is_over) {
                Some(Answer::Back(back)) => return Some(back),
                Some(Answer::Never) => return None,
                None => {}
            }
            let left = until.checked_duration_since(Instant::now())?;
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(longest);
        }
        None
    })
}

/// How often somebody who waits looks whether that is wanted still.
const SLICE: Duration = Duration::from_millis(500);

enum Answer {
    Back(Back),
    Never,
}

/// `None`: there is no way now, or no daemon.
fn ask(
    process: &Weak<NodeInner>,
    question: &Question,
    until: Instant,
    is_over: &dyn Fn() -> bool,
) -> Option<Answer> {
    // Not held while it waits: its owner may be done with it.
    let (conversation, _) = converse(&*process.upgrade()?, Some(until), u32::MAX).ok()?;
    let mut buffer = [0; MAX_PACKET_LEN];
    let packet = codec::encode(question, &mut buffer).ok()?;
    packet::send(&conversation, packet, &[], SendFlags::empty()).ok()?;
    while !is_answered(&conversation, Some(until.min(Instant::now() + SLICE))).ok()? {
        if is_over() || process.strong_count() == 0 || Instant::now() >= until {
            return None;
        }
    }
    let received = packet::receive(&conversation, &mut buffer, RecvFlags::empty());
    let (len, mut fds) = received.ok()??;
    match (codec::decode(buffer.get(..len)?).ok()?, fds.take()) {
        (Resumed::Back { position, seal }, Some(socket)) => {
            packet::send(&conversation, &[TAKEN], &[], SendFlags::empty()).ok()?;
            Some(Answer::Back(Back { socket, seal, position }))
        }
        (Resumed::Back { .. }, None) => {
            packet::send(&conversation, &[NO_ROOM], &[], SendFlags::empty()).ok()?;
            None
        }
        (Resumed::NotNow, _) => None,
        (Resumed::Never, _) => Some(Answer::Never),
    }
}
