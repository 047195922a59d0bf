//! One data connection, as the interface has it: the incoming page tables of one remote process, and
//! the packet that is being received.
//!
//! Every header is checked before anything is done: slot and generation, range, rights. A header
//! that no library sends ends the connection; a packet that its slot does not allow ends that link,
//! and the other links of the process go on.

mod action;
mod direct;
mod freeze;
mod packet;

use super::wire::Wire;
use super::{Rules, count};
use crate::net::offers::Offers;
use packet::Packet;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::net::TcpStream;
use std::time::Instant;
use vmmc::control::message::CloseReason;
use vmmc::control::network::{Lasting, Origin};
use vmmc::transport::net::frame::{Header, Kind, MAX_DATA, reason_code};
use vmmc::transport::tcp::seal::SealKeys;
use vmmc::{Import, Node};

/// Bytes received at a time when it is not known what they are: more would be copied of long messages, which go from the wire
/// straight to their pages otherwise.
const STAGING: usize = 4096;
/// The same while automatic updates come, which go together, and are copied in any case.
const WIDE: usize = 64 * 1024;
/// With so much to come of a packet's body, so much is waited for. Bytes that are polled for come in small pieces, and each is taken
/// while the sender's next one wants the same socket (DESIGN.md, "When the interface polls").
const LONG: u64 = 64 * 1024;
/// Steps of one turn.
const STEPS: usize = 64;
/// With this much to say that the sender does not read, nothing more is read from it.
const MAX_OUT: usize = 2 * MAX_DATA as usize;
/// Most steps in which what came before a cut is taken: the kernel has hardly more.
const REST: usize = 16 * 1024;
/// Most slots of one connection.
const MAX_SLOTS: usize = 65_536;

/// The links that are attached, by their names: which connection and slot each belongs to.
pub(super) type Links = HashMap<u64, (u64, u32)>;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Whether anything was done.
    Worked(bool),
    /// The connection was cut, and may go on.
    Cut,
    /// It has ended.
    Over,
}

/// One import of the remote process.
#[derive(Debug)]
struct Slot {
    generation: u32,
    /// Names the link to [`Offers`].
    token: u64,
    /// `None` once the link has ended: what comes for it is dropped until the sender knows.
    import: Option<Import>,
    /// The sender has been told of the end.
    told: bool,
    /// Where the fabric writes to the pages by itself.
    window: Option<Window>,
}

/// A slot's window, as the wire knows it.
#[derive(Debug)]
struct Window {
    number: usize,
    /// The exporter disables a page, or the link is over: when the window is shut, whatever its sender says.
    until: Option<Instant>,
}

/// Why the connection ends.
#[derive(Debug)]
enum End {
    /// The sender closed it, or died.
    Closed,
    /// It sent what no library of ours sends.
    Fault(String),
}

/// How far a step came.
enum Step {
    Done,
    /// Nothing is there.
    Empty,
    /// The receiver must do something first.
    Stalled,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    pub(super) wire: Wire,
    origin: Origin,
    slots: HashMap<u32, Slot>,
    /// Those with windows.
    windows: BTreeSet<u32>,
    /// Of [`STAGING`] bytes; of [`WIDE`] once updates have come.
    staging: Vec<u8>,
    /// The last packet with data was an update.
    wide: bool,
    from: usize,
    to: usize,
    packet: Option<Packet>,
    /// Answers, not sent yet from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Something was sent since somebody asked.
    spoke: bool,
    stalled: bool,
    /// All that was there has been received in this turn.
    dry: bool,
    /// The kernel has told of its end while its receiver could not go on, and tells no more: all must be received, up to the end.
    pub(super) has_ended: bool,
    /// Much is to come, of which epoll tells.
    pub(super) awaits_much: bool,
    /// Whether the last turn ended at its bound: what is staged, epoll does not know of.
    pub(super) has_more: bool,
    /// What epoll watches.
    pub(super) watched: EventFlags,
    rules: Rules,
    /// How it goes on after a cut.
    lasting: Option<Lasting>,
    /// While it is cut.
    cut: Option<Cut>,
    /// How often its process has asked to go on.
    asked: u64,
    /// Nothing was imported over it yet.
    is_fresh: bool,
}

/// Of a connection that was cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// When it ends.
    until: Instant,
    /// Bytes that its process has received, once it has said so.
    position: Option<u64>,
    /// What had come is taken, or given up.
    is_parted: bool,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        wire: Wire,
        (origin, lasting): (Origin, Option<Lasting>),
        rules: Rules,
    ) -> Connection {
        Connection {
            id,
            wire,
            origin,
            slots: HashMap::new(),
            windows: BTreeSet::new(),
            staging: vec![0; STAGING],
            wide: false,
            from: 0,
            to: 0,
            packet: None,
            out: Vec::new(),
            sent: 0,
            spoke: false,
            stalled: false,
            dry: false,
            has_ended: false,
            awaits_much: false,
            has_more: false,
            watched: EventFlags::IN,
            rules,
            lasting,
            cut: None,
            asked: 0,
            is_fresh: true,
        }
    }

    pub(super) fn lasting(&self) -> Option<Lasting> {
        self.lasting
    }

    pub(super) fn is_of(&self, origin: &Origin) -> bool {
        self.origin == *origin
    }

    /// Whether nothing comes or goes, because it was cut.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Until when it may go on.
    pub(super) fn cut_until(&self) -> Option<Instant> {
        self.cut.map(|cut| cut.until)
    }

    /// It is cut. What has come and cannot be taken now, because its receiver has to do something first, stays where it is.
    pub(super) fn break_off(&mut self, until: Instant) {
        self.cut = Some(Cut { until, position: None, is_parted: false });
        if !self.stalled {
            self.part();
        }
    }

    fn part(&mut self) {
        if let (Some(tcp), Some(cut)) = (self.wire.tcp(), &mut self.cut) {
            tcp.part();
            cut.is_parted = true;
        }
    }

    /// Before it goes on: takes what had come, as far as it can be now. False: the sender is to blame for something, and it ends.
    pub(super) fn take_and_part(
        &mut self,
        node: &Node,
        offers: &Offers,
        links: &mut Links,
    ) -> bool {
        if self.cut.is_some_and(|cut| cut.is_parted) {
            return true;
        }
        let end = self.take_rest(node, offers, links);
        self.part();
        matches!(end, End::Closed)
    }

    /// Once: something was imported over it.
    pub(super) fn has_become_theirs(&mut self) -> bool {
        self.is_fresh && !self.slots.is_empty() && std::mem::take(&mut self.is_fresh)
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The kernel says that it has ended, while it is not received from: whether it is cut, and may go on.
    pub(super) fn was_cut_unseen(&self) -> bool {
        if let Some(tcp) = self.wire.tcp() {
            tcp.find_failure();
        }
        self.lasting.is_some() && self.wire.is_cut()
    }

    /// Its process has received so many bytes, and is about to come back, until then at the earliest. Which time that is.
    pub(super) fn expect(&mut self, position: u64, until: Instant) -> u64 {
        let Some(cut) = &mut self.cut else { return 0 };
        cut.position = Some(position);
        cut.until = cut.until.max(until);
        self.asked += 1;
        self.asked
    }

    /// Whether it is this time that its process asked last.
    pub(super) fn expects(&self, asked: u64) -> bool {
        self.cut.is_some() && self.asked == asked
    }

    /// Goes on over another connection.
    pub(super) fn resume(&mut self, by: TcpStream, seal: Option<&SealKeys>) -> Result<(), Errno> {
        let position = self.cut.and_then(|cut| cut.position).ok_or(Errno::INVAL)?;
        self.wire.resume(by, seal, position)?;
        self.cut = None;
        self.watched = EventFlags::IN;
        Ok(())
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether something was sent since this was asked last.
    pub(super) fn has_spoken(&mut self) -> bool {
        std::mem::take(&mut self.spoke)
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Whether it receives now: its receiver can go on, and its sender reads what it is told.
    pub(super) fn may_receive(&self) -> bool {
        !self.stalled && self.unsent() < MAX_OUT
    }

    /// What epoll should watch.
    pub(super) fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.may_receive());
        flags.set(EventFlags::OUT, self.unsent() > 0 || self.wire.repeats());
        flags
    }

    /// Ends all links; their names.
    pub(super) fn close(self) -> Vec<u64> {
        let mut tokens = Vec::with_capacity(self.slots.len());
        for slot in self.slots.into_values() {
            tokens.push(slot.token);
            if let Some(import) = slot.import {
                import.abandon();
            }
        }
        tokens
    }

    /// The exporter has ended a link.
    pub(super) fn link_ended(&mut self, number: u32, reason: CloseReason) {
        if self.let_go(number).is_some() {
            self.say_closed(number, reason);
        }
    }

    /// The exporter withdraws: the sender is told, and what comes before it answers still lands (V8).
    pub(super) fn link_ending(&mut self, number: u32) {
        if self.slots.get(&number).is_some_and(|slot| slot.import.is_some()) {
            self.say_closed(number, CloseReason::Unexported);
        }
    }

    /// Says it once.
    fn say_closed(&mut self, number: u32, reason: CloseReason) {
        if let Some(slot) = self.slots.get_mut(&number)
            && !std::mem::replace(&mut slot.told, true)
        {
            let closed = Header::new(Kind::Closed, number, slot.generation);
            self.say(&closed.value(reason_code(reason)), &[]);
        }
    }

    fn say(&mut self, header: &Header, body: &[u8]) {
        self.out.extend_from_slice(&header.encode());
        self.out.extend_from_slice(body);
    }

    /// Receives and handles what is there, up to a bound.
    pub(super) fn turn(&mut self, node: &Node, offers: &Offers, links: &mut Links) -> Turn {
        match self.steps(node, offers, links) {
            Ok(worked) => Turn::Worked(worked),
            Err(mut end) => {
                let goes_on = self.lasting.is_some() && self.wire.is_cut();
                if matches!(end, End::Closed) && goes_on {
                    end = self.take_rest(node, offers, links);
                }
                if self.wire.is_broken() {
                    end = End::Fault("a sealed record was changed on its way".to_owned());
                }
                let Origin { node: name, pid, uid, .. } = &self.origin;
                match end {
                    End::Closed if goes_on => {
                        tracing::debug!(node = name, pid, uid, "data connection cut");
                        return Turn::Cut;
                    }
                    End::Closed => tracing::debug!(node = name, pid, uid, "data connection over"),
                    End::Fault(what) => {
                        node.counters().add(count::FAULTS, 1);
                        tracing::warn!(node = name, pid, uid, what, "data connection cut off");
                    }
                }
                Turn::Over
            }
        }
    }

    /// Handles what had come before a cut, as far as it can be.
    fn take_rest(&mut self, node: &Node, offers: &Offers, links: &mut Links) -> End {
        self.dry = false;
        for _ in 0..REST {
            if self.unsent() >= MAX_OUT {
                break;
            }
            match self.step(node, offers, links) {
                Ok(Step::Done) => {}
                Ok(Step::Empty) => break,
                Ok(Step::Stalled) => {
                    self.stalled = true;
                    break;
                }
                Err(end) => return end,
            }
        }
        End::Closed
    }

    fn steps(&mut self, node: &Node, offers: &Offers, links: &mut Links) -> Result<bool, End> {
        let mut worked = false;
        let was_stalled = std::mem::take(&mut self.stalled);
        self.dry = false;
        // Incoming goes before outgoing (H15): answers are sent when nothing more can be received.
        (self.has_more, self.awaits_much) = (true, false);
        for _ in 0..STEPS {
            if self.unsent() >= MAX_OUT {
                break;
            }
            match self.step(node, offers, links)? {
                Step::Done => worked = true,
                Step::Empty => {
                    self.has_more = false;
                    let expected = self.expected();
                    self.awaits_much = self.wire.tell_from(expected) && expected > 1;
                    break;
                }
                Step::Stalled => {
                    self.has_more = false;
                    if !was_stalled || worked {
                        node.counters().add(count::STALLS, 1);
                    }
                    self.stalled = true;
                    break;
                }
            }
        }
        let flushed = self.flush()?;
        // Until there is room for answers, of which epoll tells, nothing is received.
        self.has_more &= self.unsent() < MAX_OUT;
        Ok(flushed || worked)
    }

    /// Sends answers; whether any went.
    fn flush(&mut self) -> Result<bool, End> {
        let mut any = false;
        match self.wire.settle() {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(_) => return Err(End::Closed),
        }
        while self.unsent() > 0 {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            match self.wire.send(rest) {
                Ok(len) => {
                    self.sent += len;
                    any = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(End::Closed),
            }
        }
        self.spoke |= any;
        // A sender that always has an answer to come would have all that it was ever told kept.
        if self.unsent() == 0 || self.sent >= MAX_OUT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::interface::FIRST;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn answers_that_are_never_all_sent_take_bounded_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let wire = Wire::new(listener.accept().unwrap().0, None, None);
        let origin = Origin { node: "b".to_owned(), client: 1, pid: 1, uid: 0, gid: 0 };
        let mut connection = Connection::new(FIRST, wire, (origin, None), Rules::default());
        let answer = Header { len: MAX_DATA, ..Header::new(Kind::Data, 1, 1) };
        let (body, mut taken) = (vec![7; MAX_DATA as usize], vec![0; MAX_DATA as usize / 2]);
        let mut read = 0;
        while read < 64 * MAX_OUT {
            while connection.may_receive() {
                connection.say(&answer, &body);
            }
            connection.flush().unwrap();
            slow.read_exact(&mut taken).unwrap();
            read += taken.len();
            let kept = connection.out.capacity();
            assert!(kept <= 8 * MAX_OUT, "{kept} after {read} bytes");
        }
    }
}
