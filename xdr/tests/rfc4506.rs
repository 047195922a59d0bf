//! Vectors written out by hand from the text of RFC 4506, and limits.

use proptest::prelude::*;
use xdr::{
    Decode, DecodeError, Encode, EncodeError, Limits, Network, Quad, Reader, Source, Writer,
};

fn bytes(value: &impl Encode) -> Vec<u8> {
    let mut writer = Writer::<Network>::new();
    value.encode(&mut writer).expect("no limit");
    writer.into_bytes()
}

fn value<T: Decode>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::<Network>::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Sections 4.1 to 4.8: two's complement, most significant byte first.
#[test]
fn numbers_are_laid_out_as_in_sections_4_1_to_4_8() {
    assert_eq!(bytes(&-2i32), [0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(bytes(&0x0102_0304u32), [1, 2, 3, 4]);
    assert_eq!(bytes(&true), [0, 0, 0, 1]);
    assert_eq!(bytes(&-2i64), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(bytes(&0x0102_0304_0506_0708u64), [1, 2, 3, 4, 5, 6, 7, 8]);
    // IEEE 754: -0.15625 is 0xbe200000.
    assert_eq!(bytes(&-0.156_25f32), [0xbe, 0x20, 0, 0]);
    assert_eq!(bytes(&1.0f64), [0x3f, 0xf0, 0, 0, 0, 0, 0, 0]);
    let quad = Quad(0x3fff_0000_0000_0000_0000_0000_0000_0001);
    assert_eq!(bytes(&quad), [0x3f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(value::<Quad>(&bytes(&quad)), Ok(quad));
}

/// The example of section 7: struct file {"sillyprog", EXEC "lisp", owner "john", "(quit)"}.
#[test]
fn the_example_of_section_7_is_48_bytes() {
    let expected: &[u8] = &[
        0x00, 0x00, 0x00, 0x09, 0x73, 0x69, 0x6c, 0x6c, 0x79, 0x70, 0x72, 0x6f, 0x67, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x04, 0x6c, 0x69, 0x73, 0x70, 0x00, 0x00,
        0x00, 0x04, 0x6a, 0x6f, 0x68, 0x6e, 0x00, 0x00, 0x00, 0x06, 0x28, 0x71, 0x75, 0x69, 0x74,
        0x29, 0x00, 0x00,
    ];
    let mut writer = Writer::<Network>::new();
    xdr::put_string(&mut writer, "sillyprog", 255).unwrap();
    2u32.encode(&mut writer).unwrap();
    xdr::put_string(&mut writer, "lisp", 255).unwrap();
    xdr::put_string(&mut writer, "john", 32).unwrap();
    xdr::put_opaque(&mut writer, b"(quit)", 65535).unwrap();
    assert_eq!(writer.bytes(), expected);
}

#[test]
fn small_types_take_both_readings_of_a_stock_char() {
    assert_eq!(bytes(&-56i8), [0xff, 0xff, 0xff, 0xc8]);
    assert_eq!(value::<i8>(&[0xff, 0xff, 0xff, 0xc8]), Ok(-56));
    assert_eq!(value::<i8>(&[0, 0, 0, 200]), Ok(-56));
    assert_eq!(value::<u8>(&[0xff, 0xff, 0xff, 0xc8]), Ok(200));
    let wide = DecodeError::OutOfRange { value: 256, type_name: "char" };
    assert_eq!(value::<i8>(&[0, 0, 1, 0]), Err(wide));
    let wide = DecodeError::OutOfRange { value: 65536, type_name: "unsigned short" };
    assert_eq!(value::<u16>(&[0, 1, 0, 0]), Err(wide));
}

#[test]
fn what_is_no_boolean_is_refused() {
    assert_eq!(value::<bool>(&[0, 0, 0, 2]), Err(DecodeError::NotBool(2)));
    let mut reader = Reader::<Network>::new(&[0, 0, 0, 3]);
    assert_eq!(xdr::get_optional(&mut reader, u32::decode), Err(DecodeError::NotBool(3)));
}

#[test]
fn a_length_is_checked_before_anything_is_allocated() {
    let huge = [0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    let mut reader = Reader::<Network>::new(&huge);
    assert_eq!(
        xdr::get_opaque(&mut reader, u32::MAX),
        Err(DecodeError::Short { need: u32::MAX as usize, left: 4 })
    );
    let mut reader = Reader::<Network>::new(&huge);
    assert_eq!(
        xdr::get_opaque(&mut reader, 1000),
        Err(DecodeError::TooLong { len: u32::MAX, max: 1000 })
    );
    let mut reader = Reader::<Network>::new(&huge);
    assert_eq!(
        xdr::get_vec(&mut reader, u32::MAX, 8, u64::decode),
        Err(DecodeError::Short { need: u32::MAX as usize * 8, left: 4 })
    );
    let mut reader = Reader::<Network>::new(&huge);
    assert_eq!(
        xdr::get_long_array(&mut reader, 4, 4, u32::decode),
        Err(DecodeError::Short { need: 16, left: 8 })
    );
}

#[test]
fn memory_is_limited_over_all_parts_together() {
    let mut input = Vec::new();
    for _ in 0..10 {
        input.extend([0, 0, 0, 16]);
        input.extend([7; 16]);
    }
    let limits = Limits { memory: 64, ..Limits::DEFAULT };
    let mut reader = Reader::<Network>::with_limits(&input, limits);
    for _ in 0..4 {
        xdr::get_opaque(&mut reader, 100).expect("within the limit");
    }
    assert_eq!(xdr::get_opaque(&mut reader, 100), Err(DecodeError::TooLarge { limit: 64 }));
}

#[test]
fn nesting_is_limited_and_a_list_does_not_nest() {
    fn nested<S: Source + ?Sized>(source: &mut S) -> Result<u32, DecodeError> {
        Ok(xdr::get_optional(source, nested)?.map_or(0, |inner| *inner + 1))
    }
    let ones = |n: usize| [0, 0, 0, 1].repeat(n).into_iter().chain([0; 4]).collect::<Vec<u8>>();
    let input = ones(128);
    let mut reader = Reader::<Network>::new(&input);
    assert_eq!(nested(&mut reader), Ok(128));
    let input = ones(129);
    let mut reader = Reader::<Network>::new(&input);
    assert_eq!(nested(&mut reader), Err(DecodeError::TooDeep { limit: 128 }));

    let input = ones(100_000);
    let mut reader = Reader::<Network>::new(&input);
    let list = xdr::get_list(&mut reader, |_| Ok(())).expect("a list is no nesting");
    assert_eq!(list.len(), 100_000);
}

#[test]
fn a_full_sink_says_how_much_was_missing() {
    let mut writer = Writer::<Network>::with_limit(6);
    1u32.encode(&mut writer).unwrap();
    assert_eq!(2u32.encode(&mut writer), Err(EncodeError::Full { need: 4, left: 2 }));
    let long = EncodeError::TooLong { len: 3, max: 2 };
    assert_eq!(xdr::put_string(&mut Writer::<Network>::new(), "abc", 2), Err(long));
    let wrong = EncodeError::WrongLength { len: 3, expected: 2 };
    assert_eq!(xdr::put_long_opaque_array(&mut Writer::<Network>::new(), b"abc", 2), Err(wrong));
}

proptest! {
    #[test]
    fn values_come_back(a: i32, b: u64, c: f64, d: bool, e: i8, f: u16, g: u128,
                        s in ".{0,40}", o: Vec<u8>, v: Vec<i64>, list: Vec<u32>, x: Option<u32>) {
        let mut writer = Writer::<Network>::new();
        a.encode(&mut writer)?;
        b.encode(&mut writer)?;
        c.encode(&mut writer)?;
        d.encode(&mut writer)?;
        e.encode(&mut writer)?;
        f.encode(&mut writer)?;
        Quad(g).encode(&mut writer)?;
        xdr::put_string(&mut writer, &s, 200)?;
        xdr::put_opaque(&mut writer, &o, u32::MAX)?;
        xdr::put_vec(&mut writer, &v, u32::MAX, |w, i| i.encode(w))?;
        xdr::put_list(&mut writer, &list, |w, i| i.encode(w))?;
        xdr::put_optional(&mut writer, x.as_ref(), |w, i| i.encode(w))?;
        prop_assert_eq!(writer.bytes().len() % 4, 0);

        let mut reader = Reader::<Network>::new(writer.bytes());
        let r = &mut reader;
        prop_assert_eq!(i32::decode(r)?, a);
        prop_assert_eq!(u64::decode(r)?, b);
        prop_assert_eq!(f64::decode(r)?.to_bits(), c.to_bits());
        prop_assert_eq!(bool::decode(r)?, d);
        prop_assert_eq!(i8::decode(r)?, e);
        prop_assert_eq!(u16::decode(r)?, f);
        prop_assert_eq!(Quad::decode(r)?, Quad(g));
        prop_assert_eq!(xdr::get_string(r, 200)?, s);
        prop_assert_eq!(xdr::get_opaque(r, u32::MAX)?, o);
        prop_assert_eq!(xdr::get_vec(r, u32::MAX, 8, i64::decode)?, v);
        prop_assert_eq!(xdr::get_list(r, u32::decode)?, list);
        prop_assert_eq!(xdr::get_optional(r, u32::decode)?.map(|x| *x), x);
        reader.finish()?;
    }

    /// Any bytes are decoded or refused: no panic, no more memory than the limit.
    #[test]
    fn any_bytes_are_decoded_or_refused(input: Vec<u8>) {
        let mut reader = Reader::<Network>::new(&input);
        let r = &mut reader;
        let _ = xdr::get_list(r, |r| xdr::get_string(r, 8));
        let _ = xdr::get_vec(r, 100, 4, |r| xdr::get_opaque(r, 3));
        let _ = xdr::get_array::<3, _, _>(r, bool::decode);
        let _ = xdr::get_optional(r, Quad::decode);
        let _ = reader.finish();
    }
}
