//! Doorbells of which the owner keeps the lock for as long as it likes: a matter of who owns them, and of nobody else.

mod common;
use common::standing::StandingCall;
use common::*;
use std::os::fd::AsRawFd;
use std::time::Instant;
use vmmc::control::message::*;
use vmmc::sys::doorbell::{self, Doorbell};

const GREEDY: u32 = 61_007;
const HONEST: u32 = 61_008;

fn client_of(daemon: &Daemon, uid: u32) -> Client {
    as_user(uid, uid, &[], || Client::connect_as(&daemon.path, Role::Process))
}

/// Keeps the lock of a doorbell: asks it what has happened, and the answer stands in a page fault.
fn hold(bell: &Doorbell) -> StandingCall {
    bell.ring_self();
    let number = bell.fd().as_raw_fd();
    // SAFETY: the page is there until the call has ended, and has room for more than an event.
    StandingCall::of(move |page| unsafe { libc::epoll_wait(number, page as *mut _, 1, 0) } as isize)
}

/// The daemon puts buttons into it, and takes them out, as soon as it can; whoever has one rings at once, and lets go at once.
#[test]
fn a_doorbell_that_its_owner_keeps_holds_up_neither_daemon_nor_ringers() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    daemon.snapshot(); // it serves, and has all that it needs for that
    let before = daemon.settled_descriptors();
    let mut greedy = client_of(&daemon, GREEDY);
    greedy.export("greedy");
    let mut honest = client_of(&daemon, HONEST);
    honest.export("honest");
    let held = hold(&greedy.belongings.as_ref().unwrap().doorbell);
    // An importer of its export has a button, presses it and lets go, all of which waits for nobody.
    let imported = honest.import("greedy");
    let (_page, button) = imported.introduced.expect("introduced");
    for _ in 0..1000 {
        doorbell::ring(&button);
    }
    // The first greeting, links of others, and the end of one with the greedy one.
    let mut another = client_of(&daemon, GREEDY);
    another.import("honest");
    honest.receive_opened();
    honest.send(&Request::CloseLink { link: imported.link }, &[]);
    // It is forgotten after a while; then the last button but the daemon's goes.
    let gone = honest.receive().event;
    assert_eq!(gone, Event::PeerGone { client: greedy.welcome.client });
    drop(button);
    honest.assert_silent();
    // What was rung before the button could be put in is heard: it is asked again, and the lock is free now.
    assert_eq!(held.end(), 1);
    another.assert_silent();
    drop((greedy, another, honest));
    eventually("nothing is kept", || (daemon.settled_descriptors() <= before).then_some(()));
}

/// Who has a button may put it into an epoll descriptor of his own, and keep that one's lock.
#[test]
fn a_button_that_its_ringer_keeps_holds_up_nobody_else() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    daemon.snapshot(); // it serves, and has all that it needs for that
    let before = daemon.settled_descriptors();
    let mut trusted = Client::connect(&daemon.path);
    trusted.export("trusted");
    let mut greedy = client_of(&daemon, GREEDY);
    let imported = greedy.import("trusted");
    trusted.receive_opened();
    let (_page, button) = imported.introduced.expect("introduced");
    let own = Doorbell::new().unwrap();
    doorbell::install(own.fd(), &button).unwrap();
    let held = hold(&own);
    // Its own close would wait as well, were it the last.
    drop(button);
    greedy.send(&Request::CloseLink { link: imported.link }, &[]);
    assert!(matches!(trusted.receive().event, Event::LinkClosed { .. }));
    let gone = trusted.receive().event;
    assert_eq!(gone, Event::PeerGone { client: greedy.welcome.client });
    // Another user has to do with the same one.
    let mut honest = client_of(&daemon, HONEST);
    let imported = honest.import("trusted");
    doorbell::ring(&imported.introduced.expect("introduced").1);
    let bell = &trusted.belongings.as_ref().unwrap().doorbell;
    assert!(bell.wait(Some(Instant::now() + WATCHDOG)).unwrap());
    assert_eq!(held.end(), 1);
    drop((greedy, honest, trusted));
    eventually("nothing is kept", || (daemon.settled_descriptors() <= before).then_some(()));
}

#[test]
fn a_button_that_was_pressed_before_it_could_be_put_in_rings_then() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let mut greedy = client_of(&daemon, GREEDY);
    greedy.export("greedy");
    let mut honest = client_of(&daemon, HONEST);
    let held = hold(&greedy.belongings.as_ref().unwrap().doorbell);
    let (_page, button) = honest.import("greedy").introduced.expect("introduced");
    doorbell::ring(&button);
    honest.assert_silent();
    assert_eq!(held.end(), 1, "its own ring");
    let bell = &greedy.belongings.as_ref().unwrap().doorbell;
    let soon = Instant::now() + WATCHDOG;
    assert!(bell.wait(Some(soon)).unwrap(), "the other's");
}
