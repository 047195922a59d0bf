//! Compiler for the RPC language of RFC 4506 and RFC 5531, with `in`, `out` and `inout`.
//!
//! One language, three back ends: Rust and C stubs for SHRIMP RPC, Rust stubs for Sun RPC. Moving
//! from Sun RPC to SHRIMP RPC is a change of generator. The command `shrimpc` is a thin shell
//! around this crate; a build script uses [`Builder`].
//!
//! ```
//! use rpc_idl::{Options, compile};
//!
//! let compilation = compile("add.x", "const LIMIT = 0x10; struct pair { int a; int b; };", &Options::new());
//! assert!(!compilation.has_errors(), "{}", compilation.render());
//!
//! let compilation = compile("bad.x", "struct pair { itn a; strnig b<>; };", &Options::new());
//! assert_eq!(compilation.diagnostics().len(), 2); // all of them at once
//! ```
//!
//! The stages, each using only those before it: `source` (files and places), `diag` (errors with
//! excerpts), `lex`, `prep` (preprocessor lines), `parse` to `ast`, `check` to `model`, `emit`.
//! Any input ends in a result: sizes, nesting, numbers of diagnostics, tokens and files are
//! limited, walks over types are loops.
//!
//! What generated code calls is the contract with the runtimes:
#![doc = include_str!("../RUNTIME.md")]
#![forbid(unsafe_code)]

pub mod ast;
mod builder;
mod check;
mod compile;
pub mod diag;
pub mod emit;
mod fmt;
mod lex;
pub mod model;
mod parse;
mod prep;
mod prep_expr;
pub mod source;

pub use builder::{BuildError, Builder};
pub use compile::{Compilation, Options, compile, compile_with};
pub use emit::rust::{RustOptions, Stubs};
pub use fmt::{FormatError, format};
pub use prep::{Loader, NoFiles};
