//! The process page of a library that lives inside an unmodified program and talks to the daemon
//! itself: counted from the first instruction on, shown to `shrimp stat` once there is a daemon,
//! and written to a file at the end of the process for tests.

use crate::control::message::Role;
use crate::counters::{Counters, Tally, thread_stripe};
use crate::layout::{self, page};
use crate::mem::View;
use crate::notes::Notes;
use crate::sys::{Fd, memfd, mmap};
use crate::word::Word;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Names what a library counts: `name: "what it is"` each. Makes the enum `Counter`, which indexes
/// the page, and `NAMES` for [`LibraryPage::new`].
#[macro_export]
macro_rules! library_counters {
    ($($name:ident: $doc:literal),* $(,)?) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(non_camel_case_types)]
        pub enum Counter { $(#[doc = $doc] $name),* }

        /// Names by number.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// A page, made by [`LibraryPage::init`]. Meant for a `static`.
///
/// It is private memory until the process first talks to the daemon; then the same addresses
/// become a shared memory file, sealed so that nobody else can write it.
#[derive(Debug)]
pub struct LibraryPage {
    role: Role,
    names: &'static [&'static str],
    /// Null before `init`.
    start: AtomicPtr<u8>,
    /// A thread writes notes.
    noting: AtomicBool,
}

/// Turns before a note is given up: many times what another one takes.
const TURNS: u32 = 1000;

impl LibraryPage {
    /// A page that counts nothing yet. `names` are the counters, by number, at most
    /// [`page::COUNTERS`].
    #[must_use]
    pub const fn new(role: Role, names: &'static [&'static str]) -> LibraryPage {
        let (start, noting) = (AtomicPtr::new(std::ptr::null_mut()), AtomicBool::new(false));
        LibraryPage { role, names, start, noting }
    }

    #[inline]
    fn view(&self) -> Option<View<'static>> {
        let start = NonNull::new(self.start.load(Ordering::Relaxed))?;
        // SAFETY: mapped by `init` for the life of the process, `page::LEN` bytes; only accessed
        // through views.
        Some(unsafe { View::from_raw(start, page::LEN) })
    }

    /// Makes the page, private for now. Once, at load.
    pub fn init(&self) {
        if let Ok(start) = mmap::map_private_anonymous(page::LEN) {
            self.start.store(start.as_ptr(), Ordering::Relaxed);
            self.dress();
        }
    }

    /// Writes head and names.
    fn dress(&self) {
        let Some(view) = self.view() else { return };
        let set = |at, value| {
            if let Ok(word) = view.word32(at) {
                word.store(value, Ordering::Relaxed);
            }
        };
        set(layout::HEAD_VERSION, layout::VERSION);
        set(layout::HEAD_BYTES, page::LEN as u32);
        set(page::PID, rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
        set(page::PID + 4, self.role as u32);
        set(page::CPU, u32::MAX);
        Counters::new(view).name_all(self.names);
        if let Ok(magic) = view.word64(layout::HEAD_MAGIC) {
            magic.store(page::MAGIC, Ordering::Release);
        }
    }

    /// Turns the page into a shared one that the daemon can hand to `shrimp stat`, keeping what
    /// was counted. Returns its descriptor.
    pub fn share(&self) -> Option<Fd> {
        let view = self.view()?;
        let fd = memfd::create("vmmc-library-page", page::LEN as u64).ok()?;
        let mut copy = [0u8; page::LEN];
        view.read(0, &mut copy).ok()?;
        let whole = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::ReadWrite).ok()?;

        View::of(&whole).write(0, &copy).ok()?;
        // SAFETY: the range is the page that `init` mapped and that belongs to this module; no
        // Rust reference points into it. What other threads count or note between copy and swap is lost.
        unsafe {
            mmap::replace_with_shared(view.as_ptr(), page::LEN, &fd, 0, mmap::Access::ReadWrite)
        }
        .ok()?;
        memfd::seal_single_writer(&fd).ok()?;
        Some(fd)
    }

    /// In a forked child: a private page of its own, all zero, so that the parent's is not
    /// counted in.
    pub fn after_fork(&self) {
        self.noting.store(false, Ordering::Relaxed); // who held it is not here
        let Some(view) = self.view() else { return };
        // SAFETY: as in `share`.
        if unsafe { mmap::replace_with_private(view.as_ptr(), page::LEN) }.is_ok() {
            self.dress();
        }
    }

    /// Counts.
    #[inline]
    pub fn add(&self, counter: usize, amount: u64) {
        self.add_in(thread_stripe(), counter, amount);
    }

    /// The same, for a caller that knows its [`thread_stripe`].
    #[inline]
    pub fn add_in(&self, stripe: usize, counter: usize, amount: u64) {
        if let Some(view) = self.view() {
            Counters::new(view).tally_of(stripe).add(counter, amount);
        }
    }

    /// For several additions in a row: where this thread counts, looked up once.
    #[inline]
    #[must_use]
    pub fn tally(&self) -> Option<Tally<'static>> {
        self.view().map(|view| Counters::new(view).tally())
    }

    /// The value of a counter in this process.
    #[must_use]
    pub fn get(&self, counter: usize) -> u64 {
        self.view().map_or(0, |view| Counters::new(view).get(counter))
    }

    /// Notes that `counter` says how it is with `subject()`, if there is one; see [`Notes`]. In a handler of a
    /// signal that interrupted this very thread at a note, nothing is noted.
    pub fn note(&self, subject: impl FnOnce() -> Option<u64>, counter: usize) {
        if let Some(view) = self.view()
            && let Some(subject) = subject()
        {
            self.alone(|| Notes::new(view).note(subject, counter));
        }
    }

    /// Writes notes with nobody beside. Given up after a while: we may be in the handler of a signal that
    /// interrupted whoever has the turn, and then waiting is for ever.
    fn alone(&self, write: impl FnOnce()) {
        for turn in 0..TURNS {
            if !self.noting.swap(true, Ordering::Acquire) {
                write();
                return self.noting.store(false, Ordering::Release);
            }
            if turn < TURNS / 10 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Nothing is to be said of `subject()` any more. Not asked for where nothing was ever said.
    #[inline]
    pub fn strike(&self, subject: impl FnOnce() -> Option<u64>) {
        if let Some(notes) = self.view().map(Notes::new)
            && notes.are_made()
            && let Some(subject) = subject()
        {
            self.alone(|| notes.strike(subject));
        }
    }

    /// Appends one line to `path`: process id and every counter that is not zero.
    pub fn report(&self, path: &Path) {
        use rustix::fs::{Mode, OFlags};
        let Some(view) = self.view() else { return };
        let mut line = format!("pid={}", rustix::process::getpid().as_raw_nonzero());
        for (name, value) in Counters::new(view).snapshot() {
            if value != 0 {
                line.push_str(&format!(" {name}={value}"));
            }
        }
        line.push('\n');
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            let file = Fd::from(file);
            let _ = rustix::io::write(&file, line.as_bytes());
        }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_was_counted_privately_is_there_when_the_page_is_shared() {
        static PAGE: LibraryPage = LibraryPage::new(Role::Rpc, &["calls", "replies"]);
        PAGE.add(0, 1); // before `init`: not counted, no harm
        PAGE.init();
        PAGE.add(0, 3);
        let fd = PAGE.share().unwrap();
        PAGE.add(1, 4);
        assert_eq!((PAGE.get(0), PAGE.get(1)), (3, 4));
        let mapping = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::Read).unwrap();

        let view = View::of(&mapping);
        let seen = Counters::new(view).snapshot();
        assert_eq!(seen, [("calls".to_owned(), 3), ("replies".to_owned(), 4)]);
    }

    /// Two threads that note the same things at once: no subject stands twice, and none with another's reason.
    #[test]
    fn threads_note_one_at_a_time() {
        static PAGE: LibraryPage = LibraryPage::new(Role::Rpc, &["even", "odd"]);
        static ARRIVED: AtomicU64 = AtomicU64::new(0);
        PAGE.init();
        let notes = || Notes::new(PAGE.view().unwrap()).all();
        // Both go on at the same instant, as they would not if they slept.
        let meet = |count: u64| {
            ARRIVED.fetch_add(1, Ordering::SeqCst);
            while ARRIVED.load(Ordering::SeqCst) < 2 * count {
                std::thread::yield_now();
            }
        };
        let work = |check: bool| {
            let mut faults = Vec::new();
            for round in 0..2000 {
                meet(2 * round + 1);
                for subject in 8 * round..8 * round + 8 {
                    PAGE.note(|| Some(subject), (subject % 2) as usize);
                }
                meet(2 * round + 2);
                let mut subjects = HashSet::new();
                for (subject, counter) in if check { notes() } else { Vec::new() } {
                    if subject % 2 != counter as u64 || !subjects.insert(subject) {
                        faults.push((round, subject, counter));
                    }
                }
            }
            faults
        };
        let faults = std::thread::scope(|scope| {
            scope.spawn(|| work(false));
            work(true)
        });
        assert_eq!(faults, [], "round, subject and counter of notes that are mixed or stand twice");
    }

    /// As in the handler of a signal that came while the thread was noting.
    #[test]
    fn who_interrupts_a_note_does_not_wait_for_it() {
        static PAGE: LibraryPage = LibraryPage::new(Role::Rpc, &["calls"]);
        PAGE.init();
        PAGE.alone(|| PAGE.note(|| Some(7), 0));
        assert_eq!(Notes::new(PAGE.view().unwrap()).all(), []);
        PAGE.note(|| Some(7), 0);
        assert_eq!(Notes::new(PAGE.view().unwrap()).all(), [(7, 0)]);
    }
}
