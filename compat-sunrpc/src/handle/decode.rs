//! Decoding: every operation goes to the [`Source`] that the handle points to.

use crate::abi::{Bool, FALSE, TRUE, Xdr, XdrOps, op};
use crate::channel::Source;
use std::ffi::{c_char, c_long, c_uint};

static OPS: XdrOps = XdrOps {
    x_getlong: get_long,
    x_getbytes: get_bytes,
    x_getpostn: position,
    x_setpostn: set_position,
    x_inline: inline,
    ..super::NOTHING
};

/// A handle that decodes from `source`, which must outlive it and not be used otherwise meanwhile.
pub(crate) fn decoder(source: &mut Source<'_>) -> Xdr {
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

/// The source of a handle; none of [`empty`].
///
/// # Safety
/// The handle must come from [`decoder`] or [`empty`], its source must be alive, and the result must
/// not outlive the operation.
unsafe fn source<'x>(xdr: *mut Xdr) -> Option<&'x mut Source<'x>> {
    // SAFETY: the caller's word.
    let private = unsafe { (*xdr).x_private };
    // SAFETY: null, or what `decoder` put there; handles are used by one thread at a time.
    unsafe { private.cast::<Source<'x>>().as_mut() }
}

/// The source of a handle, if it is one of [`decoder`].
///
/// # Safety
/// As [`source`], but that the handle may be anybody's that decodes or encodes.
pub(super) unsafe fn ours<'x>(xdr: *mut Xdr) -> Option<&'x mut Source<'x>> {
    // SAFETY: the caller's word.
    let ops = unsafe { (*xdr).x_ops };
    // SAFETY: with our operations it is ours.
    if std::ptr::eq(ops, &raw const OPS) { unsafe { source(xdr) } } else { None }
}

unsafe extern "C" fn get_long(xdr: *mut Xdr, value: *mut c_long) -> Bool {
    // SAFETY: an operation of our table gets our handle.
    let Some(source) = (unsafe { source(xdr) }) else { return FALSE };
    let mut word = [0; 4];
    // SAFETY: four bytes of our own.
    if !unsafe { source.fill(word.as_mut_ptr(), word.len()) } {
        return FALSE;
    }
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
    let Some(source) = (unsafe { source(xdr) }) else { return FALSE };
    // SAFETY: the program's `len` writable bytes.
    Bool::from(unsafe { source.fill(to.cast(), len as usize) })
}

unsafe extern "C" fn position(xdr: *mut Xdr) -> c_uint {
    // SAFETY: an operation of our table gets our handle.
    unsafe { source(xdr) }.map_or(0, |source| source.position() as c_uint)
}

unsafe extern "C" fn set_position(xdr: *mut Xdr, at: c_uint) -> Bool {
    // SAFETY: an operation of our table gets our handle.
    Bool::from(unsafe { source(xdr) }.is_some_and(|source| source.set_position(at as usize)))
}

unsafe extern "C" fn inline(xdr: *mut Xdr, len: c_uint) -> *mut i32 {
    if !len.is_multiple_of(4) {
        return std::ptr::null_mut();
    }
    // SAFETY: an operation of our table gets our handle.
    let place = unsafe { source(xdr) }.and_then(|source| source.inline(len as usize));
    place.map_or(std::ptr::null_mut(), |place| place.as_ptr().cast())
}
