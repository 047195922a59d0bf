//! What is believed of NX and not confirmed: facts that the manuals of then would settle (Intel's *Paragon System C Calls* and
//! *iPSC/860 Programmer's Reference*), each decided here and nowhere else. `SUPPORT.md` lists them, with those that are no
//! constant, and names the test of each, which is as unverified as the fact.

use crate::Info;
use std::fmt::Display;

/// Last type of the force range, which begins at 0x40000000. Types between the normal ones and it, and those above, are the
/// system's: nobody may send them.
pub const FORCE_LAST: i32 = 1_999_999_999;

/// Whether the type selector -1 takes messages of force types.
pub const ANY_TAKES_FORCE: bool = false;

/// The bit of a type mask that stands for its own number and all higher types. (Bit 31 says that it is a mask.)
pub const MASK_REST: i32 = 30;

/// Whether a send to node -1 for another process type than the sender's reaches the process of that type on the sender's node.
pub const BROADCAST_REACHES_OWN_NODE: bool = true;

/// `myhost()` in an application of so many nodes.
#[must_use]
pub const fn host_number(nodes: u32) -> u32 {
    nodes
}

/// What a handler gets: an xhandler has the last of these, others do not look at it.
#[must_use]
pub fn handler_arguments(info: &Info, hparam: i32) -> [i32; 5] {
    let count = i32::try_from(info.count).unwrap_or(i32::MAX);
    [info.type_, count, info.node, info.ptype, hparam]
}

/// Whether handlers of Fortran get their arguments by reference.
pub const FORTRAN_HANDLERS_BY_REFERENCE: bool = true;

/// How many bytes make one of what `gcol` counts in `ncnt`.
pub const NCNT_UNIT: usize = 1;

/// What `gland`, `glor` and `glxor` answer for true: 1, as gfortran's LOGICAL has it.
pub const TRUE: i8 = 1;

/// The line that a plain call ends the application with.
#[must_use]
pub fn fatal_line(who: &str, call: &str, why: &dyn Display) -> String {
    format!("nx: {who}: {call}: {why}")
}

/// The line of `nx_perror`; `prefix` may be empty, and `why` is what the failed call said, if that is known.
#[must_use]
pub fn perror_line(who: &str, prefix: &str, text: &str, errno: i32, why: Option<&str>) -> String {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}: ") };
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("({who}) {prefix}{text} [{errno}]{why}")
}

/// Message ids that may be in use at a time, unless `NX_MIDS` says otherwise. Programs post 950 receives.
pub const MESSAGE_IDS: usize = 1024;

/// Whether a message longer than its buffer is no error, unless `NX_TRUNCATE` says otherwise.
pub const SILENT_TRUNCATION: bool = false;

/// What `nx_waitall` answers in a process that has started none: `ECHILD`, as `wait` does, or success.
pub const WAITALL_NEEDS_CHILDREN: bool = true;
