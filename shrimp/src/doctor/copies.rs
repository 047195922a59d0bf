//! How the C library copies memory: what programs do by themselves, with or without us.

use super::Finding;
use crate::perf::time_of;
use std::hint::black_box;
use std::time::Duration;

const AREA: &str = "Processors";
const PAGE: usize = 4096;
/// Of the lengths that the C library may copy with `rep movsb`.
const LEN: usize = 64 << 10;
/// How long each copy is tried.
const WINDOW: Duration = Duration::from_millis(1);
/// From here on one is called slow beside the other.
const SLOW: f64 = 4.0;

/// Tries a copy between two places alike within their pages, and one to 16 bytes further on, which is where
/// `malloc` puts a long buffer.
pub(super) fn finding() -> Finding {
    told(time(0), time(16))
}

/// Median time of a copy to a place so many bytes further on in its page than its source.
fn time(further: usize) -> Duration {
    let source = vec![1u8; LEN + PAGE];
    let mut target = vec![0u8; LEN + PAGE + further];
    let from = source.as_ptr().align_offset(PAGE);
    let to = target.as_ptr().align_offset(PAGE) + further;
    let (Some(source), Some(target)) = (source.get(from..from + LEN), target.get_mut(to..to + LEN))
    else {
        unreachable!("both have a page more")
    };
    time_of(WINDOW, || black_box(&mut *target).copy_from_slice(black_box(source)))
}

fn told(alike: Duration, apart: Duration) -> Finding {
    let what = "the C library's memcpy";
    let speed = |time: Duration| crate::text::rate(LEN as f64 / time.as_secs_f64().max(1e-9));
    let times = apart.as_secs_f64() / alike.as_secs_f64().max(1e-9);
    if times < SLOW {
        return Finding::ok(
            AREA,
            what,
            format!("64 KiB at {} and {}, at two places tried", speed(alike), speed(apart)),
        );
    }
    Finding::info(
        AREA,
        what,
        format!(
            "64 KiB at {} where both places are alike within their pages, at {} where the target lies 16 bytes further on, as `rep movsb` of AMD's processors has it, which glibc used before 2.40. {}; programs' own do with GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1000000000",
            speed(alike),
            speed(apart),
            if vmmc::mem::copy::avoids_libc() {
                "Our own copies avoid it"
            } else {
                "Our own copies do not know this processor as one of these"
            },
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_copy_that_is_slow_at_one_place_only_is_told_with_what_helps() {
        let (fast, slow) = (Duration::from_micros(2), Duration::from_micros(40));
        let found = told(fast, slow);
        assert_eq!(found.state, State::Info);
        assert!(found.found.contains("GLIBC_TUNABLES=") && found.found.contains("1.64 GB/s"));
        for (alike, apart) in [(fast, fast), (slow, slow), (slow, fast)] {
            assert_eq!(told(alike, apart).state, State::Ok);
        }
    }

    #[test]
    fn both_copies_are_really_made() {
        let found = finding().found;
        assert!(found.contains("64 KiB at") && found.contains("GB/s"), "{found}");
    }
}
