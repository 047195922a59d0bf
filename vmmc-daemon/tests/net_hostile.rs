//! Nodes and processes that are not what they should be: refused, and nobody else notices.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
mod common;
#[path = "../../vmmc/tests/support/interface.rs"]
mod interface;
#[path = "common/nodes.rs"]
mod nodes;

use cluster::{KEY, Place, address, node, pair, pair_with};
use common::{WATCHDOG, eventually};
use interface::counted;
use nodes::{Bystander, Raw, connect, connect_with, export, import, key};
use proptest::prelude::*;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::codec;
use vmmc::control::message::{Event as ControlEvent, MAX_PACKET_LEN, RemoteCaller, Request};
use vmmc::control::network::{
    Accepted, Ask, Capability, FabricAt, Lasting, Mask, Opening, Origin, Pass, Purpose, Question,
    RemoteGrant, Sight, Told, Wanted,
};
use vmmc::counters::index::RECONNECTS;
use vmmc::error::ImportError;
use vmmc::fabric::{Notice, Target};
use vmmc::id::{ClientId, ExportId, Name, PeerInfo, Rights, Token, Who};
use vmmc::transport::net::frame::{Flags, HEADER_LEN, Header, Kind, reason_of, window_of};
use vmmc::transport::ofi::fifo::Fifo;
use vmmc::{CloseReason, Event, Export, Node, Region};
use vmmc_daemon::net::secure::Secure;

/// A node that knows the key and does as it likes.
fn origin(pid: u32) -> Origin {
    Origin { node: "b".to_owned(), client: 7, pid, uid: 0, gid: 0 }
}

fn open(place: &Place, origin: &Origin, purpose: Purpose) -> Secure {
    let mut secure = Secure::connect(place.address.parse().unwrap(), Some(&key())).unwrap();
    let opening = Opening { to: place.name.clone(), origin: origin.clone(), purpose };
    secure.send(&opening).unwrap();
    secure
}

fn grant(place: &Place, origin: &Origin, name: &str, rights: Rights) -> RemoteGrant {
    let wanted = Wanted {
        process: None,
        name: Name::from(name),
        rights,
        token: None,
        timeout_ms: WATCHDOG.as_millis() as u32,
    };
    let mut secure = open(place, origin, Purpose::Import(wanted));
    match secure.receive(Some(WATCHDOG)).unwrap() {
        Told::Granted(grant) => grant,
        Told::Refused(refusal) => panic!("{refusal}"),
    }
}

impl Raw {
    fn open(place: &Place, origin: &Origin) -> Raw {
        let mut secure =
            open(place, origin, Purpose::Data { meeting: None, seal: None, lasting: None });
        let accepted: Accepted = secure.receive(Some(WATCHDOG)).unwrap();
        assert_eq!(accepted.refused, None);
        let stream = secure.into_data().unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        Raw(stream)
    }

    fn attach(&mut self, slot: u32, capability: Capability) -> Kind {
        let mut header = Header::new(Kind::Attach, slot, slot);
        header.len = capability.0.len() as u64;
        self.say(header, &capability.0);
        self.hear().unwrap().0.kind
    }

    fn write(&mut self, slot: u32, at: u64, bytes: &[u8]) {
        let header = Header::new(Kind::Write, slot, slot).at(at, bytes.len() as u64).unwrap();
        self.say(header, bytes);
    }

    /// All before has been done; what was said meanwhile.
    fn fence(&mut self) -> Vec<(Header, Vec<u8>)> {
        self.say(Header::new(Kind::Fence, 0, 0).value(99), &[]);
        let mut heard = Vec::new();
        loop {
            let next = self.hear().expect("the connection lives");
            if next.0.kind == Kind::Done {
                return heard;
            }
            heard.push(next);
        }
    }
}

/// A data connection over a fabric whose sender says and writes what it likes.
struct RawFabric {
    fifo: Fifo,
    /// Beside it.
    socket: TcpStream,
}

impl RawFabric {
    fn open(place: &Place, origin: &Origin, provider: &str) -> RawFabric {
        let to: SocketAddr = place.address.parse().unwrap();
        let provider = provider.to_owned();
        let at = FabricAt { provider, local: to.ip(), notice: Notice::Auto };
        let mut fifo = Fifo::open(&at).unwrap();
        let meeting = Some(fifo.meeting().unwrap());
        let mut secure = open(place, origin, Purpose::Data { meeting, seal: None, lasting: None });
        let accepted: Accepted = secure.receive(Some(WATCHDOG)).unwrap();
        assert_eq!(accepted.refused, None);
        fifo.meet(&accepted.meeting.unwrap()).unwrap();
        let silent = secure.into_data().unwrap();
        fifo.join(&silent, true).unwrap();
        RawFabric { fifo, socket: silent }
    }

    fn hear(&mut self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += eventually("an answer", || self.fifo.receive(&mut bytes[filled..]).ok());
        }
    }

    /// Opens slot 1; its window.
    fn attach(&mut self, granted: &RemoteGrant) -> Target {
        let mut header = Header::new(Kind::Attach, 1, 1);
        header.len = granted.capability.0.len() as u64;
        eventually("room", || self.fifo.send(&[&header.encode(), &granted.capability.0]).ok());
        let (mut head, mut window) = ([0; HEADER_LEN], None);
        loop {
            self.hear(&mut head);
            let header = Header::decode(&head).unwrap();
            let mut body = vec![0; header.body_len() as usize];
            self.hear(&mut body);
            match header.kind {
                Kind::Window => window = window_of(&body, granted.mask),
                kind => {
                    assert_eq!(kind, Kind::Attached);
                    let (key, base) = window.expect("a window before that");
                    return Target { key, base };
                }
            }
        }
    }

    /// Writes straight to a window; false: it was refused.
    fn write(&mut self, window: Target, bytes: &[u8]) -> bool {
        eventually("a place", || match self.fifo.write_window(window, 0, bytes, true) {
            Ok(_) => Some(true),
            Err(rustix::io::Errno::AGAIN) => None,
            Err(_) => Some(false),
        })
    }
}

/// So many times the interface of a node has counted this, and as often as given last it has logged it with all of these words.
fn is_recorded(place: &Place, counter: &str, count: u64, words: &[&str], lines: usize) {
    assert_eq!(counted(&place.daemon.path, counter), count, "{counter}");
    assert_eq!(place.daemon.logged(words), lines, "{words:?}");
}

fn bytes_of(export: &Export) -> Vec<u8> {
    let mut bytes = vec![0; export.len()];
    export.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_node_with_another_key_is_refused_with_the_remedy() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let other = KEY.replace('0', "1");
    let c = node("c", &address(), &[("a", &a.address)], Some(&other));
    let none = node("d", &address(), &[("a", &a.address)], None);
    for place in [&c, &none] {
        let stranger = connect(place);
        let error = stranger.import("bystander").node("a").timeout(WATCHDOG).open().unwrap_err();
        assert!(error.to_string().contains("cluster keys differ"), "{error}");
    }
    let logged = || a.daemon.logged(&["WARN", "refused another node's", "cluster keys differ"]);
    // Each asks once more, because it may have met a daemon that ends.
    eventually("the node that refused has logged both", || (logged() >= 3).then_some(()));
    bystander.is_well();
}

/// A name is looked up for each connection; what is wrong with it is said with it.
#[test]
fn a_node_may_be_named_by_its_host() {
    // Only here is 127.0.0.1 used.
    let at = format!("localhost:{}", 20_000 + std::process::id() % 10_000);
    let a = node("a", &at, &[], Some(KEY));
    let b = node("b", &address(), &[("a", &at), ("c", "nowhere.invalid:4790")], Some(KEY));
    let (exporter, importer) = (connect(&a), connect(&b));
    let export = export(&exporter, "x", 4096);
    let import = import(&importer, "x");
    import.flag32(0).unwrap().signal(1).unwrap();
    export.flag32(0).unwrap().wait_until(|value| value == 1, Some(WATCHDOG)).unwrap();
    let error = importer.import("x").node("c").timeout(WATCHDOG).open().unwrap_err().to_string();
    assert!(error.contains("\"c\"") && error.contains("nowhere.invalid:4790"), "{error}");
}

#[test]
fn what_is_not_in_the_cluster_file_or_does_not_answer_is_named() {
    let (a, b) = pair();
    let process = connect(&b);
    let error = process.import("x").node("nowhere").open().unwrap_err().to_string();
    assert!(error.contains("no node \"nowhere\"") && error.contains("it has a"), "{error}");
    let alone = common::Daemon::start();
    let mut config = Config::from_env().unwrap();
    config.socket = Some(alone.path.clone());
    config.daemon = DaemonStart::Never;
    let lonely = Node::builder().config(config).connect().unwrap();
    let error = lonely.import("x").node("a").open().unwrap_err().to_string();
    assert!(error.contains("--cluster"), "{error}");
    // An address that is another node's.
    let c = node("c", &address(), &[("z", &a.address)], Some(KEY));
    let error = connect(&c).import("x").node("z").open().unwrap_err().to_string();
    assert!(error.contains("this is node \"a\", not \"z\""), "{error}");
    assert_eq!(a.daemon.logged(&["WARN", "refused an import", "node=\"c\"", "not \\\"z\\\""]), 1);
    drop(a);
    let error = process.import("x").node("a").open().unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
}

#[test]
fn a_capability_opens_one_slot_once_for_one_process() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let exporter = connect(&a);
    let export = export(&exporter, "x", 4096);
    let (thief, owner) = (origin(2), origin(1));
    let grant = grant(&a, &owner, "x", Rights::WRITE);
    assert_eq!(Raw::open(&a, &thief).attach(1, grant.capability), Kind::Refused, "stolen");
    let mut raw = Raw::open(&a, &owner);
    assert_eq!(raw.attach(1, Capability([9; 16])), Kind::Refused, "guessed");
    assert_eq!(raw.attach(1, grant.capability), Kind::Attached);
    raw.write(1, 0, b"mine");
    assert_eq!(raw.attach(2, grant.capability), Kind::Refused, "replayed");
    assert_eq!(Raw::open(&a, &owner).attach(1, grant.capability), Kind::Refused, "replayed");
    assert!(raw.fence().is_empty());
    assert_eq!(&bytes_of(&export)[..4], b"mine");
    let refused = ["WARN", "attachment refused", "node=\"b\""];
    let line = |pid, why| [&refused[..], &[pid, why]].concat();
    is_recorded(&a, "ni_refused", 4, &line("pid=2", "another process's"), 1);
    is_recorded(&a, "ni_refused", 4, &line("pid=1", "was used, or has expired"), 3);
    bystander.is_well();
}

#[test]
fn a_packet_beyond_its_import_ends_that_link_and_no_other() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let exporter = connect(&a);
    let (x, y) = (export(&exporter, "x", 8192), export(&exporter, "y", 8192));
    let who = origin(1);
    let mut raw = Raw::open(&a, &who);
    let y_grant = grant(&a, &who, "y", Rights::WRITE);
    assert_eq!(raw.attach(1, y_grant.capability), Kind::Attached);
    let word = |at, len| Header::new(Kind::Word, 2, 2).at(at, len).unwrap().value(u64::MAX);
    let forged: [(Rights, Header); 7] = [
        (Rights::WRITE, Header::new(Kind::Write, 2, 2).at(8192, 4).unwrap()),
        (Rights::WRITE, Header::new(Kind::Write, 2, 2).at(u64::from(u32::MAX) * 4096, 4).unwrap()),
        (Rights::WRITE, Header::new(Kind::Write, 2, 2).at(8190, 4).unwrap()),
        (Rights::WRITE, word(8190, 4)),
        (Rights::WRITE, word(2, 4)),
        (Rights::READ, Header::new(Kind::Write, 2, 2).at(0, 4).unwrap()),
        (Rights::WRITE, Header::new(Kind::Notify, 2, 2).at(4096, u64::MAX).unwrap()),
    ];
    let beyond = ["WARN", "link cut off", "node=\"b\"", "pid=1", "export_len=8192"];
    for ((rights, header), number) in forged.into_iter().zip(1..) {
        let x_grant = grant(&a, &who, "x", rights);
        assert_eq!(raw.attach(2, x_grant.capability), Kind::Attached);
        raw.say(header, &[0xff; 4][..header.body_len() as usize]);
        // What follows for the link is dropped.
        raw.write(2, 16, b"late");
        raw.write(1, 0, b"fine");
        let heard = raw.fence();
        let reasons: Vec<_> = heard
            .iter()
            .filter(|(it, _)| it.kind == Kind::Closed && it.slot == 2)
            .map(|(it, _)| reason_of(it.value))
            .collect();
        assert_eq!(reasons, [Some(CloseReason::PeerFault)], "{header:?}: {heard:?}");
        is_recorded(&a, "ni_faults", number, &beyond, number as usize);
        let page = format!("page={} offset={}", header.page, header.offset);
        assert!(a.daemon.logged(&["link cut off", &format!("kind={:?}", header.kind), &page]) > 0);
        raw.say(Header::new(Kind::Detach, 2, 2), &[]);
        assert!(bytes_of(&x).iter().all(|&byte| byte == 0), "{header:?}");
        assert_eq!(&bytes_of(&y)[..4], b"fine");
        bystander.is_well();
    }
    // A read without the right to: the link ends, and the answer says that there is none.
    let x_grant = grant(&a, &who, "x", Rights::WRITE);
    assert_eq!(raw.attach(2, x_grant.capability), Kind::Attached);
    raw.say(Header::new(Kind::Read, 2, 2).at(0, 8).unwrap().value(5), &[]);
    let heard = raw.fence();
    let answer = heard.iter().find(|(it, _)| it.kind == Kind::Data).unwrap();
    assert!(answer.0.flags.contains(Flags::FAILED) && answer.1.is_empty());
    is_recorded(&a, "ni_faults", 8, &beyond, 8);
}

/// V8: an unexport takes what is on its way, until the sender says that nothing follows, or for as long as it waits.
#[test]
fn an_unexport_waits_for_a_sender_that_answers_and_a_while_for_one_that_does_not() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    for (answers, drain) in [(true, WATCHDOG), (false, Duration::from_secs(3))] {
        let exporter = connect_with(&a, |config| config.drain = drain);
        let (told, tells) = std::sync::mpsc::channel();
        let x = exporter.export(Region::new(4096).unwrap()).name("x");
        let x = x.grant(Who::Anyone, Rights::WRITE).handler(move |it| told.send(it.event).unwrap());
        let x = x.open().unwrap();
        let who = origin(1);
        let mut raw = Raw::open(&a, &who);
        let granted = grant(&a, &who, "x", Rights::WRITE);
        assert_eq!(raw.attach(1, granted.capability), Kind::Attached);
        x.wait_importers(1, Some(WATCHDOG)).unwrap();
        let unexport = std::thread::spawn(move || x.unexport().unwrap());
        let (closed, _) = raw.hear().unwrap();
        assert_eq!((closed.kind, closed.slot), (Kind::Closed, 1));
        assert_eq!(reason_of(closed.value), Some(CloseReason::Unexported));
        raw.write(1, 0, b"on its way");
        if answers {
            raw.say(Header::new(Kind::Stopped, 1, 1), &[]);
        }
        let region = unexport.join().unwrap();
        assert_eq!(&region.as_slice()[..10], b"on its way");
        exporter.dispatch();
        assert_eq!(tells.try_recv(), Ok(Event::Closed { reason: CloseReason::Unexported }));
        // Whatever follows is dropped, and is no fault.
        raw.write(1, 0, b"too late..");
        raw.say(Header::new(Kind::Stopped, 1, 1), &[]);
        assert!(raw.fence().is_empty());
        assert_eq!(&region.as_slice()[..10], b"on its way");
        bystander.is_well();
    }
}

/// A sender with a right key that goes on after the end of its link writes to nobody, and not for ever: what it writes is kept in the
/// daemon's memory meanwhile.
#[test]
fn who_never_says_that_it_stopped_is_shut_out_of_an_export_that_is_no_more() {
    for provider in ["net", "tcp;ofi_rxm"] {
        let fabric = format!("[fabric]\nprovider = {provider:?}\ndirect = \"on\"\n");
        let (a, b) = pair_with(&fabric);
        let bystander = Bystander::new(&a, &b);
        let exporter = connect_with(&a, |config| config.drain = Duration::from_millis(300));
        let x = export(&exporter, "x", 1 << 16);
        let who = origin(1);
        let mut raw = RawFabric::open(&a, &who, provider);
        let window = raw.attach(&grant(&a, &who, "x", Rights::WRITE));
        assert!(raw.write(window, &[1; 1 << 16]));
        eventually("the write is there", || {
            let _ = raw.fifo.poll();
            (bytes_of(&x) == [1; 1 << 16]).then_some(())
        });
        let region = x.unexport().unwrap();
        eventually("it is refused", || (!raw.write(window, &[2; 1 << 16])).then_some(()));
        assert!(region.as_slice().iter().all(|&byte| byte == 1), "written after the unexport");
        let late = ["WARN", "does not say that it writes no more", "node=\"b\"", "pid=1"];
        assert_eq!(a.daemon.logged(&late), 1);
        bystander.is_well();
    }
}

/// On the socket beside a fabric a sender may ask which records have come, and say which have when it was asked.
#[test]
fn what_a_sender_says_beside_a_fabric_and_is_no_receipt_ends_its_connection() {
    let (a, b) = pair_with("[fabric]\nprovider = \"tcp;ofi_rxm\"\n");
    let bystander = Bystander::new(&a, &b);
    let _x = export(&connect(&a), "x", 1 << 16);
    for (number, words) in [[0, 1, 0], [2, 0, 0], [1, 0, 0], [u32::MAX; 3]].into_iter().enumerate()
    {
        let who = origin(number as u32 + 1);
        let mut raw = RawFabric::open(&a, &who, "tcp;ofi_rxm");
        let question = [0; 12];
        let mut answer = [0; 12];
        raw.socket.write_all(&question).unwrap();
        raw.socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], 1u32.to_le_bytes(), "an honest question is answered");
        raw.socket.write_all(&words.map(u32::to_le_bytes).concat()).unwrap();
        assert!(matches!(raw.socket.read(&mut answer), Ok(0) | Err(_)), "{words:?}");
        bystander.is_well();
    }
}

/// Nobody waits for who was granted an import and has not taken it up, and he hears why there is nothing.
#[test]
fn an_import_that_is_withdrawn_before_it_is_taken_up_has_been_unexported() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let x = export(&connect_with(&a, |config| config.drain = 10 * WATCHDOG), "x", 4096);
    let who = origin(1);
    let mut raw = Raw::open(&a, &who);
    let granted = grant(&a, &who, "x", Rights::WRITE);
    x.wait_importers(1, Some(WATCHDOG)).unwrap();
    x.unexport().unwrap();
    assert_eq!(raw.attach(1, granted.capability), Kind::Attached);
    let (closed, _) = raw.hear().unwrap();
    assert_eq!(
        (closed.kind, reason_of(closed.value)),
        (Kind::Closed, Some(CloseReason::Unexported))
    );
    bystander.is_well();
}

#[test]
fn an_automatic_update_that_came_in_part_is_not_seen() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let x = export(&connect(&a), "x", 4096);
    let who = origin(1);
    let mut raw = Raw::open(&a, &who);
    let grant = grant(&a, &who, "x", Rights::WRITE);
    assert_eq!(raw.attach(1, grant.capability), Kind::Attached);
    let update = Header::new(Kind::Write, 1, 1).flags(Flags::UPDATE).at(0, 4096).unwrap();
    raw.say(update, &[7; 4000]);
    // By the same thread, behind it.
    bystander.is_well();
    bystander.is_well();
    assert!(bytes_of(&x).iter().all(|&byte| byte == 0));
    raw.0.write_all(&[7; 96]).unwrap();
    assert!(raw.fence().is_empty());
    assert!(bytes_of(&x).iter().all(|&byte| byte == 7));
}

#[test]
fn what_no_library_sends_ends_the_connection_and_its_exporters_hear_of_a_death() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let exporter = connect(&a);
    let write = |slot, generation| Header::new(Kind::Write, slot, generation).at(0, 0).unwrap();
    let update = Header::new(Kind::Write, 1, 1).flags(Flags::UPDATE).at(1, 4096).unwrap();
    let twice = Header { len: 16, ..Header::new(Kind::Attach, 1, 1) };
    let nonsense: [([u8; HEADER_LEN], &str); 6] = [
        ([0xee; HEADER_LEN], "no frame is of kind 238"),
        (write(9, 9).encode(), "slot 9 was never opened"),
        (write(1, 2).encode(), "slot 1 has no generation 2"),
        (Header::new(Kind::Done, 1, 1).encode(), "Done is for an interface to say"),
        (update.encode(), "an automatic update of 4096 bytes at 1 of a page"),
        (twice.encode(), "slot 1 opened twice"),
    ];
    for (i, (bytes, what)) in nonsense.into_iter().enumerate() {
        let name = format!("x{i}");
        let export = export(&exporter, &name, 4096);
        let who = origin(1);
        let mut raw = Raw::open(&a, &who);
        let grant = grant(&a, &who, &name, Rights::WRITE);
        assert_eq!(raw.attach(1, grant.capability), Kind::Attached);
        export.wait_importers(1, Some(WATCHDOG)).unwrap();
        raw.0.write_all(&bytes).unwrap();
        assert!(raw.hear().is_none(), "{i}: it goes on");
        let line = ["WARN", "data connection cut off", "node=\"b\"", "pid=1", what];
        is_recorded(&a, "ni_faults", i as u64 + 1, &line, 1);
        let flag = export.flag32(0).unwrap();
        let end = flag.wait_until(|value| value == 1, Some(WATCHDOG)).unwrap_err();
        assert!(end.to_string().contains("it died"), "{end}");
        bystander.is_well();
    }
}

#[test]
fn any_bytes_on_a_data_connection_leave_the_interface_to_others() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let exporter = connect(&a);
    let target = export(&exporter, "x", 3 * 4096);
    let frames = proptest::collection::vec(
        (0u8..14, any::<[u8; 31]>(), proptest::collection::vec(any::<u8>(), 0..200), any::<bool>()),
        1..30,
    );
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() };
    proptest!(config, |(frames in frames)| {
        let who = origin(1);
        let mut raw = Raw::open(&a, &who);
        let grant = grant(&a, &who, "x", Rights::WRITE | Rights::READ);
        assert_eq!(raw.attach(1, grant.capability), Kind::Attached);
        for (kind, mut rest, body, plausible) in frames {
            if plausible {
                // Slot and generation 1, a page and a length that may be within the export.
                rest[0] &= 1;
                rest[2] &= 0x0f;
                rest[3..7].copy_from_slice(&1u32.to_le_bytes());
                let page = u32::from(rest[7] % 4);
                rest[7..11].copy_from_slice(&page.to_le_bytes());
                rest[11..15].copy_from_slice(&1u32.to_le_bytes());
                rest[15..23].copy_from_slice(&(body.len() as u64).to_le_bytes());
            }
            let mut bytes = vec![kind];
            bytes.extend_from_slice(&rest);
            bytes.extend_from_slice(&body);
            if raw.0.write_all(&bytes).is_err() {
                break; // cut off already
            }
        }
        drop(raw);
        bystander.is_well();
    });
    drop(target);
    eventually("each fault is counted and logged", || {
        let faults = counted(&a.daemon.path, "ni_faults");
        let logged = a.daemon.logged(&["WARN", "cut off", "node=\"b\"", "pid=1"]);
        (faults > 0 && logged == faults as usize).then_some(())
    });
}

/// Connects to a node from an address of the caller's choice on this machine.
fn connect_from(host: [u8; 4], to: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    connect(&socket, &to.parse::<SocketAddr>().unwrap()).unwrap();
    socket.into()
}

/// More strangers than a daemon has places in all, from these addresses. They say nothing.
fn strangers_come(from: &[[u8; 4]]) {
    common::raise_descriptor_limit();
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let each = 1100usize.div_ceil(from.len());
    let crowd: Vec<TcpStream> = from
        .iter()
        .flat_map(|&host| (0..each).map(move |_| host))
        .map(|host| connect_from(host, &a.address))
        .collect();
    // Those that have been there longest make room for the others.
    let mut first = crowd.first().unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    assert!(a.daemon.logged(&["WARN", "made room for it"]) > 0);
    assert!(a.daemon.logged(&["WARN", "refused another node's connection"]) < 100);
    let exporter = connect(&a);
    let _export = export(&exporter, "later", 4096);
    import(&connect(&b), "later").send(0, &[1]).unwrap();
    bystander.is_well();
}

#[test]
fn strangers_of_one_address_do_not_take_the_places_of_other_nodes() {
    strangers_come(&[[127, 9, 9, 1]]);
}

#[test]
fn strangers_of_some_addresses_do_not_take_them_either() {
    strangers_come(&[[127, 9, 9, 1], [127, 9, 9, 2], [127, 9, 9, 3]]);
}

/// As any user of that node can.
#[test]
fn strangers_of_a_nodes_own_address_do_not_take_them_either() {
    strangers_come(&[[127, 0, 0, 1]]);
}

#[test]
fn a_process_that_speaks_for_others_is_cut_off() {
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let liar = connect(&a);
    let _kept = export(&bystander.nodes.0, "x", 4096);
    let import = liar.import("x").on_behalf_of(RemoteCaller {
        node: "b".to_owned(),
        client: ClientId(1),
        pid: 1,
        uid: 0,
        gid: 0,
    });
    let mut pending = import.start().unwrap();
    // It is disconnected, comes back, and says it again: never granted.
    let cut_off = || (liar.counters().get(RECONNECTS) > 0).then_some(());
    eventually("it is cut off", cut_off);
    let me = format!("pid={}", std::process::id());
    let logged = a.daemon.logged(&["WARN", "protocol broken; cut off", &me]) as u64;
    assert!(logged > 0 && a.daemon.counter("malformed") >= logged);
    assert!(!pending.wait_for(Some(Duration::ZERO)).unwrap_or(false));
    pending.cancel();
    bystander.is_well();
}

#[test]
fn rights_are_those_of_the_mapped_user_and_not_of_the_daemon() {
    let (a, b) = pair();
    let exporter = connect(&a);
    let me = rustix::process::geteuid().as_raw();
    let region = Region::new(4096).unwrap();
    let _export = exporter
        .export(region)
        .name("x")
        .token(Token([1; 16]))
        .grant(Who::User(me), Rights::WRITE)
        .open()
        .unwrap();
    let ask = |uid: u32| {
        let wanted = Wanted {
            process: None,
            name: Name::from("x"),
            rights: Rights::WRITE,
            token: Some(Token([1; 16])),
            timeout_ms: 0,
        };
        let who = Origin { uid, ..origin(1) };
        let mut secure = open(&a, &who, Purpose::Import(wanted));
        secure.receive::<Told>(Some(WATCHDOG)).unwrap()
    };
    assert!(matches!(ask(me), Told::Granted(_)));
    let told = ask(me + 1);
    assert!(
        matches!(&told, Told::Refused(refusal) if refusal.to_string().contains(&format!("user {}", me + 1))),
        "{told:?}"
    );
    let line = ["INFO", "refused an import", "node=\"b\"", "pid=1", &format!("uid={}", me + 1)];
    assert_eq!(a.daemon.logged(&line), 1);
    let refused = connect(&b).import("x").node("a").timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(refused, ImportError::Refused(_)), "without the token: {refused}");
}

/// Without a key nobody proves anything, but the kernel knows who has connected.
#[test]
fn without_a_key_a_user_speaks_for_himself_alone() {
    const ALICE: u32 = 61_001;
    const BOB: u32 = 61_002;
    if !common::is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let a = node("a", &address(), &[], None);
    a.wait_for_others();
    let exporter = connect(&a);
    let own = |user: u32| {
        let export =
            exporter.export(Region::new(4096).unwrap()).name(format!("of {user}").as_str());
        let export = export.grant(Who::User(user), Rights::WRITE);
        export.grant(Who::Group(BOB), Rights::READ).open().unwrap()
    };
    let _exports = [own(ALICE), own(BOB)];
    let open = |me: u32, claimed: u32, purpose: Purpose| {
        let secure = || Secure::connect(a.address.parse().unwrap(), None).unwrap();
        let mut secure = common::as_user(me, me, &[], secure);
        let origin = Origin { uid: claimed, gid: BOB, ..origin(1) };
        secure.send(&Opening { to: "a".to_owned(), origin, purpose }).unwrap();
        secure
    };
    let ask = |me: u32, claimed: u32, rights: Rights| {
        let wanted = Wanted {
            process: None,
            name: Name::from(format!("of {claimed}").as_str()),
            rights,
            token: None,
            timeout_ms: 0,
        };
        open(me, claimed, Purpose::Import(wanted)).receive::<Told>(Some(WATCHDOG)).unwrap()
    };
    assert!(matches!(ask(ALICE, ALICE, Rights::WRITE), Told::Granted(_)));
    assert!(matches!(ask(0, ALICE, Rights::WRITE), Told::Granted(_)), "root's daemon may");
    for claimed in [BOB, 0] {
        let Told::Refused(refusal) = ask(ALICE, claimed, Rights::WRITE) else {
            panic!("{ALICE} is {claimed}");
        };
        let said = refusal.to_string();
        let parts = [ALICE.to_string(), claimed.to_string(), "only root's".into(), "`key`".into()];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        let (claims, why) = (format!("uid={claimed}"), format!("speaks for user {claimed}"));
        let line = ["WARN", "refused an import", "node=\"b\"", "pid=1", &claims, &why];
        assert_eq!(a.daemon.logged(&line), 1);
    }
    let mut data = open(ALICE, BOB, Purpose::Data { meeting: None, seal: None, lasting: None });
    assert!(data.receive::<Accepted>(Some(WATCHDOG)).unwrap().refused.is_some());
    let line = ["WARN", "refused a data connection", "node=\"b\"", "pid=1", "speaks for user"];
    assert_eq!(a.daemon.logged(&line), 1);
    // Nobody says which groups he is in.
    assert!(matches!(ask(ALICE, ALICE, Rights::READ), Told::Refused(_)), "by a group");
    assert!(matches!(ask(0, ALICE, Rights::READ), Told::Granted(_)), "root's daemon may");
}

/// Who asks to go on with another's connection, or one that never was, gets nothing and ends nothing.
#[test]
fn a_connection_goes_on_for_its_own_process_alone() {
    let place = node("a", &address(), &[], Some(KEY));
    let exporter = connect(&place);
    let _export = export(&exporter, "x", 4096);
    let pass = Pass([3; 16]);
    let lasting = Some(Lasting { pass, patience_s: 10, keeps_all: false });
    let purpose = Purpose::Data { meeting: None, seal: None, lasting };
    let mut secure = open(&place, &origin(1), purpose);
    assert_eq!(secure.receive::<Accepted>(Some(WATCHDOG)).unwrap().refused, None);
    let mut raw = Raw(secure.into_data().unwrap());
    let granted = grant(&place, &origin(1), "x", Rights::WRITE);
    assert_eq!(raw.attach(1, granted.capability), Kind::Attached);
    let asks = |pid, pass, position| {
        let purpose = Purpose::Resume { pass, position, seal: None };
        let mut secure = open(&place, &origin(pid), purpose);
        (secure.receive::<Accepted>(Some(WATCHDOG)).unwrap(), secure)
    };
    for (pid, pass) in [(2, pass), (1, Pass([4; 16]))] {
        let (accepted, _) = asks(pid, pass, 0);
        assert_eq!(accepted.refused.as_deref(), Some("the connection has ended"));
    }
    raw.write(1, 0, &[1; 8]);
    assert!(raw.fence().is_empty(), "it goes on as before");
    // Its own process, which has received two headers. The old one says nothing more.
    let (accepted, secure) = asks(1, pass, 2 * HEADER_LEN as u64);
    assert_eq!(accepted.refused, None);
    assert_eq!(accepted.position, (3 * HEADER_LEN + 16 + 8) as u64);
    let mut raw = Raw(secure.into_data().unwrap());
    raw.write(1, 0, &[2; 8]);
    assert!(raw.fence().is_empty());
    // More than it was ever sent, and what nobody keeps any more: the connection ends.
    let (accepted, _) = asks(1, pass, 1 << 40);
    assert!(accepted.refused.is_some_and(|why| why.contains("not kept")));
    let (accepted, _) = asks(1, pass, 0);
    assert_eq!(accepted.refused.as_deref(), Some("the connection has ended"));
}

/// The same for whoever listens in the place of a node that is not there.
#[test]
fn without_a_key_a_user_exports_for_himself_alone() {
    const ALICE: u32 = 61_001;
    if !common::is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let at = address();
    let b = node("b", &address(), &[("a", &at)], None);
    let importer = connect(&b);
    let listener = common::as_user(ALICE, ALICE, &[], || std::net::TcpListener::bind(&at).unwrap());
    let liar = std::thread::spawn(move || {
        common::as_user(ALICE, ALICE, &[], move || {
            let mut secure = Secure::accept(listener.accept().unwrap().0, None).unwrap();
            let _: Opening = secure.receive(Some(WATCHDOG)).unwrap();
            let exporter = PeerInfo { client: ClientId(1), pid: 1, uid: 0, gid: 0 };
            let (export, rights) = (ExportId(1), Rights::WRITE);
            let capability = Capability([1; 16]);
            let (mask, len) = (Mask(0), 4096);
            let told = RemoteGrant { capability, mask, export, len, rights, exporter };
            secure.send(&Told::Granted(told)).unwrap();
            // Until it is closed.
            let _ = secure.receive::<Opening>(Some(WATCHDOG));
        });
    });
    let refused = importer.import("x").node("a").timeout(WATCHDOG).open().unwrap_err().to_string();
    assert!(refused.contains("only root's daemon"), "{refused}");
    liar.join().unwrap();
}

/// A process of another user at a node.
fn client_of(place: &Place, uid: u32) -> common::Client {
    let mode = rustix::fs::Mode::from_raw_mode(0o777);
    rustix::fs::chmod(place.daemon.dir.path(), mode).unwrap();
    rustix::fs::chmod(&place.daemon.path, mode).unwrap();
    common::as_user(uid, uid, &[], || common::Client::connect(&place.daemon.path))
}

/// A user whose processes have questions for other nodes open, and do not ask them, leaves places to others.
#[test]
fn questions_of_one_user_leave_places_to_others() {
    const GREEDY: u32 = 61_003;
    if !common::is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    common::raise_descriptor_limit();
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let mut greedy = client_of(&b, GREEDY);
    let mut ask = || {
        let request = greedy.request_id();
        greedy.send(&Request::Network { request }, &[]);
        let mut heard = greedy.receive();
        match heard.event {
            ControlEvent::Network { .. } => Ok(heard.fds.take().unwrap()),
            ControlEvent::Refused { refusal, .. } => Err(refusal.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let mut open = Vec::new();
    let refused = loop {
        match ask() {
            Ok(conversation) => open.push(conversation),
            Err(refusal) => break refusal,
        }
    };
    let of_user = format!("of user {GREEDY}");
    assert!(open.len() >= 1000 && refused.contains(&of_user), "{}: {refused}", open.len());
    let _later = export(&connect(&a), "later", 4096);
    import(&connect(&b), "later").send(0, &[1]).unwrap();
    bystander.is_well();
    // What is given back can be had again.
    drop(open);
    eventually("a place is free", || ask().ok());
}

/// Imports that wait have connections of their own, and not the places of what is answered at once.
#[test]
fn imports_that_wait_leave_places_to_others() {
    common::raise_descriptor_limit();
    let (a, b) = pair();
    let bystander = Bystander::new(&a, &b);
    let wait_from = |host: u8, uid: u32| {
        // The first ones may not be waiting yet.
        let mut secure = eventually("a connection is taken", || {
            let stream = connect_from([127, 9, 8, host], &a.address);
            Secure::open(stream, Some(&key())).ok()
        });
        let wanted = Wanted {
            process: None,
            name: Name::from("never"),
            rights: Rights::WRITE,
            token: None,
            timeout_ms: u32::MAX,
        };
        let (origin, purpose) = (Origin { uid, ..origin(1) }, Purpose::Import(wanted));
        secure.send(&Opening { to: "a".to_owned(), origin, purpose }).unwrap();
        secure
    };
    // As many as may be open at once, of no user and from no address more than may wait.
    let mut crowd: Vec<Secure> = Vec::new();
    for who in 0..8 {
        crowd.extend((0..128).map(|_| wait_from(who / 4, 2000 + u32::from(who))));
    }
    let _later = export(&connect(&a), "later", 4096);
    let importer = connect(&b);
    let import = || importer.import("later").node("a").rights(Rights::WRITE).timeout(WATCHDOG);
    let import = eventually("they wait apart", || import().open().ok());
    import.send(0, &[1]).unwrap();
    bystander.is_well();
    let mut more = wait_from(0, 2000);
    let Told::Refused(refusal) = more.receive(Some(WATCHDOG)).unwrap() else {
        panic!("one more than may")
    };
    assert!(refusal.to_string().contains("of user 2000"), "{refusal}");
    assert!(!crowd.iter().any(|it| vmmc::sys::socket::has_spoken(it.stream())), "all wait");
}

/// A node takes so many connections that have not proved themselves from one address: one user's leave places to others'.
#[test]
fn handshakes_of_one_user_leave_places_to_others() {
    const GREEDY: u32 = 61_007;
    if !common::is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let at = address();
    let silent = std::net::TcpListener::bind(&at).unwrap();
    let b = node("b", &address(), &[("a", &at)], Some(KEY));
    let ask = |client: &mut common::Client| {
        let request = client.request_id();
        client.send(&Request::Network { request }, &[]);
        let conversation = client.receive().fds.take().unwrap();
        let wanted = Wanted {
            process: None,
            name: Name::from("x"),
            rights: Rights::WRITE,
            token: None,
            timeout_ms: u32::MAX,
        };
        let ask = Ask { node: "a".to_owned(), wanted, connect: false, meeting: None };
        let ask = Question::Import(ask);
        let mut buffer = [0; MAX_PACKET_LEN];
        let packet = codec::encode(&ask, &mut buffer).unwrap();
        vmmc::sys::packet::send(&conversation, packet, &[], SendFlags::empty()).unwrap();
        conversation
    };
    let mut greedy = client_of(&b, GREEDY);
    let mut open: Vec<_> = (0..100).map(|_| ask(&mut greedy)).collect();
    let mut connected: Vec<_> = (0..32).map(|_| silent.accept().unwrap()).collect();
    assert!(!common::readable(&silent), "more than a share");
    open.push(ask(&mut client_of(&b, GREEDY + 1)));
    connected.push(silent.accept().unwrap());
    assert!(!common::readable(&silent), "more than a share");
    // The next one has its turn.
    drop(connected.pop());
    drop(connected.pop());
    connected.push(silent.accept().unwrap());
}

/// Looks at all nodes take a while where one is silent: of one user a few at once.
#[test]
fn looks_of_one_user_at_the_other_nodes_are_few_at_once() {
    let at = address();
    let silent = std::net::TcpListener::bind(&at).unwrap();
    let b = node("b", &address(), &[("a", &at)], Some(KEY));
    let mut client = common::Client::connect(&b.daemon.path);
    let mut look = || {
        let request = client.request_id();
        client.send(&Request::Links { request }, &[]);
        let mut heard = client.receive();
        match heard.event {
            ControlEvent::Links { .. } => Ok(heard.fds.take().unwrap()),
            ControlEvent::Refused { refusal, .. } => Err(refusal.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let told = |from: &vmmc::sys::Fd| {
        let mut buffer = [0; MAX_PACKET_LEN];
        let heard = vmmc::sys::packet::receive(from, &mut buffer, RecvFlags::empty()).unwrap();
        heard.map(|(len, _)| codec::decode::<Sight>(&buffer[..len]).unwrap())
    };
    let open: Vec<_> = (0..4).map(|_| look().unwrap()).collect();
    for conversation in &open {
        let own = told(conversation).unwrap();
        assert!(matches!(own, Sight::Own { others: 1, has_key: true, .. }), "{own:?}");
    }
    let refused = look().unwrap_err();
    assert!(refused.contains("do that already"), "{refused}");
    // The silent one hangs up: that is told, and the places are free.
    let connected: Vec<_> = open.iter().map(|_| silent.accept().unwrap()).collect();
    drop(connected);
    for conversation in &open {
        let other = told(conversation).unwrap();
        let Sight::Other { seen: Err(why), .. } = &other else { panic!("{other:?}") };
        assert!(why.contains("; "), "no remedy in {why}");
        assert_eq!(told(conversation), None);
    }
    eventually("a place is free", || look().ok());
}
