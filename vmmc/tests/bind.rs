//! Automatic update at memory that the program has already (003, section 2.2: part of the own
//! address space is bound to an imported buffer): V9, V11, V12, H2.

mod common;

use common::{Daemon, export, import, pause, say};
use proptest::prelude::*;
use std::ptr::NonNull;
use vmmc::error::{BindError, Forked, RegionError, SendError, UnbindError, UnimportError};
use vmmc::mem::View;
use vmmc::{Initial, Node, Region, Rights};

#[test]
fn second_process() {
    common::second_process(&[("forks with a binding", forks_with_a_binding)]);
}

/// Pages of the program's own, which it has for ever.
struct Own(NonNull<u8>, usize);

impl Own {
    fn new(len: usize) -> Own {
        Own(vmmc::sys::mmap::map_private_anonymous(len).unwrap(), len)
    }

    fn view(&self) -> View<'_> {
        // SAFETY: mapped for ever; accessed through views and pointers only.
        unsafe { View::from_raw(self.0, self.1) }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        self.view().slice(offset, 1).unwrap().as_ptr()
    }

    fn text(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view().read(at, &mut bytes).unwrap();
        bytes
    }

    /// What the kernel says of the first page: "rw-s" or "rw-p", and of which file.
    fn mapping(&self) -> (String, String) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = self.0.as_ptr() as usize;
        let line = maps.lines().find(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&at)
        });
        let fields: Vec<&str> = line.expect("mapped").split_whitespace().collect();
        (fields[1].to_owned(), fields.get(5).copied().unwrap_or_default().to_owned())
    }
}

fn text(export: &vmmc::Export, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    export.read(at, &mut bytes).unwrap();
    bytes
}

/// V11, V12: stores to memory that existed before the bind propagate from the bind on and until the
/// unbind, at the address that the program knows; what the memory held is sent first.
#[test]
fn memory_that_exists_propagates_while_it_is_bound() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let export = export(&node, "bound in place", 3 * page);
    export.write(0, b"first page").unwrap();
    let import = import(&node, "bound in place");
    let own = Own::new(2 * page);
    own.view().write(5, b"mine").unwrap();
    own.view().write(2 * page - 4, b"last").unwrap();
    // SAFETY: pages of this test's own, for ever; no references into them.
    let binding = unsafe { import.bind_at(page..3 * page, own.0, Initial::Local) }.unwrap();
    assert_eq!(binding.as_ptr(), own.0);
    assert_eq!(binding.range(), page..3 * page);
    assert!(matches!(binding.signal64(2 * page - 4, 1), Err(SendError::OutOfBounds(_))));
    assert_eq!(text(&export, page + 5, 4), b"mine");
    assert_eq!(text(&export, 3 * page - 4, 4), b"last");
    assert_eq!(text(&export, 0, 10), b"first page", "nothing outside the range is touched");
    // SAFETY: inside the page; a plain store by a pointer that is older than the binding.
    unsafe { own.at(100).as_ptr().cast::<u64>().write(0x0102_0304_0506_0708) };
    assert_eq!(text(&export, page + 100, 8), 0x0102_0304_0506_0708u64.to_ne_bytes());
    // One set of pages: the exporter's stores appear here as well.
    export.write(page + 200, b"theirs").unwrap();
    assert_eq!(own.text(200, 6), b"theirs");
    // Bindings keep the import.
    let Err(UnimportError::Bound { count: 1, import }) = import.unimport() else { panic!() };

    drop(binding);
    assert_eq!(own.mapping(), ("rw-p".into(), String::new()), "private again, of no file");
    assert_eq!(own.text(5, 4), b"mine");
    assert_eq!(own.text(200, 6), b"theirs");
    own.view().write(5, b"gone").unwrap();
    export.write(page + 200, b"after!").unwrap();
    assert_eq!(text(&export, page + 5, 4), b"mine", "a store after the unbind propagated");
    assert_eq!(own.text(200, 6), b"theirs");
    import.unimport().unwrap();
}

/// The other choice: the export's bytes appear in the program's memory.
#[test]
fn memory_can_take_the_exports_bytes_at_the_bind() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let export = export(&node, "taken", page);
    export.write(7, b"theirs").unwrap();
    let import = import(&node, "taken");
    let own = Own::new(page);
    own.view().write(0, b"mine").unwrap();
    // SAFETY: a page of this test's own, for ever; no references into it.
    let binding = unsafe { import.bind_at(0..page, own.0, Initial::Remote) }.unwrap();
    assert_eq!(own.text(7, 6), b"theirs");
    assert_eq!(text(&export, 0, 4), [0; 4]);
    // A region made of it keeps the address and may be exported in its turn.
    let region = binding.unbind().unwrap();
    assert_eq!(region.as_ptr(), own.0);
    assert_eq!(&region.as_slice()[7..13], b"theirs");
    let again = common::open(node.export(region).name("passed on"));
    let to_again = common::import(&node, "passed on");
    to_again.send(0, b"sent").unwrap();
    assert_eq!(own.text(0, 4), b"sent");
    drop(again);
    assert_eq!(own.mapping().0, "rw-p");
    assert_eq!(own.text(0, 4), b"sent");
}

/// V12, H2: each thing that cannot be bound says so, and the memory is as it was.
#[test]
fn what_cannot_be_bound_in_place_is_refused_and_stays_as_it_was() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let _export = export(&node, "strict", 2 * page);
    let _small = export_of(&node, "small", 100);
    let import = import(&node, "strict");
    let small = common::import(&node, "small");
    let write_only = node.import("strict").rights(Rights::WRITE).open().unwrap();
    let own = Own::new(3 * page);
    own.view().write(0, b"mine").unwrap();
    let at = |import: &vmmc::Import, range: std::ops::Range<usize>, offset: usize| {
        // SAFETY: pages of this test's own, for ever; no references into them.
        unsafe { import.bind_at(range, own.at(offset), Initial::Remote) }
    };
    assert!(matches!(at(&write_only, 0..page, 0), Err(BindError::NotGranted(_))));
    assert!(matches!(at(&import, 0..3 * page, 0), Err(BindError::OutOfBounds(_))));
    assert!(matches!(at(&import, 0..0, 0), Err(BindError::OutOfBounds(_))));
    let error = at(&import, 1..page + 1, 0).unwrap_err();
    assert_eq!(error, BindError::Misaligned { offset: 1, page });
    let error = at(&import, 0..page, 8).unwrap_err();
    let address = own.0.as_ptr() as usize + 8;
    assert_eq!(error, BindError::MisalignedMemory { address, len: page, page });
    assert!(error.to_string().contains(&format!("{address:#x}")), "{error}");
    let error = at(&small, 0..100, 0).unwrap_err();
    assert!(matches!(error, BindError::MisalignedMemory { len: 100, .. }), "{error}");
    assert_eq!(own.mapping().0, "rw-p");
    assert_eq!(own.text(0, 4), b"mine");

    // H2: one destination per local page, be it bound or exported.
    let bound = at(&import, 0..page, page).unwrap();
    let taken = own.0.as_ptr() as usize + page;
    assert_eq!(at(&import, page..2 * page, page).unwrap_err(), BindError::InUse { address: taken });
    assert_eq!(at(&import, 0..2 * page, 0).unwrap_err(), BindError::InUse { address: taken });
    // SAFETY: as above.
    let adopted = unsafe { Region::adopt(own.0, 3 * page) };
    assert_eq!(adopted.unwrap_err(), RegionError::InUse { address: taken });
    drop(bound);
    at(&import, 0..2 * page, 0).unwrap();
}

fn export_of(node: &Node, name: &str, len: usize) -> vmmc::Export {
    export(node, name, len)
}

/// The importer's memory stays usable, and its own, when the exporter withdraws.
#[test]
fn bound_memory_is_usable_after_the_export_is_gone() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let page = rustix::param::page_size();
    let export = export(&node, "withdrawn", page);
    let import = import(&node, "withdrawn");
    export.wait_importers(1, common::PATIENCE).unwrap();
    let own = Own::new(page);
    // SAFETY: a page of this test's own, for ever; no references into it.
    let binding = unsafe { import.bind_at(0..page, own.0, Initial::Local) }.unwrap();
    let region = export.unexport().unwrap();
    assert!(matches!(binding.signal64(page - 8, 1), Err(SendError::Closed(_))));
    own.view().write(0, b"late").unwrap();
    assert_eq!(region.as_slice()[..4], [0; 4], "a store after the unexport reached the exporter");
    drop(binding);
    assert_eq!(own.text(0, 4), b"late");
    // SAFETY: as above.
    let error = unsafe { import.bind_at(0..page, own.0, Initial::Local) }.unwrap_err();
    assert!(matches!(error, BindError::Closed(_)), "{error}");
}

/// G5: a child has neither the binding nor the memory, and does the parent's no harm.
#[test]
fn a_forked_child_has_no_binding() {
    let daemon = Daemon::start();
    let node = daemon.node();
    let export = export(&node, "parents", rustix::param::page_size());
    let mut second = daemon.second("forks with a binding", &[]);
    second.expect("child ended well");
    assert_eq!(text(&export, 0, 6), b"parent");
    second.go_on();
    second.finish();
}

fn forks_with_a_binding(_: &[String]) {
    let node = Node::connect().unwrap();
    let page = rustix::param::page_size();
    let import = import(&node, "parents");
    let own = Own::new(page);
    // SAFETY: a page of this process's own, for ever; no references into it.
    let binding = unsafe { import.bind_at(0..page, own.0, Initial::Local) }.unwrap();
    let other = import.bind(0..page).unwrap();
    // SAFETY: the child only drops what it inherited, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let refused = binding.write(0, b"child!").is_err()
                && matches!(binding.signal64(0, 1), Err(SendError::Forked(Forked)))
                && matches!(other.unbind(), Err(UnbindError::Forked(Forked)));
            drop(binding);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
            own.view().write(0, b"parent").unwrap();
            assert_eq!(&other.unbind().unwrap().as_slice()[..6], b"parent");
            say("child ended well");
            pause();
        }
    }
}

/// One store of a kind that a compiler makes of plain code.
fn store(view: View<'_>, at: usize, kind: u8, value: u64) {
    let to = view.as_ptr().as_ptr().wrapping_add(at);
    let many = value.to_ne_bytes().repeat(4);
    // SAFETY, for all: the tests below keep `at + 32` inside the view, which is mapped; nobody
    // else stores there meanwhile.
    match kind % 6 {
        // SAFETY: see above.
        0 => unsafe { to.write(value as u8) },
        // SAFETY: see above.
        1 => unsafe { to.cast::<u16>().write_unaligned(value as u16) },
        // SAFETY: see above.
        2 => unsafe { to.cast::<u64>().write_unaligned(value) },
        // A structure assignment, which the compiler is free to make vector stores of.
        // SAFETY: see above.
        3 => unsafe { to.cast::<[u64; 4]>().write_unaligned([value; 4]) },
        // SAFETY: see above; `memcpy`.
        4 => unsafe { std::ptr::copy_nonoverlapping(many.as_ptr(), to, 32) },
        _ => {
            let at = at & !7;
            let word = view.word64(at).unwrap();
            vmmc::word::Word::fetch_add(&word, value, vmmc::sync::Ordering::Relaxed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// V11: whatever is stored, of whatever kind and wherever, both images are equal in the end, and
    /// equal to that of private memory that saw the same stores.
    #[test]
    fn random_stores_leave_equal_images(
        stores in proptest::collection::vec((0usize..8192 - 32, any::<u8>(), any::<u64>()), 1..200),
        in_place in any::<bool>(),
    ) {
        let daemon = Daemon::start();
        let node = daemon.node();
        let export = export(&node, "image", 8192);
        let import = import(&node, "image");
        let (own, oracle) = (Own::new(8192), Own::new(8192));
        let binding = if in_place {
            // SAFETY: pages of this test's own, for ever; no references into them.
            unsafe { import.bind_at(0..8192, own.0, Initial::Local) }.unwrap()
        } else {
            import.bind(0..8192).unwrap()
        };
        for (at, kind, value) in stores {
            store(binding.view(), at, kind, value);
            store(oracle.view(), at, kind, value);
        }
        prop_assert!(text(&export, 0, 8192) == oracle.text(0, 8192));
        prop_assert_eq!(import.check_open(), Ok(()));
    }
}
