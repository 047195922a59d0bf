//! `xdr_bytes`, but that a service is lent what lies in the ring (R11, `include/vrpc_in_place.h`).

use super::decode;
use crate::abi::{Bool, FALSE, TRUE, Xdr, op};
use crate::channel;
use crate::counters::{self, Counter};
use crate::real;
use std::ffi::{c_char, c_uint};

/// Encodes, decodes or frees variable-length opaque data.
///
/// # Safety
/// As libtirpc's `xdr_bytes`.
pub(crate) unsafe fn bytes(
    xdr: *mut Xdr,
    at: *mut *mut c_char,
    len: *mut c_uint,
    most: c_uint,
) -> Bool {
    // SAFETY: the caller's handle. Of one that frees nothing else is looked at.
    let operation = unsafe { (*xdr).x_op };
    // SAFETY: the caller's variable.
    let is_at = unsafe { *at };
    match operation {
        op::FREE if channel::is_lent(is_at.cast()) => {
            // SAFETY: as above.
            unsafe { at.write(std::ptr::null_mut()) };
            return TRUE;
        }
        // Where the program says where the bytes are to go, they go there.
        op::DECODE if is_at.is_null() => {
            // SAFETY: passed on.
            if let Some(done) = unsafe { lend(xdr, at, len, most) } {
                return done;
            }
        }
        _ => {}
    }
    match real::xdr_bytes() {
        // SAFETY: the caller's own arguments.
        Some(bytes) => unsafe { bytes(xdr, at, len, most) },
        None => FALSE,
    }
}

/// Decodes without a copy; `None`, and nothing has been decoded: it is to be copied.
///
/// # Safety
/// As [`bytes`], with a handle that decodes.
unsafe fn lend(
    xdr: *mut Xdr,
    at: *mut *mut c_char,
    len: *mut c_uint,
    most: c_uint,
) -> Option<Bool> {
    // SAFETY: the caller's handle.
    let source = unsafe { decode::ours(xdr) }?;
    if !source.lends() {
        return None;
    }
    let before = source.position();
    let mut word = [0; 4];
    // SAFETY: four bytes of our own.
    if !unsafe { source.fill(word.as_mut_ptr(), word.len()) } {
        return Some(FALSE);
    }
    // Loaded once: the client may change the word meanwhile.
    let claimed = u32::from_be_bytes(word);
    if claimed > most || claimed as usize > source.remaining() {
        return Some(FALSE);
    }
    let place = if claimed == 0 { None } else { source.lend(claimed as usize) };
    let Some(place) = place else {
        source.set_position(before);
        return None;
    };
    // SAFETY: the caller's variables.
    unsafe { len.write(claimed) };
    // SAFETY: as above.
    unsafe { at.write(place.as_ptr().cast()) };
    counters::add(Counter::lent_bytes, claimed.into());
    Some(TRUE)
}
