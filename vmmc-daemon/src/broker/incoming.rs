//! Connections, and packets, that come.

use super::{Broker, Doom, EVENTS, Fault, HELLO_TIMEOUT, PACKETS, SHORTAGE_RETRY, Source};
use crate::client::{Client, Stage};
use crate::counters::Counter;
use crate::policy::start_time;
use crate::receive::{self, Fds, Received, receive};
use crate::sayings::of_client;
use crate::timers::Timer;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::time::{Duration, Instant};
use vmmc::control::codec;
use vmmc::control::message::{MAX_PACKET_LEN, Request};
use vmmc::id::{ClientId, PeerInfo};
use vmmc::sys::{Fd, process, sched};

/// How long a client's requests are left when its user's descriptors come faster than they can be closed.
const READ_AGAIN: Duration = Duration::from_millis(2);

impl Broker {
    pub(super) fn accept_some(&mut self) {
        for _ in 0..EVENTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener.socket, flags) {
                Ok(socket) => {
                    if let Err(errno) = self.welcome_connection(socket.into()) {
                        tracing::debug!(%errno, "a connection was gone before it was accepted");
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // Level-triggered: without a pause the loop would spin.
                    of_client(|untold| {
                        tracing::warn!(%errno, untold, "cannot accept; trying again soon");
                    });
                    self.counters.add(Counter::DescriptorShortages);
                    self.set_accepting(false);
                    self.timers.add(Instant::now() + SHORTAGE_RETRY, Timer::Accept);
                    return;
                }
            }
        }
    }

    pub(super) fn set_accepting(&mut self, accepting: bool) {
        if self.accepting != accepting {
            let flags = if accepting { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            let token = Source::Listener.token();
            if let Err(errno) = epoll::modify(&self.epoll, &self.listener.socket, token, flags) {
                tracing::error!(%errno, "cannot watch the listener");
            }
            self.accepting = accepting;
        }
    }

    /// What is closed unused may have unread packets, with descriptors in them.
    fn welcome_connection(&mut self, socket: Fd) -> rustix::io::Result<()> {
        let credentials = match process::peer_credentials(&socket) {
            Ok(credentials) => credentials,
            Err(errno) => {
                receive::close_connection(u32::MAX, socket, || ());
                return Err(errno);
            }
        };
        let uid = credentials.uid;
        let known = process::peer_groups(&socket).and_then(|groups| {
            let pidfd = process::peer_pidfd(&socket, credentials.pid)?;
            // Looked up before it is seen to live: its number was its own then.
            let started = start_time(credentials.pid);
            match process::has_ended(&pidfd) {
                true => Err(Errno::SRCH),
                false => Ok((groups, pidfd, started)),
            }
        });
        let (groups, pidfd, started) = match known {
            Ok(known) => known,
            Err(errno) => {
                receive::close_connection(uid, socket, || ());
                return Err(errno);
            }
        };
        let id = ClientId(self.next_id());
        let peer = PeerInfo {
            client: id,
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
        };
        if !self.quotas.take_socket(peer.uid) {
            of_client(|untold| {
                tracing::warn!(pid = peer.pid, uid, untold, "too many connections of one user");
            });
            receive::close_connection(uid, socket, || ());
            return Ok(());
        }
        let mut client = Client::new((socket, pidfd), peer, groups, started);
        self.await_hello(id, &mut client);
        if let Err(errno) = self.watch_client(id, &mut client) {
            receive::close_connection(uid, client.socket, self.quotas.socket_closed(uid));
            return Err(errno);
        }
        self.clients.insert(id, client);
        self.watch_idleness();
        self.send_packet(id, codec::handshake().to_vec());
        Ok(())
    }

    /// Starts the clock for a hello that has not come.
    pub(crate) fn await_hello(&mut self, id: ClientId, client: &mut Client) {
        if client.introduced().is_none() {
            let due = Instant::now() + HELLO_TIMEOUT;
            client.nascent_timer = Some(self.timers.add(due, Timer::Nascent(id)));
        }
    }

    pub(crate) fn watch_client(
        &mut self,
        id: ClientId,
        client: &mut Client,
    ) -> rustix::io::Result<()> {
        let read = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &client.socket, Source::Socket(id).token(), read)?;
        epoll::add(&self.epoll, &client.pidfd, Source::Process(id).token(), read)?;
        client.watched = (true, false);
        Ok(())
    }

    /// Gives a client that has just connected the number it had before a crash.
    pub(crate) fn renumber(&mut self, from: ClientId, to: ClientId) -> bool {
        if !self.is_old_id(to.0) || self.clients.contains_key(&to) {
            return false;
        }
        let Some(mut client) = self.clients.remove(&from) else { return false };
        client.peer.client = to;
        let read = epoll::EventFlags::IN;
        let _ = epoll::modify(&self.epoll, &client.socket, Source::Socket(to).token(), read);
        let _ = epoll::modify(&self.epoll, &client.pidfd, Source::Process(to).token(), read);
        client.watched = (true, false);
        if client.retry_due {
            // The one that is due has the old number.
            self.timers.add(Instant::now() + SHORTAGE_RETRY, Timer::Flush(to));
        }
        self.clients.insert(to, client);
        self.watch_output(to);
        true
    }

    /// Handles packets of a client, `most` at most. With [`PACKETS`] none after one whose sender sleeps until it is
    /// answered: to see that there is no more would be a system call, and if there is, epoll says so.
    pub(super) fn read_some(&mut self, id: ClientId, most: usize) {
        self.read_packets(id, most);
        self.beside_caller = false;
    }

    fn read_packets(&mut self, id: ClientId, most: usize) {
        let mut buffer = [0u8; MAX_PACKET_LEN];
        let mut id = id;
        for _ in 0..most {
            let Some(client) = self.clients.get(&id) else { return };
            if client.doomed || !client.wants_reading() {
                return;
            }
            if receive::is_behind(client.peer.uid) {
                return self.read_later(id);
            }
            let Received { len, mut fds } =
                match receive(&client.socket, client.peer.uid, &mut buffer) {
                    Ok(Some(received)) => received,
                    Ok(None) | Err(Errno::CONNRESET | Errno::PIPE) => {
                        return self.doom(id, Doom::Gone);
                    }
                    Err(Errno::AGAIN) => return,
                    Err(Errno::MSGSIZE) => {
                        let fault = Fault::new("packet too long, or too many descriptors");
                        return self.doom(id, Doom::Fault(fault));
                    }
                    Err(errno) => return self.doom(id, Doom::Unsendable(errno)),
                };
            if fds.cut_short() {
                self.counters.add(Counter::DescriptorShortages);
                of_client(|untold| {
                    tracing::warn!(
                        untold,
                        "out of descriptors; raise LimitNOFILE (ulimit -n) of vmmcd"
                    );
                });
            }
            let packet = buffer.get(..len).unwrap_or_default();
            let answered = match self.handle_packet(id, packet, &mut fds) {
                Ok((now, answered)) => {
                    id = now;
                    answered
                }
                Err(fault) => return self.doom(id, Doom::Fault(fault)),
            };
            if fds.remaining() > 0 {
                let fault = Fault::new("descriptors that the message does not call for");
                return self.doom(id, Doom::Fault(fault));
            }
            if answered && most == PACKETS {
                return;
            }
        }
    }

    /// Leaves a client's requests where they are for a moment.
    fn read_later(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_held = true;
            self.timers.add(Instant::now() + READ_AGAIN, Timer::Read(id));
            self.watch_output(id);
        }
    }

    /// Handles one packet; the client's number afterwards (hello may change it), and whether its sender
    /// sleeps until it is answered.
    fn handle_packet(
        &mut self,
        id: ClientId,
        packet: &[u8],
        fds: &mut Fds,
    ) -> Result<(ClientId, bool), Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok((id, false)) };
        match client.stage {
            Stage::Handshake => {
                if let Err(error) = codec::check_handshake(packet) {
                    if matches!(error, codec::CodecError::Version { .. }) {
                        self.counters.add(Counter::OtherVersion);
                    }
                    return Err(Fault::new(error.to_string()));
                }
                client.stage = Stage::Hello;
                Ok((id, false))
            }
            Stage::Leaving => Ok((id, false)),
            Stage::Hello | Stage::Welcome(_) => {
                let introduced = client.introduced().is_some();
                let request: Request =
                    codec::decode(packet).map_err(|error| Fault::new(error.to_string()))?;
                tracing::trace!(client = id.0, ?request, "request");
                match request {
                    Request::Hello(hello) if !introduced => Ok((self.hello(id, hello, fds), false)),
                    Request::Hello(_) => Err(Fault::new("second hello")),
                    _ if !introduced => Err(Fault::new("request before hello")),
                    request => {
                        let waits_on = request.waits_on();
                        if let Some(cpu) = waits_on {
                            client.cpu = cpu;
                        }
                        self.beside_caller = client.cpu == sched::current_cpu();
                        let sleeps = waits_on.is_some();
                        self.request(id, request, fds).map(|()| (id, sleeps))
                    }
                }
            }
        }
    }

    /// The processor that a process runs on, by its own word.
    pub(super) fn cpu_of(&self, id: ClientId) -> Option<u32> {
        self.clients.get(&id).filter(|client| client.attached().is_some()).map(|client| client.cpu)
    }
}
