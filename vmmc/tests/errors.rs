//! G10: every refusal that no other test provokes, by its name and with its remedy.

mod common;

use common::{Daemon, PATIENCE, export, import};
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::control::ConnectError;
use vmmc::control::message::Refusal;
use vmmc::error::{ExportError, FlagError, RegionError};
use vmmc::{Node, Region, Rights, Who};

fn connect(config: Config) -> ConnectError {
    Node::builder().config(config).connect().expect_err("cannot connect")
}

#[test]
fn connecting_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        socket: Some(dir.path().join("nobody.sock")),
        daemon: DaemonStart::Never,
        ..Config::from_env().unwrap()
    };
    let error = connect(config.clone());
    assert!(matches!(error, ConnectError::NoDaemon { .. }), "{error}");
    assert!(error.to_string().contains("shrimp daemon start"), "{error}");

    let program = Config { daemon: DaemonStart::Program("/bin/false".into()), ..config.clone() };
    let error = connect(program);
    assert!(matches!(error, ConnectError::NotStarted { .. }), "{error}");

    // A socket file whose listener is gone counts as no daemon.
    let stale = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let error = connect(Config { socket: Some(stale), ..config });
    assert!(!error.to_string().is_empty());
}

#[test]
fn regions_and_exports_say_what_is_wrong_with_their_length() {
    assert_eq!(Region::new(0).unwrap_err(), RegionError::BadLength { len: 0 });
    assert!(matches!(Region::new(usize::MAX), Err(RegionError::BadLength { .. })));
    let daemon = Daemon::start_with(&["--max-export-bytes", "8192"], &[]);
    let node = daemon.node();
    let error = node.export(Region::new(8193).unwrap()).name("long").open().unwrap_err();
    let ExportError::Refused(Refusal::BadLength { len: 8193, max: 8192 }) = error else {
        panic!("{error}")
    };
}

#[test]
fn quotas_name_the_option_that_raises_them() {
    let daemon = Daemon::start_with(&["--exports-per-user", "2", "--imports-per-user", "1"], &[]);
    let node = daemon.node();
    let _exports = [export(&node, "1", 64), export(&node, "2", 64)];
    let error = node.export(Region::new(64).unwrap()).name("3").open().unwrap_err();
    assert!(error.to_string().contains("--exports-per-user"), "{error}");
    let first = import(&node, "1");
    let error = node.import("2").open().unwrap_err();
    assert!(error.to_string().contains("--imports-per-user"), "{error}");
    drop(first);
    let _second = import(&node, "2");
}

#[test]
fn too_many_grants_are_refused() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let mut builder = node.export(Region::new(64).unwrap()).name("many");
    for user in 0..33 {
        builder = builder.grant(Who::User(user), Rights::READ);
    }
    let error = builder.open().unwrap_err();
    assert!(matches!(error, ExportError::Refused(Refusal::TooManyGrants { count: 33 })), "{error}");
}

#[test]
fn flags_need_a_right_that_they_are_of_use_with() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let _export = export(&node, "bind only", 4096);
    let import = node.import("bind only").rights(Rights::BIND).open().unwrap();
    let error = import.flag32(0).unwrap_err();
    assert!(matches!(error, FlagError::NotGranted(_)), "{error}");
    assert!(error.to_string().contains("rights"), "{error}");
    assert_eq!(import.proxy_ptr(), None);
}

#[test]
fn a_wait_that_is_over_says_how_long_it_was() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "silent", 64);
    let timeout = Some(Duration::from_millis(3));
    let error = export.flag32(0).unwrap().wait_until(|_| false, timeout).unwrap_err();
    assert!(error.to_string().contains("3ms"), "{error}");
    let error = export.wait_importers(1, timeout).unwrap_err();
    assert!(error.to_string().contains("3ms"), "{error}");
    let _import = import(&node, "silent");
    export.wait_importers(1, PATIENCE).unwrap();
}
