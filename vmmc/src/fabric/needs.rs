//! What a provider must have, one thing after the other, so that a refusal can name the first that is missing.
//!
//! What a provider offers is what `fi_getinfo` says, and it does not say all: `udp` and `shm` announce a queue that nobody can wait for. So
//! opening an endpoint is a proof ([`no_wait`]). And `cxi` announces completion data whether or not its writes have them (issue
//! ofiwg/libfabric#12754): no such thing is needed (`endpoint/notice.rs`).

use super::abi;
use super::domain::QUEUE;
use super::library::{FabricError, InfoList, Wish};
use std::net::IpAddr;

/// Bytes by which the other side is told of a write: its number.
pub(super) const DATA_LEN: usize = 4;
const _: () = assert!(QUEUE == 64, "what `Need::lacking` says");

/// What is needed; each with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// That there is one.
    Name,
    /// Endpoints that reach every other, reliably.
    Datagrams,
    /// Writes into memory of the other side.
    Writes,
    /// Calls by several threads, and that no queue runs over.
    Threads,
    /// The address.
    Address,
    /// Queues of [`QUEUE`] operations.
    Room,
}

impl Need {
    const ALL: [Need; 6] =
        [Need::Name, Need::Datagrams, Need::Writes, Need::Threads, Need::Address, Need::Room];

    /// Bits of `caps`.
    pub(super) fn caps(self) -> u64 {
        match self {
            Need::Name => 0,
            Need::Datagrams => abi::FI_MSG,
            _ => abi::FI_MSG | abi::FI_RMA | abi::FI_WRITE | abi::FI_REMOTE_WRITE,
        }
    }

    /// What a provider is that does not have it, in words.
    fn lacking(self) -> &'static str {
        match self {
            Need::Name => "there is none of that name, or it finds no device",
            Need::Datagrams => {
                "it has no reliable datagrams, FI_EP_RDM, which `;ofi_rxm` behind the name may lay over it"
            }
            Need::Writes => "it has no remote writes, FI_RMA",
            Need::Threads => {
                "it is not for several threads at once, FI_THREAD_SAFE and FI_RM_ENABLED"
            }
            Need::Address => "it has what it takes, and not on that address",
            Need::Room => "it has no queues of 64 operations",
        }
    }
}

/// What a provider that was not found lacks, in words; `has`: whether one is found with a need and all before it.
fn first_missing(has: impl Fn(Need) -> bool) -> &'static str {
    let missing = Need::ALL.into_iter().find(|&need| !has(need));
    missing.map_or("it was not there just now, and is", Need::lacking)
}

/// Why there is no such provider on an address.
pub(super) fn why_not(provider: &str, local: IpAddr) -> FabricError {
    let wish = Wish { queue: QUEUE, ..Wish::default() };
    let has = |need| InfoList::of(need, Some(provider), Some(local), wish).is_ok();
    let why = first_missing(has).to_owned();
    FabricError::Provider { provider: provider.to_owned(), local, why }
}

/// Whether a call that ended with this number is one that the provider does not have.
pub(super) fn is_not_there(code: isize) -> bool {
    [libc::ENOSYS, libc::EOPNOTSUPP, abi::FI_EBADFLAGS]
        .iter()
        .any(|&errno| code == -(errno as isize))
}

/// The refusal of a provider whose writes nobody is told of.
pub(super) fn no_messages(provider: &str, why: String) -> FabricError {
    let missing = "no remote writes with completion data, and no messages";
    FabricError::Unfit { provider: provider.to_owned(), missing, why, remedy: ANOTHER }
}

/// The refusal of a provider by which nobody can sleep until something comes.
pub(super) fn no_wait(provider: &str, why: String) -> FabricError {
    let missing = "no descriptor to wait for completions by";
    FabricError::Unfit { provider: provider.to_owned(), missing, why, remedy: ANOTHER }
}

const ANOTHER: &str = "name another in [fabric] (`shrimp doctor` lists them), or take it out of the cluster files: packets go over TCP then";

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_first_thing_that_is_missing_is_named() {
        let missing = |most: Option<Need>| first_missing(|need| Some(need) <= most);
        for (most, word) in [
            (None, "none of that name"),
            (Some(Need::Name), "FI_EP_RDM"),
            (Some(Need::Datagrams), "FI_RMA"),
            (Some(Need::Writes), "FI_THREAD_SAFE"),
            (Some(Need::Threads), "not on that address"),
            (Some(Need::Address), "no queues"),
            (Some(Need::Room), "just now"),
        ] {
            let text = missing(most);
            assert!(text.contains(word), "{most:?}: {text}");
        }
    }

    /// Of libfabric 1.17 of Debian.
    #[test]
    fn providers_that_are_here_and_do_not_do_say_why() {
        for (provider, local, word) in
            [("nosuch", LOOPBACK, "none of that name"), ("psm2", LOOPBACK, "finds no device")]
        {
            let error = why_not(provider, local).to_string();
            assert!(error.contains(word) && error.contains(provider), "{error}");
            assert!(error.contains("fi_info"), "{error}");
        }
    }

    #[test]
    fn a_write_that_is_not_there_is_told_from_one_that_fails() {
        for errno in [libc::ENOSYS, libc::EOPNOTSUPP, abi::FI_EBADFLAGS] {
            assert!(is_not_there(-(errno as isize)));
        }
        for code in [0, -(libc::EAGAIN as isize), -(libc::ECONNRESET as isize)] {
            assert!(!is_not_there(code));
        }
    }
}
