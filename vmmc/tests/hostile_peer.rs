//! A hostile importer: it scribbles over everything it can map, keeps its mapping after the
//! unexport, forges messages to the daemon, floods doorbells. The exporter and an honest importer
//! notice nothing but the end of its link.

mod common;

use common::{Daemon, PATIENCE, import, open, pause, say, until};
use rustix::net::SendFlags;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc::control::codec;
use vmmc::control::connect::Connection;
use vmmc::control::message::{Hello, Request, Role};
use vmmc::counters::index as count;
use vmmc::id::{ExportId, LinkId, RequestId};
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::sys::{doorbell, memfd, packet};
use vmmc::{CloseReason, Event, Export, Node, Region, Rights};

#[test]
fn second_process() {
    common::second_process(&[("hostile", hostile), ("forger", forger), ("keeper", keeper)]);
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
    std::mem::forget(mapped);
    memfd::seal_single_writer(&page).unwrap();
    let bell = doorbell::Doorbell::new().unwrap();
    let hello = Hello { role: Role::Process, program: "hostile".into(), resume: None };
    connection.hello(hello, &[page.as_fd(), bell.write_end().as_fd()]).unwrap();
    std::mem::forget(bell);

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
        timeout_ms: 10_000,
        restore: None,
    };
    connection.send(&request, &[file.as_fd()]).unwrap();
    let mut answer = connection.receive().unwrap();
    let memory = answer.fds.take().unwrap();
    let memory = GuardedMapping::new(&memory, 8192, Access::ReadWrite).unwrap();
    let bells = std::iter::from_fn(|| answer.fds.take()).skip(1).collect();
    Raw { connection, segment, bells, memory }
}

fn hostile(args: &[String]) {
    let Raw { connection, segment, bells, memory } = raw_import();
    // Wait for LinkReady: the exporter has the segment.
    if args[0] != "magic" {
        connection.receive().unwrap();
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
    let Raw { segment, memory, .. } = raw_import();
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
    assert_eq!(export.importers().len(), 1);
}

fn forger(args: &[String]) {
    let (export, link) = (ExportId(args[0].parse().unwrap()), LinkId(args[1].parse().unwrap()));
    let forgeries = [
        Request::Unexport { request: RequestId(9), export },
        Request::Revoked { export },
        Request::CloseLink { link },
        Request::LinkReady { link },
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
