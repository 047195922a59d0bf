//! What one side relies on: its positions in the two rings.
//!
//! They live in anonymous memory that forked children share and the peer cannot reach. So a
//! child can use a client it inherited while its parent waits, or answer a call that its parent
//! received, and the other goes on where it stopped.

use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use vmmc::sys::mmap::page_size;
use vmmc::word::MappedU64;

/// Four positions and two states, a page of their own.
#[derive(Debug)]
pub(crate) struct Own {
    page: NonNull<u8>,
}

// SAFETY: the page belongs to the value and is accessed through atomics only.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Own {
    pub(crate) fn new() -> rustix::io::Result<Own> {
        // SAFETY: a null hint without MAP_FIXED never replaces an existing mapping.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                page_size(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        NonNull::new(page.cast()).map(|page| Own { page }).ok_or(rustix::io::Errno::NOMEM)
    }

    fn word(&self, index: usize) -> MappedU64<'_> {
        // SAFETY: a few words into a page.
        let place = unsafe { self.page.add(index * 8) };
        // SAFETY: mapped as long as `self`, aligned, accessed atomically only.
        unsafe { MappedU64::from_raw(place.cast()) }
    }

    /// True tail of the ring in which we send.
    pub(crate) fn tail(&self) -> MappedU64<'_> {
        self.word(0)
    }

    /// Last valid head of the peer.
    pub(crate) fn head_seen(&self) -> MappedU64<'_> {
        self.word(1)
    }

    /// Not 0: pieces of a record have been shown, and its end has not, by the process with this number. Who
    /// dies inside a record leaves it so to the other processes of this side.
    pub(crate) fn open(&self) -> MappedU64<'_> {
        self.word(2)
    }

    /// True head of the ring in which we receive.
    pub(crate) fn head(&self) -> MappedU64<'_> {
        self.word(16)
    }

    /// Last valid tail of the peer.
    pub(crate) fn tail_seen(&self) -> MappedU64<'_> {
        self.word(17)
    }

    /// Where the head is in a record that is taken as it comes ([`super::reader`]); 0 between records.
    pub(crate) fn inside(&self) -> MappedU64<'_> {
        self.word(18)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, belongs to this value alone.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), page_size()) };
    }
}
