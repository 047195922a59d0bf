//! Decoding: from a record that lies in one piece, in the ring or in our memory.
//!
//! Each byte of the record is read once, into the program's variable: what the peer changes
//! afterwards is not seen again.

use crate::abi::{Bool, FALSE, TRUE, Xdr, XdrOps, op};
use crate::channel::Incoming;
use std::ffi::{c_char, c_long, c_uint};
use vmmc::mem::copy;

/// Where a handle reads: kept beside it.
#[derive(Debug)]
pub(crate) struct Source {
    record: Incoming,
    at: usize,
}

impl Source {
    pub(crate) fn new(record: Incoming) -> Source {
        Source { record, at: 0 }
    }

    /// An empty record.
    pub(crate) fn nothing() -> Source {
        Source::new(Incoming { start: std::ptr::NonNull::dangling(), len: 0 })
    }

    /// The next `len` bytes; counts them as read.
    fn next(&mut self, len: usize) -> Option<*mut u8> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.record.len)?;
        // SAFETY: `at <= len` of the record.
        let place = unsafe { self.record.start.add(self.at) };
        self.at = end;
        Some(place.as_ptr())
    }
}

static OPS: XdrOps = XdrOps {
    x_getlong: get_long,
    x_putlong: put_long,
    x_getbytes: get_bytes,
    x_putbytes: put_bytes,
    x_getpostn: position,
    x_setpostn: set_position,
    x_inline: inline,
    x_destroy: super::nothing_to_destroy,
    x_control: super::no_control,
};

/// A handle that decodes from `source`, which must outlive it.
pub(crate) fn decoder(source: &mut Source) -> Xdr {
    let mut xdr = empty();
    xdr.x_private = std::ptr::from_mut(source).cast();
    xdr
}

/// A handle over nothing.
pub(super) fn empty() -> Xdr {
    Xdr {
        x_op: op::DECODE,
        x_ops: &raw const OPS,
        x_public: std::ptr::null_mut(),
        x_private: std::ptr::null_mut(),
        x_base: std::ptr::null_mut(),
        x_handy: 0,
    }
}

/// The next bytes of a handle; null when the record is over.
///
/// # Safety
/// The handle must come from [`decoder`] or [`empty`], and its source must be alive.
unsafe fn next(xdr: *mut Xdr, len: usize) -> Option<*mut u8> {
    // SAFETY: the caller's word.
    let private = unsafe { (*xdr).x_private };
    // SAFETY: null, or what `decoder` put there; handles are used by one thread at a time.
    unsafe { private.cast::<Source>().as_mut() }?.next(len)
}

unsafe extern "C" fn put_long(_: *mut Xdr, _: *const c_long) -> Bool {
    FALSE
}

unsafe extern "C" fn put_bytes(_: *mut Xdr, _: *const c_char, _: c_uint) -> Bool {
    FALSE
}

unsafe extern "C" fn get_long(xdr: *mut Xdr, value: *mut c_long) -> Bool {
    // SAFETY: an operation of our table gets our handle.
    let Some(place) = (unsafe { next(xdr, 4) }) else { return FALSE };
    let mut word = [0; 4];
    // SAFETY: four bytes of the record, copied once.
    unsafe { copy::bytes(place, word.as_mut_ptr(), 4) };
    // SAFETY: the XDR interface: a pointer to a long. Signed, as libtirpc's ntohl into a long is
    // cast by all callers to 32 bits.
    unsafe { value.write(c_long::from(i32::from_be_bytes(word))) };
    TRUE
}

unsafe extern "C" fn get_bytes(xdr: *mut Xdr, to: *mut c_char, len: c_uint) -> Bool {
    if len == 0 {
        return TRUE;
    }
    // SAFETY: an operation of our table gets our handle.
    let Some(place) = (unsafe { next(xdr, len as usize) }) else { return FALSE };
    // SAFETY: `len` bytes of the record, to the program's `len` writable bytes.
    unsafe { copy::bytes(place, to.cast(), len as usize) };
    TRUE
}

unsafe extern "C" fn position(xdr: *mut Xdr) -> c_uint {
    // SAFETY: an operation of our table gets our handle.
    let private = unsafe { (*xdr).x_private };
    // SAFETY: null, or a live source.
    unsafe { private.cast::<Source>().as_ref() }.map_or(0, |source| source.at as c_uint)
}

unsafe extern "C" fn set_position(xdr: *mut Xdr, at: c_uint) -> Bool {
    // SAFETY: an operation of our table gets our handle.
    let private = unsafe { (*xdr).x_private };
    // SAFETY: null, or a live source.
    let Some(source) = (unsafe { private.cast::<Source>().as_mut() }) else { return FALSE };
    if at as usize > source.record.len {
        return FALSE;
    }
    source.at = at as usize;
    TRUE
}

unsafe extern "C" fn inline(xdr: *mut Xdr, len: c_uint) -> *mut i32 {
    if !len.is_multiple_of(4) {
        return std::ptr::null_mut();
    }
    // SAFETY: an operation of our table gets our handle.
    unsafe { next(xdr, len as usize) }.map_or(std::ptr::null_mut(), |place| place.cast())
}
