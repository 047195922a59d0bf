//! The programs of `semantics.rs` where each connection is carried between two ends of a daemon, as between two nodes:
//! they do as over the kernel's TCP. The daemon carries to itself, so that the same programs, most of which are both
//! ends, can be asked. Between two network namespaces with a daemon each: `ci/net`.
#![allow(missing_docs)]

mod common;

common::every_program!(common::carried);
