use super::*;
use crate::control::network::{FabricAt, Meeting};
use crate::fabric::{Domain, Endpoint, Notice, Target};
use crate::mem::View;
use crate::sys::mmap::{Access, GuardedMapping};
use crate::sys::{Fd, memfd};
use crate::transport::net::frame::{HEADER_LEN, reason_code};
use crate::transport::ofi::fifo::{Fifo, LEN};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

/// Longest time anything may take. Only ends hangs; no test is about time.
const PATIENCE: Duration = Duration::from_secs(120);
const PROVIDER: &str = "tcp;ofi_rxm";

/// An interface that greets as it should, sends a record that cannot be, and tells of others until `over`, or until nobody
/// is there to be told.
fn lie(mut hostile: Endpoint, over: &AtomicBool) {
    let mut number = 0;
    // A record of no bytes, number 0; one longer than the memory, number 1.
    let records = [0, 0, u32::MAX, 1].map(u32::to_le_bytes).concat();
    hostile.outgoing().write(0, &records).unwrap();
    while !over.load(Ordering::Relaxed) {
        match hostile.write(number.min(1) as usize * 8, 8, number) {
            Ok(sent) => number += u32::from(sent),
            Err(_) => return,
        }
        if hostile.poll(|_| {}).is_err() {
            return;
        }
        std::thread::yield_now();
    }
}

fn at() -> FabricAt {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    FabricAt { provider: PROVIDER.to_owned(), local, notice: Notice::Auto }
}

/// Who waits polls, and before it stops it sees to it that the thread that sleeps misses nothing: of a lost
/// connection there is nothing that anybody could take, however much has come.
#[test]
fn who_polled_a_connection_that_is_lost_returns_although_more_has_come() {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let fifo = Fifo::open(&at()).unwrap();
    let ours = fifo.meeting().unwrap();
    let domain = Domain::open(PROVIDER, local, Notice::Auto).unwrap();
    let mut hostile = Endpoint::open(&domain, LEN + 4096).unwrap();
    hostile.connect(&ours.address, Target { key: ours.key, base: ours.base }).unwrap();
    let (Target { key, base }, address) = (hostile.target(), hostile.address().unwrap());
    let theirs = Meeting { provider: PROVIDER.to_owned(), address, key, base };
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let interface = std::thread::spawn(move || lie(hostile, &stop));

    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, _silent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let wire = Wire::new(Fd::from(socket), Some((fifo, theirs)), None, false).unwrap();
    let connection =
        Connection::new("b".to_owned(), wire, 0, PATIENCE, Box::new(|_, _| {})).unwrap();
    let (returned, returns) = mpsc::channel();
    std::thread::spawn(move || {
        let quiet = Quiet::new(&connection);
        while !connection.is_lost() {
            connection.receive(&mut connection.inbox.lock());
        }
        while connection.wire.may_sleep() {
            std::thread::yield_now();
        }
        drop(quiet);
        returned.send(()).unwrap();
    });
    assert_eq!(returns.recv_timeout(PATIENCE), Ok(()));
    over.store(true, Ordering::Relaxed);
    interface.join().unwrap();
}

/// A sender whose frame goes nowhere ends its link and tells its caller; the process hears of the end as of every other.
#[test]
fn a_link_whose_sender_found_the_connection_lost_is_told_of_like_the_others() {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, peer) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let wire = Wire::new(Fd::from(socket), None, None, false).unwrap();
    let (told, tells) = mpsc::channel();
    let on_closed = Box::new(move |slot, reason| told.send((slot, reason)).unwrap());
    let connection = Connection::new("b".to_owned(), wire, 0, Duration::ZERO, on_closed).unwrap();
    let slots = [1, 2].map(|number| {
        let slot = Arc::new(Slot::new(number, Mask(0)));
        connection.state.lock().slots.insert(number, slot.clone());
        slot
    });
    slots[0].end(CloseReason::Unreachable);
    drop(peer);
    let mut heard = [(); 2].map(|()| tells.recv_timeout(PATIENCE).unwrap());
    heard.sort_by_key(|(slot, _)| *slot);
    assert_eq!(heard, [1, 2].map(|slot| (slot, CloseReason::Unreachable)));
    assert!(slots.iter().all(|slot| slot.ended() == Some(CloseReason::Unreachable)));
}

/// Whoever waits for an answer about a link hears of that link's end; an answer that comes later is nobody's.
#[test]
fn a_fence_that_is_not_answered_ends_with_its_link() {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, _silent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let wire = Wire::new(Fd::from(socket), None, None, false).unwrap();
    let connection =
        Connection::new("b".to_owned(), wire, 0, Duration::ZERO, Box::new(|_, _| {})).unwrap();
    let slot = Arc::new(Slot::new(1, Mask(0)));
    connection.state.lock().slots.insert(1, slot.clone());
    let (done, is_done) = mpsc::channel();
    let (waits, of) = (connection.clone(), slot);
    std::thread::spawn(move || done.send(waits.fence(&of).is_ok()).unwrap());
    while connection.state.lock().answers.is_empty() {
        std::thread::yield_now();
    }
    assert!(is_done.recv_timeout(Duration::from_millis(20)).is_err(), "nobody has answered");
    let died = Header::new(Kind::Closed, 1, 1).value(reason_code(CloseReason::PeerDied));
    connection.handle_frame(&died, &[]).unwrap();
    assert_eq!(is_done.recv_timeout(PATIENCE), Ok(true));
    connection.handle_frame(&Header::new(Kind::Done, 0, 0).value(1), &[]).unwrap();
    assert!(connection.state.lock().answers.is_empty());
    connection.close();
}

/// An exporter's daemon that asks again and again costs the sender neither memory nor threads.
#[test]
fn of_questions_that_are_repeated_before_they_are_answered_one_is_kept() {
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, _peer) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let wire = Wire::new(Fd::from(socket), None, None, false).unwrap();
    let connection =
        Connection::new("b".to_owned(), wire, 0, Duration::ZERO, Box::new(|_, _| {})).unwrap();
    connection.state.lock().slots.insert(1, Arc::new(Slot::new(1, Mask(0))));
    let writing = connection.writer.lock(); // nothing is answered meanwhile
    let unexported = Header::new(Kind::Closed, 1, 1).value(reason_code(CloseReason::Unexported));
    for _ in 0..1000 {
        connection.handle_frame(&Header::new(Kind::Recall, 1, 1), &[]).unwrap();
        connection.handle_frame(&unexported, &[]).unwrap();
    }
    let kept = connection.state.lock().stopped.len();
    assert!(kept <= 2, "{kept}");
    drop(writing);
    connection.close();
}

/// A long message is on its way by direct writes when the exporter wants its window shut, for which it does not wait long.
#[test]
fn a_message_of_any_length_makes_way_for_a_recall() {
    const LONG: usize = 64 << 20;
    let ends = [(); 2].map(|()| Fifo::open(&at()).unwrap());
    let [(ours, our_meeting), (mut theirs, their_meeting)] = ends.map(|end| {
        let meeting = end.meeting().unwrap();
        (end, meeting)
    });
    theirs.meet(&our_meeting).unwrap();
    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, silent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let greeted = std::thread::spawn(move || {
        theirs.join(&silent, false).unwrap();
        (theirs, silent)
    });
    let wire = Wire::new(Fd::from(socket), Some((ours, their_meeting)), None, false).unwrap();
    let (mut theirs, _silent) = greeted.join().unwrap();
    let connection =
        Connection::new("b".to_owned(), wire, 0, Duration::ZERO, Box::new(|_, _| {})).unwrap();
    let slot = Arc::new(Slot::new(1, Mask(0)));
    connection.state.lock().slots.insert(1, slot.clone());

    let file = memfd::create("vmmc-window", LONG as u64).unwrap();
    let pages = GuardedMapping::new(&file, LONG, Access::ReadWrite).unwrap();
    let seen = |at: usize| {
        let mut byte = [0];
        View::of(&pages).read(at, &mut byte).unwrap();
        byte[0]
    };
    let (_, window) = theirs.open_window(pages.again().unwrap(), LONG).unwrap();
    *slot.window.lock() = Some(window);
    let sender = {
        let (connection, slot) = (connection.clone(), slot.clone());
        std::thread::spawn(move || connection.write_directly(&slot, 0, &vec![7; LONG]))
    };
    let end = Instant::now() + PATIENCE;
    while seen(0) == 0 {
        theirs.poll().unwrap();
        assert!(Instant::now() < end, "nothing came");
    }
    let recall = Header::new(Kind::Recall, 1, 1).encode();
    assert_eq!(theirs.send(&[&recall]), Ok(recall.len()));
    // The sender gets no further than the fabric's own memory while nothing is taken here.
    while slot.owed.load(Ordering::Acquire) == 0 && slot.window.lock().is_some() {
        (0..10_000).for_each(|_| std::thread::yield_now());
        theirs.poll().unwrap();
        assert!(Instant::now() < end, "it does not hear");
    }
    let mut answer = [0; HEADER_LEN];
    while !matches!(theirs.receive(&mut answer), Ok(HEADER_LEN)) {
        assert!(Instant::now() < end, "no answer");
    }
    assert_eq!(Header::decode(&answer).unwrap().kind, Kind::Yielded);
    let done = sender.join().unwrap().unwrap();
    assert!(0 < done && done < LONG, "{done}");
    // The answer is behind what was written, and nothing is behind the answer.
    assert_eq!((seen(done - 1), seen(done)), (7, 0));
    assert!(slot.window.lock().is_none());
}
