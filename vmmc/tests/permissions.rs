//! V2, G7: permissions by caller and right; each refusal is its own, and leaves no mapping.

mod common;

use common::{Daemon, PATIENCE, open, say, until};
use vmmc::control::message::Refusal;
use vmmc::error::ImportError;
use vmmc::{Node, Region, Rights, Token, Who};

#[test]
fn second_process() {
    common::second_process(&[("caller", caller)]);
}

/// Rights by who asks: for every grant and every caller, exactly the matching ones are let in.
#[test]
fn the_matrix_of_grants_and_callers() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let us = rustix::process::geteuid().as_raw();
    let our_group = rustix::process::getegid().as_raw();
    let cases: &[(&str, Option<Who>, bool)] = &[
        ("nobody", None, false),
        ("anyone", Some(Who::Anyone), true),
        ("same user", Some(Who::SameUser), true),
        ("our user", Some(Who::User(us)), true),
        ("another user", Some(Who::User(us + 4242)), false),
        ("our group", Some(Who::Group(our_group)), true),
        ("another group", Some(Who::Group(our_group + 4242)), false),
        ("our process", Some(Who::Process(std::process::id())), true),
        ("another process", Some(Who::Process(1)), false),
    ];
    let rights = [Rights::WRITE, Rights::READ, Rights::BIND];
    for &(name, who, matches) in cases {
        for granted in rights {
            let mut builder = node.export(Region::new(4096).unwrap()).name(name);
            if let Some(who) = who {
                builder = builder.grant(who, granted);
            }
            let export = builder.open().unwrap();
            for wanted in rights.into_iter().chain([Rights::all()]) {
                let result = node.import(name).rights(wanted).open();
                match result {
                    Ok(import) => {
                        assert!(matches && wanted == granted, "{name} {granted:?} {wanted:?}");
                        assert_eq!(import.rights(), wanted);
                    }
                    Err(ImportError::Refused(Refusal::NotPermitted { .. })) => {
                        assert!(!matches || wanted != granted, "{name} {granted:?} {wanted:?}");
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
            assert!(node.imports().is_empty());
            drop(export);
        }
    }
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap();
    // Tests beside this one have links of their own for a moment.
    until("no refused import has left its mapping", || !mapped().contains("memfd:vmmc-link"));
}

/// Several grants add up for a caller whom several match.
#[test]
fn grants_add_up() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = node
        .export(Region::new(64).unwrap())
        .name("sum")
        .grant(Who::Anyone, Rights::READ)
        .grant(Who::SameUser, Rights::WRITE)
        .open()
        .unwrap();
    assert!(node.import("sum").rights(Rights::READ | Rights::WRITE).open().is_ok());
    assert!(node.import("sum").rights(Rights::BIND).open().is_err());
}

/// A token is asked for on top.
#[test]
fn a_token_is_needed_where_it_is_asked_for() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let builder = node.export(Region::new(64).unwrap()).name("secret").token(Token([7; 16]));
    let _export = open(builder);
    let bad = |error| matches!(error, ImportError::Refused(Refusal::BadToken { .. }));
    assert!(bad(node.import("secret").open().unwrap_err()));
    assert!(bad(node.import("secret").token(Token([8; 16])).open().unwrap_err()));
    assert!(node.import("secret").token(Token([7; 16])).open().is_ok());
}

/// Another user is refused what is the same user's, and let in where it is meant. Needs root, to
/// become somebody else; an ordinary user has the matrix above.
#[test]
fn another_user_gets_what_it_was_granted_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let daemon = Daemon::start();
    let node = daemon.node();
    let _ours = open(node.export(Region::new(64).unwrap()).name("ours"));
    let _theirs = node
        .export(Region::new(64).unwrap())
        .name("theirs")
        .grant(Who::User(65534), Rights::READ)
        .open()
        .unwrap();
    let mut second = daemon.second("caller", &[]);
    second.expect("refused");
    second.expect("read");
    second.expect("done");
    second.finish();
}

fn caller(_: &[String]) {
    let socket = std::env::var("VMMC_SOCKET").unwrap();
    let dir = std::path::Path::new(&socket).parent().unwrap();
    // The daemon of a test is its user's own; let the other user reach it.
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode;
    std::fs::set_permissions(dir, mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, mode(0o666)).unwrap();
    // SAFETY: this process becomes another user, for good.
    assert_eq!(unsafe { libc::setgid(65534) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
    let node = Node::connect().unwrap();
    let error = node.import("ours").open().unwrap_err();
    assert!(matches!(error, ImportError::Refused(Refusal::NotPermitted { .. })), "{error}");
    say("refused");
    let import =
        node.import("theirs").rights(Rights::READ).timeout(PATIENCE.unwrap()).open().unwrap();
    import.read(0, &mut [0; 64]).unwrap();
    say("read");
    let error = node.import("theirs").rights(Rights::WRITE).open().unwrap_err();
    assert!(matches!(error, ImportError::Refused(Refusal::NotPermitted { .. })), "{error}");
    say("done");
}
