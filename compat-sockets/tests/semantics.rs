//! The exact behaviour of TCP sockets, asked of the kernel, of the library without a daemon, and of
//! the library with one (specification of the sockets library, 2.3, 2.5, 2.7 and 3.1).
//!
//! Each test compiles one C program of `tests/c` and runs its cases three ways:
//! 1. plainly: the kernel is the oracle, every check must hold there too;
//! 2. with `LD_PRELOAD` and no daemon: the same lines;
//! 3. with `LD_PRELOAD` and a daemon of the test's own: the same lines, and for each connection that a case
//!    has warmed up the daemon confirms from outside that both ends put bytes into their rings,
//!    before the case goes on.
//!
//! What differs, and cannot be helped for now, is in `tests/known_differences.txt`. To run one case:
//! `SEMANTICS_CASE=half_close cargo test -p compat-sockets --test semantics`; a failure prints the
//! command that repeats it by hand (`SEMANTICS_WATCHDOG=0` for a debugger).
#![allow(missing_docs)]

mod common;

common::every_program!(common::three_ways);
