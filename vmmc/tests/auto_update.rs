//! Automatic update by an explicit writer, over every engine: H4 to H9, H12 to H14, and V13 where it is mixed with
//! deliberate update. By counters.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/engine.rs"]
#[macro_use]
mod engine;
#[path = "support/proxy.rs"]
mod proxy;
mod support;

use common::{PATIENCE, signal, until};
use engine::World;
use proptest::prelude::*;
use rustix::process::Signal;
use std::time::Duration;
use support::until_stopped;
use vmmc::counters::index::{NET_BYTES, NET_PACKETS, NOTIFIES_SENT};
use vmmc::error::WaitError;
use vmmc::{CloseReason, Combining, Event, Export, Region, Rights, Who};

fn packets(world: &World) -> u64 {
    world.importer.counters().get(NET_PACKETS)
}

fn seen(export: &Export, at: usize, len: usize) -> Vec<u8> {
    let mut seen = vec![0; len];
    export.read(at, &mut seen).unwrap();
    seen
}

/// H4, H5.
fn consecutive_stores_are_one_packet_with_combining_and_one_each_without(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
    let before = packets(world);
    let writer = import.auto_update(Combining::OFF).unwrap();
    (0..100).for_each(|i| writer.store(4 * i, &[1; 4]).unwrap());
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 100);
    drop(writer);
    let writer = import.auto_update(Combining::ON).unwrap();
    let before = packets(world);
    (0..100).for_each(|i| writer.store(4 * i, &[2; 4]).unwrap());
    assert_eq!(packets(world) - before, 0, "the packet waits for more");
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 1);
    assert_eq!(seen(&export, 0, 400), [2; 400]);
    // Every second word: none follows the one before.
    let before = packets(world);
    (0..100).for_each(|i| writer.store(8 * i, &[3; 4]).unwrap());
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 100);
    // Two pages in turn break each other's runs.
    let before = packets(world);
    (0..50).for_each(|i| {
        writer.store(4 * i, &[4; 4]).unwrap();
        writer.store(4096 + 4 * i, &[4; 4]).unwrap();
    });
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 100);
}

/// H8.
fn a_page_boundary_ends_a_packet(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
    let writer = import.auto_update(Combining::ON).unwrap();
    let before = (packets(world), world.importer.counters().get(NET_BYTES));
    (0..64).for_each(|i| writer.store(4096 - 32 + i, &[i as u8]).unwrap());
    assert_eq!(packets(world) - before.0, 0, "the first page's goes with the other");
    writer.fence().unwrap();
    assert_eq!(packets(world) - before.0, 2);
    assert_eq!(world.importer.counters().get(NET_BYTES) - before.1, 64);
    assert_eq!(seen(&export, 4096 - 32, 64), (0..64).collect::<Vec<u8>>());
    // One store over three pages.
    let before = packets(world);
    writer.store(8192 - 10, &[9; 4116]).unwrap();
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 3);
    assert_eq!(seen(&export, 8192 - 10, 4116), vec![9; 4116]);
}

/// H16: 64 KiB at most, with headers of 32 bytes.
fn what_waits_is_bounded(world: &World) {
    let (export, import) = (world.export(1 << 20), world.import());
    let writer = import.auto_update(Combining::ON).unwrap();
    let before = packets(world);
    // No two follow each other, so each is a packet.
    let places: Vec<usize> = (0..8000).map(|i| 128 * i).collect();
    for &at in &places {
        writer.store(at, &[7; 8]).unwrap();
    }
    let waiting = 8000 - (packets(world) - before);
    assert!((1..=65_536 / 40).contains(&waiting), "{waiting} packets wait");
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 8000);
    let all = seen(&export, 0, 1 << 20);
    assert!((0..1 << 20).all(|at| all[at] == if at % 128 < 8 && at < 8000 * 128 { 7 } else { 0 }));
    // Pages that follow each other are packets of their own.
    let before = packets(world);
    writer.store(0, &vec![9; 1 << 20]).unwrap();
    writer.fence().unwrap();
    assert_eq!(packets(world) - before, 256);
    assert_eq!(seen(&export, 0, 1 << 20), vec![9; 1 << 20]);
}

/// H16, M33: a store's size decides how many packets there are, and neither what arrives nor how much may wait.
fn stores_of_every_size_arrive_in_as_few_packets_as_pages_allow(world: &World) {
    const LEN: usize = 1 << 20;
    const FIRST: usize = 4096 - 5;
    let (export, import) = (world.export(LEN), world.import());
    let pages =
        |range: &std::ops::Range<usize>| ((range.end - 1) / 4096 - range.start / 4096 + 1) as u64;
    let mut image = vec![0; LEN];
    let sizes = [1, 2, 3, 4, 7, 8, 16, 63, 64, 100, 512, 1000, 4095, 4096, 4097, 10_000, 70_000];
    for (round, size) in sizes.into_iter().enumerate() {
        for combining in [Combining::OFF, Combining::ON] {
            let writer = import.auto_update(combining).unwrap();
            // More than may wait, but for the smallest.
            let count = (150_000 / size).clamp(3, 2000);
            let byte = (2 * round + 1 + usize::from(combining.combine)) as u8;
            let before = (packets(world), world.importer.counters().get(NET_BYTES));
            let stores = (0..count).map(|i| FIRST + i * size..FIRST + (i + 1) * size);
            let mut alone = 0;
            for (i, store) in stores.enumerate() {
                alone += pages(&store);
                writer.store(store.start, &vec![byte; size]).unwrap();
                if i % 16 == 0 || size > 1000 {
                    let stored = ((i + 1) * size) as u64;
                    let waits = stored - (world.importer.counters().get(NET_BYTES) - before.1);
                    let most = if combining.combine { 64 << 10 } else { 0 };
                    assert!(waits <= most, "{waits} bytes wait, of stores of {size}");
                }
            }
            writer.fence().unwrap();
            let all = FIRST..FIRST + count * size;
            let expected = if combining.combine { pages(&all) } else { alone };
            assert_eq!(packets(world) - before.0, expected, "{count} of {size}, {combining:?}");
            let sent = world.importer.counters().get(NET_BYTES) - before.1;
            assert_eq!(sent, all.len() as u64, "each byte goes once");
            image[all].fill(byte);
            assert!(seen(&export, 0, LEN) == image, "{count} of {size}, {combining:?}");
        }
    }
}

/// H6, H7.
fn a_packet_that_waits_goes_by_its_timer_and_without_one_by_a_flush_alone(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
    let writer = import.auto_update(Combining::within(Duration::from_millis(1))).unwrap();
    writer.store(64, &7u32.to_ne_bytes()).unwrap();
    // Stores wake nobody: the receiver polls.
    let flag = export.flag32(64).unwrap();
    until("the timer has sent it", || flag.load().unwrap() == 7);
    // It waits while a run lasts, and not longer.
    let mut writer = writer;
    let mut run = writer.run().unwrap();
    run.store(64, &9u32.to_ne_bytes()).unwrap();
    assert!(run.store((1 << 16) - 3, &[0; 4]).is_err(), "beyond the end");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(flag.load().unwrap(), 7);
    drop(run);
    until("the timer has sent it behind the run", || flag.load().unwrap() == 9);
    writer.run().unwrap().store(64, &7u32.to_ne_bytes()).unwrap();
    until("and the next", || flag.load().unwrap() == 7);
    drop(writer);
    let writer = import.auto_update(Combining::ON).unwrap();
    writer.store(64, &8u32.to_ne_bytes()).unwrap();
    // Whatever else goes over the link does not push it.
    import.send(0, &[1]).unwrap();
    import.fence().unwrap();
    assert_eq!(flag.load().unwrap(), 7, "it is held");
    writer.flush().unwrap();
    until("it is there", || flag.load().unwrap() == 8);
}

/// V13: deliberate data then an updated flag; updated data, flushed, then a deliberate flag.
fn updates_and_sends_of_one_thread_arrive_in_their_order(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
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
        let word = |at: usize| u64::from_ne_bytes(seen(&export, at, 8).try_into().unwrap());
        for i in 1..=300u64 {
            export.flag64(8).unwrap().wait_until(|seen| seen >= i, PATIENCE).unwrap();
            assert!(export.flag64(0).unwrap().load().unwrap() >= i);
            assert_eq!(word(4096 + 8 * i as usize), i);
            assert_eq!(word(8192 + 8 * i as usize), i);
        }
    });
}

/// V13, H5: whoever sees a store sees those before it that were combined with it.
fn stores_that_were_combined_are_seen_in_their_order(world: &World) {
    const ROUNDS: u64 = 1000;
    let (export, import) = (world.export(4096), world.import());
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

fn an_import_cannot_be_ended_under_its_writer(world: &World) {
    let (export, import) = (world.export(4096), world.import());
    let writer = import.auto_update(Combining::ON).unwrap();
    let import = match import.unimport() {
        Err(vmmc::error::UnimportError::Bound { count: 1, import }) => import,
        other => panic!("{other:?}"),
    };
    writer.store(0, b"late").unwrap();
    drop(writer);
    import.unimport().unwrap();
    let mut seen = [0; 4];
    export.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"late");
}

/// H9, H18: stores of any place and size leave the image that they would leave in one memory.
fn random_stores_leave_the_same_image_with_and_without_combining(world: &World) {
    const LEN: usize = 3 * 4096 + 100;
    let (export, import) = (world.export(LEN), world.import());
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
        let mut writer = import.auto_update(combining).unwrap();
        let mut image = image.borrow_mut();
        for (at, len, byte, how) in stores {
            let bytes = vec![byte; len.min(LEN - at)];
            if how == 0 {
                // A deliberate update between two: what waits goes first.
                writer.flush().unwrap();
                import.send(at, &bytes).unwrap();
            } else if how == 1 {
                // The same bytes in small pieces, and one more run that stores nothing.
                let mut run = writer.run().unwrap();
                let pieces = bytes.chunks(7).enumerate();
                pieces.for_each(|(i, piece)| run.store(at + i * 7, piece).unwrap());
                drop(run);
                drop(writer.run().unwrap());
            } else {
                writer.store(at, &bytes).unwrap();
            }
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        writer.fence().unwrap();
        prop_assert!(seen(&export, 0, LEN) == **image, "the images differ");
        Ok(())
    });
    result.unwrap();
}

/// H12, H13: nothing changes in a disabled page, the exporter hears of it, and what was held back
/// goes on in its order when the page is enabled. Other processes go on meanwhile.
fn a_packet_for_a_disabled_page_is_held_back_and_nothing_is_lost(world: &World) {
    // Its unexport, which a held back packet holds up, waits no longer than usual.
    let exporter = world.exporters_daemon().node();
    let export = engine::exporting_by(&exporter, 1 << 16).queue().open().unwrap();
    let other = world.importers_daemon().node();
    let free = other.import("x").node(world.node.unwrap()).timeout(PATIENCE.unwrap());
    let (held, free) = (world.import(), free.open().unwrap());
    let writer = held.auto_update(Combining::OFF).unwrap();
    let zero = |at: usize, len: usize| {
        let mut seen = vec![1; len];
        export.read(at, &mut seen).unwrap();
        seen.iter().all(|&byte| byte == 0)
    };
    // A long packet, a short one, a word, an update: each is stopped by the page, wherever it lies in them.
    let stopped: [(&str, &dyn Fn()); 4] = [
        ("long", &|| held.send(4096, &[7; 40_000]).unwrap()),
        ("short", &|| held.send(8200, &[7; 8]).unwrap()),
        ("update", &|| writer.store(8200, &[7; 8]).unwrap()),
        ("word", &|| held.flag64(8192).unwrap().signal(u64::MAX).unwrap()),
    ];
    for (round, (what, send)) in stopped.into_iter().enumerate() {
        export.disable(8192..8193).unwrap();
        send();
        held.send_with_notify(61_440, &(round as u64).to_ne_bytes()).unwrap();
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(event, Event::Frozen { .. }), "{what}: {event:?}");
        assert!(zero(8192, 4096), "{what}: the page changed");
        let frozen = world.counted("ni_frozen");
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

/// H13: whoever disables a page again waits for the event, though it is the same packet that is held back.
fn a_packet_that_is_held_back_by_a_second_disabling_is_told_of_again(world: &World) {
    let daemon = world.exporters_daemon();
    let exporter = daemon.node();
    let export = engine::exporting_by(&exporter, 4096).queue().open().unwrap();
    let import = world.import();
    let is_frozen = || {
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert_eq!(event, Event::Frozen { offset: 0, len: 8 });
    };
    export.disable(0..1).unwrap();
    import.send_with_notify(0, &7u64.to_ne_bytes()).unwrap();
    is_frozen();
    // The interface finds the page enabled at no time.
    signal(daemon.pid(), Signal::STOP);
    until_stopped(daemon.pid());
    export.enable(0..1).unwrap();
    export.disable(0..1).unwrap();
    signal(daemon.pid(), Signal::CONT);
    is_frozen();
    assert_eq!(world.counted("ni_frozen"), 2);
    export.enable(0..1).unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert_eq!(event, Event::Message { offset: 0, len: 8, last_word: 7 }, "and nothing else");
}

/// H13, by the policy of the exporter's node: the link of a packet that is held back for too long ends, and what is behind it
/// goes on. Whoever is held up is not, for longer than that.
#[test]
fn where_the_node_has_a_limit_a_frozen_link_ends_and_others_go_on() {
    for seconds in [0, 1] {
        let more = format!("[data]\nfreeze-limit = {seconds}\n");
        let (a, b) = cluster::pair_with(&more);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let exporting = |name: &str| {
            let export = exporter.export(Region::new(1 << 16).unwrap()).name(name);
            export.grant(Who::SameUser, Rights::all()).queue().open().unwrap()
        };
        let importing = |name: &str| {
            let import = importer.import(name).node("a").rights(Rights::WRITE);
            import.timeout(PATIENCE.unwrap()).open().unwrap()
        };
        let other = exporting("other");
        let to_other = importing("other");
        for (what, len) in [("long", 40_000), ("short", 8), ("word", 0)] {
            let frozen = exporting("frozen");
            let import = importing("frozen");
            frozen.disable(8192..8193).unwrap();
            match len {
                0 => import.flag64(8192).unwrap().signal(1).unwrap(),
                len => import.send(8192, &vec![7; len]).unwrap(),
            }
            to_other.send_with_notify(0, &[1; 8]).unwrap();
            let event = other.next_notification(PATIENCE).unwrap().event;
            assert!(matches!(event, Event::Message { .. }), "{what}: {event:?}");
            let ended = import.fence().unwrap_err();
            let disabled = CloseReason::Disabled;
            assert!(
                matches!(ended, WaitError::Closed(closed) if closed.reason == disabled),
                "{what}: {ended}"
            );
            assert!(ended.to_string().contains("page disabled"), "{ended}");
            frozen.enable(0..1 << 16).unwrap();
            assert!(seen(&frozen, 8192, 40_000).iter().all(|&byte| byte == 0), "{what}");
            let mut event = frozen.next_notification(PATIENCE).unwrap().event;
            if matches!(event, Event::Frozen { .. }) {
                event = frozen.next_notification(PATIENCE).unwrap().event;
            }
            assert_eq!(event, Event::Closed { reason: CloseReason::Unimported }, "{what}");
        }
    }
}

/// How a message goes, by name.
type Way<'w> = (&'static str, &'w dyn Fn(&[u8]));

/// H14: interrupt if the receiver's flag and the sender's are both set, with the data in memory.
fn an_interrupt_takes_both_flags_and_finds_the_data(world: &World) {
    const AT: usize = 4096;
    let export = world.exporting(1 << 16).queue().open().unwrap();
    let import = world.import();
    let update = |combining, message: &[u8]| {
        let writer = import.auto_update(combining).unwrap();
        writer.store(AT, message).unwrap();
        writer.fence().unwrap();
    };
    let by_timer = Combining::within(Duration::from_millis(1));
    for (receiver, sender) in [(true, true), (true, false), (false, true), (false, false)] {
        let flagged = |combining: Combining| {
            if sender { combining.notifying() } else { combining }
        };
        let send = |message: &[u8]| match sender {
            true => import.send_with_notify(AT, message).unwrap(),
            false => import.send(AT, message).unwrap(),
        };
        let ways: [Way<'_>; 4] = [
            ("deliberate", &send),
            ("each store", &|message| update(flagged(Combining::OFF), message)),
            ("combined", &|message| update(flagged(Combining::ON), message)),
            ("by the timer", &|message| update(flagged(by_timer), message)),
        ];
        for (round, (what, way)) in (1u64..).zip(ways) {
            if !receiver {
                export.discard_notifications();
            }
            let last_word = round << 8 | u64::from(receiver) << 1 | u64::from(sender);
            let message = [[round as u8; 8], last_word.to_ne_bytes()].concat();
            way(&message);
            import.fence().unwrap();
            if !receiver {
                export.accept_notifications();
            }
            // Behind it, so that what is not there does not come later.
            import.send_notification(0, 1, 0).unwrap();
            let next = || export.next_notification(PATIENCE).unwrap().event;
            let mut event = next();
            if receiver && sender {
                assert_eq!(event, Event::Message { offset: AT, len: 16, last_word }, "{what}");
                assert_eq!(seen(&export, AT, 16), message, "{what}");
                event = next();
            }
            assert_eq!(event, Event::Message { offset: 0, len: 1, last_word: 0 }, "{what}");
            assert_eq!(seen(&export, AT, 16), message, "{what}");
        }
    }
}

/// H14, H4, H5: the flag is the packet's.
fn each_packet_interrupts_and_no_store(world: &World) {
    let export = world.exporting(1 << 16).queue().open().unwrap();
    let import = world.import();
    let next = || export.next_notification(PATIENCE).unwrap().event;
    let count = || world.importer.counters().get(NOTIFIES_SENT);
    let before = (packets(world), count());
    let writer = import.auto_update(Combining::ON.notifying()).unwrap();
    (0..100u64).for_each(|i| writer.store(8 * i as usize, &i.to_ne_bytes()).unwrap());
    writer.fence().unwrap();
    assert_eq!(next(), Event::Message { offset: 0, len: 800, last_word: 99 });
    // Over a page's end: two.
    writer.store(8188, &[1; 8]).unwrap();
    writer.fence().unwrap();
    let ones = u64::from(u32::from_ne_bytes([1; 4]));
    assert_eq!(next(), Event::Message { offset: 8188, len: 4, last_word: ones });
    assert_eq!(next(), Event::Message { offset: 8192, len: 4, last_word: ones });
    assert_eq!((packets(world) - before.0, count() - before.1), (3, 3));
}

/// More than the receiver's queue holds: the sender is held back, and none is merged or lost.
fn stores_that_notify_wait_for_the_receivers_queue(world: &World) {
    const COUNT: u64 = 1000;
    let export = world.exporting(4096).queue().open().unwrap();
    let import = world.import();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let writer = import.auto_update(Combining::OFF.notifying()).unwrap();
            for i in 0..COUNT {
                writer.store(8 * (i as usize % 256), &i.to_ne_bytes()).unwrap();
            }
        });
        for i in 0..COUNT {
            let event = export.next_notification(PATIENCE).unwrap().event;
            let offset = 8 * (i as usize % 256);
            assert_eq!(event, Event::Message { offset, len: 8, last_word: i });
        }
    });
}

suite!(
    updates_and_sends_of_one_thread_arrive_in_their_order,
    stores_that_were_combined_are_seen_in_their_order,
    an_import_cannot_be_ended_under_its_writer,
    random_stores_leave_the_same_image_with_and_without_combining,
    an_interrupt_takes_both_flags_and_finds_the_data,
    stores_that_notify_wait_for_the_receivers_queue;
    between nodes:
    consecutive_stores_are_one_packet_with_combining_and_one_each_without,
    a_page_boundary_ends_a_packet,
    what_waits_is_bounded,
    stores_of_every_size_arrive_in_as_few_packets_as_pages_allow,
    a_packet_that_waits_goes_by_its_timer_and_without_one_by_a_flush_alone,
    a_packet_for_a_disabled_page_is_held_back_and_nothing_is_lost,
    a_packet_that_is_held_back_by_a_second_disabling_is_told_of_again,
    each_packet_interrupts_and_no_store,
);
