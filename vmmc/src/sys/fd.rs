//! An owned descriptor that is closed by a raw system call.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Like `std::os::fd::OwnedFd`, but dropping it issues `close(2)` directly. The standard
/// library's drop calls the C symbol `close`, which an interposer above us exports: our own
/// descriptors would run through its hooks.
#[derive(Debug)]
pub struct Fd {
    /// Open and owned by this value until drop.
    raw: RawFd,
}

impl Fd {
    /// A second descriptor for the same open file description, close-on-exec.
    ///
    /// # Errors
    /// `EMFILE` when the process has no descriptor left.
    pub fn try_clone(&self) -> rustix::io::Result<Fd> {
        rustix::io::fcntl_dupfd_cloexec(self.as_fd(), 0).map(Fd::from)
    }

    /// Puts another open file description behind the number, close-on-exec.
    ///
    /// # Errors
    /// As dup3(2).
    pub fn replace(&self, by: &Fd) -> rustix::io::Result<()> {
        // SAFETY: a call that touches no memory; the number stays open, and stays this value's.
        let rc = unsafe { libc::syscall(libc::SYS_dup3, by.raw, self.raw, libc::O_CLOEXEC) };
        if rc < 0 {
            let error = std::io::Error::last_os_error();
            return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
        }
        Ok(())
    }

    /// A copy, close-on-exec, whose number is at least `floor`: out of the way of programs that
    /// expect the low numbers to be theirs.
    ///
    /// # Errors
    /// `EMFILE`/`EINVAL` when `floor` is at or over the descriptor limit.
    pub fn dup_above(&self, floor: RawFd) -> rustix::io::Result<Fd> {
        rustix::io::fcntl_dupfd_cloexec(self.as_fd(), floor).map(Fd::from)
    }
}

/// Makes this process's table of descriptors so long that [`Fd::dup_above`] need not, where the limit allows it; no descriptor stays.
/// For libraries when they are loaded, and after a fork: with one thread it takes some microseconds; in a process with several threads the kernel
/// waits until none of them can be using the old table, 10 ms and more.
pub fn lengthen_table(floor: RawFd) {
    if let Ok(any) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) {
        let _ = Fd::from(any).dup_above(floor);
    }
}

/// Closes what this process was started with beyond its standard files, by whoever had it open for something else. For the
/// beginning of a program that is to outlive its starter: who waits for the end of a pipe would wait for this process. What
/// Rust and we open is close-on-exec, so what is not was inherited, and is nobody's here.
pub fn close_inherited() {
    let listing = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = listing.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    // Before anything is closed: the listing is a descriptor itself.
    for number in numbers.filter(|&number| number > 2).collect::<Vec<_>>() {
        // SAFETY: asked about, and not used otherwise; a number that is closed by now is an error.
        let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC)) {
            // SAFETY: as above, nobody here has it.
            unsafe { rustix::io::close(number) };
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: `raw` is owned by this value, which is going away: nobody uses it again.
        unsafe { rustix::io::close(self.raw) }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `raw` stays open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl From<OwnedFd> for Fd {
    fn from(owned: OwnedFd) -> Self {
        Fd { raw: owned.into_raw_fd() }
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> Self {
        let raw = fd.raw;
        std::mem::forget(fd);
        // SAFETY: `raw` was owned by `fd`, whose destructor does not run.
        unsafe { OwnedFd::from_raw_fd(raw) }
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_long_enough_afterwards() {
        const FLOOR: RawFd = 700;
        lengthen_table(FLOOR);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let places = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(places.trim().parse::<RawFd>().unwrap() > FLOOR, "{places}");
    }
}
