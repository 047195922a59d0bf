//! H21: exported pages and what the kernel does with them: memory that runs out, ranges that are unmapped or moved. What is
//! sent arrives in the exported pages or nowhere, and whoever is not concerned notices nothing.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/engine.rs"]
#[macro_use]
mod engine;
#[path = "support/proxy.rs"]
mod proxy;

use common::{PATIENCE, Second, pause, say, until};
use engine::World;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;
use vmmc::sys::mmap::map_private_anonymous;
use vmmc::{CloseReason, Node, Region, Rights, Who};

#[test]
fn second_process() {
    common::second_process(&[("hungry", hungry), ("greedy", greedy)]);
}

/// A control group with so much memory for its processes; `None` where this user or machine has none.
struct Group(PathBuf);

impl Group {
    fn with(bytes: usize) -> Option<Group> {
        static LAST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("vmmc-test-{}-{number}", std::process::id());
        // The first version's controller, then the second's.
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
        ];
        places.into_iter().find_map(|(root, limit, swap)| {
            let group = Group(PathBuf::from(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            let swap_bytes = if swap == "memory.swap.max" { 0 } else { bytes };
            let _ = std::fs::write(group.0.join(swap), swap_bytes.to_string());
            Some(group)
        })
    }

    fn add(&self, process: &Second) {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

const MIB: usize = 1 << 20;

/// Exports, and takes memory until it is killed.
fn hungry(_: &[String]) {
    let node = Node::connect().unwrap();
    let export = node.export(Region::new(4 * MIB).unwrap()).name("hungry");
    let _export = export.grant(Who::SameUser, Rights::all()).open().unwrap();
    say("exported");
    pause();
    let mut taken = Vec::new();
    loop {
        taken.push(vec![1u8; MIB]);
        std::hint::black_box(&taken);
    }
}

/// The kernel's choice among the processes of a group that has no memory left.
fn the_end_of_an_exporter_without_memory_is_a_death_like_any_other(world: &World) {
    let mut second = world.exporters_daemon().second("hungry", &[]);
    second.expect("exported");
    let Some(group) = Group::with(64 * MIB) else {
        eprintln!("not run: control groups of memory need root");
        return;
    };
    let import = world.importing("hungry").timeout(PATIENCE.unwrap()).open().unwrap();
    let (bystander, to_bystander) = (world.export(4096), world.import());
    group.add(&second);
    second.go_on();
    let mut round = 0u32;
    until("it is killed", || {
        round += 1;
        let sent = import.send_fenced(4096, &round.to_ne_bytes().repeat(4096));
        let mut back = [0; 4];
        if sent.is_ok() && import.read(4096 + 4 * 4095, &mut back).is_ok() {
            assert_eq!(u32::from_ne_bytes(back), round);
        }
        import.check_open().is_err()
    });
    assert_eq!(import.check_open().unwrap_err().reason, CloseReason::PeerDied);
    to_bystander.flag32(0).unwrap().signal(round).unwrap();
    let seen = bystander.flag32(0).unwrap().wait_until(|value| value == round, PATIENCE);
    assert_eq!(seen.unwrap(), round);
}

/// Wants to export more than its group has.
fn greedy(_: &[String]) {
    let node = Node::connect().unwrap();
    say("connected");
    pause();
    let refused = Region::new(256 * MIB).unwrap_err().to_string();
    say(&format!("refused: {refused}"));
    let export = node.export(Region::new(MIB).unwrap()).name("modest");
    let _export = export.grant(Who::SameUser, Rights::all()).open().unwrap();
    pause();
}

/// Pages are there from the start: whoever sends never finds that there are none.
#[test]
fn a_region_that_does_not_fit_is_refused_or_ends_who_wants_it_and_no_sender() {
    let world = World::shm();
    let mut second = world.exporters_daemon().second("greedy", &[]);
    second.expect("connected");
    let Some(group) = Group::with(64 * MIB) else {
        eprintln!("not run: control groups of memory need root");
        return;
    };
    group.add(&second);
    second.go_on();
    // The kernel refused the pages and the process went on, or it was killed.
    until("it is over", || match world.importing("modest").timeout(Duration::ZERO).open() {
        Ok(import) => import.send(0, &[1; 4096]).is_ok(),
        Err(_) => second.child.try_wait().unwrap().is_some(),
    });
}

/// Some pages of the program's own.
fn own(len: usize) -> NonNull<u8> {
    map_private_anonymous(len).unwrap()
}

fn holds(start: NonNull<u8>, len: usize, byte: u8) -> bool {
    // SAFETY: pages of this test's own, which nobody writes to now.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.iter().all(|it| *it == byte)
}

/// The program takes a page back and has something else there; another one it moves.
fn what_lies_where_exported_pages_were_is_never_written(world: &World) {
    let page = rustix::param::page_size();
    let (start, spare) = (own(4 * page), own(page));
    // SAFETY: pages that only this test knows; no references into them.
    let region = unsafe { Region::adopt(start, 4 * page) }.unwrap();
    let export = world.exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = export.open().unwrap();
    let import = world.import();
    import.send_fenced(0, &vec![1; 4 * page]).unwrap();
    let place = |number: usize| start.as_ptr().wrapping_add(number * page).cast::<libc::c_void>();
    // Other memory in the place of the second page.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: over a page of this test's own, to which nobody has a reference.
    let other = unsafe { libc::mmap(place(1), page, access, flags, -1, 0) };
    assert_eq!(other, place(1));
    // The third page goes elsewhere; private memory takes its place.
    let to = spare.as_ptr().cast::<libc::c_void>();
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: from a page of this test's own over another one.
    let moved = unsafe { libc::mremap(place(2), page, page, how, to) };
    assert_eq!(moved, to);
    // SAFETY: where nothing is any more.
    let other = unsafe { libc::mmap(place(2), page, access, flags, -1, 0) };
    assert_eq!(other, place(2));
    import.send_fenced(0, &vec![2; 4 * page]).unwrap();
    let at = |number| NonNull::new(place(number).cast::<u8>()).unwrap();
    assert!(holds(at(0), page, 2) && holds(at(3), page, 2));
    assert!(holds(at(1), page, 0) && holds(at(2), page, 0), "a stray write");
    assert!(holds(spare, page, 2), "pages that were moved are exported where they are");
    let mut back = vec![0; 4 * page];
    import.read(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 2));
    export.abandon();
    assert!(import.send_fenced(0, &[3; 8]).is_err());
    assert!(holds(at(1), page, 0) && holds(at(2), page, 0));
}

suite!(
    the_end_of_an_exporter_without_memory_is_a_death_like_any_other,
    what_lies_where_exported_pages_were_is_never_written,
);
