//! What can go wrong, one enum per operation, typed from end to end.

use crate::name::BadName;
use std::borrow::Cow;
use std::time::Duration;
use vmmc::CloseReason;
use vmmc::control::message::Refusal;
use vmmc::error::Closed;
use vmmc::error::{BindError, ExportError, ImportError, RegionError, SendError, WaitError};
use vmmc::mem::OutOfBounds;
use xdr::{DecodeError, EncodeError};

/// What a handler answers when it has no answer: a number that the interface gives a meaning, and
/// a text for people. Both reach the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault {number}: {text}")]
pub struct Fault {
    number: u32,
    text: Cow<'static, str>,
}

impl Fault {
    /// The handler dropped the call without a reply.
    pub const DROPPED: u32 = u32::MAX;
    /// The handler panicked.
    pub const PANICKED: u32 = u32::MAX - 1;
    /// The handler met bulk data that is none, or left a block's bounds.
    pub const BULK: u32 = u32::MAX - 2;
    /// The handler failed without saying more.
    pub const FAILED: u32 = u32::MAX - 3;
    /// Longest text in bytes; longer ones are cut.
    pub const TEXT_MAX: usize = 200;

    /// A fault.
    #[must_use]
    pub const fn new(number: u32, text: &'static str) -> Fault {
        Fault { number, text: Cow::Borrowed(text) }
    }

    /// A fault whose text was made at run time.
    #[must_use]
    pub fn with_text(number: u32, text: String) -> Fault {
        Fault { number, text: Cow::Owned(text) }
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Why there is no binding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No service, or no node, can have that name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Nobody serves that name, or not for us.
    #[error("service {service:?}: {}", in_words(source))]
    Service {
        /// Name of the service, as the client gave it.
        service: String,
        /// What the import of its door answered.
        source: ImportError,
    },
    /// The server has no such program.
    #[error("the server at {service:?} has no program {program:#x}; is it another service's name?")]
    UnknownProgram {
        /// Name of the service.
        service: String,
        /// The program asked for.
        program: u32,
    },
    /// The server has other versions of the program.
    #[error(
        "the server at {service:?} has no version {version} of program {program:#x}, but {}; generate client and server \
         from the same interface",
        if lowest == highest { format!("version {lowest}") } else {
            format!("others, the lowest {lowest} and the highest {highest}")
        }
    )]
    VersionMismatch {
        /// Name of the service.
        service: String,
        /// The program asked for.
        program: u32,
        /// The version asked for.
        version: u32,
        /// Lowest version it has.
        lowest: u32,
        /// Highest version it has.
        highest: u32,
    },
    /// The server was built with another version of this library's buffers.
    #[error(
        "the server's buffers are of layout {theirs}, ours are {ours}; build both with one version of shrimp-rpc"
    )]
    LayoutMismatch {
        /// Our version.
        ours: u32,
        /// The server's.
        theirs: u32,
    },
    /// The server allows no more bindings.
    #[error(
        "the server at {service:?} has {max} bindings, as many as it allows; close some, or raise its \
         `bindings_max` (SHRIMP_RPC_BINDINGS)"
    )]
    TooManyBindings {
        /// Name of the service.
        service: String,
        /// How many it allows.
        max: u32,
    },
    /// The server allows no more bindings of this process.
    #[error(
        "the server at {service:?} has {max} bindings of this process, as many as it allows to one; share a \
         binding among threads, close some, or raise its `bindings_each` (SHRIMP_RPC_BINDINGS_EACH)"
    )]
    TooManyOfProcess {
        /// Name of the service.
        service: String,
        /// How many it allows.
        max: u32,
    },
    /// More of this process waited at the server's door than it lets wait.
    #[error(
        "{max} others of this process were waiting at {service:?} to be bound, as many as it lets wait; share a binding \
         among threads, bind fewer at a time, or raise its `bindings_each` (SHRIMP_RPC_BINDINGS_EACH)"
    )]
    TooManyWaiting {
        /// Name of the service.
        service: String,
        /// How many it lets wait.
        max: u32,
    },
    /// The server has no memory left for replies to another node.
    #[error(
        "the server at {service:?} has no memory left for replies to another node: close bindings, ask for a shorter \
         buffer, or raise its `pieces_max` (SHRIMP_RPC_PIECES)"
    )]
    NoRoom {
        /// Name of the service.
        service: String,
    },
    /// The server is ending, or ended before it answered.
    #[error(
        "the server at {service:?} is ending, or ended before it answered; bind again when it is back"
    )]
    Ending {
        /// Name of the service.
        service: String,
    },
    /// The server could not do its half.
    #[error(
        "the server at {service:?} could not make a buffer for this binding: its process is out of file descriptors \
         (`ulimit -n`) or memory, or at a limit of its vmmcd; close bindings, or raise that"
    )]
    Failed {
        /// Name of the service.
        service: String,
    },
    /// Another thread gave the call up that bound, by [`crate::client::Canceller`].
    #[error("binding was cancelled by another thread")]
    Cancelled,
    /// The server answered what no server answers.
    #[error("the server at {service:?} broke the protocol: {what}")]
    Protocol {
        /// Name of the service.
        service: String,
        /// What.
        what: &'static str,
    },
    /// No answer in time.
    #[error("the server at {service:?} did not answer within {after:?}; is it stuck?")]
    TimedOut {
        /// Name of the service.
        service: String,
        /// How long we waited.
        after: Duration,
    },
    /// The daemon is not there.
    #[error(transparent)]
    Daemon(#[from] vmmc::control::connect::ConnectError),
    /// Our half could not be made, or ended.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl ConnectError {
    /// Whether more time might have been enough: the service was not there, or did not answer.
    pub(crate) fn is_for_time(&self) -> bool {
        match self {
            ConnectError::TimedOut { .. } => true,
            ConnectError::Service { source: ImportError::Refused(refusal), .. } => {
                matches!(refusal, Refusal::NoSuchExport { .. })
            }
            _ => false,
        }
    }

    /// Whether the server has as many bindings as it wants, or as much memory in use for them.
    pub(crate) fn is_for_places(&self) -> bool {
        matches!(
            self,
            ConnectError::TooManyBindings { .. }
                | ConnectError::TooManyOfProcess { .. }
                | ConnectError::TooManyWaiting { .. }
                | ConnectError::NoRoom { .. }
        )
    }
}

/// What went wrong below us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Not exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Not imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Not bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The head of another node's buffer was not read.
    #[error(transparent)]
    Read(#[from] vmmc::error::ReadError),
    /// No notification was sent.
    #[error(transparent)]
    Notify(#[from] vmmc::error::SendNotifyError),
    /// Waiting failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Our own lengths disagree with the buffers.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// No thread.
    #[error("no thread could be made: {0}")]
    Thread(std::io::ErrorKind),
    /// The thread that bound for a future panicked: by a fault of this library's, whose words are where panics of this process go.
    #[error("the thread that was made to bind panicked")]
    Panicked,
}

impl From<vmmc::error::FlagError> for TransportError {
    fn from(error: vmmc::error::FlagError) -> Self {
        match error {
            vmmc::error::FlagError::OutOfBounds(error) => error.into(),
            vmmc::error::FlagError::NotGranted(error) => TransportError::Send(error.into()),
            vmmc::error::FlagError::Forked(error) => TransportError::Send(error.into()),
            _ => TransportError::Wait(WaitError::TimedOut { after: Duration::ZERO }),
        }
    }
}

/// Why a call has no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server's process died, or its service ended, during the call, which it may or may not have
    /// carried out. The next call binds anew.
    #[error(
        "the server, process {}, {}; the call may or may not have been carried out, and the next one binds anew",
        closed.peer.pid, how_it_ended(closed.reason)
    )]
    ServerGone {
        /// Which link ended, and why.
        closed: Closed,
    },
    /// Another thread gave the call up, by [`crate::client::Canceller`].
    #[error("the call was cancelled by another thread{}", if *.sent {
        "; the server may have carried it out all the same"
    } else {
        " before it was sent"
    })]
    Cancelled {
        /// Whether the server may have carried it out.
        sent: bool,
    },
    /// No reply in time. If it was sent, the server was told that nobody waits; it may or may not carry the call out.
    #[error("no reply within {after:?}; {}", match unbound {
        _ if *.sent => Cow::Borrowed("the server was told to give up"),
        Some(why) => Cow::Owned(unbound_in_words(why)),
        None => Cow::Borrowed(
            "nothing was sent: other calls had all buffers, or none could be bound in that time"
        ),
    })]
    TimedOut {
        /// How long we waited.
        after: Duration,
        /// Whether the server may have carried it out.
        sent: bool,
        /// What binding met, where what the call had left of its time was too little for it.
        unbound: Option<Box<ConnectError>>,
    },
    /// There was no binding, and none could be made.
    #[error(transparent)]
    Connect(Box<ConnectError>),
    /// The program has no such procedure.
    #[error(
        "the server's program has no procedure {procedure}; generate client and server from the same interface"
    )]
    UnknownProcedure {
        /// The procedure called.
        procedure: u32,
    },
    /// The server could not decode the arguments.
    #[error("the server refused the arguments: {text}")]
    BadArguments {
        /// The server's words.
        text: String,
    },
    /// The server could not encode the results.
    #[error("the server could not encode its results: {text}")]
    BadResults {
        /// The server's words.
        text: String,
    },
    /// The handler answered that it has no answer.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The arguments cannot be encoded. Nothing was sent.
    #[error("the arguments do not encode: {0}")]
    Encode(#[from] EncodeError),
    /// The results do not decode.
    #[error("the reply does not decode: {0}")]
    Decode(#[from] DecodeError),
    /// Longer than this side allows, or the server.
    #[error("{what} of {len} bytes is longer than {max} allowed; raise `call_max` on that side")]
    TooLong {
        /// What is.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The longest allowed in bytes.
        max: usize,
    },
    /// The server keeps as much of calls and replies in pieces as it allows. See [`NoRoom`].
    #[error("the server has no room: {text}")]
    NoRoom {
        /// The server's words.
        text: String,
    },
    /// The service is ending.
    #[error("the server is ending; call again when it is back")]
    ServerEnding,
    /// The server wrote what no server writes. The binding is dropped.
    #[error("the server broke the protocol: {what}")]
    Protocol {
        /// What.
        what: &'static str,
    },
    /// Below us.
    #[error(transparent)]
    Transport(Box<TransportError>),
}

impl From<ConnectError> for CallError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Cancelled => CallError::Cancelled { sent: false },
            error => CallError::Connect(Box::new(error)),
        }
    }
}

impl From<TransportError> for CallError {
    fn from(error: TransportError) -> Self {
        CallError::Transport(Box::new(error))
    }
}

impl CallError {
    /// Whether the server cannot have begun with the call, so that it is safe to make it again.
    #[must_use]
    pub fn was_not_sent(&self) -> bool {
        matches!(
            self,
            CallError::Connect(_)
                | CallError::Encode(_)
                | CallError::TimedOut { sent: false, .. }
                | CallError::Cancelled { sent: false }
        )
    }

    /// The same, of a call that waited for its lane.
    pub(crate) fn before_it_was_sent(self) -> CallError {
        match self {
            CallError::TimedOut { after, unbound, .. } => {
                CallError::TimedOut { after, sent: false, unbound }
            }
            CallError::Cancelled { .. } => CallError::Cancelled { sent: false },
            other => other,
        }
    }

    pub(crate) fn from_wait(error: WaitError) -> CallError {
        match error {
            WaitError::TimedOut { after } => {
                CallError::TimedOut { after, sent: true, unbound: None }
            }
            WaitError::Closed(closed) => CallError::ServerGone { closed },
            error => TransportError::from(error).into(),
        }
    }

    pub(crate) fn from_send(error: SendError) -> CallError {
        match error {
            SendError::Closed(closed) => CallError::ServerGone { closed },
            error => TransportError::from(error).into(),
        }
    }
}

impl From<OutOfBounds> for CallError {
    fn from(error: OutOfBounds) -> Self {
        TransportError::from(error).into()
    }
}

/// A server has no memory for another call or reply in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes in pieces beside the {used} of {whose} are more than {max}; \
     finish some, or raise the server's `pieces_max` (SHRIMP_RPC_PIECES)"
)]
pub struct NoRoom {
    /// Bytes of the call or reply.
    pub len: usize,
    /// Bytes that others take.
    pub used: usize,
    /// How many bytes may be taken.
    pub max: usize,
    /// By whom.
    pub whose: &'static str,
}

/// Why a handler's call was not answered in the ordinary way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The program has no such procedure.
    #[error("no procedure {0}")]
    UnknownProcedure(u32),
    /// The arguments do not decode.
    #[error("the arguments do not decode: {0}")]
    BadArguments(#[from] DecodeError),
    /// The handler found the arguments wrong.
    #[error("{0}")]
    Refused(String),
    /// The results do not encode.
    #[error("the results do not encode: {0}")]
    BadResults(#[from] EncodeError),
    /// The handler's results are none that can be sent, in words.
    #[error("{0}")]
    RefusedResults(String),
    /// The handler has no answer.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The reply could not be sent.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

/// Why a reply was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The client has gone.
    #[error("the client has gone: {0}")]
    ClientGone(Closed),
    /// The call was answered already.
    #[error("this call was answered already")]
    Answered,
    /// The results do not encode.
    #[error("the results do not encode: {0}")]
    Encode(#[from] EncodeError),
    /// Longer than the server allows.
    #[error("a reply of {len} bytes is longer than {max} allowed; raise the server's `call_max`")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest allowed.
        max: usize,
    },
    /// Too much is kept for clients that do not fetch it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// INOUT data must keep its length.
    #[error("INOUT block {index} has {expected} bytes, {given} were given")]
    InoutLength {
        /// Which block of the call.
        index: usize,
        /// Its bytes.
        expected: usize,
        /// The bytes given.
        given: usize,
    },
    /// Below us.
    #[error(transparent)]
    Transport(Box<TransportError>),
}

impl From<TransportError> for ReplyError {
    fn from(error: TransportError) -> Self {
        ReplyError::Transport(Box::new(error))
    }
}

impl From<SendError> for ReplyError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed(closed) => ReplyError::ClientGone(closed),
            error => TransportError::from(error).into(),
        }
    }
}

impl From<OutOfBounds> for ReplyError {
    fn from(error: OutOfBounds) -> Self {
        TransportError::from(error).into()
    }
}

/// Why a service does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The daemon is not there.
    #[error(transparent)]
    Daemon(#[from] vmmc::control::connect::ConnectError),
    /// The name is taken, or memory is short.
    #[error("service {service:?}: {source}")]
    Door {
        /// Name of the service.
        service: String,
        /// What the export of its door answered.
        source: TransportError,
    },
    /// No service can have that name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Nothing to serve.
    #[error("a server needs at least one program: call `program`")]
    NoProgram,
    /// Two services of one program and version.
    #[error("program {program:#x} version {version} was added twice")]
    Twice {
        /// The program.
        program: u32,
        /// The version.
        version: u32,
    },
    /// Below us.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// Why a door was not imported, to somebody who knows of services alone.
fn in_words(source: &ImportError) -> Cow<'static, str> {
    match source {
        ImportError::Refused(Refusal::NoSuchExport { waited_ms, .. }) => Cow::Owned(format!(
            "nobody serves it (waited {waited_ms} ms); start its server, or wait longer \
             (SHRIMP_RPC_CONNECT_MS)"
        )),
        other => Cow::Owned(other.to_string()),
    }
}

/// The same to somebody whose call had too little time for more.
fn unbound_in_words(why: &ConnectError) -> String {
    match why {
        ConnectError::Service {
            service,
            source: ImportError::Refused(Refusal::NoSuchExport { .. }),
        } => {
            format!(
                "nothing was sent: nobody serves {service:?}; start its server, or give the call more time"
            )
        }
        why => format!("nothing was sent: {why}"),
    }
}

/// What a server did whose link ended so.
fn how_it_ended(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::PeerDied => "died",
        CloseReason::Unexported | CloseReason::Unimported => "ended its service, or this binding",
        CloseReason::Unreachable => "cannot be reached: the connection to its node is lost",
        CloseReason::PeerFault => "broke the protocol",
        CloseReason::Disabled => "kept a page of its buffer disabled for too long",
    }
}

/// Whether a link ended because its process died, rather than in order.
#[must_use]
pub fn died(closed: &Closed) -> bool {
    closed.reason == CloseReason::PeerDied
}
