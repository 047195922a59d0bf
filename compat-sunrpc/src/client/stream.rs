//! Calls over a TCP connection, and over the ring that belongs to one.

use super::timed::{Timed, is_late};
use super::{Call, CallError, decode};
use crate::channel::{Broken, Channel, Deadline, Long, Patience, RecordSource};
use crate::counters::{self, Counter};
use crate::daemon::{self, Answer};
use crate::msg::{CallHead, OpaqueAuth, ReplyHead, Status};
use crate::record::{self, RecordReader};
use crate::{offer, svc};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use vmmc::sys::doorbell::Doorbell;
use xdr::{Decode, Encode, EncodeError, Network, Reader, Sink, Writer};

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    stream: TcpStream,
    reader: RecordReader,
    ring: Ring,
    /// The connection is over: what the first call said that found it so.
    broken: Option<ErrorKind>,
}

#[derive(Debug)]
enum Ring {
    /// To be offered at the first call.
    Untried,
    None,
    Agreed {
        channel: Box<Channel>,
        bell: Doorbell,
        cookie: u64,
    },
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ring::Agreed { cookie, .. } = self.ring {
            daemon::forget(cookie);
        }
    }
}

/// What it is to the caller that its channel can no longer be used, or not in time.
fn failed<A>(call: &Call<'_, A>, broken: Broken) -> CallError {
    match broken {
        Broken::Gone(errno) => CallError::Connection(errno.into()),
        Broken::TimedOut => CallError::TimedOut(call.timeout),
        Broken::TooLong => {
            CallError::Encode(EncodeError::Full { need: 0, left: crate::channel::MAX_RECORD })
        }
        Broken::Nonsense => CallError::Connection(std::io::Error::new(
            ErrorKind::InvalidData,
            "the server wrote nonsense into the ring",
        )),
    }
}

/// The same of a reply that was to be received, where `limit` is the longest.
fn not_received<A>(call: &Call<'_, A>, broken: Broken, limit: usize) -> CallError {
    match broken {
        // The record stays where it is, in front of all others.
        Broken::TooLong => CallError::Connection(std::io::Error::new(
            ErrorKind::InvalidData,
            format!("a reply longer than {limit} bytes; raise `max_record`"),
        )),
        broken => failed(call, broken),
    }
}

/// How a call waits.
fn patience<'c, A>(call: &Call<'_, A>, stream: &'c TcpStream, bell: &'c Doorbell) -> Patience<'c> {
    let (deadline, number) = (Deadline::At(call.deadline), Some(call.head.xid));
    Patience { bell, socket: stream.as_fd(), deadline, call: number }
}

/// Encodes a call into the ring and sends it.
fn put_into_ring<A: Encode>(
    call: &Call<'_, A>,
    channel: &Channel,
    patience: Patience<'_>,
) -> Result<(), CallError> {
    let or_failed = |broken| failed(call, broken);
    // Earlier calls that wait for room still: no further one is added to them.
    channel.flush_all(&patience).map_err(or_failed)?;
    let mut writer = channel.writer(Long::Waits(patience)).map_err(or_failed)?;
    let encoded = call.encode(&mut writer);
    if let Some(broken) = writer.broken() {
        return Err(failed(call, broken));
    }
    encoded?;
    channel.submit(writer);
    channel.flush_all(&patience).map_err(or_failed)
}

impl Stream {
    pub(super) fn new(stream: TcpStream, max_record: usize, offers: bool) -> Stream {
        let ring = if offers { Ring::Untried } else { Ring::None };
        Stream { stream, reader: RecordReader::new(max_record), ring, broken: None }
    }

    pub(super) fn is_ring(&self) -> bool {
        matches!(self.ring, Ring::Agreed { .. })
    }

    /// Sends a call without an answer.
    pub(super) fn send<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<(), CallError> {
        self.ready(call)?;
        let sent = self.put(call);
        self.note(sent)
    }

    pub(super) fn call<A: Encode, R: Decode>(
        &mut self,
        call: &Call<'_, A>,
    ) -> Result<R, CallError> {
        self.ready(call)?;
        let results = self.put(call).and_then(|()| match &mut self.ring {
            Ring::Agreed { channel, bell, .. } => {
                let patience = patience(call, &self.stream, bell);
                let limit = self.reader.limit();
                let or_not = |broken| not_received(call, broken, limit);
                let reply = channel.reply(patience).map_err(or_not)?;
                let mut source = RecordSource::new(reply, record::limits(limit));
                let results = decode(call.head.xid, &mut source);
                if let Some(broken) = source.broken() {
                    return Err(or_not(broken));
                }
                drop(source);
                channel.release().map_err(or_not)?;
                // Its number was looked at by `reply`; a server that changes it meanwhile lies.
                results?.ok_or_else(|| failed(call, Broken::Nonsense))
            }
            _ => {
                let record = self.take_reply(call)?;
                let limits = record::limits(self.reader.limit());
                let mut reader = Reader::<Network>::with_limits(&record, limits);
                decode(call.head.xid, &mut reader)?.ok_or_else(|| failed(call, Broken::Nonsense))
            }
        });
        self.note(results)
    }

    /// Before a call: is there a connection, and could there be a ring?
    fn ready<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<(), CallError> {
        if let Some(kind) = self.broken {
            return Err(CallError::Connection(kind.into()));
        }
        if matches!(self.ring, Ring::Untried) {
            self.ring = Ring::None;
            if call.head.program != offer::RPCBIND {
                let offered = self.offer(call);
                if let Some(ring) = self.note(offered)? {
                    self.ring = ring;
                }
            }
        }
        counters::one(if self.is_ring() { Counter::calls_ring } else { Counter::calls_kernel });
        Ok(())
    }

    /// Remembers the end of the connection. After half a message there is no next one either.
    fn note<T>(&mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        match &result {
            Err(CallError::Connection(error)) => self.broken = Some(error.kind()),
            Err(CallError::TimedOut(_)) => counters::one(Counter::timeouts),
            _ => {}
        }
        result
    }

    fn put<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<(), CallError> {
        if let Ring::Agreed { channel, bell, .. } = &mut self.ring {
            let patience = patience(call, &self.stream, bell);
            return put_into_ring(call, channel, patience);
        }
        let mut writer = Writer::<Network>::new();
        writer.put_u32(0)?; // for the record mark
        call.encode(&mut writer)?;
        let mut timed = Timed::new(&self.stream, call.deadline);
        match record::write(&mut timed, &mut writer.into_bytes()) {
            Err(error) if is_late(&error) => {
                if timed.written > 0 {
                    // Nothing can follow a part of a record.
                    self.broken = Some(ErrorKind::TimedOut);
                }
                Err(CallError::TimedOut(call.timeout))
            }
            written => Ok(written?),
        }
    }

    /// Takes replies until this call's.
    fn take_reply<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<Vec<u8>, CallError> {
        loop {
            call.left()?;
            match self.reader.next(&mut Timed::new(&self.stream, call.deadline)) {
                Ok(Some(record)) if record.starts_with(&call.head.xid.to_be_bytes()) => {
                    return Ok(record);
                }
                Ok(Some(_)) => {} // of an earlier call that was not waited for
                Ok(None) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks the server for a ring, as [`offer`] tells. The number of the call is that of the call
    /// behind it, plus half of all.
    fn offer<A: Encode>(&mut self, call: &Call<'_, A>) -> Result<Option<Ring>, CallError> {
        let fd = self.stream.as_raw_fd();
        let Some(cookie) = svc::eligible_connection(fd) else {
            counters::stays(fd, Counter::not_local);
            return Ok(None);
        };
        counters::one(Counter::offers);
        let flavor = offer::FLAVOR.cast_unsigned();
        let head = CallHead {
            xid: call.head.xid ^ (1 << 31),
            procedure: 0,
            credential: OpaqueAuth { flavor, body: offer::question() },
            ..call.head.clone()
        };
        let question =
            Call { head, arguments: &(), deadline: call.deadline, timeout: call.timeout };
        self.put(&question)?;
        let answer = self.take_reply(&question)?;
        let head = ReplyHead::decode(&mut Reader::<Network>::new(&answer));
        let accepts = |head: &ReplyHead| {
            head.status == Status::Success
                && head.verifier.flavor == flavor
                && offer::is_answer(&head.verifier.body)
        };
        if !head.is_ok_and(|head| accepts(&head)) {
            counters::stays(fd, Counter::declined);
            return Ok(None);
        }
        let Ok(bell) = Doorbell::new() else { return Ok(None) };
        if !daemon::register(self.stream.as_fd(), cookie, &bell) {
            counters::stays(fd, Counter::no_daemon);
            return Ok(None);
        }
        let Answer::Channel(channel) = daemon::wait_answer(cookie) else {
            counters::stays(fd, Counter::no_daemon);
            return Ok(None);
        };
        counters::moved(fd);
        channel.limit(self.reader.limit());
        Ok(Some(Ring::Agreed { channel, bell, cookie }))
    }
}
