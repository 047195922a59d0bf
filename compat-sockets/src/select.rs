//! select and pselect, told in terms of [`crate::poll`].

use crate::poll;
use crate::real::set_errno;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, pollfd, sigset_t};

/// Descriptors in a set of the standard size; programs with larger sets go to the kernel.
const SET_BITS: usize = libc::FD_SETSIZE;
const WORD_BITS: usize = 64;

/// The three sets of a call, as words. Absent ones are `None`.
pub(crate) struct Sets<'a> {
    pub(crate) read: Option<&'a mut [u64]>,
    pub(crate) write: Option<&'a mut [u64]>,
    pub(crate) except: Option<&'a mut [u64]>,
}

fn has(set: &Option<&mut [u64]>, fd: usize) -> bool {
    set.as_ref()
        .and_then(|words| words.get(fd / WORD_BITS))
        .is_some_and(|word| word & (1 << (fd % WORD_BITS)) != 0)
}

fn put(set: &mut Option<&mut [u64]>, fd: usize) {
    if let Some(word) = set.as_mut().and_then(|words| words.get_mut(fd / WORD_BITS)) {
        *word |= 1 << (fd % WORD_BITS);
    }
}

impl Sets<'_> {
    /// Descriptors below `count` that are in some set.
    fn members(&self, count: usize) -> impl Iterator<Item = i32> {
        (0..count.min(SET_BITS))
            .filter(|&fd| has(&self.read, fd) || has(&self.write, fd) || has(&self.except, fd))
            .map(|fd| fd as i32)
    }

    /// Whether any member needs more than the C library's function.
    pub(crate) fn concerns(&self, count: usize) -> bool {
        count <= SET_BITS && poll::concerns(self.members(count))
    }

    /// Waits, and leaves in the sets what is ready. As select(2): the number of bits, or -1 with
    /// `errno` and the sets unchanged.
    ///
    /// # Safety
    /// `mask` must be null or valid.
    pub(crate) unsafe fn wait(
        &mut self,
        count: usize,
        timeout: Option<u64>,
        mask: *const sigset_t,
    ) -> i32 {
        let mut fds = Vec::with_capacity(16);
        for fd in self.members(count) {
            let slot = fd as usize;
            let mut events = 0;
            if has(&self.read, slot) {
                events |= POLLIN;
            }
            if has(&self.write, slot) {
                events |= POLLOUT;
            }
            if has(&self.except, slot) {
                events |= POLLPRI;
            }
            fds.push(pollfd { fd, events, revents: 0 });
        }
        // SAFETY: passed on.
        let result = unsafe { poll::poll(&mut fds, timeout, mask) };
        if result < 0 {
            return result;
        }
        if fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
            set_errno(libc::EBADF);
            return -1;
        }
        for words in [&mut self.read, &mut self.write, &mut self.except].into_iter().flatten() {
            words.fill(0);
        }
        let mut bits = 0;
        for entry in &fds {
            let fd = entry.fd as usize;
            let asked = |event| entry.events & event != 0;
            // What counts as readable and writable is the kernel's own list (fs/select.c).
            if asked(POLLIN) && entry.revents & (POLLIN | POLLHUP | POLLERR) != 0 {
                put(&mut self.read, fd);
                bits += 1;
            }
            if asked(POLLOUT) && entry.revents & (POLLOUT | POLLERR) != 0 {
                put(&mut self.write, fd);
                bits += 1;
            }
            if asked(POLLPRI) && entry.revents & POLLPRI != 0 {
                put(&mut self.except, fd);
                bits += 1;
            }
        }
        bits
    }
}
