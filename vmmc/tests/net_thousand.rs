//! A thousand nodes with a daemon each, of which one talks to all others: what that costs is counted.

#[path = "support/cluster.rs"]
mod cluster;
mod common;

use cluster::{KEY, Place, address, node};
use common::{PATIENCE, descriptors, export, resident, until};
use std::time::Instant;
use vmmc::{Export, Import, Node, Rights};

const LEN: usize = 4096;

/// A node that the first one, the hub, talks to, with a process of its own.
struct Member {
    place: Place,
    node: Node,
    export: Export,
    /// Of the hub's memory.
    import: Option<Import>,
}

/// What a process holds.
struct Held {
    descriptors: usize,
    kib: usize,
}

fn held(pid: u32) -> Held {
    Held { descriptors: descriptors(pid), kib: resident(pid) }
}

/// How long one word takes to a node and its acknowledgement back, at the median of a hundred.
fn there_and_back(import: &Import) -> std::time::Duration {
    let once = |_| {
        let start = Instant::now();
        import.send(0, &1u64.to_ne_bytes()).unwrap();
        import.fence().unwrap();
        start.elapsed()
    };
    let mut all: Vec<_> = (0..100).map(once).collect();
    all.sort();
    all[50]
}

#[test]
#[ignore = "a thousand daemons; ci/scale runs it"]
fn scale_a_node_talks_to_a_thousand_others() {
    let nodes = std::env::var("VMMC_SCALE_NODES").map_or(1000, |it| it.parse().expect("a number"));
    let (hub_at, addresses): (String, Vec<String>) =
        (address(), (0..nodes).map(|_| address()).collect());
    let names: Vec<String> = (0..nodes).map(|i| format!("m{i}")).collect();
    let known: Vec<_> =
        names.iter().zip(&addresses).map(|(n, at)| (n.as_str(), at.as_str())).collect();
    let start = Instant::now();
    let hub = node("hub", &hub_at, &known, Some(KEY));
    let process = hub.daemon.node();
    let board = export(&process, "board", 8 * nodes + 8);
    let mut members: Vec<Member> = known
        .iter()
        .map(|&(name, at)| {
            let place = node(name, at, &[("hub", &hub_at)], Some(KEY));
            let node = place.daemon.node();
            let export = export(&node, "own", LEN);
            Member { place, node, export, import: None }
        })
        .collect();
    println!("{nodes} daemons and processes started in {:.1?}", start.elapsed());
    let (us, daemon) = (std::process::id(), hub.daemon.pid());
    let before = held(daemon);

    // Everybody imports from the hub, and writes a word of its own there.
    let start = Instant::now();
    let import = |node: &Node, name: &str, of: &str| {
        node.import(name).node(of).rights(Rights::WRITE).timeout(PATIENCE.unwrap()).open().unwrap()
    };
    let mut alone = None;
    for member in &mut members {
        let import = import(&member.node, "board", "hub");
        alone.get_or_insert_with(|| there_and_back(&import));
        member.import = Some(import);
    }
    println!("all import from one: {:.1?} each", start.elapsed() / nodes as u32);
    for (i, member) in members.iter().enumerate() {
        let import = member.import.as_ref().unwrap();
        import.send(8 * i + 8, &(i as u64 + 1).to_ne_bytes()).unwrap();
    }
    for (i, member) in members.iter().enumerate() {
        member.import.as_ref().unwrap().fence().unwrap();
        let mut word = [0; 8];
        board.read(8 * i + 8, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), i as u64 + 1, "node {i}");
    }
    let now = held(daemon);
    println!(
        "the daemon that all write to: {} to {} descriptors, {} to {} KiB",
        before.descriptors, now.descriptors, before.kib, now.kib
    );
    println!(
        "a word there and back: {:.1?} with one connection, {:.1?} with {nodes}",
        alone.unwrap(),
        there_and_back(members[0].import.as_ref().unwrap())
    );

    // And the hub's process imports from everybody.
    let (before, start) = (held(us), Instant::now());
    let imports: Vec<Import> = names.iter().map(|name| import(&process, "own", name)).collect();
    println!("one imports from all: {:.1?} each", start.elapsed() / nodes as u32);
    for (i, import) in imports.iter().enumerate() {
        import.send(0, &(i as u64 + 1).to_ne_bytes()).unwrap();
    }
    for (i, (import, member)) in imports.iter().zip(&members).enumerate() {
        import.fence().unwrap();
        let mut word = [0; 8];
        member.export.read(0, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), i as u64 + 1, "node {i}");
    }
    let now = held(us);
    println!(
        "the process that writes to all: {} more descriptors, {} KiB more, the exporters' ends included",
        now.descriptors - before.descriptors,
        now.kib - before.kib
    );

    // Every tenth machine goes down at once. The others notice nothing, and the hub keeps nothing of it.
    let links = board.importers().len();
    assert_eq!(links, nodes);
    let gone = members.iter_mut().step_by(10).map(|member| member.place.daemon.kill()).count();
    for (i, member) in members.iter().enumerate().filter(|(i, _)| i % 10 != 0) {
        let import = member.import.as_ref().unwrap();
        import.send(8 * i + 8, &(i as u64 + 7).to_ne_bytes()).unwrap();
        import.fence().unwrap();
    }
    until("the imports from dead nodes have ended", || {
        imports.iter().step_by(10).all(|import| import.send(0, &[0; 8]).is_err())
    });
    println!("{gone} nodes died, {} others went on", nodes - gone);
    drop(imports);
    drop(members);
    until("the links are gone", || board.importers().is_empty());
}
