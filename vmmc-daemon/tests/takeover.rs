//! Hot restart: the successor has everything, clients notice nothing.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
mod common;
use cluster::{KEY, Place, address, node, pair};
use common::*;
use std::net::{TcpListener, TcpStream};
use vmmc::config::{Config, DaemonStart};
use vmmc::control::message::*;
use vmmc::error::WaitError;
use vmmc::id::*;
use vmmc::{Node, Region};

/// A successor of a node's daemon.
fn successor_of(place: &Place) -> Daemon {
    let file = place.file();
    Daemon::start_in(
        place.daemon.dir.clone(),
        &["--replace", "--cluster", file.to_str().unwrap()],
        &[],
    )
}

fn process_of(place: &Place) -> Node {
    let mut config = Config::from_env().unwrap();
    config.socket = Some(place.daemon.path.clone());
    config.daemon = DaemonStart::Never;
    Node::builder().config(config).connect().unwrap()
}

fn export_of(node: &Node, name: &str) -> vmmc::Export {
    let export = node.export(Region::new(4096).unwrap()).name(name);
    export.grant(Who::Anyone, Rights::WRITE | Rights::READ).open().unwrap()
}

/// Imports from the node `a`, and shows that what is sent arrives.
fn reach(node: &Node, export: &vmmc::Export, name: &str, value: u32) -> vmmc::Import {
    let import = node.import(name).node("a").rights(Rights::WRITE | Rights::READ);
    let import = import.timeout(WATCHDOG).open().unwrap();
    signal(&import, export, value);
    import
}

fn signal(import: &vmmc::Import, export: &vmmc::Export, value: u32) {
    import.flag32(0).unwrap().signal(value).unwrap();
    // Not a wait on a flag, which ends when an earlier importer's end is heard of.
    eventually("it has arrived", || {
        let mut seen = [0; 4];
        export.read(0, &mut seen).unwrap();
        (u32::from_ne_bytes(seen) == value).then_some(())
    });
}

#[test]
fn clients_notice_nothing_of_a_takeover() {
    let mut old = Daemon::start();
    let mut exporter = Client::connect(&old.path);
    let mut importer = Client::connect(&old.path);
    let (export, memory) = exporter.export("kept");
    let link = importer.import("kept").link;
    exporter.receive_opened();
    let waiting = importer.send_import(Import::waiting("later"), Some(&link_segment()));
    importer.assert_silent();
    let before = old.snapshot();

    let new = Daemon::start_in(old.dir.clone(), &["--replace"], &[]);
    assert!(old.wait().success(), "the predecessor leaves in good order");

    let after = new.snapshot();
    assert_eq!(after.pid, new.pid());
    assert_eq!(after.exports, before.exports);
    assert_eq!(after.links, before.links);
    assert_eq!(counter(&after, "takeovers"), 1);
    assert_eq!(counter(&after, "clients_total"), counter(&before, "clients_total"));
    // Everything goes on over the same sockets.
    assert!(same_file(importer.import("kept").memory, &memory));
    assert_eq!(exporter.receive_opened().export, export);
    let (later, _memory) = exporter.export("later");
    assert_eq!(importer.receive_imported(waiting).unwrap().export, later);
    exporter.receive_opened();
    importer.send(&Request::CloseLink { link }, &[]);
    assert_eq!(exporter.receive_closed(), (link, CloseReason::Unimported));
    // The successor knows who dies.
    drop(exporter);
    assert_eq!(importer.receive_closed().1, CloseReason::PeerDied);
}

#[test]
fn takeovers_can_follow_each_other_and_leave_no_descriptor_behind() {
    let mut daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let names: Vec<String> = (0..600).map(|i| format!("export {i}")).collect();
    let _memories: Vec<_> = names.iter().map(|name| exporter.export(name.as_str())).collect();
    let mut first = None;
    for _ in 0..3 {
        let new = Daemon::start_in(daemon.dir.clone(), &["--replace"], &[]);
        assert!(daemon.wait().success());
        daemon = new;
        assert_eq!(daemon.snapshot().exports.len(), names.len());
        let most = *first.get_or_insert_with(|| daemon.settled_descriptors());
        // Those of clients that have just gone are closed a moment later.
        eventually("no descriptor is left over", || (daemon.descriptors() <= most).then_some(()));
    }
    daemon.terminate();
    assert!(!daemon.path.exists(), "the last one removes the socket");
}

#[test]
fn replace_starts_a_daemon_where_none_runs() {
    let daemon = Daemon::start_with(&["--replace"], &[]);
    Client::connect(&daemon.path).export("x");
}

#[test]
fn a_successor_that_dies_on_the_way_changes_nothing() {
    let mut old = Daemon::start();
    let mut exporter = Client::connect(&old.path);
    let mut importer = Client::connect(&old.path);
    exporter.export("kept");
    let mut successor =
        command(&old.path, &["--replace"], &[("VMMCD_FAILPOINT", "takeover-received")])
            .spawn()
            .unwrap();
    assert!(!eventually("the successor dies", || successor.try_wait().unwrap()).success());
    importer.import("kept");
    exporter.receive_opened();
    assert_eq!(old.snapshot().pid, old.pid());
    assert!(old.terminate().success());
}

/// What was local goes on; what came from another node ends with the daemon that received it, and can be had again.
#[test]
fn a_node_of_a_cluster_is_one_after_a_takeover() {
    let (mut a, b) = pair();
    let (exporter, importer) = (process_of(&a), process_of(&b));
    let export = export_of(&exporter, "x");
    let neighbour = process_of(&a);
    let local = neighbour.import("x").rights(Rights::WRITE).open().unwrap();
    for round in 1..=3 {
        let import = reach(&importer, &export, "x", round);
        let new = successor_of(&a);
        assert!(std::mem::replace(&mut a.daemon, new).wait().success());
        let ended = import.flag32(64).unwrap().wait_until(|it| it == 1, Some(WATCHDOG));
        match ended {
            Err(WaitError::Closed(closed)) => {
                assert_eq!(closed.reason, vmmc::CloseReason::Unreachable);
            }
            other => panic!("{other:?}"),
        }
        a.wait_for_others();
        assert_eq!(a.daemon.snapshot().pid, a.daemon.pid());
        reach(&importer, &export, "x", 10 * round);
        signal(&local, &export, 100 * round);
    }
}

/// The successor of a daemon that was not, too.
#[test]
fn a_successor_whose_address_is_taken_serves_and_listens_once_it_is_free() {
    let at = address();
    let holder = TcpListener::bind(&at).unwrap();
    let mut old = Daemon::start();
    let mut exporter = Client::connect(&old.path);
    exporter.export("kept");
    let file = old.dir.path().join("cluster.toml");
    std::fs::write(old.dir.path().join("key"), KEY).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(old.dir.path().join("key"), mode).unwrap();
    std::fs::write(&file, format!("node = \"a\"\nlisten = {at:?}\nkey = \"key\"\n[nodes]\n"))
        .unwrap();
    let arguments = ["--replace", "--cluster", file.to_str().unwrap()];
    let new = Daemon::start_in(old.dir.clone(), &arguments, &[]);
    assert!(old.wait().success());
    // It has tried: it does so before it takes over.
    assert_eq!(new.snapshot().exports.len(), 1);
    exporter.export("more");
    drop(holder);
    eventually("it listens", || TcpStream::connect(&at).ok());
    assert_eq!(new.snapshot().pid, new.pid());
}

#[test]
fn a_node_whose_successor_dies_on_the_way_stays_one() {
    let (mut a, b) = pair();
    let (exporter, importer) = (process_of(&a), process_of(&b));
    let export = export_of(&exporter, "x");
    let before = reach(&importer, &export, "x", 1);
    let file = a.file();
    let arguments = ["--replace", "--cluster", file.to_str().unwrap()];
    let mut successor =
        command(&a.daemon.path, &arguments, &[("VMMCD_FAILPOINT", "takeover-received")])
            .spawn()
            .unwrap();
    assert!(!eventually("the successor dies", || successor.try_wait().unwrap()).success());
    signal(&before, &export, 2);
    // Nobody has asked from there yet.
    let c = node("c", &address(), &[("a", &a.address)], Some(KEY));
    reach(&process_of(&c), &export, "x", 3);
    reach(&importer, &export, "x", 4);
    assert!(a.daemon.terminate().success());
}

/// An address that cannot be had, whoever goes, is an error before anything is taken.
#[test]
fn a_successor_whose_address_is_not_of_this_machine_takes_nothing() {
    let (a, b) = pair();
    let (exporter, importer) = (process_of(&a), process_of(&b));
    let export = export_of(&exporter, "x");
    let before = reach(&importer, &export, "x", 1);
    let text = std::fs::read_to_string(a.file()).unwrap();
    // For documentation alone (RFC 5737).
    std::fs::write(a.file(), text.replace(&a.address, "192.0.2.1:4790")).unwrap();
    let file = a.file();
    let arguments = ["--replace", "--cluster", file.to_str().unwrap()];
    let successor = command(&a.daemon.path, &arguments, &[])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = successor.wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("192.0.2.1:4790"), "{said}");
    signal(&before, &export, 2);
    reach(&importer, &export, "x", 3);
    assert_eq!(a.daemon.snapshot().pid, a.daemon.pid());
}

#[test]
fn a_daemon_that_dies_while_handing_over_is_replaced_by_one_with_nothing_or_everything() {
    for (point, kept) in [("takeover-half-sent", false), ("takeover-sent", true)] {
        let mut old = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", point)]);
        let mut exporter = Client::connect(&old.path);
        exporter.export("x");
        // More descriptors than fit in one batch.
        for i in 0..300 {
            exporter.export(i);
        }
        let new = Daemon::start_in(old.dir.clone(), &["--replace"], &[]);
        assert!(!old.wait().success());
        assert_eq!(new.snapshot().exports.len(), if kept { 301 } else { 0 }, "{point}");
        if kept {
            exporter.export("y");
        } else {
            assert!(exporter.is_cut_off());
        }
    }
}

/// H20: what is restored after a crash (see vmmc_daemon::resume).
#[test]
fn after_a_crash_clients_come_back_with_their_numbers_exports_and_links() {
    let mut daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, memory) = exporter.export("kept");
    let segment = link_segment();
    let sent = importer.send_import(Import::of("kept"), Some(&segment));
    let link = importer.receive_imported(sent).unwrap().link;
    exporter.receive_opened();
    daemon.kill();
    assert!(exporter.is_cut_off() && importer.is_cut_off());

    let daemon = Daemon::start_in(daemon.dir.clone(), &[], &[]);
    let back = |mut client: Client| {
        let welcome = client.welcome;
        let resume = Resume { client: welcome.client, session: welcome.session };
        let belongings = client.belongings.take();
        let client =
            Client::try_connect(&daemon.path, Role::Process, belongings, Some(resume)).unwrap();
        assert_eq!(client.welcome.client, welcome.client);
        assert_ne!(client.welcome.incarnation, welcome.incarnation);
        assert!(!client.welcome.resumed);
        client
    };
    // The importer is first; it waits for the exporter, and not for anybody with the name.
    let mut importer = back(importer);
    let restore = Import { restore: Some(link), ..Import::of("kept") };
    let sent = importer.send_import(restore, Some(&segment));
    importer.assert_silent();
    let mut exporter = back(exporter);
    let restored = exporter
        .try_export(Export { restore: Some(export), ..Export::of("kept", &memory) })
        .unwrap();
    assert_eq!(restored, export);
    let imported = importer.receive_imported(sent).unwrap();
    assert_eq!((imported.link, imported.export), (link, export));
    let opened = exporter.receive_opened();
    assert_eq!((opened.link, opened.importer.pid), (link, std::process::id()));
    assert!(same_file(&opened.segment, &segment));
    // New numbers do not meet old ones.
    let next = importer.import("kept");
    assert!(next.link > link);
    assert_eq!(counter(&daemon.snapshot(), "links_restored"), 1);
}

#[test]
fn a_link_is_not_restored_to_other_memory_of_the_same_name() {
    let mut daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("name");
    let mut importer = Client::connect(&daemon.path);
    let link = importer.import("name").link;
    daemon.kill();
    let daemon = Daemon::start_in(daemon.dir.clone(), &[], &[]);
    let mut usurper = Client::connect(&daemon.path);
    usurper.export("name");
    let mut importer = Client::connect(&daemon.path);
    let refused = importer.try_import(Import { restore: Some(link), ..Import::of("name") });
    assert!(matches!(refused, Err(Refusal::NoSuchExport { .. })), "{refused:?}");
    usurper.assert_silent();
}

#[test]
fn numbers_of_this_incarnation_cannot_be_claimed() {
    let daemon = Daemon::start();
    let first = Client::connect(&daemon.path);
    let resume = Resume { client: first.welcome.client, session: first.welcome.session };
    let liar =
        Client::try_connect(&daemon.path, Role::Process, Some(Belongings::new()), Some(resume))
            .unwrap();
    assert_ne!(liar.welcome.client, first.welcome.client);
    let future = Resume { client: ClientId(u64::MAX), session: first.welcome.session };
    let liar =
        Client::try_connect(&daemon.path, Role::Process, Some(Belongings::new()), Some(future))
            .unwrap();
    assert_ne!(liar.welcome.client, ClientId(u64::MAX));
}
