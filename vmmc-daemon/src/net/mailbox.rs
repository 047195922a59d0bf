//! Letters from many threads to one, which sleeps on a descriptor.

use super::lock;
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use vmmc::sys::Fd;

/// See the module.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    /// `None` when nobody comes for them any more.
    letters: Mutex<Option<Vec<T>>>,
    bell: Fd,
}

impl<T> Mailbox<T> {
    /// An empty one.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(crate) fn new() -> rustix::io::Result<Arc<Mailbox<T>>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Fd::from(rustix::event::eventfd(0, flags)?);
        Ok(Arc::new(Mailbox { letters: Mutex::new(Some(Vec::new())), bell }))
    }

    /// Puts a letter in. False: it is closed, and the letter is dropped.
    pub(crate) fn put(&self, letter: T) -> bool {
        match &mut *lock(&self.letters) {
            Some(letters) => letters.push(letter),
            None => return false,
        }
        self.ring();
        true
    }

    /// Wakes its owner.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// What has come since this was last asked.
    pub(crate) fn take(&self) -> Vec<T> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        lock(&self.letters).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes no more; what nobody has come for.
    pub(crate) fn close(&self) -> Vec<T> {
        lock(&self.letters).take().unwrap_or_default()
    }
}

/// Readable when somebody has rung.
impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
