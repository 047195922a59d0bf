//! Named points at which tests kill a process, as `kill -9` would: where its peers would be hurt if they counted
//! on it going on.
//!
//! `NX_FAILPOINT=name@node` arms one, for the processes of one node; with `=stop` behind it they are stopped, not killed; several have a
//! comma between them. None is on the way of a message that
//! fits a slot: one that was not written whole has not arrived.

use rustix::process::{Signal, getpid, kill_process};
use std::str::FromStr;

/// The points, in the order in which things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Its door is exported, so it has a number; no lane is.
    DoorOpen,
    /// A lane is exported, and its owner waits for that process; the others are not.
    LanesHalf,
    /// One process has heard that this one has opened its links; the others have not.
    HereHalf,
    /// It has links with all; the program has not begun.
    Started,
    /// Who joins later has called at a door, and opens no links.
    Called,
    /// Who joins later has heard of all that they have opened theirs, and has not said so itself.
    Joined,
    /// Who was there has opened links with one that joins, and does not say so.
    Welcomed,
    /// A scout is in its slot; nothing of its message is there.
    ScoutWritten,
    /// A part of a safe copy is written, and not published.
    PartWritten,
    /// A part of a safe copy is published.
    StageHalf,
    /// A safe copy is complete; the receiver has not been rung.
    Staged,
    /// The receiver has said where a message may be put; it has not rung.
    ReplyWritten,
    /// The sender has chosen user memory, and written none of it.
    DirectBegun,
    /// User memory is written; the receiver has not been told.
    DirectWritten,
    /// A receiver has taken a piece of a message that it shares with the sender, and not copied it.
    PieceTaken,
    /// A part of a safe copy is fetched.
    FetchHalf,
    /// A message is complete; its block has not been given back.
    Fetched,
    /// One node has this one's part of a global operation; the others have not.
    RoundHalf,
    /// All have; none has been rung.
    RoundGiven,
    /// One node has heard that this one leaves in order; the others have not.
    ByeHalf,
}

/// A point with the name that `NX_FAILPOINT` takes.
pub type Named = (&'static str, Point);

/// At the start.
pub const STARTING: &[Named] = &[
    ("door-open", Point::DoorOpen),
    ("lanes-half", Point::LanesHalf),
    ("here-half", Point::HereHalf),
    ("started", Point::Started),
];

/// When a process joins later.
pub const JOINING: &[Named] =
    &[("called", Point::Called), ("joined", Point::Joined), ("welcomed", Point::Welcomed)];

/// From then on.
pub const RUNNING: &[Named] = &[
    ("scout-written", Point::ScoutWritten),
    ("part-written", Point::PartWritten),
    ("stage-half", Point::StageHalf),
    ("staged", Point::Staged),
    ("reply-written", Point::ReplyWritten),
    ("direct-begun", Point::DirectBegun),
    ("direct-written", Point::DirectWritten),
    ("piece-taken", Point::PieceTaken),
    ("fetch-half", Point::FetchHalf),
    ("fetched", Point::Fetched),
    ("round-half", Point::RoundHalf),
    ("round-given", Point::RoundGiven),
    ("bye-half", Point::ByeHalf),
];

/// A point and the node whose processes die there, or are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armed {
    point: Point,
    node: u32,
    stop: bool,
}

impl FromStr for Armed {
    type Err = ();

    fn from_str(text: &str) -> Result<Armed, ()> {
        let (text, stop) = match text.strip_suffix("=stop") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (name, node) = text.split_once('@').ok_or(())?;
        let mut all = STARTING.iter().chain(JOINING).chain(RUNNING);
        let (_, point) = all.find(|(known, _)| *known == name).ok_or(())?;
        Ok(Armed { point: *point, node: node.parse().map_err(|_| ())?, stop })
    }
}

impl Armed {
    /// Dies, or is stopped each time, if this is the point, and the process one of the node.
    #[cold]
    pub(super) fn reach(self, point: Point, node: u32) {
        if (self.point, self.node) != (point, node) {
            return;
        }
        if self.stop {
            // A signal to the process would be taken by its first thread, some time later, and this one would go on meanwhile.
            // SAFETY: no pointers.
            #[allow(unsafe_code)]
            unsafe {
                libc::raise(libc::SIGSTOP)
            };
        } else {
            let _ = kill_process(getpid(), Signal::KILL);
            std::process::abort(); // not reached
        }
    }
}
