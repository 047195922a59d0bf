//! What the node interface may not write to now: disabled pages (H12), also of an exporter that has not heard of the link yet.
//!
//! ```text
//!   exporter that disables               vmmcd                 interface
//!   (1) guards += 1                                            within a transfer (`busy`):
//!   (2) asks (`Request::Sync`)     -->   answers behind all    (1) link heard of?
//!   (3) hears of links granted     <--   that it has granted   (2) if not: does the exporter guard?
//!       before: bits, then HEARD                                   then nothing is put
//!   (4) bits in all links it knows                             (3) bit of a page set? then nothing is put
//!   (5) membarrier; waits until no                             (4) puts
//!       transfer is in progress
//! ```
//!
//! A link that vmmcd granted before (2) is known at (4), and is treated as in a revocation. One that it grants later finds the guard,
//! which was up before, until the exporter has heard of it and has set its bits. The guard is in the exporter's process page,
//! HEARD in the link segment.

use crate::sync::Ordering;
use crate::word::Word;

/// Why the node interface may not put bytes somewhere now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// A page of them is disabled.
    Disabled,
    /// The exporter has disabled pages of something and does not know of this link yet.
    Unheard,
}

/// Looks whether bytes may be put, within a transfer. `disabled`: whether a bit of theirs is set, loaded with acquire.
pub(crate) fn look<W: Word<Value = u32>>(
    heard: W,
    guards: impl FnOnce() -> bool,
    disabled: impl FnOnce() -> bool,
) -> Result<(), Barred> {
    match () {
        () if !is_heard(heard) && guards() => Err(Barred::Unheard),
        () if disabled() => Err(Barred::Disabled),
        () => Ok(()),
    }
}

/// Whether the exporter has said that it knows of the link.
pub(crate) fn is_heard<W: Word<Value = u32>>(heard: W) -> bool {
    // PAIRS(heard): with the release in `say_heard`: what was disabled then is seen to be.
    heard.load(Ordering::Acquire) != 0
}

/// The exporter knows of the link; the bits of what it has disabled so far are set.
pub(crate) fn say_heard<W: Word<Value = u32>>(heard: W) {
    heard.store(1, Ordering::Release);
}

#[cfg(all(test, vmmc_loom))]
mod loom_tests {
    use super::super::busy;
    use super::*;
    use crate::layout::link;
    use crate::sync::fence;
    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// What of the handshake is left out.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Without {
        Nothing,
        Guard,
        Sync,
        BitsBeforeHeard,
    }

    #[derive(Default)]
    struct World {
        guards: AtomicU32,
        heard: AtomicU32,
        bit: AtomicU32,
        slot: AtomicU32,
        state: AtomicU32,
        /// 1: something was put. 2: the page is disabled.
        page: AtomicU32,
        /// Of the daemon: whether the link is granted.
        granted: Mutex<bool>,
    }

    impl World {
        /// The exporter has been told of the link.
        fn hears(&self, without: Without) {
            let set = || self.bit.store(1, Ordering::Release);
            if without == Without::BitsBeforeHeard {
                say_heard(&self.heard);
                set();
            } else {
                set();
                say_heard(&self.heard);
            }
        }

        fn disables(&self, without: Without) {
            if without != Without::Guard {
                self.guards.fetch_add(1, Ordering::AcqRel);
            }
            let granted = *self.granted.lock().unwrap();
            let known = granted && without != Without::Sync;
            if known {
                self.hears(without);
                fence(Ordering::SeqCst); // the membarrier
            }
            if !known || busy::is_idle(&self.slot, false) {
                self.page.store(2, Ordering::Relaxed);
            }
            if !known {
                self.hears(without); // some time later
            }
        }

        fn lands(&self) {
            *self.granted.lock().unwrap() = true;
            let light = || fence(Ordering::SeqCst);
            let Ok(_transfer) = busy::begin(&self.slot, false, &self.state, light) else { return };
            let guards = || self.guards.load(Ordering::Acquire) != 0;
            if look(&self.heard, guards, || self.bit.load(Ordering::Acquire) != 0).is_ok() {
                let found = self.page.fetch_add(1, Ordering::Relaxed);
                assert_ne!(found, 2, "wrote to a disabled page");
            }
        }
    }

    fn nothing_lands_after(without: Without) {
        loom::model(move || {
            let world = Arc::new(World::default());
            assert_eq!(world.state.load(Ordering::Relaxed), link::OPEN);
            let other = world.clone();
            let interface = thread::spawn(move || other.lands());
            world.disables(without);
            interface.join().unwrap();
        });
    }

    #[test]
    fn loom_nothing_lands_in_a_page_after_it_is_disabled() {
        nothing_lands_after(Without::Nothing);
    }

    #[test]
    #[should_panic(expected = "wrote to a disabled page")]
    fn loom_without_the_guard_a_new_link_writes_to_a_disabled_page() {
        nothing_lands_after(Without::Guard);
    }

    #[test]
    #[should_panic(expected = "wrote to a disabled page")]
    fn loom_an_exporter_that_does_not_ask_misses_a_link_that_writes() {
        nothing_lands_after(Without::Sync);
    }

    #[test]
    #[should_panic(expected = "wrote to a disabled page")]
    fn loom_a_link_that_is_heard_of_before_its_bits_are_set_writes_to_a_disabled_page() {
        nothing_lands_after(Without::BitsBeforeHeard);
    }
}
