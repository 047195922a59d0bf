//! What the cluster files say of a fabric, and what becomes of it when they disagree. That packets go
//! over it is shown by `engines`.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;

use cluster::{KEY, Place, address_of, node_over};
use common::PATIENCE;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use vmmc::error::WaitError;
use vmmc::{CloseReason, Node, Region, Rights, Who};

fn places(of_a: Option<&str>, of_b: Option<&str>) -> (Place, Place) {
    let (a, b) = (address_of("a"), address_of("b"));
    (
        node_over("a", &a, &[("b", &b)], Some(KEY), of_a),
        node_over("b", &b, &[("a", &a)], Some(KEY), of_b),
    )
}

/// The refusal of an import from `b` of an export of `a`.
fn refusal(of_a: Option<&str>, of_b: Option<&str>) -> String {
    let (a, b) = places(of_a, of_b);
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(4096).unwrap();
    let _export = exporter.export(region).name("x").grant(Who::SameUser, Rights::all()).open();
    let import = importer.import("x").node("a").timeout(PATIENCE.unwrap()).open();
    import.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_fabric_that_only_one_node_names_is_refused_with_what_each_says() {
    let error = refusal(None, Some("net"));
    assert!(error.contains("provider none here, \"net\" there"), "{error}");
    let error = refusal(Some("net"), None);
    assert!(error.contains("provider \"net\" here, none there"), "{error}");
}

#[test]
fn two_nodes_with_different_providers_do_not_meet() {
    let error = refusal(Some("tcp;ofi_rxm"), Some("net"));
    assert!(error.contains("another provider than ours"), "{error}");
}

#[test]
fn a_provider_that_is_not_there_is_named_with_the_remedy() {
    let error = refusal(Some("nosuch"), Some("nosuch"));
    assert!(error.contains("no provider \"nosuch\"") && error.contains("fi_info"), "{error}");
}

/// `shm` of libfabric offers all that we ask for, and has no descriptor by which its end could sleep.
#[test]
fn a_provider_that_is_there_and_cannot_carry_packets_is_named_with_the_remedy() {
    let error = refusal(Some("shm"), Some("shm"));
    assert!(error.contains("libfabric's shm cannot carry packets"), "{error}");
    assert!(error.contains("wait for completions") && error.contains("over TCP then"), "{error}");
}

/// Processor time of a task, in the kernel's ticks of 10 ms.
fn ticks(stat: &str) -> u64 {
    let text = std::fs::read_to_string(stat).unwrap_or_default();
    // Behind the name, which may have anything in it: the state is field 3, the times are 14 and 15.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_ascii_whitespace().skip(11).take(2).map(|it| it.parse::<u64>().unwrap()).sum()
}

/// Those of both daemons, and of this process's threads that hear from other nodes.
fn used(a: &Place, b: &Place) -> u64 {
    let daemons = [a, b].map(|place| ticks(&format!("/proc/{}/stat", place.daemon.pid())));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let hear = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "vmmc-net")
    });
    daemons.iter().sum::<u64>()
        + hear.map(|task| ticks(task.join("stat").to_str().unwrap())).sum::<u64>()
}

/// Whatever a provider leaves in its descriptors.
#[test]
fn nobody_polls_where_nothing_is_said() {
    for provider in ["net", "tcp;ofi_rxm"] {
        let (a, b) = places(Some(provider), Some(provider));
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let region = Region::new(4096).unwrap();
        let export = exporter.export(region).name("x").grant(Who::SameUser, Rights::all()).open();
        let export = export.unwrap();
        let import = importer.import("x").node("a").rights(Rights::WRITE);
        let import = import.timeout(PATIENCE.unwrap()).open().unwrap();
        for round in 1..=100u64 {
            import.send(0, &round.to_ne_bytes()).unwrap();
            import.fence().unwrap();
        }
        common::until(&format!("all sleep, over {provider}"), || {
            let before = used(&a, &b);
            std::thread::sleep(Duration::from_millis(500));
            used(&a, &b).saturating_sub(before) <= 5 // one may have ended meanwhile
        });
        // And are woken by what comes.
        import.flag64(8).unwrap().signal(7).unwrap();
        assert_eq!(export.flag64(8).unwrap().wait_until(|it| it == 7, PATIENCE).unwrap(), 7);
        let mut got = [0; 8];
        export.read(0, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), 100);
    }
}

/// Whoever knew a key could write: it is in no log and no debugging output.
#[test]
fn a_meeting_does_not_show_its_key() {
    let meeting = vmmc::control::network::Meeting {
        provider: "net".to_owned(),
        address: vec![1, 2],
        key: 0x1234_5678,
        base: 0,
    };
    let text = format!("{meeting:?}");
    assert!(!text.contains("305419896") && text.contains("net"), "{text}");
}

#[test]
fn second_process() {
    common::second_process(&[("cut off", cut_off_part)]);
}

/// As when the fabric's cable is pulled and the other network's is not: nothing that comes over the TCP connections to other
/// addresses than this one is heard.
fn cut_off_all_but(address: &str) {
    for fd in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number = fd.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: what is closed meanwhile is no socket any more, and nothing is done to it.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(Some(peer)) = rustix::net::getpeername(fd) else { continue };
        let Ok(peer) = SocketAddr::try_from(peer) else { continue };
        if peer.to_string() != address {
            proxy::deafen(fd);
        }
    }
}

fn cut_off_part(args: &[String]) {
    let import =
        Node::connect().unwrap().import("x").node("a").rights(Rights::WRITE | Rights::READ);
    let import = import.timeout(PATIENCE.unwrap()).open().unwrap();
    import.fence().unwrap();
    common::say("imported");
    common::pause();
    cut_off_all_but(&args[0]);
    let end = import.fence();
    assert!(
        matches!(end, Err(WaitError::Closed(it)) if it.reason == CloseReason::Unreachable),
        "{end:?}"
    );
    let end = import.flag32(0).unwrap().wait_until(|value| value == 1, PATIENCE);
    assert!(matches!(end, Err(WaitError::Closed(_))), "{end:?}");
    common::say("has heard");
    common::pause();
}

/// `net` of libfabric 1.17 tells nobody that its connection is lost, `ofi_rxm` when its kernel gives up.
fn a_silent_fabric_is_missed_by_both_ends(provider: &str) {
    let (a, b) = places(Some(provider), Some(provider));
    let export = common::export(&a.daemon.node(), "x", 4096);
    let mut second = b.daemon.second("cut off", &[&a.address]);
    second.expect("imported");
    second.go_on();
    second.expect("has heard");
    let end = export.flag32(0).unwrap().wait_until(|value| value == 1, PATIENCE);
    assert!(
        matches!(end, Err(WaitError::Closed(it)) if it.reason == CloseReason::PeerDied),
        "{end:?}"
    );
}

#[test]
fn a_fabric_that_goes_silent_beside_a_healthy_connection_is_missed_over_net() {
    a_silent_fabric_is_missed_by_both_ends("net");
}

#[test]
fn a_fabric_that_goes_silent_beside_a_healthy_connection_is_missed_over_rxm() {
    a_silent_fabric_is_missed_by_both_ends("tcp;ofi_rxm");
}
