//! Connections: a thread each, over TCP until a ring is agreed on.

use super::service::{accepting, is_offer, refuse, say};
use super::{Context, Shared, lock};
use crate::channel::{Broken, Channel, Deadline, Long, Patience, RecordSource};
use crate::client::Transport;
use crate::counters::{self, Counter};
use crate::daemon::{self, Answer};
use crate::msg::{CallHead, Credential};
use crate::record::{self, RecordReader};
use crate::svc;
use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use vmmc::sys::doorbell::Doorbell;
use xdr::{Network, Reader, Sink, Writer};

/// How long accepting rests when the system has no descriptor or memory left: the connection stays
/// in the queue (CVE-2018-14621 was to try again at once, for ever).
const SHORTAGE: Duration = Duration::from_millis(50);

/// How long a server that stops waits for clients to take their last answers.
const LEAVING: Duration = Duration::from_secs(5);

/// Takes connections until the server stops; then ends those there are.
pub(super) fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut threads = Vec::new();
    for number in 0u64.. {
        let accepted = listener.accept();
        if shared.is_stopping() {
            break;
        }
        threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                std::thread::sleep(SHORTAGE);
                continue;
            }
        };
        if threads.len() >= shared.max_connections {
            continue; // closed
        }
        let Ok(handle) = stream.try_clone() else { continue };
        lock(&shared.connections).insert(number, handle);
        let theirs = Arc::clone(shared);
        let body = move || {
            Connection { shared: &theirs, peer }.serve(&stream);
            lock(&theirs.connections).remove(&number);
            theirs.one_less.notify_all();
        };
        match std::thread::Builder::new().name("vrpc connection".into()).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(_) => drop(lock(&shared.connections).remove(&number)),
        }
    }
    // Nothing more is read; what is being served is answered. Who does not take its answer is not
    // waited for.
    let mut open = lock(&shared.connections);
    for how in [Shutdown::Read, Shutdown::Both] {
        for stream in open.values() {
            let _ = stream.shutdown(how);
        }
        let all = |open: &mut HashMap<u64, TcpStream>| !open.is_empty();
        let waited = shared.one_less.wait_timeout_while(open, LEAVING, all);
        open = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(open);
    for thread in threads {
        let _ = thread.join();
    }
}

struct Connection<'s> {
    shared: &'s Shared,
    peer: SocketAddr,
}

/// What became of an offer.
struct Agreed {
    bell: Doorbell,
    cookie: u64,
}

impl Connection<'_> {
    fn context(&self, credential: Credential, transport: Transport) -> Context {
        Context { peer: self.peer, credential, transport }
    }

    /// Serves until the connection ends, whoever ends it.
    fn serve(&self, mut stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut reader = RecordReader::new(self.shared.max_record);
        // What the kernel has taken in is read even after a shutdown for reading.
        while !self.shared.is_stopping()
            && let Ok(Some(record)) = reader.next(&mut stream)
        {
            let limits = record::limits(self.shared.max_record);
            let mut arguments = Reader::<Network>::with_limits(&record, limits);
            // The first word is the record mark's.
            let fresh = || {
                let mut writer = Writer::<Network>::new();
                writer.put_u32(0).ok().map(|()| writer)
            };
            let mut agreed = None;
            let reply = match CallHead::read(&mut arguments) {
                Err(what) => match refuse(what) {
                    Some(head) => say(&head, fresh),
                    None => break, // as libtirpc
                },
                Ok(call) => {
                    if is_offer(&call) {
                        agreed = self.agree(stream);
                    }
                    if agreed.is_some() {
                        say(&accepting(call.xid, None), fresh)
                    } else {
                        counters::one(Counter::served_kernel);
                        let context = |credential| self.context(credential, Transport::Tcp);
                        self.shared.table.serve(&call, &mut arguments, context, fresh)
                    }
                }
            };
            if let Some(reply) = reply
                && record::write(&mut stream, &mut reply.into_bytes()).is_err()
            {
                break;
            }
            if let Some(agreed) = agreed {
                let answer = daemon::wait_answer_or_client(agreed.cookie, stream.as_fd());
                let ended = if let Answer::Channel(channel) = answer {
                    counters::one(Counter::channels);
                    channel.limit(self.shared.max_record);
                    self.serve_ring(stream, &channel, &agreed.bell)
                } else {
                    None
                };
                daemon::forget(agreed.cookie);
                if let Some(ended) = ended {
                    if matches!(ended, Broken::Nonsense | Broken::TooLong) {
                        counters::one(Counter::poisoned);
                    }
                    break;
                }
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Registers the connection with the daemon.
    fn agree(&self, stream: &TcpStream) -> Option<Agreed> {
        if !self.shared.ring {
            return None;
        }
        let cookie = svc::eligible_connection(stream.as_raw_fd())?;
        let bell = Doorbell::new().ok()?;
        if !daemon::register(stream.as_fd(), cookie, &bell) {
            counters::one(Counter::no_daemon);
            return None;
        }
        Some(Agreed { bell, cookie })
    }

    /// Serves over the ring until it, the connection or the server ends. `None`: the client has begun with the
    /// connection instead.
    fn serve_ring(&self, stream: &TcpStream, channel: &Channel, bell: &Doorbell) -> Option<Broken> {
        let deadline = Deadline::Never;
        let patience = Patience { bell, socket: stream.as_fd(), deadline, call: None };
        match channel.is_begun_with(&patience) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(broken) => return Some(broken),
        }
        while !self.shared.is_stopping() {
            if let Err(broken) = self.serve_one(channel, patience) {
                return Some(broken);
            }
        }
        Some(Broken::Gone(rustix::io::Errno::SHUTDOWN))
    }

    fn serve_one(&self, channel: &Channel, patience: Patience<'_>) -> Result<(), Broken> {
        let Some(record) = channel.next_as_it_comes(patience)? else {
            return channel.wait_readable(&patience);
        };
        let limits = record::limits(self.shared.max_record);
        let mut arguments = RecordSource::new(record, limits);
        counters::one(Counter::served_ring);
        let mut broken = None;
        let mut fresh = || {
            let writer = channel.writer(Long::Waits(patience));
            writer.map_err(|error| broken = Some(error)).ok()
        };
        let reply = match CallHead::read(&mut arguments) {
            Err(what) => match refuse(what) {
                Some(head) => say(&head, fresh),
                None => return Err(Broken::Nonsense),
            },
            Ok(call) => {
                let context = |credential| self.context(credential, Transport::Ring);
                self.shared.table.serve(&call, &mut arguments, context, &mut fresh)
            }
        };
        if let Some(broken) = broken.or(arguments.broken()) {
            return Err(broken);
        }
        drop(arguments);
        channel.release()?;
        if let Some(reply) = reply {
            channel.submit(reply);
            channel.flush_all(&patience)?;
        }
        Ok(())
    }
}
