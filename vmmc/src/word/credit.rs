//! Credit: free-running counts of what was produced and consumed, and how many are between.
//!
//! Positions run free and wrap; they are masked only at the access. The other side's position is
//! a peer's word: more in flight than the capacity is nonsense and ends the link.

/// The peer's position cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer claims {claimed} entries in a queue of {capacity}")]
pub struct BadCredit {
    /// Entries in flight if the peer were right.
    pub claimed: u32,
    /// Entries that fit.
    pub capacity: u32,
}

/// Entries in flight between `head` (next to read) and `tail` (next to write).
///
/// # Errors
/// [`BadCredit`] when that is more than `capacity`.
#[inline]
pub fn in_flight(head: u32, tail: u32, capacity: u32) -> Result<u32, BadCredit> {
    let claimed = tail.wrapping_sub(head);
    if claimed <= capacity { Ok(claimed) } else { Err(BadCredit { claimed, capacity }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap() {
        assert_eq!(in_flight(u32::MAX - 1, 2, 8), Ok(4));
        assert_eq!(in_flight(5, 5, 8), Ok(0));
        assert_eq!(in_flight(0, 8, 8), Ok(8));
    }

    #[test]
    fn a_position_ahead_of_the_capacity_or_going_backwards_is_refused() {
        assert_eq!(in_flight(0, 9, 8), Err(BadCredit { claimed: 9, capacity: 8 }));
        assert!(in_flight(1, 0, 8).is_err());
    }
}
