//! More nodes than two, each of which imports from all others, over each engine between nodes. (Programs on
//! four and sixteen nodes, in namespaces of their own, are in `ci/nodes`.)

#[path = "support/cluster.rs"]
mod cluster;
mod common;

use cluster::{KEY, Place, address, node_over};
use common::{PATIENCE, until};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::error::ImportError;
use vmmc::{Combining, Event, Export, Import, Node, Region, Rights, Who};

const NAMES: [&str; 3] = ["n0", "n1", "n2"];
const SLOT: usize = 5000;

/// A node with a process that exports, and that imports from each other node.
struct Member {
    place: Place,
    node: Node,
    export: Export,
    /// By exporter; none from itself.
    imports: Vec<Option<Import>>,
}

fn members(provider: Option<&str>) -> Vec<Member> {
    members_with(provider, SLOT * NAMES.len())
}

/// Members whose exports are so long.
fn members_with(provider: Option<&str>, len: usize) -> Vec<Member> {
    let addresses = NAMES.map(|_| address());
    let others: Vec<_> = NAMES.iter().copied().zip(addresses.iter().map(String::as_str)).collect();
    let mut members: Vec<_> = others
        .iter()
        .map(|&(name, at)| {
            let place = node_over(name, at, &others, Some(KEY), provider);
            let node = place.daemon.node();
            let region = Region::new(len).unwrap();
            let export = node.export(region).name("x").grant(Who::SameUser, Rights::all());
            let export = export.queue().open().unwrap();
            Member { place, node, export, imports: Vec::new() }
        })
        .collect();
    for (i, member) in members.iter_mut().enumerate() {
        let import =
            |name: &str| member.node.import("x").node(name).timeout(PATIENCE.unwrap()).open();
        let imports = NAMES.iter().enumerate();
        let imports = imports.map(|(from, name)| (from != i).then(|| import(name).unwrap()));
        member.imports = imports.collect();
    }
    members
}

/// A file that is written anew counts, and nothing ends by it.
#[test]
fn a_node_is_added_and_taken_out_while_the_daemons_run() {
    let [a, b, c] = NAMES.map(|_| address());
    let (first, second) = (
        node_over("a", &a, &[("b", &b)], Some(KEY), None),
        node_over("b", &b, &[("a", &a)], Some(KEY), None),
    );
    let export = |node: &Node| {
        let region = Region::new(4096).unwrap();
        node.export(region).name("x").grant(Who::SameUser, Rights::all()).open().unwrap()
    };
    let (at_a, at_b) = (first.daemon.node(), second.daemon.node());
    let kept = export(&at_a);
    let import = at_b.import("x").node("a").timeout(PATIENCE.unwrap()).open().unwrap();
    let third = node_over("c", &c, &[("a", &a)], Some(KEY), None);
    let at_c = third.daemon.node();
    let _far = export(&at_c);
    let ask = || at_a.import("x").node("c").timeout(Duration::ZERO).open();
    let unknown = |asked: Result<Import, ImportError>| {
        matches!(asked, Err(ImportError::Refused(Refusal::UnknownNode { .. })))
    };
    assert!(unknown(ask()));
    let file = first.file();
    let text = std::fs::read_to_string(&file).unwrap();
    // As editors do it: another file takes its place.
    let write = |text: &str| {
        let other = file.with_extension("new");
        std::fs::write(&other, text).unwrap();
        std::fs::rename(&other, &file).unwrap();
    };
    write(&text.replace("[nodes]\n", &format!("[nodes]\nc = {c:?}\n")));
    until("the new node is known", || !unknown(ask()));
    let far = at_a.import("x").node("c").timeout(PATIENCE.unwrap()).open().unwrap();
    far.send_fenced(0, b"to the new node").unwrap();
    import.send_fenced(0, b"still").unwrap();
    let mut seen = [0; 5];
    kept.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"still");
    // Nonsense changes nothing.
    write("node = 7");
    write(&text);
    until("it is known no more", || unknown(ask()));
    far.send_fenced(0, b"goes on").unwrap();
    import.send_fenced(0, b"still").unwrap();
}

/// An import that waits for its export is asked for again where a daemon has ended meanwhile, the other node's or this one's. A node
/// that is asked for by itself is told so.
#[test]
fn a_waiting_import_outlives_the_daemons() {
    let [a, b, _] = NAMES.map(|_| address());
    let mut first = node_over("a", &a, &[("b", &b)], Some(KEY), None);
    let mut second = node_over("b", &b, &[("a", &a)], Some(KEY), None);
    let (at_a, at_b) = (first.daemon.node(), second.daemon.node());
    let waiting = at_a.import("late").node("b").timeout(PATIENCE.unwrap()).start().unwrap();
    let waiting = std::thread::spawn(move || waiting.wait());
    for place in [&mut second, &mut first] {
        // Too short for the question to get there, and the less is tested.
        std::thread::sleep(Duration::from_millis(300));
        let file = place.file();
        place.daemon.kill();
        place.daemon.restart_with(&["--cluster", file.to_str().unwrap()]);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    let region = Region::new(4096).unwrap();
    let export = at_b.export(region).name("late").grant(Who::SameUser, Rights::all());
    let export = export.open().unwrap();
    let import = waiting.join().unwrap().unwrap();
    import.send_fenced(0, b"here").unwrap();
    let mut seen = [0; 4];
    export.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"here");
    let own = at_a.import("x").node("a").timeout(Duration::ZERO).open();
    assert!(matches!(own, Err(ImportError::Refused(Refusal::OwnNode { .. }))), "{own:?}");
}

/// It does not listen to other nodes for a moment.
#[test]
fn imports_are_had_while_the_other_daemon_is_replaced() {
    let [a, b, _] = NAMES.map(|_| address());
    let first = node_over("a", &a, &[("b", &b)], Some(KEY), None);
    let mut second = node_over("b", &b, &[("a", &a)], Some(KEY), None);
    let (at_a, at_b) = (first.daemon.node(), second.daemon.node());
    let region = Region::new(4096).unwrap();
    let export = at_b.export(region).name("x").grant(Who::SameUser, Rights::all());
    let _export = export.open().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| {
            let mut had = 0;
            while !is_over.load(Ordering::Relaxed) {
                at_a.import("x").node("b").timeout(PATIENCE.unwrap()).open().unwrap();
                had += 1;
            }
            had
        });
        let file = second.file();
        for _ in 0..10 {
            second.daemon.replace_with(&["--cluster", file.to_str().unwrap()]);
            std::thread::sleep(Duration::from_millis(100));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(importing.join().unwrap() > 0);
    });
}

/// What member `from` writes to member `to` in a round.
fn message(from: usize, to: usize, round: u8) -> Vec<u8> {
    let first = (from * NAMES.len() + to) as u8;
    (0..SLOT).map(|i| first.wrapping_mul(37).wrapping_add(round) ^ (i >> 3) as u8).collect()
}

/// Everybody writes to everybody, and is told from whom.
fn round(members: &[Member], round: u8) {
    for (from, member) in members.iter().enumerate() {
        for (to, import) in member.imports.iter().enumerate().take(members.len()) {
            let Some(import) = import else { continue };
            import.send_with_notify(from * SLOT, &message(from, to, round)).unwrap();
        }
    }
    for (to, member) in members.iter().enumerate() {
        let mut heard = vec![to];
        while heard.len() < members.len() {
            let told = member.export.next_notification(PATIENCE).unwrap();
            // Ends of links from a node that has gone may come between.
            let Event::Message { offset, len: SLOT, .. } = told.event else { continue };
            let from = offset / SLOT;
            let name = member.node.importer_node(told.link);
            assert_eq!(name.as_deref(), NAMES.get(from).copied());
            let mut seen = vec![0; SLOT];
            member.export.read(offset, &mut seen).unwrap();
            assert!(seen == message(from, to, round), "{from} to {to}, round {round}");
            heard.push(from);
        }
        heard.sort_unstable();
        assert!(heard.into_iter().eq(0..members.len()), "each once");
    }
}

fn each_hears_every_other_and_outlives_one(provider: Option<&str>) {
    let mut members = members(provider);
    for number in 0..3 {
        round(&members, number);
    }
    let mut gone = members.pop().unwrap();
    gone.place.daemon.kill();
    for member in &members {
        let import = member.imports.last().unwrap().as_ref().unwrap();
        until("the lost node is known", || import.check_open().is_err());
    }
    for number in 3..6 {
        round(&members, number);
    }
}

#[test]
fn each_hears_every_other_and_outlives_one_over_tcp() {
    each_hears_every_other_and_outlives_one(None);
}

#[test]
fn each_hears_every_other_and_outlives_one_over_a_fabric_rxm() {
    each_hears_every_other_and_outlives_one(Some("tcp;ofi_rxm"));
}

#[test]
fn each_hears_every_other_and_outlives_one_over_a_fabric_net() {
    each_hears_every_other_and_outlives_one(Some("net"));
}

/// Numbers that look random and are the same in each run (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Messages of each pair.
const COUNT: usize = 300;
/// Room for each, over a page's end now and then.
const ROOM: usize = 5000;

/// Message `number` of a pair: its place, and its bytes, which are of it alone.
fn numbered(from: usize, to: usize, number: usize) -> (usize, Vec<u8>) {
    let mut random = Random(1 + (number * 64 + from * 8 + to) as u64 * 0x9e37_79b9);
    let len = 8 + if number.is_multiple_of(3) { random.below(ROOM - 8) } else { random.below(64) };
    let mut bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    // What the notification tells of it.
    bytes[len - 8..].copy_from_slice(&(number as u64).to_ne_bytes());
    ((from * COUNT + number) * ROOM, bytes)
}

/// Sends one, by whichever way.
fn send_somehow(import: &Import, at: usize, bytes: &[u8], way: usize) {
    let last = u64::from_ne_bytes(*bytes.last_chunk().unwrap());
    match way {
        0 => return import.send_with_notify(at, bytes).unwrap(),
        1 => {
            let (front, back) = bytes.split_at(bytes.len() / 2);
            import.send_vectored(at, &[IoSlice::new(front), IoSlice::new(back)]).unwrap();
        }
        2 => {
            let writer = import.auto_update(Combining::ON).unwrap();
            for (i, part) in bytes.chunks(100).enumerate() {
                writer.store(at + 100 * i, part).unwrap();
            }
            writer.flush().unwrap();
        }
        _ => import.send(at, bytes).unwrap(),
    }
    import.send_notification(at, bytes.len(), last).unwrap();
}

/// H17: whatever goes between whom at the same time, what one node sends to another comes whole and in its order, and
/// nobody waits for ever.
fn all_to_all_comes_in_order(provider: Option<&str>) {
    let members = members_with(provider, NAMES.len() * COUNT * ROOM);
    std::thread::scope(|scope| {
        for (me, member) in members.iter().enumerate() {
            scope.spawn(move || {
                let mut random = Random(0x1234_5678 + me as u64);
                let mut next = [0; NAMES.len()];
                next[me] = COUNT;
                while next.iter().any(|&number| number < COUNT) {
                    let to = random.below(NAMES.len());
                    if next[to] == COUNT {
                        continue;
                    }
                    let (at, bytes) = numbered(me, to, next[to]);
                    let import = member.imports[to].as_ref().unwrap();
                    send_somehow(import, at, &bytes, random.below(4));
                    next[to] += 1;
                }
            });
            scope.spawn(move || {
                let mut next = [0; NAMES.len()];
                next[me] = COUNT;
                while next.iter().any(|&number| number < COUNT) {
                    let told = member.export.next_notification(PATIENCE).unwrap();
                    let name = member.node.importer_node(told.link).unwrap();
                    let from = NAMES.iter().position(|&it| it == name).unwrap();
                    let (at, bytes) = numbered(from, me, next[from]);
                    let (len, last_word) = (bytes.len(), next[from] as u64);
                    let expected = Event::Message { offset: at, len, last_word };
                    assert_eq!(told.event, expected, "from {name} to {}", NAMES[me]);
                    let mut seen = vec![0; len];
                    member.export.read(at, &mut seen).unwrap();
                    assert!(seen == bytes, "{name} to {}, message {}", NAMES[me], next[from]);
                    next[from] += 1;
                }
            });
        }
    });
}

#[test]
fn all_to_all_comes_in_order_over_tcp() {
    all_to_all_comes_in_order(None);
}

#[test]
fn all_to_all_comes_in_order_over_a_fabric_rxm() {
    all_to_all_comes_in_order(Some("tcp;ofi_rxm"));
}

#[test]
fn all_to_all_comes_in_order_over_a_fabric_net() {
    all_to_all_comes_in_order(Some("net"));
}
