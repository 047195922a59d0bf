//! Automatic update by plain stores: memory of this process whose changes go to an export of another node.
//!
//! The paper's hardware saw every store on the memory bus. Here the kernel says which pages were stored to since they
//! were last looked at ([`crate::sys::track`]), and those are sent through the writer of
//! [`Import::auto_update`]: consecutive bytes as one packet, a page in no more than its own (H5, H8).
//!
//! **Order.** The flush is the ordering point. What one flush finds is sent in the order of addresses, in whatever
//! order it was stored; a store during a flush goes with it or with the next. After a [`Tracked::fence`] everything
//! stored before it is in the exporter's memory. So a flag for other data is a deliberate update after a
//! flush, and not a store to tracked memory. What the memory holds before reaches
//! nobody, as with a binding on the hardware, but for what [`Tracking::PAGES`] takes along on pages that are stored to.
//!
//! **Several writers of a page** ([`Tracking::SHARED`]). What was last sent, or was there from the start, is kept as a
//! *twin*; only units that differ from it go. So importers that keep to units of their own can store to one page
//! of an export, and a store of the value that was there is none. Without ([`Tracking::PAGES`]) whole pages go,
//! at half the memory.
//!
//! **What is not seen**: the exporter's and others' stores do not come back; stores by a forked child do not occur
//! (it does not have the pages). Nor are bytes that the kernel or a device puts into pages that it pinned before a
//! flush: reads with `O_DIRECT` that are under way, Linux AIO, fixed buffers of `io_uring`. Such reads end elsewhere, and are
//! copied. A first store to a page costs a minor fault, 0.6 to 0.8 us where it was measured (`DESIGN.md`).

use crate::auto_update::{AutoUpdate, Combining};
use crate::counters::index as count;
use crate::error::{
    NotTracked, PropagateError, SendError, StopError, SystemError, TrackError, WaitError, system,
};
use crate::id::Rights;
use crate::import::Import;
use crate::mem::{OutOfBounds, Region, View};
use crate::sync::{Condvar, Mutex};
use crate::sys::mmap;
use crate::sys::thread::spawn_quiet;
use crate::sys::track::Tracker;
use crate::wait::deadline_after;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What of a page that was stored to is sent, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// Length in bytes of what is sent or not sent as a whole, a power of two up to a page. `None`: the page.
    pub unit: Option<usize>,
    /// How long a thread waits after it has looked for stores and sent them, before it looks again; not zero.
    /// `None`: nobody looks until asked to ([`Tracked::flush`]).
    pub every: Option<Duration>,
}

impl Tracking {
    /// Whole pages, when asked: for the only writer of these pages.
    pub const PAGES: Tracking = Tracking { unit: None, every: None };
    /// Words of 8 bytes that changed, when asked: for one of several writers.
    pub const SHARED: Tracking = Tracking { unit: Some(8), every: None };

    /// The same, and without being asked.
    #[must_use]
    pub const fn every(self, interval: Duration) -> Tracking {
        Tracking { every: Some(interval), ..self }
    }
}

/// Memory whose stores update an import; see the module. Made by [`Import::track`]; the import cannot be
/// ended while it lives. Dropping it flushes.
#[derive(Debug)]
pub struct Tracked {
    /// `None` once [`Tracked::end`] has taken it apart.
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Ends before the memory goes.
    tracker: Tracker,
    memory: Region,
    writer: AutoUpdate,
    import: Import,
    /// Where in the import the memory begins.
    at: usize,
    unit: Option<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What the exporter's memory holds of ours; empty without units.
    twin: Vec<u8>,
    /// One page of the memory, as it is sent.
    page: Vec<u8>,
    /// Ranges of bytes that were stored to and not all sent yet: apart from each other, in ascending order.
    dirty: Vec<Range<usize>>,
    stop: bool,
}

impl Import {
    /// Makes plain stores to `memory` update this import from `at` on, from now on. Needs
    /// [`crate::Rights::WRITE`]. A child that is forked meanwhile does not have the memory.
    ///
    /// # Errors
    /// See [`TrackError`]; the memory is given back with it. [`TrackError::System`] with `userfaultfd` or
    /// `PAGEMAP_SCAN` where the kernel has or allows none (`shrimp doctor` says which);
    /// [`Import::auto_update`] needs neither.
    pub fn track(
        &self,
        at: usize,
        memory: Region,
        tracking: Tracking,
    ) -> Result<Tracked, NotTracked> {
        let (tracker, writer) = match self.prepare(at, &memory, tracking) {
            Ok(prepared) => prepared,
            Err(reason) => return Err(NotTracked { memory, reason }),
        };
        let twin = tracking.unit.map_or_else(Vec::new, |_| memory.as_slice().to_vec());
        let page = vec![0; mmap::page_size()];
        let state = State { twin, page, dirty: Vec::new(), stop: false };
        let shared = Shared {
            tracker,
            memory,
            writer,
            import: Import { owner: self.owner.clone() },
            at,
            unit: tracking.unit,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        let mut tracked = Tracked { shared: Some(Arc::new(shared)), thread: None };
        match tracked.begin(tracking.every) {
            Ok(()) => Ok(tracked),
            Err(error) => Err(NotTracked { memory: tracked.end(), reason: error.into() }),
        }
    }

    fn prepare(
        &self,
        at: usize,
        memory: &Region,
        tracking: Tracking,
    ) -> Result<(Tracker, AutoUpdate), TrackError> {
        self.inner().local.check()?;
        self.inner().need(Rights::WRITE)?;
        let (len, size, page) = (memory.len(), self.len(), mmap::page_size());
        if at.checked_add(len).is_none_or(|end| end > size) {
            return Err(OutOfBounds { offset: at, len, size, align: 1 }.into());
        }
        if let Some(unit) = tracking.unit
            && (!unit.is_power_of_two() || unit > page)
        {
            return Err(TrackError::Unit { unit, page });
        }
        if tracking.every == Some(Duration::ZERO) {
            return Err(TrackError::Interval);
        }
        let whole = mmap::round_to_pages(len).unwrap_or(len);
        let tracker = Tracker::new(memory.as_ptr(), whole)
            .map_err(system("userfaultfd and PAGEMAP_SCAN (Linux 6.7)"))?;
        Ok((tracker, self.auto_update(Combining::ON)?))
    }
}

impl Shared {
    /// Sends what was stored since the last time, and what an earlier time found and could not send.
    fn propagate(&self, state: &mut State) -> Result<(), PropagateError> {
        self.import.inner().may_send()?;
        let meter = &self.import.inner().local.meter;
        meter.add(count::TRACK_SCANS, 1);
        // What a scan names is not named again, also when it fails further on.
        let scanned = self.tracker.stored(|range| state.dirty.push(range));
        merge(&mut state.dirty);
        scanned.map_err(system("PAGEMAP_SCAN"))?;
        let (page, len) = (state.page.len(), self.memory.len());
        for range in &state.dirty {
            for start in range.clone().step_by(page) {
                let end = (start + page).min(len);
                let Some(now) = state.page.get_mut(..end.saturating_sub(start)) else { continue };
                self.memory.view().read(start, now).map_err(SendError::from)?;
                meter.add(count::TRACKED_PAGES, 1);
                let Some(unit) = self.unit else {
                    self.writer.store(self.at + start, now)?;
                    continue;
                };
                let Some(twin) = state.twin.get_mut(start..end) else { continue };
                for run in differing(twin, now, unit) {
                    let bytes = now.get(run.clone()).unwrap_or_default();
                    self.writer.store(self.at + start + run.start, bytes)?;
                }
                // What the writer keeps goes below, or with the next flush; it keeps nothing that fails unless the link is over.
                twin.copy_from_slice(now);
            }
        }
        self.writer.flush()?;
        state.dirty.clear();
        Ok(())
    }

    fn run(&self, interval: Duration) {
        let mut state = self.state.lock();
        while !state.stop {
            match self.propagate(&mut state) {
                // What was found is kept, and the next scan may succeed.
                Ok(()) | Err(PropagateError::System(_)) => {}
                // This import sends no more. Whoever flushes hears why.
                Err(PropagateError::Send(_)) => return,
            }
            state = self.changed.wait(state, deadline_after(Some(interval)));
        }
    }
}

/// Puts ranges in ascending order, and those together that meet.
fn merge(ranges: &mut Vec<Range<usize>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let meet = next.start <= last.end;
        if meet {
            last.end = last.end.max(next.end);
        }
        meet
    });
}

/// The runs of whole units in which `now` differs from `twin`: both of one length, the last unit maybe cut.
fn differing(twin: &[u8], now: &[u8], unit: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Most of a page is as it was: that is found by larger blocks.
    let block = unit.max(64);
    for (block_at, (old, new)) in
        (0..).step_by(block).zip(twin.chunks(block).zip(now.chunks(block)))
    {
        if old == new {
            continue;
        }
        for (at, (old, new)) in
            (block_at..).step_by(unit).zip(old.chunks(unit).zip(new.chunks(unit)))
        {
            if old == new {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = at + new.len(),
                _ => runs.push(at..at + new.len()),
            }
        }
    }
    runs
}

impl Tracked {
    fn shared(&self) -> &Shared {
        match &self.shared {
            Some(shared) => shared,
            None => unreachable!("only `end` takes it, and whoever calls that drops the value"),
        }
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.shared().memory.len()
    }

    /// First byte, for plain stores by pointer. Page aligned. Stores go on to be the program's affair, several
    /// threads' too: what a flush takes of a store that is under way is what it finds.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.view().as_ptr()
    }

    /// The memory. In a forked child it is not there: an access faults.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.shared().memory.view()
    }

    /// Sends what was stored. It comes before everything that this thread sends afterwards.
    ///
    /// # Errors
    /// See [`PropagateError`]. What was found and not sent is kept for the next flush.
    pub fn flush(&self) -> Result<(), PropagateError> {
        let shared = self.shared();
        // Before any lock: who had one at a fork is not there to give it back.
        shared.import.inner().local.check().map_err(SendError::from)?;
        shared.propagate(&mut shared.state.lock())
    }

    /// Flushes, and waits until everything is in the exporter's memory.
    ///
    /// # Errors
    /// [`WaitError::Closed`] when the link has ended; others as [`Import::fence`].
    pub fn fence(&self) -> Result<(), WaitError> {
        match self.flush() {
            // The latter cannot be: the memory fits, and automatic update is of any alignment.
            Ok(())
            | Err(PropagateError::Send(SendError::OutOfBounds(_) | SendError::Misaligned { .. })) =>
                {}
            Err(PropagateError::Send(SendError::Closed(error))) => return Err(error.into()),
            Err(PropagateError::Send(SendError::NotGranted(error))) => return Err(error.into()),
            Err(PropagateError::Send(SendError::Forked(error))) => return Err(error.into()),
            Err(PropagateError::System(error)) => return Err(error.into()),
        }
        self.shared().import.fence()
    }

    /// Ends the tracking after a flush and gives the memory back, as a region of this process at the same
    /// address. Children that are forked from then on inherit it.
    ///
    /// # Errors
    /// See [`StopError`]: where the last stores could not be sent, because the exporter has gone or withdrawn its
    /// memory, the memory is in the error.
    pub fn stop(mut self) -> Result<Region, StopError> {
        self.shared().import.inner().local.check()?;
        let flushed = self.flush();
        let memory = self.end();
        if let Err(errno) = memory.leave_to_children() {
            // A slice of it would be a hole in a child. Who stores to it by pointer still finds it.
            std::mem::forget(memory);
            return Err(system("madvise of memory that was tracked")(errno).into());
        }
        match flushed {
            Ok(()) => Ok(memory),
            Err(reason) => Err(StopError::NotSent { memory, reason }),
        }
    }

    /// Starts what looks by itself. The last step, so that what is given back on an error is as it was.
    fn begin(&mut self, every: Option<Duration>) -> Result<(), SystemError> {
        if let (Some(interval), Some(shared)) = (every, self.shared.clone()) {
            let thread = spawn_quiet("vmmc-track", move || shared.run(interval));
            self.thread = Some(thread.map_err(system("thread of tracked memory"))?);
        }
        let memory = &self.shared().memory;
        memory.keep_from_children().map_err(system("madvise of tracked memory"))
    }

    /// Takes everything apart but the memory.
    fn end(&mut self) -> Region {
        self.end_thread();
        match self.shared.take().and_then(Arc::into_inner) {
            Some(shared) => shared.memory,
            None => unreachable!("the thread, which alone shared it, has ended"),
        }
    }

    fn end_thread(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let shared = self.shared();
        shared.state.lock().stop = true;
        shared.changed.notify_all();
        let _ = thread.join(); // it does not panic
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        if shared.import.inner().local.check().is_err() {
            // A forked child, which has no such thread.
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = self.flush(); // who must know has flushed
        self.end_thread();
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_whole_units_and_the_last_is_cut_at_the_end() {
        let twin = [0; 100];
        let mut now = twin;
        assert_eq!(differing(&twin, &now, 8), []);
        (now[7], now[8], now[40], now[99]) = (1, 1, 1, 1);
        assert_eq!(differing(&twin, &now, 8), [0..16, 40..48, 96..100]);
        assert_eq!(differing(&twin, &now, 1), [7..9, 40..41, 99..100]);
        now[7] = 0;
        assert_eq!(differing(&twin, &now, 32), [0..64, 96..100]);
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let mut ranges = vec![8..9, 0..2, 2..3, 4..6, 5..6, 0..1];
        merge(&mut ranges);
        assert_eq!(ranges, [0..3, 4..6, 8..9]);
    }

    proptest! {
        /// Two writers that keep to units of their own do not undo each other's stores.
        #[test]
        fn writers_of_units_of_their_own_leave_both_their_images(
            stores in proptest::collection::vec((0usize..512, any::<u8>(), any::<bool>()), 0..60),
            unit in prop_oneof![Just(1usize), Just(4), Just(8), Just(64)],
        ) {
            let mut target = vec![0; 512];
            let mut copies = [vec![0; 512], vec![0; 512]];
            let mut wanted = target.clone();
            for (at, byte, second) in stores {
                // Even units are the first's, odd ones the second's.
                let who = usize::from(second);
                let at = (at / unit / 2 * 2 + who) * unit + at % unit;
                if at < 512 {
                    copies[who][at] = byte;
                    wanted[at] = byte;
                }
            }
            for now in &copies {
                for run in differing(&[0; 512], now, unit) {
                    target[run.clone()].copy_from_slice(&now[run]);
                }
            }
            prop_assert_eq!(target, wanted);
        }
    }
}
