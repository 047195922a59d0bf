//! Running something in a forked child.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

#[path = "../../src/testing/child.rs"]
mod child;
pub(crate) use child::ends_well_in_a_child as in_child;

/// Says which check failed, where an assertion could only end the child.
pub fn check(line: u32, good: bool) -> bool {
    if !good {
        eprintln!("in the forked child, line {line}: not as it should be");
    }
    good
}
