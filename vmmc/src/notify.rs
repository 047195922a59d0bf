//! Notifications: what arrives, where it is kept, who runs the handlers (V19 to V26).
//!
//! ```text
//!   link segments --collect--> inbox (one list per process) --dispatch--> handlers, one at a time
//!                         \--> queue of an export opened with `queue`, fetched by the program
//! ```
//!
//! *Collecting* moves entries out of the link segments into private memory, in order, whoever
//! happens to look: so nothing is merged or lost while notifications are blocked (V21), and senders
//! get room back. *Dispatching* runs handlers in the thread that asked for it: inside
//! [`crate::Node::dispatch`], inside a wait, or in the handler thread. Only one handler runs at a
//! time (G9).
//!
//! The block counter is the SHRIMP base library's: for the whole process, nested, and raised by one
//! while a handler runs. That automatic one is kept apart here (`running`), because it belongs to
//! the handler's thread.

use crate::control::message::CloseReason;
use crate::counters::index as count;
use crate::error::UnblockError;
use crate::export::{ExportInner, IncomingLink, Mode};
use crate::id::{LinkId, PeerInfo};
use crate::import::ImportInner;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::transport::engine::Engine as _;
use crate::transport::{Entry, Item};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

/// Something that happened to a buffer. Its data is in memory already (V20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification {
    /// The process at the other end. Of an importer on another node ([`crate::Node::importer_node`])
    /// number and process id are that node's.
    pub from: PeerInfo,
    /// Whether that process is one of another node.
    pub from_elsewhere: bool,
    /// The link it came over: tells importers of one export apart.
    pub link: LinkId,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived (exports only).
    Message {
        /// First byte of the message in the buffer. Within the export, whatever the peer says.
        offset: usize,
        /// Length of the message in bytes; `offset + len` is within the export.
        len: usize,
        /// The last eight bytes of the message as a native-endian number (a shorter message
        /// is extended with zeros), by the sender's word.
        last_word: u64,
    },
    /// The node interface holds back a packet, and all that follow it from that process, because
    /// [`crate::Export::disable`] is in force for a page of it (exports only). Told once, and again when pages of the
    /// export are disabled while it holds: the same one may have been enabled meanwhile.
    Frozen {
        /// First byte of the packet in the buffer.
        offset: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The exporter withdraws, and waits until what is on its way has landed (imports of a network interface only). A
    /// [`Event::Closed`] follows unless the import is ended first.
    Ending,
    /// The link is closed: the peer unexported, unimported, died or misbehaved (V26). It is the
    /// last notification of its link.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// A function that is called with each notification of a buffer.
pub type Handler = Box<dyn FnMut(Notification) + Send>;

/// Whose handler runs.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Export(Arc<ExportInner>, Arc<IncomingLink>),
    Import(Arc<ImportInner>),
}

#[derive(Debug)]
struct Queued {
    target: Target,
    notification: Notification,
}

/// The list of a process.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Notifications that ever came to queues which the program fetches from.
    to_fetch: AtomicU64,
    /// How many they were when [`Inbox::has_more_to_fetch`] was asked last.
    told_of: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
    /// Explicit blocks. The automatic one is `running`.
    blocks: u32,
    /// The thread that runs a handler now.
    running: Option<ThreadId>,
}

/// A link whose peer wrote nonsense; the caller closes it.
pub(crate) struct Faulty(pub(crate) Arc<ExportInner>, pub(crate) Arc<IncomingLink>);

impl Inbox {
    /// Moves what is in a link's segment to where it belongs, at most up to the link's backlog.
    /// Returns whether anything was moved.
    pub(crate) fn collect(
        &self,
        export: &Arc<ExportInner>,
        link: &Arc<IncomingLink>,
        backlog: usize,
    ) -> Result<bool, Faulty> {
        if !link.shm.has_news() {
            return Ok(false);
        }
        // Held while entries move, so that two collectors keep them in order.
        let mut state = self.state.lock();
        let room = backlog.saturating_sub(link.queued.load(Ordering::Relaxed));
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        let result = link.shm.take(limit, export.len as u64, |item| {
            let Entry { offset, len, last_word } = item.entry();
            let (offset, len) = (offset as usize, len as usize); // within `export.len`, a usize
            let event = match item {
                Item::Message(_) => Event::Message { offset, len, last_word },
                Item::Frozen(_) => Event::Frozen { offset, len },
            };
            let notification = link.notification(event);
            self.place(&mut state, export, link, notification);
        });
        drop(state);
        match result {
            Ok(0) => Ok(false),
            Ok(_) => {
                link.peer.wake(); // it may wait for room
                Ok(true)
            }
            Err(_) => Err(Faulty(export.clone(), link.clone())),
        }
    }

    /// Puts one notification where the export's mode says.
    fn place(
        &self,
        state: &mut State,
        export: &Arc<ExportInner>,
        link: &Arc<IncomingLink>,
        notification: Notification,
    ) {
        let is_message = matches!(notification.event, Event::Message { .. });
        let discard = is_message && !export.accepting.load(Ordering::Relaxed);
        match &export.mode {
            _ if discard => export.local.meter.add(count::NOTIFIES_DISCARDED, 1),
            Mode::Ignore if is_message => export.local.meter.add(count::NOTIFIES_DISCARDED, 1),
            Mode::Ignore => {}
            Mode::Queue(queue) => {
                link.queued.fetch_add(1, Ordering::Relaxed);
                queue.lock().push_back((notification, link.clone()));
                self.to_fetch.fetch_add(1, Ordering::SeqCst);
            }
            Mode::Handler(_) => {
                link.queued.fetch_add(1, Ordering::Relaxed);
                let target = Target::Export(export.clone(), link.clone());
                state.queue.push_back(Queued { target, notification });
            }
        }
    }

    /// Queues the end of an incoming link, behind its last messages.
    pub(crate) fn incoming_closed(
        &self,
        export: &Arc<ExportInner>,
        link: &Arc<IncomingLink>,
        reason: CloseReason,
    ) {
        let notification = link.notification(Event::Closed { reason });
        self.place(&mut self.state.lock(), export, link, notification);
    }

    /// Queues the end of an import, if it has a handler.
    pub(crate) fn import_closed(&self, import: &Arc<ImportInner>, reason: CloseReason) {
        self.tell_import(import, Event::Closed { reason });
    }

    /// Queues what becomes of an import, if it has a handler.
    pub(crate) fn tell_import(&self, import: &Arc<ImportInner>, event: Event) {
        if import.handler.is_none() {
            return;
        }
        let from_elsewhere = import.link.node().is_some();
        let notification =
            Notification { from: import.peer.info, from_elsewhere, link: import.id(), event };
        let target = Target::Import(import.clone());
        self.state.lock().queue.push_back(Queued { target, notification });
    }

    /// Whether notifications have come to queues which the program fetches from, since this was asked last.
    pub(crate) fn has_more_to_fetch(&self) -> bool {
        let count = self.to_fetch.load(Ordering::SeqCst);
        self.told_of.swap(count, Ordering::SeqCst) != count
    }

    /// Whether a dispatch now would run a handler.
    pub(crate) fn is_runnable(&self) -> bool {
        let state = self.state.lock();
        state.blocks == 0 && state.running.is_none() && !state.queue.is_empty()
    }

    /// Runs the next handler, if none runs and notifications are not blocked.
    pub(crate) fn deliver_one(&self) -> bool {
        let Queued { target, notification } = {
            let mut state = self.state.lock();
            if state.blocks > 0 || state.running.is_some() {
                return false;
            }
            let Some(next) = state.queue.pop_front() else { return false };
            state.running = Some(std::thread::current().id());
            next
        };
        let _running = Running(self); // also when the handler panics
        match target {
            Target::Export(export, link) => {
                link.queued.fetch_sub(1, Ordering::Relaxed);
                export.local.meter.add(count::NOTIFIES_DELIVERED, 1);
                if let Mode::Handler(handler) = &export.mode {
                    handler.call(notification);
                }
                export.delivered.fetch_add(1, Ordering::Release);
            }
            Target::Import(import) => {
                import.local.meter.add(count::NOTIFIES_DELIVERED, 1);
                if let Some(handler) = &import.handler {
                    handler.call(notification);
                }
            }
        }
        true
    }

    /// Forgets an export's messages that no handler has seen.
    pub(crate) fn purge_messages(&self, export: &Arc<ExportInner>) {
        let discard = |notification: &Notification, link: &IncomingLink| {
            let message = matches!(notification.event, Event::Message { .. });
            if message {
                link.queued.fetch_sub(1, Ordering::Relaxed);
                export.local.meter.add(count::NOTIFIES_DISCARDED, 1);
            }
            message
        };
        let mut state = self.state.lock();
        state.queue.retain(|queued| match &queued.target {
            Target::Export(owner, link) if Arc::ptr_eq(owner, export) => {
                !discard(&queued.notification, link)
            }
            _ => true,
        });
        if let Mode::Queue(queue) = &export.mode {
            queue.lock().retain(|(notification, link)| !discard(notification, link));
        }
    }

    pub(crate) fn in_handler(&self) -> bool {
        self.state.lock().running == Some(std::thread::current().id())
    }

    pub(crate) fn block(&self) {
        let mut state = self.state.lock();
        state.blocks = state.blocks.saturating_add(1);
    }

    /// See [`crate::Node::unblock_notifications`].
    pub(crate) fn unblock(&self) -> Result<u32, UnblockError> {
        let mut state = self.state.lock();
        let in_handler = state.running == Some(std::thread::current().id());
        match (state.blocks, in_handler) {
            // The counter stands at one: the automatic block of the handler we are in.
            (0, true) => Err(UnblockError::InHandler),
            // Nothing is blocked. SBL does not say what it returns; a loop
            // `while unblock() == 0 {}` must end, so: positive.
            (0, false) => Ok(1),
            (_, in_handler) => {
                state.blocks -= 1;
                Ok(u32::from(state.blocks == 0 && !in_handler))
            }
        }
    }
}

/// The automatic block while a handler runs.
struct Running<'i>(&'i Inbox);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running = None;
    }
}
