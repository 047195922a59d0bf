//! Restart under a service manager: `systemctl restart vmmcd` drops nothing.
//!
//! A daemon that is told to stop, and whose service manager keeps descriptors for it
//! (`FileDescriptorStoreMax=`), gives it the state and every descriptor, as it would to a successor, and
//! ends without a word to its clients. Their sockets stay open, in the store; what they say
//! meanwhile waits in them. The next daemon is started with the store's descriptors and goes on
//! where the last one stopped. Was it a stop and no restart, the service manager closes them all,
//! and clients see the daemon gone.
//!
//! The store keeps no order, so each descriptor goes alone and by a name: `v` and its place in the list,
//! in base 36. The state is stored last, after the service manager has confirmed the rest: with a
//! state there is everything. The names come back in one environment variable, whose length
//! the kernel limits, and so does the store's size: a daemon with more than fits keeps
//! nothing, and its clients come back as after a crash ([`crate::resume`]).

use super::state::State;
use super::{Inherited, TakeOverError, VERSION, read_state};
use crate::broker::Broker;
use crate::failpoint::{Failpoint, hit};
use crate::notify;
use crate::snapshot::memory_file;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vmmc::sys::Fd;
use vmmc::sys::activation::Passed;

/// Name of the state in the store; after it the version of the handover and the number of the other
/// descriptors.
const STATE: &str = "vmmcd-state-";
/// Most bytes of all names together; the kernel takes 128 KiB in one variable.
const MAX_NAMES: usize = 120_000;
/// Descriptors between two confirmations: the kernel bounds those that are under way.
const BATCH: usize = 64;
/// How long the service manager may take for a batch.
const PATIENCE: Duration = Duration::from_secs(10);

fn name_of(slot: usize) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let (mut name, mut rest) = (Vec::new(), slot);
    loop {
        name.extend(DIGITS.get(rest % 36));
        rest /= 36;
        if rest == 0 {
            break;
        }
    }
    name.push(b'v');
    name.iter().rev().map(|&byte| byte as char).collect()
}

fn slot_of(name: &str) -> Option<usize> {
    usize::from_str_radix(name.strip_prefix('v')?, 36).ok()
}

/// Why what a service manager kept is of no use. A daemon then starts with nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The last daemon ended before it had stored everything.
    #[error(
        "the service manager's store holds {count} descriptors and no state: the last vmmcd was killed while it stored; clients come back by themselves"
    )]
    NoState {
        /// How many there are.
        count: usize,
    },
    /// Of another version of vmmcd.
    #[error(
        "the stored state has version {theirs}, this vmmcd takes {ours}; clients come back by themselves"
    )]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Descriptors are missing.
    #[error(
        "the service manager's store lacks descriptor {slot} of {count}; raise FileDescriptorStoreMax=; clients come back by themselves"
    )]
    Incomplete {
        /// The first one that is missing.
        slot: usize,
        /// How many there should be.
        count: usize,
    },
    /// The state itself makes no sense.
    #[error("the stored state cannot be read ({0}); clients come back by themselves")]
    Unreadable(String),
}

/// Whether a descriptor that was passed is one of ours, from the store.
#[must_use]
pub fn is_stored(passed: &Passed) -> bool {
    passed.name.starts_with(STATE) || slot_of(&passed.name).is_some()
}

/// Puts together what the store kept. The store is emptied at once: what cannot be used, or brings
/// the daemon down, is not there a second time.
///
/// # Errors
/// When it is incomplete or of another version: start with nothing, clients come back.
pub fn take_stored(passed: Vec<Passed>, listener: Option<Fd>) -> Result<Inherited, StoreError> {
    let (mut state, mut fds, mut listens) = (None, BTreeMap::new(), true);
    for Passed { name, fd } in passed {
        listens = listens && notify::send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
        if let Some(numbers) = name.strip_prefix(STATE) {
            state = Some((numbers.to_owned(), fd));
        } else if let Some(slot) = slot_of(&name) {
            fds.insert(slot, Arc::new(fd));
        }
    }
    let (numbers, blob) = state.ok_or(StoreError::NoState { count: fds.len() })?;
    let mut numbers = numbers.split('-').map(|it| it.parse::<usize>().unwrap_or(0));
    let (theirs, count) = (numbers.next().unwrap_or(0) as u32, numbers.next().unwrap_or(0));
    if theirs != VERSION {
        return Err(StoreError::Version { ours: VERSION, theirs });
    }
    let unreadable = |error: TakeOverError| StoreError::Unreadable(error.to_string());
    let state: State = read_state(&blob).map_err(unreadable)?;
    if let Some(listener) = listener {
        // The service manager may have made the socket anew.
        fds.insert(state.listener.slot(), Arc::new(listener));
    }
    match (0..count).find(|slot| !fds.contains_key(slot)) {
        Some(slot) => Err(StoreError::Incomplete { slot, count }),
        None => Ok(Inherited { state, fds: fds.into_values().map(Some).collect(), taken: None }),
    }
}

impl Broker {
    /// Gives everything to the service manager to keep. `true` when it has all of it: this process must
    /// not touch a client any more.
    pub(crate) fn store(&mut self) -> bool {
        let size = notify::store_size();
        if size == 0 {
            return false;
        }
        // They are for statistics alone, and not worth their places.
        self.links.values_mut().for_each(|link| link.segment = None);
        match self.try_store(size) {
            Ok(count) => {
                tracing::info!(descriptors = count, "the service manager keeps everything");
                true
            }
            Err(why) => {
                tracing::warn!(%why, "nothing is kept over a restart; clients will come back");
                false
            }
        }
    }

    fn try_store(&self, size: usize) -> Result<usize, String> {
        let (state, fds) = self.state();
        let names: Vec<String> = (0..fds.len()).map(name_of).collect();
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if fds.len() + 1 > size || bytes > MAX_NAMES {
            return Err(format!(
                "{} descriptors are more than the service manager keeps ({size}); \
                 raise FileDescriptorStoreMax= and --fd-store",
                fds.len()
            ));
        }
        let blob = postcard::to_stdvec(&state).map_err(|error| error.to_string())?;
        let blob = memory_file("vmmcd-state", &blob).map_err(|errno| errno.to_string())?;
        let told =
            |errno: rustix::io::Errno| format!("the service manager does not listen: {errno}");
        for (batch, names) in fds.chunks(BATCH).zip(names.chunks(BATCH)) {
            for (fd, name) in batch.iter().zip(names) {
                notify::store(name, fd).map_err(told)?;
            }
            notify::barrier(PATIENCE).map_err(told)?;
            hit(Failpoint::StoreHalfSent);
        }
        notify::store(&format!("{STATE}{VERSION}-{}", fds.len()), &blob).map_err(told)?;
        notify::barrier(PATIENCE).map_err(told)?;
        Ok(fds.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_lead_back_to_their_place() {
        for slot in [0, 1, 35, 36, 1295, 1296, 24_000, 46_655] {
            let name = name_of(slot);
            assert_eq!(slot_of(&name), Some(slot));
            assert!(name.len() <= 4, "{name}");
        }
        assert_eq!(slot_of("vmmcd.socket"), None);
        assert!(MAX_NAMES < 128 * 1024 - "LISTEN_FDNAMES=".len() - 64);
    }
}
