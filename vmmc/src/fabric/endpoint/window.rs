//! Windows: memory of somebody else's that the peer of an endpoint may write to, for some time.

use super::{Endpoint, Target};
use crate::fabric::abi;
use crate::fabric::domain::{Domain, NO_ENTRY, Owned};
use crate::fabric::library::FabricError;
use crate::sys::mmap::GuardedMapping;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most windows of one endpoint, ever: their address space goes with it.
pub(super) const MOST: usize = 1024;

/// Most windows of all endpoints: a mapping each, of which a process has 65,530 in all.
const MOST_OF_ALL: usize = 8192;

/// Those that there are.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// One of them.
#[derive(Debug)]
pub(super) struct Window {
    /// `None`: shut.
    mr: Option<Owned<abi::Mr>>,
    /// Stays mapped as long as the endpoint is open, see [`Domain`]; whose pages they are then is another matter.
    pub(super) pages: ManuallyDrop<GuardedMapping>,
    _one: One,
}

impl Drop for Window {
    fn drop(&mut self) {
        // Pages that the library has not let go of stay for ever.
        if self.mr.take().map_or(0, Owned::close) == 0 {
            // SAFETY: the value goes, and nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// Counted in [`ALL`].
#[derive(Debug)]
struct One;

impl One {
    fn new() -> One {
        ALL.fetch_add(1, Ordering::Relaxed);
        One
    }
}

impl Drop for One {
    fn drop(&mut self) {
        ALL.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Lets the peer write to the first `len` bytes of a mapping, which is given for that. Its number here, and what the peer
    /// must name.
    ///
    /// # Errors
    /// As the library says; too many.
    pub fn open_window(
        &mut self,
        pages: GuardedMapping,
        len: usize,
    ) -> Result<(usize, Target), FabricError> {
        let one = One::new();
        let too_many = self.windows.len() >= MOST || ALL.load(Ordering::Relaxed) > MOST_OF_ALL;
        if too_many || len > pages.len() {
            return Err(FabricError::Nonsense { what: "a window too many, or too long" });
        }
        let domain: &Arc<Domain> = &self.domain;
        let key = domain.random_key()?;
        let reg = domain.domain.object().mr.and_then(|mr| mr.reg).ok_or(NO_ENTRY)?;
        let start = pages.as_ptr().as_ptr();
        let access = abi::FI_REMOTE_WRITE;
        let mr = Owned::make(domain.library, &domain.gate, "fi_mr_reg", |mr| {
            let start = start.cast_const().cast();
            // SAFETY: the mapping is kept with the registration in `windows`, and unmapped when the endpoint is closed.
            unsafe {
                reg(domain.domain.fid(), start, len, access, 0, key, 0, mr, std::ptr::null_mut())
            }
        });
        let mr = match mr {
            Ok(mr) => mr,
            Err(error) => {
                if matches!(error, FabricError::Nonsense { .. }) {
                    std::mem::forget(pages); // registered, and never to be closed
                }
                return Err(error);
            }
        };
        // From here on the pages stay, whatever fails.
        let base = if domain.mr_mode() & abi::FI_MR_VIRT_ADDR != 0 { start as u64 } else { 0 };
        let number = self.windows.len();
        let pages = ManuallyDrop::new(pages);
        self.windows.push(Window { mr: None, pages, _one: one });
        if domain.mr_mode() & abi::FI_MR_ENDPOINT != 0 {
            domain.library.check("fi_mr_bind", mr.bind(&self.ep, 0))?;
            domain
                .library
                .check("fi_mr_enable", mr.control(abi::FI_ENABLE, std::ptr::null_mut()))?;
        }
        let key = mr.object().key;
        if let Some(window) = self.windows.last_mut() {
            window.mr = Some(mr);
        }
        Ok((number, Target { key, base }))
    }

    /// What the peer writes there from now on reaches the owner of the pages no more: it goes to pages that nobody else has, where a
    /// provider writes by way of our mapping, and is refused where hardware writes to the pages themselves.
    ///
    /// # Errors
    /// As [`Endpoint::shut_window`].
    pub fn cover_window(&mut self, number: usize) -> Result<(), FabricError> {
        if self.domain.mr_mode() & abi::FI_MR_ALLOCATED != 0 {
            return self.shut_window(number);
        }
        self.forsake(number)
    }

    fn forsake(&self, number: usize) -> Result<(), FabricError> {
        let Some(window) = self.windows.get(number) else { return Ok(()) };
        // Nobody writes meanwhile but the kernel, for the provider.
        let _alone = self.domain.gate.alone();
        let failed = |errno: rustix::io::Errno| FabricError::Call {
            call: "mmap over a window",
            why: errno.to_string(),
        };
        window.pages.forsake().map_err(failed)
    }

    /// The peer may write there no more: its key opens nothing, and what is on its way is refused, or goes to pages that nobody
    /// else has.
    ///
    /// # Errors
    /// The library does not close it. The window is covered all the same.
    pub fn shut_window(&mut self, number: usize) -> Result<(), FabricError> {
        let Some(window) = self.windows.get_mut(number) else { return Ok(()) };
        let code = window.mr.take().map_or(0, Owned::close);
        let forsaken = self.forsake(number);
        self.domain.library.check("fi_close of a window", code)?;
        forsaken
    }
}
