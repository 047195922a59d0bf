//! The seam between generated Sun RPC stubs and the library that carries their calls.
//!
//! Generated clients call a [`Caller`]; generated dispatchers are [`Program`]s. Neither knows a
//! transport, so both can be tested against each other in memory.

use crate::{Decode, DecodeError, Encode, EncodeError, Sink, Source};

/// Carries calls to one program: a connection, or a test.
pub trait Caller {
    /// What can go wrong: a transport's errors besides those of the codec.
    type Error: From<EncodeError> + From<DecodeError>;

    /// Calls procedure `procedure` and waits for its results. A transport decodes with
    /// `R::decode`, and then expects the end of the message.
    ///
    /// # Errors
    /// Whatever the transport or the codec reports.
    fn call<A: Encode, R: Decode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, Self::Error>;

    /// Sends a call that nothing answers (batching in RFC 5531, section 7.4.1).
    ///
    /// # Errors
    /// As [`Caller::call`].
    fn send<A: Encode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<(), Self::Error>;
}

/// A [`Caller`] whose caller does not wait in the thread.
pub trait AsyncCaller {
    /// As in [`Caller`].
    type Error: From<EncodeError> + From<DecodeError>;

    /// As [`Caller::call`].
    ///
    /// # Errors
    /// As [`Caller::call`].
    fn call<A: Encode + Sync, R: Decode + Send>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> impl Future<Output = Result<R, Self::Error>> + Send;

    /// As [`Caller::send`].
    ///
    /// # Errors
    /// As [`Caller::call`].
    fn send<A: Encode + Sync>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<C: Caller + ?Sized> Caller for &C {
    type Error = C::Error;

    fn call<A: Encode, R: Decode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, Self::Error> {
        (**self).call(program, version, procedure, arguments)
    }

    fn send<A: Encode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<(), Self::Error> {
        (**self).send(program, version, procedure, arguments)
    }
}

/// One version of a program, served. `C` is what the transport tells about the caller.
pub trait Program<C: ?Sized> {
    /// Program number.
    const PROGRAM: u32;
    /// Version number.
    const VERSION: u32;
    /// Name of the version in the interface file.
    const NAME: &'static str;

    /// Decodes the arguments, calls the procedure, encodes the results.
    ///
    /// # Errors
    /// See [`DispatchError`]; what is in `results` then is not to be sent.
    fn dispatch<S: Source, K: Sink>(
        &self,
        context: &C,
        procedure: u32,
        arguments: &mut S,
        results: &mut K,
    ) -> Result<Answer, DispatchError>;
}

/// Whether a dispatched call has results to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send the results.
    Reply,
    /// The procedure is one-way: send nothing.
    Nothing,
}

/// Why a call has no results. The statuses are those of RFC 5531, section 9.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// PROC_UNAVAIL: the version has no such procedure.
    #[error("the program has no procedure {0}")]
    UnknownProcedure(u32),
    /// GARBAGE_ARGS: the arguments do not decode.
    #[error("the arguments do not decode: {0}")]
    Arguments(#[from] DecodeError),
    /// SYSTEM_ERR: the results do not encode.
    #[error("the results do not encode: {0}")]
    Results(#[from] EncodeError),
    /// SYSTEM_ERR: the procedure has no answer.
    #[error("the procedure failed: {0}")]
    Failed(#[from] Failed),
}

/// A procedure's refusal to answer. An error that a client shall understand belongs into the
/// procedure's result type, as a union; this one reaches it as SYSTEM_ERR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failed {
    /// For the server's log.
    pub reason: String,
}

impl Failed {
    /// A refusal with its reason.
    pub fn new(reason: impl Into<String>) -> Failed {
        Failed { reason: reason.into() }
    }
}
