use super::*;
use crate::control::network::Meeting;
use crate::fabric::{Domain, Endpoint, Target};
use crate::sys::Fd;
use crate::transport::net::fifo::{Fifo, LEN};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

/// Longest time anything may take. Only ends hangs; no test is about time.
const PATIENCE: Duration = Duration::from_secs(120);
const PROVIDER: &str = "tcp;ofi_rxm";

/// An interface that greets as it should, sends a record that cannot be, and tells of others until `over`.
fn lie(mut hostile: Endpoint, over: &AtomicBool) {
    let mut number = 0;
    // A record of no bytes, number 0; one longer than the memory, number 1.
    let records = [0, 0, u32::MAX, 1].map(u32::to_le_bytes).concat();
    hostile.outgoing().write(0, &records).unwrap();
    while !over.load(Ordering::Relaxed) {
        if hostile.write(number.min(1) as usize * 8, 8, number).unwrap() {
            number += 1;
        }
        hostile.poll(|_| {}).unwrap();
        std::thread::yield_now();
    }
}

/// Who waits polls, and before it stops it sees to it that the thread that sleeps misses nothing: of a lost
/// connection there is nothing that anybody could take, however much has come.
#[test]
fn who_polled_a_connection_that_is_lost_returns_although_more_has_come() {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let fifo = Fifo::open(PROVIDER, local).unwrap();
    let ours = fifo.meeting().unwrap();
    let domain = Domain::open(PROVIDER, local).unwrap();
    let mut hostile = Endpoint::open(&domain, LEN + 4096).unwrap();
    hostile.connect(&ours.address, Target { key: ours.key, base: ours.base }).unwrap();
    let (Target { key, base }, address) = (hostile.target(), hostile.address().unwrap());
    let theirs = Meeting { provider: PROVIDER.to_owned(), address, key, base };
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let interface = std::thread::spawn(move || lie(hostile, &stop));

    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
    let (socket, _silent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let wire = Wire::new(Fd::from(socket), Some((fifo, theirs)), None).unwrap();
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
    let wire = Wire::new(Fd::from(socket), None, None).unwrap();
    let (told, tells) = mpsc::channel();
    let on_closed = Box::new(move |slot, reason| told.send((slot, reason)).unwrap());
    let connection = Connection::new("b".to_owned(), wire, 0, Duration::ZERO, on_closed).unwrap();
    let slots = [1, 2].map(|number| {
        let (ended, window) = (AtomicU32::new(0), Mutex::default());
        let slot = Slot { number, generation: number, ended, mask: Mask(0), window };
        let slot = Arc::new(slot);
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
