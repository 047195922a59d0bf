//! Generated Sun RPC stubs, client against dispatcher, with the bytes between them in view.

mod loopback;

use loopback::{Error, Loopback};
use rpc_idl_tests::sunrpc::*;
use std::cell::RefCell;
use xdr::rpc::{Caller, DispatchError, Failed};

struct Twice;

/// Only what the test calls does something.
impl KvV2<str> for Twice {
    fn nullp(&self, _: &str) -> Result<(), Failed> {
        Ok(())
    }

    fn next(&self, context: &str, arg: i32) -> Result<i32, Failed> {
        assert_eq!(context, "the caller");
        arg.checked_add(1).ok_or_else(|| Failed::new("there is no next number"))
    }
}

#[test]
fn a_call_is_the_bytes_that_rfc_4506_says() {
    let caller = Loopback::new(KvV2Program(Twice));
    let client = KvV2Client::new(&caller);
    client.nullp().expect("answered");
    assert_eq!(client.next(-2).expect("answered"), -1);
    let expected: [&[u8]; 4] = [b"", b"", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff"];
    assert_eq!(caller.take_seen()[..], expected);
}

#[test]
fn refusals_are_told_apart() {
    let caller = Loopback::new(KvV2Program(Twice));
    let failed = KvV2Client::new(&caller).next(i32::MAX);
    assert!(matches!(failed, Err(Error::Dispatch(DispatchError::Failed(_)))), "{failed:?}");
    let unknown = caller.call::<_, ()>(0x2000_0099, 2, 77, &());
    assert!(matches!(unknown, Err(Error::Dispatch(DispatchError::UnknownProcedure(77)))));
    let garbage = caller.call::<_, i32>(0x2000_0099, 2, kv_v2::NEXT, &());
    assert!(matches!(garbage, Err(Error::Dispatch(DispatchError::Arguments(_)))), "{garbage:?}");
}

/// Each procedure makes its results of all of its arguments.
#[derive(Default)]
struct Several {
    lines: RefCell<Vec<String>>,
}

fn moved(p: &[Point], by: f64) -> Vec<Point> {
    p.iter().map(|p| Point { x: p.x + by, y: p.y - by, tag: p.tag }).collect()
}

impl KvV1<str> for Several {
    fn put(&self, _: &str, key: String, value: Vec<u8>) -> Result<bool, Failed> {
        Ok(key.len() < value.len())
    }

    fn get(&self, _: &str, key: String) -> Result<GetReply, Failed> {
        let value = key.bytes().rev().collect();
        Ok(GetReply { result: if key.is_empty() { Status::Missing } else { Status::Ok }, value })
    }

    fn scale(&self, _: &str, by: f64, m: Vec<f64>) -> Result<Vec<f64>, Failed> {
        Ok(m.into_iter().map(|value| value * by).collect())
    }

    fn divide(&self, _: &str, a: i32, b: i32) -> Result<DivideReply, Failed> {
        let result = a.checked_div(b).ok_or_else(|| Failed::new("division by zero"))?;
        Ok(DivideReply { result, rest: a % b })
    }

    fn log(&self, _: &str, line: String) -> Result<(), Failed> {
        self.lines.borrow_mut().push(line);
        Ok(())
    }

    fn list(&self, _: &str, entries: Entries) -> Result<Answer, Failed> {
        Ok(if entries.is_empty() { Answer::Missing } else { Answer::Ok(entries) })
    }

    fn points(&self, _: &str, p: Vec<Point>, fixed: [i32; 100]) -> Result<PointsReply, Failed> {
        let q = moved(&p, f64::from(fixed[99]));
        Ok(PointsReply { q, ofixed: fixed, fixed: fixed.map(|number| -number) })
    }

    fn copy(&self, _: &str, a: Vec<u8>) -> Result<(), Failed> {
        if a == [1, 2, 3] {
            Ok(())
        } else {
            Err(Failed::new("other bytes"))
        }
    }

    fn later(
        &self,
        _: &str,
        n: Num,
        m: Maybe,
        x: Vec<i64>,
        t: Tree,
        node: Node,
    ) -> Result<LaterReply, Failed> {
        assert_eq!((n, t.v, t.children.len(), node.v), (Num::CaseMinus2(7), 5, 1, 9));
        let mut result = Big { many: vec![0; 5000], ..big() };
        result.many[4999] = t.children[0].v;
        let d = x.iter().map(|value| *value as f64 / 2.0).collect();
        Ok(LaterReply { result, m, x: x.into_iter().rev().collect(), d })
    }

    fn r#type(&self, _: &str, r#type: i32, request: String) -> Result<(), Failed> {
        self.lines.borrow_mut().push(format!("{type}: {request}"));
        Ok(())
    }

    fn turn(
        &self,
        _: &str,
        numbers: Vec<i64>,
        p: Vec<Point>,
        fixed: [i32; 100],
    ) -> Result<TurnReply, Failed> {
        let result = numbers.iter().sum();
        let numbers = numbers.into_iter().rev().collect();
        Ok(TurnReply { result, numbers, p: moved(&p, 1.0), fixed: fixed.map(|number| number + 1) })
    }
}

fn big() -> Big {
    let (data, many) = (vec![3; 10_000], vec![0; 5000]);
    Big { data, many, c: [-1, 0, 1, 2], s: -3, u: vec![0, 255], e: BigE::B, f: 0.5 }
}

#[test]
fn several_parameters_and_results_follow_each_other_as_rfc_4506_says() {
    let caller = Loopback::new(KvV1Program(Several::default()));
    let client = KvV1Client::new(&caller);
    assert_eq!(client.divide(-7, 2).unwrap(), DivideReply { result: -3, rest: -1 });
    let expected: [&[u8]; 2] = [b"\xff\xff\xff\xf9\0\0\0\x02", b"\xff\xff\xff\xfd\xff\xff\xff\xff"];
    assert_eq!(caller.take_seen()[..], expected);
    assert!(matches!(client.divide(1, 0), Err(Error::Dispatch(DispatchError::Failed(_)))));

    assert!(client.put("ab", b"abc").unwrap());
    let expected: [&[u8]; 2] = [b"\0\0\0\x02ab\0\0\0\0\0\x03abc\0", b"\0\0\0\x01"];
    assert_eq!(caller.take_seen()[..], expected);

    let got = client.get("xyz").unwrap();
    assert_eq!(got, GetReply { result: Status::Ok, value: b"zyx".to_vec() });
    let expected: [&[u8]; 2] = [b"\0\0\0\x03xyz\0", b"\0\0\0\0\0\0\0\x03zyx\0"];
    assert_eq!(caller.take_seen()[..], expected);

    assert_eq!(client.scale(2.0, &[1.5]).unwrap(), [3.0]);
    let expected: [&[u8]; 2] =
        [b"\x40\0\0\0\0\0\0\0\0\0\0\x01\x3f\xf8\0\0\0\0\0\0", b"\0\0\0\x01\x40\x08\0\0\0\0\0\0"];
    assert_eq!(caller.take_seen()[..], expected);

    client.log("a line").unwrap();
    client.r#type(5, "of a kind").unwrap();
    assert_eq!(caller.program.0.lines.take(), ["a line", "5: of a kind"]);
}

#[test]
fn parameters_of_every_direction_and_type_go_there_and_back() {
    let caller = Loopback::new(KvV1Program(Several::default()));
    let client = KvV1Client::new(&caller);
    let entries = vec![Entry { name: "one".into(), size: 1 << 40 }];
    assert_eq!(client.list(&entries).unwrap(), Answer::Ok(entries));
    assert_eq!(client.list(&[]).unwrap(), Answer::Missing);

    let points = [Point { x: 1.0, y: 2.0, tag: [1, -1, 0] }; 3];
    let fixed: [i32; 100] = std::array::from_fn(|at| at as i32);
    let got = client.points(&points, &fixed).unwrap();
    let expected =
        PointsReply { q: moved(&points, 99.0), ofixed: fixed, fixed: fixed.map(|number| -number) };
    assert_eq!(got, expected);

    client.copy(&[1, 2, 3]).unwrap();
    assert!(matches!(client.copy(&[1]), Err(Error::Dispatch(DispatchError::Failed(_)))));

    let tree = Tree { v: 5, children: vec![Tree { v: 6, children: Vec::new() }] };
    let left = Some(Box::new(Node { left: None, right: None, v: 1 }));
    let node = Node { left, right: None, v: 9 };
    let maybe = Maybe::True(xdr::Quad(7));
    let numbers: Vec<i64> = (0..1000).map(|number| number - (1 << 40)).collect();
    let got = client.later(&Num::CaseMinus2(7), &maybe, &numbers, &tree, &node).unwrap();
    let mut result = big();
    result.many[4999] = 6;
    let expected = LaterReply {
        result,
        m: maybe,
        d: numbers.iter().map(|number| *number as f64 / 2.0).collect(),
        x: numbers.iter().rev().copied().collect(),
    };
    assert_eq!(got, expected);

    let got = client.turn(&[1, 2, -5], &points[..1], &fixed).unwrap();
    let expected = TurnReply {
        result: -2,
        numbers: vec![-5, 2, 1],
        p: moved(&points[..1], 1.0),
        fixed: fixed.map(|number| number + 1),
    };
    assert_eq!(got, expected);
    // Longer than the interface allows: nothing is sent.
    caller.take_seen();
    let long = client.points(&[points[0]; 11], &fixed);
    assert!(matches!(long, Err(Error::Encode(_))), "{long:?}");
    assert!(caller.take_seen().is_empty());
}
