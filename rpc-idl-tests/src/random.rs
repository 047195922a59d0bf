//! Random interface files, and an XDR of their own.
//!
//! Shared by the build script, which writes the file and has it compiled, and by the test, which
//! makes the same definitions from the same seed and encodes random values of them. What is
//! written here follows RFC 4506 and nothing else: neither the codec nor the compiler is used.

/// xorshift64*: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.number() >> 16) % n
    }
}

/// A type.
pub enum Ty {
    /// Its name in the language, and which of the basic types it is.
    Basic(&'static str, Basic),
    OpaqueArray(u64),
    Opaque(u64),
    Text(u64),
    Named(usize),
    /// The same as a definition, written out again where it is used, without a name.
    Inline(usize, String),
    Array(Box<Ty>, u64),
    Vector(Box<Ty>, u64),
    Optional(Box<Ty>),
}

/// The basic types.
#[derive(Clone, Copy)]
pub enum Basic {
    Bool,
    /// Sent in four bytes: low and high bound.
    Small(i64, i64),
    Four,
    Eight,
    Sixteen,
}

/// A definition; each refers to earlier ones only, or to itself by a pointer.
pub enum Def {
    Enum(Vec<i32>),
    Struct(Vec<Ty>),
    /// Discriminant; the arms with their cases; the default arm.
    Union(Switch, Vec<(Vec<i128>, Option<Ty>)>, Option<Option<Ty>>),
    Typedef(Ty),
    /// A struct that ends with a pointer to its own kind.
    List(Vec<Ty>),
}

/// What a union switches on.
#[derive(Clone, Copy)]
pub enum Switch {
    /// An enum, by its definition.
    Enum(usize),
    /// A basic type: its name, and its length in bytes.
    Basic(&'static str, usize),
}

impl Switch {
    /// Values that cases are made of, or that come as others.
    fn values(self, defs: &[Def]) -> Vec<i128> {
        match self {
            Switch::Enum(index) => match &defs[index] {
                Def::Enum(values) => values.iter().map(|v| i128::from(*v)).collect(),
                _ => Vec::new(),
            },
            Switch::Basic("bool", _) => vec![0, 1],
            Switch::Basic("int", _) => {
                vec![-5, 2, 9, i32::MIN.into(), 1000, i32::MAX.into(), -1000]
            }
            Switch::Basic("unsigned int", _) => {
                vec![0, 7, 1 << 31, u32::MAX.into(), 1000, 65_536]
            }
            Switch::Basic("char", _) => vec![-128, -1, 0, 127, 65],
            Switch::Basic("unsigned short", _) => vec![0, 65_535, 32_768, 5],
            Switch::Basic("hyper", _) => {
                vec![-1, 0, i64::MIN.into(), i64::MAX.into(), 1 << 32, -(1 << 40)]
            }
            Switch::Basic(..) => vec![0, u64::MAX.into(), 1 << 63, 3, 1 << 33],
        }
    }

    fn name(self) -> String {
        match self {
            Switch::Enum(index) => format!("t{index}"),
            Switch::Basic(name, _) => name.to_owned(),
        }
    }

    /// The text of a case.
    fn case(self, defs: &[Def], case: i128) -> String {
        match self {
            Switch::Enum(index) => {
                let n = self.values(defs).iter().position(|value| *value == case);
                n.map_or(case.to_string(), |n| format!("E{index}_{n}"))
            }
            Switch::Basic("bool", _) => (if case == 0 { "FALSE" } else { "TRUE" }).to_owned(),
            Switch::Basic(..) => case.to_string(),
        }
    }
}

const SWITCHES: [(&str, usize); 7] = [
    ("bool", 4),
    ("int", 4),
    ("unsigned int", 4),
    ("char", 4),
    ("unsigned short", 4),
    ("hyper", 8),
    ("unsigned hyper", 8),
];

const BASIC: [(&str, Basic); 17] = [
    ("bool", Basic::Bool),
    ("char", Basic::Small(-128, 127)),
    ("unsigned char", Basic::Small(0, 255)),
    ("short", Basic::Small(-32768, 32767)),
    ("unsigned short", Basic::Small(0, 65535)),
    ("int", Basic::Four),
    ("unsigned int", Basic::Four),
    ("unsigned", Basic::Four),
    ("long", Basic::Four),
    ("unsigned long", Basic::Four),
    ("float", Basic::Four),
    ("hyper", Basic::Eight),
    ("unsigned hyper", Basic::Eight),
    ("double", Basic::Eight),
    ("quadruple", Basic::Sixteen),
    ("u_int", Basic::Four),
    ("uint64_t", Basic::Eight),
];

fn element(random: &mut Random, defs: &[Def]) -> Ty {
    if !defs.is_empty() && random.below(3) == 0 {
        let index = random.below(defs.len() as u64) as usize;
        // Lists are used through pointers only.
        return match defs[index] {
            Def::List(_) => Ty::Optional(Box::new(Ty::Named(index))),
            _ => Ty::Named(index),
        };
    }
    let (name, basic) = BASIC[random.below(BASIC.len() as u64) as usize];
    Ty::Basic(name, basic)
}

/// A random type.
pub fn ty(random: &mut Random, defs: &[Def]) -> Ty {
    match random.below(10) {
        0 => Ty::OpaqueArray(match random.below(20) {
            0 => 5001,
            _ => 1 + random.below(9),
        }),
        1 => Ty::Opaque(random.below(20)),
        2 => Ty::Text(random.below(20)),
        3 | 4 => match element(random, defs) {
            pointer @ Ty::Optional(_) => pointer,
            element if random.below(2) == 0 => Ty::Array(Box::new(element), 1 + random.below(3)),
            element => Ty::Vector(Box::new(element), random.below(4)),
        },
        5 => match element(random, defs) {
            pointer @ Ty::Optional(_) => pointer,
            element => Ty::Optional(Box::new(element)),
        },
        _ => element(random, defs),
    }
}

/// A type where members are declared: there it may be written out.
fn member(random: &mut Random, defs: &[Def]) -> Ty {
    let ty = ty(random, defs);
    written_out(random, defs, ty)
}

/// Structs, unions and enumerations without their names, every other time.
fn written_out(random: &mut Random, defs: &[Def], ty: Ty) -> Ty {
    match ty {
        Ty::Named(index) if random.below(2) == 0 => match &defs[index] {
            Def::Struct(_) | Def::Union(..) => {
                let body = body(defs, &defs[index], "", index);
                // The names of its values are everybody's: there can be but one of an enumeration.
                if body.contains("enum ") {
                    Ty::Named(index)
                } else {
                    Ty::Inline(index, body)
                }
            }
            Def::Enum(values) => {
                Ty::Inline(index, enumeration(values, "", &format!("I{:x}", random.number())))
            }
            _ => Ty::Named(index),
        },
        Ty::Array(element, len) => Ty::Array(Box::new(written_out(random, defs, *element)), len),
        Ty::Vector(element, max) => Ty::Vector(Box::new(written_out(random, defs, *element)), max),
        Ty::Optional(target) => Ty::Optional(Box::new(written_out(random, defs, *target))),
        other => other,
    }
}

fn fields(random: &mut Random, defs: &[Def]) -> Vec<Ty> {
    (0..1 + random.below(4)).map(|_| member(random, defs)).collect()
}

fn arm(random: &mut Random, defs: &[Def]) -> Option<Ty> {
    (random.below(3) > 0).then(|| member(random, defs))
}

/// Random definitions.
pub fn definitions(seed: u64, count: usize) -> Vec<Def> {
    let random = &mut Random::new(seed);
    let mut defs: Vec<Def> = Vec::new();
    while defs.len() < count {
        let def = match random.below(8) {
            0 => {
                let mut values = Vec::new();
                for _ in 0..1 + random.below(5) {
                    let value = random.number() as i32 >> random.below(31);
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Def::Enum(values)
            }
            1 | 2 => {
                let enums: Vec<usize> =
                    (0..defs.len()).filter(|d| matches!(defs[*d], Def::Enum(_))).collect();
                let switch = match enums.len() {
                    n if n > 0 && random.below(2) == 0 => {
                        Switch::Enum(enums[random.below(n as u64) as usize])
                    }
                    _ => {
                        let (name, len) = SWITCHES[random.below(SWITCHES.len() as u64) as usize];
                        Switch::Basic(name, len)
                    }
                };
                // The language has no higher ones; values may be.
                let most = i128::from(i64::MAX);
                let cases: Vec<i128> =
                    switch.values(&defs).into_iter().filter(|case| *case <= most).collect();
                let kept = 1 + random.below(cases.len() as u64) as usize;
                let mut arms: Vec<(Vec<i128>, Option<Ty>)> = Vec::new();
                for case in &cases[..kept] {
                    match arms.last_mut() {
                        Some((last, _)) if random.below(3) == 0 => last.push(*case),
                        _ => arms.push((vec![*case], arm(random, &defs))),
                    }
                }
                let default = (random.below(2) == 0).then(|| arm(random, &defs));
                Def::Union(switch, arms, default)
            }
            3 => Def::Typedef(ty(random, &defs)),
            4 => Def::List(fields(random, &defs)),
            _ => Def::Struct(fields(random, &defs)),
        };
        defs.push(def);
    }
    defs
}

/// The declaration of a name, or a type alone.
pub fn declaration(ty: &Ty, name: &str) -> String {
    match ty {
        Ty::Basic(basic, _) => format!("{basic} {name}"),
        Ty::OpaqueArray(len) => format!("opaque {name}[{len}]"),
        Ty::Opaque(max) => format!("opaque {name}<{max}>"),
        Ty::Text(max) => format!("string {name}<{max}>"),
        Ty::Named(index) => format!("t{index} {name}"),
        Ty::Inline(_, body) => format!("{body} {name}"),
        Ty::Array(element, len) => format!("{}[{len}]", declaration(element, name)),
        Ty::Vector(element, max) => format!("{}<{max}>", declaration(element, name)),
        Ty::Optional(target) => declaration(target, &format!("*{name}")),
    }
}

/// The definitions as an interface file.
pub fn text(defs: &[Def]) -> String {
    let texts = defs.iter().enumerate().map(|(index, def)| {
        let name = format!("t{index}");
        match def {
            Def::Typedef(ty) => format!("typedef {};\n", declaration(ty, &name)),
            _ => body(defs, def, &name, index) + ";\n",
        }
    });
    texts.collect()
}

/// An enumeration under that name, or under none, whose values' names begin so.
fn enumeration(values: &[i32], name: &str, prefix: &str) -> String {
    let value = |(n, value)| format!("    {prefix}_{n} = {value}");
    let values: Vec<String> = values.iter().enumerate().map(value).collect();
    format!("enum {name} {{\n{}\n}}", values.join(",\n"))
}

/// A definition under that name, or under none.
fn body(defs: &[Def], def: &Def, name: &str, index: usize) -> String {
    let members = |fields: &[Ty]| -> String {
        fields
            .iter()
            .enumerate()
            .map(|(n, ty)| format!("    {};\n", declaration(ty, &format!("f{n}"))))
            .collect()
    };
    match def {
        Def::Enum(values) => enumeration(values, name, &format!("E{index}")),
        Def::Struct(fields) => format!("struct {name} {{\n{}}}", members(fields)),
        Def::List(fields) => {
            format!("struct {name} {{\n{}    {name} *next;\n}}", members(fields))
        }
        Def::Typedef(ty) => declaration(ty, name),
        Def::Union(switch, arms, default) => {
            let mut text = format!("union {name} switch ({} kind) {{\n", switch.name());
            let arm = |ty: &Option<Ty>, n: usize| match ty {
                Some(ty) => format!("        {};\n", declaration(ty, &format!("a{n}"))),
                None => "        void;\n".to_owned(),
            };
            for (n, (cases, ty)) in arms.iter().enumerate() {
                for case in cases {
                    text += &format!("    case {}:\n", switch.case(defs, *case));
                }
                text += &arm(ty, n);
            }
            if let Some(ty) = default {
                text += &format!("    default:\n{}", arm(ty, arms.len()));
            }
            text + "}"
        }
    }
}

/// Appends the XDR of a random value (RFC 4506, section 4).
pub fn value(random: &mut Random, defs: &[Def], ty: &Ty, out: &mut Vec<u8>) {
    match ty {
        Ty::Basic(_, Basic::Bool) => out.extend([0, 0, 0, random.below(2) as u8]),
        Ty::Basic(_, Basic::Small(low, high)) => {
            let value = low + random.below((high - low + 1) as u64) as i64;
            out.extend((value as i32).to_be_bytes());
        }
        Ty::Basic(_, Basic::Four) => out.extend((random.number() as u32).to_be_bytes()),
        Ty::Basic(_, Basic::Eight) => out.extend(random.number().to_be_bytes()),
        Ty::Basic(_, Basic::Sixteen) => {
            out.extend(random.number().to_be_bytes());
            out.extend(random.number().to_be_bytes());
        }
        Ty::OpaqueArray(len) => bytes(random, *len, false, out),
        Ty::Opaque(max) | Ty::Text(max) => {
            let len = random.below(max + 1);
            out.extend((len as u32).to_be_bytes());
            bytes(random, len, matches!(ty, Ty::Text(_)), out);
        }
        Ty::Named(index) | Ty::Inline(index, _) => defined(random, defs, *index, out),
        Ty::Array(element, len) => (0..*len).for_each(|_| value(random, defs, element, out)),
        Ty::Vector(element, max) => {
            let len = random.below(max + 1);
            out.extend((len as u32).to_be_bytes());
            (0..len).for_each(|_| value(random, defs, element, out));
        }
        Ty::Optional(target) => {
            let there = random.below(2);
            out.extend((there as u32).to_be_bytes());
            if there == 1 {
                value(random, defs, target, out);
            }
        }
    }
}

fn bytes(random: &mut Random, len: u64, text: bool, out: &mut Vec<u8>) {
    for _ in 0..len {
        let byte = random.number() as u8;
        out.push(if text { b' ' + byte % 95 } else { byte });
    }
    while !out.len().is_multiple_of(4) {
        out.push(0);
    }
}

/// Appends the XDR of a random value of a definition.
pub fn defined(random: &mut Random, defs: &[Def], index: usize, out: &mut Vec<u8>) {
    match &defs[index] {
        Def::Enum(values) => {
            let value = values[random.below(values.len() as u64) as usize];
            out.extend(value.to_be_bytes());
        }
        Def::Typedef(ty) => value(random, defs, ty, out),
        Def::Struct(fields) => fields.iter().for_each(|ty| value(random, defs, ty, out)),
        Def::List(fields) => loop {
            fields.iter().for_each(|ty| value(random, defs, ty, out));
            let more = u32::from(random.below(4) > 0);
            out.extend(more.to_be_bytes());
            if more == 0 {
                return;
            }
        },
        Def::Union(switch, arms, default) => {
            let mut cases: Vec<(i128, &Option<Ty>)> =
                arms.iter().flat_map(|(cases, ty)| cases.iter().map(move |c| (*c, ty))).collect();
            if let Some(ty) = default {
                let taken: Vec<i128> = cases.iter().map(|(c, _)| *c).collect();
                let free = switch.values(defs).into_iter().filter(|c| !taken.contains(c));
                cases.extend(free.map(|c| (c, ty)));
            }
            let (case, ty) = cases[random.below(cases.len() as u64) as usize];
            match switch {
                Switch::Basic(_, 8) => out.extend((case as i64).to_be_bytes()),
                _ => out.extend((case as i32).to_be_bytes()),
            }
            if let Some(ty) = ty {
                value(random, defs, ty, out);
            }
        }
    }
}
