//! Values of `idl/hostile.x`, calls of it in bytes, and what is done to bytes.

use rpc_idl_tests::hostile::*;
use rpc_idl_tests::random::Random;
use shrimp_rpc::Element;
use xdr::{Encode, Little, Quad, Writer};

/// Elements of the longest vectors here: a call of them fits a short buffer.
const MANY: u64 = 20;

fn some<T>(r: &mut Random, most: u64, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
    (0..r.below(most + 1)).map(|_| one(r)).collect()
}

fn text(r: &mut Random, most: u64) -> String {
    some(r, most, |r| char::from(b'a' + r.below(26) as u8)).into_iter().collect()
}

pub fn bytes(r: &mut Random, most: u64) -> Vec<u8> {
    some(r, most, |r| r.number() as u8)
}

fn colour(r: &mut Random) -> Colour {
    [Colour::Red, Colour::Green, Colour::Blue][r.below(3) as usize]
}

fn point(r: &mut Random) -> Point {
    Point { x: r.below(100) as f64, tag: [r.number() as i32; 3] }
}

pub fn mark(r: &mut Random) -> Mark {
    Mark { set: r.below(2) == 1, c: colour(r), s: r.number() as i16 }
}

pub fn items(r: &mut Random) -> Vec<Item> {
    some(r, 10, |r| Item { key: text(r, 40), size: r.number() })
}

pub fn tree(r: &mut Random, depth: u64) -> Tree {
    let children = if depth == 0 { Vec::new() } else { some(r, 2, |r| tree(r, depth - 1)) };
    Tree { v: r.number() as i32, children }
}

pub fn node(r: &mut Random, depth: u64) -> Node {
    let mut next = || (depth > 0 && r.below(3) > 0).then(|| Box::new(node(r, depth - 1)));
    let (left, right) = (next(), next());
    Node { left, right, v: r.number() as i32 }
}

pub fn page(r: &mut Random, depth: u64) -> Page {
    let left = (depth > 0).then(|| Box::new(page(r, depth - 1)));
    Page { bytes: [r.number() as u8; 4096], left, right: None }
}

fn shape(r: &mut Random) -> Shape {
    match r.below(3) {
        0 => Shape::Red(items(r)),
        1 => Shape::Green(point(r)),
        _ => Shape::Blue,
    }
}

fn number(r: &mut Random) -> Number {
    match r.below(3) {
        0 => Number::Case1(text(r, 10)),
        1 => Number::CaseMinus2(bytes(r, 50)),
        _ => Number::Default(5),
    }
}

pub fn all(r: &mut Random) -> All {
    All {
        c: colour(r),
        d: [r.number() as u8; 16],
        raw: bytes(r, 100),
        names: some(r, MANY, |r| text(r, 40)),
        numbers: some(r, 50, |r| r.number() as i32),
        table: [r.number() as i32; 40],
        points: some(r, 10, point),
        s: r.number() as i16,
        u: r.number() as u8,
        b: r.below(2) == 1,
        f: r.below(100) as f32,
        h: r.number() as i64,
        shapes: some(r, 3, shape),
        num: number(r),
        m: if r.below(2) == 1 { Maybe::True(Quad(7 << 70)) } else { Maybe::False },
        list: items(r),
        forest: some(r, 4, |r| tree(r, 2)),
        root: (r.below(2) == 1).then(|| Box::new(node(r, 3))),
    }
}

/// A call in bytes.
#[derive(Clone, Default)]
pub struct Call {
    pub procedure: u32,
    pub plain: Vec<u8>,
    pub blocks: Vec<Vec<u8>>,
}

/// Writes a value.
type Put<'a> = &'a dyn Fn(&mut Writer<Little>) -> Result<(), xdr::EncodeError>;

fn plain(values: &[Put<'_>]) -> Vec<u8> {
    let mut writer = Writer::<Little>::new();
    values.iter().for_each(|put| put(&mut writer).expect("within the limits"));
    writer.into_bytes()
}

fn block<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; elements.len() * T::SIZE];
    for (element, place) in elements.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
        element.store(place);
    }
    bytes
}

fn counts(lens: &[usize]) -> Vec<u8> {
    lens.iter().flat_map(|len| (*len as u32).to_le_bytes()).collect()
}

impl Call {
    /// A call that any honest client might make, but for LARGE, which is long.
    pub fn valid(r: &mut Random) -> Call {
        use hostile_v1 as v1;
        let mut call = Call::default();
        match r.below(12) {
            0 | 1 => {
                let all = all(r);
                (call.procedure, call.plain) = (v1::ECHO, plain(&[&|w| all.encode(w)]));
            }
            2 => {
                let (items, name) = (items(r), text(r, 40));
                let list = |w: &mut Writer<Little>| xdr::put_list(w, &items, |w, it| it.encode(w));
                call.procedure = v1::LIST;
                call.plain = plain(&[&list, &|w| xdr::put_string(w, &name, 40)]);
            }
            3 => {
                let (tree, node) = (tree(r, 4), node(r, 4));
                call.procedure = v1::NEST;
                call.plain = plain(&[&|w| tree.encode(w), &|w| node.encode(w)]);
            }
            4 => {
                call.procedure = v1::SUM;
                call.blocks = vec![bytes(r, 500), block(&some(r, 100, mark))];
                call.plain = counts(&[call.blocks[0].len(), call.blocks[1].len() / Mark::SIZE]);
            }
            5 => {
                let count = [r.below(20), r.below(20_000)][r.below(2) as usize] as u32;
                (call.procedure, call.plain) = (v1::FILL, plain(&[&|w| count.encode(w)]));
            }
            6 => {
                let (m, marks) = (some(r, 300, |r| r.below(9) as f64), some(r, 100, mark));
                call.procedure = v1::SCALE;
                call.plain = plain(&[&|w| 2f64.encode(w)]);
                call.plain.extend(counts(&[m.len(), 100, marks.len()]));
                call.blocks = vec![block(&m), block(&[7i32; 100]), block(&marks)];
            }
            7 => {
                let (marks, numbers) = (some(r, 100, mark), some(r, 300, |r| r.number() as i32));
                call.procedure = v1::COPY;
                call.blocks = vec![bytes(r, 500), block(&marks), block(&numbers)];
                call.plain = counts(&[call.blocks[0].len(), marks.len(), numbers.len()]);
            }
            8 => {
                let (line, data) = (text(r, 100), bytes(r, 1000));
                call.procedure = v1::NOTE;
                call.plain = plain(&[&|w| xdr::put_string(w, &line, 100)]);
                call.plain.extend(counts(&[data.len()]));
                call.blocks = vec![data];
            }
            9 => {
                let (all, x) = (all(r), some(r, 300, |r| r.number() as i64));
                call.procedure = v1::LATER;
                call.plain = plain(&[&|w| all.encode(w)]);
                call.plain.extend(counts(&[x.len()]));
                call.blocks = vec![block(&x)];
            }
            10 => (call.procedure, call.plain) = (v1::TURN, vec![r.number() as u8; 13_000]),
            _ => {
                let page = page(r, 0);
                (call.procedure, call.plain) = (v1::PAGES, plain(&[&|w| page.encode(w)]));
            }
        }
        call
    }

    /// Values that are nested around as deep as is allowed, and far deeper, and lists whose end never comes.
    pub fn endless(r: &mut Random) -> Call {
        let depth = [1, 60, 126, 127, 128, 129, 1000][r.below(7) as usize];
        let (none, some) = (0u32.to_le_bytes(), 1u32.to_le_bytes());
        let mut plain = Vec::new();
        let procedure = match r.below(4) {
            0 => {
                // Each child is the only one of its parent.
                (0..depth).for_each(|_| plain.extend([some, some].concat()));
                plain.extend([none; 5].concat());
                hostile_v1::NEST
            }
            1 => {
                plain.extend([none, none].concat());
                (0..depth).for_each(|_| plain.extend(some));
                (0..=depth).for_each(|_| plain.extend([none; 3].concat()));
                hostile_v1::NEST
            }
            2 => {
                (0..depth * 10).for_each(|_| plain.extend([some, none, none, none].concat()));
                hostile_v1::LIST
            }
            _ => {
                (0..depth).for_each(|_| plain.extend([&[0; 4096][..], &some].concat()));
                plain.extend([0; 4096 + 8]);
                (0..depth).for_each(|_| plain.extend(none));
                hostile_v1::PAGES
            }
        };
        Call { procedure, plain, blocks: Vec::new() }
    }

    /// LARGE, which is valid.
    pub fn large() -> Call {
        Call { procedure: hostile_v1::LARGE, plain: vec![1; 4_000_008], blocks: Vec::new() }
    }

    /// The request.
    pub fn message(&self) -> Vec<u8> {
        let mut message = self.plain.clone();
        for block in &self.blocks {
            message.resize(message.len().next_multiple_of(8), 0);
            message.extend(block);
        }
        message.resize(message.len().next_multiple_of(8), 0);
        message
    }
}

/// A reply in bytes that an honest server might give: plain part, and OUT blocks in front of the flag.
pub struct Answer {
    pub plain: usize,
    pub message: Vec<u8>,
}

/// A reply to that procedure.
pub fn answer(r: &mut Random, procedure: u32) -> Answer {
    let (mut words, mut blocks) = (Vec::new(), Vec::new());
    let mut out = |bytes: Vec<u8>, size: usize| {
        let mut block = bytes;
        let count = (block.len() / size) as u32;
        block.resize(block.len().next_multiple_of(8), 0);
        // Each lies before those that were there.
        block.append(&mut blocks);
        blocks = block;
        [blocks.len() as u32, count]
    };
    let all = all(r);
    let mut plain = match procedure {
        hostile_v1::ECHO => plain(&[&|w| all.encode(w)]),
        hostile_v1::LIST => plain(&[&|w| xdr::put_list(w, &all.list, |w, it| it.encode(w))]),
        hostile_v1::SUM | hostile_v1::COPY => vec![1; 8],
        hostile_v1::FILL => {
            words.extend(out(block(&some(r, 3000, |r| r.below(9) as f64)), 8));
            words.extend(out(block(&[7i32; 100]), 4));
            vec![1; 4]
        }
        hostile_v1::LATER => {
            words.extend(out(block(&some(r, 1000, |r| r.below(9) as f64)), 8));
            plain(&[&|w| all.encode(w)])
        }
        hostile_v1::TURN => vec![3; 13_000],
        hostile_v1::NOTE => Vec::new(),
        _ => vec![1; 4],
    };
    if all.root.is_none() && procedure == hostile_v1::ECHO && r.below(8) == 0 {
        // The root is last: deeper than is allowed, or just so.
        plain.truncate(plain.len() - 4);
        let depth = [126, 127, 128, 1000][r.below(4) as usize];
        (0..depth).for_each(|_| plain.extend(1u32.to_le_bytes()));
        (0..depth * 3 - 1).for_each(|_| plain.extend([0; 4]));
    }
    plain.extend(words.iter().flat_map(|word: &u32| word.to_le_bytes()));
    let len = plain.len();
    plain.resize(len.next_multiple_of(8), 0);
    plain.extend(blocks);
    Answer { plain: len, message: plain }
}

/// A number of the kind that goes wrong.
pub fn nasty(r: &mut Random, near: u64) -> u32 {
    let near = near as u32;
    let numbers = [
        0,
        1,
        2,
        3,
        7,
        8,
        10,
        11,
        20,
        21,
        40,
        41,
        50,
        51,
        100,
        101,
        127,
        128,
        129,
        255,
        256,
        999,
        1000,
        1001,
        5000,
        5001,
        8192,
        20_000,
        20_001,
        100_000,
        100_001,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0x1fff_ffff,
        0x2000_0000,
        0x1555_5555,
        0x1555_5556,
        0xffff_fff8,
        0xffff_fffc,
        u32::MAX - 1,
        u32::MAX,
        near,
        near + 1,
        near.wrapping_sub(1),
        near / 4,
        near / 8,
        near / 8 + 1,
        near / 12,
    ];
    match r.below(8) {
        0 => r.number() as u32,
        _ => numbers[r.below(numbers.len() as u64) as usize],
    }
}

/// Changes a few words of a message, most likely of its first `plain` bytes.
pub fn mutate(r: &mut Random, message: &mut [u8], plain: usize) {
    for _ in 0..=r.below(3) {
        let within =
            if r.below(4) > 0 && plain >= 4 { plain.min(message.len()) } else { message.len() };
        if within < 4 {
            return;
        }
        let at = (r.below(within as u64 / 4) * 4) as usize;
        let word = &mut message[at..at + 4];
        let value = match r.below(4) {
            0 => u32::from_le_bytes(word.try_into().expect("four")) ^ 1 << r.below(32),
            _ => nasty(r, (within - at) as u64),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}
