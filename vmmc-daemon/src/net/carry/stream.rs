//! What is known of one carried connection, to the thread that opens it, its carrier, and the handlers of its links.

use super::carrier::News;
use super::count;
use super::segment::Segment;
use crate::net::lock;
use crate::net::mailbox::Mailbox;
use crate::receive;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use vmmc::control::message::CloseReason;
use vmmc::sys::{Fd, doorbell};
use vmmc::{Event, Node, Notification};

/// How the far end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Bytes go to it.
    Open,
    /// It has ended, in order: its kernel says the rest.
    Ended,
    /// Bytes may be lost.
    Lost,
}

/// What two daemons say to each other while they open a connection: the last word of a message without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// "I have your segment; my process is this user's."
    Greeting {
        /// User id on the node that says it.
        uid: u32,
    },
    /// "It is carried from now on", by the end that is side 0.
    Agreed,
}

const GREETING: u64 = 1 << 32;
const AGREED: u64 = 2 << 32;

impl Said {
    pub(super) fn word(self) -> u64 {
        match self {
            Said::Greeting { uid } => GREETING | u64::from(uid),
            Said::Agreed => AGREED,
        }
    }

    fn of(word: u64) -> Option<Said> {
        match word & !u64::from(u32::MAX) {
            GREETING => Some(Said::Greeting { uid: word as u32 }),
            AGREED => Some(Said::Agreed),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct State {
    standing: Standing,
    /// User of the far end's process, by its daemon's word.
    greeted: Option<u32>,
    agreed: bool,
    /// From here on the far end may use its ring: without us it would wait for ever.
    binding: bool,
    /// Who carries it, and the number it has there.
    carrier: Option<(Arc<Mailbox<News>>, u64)>,
    /// A copy of the process's socket.
    socket: Option<Fd>,
}

impl State {
    /// Shuts the process's connection down, soon: by a copy, which whoever closes ours leaves alone.
    fn shut(&self) {
        if let Some(Ok(copy)) = self.socket.as_ref().map(Fd::try_clone) {
            receive::shut(copy);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) segment: Segment,
    /// The process's doorbell.
    bell: Arc<Fd>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Stream {
    pub(super) fn new(segment: Segment, bell: Arc<Fd>, socket: Option<Fd>) -> Arc<Stream> {
        let state = State {
            standing: Standing::Open,
            greeted: None,
            agreed: false,
            binding: false,
            carrier: None,
            socket,
        };
        Arc::new(Stream { segment, bell, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// What hears of messages of the far end, and of the end of its link, which comes behind them. Runs in the handler
    /// thread, and waits for nobody.
    pub(super) fn on_export(
        self: &Arc<Self>,
        node: &Node,
    ) -> impl FnMut(Notification) + Send + use<> {
        let (stream, node) = (self.clone(), node.clone());
        move |notification| match notification.event {
            Event::Message { len: 0, last_word, .. } => stream.hear(last_word),
            Event::Message { .. } if stream.segment.wakes_process() => {
                doorbell::ring(&*stream.bell);
                node.counters().add(count::WAKES, 1);
            }
            Event::Closed { reason: CloseReason::Unimported } => stream.end(),
            Event::Closed { reason: CloseReason::Unexported } => {} // by us
            Event::Closed { reason } => stream.lose(&format!("{reason:?}")),
            _ => {}
        }
    }

    /// What hears of the end of our link. An orderly one says nothing: it comes another way than the far end's last
    /// messages, and the other link ends behind them.
    pub(super) fn on_import(self: &Arc<Self>) -> impl FnMut(Notification) + Send + use<> {
        let stream = self.clone();
        move |notification| match notification.event {
            Event::Closed { reason: CloseReason::Unexported } => {}
            Event::Closed { reason } => stream.lose(&format!("{reason:?}")),
            _ => {}
        }
    }

    /// The far end may be told that it is carried by what is said next.
    pub(super) fn bind(&self) {
        lock(&self.state).binding = true;
    }

    /// The far end cannot have been told.
    pub(super) fn unbind(&self) {
        lock(&self.state).binding = false;
    }

    fn hear(&self, word: u64) {
        let mut state = lock(&self.state);
        match Said::of(word) {
            Some(Said::Greeting { uid }) => state.greeted = Some(uid),
            Some(Said::Agreed) => state.agreed = true,
            None => tracing::warn!(word, "not what a daemon says of a connection"),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the far end has greeted; its user. `None`: it has not in time, or has ended.
    pub(super) fn wait_greeting(&self, until: Instant) -> Option<u32> {
        self.wait(until, |state| state.greeted)
    }

    /// Waits until the far end has agreed.
    pub(super) fn wait_agreement(&self, until: Instant) -> bool {
        self.wait(until, |state| state.agreed.then_some(())).is_some()
    }

    fn wait<T>(&self, until: Instant, look: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            let found = look(&state);
            let left = until.saturating_duration_since(Instant::now());
            if found.is_some() || state.standing != Standing::Open || left.is_zero() {
                return found;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn standing(&self) -> Standing {
        lock(&self.state).standing
    }

    /// From now on its carrier is told how it stands.
    pub(super) fn set_carrier(&self, door: Arc<Mailbox<News>>, number: u64) {
        lock(&self.state).carrier = Some((door, number));
    }

    /// The far end has ended, in order.
    fn end(&self) {
        self.change(Standing::Ended);
    }

    /// Bytes may be lost: the connection is shut down, so that both its ends see it.
    pub(super) fn lose(&self, why: &str) {
        if self.change(Standing::Lost) {
            tracing::info!(why, "lost a connection to another node");
            doorbell::ring(&*self.bell);
        }
    }

    /// Shuts the process's connection down.
    pub(super) fn shut(&self) {
        lock(&self.state).shut();
    }

    /// Whether it stood otherwise before. Nothing comes after the loss.
    fn change(&self, standing: Standing) -> bool {
        let mut state = lock(&self.state);
        if state.standing == Standing::Lost || state.standing == standing {
            return false;
        }
        state.standing = standing;
        if standing == Standing::Lost && state.binding {
            // Before its carrier hears of it, and closes the copy.
            state.shut();
        }
        let carrier = state.carrier.clone();
        drop(state);
        self.changed.notify_all();
        if let Some((door, number)) = carrier {
            door.put(News::Changed(number));
        }
        true
    }

    /// Closes the copy of the socket.
    pub(super) fn close(&self) {
        let socket = lock(&self.state).socket.take();
        socket.into_iter().for_each(receive::close);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}
