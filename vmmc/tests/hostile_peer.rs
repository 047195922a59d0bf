//! A hostile importer: it scribbles over everything it can map, keeps its mapping after the
//! unexport, forges messages to the daemon, floods doorbells. The exporter and an honest importer
//! notice nothing but the end of its link.

mod common;
mod support;

use common::{Daemon, PATIENCE, import, open, pause, say, until};
use rustix::net::SendFlags;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::Watchdog;
use support::raw::{Numbers, Raw as Bare, get32, set32, set64};
use vmmc::control::codec;
use vmmc::control::connect::Connection;
use vmmc::control::message as wire;
use vmmc::control::message::{Hello, NO_CPU, Request, Role};
use vmmc::counters::index as count;
use vmmc::error::{SendError, TrySendError, WaitError};
use vmmc::id::{ExportId, LinkId, RequestId};
use vmmc::layout::link;
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::sys::{doorbell, memfd, packet};
use vmmc::{CloseReason, Event, Export, Node, Region, Rights};

#[test]
fn second_process() {
    common::second_process(&[
        ("hostile", hostile),
        ("forger", forger),
        ("keeper", keeper),
        ("scribbler", scribbler),
    ]);
}

struct Victim {
    node: Node,
    export: Export,
    messages: Arc<AtomicU64>,
    faults: Arc<AtomicU64>,
}

fn victim(daemon: &Daemon) -> Victim {
    let node = daemon.node();
    let (messages, faults) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (messages_in, faults_in) = (messages.clone(), faults.clone());
    let builder =
        node.export(Region::new(8192).unwrap()).name("victim").handler(move |it| match it.event {
            Event::Message { offset, len, .. } => {
                assert!(offset + len <= 8192);
                messages_in.fetch_add(1, Ordering::Relaxed);
            }
            Event::Closed { reason: CloseReason::PeerFault } => {
                faults_in.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        });
    let export = open(builder);
    Victim { node, export, messages, faults }
}

/// Each way of spoiling the link segment ends that link, counted, and disturbs nobody.
#[test]
fn nonsense_in_the_link_segment_ends_that_link_only() {
    let daemon = Daemon::start();
    let Victim { node, export, messages, faults } = victim(&daemon);
    let honest_node = daemon.node();
    let honest = import(&honest_node, "victim");
    export.wait_importers(1, PATIENCE).unwrap();
    for (round, way) in ["tail", "entry", "zero", "ones", "random", "magic"].iter().enumerate() {
        let before = faults.load(Ordering::Relaxed);
        let mut second = daemon.second("hostile", &[way]);
        second.expect("scribbled");
        let sent = messages.load(Ordering::Relaxed);
        for number in 1..=300u64 {
            honest.send_with_notify(0, &number.to_ne_bytes()).unwrap();
            if number % 50 == 0 {
                node.dispatch();
            }
        }
        let honest_ones = || messages.load(Ordering::Relaxed) >= sent + 300;
        node.run_until(honest_ones, PATIENCE).unwrap();
        if ["tail", "entry", "ones"].contains(way) {
            node.run_until(|| faults.load(Ordering::Relaxed) > before, PATIENCE).unwrap();
            assert!(node.counters().get(count::PEER_FAULTS) > round as u64 / 3);
        }
        second.kill();
        until("only the honest link is left", || export.importers().len() == 1);
    }
    assert!(honest.check_open().is_ok());
    export.unexport().unwrap();
}

/// Speaks the protocol by hand, so as to have all descriptors.
struct Raw {
    connection: Connection,
    segment: GuardedMapping,
    bells: Vec<vmmc::sys::Fd>,
    memory: GuardedMapping,
    /// Rung by the exporter when it has heard of the link.
    bell: doorbell::Doorbell,
}

fn raw_import() -> Raw {
    let socket = std::env::var("VMMC_SOCKET").unwrap();
    let connection = Connection::open_existing(socket.as_ref()).unwrap();
    let page = memfd::create("page", vmmc::layout::page::LEN as u64).unwrap();
    let mapped = GuardedMapping::new(&page, vmmc::layout::page::LEN, Access::ReadWrite).unwrap();
    // SAFETY: mapped above.
    let view = unsafe { vmmc::mem::View::from_raw(mapped.as_ptr(), vmmc::layout::page::LEN) };
    view.write(8, &vmmc::layout::VERSION.to_ne_bytes()).unwrap();
    view.write(0, &vmmc::layout::page::MAGIC.to_ne_bytes()).unwrap();
    view.write(vmmc::layout::page::ARMED, &1u32.to_ne_bytes()).unwrap();
    std::mem::forget(mapped);
    memfd::seal_single_writer(&page).unwrap();
    let bell = doorbell::Doorbell::new().unwrap();
    let hello = Hello { role: Role::Process, program: "hostile".into(), resume: None };
    connection.hello(hello, &[page.as_fd(), bell.fd().as_fd()]).unwrap();

    let len = vmmc::layout::link::LEN;
    let file = memfd::create("link", len as u64).unwrap();
    memfd::seal(&file).unwrap();
    let segment = GuardedMapping::new(&file, len, Access::ReadWrite).unwrap();
    // SAFETY: mapped above.
    let view = unsafe { vmmc::mem::View::from_raw(segment.as_ptr(), len) };
    view.write(8, &vmmc::layout::VERSION.to_ne_bytes()).unwrap();
    view.write(0, &vmmc::layout::link::MAGIC.to_ne_bytes()).unwrap();
    let request = Request::Import {
        request: RequestId(1),
        process: None,
        name: "victim".into(),
        rights: Rights::all(),
        token: None,
        timeout_ms: 120_000,
        restore: None,
        known_to: None,
        cpu: NO_CPU,
    };
    connection.send(&request, &[file.as_fd()]).unwrap();
    let mut answer = connection.receive().unwrap();
    let memory = answer.fds.take().unwrap();
    let memory = GuardedMapping::new(&memory, 8192, Access::ReadWrite).unwrap();
    let bells = std::iter::from_fn(|| answer.fds.take()).skip(1).collect();
    Raw { connection, segment, bells, memory, bell }
}

fn hostile(args: &[String]) {
    let Raw { connection: _connected, segment, bells, memory, bell } = raw_import();
    if args[0] != "magic" {
        while !bell.wait(None).unwrap() {}
    }
    let len = vmmc::layout::link::LEN;
    // SAFETY: mapped by `raw_import`.
    let view = unsafe { vmmc::mem::View::from_raw(segment.as_ptr(), len) };
    let tail = vmmc::layout::link::TAIL;
    match args[0].as_str() {
        "tail" => view.write(tail, &77_777u32.to_ne_bytes()).unwrap(),
        "entry" => {
            for word in 0..2 {
                view.write(vmmc::layout::link::QUEUE + 8 * word, &u64::MAX.to_ne_bytes()).unwrap();
            }
            view.write(tail, &1u32.to_ne_bytes()).unwrap();
        }
        "zero" => view.write(0, &vec![0; len]).unwrap(),
        "ones" => view.write(0, &vec![0xFF; len]).unwrap(),
        "random" => {
            let mut x = 1u64;
            for offset in 0..len {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                view.write(offset, &[(x >> 33) as u8]).unwrap();
            }
        }
        _ => view.write(0, &[0; 16]).unwrap(),
    }
    // SAFETY: mapped by `raw_import`.
    let view = unsafe { vmmc::mem::View::from_raw(memory.as_ptr(), 8192) };
    view.write(0, &[0xEE; 8192]).unwrap();
    for bell in &bells {
        doorbell::ring(bell);
    }
    say("scribbled");
    // Goes on ringing and scribbling while the victim works.
    loop {
        for bell in &bells {
            doorbell::ring(bell);
        }
        view.write(0, &[0xEF; 8192]).unwrap();
    }
}

/// G3, revocation: the canary stays.
#[test]
fn a_mapping_kept_after_the_unexport_reaches_nobody() {
    let daemon = Daemon::start();
    let Victim { export, .. } = victim(&daemon);
    let mut second = daemon.second("keeper", &[]);
    second.expect("storing");
    export.wait_importers(1, PATIENCE).unwrap();
    let mut region = export.unexport().unwrap();
    region.as_mut_slice().fill(0xCA);
    second.go_on();
    second.expect("stored more");
    assert!(
        region.as_slice().iter().all(|&byte| byte == 0xCA),
        "a store landed after the unexport"
    );
    second.kill();
}

/// Leaves its busy mark set, ignores the state, and keeps on storing.
fn keeper(_: &[String]) {
    let Raw { connection: _connected, segment, memory, .. } = raw_import();
    // SAFETY: mapped by `raw_import`.
    let link = unsafe { vmmc::mem::View::from_raw(segment.as_ptr(), vmmc::layout::link::LEN) };
    link.write(vmmc::layout::link::BUSY, &1u32.to_ne_bytes()).unwrap();
    // SAFETY: mapped by `raw_import`.
    let view = unsafe { vmmc::mem::View::from_raw(memory.as_ptr(), 8192) };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                view.write(0, &[0xBA; 8192]).unwrap();
            }
        });
        say("storing");
        pause();
        view.write(0, &[0xBB; 8192]).unwrap();
        say("stored more");
        stop.store(true, Ordering::Relaxed);
    });
    pause();
}

/// V5: numbers of others, wrong descriptors, garbage: nothing is obtained, nobody disturbed.
#[test]
fn forged_messages_obtain_nothing() {
    let daemon = Daemon::start();
    let Victim { node, export, .. } = victim(&daemon);
    let honest_node = daemon.node();
    let honest = import(&honest_node, "victim");
    export.wait_importers(1, PATIENCE).unwrap();
    let args = [export.id().0.to_string(), honest.id().0.to_string()];
    let mut second = daemon.second("forger", &[&args[0], &args[1]]);
    second.expect("done");
    second.kill();
    honest.send(0, b"alive").unwrap();
    let mut seen = [0; 5];
    export.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"alive");
    assert_eq!(node.list().unwrap().len(), 1);
    // The ends of the forger's own links come one by one.
    until("only the honest link is left", || export.importers().len() == 1);
    assert_eq!(export.importers()[0].link, honest.id());
}

fn forger(args: &[String]) {
    let (export, link) = (ExportId(args[0].parse().unwrap()), LinkId(args[1].parse().unwrap()));
    let forgeries = [
        Request::Unexport { request: RequestId(9), export, cpu: NO_CPU },
        Request::Revoked { export },
        Request::CloseLink { link },
        Request::Introduce { client: vmmc::id::ClientId(link.0) },
        Request::CancelImport { request: RequestId(1) },
        Request::TakeOver { request: RequestId(9) },
    ];
    for forgery in forgeries.iter().take(5) {
        let raw = raw_import();
        let _ = raw.connection.send(forgery, &[]);
        let _ = raw.connection.send(&Request::List { request: RequestId(10) }, &[]);
    }
    for len in [1usize, 16, 100, 4096] {
        let raw = raw_import();
        let garbage: Vec<u8> = (0..len).map(|i| (i * 31 + 7) as u8).collect();
        let socket = raw.connection.into_fd();
        let _ = packet::send(&socket, &garbage, &[], SendFlags::empty());
    }
    // Another version, another protocol, nothing at all.
    let address =
        rustix::net::SocketAddrUnix::new(std::env::var("VMMC_SOCKET").unwrap().as_str()).unwrap();
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], &codec::handshake()[..7]] {
        let socket = packet::socket().unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let _ = packet::send(&socket, greeting, &[], SendFlags::empty());
    }
    say("done");
    pause();
}

// ---- by the bare protocol, from within this process ----

fn socket() -> std::path::PathBuf {
    std::env::var_os("VMMC_SOCKET").expect("set by the first process").into()
}

/// Scribbles over all it can map and rings without end, until it is killed.
fn scribbler(_: &[String]) {
    support::die_with_parent();
    let mut raw = Bare::connect(&socket());
    let import = raw.import("victim", Rights::all());
    let bell = import.doorbell.as_ref().unwrap();
    let mut numbers = Numbers(0x5eed);
    let mut scribble = |count: usize| {
        for _ in 0..count {
            let (at, value) = (numbers.next() as usize, numbers.next());
            let (target, len) = match value & 1 {
                0 => (import.memory, import.memory.len()),
                _ => (import.segment, import.segment.len()),
            };
            set64(target, at % (len / 8) * 8, value);
            doorbell::ring(bell);
        }
    };
    scribble(200_000);
    say("scribbled");
    loop {
        scribble(1000);
    }
}

/// Hundreds of thousands of random stores to the memory and the link, with the doorbell
/// rung without end: an honest importer of the same process's other export gets every wake-up, and every
/// message of it arrives whole and in order.
#[test]
fn scribbling_and_flooding_disturb_no_other_link() {
    let dog = Watchdog::new("scribbling_and_flooding_disturb_no_other_link");
    let daemon = Daemon::start();
    let Victim { node, export: _victim, .. } = victim(&daemon);
    let other = common::export(&node, "other", 8192);
    let honest_node = daemon.node();
    let honest = import(&honest_node, "other");
    other.wait_importers(1, PATIENCE).unwrap();
    let mut second = daemon.second("scribbler", &[]);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ping, pong) = (other.flag32(4096).unwrap(), other.flag32(4224).unwrap());
            for round in 1u32.. {
                let last = ping.wait_until(|value| value >= round, PATIENCE).unwrap();
                let mut seen = vec![0; 4000];
                other.read(0, &mut seen).unwrap();
                assert!(seen.iter().all(|&byte| byte == round as u8), "spoilt in round {round}");
                pong.signal(round).unwrap();
                if last == u32::MAX {
                    return;
                }
            }
        });
        let (ping, pong) = (honest.flag32(4096).unwrap(), honest.flag32(4224).unwrap());
        let rounds = |from: u32, until: &dyn Fn(u32) -> bool| {
            let mut round = from;
            while !until(round) {
                round += 1;
                honest.send(0, &[round as u8; 4000]).unwrap();
                ping.signal(round).unwrap();
                pong.wait_until(|value| value == round, PATIENCE).unwrap();
            }
            round
        };
        scope.spawn(|| {
            dog.step("the hostile process scribbles");
            second.expect("scribbled");
            end.store(true, Ordering::Relaxed);
        });
        let round = rounds(0, &|_| end.load(Ordering::Relaxed));
        let last = rounds(round, &|now| now == round + 500);
        dog.step("the last round");
        honest.send(0, &[(last + 1) as u8; 4000]).unwrap();
        ping.signal(u32::MAX).unwrap();
        pong.wait_until(|value| value == last + 1, PATIENCE).unwrap();
    });
    assert!(honest.check_open().is_ok());
}

/// Each impossible queue position, each entry out of range: the link ends as faulty, at once. Fails
/// without the bound in `word::credit::in_flight`.
#[test]
fn every_impossible_position_and_entry_ends_the_link() {
    let dog = Watchdog::new("every_impossible_position_and_entry_ends_the_link");
    let daemon = Daemon::start();
    let Victim { node, export, messages, faults } = victim(&daemon);
    let whole = (0, 8192);
    let positions = [129, 130, 255, 256, 65_536, 1 << 31, (1 << 31) + 1, u32::MAX - 1, u32::MAX];
    let entries = [
        (8193, 0),
        (8192, 1),
        (0, 8193),
        (1, 8192),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (1 << 63, 1 << 63),
    ];
    let forgeries = positions
        .into_iter()
        .map(|tail| (whole, tail))
        .chain(entries.into_iter().map(|entry| (entry, 1)));
    for (count, ((offset, len), tail)) in (1..).zip(forgeries) {
        dog.step(format!("{len} bytes at {offset}, tail {tail}"));
        let mut raw = Bare::connect(&daemon.socket());
        let import = raw.import("victim", Rights::WRITE);
        set64(import.segment, link::QUEUE, offset);
        set64(import.segment, link::QUEUE + 8, len);
        set32(import.segment, link::TAIL, tail);
        doorbell::ring(import.doorbell.as_ref().unwrap());
        node.run_until(|| faults.load(Ordering::Relaxed) == count, PATIENCE).unwrap();
        raw.hear(|event, _| match event {
            wire::Event::LinkClosed { reason: CloseReason::PeerFault, .. } => Some(()),
            _ => None,
        });
        assert_eq!(get32(import.segment, link::STATE), link::REVOKED);
    }
    assert_eq!(messages.load(Ordering::Relaxed), 0);
    assert!(export.importers().is_empty());
}

/// The importer writes what only the exporter should: state, accept, head. It deceives itself.
#[test]
fn the_exporters_words_written_by_the_importer_deceive_only_the_importer() {
    let daemon = Daemon::start();
    let Victim { node, export, messages, faults } = victim(&daemon);
    let mut raw = Bare::connect(&daemon.socket());
    let import = raw.import("victim", Rights::WRITE);
    let honest_node = daemon.node();
    let honest = import_of(&honest_node);
    for (at, value) in [
        (link::STATE, link::CLOSING),
        (link::STATE, link::REVOKED),
        (link::STATE, 0xDEAD),
        (link::ACCEPT, 0),
        (link::HEAD, 99),
        (link::BUSY, u32::MAX),
    ] {
        set32(import.segment, at, value);
        doorbell::ring(import.doorbell.as_ref().unwrap());
        let before = messages.load(Ordering::Relaxed);
        honest.send_with_notify(0, b"honest").unwrap();
        node.run_until(|| messages.load(Ordering::Relaxed) == before + 1, PATIENCE).unwrap();
    }
    assert_eq!(faults.load(Ordering::Relaxed), 0);
    assert_eq!(export.importers().len(), 2);
}

fn import_of(node: &Node) -> vmmc::Import {
    import(node, "victim")
}

/// A peer's process page can be read and never written, by whatever way it is mapped.
#[test]
fn a_process_page_cannot_be_mapped_for_writing() {
    let daemon = Daemon::start();
    let _victim = victim(&daemon);
    let mut raw = Bare::connect(&daemon.socket());
    let import = raw.import("victim", Rights::all());
    let page = import.page.unwrap();
    let len = vmmc::layout::page::LEN;
    assert!(GuardedMapping::new(&page, len, Access::Read).is_ok());
    assert!(GuardedMapping::new(&page, len, Access::ReadWrite).is_err());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&page));
    // Root, and the same user, may open it again; the seal forbids the mapping and the write.
    if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
        assert!(GuardedMapping::new(&again, len, Access::ReadWrite).is_err());
        assert!(rustix::io::pwrite(&again, &[1], 0).is_err());
    }
}

/// Revocation: what a hostile importer keeps is nobody's, also not the next export's of the same
/// memory; and a slot that it leaves busy for ever delays the unexport by the drain's limit only.
/// Fails ("a canary died") without the swap of pages in `Region::revoke`.
#[test]
fn a_kept_mapping_reaches_no_later_export_of_the_region() {
    let _dog = Watchdog::new("a_kept_mapping_reaches_no_later_export_of_the_region");
    let daemon = Daemon::start();
    let config = vmmc::Config { drain: std::time::Duration::from_millis(50), ..daemon.config() };
    let node = Node::builder().config(config).connect().unwrap();
    let mut export = common::export(&node, "again", 8192);
    let mut raw = Bare::connect(&daemon.socket());
    let kept = raw.import("again", Rights::all());
    set32(kept.segment, link::BUSY, 1); // for ever
    for byte in 1..4u8 {
        let mut region = export.unexport().unwrap();
        region.as_mut_slice().fill(byte);
        kept.memory.write(0, &[0xEE; 8192]).unwrap();
        assert!(region.as_slice().iter().all(|&at| at == byte), "a canary died");
        export = open(node.export(region).name("again"));
        let honest = import(&node, "again");
        kept.memory.write(0, &[0xEF; 8192]).unwrap();
        let mut seen = vec![0; 8192];
        honest.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&at| at == byte), "it reaches the next export");
    }
}

/// Who withdraws and does other things meanwhile is not held up by a slot that is busy for ever; nobody begins anew, and the pages
/// are taken away in the end.
#[test]
fn a_withdrawal_that_must_wait_says_so_and_waits_for_nothing() {
    let _dog = Watchdog::new("a_withdrawal_that_must_wait_says_so_and_waits_for_nothing");
    let daemon = Daemon::start();
    let config = vmmc::Config { drain: support::stage::FOR_LONG, ..daemon.config() };
    let node = Node::builder().config(config).connect().unwrap();
    let export = common::export(&node, "left", 8192);
    let mut raw = Bare::connect(&daemon.socket());
    let kept = raw.import("left", Rights::all());
    set32(kept.segment, link::BUSY, 1);
    let mut withdrawal = export.withdraw().expect("it is imported");
    assert!(!withdrawal.try_finish());
    assert_eq!(support::raw::get32(kept.segment, link::STATE), link::CLOSING);
    let refused = node.import("left").timeout(std::time::Duration::ZERO).open();
    assert!(refused.is_err(), "it is found");
    set32(kept.segment, link::BUSY, 2);
    assert!(withdrawal.try_finish() && withdrawal.try_finish());
    assert_eq!(support::raw::get32(kept.segment, link::STATE), link::REVOKED);
    assert!(node.exports().is_empty());
    assert!(common::export(&node, "alone", 8192).withdraw().is_none(), "nobody had it");
}

/// G3: what is not sealed, too short, too long or no memory file at all is refused, from an
/// exporter and from an importer, and the daemon keeps none of it.
#[test]
fn wrong_descriptors_are_refused_and_none_is_kept() {
    let _dog = Watchdog::new("wrong_descriptors_are_refused_and_none_is_kept");
    let daemon = Daemon::start();
    let _victim = victim(&daemon);
    let mut raw = Bare::connect(&daemon.socket());
    let before = support::at_rest(daemon.pid(), 2);
    let unsealed = memfd::create("unsealed", 8192).unwrap();
    let (_, short) = support::raw::sealed(4096);
    let (_, huge) = support::raw::sealed(1 << 20);
    let zero: vmmc::sys::Fd =
        std::os::fd::OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()).into();
    let dir: vmmc::sys::Fd = std::os::fd::OwnedFd::from(std::fs::File::open("/").unwrap()).into();
    for _ in 0..20 {
        for wrong in [&unsealed, &short, &huge, &zero, &dir] {
            let refused = raw.try_export("wrong", 8192, Vec::new(), &[wrong.as_fd()]);
            assert!(matches!(refused, Err(wire::Refusal::BadSegment { .. })), "{refused:?}");
            let nothing = support::raw::sealed(4096).0;
            let refused = raw.try_import_with("victim", Rights::WRITE, nothing, &[wrong.as_fd()]);
            assert!(matches!(refused.err(), Some(wire::Refusal::BadSegment { .. })));
        }
        let refused = raw.try_export("wrong", 8192, Vec::new(), &[]);
        assert!(matches!(refused, Err(wire::Refusal::BadSegment { .. })));
    }
    support::settles("the daemon", daemon.pid(), &before);
    // Descriptors where none belong, and more than any message has.
    for fds in [vec![&zero; 1], vec![&huge; 4]] {
        let raw = Bare::connect(&daemon.socket());
        let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
        raw.tell(&Request::List { request: RequestId(77) }, &fds);
        assert!(raw.hears_the_end());
    }
    support::settles("the daemon", daemon.pid(), &before);
}

/// A hostile exporter: nonsense in the words it owns is an error for its importer, never a hang.
#[test]
fn a_hostile_exporter_only_ends_the_link() {
    let dog = Watchdog::new("a_hostile_exporter_only_ends_the_link");
    let daemon = Daemon::start();
    let node = daemon.node();
    for (at, value) in [(link::STATE, 77), (link::STATE, u32::MAX), (link::HEAD, 0x8000_0000)] {
        dog.step(format!("{value:#x} at {at}"));
        let mut raw = Bare::connect(&daemon.socket());
        let (_memory, file) = support::raw::sealed(8192);
        let all = vmmc::id::Grant { who: vmmc::Who::SameUser, rights: Rights::all() };
        raw.try_export("trap", 8192, vec![all], &[file.as_fd()]).unwrap();
        let import = import(&node, "trap");
        let segment = raw.hear(|event, fds| match event {
            wire::Event::LinkOpened { .. } => Some(fds.take().unwrap()),
            _ => None,
        });
        let mapping = GuardedMapping::new(&segment, link::LEN, Access::ReadWrite).unwrap();
        let segment = support::raw::forever(mapping);
        set32(segment, at, value);
        let is_fault = |result| matches!(result, Err(TrySendError::Send(SendError::Closed(it))) if it.reason == CloseReason::PeerFault);
        // A position is only looked at when the queue seems full.
        let faulty = (0..200).any(|_| is_fault(import.try_send_with_notify(0, b"x")));
        assert!(faulty, "nobody noticed {value:#x} at {at}");
        if at == link::STATE {
            let end = import.flag32(0).unwrap().wait_until(|_| false, None);
            assert!(
                matches!(end, Err(WaitError::Closed(it)) if it.reason == CloseReason::PeerFault)
            );
        }
        drop(import);
        drop(raw);
        until("its name is free", || node.list().unwrap().is_empty());
    }
}
