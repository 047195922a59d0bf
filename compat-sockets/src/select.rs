//! select and pselect, told in terms of [`crate::poll`].

use crate::few::Few;
use crate::real::set_errno;
use crate::{poll, raw};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, pollfd, sigset_t};

/// Descriptors in a set of the standard size. Programs may have larger ones.
const SET_BITS: usize = libc::FD_SETSIZE;
const WORD_BITS: usize = 64;
/// Descriptors handled without allocating.
const INLINE: usize = 64;

/// How many bits of the sets count: as in the kernel, no more than its table of the process's descriptors has places, since
/// there need not be memory for more. `None` where that cannot be learned.
pub(crate) fn bits(count: usize) -> Option<usize> {
    if count <= SET_BITS {
        Some(count)
    } else {
        raw::descriptor_places().map(|places| count.min(places))
    }
}

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

fn word(set: &Option<&mut [u64]>, at: usize) -> u64 {
    set.as_ref().and_then(|words| words.get(at)).copied().unwrap_or(0)
}

fn put(set: &mut Option<&mut [u64]>, fd: usize) {
    if let Some(word) = set.as_mut().and_then(|words| words.get_mut(fd / WORD_BITS)) {
        *word |= 1 << (fd % WORD_BITS);
    }
}

impl Sets<'_> {
    /// Descriptors below `count` that are in some set.
    fn members(&self, count: usize) -> impl Iterator<Item = i32> {
        (0..count.div_ceil(WORD_BITS)).flat_map(move |at| {
            let mut left = word(&self.read, at) | word(&self.write, at) | word(&self.except, at);
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < WORD_BITS).then_some(at * WORD_BITS + bit)
            })
            .take_while(move |&fd| fd < count)
            .map(|fd| fd as i32)
        })
    }

    /// Whether any member needs more than the C library's function.
    pub(crate) fn concerns(&self, count: usize, waits: bool) -> bool {
        poll::concerns(self.members(count), waits)
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
        let mut fds: Few<pollfd, INLINE> = Few::new();
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
        let until = timeout.map(|timeout| raw::now_ns().saturating_add(timeout));
        let mut left = timeout;
        loop {
            // SAFETY: passed on.
            let result = unsafe { poll::poll(fds.as_mut_slice(), left, mask) };
            if result < 0 {
                return result;
            }
            let is_bit =
                |entry: &pollfd| entry.revents & POLLNVAL != 0 || bits_of(entry) != [false; 3];
            if result == 0 || fds.as_slice().iter().any(is_bit) {
                break;
            }
            // An end, or an error, of descriptors for which it is nothing that select(2) tells: it waits on for the others.
            for entry in fds.as_mut_slice().iter_mut().filter(|entry| entry.revents != 0) {
                (entry.fd, entry.revents) = (-1, 0);
            }
            left = until.map(|until| until.saturating_sub(raw::now_ns()));
        }
        if fds.as_slice().iter().any(|entry| entry.revents & POLLNVAL != 0) {
            set_errno(libc::EBADF);
            return -1;
        }
        for words in [&mut self.read, &mut self.write, &mut self.except].into_iter().flatten() {
            words.fill(0);
        }
        let mut bits = 0;
        for entry in fds.as_slice() {
            let sets = [&mut self.read, &mut self.write, &mut self.except];
            for (set, _) in sets.into_iter().zip(bits_of(entry)).filter(|(_, is_set)| *is_set) {
                put(set, entry.fd as usize);
                bits += 1;
            }
        }
        bits
    }
}

/// In which sets a descriptor is left: to read, to write, exceptions. What counts is the kernel's own list (fs/select.c).
fn bits_of(entry: &pollfd) -> [bool; 3] {
    let is = |asked, told| entry.events & asked != 0 && entry.revents & told != 0;
    [is(POLLIN, POLLIN | POLLHUP | POLLERR), is(POLLOUT, POLLOUT | POLLERR), is(POLLPRI, POLLPRI)]
}
