//! An interface that knows the key and says what it likes to a process that imports from it: each wait there ends, and the
//! process's links to other nodes go on.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
mod common;
#[path = "common/nodes.rs"]
mod nodes;

use cluster::{KEY, Place, address, node_over};
use common::WATCHDOG;
use nodes::{Bystander, Raw, connect, key};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use vmmc::control::network::{
    Accepted, CAPABILITY_LIFE, Capability, FabricAt, Mask, Opening, Purpose, RemoteGrant, Told,
    Wanted,
};
use vmmc::error::{ImportError, ReadError, SendError, WaitError};
use vmmc::fabric::Notice;
use vmmc::id::{ClientId, ExportId, PeerInfo, Rights};
use vmmc::transport::net::frame::{Flags, HEADER_LEN, Header, Kind};
use vmmc::transport::ofi::fifo::Fifo;
use vmmc::{CloseReason, Event, Import, Node};
use vmmc_daemon::net::secure::Secure;

/// Length of what the liar grants: a message of this length goes by itself where there is a window.
const LEN: usize = 256 << 10;

/// What the liar does next on a data connection, which it closes at the end.
#[derive(Clone, Debug)]
enum Next {
    /// Answers a question, when there is one.
    Truth,
    /// Waits for a question.
    Listen,
    Lie(Vec<u8>),
    /// Waits until a capability has expired, and answers not what it has heard.
    Late,
    /// Says something on the socket beside a fabric.
    Aside(Vec<u8>),
    /// Closes it now.
    End,
}
use Next::{Aside, End, Late, Lie, Listen, Truth};

/// What carries the bytes of a data connection.
trait Carrier: Read + Write {
    /// The socket beside a fabric, if that carries them.
    fn aside(&mut self) -> Option<&mut TcpStream>;
}

impl Carrier for TcpStream {
    fn aside(&mut self) -> Option<&mut TcpStream> {
        None
    }
}

struct OverFabric {
    fifo: Fifo,
    socket: TcpStream,
}

impl OverFabric {
    /// Until it works, or the other end has closed the socket, on which it may ask meanwhile.
    fn eventually(
        &mut self,
        mut what: impl FnMut(&mut Fifo) -> Result<usize, Errno>,
    ) -> std::io::Result<usize> {
        loop {
            match what(&mut self.fifo) {
                Err(Errno::AGAIN) => {}
                done => return Ok(done?),
            }
            let ended = matches!(self.socket.read(&mut [0; 64]), Ok(0));
            if ended {
                return Ok(0);
            }
            std::thread::yield_now();
        }
    }
}

impl Read for OverFabric {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        self.eventually(|fifo| fifo.receive(room))
    }
}

impl Write for OverFabric {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.eventually(|fifo| fifo.send(&[bytes]))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Carrier for OverFabric {
    fn aside(&mut self) -> Option<&mut TcpStream> {
        Some(&mut self.socket)
    }
}

fn answer(to: Header) -> Option<(Header, Vec<u8>)> {
    let with = |kind| Header::new(kind, to.slot, to.generation).value(to.value);
    match to.kind {
        Kind::Attach => Some((with(Kind::Attached).value(0), Vec::new())),
        Kind::Fence => Some((with(Kind::Done), Vec::new())),
        Kind::Write if to.flags.contains(Flags::FENCE) => Some((with(Kind::Done), Vec::new())),
        Kind::Read => Some((Header { len: to.len, ..with(Kind::Data) }, vec![0; to.len as usize])),
        _ => None,
    }
}

/// Until the end of the script, or of the connection.
fn play(stream: impl Carrier, script: Vec<Next>) -> Option<()> {
    let mut raw = Raw(stream);
    let mut heard = None;
    for next in script {
        match &next {
            Lie(bytes) => raw.0.write_all(bytes).ok()?,
            Aside(bytes) => raw.0.aside()?.write_all(bytes).ok()?,
            Late => {
                heard = None;
                std::thread::sleep(CAPABILITY_LIFE);
            }
            End => return None,
            Truth | Listen => {
                while heard.is_none() {
                    heard = answer(raw.hear()?.0);
                }
            }
        }
        if matches!(next, Truth)
            && let Some((header, body)) = heard.take()
        {
            raw.0.write_all(&[&header.encode()[..], &body].concat()).ok()?;
        }
    }
    Some(())
}

/// Serves one connection between daemons. `None`: it has ended.
fn serve(stream: TcpStream, scripts: &Mutex<VecDeque<Vec<Next>>>) -> Option<()> {
    let mut secure = Secure::accept(stream, Some(&key())).ok()?;
    loop {
        let opening: Opening = secure.receive(Some(WATCHDOG)).ok()?;
        match opening.purpose {
            Purpose::Import(Wanted { rights, .. }) => {
                let grant = RemoteGrant {
                    capability: Capability([1; 16]),
                    mask: Mask(0),
                    export: ExportId(1),
                    len: LEN as u64,
                    rights,
                    exporter: PeerInfo { client: ClientId(1), pid: 1, uid: 0, gid: 0 },
                };
                secure.send(&Told::Granted(grant)).ok()?;
            }
            Purpose::Look { .. } => return None,
            // It has received more than was ever sent.
            Purpose::Resume { .. } => {
                let (node, refused, meeting) = ("liar".to_owned(), None, None);
                secure.send(&Accepted { node, refused, meeting, position: u64::MAX }).ok()?;
                return play(secure.into_data().ok()?, Vec::new());
            }
            Purpose::Data { meeting: theirs, .. } => {
                let node = "liar".to_owned();
                let fifo = theirs.map(|theirs| {
                    let local = secure.stream().local_addr().unwrap().ip();
                    let provider = theirs.provider.clone();
                    let at = FabricAt { provider, local, notice: Notice::Auto };
                    let mut fifo = Fifo::open(&at).unwrap();
                    fifo.meet(&theirs).unwrap();
                    fifo
                });
                let meeting = fifo.as_ref().map(|fifo| fifo.meeting().unwrap());
                secure.send(&Accepted { node, refused: None, meeting, position: 0 }).ok()?;
                let script = scripts.lock().unwrap().pop_front().unwrap_or_default();
                let socket = secure.into_data().ok()?;
                socket.set_read_timeout(None).unwrap();
                let Some(mut fifo) = fifo else { return play(socket, script) };
                fifo.join(&socket, false).ok()?;
                socket.set_nonblocking(true).unwrap();
                return play(OverFabric { fifo, socket }, script);
            }
        }
    }
}

/// A liar in the place of a node, an honest node, and one whose processes import from both.
struct World {
    a: Place,
    b: Place,
    /// Of the next data connections to the liar.
    scripts: Arc<Mutex<VecDeque<Vec<Next>>>>,
}

impl World {
    fn new(fabric: Option<&str>) -> World {
        let (at_a, at_b, at_liar) = (address(), address(), address());
        let listener = TcpListener::bind(&at_liar).unwrap();
        let scripts: Arc<Mutex<VecDeque<Vec<Next>>>> = Arc::default();
        let next = scripts.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let next = next.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &next));
            }
        });
        let a = node_over("a", &at_a, &[("b", &at_b)], Some(KEY), fabric);
        let b = node_over("b", &at_b, &[("a", &at_a), ("liar", &at_liar)], Some(KEY), fabric);
        a.wait_for_others();
        World { a, b, scripts }
    }

    /// A process that imports from the liar, which plays this; it has another link, which is well afterwards.
    fn import_from_liar(&self, script: Vec<Next>, body: impl FnOnce(Result<Victim, ImportError>)) {
        let node = connect(&self.b);
        let bystander = Bystander::of(connect(&self.a), node.clone());
        *self.scripts.lock().unwrap() = [script].into();
        let (told, ends) = mpsc::channel();
        let import = node.import("x").node("liar").rights(Rights::WRITE | Rights::READ);
        let import = import.timeout(WATCHDOG).handler(move |it| told.send(it.event).unwrap());
        body(import.open().map(|import| Victim { node, import, ends }));
        bystander.is_well();
    }
}

struct Victim {
    node: Node,
    import: Import,
    ends: mpsc::Receiver<Event>,
}

impl Victim {
    /// Its handler is told of the end, with a reason that the caller knows.
    fn is_told(&self) -> CloseReason {
        let mut told = None;
        self.node
            .run_until(
                || {
                    told = told.or(self.ends.try_recv().ok());
                    told.is_some()
                },
                Some(WATCHDOG),
            )
            .unwrap();
        let Some(Event::Closed { reason }) = told else { panic!("{told:?}") };
        assert_eq!(self.import.check_open().unwrap_err().reason, reason);
        reason
    }
}

fn of_interface(kind: Kind, slot: u32, value: u64) -> Header {
    Header::new(kind, slot, slot).value(value)
}

fn lie(header: Header, body: &[u8]) -> Next {
    Lie([&header.encode()[..], body].concat())
}

/// Over TCP, and over a fabric that is there.
const WAYS: [Option<&str>; 2] = [None, Some("tcp;ofi_rxm")];

#[test]
fn what_no_interface_says_ends_the_connection_and_what_concerns_nobody_ends_nothing() {
    for fabric in WAYS {
        what_no_interface_says(&World::new(fabric));
    }
}

fn what_no_interface_says(world: &World) {
    let word = |kind, slot, value| lie(of_interface(kind, slot, value), &[]);
    let data = |len| Header { len, ..of_interface(Kind::Data, 1, 1) };
    let failed = of_interface(Kind::Data, 1, 1).flags(Flags::FAILED);
    let window = |slot| Header { len: 16, ..of_interface(Kind::Window, slot, 0) };
    let other_generation = Header { generation: 9, ..of_interface(Kind::Closed, 1, 1) };
    let half = of_interface(Kind::Done, 0, 1).encode()[..HEADER_LEN / 2].to_vec();
    // What is said once the link is there; whether it goes on after that.
    let lies: [(&str, Vec<Next>, bool); 20] = [
        ("attached twice", vec![word(Kind::Attached, 1, 0)], false),
        ("attached, never asked", vec![word(Kind::Attached, 7, 0)], false),
        ("an end of a slot never opened", vec![word(Kind::Closed, 7, 1)], true),
        ("an end of another generation", vec![lie(other_generation, &[])], true),
        ("an end for no reason", vec![word(Kind::Closed, 1, 999)], false),
        ("an end that only the importer can make", vec![word(Kind::Closed, 1, 2)], false),
        ("done, never asked", vec![word(Kind::Done, 0, 77)], false),
        ("data, never asked", vec![lie(data(8), &[0; 8])], false),
        ("data for a fence", vec![Listen, lie(data(8), &[0; 8])], false),
        ("failed for a fence", vec![Listen, lie(failed, &[])], false),
        ("attached for a fence", vec![Listen, word(Kind::Attached, 1, 0)], false),
        ("refused for a fence", vec![Listen, word(Kind::Refused, 1, 0)], false),
        ("a window without a fabric", vec![lie(window(1), &[0xff; 16])], true),
        ("a window of nobody", vec![lie(window(7), &[0xff; 16])], true),
        ("a recall of no window", vec![word(Kind::Recall, 1, 0)], true),
        ("a word of a sender", vec![word(Kind::Fence, 0, 1)], false),
        ("no kind", vec![Lie(vec![0xee; HEADER_LEN])], false),
        ("half a header", vec![Listen, Lie(half), End], false),
        ("half an answer", vec![Listen, lie(data(8), &[0; 4]), End], false),
        ("nothing", vec![Listen, End], false),
    ];
    for (what, lies, goes_on) in lies {
        let script = [vec![Truth], lies, vec![Truth, Truth, Listen]].concat();
        world.import_from_liar(script, |victim| {
            let victim = victim.unwrap();
            for _ in 0..2 {
                let fenced = victim.import.fence();
                assert_eq!(fenced.is_ok(), goes_on, "{what}: {fenced:?}");
            }
            assert!(matches!(victim.import.fence(), Err(WaitError::Closed(_))), "{what}");
            assert_eq!(victim.is_told(), CloseReason::Unreachable, "{what}");
        });
    }
}

/// On the socket beside a fabric there is one thing to say: which records have come, to who has asked.
#[test]
fn what_is_said_beside_a_fabric_and_is_no_receipt_ends_the_connection() {
    let world = World::new(Some("tcp;ofi_rxm"));
    let words = |words: [u32; 3]| Aside(words.map(u32::to_le_bytes).concat());
    let said: [(&str, Vec<Next>, bool); 7] = [
        ("a question", vec![words([0, 0, 0])], true),
        ("many questions", vec![words([0, 0, 0]); 100], true),
        ("half a question", vec![Aside(vec![0; 6])], true),
        ("a question with numbers", vec![words([0, 1, 0])], false),
        ("no kind", vec![words([2, 0, 0])], false),
        ("an answer to no question", vec![words([1, 0, 0])], false),
        ("an answer beyond all numbers", vec![words([1, u32::MAX, u32::MAX])], false),
    ];
    for (what, said, goes_on) in said {
        let script = [vec![Truth], said, vec![Truth, Truth, Listen]].concat();
        world.import_from_liar(script, |victim| {
            // What is said there may be quicker than that the link is there.
            let Ok(victim) = victim else { return assert!(!goes_on, "{what}") };
            let fenced = (0..2).map(|_| victim.import.fence()).collect::<Vec<_>>();
            // What ends a connection is heard beside what else comes: sooner or later.
            assert!(!goes_on || fenced.iter().all(Result::is_ok), "{what}: {fenced:?}");
            assert!(matches!(victim.import.fence(), Err(WaitError::Closed(_))), "{what}");
            assert_eq!(victim.is_told(), CloseReason::Unreachable, "{what}");
        });
    }
}

#[test]
fn an_answer_of_another_length_is_none_and_changes_nothing() {
    let world = World::new(None);
    for len in [0, 7, 9, 4096] {
        let data = Header { len, ..of_interface(Kind::Data, 1, 1) };
        let script = vec![Truth, Listen, lie(data, &vec![7; len as usize])];
        world.import_from_liar(script, |victim| {
            let Victim { import, .. } = victim.unwrap();
            let mut bytes = [1; 8];
            let read = import.read(0, &mut bytes);
            assert!(matches!(read, Err(ReadError::Closed(_))), "{len}: {read:?}");
            assert_eq!(bytes, [1; 8], "{len}");
        });
    }
}

#[test]
fn a_refusal_that_is_no_text_is_shown_as_far_as_it_is_one() {
    let world = World::new(None);
    let refused = Header { len: 6, ..of_interface(Kind::Refused, 1, 0) };
    let script = vec![Listen, lie(refused, b"no\xff\xfe\x80!"), Listen];
    world.import_from_liar(script, |victim| {
        let error = victim.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no\u{fffd}\u{fffd}\u{fffd}!"), "{error}");
    });
}

/// As when a fabric's connection takes longer to make than a capability lives, on a machine with much to do.
#[test]
fn an_import_whose_capability_has_expired_meanwhile_is_asked_for_again() {
    let world = World::new(None);
    let refused = Header { len: 8, ..of_interface(Kind::Refused, 1, 0) };
    let script = vec![Listen, Late, lie(refused, b"too late"), Listen, Truth, Truth, Listen];
    world.import_from_liar(script, |victim| victim.unwrap().import.fence().unwrap());
}

/// Frames that may be answers, more or less.
fn lies() -> impl Strategy<Value = Next> {
    let kind = (10u8..17).prop_map(|kind| {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = kind;
        if kind == Kind::Window as u8 {
            bytes[16] = 16;
        }
        Header::decode(&bytes).unwrap()
    });
    // Tags are small, those of questions of the library's own and of attachments have a bit.
    let bits = prop_oneof![4 => Just(0), 1 => Just(1u64 << 62), 1 => Just(1 << 63)];
    let value =
        prop_oneof![6 => (0u64..9, bits).prop_map(|(low, bit)| low | bit), 1 => any::<u64>()];
    let numbers = (0u32..3, 0u32..3, value, any::<bool>());
    let body = prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 70_000)];
    let plausible =
        (kind, numbers, body).prop_map(|(header, (slot, generation, value, failed), body)| {
            let flags =
                if failed && header.kind == Kind::Data { Flags::FAILED } else { Flags::empty() };
            let len = match header.kind {
                Kind::Refused => body.len().min(1000) as u64,
                Kind::Data => body.len() as u64,
                _ => header.len,
            };
            let header = Header { slot, generation, value, flags, len, ..header };
            let body: Vec<u8> =
                body.into_iter().chain([7; 16]).take(header.body_len() as usize).collect();
            lie(header, &body)
        });
    let garbage = vec(any::<u8>(), 1..100).prop_map(Lie);
    prop_oneof![8 => Just(Truth), 1 => Just(Listen), 1 => Just(End), 8 => plausible, 1 => garbage]
}

/// Does all that one can do with an import, at once, until it is over.
fn use_up(import: &Import) {
    let is_open = || import.check_open().is_ok();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while import
                .fence()
                .inspect_err(|it| assert!(matches!(it, WaitError::Closed(_))))
                .is_ok()
            {}
        });
        scope.spawn(|| {
            let mut bytes = vec![9; 5000];
            while is_open() {
                let _ = import.read(8, &mut bytes[1000..4000]);
                assert!(bytes[..1000].iter().chain(&bytes[4000..]).all(|&byte| byte == 9));
            }
        });
        scope.spawn(|| {
            while is_open() {
                import.flag64(8).unwrap().load().unwrap();
            }
        });
        scope.spawn(|| {
            let sent = || import.send(0, &[3; LEN]).and_then(|()| import.send_fenced(5, &[4; 100]));
            let end = std::iter::repeat_with(sent).find_map(Result::err);
            assert!(matches!(end, Some(SendError::Closed(_))), "{end:?}");
        });
        let end = import.flag32(0).unwrap().wait_until(|_| false, Some(WATCHDOG));
        assert!(matches!(end, Err(WaitError::Closed(_))), "{end:?}");
    });
}

#[test]
fn any_answers_leave_the_process_to_its_other_links() {
    any_answers(None, 100);
}

#[test]
fn any_answers_over_a_fabric_leave_the_process_to_its_other_links() {
    any_answers(Some("tcp;ofi_rxm"), 50);
}

fn any_answers(fabric: Option<&str>, cases: u32) {
    let world = Arc::new(World::new(fabric));
    let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
    proptest!(config, |(attaches in proptest::bool::weighted(0.8), said in vec(lies(), 0..14))| {
        let script = if attaches { [vec![Truth], said].concat() } else { said };
        // In a thread, so that a hang is told with its script.
        let (done, is_done) = mpsc::channel();
        let world = world.clone();
        let case = std::thread::spawn(move || {
            world.import_from_liar(script, |victim| {
                let Ok(victim) = victim else { return };
                use_up(&victim.import);
                victim.is_told();
            });
            done.send(()).unwrap();
        });
        let ended = is_done.recv_timeout(WATCHDOG);
        prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
        case.join().unwrap(); // which has the daemons, too
    });
}
