//! G5, H21: fork, exec, munmap of an export.
//!
//! The tests run in second processes of one thread, where fork is harmless.

mod common;
#[path = "support/forked.rs"]
mod forked;

use common::{Daemon, PATIENCE, export, import, pause, say, until};
use forked::{check, in_child};
use vmmc::error::{
    AccessError, BindError, ExportError, FetchError, FlagError, ImportError, ListError, ReadError,
    SendError, SendNotifyError, UnblockError, UnexportError, UnimportError, WaitError,
};
use vmmc::{CloseReason, Node, Region};

#[test]
fn second_process() {
    common::second_process(&[
        ("forks", forks),
        ("execs", execs),
        ("unmaps", unmaps),
        ("child connects", child_connects),
    ]);
}

/// The parent keeps everything; every operation of the child on what it inherited is refused.
#[test]
fn handles_stay_with_the_parent() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let outside = export(&node, "outside", 4096);
    let mut second = daemon.second("forks", &[]);
    second.expect("good");
    let mut text = [0; 6];
    outside.read(0, &mut text).unwrap();
    assert_eq!(&text, b"parent");
    let back = import(&node, "forked");
    back.send(0, b"after the fork").unwrap();
    second.go_on();
    second.expect("received");
    second.finish();
}

fn forks(_: &[String]) {
    let node = Node::connect().unwrap();
    let mine = export(&node, "forked", 4096);
    let queued = common::open(node.export(Region::new(64).unwrap()).name("queued").queue());
    let out = import(&node, "outside");
    let binding = out.bind(0..4096).unwrap();
    mine.write(100, b"inherited").unwrap();
    let proxy = out.proxy_ptr().unwrap().as_ptr() as usize;
    let name = |name: &str| node.export(Region::new(64).unwrap()).name(name).open();
    let good = in_child(|| {
        let mut refused = true;
        refused &= check(line!(), matches!(out.send(0, b"child!"), Err(SendError::Forked(_))));
        refused &= check(
            line!(),
            matches!(
                out.send_with_notify(0, b"child!"),
                Err(SendNotifyError::Send(SendError::Forked(_)))
            ),
        );
        refused &=
            check(line!(), matches!(binding.write(0, b"child!"), Err(AccessError::Forked(_))));
        let mut byte = [0; 1];
        refused &= check(line!(), matches!(out.read(0, &mut byte), Err(ReadError::Forked(_))));
        refused &= check(line!(), matches!(out.flag32(0), Err(FlagError::Forked(_))));
        refused &= check(line!(), matches!(binding.flag32(0), Err(FlagError::Forked(_))));
        let flag = mine.flag32(0).unwrap();
        refused &= check(line!(), matches!(flag.signal(1), Err(SendError::Forked(_))));
        let waited = flag.wait_until(|_| false, PATIENCE);
        refused &= check(line!(), matches!(waited, Err(WaitError::Forked(_))));
        refused &= check(line!(), matches!(out.bind(0..4096), Err(BindError::Forked(_))));
        let unblocked = node.unblock_notifications();
        refused &= check(line!(), matches!(unblocked, Err(UnblockError::Forked(_))));
        let fetched = queued.next_notification(PATIENCE);
        refused &= check(line!(), matches!(fetched, Err(FetchError::Wait(WaitError::Forked(_)))));
        refused &= check(line!(), matches!(name("child's"), Err(ExportError::Forked(_))));
        refused &=
            check(line!(), matches!(node.import("forked").open(), Err(ImportError::Forked(_))));
        refused &= check(
            line!(),
            matches!(node.list(), Err(ListError::Forked(_))) && node.dispatch() == 0,
        );
        // Shared bytes of the export are there; proxies and link segments are not.
        let mut seen = [0; 9];
        refused &= check(line!(), mine.read(100, &mut seen).is_ok() && &seen == b"inherited");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        refused &= check(line!(), !maps.contains("memfd:vmmc-link") && out.check_open().is_err());
        let at_proxy = |line: &&str| {
            usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap() == proxy
        };
        refused &= check(
            line!(),
            !maps.lines().find(at_proxy).is_some_and(|line| line.contains("memfd:vmmc")),
        );
        refused
    });
    assert!(good);
    // Dropping what was inherited ends nothing of the parent's.
    assert!(in_child(|| {
        // SAFETY: the child drops its copies and ends without running the parent's destructors.
        drop(unsafe { std::ptr::read(&binding) });
        // SAFETY: as above.
        let refused = unsafe { std::ptr::read(&out) }.unimport();
        // SAFETY: as above.
        let kept = unsafe { std::ptr::read(&mine) }.unexport();
        let good = check(line!(), matches!(refused, Err(UnimportError::Forked(_))))
            & check(line!(), matches!(kept, Err(UnexportError::Forked(_))));
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&node) });
        good
    }));
    assert_eq!((node.exports().len(), node.imports().len()), (2, 1));
    binding.write(8, b"bound").unwrap();
    out.send(0, b"parent").unwrap();
    say("good");
    pause();
    let mut text = [0; 14];
    mine.read(0, &mut text).unwrap();
    assert_eq!(&text, b"after the fork");
    say("received");
}

/// A child may connect for itself, as somebody new.
#[test]
fn a_child_connects_anew() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let outside = export(&node, "child target", 4096);
    let mut second = daemon.second("child connects", &[]);
    second.expect("good");
    let mut text = [0; 10];
    outside.read(0, &mut text).unwrap();
    assert_eq!(&text, b"from child");
    outside.read(16, &mut text).unwrap();
    assert_eq!(&text, b"fromparent");
    second.finish();
}

fn child_connects(_: &[String]) {
    let node = Node::connect().unwrap();
    let out = import(&node, "child target");
    let parent = node.client();
    assert!(in_child(|| {
        let own = Node::connect().unwrap();
        let different = own.client() != parent;
        let import = import(&own, "child target");
        import.send(0, b"from child").unwrap();
        // What was inherited stays the parent's, also now.
        let refused = matches!(out.send(0, b"x"), Err(SendError::Forked(_)));
        drop(import);
        different && refused
    }));
    out.send(16, b"fromparent").unwrap();
    say("good");
    pause();
}

/// exec: no descriptor and no mapping passes, and the peers are told.
#[test]
fn exec_ends_the_links() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let outside = export(&node, "before exec", 4096);
    let mut second = daemon.second("execs", &[]);
    second.expect("linked");
    let import = import(&node, "execs");
    outside.wait_importers(1, PATIENCE).unwrap();
    second.go_on();
    until("it runs the other program", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", second.pid())).unwrap();
        name.trim() == "sleep"
    });
    until("it is told", || import.check_open().is_err());
    assert_eq!(import.check_open().unwrap_err().reason, CloseReason::PeerDied);
    until("the link is gone", || outside.importers().is_empty());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", second.pid())).unwrap();
    assert!(!maps.contains("memfd:vmmc"));
    for entry in std::fs::read_dir(format!("/proc/{}/fd", second.pid())).unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("memfd:vmmc"), "{target:?}");
    }
    second.kill();
}

fn execs(_: &[String]) {
    use std::os::unix::process::CommandExt;
    let node = Node::connect().unwrap();
    let _export = export(&node, "execs", 64);
    let _import = import(&node, "before exec");
    say("linked");
    pause();
    let error = std::process::Command::new("sleep").arg("600").exec();
    panic!("exec: {error}");
}

/// H21: munmap of an exported range harms the one who did it, nobody else.
#[test]
fn an_exporter_that_unmaps_its_memory_harms_only_itself() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mut second = daemon.second("unmaps", &[]);
    second.expect("unmapped");
    let import = import(&node, "unmaps");
    import.send(0, b"nobody sees this").unwrap();
    let mut seen = [0; 16];
    import.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"nobody sees this");
    second.kill();
}

fn unmaps(_: &[String]) {
    let node = Node::connect().unwrap();
    let export = export(&node, "unmaps", 4096);
    let start = export.view().as_ptr();
    // SAFETY: the program's own fault; its export is not touched from here on.
    unsafe { rustix::mm::munmap(start.as_ptr().cast(), 4096) }.unwrap();
    say("unmapped");
    pause();
    std::mem::forget(export);
}

/// The error says what it is.
#[test]
fn the_message_tells_the_child_what_to_do() {
    let text = UnexportError::Forked(vmmc::error::Forked).to_string();
    assert!(text.contains("connect and import for itself"), "{text}");
}
