//! What can go wrong, one enum per operation. Each message names the value, the reason, and
//! what to do about it (G10).

use crate::control::connect::ConnectError;
use crate::control::message::{CloseReason, Refusal};
use crate::id::{PeerInfo, Rights};
use crate::mem::OutOfBounds;
use crate::sys::memfd::SegmentError;
use std::time::Duration;

/// The handle was made before a `fork`; this is the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this handle belongs to the parent process; a forked child must connect and import for itself"
)]
pub struct Forked;

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {errno}{}", hint(*errno))]
pub struct SystemError {
    /// Which call, and for what.
    pub call: &'static str,
    /// How it failed.
    pub errno: rustix::io::Errno,
}

/// What to do about a system call that failed in the usual ways; empty for others.
pub(crate) fn hint(errno: rustix::io::Errno) -> &'static str {
    use rustix::io::Errno;
    match errno {
        Errno::MFILE => "; raise the limit of open files (ulimit -n), or close some",
        Errno::NFILE => "; the machine is out of open files: raise fs.file-max",
        Errno::NOMEM | Errno::NOSPC => {
            "; memory is short, or a limit on it or on mappings (vm.max_map_count) is reached"
        }
        Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP => {
            "; the kernel lacks it, or a container's seccomp profile forbids it: `shrimp doctor` tells"
        }
        Errno::AGAIN => "; a limit on processes and threads is reached (ulimit -u)",
        _ => "",
    }
}

/// A right that the import does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this needs {needed:?}, the import has {granted:?}; ask for it with `rights` when importing"
)]
pub struct NotGranted {
    /// What the operation needs.
    pub needed: Rights,
    /// What the import was opened with.
    pub granted: Rights,
}

/// Why a link is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link to process {} is closed: {}; open a new import when the peer is back", peer.pid, reason_text(*reason))]
pub struct Closed {
    /// Who is at the other end.
    pub peer: PeerInfo,
    /// Why.
    pub reason: CloseReason,
}

fn reason_text(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Unexported => "it withdrew the export",
        CloseReason::Unimported => "the import was dropped",
        CloseReason::PeerDied => "it died",
        CloseReason::PeerFault => "it broke the protocol",
        CloseReason::Unreachable => "the connection to its node is lost",
    }
}

/// The daemon did not do its part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// It is gone, and did not come back in time.
    #[error(
        "the daemon went away and did not return within {waited:?}; start it again: `shrimp daemon start`"
    )]
    Gone {
        /// How long we waited.
        waited: Duration,
    },
    /// Its answer makes no sense.
    #[error("the daemon answered {what}; run the same version of vmmcd and of the program")]
    Nonsense {
        /// What.
        what: &'static str,
    },
    /// It could not be reached again.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Why no region was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Zero, or more than an address space.
    #[error("a region of {len} bytes cannot be; give at least 1 byte")]
    BadLength {
        /// The length asked for.
        len: usize,
    },
    /// Existing memory must begin at a page and consist of whole pages.
    #[error("memory at {address:#x} of {len} bytes is not whole pages of {page} bytes; align it")]
    Misaligned {
        /// Where it begins.
        address: usize,
        /// How long it is.
        len: usize,
        /// The page size.
        page: usize,
    },
    /// Memory is exported or bound once at a time: receive buffers do not overlap (V7).
    #[error("memory at {address:#x} is exported or bound already; unexport or unbind that first")]
    InUse {
        /// Where what has it begins.
        address: usize,
    },
    /// Out of memory or descriptors.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Why nothing was exported. The region is dropped; adopted memory keeps its contents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// No name was given.
    #[error("an export needs a name: call `name` with a text or a number")]
    NoName,
    /// The daemon refused: name taken, quota, length ...
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The daemon is not there.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why nothing was imported. No mapping is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The daemon refused: no such export in time, rights, token, quota ...
    #[error(transparent)]
    Refused(Refusal),
    /// The pending import was cancelled.
    #[error("the import was cancelled before the name was exported")]
    Cancelled,
    /// The export's memory is not what it should be; its exporter is faulty or hostile.
    #[error("the exporter's memory is not acceptable: {0}; restart the exporter")]
    BadSegment(#[from] SegmentError),
    /// The daemon is not there.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// No memory, address space or descriptors.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl From<Refusal> for ImportError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Cancelled => ImportError::Cancelled,
            refusal => ImportError::Refused(refusal),
        }
    }
}

/// Why a deliberate update did not happen, be it of bytes or of a flag word. Nothing was written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The bytes do not fit the buffer.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The import may not write.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The other side has gone or is going.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a notification was not sent, waiting for room included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendNotifyError {
    /// As for the data.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Waiting for room in the peer's notification queue failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Why a send with a notification, without waiting, did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// As for the data.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The peer's notification queue is full.
    #[error(
        "the peer has not taken its last 128 notifications; try again, or use the waiting form"
    )]
    WouldBlock,
}

/// Why a send was not started. The source is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartSendError {
    /// As for a send that is waited for.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No helper thread could be made.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Why bytes of a binding were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The bytes do not fit the binding.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a remote read did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes do not fit the buffer.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The import may not read.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The other side has gone or is going.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why there is no flag word at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// Outside the buffer, or not aligned.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The import has no right that a flag is of use with.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It did not come in time.
    #[error("nothing within {after:?}; is the other side stuck?")]
    TimedOut {
        /// How long we waited.
        after: Duration,
    },
    /// The other side is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The word may not be read through this import.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// Sleeping failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why nothing was bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The range does not fit the buffer, or is empty.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// Pages are bound whole.
    #[error("a binding must begin at a multiple of the page size, {page} bytes, not at {offset}")]
    Misaligned {
        /// Where it should have begun.
        offset: usize,
        /// The page size.
        page: usize,
    },
    /// Existing memory is bound in whole pages, on both sides.
    #[error(
        "existing memory at {address:#x} of {len} bytes is not whole pages of {page} bytes; align it, or use `bind`, which finds a place"
    )]
    MisalignedMemory {
        /// Where the memory begins.
        address: usize,
        /// How long the range is.
        len: usize,
        /// The page size.
        page: usize,
    },
    /// A local page has one destination at a time (H2).
    #[error("memory at {address:#x} is exported or bound already; unexport or unbind that first")]
    InUse {
        /// Where what has it begins.
        address: usize,
    },
    /// The import may not bind.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The export is another node's: there are no pages to share.
    #[error(
        "an export of another node cannot be bound: its pages are not this machine's; write to it by `Import::auto_update`"
    )]
    OtherNode,
    /// The other side has gone or is going.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// No address space.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why an unexport did not give the memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnexportError {
    /// No memory for the fresh pages: the importers were told to stop and the name is withdrawn,
    /// but a hostile one may still reach the old pages, so they are left mapped and unused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why an import stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnimportError {
    /// Bindings of it are alive.
    #[error("{count} bindings of this import are alive; unbind or drop them first")]
    Bound {
        /// How many.
        count: usize,
        /// The import.
        import: crate::Import,
    },
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl From<AccessError> for SendError {
    fn from(error: AccessError) -> SendError {
        match error {
            AccessError::OutOfBounds(error) => error.into(),
            AccessError::Forked(error) => error.into(),
        }
    }
}

/// Why notifications stay blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnblockError {
    /// `SBL_ENotInHandler`: in a handler, the automatic block cannot be undone.
    #[error("notifications stay blocked until the handler returns; unblock only what it blocked")]
    InHandler,
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why no notification was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The export keeps no queue to fetch from.
    #[error("the export was not opened with `queue`, so there is nothing to fetch from")]
    NoQueue,
    /// The wait for one ended otherwise.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Why a wait for a handler to run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitDeliveredError {
    /// Waiting in a handler for what only another handler could do.
    #[error("a handler may not wait for a notification: none is delivered until it returns")]
    InHandler,
    /// The wait ended otherwise.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The daemon is not there.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Reading its answer failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Called in a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> SystemError {
    move |errno| SystemError { call, errno }
}
