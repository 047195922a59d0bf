//! What is known of one carried connection, to the thread that opens it, its carrier, and the handlers of its links.

use super::attempt::{Attempt, Socket};
use super::carrier::News;
use super::count;
use super::said::Said;
use super::segment::{End, KernelSides, RESET, Segment};
use crate::doorbell::Button;
use crate::helpers::Holder;
use crate::net::lock;
use crate::net::mailbox::Mailbox;
use crate::{pump, receive, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vmmc::control::message::CloseReason;
use vmmc::sync::Ordering;
use vmmc::word::{MappedU32, Word};
use vmmc::{Event, Node, Notification};
use vmmc_ring::taken::Taken;

/// How the far end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Bytes go to it.
    Open,
    /// It has ended, in order: its kernel says the rest.
    Ended,
    /// Bytes may be lost.
    Lost,
}

/// How long somebody who waits for doorbells to be sent sleeps at a time.
const BELLS_SLICE: Duration = Duration::from_micros(50);
/// More than another daemon asks for while this one has not sent what it asked for before: its process sleeps for each, and wakes
/// up by it.
const MOST_BELLS: u64 = 1 << 20;
/// More than it says of one connection while the carrier has not looked.
const MOST_SAID: usize = 64;

#[derive(Debug)]
struct State {
    standing: Standing,
    /// User of the far end's process, by its daemon's word.
    greeted: Option<u32>,
    /// The far end's daemon has this node's segment.
    is_met: bool,
    agreed: bool,
    /// From here on the far end may use its ring: without us it would wait for ever.
    binding: bool,
    /// Who carries it, and the number it has there.
    carrier: Option<(Arc<Mailbox<News>>, u64)>,
    /// What the far end's daemon has said for the carrier to act on.
    said: Vec<Said>,
    /// Doorbells that are counted, and for which the far end's daemon is to be asked.
    rings: u32,
    /// No more of them: the far end's direction goes by the kernel.
    is_quiet: bool,
    /// Doorbells that are to be sent by the process's socket, or that the kernel had no room for.
    due: u64,
    /// Somebody is sending them.
    is_ringing: bool,
    /// What was to be given back to the kernel has been.
    gave_back: bool,
    /// Its carrier waits until the far end's process has taken more.
    is_watching: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) segment: Segment,
    /// A button of the process's doorbell; `None` where doorbells are bytes of the kernel's connection.
    bell: Option<Button>,
    /// Has the process's socket.
    attempt: Arc<Attempt>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Stream {
    pub(super) fn new(
        segment: Segment,
        bell: Option<Button>,
        attempt: Arc<Attempt>,
    ) -> Arc<Stream> {
        let state = State {
            standing: Standing::Open,
            greeted: None,
            agreed: false,
            binding: false,
            carrier: None,
            is_met: false,
            said: Vec::new(),
            rings: 0,
            is_quiet: false,
            due: 0,
            is_ringing: false,
            gave_back: false,
            is_watching: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let stream = Arc::new(Stream { segment, bell, attempt, state, changed });
        stream.attempt.is_for(Arc::downgrade(&stream));
        stream
    }

    /// What hears of messages of the far end, and of the end of its link, which comes behind them. Runs in the handler
    /// thread, and waits for nobody.
    pub(super) fn on_export(
        self: &Arc<Self>,
        node: &Node,
    ) -> impl FnMut(Notification) + Send + use<> {
        let (stream, node) = (self.clone(), node.clone());
        move |notification| match notification.event {
            Event::Message { len: 0, last_word, .. } => stream.hear(last_word),
            Event::Message { .. } => {
                if stream.wakes_process() {
                    node.counters().add(count::WAKES, 1);
                }
                stream.tell_watcher();
            }
            Event::Closed { reason: CloseReason::Unimported } => stream.end(),
            Event::Closed { reason: CloseReason::Unexported } => {} // by us
            Event::Closed { reason } => stream.lose(&format!("{reason:?}")),
            _ => {}
        }
    }

    /// What hears of the end of our link. An orderly one says nothing: it comes another way than the far end's last
    /// messages, and the other link ends behind them.
    pub(super) fn on_import(self: &Arc<Self>) -> impl FnMut(Notification) + Send + use<> {
        let stream = self.clone();
        move |notification| match notification.event {
            Event::Closed { reason: CloseReason::Unexported } => {}
            Event::Closed { reason } => stream.lose(&format!("{reason:?}")),
            _ => {}
        }
    }

    /// The far end may be told that it is carried by what is said next.
    pub(super) fn bind(&self) {
        lock(&self.state).binding = true;
    }

    /// The far end cannot have been told.
    pub(super) fn unbind(&self) {
        lock(&self.state).binding = false;
    }

    fn hear(self: &Arc<Self>, word: u64) {
        let mut state = lock(&self.state);
        match Said::of(word) {
            Some(Said::Met) => state.is_met = true,
            Some(Said::Greeting { uid }) => state.greeted = Some(uid),
            Some(Said::Agreed) => state.agreed = true,
            Some(Said::Ring(count)) => {
                drop(state);
                return self.ring_far(count);
            }
            Some(_) if state.said.len() >= MOST_SAID => {
                drop(state);
                return self.lose("the other daemon says more of it than there is to say");
            }
            Some(said) => {
                state.said.push(said);
                return tell(state);
            }
            None => tracing::warn!(word, "not what a daemon says of a connection"),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the far end's daemon has this node's segment.
    pub(super) fn wait_met(&self, until: Instant) -> bool {
        self.wait(Some(until), |state| state.is_met.then_some(())).is_some()
    }

    /// Waits until the far end has greeted; its user. `None`: it has not in time, or has ended.
    pub(super) fn wait_greeting(&self, until: Instant) -> Option<u32> {
        self.wait(Some(until), |state| state.greeted)
    }

    /// Waits until the far end has agreed, or will not.
    pub(super) fn wait_agreement(&self) -> bool {
        self.wait(None, |state| state.agreed.then_some(())).is_some()
    }

    fn wait<T>(&self, until: Option<Instant>, look: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            let found = look(&state);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let over = state.standing != Standing::Open || self.attempt.is_cancelled();
            if found.is_some() || over || left.is_some_and(|left| left.is_zero()) {
                return found;
            }
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Whoever waits looks whether it is still wanted.
    pub(super) fn look_again(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    pub(super) fn standing(&self) -> Standing {
        lock(&self.state).standing
    }

    /// From now on its carrier is told how it stands.
    pub(super) fn set_carrier(&self, door: Arc<Mailbox<News>>, number: u64) {
        lock(&self.state).carrier = Some((door, number));
    }

    /// The far end has ended, in order.
    fn end(&self) {
        if self.change(Standing::Ended) {
            // All that was sent has come, and the kernel has the rest to say.
            self.attempt.needs_no_guard();
        }
    }

    /// Bytes may be lost: the connection is shut down, so that both its ends see it.
    pub(super) fn lose(&self, why: &str) {
        if self.change(Standing::Lost) {
            tracing::info!(why, "lost a connection to another node");
            self.bell.iter().for_each(Button::ring);
        }
    }

    /// Shuts the process's connection down, soon.
    pub(super) fn shut(&self) {
        self.shut_down(Shutdown::Both);
    }

    /// Has the last close of the process's socket send a reset: the process is gone, and has left in its ring what the kernel would
    /// have reset the connection for. An end of file could reach who waits at the other end before the word in its segment.
    pub(super) fn reset_at_close(&self) {
        let Some(socket) = self.attempt.socket() else { return };
        // With a copy of its own this is done before that close, whoever makes it.
        receive::apart(self.attempt.uid, move || {
            let _ = rustix::net::sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
        });
    }

    /// Sends a FIN by the process's socket, soon.
    pub(super) fn end_sending(&self) {
        self.shut_down(Shutdown::Write);
    }

    fn shut_down(&self, how: Shutdown) {
        let Some(socket) = self.attempt.socket() else { return };
        receive::apart(self.attempt.uid, move || {
            let _ = rustix::net::shutdown(&*socket, how);
        });
    }

    /// Ends the process's connection where bytes may be lost, soon. An end of file would say that all has come: where the
    /// kernel's connection is all that the process has to go by, that is a reset, unless the far end has closed behind all that
    /// its daemon has brought into the ring, or its FIN has come by the kernel, behind all that went there.
    fn abort(&self) {
        let Some(kernel) = self.segment.kernel() else { return self.shut() };
        let closed = self.segment.word32(kernel.far.closed);
        if closed.compare_exchange(0, RESET, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            if self.segment.in_ring(End::Far) {
                return self.shut();
            }
            if self.has_ended() {
                return;
            }
            closed.store(RESET, Ordering::SeqCst);
        }
        self.segment.wake_sender();
        let (Some(socket), Some(stream)) = (self.attempt.socket(), self.attempt.stream()) else {
            return;
        };
        receive::apart(self.attempt.uid, move || {
            let kept = stream.segment.kernel().map(|kernel| stream.kept(&kernel));
            tcp::reset(socket.as_fd(), kept);
        });
    }

    /// The process has no use of it, and if it has never used it, nobody rings, nor does the line end: its end lies
    /// among what the process has not read.
    pub(super) fn is_forgotten(&self) {
        if self.segment.withdraw_if_unused() {
            self.attempt.close();
            if let Some((door, number)) = &lock(&self.state).carrier {
                door.put(News::Gone(*number));
            }
        }
    }

    /// Whether it stood otherwise before. Nothing comes after the loss.
    fn change(&self, standing: Standing) -> bool {
        let mut state = lock(&self.state);
        if state.standing == Standing::Lost || state.standing == standing {
            return false;
        }
        state.standing = standing;
        if standing == Standing::Lost && state.binding {
            // Before its carrier hears of it, and closes the copy.
            self.abort();
        }
        tell(state);
        self.changed.notify_all();
        true
    }

    /// After something of the far end has come: wakes the process if it sleeps. Whether it did.
    fn wakes_process(&self) -> bool {
        self.segment.wake_sender();
        if !self.segment.wakes_process() {
            return false;
        }
        match &self.bell {
            Some(bell) => bell.ring(),
            None => return self.count_bell(),
        }
        true
    }

    /// A doorbell that the far end's daemon is to send by its process's socket: counted where this node's process sees
    /// it, before that one can come.
    fn count_bell(&self) -> bool {
        let mut state = lock(&self.state);
        let Some(words) = self.segment.direction(End::Far).filter(|_| !state.is_quiet) else {
            return false;
        };
        words.bells.fetch_add(1, Ordering::SeqCst);
        state.rings += 1;
        tell(state);
        true
    }

    /// Sends doorbells by the process's socket, to the far end's, soon: whoever is inside a call on the socket is waited
    /// for by the kernel, and may be for long.
    pub(super) fn ring_far(self: &Arc<Self>, count: u32) {
        let Some(words) = self.segment.direction(End::Near) else { return };
        let mut state = lock(&self.state);
        if state.due + u64::from(count) > MOST_BELLS {
            drop(state);
            return self.lose("the other daemon asks for more doorbells than its process can want");
        }
        words.bells.fetch_add(u64::from(count), Ordering::SeqCst);
        state.due += u64::from(count);
        if !std::mem::replace(&mut state.is_ringing, true) {
            drop(state);
            let stream = self.clone();
            receive::apart(self.attempt.uid, move || stream.send_bells());
        }
    }

    /// Sends the doorbells that are due. What the kernel has no room for is owed: its queue is full of what wakes
    /// the far end as well. An error that the kernel tells us is the process's to hear.
    fn send_bells(&self) {
        let (Some(kernel), Some(words)) =
            (self.segment.kernel(), self.segment.direction(End::Near))
        else {
            return;
        };
        let bells = [0; 64];
        let mut sent = Ok(0);
        loop {
            let mut state = lock(&self.state);
            state.due = state.due.saturating_sub(sent.unwrap_or(0) as u64);
            let (true, Ok(_), Some(socket)) = (state.due > 0, sent, self.attempt.socket()) else {
                words.owed.store(state.due, Ordering::SeqCst);
                state.is_ringing = false;
                return;
            };
            let some = bells.get(..state.due.min(64) as usize).unwrap_or_default();
            drop(state);
            sent = match tcp::send_for(socket.as_fd(), some, Some(self.kept(&kernel)), false) {
                Err(Errno::INTR) => Ok(0),
                // No room; or the connection's end, which wakes everybody.
                other => other,
            };
        }
    }

    /// Whose ends these are.
    pub(super) fn users(&self) -> Holder {
        let near = self.attempt.uid;
        (near, lock(&self.state).greeted.unwrap_or(near))
    }

    /// Sends what is in the process's ring by its socket, as far as the far end has not taken it, and ends the ring part.
    /// The caller has the claim ([`vmmc_ring::pump`]). Blocks for as long as the far end's process does not read. `ends`: a
    /// FIN follows.
    pub(super) fn give_back(&self, ends: bool) -> Result<u64, &'static str> {
        let words = self.segment.direction(End::Near).ok_or("it has no words for it")?;
        let socket = self.attempt.socket().ok_or("its socket is closed")?;
        // Doorbells of before are counted, and not all sent perhaps.
        while lock(&self.state).is_ringing {
            std::thread::sleep(BELLS_SLICE);
        }
        let kept = self.segment.kernel().map(|kernel| self.kept(&kernel));
        pump::give_back(&words, self.segment.ring(End::Near), socket.as_fd(), kept, ends)
    }

    /// Where an error of the process's socket is kept for it.
    fn kept(&self, kernel: &KernelSides) -> Taken<MappedU32<'_>> {
        Taken(self.segment.word32(kernel.near.error))
    }

    /// The process's socket.
    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        self.attempt.socket()
    }

    /// Bytes that the process's socket takes without waiting; `None` where it takes none any more.
    pub(super) fn send_room(&self) -> Option<u64> {
        tcp::send_room(self.attempt.socket()?.as_fd())
    }

    /// The same where nothing follows them but a FIN, for so many.
    pub(super) fn room_at_the_end(&self, bytes: u64) -> Option<u64> {
        let socket = self.attempt.socket()?;
        tcp::make_room(socket.as_fd(), bytes);
        tcp::send_room(socket.as_fd())
    }

    /// The carrier hears, or does not, of what the far end's process takes.
    pub(super) fn watch(&self, watches: bool) {
        lock(&self.state).is_watching = watches;
    }

    fn tell_watcher(&self) {
        let state = lock(&self.state);
        if state.is_watching {
            tell(state);
        }
    }

    /// What the far end's daemon has said since this was last asked.
    pub(super) fn take_said(&self) -> Vec<Said> {
        std::mem::take(&mut lock(&self.state).said)
    }

    /// Whether it has said something.
    pub(super) fn has_heard(&self) -> bool {
        !lock(&self.state).said.is_empty()
    }

    /// Doorbells for which the far end's daemon is to be asked.
    pub(super) fn take_rings(&self) -> u32 {
        std::mem::take(&mut lock(&self.state).rings)
    }

    /// No doorbell is counted any more; as [`Stream::take_rings`].
    pub(super) fn be_quiet(&self) -> u32 {
        let mut state = lock(&self.state);
        state.is_quiet = true;
        std::mem::take(&mut state.rings)
    }

    /// Whether the far end's FIN, or an error, has come to the process's socket.
    pub(super) fn has_ended(&self) -> bool {
        let Some(socket) = self.attempt.socket() else { return true };
        let mut now = [PollFd::new(&*socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut now, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    /// What was to be given back to the kernel has been, or cannot be.
    pub(super) fn gave_back(&self) {
        let mut state = lock(&self.state);
        state.gave_back = true;
        tell(state);
    }

    /// Whether it has.
    pub(super) fn has_given_back(&self) -> bool {
        lock(&self.state).gave_back
    }

    /// Closes the copy of the socket.
    pub(super) fn close(&self) {
        self.attempt.close();
    }
}

/// Has the carrier, if there is one yet, look at the connection.
fn tell(state: MutexGuard<'_, State>) {
    let carrier = state.carrier.clone();
    drop(state);
    if let Some((door, number)) = carrier {
        door.put(News::Changed(number));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::carry::segment::tests::of_sockets;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use vmmc_ring::taken::Found;

    /// The kernel tells it once, and the process would find an end of file.
    #[test]
    fn an_error_that_a_doorbell_meets_is_kept_for_the_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        rustix::net::sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
        drop(far); // a reset
        let mut reset = [PollFd::new(&near, PollFlags::empty())];
        while !reset[0].revents().contains(PollFlags::ERR) {
            poll(&mut reset, None).unwrap();
        }
        let attempt = Arc::new(Attempt::new(
            vmmc::sys::Fd::from(OwnedFd::from(near.try_clone().unwrap())),
            0,
        ));
        let stream = Stream::new(of_sockets(0), None, attempt);
        lock(&stream.state).due = 1;
        stream.send_bells();
        assert!(near.take_error().unwrap().is_none(), "the kernel has told it");
        let word = stream.segment.word32(stream.segment.kernel().unwrap().near.error);
        let reset = Found::Error(Errno::CONNRESET.raw_os_error());
        assert_eq!([Taken(word).take(), Taken(word).take()], [reset, Found::Nothing]);
    }
}
