use super::answers::attach;
use super::*;
use crate::segment::Segment;
use crate::{ALONE, fd_table, side};
use std::net::{TcpListener, TcpStream};
use vmmc::id::ClientId;
use vmmc::sys::{Fd, memfd};
use vmmc::word::Word;

const RING: u32 = 4096;

fn segment() -> Fd {
    let memory = memfd::create("segment", Segment::mapping_len(RING as usize) as u64).unwrap();
    memfd::seal(&memory).unwrap();
    memory
}

/// A socket whose offer has just been answered, by a thread that acts on the answer.
fn answered(socket: &TcpStream) -> &'static Sock {
    let fd = socket.as_raw_fd();
    fd_table::track(fd, false);
    let sock = fd_table::sock(fd).unwrap();
    let cookie = raw::socket_cookie(fd).unwrap();
    sock.cookie.store(cookie, Ordering::Relaxed);
    sock.state.store(state::PENDING, Ordering::SeqCst);
    assert!(sock.hold_pending());
    sock
}

fn attach_to(sock: &'static Sock, socket: &TcpStream) -> bool {
    attach(sock, socket.as_raw_fd(), &segment(), 0, RING, ClientId(1), None)
}

/// The next packet that the daemon has been sent: of which socket it is the offer.
fn offer_sent(daemon: &Fd) -> Option<u64> {
    let mut buffer = [0; MAX_PACKET_LEN];
    let (len, _) = packet::receive(daemon, &mut buffer, RecvFlags::DONTWAIT).ok()??;
    match codec::decode(&buffer[..len]) {
        Ok(Request::RegisterSocket { cookie, .. }) => Some(cookie),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_offer_for_which_there_is_no_room_is_sent_when_there_is_unless_its_socket_is_closed() {
    let _alone = ALONE.lock().unwrap();
    settings::init();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = [(); 4].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let fds = sockets.each_ref().map(AsRawFd::as_raw_fd);
    let cookies = fds.map(|fd| {
        fd_table::track(fd, false);
        raw::socket_cookie(fd).unwrap()
    });
    let (domain, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let (ours, daemon) = rustix::net::socketpair(domain, kind, flags, None).unwrap();
    let (ours, daemon) = (Fd::from(ours), Fd::from(daemon));
    let mut fill = 0;
    while packet::send(&ours, &[0], &[], SendFlags::DONTWAIT).is_ok() {
        fill += 1;
    }
    SOCKET.keep(ours);

    assert!(LOCK.try_lock());
    let offered = |at: usize| {
        let sock = fd_table::sock(fds[at]).unwrap();
        offer(sock, fds[at]);
        assert_eq!(sock.state.load(Ordering::SeqCst), state::PENDING);
    };
    offered(0);
    offered(1);
    offered(2);
    read_mail();
    fd_table::forget(fds[1]);
    for _ in 0..fill {
        packet::receive(&daemon, &mut [0; 1], RecvFlags::DONTWAIT).unwrap().unwrap();
    }
    assert_eq!(offer_sent(&daemon), None);
    read_mail();
    read_mail();
    assert_eq!(offer_sent(&daemon), Some(cookies[0]));
    assert_eq!(offer_sent(&daemon), Some(cookies[2]));
    // The daemon never heard of the one that was closed, and is not told of its end.
    offered(3);
    assert_eq!(offer_sent(&daemon), Some(cookies[3]));
    assert_eq!(offer_sent(&daemon), None);

    // Gone: all are back.
    drop(daemon);
    read_mail();
    assert!(!offers::any());
    let sock = fd_table::sock(fds[0]).unwrap();
    assert_eq!(sock.state.load(Ordering::SeqCst), state::CANDIDATE);
    LOCK.unlock();
}

#[test]
fn offers_stand_again_when_the_conversation_is_closed_while_another_thread_has_the_lock() {
    let _alone = ALONE.lock().unwrap();
    settings::init();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = socket.as_raw_fd();
    fd_table::track(fd, false);
    let (domain, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let (ours, _daemon) = rustix::net::socketpair(domain, kind, flags, None).unwrap();
    let number = ours.as_raw_fd();
    SOCKET.keep(Fd::from(ours));

    assert!(LOCK.try_lock());
    let sock = fd_table::sock(fd).unwrap();
    offer(sock, fd);
    assert_eq!(sock.state.load(Ordering::SeqCst), state::PENDING);
    lost(number);
    raw::close(number);
    assert!(offers::any());
    read_mail();
    assert!(!offers::any());
    assert_eq!(sock.state.load(Ordering::SeqCst), state::CANDIDATE);
    LOCK.unlock();
    fd_table::forget(fd);
}

/// Nothing is kept of the attempt.
fn no_segment_is_attached(sock: &'static Sock, socket: &TcpStream) {
    let free = side::allocate().unwrap();
    side::release(free);
    let before = crate::epoll::ACTIVE.load(Ordering::SeqCst);
    assert!(!attach_to(sock, socket));
    assert!(!sock.is_active());
    assert_eq!(sock.peer.load(Ordering::Relaxed), 0);
    assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:segment"));
    assert!(std::ptr::eq(free, side::allocate().unwrap()), "its side was not given back");
    assert_eq!(crate::epoll::ACTIVE.load(Ordering::SeqCst), before);
}

#[test]
fn a_socket_that_is_closed_or_made_plain_while_the_answer_is_acted_on_gets_no_segment() {
    let _alone = ALONE.lock().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();

    // It is given to no other connection before who acts on the answer has left.
    let (closed, other) = (connect(), connect());
    let sock = answered(&closed);
    fd_table::forget(closed.as_raw_fd());
    fd_table::track(other.as_raw_fd(), false);
    assert!(!sock.is_at(other.as_raw_fd()));
    no_segment_is_attached(sock, &closed);
    sock.leave();
    fd_table::track(other.as_raw_fd(), false);
    assert!(!fd_table::sock(other.as_raw_fd()).unwrap().is_active());

    let plain = connect();
    let sock = answered(&plain);
    sock.make_plain(plain.as_raw_fd(), Counter::plain_forked);
    no_segment_is_attached(sock, &plain);
    sock.leave();
    assert!(!plain.nodelay().unwrap(), "the program's option is not restored");

    let open = connect();
    let sock = answered(&open);
    assert!(attach_to(sock, &open));
    sock.leave();
    assert!(sock.is_active());
}

#[test]
fn a_forked_child_does_not_say_ready_while_its_parent_is_inside_a_plain_receive() {
    let _alone = ALONE.lock().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = socket.as_raw_fd();
    let sock = answered(&socket);
    sock.plain_rx.store(1, Ordering::Relaxed);
    assert!(attach_to(sock, &socket));
    sock.leave();
    // What the child does with its copy.
    sock.nobody_inside();
    let link = sock.enter(fd).unwrap();
    upgrade::publish_ready(&link);
    assert_eq!(link.mine().ready().load(Ordering::Relaxed), 0);
    link.leave();
    fd_table::forget(fd);
}
