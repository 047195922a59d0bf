//! Connections that the daemon was not told of as closed, because its queue was full: it keeps a segment
//! for each. It is told when something is sent to it next.

use vmmc::sync::{AtomicU32, AtomicU64, Ordering};

/// Most that are remembered; what is beyond the daemon hears of when this process ends.
const MOST: usize = 4096;
/// Cookies of sockets; 0: free.
static COOKIES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How many there are, when nobody is just adding or telling one.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Remembers one.
pub(crate) fn keep(cookie: u64) {
    let free = |place: &&AtomicU64| {
        place.compare_exchange(0, cookie, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if COOKIES.iter().find(free).is_some() {
        COUNT.fetch_add(1, Ordering::Release);
    }
}

/// Tells of all, until `send` says that there is no room for more.
#[inline]
pub(crate) fn tell(send: impl FnMut(u64) -> bool) {
    if COUNT.load(Ordering::Acquire) != 0 {
        tell_all(send);
    }
}

#[cold]
fn tell_all(mut send: impl FnMut(u64) -> bool) {
    for place in &COOKIES {
        let cookie = place.swap(0, Ordering::AcqRel);
        if cookie == 0 {
            continue;
        }
        COUNT.fetch_sub(1, Ordering::Relaxed);
        if !send(cookie) {
            return keep(cookie);
        }
    }
}

/// The daemon has forgotten all by itself, or they are another process's.
pub(crate) fn clear() {
    tell(|_| true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_was_no_room_for_is_told_once() {
        let _alone = crate::ALONE.lock().unwrap();
        for cookie in 1..=3 {
            keep(cookie);
        }
        let mut told = Vec::new();
        tell(|cookie| {
            told.push(cookie);
            told.len() < 2
        });
        assert_eq!(told, [1, 2]);
        tell(|cookie| {
            told.push(cookie);
            true
        });
        assert_eq!(told[..2], [1, 2]);
        told.drain(..2);
        told.sort_unstable();
        assert_eq!(told, [2, 3]);
        tell(|cookie| panic!("{cookie} is told again"));
    }
}
