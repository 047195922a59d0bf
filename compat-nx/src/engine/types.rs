//! Values of the interface: selectors, destinations, what is known of a message.
#![allow(unsafe_code)] // memory of callers is an address here; each `Send` has its proof

use crate::error::NxError;
pub use crate::unconfirmed::FORCE_LAST;
use crate::unconfirmed::{ANY_TAKES_FORCE, MASK_REST};
use std::ffi::c_void;

/// First type of the force range.
pub const FORCE_TYPE: i32 = 0x4000_0000;
/// Last type of the normal range.
pub const NORMAL_LAST: i32 = 999_999_999;
/// Process type of a process that has not set one.
pub const INVALID_PTYPE: i32 = -1;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest {
    /// Node number, the host's number, or -1: all nodes but this one.
    pub node: i32,
    /// Process type on that node.
    pub ptype: i32,
}

/// Which messages a receive or probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    /// A type; -1 for any but force types; below -1 a mask: bits 0 to 29 for types 0 to 29, bit
    /// 30 for all from 30.
    pub typesel: i32,
    /// Source node, -1 for any.
    pub node: i32,
    /// Source process type, -1 for any.
    pub ptype: i32,
}

impl Select {
    /// Messages of the given types, from anywhere.
    #[must_use]
    pub fn types(typesel: i32) -> Select {
        Select { typesel, node: -1, ptype: -1 }
    }

    /// Whether a message of this type, from there, is taken.
    #[inline]
    #[must_use]
    pub fn takes(self, type_: i32, node: i32, ptype: i32) -> bool {
        (self.node == -1 || self.node == node)
            && (self.ptype == -1 || self.ptype == ptype)
            && self.takes_type(type_)
    }

    #[inline]
    fn takes_type(self, type_: i32) -> bool {
        match self.typesel {
            exact if exact >= 0 => exact == type_,
            _ if type_ >= FORCE_TYPE && !ANY_TAKES_FORCE => false,
            -1 => true,
            mask => (mask >> type_.clamp(0, MASK_REST)) & 1 == 1,
        }
    }
}

/// What is known of a message: the first four words of an NX info array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Message type.
    pub type_: i32,
    /// Length as sent, in bytes; may exceed the buffer.
    pub count: usize,
    /// Source node.
    pub node: i32,
    /// Source process type.
    pub ptype: i32,
}

/// Number of a started operation: positive, fits an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mid(pub i32);

/// Bytes to send. The memory must stay valid and unchanged until the send is complete.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// First byte; may be null when `len` is 0.
    pub start: *const u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: an address and a length. Who gives them to an operation promises that the bytes may be read
// until it is complete, by whichever thread completes it.
unsafe impl Send for Source {}

/// Room for a message. The memory must stay valid and untouched until the receive is complete.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// First byte; may be null when `len` is 0.
    pub start: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: as `Source`; the promise includes that nobody else uses the bytes.
unsafe impl Send for Target {}

/// Where to write the info of a receive at its completion (`irecvx`), in whichever thread
/// completes it. Called with locks held: it must only store.
#[derive(Clone, Copy, Debug)]
pub struct InfoTarget {
    /// Stores `info` to `array`.
    pub write: unsafe fn(array: *mut c_void, info: &Info),
    /// What `write` gets.
    pub array: *mut c_void,
}

// SAFETY: the promise of who gives it includes that any thread may call `write`.
unsafe impl Send for InfoTarget {}

/// How a started operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A send, or a merged id: nothing to tell.
    Sent,
    /// A receive: the message.
    Received(Info),
}

/// A function to run when an operation completes, in the handler thread: one at a time, never while
/// handlers are masked (`masktrap`). An error is [`NxError::MessageTooLong`], with the beginning in the room.
pub type Handler = Box<dyn FnOnce(Result<Info, NxError>) + Send>;

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    fn types_taken(typesel: i32) -> Vec<i32> {
        [0, 1, 2, 3, 29, 30, 31, 1000, NORMAL_LAST, FORCE_TYPE, FORCE_TYPE + 1]
            .into_iter()
            .filter(|&type_| Select::types(typesel).takes(type_, 0, 0))
            .collect()
    }

    #[test]
    fn a_selector_takes_one_type_all_normal_ones_or_those_of_its_mask() {
        assert_eq!(types_taken(0), [0]);
        assert_eq!(types_taken(FORCE_TYPE), [FORCE_TYPE]);
        assert_eq!(types_taken(-1), [0, 1, 2, 3, 29, 30, 31, 1000, NORMAL_LAST]);
        assert_eq!(types_taken(0x8000_0007u32 as i32), [0, 1, 2]);
        assert_eq!(types_taken(0xC000_0001u32 as i32), [0, 30, 31, 1000, NORMAL_LAST]);
        assert_eq!(types_taken(i32::MIN), []);
    }

    #[test]
    fn a_selector_may_name_the_source() {
        let select = Select { typesel: -1, node: 2, ptype: 5 };
        assert!(select.takes(9, 2, 5));
        assert!(!select.takes(9, 1, 5));
        assert!(!select.takes(9, 2, 0));
    }
}
