//! The corner cases of NX between real processes. `SUPPORT.md` says which row of the checklist is held where.
#![allow(unsafe_code)] // the engine's raw interface

mod common;

use common::Daemon;
use nx::engine::counters as count;
use nx::{Dest, Engine, Info, InfoTarget, Mid, NxError, Outcome, Select, Source, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn src(bytes: &[u8]) -> Source {
    Source { start: bytes.as_ptr(), len: bytes.len() }
}

fn dst(room: &mut [u8]) -> Target {
    Target { start: room.as_mut_ptr(), len: room.len() }
}

fn to(node: i32) -> Dest {
    Dest { node, ptype: 0 }
}

fn csend(engine: &Engine, type_: i32, bytes: &[u8], node: i32) {
    // SAFETY: borrowed for the call.
    unsafe { engine.csend(type_, src(bytes), to(node)) }.expect("csend");
}

fn crecv(engine: &Engine, typesel: i32, room: &mut [u8]) -> Info {
    // SAFETY: borrowed for the call.
    unsafe { engine.crecv(Select::types(typesel), dst(room)) }.expect("crecv")
}

fn isend(engine: &Engine, type_: i32, bytes: &[u8], node: i32) -> Mid {
    // SAFETY: the tests wait before they drop the bytes.
    unsafe { engine.isend(type_, src(bytes), to(node)) }.expect("isend")
}

fn irecv(engine: &Engine, typesel: i32, room: &mut [u8]) -> Mid {
    // SAFETY: the tests wait before they use the room.
    unsafe { engine.irecv(Select::types(typesel), dst(room), None) }.expect("irecv")
}

fn byte(engine: &Engine, typesel: i32) -> u8 {
    let mut room = [0];
    crecv(engine, typesel, &mut room);
    room[0]
}

/// Types taken out of order, probes, masks, force types, zero lengths, truncation.
fn selection(engine: &Engine, _: &str) {
    if engine.node() == 0 {
        for type_ in 0..10 {
            csend(engine, type_, &[type_ as u8], 1);
        }
        csend(engine, nx::engine::types::FORCE_TYPE + 5, &[99], 1);
        csend(engine, 70, b"", 1);
        csend(engine, 71, b"four", 1);
        engine.gsync().expect("gsync");
    } else {
        engine.gsync().expect("gsync"); // all are here
        for type_ in [3, 1, 9, 2] {
            assert_eq!(byte(engine, type_), type_ as u8);
        }
        let info = engine.cprobe(Select::types(-1)).expect("cprobe");
        assert_eq!((info.type_, info.count), (0, 1));
        assert_eq!(byte(engine, -1), 0);
        assert_eq!(engine.iprobe(Select::types(0x8000_0007u32 as i32)).expect("iprobe"), None);
        assert_eq!(byte(engine, 0x8000_0170u32 as i32), 4);
        engine.flushmsg(Select::types(0x8000_0060u32 as i32)).expect("flushmsg");
        assert_eq!([byte(engine, -1), byte(engine, -1)], [7, 8]);
        let mut room = [7; 4];
        assert_eq!(crecv(engine, 70, &mut room).count, 0);
        assert_eq!(room, [7; 4]);
        // SAFETY: borrowed for the call.
        let error = unsafe { engine.crecv(Select::types(71), dst(&mut room[..2])) }.unwrap_err();
        let info = Info { type_: 71, count: 4, node: 0, ptype: 0 };
        assert_eq!(error, NxError::MessageTooLong { info, room: 2 });
        assert_eq!(room, *b"fo\x07\x07");
        assert_eq!(engine.iprobe(Select::types(-1)).expect("iprobe"), None);
        assert_eq!(byte(engine, nx::engine::types::FORCE_TYPE + 5), 99);
    }
    engine.gsync().expect("gsync");
    // To itself, and to all others.
    csend(engine, 80, b"self", engine.node());
    let mut room = [0; 4];
    assert_eq!(crecv(engine, 80, &mut room).node, engine.node());
    csend(engine, 81, &[engine.node() as u8], -1);
    assert_eq!(byte(engine, 81), 1 - engine.node() as u8);
    assert_eq!(engine.iprobe(Select::types(-1)).expect("iprobe"), None);
}

/// A message for a process type that no process of the node has waits until one takes it.
fn nobodys(engine: &Engine, _: &str) {
    let ptype = 5;
    if engine.node() == 0 {
        // SAFETY: borrowed for the call.
        unsafe { engine.csend(90, src(b"late"), Dest { node: 1, ptype }) }.expect("csend");
        // SAFETY: borrowed for the call.
        unsafe { engine.csend(92, src(b"posted"), Dest { node: 1, ptype }) }.expect("csend");
        csend(engine, 91, b"now", 1);
        engine.gsync().expect("gsync");
        engine.gsync().expect("gsync");
        return;
    }
    engine.gsync().expect("gsync"); // both are here
    let mut room = [0; 4];
    assert_eq!(crecv(engine, -1, &mut room).type_, 91);
    assert_eq!(engine.iprobe(Select::types(-1)).expect("iprobe"), None);
    let (mut posted, mut none) = ([0; 6], [0; 6]);
    let nothing = irecv(engine, 93, &mut none);
    let wanted = irecv(engine, 92, &mut posted);
    engine.set_ptype(ptype).expect("nobody has it");
    // It has come before it was this process's.
    engine.msgwait(wanted).expect("msgwait");
    assert_eq!(&posted, b"posted");
    engine.msgcancel(nothing).expect("msgcancel");
    let info = crecv(engine, -1, &mut room);
    assert_eq!((info.type_, info.count, room), (90, 4, *b"late"));
    engine.gsync().expect("gsync");
}

/// Ids: many, merged, done, ignored, cancelled, bad.
fn mids(engine: &Engine, _: &str) {
    let other = 1 - engine.node();
    let mut rooms = vec![[0u8; 8]; 950];
    let ids: Vec<Mid> = (0..).zip(&mut rooms).map(|(i, room)| irecv(engine, i, room)).collect();
    assert!(ids.iter().all(|id| id.0 > 0));
    let mut all = None;
    let data: Vec<[u8; 8]> = (0..950u64).map(u64::to_ne_bytes).collect();
    for (i, bytes) in (0i32..950).zip(&data).rev() {
        let sent = isend(engine, i, bytes, other);
        all = engine.msgmerge(all, Some(sent)).expect("msgmerge");
        if i % 64 == 0 {
            engine.msgwait(all.take().expect("merged")).expect("msgwait");
        }
    }
    let mut merged = None;
    for id in &ids {
        merged = engine.msgmerge(merged, Some(*id)).expect("msgmerge");
    }
    assert!(matches!(engine.msgdone(ids[0]), Err(NxError::BadMid { .. })));
    engine.msgwait(merged.expect("merged")).expect("msgwait");
    assert_eq!(rooms, data);
    for bad in [-1, 0, 1, i32::MAX, merged.map_or(0, |mid| mid.0)] {
        assert!(matches!(engine.msgwait(Mid(bad)), Err(NxError::BadMid { .. })));
    }

    let mut kept = [0; 4];
    let taken_back = irecv(engine, 7, &mut kept);
    engine.msgcancel(taken_back).expect("msgcancel");
    engine.gsync().expect("gsync");
    csend(engine, 7, b"late", other);
    let mut room = [0; 4];
    crecv(engine, 7, &mut room);
    assert_eq!((kept, room), ([0; 4], *b"late"));

    // One array for many receives, written at completion.
    let mut last = Info::default();
    unsafe fn write(array: *mut std::ffi::c_void, info: &Info) {
        // SAFETY: the test passes an `Info` that outlives the receive.
        unsafe { array.cast::<Info>().write(*info) }
    }
    let target = InfoTarget { write, array: (&raw mut last).cast() };
    // SAFETY: both are waited for below.
    let id =
        unsafe { engine.irecv(Select::types(8), dst(&mut room), Some(target)) }.expect("irecv");
    csend(engine, 8, b"ab", other);
    let outcome = engine.msgwait(id).expect("msgwait");
    // SAFETY: written by this thread's own `msgwait` at the latest.
    let last = unsafe { (&raw const last).read_volatile() };
    assert_eq!(outcome, Outcome::Received(last));
    assert_eq!((last.type_, last.count, last.node), (8, 2, other));

    // All ids in use.
    let mut many = Vec::new();
    let error = loop {
        // SAFETY: cancelled below.
        match unsafe { engine.irecv(Select::types(9), dst(&mut []), None) } {
            Ok(id) => many.push(id),
            Err(error) => break error,
        }
    };
    assert_eq!(error, NxError::NoMid { limit: many.len() });
    for id in many {
        engine.msgcancel(id).expect("msgcancel");
    }
}

/// Stops a process and returns when none of its threads runs any more.
fn stop(pid: rustix::process::Pid) {
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stops");
    common::until_every_thread(pid.as_raw_nonzero().get() as u32, "T");
}

/// A send that has asked the receiver for room is taken back: those that come after it ask again, for what they need.
fn cancelled_in_want(engine: &Engine, _: &str) {
    const SLOTS: usize = 32;
    const BLOCKS: usize = 32;
    let large = vec![7; 100_000];
    if engine.node() == 0 {
        let mut pid = [0; 4];
        crecv(engine, 1, &mut pid);
        let pid = rustix::process::Pid::from_raw(i32::from_ne_bytes(pid)).expect("a process");
        stop(pid);
        let starved = engine.counter(count::STARVED);
        let sent: Vec<Mid> = (0..=SLOTS).map(|_| isend(engine, 2, b"small", 1)).collect();
        assert_eq!(engine.counter(count::STARVED) - starved, 1, "the last one has no slot");
        engine.msgcancel(sent[SLOTS]).expect("msgcancel");
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("goes on");
        for id in &sent[..SLOTS] {
            engine.msgwait(*id).expect("msgwait");
        }
        crecv(engine, 3, &mut []);
        // The last one has no block, and the receiver waits for another message, behind it.
        for _ in 0..=BLOCKS {
            csend(engine, 4, &large, 1);
        }
        csend(engine, 5, b"", 1);
    } else {
        csend(engine, 1, &std::process::id().to_ne_bytes(), 0);
        for _ in 0..SLOTS {
            crecv(engine, 2, &mut [0; 5]);
        }
        csend(engine, 3, b"", 0);
        crecv(engine, 5, &mut []);
        let mut room = vec![0; large.len()];
        for _ in 0..=BLOCKS {
            crecv(engine, 4, &mut room);
            assert_eq!(room, large);
        }
        assert_eq!(engine.iprobe(Select::types(-1)).expect("iprobe"), None, "it was taken back");
    }
}

/// Both send a large message first and receive second, and both flood.
fn head_to_head(engine: &Engine, _: &str) {
    let other = 1 - engine.node();
    let mut room = vec![0; 1 << 20];
    for round in 0..20u8 {
        let bytes = vec![round ^ engine.node() as u8; 1 << 20];
        csend(engine, 1, &bytes, other);
        assert_eq!(crecv(engine, 1, &mut room).count, 1 << 20);
        assert!(room.iter().all(|&byte| byte == round ^ other as u8));
    }
    for i in 0..2000u32 {
        csend(engine, 2, &i.to_ne_bytes(), other);
    }
    for i in 0..2000u32 {
        let mut room = [0; 4];
        crecv(engine, 2, &mut room);
        assert_eq!(u32::from_ne_bytes(room), i, "same sender and type: in order");
    }
    // More large ones than there are blocks.
    let ids: Vec<Mid> = (0..40).map(|_| isend(engine, 3, &room, other)).collect();
    for id in ids {
        engine.msgwait(id).expect("msgwait");
    }
    let mut room = vec![0; 1 << 20];
    for _ in 0..40 {
        crecv(engine, 3, &mut room);
    }
}

/// N18: the receiver computes, the sender floods, all csends return. The order holds.
fn flood_of_a_computing_receiver(engine: &Engine, _: &str) {
    const FLOOD: u32 = 5000;
    if engine.node() == 0 {
        for i in 0..FLOOD {
            csend(engine, 1, &i.to_ne_bytes(), 1);
        }
        for _ in 0..40 {
            csend(engine, 2, &vec![9; 100_000], 1);
        }
        assert!(engine.counter(count::INTERRUPTS) > 0, "N18: the receiver was interrupted");
        give("flooded");
    } else {
        compute_until("flooded");
        for i in 0..FLOOD {
            let mut room = [0; 4];
            crecv(engine, 1, &mut room);
            assert_eq!(u32::from_ne_bytes(room), i);
        }
        let mut room = vec![0; 100_000];
        for _ in 0..40 {
            crecv(engine, 2, &mut room);
            assert!(room.iter().all(|&byte| byte == 9));
        }
        assert!(engine.counter(count::MOVED) > 0);
    }
}

/// N14, N16: csend of a large message returns though nobody receives; the sender scribbles on its
/// buffer and computes without NX calls; the receiver gets the old bytes.
fn late_receiver(engine: &Engine, _: &str) {
    if engine.node() == 0 {
        let mut bytes = vec![5; 3 << 20];
        csend(engine, 1, &bytes, 1);
        bytes.fill(6);
        csend(engine, 2, b"sent", 1);
        compute_until("late");
        std::hint::black_box(&bytes);
        assert_eq!(engine.counter(count::SAFE_COPIES), 1);
    } else {
        crecv(engine, 2, &mut [0; 4]);
        let mut room = vec![0; 3 << 20];
        crecv(engine, 1, &mut room);
        assert!(room.iter().all(|&byte| byte == 5));
        give("late");
    }
}

/// A file that one node makes and another one waits for, without a call of NX.
fn sign(what: &str) -> std::path::PathBuf {
    let job = std::env::var("SHRIMP_NX_JOB").expect("id");
    std::env::temp_dir().join(format!("nx-{what}-{job}"))
}

fn give(what: &str) {
    std::fs::write(sign(what), b"").expect("writes");
}

/// Computes until it is there.
fn compute_until(what: &str) {
    while !sign(what).exists() {
        std::hint::black_box(0);
    }
    std::fs::remove_file(sign(what)).expect("removes");
}

/// N16, N18: more is sent by isend than slots and blocks hold; the sender makes no NX call any more until all has
/// come, so that it is interrupted for what it has queued.
fn computing_sender(engine: &Engine, _: &str) {
    // Small ones, some in several slots, and some that are fetched.
    let lens = |i: usize| [8, 1000, 20_000, 300_000][i % 4];
    let message = |i: usize| vec![i as u8; lens(i)];
    if engine.node() == 0 {
        let messages: Vec<Vec<u8>> = (0..200).map(message).collect();
        let mids: Vec<Mid> = messages.iter().map(|bytes| isend(engine, 1, bytes, 1)).collect();
        give("queued");
        compute_until("received");
        for mid in mids {
            assert_eq!(engine.msgdone(mid).map(|done| done.is_some()), Ok(true));
        }
    } else {
        compute_until("queued");
        let before = engine.counter(count::INTERRUPTS);
        for i in 0..200 {
            let mut room = vec![0; lens(i)];
            crecv(engine, 1, &mut room);
            assert!(room == message(i), "message {i}");
        }
        assert!(engine.counter(count::INTERRUPTS) > before, "the sender was interrupted for more");
        give("received");
    }
}

/// N18: both flood the other one past its slots and blocks and receive nothing, and compute when they have sent: both are
/// interrupted, all sends proceed, and the order holds.
fn both_flood(engine: &Engine, _: &str) {
    const FLOOD: u32 = 2000;
    const LARGE: usize = 40;
    let other = 1 - engine.node();
    for i in 0..FLOOD {
        csend(engine, 1, &i.to_ne_bytes(), other);
    }
    let large = vec![engine.node() as u8 + 1; 100_000];
    for _ in 0..LARGE {
        csend(engine, 2, &large, other);
    }
    assert!(engine.counter(count::INTERRUPTS) > 0, "the other one was interrupted");
    give(&format!("flooded-{}", engine.node()));
    compute_until(&format!("flooded-{other}"));
    assert!(engine.counter(count::MOVED) > 0, "and this one");
    for i in 0..FLOOD {
        let mut room = [0; 4];
        crecv(engine, 1, &mut room);
        assert_eq!(u32::from_ne_bytes(room), i);
    }
    let mut room = vec![0; large.len()];
    for _ in 0..LARGE {
        crecv(engine, 2, &mut room);
        assert!(room.iter().all(|&byte| byte == other as u8 + 1));
    }
}

/// N19, N20, N3: no interrupt and one copy per message in ping-pong and in bursts that fit, and less than a
/// doorbell per message of a burst.
fn common_path(engine: &Engine, wait: &str) {
    let other = 1 - engine.node();
    let before = (engine.counter(count::SLOT_COPIES), engine.counter(count::INTERRUPTS));
    let received_before = engine.counter(count::RECEIVED);
    let rung = || engine.counter(vmmc::counters::index::DOORBELLS);
    let at_start = rung();
    for _ in 0..1000 {
        if engine.node() == 0 {
            csend(engine, 1, b"there", other);
            crecv(engine, 1, &mut [0; 8]);
        } else {
            crecv(engine, 1, &mut [0; 8]);
            csend(engine, 1, b"back", other);
        }
    }
    let before_bursts = rung();
    for _ in 0..100 {
        if engine.node() == 0 {
            for _ in 0..20 {
                csend(engine, 2, b"burst", other);
            }
            crecv(engine, 3, &mut []);
        } else {
            for _ in 0..20 {
                crecv(engine, 2, &mut [0; 8]);
            }
            csend(engine, 3, b"", other);
        }
    }
    let received = if engine.node() == 0 { 1100 } else { 3000 };
    assert_eq!(engine.counter(count::SLOT_COPIES) - before.0, received, "one copy each");
    assert_eq!(engine.counter(count::RECEIVED) - received_before, received);
    assert_eq!(engine.counter(count::MOVED), 0);
    assert_eq!(engine.counter(count::INTERRUPTS) - before.1, 0);
    let in_bursts = rung() - before_bursts;
    match (wait, engine.node()) {
        ("spin", _) => assert_eq!(rung(), at_start, "nobody sleeps, so nobody is rung"),
        // One that slept takes several at once. None at all, if it never comes to sleep: whom it rings with its
        // answer may be run in its place, and sends the next burst.
        (_, 0) => assert!(in_bursts < 2000, "{in_bursts} for 2000 messages"),
        // To give slots back rings nobody: only its own messages may.
        _ => assert!(in_bursts <= 100, "{in_bursts} for 2000 messages received and 100 sent"),
    }
    if wait != "spin" {
        let mine = rung() - at_start;
        csend(engine, 4, &mine.to_ne_bytes(), other);
        let mut others = [0; 8];
        crecv(engine, 4, &mut others);
        assert!(mine + u64::from_ne_bytes(others) > 0, "they slept, and one that sleeps is rung");
    }
    assert_eq!(engine.counter(count::LINKS), 1, "one to each other process, and none later");
}

/// Around every length at which a message is sent, found or copied in another way, there and back by blocking calls, by
/// calls with ids, and by both with two receives posted, which are matched in the order of posting.
fn lengths(engine: &Engine, _: &str) {
    let other = 1 - engine.node();
    let slot = 8320 - 64 - 24;
    let around = |len: usize| [len - 1, len, len + 1];
    let all = [1, 8, 40, 64, 104, 128, 5120, slot, 16_384].into_iter().flat_map(around);
    for (turn, len) in all.enumerate() {
        let bytes =
            |salt: usize| (0..len).map(|at| (at * 7 + turn + salt) as u8).collect::<Vec<_>>();
        let expected = |room: &[u8], salt| room[..len] == bytes(salt) && room[len..] == [0xee; 3];
        let send = |salt: usize, with_id: bool| {
            let bytes = bytes(salt);
            match with_id {
                false => csend(engine, 1, &bytes, other),
                true => {
                    let id = isend(engine, 1, &bytes, other);
                    assert_eq!(engine.msgwait(id), Ok(Outcome::Sent));
                }
            }
        };
        let info = Info { type_: 1, count: len, node: other, ptype: 0 };
        for with_id in [false, true] {
            let mut room = vec![0xee; len + 3];
            let (mine, theirs) = (engine.node() as usize, other as usize);
            if engine.node() == 0 {
                send(mine, with_id);
            }
            let found = match with_id {
                false => crecv(engine, 1, &mut room),
                true => {
                    let id = irecv(engine, 1, &mut room);
                    match engine.msgwait(id) {
                        Ok(Outcome::Received(info)) => info,
                        other => panic!("{other:?}"),
                    }
                }
            };
            assert!(found == info && expected(&room, theirs), "{len} {with_id}");
            if engine.node() == 1 {
                send(mine, with_id);
            }
        }
        let mut rooms = [vec![0xee; len + 3], vec![0xee; len + 3]];
        let ids = rooms.each_mut().map(|room| irecv(engine, 1, room));
        send(3, false);
        send(4, true);
        // Also the later one first: the earlier one is not passed over for it.
        let ids = if turn % 2 == 0 { ids } else { [ids[1], ids[0]] };
        for id in ids {
            assert_eq!(engine.msgwait(id), Ok(Outcome::Received(info)));
        }
        assert!(expected(&rooms[0], 3) && expected(&rooms[1], 4), "{len}");
        // One too long for its room is told of, whole, and the room holds its beginning.
        send(5, false);
        let mut room = vec![0xee; len];
        let id = irecv(engine, 1, &mut room[..len.saturating_sub(1)]);
        let found = engine.msgwait(id);
        match len {
            0 => assert_eq!(found, Ok(Outcome::Received(info))),
            _ => assert_eq!(found, Err(NxError::MessageTooLong { info, room: len - 1 })),
        }
        assert!(
            room.iter().zip(bytes(5)).take(len.saturating_sub(1)).all(|(to, from)| *to == from)
        );
    }
}

/// N16: a long message to a handler of a program that computes: it is here before the receive is posted, or comes after it.
fn large_to_a_handler(engine: &Engine, _: &str) {
    let lens = [8_300, 100_000, 3 << 20, 9 << 20];
    for (turn, len) in lens.into_iter().enumerate() {
        for early in [true, false] {
            let byte = turn as u8 * 2 + u8::from(early) + 1;
            if engine.node() == 0 {
                let id = early.then(|| isend(engine, 1, &vec![byte; len], 1));
                engine.gsync().expect("gsync");
                engine.gsync().expect("gsync");
                match id {
                    Some(id) => assert_eq!(engine.msgwait(id), Ok(Outcome::Sent)),
                    None => csend(engine, 1, &vec![byte; len], 1),
                }
                crecv(engine, 2, &mut []);
                continue;
            }
            let mut room = vec![0; len];
            let came = Arc::new(AtomicU32::new(0));
            engine.gsync().expect("gsync");
            if !early {
                engine.gsync().expect("gsync");
            }
            let tell = came.clone();
            let handler = Box::new(move |came: Result<Info, _>| {
                tell.store(came.expect("comes").count as u32, Ordering::Release)
            });
            // SAFETY: the room is used when the handler has run.
            unsafe { engine.hrecv(Select::types(1), dst(&mut room), handler) }.expect("hrecv");
            if early {
                engine.gsync().expect("gsync");
            }
            while came.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop(); // computes
            }
            assert!(
                came.load(Ordering::Acquire) as usize == len && room.iter().all(|&it| it == byte)
            );
            csend(engine, 2, b"", 0);
        }
    }
}

/// A process that leaves while one that has not fetched its message ends without a word goes on.
fn ends_without_a_word(engine: &Engine, _: &str) {
    let mut room = vec![0; 6 << 20];
    if engine.node() == 1 {
        irecv(engine, 1, &mut room);
        engine.gsync().expect("gsync");
        while engine.iprobe(Select::types(2)).expect("iprobe").is_none() {}
        // SAFETY: ends this process, with nothing to come back to.
        unsafe { libc::_exit(0) };
    }
    engine.gsync().expect("gsync");
    csend(engine, 1, &room, 1);
    csend(engine, 2, b"", 1);
}

/// N12: the second large message makes no trip to the daemon.
fn second_large_send(engine: &Engine, _: &str) {
    let mut room = vec![0; 1 << 20];
    let mut trips = Vec::new();
    for _ in 0..3 {
        if engine.node() == 0 {
            csend(engine, 1, &vec![1; 1 << 20], 1);
        } else {
            crecv(engine, 1, &mut room);
        }
        engine.gsync().expect("gsync");
        trips.push(engine.counter(count::DAEMON_TRIPS));
    }
    assert_eq!(trips[0], trips[1]);
    assert_eq!(trips[1], trips[2]);
}

/// N10, N11, N13, N21: a buffer that is used again gets its messages from user memory, without trips to the
/// daemon, whatever its alignment; its neighbours and what forked children see stay as they were.
fn direct(engine: &Engine, _: &str) {
    const LEN: usize = 1 << 20;
    let mut room = vec![0u8; LEN + 9000];
    let mut round = 0u8;
    // A message goes directly if the receiver comes before its safe copy is complete, which is chance: until one has.
    let mut directly = 0;
    while round < 30 || directly == 0 {
        round = round.wrapping_add(1);
        let copied = || [count::STAGED_BYTES, count::FETCHED_BYTES].map(|of| engine.counter(of));
        let before = copied();
        let shift = 4000 + usize::from(round % 3);
        if engine.node() == 0 {
            let bytes: Vec<u8> = (0..LEN).map(|i| (i as u8).wrapping_mul(31) ^ round).collect();
            engine.gsync().expect("gsync");
            csend(engine, 1, &bytes, 1);
        } else {
            room.fill(0xee);
            let id = irecv(engine, 1, &mut room[shift..shift + LEN]);
            engine.gsync().expect("gsync");
            match engine.msgwait(id).expect("msgwait") {
                Outcome::Received(info) => assert_eq!(info.count, LEN),
                Outcome::Sent => unreachable!("a receive"),
            }
            let expected = (0..LEN).map(|i| (i as u8).wrapping_mul(31) ^ round);
            assert!(room[shift..shift + LEN].iter().copied().eq(expected), "round {round}");
            assert!(room[..shift].iter().chain(&room[shift + LEN..]).all(|&byte| byte == 0xee));
        }
        // N13: who sends it directly stops copying, and nothing is copied where it is received.
        let (now, after) = (sent_directly(engine), copied());
        let [staged, fetched] = [0, 1].map(|of| after[of] - before[of]);
        match (engine.node(), now > directly) {
            (0, true) => assert!(staged < LEN as u64, "{staged} bytes staged of a direct message"),
            (0, false) => assert_eq!((staged, fetched), (LEN as u64, 0)),
            (_, true) => assert_eq!((staged, fetched), (0, 0)),
            (_, false) => assert_eq!((staged, fetched), (0, LEN as u64)),
        }
        directly = now;
    }
    // What is sent from has a window, too, once it is used again; which side is the first to use one is chance. Then there are no
    // trips to the daemon, of either node.
    let trips_of_both = || sum(engine, engine.counter(count::DAEMON_TRIPS));
    // On a busy machine the receiver may come late for hundreds of messages.
    let (mut trips, mut quiet, begun) = (trips_of_both(), 0, directly);
    for _ in 0..5000 {
        if quiet == 10 {
            break;
        }
        if engine.node() == 0 {
            engine.gsync().expect("gsync");
            csend(engine, 1, &room[..LEN], 1);
        } else {
            let id = irecv(engine, 1, &mut room[4000..4000 + LEN]);
            engine.gsync().expect("gsync");
            engine.msgwait(id).expect("msgwait");
        }
        let now = trips_of_both();
        let goes_directly = sent_directly(engine) > begun;
        quiet = if now == trips && goes_directly { quiet + 1 } else { 0 };
        trips = now;
    }
    assert_eq!(quiet, 10, "N12");
    engine.gsync().expect("gsync");

    child_has_a_copy(&mut room);

    // A child runs on the stack of the thread that forks it, of which no window is made: where the room of messages was, there are
    // the frames of later calls.
    let receives = || {
        let mut local = [0u8; LEN];
        for round in 0..30u8 {
            engine.gsync().expect("gsync");
            if engine.node() == 0 {
                engine.gsync().expect("gsync");
                csend(engine, 4, &vec![round; LEN], 1);
            } else {
                let id = irecv(engine, 4, &mut local);
                engine.gsync().expect("gsync");
                engine.msgwait(id).expect("msgwait");
                assert!(local.iter().all(|&byte| byte == round), "round {round}");
            }
        }
        std::hint::black_box(&local);
    };
    let forks = || {
        let mut below = [0u8; LEN / 2];
        (0..10).for_each(|_| child_has_a_copy(std::hint::black_box(&mut below)));
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(8 * LEN);
        let both = || {
            std::hint::black_box(receives)();
            std::hint::black_box(forks)();
        };
        thread.spawn_scoped(scope, both).expect("a thread").join().expect("its part");
    });

    // A buffer that gets its messages directly; then, each time, other memory in its place.
    let place = other_memory(std::ptr::null_mut(), 4 * LEN);
    let begun = sent_directly(engine);
    let turn = |round: u8, place: *mut u8| {
        if engine.node() == 0 {
            engine.gsync().expect("gsync");
            csend(engine, 2, &vec![round; 4 * LEN], 1);
        } else {
            // SAFETY: mapped, and known here alone.
            let room = unsafe { std::slice::from_raw_parts_mut(place, 4 * LEN) };
            room.fill(0xee);
            let id = irecv(engine, 2, room);
            engine.gsync().expect("gsync");
            engine.msgwait(id).expect("msgwait");
            assert!(room.iter().all(|&byte| byte == round), "round {round}");
        }
    };
    while sent_directly(engine) == begun {
        turn(100, place);
    }
    for round in 0..10 {
        turn(round, other_memory(place, 4 * LEN));
    }
    // What is there now becomes a window like any other.
    let until_direct = |place| {
        let begun = sent_directly(engine);
        while sent_directly(engine) == begun {
            turn(100, place);
        }
    };
    until_direct(place);

    // So does what an allocator gives that has cut off the end of its heap, or has taken some out of the middle.
    for given_back in [2 * LEN..4 * LEN, LEN..2 * LEN, 0..LEN] {
        let place = other_memory(std::ptr::null_mut(), 4 * LEN);
        let check_child = || {
            // SAFETY: mapped, and known here alone.
            child_has_a_copy(unsafe { std::slice::from_raw_parts_mut(place, 4 * LEN) });
        };
        until_direct(place);
        other_memory(place.wrapping_add(given_back.start), given_back.len());
        check_child();
        turn(101, place);
        check_child();
        until_direct(place);
        check_child();
    }

    // What the program tells the kernel of its pages holds for a window's, too: they become zero, they move, and there are more.
    let place = other_memory(std::ptr::null_mut(), 4 * LEN);
    until_direct(place);
    let is_filled = |start: *mut u8, len: usize, with: u8| {
        // SAFETY: mapped, and known here alone.
        unsafe { std::slice::from_raw_parts(start, len) }.iter().all(|&byte| byte == with)
    };
    if engine.node() == 1 {
        let second = place.wrapping_add(LEN).cast();
        // SAFETY: memory of this test, to which nothing refers.
        let done = unsafe { libc::madvise(second, LEN, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
        assert!(is_filled(place, LEN, 100) && is_filled(place.wrapping_add(2 * LEN), 2 * LEN, 100));
        assert!(is_filled(place.wrapping_add(LEN), LEN, 0));
    }
    until_direct(place);
    let mut moved = place;
    if engine.node() == 1 {
        let more = 4 * LEN + 5;
        // SAFETY: as above.
        moved = unsafe { libc::mremap(place.cast(), 4 * LEN, more, libc::MREMAP_MAYMOVE) }.cast();
        assert_ne!(moved.cast(), libc::MAP_FAILED);
        assert!(is_filled(moved, 4 * LEN, 100) && is_filled(moved.wrapping_add(4 * LEN), 5, 0));
        // SAFETY: as above; so long is it now.
        child_has_a_copy(unsafe { std::slice::from_raw_parts_mut(moved, more) });
    }
    until_direct(moved);
    // Once more: beside what was given back lies what has moved before, which the kernel does not take for one mapping.
    if engine.node() == 1 {
        let (was, more) = (4 * LEN + 5, 5 * LEN);
        // SAFETY: as above.
        moved = unsafe { libc::mremap(moved.cast(), was, more, libc::MREMAP_MAYMOVE) }.cast();
        assert_ne!(moved.cast(), libc::MAP_FAILED);
        assert!(is_filled(moved, 4 * LEN, 100) && is_filled(moved.wrapping_add(4 * LEN), LEN, 0));
    }
    until_direct(moved);
    if engine.node() == 1 {
        child_has_the_rights(moved.wrapping_add(LEN), LEN);
        assert!(is_filled(moved, 4 * LEN, 100));
    }
    until_direct(moved);

    // Longer and longer messages into the same buffer, each with bytes of its own, and a shorter one afterwards.
    let mut room = vec![0u8; 4 * LEN];
    for (round, len) in [LEN, 2 * LEN, 3 * LEN, 4 * LEN, LEN].into_iter().enumerate() {
        let begun = sent_directly(engine);
        let mut times = 0u8;
        while sent_directly(engine) == begun {
            times = times.wrapping_add(1);
            let byte = times ^ (round as u8) << 4;
            engine.gsync().expect("gsync");
            if engine.node() == 0 {
                engine.gsync().expect("gsync");
                csend(engine, 3, &vec![byte; len], 1);
            } else {
                room.fill(0xee);
                let id = irecv(engine, 3, &mut room[..len]);
                engine.gsync().expect("gsync");
                engine.msgwait(id).expect("msgwait");
                assert!(room[..len].iter().all(|&there| there == byte), "{len}, time {times}");
                assert!(room[len..].iter().all(|&there| there == 0xee), "{len}, time {times}");
            }
        }
    }
}

/// One buffer after the other, more than there may be windows, each given back for good when it has had its messages.
fn given_back(engine: &Engine, _: &str) {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    const LEN: usize = 4 << 20;
    for number in 0..80u8 {
        let place = other_memory(std::ptr::null_mut(), LEN);
        let begun = sent_directly(engine);
        while sent_directly(engine) == begun {
            engine.gsync().expect("gsync");
            if engine.node() == 0 {
                engine.gsync().expect("gsync");
                csend(engine, 1, &vec![number; LEN], 1);
            } else {
                // SAFETY: mapped, and known here alone.
                let room = unsafe { std::slice::from_raw_parts_mut(place, LEN) };
                let id = irecv(engine, 1, room);
                engine.gsync().expect("gsync");
                engine.msgwait(id).expect("msgwait");
                assert!(room == vec![number; LEN], "buffer {number}");
            }
        }
        // Not unmapped: the next one would be in its place.
        let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: as above; nobody uses it again.
        unsafe { mmap_anonymous(place.cast(), LEN, none, flags) }.expect("no memory");
    }
    // What windows are made of has gone with them, but of the last ones.
    let windows = std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
        let target = entry.as_ref().ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
        target.is_some_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    });
    let windows = windows.count();
    println!("{windows} files");
    assert!(windows < 40, "{windows} files");
}

/// N21: a child that another thread forks while a window is made has a copy of its memory, too.
fn forked_meanwhile(engine: &Engine, _: &str) {
    const LEN: usize = 256 << 10;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let rooms: Vec<usize> =
        (0..50).map(|_| other_memory(std::ptr::null_mut(), LEN).expose_provenance()).collect();
    let fork_on = || {
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            // SAFETY: the child only stores to memory of this test, and ends without unwinding.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                for &start in rooms.iter().cycle().take(20 * rooms.len()) {
                    let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
                    // SAFETY: mapped, and of this process used here alone.
                    unsafe { start.write_bytes(0xcd, LEN) };
                }
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: waits for the child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    };
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        if engine.node() == 1 {
            scope.spawn(fork_on);
        }
        for (number, &start) in rooms.iter().enumerate() {
            let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
            // SAFETY: mapped, and of this process used here alone.
            let room = unsafe { std::slice::from_raw_parts_mut(start, LEN) };
            for turn in 0..5 {
                let byte = (5 * number + turn) as u8 % 100;
                engine.gsync().expect("gsync");
                if engine.node() == 0 {
                    engine.gsync().expect("gsync");
                    room.fill(byte);
                    csend(engine, 1, room, 1);
                } else {
                    let id = irecv(engine, 1, room);
                    engine.gsync().expect("gsync");
                    engine.msgwait(id).expect("msgwait");
                    for _ in 0..20 {
                        assert!(room.iter().all(|&there| there == byte), "{number}, {turn}");
                    }
                }
            }
        }
        drop(over);
    });
}

/// Says so when it is dropped, also by a check that failed.
struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A forked child has a copy: its stores are its own.
fn child_has_a_copy(memory: &mut [u8]) {
    let before = memory.to_vec();
    // SAFETY: the child only stores to memory of this test, and ends without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let same = memory == before;
        memory.fill(1);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if same { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(memory == before);
}

/// A child has its copy also of what may not be read or written, and may not do either.
fn child_has_the_rights(memory: *mut u8, len: usize) {
    use std::os::fd::AsRawFd;
    let half = memory.wrapping_add(len / 2);
    let protect = |start: *mut u8, rights| {
        // SAFETY: memory of this test, which it does not touch meanwhile.
        assert_eq!(unsafe { libc::mprotect(start.cast(), len / 2, rights) }, 0);
    };
    let allow = |start| protect(start, libc::PROT_READ | libc::PROT_WRITE);
    protect(memory, libc::PROT_NONE);
    protect(half, libc::PROT_READ);
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child only stores to memory of this test, and ends without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    let (out, into) = (out.as_raw_fd(), into.as_raw_fd());
    if child == 0 {
        // The kernel looks at the rights.
        // SAFETY: it stores nothing, or only where it may.
        let [hidden, shown] = [memory, half].map(|it| unsafe { libc::write(into, it.cast(), 1) });
        // SAFETY: as above.
        let stored = unsafe { libc::read(out, half.cast(), 1) };
        let rights = (hidden, shown, stored) == (-1, 1, -1);
        [memory, half].into_iter().for_each(allow);
        // SAFETY: the child's own.
        let all = unsafe { std::slice::from_raw_parts_mut(memory, len) };
        let same = all.iter().all(|&byte| byte == 100);
        all.fill(1);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!rights) + 2 * i32::from(!same)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    [memory, half].into_iter().for_each(allow);
}

/// Both processes of a message copy a part of it (section 4.1 of the paper knows one). The bytes are those of the send, though the
/// sender stores others right after it; also where the program has other memory in the place of what it sent from.
fn shared(engine: &Engine, how: &str) {
    const LEN: usize = (1 << 20) + 12_345;
    let me = engine.node();
    let place = other_memory(std::ptr::null_mut(), LEN + 8192);
    let memory = |shift| {
        let start = place.wrapping_add(shift);
        // SAFETY: mapped, and used by one round after the other.
        unsafe { std::slice::from_raw_parts_mut(start, LEN) }
    };
    let expected =
        |round: u32| (0..LEN).map(move |i| (i as u32).wrapping_mul(31 + 2 * round) as u8);
    let turn = |round: u32, sender: i32, receiver: i32| {
        engine.gsync().expect("gsync");
        let bytes = memory(100 * (round % 3) as usize);
        if me == sender {
            bytes.iter_mut().zip(expected(round)).for_each(|(byte, to)| *byte = to);
            engine.gsync().expect("gsync");
            csend(engine, 1, bytes, receiver);
            bytes.fill(0xee);
        } else if me == receiver {
            let id = irecv(engine, 1, bytes);
            engine.gsync().expect("gsync");
            engine.msgwait(id).expect("msgwait");
            assert!(bytes.iter().copied().eq(expected(round)), "round {round}");
        } else {
            engine.gsync().expect("gsync");
        }
    };
    let pulled = || sum(engine, engine.counter(count::PULLED_BYTES));
    if how == "never" {
        (0..20).for_each(|round| turn(round, 0, 1));
        assert_eq!(pulled(), 0, "what is sent cannot be asked for, or shall not");
        return;
    }
    // A receiver helps if it comes in time, which is chance.
    let until_pulled = |sender, receiver| {
        let begun = pulled();
        (0..)
            .take_while(|&round| {
                turn(round, sender, receiver);
                round < 10 || pulled() == begun
            })
            .count();
    };
    until_pulled(0, 1);
    // The same memory in the other direction: one window for both.
    until_pulled(1, 0);
    let trips = engine.counter(count::DAEMON_TRIPS);
    (0..10).for_each(|round| turn(round, (round % 2) as i32, 1 - (round % 2) as i32));
    assert_eq!(engine.counter(count::DAEMON_TRIPS), trips, "N12");

    // Other memory in its place, at the sender.
    for round in 0..10 {
        if me == 0 {
            other_memory(place, LEN + 8192);
        }
        turn(round, 0, 1);
    }
    until_pulled(0, 1);

    // What was only sent from gives way to messages of a third node: they go directly.
    if me == 0 {
        other_memory(place, LEN + 8192);
    }
    until_pulled(0, 1);
    until_pulled(2, 0);
}

/// How many messages went from user memory to user memory so far, of both nodes.
fn sent_directly(engine: &Engine) -> i64 {
    sum(engine, engine.counter(count::DIRECT))
}

/// Of what each node has.
fn sum(engine: &Engine, own: u64) -> i64 {
    let (mut all, mut work) = ([own as i64], [0i64]);
    // SAFETY: two arrays of one element.
    unsafe { engine.reduce(nx::Reduction::Sum, all.as_mut_ptr(), 1, work.as_mut_ptr()) }
        .expect("gisum");
    all[0]
}

/// Fresh memory in the place of what is there; with null, somewhere.
fn other_memory(place: *mut u8, len: usize) -> *mut u8 {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let fixed = if place.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new, or over memory that this function has given and nobody refers to any more.
    let there = unsafe { mmap_anonymous(place.cast(), len, rights, MapFlags::PRIVATE | fixed) };
    there.expect("memory").cast()
}

/// N21: a window is for its sender alone, though all know the job's token.
fn stranger(engine: &Engine, _: &str) {
    let mut room = vec![0u8; 64 << 20];
    loop {
        let id = (engine.node() == 1).then(|| irecv(engine, 1, &mut room));
        engine.gsync().expect("gsync");
        if engine.node() == 0 {
            csend(engine, 1, &room, 1);
        }
        if let Some(id) = id {
            engine.msgwait(id).expect("msgwait");
        }
        // Node 1 replies only if it comes before the safe copy is complete.
        if sum(engine, engine.counter(count::REPLIES)) > 0 {
            break;
        }
    }
    if engine.node() == 2 {
        let id = std::env::var("SHRIMP_NX_JOB").expect("id");
        let node = vmmc::Node::connect().expect("connects");
        for rights in [vmmc::Rights::READ, vmmc::Rights::WRITE] {
            let name = format!("nx/{id}/0>1/window/0");
            let import = node.import(name.as_str()).rights(rights).token(vmmc::Token([7; 16]));
            let error = import.timeout(std::time::Duration::ZERO).open().unwrap_err();
            assert!(
                matches!(
                    error,
                    vmmc::error::ImportError::Refused(
                        vmmc::control::message::Refusal::NotPermitted { .. }
                    )
                ),
                "{error}"
            );
        }
    }
    engine.gsync().expect("gsync");
}

/// A counter server in an hrecv handler, on a node that computes: the handler re-posts itself, sends, and
/// blocks in a receive.
fn counter_server(engine: &Engine, _: &str) {
    const ASKS: u32 = 200;
    let (me, n) = (engine.node(), engine.nodes());
    let server = n - 1;
    if me == server {
        struct Server {
            engine: *const Engine,
            served: AtomicU32,
            room: std::cell::UnsafeCell<[u8; 4]>,
        }
        // SAFETY: the engine outlives the handlers: the test waits for all of them; the room is
        // used by one receive at a time.
        unsafe impl Send for Server {}
        // SAFETY: as above.
        unsafe impl Sync for Server {}
        fn post(server: Arc<Server>) {
            // SAFETY: alive, see above.
            let engine = unsafe { &*server.engine };
            let room = Target { start: server.room.get().cast(), len: 4 };
            let handler = Box::new(move |came: Result<Info, _>| {
                let info = came.expect("comes");
                // SAFETY: as above.
                let engine = unsafe { &*server.engine };
                let value = server.served.load(Ordering::Relaxed);
                let before = engine.masktrap(true);
                let mut more = vec![0; 5000];
                // SAFETY: borrowed for the call.
                let select = Select { typesel: 12, node: info.node, ptype: -1 };
                // SAFETY: borrowed for the call.
                unsafe { engine.crecv(select, dst(&mut more)) }.expect("blocks in a handler");
                csend(engine, 11, &value.to_ne_bytes(), info.node);
                engine.masktrap(before);
                post(server.clone());
                server.served.store(value + 1, Ordering::Release);
            });
            // SAFETY: the room lives as long as the server.
            unsafe { engine.hrecv(Select::types(10), room, handler) }.expect("hrecv");
        }
        let state = Arc::new(Server {
            engine,
            served: AtomicU32::new(0),
            room: std::cell::UnsafeCell::new([0; 4]),
        });
        post(state.clone());
        while state.served.load(Ordering::Acquire) < ASKS * (n - 1) as u32 {
            std::hint::spin_loop(); // computes
        }
        // No handler runs while masked.
        assert!(!engine.masktrap(true));
        engine.gsync().expect("gsync");
        crecv(engine, 20, &mut []);
        assert_eq!(state.served.load(Ordering::Acquire), ASKS * (n - 1) as u32);
        assert!(engine.masktrap(false));
        while state.served.load(Ordering::Acquire) <= ASKS * (n - 1) as u32 {
            std::hint::spin_loop();
        }
        assert_eq!(engine.cancel_hrecv(10), Ok(1));
        engine.gsync().expect("gsync");
    } else {
        let mut last = None;
        for _ in 0..ASKS {
            csend(engine, 10, b"next", server);
            csend(engine, 12, &[3; 5000], server);
            let mut room = [0; 4];
            crecv(engine, 11, &mut room);
            let value = u32::from_ne_bytes(room);
            assert!(last.is_none_or(|last| last < value));
            last = Some(value);
        }
        engine.gsync().expect("gsync");
        if me == 0 {
            csend(engine, 10, b"next", server);
            csend(engine, 12, &[3; 5000], server);
            csend(engine, 20, b"", server);
            crecv(engine, 11, &mut [0; 4]);
        }
        engine.gsync().expect("gsync");
    }
}

/// Sends and leaves at once; the receiver takes its time.
fn send_and_leave(engine: &Engine, _: &str) {
    if engine.node() == 0 {
        csend(engine, 1, &vec![7; 1 << 20], 1);
        csend(engine, 2, b"small", 1);
    } else {
        crecv(engine, 2, &mut [0; 5]);
        let mut room = vec![0; 1 << 20];
        crecv(engine, 1, &mut room);
        assert!(room.iter().all(|&byte| byte == 7));
    }
}

/// Random traffic of all with all: every byte and the order per sender and type are checked.
fn random_traffic(engine: &Engine, arg: &str) {
    let (me, n) = (engine.node(), engine.nodes());
    let rounds: u32 = arg.parse().expect("rounds");
    let mut x = 0x1234_5678_9abc_def1u64 ^ (me as u64) << 32;
    let mut random = move |below: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 16) as usize % below
    };
    let fill = |from: i32, type_: i32, number: u32, len: usize| -> Vec<u8> {
        let seed = (from as u32).wrapping_mul(31) ^ (type_ as u32).wrapping_mul(7) ^ number;
        (0..len as u32)
            .map(|i| (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 24) as u8)
            .collect()
    };
    let mut sent = vec![[0u32; 4]; n as usize];
    let mut seen = vec![[0u32; 4]; n as usize];
    let mut room = vec![0u8; 300_000];
    let mut received = 0;
    let mut take = |engine: &Engine, seen: &mut Vec<[u32; 4]>, typesel: i32| {
        let info = crecv(engine, typesel, &mut room);
        let number = &mut seen[info.node as usize][info.type_ as usize];
        assert!(
            room[..info.count] == fill(info.node, info.type_, *number, info.count)[..],
            "message {number} of type {} from {}",
            info.type_,
            info.node
        );
        *number += 1;
    };
    let expected = rounds * (n as u32 - 1);
    for _ in 0..rounds {
        for other in (0..n).filter(|&other| other != me) {
            let type_ = random(4) as i32;
            let len = match random(20) {
                0 => random(300_000),
                1..=5 => random(9000),
                _ => random(100),
            };
            let number = &mut sent[other as usize][type_ as usize];
            csend(engine, type_, &fill(me, type_, *number, len), other);
            *number += 1;
        }
        while engine.iprobe(Select::types(-1)).expect("iprobe").is_some() && random(3) > 0 {
            take(engine, &mut seen, -1);
            received += 1;
        }
        if random(4) == 0
            && let Some(info) =
                engine.iprobe(Select::types(0x8000_000a_u32 as i32)).expect("iprobe")
        {
            take(engine, &mut seen, info.type_);
            received += 1;
        }
    }
    while received < expected {
        take(engine, &mut seen, -1);
        received += 1;
    }
    engine.gsync().expect("gsync");
}

/// So many messages that nobody may look at all of them to find one; taken in the least kind orders.
fn pile(engine: &Engine, _: &str) {
    const EACH: i32 = 25_000;
    if engine.node() == 0 {
        for type_ in (0..2 * EACH).chain((0..2 * EACH).map(|i| 500_000 + i % 2)) {
            csend(engine, type_, &type_.to_ne_bytes(), 1);
        }
    }
    engine.gsync().expect("gsync");
    if engine.node() == 1 {
        let mut room = [0; 4];
        for type_ in (0..2 * EACH).rev().chain((0..EACH).map(|_| 500_001)) {
            assert_eq!(crecv(engine, type_, &mut room).count, 4);
            assert_eq!(i32::from_ne_bytes(room), type_);
        }
        for _ in 0..EACH {
            assert_eq!(crecv(engine, -1, &mut room).type_, 500_000);
        }
        assert_eq!(engine.iprobe(Select::types(-1)).expect("iprobe"), None);
    }
}

/// Bytes of memory files that this process has.
fn held() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let of = |fd: std::io::Result<std::fs::DirEntry>| {
        let path = fd.expect("a descriptor").path();
        let is_region = std::fs::read_link(&path)
            .is_ok_and(|file| file.to_string_lossy().contains("memfd:vmmc-region"));
        std::fs::metadata(path).ok().filter(|_| is_region).map_or(0, |file| 512 * file.blocks())
    };
    std::fs::read_dir("/proc/self/fd").expect("descriptors").map(of).sum()
}

/// Messages of ever other lengths: safe copies that nobody reads any more are not kept for ever, and come again when they
/// are needed.
fn other_lengths(engine: &Engine, _: &str) {
    const MIB: usize = 1 << 20;
    // More than 128 MiB of safe copies wait, beside the one that was used last.
    const BOUND: usize = 128 * MIB;
    let mut lens = [21, 29, 37, 45, 53, 61, 69];
    let mut room = vec![0; 69 * MIB];
    let before = held();
    let mut play = |lens: &[usize], seed: u8| {
        let trips = engine.counter(count::DAEMON_TRIPS);
        for (i, len) in lens.iter().map(|len| len * MIB).enumerate() {
            let value = seed + i as u8;
            if engine.node() == 0 {
                room[..len].fill(value);
                csend(engine, 1, &room[..len], 1);
                crecv(engine, 2, &mut []);
                assert_eq!(engine.counter(count::DIRECT), 0);
                let most = before as usize + BOUND + 2 * len.next_multiple_of(8 * MIB);
                assert!(held() as usize <= most, "{} at {len}, began with {before}", held());
            } else {
                assert_eq!(crecv(engine, 1, &mut room).count, len);
                assert!(room[..len].iter().all(|&byte| byte == value), "{len}");
                csend(engine, 2, &[], 0);
            }
        }
        engine.counter(count::DAEMON_TRIPS) - trips
    };
    assert_eq!(play(&lens, 1), 7, "one for each");
    // Places up to twice as long do, also those whose memory was given back.
    assert_eq!(play(&lens, 11), 0);
    lens.reverse();
    assert_eq!(play(&lens, 21), 0);
    assert_eq!(play(&[39, 13, 69], 31), 0);
}

#[test]
fn rank() {
    common::play(&[
        ("selection", selection),
        ("nobodys", nobodys),
        ("mids", mids),
        ("cancelled_in_want", cancelled_in_want),
        ("head_to_head", head_to_head),
        ("flood", flood_of_a_computing_receiver),
        ("late_receiver", late_receiver),
        ("computing_sender", computing_sender),
        ("both_flood", both_flood),
        ("other_lengths", other_lengths),
        ("common_path", common_path),
        ("lengths", lengths),
        ("large_to_a_handler", large_to_a_handler),
        ("ends_without_a_word", ends_without_a_word),
        ("second_large_send", second_large_send),
        ("direct", direct),
        ("forked_meanwhile", forked_meanwhile),
        ("given_back", given_back),
        ("shared", shared),
        ("counter_server", counter_server),
        ("send_and_leave", send_and_leave),
        ("random_traffic", random_traffic),
        ("pile", pile),
        ("stranger", stranger),
    ]);
}

#[test]
fn messages_are_selected_by_type_mask_and_force() {
    Daemon::start().run(2, "selection", "", &[]);
}

#[test]
fn a_message_for_a_type_that_nobody_has_waits_for_who_takes_it() {
    Daemon::start().run(2, "nobodys", "", &[]);
}

#[test]
fn ids_are_merged_cancelled_and_limited() {
    Daemon::start().run(2, "mids", "", &[]);
}

#[test]
fn a_send_taken_back_while_it_waits_for_room_does_not_keep_later_ones_from_asking() {
    Daemon::start().run(2, "cancelled_in_want", "", &[]);
}

#[test]
fn two_nodes_that_send_first_do_not_wait_for_each_other() {
    Daemon::start().run(2, "head_to_head", "", &[]);
}

#[test]
fn a_computing_receiver_stalls_no_sender() {
    Daemon::start().run(2, "flood", "", &[]);
}

#[test]
fn a_late_receiver_gets_the_bytes_of_the_send() {
    Daemon::start().run(2, "late_receiver", "", &[]);
}

#[test]
fn what_was_sent_by_isend_comes_though_the_sender_only_computes() {
    for send in ["au", "du1", "du2"] {
        Daemon::start().run(2, "computing_sender", "", &[("NX_SEND", send)]);
    }
}

#[test]
fn two_that_flood_each_other_and_compute_are_both_interrupted_and_go_on() {
    for send in ["au", "du1", "du2"] {
        Daemon::start().run(2, "both_flood", "", &[("NX_SEND", send)]);
    }
}

#[test]
fn the_common_path_copies_once_and_interrupts_nobody() {
    Daemon::start().run(2, "common_path", "spin", &[("VMMC_WAIT", "spin")]);
}

#[test]
fn messages_of_all_lengths_arrive_whole_however_they_are_awaited() {
    for (wait, send) in [("spin", "au"), ("block", "au"), ("hybrid", "du1"), ("hybrid", "du2")] {
        Daemon::start().run(2, "lengths", "", &[("VMMC_WAIT", wait), ("NX_SEND", send)]);
    }
}

#[test]
fn long_messages_come_to_handlers_while_the_program_computes() {
    for direct in ["off", "65536"] {
        Daemon::start().run(2, "large_to_a_handler", "", &[("NX_DIRECT", direct)]);
    }
}

#[test]
fn who_leaves_does_not_wait_for_one_that_ended_without_a_word() {
    Daemon::start().run(2, "ends_without_a_word", "", &[("NX_DIRECT", "off")]);
}

#[test]
fn a_burst_rings_less_than_once_per_message() {
    Daemon::start().run(2, "common_path", "block", &[("VMMC_WAIT", "block")]);
}

#[test]
fn the_second_large_message_makes_no_trip_to_the_daemon() {
    Daemon::start().run(2, "second_large_send", "", &[("NX_DIRECT", "off")]);
}

#[test]
fn memory_of_safe_copies_is_given_back_and_comes_again() {
    Daemon::start().run(2, "other_lengths", "", &[("NX_DIRECT", "off")]);
}

#[test]
fn large_messages_go_from_user_memory_to_user_memory() {
    let daemon = Daemon::start();
    for (after, check) in [("0", "auto"), ("1", "auto"), ("1", "pages")] {
        let settings =
            [("NX_DIRECT", "65536"), ("NX_DIRECT_AFTER", after), ("NX_DIRECT_CHECK", check)];
        daemon.run(2, "direct", "", &settings);
    }
}

#[test]
fn buffers_that_were_given_back_keep_no_others_from_user_memory() {
    let settings = [("NX_DIRECT", "65536"), ("NX_DIRECT_AFTER", "0")];
    Daemon::start().run(2, "given_back", "", &settings);
}

#[test]
fn a_child_that_is_forked_while_a_window_is_made_shares_none_of_it() {
    let settings = [("NX_DIRECT", "65536"), ("NX_DIRECT_AFTER", "0")];
    Daemon::start().run(2, "forked_meanwhile", "", &settings);
}

#[test]
fn both_ends_of_a_large_message_copy_it() {
    let daemon = Daemon::start();
    for (after, wait) in [("0", "hybrid"), ("1", "spin"), ("1", "block")] {
        daemon.run(3, "shared", "", &[("NX_DIRECT_AFTER", after), ("VMMC_WAIT", wait)]);
    }
    for off in [("NX_DIRECT_CHECK", "pages"), ("NX_SHARE", "off"), ("NX_DIRECT", "off")] {
        daemon.run(2, "shared", "never", &[("NX_DIRECT_AFTER", "0"), off]);
    }
}

#[test]
fn nobody_but_its_sender_can_import_a_window() {
    let settings = [("NX_DIRECT", "65536"), ("NX_DIRECT_AFTER", "0")];
    Daemon::start().run(3, "stranger", "", &settings);
}

#[test]
fn handlers_serve_while_the_program_computes() {
    let daemon = Daemon::start();
    for nodes in [2, 4] {
        daemon.run(nodes, "counter_server", "", &[]);
    }
}

#[test]
fn a_hundred_thousand_messages_may_wait_and_be_taken_in_any_order() {
    Daemon::start().run(2, "pile", "", &[]);
}

#[test]
fn what_was_sent_arrives_though_the_sender_has_left() {
    Daemon::start().run(2, "send_and_leave", "", &[]);
}

#[test]
fn random_traffic_of_all_with_all_arrives_whole_and_in_order() {
    let daemon = Daemon::start();
    for (nodes, rounds) in [(2, "400"), (3, "300"), (8, "60"), (16, "30")] {
        daemon.run(nodes, "random_traffic", rounds, &[]);
    }
}
