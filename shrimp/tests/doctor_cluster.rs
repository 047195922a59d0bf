//! What `shrimp doctor` says of the nodes of a cluster: two that are well, and each way in which one is not.

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod tool;

use cluster::{KEY, Place, address_of, node, node_over, node_with};
use common::PATIENCE;
use serde_json::Value;
use vmmc::{Region, Rights, Who};

/// The findings about the cluster that the daemon of a node leads to.
fn findings(place: &Place) -> Vec<Value> {
    of_daemon(&place.daemon)
}

fn of_daemon(daemon: &common::Daemon) -> Vec<Value> {
    let mut command = tool::shrimp(std::path::Path::new("/"));
    command.env("VMMC_SOCKET", daemon.socket()).args(["doctor", "--json"]);
    let ended = tool::run(&mut command);
    let report: Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let of_cluster = |it: &&Value| it["area"] == "Cluster";
    let found = report["findings"].as_array().unwrap().iter().filter(of_cluster);
    let found: Vec<Value> = found.cloned().collect();
    let well = found.iter().all(|it| it["state"] != "attention");
    assert!(well || (report["healthy"] == false && ended.code() == 1), "{found:#?}");
    found
}

/// The finding about `what` in this state, with these words in what was found, and in the remedy.
#[track_caller]
fn says(findings: &[Value], what: &str, state: &str, found: &[&str], remedy: &str) {
    let text = |it: &Value, field: &str| it[field].as_str().unwrap_or_default().to_owned();
    let fits = |it: &&Value| {
        it["what"] == what
            && it["state"] == state
            && found.iter().all(|word| text(it, "found").contains(word))
            && text(it, "remedy").contains(remedy)
    };
    assert!(findings.iter().any(|it| fits(&it)), "no {what}, {state}, {found:?}: {findings:#?}");
}

/// Two nodes that listen, `a` and `b`, with more in the cluster file of each, and keys of their own.
fn pair(keys: [Option<&str>; 2], more: [&str; 2]) -> (Place, Place) {
    tool::prepare();
    let (a, b) = (address_of("a"), address_of("b"));
    let nodes = (
        node_with("a", &a, &[("b", &b)], keys[0], more[0]),
        node_with("b", &b, &[("a", &a)], keys[1], more[1]),
    );
    nodes.0.wait_for_others();
    nodes.1.wait_for_others();
    nodes
}

#[test]
fn two_nodes_that_are_well_are_described_with_their_connections() {
    let (a, b) = pair([Some(KEY); 2], [""; 2]);
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(4096).unwrap();
    let export = exporter.export(region).name("x").grant(Who::SameUser, Rights::all()).open();
    let _export = export.unwrap();
    let import = importer.import("x").node("a").rights(Rights::WRITE);
    let _import = import.timeout(PATIENCE.unwrap()).open().unwrap();
    let found = findings(&b);
    let protocol = format!("protocol {}", vmmc::control::network::WIRE_VERSION);
    says(
        &found,
        "this node",
        "ok",
        &["\"b\" on", &b.address, "one of 2", &protocol, "over TCP"],
        "",
    );
    says(&found, "key", "ok", &["used"], "");
    let words = [&*a.address, "answers in", "proved the key", "1 there, 0 back", &protocol];
    says(&found, "node \"a\"", "ok", &words, "");
    says(&findings(&a), "node \"b\"", "ok", &[&b.address, "0 there, 1 back"], "");
}

#[test]
fn a_node_that_is_down_is_told_with_its_address_and_what_to_look_at() {
    let (mut a, b) = pair([Some(KEY); 2], [""; 2]);
    a.daemon.kill();
    let found = findings(&b);
    says(&found, "node \"a\"", "attention", &[&a.address, "refused"], "is its vmmcd running");
    says(&found, "this node", "ok", &["\"b\""], "");
}

#[test]
fn a_node_with_another_key_is_told_so_on_both_sides() {
    let other = KEY.replace("00", "01");
    let (a, b) = pair([Some(KEY), Some(&other)], [""; 2]);
    for (place, peer) in [(&a, "node \"b\""), (&b, "node \"a\"")] {
        says(&findings(place), peer, "attention", &["hung up on our proof"], "same key file");
    }
}

#[test]
fn nodes_without_a_key_hear_what_that_limits_and_how_to_make_one() {
    let (_a, b) = pair([None; 2], [""; 2]);
    let found = findings(&b);
    says(&found, "key", "info", &["loopback", "/dev/urandom"], "");
    says(&found, "node \"a\"", "ok", &["no key"], "");
}

#[test]
fn sealed_and_unsealed_nodes_do_not_fit_together() {
    let (a, b) = pair([Some(KEY); 2], ["[data]\nseal = true\n", ""]);
    says(&findings(&b), "node \"a\"", "attention", &["seal = false here, true there"], "[data]");
    says(&findings(&a), "node \"b\"", "attention", &["seal = true here, false there"], "[data]");
}

#[test]
fn fabrics_that_differ_or_are_not_there_are_told_with_the_remedy() {
    tool::prepare();
    let (a, b) = (address_of("a"), address_of("b"));
    let place = |name, at: &str, other: (&str, &str), provider| {
        node_over(name, at, &[other], Some(KEY), Some(provider))
    };
    let nodes = (place("a", &a, ("b", &b), "net"), place("b", &b, ("a", &a), "nosuch"));
    nodes.0.wait_for_others();
    nodes.1.wait_for_others();
    let found = findings(&nodes.1);
    says(&found, "this node", "ok", &["over libfabric's nosuch"], "");
    says(&found, "fabric", "attention", &["no provider \"nosuch\""], "fi_info");
    let differ = ["\"nosuch\" here, \"net\" there"];
    says(&found, "node \"a\"", "attention", &differ, "same [fabric]");
    let found = findings(&nodes.0);
    says(&found, "node \"b\"", "attention", &["no provider \"nosuch\""], "fi_info");
}

#[test]
fn an_address_at_which_another_node_answers_is_told() {
    tool::prepare();
    let (a, b) = (address_of("a"), address_of("b"));
    let place = node("a", &a, &[("b", &b)], Some(KEY));
    let lost = node("b", &b, &[("c", &a)], Some(KEY));
    place.wait_for_others();
    let found = findings(&lost);
    says(&found, "node \"c\"", "attention", &["this is node \"a\", not \"c\""], "cluster file");
}

#[test]
fn a_machine_alone_hears_in_one_line_how_to_make_a_cluster() {
    tool::prepare();
    let found = of_daemon(&common::Daemon::start());
    assert_eq!(found.len(), 1, "{found:#?}");
    says(&found, "nodes", "info", &["--cluster FILE", "key"], "");
}
