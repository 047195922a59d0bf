//! Thousands of imports between two nodes, over one connection: what each costs is counted.

#[path = "support/cluster.rs"]
mod cluster;
mod common;

use common::{PATIENCE, descriptors, export, resident, until};
use vmmc::counters::index::NET_PACKETS;
use vmmc::{Import, Rights};

const EXPORTS: usize = 50;
const IMPORTS: usize = 5000;
const LEN: usize = 4096;

/// Connections of the daemons' port that this process has.
fn connections() -> usize {
    let own = |entry: std::io::Result<std::fs::DirEntry>| {
        let link = std::fs::read_link(entry.ok()?.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some(inode)
    };
    let inodes: Vec<String> = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(own).collect();
    let tcp = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let inode = |line: &str| line.split_ascii_whitespace().nth(9).map(str::to_owned);
    tcp.lines().filter_map(inode).filter(|it| inodes.contains(it)).count()
}

#[test]
#[ignore = "a minute of load; ci/scale runs it"]
fn scale_five_thousand_imports_share_one_connection_and_no_descriptor_of_their_process() {
    let (a, b) = cluster::pair();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let exports: Vec<_> = (0..EXPORTS).map(|i| export(&exporter, &format!("x{i}"), LEN)).collect();
    let import = |i: usize| -> Import {
        let import = importer.import(format!("x{}", i % EXPORTS).as_str()).node("a");
        import.rights(Rights::WRITE).timeout(PATIENCE.unwrap()).open().unwrap()
    };
    let place = |i: usize| i / EXPORTS * 8;
    let first = import(0);
    let us = std::process::id();
    let before = [us, a.daemon.pid(), b.daemon.pid()].map(|pid| (descriptors(pid), resident(pid)));
    assert_eq!(connections(), 1, "the descriptor that the daemon handed over");
    let imports: Vec<Import> = (0..IMPORTS).map(import).collect();
    for (i, import) in imports.iter().enumerate() {
        import.send(place(i), &(i as u64 + 1).to_ne_bytes()).unwrap();
    }
    assert!(importer.counters().get(NET_PACKETS) >= IMPORTS as u64);
    imports.iter().take(EXPORTS).for_each(|import| import.fence().unwrap());
    for (i, _) in imports.iter().enumerate() {
        let mut word = [0; 8];
        exports[i % EXPORTS].read(place(i), &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), i as u64 + 1, "import {i}");
    }
    assert_eq!(connections(), 1);
    for (who, pid, (fds, kib)) in [
        ("importer and exporter", us, before[0]),
        ("exporter's daemon", a.daemon.pid(), before[1]),
        ("importer's daemon", b.daemon.pid(), before[2]),
    ] {
        let (now, memory) = (descriptors(pid), resident(pid));
        println!("{who}: {fds} to {now} descriptors, {kib} to {memory} KiB");
    }
    // A link costs the exporter's daemon two, and the importer's nothing.
    assert!(descriptors(a.daemon.pid()) <= before[1].0 + 2 * IMPORTS + 8);
    assert!(
        descriptors(b.daemon.pid()) <= before[2].0 + 64, // it may open some of its own still
        "the importer's daemon keeps something"
    );
    drop(imports);
    until("all links are gone", || exports.iter().all(|export| export.importers().len() <= 1));
    drop(first);
    until("their descriptors too", || {
        descriptors(us) <= before[0].0 && descriptors(a.daemon.pid()) <= before[1].0 + 8
    });
}
