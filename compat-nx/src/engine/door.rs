//! A process's door: words of its own that the others reach. To store to one interrupts the process: its progress thread alone
//! sleeps there.
//!
//! ```text
//!    0  wake    u32   by others: there is something to look at
//!    8  new     u32   by others, before: there is somebody to meet
//!   64  given   u32 for 32 numbers each: those that have been given, as far as the owner knows ([`super::given`])
//! ```
//!
//! The door's name has the process's number: who exports it has the number ([`super::joining`]).

use super::given;
use super::handshake;
use super::opening::set_up;
use super::peer::Own;
use crate::error::StartError;
use vmmc::control::message::Refusal;
use vmmc::error::ExportError;
use vmmc::sync::Ordering;
use vmmc::word::{MappedU32, Word};
use vmmc::{Export, Import, ImportBuilder, Node, Region, Rights, Who};

/// Offset of the word that wakes the owner.
pub(super) const WAKE: usize = 0;
/// Offset of the word that a process sets before which has joined later.
pub(super) const NEW: usize = 8;
/// Offset of the numbers that have been given.
const GIVEN: usize = 64;

/// Others wake the owner, and read what it knows.
const RIGHTS: Rights = Rights::WRITE.union(Rights::READ);

/// This process's own.
#[derive(Debug)]
pub(super) struct Door(Export);

fn name(own: &Own, owner: u32) -> String {
    format!("nx/{}/door/{owner}", own.id)
}

impl Door {
    /// Takes this process's number.
    pub(super) fn open(bell: &Node, own: &Own) -> Result<Door, StartError> {
        Door::export(bell, own)?.map_err(set_up("exporting the door"))
    }

    /// The same; `None`: another process has that number.
    pub(super) fn open_if_free(bell: &Node, own: &Own) -> Result<Option<Door>, StartError> {
        match Door::export(bell, own)? {
            Err(ExportError::Refused(Refusal::NameTaken { .. })) => Ok(None),
            opened => opened.map(Some).map_err(set_up("exporting the door")),
        }
    }

    fn export(bell: &Node, own: &Own) -> Result<Result<Door, ExportError>, StartError> {
        let len = GIVEN + 4 * given::words(own.numbers.limit());
        let export = bell
            .export(Region::new(len).map_err(set_up("memory of the door"))?)
            .name(name(own, own.number))
            .grant(Who::SameUser, RIGHTS)
            .token(own.token);
        Ok(export.open().map(Door))
    }

    fn word(&self, at: usize) -> MappedU32<'_> {
        super::out::word32(self.0.view(), at)
    }

    /// Whether somebody has called. Orders nothing.
    pub(super) fn is_called(&self) -> bool {
        self.word(WAKE).load(Ordering::Relaxed) != 0
    }

    /// Takes what others have stored.
    pub(super) fn called(&self) -> Option<handshake::Call> {
        handshake::called(self.word(WAKE), self.word(NEW))
    }

    /// Lets the others know which of 32 numbers have been given.
    pub(super) fn tell_given(&self, at: usize, word: u32) {
        // Who has heard "here" from this process since may leave, and the next one then reads this: that word's release and
        // the daemon are between.
        self.word(GIVEN + 4 * at).store(word, Ordering::Release);
    }
}

/// The door of another process.
pub(super) fn import(own: &Own, bell: &Node, number: u32) -> ImportBuilder {
    own.import(bell, number, name(own, number)).rights(RIGHTS)
}

/// Which numbers have been given, as the owner of a door knows; of one that is gone, maybe none. `limit`: how many there are.
pub(super) fn given(door: &Import, limit: usize) -> impl Iterator<Item = u32> {
    // Bits are only ever set: it does not matter of which moment each byte is.
    let mut bytes = vec![0; 4 * given::words(limit)];
    let read = door.read(GIVEN, &mut bytes);
    let words = if read.is_ok() { bytes.len() / 4 } else { 0 };
    (0..words).map(move |at| {
        let word = bytes.get(4 * at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| u32::from_ne_bytes(*word))
    })
}

/// Interrupts the owner of a door. One that is gone needs no interrupt.
pub(super) fn wake(door: &Import) {
    set(door, WAKE);
}

/// Tells the owner of a door that there is somebody new to meet.
pub(super) fn call_to_meet(door: &Import) {
    handshake::knock(|at| set(door, at));
}

fn set(door: &Import, at: usize) {
    let _ = door.flag32(at).map(|word| word.signal(1));
}
