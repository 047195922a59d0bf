//! Our decoders against libtirpc's own, on values that are a little wrong: what ours take, libtirpc takes,
//! and both mean the same; what libtirpc refuses, ours refuse. Ours are stricter where C has no types to be
//! strict with: a boolean is 0 or 1, an enumeration has the values it has, a character fits, a string is
//! UTF-8.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::Mode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rpc_idl_tests::types::*;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use vrpc::msg::{CallHead, OpaqueAuth, ReplyHead, Status};
use vrpc::xdr::{Decode, Encode, Network, Reader, Writer};

/// libtirpc, in a process of its own: a decoder in C may do what it likes.
struct Libtirpc(Child);

impl Libtirpc {
    fn start() -> Libtirpc {
        let dir = common::programs(Mode::Default);
        let child =
            Command::new(dir.join("differ")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Libtirpc(child.unwrap())
    }

    /// The value encoded again, or nothing for what is refused.
    fn again(&mut self, kind: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        let stdin = self.0.stdin.as_mut().unwrap();
        let len = bytes.len() as u32;
        stdin.write_all(&[kind.to_ne_bytes(), len.to_ne_bytes()].concat()).unwrap();
        stdin.write_all(bytes).unwrap();
        let stdout = self.0.stdout.as_mut().unwrap();
        let mut word = || {
            let mut word = [0; 4];
            stdout.read_exact(&mut word).expect("libtirpc's decoder has died");
            u32::from_ne_bytes(word)
        };
        let (taken, len) = (word(), word());
        let mut again = vec![0; len as usize];
        stdout.read_exact(&mut again).unwrap();
        (taken != 0).then_some(again)
    }
}

impl Drop for Libtirpc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut writer = Writer::<Network>::new();
    value.encode(&mut writer).unwrap();
    writer.into_bytes()
}

/// The value encoded again, and whether C can hold it: a C string ends at its first zero.
fn ours<T: Decode + Encode + std::fmt::Debug>(bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    let value = T::decode(&mut Reader::<Network>::new(bytes)).ok()?;
    Some((encoded(&value), !format!("{value:?}").contains("\\0")))
}

fn ours_of(kind: u32, bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    match kind {
        0 => ours::<Run>(bytes),
        1 => ours::<Scalars>(bytes),
        2 => ours::<Choice>(bytes),
        3 => ours::<Everything>(bytes),
        4 => ours::<Text>(bytes),
        5 => ours::<Bytes>(bytes),
        6 => ours::<Ints>(bytes),
        7 => ours::<CallHead>(bytes),
        _ => ours::<ReplyHead>(bytes),
    }
}

/// Typedefs have no codec of their own.
macro_rules! wrapped {
    ($($name:ident($type:ty) $get:expr, $put:expr;)*) => {$(
        #[derive(Debug)]
        struct $name($type);
        impl Encode for $name {
            fn encode<S: vrpc::xdr::Sink + ?Sized>(&self, sink: &mut S) -> Result<(), vrpc::xdr::EncodeError> {
                $put(&self.0, sink)
            }
        }
        impl Decode for $name {
            fn decode<S: vrpc::xdr::Source + ?Sized>(source: &mut S) -> Result<$name, vrpc::xdr::DecodeError> {
                $get(source).map($name)
            }
        }
    )*};
}

wrapped! {
    Text(String) |s: &mut S| vrpc::xdr::get_string(s, 64), |v: &str, s: &mut S| vrpc::xdr::put_string(s, v, 64);
    Bytes(Vec<u8>) |s: &mut S| vrpc::xdr::get_opaque(s, u32::MAX), |v: &[u8], s: &mut S| vrpc::xdr::put_opaque(s, v, u32::MAX);
    Ints(Vec<i32>) |s: &mut S| vrpc::xdr::get_vec(s, u32::MAX, 4, |s| i32::decode(s)),
        |v: &[i32], s: &mut S| vrpc::xdr::put_vec(s, v, u32::MAX, |s, it| it.encode(s));
}

/// A right value of each kind.
fn seeds() -> Vec<Vec<u8>> {
    let item = |id| Item { id, label: "label".into(), next: None };
    let run = Run {
        a: 1,
        b: 2,
        c: -3,
        d: 4,
        e: 5,
        f: 6,
        g: -7,
        h: 8,
        i: true,
        j: Colour::Blue,
        k: [1, 2, 3, 4, 5],
        l: [6; 6],
    };
    let scalars = Scalars {
        a: -1,
        b: 2,
        c: 1.5,
        d: 2.5,
        e: true,
        f: [7; 7],
        g: vec![1, 2, 3],
        h: vec![4; 16],
        i: "text".into(),
        j: "twenty".into(),
    };
    let everything = Everything {
        r: run,
        s: scalars.clone(),
        one: Choice::Red(1),
        two: Choice::Green("green".into()),
        three: Choice::Blue,
        f: Flagged::True(1.0),
        rows: [[1; 4], [2; 4]],
        names: ["a".into(), "b".into(), "c".into()],
        items: vec![item(1), item(2)],
        tail: vec![1, 2, 3],
        chain: Some(Box::new(Item { next: Some(Box::new(item(4))), ..item(3) })),
        other: None,
        vec: [1.0; 3],
        fl: vec![2.0; 2],
    };
    let auth = OpaqueAuth { flavor: 1, body: vec![0; 20] };
    let call = CallHead {
        xid: 1,
        program: 2,
        version: 3,
        procedure: 4,
        credential: auth.clone(),
        verifier: auth.clone(),
    };
    let reply =
        ReplyHead { xid: 1, verifier: auth, status: Status::OtherVersion { low: 1, high: 2 } };
    vec![
        encoded(&run),
        encoded(&scalars),
        encoded(&Choice::Green("green".into())),
        encoded(&everything),
        encoded(&Text("a name".into())),
        encoded(&Bytes(vec![1; 50])),
        encoded(&Ints(vec![1, 2, 3])),
        encoded(&call),
        encoded(&reply),
    ]
}

#[test]
fn what_ours_take_libtirpc_takes_and_both_mean_the_same() {
    let mut libtirpc = Libtirpc::start();
    let seeds = seeds();
    for (kind, seed) in seeds.iter().enumerate() {
        assert_eq!(ours_of(kind as u32, seed).unwrap().0, *seed, "kind {kind}");
        assert_eq!(libtirpc.again(kind as u32, seed).as_ref(), Some(seed), "kind {kind}");
    }
    // Words that lengths, counts and marks are often wrong by.
    let word = prop_oneof![
        any::<u32>(),
        0u32..8,
        Just(u32::MAX),
        Just(0x7fff_ffff),
        Just(0x4000_0001),
        Just(401),
        Just(256 << 20),
    ];
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), word), 0..4);
    let strategy = (0..seeds.len(), changes, any::<prop::sample::Index>(), any::<bool>());
    let mut runner =
        TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let libtirpc = std::cell::RefCell::new(libtirpc);
    let (taken, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let result = runner.run(&strategy, |(kind, changes, cut, cuts)| {
        let mut bytes = seeds[kind].clone();
        for (at, word) in changes {
            let at = at.index(bytes.len() / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len() + 1) & !3);
        }
        let theirs = libtirpc.borrow_mut().again(kind as u32, &bytes);
        match ours_of(kind as u32, &bytes) {
            None => refused.set(refused.get() + 1),
            Some((again, in_c)) => {
                taken.set(taken.get() + 1);
                let theirs = theirs.ok_or_else(|| TestCaseError::fail("libtirpc refuses it"))?;
                if in_c {
                    prop_assert_eq!(again, theirs, "kind {}", kind);
                }
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(taken.get() > 300 && refused.get() > 300, "{} and {}", taken.get(), refused.get());
}
