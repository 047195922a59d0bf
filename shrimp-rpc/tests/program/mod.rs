//! A program with one procedure of each kind, for several test files.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::{self, say};
use shrimp_rpc::{DispatchError, Fault, Finished, Server, ServerCall};
use xdr::{Decode, Encode, Sink, Source};

pub const PROGRAM: u32 = 0x2000_0001;

pub const NULL: u32 = 0;
pub const SUM: u32 = 1;
pub const REVERSE: u32 = 2;
pub const FILL: u32 = 3;
pub const FAIL: u32 = 4;

#[derive(Debug, PartialEq)]
pub struct Pair {
    pub a: i32,
    pub b: u64,
    pub name: String,
}

impl Encode for Pair {
    fn encode<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), xdr::EncodeError> {
        self.a.encode(sink)?;
        self.b.encode(sink)?;
        xdr::put_string(sink, &self.name, 100)
    }
}

impl Decode for Pair {
    fn decode<S: Source + ?Sized>(source: &mut S) -> Result<Pair, xdr::DecodeError> {
        Ok(Pair {
            a: i32::decode(source)?,
            b: u64::decode(source)?,
            name: xdr::get_string(source, 100)?,
        })
    }
}

pub fn dispatch(procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError> {
    match procedure {
        NULL => call.reply(0)?.send(),
        SUM => {
            let mut args = call.args();
            let pair = Pair::decode(&mut args)?;
            args.finish()?;
            let mut reply = call.reply(12)?;
            pair.b.wrapping_add_signed(pair.a.into()).encode(&mut reply)?;
            (pair.name.len() as u32).encode(&mut reply)?;
            reply.send()
        }
        REVERSE => {
            let mut args = call.args();
            let len = u32::decode(&mut args)?;
            args.finish()?;
            let mut block = call.block_mut::<u8>(len)?;
            let mut bytes = block.to_vec()?;
            bytes.reverse();
            block.write(0, &bytes).map_err(|_| Fault::new(1, "outside"))?;
            call.reply(0)?.send()
        }
        FILL => {
            let mut args = call.args();
            let len = u32::decode(&mut args)?;
            args.finish()?;
            let mut out = call.out::<u64>(1 << 20);
            let mut block = out.open(len as usize)?;
            block.fill(u64::from(len));
            let (distance, count) = out.descriptor();
            let mut reply = call.reply(8)?;
            distance.encode(&mut reply)?;
            count.encode(&mut reply)?;
            reply.send()
        }
        FAIL => Err(Fault::new(77, "as asked").into()),
        other => Err(DispatchError::UnknownProcedure(other)),
    }
}

pub fn serve(args: &[String]) {
    let server =
        Server::builder(&args[0]).raw_program(PROGRAM, 1, dispatch).start().expect("serves");
    say("ready");
    common::pause();
    server.stop();
}
