//! Windows, over both providers that stand in for hardware.

use super::*;
use crate::fabric::domain::Notice;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Longest time anything may take. Only ends hangs; no test is about time.
const PATIENCE: Duration = Duration::from_secs(120);
const LEN: usize = 4096;
const WINDOW: usize = 3 * 4096 + 100;

/// Two ends of a connection, and memory of somebody else's that the second lets the first write to.
struct Pair {
    from: Endpoint,
    to: Endpoint,
    owner: GuardedMapping,
    window: Target,
    number: usize,
}

fn pair(provider: &str) -> Pair {
    let end = || {
        let domain = Domain::open(provider, IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
        Endpoint::open(&domain, LEN).unwrap()
    };
    let (mut from, mut to) = (end(), end());
    from.connect(&to.address().unwrap(), to.target()).unwrap();
    let file = memfd::create("vmmc-window", WINDOW as u64).unwrap();
    let owner = GuardedMapping::new(&file, WINDOW, Access::ReadWrite).unwrap();
    let (number, window) = to.open_window(owner.again().unwrap(), WINDOW).unwrap();
    Pair { from, to, owner, window, number }
}

impl Pair {
    fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        View::of(&self.owner).read(at, &mut byte).unwrap();
        byte[0]
    }

    fn seen(&self) -> Vec<u8> {
        let mut seen = vec![0; WINDOW];
        View::of(&self.owner).read(0, &mut seen).unwrap();
        seen
    }

    /// One write to a window, which may be refused, and then one that tells of it.
    fn carry(&mut self, window: Target, at: u64, bytes: &[u8]) -> Result<(), FabricError> {
        let end = Instant::now() + PATIENCE;
        let (mut written, mut told, mut arrived) = (false, false, false);
        while !arrived {
            written = written || self.from.write_window(window, at, bytes, true)?;
            let after = written && !self.from.may_overtake();
            told = told || (after && self.from.write(0, 8, 5)?);
            self.from.poll(|_| {})?;
            // What the other end learns of it is not the question.
            let _ = self.to.poll(|happened| arrived |= happened == Happened::Arrived(5));
            assert!(Instant::now() < end, "lost");
        }
        Ok(())
    }
}

fn each(test: impl Fn(&str)) {
    for provider in ["net", "tcp;ofi_rxm"] {
        test(provider);
    }
}

#[test]
fn who_is_told_of_a_write_sees_what_was_written_to_the_window_before() {
    each(|provider| {
        for forget in [false, true] {
            let mut pair = pair(provider);
            if forget {
                pair.from.forget_order();
            }
            for round in 1..=200u8 {
                pair.carry(pair.window, 4000, &vec![round; 8000]).unwrap();
                assert!(pair.seen()[4000..12_000].iter().all(|&byte| byte == round), "{provider}");
            }
            assert_eq!((pair.byte(3999), pair.byte(12_000)), (0, 0));
        }
    });
}

#[test]
fn a_key_that_is_wrong_or_a_place_beyond_is_refused_by_name_and_nobody_else_is_disturbed() {
    each(|provider| {
        let mut other = pair(provider);
        let wrong = |window: Target| Target { key: window.key ^ 1, ..window };
        for (key, at) in [(true, 0), (false, WINDOW as u64 - 7), (false, 1 << 40)] {
            let mut pair = pair(provider);
            let window = if key { wrong(pair.window) } else { pair.window };
            let refused = pair.carry(window, at, &[9; 8]).unwrap_err();
            assert!(matches!(refused, FabricError::Refused { .. }), "{provider}: {refused}");
            assert!(pair.seen().iter().all(|&byte| byte == 0), "{provider}: written");
            other.carry(other.window, 8, &[7; 8]).unwrap();
        }
        assert_eq!(other.byte(15), 7);
    });
}

/// A right key, at the wrong door: another process has it, or has guessed it.
#[test]
fn a_key_opens_nothing_to_the_peers_of_other_connections() {
    each(|provider| {
        let (mut thief, owner) = (pair(provider), pair(provider));
        let refused = thief.carry(owner.window, 0, &[9; 8]).unwrap_err();
        assert!(matches!(refused, FabricError::Refused { .. }), "{provider}: {refused}");
        assert!(owner.seen().iter().all(|&byte| byte == 0), "{provider}: written");
    });
}

#[test]
fn of_a_window_that_is_covered_or_shut_nothing_reaches_its_owner() {
    each(|provider| {
        let mut pair = pair(provider);
        pair.carry(pair.window, 0, &[1; 8]).unwrap();
        pair.to.cover_window(pair.number).unwrap();
        pair.carry(pair.window, 0, &[2; 8]).unwrap();
        assert_eq!(pair.byte(0), 1, "{provider}: through the cover");
        pair.to.shut_window(pair.number).unwrap();
        let refused = pair.carry(pair.window, 0, &[3; 8]).unwrap_err();
        assert!(matches!(refused, FabricError::Refused { .. }), "{provider}: {refused}");
        assert_eq!(pair.byte(0), 1);
    });
}

/// The peer has sent the beginning of a write when the window is shut; what comes later must not find other memory there.
#[test]
fn the_place_of_a_window_stays_taken_until_its_endpoint_is_closed() {
    let mut pair = pair("net");
    let start = pair.to.windows[pair.number].pages.as_ptr().as_ptr() as usize;
    pair.to.shut_window(pair.number).unwrap();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let parse = |text| usize::from_str_radix(text, 16).unwrap();
            (parse(from)..parse(to)).contains(&start)
        })
    };
    assert!(is_mapped());
}

#[test]
fn more_windows_than_there_are_places_for_are_refused() {
    let mut pair = pair("net");
    let too_long = pair.to.open_window(pair.owner.again().unwrap(), 1 << 20);
    assert!(matches!(too_long, Err(FabricError::Nonsense { .. })));
    for number in 1..window::MOST {
        let (made, _) = pair.to.open_window(pair.owner.again().unwrap(), WINDOW).unwrap();
        assert_eq!(made, number);
        pair.to.shut_window(made).unwrap();
    }
    let one_more = pair.to.open_window(pair.owner.again().unwrap(), WINDOW);
    assert!(matches!(one_more, Err(FabricError::Nonsense { .. })));
}
