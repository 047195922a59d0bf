//! Messages that go: at once, or as news.

use super::{Broker, Doom, SHORTAGE_RETRY, Source};
use crate::client::{Flushed, MAX_QUEUED, OutFd, Stage};
use crate::counters::Counter;
use crate::failpoint::{Failpoint, hit};
use crate::placement::{self};
use crate::timers::Timer;
use rustix::event::epoll;
use rustix::io::Errno;
use std::time::Instant;
use vmmc::control::message::Event;
use vmmc::id::{ClientId, RequestId};

impl Broker {
    /// Sends a message, now if the client has room, else as soon as it has.
    pub(crate) fn send(&mut self, id: ClientId, event: &Event, fds: Vec<OutFd>) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.doomed) else {
            return;
        };
        let blocked = client.is_blocked();
        // How links end is not in the receiver's hand, and there are no more such messages than
        // it has links: nobody is cut off for them.
        let counts = !matches!(
            event,
            Event::LinkClosed { .. } | Event::LinkEnding { .. } | Event::PeerGone { .. }
        );
        if !client.push_event(event, fds) && counts {
            self.doom(id, Doom::NotReading);
        } else if !blocked {
            self.flush(id);
        }
    }

    /// Sends news to another client than the one that is being served. They go after the answer: if
    /// the caller shares our processor, when it has had its turn (see [`crate::placement`]).
    /// Whether they have been sent.
    pub(crate) fn send_news(&mut self, id: ClientId, event: &Event, fds: Vec<OutFd>) -> bool {
        let client = self.clients.get_mut(&id).filter(|client| !client.doomed);
        match client.filter(|client| self.beside_caller && client.queue.len() < MAX_QUEUED) {
            None => self.send(id, event, fds),
            Some(client) => {
                client.push_event(event, fds);
                self.deferred.push(id);
                self.deferred_until.get_or_insert_with(|| Instant::now() + placement::DEFER);
                return false;
            }
        }
        true
    }

    /// Sends what has waited long enough, or all if there is nothing else to do.
    pub(super) fn send_deferred(&mut self, idle: bool) {
        if self.deferred_until.is_some_and(|until| idle || until <= Instant::now()) {
            self.deferred_until = None;
            for id in std::mem::take(&mut self.deferred) {
                self.flush(id);
                hit(Failpoint::LinkOpenedSent);
            }
        }
    }

    pub(super) fn send_packet(&mut self, id: ClientId, packet: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.push(packet, Vec::new());
            self.flush(id);
        }
    }

    pub(crate) fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.doomed) else {
            return;
        };
        match client.flush() {
            Ok(Flushed::Shortage) => {
                self.counters.add(Counter::DescriptorShortages);
                if !std::mem::replace(&mut client.retry_due, true) {
                    self.timers.add(Instant::now() + SHORTAGE_RETRY, Timer::Flush(id));
                }
            }
            Ok(Flushed::All) if matches!(client.stage, Stage::Leaving) => {
                self.doom(id, Doom::Refused);
            }
            Ok(_) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => self.doom(id, Doom::Gone),
            Err(errno) => self.doom(id, Doom::Unsendable(errno)),
        }
        self.watch_output(id);
    }

    /// Lets epoll watch for what the client is waited for: room to send, requests to read.
    pub(crate) fn watch_output(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let wanted = (client.wants_reading(), !client.queue.is_empty() && !client.retry_due);
        if wanted == client.watched {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.0);
        flags.set(epoll::EventFlags::OUT, wanted.1);
        let token = Source::Socket(id).token();
        match epoll::modify(&self.epoll, &client.socket, token, flags) {
            Ok(()) => client.watched = wanted,
            Err(errno) => self.doom(id, Doom::Unsendable(errno)),
        }
    }

    /// Refuses a request.
    pub(crate) fn refuse(
        &mut self,
        id: ClientId,
        request: RequestId,
        refusal: vmmc::control::message::Refusal,
    ) {
        self.counters.refused(&refusal);
        tracing::debug!(client = id.0, request = request.0, %refusal, "refused");
        self.send(id, &Event::Refused { request, refusal }, Vec::new());
    }
}
