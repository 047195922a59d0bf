//! What can go wrong, one enum per operation. Each message names the value, the reason, and
//! what to do about it (G10).

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
    "this needs the right to {needed}, the import has {granted}; ask for it with `rights` when importing"
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
        CloseReason::Disabled => {
            "it kept a page disabled for longer than its node holds packets back"
        }
    }
}

/// The error of one operation: its own reasons, and those that it shares with others, which it passes
/// on as they are.
macro_rules! operation_error {
    ($(#[$about:meta])* $name:ident from $($rest:tt)*) => {
        operation_error! { $(#[$about])* $name {} or from $($rest)* }
    };
    ($(#[$about:meta])* $name:ident { $($own:tt)* } or from {
        $($(#[$when:meta])* $shared:ident($cause:ty)),+ $(,)?
    }) => {
        $(#[$about])*
        #[derive(Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum $name {
            $($own)*
            $($(#[$when])* #[error(transparent)] $shared(#[from] $cause)),+
        }
    };
}

/// The daemon did not do its part.
#[derive(Clone, Debug, thiserror::Error)]
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
}

operation_error! {
    /// Why no region was made.
    #[derive(Clone, Copy, PartialEq, Eq)]
    RegionError {
        /// Zero, or more than an address space.
        #[error("a region of {len} bytes cannot be; give at least 1 byte, and less than there are addresses")]
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
    } or from {
        /// Out of memory or descriptors.
        System(SystemError),
    }
}

operation_error! {
    /// Why nothing was exported. The region is dropped; adopted memory keeps its contents.
    ExportError {
        /// No name was given.
        #[error("an export needs a name: call `name` with a text or a number")]
        NoName,
    } or from {
        /// The daemon refused: name taken, quota, length ...
        Refused(Refusal),
        /// The daemon is not there.
        Daemon(DaemonError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why nothing was imported. No mapping is left behind.
    #[derive(Clone)]
    ImportError {
        /// The daemon refused: no such export in time, rights, token, quota ...
        #[error("{0}")]
        Refused(Refusal),
        /// The pending import was cancelled.
        #[error("the import was cancelled before the name was exported")]
        Cancelled,
        /// The export's memory is not what it should be; its exporter is faulty or hostile.
        #[error("the exporter's memory is not acceptable: {0}; restart the exporter")]
        BadSegment(#[from] SegmentError),
    } or from {
        /// The daemon is not there.
        Daemon(DaemonError),
        /// No memory, address space or descriptors.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

impl From<Refusal> for ImportError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Cancelled => ImportError::Cancelled,
            refusal => ImportError::Refused(refusal),
        }
    }
}

operation_error! {
    /// Why a deliberate update did not happen, be it of bytes or of a flag word. Nothing was written then.
    #[derive(Clone, Copy, PartialEq, Eq)]
    SendError {
        /// The import is strict ([`crate::ImportBuilder::strict`]), and this is not of whole words.
        #[error(
            "{what} {value} is not a multiple of {align}, and this import is strict; send whole words, or open it without `strict`"
        )]
        Misaligned {
            /// The offset, the length, or the address of the source.
            what: &'static str,
            /// Its value.
            value: usize,
            /// Length of a word in bytes.
            align: usize,
        },
    } or from {
        /// The bytes do not fit the buffer.
        OutOfBounds(OutOfBounds),
        /// The import may not write.
        NotGranted(NotGranted),
        /// The other side has gone or is going.
        Closed(Closed),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why a notification was not sent, waiting for room included.
    #[derive(Clone, Copy, PartialEq, Eq)]
    SendNotifyError from {
        /// As for the data.
        Send(SendError),
        /// Waiting for room in the peer's notification queue failed.
        System(SystemError),
    }
}

operation_error! {
    /// Why a send with a notification, without waiting, did not happen.
    #[derive(Clone, Copy, PartialEq, Eq)]
    TrySendError {
        /// The peer's notification queue is full.
        #[error(
            "the peer has not taken its last 128 notifications; try again, or use the waiting form"
        )]
        WouldBlock,
    } or from {
        /// As for the data.
        Send(SendError),
    }
}

operation_error! {
    /// Why a send was not started. The source is dropped.
    #[derive(Clone, Copy, PartialEq, Eq)]
    StartSendError from {
        /// As for a send that is waited for.
        Send(SendError),
        /// No helper thread could be made.
        System(SystemError),
    }
}

operation_error! {
    /// Why bytes of a binding were not copied.
    #[derive(Clone, Copy, PartialEq, Eq)]
    AccessError from {
        /// The bytes do not fit the binding.
        OutOfBounds(OutOfBounds),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why a remote read did not happen.
    #[derive(Clone, Copy, PartialEq, Eq)]
    ReadError from {
        /// The bytes do not fit the buffer.
        OutOfBounds(OutOfBounds),
        /// The import may not read.
        NotGranted(NotGranted),
        /// The other side has gone or is going.
        Closed(Closed),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why there is no flag word at an offset.
    #[derive(Clone, Copy, PartialEq, Eq)]
    FlagError from {
        /// Outside the buffer, or not aligned.
        OutOfBounds(OutOfBounds),
        /// The import has no right that a flag is of use with.
        NotGranted(NotGranted),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why a wait ended without what it waited for.
    #[derive(Clone, Copy, PartialEq, Eq)]
    WaitError {
        /// It did not come in time.
        #[error("nothing within {after:?}; is the other side stuck?")]
        TimedOut {
            /// How long we waited.
            after: Duration,
        },
    } or from {
        /// The other side is gone.
        Closed(Closed),
        /// The word may not be read through this import.
        NotGranted(NotGranted),
        /// Sleeping failed.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why memory is not tracked.
    #[derive(Clone, Copy, PartialEq, Eq)]
    TrackError {
        /// What is compared must divide a page.
        #[error("a unit of {unit} bytes; give a power of two, at most a page of {page} bytes")]
        Unit {
            /// What was asked for.
            unit: usize,
            /// The page size.
            page: usize,
        },
        /// A thread that never waits would do nothing but look.
        #[error("an interval of 0 s; give how long to wait between looks, or `None` to look when asked")]
        Interval,
    } or from {
        /// The memory does not fit the buffer.
        OutOfBounds(OutOfBounds),
        /// The import may not write.
        NotGranted(NotGranted),
        /// The other side has gone or is going.
        Closed(Closed),
        /// The kernel cannot, or did not allow it.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

/// Memory that is not tracked, as it was, and why.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotTracked {
    /// The memory.
    pub memory: crate::Region,
    /// Why.
    pub reason: TrackError,
}

operation_error! {
    /// Why the end of a tracking did not just give the memory back.
    StopError {
        /// Stores were not sent. The tracking has ended nevertheless, and the memory is as it was.
        #[error("stores to the memory were not sent: {reason}")]
        NotSent {
            /// The memory.
            memory: crate::Region,
            /// Why.
            reason: PropagateError,
        },
    } or from {
        /// Children could not be allowed to inherit the memory again. It stays mapped, of no further use.
        System(SystemError),
        /// Called in a forked child, which does not have the memory.
        Forked(Forked),
    }
}

operation_error! {
    /// Why stores to tracked memory were not sent.
    #[derive(Clone, Copy, PartialEq, Eq)]
    PropagateError from {
        /// They could not be.
        Send(SendError),
        /// They could not be found.
        System(SystemError),
    }
}

operation_error! {
    /// Why nothing was bound.
    #[derive(Clone, Copy, PartialEq, Eq)]
    BindError {
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
        /// The export is another node's: there are no pages to share.
        #[error(
            "an export of another node cannot be bound: its pages are not this machine's; write to it by `Import::auto_update`"
        )]
        OtherNode,
    } or from {
        /// The range does not fit the buffer, or is empty.
        OutOfBounds(OutOfBounds),
        /// The import may not bind.
        NotGranted(NotGranted),
        /// The other side has gone or is going.
        Closed(Closed),
        /// No address space.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why an unexport did not give the memory back.
    #[derive(Clone, Copy, PartialEq, Eq)]
    UnexportError from {
        /// No memory for the fresh pages: the importers were told to stop and the name is withdrawn,
        /// but a hostile one may still reach the old pages, so they are left mapped and unused.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why unbinding did not give the memory.
    #[derive(Clone, Copy, PartialEq, Eq)]
    UnbindError from {
        /// Memory is short; the bound memory is unmapped.
        System(SystemError),
        /// Called in a forked child, which does not have the memory; the parent keeps its binding.
        Forked(Forked),
    }
}

operation_error! {
    /// Why an import stays.
    UnimportError {
        /// Bindings of it are alive.
        #[error("{count} bindings of this import are alive; unbind or drop them first")]
        Bound {
            /// How many.
            count: usize,
            /// The import.
            import: crate::Import,
        },
    } or from {
        /// Called in a forked child.
        Forked(Forked),
    }
}

impl From<SendNotifyError> for PropagateError {
    fn from(error: SendNotifyError) -> PropagateError {
        match error {
            SendNotifyError::Send(error) => error.into(),
            SendNotifyError::System(error) => error.into(),
        }
    }
}

impl From<AccessError> for SendError {
    fn from(error: AccessError) -> SendError {
        match error {
            AccessError::OutOfBounds(error) => error.into(),
            AccessError::Forked(error) => error.into(),
        }
    }
}

operation_error! {
    /// Why notifications stay blocked.
    #[derive(Clone, Copy, PartialEq, Eq)]
    UnblockError {
        /// `SBL_ENotInHandler`: in a handler, the automatic block cannot be undone.
        #[error("notifications stay blocked until the handler returns; unblock only what it blocked")]
        InHandler,
    } or from {
        /// Called in a forked child.
        Forked(Forked),
    }
}

operation_error! {
    /// Why no notification was fetched.
    #[derive(Clone, Copy, PartialEq, Eq)]
    FetchError {
        /// The export keeps no queue to fetch from.
        #[error("the export was not opened with `queue`, so there is nothing to fetch from")]
        NoQueue,
    } or from {
        /// The wait for one ended otherwise.
        Wait(WaitError),
    }
}

operation_error! {
    /// Why a wait for a handler to run ended.
    #[derive(Clone, Copy, PartialEq, Eq)]
    WaitDeliveredError {
        /// Waiting in a handler for what only another handler could do.
        #[error("a handler may not wait for a notification: none is delivered until it returns")]
        InHandler,
    } or from {
        /// The wait ended otherwise.
        Wait(WaitError),
    }
}

operation_error! {
    /// Why there is no list.
    ListError from {
        /// The daemon refused.
        Refused(Refusal),
        /// The daemon is not there.
        Daemon(DaemonError),
        /// Reading its answer failed.
        System(SystemError),
        /// Called in a forked child.
        Forked(Forked),
    }
}

pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> SystemError {
    move |errno| SystemError { call, errno }
}
