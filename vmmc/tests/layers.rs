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

/// D1: buffers are managed by the libraries, each in its own way.
#[test]
fn buffers_are_managed_above_this_crate() {
    let mut left = vec![tree().join("vmmc/src")];
    let mut modules = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => modules.push(entry.path()),
            }
        }
    }
    assert!(modules.len() > 30, "{modules:?}");
    for module in &modules {
        let text = std::fs::read_to_string(module).unwrap();
        let name = module.file_stem().unwrap().to_string_lossy().into_owned();
        for word in ["Ring", "Stream", "Lane"] {
            let kinds = ["struct", "enum", "trait"].map(|kind| format!("pub {kind} {word}"));
            let defines = kinds.iter().any(|start| {
                text.match_indices(start.as_str()).any(|(at, _)| {
                    let rest = &text[at + start.len()..];
                    !rest.starts_with(|next: char| next.is_lowercase())
                })
            });
            // Settings and messages speak of streams; neither holds one.
            let speaks = name == "config" || name == "message";
            assert!(!defines || speaks, "{module:?} defines a {word}");
        }
        assert!(!["ring", "stream", "slots"].contains(&name.as_str()), "{module:?}");
    }
}
