//! Generated Sun RPC stubs, client against dispatcher, with the bytes between them in view.

use rpc_idl_tests::sunrpc::*;
use std::cell::RefCell;
use xdr::rpc::{Answer as Outcome, Caller, DispatchError, Failed, Program};
use xdr::{Decode, DecodeError, Encode, EncodeError, Network, Reader, Writer};

struct Twice;

/// Only what the test calls does something.
impl KvV2<str> for Twice {
    fn nullp(&self, _: &str) -> Result<(), Failed> {
        Ok(())
    }

    fn next(&self, context: &str, arg: i32) -> Result<i32, Failed> {
        assert_eq!(context, "the caller");
        arg.checked_add(1).ok_or_else(|| Failed::new("there is no next number"))
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}

/// Carries calls to a program in this process and keeps their bytes.
struct Loopback<P> {
    program: P,
    seen: RefCell<Vec<Vec<u8>>>,
}

impl<P: Program<str>> Loopback<P> {
    fn dispatch<A: Encode>(
        &self,
        procedure: u32,
        arguments: &A,
    ) -> Result<(Outcome, Vec<u8>), Error> {
        let mut writer = Writer::<Network>::new();
        arguments.encode(&mut writer)?;
        let bytes = writer.into_bytes();
        let mut results = Writer::<Network>::new();
        let mut reader = Reader::<Network>::new(&bytes);
        let answer = self.program.dispatch("the caller", procedure, &mut reader, &mut results)?;
        reader.finish()?;
        self.seen.borrow_mut().extend([bytes, results.bytes().to_vec()]);
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
        assert_eq!(answer, Outcome::Reply);
        let mut reader = Reader::<Network>::new(&bytes);
        let results = R::decode(&mut reader)?;
        reader.finish()?;
        Ok(results)
    }

    fn send<A: Encode>(&self, _: u32, _: u32, procedure: u32, arguments: &A) -> Result<(), Error> {
        assert_eq!(self.dispatch(procedure, arguments)?.0, Outcome::Nothing);
        Ok(())
    }
}

#[test]
fn a_call_is_the_bytes_that_rfc_4506_says() {
    let caller = Loopback { program: KvV2Program(Twice), seen: RefCell::default() };
    let client = KvV2Client::new(&caller);
    client.nullp().expect("answered");
    assert_eq!(client.next(-2).expect("answered"), -1);
    let expected: [&[u8]; 4] = [b"", b"", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff"];
    assert_eq!(caller.seen.borrow()[..], expected);
}

#[test]
fn refusals_are_told_apart() {
    let caller = Loopback { program: KvV2Program(Twice), seen: RefCell::default() };
    let failed = KvV2Client::new(&caller).next(i32::MAX);
    assert!(matches!(failed, Err(Error::Dispatch(DispatchError::Failed(_)))), "{failed:?}");
    let unknown = caller.call::<_, ()>(0x2000_0099, 2, 77, &());
    assert!(matches!(unknown, Err(Error::Dispatch(DispatchError::UnknownProcedure(77)))));
    let garbage = caller.call::<_, i32>(0x2000_0099, 2, kv_v2::NEXT, &());
    assert!(matches!(garbage, Err(Error::Dispatch(DispatchError::Arguments(_)))), "{garbage:?}");
}
