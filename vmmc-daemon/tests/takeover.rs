//! Hot restart: the successor has everything, clients notice nothing.

mod common;
use common::*;
use vmmc::control::message::*;
use vmmc::id::*;

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
