//! What the cluster files say of a fabric, and what becomes of it when they disagree. That packets go
//! over it is shown by `engines`.

#[path = "support/cluster.rs"]
mod cluster;
mod common;

use cluster::{KEY, Place, address_of, node_over};
use common::PATIENCE;
use vmmc::{Region, Rights, Who};

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
