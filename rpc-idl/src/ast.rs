//! The syntax tree: what a file says, before anybody asks whether it makes sense.
//!
//! Trees compare equal when they say the same, wherever it stands: see [`Span`].

use crate::source::Span;
use std::collections::BTreeSet;

/// A name and its place; empty where it could not be read, which was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The text.
    pub text: String,
    /// The place.
    pub span: Span,
}

/// Lines of documentation.
pub type Doc = Vec<String>;

/// A whole file with what it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The definitions in order.
    pub definitions: Vec<Definition>,
    /// Names that may be defined in what could not be read: that they are not is no error of its own.
    pub unread: BTreeSet<String>,
}

/// A definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name; empty for [`DefinitionKind::Passthrough`].
    pub name: Name,
    /// Its documentation.
    pub doc: Doc,
    /// What it defines.
    pub kind: DefinitionKind,
}

/// What can be defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefinitionKind {
    /// `const NAME = value;`
    Const(Value),
    /// `enum name { ... };`
    Enum(Vec<EnumItem>),
    /// `struct name { ... };`
    Struct(Vec<Declaration>),
    /// `union name switch (...) { ... };`
    Union(Box<UnionBody>),
    /// `typedef declaration;`
    Typedef(Declaration),
    /// `program NAME { ... } = number;`
    Program(Program),
    /// A line for the generated C code, without its `%`.
    Passthrough(String),
}

/// A constant: written out, or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub kind: ValueKind,
    /// Its place.
    pub span: Span,
}

/// See [`Value`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A number.
    Number(i128),
    /// The name of a constant or of an enumeration's value.
    Name(String),
    /// A string, which `const` takes in rpcgen: with its quotes.
    Text(String),
    /// One that could not be read, which was reported.
    Unread,
}

/// `NAME` or `NAME = value` in an enumeration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumItem {
    /// The name.
    pub name: Name,
    /// Its documentation.
    pub doc: Doc,
    /// Its value: one more than the item before, if it has none.
    pub value: Option<Value>,
}

/// A type and what is named by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The name; empty for `void`.
    pub name: Name,
    /// Its documentation.
    pub doc: Doc,
    /// The type of one element.
    pub base: Base,
    /// What is made of it.
    pub shape: Shape,
    /// All of it.
    pub span: Span,
}

/// A type specifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// What it is.
    pub kind: BaseKind,
    /// Its place.
    pub span: Span,
}

/// See [`Base`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaseKind {
    /// `void`
    Void,
    /// `bool`
    Bool,
    /// `char`, `unsigned char`
    Char {
        /// Without a sign.
        unsigned: bool,
    },
    /// `short`, `unsigned short`
    Short {
        /// Without a sign.
        unsigned: bool,
    },
    /// `int`, `long`, `unsigned`: 32 bits
    Int {
        /// Without a sign.
        unsigned: bool,
    },
    /// `hyper`, `unsigned hyper`: 64 bits
    Hyper {
        /// Without a sign.
        unsigned: bool,
    },
    /// `float`
    Float,
    /// `double`
    Double,
    /// `quadruple`
    Quadruple,
    /// `opaque`
    Opaque,
    /// `string`
    Text,
    /// A defined type: its name, and the word before it if there was one.
    Named(String, Option<Tag>),
    /// `enum { ... }` without a name
    Enum(Vec<EnumItem>),
    /// `struct { ... }` without a name
    Struct(Vec<Declaration>),
    /// `union switch ...` without a name
    Union(Box<UnionBody>),
}

/// `struct`, `enum` or `union` before the name of a type, as in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// `struct name`
    Struct,
    /// `enum name`
    Enum,
    /// `union name`
    Union,
}

/// What is made of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One.
    One,
    /// `*`: one or none.
    Optional,
    /// `[n]`
    Fixed(Value),
    /// `<n>`, `<>`
    Variable(Option<Value>),
}

/// The body of a union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnionBody {
    /// What is switched on.
    pub switch: Declaration,
    /// The arms.
    pub arms: Vec<Arm>,
    /// The default arm.
    pub default: Option<Declaration>,
}

/// An arm of a union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// The values that select it.
    pub cases: Vec<Value>,
    /// What it holds.
    pub declaration: Declaration,
}

/// The body of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its versions.
    pub versions: Vec<Version>,
    /// Its number.
    pub number: Value,
}

/// A version of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its name.
    pub name: Name,
    /// Its documentation.
    pub doc: Doc,
    /// Its procedures.
    pub procedures: Vec<Procedure>,
    /// Its number.
    pub number: Value,
}

/// A procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// Its name.
    pub name: Name,
    /// Its documentation.
    pub doc: Doc,
    /// `oneway`: nothing comes back.
    pub oneway: Option<Span>,
    /// `copyin`: the server gets bulk arguments as private copies.
    pub copyin: Option<Span>,
    /// `deferred`: the server may reply later, from elsewhere.
    pub deferred: Option<Span>,
    /// What it returns; without a name.
    pub result: Declaration,
    /// Its parameters; none for `void`.
    pub parameters: Vec<Parameter>,
    /// Its number.
    pub number: Value,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Which way it travels.
    pub direction: Direction,
    /// `bulk` or `plain`, if said.
    pub transfer: Option<(Transfer, Span)>,
    /// Type and name; the name may be empty.
    pub declaration: Declaration,
}

/// Which way a parameter travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the server.
    In,
    /// To the client.
    Out,
    /// To the server and back.
    InOut,
}

/// How a parameter travels, if the file says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// In place.
    Bulk,
    /// Copied.
    Plain,
}
