//! A program with one procedure of each kind, for several test files.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::{self, say};
use shrimp_rpc::{
    Binding, BindingBuilder, CallError, DispatchError, Fault, Finished, Server, ServerCall,
};
use vmmc::Node;
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

/// A client of it, by the service's name.
pub fn connect(node: &Node, name: &str) -> Binding {
    builder(node, name).connect().expect("binds")
}

/// The same, in the making.
pub fn builder(node: &Node, name: &str) -> BindingBuilder {
    Binding::builder(name, PROGRAM, 1).node(node).connect_timeout(common::PATIENCE.unwrap())
}

/// A structure there, and two numbers back.
pub fn sum(binding: &Binding, i: i32) {
    let pair = Pair { a: -i, b: 1 << 40, name: "x".repeat(i as usize % 100) };
    let mut size = xdr::Counter::new();
    pair.encode(&mut size).unwrap();
    let mut request = binding.request(SUM, size.len(), 0).unwrap();
    pair.encode(&mut request).unwrap();
    let mut reply = request.call().unwrap();
    assert_eq!(u64::decode(&mut reply).unwrap(), (1u64 << 40) - i as u64);
    assert_eq!(u32::decode(&mut reply).unwrap() as usize, pair.name.len());
    reply.finish().unwrap();
}

/// INOUT data of that length.
pub fn reverse(binding: &Binding, len: usize) -> Result<(), CallError> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
    let expected: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut request = binding.request(REVERSE, 4, len)?;
    (len as u32).encode(&mut request)?;
    request.block(&bytes)?;
    let mut reply = request.call()?;
    reply.inout(0, &mut bytes)?;
    reply.finish()?;
    assert_eq!(bytes, expected, "{len} bytes");
    Ok(())
}

/// OUT data of that many numbers.
pub fn fill(binding: &Binding, len: u32) -> Result<(), CallError> {
    let mut request = binding.request(FILL, 4, 0)?;
    len.encode(&mut request)?;
    let mut numbers: Vec<u64> = Vec::new();
    let mut reply = request.call()?;
    reply.out_vec(1 << 20, &mut numbers)?;
    assert_eq!(numbers, vec![u64::from(len); len as usize]);
    Ok(())
}
