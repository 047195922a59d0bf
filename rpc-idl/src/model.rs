//! What a file means: every name resolved, every number known, every rule checked. Emitters read
//! this and nothing else.

use crate::ast::{Direction, Doc};

/// Index into [`Model::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub usize);

/// A checked interface.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Everything in the order of the file.
    pub items: Vec<Item>,
    /// The types that the items and the unnamed types define.
    pub types: Vec<TypeDef>,
}

/// A definition.
#[derive(Clone, Debug)]
pub enum Item {
    /// A constant.
    Const(Constant),
    /// A type.
    Type(TypeId),
    /// A program.
    Program(Program),
    /// A line for C.
    Passthrough(String),
}

/// A constant.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its value.
    pub value: ConstValue,
}

/// The value of a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstValue {
    /// A number.
    Number(i128),
    /// A string literal with its quotes, as in C.
    Text(String),
}

/// A defined type.
#[derive(Clone, Debug)]
pub struct TypeDef {
    /// Its name in the file; made up from the enclosing names for an unnamed type.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// What it is.
    pub kind: TypeKind,
    /// Fewest bytes that a value takes.
    pub min_len: u64,
    /// Bytes that every value takes, if they are always the same.
    pub fixed_len: Option<u64>,
    /// It is a linked list's node: its last field points to the next one, and every use of it is
    /// a pointer. In Rust the pointer is then a vector, and the field is left out.
    pub list: bool,
    /// It contains itself, through pointers or arrays.
    pub recursive: bool,
}

/// See [`TypeDef`].
#[derive(Clone, Debug)]
pub enum TypeKind {
    /// An enumeration.
    Enum(Vec<EnumValue>),
    /// A struct.
    Struct(Vec<Field>),
    /// A union.
    Union(Union),
    /// Another name.
    Alias(Type),
    /// Defined elsewhere: the path of its Rust type.
    Extern(String),
}

/// A value of an enumeration.
#[derive(Clone, Debug)]
pub struct EnumValue {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its value.
    pub value: i32,
}

/// A field.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its type.
    pub ty: Type,
}

/// A discriminated union.
#[derive(Clone, Debug)]
pub struct Union {
    /// Name of the discriminant.
    pub switch_name: String,
    /// Its type: bool, an integer of at most 32 bits, or an enumeration; or hyper, as in rpcgen.
    pub switch: Type,
    /// The arms.
    pub arms: Vec<Arm>,
    /// The default arm.
    pub default: Option<Field>,
}

/// An arm: [`Type::Void`] if it holds nothing.
#[derive(Clone, Debug)]
pub struct Arm {
    /// The values that select it.
    pub cases: Vec<Case>,
    /// What it holds.
    pub field: Field,
}

/// A value that selects an arm.
#[derive(Clone, Debug)]
pub struct Case {
    /// The value.
    pub value: i64,
    /// The name by which the file calls it.
    pub name: Option<String>,
}

/// A type in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Nothing.
    Void,
    /// `bool`
    Bool,
    /// An integer; those of 8 and 16 bits take 4 bytes.
    Int {
        /// 8, 16, 32 or 64.
        bits: u8,
        /// Without a sign.
        unsigned: bool,
    },
    /// `float`
    Float,
    /// `double`
    Double,
    /// `quadruple`
    Quad,
    /// `opaque[n]`
    OpaqueArray(u32),
    /// `opaque<n>`
    Opaque(u32),
    /// `string<n>`
    Text(u32),
    /// `type[n]`
    Array(Box<Type>, u32),
    /// `type<n>`
    Vec(Box<Type>, u32),
    /// `type *`
    Optional(Box<Type>),
    /// A defined type.
    Named(TypeId),
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its number.
    pub number: u32,
    /// Its versions.
    pub versions: Vec<Version>,
}

/// A version of a program.
#[derive(Clone, Debug)]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its number.
    pub number: u32,
    /// Its procedures.
    pub procedures: Vec<Procedure>,
}

/// A procedure.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Its name.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Its number.
    pub number: u32,
    /// Nothing comes back.
    pub oneway: bool,
    /// The server gets bulk arguments as private copies.
    pub copyin: bool,
    /// The server may reply later.
    pub deferred: bool,
    /// What it returns.
    pub result: Type,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name; made up if the file gives none.
    pub name: String,
    /// Its documentation.
    pub doc: Doc,
    /// Which way it travels.
    pub direction: Direction,
    /// Its type.
    pub ty: Type,
    /// How it travels in place over SHRIMP RPC, if it does.
    pub bulk: Option<Bulk>,
}

/// A parameter that travels in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// What it is made of.
    pub element: Element,
    /// Number of elements: exactly so many if `fixed`, else at most.
    pub len: u32,
    /// Whether the number is fixed.
    pub fixed: bool,
}

/// What a bulk parameter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// Bytes of opaque data.
    Byte,
    /// Numbers: an integer type, [`Type::Float`] or [`Type::Double`].
    Number(Type),
    /// Structs of fixed size.
    Struct(TypeId),
}

impl Model {
    /// The definition of a type.
    #[must_use]
    pub fn def(&self, id: TypeId) -> &TypeDef {
        &self.types[id.0]
    }

    /// The type behind any other names of it.
    #[must_use]
    pub fn resolve<'a>(&'a self, mut ty: &'a Type) -> &'a Type {
        while let Type::Named(id) = ty
            && let TypeKind::Alias(target) = &self.def(*id).kind
        {
            ty = target;
        }
        ty
    }

    /// Fewest bytes that a value takes.
    #[must_use]
    pub fn min_len(&self, ty: &Type) -> u64 {
        match ty {
            Type::Void => 0,
            Type::Int { bits: 64, .. } | Type::Double => 8,
            Type::Bool | Type::Int { .. } | Type::Float => 4,
            Type::Opaque(_) | Type::Text(_) | Type::Vec(..) | Type::Optional(_) => 4,
            Type::Quad => 16,
            Type::OpaqueArray(len) => u64::from(*len).next_multiple_of(4),
            Type::Array(element, len) => self.min_len(element).saturating_mul(u64::from(*len)),
            Type::Named(id) => self.def(*id).min_len,
        }
    }

    /// Bytes that every value takes, if they are always the same.
    #[must_use]
    pub fn fixed_len(&self, ty: &Type) -> Option<u64> {
        match ty {
            Type::Opaque(_) | Type::Text(_) | Type::Vec(..) | Type::Optional(_) => None,
            Type::Array(element, len) => {
                Some(self.fixed_len(element)?.saturating_mul(u64::from(*len)))
            }
            Type::Named(id) => self.def(*id).fixed_len,
            _ => Some(self.min_len(ty)),
        }
    }

    /// The struct whose list this type is, if it points to a list's node.
    #[must_use]
    pub fn list_of(&self, ty: &Type) -> Option<TypeId> {
        match ty {
            Type::Optional(target) => match self.resolve(target) {
                Type::Named(id) if self.def(*id).list => Some(*id),
                _ => None,
            },
            _ => None,
        }
    }

    /// The programs in the order of the file.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.items.iter().filter_map(|item| match item {
            Item::Program(program) => Some(program),
            _ => None,
        })
    }
}
