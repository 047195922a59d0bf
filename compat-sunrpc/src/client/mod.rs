//! Calling Sun RPC servers from Rust, stock ones and ours, over TCP, UDP, or a ring.
//!
//! A [`Client`] is a [`Caller`]: generated stubs (`shrimpc sunrpc`, `rpc_idl::Builder::sun_rpc`)
//! call through it. Over TCP to a server of this machine it offers a ring at its first call; everything
//! else stays as it is.
//!
//! ```no_run
//! use vrpc::Client;
//! use vrpc::xdr::rpc::Caller;
//!
//! let client = Client::tcp("127.0.0.1:1234")?;
//! let sum: i32 = client.call(0x2000_1234, 1, 1, &41)?;
//! # Ok::<(), vrpc::client::CallError>(())
//! ```

mod datagram;
mod stream;
mod timed;

use crate::msg::{CallHead, Credential, OpaqueAuth, ReplyHead, Status};
use crate::settings;
use datagram::Datagrams;
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use stream::Stream;
use xdr::rpc::Caller;
use xdr::{Decode, DecodeError, Encode, EncodeError, Source};

/// A time that no call lives to see.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// As libtirpc's stubs have it.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Why a call has no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A value breaks a limit of its interface.
    #[error("the arguments do not encode: {0}")]
    Encode(#[from] EncodeError),
    /// The server's results are not what the interface says.
    #[error("the reply does not decode: {0}; are both ends made from the same interface file?")]
    Decode(#[from] DecodeError),
    /// The server answered, but not with results.
    #[error("the server refused the call: {0:?}")]
    Refused(Status),
    /// No answer in time. The client can be used again: a late answer is dropped.
    #[error("no answer within {0:?}; is the server busy, or the timeout too short?")]
    TimedOut(Duration),
    /// The connection is over.
    #[error("the connection failed: {0}; make a new client")]
    Connection(#[from] std::io::Error),
    /// A setting in the environment.
    #[error(transparent)]
    Settings(#[from] vmmc::config::ConfigError),
}

/// How a client's calls travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection.
    Tcp,
    /// Datagrams.
    Udp,
    /// Shared memory.
    Ring,
}

/// What a client is made of.
#[derive(Clone, Debug)]
pub struct Builder {
    timeout: Duration,
    credential: Credential,
    max_record: usize,
    ring: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            timeout: TIMEOUT,
            credential: Credential::None,
            max_record: crate::record::MAX_RECORD,
            ring: true,
        }
    }
}

impl Builder {
    /// How long a call waits for its answer; 25 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// Who calls; [`Credential::None`].
    #[must_use]
    pub fn credential(mut self, credential: Credential) -> Builder {
        self.credential = credential;
        self
    }

    /// Longest reply taken over TCP or a ring, in bytes; 64 MiB. Over a ring 1 GiB at most. Its values may take 64 MiB of
    /// memory, or three times this where it was raised.
    #[must_use]
    pub fn max_record(mut self, bytes: usize) -> Builder {
        self.max_record = bytes;
        self
    }

    /// Whether a ring is offered to a server of this machine; yes.
    #[must_use]
    pub fn ring(mut self, ring: bool) -> Builder {
        self.ring = ring;
        self
    }

    /// A client over TCP.
    ///
    /// # Errors
    /// [`CallError::Connection`], [`CallError::Settings`], [`CallError::Encode`] for a credential
    /// that is too long.
    pub fn tcp(self, address: impl ToSocketAddrs) -> Result<Client, CallError> {
        settings::init_for_rust()?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let stream = Stream::new(stream, self.max_record, self.ring && settings::is_on());
        self.client(Link::Stream(Box::new(stream)))
    }

    /// A client over UDP. A call is repeated until it is answered, so it may be served more than
    /// once.
    ///
    /// # Errors
    /// As [`Builder::tcp`].
    pub fn udp(self, address: impl ToSocketAddrs) -> Result<Client, CallError> {
        settings::init_for_rust()?;
        let mut failed = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for address in address.to_socket_addrs()? {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            match socket.connect(address) {
                Ok(()) => return self.client(Link::Datagrams(Datagrams::new(socket))),
                Err(error) => failed = error,
            }
        }
        Err(failed.into())
    }

    fn client(self, link: Link) -> Result<Client, CallError> {
        let credential = self.credential.to_opaque()?;
        let mut xid = [0; 4];
        let _ = rustix::rand::getrandom(&mut xid, rustix::rand::GetRandomFlags::empty());
        let xid = u32::from_ne_bytes(xid);
        let state = Mutex::new(State { link, xid });
        Ok(Client { state, credential, timeout: self.timeout })
    }
}

/// One connection to a server. Calls of several threads take turns.
#[derive(Debug)]
pub struct Client {
    state: Mutex<State>,
    credential: OpaqueAuth,
    timeout: Duration,
}

#[derive(Debug)]
struct State {
    link: Link,
    xid: u32,
}

#[derive(Debug)]
enum Link {
    Stream(Box<Stream>),
    Datagrams(Datagrams),
}

/// One call, on its way.
struct Call<'c, A> {
    head: CallHead,
    arguments: &'c A,
    deadline: Instant,
    timeout: Duration,
}

impl<A: Encode> Call<'_, A> {
    fn encode<S: xdr::Sink>(&self, sink: &mut S) -> Result<(), EncodeError> {
        self.head.encode(sink)?;
        self.arguments.encode(sink)
    }

    fn left(&self) -> Result<Duration, CallError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(CallError::TimedOut(self.timeout)) } else { Ok(left) }
    }
}

/// Decodes what a reply says; `None` for the reply to another call.
fn decode<R: Decode, S: Source>(xid: u32, source: &mut S) -> Result<Option<R>, CallError> {
    let head = ReplyHead::decode(source)?;
    if head.xid != xid {
        return Ok(None);
    }
    match head.status {
        // What follows the results is nobody's: stock clients do not look either.
        Status::Success => Ok(Some(R::decode(source)?)),
        other => Err(CallError::Refused(other)),
    }
}

impl Client {
    /// A client with other settings than the usual ones.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client over TCP.
    ///
    /// # Errors
    /// As [`Builder::tcp`].
    pub fn tcp(address: impl ToSocketAddrs) -> Result<Client, CallError> {
        Builder::default().tcp(address)
    }

    /// A client over UDP.
    ///
    /// # Errors
    /// As [`Builder::udp`].
    pub fn udp(address: impl ToSocketAddrs) -> Result<Client, CallError> {
        Builder::default().udp(address)
    }

    /// How calls travel; a ring is agreed on at the first call.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match &self.state().link {
            Link::Stream(stream) if stream.is_ring() => Transport::Ring,
            Link::Stream(_) => Transport::Tcp,
            Link::Datagrams(_) => Transport::Udp,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call.
    fn begin<'c, A>(
        &self,
        state: &mut State,
        (program, version, procedure): (u32, u32, u32),
        arguments: &'c A,
    ) -> Call<'c, A> {
        state.xid = state.xid.wrapping_add(1);
        let head = CallHead {
            xid: state.xid,
            program,
            version,
            procedure,
            credential: self.credential.clone(),
            verifier: OpaqueAuth::default(),
        };
        // Of one that is out of reach: for good.
        let now = Instant::now();
        let deadline = now.checked_add(self.timeout).unwrap_or(now + FOR_GOOD);
        Call { head, arguments, deadline, timeout: self.timeout }
    }
}

impl Caller for Client {
    type Error = CallError;

    fn call<A: Encode, R: Decode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<R, CallError> {
        let mut state = self.state();
        let call = self.begin(&mut state, (program, version, procedure), arguments);
        match &mut state.link {
            Link::Stream(stream) => stream.call(&call),
            Link::Datagrams(datagrams) => datagrams.call(&call),
        }
    }

    fn send<A: Encode>(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &A,
    ) -> Result<(), CallError> {
        let mut state = self.state();
        let call = self.begin(&mut state, (program, version, procedure), arguments);
        match &mut state.link {
            Link::Stream(stream) => stream.send(&call),
            Link::Datagrams(datagrams) => datagrams.send(&call),
        }
    }
}
