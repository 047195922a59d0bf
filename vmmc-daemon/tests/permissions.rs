//! Who may do what (V2, G7), every refusal (G10), one past every quota (G6).

mod common;
use common::*;
use std::os::fd::AsFd;
use vmmc::control::message::*;
use vmmc::id::*;
use vmmc::sys::doorbell::Doorbell;
use vmmc::sys::memfd;

const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;
const STAFF: u32 = 62_001;

fn grant(who: Who, rights: Rights) -> Grant {
    Grant { who, rights }
}

/// V2: permissions x callers; what is denied leaves nothing behind.
#[test]
fn each_caller_gets_the_union_of_its_grants_and_nothing_else() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let path = daemon.path.as_path();
    let us = std::process::id();
    let all = [Rights::WRITE, Rights::READ, Rights::BIND];
    // Callers: the owner's user, another user, another user with the group as its own or as
    // a further one.
    let callers: [(u32, u32, &[u32]); 4] =
        [(ALICE, ALICE, &[]), (BOB, BOB, &[]), (BOB, STAFF, &[]), (BOB, BOB, &[5, STAFF])];
    let lists: [(Vec<Grant>, [Rights; 4]); 8] = [
        (vec![], [Rights::empty(); 4]),
        (vec![grant(Who::Anyone, Rights::READ)], [Rights::READ; 4]),
        (
            vec![grant(Who::SameUser, Rights::all())],
            [Rights::all(), Rights::empty(), Rights::empty(), Rights::empty()],
        ),
        (
            vec![grant(Who::User(BOB), Rights::WRITE)],
            [Rights::empty(), Rights::WRITE, Rights::WRITE, Rights::WRITE],
        ),
        (
            vec![grant(Who::Group(STAFF), Rights::BIND)],
            [Rights::empty(), Rights::empty(), Rights::BIND, Rights::BIND],
        ),
        (vec![grant(Who::Process(us), Rights::READ)], [Rights::READ; 4]),
        (vec![grant(Who::Process(1), Rights::all())], [Rights::empty(); 4]),
        (
            vec![grant(Who::Anyone, Rights::READ), grant(Who::User(BOB), Rights::WRITE)],
            [
                Rights::READ,
                Rights::READ | Rights::WRITE,
                Rights::READ | Rights::WRITE,
                Rights::READ | Rights::WRITE,
            ],
        ),
    ];
    // Clients of a daemon that is root's: allowed for every user.
    let mut exporter = as_user(ALICE, ALICE, &[], || Client::connect(path));
    let mut importers: Vec<Client> = callers
        .iter()
        .map(|&(uid, gid, groups)| as_user(uid, gid, groups, || Client::connect(path)))
        .collect();
    for (i, (grants, expected)) in lists.into_iter().enumerate() {
        let memory = as_user(ALICE, ALICE, &[], || memory(4096));
        let name = format!("list {i}");
        let export = Export { grants, ..Export::of(name.as_str(), &memory) };
        exporter.try_export(export).unwrap();
        for ((importer, caller), granted) in importers.iter_mut().zip(&callers).zip(expected) {
            for rights in [all[0], all[1], all[2], Rights::READ | Rights::WRITE, Rights::all()] {
                let asked = importer.try_import(Import { rights, ..Import::of(name.as_str()) });
                if granted.contains(rights) {
                    let imported = asked.unwrap_or_else(|no| panic!("{name} {caller:?}: {no}"));
                    assert_eq!(imported.rights, rights);
                    assert_eq!(is_writable(&imported.memory), rights != Rights::READ);
                    let link = imported.link;
                    assert_eq!(exporter.receive_opened().importer.uid, caller.0);
                    importer.send(&Request::CloseLink { link }, &[]);
                    exporter.receive_closed();
                } else {
                    let refusal = Refusal::NotPermitted {
                        name: Name::from(name.as_str()),
                        uid: caller.0,
                        granted,
                        wanted: rights,
                    };
                    assert_eq!(asked.unwrap_err(), refusal, "{name} {caller:?} {rights:?}");
                }
            }
        }
    }
    exporter.assert_silent();
    let snapshot = daemon.snapshot();
    assert!(snapshot.links.is_empty(), "a denied import leaves no mapping");
    assert!(snapshot.clients.iter().all(|client| client.imports == 0));
}

#[test]
fn a_reader_of_another_user_cannot_get_a_writable_descriptor() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let path = daemon.path.as_path();
    let mut exporter = as_user(ALICE, ALICE, &[], || Client::connect(path));
    let memory = as_user(ALICE, ALICE, &[], || memory(4096));
    exporter.try_export(Export::of("readable", &memory)).unwrap();
    as_user(BOB, BOB, &[], || {
        let mut importer = Client::connect(path);
        let read = Import { rights: Rights::READ, ..Import::of("readable") };
        let imported = importer.try_import(read).unwrap();
        for fd in [&imported.memory, &imported.introduced.as_ref().unwrap().0] {
            let raw = std::os::fd::AsRawFd::as_raw_fd(fd);
            let again = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(format!("/proc/self/fd/{raw}"));
            assert!(again.is_err(), "opened for writing");
        }
    });
}

#[test]
fn users_see_their_own_part_and_only_administrators_give_orders() {
    if !is_root() {
        eprintln!("not run: acting as several users needs root");
        return;
    }
    let daemon = Daemon::start_activated(&[], &[]);
    let path = daemon.path.as_path();
    let mut alice = as_user(ALICE, ALICE, &[], || Client::connect(path));
    let memory = as_user(ALICE, ALICE, &[], || memory(4096));
    let private =
        Export { grants: vec![grant(Who::SameUser, Rights::all())], ..Export::of("a", &memory) };
    alice.try_export(private).unwrap();
    let mut bob = as_user(BOB, BOB, &[], || Client::connect_as(path, Role::Tool));
    assert!(bob.list().is_empty());
    let seen = bob.snapshot();
    assert!(seen.exports.is_empty());
    assert!(seen.clients.iter().all(|client| client.peer.uid == BOB));
    let request = bob.request_id();
    bob.send(&Request::Page { request, client: alice.welcome.client }, &[]);
    assert!(matches!(
        bob.receive().event,
        Event::Refused { refusal: Refusal::NotYours { .. }, .. }
    ));
    for order in [Request::Shutdown { request }, Request::TakeOver { request }] {
        bob.send(&order, &[]);
        match bob.receive().event {
            Event::Refused { refusal: Refusal::NotAdministrator { uid, owner, .. }, .. } => {
                assert_eq!((uid, owner), (BOB, 0));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(alice.list().len(), 1);
    assert_eq!(daemon.snapshot().exports.len(), 1);
    assert_eq!(counter(&daemon.snapshot(), "refused_not_administrator"), 2);
}

/// G10: each refusal of an export, with what is wrong in it.
#[test]
fn every_bad_export_has_its_own_refusal() {
    let daemon = Daemon::start_with(&["--max-export-bytes", "8192"], &[]);
    let mut client = Client::connect(&daemon.path);
    let good = memory(4096);
    for text in ["", "a\nb", "nul\0", &"x".repeat(256), "vmmcd/carried 10.0.0.1:1 10.0.0.2:2 v1"] {
        assert_eq!(
            client.try_export(Export::of(text, &good)).unwrap_err(),
            Refusal::BadName { name: text.into() }
        );
    }
    let many = vec![grant(Who::Anyone, Rights::READ); MAX_GRANTS + 1];
    let export = Export { grants: many, ..Export::of("x", &good) };
    assert_eq!(client.try_export(export).unwrap_err(), Refusal::TooManyGrants { count: 33 });
    let large = memory(8193);
    for (len, memory) in [(0, &good), (8193, &large)] {
        let export = Export { len, ..Export::of("x", memory) };
        assert_eq!(client.try_export(export).unwrap_err(), Refusal::BadLength { len, max: 8192 });
    }
    let unsealed = memfd::create("unsealed", 4096).unwrap();
    let read_only = memfd::reopen_read_only(&good).unwrap();
    let file: vmmc::sys::Fd = std::os::fd::OwnedFd::from(tempfile::tempfile().unwrap()).into();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let bad = [
        (Export { len: 4097, ..Export::of("x", &good) }, "4096 bytes long"),
        (Export::of("x", &unsealed), "lacks seals"),
        (Export::of("x", &read_only), "not open for reading and writing"),
        (Export { memory: None, ..Export::of("x", &good) }, "no descriptor"),
    ];
    for (export, expected) in bad {
        match client.try_export(export).unwrap_err() {
            Refusal::BadSegment { why } => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let export = Export { len: 4096, ..Export::of("x", &file) };
    assert!(matches!(client.try_export(export), Err(Refusal::BadSegment { .. })));
    assert!(daemon.snapshot().exports.is_empty());
    client.export("x");
}

/// G10: the same for imports.
#[test]
fn every_bad_import_has_its_own_refusal() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut client = Client::connect(&daemon.path);
    let memory = memory(4096);
    let secret = Token([7; 16]);
    exporter.try_export(Export { token: Some(secret), ..Export::of("secret", &memory) }).unwrap();
    for token in [None, Some(Token([8; 16]))] {
        assert_eq!(
            client.try_import(Import { token, ..Import::of("secret") }).unwrap_err(),
            Refusal::BadToken { name: "secret".into() }
        );
    }
    client.try_import(Import { token: Some(secret), ..Import::of("secret") }).unwrap();
    assert_eq!(client.try_import(Import::of(3)).unwrap_err(), Refusal::ProcessNeeded { number: 3 });
    assert_eq!(
        client.try_import(Import::of("")).unwrap_err(),
        Refusal::BadName { name: "".into() }
    );
    for rights in [Rights::empty(), Rights::from_bits_retain(64)] {
        assert_eq!(
            client.try_import(Import { rights, ..Import::of("secret") }).unwrap_err(),
            Refusal::NoRights
        );
    }
    assert!(matches!(
        client.try_import(Import::of("unknown")).unwrap_err(),
        Refusal::NoSuchExport { .. }
    ));
    let short = common::memory(4096);
    for segment in [None, Some(&short)] {
        let sent = client.send_import(Import::of("secret"), segment);
        assert!(matches!(client.receive_imported(sent).unwrap_err(), Refusal::BadSegment { .. }));
    }
    let request = client.request_id();
    client.send(&Request::Unexport { request, export: ExportId(1 << 40), cpu: NO_CPU }, &[]);
    assert_eq!(
        client.receive().event,
        Event::Refused {
            request,
            refusal: Refusal::NotYours { what: "export".to_owned(), number: 1 << 40 }
        }
    );
}

/// V5: what is not one's own can neither be withdrawn nor closed nor revoked.
#[test]
fn forged_numbers_do_nothing() {
    let daemon = Daemon::start();
    let mut exporter = Client::connect(&daemon.path);
    let mut importer = Client::connect(&daemon.path);
    let mut forger = Client::connect(&daemon.path);
    let (export, _memory) = exporter.export("x");
    let link = importer.import("x").link;
    exporter.receive_opened();
    let request = forger.request_id();
    forger.send(&Request::Unexport { request, export, cpu: NO_CPU }, &[]);
    assert!(matches!(forger.receive().event, Event::Refused { .. }));
    forger.send(&Request::Revoked { export }, &[]);
    forger.send(&Request::CloseLink { link }, &[]);
    forger.send(&Request::Introduce { client: importer.welcome.client }, &[]);
    importer.send(&Request::Revoked { export }, &[]);
    forger.assert_silent();
    importer.assert_silent();
    exporter.assert_silent();
    assert_eq!(daemon.snapshot().links.len(), 1);
}

#[test]
fn hello_without_the_right_descriptors_is_refused() {
    let daemon = Daemon::start();
    let (page, _mapping) = process_page();
    let unsealed = memory(vmmc::layout::page::LEN as u64);
    let (read, bell) = (rustix::pipe::pipe().unwrap().0, Doorbell::new().unwrap());
    let bad: [(&[std::os::fd::BorrowedFd<'_>], &str); 5] = [
        (&[], "no process page"),
        (&[page.as_fd()], "no doorbell"),
        (&[bell.fd().as_fd(), page.as_fd()], "process page"),
        (&[unsealed.as_fd(), bell.fd().as_fd()], "F_SEAL_FUTURE_WRITE"),
        (&[page.as_fd(), read.as_fd()], "not an epoll descriptor"),
    ];
    for (fds, expected) in bad {
        let connection = vmmc::control::Connection::open_existing(&daemon.path).unwrap();
        let hello = Hello { role: Role::Process, program: "x".repeat(1000), resume: None };
        let error = connection.hello(hello, fds).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(daemon.counter("refused_bad_segment"), 5);
}

/// G6.
#[test]
fn one_past_each_quota_is_refused_with_its_name() {
    let daemon = Daemon::start_with(
        &[
            "--clients-per-user=2",
            "--exports-per-user=3",
            "--imports-per-user=2",
            "--bytes-per-user=12289",
        ],
        &[],
    );
    let quota = |refusal: Refusal| match refusal {
        Refusal::Quota { quota, limit, .. } => (quota, limit),
        other => panic!("{other:?}"),
    };
    let mut one = Client::connect(&daemon.path);
    let other = Client::connect(&daemon.path);
    let refused = Client::try_connect(&daemon.path, Role::Process, Some(Belongings::new()), None);
    match refused.err().unwrap() {
        vmmc::control::ConnectError::Refused(refusal) => {
            assert_eq!(quota(refusal), (QuotaKind::Clients, 2));
        }
        error => panic!("{error}"),
    }
    daemon.snapshot(); // tools still get in
    for i in 0..3 {
        one.export(i);
    }
    let small = memory(1);
    assert_eq!(quota(one.try_export(Export::of(9, &small)).unwrap_err()), (QuotaKind::Exports, 3));
    let me = Some(std::process::id());
    let sent = one.send_import(Import { process: me, ..Import::of(0) }, Some(&link_segment()));
    let link = one.receive_imported(sent).unwrap().link;
    one.receive_opened();
    let waiting = one.send_import(Import::waiting("x"), Some(&link_segment()));
    assert_eq!(
        quota(one.try_import(Import::of("y")).unwrap_err()),
        (QuotaKind::Imports, 2),
        "waiting ones count"
    );
    one.send(&Request::CancelImport { request: waiting }, &[]);
    one.receive();
    one.send(&Request::CloseLink { link }, &[]);
    one.receive_closed();
    for i in 0..2 {
        one.try_import(Import { process: me, ..Import::of(i) }).unwrap();
        one.receive_opened();
    }
    drop(one);
    eventually("it is gone", || daemon.snapshot().exports.is_empty().then_some(()));
    let mut one = Client::connect(&daemon.path);
    let (large, rest) = (memory(12288), memory(2));
    one.try_export(Export::of("large", &large)).unwrap();
    assert_eq!(
        quota(one.try_export(Export::of("rest", &rest)).unwrap_err()),
        (QuotaKind::Bytes, 12289)
    );
    drop(other);
}
