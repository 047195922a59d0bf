//! Extended arithmetic: 64-bit sizes in two words, from a time without `long long`.

use std::ffi::{c_char, c_long};

/// A 64-bit integer in two words of 32 bits, low word first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ESize {
    slow: u32,
    shigh: i32,
}

impl ESize {
    pub(super) fn from_i64(value: i64) -> ESize {
        ESize { slow: value as u32, shigh: (value >> 32) as i32 }
    }

    pub(super) fn to_i64(self) -> i64 {
        i64::from(self.shigh) << 32 | i64::from(self.slow)
    }
}

macro_rules! arithmetic {
    ($($name:ident, $fortran:ident ($a:ident, $b:ident) $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(a: ESize, b: ESize) -> ESize {
            let ($a, $b) = (a.to_i64(), b.to_i64());
            ESize::from_i64($value)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(a: *const ESize, b: *const ESize, result: *mut ESize) {
            // SAFETY: Fortran passes arrays of two INTEGERs.
            let value = $name(unsafe { a.read_unaligned() }, unsafe { b.read_unaligned() });
            // SAFETY: as above.
            unsafe { result.write_unaligned(value) };
        }
    )* };
}

arithmetic! {
    eadd, eadd_ (a, b) a.wrapping_add(b);
    esub, esub_ (a, b) a.wrapping_sub(b);
}

macro_rules! with_long {
    ($($name:ident, $fortran:ident ($a:ident, $n:ident) $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(a: ESize, n: c_long) -> ESize {
            let ($a, $n) = (a.to_i64(), i64::from(n as i32));
            ESize::from_i64($value)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(a: *const ESize, n: *const i32, result: *mut ESize) {
            // SAFETY: Fortran passes the address of an INTEGER.
            let n = unsafe { super::deref(n) };
            // SAFETY: Fortran passes arrays of two INTEGERs.
            let value = $name(unsafe { a.read_unaligned() }, n.into());
            // SAFETY: as above.
            unsafe { result.write_unaligned(value) };
        }
    )* };
}

with_long! {
    eadd1, eadd1_ (a, n) a.wrapping_add(n);
    esub1, esub1_ (a, n) a.wrapping_sub(n);
    emul, emul_ (a, n) a.wrapping_mul(n);
}

macro_rules! to_long {
    ($($name:ident, $fortran:ident ($a:ident, $n:ident) $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(a: ESize, n: c_long) -> c_long {
            let ($a, $n) = (a.to_i64(), i64::from(n as i32));
            super::plain(stringify!($name), || $value.ok_or_else(|| {
                super::Failure::System(super::errno::EQPARAM, format!("{} by {n}", $a))
            }))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fortran(a: *const ESize, n: *const i32) -> i32 {
            // SAFETY: Fortran passes the address of an INTEGER.
            let n = unsafe { super::deref(n) };
            // SAFETY: Fortran passes an array of two INTEGERs.
            $name(unsafe { a.read_unaligned() }, n.into()) as i32
        }
    )* };
}

to_long! {
    ediv, ediv_ (a, n) a.checked_div(n);
    emod, emod_ (a, n) a.checked_rem(n);
}

/// -1, 0 or 1.
#[unsafe(no_mangle)]
pub extern "C" fn ecmp(a: ESize, b: ESize) -> c_long {
    a.to_i64().cmp(&b.to_i64()) as c_long
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecmp_(a: *const ESize, b: *const ESize) -> i32 {
    // SAFETY: Fortran passes arrays of two INTEGERs.
    ecmp(unsafe { a.read_unaligned() }, unsafe { b.read_unaligned() }) as i32
}

/// Decimal digits; the buffer needs 21 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn etos(a: ESize, text: *mut c_char) {
    if text.is_null() {
        super::process::fatal("etos", &super::null("the digits"));
    }
    let digits = std::ffi::CString::new(a.to_i64().to_string()).unwrap_or_default();
    let bytes = digits.as_bytes_with_nul();
    // SAFETY: the caller's buffer is long enough, as the manual asks.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), text, bytes.len()) };
}

/// From decimal digits; 0 on success, -1 when they are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stoe(text: *const c_char, result: *mut ESize) -> c_long {
    super::under(|| {
        if text.is_null() || result.is_null() {
            return Err(super::null("the digits or their number"));
        }
        // SAFETY: a string.
        let text = unsafe { super::strings::string(text) }.unwrap_or_default();
        let bad =
            || super::Failure::System(super::errno::EQPARAM, format!("{text:?} is no number"));
        let value = text.trim().parse().map_err(|_| bad())?;
        // SAFETY: the caller's variable.
        unsafe { result.write_unaligned(ESize::from_i64(value)) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_carry() {
        for value in [0, -1, 1 << 40, i64::MIN, i64::MAX, 0xffff_ffff] {
            assert_eq!(ESize::from_i64(value).to_i64(), value);
        }
        let sum = eadd(ESize { slow: u32::MAX, shigh: 0 }, ESize { slow: 1, shigh: 0 });
        assert_eq!(sum, ESize { slow: 0, shigh: 1 });
        assert_eq!(emul(ESize::from_i64(1 << 31), 6).to_i64(), 6 << 31);
        assert_eq!(ediv(ESize::from_i64(7 << 33), 1 << 30), 56);
        assert_eq!(emod(ESize::from_i64((7 << 33) + 5), 8), 5);
        assert_eq!(ecmp(ESize::from_i64(-1), ESize::from_i64(1)), -1);
    }
}
