//! The processes with links to one export: whom to ring when a word of it changes.
//!
//! The list is read at every signal of a flag, without a lock. To change it costs a barrier on every
//! processor, and a walk through it: so it is changed only for a process that is not in it, and one
//! that has closed its last link stays in it until another does or it is gone. It is rung for
//! nothing meanwhile, if it sleeps.

use crate::control::message::CloseReason;
use crate::id::ClientId;
use crate::peer::Peer;
use crate::sync::Mutex;
use crate::word::snapshot::Snapshot;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Roll {
    list: Snapshot<Vec<Arc<Peer>>>,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    /// Links of each. By number of the process, which a crash of the daemon may give to another one.
    peers: HashMap<ClientId, Vec<(Arc<Peer>, usize)>>,
    /// Peers in it without a link; one at most between two calls.
    idle: usize,
}

impl Default for Roll {
    fn default() -> Roll {
        Roll { list: Snapshot::new(Vec::new()), links: Mutex::default() }
    }
}

impl Roll {
    /// Gives the list to `body`, which must be brief.
    #[inline]
    pub(crate) fn read<R>(&self, body: impl FnOnce(&[Arc<Peer>]) -> R) -> R {
        self.list.read(|peers| body(peers))
    }

    /// A process has one more link.
    pub(crate) fn enter(&self, peer: &Arc<Peer>) {
        let mut links = self.links.lock();
        let links = &mut *links;
        let known = links.peers.entry(peer.info.client).or_default();
        if let Some((_, count)) = known.iter_mut().find(|(other, _)| Arc::ptr_eq(other, peer)) {
            links.idle -= usize::from(*count == 0);
            *count += 1;
            return;
        }
        known.push((peer.clone(), 1));
        self.list.replace(|peers| peers.iter().chain([peer]).cloned().collect());
    }

    /// A process has one link less. Whether one without a link stays in the list.
    pub(crate) fn leave(&self, peer: &Arc<Peer>, reason: CloseReason) -> bool {
        let mut links = self.links.lock();
        let known = links.peers.get_mut(&peer.info.client);
        let Some((_, count)) =
            known.and_then(|known| known.iter_mut().find(|(other, _)| Arc::ptr_eq(other, peer)))
        else {
            return links.idle > 0;
        };
        *count -= 1;
        let without = *count == 0;
        links.idle += usize::from(without);
        if links.idle > usize::from(reason == CloseReason::Unimported) {
            self.drop_idle(&mut links);
        }
        links.idle > 0
    }

    /// A process is gone, or all without a link may be. Whether one without a link stays in the list.
    pub(crate) fn forget(&self, gone: Option<ClientId>) -> bool {
        let mut links = self.links.lock();
        let idles = |known: &Vec<(Arc<Peer>, usize)>| known.iter().any(|(_, count)| *count == 0);
        let concerns = match gone {
            Some(gone) => links.peers.get(&gone).is_some_and(idles),
            None => links.idle > 0,
        };
        if concerns {
            self.drop_idle(&mut links);
        }
        links.idle > 0
    }

    fn drop_idle(&self, links: &mut Links) {
        for known in links.peers.values_mut() {
            known.retain(|(_, count)| *count > 0);
        }
        links.peers.retain(|_, known| !known.is_empty());
        links.idle = 0;
        self.list
            .replace(|_| links.peers.values().flatten().map(|(peer, _)| peer.clone()).collect());
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::id::PeerInfo;
    use crate::local::Local;
    use crate::sys::doorbell::Doorbell;

    fn peers(count: u64) -> Vec<Arc<Peer>> {
        let local = Arc::new(Local::new().unwrap());
        let bell = Doorbell::new().unwrap();
        let peer = |client| {
            let info = PeerInfo { client: ClientId(client), pid: 1, uid: 0, gid: 0 };
            let end = bell.button().unwrap();
            Arc::new(Peer::new(info, local.page.file(), end, local.clone()).unwrap())
        };
        (0..count).map(peer).collect()
    }

    /// Where the list is, which changes when it is replaced, and who is in it.
    fn list(roll: &Roll) -> (usize, Vec<u64>) {
        roll.read(|list| {
            let mut clients: Vec<u64> = list.iter().map(|peer| peer.info.client.0).collect();
            clients.sort_unstable();
            (list.as_ptr() as usize, clients)
        })
    }

    /// What costs time with the number of processes happens once for each, not once for each link.
    #[test]
    fn only_newcomers_and_those_that_leave_for_another_change_the_list() {
        let (roll, peers) = (Roll::default(), peers(100));
        for peer in &peers {
            roll.enter(peer);
        }
        let full = list(&roll);
        assert_eq!(full.1, Vec::from_iter(0..100));
        for peer in &peers {
            // More links, and fewer; and the only one, again and again.
            for _ in 0..3 {
                roll.enter(peer);
                assert!(!roll.leave(peer, CloseReason::Unimported));
            }
            for _ in 0..3 {
                assert!(roll.leave(peer, CloseReason::Unimported));
                roll.enter(peer);
            }
            assert_eq!(list(&roll), full);
        }
        // Two that stay away are one too many.
        assert!(roll.leave(&peers[3], CloseReason::Unimported));
        assert_eq!(list(&roll), full);
        assert!(!roll.leave(&peers[5], CloseReason::Unimported));
        let rest = list(&roll).1;
        assert!(rest.len() == 98 && !rest.contains(&3) && !rest.contains(&5));
    }

    #[test]
    fn who_is_gone_is_not_kept() {
        let (roll, peers) = (Roll::default(), peers(4));
        for peer in &peers {
            roll.enter(peer);
        }
        // Without a link, and then gone; another's end changes nothing for it.
        assert!(roll.leave(&peers[0], CloseReason::Unimported));
        assert!(roll.forget(Some(ClientId(1))));
        assert_eq!(Arc::strong_count(&peers[0]), 3);
        assert!(!roll.forget(Some(ClientId(0))));
        assert_eq!(Arc::strong_count(&peers[0]), 1);
        // Dead with a link.
        assert!(!roll.leave(&peers[1], CloseReason::PeerDied));
        assert_eq!(Arc::strong_count(&peers[1]), 1);
        // Without a link when the daemon crashes.
        assert!(roll.leave(&peers[2], CloseReason::Unimported));
        assert!(!roll.forget(None));
        assert_eq!(Arc::strong_count(&peers[2]), 1);
        assert_eq!(list(&roll).1, [3]);
        // One that was never in it.
        assert!(!roll.leave(&peers[0], CloseReason::PeerDied));
    }
}
