//! Export, import, and what each side hears of the other.

mod common;
use common::*;
use std::os::fd::AsFd;
use vmmc::control::message::*;
use vmmc::id::*;
use vmmc::sys::doorbell;

/// V1, V5: both sides get what they need of each other, from the daemon alone.
#[test]
fn an_import_gives_each_side_the_others_memory_page_and_doorbell() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, memory) = exporter.export("buffer");
    let segment = link_segment();
    let sent = importer.send_import(Import::of("buffer"), Some(&segment));
    let imported = importer.receive_imported(sent).unwrap();
    assert_eq!((imported.export, imported.len), (export, 4096));
    assert_eq!(imported.exporter.client, exporter.welcome.client);
    assert_eq!(imported.exporter.pid, std::process::id());
    assert!(same_file(&imported.memory, &memory));
    let opened = exporter.receive_opened();
    assert_eq!((opened.link, opened.export), (imported.link, export));
    assert_eq!(opened.importer.client, importer.welcome.client);
    assert!(same_file(&opened.segment, &segment));

    for (introduced, of) in [(imported.introduced, &exporter), (opened.introduced, &importer)] {
        let (page, button) = introduced.unwrap();
        let belongings = of.belongings.as_ref().unwrap();
        assert!(same_file(&page, &belongings.page));
        assert!(!is_writable(&page), "a page is the owner's alone to write");
        assert!(!readable(belongings.doorbell.fd()));
        doorbell::ring(&button);
        assert!(belongings.doorbell.wait(None).unwrap(), "once it is in it");
    }

    importer.send(&Request::CloseLink { link: imported.link }, &[]);
    assert_eq!(exporter.receive_closed(), (imported.link, CloseReason::Unimported));
    assert!(daemon.snapshot().links.is_empty());
}

/// V1: import first, export later.
#[test]
fn an_import_waits_for_its_export() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let sent = importer.send_import(Import::waiting("later"), Some(&link_segment()));
    let mut also = Client::connect(&daemon.path);
    let other = Import { process: Some(1), ..Import::waiting("later") };
    also.send_import(other, Some(&link_segment()));
    also.assert_silent();
    let (export, _memory) = exporter.export("later");
    assert_eq!(importer.receive_imported(sent).unwrap().export, export);
    assert_eq!(exporter.receive_opened().export, export);
    also.assert_silent(); // it asked for an export of another process
}

/// A segment that a process has mapped is not for a link to another.
#[test]
fn a_known_segment_is_for_the_process_that_knows_it_alone() {
    let daemon = Daemon::start();
    let mut first = Client::connect(&daemon.path);
    let mut second = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    first.export("first");
    second.export("second");
    let known_to = importer.import("first").exporter;
    first.receive_opened();
    let with = |name| Import { known_to: Some(known_to), ..Import::of(name) };
    let refusal = importer.try_import(with("second")).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::SegmentOfAnother { name: "second".into(), known_to: known_to.pid }
    );
    second.assert_silent();
    importer.try_import(with("first")).unwrap();
    first.receive_opened();
    // Nor for one that only has its number, after the number went to another.
    let renamed = PeerInfo { pid: known_to.pid + 1, ..known_to };
    let refusal = importer.try_import(Import { known_to: Some(renamed), ..Import::of("first") });
    assert!(matches!(refusal, Err(Refusal::SegmentOfAnother { .. })), "{refusal:?}");
    first.assert_silent();
}

#[test]
fn an_import_that_waited_in_vain_says_how_long() {
    let daemon = Daemon::start();
    let mut importer = Client::connect(&daemon.path);
    let refusal = importer.try_import(Import { timeout_ms: 20, ..Import::of("never") });
    match refusal.unwrap_err() {
        Refusal::NoSuchExport { name, waited_ms } => {
            assert_eq!(name, Name::from("never"));
            assert!(waited_ms >= 20);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_waiting_import_can_be_cancelled() {
    let daemon = Daemon::start();
    let mut importer = Client::connect(&daemon.path);
    let sent = importer.send_import(Import::waiting("x"), Some(&link_segment()));
    importer.send(&Request::CancelImport { request: sent }, &[]);
    assert_eq!(importer.receive_imported(sent).unwrap_err(), Refusal::Cancelled);
    // Too late is no error: it was answered already.
    importer.send(&Request::CancelImport { request: sent }, &[]);
    importer.assert_silent();
    let mut exporter = Client::connect(&daemon.path);
    exporter.export("x");
    importer.assert_silent();
}

#[test]
fn after_unexport_no_import_is_granted_and_links_live_until_revoked() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, _memory) = exporter.export("buffer");
    let link = importer.import("buffer").link;
    exporter.receive_opened();
    let request = exporter.request_id();
    exporter.send(&Request::Unexport { request, export, cpu: NO_CPU }, &[]);
    assert!(!exporter.receive_unexported(request));
    assert!(matches!(importer.try_import(Import::of("buffer")), Err(Refusal::NoSuchExport { .. })));
    importer.assert_silent();
    // The name is free again at once.
    let (next, _other) = exporter.export("buffer");
    assert_ne!(next, export);
    exporter.send(&Request::Revoked { export }, &[]);
    assert_eq!(importer.receive_closed(), (link, CloseReason::Unexported));
    assert_eq!(importer.import("buffer").export, next);
}

/// What nobody ever imported needs no revoking, and the daemon keeps nothing of it; what was imported
/// once does, also when nobody imports it any more: a mapping may have been kept.
#[test]
fn an_export_that_nobody_imported_is_gone_with_its_name() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let (export, _memory) = exporter.export("buffer");
    let request = exporter.request_id();
    exporter.send(&Request::Unexport { request, export, cpu: NO_CPU }, &[]);
    assert!(exporter.receive_unexported(request));
    assert!(daemon.snapshot().exports.is_empty());

    let (export, _memory) = exporter.export("buffer");
    let link = importer.import("buffer").link;
    exporter.receive_opened();
    importer.send(&Request::CloseLink { link }, &[]);
    assert_eq!(exporter.receive_closed(), (link, CloseReason::Unimported));
    let request = exporter.request_id();
    exporter.send(&Request::Unexport { request, export, cpu: NO_CPU }, &[]);
    assert!(!exporter.receive_unexported(request));
    assert_eq!(daemon.snapshot().exports.len(), 1, "it is not revoked yet");
    exporter.send(&Request::Revoked { export }, &[]);
    exporter.assert_silent();
    assert!(daemon.snapshot().exports.is_empty());
}

#[test]
fn two_processes_are_introduced_once_and_told_when_to_forget() {
    let daemon = Daemon::start();
    let mut one = Client::connect(&daemon.path);
    let mut other = Client::connect(&daemon.path);
    one.export("ones");
    other.export("others");
    assert!(other.import("ones").introduced.is_some());
    assert!(one.receive_opened().introduced.is_some());
    // Again, and in the other direction.
    let again = other.import("ones");
    assert!(again.introduced.is_none());
    assert!(one.receive_opened().introduced.is_none());
    assert!(one.import("others").introduced.is_none());
    assert!(other.receive_opened().introduced.is_none());
    // It lost what it had.
    other.send(&Request::Introduce { client: one.welcome.client }, &[]);
    other.send(&Request::Introduce { client: ClientId(u64::MAX) }, &[]);
    assert!(other.import("ones").introduced.is_some());
    assert!(one.receive_opened().introduced.is_none());
    // A link that ends is no reason to forget; death is.
    other.send(&Request::CloseLink { link: again.link }, &[]);
    assert_eq!(one.receive_closed(), (again.link, CloseReason::Unimported));
    let gone = other.welcome.client;
    drop(other);
    for _ in 0..3 {
        assert_eq!(one.receive_closed().1, CloseReason::PeerDied);
    }
    assert_eq!(one.receive().event, Event::PeerGone { client: gone });
    one.assert_silent();
}

/// What a process keeps of others does not grow with time.
#[test]
fn two_processes_without_a_link_forget_each_other_after_a_while() {
    let daemon = Daemon::start();
    let mut server = Client::connect(&daemon.path);
    let mut guest = Client::connect(&daemon.path);
    server.export("service");
    let link = guest.import("service").link;
    server.receive_opened();
    guest.send(&Request::CloseLink { link }, &[]);
    assert_eq!(server.receive_closed(), (link, CloseReason::Unimported));
    let gone = |client: &Client| Event::PeerGone { client: client.welcome.client };
    assert_eq!(server.receive().event, gone(&guest));
    assert_eq!(guest.receive().event, gone(&server));
    assert!(guest.import("service").introduced.is_some());
    assert!(server.receive_opened().introduced.is_some());
}

/// G1.
#[test]
fn the_death_of_either_side_closes_the_link_for_the_other() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    exporter.export("buffer");
    let first = importer.import("buffer").link;
    exporter.receive_opened();
    drop(importer);
    assert_eq!(exporter.receive_closed(), (first, CloseReason::PeerDied));
    let mut importer = Client::connect(&daemon.path);
    let second = importer.import("buffer").link;
    drop(exporter);
    assert_eq!(importer.receive_closed(), (second, CloseReason::PeerDied));
    let snapshot = daemon.snapshot();
    assert!(snapshot.exports.is_empty() && snapshot.links.is_empty());
}

#[test]
fn an_exporter_can_give_up_a_link_of_a_misbehaving_importer() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    exporter.export("buffer");
    let link = importer.import("buffer").link;
    let opened = exporter.receive_opened();
    exporter.send(&Request::CloseLink { link: opened.link }, &[]);
    assert_eq!(importer.receive_closed(), (link, CloseReason::PeerFault));
}

#[test]
fn a_process_may_import_from_itself() {
    let daemon = Daemon::start();
    let mut both = Client::connect(&daemon.path);
    let (export, _memory) = both.export(7);
    let sent = both.send_import(
        Import { process: Some(std::process::id()), ..Import::of(7) },
        Some(&link_segment()),
    );
    let imported = both.receive_imported(sent).unwrap();
    assert_eq!(imported.export, export);
    assert_eq!(both.receive_opened().link, imported.link);
}

/// V7.
#[test]
fn a_text_is_unique_on_the_node_and_a_number_in_its_process() {
    let daemon = Daemon::start();
    let mut one = Client::connect(&daemon.path);
    let mut other = Client::connect(&daemon.path);
    one.export("text");
    one.export(5);
    for client in [&mut one, &mut other] {
        for name in [Name::from("text"), Name::from(5)] {
            let memory = memory(4096);
            let refusal = client.try_export(Export::of(name.clone(), &memory)).unwrap_err();
            assert_eq!(refusal, Refusal::NameTaken { name, pid: std::process::id() });
        }
    }
    drop(one);
    eventually("the names are free", || daemon.snapshot().exports.is_empty().then_some(()));
    other.export("text");
    other.export(5);
}

#[test]
fn a_listing_shows_what_may_be_imported() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let memory = memory(8192);
    let export = exporter
        .try_export(Export {
            grants: vec![Grant { who: Who::SameUser, rights: Rights::READ }],
            token: Some(Token([1; 16])),
            ..Export::of("shown", &memory)
        })
        .unwrap();
    let mut tool = Client::connect_as(&daemon.path, Role::Tool);
    let list = tool.list();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].export, export);
    assert_eq!((list[0].len, list[0].rights), (8192, Rights::READ));
    assert!(list[0].needs_token);
    let request = tool.request_id();
    tool.send(&Request::Page { request, client: exporter.welcome.client }, &[]);
    let mut incoming = tool.receive();
    assert_eq!(incoming.event, Event::Page { request });
    let page = incoming.fds.take().unwrap();
    assert!(same_file(page.as_fd(), &exporter.belongings.as_ref().unwrap().page));
    assert!(!is_writable(&page));
}

/// Listings of one user are made one in a round: those that came together are all answered, each in its place among its
/// client's requests.
#[test]
fn listings_that_come_together_are_all_answered_in_order() {
    let daemon = Daemon::start();
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&daemon.path)).collect();
    daemon.signal(rustix::process::Signal::STOP);
    let sent: Vec<Vec<RequestId>> = clients
        .iter_mut()
        .map(|client| {
            let mut sent = Vec::new();
            for round in 0..3 {
                let request = client.request_id();
                let message = match round {
                    1 => Request::Snapshot { request },
                    _ => Request::List { request },
                };
                client.send(&message, &[]);
                sent.push(request);
                sent.push(client.send_import(Import::of("nothing"), Some(&link_segment())));
            }
            sent
        })
        .collect();
    // One goes without its answers.
    let gone = clients.remove(0);
    drop(gone);
    daemon.signal(rustix::process::Signal::CONT);
    for (client, sent) in clients.iter().zip(&sent[1..]) {
        let answered: Vec<RequestId> = sent
            .iter()
            .map(|_| match client.receive().event {
                Event::Listing { request, .. } | Event::Refused { request, .. } => request,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(&answered, sent);
    }
}
