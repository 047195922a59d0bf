//! Virtual memory-mapped communication (VMMC).

pub mod config;
pub mod control;
pub mod counters;
pub mod id;
pub mod layout;
pub mod mem;
pub mod sync;
pub mod sys;
pub mod word;
