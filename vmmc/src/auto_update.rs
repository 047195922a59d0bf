//! Automatic update by an explicit writer: stores that are made through it go to the export.
//!
//! The paper's hardware watched the memory bus; between machines nothing of that kind exists, so the program
//! says what it stores. What the outgoing page table of that hardware did is kept: consecutive
//! stores are **combined** into one packet if wanted (H5), a packet ends with its page (H8), a
//! **timer** sends what has waited (H6), and each packet **interrupts** the receiver if wanted (H14). Without combining each
//! store is a packet (H4). Packets of a writer that combines go together, as many as 64 KiB hold: what waits is the last
//! packet and those before it, the paper's outgoing FIFO (H16).
//!
//! On one machine the same writer stores into the export's own pages: there is nothing to combine, and nothing
//! waits; what a store has in one page counts as a packet. ([`crate::Import::bind`] needs no writer at all there.)
//!
//! **Order** (V13): the stores of one writer are seen in their order, combined or not, and an aligned word of 2, 4 or 8 bytes
//! is seen whole; so a flag goes through the writer like the data before it. The bytes of one store are seen in ascending
//! order. What waits arrives when there are 64 KiB of it, it times out, or is flushed; deliberate
//! updates, flags and notifications of the import do not wait for it (H7: a combining writer without a timer
//! may hold its last packets for ever).

use crate::error::{Forked, SendError, SendNotifyError, SystemError, WaitError, system};
use crate::import::{Import, LinkOwner, send_error};
use crate::sync::{Condvar, Mutex, MutexGuard, Ordering};
use crate::sys::thread::spawn_quiet;
use crate::transport::Entry;
use crate::transport::engine::Engine;
use crate::transport::net::frame::PAGE;
use crate::transport::net::outbox::Outbox;
use crate::wait::deadline_after;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Settings of a writer: what an entry of the paper's outgoing page table had for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combining {
    /// Whether consecutive stores become one packet.
    pub combine: bool,
    /// With combining: how long packets wait for more at most, from the last store on, and until a [`Run`] is over. `None`: until
    /// there are 64 KiB of them, or a flush.
    pub timer: Option<Duration>,
    /// The sender's half of the interrupt: each packet is a notification, too, once its bytes are there, for a receiver that
    /// takes them (a handler, a queue). Its last word is that of the packet.
    pub notify: bool,
}

impl Combining {
    /// Each store is a packet.
    pub const OFF: Combining = Combining { combine: false, timer: None, notify: false };
    /// Consecutive stores are one packet; packets go together, at a flush at the latest.
    pub const ON: Combining = Combining { combine: true, timer: None, notify: false };

    /// Consecutive stores are one packet; packets go when nothing is stored for `timer`.
    #[must_use]
    pub const fn within(timer: Duration) -> Combining {
        Combining { combine: true, timer: Some(timer), notify: false }
    }

    /// The same, with [`Combining::notify`].
    #[must_use]
    pub const fn notifying(self) -> Combining {
        Combining { notify: true, ..self }
    }
}

/// A writer; see the module. Made by [`Import::auto_update`]; the import cannot be ended while it
/// lives. Dropping it flushes.
#[derive(Debug)]
pub struct AutoUpdate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    owner: Arc<LinkOwner>,
    combining: Combining,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What waits.
    outbox: Outbox,
    /// When the timer sends it.
    due: Option<Instant>,
    /// Why the timer could not.
    failed: Option<SendNotifyError>,
    stop: bool,
}

impl Import {
    /// A writer whose stores update this import. Needs [`crate::Rights::WRITE`].
    ///
    /// # Errors
    /// [`SystemError`] when the timer's thread cannot be made.
    pub fn auto_update(&self, combining: Combining) -> Result<AutoUpdate, SystemError> {
        let shared = Arc::new(Shared {
            owner: self.owner.clone(),
            combining,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        if combining.timer.is_some() && shared.gathers() {
            let timer = shared.clone();
            spawn_quiet("vmmc-update", move || timer.run_timer())
                .map_err(system("thread of an update timer"))?;
        }
        self.inner().bindings.fetch_add(1, Ordering::AcqRel);
        Ok(AutoUpdate { shared })
    }
}

impl Shared {
    /// To be asked before a lock: in a forked child whoever had it is not there to give it back.
    fn check(&self) -> Result<(), Forked> {
        self.owner.inner.local.check()
    }

    /// Completes the packet that is open, if one is.
    fn complete(&self, outbox: &mut Outbox) -> Result<(), SendNotifyError> {
        let inner = &self.owner.inner;
        let complete = inner.link.complete(outbox, self.combining.notify);
        Ok(complete.map_err(|error| send_error(error, inner.peer.info))?)
    }

    /// Sends what waits.
    fn send(&self, state: &mut State) -> Result<(), SendNotifyError> {
        state.due = None;
        if state.outbox.is_empty() {
            return Ok(());
        }
        let inner = &self.owner.inner;
        let sent = self.complete(&mut state.outbox).and_then(|()| {
            inner.may_send()?;
            let sent = inner.link.post(&state.outbox);
            Ok(sent.map_err(|error| send_error(error, inner.peer.info))?)
        });
        state.outbox.clear();
        sent
    }

    /// A packet of its own, at once.
    fn packet(&self, at: usize, bytes: &[u8]) -> Result<(), SendNotifyError> {
        let inner = &self.owner.inner;
        let notify = self.combining.notify;
        inner.may_send()?;
        let told = inner.link.update(at, bytes, notify);
        let told = told.map_err(|error| send_error(error, inner.peer.info))?;
        if notify && !told {
            self.import().notify_waiting(Entry::of(at, bytes))?;
        }
        Ok(())
    }

    fn import(&self) -> Import {
        Import { owner: self.owner.clone() }
    }

    /// Whether packets are gathered. Otherwise each store is one at once, and nothing of it is under the lock: it may wait for
    /// room, and run handlers meanwhile, which may store themselves.
    fn gathers(&self) -> bool {
        self.combining.combine && self.owner.inner.link.gathers()
    }

    fn check_bounds(&self, offset: usize, bytes: &[u8]) -> Result<(), SendError> {
        let size = self.owner.inner.link.len();
        if offset.checked_add(bytes.len()).is_none_or(|end| end > size) {
            let len = bytes.len();
            return Err(crate::mem::OutOfBounds { offset, len, size, align: 1 }.into());
        }
        Ok(())
    }

    /// Stores what is within bounds. `state`: where packets are gathered.
    fn store(
        &self,
        mut state: Option<&mut State>,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SendNotifyError> {
        if let Some(error) = state.as_mut().and_then(|state| state.failed.take()) {
            return Err(error);
        }
        let mut rest = (offset, bytes);
        while !rest.1.is_empty() {
            let room = (PAGE - rest.0 as u64 % PAGE) as usize;
            let (now, later) = rest.1.split_at(rest.1.len().min(room));
            match &mut state {
                Some(state) => self.gather(state, rest.0, now)?,
                None => self.packet(rest.0, now)?,
            }
            rest = (rest.0 + now.len(), later);
        }
        Ok(())
    }

    /// Stores within a page.
    fn gather(&self, state: &mut State, at: usize, bytes: &[u8]) -> Result<(), SendNotifyError> {
        let inner = &self.owner.inner;
        if !state.outbox.follows(at) {
            self.complete(&mut state.outbox)?;
            if state.outbox.is_full() {
                self.send(state)?;
            }
            if state.outbox.is_empty() {
                inner.may_send()?;
                inner.check_open().map_err(SendError::from)?;
            }
            state.outbox.begin(at);
        }
        state.outbox.extend(bytes);
        if let Some(timer) = self.combining.timer {
            let first = state.due.is_none();
            state.due = deadline_after(Some(timer));
            if first {
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    fn run_timer(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            match state.due {
                Some(due) if due <= Instant::now() => {
                    if let Err(error) = self.send(&mut state) {
                        state.failed = Some(error);
                    }
                }
                due => state = self.changed.wait(state, due),
            }
        }
    }
}

impl AutoUpdate {
    /// Stores `bytes` at `offset`. Any alignment and size (H9). With [`Combining::notify`] it waits while the receiver's queue is
    /// full.
    ///
    /// # Errors
    /// See [`SendNotifyError`]; also why an earlier packet could not be sent by the timer.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), SendNotifyError> {
        self.shared.check().map_err(SendError::from)?;
        self.shared.check_bounds(offset, bytes)?;
        let mut state = self.shared.gathers().then(|| self.shared.state.lock());
        self.shared.store(state.as_deref_mut(), offset, bytes)
    }

    /// The writer for a run of stores, of which none has to exclude other threads: a store of 64 B takes some 10 ns instead of 28. The
    /// timer waits until the run is over, so nothing may be waited for in between that only comes when it has sent.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn run(&mut self) -> Result<Run<'_>, Forked> {
        self.shared.check()?;
        let state = self.shared.gathers().then(|| self.shared.state.lock());
        Ok(Run { shared: &self.shared, state })
    }

    /// Sends what waits. It comes before everything that this thread sends afterwards.
    ///
    /// # Errors
    /// As [`AutoUpdate::store`].
    pub fn flush(&self) -> Result<(), SendNotifyError> {
        self.shared.check().map_err(SendError::from)?;
        let mut state = self.shared.state.lock();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        self.shared.send(&mut state)
    }

    /// Flushes, and waits until everything is in the exporter's memory.
    ///
    /// # Errors
    /// [`WaitError::Closed`] when the link has ended; others as [`Import::fence`].
    pub fn fence(&self) -> Result<(), WaitError> {
        match self.flush() {
            Err(SendNotifyError::Send(SendError::Closed(closed))) => Err(WaitError::Closed(closed)),
            Err(SendNotifyError::Send(SendError::Forked(forked))) => Err(WaitError::Forked(forked)),
            _ => self.shared.import().fence(),
        }
    }
}

/// A run of stores; see [`AutoUpdate::run`].
#[derive(Debug)]
pub struct Run<'w> {
    shared: &'w Shared,
    /// Where packets are gathered.
    state: Option<MutexGuard<'w, State>>,
}

impl Run<'_> {
    /// [`AutoUpdate::store`].
    ///
    /// # Errors
    /// As there.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), SendNotifyError> {
        self.shared.check().map_err(SendError::from)?; // a child may have been forked meanwhile
        self.shared.check_bounds(offset, bytes)?;
        self.shared.store(self.state.as_deref_mut(), offset, bytes)
    }
}

impl Drop for AutoUpdate {
    fn drop(&mut self) {
        if self.shared.check().is_err() {
            return;
        }
        let mut state = self.shared.state.lock();
        let _ = self.shared.send(&mut state); // who must know has flushed
        state.stop = true;
        drop(state);
        self.shared.changed.notify_all();
        self.shared.owner.inner.bindings.fetch_sub(1, Ordering::AcqRel);
    }
}
