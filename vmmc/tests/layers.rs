//! V27, H22: the libraries stand on `vmmc` alone or on what lies between; arrows point down only;
//! nothing links the daemon.

use std::path::Path;

/// Members by layer, bottom first. A new member needs a place here.
const LAYERS: &[&[&str]] = &[
    &["vmmc", "xdr", "rpc-idl"],
    &["vmmc-ring"],
    &["vmmc-daemon", "compat-nx", "compat-sockets", "compat-sunrpc", "shrimp-rpc"],
    &["shrimp", "benches", "rpc-idl-tests"],
];

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("inside the tree")
}

fn layer(member: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&member))
}

/// Members that a manifest names in its dependencies, those of tests aside.
fn uses(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut counts = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let of_tests = line.contains("dev-dependencies");
            counts = line.ends_with("dependencies]") && !of_tests;
        } else if counts {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if layer(name).is_some() {
                found.push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_member_uses_only_lower_layers_and_none_the_daemon() {
    let workspace = std::fs::read_to_string(tree().join("Cargo.toml")).unwrap();
    let list = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let members: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"vmmc"), "{members:?}");
    for member in members {
        let own = layer(member).unwrap_or_else(|| panic!("{member} has no layer here"));
        let manifest = std::fs::read_to_string(tree().join(member).join("Cargo.toml")).unwrap();
        for used in uses(&manifest) {
            assert!(layer(&used) < Some(own), "{member} uses {used}, which is not below it");
            assert_ne!(used, "vmmc-daemon", "{member} links the daemon");
        }
    }
}
