//! The model of 003, sections 1 and 2: V1 to V18 as far as they apply on one machine.

mod common;
mod support;

use common::{Daemon, PATIENCE, export, import, open, pause, say, until};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::error::{
    BindError, ExportError, FlagError, ImportError, ReadError, SendError, SendNotifyError,
    StartSendError, UnimportError, WaitError,
};
use vmmc::{CloseReason, Node, Region, Rights, Who};

#[test]
fn second_process() {
    common::second_process(&[
        ("overrun", overrun),
        ("strict", strict),
        ("stopped", stopped),
        ("flood", flood),
    ]);
}

fn refusal(error: ImportError) -> Refusal {
    match error {
        ImportError::Refused(refusal) => refusal,
        other => panic!("expected a refusal, got {other}"),
    }
}

/// V1: import first, export later.
#[test]
fn an_import_waits_for_its_export() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let mut pending = importer.import("later").timeout(PATIENCE.unwrap()).start().unwrap();
    assert!(!pending.poll().unwrap());
    assert_eq!(pending.len(), 0);
    let _export = export(&exporter, "later", 5000);
    assert!(pending.wait_for(PATIENCE).unwrap());
    assert_eq!(pending.len(), 5000);
    assert_eq!(pending.wait().unwrap().len(), 5000);
}

/// V1: an unknown name never maps.
#[test]
fn an_import_of_nothing_times_out_and_leaves_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let error = node.import("nothing").timeout(Duration::from_millis(1)).open().unwrap_err();
    assert!(matches!(refusal(error), Refusal::NoSuchExport { .. }));
    assert!(node.imports().is_empty());
    assert!(node.snapshot().unwrap().links.is_empty());
}

/// V1: an import that has failed has failed for whoever asks again.
#[test]
fn a_failed_import_says_why_as_often_as_it_is_asked() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mut pending = node.import("nothing").timeout(Duration::from_millis(1)).start().unwrap();
    for _ in 0..2 {
        let error = pending.wait_for(PATIENCE).unwrap_err();
        assert!(matches!(refusal(error), Refusal::NoSuchExport { .. }));
    }
    assert!(matches!(refusal(pending.poll().unwrap_err()), Refusal::NoSuchExport { .. }));
    assert!(matches!(refusal(pending.wait().unwrap_err()), Refusal::NoSuchExport { .. }));
}

/// V1: the asynchronous import can be given up, before and after it was granted.
#[test]
fn a_cancelled_import_leaves_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node();
    node.import("cancelled").start().unwrap().cancel();
    let _export = export(&node, "cancelled", 64);
    // Some of them while the answer is being acted upon, in another thread.
    for _ in 0..500 {
        node.import("cancelled").start().unwrap().cancel();
    }
    until("no link is left", || node.snapshot().unwrap().links.is_empty());
    assert!(node.imports().is_empty());
}

/// V3: the size is the export's; nothing is read through an import that may only send.
#[test]
fn a_send_only_import_has_the_size_and_cannot_read() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "v3", 4097);
    let import = node.import("v3").rights(Rights::WRITE).open().unwrap();
    assert_eq!(import.len(), 4097);
    assert!(matches!(import.read(0, &mut [0; 4]), Err(ReadError::NotGranted(_))));
    let flag = import.flag32(0).unwrap();
    assert!(flag.load().is_err());
    assert!(matches!(flag.wait_until(|_| true, None), Err(WaitError::NotGranted(_))));
    assert!(matches!(import.bind(0..4096), Err(BindError::NotGranted(_))));
    import.send(4096, b"x").unwrap();
    assert_eq!(export.view().slice(4096, 1).unwrap().len(), 1);
}

/// V3: the other way round.
#[test]
fn a_read_only_import_reads_and_cannot_send() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "ro", 64);
    export.write(8, b"remote").unwrap();
    let import = node.import("ro").rights(Rights::READ).open().unwrap();
    let mut text = [0; 6];
    import.read(8, &mut text).unwrap();
    assert_eq!(&text, b"remote");
    assert!(matches!(import.send(0, b"x"), Err(SendError::NotGranted(_))));
    assert!(matches!(import.flag32(0).unwrap().store(1), Err(SendError::NotGranted(_))));
    assert!(matches!(
        import.send_notification(0, 1, 0),
        Err(SendNotifyError::Send(SendError::NotGranted(_)))
    ));
}

/// V6: what leaves the buffer is refused, whatever the numbers.
#[test]
fn sends_that_leave_the_buffer_are_refused_and_write_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "bounds", 100);
    let import = import(&node, "bounds");
    for (offset, len) in [(100, 1), (99, 2), (0, 101), (usize::MAX, 1), (usize::MAX, 2), (101, 0)] {
        let bytes = vec![7; len];
        assert!(matches!(import.send(offset, &bytes), Err(SendError::OutOfBounds(_))));
        assert!(matches!(
            import.send_with_notify(offset, &bytes),
            Err(SendNotifyError::Send(SendError::OutOfBounds(_)))
        ));
        assert!(matches!(
            import.send_vectored(offset, &[IoSlice::new(&bytes)]),
            Err(SendError::OutOfBounds(_))
        ));
        assert!(matches!(
            import.start_send(offset, bytes.clone()),
            Err(StartSendError::Send(SendError::OutOfBounds(_)))
        ));
        let mut target = vec![0; len];
        assert!(matches!(import.read(offset, &mut target), Err(ReadError::OutOfBounds(_))));
    }
    assert!(matches!(import.flag32(98), Err(FlagError::OutOfBounds(_))));
    assert!(matches!(import.flag64(4), Err(FlagError::OutOfBounds(_))));
    assert!(matches!(
        import.send_notification(99, 2, 0),
        Err(SendNotifyError::Send(SendError::OutOfBounds(_)))
    ));
    let mut all = [1; 100];
    export.read(0, &mut all).unwrap();
    assert_eq!(all, [0; 100]);
}

/// V6: beyond the last page there is nothing to hit.
#[test]
fn a_store_past_the_end_of_a_proxy_faults() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = export(&node, "guarded", 4096);
    let mut second = daemon.second("overrun", &[]);
    second.expect("storing");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(second.child.wait().unwrap().signal(), Some(libc::SIGSEGV));
}

fn overrun(_: &[String]) {
    let node = Node::connect().unwrap();
    let import = import(&node, "guarded");
    // A test harness thread's panic hook is not involved: the default action of SIGSEGV.
    // SAFETY: sets the default action of one signal.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    say("storing");
    // SAFETY: none; the fault is what is tested.
    let past = unsafe { import.proxy_ptr().unwrap().add(4096) };
    // SAFETY: as above.
    unsafe { past.write_volatile(1) };
    say("survived");
}

/// V7: names are unique, numbers per process, and the rest is refused by name.
#[test]
fn names_are_checked() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let _text = export(&a, "name", 64);
    let again = |node: &Node, name: vmmc::Name| {
        node.export(Region::new(64).unwrap()).name(name).open().unwrap_err()
    };
    let taken = |error| matches!(error, ExportError::Refused(Refusal::NameTaken { .. }));
    assert!(taken(again(&b, "name".into())));
    let _one = open(a.export(Region::new(64).unwrap()).name(1));
    assert!(taken(again(&a, 1.into())));
    // The longest fit into no message to the daemon, and disturb none.
    for bad in ["", "a\0b", "line\n", &"x".repeat(256), &"x".repeat(4096), &"x".repeat(100_000)] {
        let error = again(&a, bad.into());
        assert!(matches!(error, ExportError::Refused(Refusal::BadName { .. })), "{error}");
        let error = b.import(bad).timeout(Duration::from_secs(3600)).open().unwrap_err();
        assert!(matches!(refusal(error), Refusal::BadName { .. }));
    }
    for many in [33, 10_000] {
        let builder = a.export(Region::new(64).unwrap()).name("granted");
        let grants = (0..many).map(Who::User);
        let error = grants.fold(builder, |builder, who| builder.grant(who, Rights::READ)).open();
        let error = error.unwrap_err();
        let refused = matches!(error, ExportError::Refused(Refusal::TooManyGrants { count }) if count == many);
        assert!(refused, "{error}");
    }
    let unnamed = a.export(Region::new(64).unwrap()).open().unwrap_err();
    assert!(matches!(unnamed, ExportError::NoName));
    let error = b.import(1).open().unwrap_err();
    assert!(matches!(refusal(error), Refusal::ProcessNeeded { number: 1 }));
    let import = b.import(1).process(std::process::id()).open().unwrap();
    assert_eq!(import.exporter().pid, std::process::id());
    let error = b.import("name").rights(Rights::empty()).open().unwrap_err();
    assert!(matches!(refusal(error), Refusal::NoRights));
}

/// V8, G8: what was sent before is there; what comes after fails; nothing lands after the return. An
/// unexport waits for no importer: here one lives on, with a binding.
#[test]
fn unexport_gives_the_memory_back_and_ends_sends() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let export = export(&exporter, "v8", 4096);
    let import = import(&importer, "v8");
    let binding = import.bind(0..4096).unwrap();
    export.wait_importers(1, PATIENCE).unwrap();
    import.send(100, b"before").unwrap();
    let mut region = export.unexport().unwrap();
    assert_eq!(&region.as_slice()[100..106], b"before");
    let Err(SendError::Closed(closed)) = import.send(100, b"after!") else { panic!("sent") };
    assert_eq!(closed.reason, CloseReason::Unexported);
    assert_eq!(closed.peer.pid, std::process::id());
    // The mapping that the binding keeps reaches nobody.
    binding.write(100, b"canary").unwrap();
    assert!(binding.flag32(0).unwrap().signal(1).is_err());
    assert_eq!(&region.as_slice()[100..106], b"before");
    region.as_mut_slice()[0] = 1;
    assert!(matches!(
        binding.flag32(0).unwrap().wait_until(|_| false, PATIENCE),
        Err(WaitError::Closed(closed)) if closed.reason == CloseReason::Unexported
    ));
    // The region can be exported again, under the same name.
    let again = open(exporter.export(region).name("v8"));
    let mut first = [0];
    again.read(0, &mut first).unwrap();
    assert_eq!(first, [1]);
}

/// V8: transfers in progress finish before the pages are swapped.
#[test]
fn unexport_under_load_loses_no_send_that_succeeded() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    for round in 0..20 {
        let export = export(&exporter, "load", 1 << 16);
        let import = import(&importer, "load");
        export.wait_importers(1, PATIENCE).unwrap();
        let started = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut last = 0u64;
                loop {
                    let bytes = (last + 1).to_ne_bytes().repeat(1 << 13);
                    match import.send(0, &bytes) {
                        Ok(()) => last += 1,
                        Err(_) => return last,
                    }
                    started.store(true, Ordering::Relaxed);
                }
            });
            until("the sender sends", || started.load(Ordering::Relaxed));
            let region = export.unexport().unwrap();
            let last = sender.join().unwrap();
            let words: Vec<u64> = region
                .as_slice()
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                .collect();
            assert!(words.iter().all(|&word| word == last), "round {round}: torn or lost");
        });
    }
}

/// V8: the importer's side.
#[test]
fn unimport_waits_for_bindings_and_started_sends() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "unimport", 1 << 20);
    let import = import(&node, "unimport");
    let binding = import.bind(0..4096).unwrap();
    let completion = import.start_send(0, vec![5u8; 1 << 20]).unwrap();
    let Err(UnimportError::Bound { count: 1, import }) = import.unimport() else {
        panic!("unimported with a binding")
    };
    drop(binding);
    import.unimport().unwrap();
    assert!(completion.is_done());
    let mut last = [0];
    export.read((1 << 20) - 1, &mut last).unwrap();
    assert_eq!(last, [5]);
    until("the link is gone", || export.importers().is_empty());
    assert!(node.imports().is_empty());
}

/// V10: from the stack, the heap, statics, constants, shared memory; one source, many targets.
#[test]
fn any_memory_is_a_source() {
    static STATIC: [u8; 4] = *b"stat";
    let daemon = Daemon::start();
    let node = daemon.node();
    let exports = [export(&node, "v10-0", 64), export(&node, "v10-1", 64)];
    let imports = [import(&node, "v10-0"), import(&node, "v10-1")];
    let stack = *b"stck";
    let heap = b"heap".to_vec();
    for import in &imports {
        import.send(0, &stack).unwrap();
        import.send(4, &heap).unwrap();
        import.send(8, &STATIC).unwrap();
        import.send(12, b"cons").unwrap();
        import
            .send_vectored(16, &[IoSlice::new(b"ve"), IoSlice::new(b""), IoSlice::new(b"c!")])
            .unwrap();
    }
    // From another export, and overlapping its own target.
    imports[1].send_from(20, exports[0].view().slice(0, 20).unwrap()).unwrap();
    let source = std::ptr::NonNull::from(heap.as_slice()).cast();
    // SAFETY: four bytes of a vector that outlives the call.
    unsafe { imports[0].send_raw(20, source, 4) }.unwrap();
    let mut text = [0; 40];
    exports[1].read(0, &mut text).unwrap();
    assert_eq!(&text, b"stckheapstatconsvec!stckheapstatconsvec!");
    exports[0].read(0, &mut text).unwrap();
    assert_eq!(&text[..24], b"stckheapstatconsvec!heap");
}

/// D11, C6: byte by byte, at every alignment of source and target: what is beside the target stays, and
/// nothing of what is beside the source is sent.
#[test]
fn updates_of_any_alignment_and_length_touch_nothing_beside_them() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "odd", 256);
    let import = import(&node, "odd");
    let secret = [0x5e; 128];
    for from in 0..9 {
        for to in 0..9 {
            for len in (0..=20).chain([31, 32, 33, 63, 64, 65, 100]) {
                export.write(0, &[0xbe; 256]).unwrap();
                let mut source = secret;
                source[from..from + len].fill(7);
                import.send(to, &source[from..from + len]).unwrap();
                let mut expected = [0xbe; 256];
                expected[to..to + len].fill(7);
                let mut seen = [0; 256];
                export.read(0, &mut seen).unwrap();
                assert_eq!(seen, expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}

/// V11, V12: every store propagates while bound, none after.
#[test]
fn bound_memory_is_the_exporters_until_it_is_unbound() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let export = export(&node, "bound", 3 * page);
    let import = node.import("bound").rights(Rights::BIND).open().unwrap();
    assert!(matches!(import.bind(1..page), Err(BindError::Misaligned { offset: 1, .. })));
    assert!(matches!(import.bind(0..3 * page + 1), Err(BindError::OutOfBounds(_))));
    assert!(matches!(import.bind(page..page), Err(BindError::OutOfBounds(_))));
    assert!(matches!(import.send(0, b"x"), Err(SendError::NotGranted(_))));
    let binding = import.bind(page..3 * page).unwrap();
    let start = binding.as_ptr().as_ptr();
    // SAFETY: inside the two bound pages; plain stores of several sizes are what is tested.
    unsafe { start.cast::<u64>().write_unaligned(0x0102_0304_0506_0708) };
    // SAFETY: as above.
    unsafe { start.wrapping_add(11).cast::<u16>().write_unaligned(0xABCD) };
    // SAFETY: as above, across a page.
    unsafe { std::ptr::write_bytes(start.wrapping_add(page - 2), 9, 4) };
    let mut seen = [0; 8];
    export.read(page, &mut seen).unwrap();
    assert_eq!(u64::from_ne_bytes(seen), 0x0102_0304_0506_0708);
    export.read(page + 11, &mut seen[..2]).unwrap();
    assert_eq!(seen[..2], 0xABCDu16.to_ne_bytes());
    export.read(2 * page - 2, &mut seen[..4]).unwrap();
    assert_eq!(seen[..4], [9; 4]);

    let mut local = binding.unbind().unwrap();
    assert_eq!(local.as_ptr().as_ptr(), start);
    assert_eq!(local.as_slice()[..2], 0x0102_0304_0506_0708u64.to_ne_bytes()[..2]);
    local.as_mut_slice()[0] = 0x77;
    export.write(page + 1, &[0x66]).unwrap();
    export.read(page, &mut seen[..1]).unwrap();
    assert_ne!(seen[0], 0x77, "a store after unbind propagated");
    assert_ne!(local.as_slice()[1], 0x66, "the exporter reached memory that was unbound");
}

/// V13: order over mixes of deliberate and automatic update, with a flag of either.
#[test]
fn data_is_complete_when_the_flag_is_seen_whatever_carried_either() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let export = export(&exporter, "order", 8192);
    let import = import(&importer, "order");
    let binding = import.bind(0..8192).unwrap();
    let rounds = 4000u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (sent, bound) = (import.flag32(8000).unwrap(), binding.flag32(8000).unwrap());
            let back = binding.flag32(8128).unwrap();
            for round in 1..=rounds {
                let len = (round as usize * 37) % 4000 + 1;
                let bytes = vec![round as u8; len];
                match round % 4 {
                    0 | 1 => import.send(0, &bytes).unwrap(),
                    _ => binding.write(0, &bytes).unwrap(),
                }
                match round % 2 {
                    0 => sent.signal(round).unwrap(),
                    _ => bound.signal(round).unwrap(),
                }
                back.wait_until(|seen| seen == round, PATIENCE).unwrap();
            }
        });
        let (flag, back) = (export.flag32(8000).unwrap(), export.flag32(8128).unwrap());
        for round in 1..=rounds {
            flag.wait_until(|seen| seen == round, PATIENCE).unwrap();
            let len = (round as usize * 37) % 4000 + 1;
            let mut bytes = vec![0; len];
            export.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == round as u8), "round {round}");
            back.signal(round).unwrap();
        }
    });
}

/// V14: the non-blocking form gives its source back when done, and a fence orders it.
#[test]
fn started_sends_complete_in_order_and_give_their_source_back() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "started", 1 << 20);
    let import = import(&node, "started");
    let first = import.start_send(0, vec![1u8; 1 << 20]).unwrap();
    let second = import.start_send(0, vec![2u8; 10]).unwrap();
    import.fence().unwrap();
    import.send(0, &[3; 5]).unwrap();
    assert!(first.is_done() && second.is_done());
    let mut seen = [0; 11];
    export.read(0, &mut seen).unwrap();
    assert_eq!(seen, [3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 1]);
    assert_eq!(first.wait().unwrap().len(), 1 << 20);
    assert_eq!(second.wait().unwrap(), vec![2; 10]);
    drop(export);
    until("the end is known", || import.check_open().is_err());
    assert!(matches!(
        import.start_send(0, vec![1u8]),
        Err(StartSendError::Send(SendError::Closed(_)))
    ));
}

/// V15: the source is free when `send` returns.
#[test]
fn the_source_may_be_overwritten_at_once() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "v15", 100_000);
    let import = import(&node, "v15");
    for len in [1, 63, 64, 65, 100_000] {
        let mut source = vec![0xAA; len];
        import.send(0, &source).unwrap();
        source.fill(0xBB);
        let mut seen = vec![0; len];
        export.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&byte| byte == 0xAA), "{len}");
    }
}

/// V4: N sends, flags and reads under a filter that kills at any system call.
#[test]
fn the_data_path_makes_no_system_call() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "strict", 65536);
    let mut second = daemon.second("strict", &[]);
    second.expect("filtered");
    let flag = export.flag32(0).unwrap();
    // The receiver polls: `wait_until` here would sleep now and then, and ask to be rung.
    until("all has arrived", || flag.load().unwrap() == 10_000);
    use std::os::unix::process::ExitStatusExt;
    let status = second.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

fn strict(_: &[String]) {
    let node = Node::connect().unwrap();
    let import = import(&node, "strict");
    let binding = import.bind(4096..8192).unwrap();
    let flag = import.flag32(0).unwrap();
    let bound = binding.flag32(0).unwrap();
    let (small, large) = ([7u8; 8], vec![9u8; 40_000]);
    let mut read = [0; 64];
    import.send(64, &small).unwrap();
    say("filtered");
    support::only_exit_from_here();
    for round in 1..=10_000u32 {
        let mut good = import.send(64, &small).is_ok();
        good &= import.send_vectored(64, &[IoSlice::new(&small), IoSlice::new(&small)]).is_ok();
        if round % 100 == 0 {
            good &= import.send(16384, &large).is_ok();
        }
        good &= binding.write(128, &small).is_ok() && bound.signal(round).is_ok();
        good &= import.read(64, &mut read).is_ok();
        good &= bound.wait_until(|value| value == round, None).is_ok();
        good &= flag.signal(round).is_ok();
        if !good {
            support::exit(1);
        }
    }
    support::exit(0);
}

/// V17, V18: data lands while the receiver is stopped; it makes no call to receive it.
#[test]
fn a_stopped_receiver_receives() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mut second = daemon.second("stopped", &[]);
    let import = import(&node, "stopped");
    second.expect("linked");
    second.signal(rustix::process::Signal::STOP);
    let text: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    import.send(64, &text).unwrap();
    import.flag32(0).unwrap().store(1).unwrap();
    let mut seen = vec![0; text.len()];
    import.read(64, &mut seen).unwrap();
    assert_eq!(seen, text);
    second.signal(rustix::process::Signal::CONT);
    second.go_on();
    second.expect("good");
    second.finish();
}

fn stopped(_: &[String]) {
    let node = Node::connect().unwrap();
    let export = export(&node, "stopped", 200_000);
    export.wait_importers(1, PATIENCE).unwrap();
    say("linked");
    pause();
    assert_eq!(export.flag32(0).unwrap().load().unwrap(), 1);
    let mut seen = vec![0; 100_000];
    export.read(64, &mut seen).unwrap();
    assert!(seen.iter().zip(0u32..).all(|(&byte, i)| byte == (i * 7) as u8));
    say("good");
}

/// V28: two jobs on one machine; one fuzzes what it may, the other never notices.
#[test]
fn a_neighbour_that_writes_at_random_disturbs_nobody() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let mine = export(&a, "mine", 8192);
    let _theirs = export(&a, "theirs", 8192);
    let import = import(&b, "mine");
    let pattern: Vec<u8> = (0..8192u32).map(|i| (i ^ (i >> 5)) as u8).collect();
    import.send(0, &pattern).unwrap();
    let mut second = daemon.second("flood", &[]);
    second.expect("flooding");
    for _ in 0..200 {
        let mut seen = vec![0; 8192];
        mine.read(0, &mut seen).unwrap();
        assert_eq!(seen, pattern);
        import.send(0, &pattern).unwrap();
    }
    second.kill();
}

fn flood(_: &[String]) {
    let node = Node::connect().unwrap();
    let import = import(&node, "theirs");
    let mut random = 12345usize;
    for round in 0u32.. {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let _ = import.send((random >> 20) % 10_000, &vec![round as u8; (random >> 40) % 5_000]);
        if round == 100 {
            say("flooding");
        }
    }
}

/// G4: memory that exists already is exported in place.
#[test]
fn existing_memory_is_exported_in_place() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let start = vmmc::sys::mmap::map_private_anonymous(page).unwrap();
    // SAFETY: one page mapped just now.
    unsafe { start.as_ptr().write_bytes(0x5A, 16) };
    // SAFETY: a page that only this test knows; no references into it.
    let region = unsafe { Region::adopt(start, page) }.unwrap();
    let export = open(node.export(region).name("adopted"));
    let import = import(&node, "adopted");
    let mut seen = [0; 17];
    import.read(0, &mut seen).unwrap();
    assert_eq!(seen[..16], [0x5A; 16]);
    import.send(0, b"in place").unwrap();
    assert_eq!(export.view().as_ptr(), start);
    drop(export);
    // SAFETY: the page stays mapped when its export is gone.
    assert_eq!(unsafe { start.as_ptr().cast::<[u8; 8]>().read() }, *b"in place");
}

/// Lists of what is exported and imported.
#[test]
fn lists_show_what_is_there() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.node(), daemon.node());
    let export = export(&a, "listed", 123);
    let import = b.import("listed").rights(Rights::READ).open().unwrap();
    export.wait_importers(1, PATIENCE).unwrap();
    let mine = a.exports();
    assert_eq!((mine.len(), mine[0].len, mine[0].importers.len()), (1, 123, 1));
    assert_eq!(mine[0].importers[0].rights, Rights::READ);
    let theirs = b.imports();
    assert_eq!((theirs.len(), theirs[0].len, theirs[0].link), (1, 123, import.id()));
    let all = b.list().unwrap();
    assert_eq!((all.len(), all[0].len, all[0].importers), (1, 123, 1));
    assert_eq!(all[0].rights, Rights::all());
}

/// Two ends of one import in one process, and several importers of one export.
#[test]
fn one_export_serves_many_importers_and_its_own_process() {
    let daemon = Daemon::start();
    let nodes: Vec<Node> = (0..4).map(|_| daemon.node()).collect();
    let export = export(&nodes[0], "many", 4096);
    let imports: Vec<_> = nodes.iter().map(|node| import(node, "many")).collect();
    export.wait_importers(4, PATIENCE).unwrap();
    for (i, import) in imports.iter().enumerate() {
        import.send(i, &[i as u8 + 1]).unwrap();
    }
    let mut seen = [0; 4];
    export.read(0, &mut seen).unwrap();
    assert_eq!(seen, [1, 2, 3, 4]);
    // One dies from the exporter's point of view only when its process does: all are orderly.
    drop(imports);
    until("all links are gone", || export.importers().is_empty());
    let timeout = export.flag32(64).unwrap().wait_until(|v| v == 1, Some(Duration::from_millis(1)));
    assert!(matches!(timeout, Err(WaitError::TimedOut { .. })));
}

/// The grants decide per caller; nobody is let in by default.
#[test]
fn an_export_without_grants_lets_nobody_in() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = node.export(Region::new(64).unwrap()).name("closed").open().unwrap();
    let error = node.import("closed").timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(refusal(error), Refusal::NotPermitted { .. }));
    let _other = node
        .export(Region::new(64).unwrap())
        .name("by pid")
        .grant(Who::Process(std::process::id()), Rights::READ)
        .open()
        .unwrap();
    assert!(node.import("by pid").rights(Rights::READ).open().is_ok());
    let error = node.import("by pid").rights(Rights::WRITE).open().unwrap_err();
    assert!(matches!(refusal(error), Refusal::NotPermitted { .. }));
}
