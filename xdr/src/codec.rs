//! Values: the basic types of RFC 4506, sections 4.1 to 4.8.

use crate::{DecodeError, EncodeError, Sink, Source};

/// A value that can be written to a [`Sink`].
pub trait Encode {
    /// Appends this value.
    ///
    /// # Errors
    /// The sink is full, or the value breaks a limit of its interface.
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError>;
}

/// A value that can be read from a [`Source`].
pub trait Decode: Sized {
    /// Takes a value of this type.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes: see [`DecodeError`].
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Self, DecodeError>;
}

/// A number of 128 bits in the format of RFC 4506, section 4.8 (quadruple-precision floating
/// point). Rust has no such arithmetic yet; these are its bits, sign first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Quad(pub u128);

macro_rules! numbers {
    ($($type:ty: $put:ident $get:ident, $to:expr, $from:expr;)*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
                sink.$put($to(*self))
            }
        }
        impl Decode for $type {
            #[inline]
            fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Self, DecodeError> {
                source.$get().map($from)
            }
        }
    )*};
}

numbers! {
    u32: put_u32 get_u32, |v: u32| v, |v| v;
    i32: put_u32 get_u32, |v: i32| v.cast_unsigned(), |v: u32| v.cast_signed();
    f32: put_u32 get_u32, f32::to_bits, f32::from_bits;
    u64: put_u64 get_u64, |v: u64| v, |v| v;
    i64: put_u64 get_u64, |v: i64| v.cast_unsigned(), |v: u64| v.cast_signed();
    f64: put_u64 get_u64, f64::to_bits, f64::from_bits;
}

// RFC 4506 has no types of 8 and 16 bits; rpcgen has, and sends them as an int. A stock peer whose
// `char` is unsigned sends 200 where another sends -56, so both are taken for the same bits.
macro_rules! small {
    ($($type:ty, $name:literal, $low:expr, $high:expr;)*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
                sink.put_u32(i32::from(*self).cast_unsigned())
            }
        }
        impl Decode for $type {
            #[inline]
            fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Self, DecodeError> {
                let value = source.get_u32()?.cast_signed();
                if ($low..=$high).contains(&value) {
                    Ok(value as $type)
                } else {
                    Err(DecodeError::OutOfRange { value: i64::from(value), type_name: $name })
                }
            }
        }
    )*};
}

small! {
    i8, "char", -0x80, 0xff;
    u8, "unsigned char", -0x80, 0xff;
    i16, "short", -0x8000, 0xffff;
    u16, "unsigned short", -0x8000, 0xffff;
}

impl Encode for bool {
    #[inline]
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        sink.put_u32(u32::from(*self))
    }
}

impl Decode for bool {
    #[inline]
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Self, DecodeError> {
        match source.get_u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::NotBool(other)),
        }
    }
}

impl Encode for Quad {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        sink.put_u64((self.0 >> 64) as u64)?;
        sink.put_u64(self.0 as u64)
    }
}

impl Decode for Quad {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Self, DecodeError> {
        let high = source.get_u64()?;
        Ok(Quad(u128::from(high) << 64 | u128::from(source.get_u64()?)))
    }
}

impl Encode for () {
    #[inline]
    fn encode<S: Sink + ?Sized>(&self, _: &mut S) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl Decode for () {
    #[inline]
    fn decode<S: Source + ?Sized>(_: &mut S) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    #[inline]
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), EncodeError> {
        (**self).encode(sink)
    }
}
