//! Flag words: how the other side learns that data is there (V17).
//!
//! A flag is stored with release after the data and loaded with acquire, so whoever sees the flag
//! sees the data. [`Flag::signal`] also wakes the other side if it sleeps, which is the only thing
//! here that can cost a system call.

use crate::binding::Binding;
use crate::error::{Closed, NotGranted, SendError, WaitError};
use crate::export::Export;
use crate::id::Rights;
use crate::import::{Import, send_error};
use crate::sync::Ordering;
use crate::transport::engine::Engine;
use crate::wait::deadline_after;
use crate::word::Word;
use std::time::{Duration, Instant};

/// First pause between two loads of another node's word; they double.
const NET_POLL: Duration = Duration::from_micros(20);
/// Longest pause.
const NET_POLL_MAX: Duration = Duration::from_millis(1);

/// Whose flag it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side<'a> {
    Export(&'a Export),
    Import(&'a Import),
    Binding(&'a Binding),
    /// Of an import that is not mapped here, at this offset. The flag's own word is not used.
    Elsewhere(&'a Import, usize),
}

/// A word of an export, an import or a binding. Any number of threads may use it.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a, W> {
    word: W,
    side: Side<'a>,
}

impl<'a, W: Word + Copy> Flag<'a, W> {
    pub(crate) fn new(word: W, side: Side<'a>) -> Self {
        Flag { word, side }
    }

    /// The present value, with acquire: what was written before the flag is visible after this. Not for a forked child, which
    /// does not have the memory of an import or a binding.
    ///
    /// # Errors
    /// [`NotGranted`] on an import without [`Rights::READ`] (V3).
    #[inline]
    pub fn load(&self) -> Result<W::Value, NotGranted> {
        match self.side {
            Side::Import(import) => import.inner().need(Rights::READ)?,
            Side::Elsewhere(import, offset) => {
                import.inner().need(Rights::READ)?;
                return Ok(self.fetch(import, offset));
            }
            _ => {}
        }
        Ok(self.word.load(Ordering::Acquire))
    }

    /// Stores with release: whoever sees the value sees what this thread wrote and sent before. Wakes
    /// nobody; for receivers that are known to poll, and for all but the last of several flags.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)] // whose flag it is, is known where it is made
    pub fn store(&self, value: W::Value) -> Result<(), SendError> {
        match self.side {
            Side::Export(export) => {
                export.node().local.check()?;
                self.word.store(value, Ordering::Release);
                Ok(())
            }
            Side::Import(import) => {
                let inner = import.inner();
                inner.may_send()?;
                Ok(inner.link.store(self.word, value)?)
            }
            Side::Elsewhere(import, offset) => self.ship(import, offset, value, false),
            Side::Binding(binding) => {
                binding.inner().local.check()?;
                binding.inner().link.check_open()?;
                self.word.store(value, Ordering::Release);
                Ok(())
            }
        }
    }

    /// [`Flag::store`], then wakes the other side if it sleeps: importers if this is an export's
    /// flag, the exporter if it is an import's or a binding's. A fence when it is awake; one system call per sleep of
    /// the receiver.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)] // as `store`
    pub fn signal(&self, value: W::Value) -> Result<(), SendError> {
        if let Side::Elsewhere(import, offset) = self.side {
            return self.ship(import, offset, value, true);
        }
        self.store(value)?;
        match self.side {
            Side::Elsewhere(..) => {}
            Side::Export(export) => export.inner().wake_importers(),
            Side::Import(import) => drop(import.inner().peer.wake()),
            Side::Binding(binding) => drop(binding.inner().peer.wake()),
        }
        Ok(())
    }

    /// Loads a word of another node.
    fn fetch(&self, import: &Import, offset: usize) -> W::Value {
        let width = size_of::<W::Value>();
        let value = import.inner().link.fetch(offset, width);
        match W::Value::try_from(value) {
            Ok(value) => value,
            Err(_) => unreachable!("a word of {width} bytes was loaded"),
        }
    }

    /// Stores a word of another node.
    fn ship(
        &self,
        import: &Import,
        offset: usize,
        value: W::Value,
        wake: bool,
    ) -> Result<(), SendError> {
        let inner = import.inner();
        inner.may_send()?;
        let word = (value.into(), size_of::<W::Value>());
        let shipped = inner.link.ship(offset, word, wake);
        shipped.map_err(|error| send_error(error, inner.peer.info))
    }

    /// Waits until `done` accepts the value, and returns it. Spins and then sleeps by the node's policy;
    /// handlers of notifications may run in this thread before it sleeps. (A word of another node is
    /// loaded again and again, at most a millisecond apart, and handlers do not run: to be told
    /// at once, export a word and let the other side write it.)
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`WaitError::Closed`] when the other side is gone: for an
    /// import or binding, when its link closes; for an export, when an importer died or
    /// misbehaved and no wait has reported that yet (an orderly unimport ends no wait).
    /// [`WaitError::NotGranted`] on an import without [`Rights::READ`].
    #[inline(always)] // what is found at a glance stays in registers
    pub fn wait_until(
        &self,
        mut done: impl FnMut(W::Value) -> bool,
        timeout: Option<Duration>,
    ) -> Result<W::Value, WaitError> {
        if let Some(value) = self.glance(&mut done)? {
            return Ok(value);
        }
        self.wait(&mut done, timeout)
    }

    /// The first looks of a wait, at the word alone: how things end is told by the looks after these,
    /// and a peer that stores and then dies has stored.
    #[inline(always)]
    fn glance(
        &self,
        done: &mut impl FnMut(W::Value) -> bool,
    ) -> Result<Option<W::Value>, WaitError> {
        let node = match self.side {
            Side::Export(export) => export.node(),
            Side::Binding(binding) => binding.node(),
            Side::Import(import) => {
                import.inner().need(Rights::READ)?;
                import.node()
            }
            // Each look at it is a question to another node.
            Side::Elsewhere(..) => return Ok(None),
        };
        node.local.check()?;
        Ok(node.glance(|| {
            let value = self.word.load(Ordering::Acquire);
            done(value).then_some(value)
        }))
    }

    /// The rest of a wait, after [`Flag::glance`].
    #[cold]
    fn wait(
        &self,
        mut done: impl FnMut(W::Value) -> bool,
        timeout: Option<Duration>,
    ) -> Result<W::Value, WaitError> {
        // Look for the end first and at the word second: a peer that stores and then dies has
        // stored.
        let mut look = |end: Option<Closed>| {
            let value = self.word.load(Ordering::Acquire);
            match end {
                _ if done(value) => Some(Ok(value)),
                Some(end) => Some(Err(WaitError::Closed(end))),
                None => None,
            }
        };
        match self.side {
            Side::Export(export) => {
                let inner = export.inner();
                let reported = inner.ends_reported();
                export.node().wait_on(
                    timeout,
                    |cpu| inner.shares_cpu(cpu),
                    |_| {
                        if !inner.has_end_since(reported) {
                            return look(None);
                        }
                        let end = inner.end_since(reported);
                        let found = look(end.map(|(_, end)| end))?;
                        if let (Err(_), Some((number, _))) = (&found, end) {
                            inner.has_reported(number);
                        }
                        Some(found)
                    },
                )
            }
            Side::Import(import) => {
                let inner = import.inner();
                let shares = |cpu| inner.peer.was_on(cpu);
                import.node().wait_on(timeout, shares, |_| look(inner.link.check_open().err()))
            }
            Side::Elsewhere(import, offset) => {
                import.inner().need(Rights::READ)?;
                let inner = import.inner();
                let deadline = deadline_after(timeout);
                let mut pause = NET_POLL;
                loop {
                    import.node().local.check()?;
                    let end = inner.link.check_open().err();
                    let value = self.fetch(import, offset);
                    match end {
                        _ if done(value) => return Ok(value),
                        Some(end) => return Err(WaitError::Closed(end)),
                        None => {}
                    }
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(WaitError::TimedOut { after: timeout.unwrap_or_default() });
                    }
                    inner.link.doze(pause);
                    pause = (2 * pause).min(NET_POLL_MAX);
                }
            }
            Side::Binding(binding) => {
                let inner = binding.inner();
                let shares = |cpu| inner.peer.was_on(cpu);
                binding.node().wait_on(timeout, shares, |_| look(inner.link.check_open().err()))
            }
        }
    }
}
