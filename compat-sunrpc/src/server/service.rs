//! From the bytes of a call to the bytes of its reply (RFC 5531, section 9), whatever carried them.

use super::Context;
use crate::channel::{RecordSource, Writer as RingWriter};
use crate::msg::{CallHead, Credential, NoCall, OpaqueAuth, ReplyHead, Status};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xdr::rpc::{Answer, DispatchError, Program};
use xdr::{Encode, EncodeError, Network, Reader, Sink, Source, Writer};

/// A version of a program, its type forgotten: [`Program`] is generic over where bytes come from and
/// go to, and there are two such pairs.
pub(super) trait Service: Send + Sync {
    fn number(&self) -> (u32, u32);
    fn in_memory(
        &self,
        context: &Context,
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Writer<Network>,
    ) -> Result<Answer, DispatchError>;
    fn in_ring(
        &self,
        context: &Context,
        procedure: u32,
        arguments: &mut RecordSource<'_>,
        results: &mut RingWriter<'_>,
    ) -> Result<Answer, DispatchError>;
}

/// A program as a [`Service`].
pub(super) struct Of<P>(pub(super) P);

impl<P: Program<Context> + Send + Sync> Service for Of<P> {
    fn number(&self) -> (u32, u32) {
        (P::PROGRAM, P::VERSION)
    }

    fn in_memory(
        &self,
        context: &Context,
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Writer<Network>,
    ) -> Result<Answer, DispatchError> {
        self.0.dispatch(context, procedure, arguments, results)
    }

    fn in_ring(
        &self,
        context: &Context,
        procedure: u32,
        arguments: &mut RecordSource<'_>,
        results: &mut RingWriter<'_>,
    ) -> Result<Answer, DispatchError> {
        self.0.dispatch(context, procedure, arguments, results)
    }
}

/// One of the two pairs.
pub(super) trait Carrier: Sink + Sized {
    type Arguments<'a>: Source;
    fn dispatch(
        service: &dyn Service,
        context: &Context,
        procedure: u32,
        arguments: &mut Self::Arguments<'_>,
        results: &mut Self,
    ) -> Result<Answer, DispatchError>;
}

impl Carrier for Writer<Network> {
    type Arguments<'a> = Reader<'a, Network>;
    fn dispatch(
        service: &dyn Service,
        context: &Context,
        procedure: u32,
        arguments: &mut Reader<'_, Network>,
        results: &mut Self,
    ) -> Result<Answer, DispatchError> {
        service.in_memory(context, procedure, arguments, results)
    }
}

impl<'c> Carrier for RingWriter<'c> {
    type Arguments<'a> = RecordSource<'c>;
    fn dispatch(
        service: &dyn Service,
        context: &Context,
        procedure: u32,
        arguments: &mut RecordSource<'_>,
        results: &mut Self,
    ) -> Result<Answer, DispatchError> {
        service.in_ring(context, procedure, arguments, results)
    }
}

/// The programs of a server.
pub(super) struct Table {
    services: BTreeMap<(u32, u32), Box<dyn Service>>,
}

impl Table {
    pub(super) fn new(services: Vec<Box<dyn Service>>) -> Table {
        Table { services: services.into_iter().map(|it| (it.number(), it)).collect() }
    }

    fn find(&self, program: u32, version: u32) -> Result<&dyn Service, Status> {
        if let Some(service) = self.services.get(&(program, version)) {
            return Ok(service.as_ref());
        }
        let mut versions = self.services.range((program, 0)..=(program, u32::MAX));
        let Some((&(_, low), _)) = versions.next() else { return Err(Status::NoProgram) };
        let high = versions.next_back().map_or(low, |(&(_, high), _)| high);
        Err(Status::OtherVersion { low, high })
    }

    /// Serves one call; its reply, if there is one. `fresh` makes an empty reply: a second one
    /// when the first turns out to be wrong. `context` is asked once the head is known.
    pub(super) fn serve<'a, K: Carrier>(
        &self,
        call: &CallHead,
        arguments: &mut K::Arguments<'a>,
        context: impl FnOnce(Credential) -> Context,
        mut fresh: impl FnMut() -> Option<K>,
    ) -> Option<K> {
        let status = match Credential::from_opaque(&call.credential) {
            Err(why) => Status::Refused(why),
            Ok(credential) => match self.find(call.program, call.version) {
                Err(status) => status,
                Ok(service) => {
                    let mut reply = fresh()?;
                    ReplyHead::new(call.xid, Status::Success).encode(&mut reply).ok()?;
                    let context = context(credential);
                    // A procedure that panics is its caller's alone: what it has left half done is the program's to know.
                    let answered = catch_unwind(AssertUnwindSafe(|| {
                        K::dispatch(service, &context, call.procedure, arguments, &mut reply)
                    }));
                    match answered {
                        Ok(Ok(Answer::Reply)) => return Some(reply),
                        Ok(Ok(Answer::Nothing)) => return None,
                        Ok(Err(DispatchError::UnknownProcedure(_))) => Status::NoProcedure,
                        Ok(Err(DispatchError::Arguments(_))) => Status::GarbageArguments,
                        Ok(Err(_)) | Err(_) => Status::SystemError,
                    }
                }
            },
        };
        say(&ReplyHead::new(call.xid, status), fresh)
    }
}

/// A reply without results.
pub(super) fn say<K: Sink>(head: &ReplyHead, mut fresh: impl FnMut() -> Option<K>) -> Option<K> {
    let mut reply = fresh()?;
    let encoded: Result<(), EncodeError> = head.encode(&mut reply);
    encoded.ok().map(|()| reply)
}

/// The answer to what is no call: none, or the versions of RPC that are spoken here.
pub(super) fn refuse(what: NoCall) -> Option<ReplyHead> {
    match what {
        NoCall::Garbage(_) => None,
        NoCall::OtherVersion { xid, .. } => {
            Some(ReplyHead::new(xid, Status::OtherRpc { low: 2, high: 2 }))
        }
    }
}

/// Whether a call offers a ring, as [`crate::offer`] tells.
pub(super) fn is_offer(call: &CallHead) -> bool {
    call.procedure == 0
        && call.program != crate::offer::RPCBIND
        && call.credential.flavor == crate::offer::FLAVOR.cast_unsigned()
        && call.credential.body == crate::offer::question()
}

/// The reply that accepts an offer.
pub(super) fn accepting(xid: u32, port: Option<u16>) -> ReplyHead {
    let flavor = crate::offer::FLAVOR.cast_unsigned();
    let verifier = OpaqueAuth { flavor, body: crate::offer::answer(port) };
    ReplyHead { xid, verifier, status: Status::Success }
}
