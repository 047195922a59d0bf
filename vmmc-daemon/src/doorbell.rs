//! Doorbells of clients, and the buttons by which others ring them ([`vmmc::sys::doorbell`]).
//!
//! A client may hold the lock of its doorbell for as long as it likes: it asks for the edges, and has them written to memory that nobody
//! gives. Putting a button in waits for that lock, and so does the last close of a button. So a
//! helper does the one and the other where the client is another user's ([`receive::apart`]); and while a button is with somebody whom
//! its doorbell's owner could so keep waiting, this daemon has it as well ([`Kept`]), and takes it out of the doorbell
//! before it lets go. (Were the daemon killed, the other would have the last one.)

use crate::descriptors;
use crate::receive::{self, Suspect};
use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use vmmc::control::message::Refusal;
use vmmc::sys::{Fd, doorbell};

/// A descriptor of which a client has copies; what is left to its last close is left to a helper.
#[derive(Debug)]
pub(crate) struct Shared {
    fd: Option<Arc<Fd>>,
    /// The user who can make that close wait.
    owner: u32,
}

impl Shared {
    pub(crate) fn new(fd: impl Into<Arc<Fd>>, owner: u32) -> Shared {
        Shared { fd: Some(fd.into()), owner }
    }

    /// The descriptor. Taken out when this is dropped, and not before.
    pub(crate) fn fd(&self) -> &Fd {
        self.fd.as_ref().unwrap_or_else(|| unreachable!("there until the drop"))
    }

    /// The user who can make its last close wait.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take().and_then(Arc::into_inner)
            && !receive::is_trusted(self.owner)
        {
            receive::close(self.owner, fd);
        }
    }
}

/// A client's doorbell.
#[derive(Clone, Debug)]
pub(crate) struct Doorbell(Arc<Shared>);

impl Doorbell {
    /// Takes what a client passed for one.
    ///
    /// # Errors
    /// What to tell it: it is none, or the daemon cannot keep it.
    pub(crate) fn of(passed: Suspect) -> Result<Doorbell, Refusal> {
        let bad = |why: &str| Refusal::BadSegment { why: format!("doorbell: {why}") };
        let owner = passed.sender();
        let fd = passed.look().ok_or_else(|| bad("not a descriptor"))?;
        // Its name takes no lock of its; a call on it might.
        match read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            Ok(name) if name.as_os_str() == "anon_inode:[eventpoll]" => {}
            Ok(_) => return Err(bad("not an epoll descriptor")),
            Err(error) => {
                let why =
                    format!("name the doorbell ({error}; is /proc mounted where vmmcd runs?)");
                return Err(Refusal::Internal { why });
            }
        }
        let fd = passed.keep().ok_or_else(|| bad("not a descriptor"))?;
        let doorbell = Doorbell(Arc::new(Shared::new(fd, owner)));
        descriptors::enough(doorbell.fd())?;
        Ok(doorbell)
    }

    /// As the predecessor had it.
    pub(crate) fn inherit(fd: Arc<Fd>, owner: u32) -> Doorbell {
        Doorbell(Arc::new(Shared::new(fd, owner)))
    }

    pub(crate) fn fd(&self) -> &Fd {
        self.0.fd()
    }

    /// A button that is not in it yet, and rings as it is put in.
    ///
    /// # Errors
    /// What to tell the client: there are no descriptors for it.
    pub(crate) fn rung_button(&self) -> Result<Button, Refusal> {
        self.make(1)
    }

    /// A button that is in it, or soon.
    ///
    /// # Errors
    /// As [`Doorbell::rung_button`].
    pub(crate) fn button(&self) -> Result<Button, Refusal> {
        let button = self.make(0)?;
        button.install();
        Ok(button)
    }

    fn make(&self, rung: u32) -> Result<Button, Refusal> {
        let button = doorbell::button(rung).map_err(|_| descriptors::none_left())?;
        descriptors::enough(&button)?;
        Ok(Button::inherit(button.into(), self.clone()))
    }
}

/// Whether a button is in its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Inside,
    /// And stays outside.
    Removed,
}

/// A button of a client's doorbell.
#[derive(Clone, Debug)]
pub(crate) struct Button {
    button: Arc<Shared>,
    doorbell: Doorbell,
    place: Arc<Mutex<Place>>,
}

impl Button {
    /// As the predecessor had it; put in by it already, or never.
    pub(crate) fn inherit(button: Arc<Fd>, doorbell: Doorbell) -> Button {
        let button = Arc::new(Shared::new(button, doorbell.0.owner));
        Button { button, doorbell, place: Arc::new(Mutex::new(Place::Outside)) }
    }

    /// What rings, for somebody else.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.button
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Rings. Not for one that somebody else has as well: he could have it wait.
    pub(crate) fn ring(&self) {
        doorbell::ring(self.button.fd());
    }

    /// Puts it into its doorbell, now or soon.
    pub(crate) fn install(&self) {
        self.change(|place, doorbell, button| {
            if *place != Place::Outside {
                return;
            }
            match doorbell::install(doorbell, button) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => *place = Place::Inside,
                Err(errno) => tracing::warn!(%errno, "a doorbell cannot be rung"),
            }
        });
    }

    fn remove(&self) {
        self.change(|place, doorbell, button| {
            // One of a predecessor's may be in it, and its owner may have closed it.
            let _ = doorbell::remove(doorbell, button);
            *place = Place::Removed;
        });
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Place, BorrowedFd<'_>, BorrowedFd<'_>) + Send + 'static,
    ) {
        let Button { button, doorbell, place } = self.clone();
        let owner = button.owner;
        let work = move || {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut place, doorbell.fd().as_fd(), button.fd().as_fd());
        };
        match receive::is_trusted(owner) {
            true => work(),
            false => receive::apart(owner, work),
        }
    }

    /// Keeps it for as long as a user has it, if that is another one than the doorbell's.
    pub(crate) fn keep_for(self, user: u32) -> Option<Kept> {
        (user != self.button.owner).then(|| Kept(self))
    }
}

impl AsFd for Button {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.button.fd().as_fd()
    }
}

/// A button that another user has as well, as long as this daemon lives.
#[derive(Debug)]
pub(crate) struct Kept(Button);

impl Kept {
    pub(crate) fn button(&self) -> &Button {
        &self.0
    }

    /// Nobody should ring any more. Not as this is dropped: a daemon that ends leaves those to ring each other who can.
    pub(crate) fn take_out(self) {
        self.0.remove();
    }
}
