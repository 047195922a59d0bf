//! Encoding: every operation goes to the [`Writer`] that the handle points to.

use crate::abi::{Bool, TRUE, Xdr, XdrOps, op};
use crate::channel::Writer;
use std::ffi::{c_char, c_long, c_uint};

static OPS: XdrOps = XdrOps {
    x_putlong: put_long,
    x_putbytes: put_bytes,
    x_getpostn: position,
    x_setpostn: set_position,
    x_inline: inline,
    ..super::NOTHING
};

/// A handle that encodes into `writer`, which must outlive it and not be used otherwise
/// meanwhile.
pub(crate) fn encoder(writer: &mut Writer<'_>) -> Xdr {
    Xdr {
        x_op: op::ENCODE,
        x_ops: &raw const OPS,
        x_public: std::ptr::null_mut(),
        x_private: std::ptr::from_mut(writer).cast(),
        x_base: std::ptr::null_mut(),
        x_handy: 0,
    }
}

/// Appends one 32-bit word, big-endian as all of XDR.
fn put_word(writer: &mut Writer<'_>, word: u32) -> bool {
    writer.put(&word.to_be_bytes())
}

/// The writer of a handle.
///
/// # Safety
/// The handle must come from [`encoder`], its writer must be alive, and the result must not
/// outlive the operation.
unsafe fn writer<'x>(xdr: *mut Xdr) -> &'x mut Writer<'x> {
    // SAFETY: the caller's word.
    let private = unsafe { (*xdr).x_private };
    // SAFETY: `encoder` put a writer there; handles are used by one thread at a time.
    unsafe { &mut *private.cast::<Writer<'x>>() }
}

unsafe extern "C" fn put_long(xdr: *mut Xdr, value: *const c_long) -> Bool {
    // SAFETY: the XDR interface: a pointer to a long.
    let value = unsafe { value.read() };
    // SAFETY: an operation of our table gets our handle.
    let writer = unsafe { writer(xdr) };
    // XDR's long has 32 bits; the upper ones are dropped, as libtirpc does.
    Bool::from(put_word(writer, value as u32))
}

unsafe extern "C" fn put_bytes(xdr: *mut Xdr, from: *const c_char, len: c_uint) -> Bool {
    if len == 0 {
        return TRUE;
    }
    // SAFETY: an operation of our table gets our handle.
    let writer = unsafe { writer(xdr) };
    // SAFETY: the XDR interface: `len` readable bytes. They may be a ring's (`vrpc_bytes_in_place`).
    Bool::from(unsafe { writer.put_from(from.cast(), len as usize) })
}

unsafe extern "C" fn position(xdr: *mut Xdr) -> c_uint {
    // SAFETY: an operation of our table gets our handle.
    let writer = unsafe { writer(xdr) };
    writer.position() as c_uint
}

unsafe extern "C" fn set_position(xdr: *mut Xdr, at: c_uint) -> Bool {
    // SAFETY: an operation of our table gets our handle.
    let writer = unsafe { writer(xdr) };
    Bool::from(writer.set_position(at as usize))
}

unsafe extern "C" fn inline(xdr: *mut Xdr, len: c_uint) -> *mut i32 {
    if !len.is_multiple_of(4) {
        return std::ptr::null_mut();
    }
    // SAFETY: an operation of our table gets our handle.
    let writer = unsafe { writer(xdr) };
    writer.inline(len as usize).map_or(std::ptr::null_mut(), |place| place.as_ptr().cast())
}
