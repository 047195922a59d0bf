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

/// See the module.
pub struct Loopback<P> {
    pub program: P,
    seen: Mutex<Vec<Vec<u8>>>,
}

impl<P: Program<str>> Loopback<P> {
    pub fn new(program: P) -> Loopback<P> {
        Loopback { program, seen: Mutex::default() }
    }

    /// The bytes of the calls since the last time: arguments and results in turns.
    pub fn take_seen(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.seen.lock().expect("nobody panics"))
    }

    fn dispatch<A: Encode>(
        &self,
        procedure: u32,
        arguments: &A,
    ) -> Result<(Answer, Vec<u8>), Error> {
        let mut writer = Writer::<Network>::new();
        arguments.encode(&mut writer)?;
        let bytes = writer.into_bytes();
        let mut results = Writer::<Network>::new();
        let mut reader = Reader::<Network>::new(&bytes);
        let answer = self.program.dispatch("the caller", procedure, &mut reader, &mut results)?;
        reader.finish()?;
        self.seen.lock().expect("nobody panics").extend([bytes, results.bytes().to_vec()]);
        Ok((answer, results.into_bytes()))
    }
}

impl<P: Program<str>> Caller for Loopback<P> {
    type Error = Error;

    fn call<A: Encode, R: Decode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, Error> {
        assert_eq!((program, version), (P::PROGRAM, P::VERSION));
        let (answer, bytes) = self.dispatch(procedure, arguments)?;
        assert_eq!(answer, Answer::Reply);
        let mut reader = Reader::<Network>::new(&bytes);
        let results = R::decode(&mut reader)?;
        reader.finish()?;
        Ok(results)
    }

    fn send<A: Encode>(&self, _: u32, _: u32, procedure: u32, arguments: &A) -> Result<(), Error> {
        assert_eq!(self.dispatch(procedure, arguments)?.0, Answer::Nothing);
        Ok(())
    }
}

impl<P: Program<str> + Sync> AsyncCaller for &Loopback<P> {
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
