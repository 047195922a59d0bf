//! Carries calls of generated Sun RPC clients to a generated dispatcher in this process, and keeps their bytes.

#![allow(unreachable_pub, dead_code)] // each test file uses its part

use std::sync::Mutex;
use xdr::rpc::{Answer, AsyncCaller, Caller, DispatchError, Program};
use xdr::{Decode, DecodeError, Encode, EncodeError, Network, Reader, Writer};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}

/// What is served: one version of a program, or several.
pub trait Programs {
    fn dispatch(
        &self,
        version: (u32, u32),
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Writer<Network>,
    ) -> Result<Answer, DispatchError>;
}

/// What all of them are told of the caller.
pub const CALLER: &str = "the caller";

impl<P: Program<str>> Programs for P {
    fn dispatch(
        &self,
        version: (u32, u32),
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Writer<Network>,
    ) -> Result<Answer, DispatchError> {
        assert_eq!(version, (P::PROGRAM, P::VERSION));
        Program::dispatch(self, CALLER, procedure, arguments, results)
    }
}

/// See the module.
pub struct Loopback<P> {
    pub program: P,
    seen: Mutex<Vec<Vec<u8>>>,
}

impl<P: Programs> Loopback<P> {
    pub fn new(program: P) -> Loopback<P> {
        Loopback { program, seen: Mutex::default() }
    }

    /// The bytes of the calls since the last time: arguments and results in turns.
    pub fn take_seen(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.seen.lock().expect("nobody panics"))
    }

    fn dispatch<A: Encode>(
        &self,
        version: (u32, u32),
        procedure: u32,
        arguments: &A,
    ) -> Result<(Answer, Vec<u8>), Error> {
        let mut writer = Writer::<Network>::new();
        arguments.encode(&mut writer)?;
        let bytes = writer.into_bytes();
        let mut results = Writer::<Network>::new();
        let mut reader = Reader::<Network>::new(&bytes);
        let answer = self.program.dispatch(version, procedure, &mut reader, &mut results)?;
        reader.finish()?;
        self.seen.lock().expect("nobody panics").extend([bytes, results.bytes().to_vec()]);
        Ok((answer, results.into_bytes()))
    }
}

impl<P: Programs> Caller for Loopback<P> {
    type Error = Error;

    fn call<A: Encode, R: Decode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, Error> {
        let (answer, bytes) = self.dispatch((program, version), procedure, arguments)?;
        assert_eq!(answer, Answer::Reply);
        let mut reader = Reader::<Network>::new(&bytes);
        let results = R::decode(&mut reader)?;
        reader.finish()?;
        Ok(results)
    }

    fn send<A: Encode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<(), Error> {
        let (answer, _) = self.dispatch((program, version), procedure, arguments)?;
        assert_eq!(answer, Answer::Nothing);
        Ok(())
    }
}

impl<P: Programs + Sync> AsyncCaller for &Loopback<P> {
    type Error = Error;

    async fn call<A: Encode + Sync, R: Decode + Send>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, Error> {
        Caller::call(self, program, version, procedure, arguments)
    }

    async fn send<A: Encode + Sync>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<(), Error> {
        Caller::send(self, program, version, procedure, arguments)
    }
}
