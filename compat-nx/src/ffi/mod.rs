//! The C and Fortran entry points: convert, call the engine, convert back.
//!
//! Every call exists as C's `name`, which ends the application on an error, as C's `_name`, which
//! answers -1 with `errno`, and as Fortran's `name_`, which takes everything by reference and ends
//! the application on an error. The macro `calls!` makes the three (and two more, see hazard 2) from one
//! body.
//!
//! # Hazards of this interface on today's machines
//! 1. **Callers without prototypes** pass `int` where `long` is declared: the upper half of the
//!    register is anything. Every scalar is taken as its low 32 bits, sign-extended; every result
//!    fits 31 bits.
//! 2. **`long *` arguments.** `long` was 32 bits wide. C's arrays are `long` as declared, 64 bits
//!    wide; Fortran's are 32 bits wide; for C programs that pass `int` arrays, `nx.h` maps the calls
//!    to `nx32_name` when `NX_INT_ARRAYS` is defined.
//! 3. **Short common names** (`led`, `load`, `gray`). Programs define their own. Nothing here calls
//!    anything by a public name, so a program that replaces one replaces just that one.
//! 4. **Handlers** are declared with `int` or with `long` parameters. They get sign-extended 64-bit
//!    values, which serve both.
//!
//! No panic leaves an entry point: it ends the application with a message, or `_name` answers
//! `EIO`.
#![allow(unsafe_code)] // raw arguments of callers
#![allow(missing_docs)] // the calls are documented in SUPPORT.md
#![allow(clippy::missing_safety_doc)] // as the NX manual has it: pointers must be what they claim
#![allow(unreachable_pub)] // the C linker is who reaches them
#![allow(clippy::too_many_arguments)] // the interface is what it is
#![cfg_attr(any(test, not(feature = "abi")), allow(dead_code))] // nothing runs before main there

mod admin;
mod app;
mod app_calls;
mod clock;
mod elsewhere;
mod errno;
mod esize;
mod global;
mod handler;
mod info;
mod inside;
mod io;
mod memory;
mod message;
mod modes;
mod process;
mod spawn;
mod start;
mod strings;
mod together;
mod units;
mod who;

pub use errno::errno_of;

use crate::error::NxError;
use crate::unconfirmed::FORTRAN_HANDLERS_BY_REFERENCE;
use std::ffi::{c_int, c_long, c_void};

/// Integers of the caller: `long` of C, or 32 bits wide (Fortran, `nx32_`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ints {
    Long(*mut c_long),
    Int(*mut i32),
}

impl Ints {
    fn is_null(self) -> bool {
        match self {
            Ints::Long(at) => at.is_null(),
            Ints::Int(at) => at.is_null(),
        }
    }

    /// Element `index`, its low 32 bits.
    ///
    /// # Safety
    /// The array must have it.
    unsafe fn get(self, index: usize) -> i32 {
        match self {
            // SAFETY: the caller vouches for the element.
            Ints::Long(at) => (unsafe { at.wrapping_add(index).read_unaligned() }) as i32,
            // SAFETY: as above.
            Ints::Int(at) => unsafe { at.wrapping_add(index).read_unaligned() },
        }
    }

    /// Stores to element `index`.
    ///
    /// # Safety
    /// The array must have it.
    unsafe fn set(self, index: usize, value: i32) {
        match self {
            // SAFETY: the caller vouches for the element.
            Ints::Long(at) => unsafe { at.wrapping_add(index).write_unaligned(value.into()) },
            // SAFETY: as above.
            Ints::Int(at) => unsafe { at.wrapping_add(index).write_unaligned(value) },
        }
    }
}

/// A handler of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// C: arguments by value.
    Value(*mut c_void),
    /// Fortran: arguments by reference.
    Reference(*mut c_void),
}

impl Code {
    fn of_fortran(address: *mut c_void) -> Code {
        if FORTRAN_HANDLERS_BY_REFERENCE { Code::Reference(address) } else { Code::Value(address) }
    }

    /// Whether no function is given. Fortran passes the address of what stands there: of a constant zero, with which no
    /// function begins.
    fn is_none(self) -> bool {
        match self {
            Code::Value(address) => address.is_null(),
            Code::Reference(address) => {
                // SAFETY: not null; Fortran passes addresses of functions and of what can be read, at least four bytes of it.
                address.is_null() || unsafe { address.cast::<u32>().read_unaligned() } == 0
            }
        }
    }
}

/// A value that Fortran passed by reference; 0 for a null pointer.
///
/// # Safety
/// Null or readable.
unsafe fn deref(at: *const i32) -> i32 {
    // SAFETY: the caller vouches for it.
    if at.is_null() { 0 } else { unsafe { at.read_unaligned() } }
}

/// A length of the caller.
fn length(count: i32) -> Result<usize, NxError> {
    usize::try_from(count).map_err(|_| NxError::BadLength { len: count.into() })
}

/// Why a call failed: an NX error, or what a system call said.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Nx(NxError),
    /// An `errno` of the system, and what was tried.
    System(c_int, String),
}

impl From<NxError> for Failure {
    fn from(error: NxError) -> Failure {
        Failure::Nx(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Nx(error) => error.fmt(f),
            // Numbers of NX: the words say all.
            Failure::System(150.., what) => f.write_str(what),
            Failure::System(errno, what) => write!(f, "{what}: {}", errno::system_text(*errno)),
        }
    }
}

impl Failure {
    /// Failure of a system call just made.
    fn last(what: impl Into<String>) -> Failure {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Failure::System(errno, what.into())
    }

    pub(crate) fn errno(&self) -> c_int {
        match self {
            Failure::Nx(error) => errno_of(error),
            Failure::System(errno, _) => *errno,
        }
    }
}

/// Prints a line in one piece: those of other nodes come at the same time.
fn say(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
}

/// No place for what a call answers besides its value, or for a list.
fn null(what: &str) -> Failure {
    Failure::System(errno::EQPBUF, format!("a null pointer for {what}"))
}

/// Runs the body of a call; a panic in it is an error like others.
#[inline(always)]
fn run<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => Err(Failure::System(
            libc::EIO,
            "libnx has a bug, see the lines above; please report them".into(),
        )),
    }
}

/// The plain form: an error ends the application.
#[inline(always)]
fn plain<T>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> T {
    match run(body) {
        Ok(value) => value,
        Err(failure) => process::fatal(name, &failure),
    }
}

/// The underscore form: an error is -1 with `errno`.
fn under<T: IntoLong>(body: impl FnOnce() -> Result<T, Failure>) -> c_long {
    match run(body) {
        Ok(value) => value.into_long(),
        Err(failure) => {
            errno::set_for(&failure);
            -1
        }
    }
}

/// What a call answers in its underscore form.
trait IntoLong {
    fn into_long(self) -> c_long;
}

impl IntoLong for () {
    fn into_long(self) -> c_long {
        0
    }
}

impl IntoLong for i32 {
    fn into_long(self) -> c_long {
        self.into()
    }
}

/// What a call answers in its plain form and in Fortran.
macro_rules! answer {
    (void, c, $value:expr) => {
        $value
    };
    (long, c, $value:expr) => {
        std::ffi::c_long::from($value)
    };
    (void, f, $value:expr) => {
        $value
    };
    (long, f, $value:expr) => {
        $value
    };
}

/// Types of the entry points' arguments and results.
macro_rules! kind {
    (c int) => { std::ffi::c_long };
    (c ptr) => { *mut std::ffi::c_void };
    (c ints) => { *mut std::ffi::c_long };
    (c code) => { *mut std::ffi::c_void };
    (n int) => { std::ffi::c_long };
    (n ptr) => { *mut std::ffi::c_void };
    (n ints) => { *mut i32 };
    (n code) => { *mut std::ffi::c_void };
    (f int) => { *const i32 };
    (f ptr) => { *mut std::ffi::c_void };
    (f ints) => { *mut i32 };
    (f code) => { *mut std::ffi::c_void };
    (c void) => { () };
    (c long) => { std::ffi::c_long };
    (f void) => { () };
    (f long) => { i32 };
}

/// What the body gets for an argument.
macro_rules! convert {
    (c int $arg:ident) => {
        $arg as i32
    };
    (c ptr $arg:ident) => {
        $arg
    };
    (c ints $arg:ident) => {
        $crate::ffi::Ints::Long($arg)
    };
    (c code $arg:ident) => {
        $crate::ffi::Code::Value($arg)
    };
    (n int $arg:ident) => {
        $arg as i32
    };
    (n ptr $arg:ident) => {
        $arg
    };
    (n ints $arg:ident) => {
        $crate::ffi::Ints::Int($arg)
    };
    (n code $arg:ident) => {
        $crate::ffi::Code::Value($arg)
    };
    (f int $arg:ident) => {{
        // SAFETY: Fortran passes the address of an INTEGER.
        let value = unsafe { $crate::ffi::deref($arg) };
        value
    }};
    (f ptr $arg:ident) => {
        $arg
    };
    (f ints $arg:ident) => {
        $crate::ffi::Ints::Int($arg)
    };
    (f code $arg:ident) => {
        $crate::ffi::Code::of_fortran($arg)
    };
}

/// What the body's argument is.
macro_rules! inner_kind {
    (int) => { i32 };
    (ptr) => { *mut std::ffi::c_void };
    (ints) => { $crate::ffi::Ints };
    (code) => { $crate::ffi::Code };
}

macro_rules! inner_ret {
    (void) => {
        ()
    };
    (long) => {
        i32
    };
}

/// One entry point that ends the application on an error: of C (`c`), of C with `int` arrays
/// (`n`), of Fortran (`f`).
macro_rules! plain_entry {
    ($abi:tt $ret_abi:tt $symbol:ident $name:ident $ret:ident ($($arg:ident: $kind:ident),* $(,)?)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            $($arg: $crate::ffi::kind!($abi $kind)),*
        ) -> $crate::ffi::kind!($ret_abi $ret) {
            $(let $arg = $crate::ffi::convert!($abi $kind $arg);)*
            let value = $crate::ffi::plain(stringify!($name), || body::$name($($arg),*));
            $crate::ffi::answer!($ret, $ret_abi, value)
        }
    };
}

/// One entry point that answers -1 with `errno`.
macro_rules! under_entry {
    ($abi:tt $symbol:ident $name:ident ($($arg:ident: $kind:ident),* $(,)?)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            $($arg: $crate::ffi::kind!($abi $kind)),*
        ) -> std::ffi::c_long {
            $(let $arg = $crate::ffi::convert!($abi $kind $arg);)*
            $crate::ffi::under(|| body::$name($($arg),*))
        }
    };
}

/// The body that the entry points of a call share.
macro_rules! body_of {
    ($(#[$how:meta])* $name:ident $ret:ident ($($arg:ident: $kind:ident),* $(,)?) $body:block) => {
        $(#[$how])*
        #[allow(unused_variables)]
        pub(super) fn $name(
            $($arg: $crate::ffi::inner_kind!($kind)),*
        ) -> Result<$crate::ffi::inner_ret!($ret), Failure> $body
    };
}

/// Makes the entry points of each call: `fn name, _name, name_ [nx32_name, _nx32_name]: (...)`. Attributes are the body's.
macro_rules! calls {
    ($($(#[$how:meta])* fn $name:ident, $under:ident $(, $fortran:ident)? $([$name32:ident, $under32:ident])?
        : $args:tt -> $ret:ident $body:block)*) => {
        $(
            $crate::ffi::plain_entry!(c c $name $name $ret $args);
            $crate::ffi::under_entry!(c $under $name $args);
            $($crate::ffi::plain_entry!(f f $fortran $name $ret $args);)?
            $(
                $crate::ffi::plain_entry!(n c $name32 $name $ret $args);
                $crate::ffi::under_entry!(n $under32 $name $args);
            )?
        )*
        mod body {
            #[allow(unused_imports)]
            use super::*;
            $($crate::ffi::body_of!($(#[$how])* $name $ret $args $body);)*
        }
    };
}

use {answer, body_of, calls, convert, inner_kind, inner_ret, kind, plain_entry, under_entry};
