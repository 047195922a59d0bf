//! Serving Sun RPC programs from Rust, over TCP, UDP, and rings: to stock clients and to ours.
//!
//! Programs are what `rpc-idl` generates ([`Program`]). Each connection has a thread of its own, so a
//! client that stalls holds up nobody else, and services are called from several threads at once.
//!
//! ```no_run
//! # use vrpc::xdr::rpc::{Answer, DispatchError, Program};
//! # use vrpc::server::Context;
//! # struct Clock;
//! # impl Program<Context> for Clock {
//! #     const PROGRAM: u32 = 0x2000_0001;
//! #     const VERSION: u32 = 1;
//! #     const NAME: &'static str = "CLOCK";
//! #     fn dispatch<S: vrpc::xdr::Source, K: vrpc::xdr::Sink>(
//! #         &self, _: &Context, _: u32, _: &mut S, _: &mut K,
//! #     ) -> Result<Answer, DispatchError> { Ok(Answer::Reply) }
//! # }
//! let server = vrpc::Server::builder().program(Clock).tcp("127.0.0.1:0").start()?;
//! println!("serving at {:?}", server.tcp_address());
//! # Ok::<(), vrpc::server::ServeError>(())
//! ```

mod connection;
mod datagram;
mod service;

use crate::msg::Credential;
use crate::settings;
use service::{Service, Table};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use xdr::rpc::Program;

pub use crate::client::Transport;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address that could not be had.
    #[error("{what} at {address}: {source}; is the address in use, or not this machine's?")]
    Address {
        /// `TCP` or `UDP`.
        what: &'static str,
        /// As it was given.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nothing to serve by.
    #[error("no address: give one with `tcp` or `udp`")]
    NoAddress,
    /// A setting in the environment.
    #[error(transparent)]
    Settings(#[from] vmmc::config::ConfigError),
    /// No thread.
    #[error("starting a thread: {0}; is there a limit on processes?")]
    Thread(#[source] std::io::Error),
}

/// What a service is told about a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The other end.
    pub peer: SocketAddr,
    /// Who the client says it is.
    pub credential: Credential,
    /// How the call came.
    pub transport: Transport,
}

/// What a server is made of.
#[derive(Default)]
pub struct Builder {
    programs: Vec<Box<dyn Service>>,
    tcp: Option<String>,
    udp: Option<String>,
    max_record: Option<usize>,
    max_connections: Option<usize>,
    no_ring: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("tcp", &self.tcp).field("udp", &self.udp).finish()
    }
}

impl Builder {
    /// Serves a version of a program. The last one given for a version counts.
    #[must_use]
    pub fn program<P: Program<Context> + Send + Sync + 'static>(mut self, program: P) -> Builder {
        self.programs.push(Box::new(service::Of(program)));
        self
    }

    /// Takes connections at an address such as `127.0.0.1:0`.
    #[must_use]
    pub fn tcp(mut self, address: &str) -> Builder {
        self.tcp = Some(address.to_owned());
        self
    }

    /// Takes datagrams at an address.
    #[must_use]
    pub fn udp(mut self, address: &str) -> Builder {
        self.udp = Some(address.to_owned());
        self
    }

    /// Longest call taken over TCP or a ring, in bytes; 64 MiB. Over a ring 1 GiB at most. Its values may take 64 MiB of
    /// memory, or three times this where it was raised.
    #[must_use]
    pub fn max_record(mut self, bytes: usize) -> Builder {
        self.max_record = Some(bytes);
        self
    }

    /// Most connections at once; 1,024. Further ones are closed.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Builder {
        self.max_connections = Some(connections);
        self
    }

    /// Whether rings are agreed to; yes.
    #[must_use]
    pub fn ring(mut self, ring: bool) -> Builder {
        self.no_ring = !ring;
        self
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(self) -> Result<Server, ServeError> {
        settings::init_for_rust()?;
        let listener = self.tcp.map(|address| {
            let bound = TcpListener::bind(&address);
            bound.map_err(|source| ServeError::Address { what: "TCP", address, source })
        });
        let socket = self.udp.map(|address| {
            let bound = UdpSocket::bind(&address);
            bound.map_err(|source| ServeError::Address { what: "UDP", address, source })
        });
        let (listener, socket) = (listener.transpose()?, socket.transpose()?);
        if listener.is_none() && socket.is_none() {
            return Err(ServeError::NoAddress);
        }
        let tcp = listener.as_ref().and_then(|it| it.local_addr().ok());
        let udp = socket.as_ref().and_then(|it| it.local_addr().ok());
        let shared = Arc::new(Shared {
            table: Table::new(self.programs),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            one_less: Condvar::new(),
            max_record: self.max_record.unwrap_or(crate::record::MAX_RECORD),
            max_connections: self.max_connections.unwrap_or(1024),
            ring: !self.no_ring && settings::is_on(),
            tcp,
        });
        let mut server = Server { shared: Arc::clone(&shared), threads: Vec::new(), tcp, udp };
        if let Some(listener) = listener {
            let shared = Arc::clone(&shared);
            server.spawn("vrpc accept", move || connection::accept(&shared, &listener))?;
        }
        if let Some(socket) = socket {
            server.spawn("vrpc datagrams", move || datagram::serve(&shared, &socket))?;
        }
        Ok(server)
    }
}

/// What all threads of a server share.
struct Shared {
    table: Table,
    stopping: AtomicBool,
    /// Open connections, to be shut down at the end, by number.
    connections: Mutex<HashMap<u64, TcpStream>>,
    /// A connection has left it.
    one_less: Condvar,
    max_record: usize,
    max_connections: usize,
    ring: bool,
    tcp: Option<SocketAddr>,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    tcp: Option<SocketAddr>,
    udp: Option<SocketAddr>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl Server {
    /// A server with nothing to serve yet.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where connections are taken.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Where datagrams are taken.
    #[must_use]
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.udp
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServeError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        self.threads.push(thread.map_err(ServeError::Thread)?);
        Ok(())
    }

    /// Takes no more calls, waits for the end of those that are being served, and closes all
    /// connections.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Whoever waits for the next client gets one.
        if let Some(address) = self.tcp {
            drop(TcpStream::connect(reachable(address)));
        }
        if let Some(address) = self.udp {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let _ = UdpSocket::bind(any).and_then(|it| it.send_to(&[], reachable(address)));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address at which this machine itself reaches a socket bound to `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// Locks what is right even after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
