//! Whose rights count between nodes: those of the user that the cluster file of the exporter's node makes of the
//! importer's.

#[path = "support/cluster.rs"]
mod cluster;
mod common;

use cluster::pair_with;
use common::{PATIENCE, say};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::error::ImportError;
use vmmc::{Event, Export, Import, Node, Region, Rights, Who};

/// What the users of node `b` count as on node `a`.
const MAPPED: u32 = 4321;
const OTHER_MAPPED: u32 = 4322;
/// Another user than that of the tests.
const OTHER: u32 = 65_534;

fn import(node: &Node, name: &str, patience: Duration) -> Result<Import, ImportError> {
    node.import(name).node("a").rights(Rights::WRITE).timeout(patience).open()
}

/// Refused, in the name of that user.
#[track_caller]
fn refused(asked: Result<Import, ImportError>, user: u32) {
    let error = asked.map(drop).unwrap_err();
    assert!(matches!(error, ImportError::Refused(Refusal::NotPermitted { .. })), "{error}");
    assert!(error.to_string().contains(&format!("user {user}")), "{error}");
    let told_of_root = error.to_string().contains("`root = true`");
    assert_eq!(told_of_root, rustix::process::geteuid().is_root(), "{error}");
}

/// Takes a message, and says from which process and user it came.
fn heard(export: &Export) -> (u32, u32) {
    let told = export.next_notification(PATIENCE).unwrap();
    assert!(matches!(told.event, Event::Message { len: 8, .. }), "{:?}", told.event);
    (told.from.pid, told.from.uid)
}

/// From the user of a process at one node, by the kernel's word, to what is granted by a process at the other.
#[test]
fn an_importer_has_the_rights_of_the_user_that_it_is_mapped_to_and_no_others() {
    let me = rustix::process::geteuid();
    let mut map = format!("[users.map]\n\"b:{}\" = {MAPPED}\n", me.as_raw());
    if me.is_root() {
        map += &format!("\"b:{OTHER}\" = {OTHER_MAPPED}\n");
    }
    let (a, b) = pair_with(&map);
    let exporter = a.daemon.node();
    let export = |name: &str, who: Who| {
        let export = exporter.export(Region::new(4096).unwrap()).name(name).queue();
        export.grant(who, Rights::WRITE | Rights::BIND).open().unwrap()
    };
    let mapped = export("mapped", Who::User(MAPPED));
    let _unmapped = export("unmapped", Who::User(me.as_raw()));
    let _same = export("same", Who::SameUser);
    let other = export("other", Who::User(OTHER_MAPPED));

    let importer = b.daemon.node();
    let granted = import(&importer, "mapped", PATIENCE.unwrap()).unwrap();
    granted.send_with_notify(0, &[1; 8]).unwrap();
    assert_eq!(heard(&mapped), (std::process::id(), MAPPED));
    // Who may bind and nothing else may notify.
    let binder = importer.import("mapped").node("a").rights(Rights::BIND);
    let binder = binder.timeout(PATIENCE.unwrap()).open().unwrap();
    binder.send_notification(0, 8, 7).unwrap();
    assert_eq!(heard(&mapped), (std::process::id(), MAPPED));
    binder.check_open().unwrap();
    drop(binder);
    common::until("it is one importer", || mapped.importers().len() == 1);
    let importers = mapped.importers();
    assert_eq!(importers.iter().map(|it| it.peer.uid).collect::<Vec<_>>(), [MAPPED]);
    for name in ["unmapped", "same", "other"] {
        refused(import(&importer, name, Duration::ZERO), MAPPED);
    }
    // Within the node the same user is the same.
    let here = exporter.import("same").rights(Rights::WRITE).timeout(Duration::ZERO).open();
    here.unwrap().send(0, &[1]).unwrap();

    // To become somebody else takes root.
    if me.is_root() {
        let mut second = b.daemon.second("somebody_else", &[]);
        second.expect("refused");
        second.expect("sent");
        assert_eq!(heard(&other).1, OTHER_MAPPED);
        second.finish();
    }
}

/// What a node's interface imports is counted for the user who has it do so, and takes nothing from those of its own node.
#[test]
fn imports_of_another_node_are_counted_for_the_user_that_the_importer_is_mapped_to() {
    const MOST: usize = 3;
    let me = rustix::process::geteuid().as_raw();
    let (mut a, b) = pair_with(&format!("[users.map]\n\"b:{me}\" = {MAPPED}\n"));
    a.daemon.kill();
    let file = a.file();
    let most = format!("--imports-per-user={MOST}");
    a.daemon.restart_with(&["--cluster", file.to_str().unwrap(), &most]);
    a.wait_for_others();
    let exporter = a.daemon.node();
    let export = exporter.export(Region::new(4096).unwrap()).name("x");
    let export = export.grant(Who::User(MAPPED), Rights::WRITE);
    let _export = export.grant(Who::SameUser, Rights::WRITE).open().unwrap();
    let importer = b.daemon.node();
    // One more is counted while it is asked for.
    let imports: Vec<_> =
        (1..MOST).map(|_| import(&importer, "x", PATIENCE.unwrap()).unwrap()).collect();
    let _last = import(&importer, "x", PATIENCE.unwrap()).unwrap();
    let error = import(&importer, "x", PATIENCE.unwrap()).map(drop).unwrap_err();
    let is_quota =
        matches!(&error, ImportError::Refused(Refusal::Quota { uid, .. }) if *uid == MAPPED);
    assert!(is_quota, "{error}");
    let here = || exporter.import("x").timeout(Duration::ZERO).open();
    let here: Vec<_> = (0..MOST).map(|_| here().unwrap()).collect();
    // What is given back can be had again.
    drop((imports, here));
    common::until("there is room again", || import(&importer, "x", PATIENCE.unwrap()).is_ok());
}

fn somebody_else(_: &[String]) {
    let socket = std::env::var("VMMC_SOCKET").unwrap();
    let dir = std::path::Path::new(&socket).parent().unwrap();
    // The daemon of a test is its user's own; let the other user reach it.
    let mode = std::fs::Permissions::from_mode;
    std::fs::set_permissions(dir, mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, mode(0o666)).unwrap();
    // SAFETY: this process becomes another user, for good.
    assert_eq!(unsafe { libc::setgid(OTHER) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setuid(OTHER) }, 0);
    let node = Node::connect().unwrap();
    refused(import(&node, "mapped", Duration::ZERO), OTHER_MAPPED);
    say("refused");
    let granted = import(&node, "other", PATIENCE.unwrap()).unwrap();
    granted.send_with_notify(0, &[2; 8]).unwrap();
    granted.fence().unwrap();
    say("sent");
}

#[test]
fn second_process() {
    common::second_process(&[("somebody_else", somebody_else)]);
}
