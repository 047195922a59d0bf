//! Compiler for the RPC language: the contract of generated code with its runtime.
#![doc = include_str!("../RUNTIME.md")]
#![forbid(unsafe_code)]
