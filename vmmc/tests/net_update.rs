//! Automatic update between nodes, by an explicit writer: H4 to H9, and V13 where it is mixed with
//! deliberate update. By counters.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/interface.rs"]
mod interface;

use cluster::Place;
use common::{PATIENCE, export, until};
use interface::counted;
use proptest::prelude::*;
use std::time::Duration;
use vmmc::counters::index::{NET_BYTES, NET_PACKETS};
use vmmc::{Combining, Event, Export, Import, Node, Rights};

struct World {
    export: Export,
    import: Import,
    importer: Node,
    _places: (Place, Place),
}

fn world(len: usize) -> World {
    let (a, b) = cluster::pair();
    let export = export(&a.daemon.node(), "x", len);
    let importer = b.daemon.node();
    let import = importer.import("x").node("a").rights(Rights::WRITE | Rights::READ);
    let import = import.timeout(PATIENCE.unwrap()).open().unwrap();
    World { export, import, importer, _places: (a, b) }
}

impl World {
    fn packets(&self) -> u64 {
        self.importer.counters().get(NET_PACKETS)
    }

    fn seen(&self, at: usize, len: usize) -> Vec<u8> {
        let mut seen = vec![0; len];
        self.export.read(at, &mut seen).unwrap();
        seen
    }
}

/// H4, H5.
#[test]
fn consecutive_stores_are_one_packet_with_combining_and_one_each_without() {
    let world = world(1 << 16);
    let before = world.packets();
    let writer = world.import.auto_update(Combining::OFF).unwrap();
    (0..100).for_each(|i| writer.store(4 * i, &[1; 4]).unwrap());
    writer.fence().unwrap();
    assert_eq!(world.packets() - before, 100);
    drop(writer);
    let writer = world.import.auto_update(Combining::ON).unwrap();
    let before = world.packets();
    (0..100).for_each(|i| writer.store(4 * i, &[2; 4]).unwrap());
    assert_eq!(world.packets() - before, 0, "the packet waits for more");
    writer.fence().unwrap();
    assert_eq!(world.packets() - before, 1);
    assert_eq!(world.seen(0, 400), [2; 400]);
    // Every second word: none follows the one before.
    let before = world.packets();
    (0..100).for_each(|i| writer.store(8 * i, &[3; 4]).unwrap());
    writer.fence().unwrap();
    assert_eq!(world.packets() - before, 100);
    // Two pages in turn break each other's runs.
    let before = world.packets();
    (0..50).for_each(|i| {
        writer.store(4 * i, &[4; 4]).unwrap();
        writer.store(4096 + 4 * i, &[4; 4]).unwrap();
    });
    writer.fence().unwrap();
    assert_eq!(world.packets() - before, 100);
}

/// H8.
#[test]
fn a_page_boundary_ends_a_packet() {
    let world = world(1 << 16);
    let writer = world.import.auto_update(Combining::ON).unwrap();
    let before = (world.packets(), world.importer.counters().get(NET_BYTES));
    (0..64).for_each(|i| writer.store(4096 - 32 + i, &[i as u8]).unwrap());
    assert_eq!(world.packets() - before.0, 1, "the first page's went when the page was full");
    writer.fence().unwrap();
    assert_eq!(world.packets() - before.0, 2);
    assert_eq!(world.importer.counters().get(NET_BYTES) - before.1, 64);
    assert_eq!(world.seen(4096 - 32, 64), (0..64).collect::<Vec<u8>>());
    // One store over three pages.
    let before = world.packets();
    writer.store(8192 - 10, &[9; 4116]).unwrap();
    writer.fence().unwrap();
    assert_eq!(world.packets() - before, 3);
    assert_eq!(world.seen(8192 - 10, 4116), vec![9; 4116]);
}

/// H6, H7.
#[test]
fn a_packet_that_waits_goes_by_its_timer_and_without_one_by_a_flush_alone() {
    let world = world(1 << 16);
    let writer = world.import.auto_update(Combining::within(Duration::from_millis(1))).unwrap();
    writer.store(64, &7u32.to_ne_bytes()).unwrap();
    // Stores wake nobody: the receiver polls.
    let flag = world.export.flag32(64).unwrap();
    until("the timer has sent it", || flag.load().unwrap() == 7);
    drop(writer);
    let writer = world.import.auto_update(Combining::ON).unwrap();
    writer.store(64, &8u32.to_ne_bytes()).unwrap();
    // Whatever else goes over the link does not push it.
    world.import.send(0, &[1]).unwrap();
    world.import.fence().unwrap();
    assert_eq!(flag.load().unwrap(), 7, "it is held");
    writer.flush().unwrap();
    until("it is there", || flag.load().unwrap() == 8);
}

/// V13: deliberate data then an updated flag; updated data, flushed, then a deliberate flag.
#[test]
fn updates_and_sends_of_one_thread_arrive_in_their_order() {
    let world = world(1 << 16);
    let World { export, import, .. } = &world;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let writer = import.auto_update(Combining::ON).unwrap();
            for i in 1..=300u64 {
                import.send(4096 + 8 * i as usize, &i.to_ne_bytes()).unwrap();
                writer.store(0, &i.to_ne_bytes()).unwrap();
                writer.flush().unwrap();
                writer.store(8192 + 8 * i as usize, &i.to_ne_bytes()).unwrap();
                writer.flush().unwrap();
                import.flag64(8).unwrap().signal(i).unwrap();
            }
        });
        let word = |at: usize| u64::from_ne_bytes(world.seen(at, 8).try_into().unwrap());
        for i in 1..=300u64 {
            export.flag64(8).unwrap().wait_until(|seen| seen >= i, PATIENCE).unwrap();
            assert!(export.flag64(0).unwrap().load().unwrap() >= i);
            assert_eq!(word(4096 + 8 * i as usize), i);
            assert_eq!(word(8192 + 8 * i as usize), i);
        }
    });
}

/// V13, H5: whoever sees a store sees those before it that were combined with it.
#[test]
fn stores_that_were_combined_are_seen_in_their_order() {
    const ROUNDS: u64 = 1000;
    let world = world(4096);
    let World { export, import, .. } = &world;
    // Lengths that copies treat differently.
    for words in [13, 16, 40, 512] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = import.auto_update(Combining::ON).unwrap();
                for round in 1..=ROUNDS {
                    (0..words).for_each(|i| writer.store(8 * i, &round.to_ne_bytes()).unwrap());
                    writer.flush().unwrap();
                }
            });
            let flags: Vec<_> = (0..words).map(|i| export.flag64(8 * i).unwrap()).collect();
            let mut seen = 0;
            while seen < ROUNDS {
                for pair in flags.windows(2).rev() {
                    seen = pair[1].load().unwrap();
                    let before = pair[0].load().unwrap();
                    assert!(before >= seen, "{seen} was seen before an earlier store: {before}");
                }
            }
        });
        export.write(0, &[0; 4096]).unwrap();
    }
}

#[test]
fn an_import_cannot_be_ended_under_its_writer() {
    let world = world(4096);
    let writer = world.import.auto_update(Combining::ON).unwrap();
    let import = match world.import.unimport() {
        Err(vmmc::error::UnimportError::Bound { count: 1, import }) => import,
        other => panic!("{other:?}"),
    };
    writer.store(0, b"late").unwrap();
    drop(writer);
    import.unimport().unwrap();
    let mut seen = [0; 4];
    world.export.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"late");
}

/// H9, H18: stores of any place and size leave the image that they would leave in one memory.
#[test]
fn random_stores_leave_the_same_image_with_and_without_combining() {
    const LEN: usize = 3 * 4096 + 100;
    let world = world(LEN);
    let mut image = vec![0; LEN];
    let stores = proptest::collection::vec((0..LEN, 0usize..300, any::<u8>(), 0u8..10), 1..200);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let image = std::cell::RefCell::new(&mut image);
    let result = runner.run(&(stores, any::<bool>()), |(stores, combine)| {
        let combining = if combine { Combining::ON } else { Combining::OFF };
        let writer = world.import.auto_update(combining).unwrap();
        let mut image = image.borrow_mut();
        for (at, len, byte, how) in stores {
            let bytes = vec![byte; len.min(LEN - at)];
            if how == 0 {
                // A deliberate update between two: what waits goes first.
                writer.flush().unwrap();
                world.import.send(at, &bytes).unwrap();
            } else {
                writer.store(at, &bytes).unwrap();
            }
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        writer.fence().unwrap();
        prop_assert!(world.seen(0, LEN) == **image, "the images differ");
        Ok(())
    });
    result.unwrap();
}

/// H12, H13: nothing changes in a disabled page, the exporter hears of it, and what was held back
/// goes on in its order when the page is enabled. Other processes go on meanwhile.
#[test]
fn a_packet_for_a_disabled_page_is_held_back_and_nothing_is_lost() {
    let (a, b) = cluster::pair();
    let exporter = a.daemon.node();
    let region = vmmc::Region::new(1 << 16).unwrap();
    let builder = exporter.export(region).name("x").grant(vmmc::Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    let (one, other) = (b.daemon.node(), b.daemon.node());
    let importing = |node: &Node| {
        let import = node.import("x").node("a").timeout(PATIENCE.unwrap());
        import.open().unwrap()
    };
    let (held, free) = (importing(&one), importing(&other));
    let zero = |at: usize, len: usize| {
        let mut seen = vec![1; len];
        export.read(at, &mut seen).unwrap();
        seen.iter().all(|&byte| byte == 0)
    };
    // A long packet, a short one, a word: each is stopped by the page, wherever it lies in them.
    let stopped: [(&str, &dyn Fn()); 3] = [
        ("long", &|| held.send(4096, &[7; 40_000]).unwrap()),
        ("short", &|| held.send(8200, &[7; 8]).unwrap()),
        ("word", &|| held.flag64(8192).unwrap().signal(u64::MAX).unwrap()),
    ];
    for (round, (what, send)) in stopped.into_iter().enumerate() {
        export.disable(8192..8193).unwrap();
        send();
        held.send_with_notify(61_440, &(round as u64).to_ne_bytes()).unwrap();
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(event, Event::Frozen { .. }), "{what}: {event:?}");
        assert!(zero(8192, 4096), "{what}: the page changed");
        let frozen = counted(&a.daemon.socket(), "ni_frozen");
        assert_eq!(frozen, round as u64 + 1, "{what}: one packet each is held back");
        // The other process is not concerned, in this export or elsewhere.
        free.send_with_notify(0, &[9; 8]).unwrap();
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(event, Event::Message { offset: 0, .. }), "{what}: {event:?}");
        export.enable(0..65_536).unwrap();
        let event = export.next_notification(PATIENCE).unwrap().event;
        let last_word = round as u64;
        assert_eq!(event, Event::Message { offset: 61_440, len: 8, last_word }, "{what}");
        assert!(!zero(8192, 4096), "{what}: it never came");
        held.send(4096, &[0; 40_000]).unwrap();
        held.fence().unwrap();
    }
    // A link that ends while its packet is held back ends like any other.
    export.disable(0..65_536).unwrap();
    held.send(0, &[1; 100]).unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert!(matches!(event, Event::Frozen { .. }), "{event:?}");
    drop(export.unexport().unwrap());
    until("the importer knows", || held.check_open().is_err() && free.check_open().is_err());
}
