//! Opaque data, strings, arrays, optional data and lists: RFC 4506, sections 4.9 to 4.19.
//!
//! These are functions and not implementations of [`Encode`](crate::Encode), because the limit of
//! a length belongs to the place in the interface file and not to the Rust type. Elements are
//! written and read by the closures.

use crate::{DecodeError, EncodeError, Sink, Source, enter, leave};

/// Checks a length before it is sent.
#[inline]
fn outgoing(len: usize, max: u32) -> Result<u32, EncodeError> {
    match u32::try_from(len) {
        Ok(short) if short <= max => Ok(short),
        _ => Err(EncodeError::TooLong { len, max }),
    }
}

/// Takes a length and checks it against the limit and against what is left, where each element
/// takes at least `each` bytes. Nothing is allocated for a length that the input cannot fill.
#[inline]
fn incoming<S: Source + ?Sized>(
    source: &mut S,
    max: u32,
    each: usize,
) -> Result<usize, DecodeError> {
    let len = source.get_u32()?;
    if len > max {
        return Err(DecodeError::TooLong { len, max });
    }
    room(source, len as usize, each)
}

/// Checks that the input can hold `len` elements of `each` bytes.
#[inline]
fn room<S: Source + ?Sized>(source: &S, len: usize, each: usize) -> Result<usize, DecodeError> {
    let need = len.saturating_mul(each);
    let left = source.remaining();
    if need > left {
        return Err(DecodeError::Short { need, left });
    }
    Ok(len)
}

/// Takes `len` elements, for which there is room.
fn elements<T, S: Source + ?Sized>(
    source: &mut S,
    len: usize,
    mut get: impl FnMut(&mut S) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    source.charge(len.saturating_mul(size_of::<T>()))?;
    let mut elements = Vec::with_capacity(len);
    for _ in 0..len {
        elements.push(get(source)?);
    }
    Ok(elements)
}

/// The number of elements of something whose elements travel elsewhere: a bulk block.
///
/// # Errors
/// [`EncodeError::TooLong`], [`EncodeError::Full`].
#[inline(always)]
pub fn put_count<S: Sink + ?Sized>(sink: &mut S, len: usize, max: u32) -> Result<(), EncodeError> {
    sink.put_u32(outgoing(len, max)?)
}

/// The number of elements of a bulk block of fixed length.
///
/// # Errors
/// [`EncodeError::WrongLength`], [`EncodeError::Full`].
pub fn put_exact_count<S: Sink + ?Sized>(
    sink: &mut S,
    len: usize,
    expected: u32,
) -> Result<(), EncodeError> {
    exactly(len, expected)?;
    sink.put_u32(expected)
}

/// The number of elements of a bulk block. Whether the block can be that long is for its
/// transport to check.
///
/// # Errors
/// [`DecodeError::TooLong`], [`DecodeError::Short`].
#[inline(always)]
pub fn get_count<S: Source + ?Sized>(source: &mut S, max: u32) -> Result<u32, DecodeError> {
    match source.get_u32()? {
        len if len <= max => Ok(len),
        len => Err(DecodeError::TooLong { len, max }),
    }
}

/// The number of elements of a bulk block of fixed length.
///
/// # Errors
/// [`DecodeError::WrongLength`], [`DecodeError::Short`].
pub fn get_exact_count<S: Source + ?Sized>(
    source: &mut S,
    expected: u32,
) -> Result<u32, DecodeError> {
    match source.get_u32()? {
        len if len == expected => Ok(len),
        len => Err(DecodeError::WrongLength { len, expected }),
    }
}

/// Fixed-length opaque data.
///
/// # Errors
/// [`EncodeError::Full`].
#[inline]
pub fn put_opaque_array<S: Sink + ?Sized>(sink: &mut S, bytes: &[u8]) -> Result<(), EncodeError> {
    sink.put_padded(bytes)
}

/// Fixed-length opaque data.
///
/// # Errors
/// [`DecodeError::Short`].
#[inline]
pub fn get_opaque_array<const N: usize, S: Source + ?Sized>(
    source: &mut S,
) -> Result<[u8; N], DecodeError> {
    let mut bytes = [0; N];
    source.get_padded(&mut bytes)?;
    Ok(bytes)
}

/// Variable-length opaque data of at most `max` bytes.
///
/// # Errors
/// [`EncodeError::TooLong`], [`EncodeError::Full`].
pub fn put_opaque<S: Sink + ?Sized>(
    sink: &mut S,
    bytes: &[u8],
    max: u32,
) -> Result<(), EncodeError> {
    sink.put_u32(outgoing(bytes.len(), max)?)?;
    sink.put_padded(bytes)
}

/// Variable-length opaque data of at most `max` bytes.
///
/// # Errors
/// A length beyond the limit or beyond the input, or beyond the memory limit.
pub fn get_opaque<S: Source + ?Sized>(source: &mut S, max: u32) -> Result<Vec<u8>, DecodeError> {
    let len = incoming(source, max, 1)?;
    source.charge(len)?;
    let mut bytes = vec![0; len];
    source.get_padded(&mut bytes)?;
    Ok(bytes)
}

/// A string of at most `max` bytes.
///
/// # Errors
/// As [`put_opaque`].
pub fn put_string<S: Sink + ?Sized>(
    sink: &mut S,
    string: &str,
    max: u32,
) -> Result<(), EncodeError> {
    put_opaque(sink, string.as_bytes(), max)
}

/// A string of at most `max` bytes.
///
/// # Errors
/// As [`get_opaque`], and [`DecodeError::NotUtf8`].
pub fn get_string<S: Source + ?Sized>(source: &mut S, max: u32) -> Result<String, DecodeError> {
    String::from_utf8(get_opaque(source, max)?)
        .map_err(|error| DecodeError::NotUtf8 { valid: error.utf8_error().valid_up_to() })
}

/// The elements of a fixed-length array.
///
/// # Errors
/// Those of the elements.
pub fn put_array<T, S: Sink + ?Sized>(
    sink: &mut S,
    elements: &[T],
    mut put: impl FnMut(&mut S, &T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    elements.iter().try_for_each(|element| put(sink, element))
}

/// A fixed-length array.
///
/// # Errors
/// Those of the elements.
pub fn get_array<const N: usize, T, S: Source + ?Sized>(
    source: &mut S,
    mut get: impl FnMut(&mut S) -> Result<T, DecodeError>,
) -> Result<[T; N], DecodeError> {
    // No array of results on the stack: the first error ends the decoding.
    let mut error = None;
    let elements: [Option<T>; N] = std::array::from_fn(|_| match error {
        None => get(source).map_err(|e| error = Some(e)).ok(),
        Some(_) => None,
    });
    match error {
        Some(error) => Err(error),
        None => Ok(elements.map(|element| element.expect("without an error each has a value"))),
    }
}

/// Checks the length of a fixed-length array that is kept in a vector.
fn exactly(len: usize, expected: u32) -> Result<(), EncodeError> {
    if len == expected as usize { Ok(()) } else { Err(EncodeError::WrongLength { len, expected }) }
}

/// Fixed-length opaque data that is too long for an array in place, and is kept in a vector.
///
/// # Errors
/// [`EncodeError::WrongLength`], [`EncodeError::Full`].
pub fn put_long_opaque_array<S: Sink + ?Sized>(
    sink: &mut S,
    bytes: &[u8],
    len: u32,
) -> Result<(), EncodeError> {
    exactly(bytes.len(), len)?;
    sink.put_padded(bytes)
}

/// Fixed-length opaque data, into a vector.
///
/// # Errors
/// [`DecodeError::Short`], [`DecodeError::TooLarge`].
pub fn get_long_opaque_array<S: Source + ?Sized>(
    source: &mut S,
    len: u32,
) -> Result<Vec<u8>, DecodeError> {
    let bytes = room(source, len as usize, 1)?;
    source.charge(bytes)?;
    let mut bytes = vec![0; bytes];
    source.get_padded(&mut bytes)?;
    Ok(bytes)
}

/// The elements of a fixed-length array that is kept in a vector.
///
/// # Errors
/// [`EncodeError::WrongLength`], and those of the elements.
pub fn put_long_array<T, S: Sink + ?Sized>(
    sink: &mut S,
    elements: &[T],
    len: u32,
    put: impl FnMut(&mut S, &T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    exactly(elements.len(), len)?;
    put_array(sink, elements, put)
}

/// A fixed-length array, into a vector. Each element takes `each` bytes or more in the input.
///
/// # Errors
/// [`DecodeError::Short`], [`DecodeError::TooLarge`], and those of the elements.
pub fn get_long_array<T, S: Source + ?Sized>(
    source: &mut S,
    len: u32,
    each: usize,
    get: impl FnMut(&mut S) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = room(source, len as usize, each.max(1))?;
    elements(source, len, get)
}

/// A variable-length array of at most `max` elements.
///
/// # Errors
/// [`EncodeError::TooLong`], and those of the elements.
pub fn put_vec<T, S: Sink + ?Sized>(
    sink: &mut S,
    elements: &[T],
    max: u32,
    put: impl FnMut(&mut S, &T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    sink.put_u32(outgoing(elements.len(), max)?)?;
    put_array(sink, elements, put)
}

/// A variable-length array of at most `max` elements, each of which takes `each` bytes or more in
/// the input.
///
/// # Errors
/// A length beyond the limit or beyond the input, or beyond the memory limit; those of the
/// elements.
pub fn get_vec<T, S: Source + ?Sized>(
    source: &mut S,
    max: u32,
    each: usize,
    get: impl FnMut(&mut S) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = incoming(source, max, each.max(1))?;
    elements(source, len, get)
}

/// Optional data.
///
/// # Errors
/// Those of the value.
pub fn put_optional<T: ?Sized, S: Sink + ?Sized>(
    sink: &mut S,
    value: Option<&T>,
    put: impl FnOnce(&mut S, &T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    sink.put_u32(u32::from(value.is_some()))?;
    match value {
        Some(value) => put(sink, value),
        None => Ok(()),
    }
}

/// Takes the mark in front of optional data.
#[inline]
fn present<S: Source + ?Sized>(source: &mut S) -> Result<bool, DecodeError> {
    match source.get_u32()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeError::NotBool(other)),
    }
}

/// Optional data.
///
/// # Errors
/// [`DecodeError::NotBool`]; those of the value; [`DecodeError::TooDeep`], because optional data
/// may contain its own type.
pub fn get_optional<T, S: Source + ?Sized>(
    source: &mut S,
    get: impl FnOnce(&mut S) -> Result<T, DecodeError>,
) -> Result<Option<Box<T>>, DecodeError> {
    if !present(source)? {
        return Ok(None);
    }
    source.charge(size_of::<T>())?;
    enter::<T, S>(source)?;
    let value = get(source)?;
    leave::<T, S>(source);
    Ok(Some(Box::new(value)))
}

/// A linked list: each element behind a mark, the last behind none (RFC 4506, section 4.19). In
/// Rust it is a vector, so that neither its decoding nor its end recurses.
///
/// # Errors
/// Those of the elements.
pub fn put_list<T, S: Sink + ?Sized>(
    sink: &mut S,
    elements: &[T],
    mut put: impl FnMut(&mut S, &T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    for element in elements {
        sink.put_u32(1)?;
        put(sink, element)?;
    }
    sink.put_u32(0)
}

/// A linked list.
///
/// # Errors
/// [`DecodeError::NotBool`], [`DecodeError::TooLarge`], and those of the elements.
pub fn get_list<T, S: Source + ?Sized>(
    source: &mut S,
    mut get: impl FnMut(&mut S) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut elements = Vec::new();
    enter::<T, S>(source)?;
    while present(source)? {
        // A vector that grows takes up to twice its elements, and thrice while it moves.
        source.charge(size_of::<T>().max(1).saturating_mul(3))?;
        elements.push(get(source)?);
    }
    leave::<T, S>(source);
    Ok(elements)
}
