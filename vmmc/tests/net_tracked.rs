//! Automatic update by plain stores (G11, H18), over every engine, by counters.

#[path = "../src/testing/alone.rs"]
mod alone;
#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/engine.rs"]
#[macro_use]
mod engine;
#[path = "support/proxy.rs"]
mod proxy;

use alone::alone;
use common::until;
use engine::World;
use proptest::prelude::*;
use std::io::Read;
use std::ptr::NonNull;
use std::time::Duration;
use vmmc::counters::index::{NET_BYTES, NET_PACKETS, TRACK_SCANS, TRACKED_PAGES};
use vmmc::error::{PropagateError, RegionError, SendError, StopError, TrackError, WaitError};
use vmmc::{CloseReason, Combining, Export, Import, Node, Region, Rights, Tracked, Tracking};

const PAGE: usize = 4096;

/// An export, and who imports it.
struct Shared<'w> {
    export: Export,
    world: &'w World,
}

impl Shared<'_> {
    fn of(world: &World, pages: usize) -> Shared<'_> {
        Shared { export: world.export(pages * PAGE), world }
    }

    fn import(&self) -> Import {
        self.world.import()
    }

    fn importer(&self) -> &Node {
        &self.world.importer
    }

    fn track(&self, tracking: Tracking) -> Tracked {
        let memory = Region::new(self.export.len()).unwrap();
        self.import().track(0, memory, tracking).unwrap()
    }

    fn seen(&self) -> Vec<u8> {
        let mut seen = vec![0; self.export.len()];
        self.export.read(0, &mut seen).unwrap();
        seen
    }

    /// Packets, bytes of data, and pages found since the last time.
    fn counts(&self) -> [u64; 3] {
        [NET_PACKETS, NET_BYTES, TRACKED_PAGES].map(|it| self.importer().counters().get(it))
    }
}

fn since(before: [u64; 3], now: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|i| now[i] - before[i])
}

/// A store by pointer, as a program does that knows nothing of this.
fn store(tracked: &Tracked, at: usize, byte: u8) {
    assert!(at < tracked.len());
    // SAFETY: inside the tracked memory, which only this thread stores to.
    unsafe { tracked.as_ptr().as_ptr().wrapping_add(at).write_volatile(byte) };
}

fn what_was_stored_is_there_after_the_fence_and_nothing_else_is_sent(world: &World) {
    let shared = Shared::of(world, 64);
    let tracked = shared.track(Tracking::SHARED);
    let before = shared.counts();
    tracked.fence().unwrap();
    assert_eq!(since(before, shared.counts()), [0; 3], "nothing was stored");
    store(&tracked, 0, 1);
    store(&tracked, 5 * PAGE + 100, 2);
    store(&tracked, 5 * PAGE + 104, 3);
    store(&tracked, 64 * PAGE - 1, 4);
    assert_eq!(shared.seen(), vec![0; 64 * PAGE], "before the fence");
    tracked.fence().unwrap();
    let mut wanted = vec![0; 64 * PAGE];
    for (at, byte) in [(0, 1), (5 * PAGE + 100, 2), (5 * PAGE + 104, 3), (64 * PAGE - 1, 4)] {
        wanted[at] = byte;
    }
    assert_eq!(shared.seen(), wanted);
    // Three pages. Words 12 and 13 of the sixth one follow each other: a packet for both.
    assert_eq!(since(before, shared.counts()), [3, 8 + 16 + 8, 3]);
    // The same value again is a store, and no change.
    store(&tracked, 0, 1);
    let before = shared.counts();
    tracked.fence().unwrap();
    assert_eq!(since(before, shared.counts()), [0, 0, 1]);
}

fn without_units_pages_go_whole_and_only_those_stored_to(world: &World) {
    let shared = Shared::of(world, 16);
    let tracked = shared.track(Tracking::PAGES);
    let before = shared.counts();
    store(&tracked, 3 * PAGE + 7, 1);
    store(&tracked, 4 * PAGE, 2);
    tracked.fence().unwrap();
    assert_eq!(since(before, shared.counts()), [2, 2 * PAGE as u64, 2]);
    assert_eq!((shared.seen()[3 * PAGE + 7], shared.seen()[4 * PAGE]), (1, 2));
}

fn bytes_that_the_kernel_puts_there_are_stores_too(world: &World) {
    let shared = Shared::of(world, 4);
    let memory = Region::new(4 * PAGE).unwrap();
    let place = memory.as_ptr();
    let tracked = shared.import().track(0, memory, Tracking::SHARED).unwrap();
    // SAFETY: inside the tracked memory; the only reference into it, which ends with the call.
    let target = unsafe { place.as_ptr().wrapping_add(PAGE).cast::<[u8; 100]>().as_mut() }.unwrap();
    std::fs::File::open("/proc/self/exe").unwrap().read_exact(target).unwrap();
    tracked.fence().unwrap();
    assert_eq!(&shared.seen()[PAGE..PAGE + 4], b"\x7fELF");
}

fn two_writers_of_one_page_keep_each_others_words(world: &World) {
    let shared = Shared::of(world, 1);
    let (one, two) = (shared.track(Tracking::SHARED), shared.track(Tracking::SHARED));
    for i in 0..PAGE / 16 {
        store(&one, 16 * i, 1);
        store(&two, 16 * i + 8, 2);
        if i % 50 == 0 {
            one.fence().unwrap();
            two.fence().unwrap();
        }
    }
    one.fence().unwrap();
    two.fence().unwrap();
    let words = [[1, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(shared.seen(), words.repeat(PAGE / 16));
}

#[test]
fn with_an_interval_nobody_has_to_ask() {
    let world = World::tcp();
    let shared = Shared::of(&world, 2);
    let tracked = shared.track(Tracking::SHARED.every(Duration::from_millis(1)));
    store(&tracked, PAGE, 7);
    until("it was sent", || shared.seen()[PAGE] == 7);
    // Ending it flushes, and gives the memory back as it is.
    store(&tracked, 1, 8);
    let memory = tracked.stop().unwrap();
    assert_eq!((memory.as_slice()[1], memory.as_slice()[PAGE]), (8, 7));
    until("the rest was sent", || shared.seen()[1] == 8);
}

/// Beyond what the clock can say.
#[test]
fn an_interval_that_never_ends_is_one() {
    let world = World::tcp();
    let shared = Shared::of(&world, 1);
    let tracked = shared.track(Tracking::SHARED.every(Duration::MAX));
    until("it has looked", || shared.importer().counters().get(TRACK_SCANS) == 1);
    store(&tracked, 0, 1);
    // Waits until the thread has let go of what it looked with.
    tracked.fence().unwrap();
    assert_eq!((shared.seen()[0], shared.importer().counters().get(TRACK_SCANS)), (1, 2));
    tracked.stop().unwrap();
    let writer = shared.import();
    let writer = writer.auto_update(Combining::within(Duration::MAX)).unwrap();
    writer.store(0, &[2]).unwrap();
    writer.fence().unwrap();
    assert_eq!(shared.seen()[0], 2);
}

/// Puts another mapping over the second page, so that every scan fails there.
fn break_scans(tracked: &Tracked) -> *mut libc::c_void {
    let second = tracked.as_ptr().as_ptr().wrapping_add(PAGE).cast::<libc::c_void>();
    let (access, kind) =
        (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: a page of the tracked memory, which nobody accesses from here on.
    let place = unsafe { libc::mmap(second, PAGE, access, kind, -1, 0) };
    assert_eq!(place, second);
    place
}

/// Takes it away: where nothing is, nothing is found, and nothing fails. What another test mapped there would
/// be lost, and be in the way.
fn mend_scans(place: *mut libc::c_void) {
    // SAFETY: what `break_scans` mapped.
    assert_eq!(unsafe { libc::munmap(place, PAGE) }, 0);
}

#[test]
fn what_a_failed_scan_has_found_goes_with_the_next_flush() {
    if !alone("what_a_failed_scan_has_found_goes_with_the_next_flush") {
        return;
    }
    for tracking in [Tracking::SHARED, Tracking::PAGES] {
        let world = World::tcp();
        let shared = Shared::of(&world, 3);
        let tracked = shared.track(tracking);
        store(&tracked, 5, 1);
        let place = break_scans(&tracked);
        match tracked.flush() {
            Err(PropagateError::System(error)) => assert_eq!(error.errno, rustix::io::Errno::PERM),
            other => panic!("{other:?}"),
        }
        mend_scans(place);
        store(&tracked, 2 * PAGE, 2);
        tracked.fence().unwrap();
        assert_eq!((shared.seen()[5], shared.seen()[2 * PAGE]), (1, 2), "{tracking:?}");
    }
}

#[test]
fn a_thread_whose_scan_failed_tries_again() {
    if !alone("a_thread_whose_scan_failed_tries_again") {
        return;
    }
    let world = World::tcp();
    let shared = Shared::of(&world, 3);
    let scans = || shared.importer().counters().get(TRACK_SCANS);
    let tracked = shared.track(Tracking::SHARED.every(Duration::from_millis(1)));
    let place = break_scans(&tracked);
    let before = scans();
    store(&tracked, 5, 1);
    until("two scans have failed", || scans() > before + 2);
    mend_scans(place);
    until("it was sent", || shared.seen()[5] == 1);
}

#[test]
fn memory_that_was_tracked_can_be_tracked_again() {
    let world = World::tcp();
    let shared = Shared::of(&world, 1);
    let tracked = shared.track(Tracking::SHARED);
    store(&tracked, 0, 1);
    let memory = tracked.stop().unwrap();
    let tracked = shared.import().track(0, memory, Tracking::SHARED).unwrap();
    let before = shared.counts();
    tracked.fence().unwrap();
    assert_eq!(since(before, shared.counts()), [0; 3], "what was there before reaches nobody");
    store(&tracked, 8, 2);
    tracked.fence().unwrap();
    assert_eq!((shared.seen()[0], shared.seen()[8]), (1, 2));
}

/// H2: a page has one destination at a time, between nodes too.
#[test]
fn memory_whose_stores_go_to_one_node_is_refused_to_another_import_until_they_go_there_no_more() {
    let world = World::tcp();
    let (first, second) = (world.export(PAGE), world.exporting(PAGE).name("y").open().unwrap());
    let (to_first, to_second) = (world.import(), world.importing("y").open().unwrap());
    // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            PAGE,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let start = NonNull::new(start.unwrap().cast::<u8>()).unwrap();
    // SAFETY: pages of this test's own, for ever; no references into them.
    let adopt = || unsafe { Region::adopt(start, PAGE) };
    let seen = |export: &Export, at: usize| {
        let mut byte = [0];
        export.read(at, &mut byte).unwrap();
        byte[0]
    };
    let tracked = to_first.track(0, adopt().unwrap(), Tracking::PAGES).unwrap();
    let address = start.as_ptr() as usize;
    assert_eq!(adopt().unwrap_err(), RegionError::InUse { address });
    store(&tracked, 3, 1);
    tracked.fence().unwrap();
    assert_eq!((seen(&first, 3), seen(&second, 3)), (1, 0));

    drop(tracked.stop().unwrap());
    let tracked = to_second.track(0, adopt().unwrap(), Tracking::PAGES).unwrap();
    store(&tracked, 4, 2);
    tracked.fence().unwrap();
    to_first.fence().unwrap();
    assert_eq!((seen(&first, 4), seen(&second, 4)), (0, 2));
}

#[test]
fn an_unexport_is_an_error_of_the_next_fence_and_stores_go_on() {
    let world = World::tcp();
    let (export, import) = (world.export(PAGE), world.import());
    let tracked = import.track(0, Region::new(PAGE).unwrap(), Tracking::SHARED).unwrap();
    export.unexport().unwrap();
    until("it is known", || import.check_open().is_err());
    store(&tracked, 0, 1);
    match tracked.fence() {
        Err(WaitError::Closed(closed)) => assert_eq!(closed.reason, CloseReason::Unexported),
        other => panic!("{other:?}"),
    }
    store(&tracked, 1, 1);
    // Nor does it take the memory from whoever stores to it by pointer.
    let place = tracked.as_ptr();
    let Err(StopError::NotSent { memory, reason }) = tracked.stop() else { panic!("it was sent") };
    assert!(matches!(reason, PropagateError::Send(SendError::Closed(_))), "{reason}");
    assert_eq!((memory.as_ptr(), &memory.as_slice()[..3]), (place, &[1, 1, 0][..]));
}

#[test]
fn what_cannot_be_tracked_is_refused_with_the_numbers() {
    let world = World::tcp();
    let shared = Shared::of(&world, 2);
    let import = shared.import();
    let refused = |at, len, tracking| {
        let memory = Region::new(len).unwrap();
        let place = memory.as_ptr();
        let refused = import.track(at, memory, tracking).map(drop).unwrap_err();
        assert_eq!(refused.memory.as_ptr(), place, "the memory comes back");
        refused.reason
    };
    let outside = refused(PAGE, 2 * PAGE, Tracking::PAGES);
    assert!(matches!(outside, TrackError::OutOfBounds(_)), "{outside}");
    let unit = Tracking { unit: Some(24), every: None };
    assert_eq!(refused(0, PAGE, unit), TrackError::Unit { unit: 24, page: PAGE });
    let restless = Tracking::PAGES.every(Duration::ZERO);
    assert_eq!(refused(0, PAGE, restless), TrackError::Interval);
    assert!(TrackError::Interval.to_string().contains("an interval of 0 s"));
    let reader = shared.importer().import("x").node("a").rights(Rights::READ).open().unwrap();
    let memory = Region::new(PAGE).unwrap();
    let error = reader.track(0, memory, Tracking::PAGES).map(drop).unwrap_err().reason;
    assert!(matches!(error, TrackError::NotGranted(_)), "{error}");
}

/// H18: random stores from two threads, with flushes between them, lose nothing.
fn random_stores_leave_the_image_of_the_memory(world: &World) {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() };
    let stores = proptest::collection::vec((0usize..8 * PAGE, any::<u8>()), 1..2000);
    let units = prop_oneof![Just(None), Just(Some(1)), Just(Some(8)), Just(Some(64))];
    proptest!(config, |(stores in stores, unit in units)| {
        let shared = Shared::of(world, 8);
        let tracked = shared.track(Tracking { unit, every: None });
        std::thread::scope(|scope| {
            let store_half = |half: usize| {
                let (tracked, stores) = (&tracked, &stores);
                move || {
                    for &(at, byte) in stores.iter().filter(|(at, _)| at % 2 == half) {
                        store(tracked, at, byte);
                    }
                }
            };
            let threads = [scope.spawn(store_half(0)), scope.spawn(store_half(1))];
            while !threads.iter().all(|thread| thread.is_finished()) {
                tracked.flush().unwrap();
            }
        });
        tracked.fence().unwrap();
        let mut wanted = vec![0; 8 * PAGE];
        tracked.view().read(0, &mut wanted).unwrap();
        prop_assert_eq!(shared.seen(), wanted);
    });
}

suite!(
    bytes_that_the_kernel_puts_there_are_stores_too,
    two_writers_of_one_page_keep_each_others_words,
    random_stores_leave_the_image_of_the_memory;
    between nodes:
    what_was_stored_is_there_after_the_fence_and_nothing_else_is_sent,
    without_units_pages_go_whole_and_only_those_stored_to,
);
