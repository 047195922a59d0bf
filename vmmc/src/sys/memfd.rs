//! Sealed memory files: what an export, a link and a process page are made of.
//!
//! Never a named object: when the last descriptor and mapping are gone so is the memory, so
//! `kill -9` leaves nothing behind.

use super::{Fd, memory, mmap};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd};

/// Seals every segment carries before anyone else sees it: its length is fixed for ever, so a
/// peer cannot make us fault with `SIGBUS` by shrinking it (G3).
pub const REQUIRED_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why a descriptor from somebody else is not a segment we map.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentError {
    /// Not a memory file, or one that cannot be sealed.
    #[error("descriptor is not a sealable memory file ({0})")]
    NotMemfd(rustix::io::Errno),
    /// Seals missing: whoever made it could still change its length.
    #[error("memory file lacks seals: has {has:?}, needs {needs:?}")]
    Unsealed {
        /// Seals it has.
        has: SealFlags,
        /// Seals it must have.
        needs: SealFlags,
    },
    /// Of huge pages: where a hole was punched, a store faults with `SIGBUS` once the pool of
    /// huge pages is empty.
    #[error("memory file is of huge pages; make it of ordinary ones")]
    HugePages,
    /// Another length than agreed.
    #[error("memory file is {actual} bytes long, expected {expected}")]
    WrongLength {
        /// What was announced, in bytes.
        expected: u64,
        /// What the kernel says, in bytes.
        actual: u64,
    },
}

/// Makes a memory file of `len` bytes, all of it allocated now, of mode 0600, not yet sealed.
///
/// Allocating now turns a shortage into `ENOSPC`/`ENOMEM` here rather than `SIGBUS` at a later
/// store. The mode matters: a memory file is born 0777, and another user who was given a
/// read-only descriptor could open it again for writing through `/proc/self/fd`.
///
/// # Errors
/// As memfd_create(2), fallocate(2): out of memory, descriptors, or over a limit.
pub fn create(name: &str, len: u64) -> rustix::io::Result<Fd> {
    let fd = create_for_writers(name, len)?;
    rustix::fs::fchmod(fd.as_fd(), Mode::RUSR | Mode::WUSR)?;
    Ok(fd)
}

/// The same, of the mode that it is born with: for memory that everybody who is given a descriptor
/// may write.
///
/// # Errors
/// As [`create`].
pub fn create_for_writers(name: &str, len: u64) -> rustix::io::Result<Fd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL came with Linux 6.3; before that it is EINVAL.
    let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))?;
    let fd = Fd::from(fd);
    allocate(&fd, len)?;
    Ok(fd)
}

/// Bytes allocated by one system call. On older kernels any signal ends fallocate(2) with
/// `EINTR`, and what the call had allocated is given back: under a profiling timer one large
/// call would be repeated for ever, while pieces of this length take well under a millisecond.
const ALLOCATE_STEP: u64 = 1 << 20;

/// From this length on the kernel is asked first how much memory there is.
const LARGE: u64 = 64 << 20;

/// Whether there is memory for so many bytes, as far as the kernel can say. A memory file has no owner: when it takes the last
/// memory there is, the kernel ends processes that have nothing to do with it, one after the other. A control group's limit is
/// not asked for: its own processes are those that it ends.
fn is_there(len: u64) -> bool {
    memory::with_swap().is_none_or(|left| len < left)
}

/// Lengthens the file to `len` bytes that are there.
fn allocate(fd: impl AsFd, len: u64) -> rustix::io::Result<()> {
    if len >= LARGE && !is_there(len) {
        return Err(rustix::io::Errno::NOMEM);
    }
    let mut at = 0;
    while at < len {
        let step = ALLOCATE_STEP.min(len - at);
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(fd.as_fd(), FallocateFlags::empty(), at, step)
        })?;
        at += step;
    }
    Ok(())
}

/// Fixes the length for ever.
///
/// # Errors
/// As fcntl(2) `F_ADD_SEALS`.
pub fn seal(fd: impl AsFd) -> rustix::io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, REQUIRED_SEALS)
}

/// Fixes the length, and forbids every later writable mapping: only mappings that exist already
/// can write. For memory with one writer, who maps it first.
///
/// # Errors
/// As fcntl(2) `F_ADD_SEALS`.
pub fn seal_single_writer(fd: impl AsFd) -> rustix::io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, REQUIRED_SEALS | SealFlags::FUTURE_WRITE)
}

/// Checks a segment that somebody else made: sealed, and exactly `expected_len` bytes long. After
/// this nobody can change its length.
///
/// # Errors
/// Each way in which it is not such a segment.
pub fn verify(fd: impl AsFd, expected_len: u64) -> Result<(), SegmentError> {
    let has = rustix::fs::fcntl_get_seals(&fd).map_err(SegmentError::NotMemfd)?;
    if !has.contains(REQUIRED_SEALS) {
        return Err(SegmentError::Unsealed { has, needs: REQUIRED_SEALS });
    }
    let stat = rustix::fs::fstat(&fd).map_err(SegmentError::NotMemfd)?;
    let actual = stat.st_size as u64;
    if actual != expected_len {
        return Err(SegmentError::WrongLength { expected: expected_len, actual });
    }
    // The block size of huge pages' file system is theirs. (That of ordinary files is too where they
    // may be made of huge pages by and by.)
    if stat.st_blksize as u64 > mmap::page_size() as u64 {
        const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
        let kind = rustix::fs::fstatfs(&fd).map_err(SegmentError::NotMemfd)?.f_type;
        if kind as u64 & 0xffff_ffff == HUGETLBFS_MAGIC {
            return Err(SegmentError::HugePages);
        }
    }
    Ok(())
}

/// Which memory file a descriptor is of. No two that exist at the same time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Which memory file it is.
///
/// # Errors
/// As fstat(2).
pub fn identity(fd: impl AsFd) -> rustix::io::Result<Identity> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// A new open file description of the same memory, read-only.
///
/// With the mode of [`create`], a receiver of another user cannot turn it into a writable one;
/// one of the same user can, unless the segment was sealed by [`seal_single_writer`].
///
/// Waits for nobody: whoever has the memory may have a lease on it (fcntl(2) `F_SETLEASE`), and the open would wait until
/// that is broken, for 45 seconds unless he gives it up.
///
/// # Errors
/// As open(2); `ENOENT` when `/proc` is not mounted; `EBUSY` when somebody has a lease on it.
pub fn reopen_read_only(fd: impl AsFd) -> rustix::io::Result<Fd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        // Elsewhere it says that a socket is full.
        Err(rustix::io::Errno::AGAIN) => Err(rustix::io::Errno::BUSY),
        opened => opened.map(Fd::from),
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_has_its_length_and_its_memory_and_is_its_users_alone() {
        let len = 2 * ALLOCATE_STEP + 4097;
        for (file, private) in [(create("x", len), true), (create_for_writers("y", len), false)] {
            let stat = rustix::fs::fstat(file.unwrap()).unwrap();
            assert_eq!(stat.st_size as u64, len);
            assert!(stat.st_blocks as u64 * 512 >= len, "{} blocks", stat.st_blocks);
            assert_eq!(stat.st_mode & 0o777 == 0o600, private, "{:o}", stat.st_mode);
        }
    }

    #[test]
    fn a_file_of_huge_pages_is_refused() {
        const LEN: u64 = 2 << 20;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let huge =
            rustix::fs::memfd_create("huge", flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        // Where the kernel has none, nobody can offer one.
        let Ok(huge) = huge else { return };
        rustix::fs::ftruncate(&huge, LEN).unwrap();
        seal(&huge).unwrap();
        assert_eq!(verify(&huge, LEN), Err(SegmentError::HugePages));
        let plain = create("plain", LEN).unwrap();
        seal(&plain).unwrap();
        assert_eq!(verify(&plain, LEN), Ok(()));
    }
}
