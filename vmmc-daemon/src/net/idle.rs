//! Proved connections to other daemons that nobody uses right now: the next question needs no handshake.
//!
//! A question has its connection alone, because an import may wait for ever; so there are as many as
//! questions were open at once, and a few of them are kept for a while. The other side keeps
//! them longer ([`OTHERS_KEEP`]), so that one is seldom found closed; the question is then asked again on
//! a new one.

use super::secure::Secure;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmmc::sys::socket::has_spoken;

/// Connections kept per node.
const MAX: usize = 4;
/// How long.
const KEEP: Duration = Duration::from_secs(10);
/// How long the answering side waits for the next question.
pub(super) const OTHERS_KEEP: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// By node, oldest first.
    kept: Mutex<HashMap<String, Vec<(Secure, Instant)>>>,
}

impl Idle {
    /// The one that was used last, if it still stands.
    pub(super) fn take(&self, node: &str) -> Option<Secure> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        sweep(&mut kept);
        kept.get_mut(node)?.pop().map(|(secure, _)| secure)
    }

    /// Keeps one whose question has been answered.
    pub(super) fn put(&self, node: &str, secure: Secure) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        sweep(&mut kept);
        let of_node = kept.entry(node.to_owned()).or_default();
        if of_node.len() < MAX {
            of_node.push((secure, Instant::now()));
        }
    }
}

/// Closes what is too old, or was closed by the other side.
fn sweep(kept: &mut HashMap<String, Vec<(Secure, Instant)>>) {
    for of_node in kept.values_mut() {
        of_node.retain(|(secure, since)| since.elapsed() < KEEP && !has_spoken(secure.stream()));
    }
    kept.retain(|_, of_node| !of_node.is_empty());
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

    #[test]
    fn a_kept_connection_is_used_again_unless_the_other_side_has_closed_it() {
        let idle = Idle::default();
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
        let idle = Idle::default();
        let mut others = Vec::new();
        for _ in 0..MAX + 2 {
            let (ours, theirs) = both();
            others.push(theirs);
            idle.put("a", ours);
        }
        assert_eq!(std::iter::from_fn(|| idle.take("a")).count(), MAX);
    }
}
