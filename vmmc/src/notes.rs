//! Notes in the process page: why a thing of the process is as it is, for `shrimp stat`.
//!
//! A counter says how often something was decided; a note says about what: the number by which the kernel knows the
//! thing (a socket's inode), and which counter counted the decision. There is room for the latest
//! [`page::NOTES`]. One process writes them, rarely, one thread at a time ([`crate::library_page`] sees to that);
//! anybody reads them.
//!
//! A reader never gets one subject with another's reason. The writer says "nothing" of a place before it names
//! another subject there, so who has read the new subject finds the old reason gone. The same reason may be there
//! again only after the place has been given away once more, for which all others had to be given away before:
//! the count of notes made tells. Each store releases and each load acquires; nothing needs a total order.

use crate::layout::page;
use crate::mem::View;
use crate::sync::Ordering;
use crate::word::{MappedU64, Word};

/// Length of one note: the subject, and the counter's number plus one, 0 for none.
const LEN: usize = 16;

const _: () = assert!(page::NOTES_AT + page::NOTES * LEN <= page::LEN, "notes run over the end");

/// The notes in a process page.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'m> {
    page: View<'m>,
}

impl<'m> Notes<'m> {
    /// The notes of a page.
    ///
    /// # Panics
    /// When `page` is shorter than [`page::LEN`]: our own fault, lengths are checked at mapping.
    #[must_use]
    pub fn new(page: View<'m>) -> Notes<'m> {
        assert!(page.len() >= page::LEN, "process page too short");
        Notes { page }
    }

    fn word(self, place: usize, at: usize) -> Option<MappedU64<'m>> {
        self.page.word64(page::NOTES_AT + place * LEN + at).ok()
    }

    /// How many were made; the oldest make room for more than [`page::NOTES`].
    fn made(self) -> Option<MappedU64<'m>> {
        self.page.word64(page::NOTES_MADE).ok()
    }

    /// The places that are said to be of `subject`.
    fn places_of(self, subject: u64) -> impl Iterator<Item = usize> {
        let made = self.made().map_or(0, |made| made.load(Ordering::Relaxed));
        let used = page::NOTES.min(usize::try_from(made).unwrap_or(page::NOTES));
        (0..used).filter(move |&place| {
            self.word(place, 0).is_some_and(|word| word.load(Ordering::Relaxed) == subject)
        })
    }

    /// Notes that `counter` says how it is with `subject`, in place of what was noted of it. One thread at a
    /// time.
    pub fn note(self, subject: u64, counter: usize) {
        let Some(made) = self.made() else { return };
        let place = self.places_of(subject).next().unwrap_or_else(|| {
            let number = made.fetch_add(1, Ordering::Release) % page::NOTES as u64;
            number as usize
        });
        if let (Some(of), Some(what)) = (self.word(place, 0), self.word(place, 8)) {
            // Nobody is to read the new subject with the old counter.
            what.store(0, Ordering::Release);
            put(&of, &what, subject, counter as u64);
        }
    }

    /// Whether one was ever made.
    #[inline]
    #[must_use]
    pub fn are_made(self) -> bool {
        self.made().is_some_and(|made| made.load(Ordering::Relaxed) != 0)
    }

    /// Nothing is to be said of `subject` any more. One thread at a time.
    pub fn strike(self, subject: u64) {
        for what in self.places_of(subject).filter_map(|place| self.word(place, 8)) {
            what.store(0, Ordering::Release);
        }
    }

    /// What is noted: subject, and the number of a counter. The page may be another process's, and say anything:
    /// numbers of counters that cannot be are left out.
    #[must_use]
    pub fn all(self) -> Vec<(u64, usize)> {
        let one = |place| {
            let (of, what) = (self.word(place, 0)?, self.word(place, 8)?);
            let (subject, counter) = look(&self.made()?, &of, &what, page::NOTES as u64)?;
            let counter = usize::try_from(counter).ok()?;
            (counter < page::COUNTERS).then_some((subject, counter))
        };
        (0..page::NOTES).filter_map(one).collect()
    }
}

/// Fills a place of which nothing is said.
fn put<W: Word<Value = u64>>(of: &W, what: &W, subject: u64, counter: u64) {
    // PAIRS(note): release with the acquires in `look`.
    of.store(subject, Ordering::Release);
    what.store(counter + 1, Ordering::Release);
}

/// What a place says; `None`: nothing, or it changes just now. There are so many `places`.
fn look<W: Word<Value = u64>>(made: &W, of: &W, what: &W, places: u64) -> Option<(u64, u64)> {
    // PAIRS(note): each acquire with the releases in `note` and `put`, in the other order than they are made.
    let before = made.load(Ordering::Acquire);
    let found = what.load(Ordering::Acquire);
    let subject = of.load(Ordering::Acquire);
    let again = what.load(Ordering::Acquire);
    let since = made.load(Ordering::Acquire).wrapping_sub(before);
    (found != 0 && again == found && since < places).then(|| (subject, found - 1))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;
    use crate::sys::{memfd, mmap};

    #[test]
    fn the_latest_notes_are_kept_one_for_each_subject() {
        let fd = memfd::create("notes", page::LEN as u64).unwrap();
        let mapping = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::ReadWrite).unwrap();
        let notes = Notes::new(View::of(&mapping));
        assert!(!notes.are_made());
        notes.note(7, 1);
        notes.note(8, 2);
        notes.note(7, 3);
        assert_eq!(notes.all(), [(7, 3), (8, 2)]);
        notes.strike(7);
        assert_eq!(notes.all(), [(8, 2)]);
        for subject in 100..100 + page::NOTES as u64 {
            notes.note(subject, 4);
        }
        let mut all = notes.all();
        all.sort_unstable();
        assert_eq!(all.len(), page::NOTES);
        assert_eq!((all[0], all[127]), ((100, 4), (227, 4)));
    }

    /// Another process's page is what that process likes.
    #[test]
    fn a_page_of_nonsense_says_nothing_that_cannot_be() {
        let fd = memfd::create("notes", page::LEN as u64).unwrap();
        let mapping = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::ReadWrite).unwrap();
        let notes = Notes::new(View::of(&mapping));
        notes.made().unwrap().store(u64::MAX, Ordering::Relaxed);
        for (place, counter) in [u64::MAX, 65, 64, 1, 0].into_iter().enumerate() {
            notes.word(place, 0).unwrap().store(10 + place as u64, Ordering::Relaxed);
            notes.word(place, 8).unwrap().store(counter, Ordering::Relaxed);
        }
        assert_eq!(notes.all(), [(12, 63), (13, 0)]);
        notes.strike(12);
        notes.note(13, 5);
        assert_eq!(notes.all(), [(13, 5)]);
    }

    /// A page on which a subject stands twice, as two threads could leave it.
    #[test]
    fn all_that_is_said_of_a_subject_is_struck() {
        let fd = memfd::create("notes", page::LEN as u64).unwrap();
        let mapping = mmap::GuardedMapping::new(&fd, page::LEN, mmap::Access::ReadWrite).unwrap();
        let notes = Notes::new(View::of(&mapping));
        notes.note(7, 1);
        notes.note(8, 2);
        notes.word(1, 0).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(notes.all(), [(7, 1), (7, 2)]);
        notes.strike(7);
        assert_eq!(notes.all(), []);
    }
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// A page of one place, given to three subjects, the first and the last with the same reason. `clear` is what
    /// happens to the reason before.
    fn nobody_reads_one_subject_with_anothers_reason(clear: fn(&AtomicU64), places: u64) {
        loom::model(move || {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
            let writer = {
                let words = words.clone();
                thread::spawn(move || {
                    let [made, of, what] = &*words;
                    for (subject, counter) in [(7, 1), (8, 2), (9, 1)] {
                        made.fetch_add(1, Ordering::Release);
                        clear(what);
                        put(of, what, subject, counter);
                    }
                })
            };
            let [made, of, what] = &*words;
            let found = look(made, of, what, places);
            assert!(matches!(found, None | Some((7, 1) | (8, 2) | (9, 1))), "mixed: {found:?}");
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_no_note_is_mixed_of_two() {
        nobody_reads_one_subject_with_anothers_reason(|what| what.store(0, Ordering::Release), 1);
    }

    #[test]
    #[should_panic(expected = "mixed")]
    fn loom_without_the_clearing_a_note_is_mixed() {
        nobody_reads_one_subject_with_anothers_reason(|_| {}, 1);
    }

    #[test]
    #[should_panic(expected = "mixed")]
    fn loom_without_the_count_a_note_is_mixed() {
        let clear = |what: &AtomicU64| what.store(0, Ordering::Release);
        nobody_reads_one_subject_with_anothers_reason(clear, u64::MAX);
    }
}
