//! What this process has mapped where, as the kernel tells: all of it by the lines of `/proc/self/maps`; what
//! lies at one address by `PROCMAP_QUERY` of that file (Linux 6.11), which takes some two microseconds.
#![allow(unsafe_code)] // an ioctl

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::ProtFlags;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy)]
struct Mapping {
    start: usize,
    end: usize,
    private_rw: bool,
    rights: ProtFlags,
    /// Where in its file it begins.
    offset: u64,
    file: File,
    is_stack: bool,
}

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// A file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(super) device: Device,
    pub(super) inode: u64,
}

/// Where in which file the bytes at an address are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backing {
    pub(super) file: File,
    offset: u64,
}

fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let mut field = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let (start, end) = field()?.split_once('-')?;
    let rights = field()?;
    let offset = u64::from_str_radix(field()?, 16).ok()?;
    let (major, minor) = field()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = field()?.parse().ok()?;
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        private_rw: rights.starts_with("rw") && rights.ends_with('p'),
        rights: [('r', ProtFlags::READ), ('w', ProtFlags::WRITE), ('x', ProtFlags::EXEC)]
            .into_iter()
            .filter(|(letter, _)| rights.contains(*letter))
            .fold(ProtFlags::empty(), |all, (_, right)| all | right),
        offset,
        file: File { device, inode },
        is_stack: field() == Some("[stack]"),
    })
}

/// Shows all mappings, in the order of their addresses, until `visit` has seen enough. Nothing is allocated: a forked child calls
/// this before its heap is its own.
fn visit_mappings(mut visit: impl FnMut(Mapping) -> ControlFlow<()>) {
    let Ok(maps) =
        rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let mut buffer = [0u8; 4096];
    // Of a line that is longer than the buffer, by the path at its end, the beginning is enough.
    let (mut held, mut skip) = (0, false);
    while let Some(room) = buffer.get_mut(held..)
        && let Ok(read @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&maps, &mut *room))
    {
        held += read;
        let mut at = 0;
        while let Some(rest) = buffer.get(at..held)
            && !rest.is_empty()
        {
            let end = rest.iter().position(|&byte| byte == b'\n');
            let is_whole = end.is_some();
            if !is_whole && rest.len() < buffer.len() {
                break; // more of it comes
            }
            let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            if !std::mem::replace(&mut skip, !is_whole)
                && let Some(mapping) = parse(line)
                && visit(mapping).is_break()
            {
                return;
            }
            at += line.len() + usize::from(is_whole);
        }
        buffer.copy_within(at..held, 0);
        held -= at;
    }
}

impl Backing {
    /// Of what is so many bytes further on.
    pub(super) fn at(self, bytes: usize) -> Backing {
        Backing { offset: self.offset + bytes as u64, ..self }
    }
}

/// Whether mappings that `accept` cover the range without a gap.
fn covered(start: usize, len: usize, accept: impl Fn(&Mapping) -> bool) -> bool {
    let (mut at, end) = (start, start.saturating_add(len));
    visit_mappings(|mapping| {
        if mapping.start <= at && at < mapping.end {
            if !accept(&mapping) {
                return ControlFlow::Break(());
            }
            at = mapping.end;
        }
        if at < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    at >= end
}

/// Memory that may be remapped: private and writable, and not the stack, which grows; or of one of these files.
pub(crate) fn is_private_memory(start: usize, len: usize, or: &[File]) -> bool {
    covered(start, len, |mapping| {
        mapping.private_rw && !mapping.is_stack || or.contains(&mapping.file)
    })
}

/// Whether the address is in the first thread's stack.
pub(super) fn is_first_stack(at: usize) -> bool {
    covered(at, 1, |mapping| mapping.is_stack)
}

/// The first stretch of the range that is mapped from a file, and the rights to it.
pub(super) fn first_of(range: Range<usize>, file: File) -> Option<(Range<usize>, ProtFlags)> {
    let mut found = None;
    visit_mappings(|mapping| {
        let part = mapping.start.max(range.start)..mapping.end.min(range.end);
        if mapping.file == file && !part.is_empty() {
            found = Some((part, mapping.rights));
        }
        match found.is_some() || mapping.start >= range.end {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    found
}

/// What is at an address.
pub(super) fn backing_at(at: usize) -> Option<Backing> {
    let mut found = None;
    visit_mappings(|mapping| {
        if mapping.end <= at {
            return ControlFlow::Continue(());
        }
        found = Some(mapping).filter(|it| it.start <= at);
        ControlFlow::Break(())
    });
    let it = found?;
    Some(Backing { file: it.file, offset: it.offset + (at - it.start) as u64 })
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

// The size is part of the ioctl's number.
const _: () = assert!(size_of::<ProcmapQuery>() == 104, "not as linux/fs.h has it");
const PROCMAP_QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
/// Writable and shared: of `vma_flags`.
const WRITABLE_SHARED: u64 = 2 | 8;

/// Asks what is mapped at an address.
#[derive(Debug)]
pub(super) struct Asker {
    maps: OwnedFd,
}

/// Our descriptor is at least this, away from the numbers that a program counts on, and closes.
pub(crate) const FLOOR: i32 = 512;

impl Asker {
    /// `None` where the kernel cannot be asked.
    pub(super) fn new() -> Option<Asker> {
        let maps =
            rustix::fs::open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let maps = maps.ok()?;
        // Where so many descriptors are not allowed, the one that it has.
        let asker = Asker { maps: rustix::io::fcntl_dupfd_cloexec(&maps, FLOOR).unwrap_or(maps) };
        let own: *const Asker = &raw const asker;
        asker.query(own.addr()).is_ok().then_some(asker)
    }

    fn query(&self, at: usize) -> rustix::io::Result<ProcmapQuery> {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_addr: at as u64,
            ..ProcmapQuery::default()
        };
        // SAFETY: the opcode is made from this structure, in which no buffers are named that the kernel would write.
        let call = unsafe { Updater::<PROCMAP_QUERY, _>::new(&mut query) };
        // SAFETY: changes nothing but its argument.
        unsafe { rustix::ioctl::ioctl(&self.maps, call) }?;
        Ok(query)
    }

    /// Whether all of the range is still these bytes of this file, for all to see. When that cannot be
    /// asked, not, and it is not asked again: the program has closed its descriptors, perhaps, and ours with
    /// them. Then its number may be a file of the program's by now, so it is left as it is.
    pub(super) fn ask(
        asker: &mut Option<Asker>,
        start: usize,
        len: usize,
        backing: Backing,
    ) -> bool {
        match asker.as_ref().and_then(|asker| asker.is_still(start, len, backing)) {
            Some(is_still) => is_still,
            None => {
                std::mem::forget(asker.take());
                false
            }
        }
    }

    /// `None`: it could not be asked.
    fn is_still(&self, start: usize, len: usize, backing: Backing) -> Option<bool> {
        let mut at = start;
        while at < start + len {
            let it = match self.query(at) {
                Ok(it) => it,
                Err(rustix::io::Errno::NOENT) => return Some(false), // nothing is there
                Err(_) => return None,
            };
            let offset = it.vma_offset.wrapping_add(at as u64).wrapping_sub(it.vma_start);
            let file = File { device: (it.dev_major, it.dev_minor), inode: it.inode };
            let same = file == backing.file
                && offset == backing.offset + (at - start) as u64
                && it.vma_flags & WRITABLE_SHARED == WRITABLE_SHARED;
            let end = usize::try_from(it.vma_end).unwrap_or(usize::MAX);
            if !same || end <= at {
                return Some(false);
            }
            at = end;
        }
        Some(true)
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn what_was_mapped_is_told_from_what_is_there_now() {
        use rustix::mm::{MapFlags, ProtFlags};
        let Some(asker) = Asker::new() else { return }; // before Linux 6.11
        let file = rustix::fs::memfd_create("window", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8 * PAGE as u64).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let (null, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping, wherever there is room.
        let there = unsafe { rustix::mm::mmap(null, 8 * PAGE, rights, shared, &file, 0) }.unwrap();
        let start = there.addr();
        let backing = backing_at(start).unwrap();
        let all = || asker.is_still(start, 8 * PAGE, backing);
        assert_eq!(all(), Some(true));
        assert_eq!(asker.is_still(start + 2 * PAGE, PAGE, backing.at(2 * PAGE)), Some(true));
        assert_eq!(asker.is_still(start + 2 * PAGE, PAGE, backing), Some(false));

        let page = |number: usize| there.wrapping_byte_add(number * PAGE);
        let flags = shared | MapFlags::FIXED;
        // SAFETY: over a page of the mapping above, which nobody uses: the same file, another place of it.
        unsafe { rustix::mm::mmap(page(5), PAGE, rights, flags, &file, 0) }.unwrap();
        assert_eq!(all(), Some(false));
        let its_own = 5 * PAGE as u64;
        // SAFETY: as above: what was there.
        unsafe { rustix::mm::mmap(page(5), PAGE, rights, flags, &file, its_own) }.unwrap();
        assert_eq!(all(), Some(true));
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as above.
        unsafe { rustix::mm::mmap(page(5), PAGE, rights, private, &file, its_own) }.unwrap();
        assert_eq!(all(), Some(false));
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(page(5), PAGE) }.unwrap();
        assert_eq!(all(), Some(false));
        // Not page 5, where another thread may have something by now.
        for (first, pages) in [(0, 5), (6, 2)] {
            // SAFETY: what is left of the mapping, of which this test alone knows.
            unsafe { rustix::mm::munmap(page(first), pages * PAGE) }.unwrap();
        }
    }

    #[test]
    fn a_descriptor_that_became_the_programs_is_not_closed() {
        use std::os::fd::AsRawFd;
        let mut asker = Asker::new();
        let Some(own) = &mut asker else { return }; // before Linux 6.11
        let number = own.maps.as_raw_fd();
        assert!(number >= FLOOR, "{number}");
        let heap = vec![1u8; PAGE];
        let backing = backing_at(heap.as_ptr().addr()).unwrap();
        // What a program does that closes all it finds, and opens a file.
        let file = rustix::fs::memfd_create("its", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::dup2(&file, &mut own.maps).unwrap();
        assert!(!Asker::ask(&mut asker, heap.as_ptr().addr(), 1, backing));
        assert!(asker.is_none());
        let there = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        assert!(there.to_string_lossy().contains("memfd:its"), "{}", there.display());
    }

    #[test]
    fn stacks_and_what_is_not_mapped_are_not_remapped() {
        let heap = vec![1u8; 64 * PAGE];
        let start = heap.as_ptr().addr().next_multiple_of(PAGE);
        let len = 63 * PAGE;
        assert!(is_private_memory(start, len, &[]));
        assert!(!is_private_memory(0, PAGE, &[]));
        assert!(!is_private_memory(start, usize::MAX / 2, &[]));
    }
}
