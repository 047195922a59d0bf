//! Doorbells of clients, and the buttons by which others ring them ([`vmmc::sys::doorbell`]).
//!
//! A client may hold the lock of its doorbell for as long as it likes: it asks for the edges, and has them written to memory that nobody
//! gives. Putting a button in waits for that lock, and so does the last close of a button; and who has a button may put it into an
//! epoll descriptor of his own, and hold that one's lock. (Where a doorbell is within another epoll descriptor, putting in waits for
//! a lock of all the machine's, too, which anybody can hold.) So a helper does the one and the other, at the expense of the two users together
//! ([`receive::apart_for`]); and while a button is with another user than its doorbell's, this daemon has it as well ([`Kept`]), and takes
//! it out of the doorbell before it lets go. (Were the daemon killed, the other would have the last one.)

use crate::descriptors;
use crate::helpers::Holder;
use crate::receive::{self, Suspect};
use crate::sayings::of_client;
use std::fs::read_link;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vmmc::control::message::Refusal;
use vmmc::sys::{Fd, doorbell};

/// How long the loop waits for a button to be put in: longer, and somebody has a lock that it takes.
const HELD_UP: Duration = Duration::from_millis(20);

/// A descriptor of which clients have copies, or may have put it into epoll descriptors of theirs: its last close is left to a helper.
#[derive(Debug)]
pub(crate) struct Shared {
    fd: Option<Arc<Fd>>,
    /// Who can make that close wait.
    users: Holder,
}

impl Shared {
    pub(crate) fn new(fd: impl Into<Arc<Fd>>, users: Holder) -> Shared {
        Shared { fd: Some(fd.into()), users }
    }

    /// The descriptor. Taken out when this is dropped, and not before.
    pub(crate) fn fd(&self) -> &Fd {
        self.fd.as_ref().unwrap_or_else(|| unreachable!("there until the drop"))
    }

    /// Who can make its last close wait.
    pub(crate) fn users(&self) -> Holder {
        self.users
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let (one, other) = self.users;
        if let Some(fd) = self.fd.take().and_then(Arc::into_inner)
            && !(receive::is_trusted(one) && receive::is_trusted(other))
        {
            receive::apart_for(self.users, move || drop(fd));
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
        let doorbell = Doorbell(Arc::new(Shared::new(fd, (owner, owner))));
        descriptors::enough(doorbell.fd())?;
        Ok(doorbell)
    }

    /// As the predecessor had it.
    pub(crate) fn inherit(fd: Arc<Fd>, owner: u32) -> Doorbell {
        Doorbell(Arc::new(Shared::new(fd, (owner, owner))))
    }

    pub(crate) fn fd(&self) -> &Fd {
        self.0.fd()
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> u32 {
        self.0.users.0
    }

    /// A button for a process of the ringer's that is not in it yet, and rings as it is put in.
    ///
    /// # Errors
    /// What to tell the client: there are no descriptors for it, or the two users hold up what has to be done for them.
    pub(crate) fn rung_button(&self, ringer: u32) -> Result<Button, Refusal> {
        self.make(1, ringer)
    }

    /// A button that is in it, or soon. Of users who could stop the daemon anyway it is, unless somebody holds that up: should
    /// the daemon die when it has told them of each other, nobody else would put it in.
    ///
    /// # Errors
    /// As [`Doorbell::rung_button`].
    pub(crate) fn button(&self, ringer: u32) -> Result<Button, Refusal> {
        let button = self.make(0, ringer)?;
        let installed = button.install();
        if receive::is_trusted(self.owner()) && receive::is_trusted(ringer) {
            let _ = installed.recv_timeout(HELD_UP);
        }
        Ok(button)
    }

    fn make(&self, rung: u32, ringer: u32) -> Result<Button, Refusal> {
        let owner = self.owner();
        if receive::is_behind_for((owner, ringer)) {
            let why = format!(
                "introduce processes of uid {owner} and uid {ringer}: their doorbells are held up"
            );
            return Err(Refusal::Internal { why });
        }
        let button = doorbell::button(rung).map_err(|_| descriptors::none_left())?;
        descriptors::enough(&button)?;
        Ok(Button::inherit(button.into(), self.clone(), ringer))
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
    /// As the predecessor had it.
    pub(crate) fn inherit(button: Arc<Fd>, doorbell: Doorbell, ringer: u32) -> Button {
        let button = Arc::new(Shared::new(button, (doorbell.owner(), ringer)));
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

    /// Puts it into its doorbell, soon. What was rung before is heard then. What is returned ends when that is done.
    pub(crate) fn install(&self) -> Receiver<()> {
        let (done, is_done) = sync_channel(0);
        self.change(move |place, doorbell, button| {
            let _done: SyncSender<()> = done;
            if *place != Place::Outside {
                return;
            }
            match doorbell::install(doorbell, button) {
                Ok(()) => *place = Place::Inside,
                Err(errno) => of_client(|untold| {
                    tracing::warn!(%errno, untold, "a doorbell cannot be rung");
                }),
            }
        });
        is_done
    }

    fn remove(&self) {
        self.change(|place, doorbell, button| {
            if std::mem::replace(place, Place::Removed) == Place::Inside {
                // It may be gone with the doorbell.
                let _ = doorbell::remove(doorbell, button);
            }
        });
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Place, BorrowedFd<'_>, BorrowedFd<'_>) + Send + 'static,
    ) {
        let Button { button, doorbell, place } = self.clone();
        receive::apart_for(button.users, move || {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut place, doorbell.fd().as_fd(), button.fd().as_fd());
        });
    }

    /// Keeps it for as long as its ringer has it, if that is another user than the doorbell's.
    pub(crate) fn kept(self) -> Option<Kept> {
        let (owner, ringer) = self.button.users;
        (owner != ringer).then_some(Kept(self))
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

    /// Nobody should ring any more, or a successor has put it in under a number of its own. Not as this is dropped: a daemon that ends
    /// leaves those to ring each other who can.
    pub(crate) fn take_out(&self) {
        self.0.remove();
    }
}
