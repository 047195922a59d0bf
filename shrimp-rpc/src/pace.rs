//! How long the peer goes through data before it can answer. Whoever spins at all spins through that time before its budget begins.

use std::time::Duration;

/// Shorter data are gone through while one looks a few times.
const MUCH: usize = 64 * 1024;
/// Bytes that a peer goes through in a nanosecond.
const PACE: usize = 8;

/// How long a peer goes through so many bytes, at least; zero for few.
pub(crate) fn time_of(bytes: usize) -> Duration {
    if bytes < MUCH { Duration::ZERO } else { Duration::from_nanos((bytes / PACE) as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_data_are_spun_through() {
        assert_eq!(time_of(MUCH - 1), Duration::ZERO);
        assert_eq!(time_of(1 << 20), Duration::from_nanos(131_072));
    }
}
