//! Memory files mapped into this program, as views. The only unsafe code of perf and stat.
#![allow(unsafe_code)]

use crate::exit::{Context, Io};
use std::os::fd::AsFd;

use vmmc::mem::View;
use vmmc::sync::AtomicU32;
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::word::MappedU32;

/// A mapped memory file.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: GuardedMapping,
}

impl Shared {
    /// Maps the first `len` bytes of `fd`, for reading and writing.
    pub(crate) fn map(fd: impl AsFd, len: usize) -> Result<Shared, Io> {
        Shared::map_for(fd, len, Access::ReadWrite)
    }

    /// Maps the first `len` bytes of `fd`; with [`Access::Read`], writing through the view faults.
    pub(crate) fn map_for(fd: impl AsFd, len: usize, access: Access) -> Result<Shared, Io> {
        let mapping = GuardedMapping::new(fd, len, access)
            .context(|| format!("mapping {len} bytes of shared memory"))?;
        Ok(Shared { mapping })
    }

    /// The bytes.
    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: the mapping lives as long as the borrow, and only views look into it.
        unsafe { View::from_raw(self.mapping.as_ptr(), self.mapping.len()) }
    }
}

/// A mapped word as the atomic that the futex calls want.
pub(crate) fn as_atomic<'m>(word: &MappedU32<'m>) -> &'m AtomicU32 {
    // SAFETY: aligned and mapped for 'm by the word's own contract, accessed atomically only.
    unsafe { AtomicU32::from_ptr(word.as_ptr().as_ptr()) }
}
