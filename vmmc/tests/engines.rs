//! What an import does is the same over every engine: one suite, run on each.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/engine.rs"]
#[macro_use]
mod engine;
#[path = "support/proxy.rs"]
mod proxy;

use common::{PATIENCE, pause, say, until};
use engine::World;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vmmc::counters::index::{DIRECT_BYTES, DIRECT_WRITES, NET_BYTES, NET_PACKETS};
use vmmc::error::{FlagError, ImportError, ReadError, SendError, StartSendError, WaitError};
use vmmc::{CloseReason, Combining, Event, Import, Node, Region, Rights, Token, Who};

/// A message that says where it belongs.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31).wrapping_add(seed.wrapping_mul(7)) >> 3) as u8).collect()
}

fn bytes_of_any_length_land_where_they_were_sent(world: &World) {
    let len = 3 << 20;
    let (export, import) = (world.export(len), world.import());
    assert_eq!(import.len(), len);
    let mut image = vec![0; len];
    for (seed, (at, size)) in
        [(0, 1), (1, 7), (4093, 9), (8192, 4096), (12_289, 70_001), (100_003, (2 << 20) + 5)]
            .into_iter()
            .enumerate()
    {
        let message = pattern(seed, size);
        import.send(at, &message).unwrap();
        image[at..at + size].copy_from_slice(&message);
    }
    import.fence().unwrap();
    let mut seen = vec![0; len];
    export.read(0, &mut seen).unwrap();
    assert!(seen == image, "the image differs");
    let mut read = vec![0; (2 << 20) + 5];
    import.read(100_003, &mut read).unwrap();
    assert!(read == image[100_003..100_003 + read.len()], "what is read back differs");
}

fn a_source_may_be_reused_when_the_send_returns(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
    let mut source = vec![0; 256];
    for i in 0..200u8 {
        source.fill(i);
        import.send(usize::from(i) * 256, &source).unwrap();
        source.fill(0xff);
    }
    import.fence().unwrap();
    let mut seen = [0; 256];
    for i in 0..200u8 {
        export.read(usize::from(i) * 256, &mut seen).unwrap();
        assert_eq!(seen, [i; 256]);
    }
}

/// The receiving process looks only when the sender knows.
fn a_fenced_send_is_there_when_it_returns(world: &World) {
    let (export, import) = (world.export(1 << 20), world.import());
    for (seed, (at, len)) in
        [(0, 8), (4090, 20), (5000, 0), (65_536, 600_001)].into_iter().enumerate()
    {
        let message = pattern(seed, len);
        import.send_fenced(at, &message).unwrap();
        let mut seen = vec![0; len];
        export.read(at, &mut seen).unwrap();
        assert!(seen == message, "{at}");
    }
    let beyond = import.send_fenced(1 << 20, b"x").unwrap_err();
    assert!(matches!(beyond, SendError::OutOfBounds(_)), "{beyond}");
    import.send_fenced(0, b"goes on").unwrap();
    drop(export.unexport().unwrap());
    let closed = import.send_fenced(0, b"too late").unwrap_err();
    assert!(matches!(closed, SendError::Closed(_)), "{closed}");
}

fn whoever_sees_the_flag_sees_the_data(world: &World) {
    let (export, import) = (world.export(1 << 16), world.import());
    let (flag, go_on) = (1 << 15, (1 << 15) + 64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=150u32 {
                let len = 1 + (round as usize * 97) % 9000;
                import.send(3, &pattern(round as usize, len)).unwrap();
                import.flag32(flag).unwrap().signal(round).unwrap();
                let taken = import.flag32(go_on).unwrap();
                taken.wait_until(|seen| seen == round, PATIENCE).unwrap();
            }
        });
        for round in 1..=150u32 {
            let seen = export.flag32(flag).unwrap();
            assert_eq!(seen.wait_until(|value| value == round, PATIENCE).unwrap(), round);
            let len = 1 + (round as usize * 97) % 9000;
            let mut message = vec![0; len];
            export.read(3, &mut message).unwrap();
            assert!(message == pattern(round as usize, len), "round {round}: flag before data");
            export.flag32(go_on).unwrap().signal(round).unwrap();
        }
    });
}

/// V13: deliberate updates, flags and pieces of one thread, mixed.
fn sends_flags_and_pieces_of_one_thread_arrive_in_order(world: &World) {
    const COUNT: u64 = 2000;
    let (export, import) = (world.export(1 << 16), world.import());
    let sender = std::thread::spawn(move || {
        for i in 1..=COUNT {
            let at = 8 * i as usize;
            match i % 3 {
                0 => import.send(at, &i.to_ne_bytes()).unwrap(),
                1 => import.flag64(at).unwrap().store(i).unwrap(),
                _ => {
                    let bytes = i.to_ne_bytes();
                    let pieces = [&bytes[..3], &bytes[3..]].map(std::io::IoSlice::new);
                    import.send_vectored(at, &pieces).unwrap();
                }
            }
            import.flag64(0).unwrap().signal(i).unwrap();
        }
        import
    });
    let mut checked = 0;
    while checked < COUNT {
        let seen = export.flag64(0).unwrap().wait_until(|seen| seen > checked, PATIENCE).unwrap();
        for i in checked + 1..=seen {
            let mut found = [0; 8];
            export.read(8 * i as usize, &mut found).unwrap();
            assert_eq!(u64::from_ne_bytes(found), i, "not there when flag {seen} was");
        }
        checked = seen;
    }
    drop(sender.join().unwrap());
}

fn notifications_come_after_their_data_in_order_and_none_is_merged(world: &World) {
    const COUNT: u64 = 1000; // far more than a link's queue holds
    let export = world.exporting(1 << 16).queue().open().unwrap();
    let import = world.import();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..COUNT {
                let message = [i, i ^ 0xabcd, i].map(u64::to_ne_bytes).concat();
                import.send_with_notify(24 * (i as usize % 500), &message).unwrap();
            }
        });
        for i in 0..COUNT {
            let notification = export.next_notification(PATIENCE).unwrap();
            let at = 24 * (i as usize % 500);
            assert_eq!(notification.event, Event::Message { offset: at, len: 24, last_word: i });
            if i >= COUNT - 400 {
                let mut message = [0; 8];
                export.read(at, &mut message).unwrap();
                assert_eq!(u64::from_ne_bytes(message), i, "notified before its data");
            }
        }
    });
    // One for bytes that came another way, and one longer than a packet of any engine.
    import.send_notification(16, 8, 77).unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert_eq!(event, Event::Message { offset: 16, len: 8, last_word: 77 });
}

fn a_handler_finds_the_whole_of_a_long_message(world: &World) {
    let sums = Arc::new(AtomicUsize::new(0));
    let (done, len) = (sums.clone(), 1 << 20);
    let region = Region::new(len).unwrap();
    let builder = world.exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let _export = builder
        .handler(move |notification| {
            if matches!(notification.event, Event::Message { offset: 0, len, .. } if len == 1 << 20)
            {
                done.fetch_add(1, Ordering::Release);
            }
        })
        .open()
        .unwrap();
    let import = world.import();
    let message = pattern(5, len);
    import.send_with_notify(0, &message).unwrap();
    let arrived = || sums.load(Ordering::Acquire) == 1;
    world.exporter.run_until(arrived, PATIENCE).unwrap();
    let mut seen = vec![0; len];
    _export.read(0, &mut seen).unwrap();
    assert!(seen == message, "the handler ran before its data was there");
}

fn what_does_not_fit_or_was_not_granted_is_refused_and_writes_nothing(world: &World) {
    let (export, import) = (world.export(8192), world.import());
    for (at, len) in [(8192, 1), (8000, 200), (usize::MAX, 2), (1 << 60, 1)] {
        let error = import.send(at, &vec![1; len]).unwrap_err();
        assert!(matches!(error, SendError::OutOfBounds(_)), "{at}: {error}");
    }
    assert!(matches!(import.flag32(2), Err(FlagError::OutOfBounds(_))));
    assert!(matches!(import.flag64(8188), Err(FlagError::OutOfBounds(_))));
    let importing = |rights| world.importing("x").rights(rights).timeout(PATIENCE.unwrap());
    let reader = importing(Rights::READ).open().unwrap();
    assert!(matches!(reader.send(0, &[1]), Err(SendError::NotGranted(_))));
    assert!(matches!(reader.flag32(0).unwrap().store(1), Err(SendError::NotGranted(_))));
    let writer = importing(Rights::WRITE).open().unwrap();
    assert!(matches!(writer.read(0, &mut [0]), Err(ReadError::NotGranted(_))));
    assert!(writer.flag32(0).unwrap().load().is_err());
    for import in [&import, &reader, &writer] {
        import.fence().unwrap();
    }
    let mut seen = vec![1; 8192];
    export.read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 0));
}

/// H11: as the paper's hardware, on demand.
fn a_strict_import_takes_whole_words_only(world: &World) {
    let export = world.export(4096);
    let import = world.importing("x").strict(true).timeout(PATIENCE.unwrap()).open().unwrap();
    let words = [0x0101_0101u32; 16];
    // SAFETY: the same bytes.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), 64) };
    for by in 1..4 {
        let wrong: [(&str, Result<(), SendError>); 6] = [
            ("offset", import.send(by, &bytes[..8])),
            ("length", import.send(0, &bytes[..4 + by])),
            ("source address", import.send(0, &bytes[by..by + 8])),
            ("offset", import.send_fenced(64 + by, &bytes[..8])),
            ("length", import.send_vectored(0, &[&bytes[..8], &bytes[..by]].map(IoSlice::new))),
            (
                "offset",
                import.start_send(by, vec![1; 8]).map(drop).map_err(|error| match error {
                    StartSendError::Send(error) => error,
                    other => panic!("{other}"),
                }),
            ),
        ];
        for (part, sent) in wrong {
            let error = sent.unwrap_err();
            assert!(matches!(error, SendError::Misaligned { what, .. } if what == part), "{error}");
        }
        let notified = import.send_with_notify(by, &bytes[..8]).unwrap_err();
        assert!(notified.to_string().contains(&format!("offset {by} is not")), "{notified}");
    }
    import.send(8, &bytes[4..16]).unwrap();
    // Automatic update and flags are as ever, and a relaxed import next to it.
    import.auto_update(Combining::OFF).unwrap().store(101, &bytes[..3]).unwrap();
    world.import().send(201, &bytes[1..4]).unwrap();
    import.fence().unwrap();
    let mut expected = [0; 4096];
    for range in [8..20, 101..104, 201..204] {
        expected[range].fill(1);
    }
    until("all is there", || {
        let mut seen = [0; 4096];
        export.read(0, &mut seen).unwrap();
        seen == expected
    });
}

fn an_import_waits_for_its_export_or_says_that_there_is_none(world: &World) {
    let error = world.importing("x").timeout(Duration::from_millis(20)).open().unwrap_err();
    assert!(error.to_string().contains("nothing is exported as \"x\""), "{error}");
    let mut pending = world.importing("x").timeout(PATIENCE.unwrap()).start().unwrap();
    assert!(!pending.poll().unwrap());
    assert_eq!(pending.len(), 0);
    let export = world.export(4096);
    let import = pending.wait().unwrap();
    assert_eq!(import.len(), 4096);
    import.flag32(0).unwrap().signal(9).unwrap();
    assert_eq!(export.flag32(0).unwrap().wait_until(|it| it == 9, PATIENCE).unwrap(), 9);
    let waiting = world.importing("never").start().unwrap();
    waiting.cancel();
}

fn an_export_without_a_text_is_found_by_its_process_and_number(world: &World) {
    let number = 77_u32;
    let import = || {
        let import = match world.node {
            None => world.importer.import(number),
            Some(node) => world.importer.import(number).node(node),
        };
        import.timeout(PATIENCE.unwrap())
    };
    let region = Region::new(4096).unwrap();
    let export = world.exporter.export(region).name(number);
    let export = export.grant(Who::SameUser, Rights::WRITE).open().unwrap();
    let (own, other) = (std::process::id(), 1);
    let found = import().process(own).open().unwrap();
    found.send_fenced(8, b"by number").unwrap();
    let mut seen = [0; 9];
    export.read(8, &mut seen).unwrap();
    assert_eq!(&seen, b"by number");
    // Another process's of that number it is not, and without a process it is nobody's.
    let error = import().process(other).timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(error, ImportError::Refused(_)), "{error}");
    let error = import().timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(error, ImportError::Refused(_)), "{error}");
}

fn who_waits_for_an_import_hears_of_the_importers_of_its_own_exports(world: &World) {
    let region = Region::new(4096).unwrap();
    let own = world.importer.export(region).name("own").grant(Who::SameUser, Rights::all());
    let own = own.queue().open().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.import());
        // So that it is likely to wait by now. It need not.
        std::thread::sleep(Duration::from_millis(50));
        let neighbour = world.importers_daemon().node();
        let import = neighbour.import("own").timeout(PATIENCE.unwrap()).open().unwrap();
        import.send_with_notify(0, &[1]).unwrap();
        let told = own.next_notification(PATIENCE).unwrap();
        assert!(matches!(told.event, Event::Message { len: 1, .. }), "{told:?}");
        assert!(!waiting.is_finished(), "it was told meanwhile");
        let _export = world.export(4096);
        waiting.join().unwrap();
    });
}

fn rights_and_secrets_are_asked_of_the_exporters_daemon(world: &World) {
    let secret = Token([3; 16]);
    let region = Region::new(4096).unwrap();
    let builder = world.exporter.export(region).name("x").token(secret);
    let _export = builder.grant(Who::SameUser, Rights::READ).open().unwrap();
    let ask = |rights, token| {
        let import = world.importing("x").rights(rights).timeout(PATIENCE.unwrap());
        import.token(token).open()
    };
    drop(ask(Rights::READ, secret).expect("imports"));
    for (rights, token, word) in
        [(Rights::READ, Token([4; 16]), "token"), (Rights::WRITE, secret, "grants user")]
    {
        let error = ask(rights, token).unwrap_err();
        assert!(matches!(error, ImportError::Refused(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

fn an_exporter_knows_its_importer_by_node_process_and_user(world: &World) {
    let export = world.exporting(4096).queue().open().unwrap();
    let import = world.import();
    import.send_with_notify(0, &[1]).unwrap();
    let told = export.next_notification(PATIENCE).unwrap();
    let (process, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    assert_eq!((told.from.pid, told.from.uid), (process, user));
    let node = world.node.map(|_| "b".to_owned());
    assert_eq!(world.exporter.importer_node(told.link), node);
    let [importer] = &export.importers()[..] else { panic!("one importer") };
    assert_eq!((importer.peer, &importer.node), (told.from, &node));
    assert_eq!((import.exporter().pid, import.exporter().uid), (process, user));
    drop(import);
    let end = export.next_notification(PATIENCE).unwrap();
    assert_eq!(end.from, told.from, "the end of a link is told of the same process");
}

fn started_sends_complete_in_order_and_give_their_source_back(world: &World) {
    let (export, import) = (world.export(1 << 20), world.import());
    let completions: Vec<_> =
        (0..8).map(|i| import.start_send(i << 17, pattern(i, 1 << 17)).unwrap()).collect();
    for (i, completion) in completions.into_iter().enumerate() {
        assert!(completion.wait().unwrap() == pattern(i, 1 << 17));
    }
    import.fence().unwrap();
    for i in 0..8 {
        let mut seen = vec![0; 1 << 17];
        export.read(i << 17, &mut seen).unwrap();
        assert!(seen == pattern(i, 1 << 17));
    }
}

/// V14: weaker order until a completion has been waited for, and none after.
fn what_is_sent_after_a_completion_comes_after_it(world: &World) {
    const LEN: usize = 50_000;
    let (export, import) = (world.export(1 << 16), world.import());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=40u32 {
                let taken = import.start_send(64, pattern(round as usize, LEN)).unwrap();
                let mut back = taken.wait().unwrap();
                back.fill(0xff); // it is the program's again
                import.flag32(0).unwrap().signal(round).unwrap();
                let go_on = import.flag32(8).unwrap();
                go_on.wait_until(|seen| seen == round, PATIENCE).unwrap();
            }
        });
        for round in 1..=40u32 {
            export.flag32(0).unwrap().wait_until(|seen| seen == round, PATIENCE).unwrap();
            let mut message = vec![0; LEN];
            export.read(64, &mut message).unwrap();
            assert!(message == pattern(round as usize, LEN), "round {round}: flag before data");
            export.flag32(8).unwrap().signal(round).unwrap();
        }
    });
}

fn an_unexport_ends_every_wait_and_send_with_its_reason(world: &World) {
    let export = world.export(4096);
    let import = world.import();
    import.send(0, b"before").unwrap();
    import.fence().unwrap();
    let region = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let flag = import.flag32(64).unwrap();
            flag.wait_until(|value| value == 1, PATIENCE)
        });
        let region = export.unexport().unwrap();
        let end = waiter.join().unwrap();
        assert!(
            matches!(end, Err(WaitError::Closed(closed)) if closed.reason == CloseReason::Unexported),
            "{end:?}"
        );
        region
    });
    // An import elsewhere hears of it, and then no send says that all is well.
    until("the importer knows", || import.check_open().is_err());
    assert!(matches!(import.send(0, b"after"), Err(SendError::Closed(_))));
    assert_eq!(&region.as_slice()[..6], b"before");
}

/// V8: what a send that succeeded wrote is there when the export is withdrawn, and nothing comes later.
fn an_unexport_loses_no_send_that_succeeded(world: &World) {
    const LEN: usize = 1 << 16;
    for round in 0..4 {
        let export = world.export(LEN);
        let imports = [world.import(), world.import()];
        export.wait_importers(2, PATIENCE).unwrap();
        let sent = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let region = std::thread::scope(|scope| {
            for ((half, import), sent) in imports.iter().enumerate().zip(&sent) {
                scope.spawn(move || {
                    loop {
                        let next = sent.load(Ordering::Relaxed) as u64 + 1;
                        let message = next.to_ne_bytes().repeat(LEN / 16);
                        if import.send(half * LEN / 2, &message).is_err() {
                            return;
                        }
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            until("both send", || sent.iter().all(|sent| sent.load(Ordering::Relaxed) > 2));
            export.unexport().unwrap()
        });
        for (bytes, sent) in region.as_slice().chunks(LEN / 2).zip(&sent) {
            let last = sent.load(Ordering::Relaxed) as u64;
            let mut words =
                bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            assert!(words.all(|word| word == last), "round {round}: torn or lost");
        }
    }
}

/// The same for long ones, and nothing lands any more when the unexport is over, whichever way it is done.
fn an_unexport_loses_no_long_send_that_succeeded(world: &World) {
    const LEN: usize = 1 << 19;
    for round in 0..3 {
        let export = world.export(LEN);
        let import = world.import();
        export.wait_importers(1, PATIENCE).unwrap();
        let sent = AtomicUsize::new(0);
        let (region, seen) = std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    let next = sent.load(Ordering::Relaxed) as u64 + 1;
                    if import.send(0, &next.to_ne_bytes().repeat(LEN / 8)).is_err() {
                        return;
                    }
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
            until("it sends", || sent.load(Ordering::Relaxed) > 4);
            let region = export.unexport().unwrap();
            let seen = region.as_slice().to_vec();
            (region, seen)
        });
        let last = sent.load(Ordering::Relaxed) as u64;
        let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap());
        assert!(seen.chunks_exact(8).all(|it| word(it) == last), "round {round}: torn or lost");
        assert!(region.as_slice() == seen, "round {round}: something came later");
    }
}

fn an_export_that_is_dropped_under_long_sends_hurts_no_other_link(world: &World) {
    const LEN: usize = 1 << 18;
    let other = world.exporter.export(Region::new(4096).unwrap()).name("other");
    let other = other.grant(Who::SameUser, Rights::all()).open().unwrap();
    let to_other = world.importing("other").timeout(PATIENCE.unwrap()).open().unwrap();
    for round in 1..=5u32 {
        let export = world.export(LEN);
        let import = world.import();
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while import.send(0, &vec![1; LEN]).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
            until("it sends", || sent.load(Ordering::Relaxed) > 2);
            drop(export);
        });
        let closed = import.check_open().unwrap_err();
        assert_eq!(closed.reason, CloseReason::Unexported);
        to_other.flag32(0).unwrap().signal(round).unwrap();
        let seen = other.flag32(0).unwrap().wait_until(|value| value == round, PATIENCE);
        assert_eq!(seen.unwrap(), round);
    }
}

/// V13 for messages of all lengths: whoever sees a later one sees the earlier ones, and where two lie over each other the later
/// one stays.
fn long_and_short_messages_of_one_thread_arrive_in_order(world: &World) {
    const ROUNDS: u64 = 120;
    const LEN: usize = 300_000;
    let (export, import) = (world.export(1 << 20), world.import());
    let sizes = [40_000, LEN, 150_000, 9_000, 20_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let size = sizes[round as usize % sizes.len()];
                // As a writer's counter says: odd while the bytes may change.
                import.flag64(0).unwrap().store(2 * round - 1).unwrap();
                import.send(64, &[0xff; 100]).unwrap();
                import.send(64, &vec![round as u8; size]).unwrap();
                if round % 3 == 0 {
                    import.send(64, &vec![round as u8; size]).unwrap();
                }
                import.flag64(0).unwrap().signal(2 * round).unwrap();
                if round % 7 == 0 {
                    import.fence().unwrap();
                }
            }
        });
        let counter = export.flag64(0).unwrap();
        let (mut bytes, mut checked) = (vec![0; LEN], 0);
        while checked < 2 * ROUNDS {
            let before = counter.wait_until(|it| it > checked, PATIENCE).unwrap();
            checked = before;
            let size = sizes[(before / 2) as usize % sizes.len()];
            export.read(64, &mut bytes[..size]).unwrap();
            if before % 2 == 0 && counter.load().unwrap() == before {
                let round = (before / 2) as u8;
                assert!(bytes[..size].iter().all(|&byte| byte == round), "round {round}");
            }
        }
    });
}

/// Does something when it is dropped.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// H12, H13: what a fabric writes by itself, too.
fn a_page_that_is_disabled_holds_long_messages_back_and_loses_none(world: &World) {
    const LEN: usize = 1 << 18;
    let (export, import) = (world.export(LEN), world.import());
    let (sent, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = || {
        let mut seen = vec![0; LEN];
        export.read(0, &mut seen).unwrap();
        seen
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) == 0 {
                let next = sent.load(Ordering::Relaxed) as u64 + 1;
                import.send(0, &next.to_ne_bytes().repeat(LEN / 8)).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Also when something of this fails: the scope waits for the sender, and that one for its pages.
        let _end = AtEnd(|| {
            stop.store(1, Ordering::Relaxed);
            let _ = export.enable(0..LEN);
        });
        for _ in 0..4 {
            let before = sent.load(Ordering::Relaxed);
            until("it sends", || sent.load(Ordering::Relaxed) > before + 3);
            let frozen = world.counted("ni_frozen");
            export.disable(0..LEN).unwrap();
            let seen = look();
            until("a packet is held back", || world.counted("ni_frozen") > frozen);
            assert!(look() == seen, "something came to a disabled page");
            export.enable(0..LEN).unwrap();
            // The next one that is held back is another one.
            until("what was held back comes", || look() != seen);
        }
    });
    import.fence().unwrap();
    let last = (sent.load(Ordering::Relaxed) as u64).to_ne_bytes().repeat(LEN / 8);
    assert!(look() == last, "lost");
    assert_eq!(world.counted("ni_recalls"), u64::from(world.direct), "once, and for good");
}

/// It cannot answer.
fn a_page_is_disabled_though_the_sender_is_stopped(world: &World) {
    const LEN: usize = 1 << 18;
    let export = world.export(LEN);
    let node = world.node.unwrap_or_default();
    let mut second = world.importers_daemon().second("storm", &[node]);
    second.expect("imported");
    let look = || {
        let mut seen = vec![0; LEN];
        export.read(0, &mut seen).unwrap();
        seen
    };
    until("it sends", || look()[8] > 3);
    second.signal(rustix::process::Signal::STOP);
    let frozen = world.counted("ni_frozen");
    export.disable(0..LEN).unwrap();
    let seen = look();
    assert_eq!(world.counted("ni_recalls"), u64::from(world.direct));
    second.signal(rustix::process::Signal::CONT);
    // What a fabric had on its way for a window that is shut by force costs the connection.
    let is_over = || world.direct && export.importers().is_empty();
    until("a packet is held back", || world.counted("ni_frozen") > frozen || is_over());
    assert!(look() == seen, "something came to a disabled page");
    export.enable(0..LEN).unwrap();
}

/// H12: nor does one that its exporter, which is stopped, has not heard of.
fn an_importer_that_is_not_known_yet_changes_no_disabled_page(world: &World) {
    const LEN: usize = 1 << 17;
    let mut second = world.exporters_daemon().second("guard", &[]);
    second.expect("disabled");
    let witness = world.exporter.import("x").rights(Rights::READ).open().unwrap();
    second.signal(rustix::process::Signal::STOP);
    let import = world.import();
    let packets = world.counted("ni_packets");
    for round in 1..=3u8 {
        import.send(0, &vec![round; LEN]).unwrap();
    }
    let attempts = || world.counted("ni_packets") > packets;
    until("it came there", attempts);
    let image = || {
        let mut seen = vec![0; LEN];
        witness.read(0, &mut seen).unwrap();
        seen
    };
    assert!(image().iter().all(|&byte| byte == 0), "something came to a disabled page");
    second.signal(rustix::process::Signal::CONT);
    second.expect("frozen");
    assert!(image().iter().all(|&byte| byte == 0), "something came to a disabled page");
    second.go_on();
    import.fence().unwrap();
    assert!(image().iter().all(|&byte| byte == 3), "lost");
    assert_eq!(world.counted("ni_windows"), 0, "a fabric asks nobody");
}

/// Nothing of an importer that comes at the moment of the disabling is there later than it.
fn pages_are_disabled_for_who_comes_meanwhile(world: &World) {
    const LEN: usize = 1 << 14;
    let look = |export: &vmmc::Export| {
        let mut seen = vec![0; LEN];
        export.read(0, &mut seen).unwrap();
        seen
    };
    for round in 0..30 {
        let export = world.exporting(LEN).queue().open().unwrap();
        let (sent, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let import = world.import();
                while stop.load(Ordering::Relaxed) == 0 {
                    let next = sent.load(Ordering::Relaxed) as u64 + 1;
                    import.send(0, &next.to_ne_bytes().repeat(LEN / 8)).unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                import.fence().unwrap();
            });
            until("it has begun", || sent.load(Ordering::Relaxed) >= round % 3);
            export.disable(0..LEN).unwrap();
            let seen = look(&export);
            let event = export.next_notification(PATIENCE);
            let same = look(&export) == seen;
            export.enable(0..LEN).unwrap(); // before it fails: the sender waits
            stop.store(1, Ordering::Relaxed);
            let event = event.unwrap().event;
            assert!(matches!(event, Event::Frozen { .. }), "round {round}: {event:?}");
            assert!(same, "round {round}: something came to a disabled page");
        });
        let last = (sent.load(Ordering::Relaxed) as u64).to_ne_bytes().repeat(LEN / 8);
        assert!(look(&export) == last, "round {round}: lost");
    }
}

/// It has been told, and its thread that listens has not come to it: who disables listens.
fn an_importer_whom_the_exporter_was_told_of_changes_no_disabled_page(world: &World) {
    let mut second = world.exporters_daemon().second("busy exporter", &[]);
    second.expect("exported");
    let node = world.node.unwrap_or_default();
    let mut storm = world.importers_daemon().second("storm", &[node]);
    storm.expect("imported");
    assert_eq!(second.expect("disabled"), "and nothing came");
    second.go_on();
    second.expect("enabled");
    storm.kill();
}

/// Bytes that packets did not carry were carried all the same: by whom the counters say.
fn long_messages_go_past_the_interface(world: &World) {
    const LEN: usize = 1 << 20;
    let (export, import) = (world.export(LEN), world.import());
    let count = |counter| world.importer.counters().get(counter);
    let before = [NET_PACKETS, DIRECT_WRITES, DIRECT_BYTES, NET_BYTES].map(count);
    for round in 0..4 {
        import.send(0, &pattern(round, LEN)).unwrap();
        import.fence().unwrap();
        let mut seen = vec![0; LEN];
        export.read(0, &mut seen).unwrap();
        assert!(seen == pattern(round, LEN), "round {round}");
    }
    let after = [NET_PACKETS, DIRECT_WRITES, DIRECT_BYTES, NET_BYTES].map(count);
    let bytes = 4 * LEN as u64;
    let grown = std::array::from_fn(|i| after[i] - before[i]);
    assert_eq!(grown, [0, 4, bytes, bytes]);
    // Who may only read has nothing opened to it.
    let reader = world.importing("x").rights(Rights::READ).open().unwrap();
    assert!(matches!(reader.send(0, &pattern(0, LEN)), Err(SendError::NotGranted(_))));
    assert_eq!(count(DIRECT_WRITES), after[1]);
}

fn storm_part(args: &[String]) {
    let (_node, import) = imported(args);
    say("imported");
    for round in (1..=250u8).cycle() {
        // Of packets that are held back and of a connection that is lost it learns when it goes on.
        if import.send(0, &vec![round; 1 << 18]).is_err() {
            break;
        }
    }
    pause();
}

fn an_unimport_comes_after_all_that_was_sent(world: &World) {
    let export = world.exporting(1 << 16).queue().open().unwrap();
    for round in 0..20u8 {
        let import = world.import();
        for i in 0..50 {
            import.send(i * 1000, &[round; 1000]).unwrap();
        }
        import.unimport().unwrap();
        let end = export.next_notification(PATIENCE).unwrap();
        assert_eq!(end.event, Event::Closed { reason: CloseReason::Unimported });
        let mut seen = vec![0; 50_000];
        export.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&byte| byte == round), "round {round}");
    }
}

fn the_death_of_the_exporter_ends_what_waits_for_it(world: &World) {
    let mut second = world.exporters_daemon().second("export", &[]);
    second.expect("exported");
    let import = world.import();
    import.send(0, &[7; 100]).unwrap();
    import.fence().unwrap();
    second.kill();
    let flag = import.flag32(64).unwrap();
    let end = flag.wait_until(|value| value == 1, PATIENCE);
    assert!(
        matches!(end, Err(WaitError::Closed(closed)) if closed.reason == CloseReason::PeerDied),
        "{end:?}"
    );
}

fn the_death_of_the_importer_ends_what_waits_for_it(world: &World) {
    let export = world.export(4096);
    let node = world.node.unwrap_or_default();
    let mut second = world.importers_daemon().second("import", &[node]);
    second.expect("imported");
    let flag = export.flag32(0).unwrap();
    assert_eq!(flag.wait_until(|value| value == 5, PATIENCE).unwrap(), 5);
    second.kill();
    let end = flag.wait_until(|value| value == 6, PATIENCE);
    assert!(
        matches!(end, Err(WaitError::Closed(closed)) if closed.reason == CloseReason::PeerDied),
        "{end:?}"
    );
}

/// Part of a message is there, and its sender is not.
fn importers_that_are_killed_in_long_messages_disturb_nobody(world: &World) {
    let export = world.export(1 << 18);
    let node = world.node.unwrap_or_default();
    let other = world.import();
    for round in 0..12u64 {
        let mut second = world.importers_daemon().second("storm", &[node]);
        second.expect("imported");
        let mut first = [0];
        until("it sends", || {
            export.read(8, &mut first).unwrap();
            first != [0]
        });
        std::thread::sleep(Duration::from_micros(100 * round));
        second.kill();
        until("its link has ended", || export.importers().len() == 1);
        other.send(0, &vec![0; 1 << 18]).unwrap();
        other.fence().unwrap();
    }
}

/// A child that was forked without exec has all descriptors of its parent's.
fn the_death_of_an_importer_is_noticed_though_a_forked_child_lives(world: &World) {
    let export = world.export(4096);
    let node = world.node.unwrap_or_default();
    let mut second = world.importers_daemon().second("import and fork", &[node]);
    second.expect("forked");
    second.signal(rustix::process::Signal::KILL);
    let end = export.flag32(0).unwrap().wait_until(|value| value == 6, PATIENCE);
    assert!(
        matches!(end, Err(WaitError::Closed(closed)) if closed.reason == CloseReason::PeerDied),
        "{end:?}"
    );
    drop(second); // until here the child waits
}

/// V18.
fn a_stopped_receiver_takes_no_part(world: &World) {
    let mut second = world.exporters_daemon().second("export", &[]);
    second.expect("exported");
    let import = world.import();
    second.signal(rustix::process::Signal::STOP);
    let message = pattern(1, 60_000);
    import.send(0, &message).unwrap();
    import.fence().unwrap();
    let mut back = vec![0; 60_000];
    import.read(0, &mut back).unwrap();
    assert!(back == message, "not in the stopped process's memory");
    import.flag32(60_000).unwrap().signal(1).unwrap();
    import.fence().unwrap();
    second.signal(rustix::process::Signal::CONT);
    second.go_on();
    let sum: u64 = message.iter().map(|&byte| u64::from(byte)).sum();
    assert_eq!(second.expect("sum"), sum.to_string());
}

fn export_part(_: &[String]) {
    let node = Node::connect().unwrap();
    let region = Region::new(1 << 16).unwrap();
    let builder = node.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.open().unwrap();
    say("exported");
    pause();
    export.flag32(60_000).unwrap().wait_until(|value| value == 1, PATIENCE).unwrap();
    let mut message = vec![0; 60_000];
    export.read(0, &mut message).unwrap();
    say(&format!("sum {}", message.iter().map(|&byte| u64::from(byte)).sum::<u64>()));
    pause();
}

fn guard_part(_: &[String]) {
    const LEN: usize = 1 << 17;
    let node = Node::connect().unwrap();
    let exporting = node.export(Region::new(LEN).unwrap()).name("x");
    let export = exporting.grant(Who::SameUser, Rights::all()).queue().open().unwrap();
    export.disable(0..LEN).unwrap();
    say("disabled");
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert!(matches!(event, Event::Frozen { .. }), "{event:?}");
    say("frozen");
    pause();
    export.enable(0..LEN).unwrap();
    pause();
}

/// Its thread that listens to the daemon gets next to nothing of the processor that it shares with this one.
fn busy_exporter_part(_: &[String]) {
    const LEN: usize = 1 << 18;
    let node = Node::connect().unwrap();
    let exporting = node.export(Region::new(LEN).unwrap()).name("x");
    let export = exporting.grant(Who::SameUser, Rights::all()).open().unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let tid: i32 = task.file_name().to_str().unwrap().parse().unwrap();
        rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(tid), &one).unwrap();
        if std::fs::read_to_string(task.path().join("comm")).unwrap().trim() == "vmmc-control" {
            let param = libc::sched_param { sched_priority: 0 };
            // SAFETY: a thread of this process, and a structure that lives through the call.
            assert_eq!(unsafe { libc::sched_setscheduler(tid, libc::SCHED_IDLE, &param) }, 0);
        }
    }
    let mut seen = vec![0; LEN];
    say("exported");
    let mut seen_again = seen.clone();
    let mut first = [0];
    while first == [0] {
        export.read(LEN / 2, &mut first).unwrap(); // awake all the time
    }
    export.disable(0..LEN).unwrap();
    export.read(0, &mut seen).unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(20) {
        export.read(0, &mut seen_again).unwrap();
    }
    say(if seen == seen_again { "disabled and nothing came" } else { "disabled in vain" });
    pause();
    export.enable(0..LEN).unwrap();
    say("enabled");
    pause();
}

fn import_part(args: &[String]) {
    let (_node, _import) = imported(args);
    say("imported");
    pause();
}

fn fork_part(args: &[String]) {
    let (_node, _import) = imported(args);
    // SAFETY: the child only reads until nobody can write, and ends.
    if unsafe { libc::fork() } == 0 {
        let mut byte = [0];
        // SAFETY: the standard input is open.
        while rustix::io::read(unsafe { BorrowedFd::borrow_raw(0) }, &mut byte).is_ok_and(|n| n > 0)
        {
        }
        // SAFETY: without its parent's destructors.
        unsafe { libc::_exit(0) };
    }
    say("forked");
    pause();
}

fn imported(args: &[String]) -> (Node, Import) {
    let node = Node::connect().unwrap();
    let import = node.import("x").timeout(PATIENCE.unwrap());
    let import = match args.first().map(String::as_str) {
        Some("") | None => import,
        Some(node) => import.node(node),
    };
    let import = import.open().unwrap();
    import.flag32(0).unwrap().signal(5).unwrap();
    import.fence().unwrap();
    (node, import)
}

#[test]
fn second_process() {
    common::second_process(&[
        ("export", export_part),
        ("import", import_part),
        ("import and fork", fork_part),
        ("storm", storm_part),
        ("guard", guard_part),
        ("busy exporter", busy_exporter_part),
    ]);
}

suite!(
    bytes_of_any_length_land_where_they_were_sent,
    a_source_may_be_reused_when_the_send_returns,
    a_fenced_send_is_there_when_it_returns,
    whoever_sees_the_flag_sees_the_data,
    sends_flags_and_pieces_of_one_thread_arrive_in_order,
    notifications_come_after_their_data_in_order_and_none_is_merged,
    a_handler_finds_the_whole_of_a_long_message,
    what_does_not_fit_or_was_not_granted_is_refused_and_writes_nothing,
    a_strict_import_takes_whole_words_only,
    an_import_waits_for_its_export_or_says_that_there_is_none,
    an_export_without_a_text_is_found_by_its_process_and_number,
    who_waits_for_an_import_hears_of_the_importers_of_its_own_exports,
    rights_and_secrets_are_asked_of_the_exporters_daemon,
    an_exporter_knows_its_importer_by_node_process_and_user,
    started_sends_complete_in_order_and_give_their_source_back,
    what_is_sent_after_a_completion_comes_after_it,
    an_unexport_ends_every_wait_and_send_with_its_reason,
    an_unexport_loses_no_send_that_succeeded,
    an_unexport_loses_no_long_send_that_succeeded,
    an_export_that_is_dropped_under_long_sends_hurts_no_other_link,
    long_and_short_messages_of_one_thread_arrive_in_order,
    an_unimport_comes_after_all_that_was_sent,
    the_death_of_the_exporter_ends_what_waits_for_it,
    the_death_of_the_importer_ends_what_waits_for_it,
    importers_that_are_killed_in_long_messages_disturb_nobody,
    the_death_of_an_importer_is_noticed_though_a_forked_child_lives,
    a_stopped_receiver_takes_no_part,
);

suite!(direct_rxm as direct_rxm_alone: long_messages_go_past_the_interface);
suite!(direct_net as direct_net_alone: long_messages_go_past_the_interface);
suite!(tcp as tcp_pages: a_page_that_is_disabled_holds_long_messages_back_and_loses_none,
    a_page_is_disabled_though_the_sender_is_stopped,
    an_importer_that_is_not_known_yet_changes_no_disabled_page,
    an_importer_whom_the_exporter_was_told_of_changes_no_disabled_page,
    pages_are_disabled_for_who_comes_meanwhile);
suite!(direct_rxm as direct_rxm_pages: a_page_that_is_disabled_holds_long_messages_back_and_loses_none,
    a_page_is_disabled_though_the_sender_is_stopped,
    an_importer_that_is_not_known_yet_changes_no_disabled_page,
    an_importer_whom_the_exporter_was_told_of_changes_no_disabled_page,
    pages_are_disabled_for_who_comes_meanwhile);
suite!(direct_net as direct_net_pages: a_page_that_is_disabled_holds_long_messages_back_and_loses_none,
    a_page_is_disabled_though_the_sender_is_stopped,
    an_importer_that_is_not_known_yet_changes_no_disabled_page,
    an_importer_whom_the_exporter_was_told_of_changes_no_disabled_page,
    pages_are_disabled_for_who_comes_meanwhile);
