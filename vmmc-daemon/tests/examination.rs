//! Sockets of other users' that the kernel tells nothing of, because a call on them does not end: a matter of who
//! offers them, and of nobody else.

mod common;
use common::standing::{PAGE, StandingCall};
use common::*;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use vmmc::control::message::*;

const GREEDY: u32 = 61_005;
const HONEST: u32 = 61_006;

/// A send that stands in a page fault with the lock of its socket.
struct StandingSend {
    send: StandingCall,
    waiter: JoinHandle<()>,
}

/// A thread that asks the kernel of a socket and waits for its lock; `None`: it was answered.
fn waiter_for(socket: &Arc<TcpStream>) -> Option<JoinHandle<()>> {
    let (say, said) = std::sync::mpsc::channel();
    let socket = socket.clone();
    let waiter = std::thread::spawn(move || {
        say.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        vmmc::sys::socket::tcp_info(&*socket).unwrap();
    });
    let stat = format!("/proc/self/task/{}/stat", said.recv().unwrap());
    while !waiter.is_finished() {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D')) {
            return Some(waiter);
        }
    }
    waiter.join().unwrap();
    None
}

impl StandingSend {
    fn by(socket: &TcpStream) -> StandingSend {
        let socket = Arc::new(socket.try_clone().unwrap());
        let sending = socket.clone();
        let send = StandingCall::of(move |page| {
            use std::os::fd::AsRawFd;
            // SAFETY: the page is there until the call has ended.
            unsafe { libc::send(sending.as_raw_fd(), page as *const _, PAGE, 0) }
        });
        // The fault may be told of before the lock is taken.
        let waiter = eventually("who asks of the socket waits", || waiter_for(&socket));
        StandingSend { send, waiter }
    }

    /// Lets it go on.
    fn end(self) {
        assert_eq!(self.send.end(), PAGE as isize);
        self.waiter.join().unwrap();
    }
}

/// The client is told next that these are paired, in whatever order.
fn are_paired(client: &Client, ends: [&TcpStream; 2]) {
    let mut told = ends.map(|_| match client.receive().event {
        Event::Paired { cookie, .. } => cookie,
        other => panic!("{other:?}"),
    });
    let mut cookies = ends.map(cookie);
    told.sort_unstable();
    cookies.sort_unstable();
    assert_eq!(told, cookies);
}

fn can_pair(client: &Client) {
    let (a, b) = connection("127.0.0.1:0");
    register(client, &a, SHAPE);
    register(client, &b, SHAPE);
    are_paired(client, [&a, &b]);
}

/// One for all users; an end waits for its other one for as long as the test takes.
fn daemon_for_all() -> Daemon {
    Daemon::start_activated(&[], &[("VMMC_PAIR_MS", "60000")])
}

fn client_of(daemon: &Daemon, uid: u32) -> Client {
    as_user(uid, uid, &[], || Client::connect_as(&daemon.path, Role::Sockets))
}

#[test]
fn a_socket_with_a_call_that_does_not_end_delays_its_offer_and_nothing_else() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = daemon_for_all();
    let (greedy, honest) = (client_of(&daemon, GREEDY), client_of(&daemon, HONEST));
    let mut witness = Client::connect(&daemon.path);
    let (a, b) = connection("127.0.0.1:0");
    let held = StandingSend::by(&a);
    register(&greedy, &a, SHAPE);
    witness.assert_silent();
    can_pair(&honest);
    can_pair(&greedy);
    // Offered once more, it is known.
    register(&greedy, &a, SHAPE);
    assert_eq!(not_paired(&greedy, &a), NotPairedReason::Conflict);
    register(&greedy, &b, SHAPE);
    witness.assert_silent();
    held.end();
    are_paired(&greedy, [&a, &b]);
}

#[test]
fn an_offer_that_is_taken_back_while_it_is_looked_at_is_forgotten() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = daemon_for_all();
    let greedy = client_of(&daemon, GREEDY);
    let before = daemon.settled_descriptors();
    let (a, b) = connection("127.0.0.1:0");
    let held = StandingSend::by(&a);
    register(&greedy, &a, SHAPE);
    greedy.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    // The same of a client that goes.
    let gone = client_of(&daemon, GREEDY);
    register(&gone, &a, SHAPE);
    drop(gone);
    // The other end waits for one that was forgotten.
    register(&greedy, &b, SHAPE);
    eventually("only the end that is left waits", || {
        let connections = daemon.snapshot().connections;
        let [only] = &*connections else { return None };
        (only.cookie == cookie(&b) && only.state == ConnectionState::Waiting).then_some(())
    });
    held.end();
    register(&greedy, &a, SHAPE);
    are_paired(&greedy, [&a, &b]);
    greedy.send(&Request::ForgetSocket { cookie: cookie(&a) }, &[]);
    greedy.send(&Request::ForgetSocket { cookie: cookie(&b) }, &[]);
    drop((a, b)); // while both are open somewhere their pair is kept
    eventually("nothing is kept", || (daemon.settled_descriptors() <= before).then_some(()));
}

#[test]
fn a_daemon_that_ends_answers_for_what_it_could_not_look_at() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let mut daemon = daemon_for_all();
    let mut greedy = client_of(&daemon, GREEDY);
    let (a, _b) = connection("127.0.0.1:0");
    let held = StandingSend::by(&a);
    register(&greedy, &a, SHAPE);
    greedy.assert_silent();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(not_paired(&greedy, &a), NotPairedReason::Resources);
    held.end();
    assert!(daemon.wait().success());
}
