//! A random program over random types: procedures with parameters of every direction, and what is sent there and back.
//!
//! As [`crate::random`], shared by the build script and the tests, and written from the language's rules alone.

use crate::random::{value, Basic, Def, Random, Ty};
use std::ops::Range;

/// A procedure.
pub struct Procedure {
    pub kind: Kind,
    /// The server takes bulk arguments as private copies.
    pub copyin: bool,
    pub result: Option<Ty>,
    pub parameters: Vec<Parameter>,
}

/// How a procedure answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    AtOnce,
    Later,
    /// One-way.
    Never,
}

/// A version of a program: what follows each other in the list of procedures, numbered from one.
pub struct Version {
    /// Name and number of the program.
    pub program: (String, u32),
    pub name: String,
    pub number: u32,
    pub procedures: Range<usize>,
}

impl Version {
    /// Its name as types and modules begin with it.
    pub fn base(&self) -> String {
        let (first, rest) = self.name.split_at(1);
        first.to_owned() + &rest.to_lowercase()
    }
}

/// The versions that so many procedures are shared out to: of two programs at least, one of which has two at least.
pub fn versions(seed: u64, count: usize) -> Vec<Version> {
    let random = &mut Random::new(seed ^ 0x7e25);
    let many = 3 + random.below(3) as usize;
    let mut versions: Vec<Version> = Vec::new();
    for index in 0..many {
        let start = versions.last().map_or(0, |last| last.procedures.end);
        // One for each of those that follow.
        let most = (count - start - (many - index - 1)) as u64;
        let len = if index + 1 == many { most } else { 1 + random.below(most.min(20)) };
        let (program, number) = match versions.last() {
            Some(last) if index == 1 || index > 2 && random.below(2) == 0 => {
                (last.program.clone(), last.number + 1 + random.below(3) as u32)
            }
            _ => {
                let number = 0x2000_4242 + random.below(1000) as u32 * 8 + index as u32;
                ((format!("RANDOM{index}"), number), random.below(5) as u32)
            }
        };
        let (name, procedures) = (format!("CALLS{index}"), start..start + len as usize);
        versions.push(Version { program, name, number, procedures });
    }
    versions
}

/// A parameter.
pub struct Parameter {
    pub way: Way,
    /// The word in front of the type: `bulk `, `plain ` or nothing.
    pub transfer: &'static str,
    pub ty: Ty,
}

/// Which way a parameter travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
    InOut,
}

/// The bytes of one call: all of them XDR, of parameters in order, the result before them.
pub struct Exchange {
    pub arguments: Vec<u8>,
    pub results: Vec<u8>,
    /// Other results: what the client's variables hold before the call.
    pub before: Vec<u8>,
}

/// Bytes of a value, if they are always as many.
fn fixed_len(defs: &[Def], ty: &Ty) -> Option<u64> {
    match ty {
        Ty::Basic(_, Basic::Bool | Basic::Small(..) | Basic::Four) => Some(4),
        Ty::Basic(_, Basic::Eight) => Some(8),
        Ty::Basic(_, Basic::Sixteen) => Some(16),
        Ty::OpaqueArray(len) => Some(len.next_multiple_of(4)),
        Ty::Array(element, len) => Some(fixed_len(defs, element)? * len),
        Ty::Named(index) | Ty::Inline(index, _) => match &defs[*index] {
            Def::Enum(_) => Some(4),
            Def::Typedef(ty) => fixed_len(defs, ty),
            Def::Struct(fields) => {
                fields.iter().try_fold(0, |sum, ty| Some(sum + fixed_len(defs, ty)?))
            }
            Def::Union(..) | Def::List(_) => None,
        },
        Ty::Opaque(_) | Ty::Text(_) | Ty::Vector(..) | Ty::Optional(_) => None,
    }
}

/// What bulk arrays may be made of: numbers and structs of fixed size, which are not large.
fn element(random: &mut Random, defs: &[Def]) -> Ty {
    const NUMBERS: [(&str, Basic); 8] = [
        ("char", Basic::Small(-128, 127)),
        ("unsigned char", Basic::Small(0, 255)),
        ("short", Basic::Small(-32768, 32767)),
        ("int", Basic::Four),
        ("unsigned", Basic::Four),
        ("hyper", Basic::Eight),
        ("double", Basic::Eight),
        ("float", Basic::Four),
    ];
    let structs: Vec<usize> = (0..defs.len())
        .filter(|index| matches!(defs[*index], Def::Struct(_)))
        .filter(|index| fixed_len(defs, &Ty::Named(*index)).is_some_and(|len| len <= 2048))
        .collect();
    match structs.len() as u64 {
        n if n > 0 && random.below(3) == 0 => Ty::Named(structs[random.below(n) as usize]),
        _ => {
            let (name, basic) = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
            Ty::Basic(name, basic)
        }
    }
}

/// A type that may be bulk; how many elements decides whether it is.
fn bulk(random: &mut Random, defs: &[Def]) -> Ty {
    let len = 1 + match random.below(3) {
        0 => random.below(5),
        1 => random.below(100),
        _ => random.below(700),
    };
    match random.below(4) {
        0 => Ty::Opaque(len * 4),
        1 => Ty::OpaqueArray(len * 4 - 1),
        2 => Ty::Array(Box::new(element(random, defs)), len.min(60)),
        _ => Ty::Vector(Box::new(element(random, defs)), len),
    }
}

/// A parameter; of some procedures most are bulk, so that there are several blocks each way.
fn parameter(random: &mut Random, defs: &[Def], ways: &[Way], mostly_bulk: bool) -> Parameter {
    let way = ways[random.below(ways.len() as u64) as usize];
    let may_be_bulk =
        random.below(if mostly_bulk { 8 } else { 2 }) < if mostly_bulk { 7 } else { 1 };
    let ty = if may_be_bulk { bulk(random, defs) } else { crate::random::ty(random, defs) };
    let transfer = match random.below(5) {
        0 if may_be_bulk => "bulk ",
        1..=3 if may_be_bulk && mostly_bulk => "bulk ",
        1 => "plain ",
        _ => "",
    };
    Parameter { way, transfer, ty }
}

/// Random procedures.
pub fn procedures(seed: u64, defs: &[Def], count: usize) -> Vec<Procedure> {
    let random = &mut Random::new(seed ^ 0x5eed);
    (0..count)
        .map(|_| {
            let kind = match random.below(8) {
                0 => Kind::Never,
                1 => Kind::Later,
                _ => Kind::AtOnce,
            };
            let ways = match kind {
                Kind::Never => &[Way::In][..],
                _ => &[Way::In, Way::In, Way::Out, Way::InOut],
            };
            let result = (kind != Kind::Never && random.below(3) > 0)
                .then(|| crate::random::ty(random, defs));
            let mostly_bulk = random.below(3) == 0;
            let parameters =
                (0..random.below(6)).map(|_| parameter(random, defs, ways, mostly_bulk)).collect();
            Procedure { kind, copyin: random.below(6) == 0, result, parameters }
        })
        .collect()
}

impl Procedure {
    /// What goes to the server: names and types.
    pub fn arguments(&self) -> Vec<(String, &Ty)> {
        self.named(Way::Out)
    }

    /// What comes back.
    pub fn results(&self) -> Vec<(String, &Ty)> {
        let mut results: Vec<_> = self.result.iter().map(|ty| ("result".to_owned(), ty)).collect();
        results.extend(self.named(Way::In));
        results
    }

    /// The parameters, but for those of one direction.
    fn named(&self, but: Way) -> Vec<(String, &Ty)> {
        let parameters = self.parameters.iter().enumerate().filter(|(_, it)| it.way != but);
        parameters.map(|(n, it)| (format!("p{n}"), &it.ty)).collect()
    }
}

/// The definitions and the programs as an interface file, with a struct for all arguments of each procedure, and one
/// for all results: `iN`, `oN`.
pub fn text(defs: &[Def], versions: &[Version], procedures: &[Procedure]) -> String {
    use crate::random::declaration;
    let mut out = crate::random::text(defs);
    for (index, procedure) in procedures.iter().enumerate() {
        for (letter, fields) in [("i", procedure.arguments()), ("o", procedure.results())] {
            if !fields.is_empty() {
                let fields: String = fields
                    .iter()
                    .map(|(name, ty)| format!("    {};\n", declaration(ty, name)))
                    .collect();
                out += &format!("struct {letter}{index} {{\n{fields}}};\n");
            }
        }
    }
    for (at, version) in versions.iter().enumerate() {
        let (program, number) = &version.program;
        let is_of = |other: Option<&Version>| other.is_some_and(|it| it.program.1 == *number);
        if !is_of(at.checked_sub(1).map(|before| &versions[before])) {
            out += &format!("program {program} {{\n");
        }
        out += &format!("    version {} {{\n", version.name);
        for (place, index) in version.procedures.clone().enumerate() {
            out += &declared(&procedures[index], index, place + 1);
        }
        out += &format!("    }} = {};\n", version.number);
        if !is_of(versions.get(at + 1)) {
            out += &format!("}} = {number};\n");
        }
    }
    out
}

/// A procedure under that number.
fn declared(procedure: &Procedure, index: usize, number: usize) -> String {
    use crate::random::declaration;
    let kind = match procedure.kind {
        Kind::AtOnce => "",
        Kind::Later => "deferred ",
        Kind::Never => "oneway ",
    };
    let copyin = if procedure.copyin { "copyin " } else { "" };
    let result = procedure.result.as_ref().map_or("void ".to_owned(), |ty| declaration(ty, ""));
    let parameters: Vec<String> = procedure
        .parameters
        .iter()
        .enumerate()
        .map(|(n, it)| {
            let way = match it.way {
                Way::In => "in",
                Way::Out => "out",
                Way::InOut => "inout",
            };
            format!("{way} {}{}", it.transfer, declaration(&it.ty, &format!("p{n}")))
        })
        .collect();
    let list = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
    format!("        {copyin}{kind}{result} P{index}({list}) = {number};\n")
}

/// What goes there and back in call number `call` of a procedure.
pub fn exchange(
    seed: u64,
    defs: &[Def],
    procedures: &[Procedure],
    index: usize,
    call: u64,
) -> Exchange {
    let random = &mut Random::new(seed ^ ((index as u64) << 40) ^ (call << 8));
    let procedure = &procedures[index];
    let mut exchange = Exchange { arguments: Vec::new(), results: Vec::new(), before: Vec::new() };
    if let Some(ty) = &procedure.result {
        value(random, defs, ty, &mut exchange.results);
        value(random, defs, ty, &mut exchange.before);
    }
    for parameter in &procedure.parameters {
        let ty = &parameter.ty;
        let start = exchange.arguments.len();
        if parameter.way != Way::Out {
            value(random, defs, ty, &mut exchange.arguments);
        }
        if parameter.way != Way::In {
            let sent = &exchange.arguments[start..];
            value_after(random, defs, ty, sent, &mut exchange.results);
            value(random, defs, ty, &mut exchange.before);
        }
    }
    exchange
}

/// Another value in place of the one sent: where it lies in place there and back, its length stays.
fn value_after(random: &mut Random, defs: &[Def], ty: &Ty, sent: &[u8], out: &mut Vec<u8>) {
    let len = sent.first_chunk().map(|len| u64::from(u32::from_be_bytes(*len)));
    match (ty, len) {
        (Ty::Named(index), _) if let Def::Typedef(ty) = &defs[*index] => {
            value_after(random, defs, ty, sent, out);
        }
        (Ty::Opaque(_), Some(len)) => {
            out.extend((len as u32).to_be_bytes());
            value(random, defs, &Ty::OpaqueArray(len), out);
        }
        (Ty::Vector(element, _), Some(len)) => {
            out.extend((len as u32).to_be_bytes());
            (0..len).for_each(|_| value(random, defs, element, out));
        }
        _ => value(random, defs, ty, out),
    }
}
