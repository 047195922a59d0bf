//! What the tests of hostile peers share: values of `idl/hostile.x`, a service and a client of it.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

pub mod attack;
pub mod client;
pub mod in_c;
pub mod liar;
pub mod service;
pub mod values;
