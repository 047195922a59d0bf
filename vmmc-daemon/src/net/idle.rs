//! Proved connections to other daemons that nobody uses right now: the next question needs no handshake.
//!
//! A question has its connection alone, because an import may wait for ever; so there are as many as
//! questions were open at once, and a few of them are kept for a while and then closed. The other side keeps
//! them longer ([`OTHERS_KEEP`]), so that one is seldom found closed; the question is then asked again on
//! a new one.

use super::secure::Secure;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vmmc::sys::socket::has_spoken;
use vmmc::sys::thread::spawn_quiet;

/// Connections kept per node.
const MAX: usize = 4;
/// How long.
const KEEP: Duration = Duration::from_secs(10);
/// How long the answering side waits for the next question.
pub(super) const OTHERS_KEEP: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(super) struct Idle {
    keep: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By node, oldest first.
    by_node: HashMap<String, Vec<(Secure, Instant)>>,
    /// Whether a thread waits for the oldest to be too old: as long as there is one.
    swept: bool,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle { keep: KEEP, kept: Mutex::default() }
    }
}

impl Idle {
    /// The one that was used last, if it still stands.
    pub(super) fn take(&self, node: &str) -> Option<Secure> {
        let mut kept = self.lock();
        kept.sweep(self.keep);
        kept.by_node.get_mut(node)?.pop().map(|(secure, _)| secure)
    }

    /// Keeps one whose question has been answered.
    pub(super) fn put(self: &Arc<Self>, node: &str, secure: Secure) {
        let mut kept = self.lock();
        if !kept.swept {
            let idle = Arc::clone(self);
            match spawn_quiet("net-idle", move || idle.sweep_until_empty()) {
                Ok(_) => kept.swept = true,
                Err(_) => return, // nobody would close it
            }
        }
        kept.sweep(self.keep);
        let of_node = kept.by_node.entry(node.to_owned()).or_default();
        if of_node.len() < MAX {
            of_node.push((secure, Instant::now()));
        }
    }

    fn sweep_until_empty(&self) {
        loop {
            let mut kept = self.lock();
            kept.sweep(self.keep);
            let Some(oldest) = kept.oldest() else {
                kept.swept = false;
                return;
            };
            drop(kept);
            std::thread::sleep(self.keep.saturating_sub(oldest.elapsed()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Closes what is too old, or was closed by the other side.
    fn sweep(&mut self, keep: Duration) {
        for of_node in self.by_node.values_mut() {
            of_node
                .retain(|(secure, since)| since.elapsed() < keep && !has_spoken(secure.stream()));
        }
        self.by_node.retain(|_, of_node| !of_node.is_empty());
    }

    fn oldest(&self) -> Option<Instant> {
        self.by_node.values().filter_map(|of_node| of_node.first()).map(|&(_, since)| since).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::net::TcpListener;

    fn both() -> (Secure, Secure) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other =
            std::thread::spawn(move || Secure::accept(listener.accept().unwrap().0, None).unwrap());
        (Secure::connect(address, None).unwrap(), other.join().unwrap())
    }

    /// Keeps for longer than any test takes.
    fn for_long() -> Arc<Idle> {
        Arc::new(Idle { keep: Duration::from_secs(3600), kept: Mutex::default() })
    }

    #[test]
    fn a_kept_connection_is_used_again_unless_the_other_side_has_closed_it() {
        let idle = for_long();
        let (ours, mut theirs) = both();
        let port = ours.stream().local_addr().unwrap();
        idle.put("a", ours);
        assert!(idle.take("b").is_none(), "another node's");
        let mut ours = idle.take("a").unwrap();
        assert_eq!(ours.stream().local_addr().unwrap(), port);
        assert!(idle.take("a").is_none(), "it is in use");
        ours.send(&7u32).unwrap();
        assert_eq!(theirs.receive::<u32>(None).unwrap(), 7, "it goes on where it was");
        let end = ours.stream().try_clone().unwrap();
        idle.put("a", ours);
        drop(theirs);
        let mut fds = [PollFd::new(&end, PollFlags::IN)];
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert!(idle.take("a").is_none());
    }

    #[test]
    fn no_more_are_kept_than_a_few() {
        let idle = for_long();
        let mut others = Vec::new();
        for _ in 0..MAX + 2 {
            let (ours, theirs) = both();
            others.push(theirs);
            idle.put("a", ours);
        }
        assert_eq!(std::iter::from_fn(|| idle.take("a")).count(), MAX);
    }

    #[test]
    fn each_is_closed_when_its_time_is_over() {
        let idle = Arc::new(Idle { keep: Duration::from_millis(1), kept: Mutex::default() });
        for node in ["a", "b", "a"] {
            let (ours, mut theirs) = both();
            idle.put(node, ours);
            assert!(theirs.receive::<u32>(None).is_err(), "the end, though nobody asks again");
        }
    }
}
