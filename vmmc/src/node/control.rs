//! Requests to the daemon and their answers.
//!
//! The thread that asks also reads: it takes the *reader* lock and receives messages, its own answer and
//! everybody else's, until its answer is among them. That saves a hand-over between threads per
//! request, which costs more than the daemon does. The control thread reads when nobody else
//! does, and sleeps through what callers read (see [`super::post`]); so whoever stops reading tells
//! the callers that wait, and one of them reads on. Messages are handled in the order in which they came, by whoever holds the reader lock.
//!
//! A caller polls for its answer before it sleeps, unless the daemon runs on the caller's own
//! processor by its last answer: see [`Poller`].
//!
//! A request stays in the table of pending ones until it is answered, so after a loss of the daemon it
//! is simply sent again to the next one.

use super::NodeInner;
use super::post::{Post, Quiet};
use crate::config::Config;
use crate::control::codec;
use crate::control::connect::{ConnectError, Connection, LinkError, SETUP_TIMEOUT};
use crate::control::message::{Hello, Refusal, Request, Resume, Role, Welcome};
use crate::control::network::FabricAt;
use crate::counters::index as count;
use crate::error::{DaemonError, SystemError};
use crate::export::{ExportDraft, ExportInner};
use crate::handler::Reading;
use crate::id::RequestId;
use crate::import::{ImportDraft, ImportInner, OwnSegment};
use crate::local::Local;
use crate::sync::{AtomicU32, Condvar, Mutex, MutexGuard, Ordering};
use crate::sys::Fd;
use crate::sys::memfd::SegmentError;
use crate::sys::sched;
use crate::wait::Poller;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This process's end of the conversation.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    /// Something in `state` changed.
    pub(super) changed: Condvar,
    /// Held by the thread that receives.
    reader: Mutex<Poller>,
    /// Where the daemon ran when it answered last; `u32::MAX`: not known.
    daemon_cpu: AtomicU32,
    role: Role,
    program: String,
}

#[derive(Debug)]
struct State {
    connection: Option<Arc<Post>>,
    welcome: Welcome,
    pending: HashMap<RequestId, Pending>,
    next_request: u64,
    /// Set once, by the drop of the node.
    shut: bool,
    /// When the daemon was lost, while it is.
    lost: Option<Instant>,
    /// Callers that wait while another thread reads.
    waiting: u32,
}

#[derive(Debug)]
enum Pending {
    /// Boxed: a request is long.
    Waiting(Box<Call>),
    /// Some thread makes the answer of it just now, see [`Control::take_call`].
    Taken,
    /// Boxed: there are many kinds of answer, and few at a time.
    Done(Box<Answer>),
}

/// A request that was not answered yet, with all it takes to send it again.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) fds: Vec<Arc<Fd>>,
    pub(crate) draft: Draft,
    /// When it was first sent.
    since: Instant,
}

/// What is made of the answer.
#[derive(Debug)]
pub(crate) enum Draft {
    Export(Box<ExportDraft>),
    Import(Box<ImportDraft>),
    /// Announced again to a daemon that forgot it.
    RestoreExport(Arc<ExportInner>),
    /// Claimed again from a daemon that forgot it.
    RestoreImport(Arc<ImportInner>),
    Plain,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Exported(Arc<ExportInner>),
    Imported(Arc<ImportInner>),
    Done,
    /// Whether nobody ever imported it, by the daemon's word.
    Unexported {
        untouched: bool,
    },
    Listing {
        file: Fd,
        len: u64,
    },
    /// A conversation with the node's network service.
    Network(Fd, Option<FabricAt>),
    Refused(Refusal),
    Failed(Failure),
}

/// Why there is no answer, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

impl Call {
    /// Whether it only tells a daemon what there is: nobody waits for the answer.
    fn is_announcement(&self) -> bool {
        matches!(self.draft, Draft::RestoreExport(_) | Draft::RestoreImport(_))
    }

    /// Whether it is an import with a segment that an exporter knows.
    pub(super) fn has_known_segment(&self) -> bool {
        matches!(self.request, Request::Import { known_to: Some(_), .. })
    }

    /// Goes on with a segment that nobody else has.
    pub(super) fn take_fresh_segment(&mut self) -> Result<(), SystemError> {
        if let (Request::Import { known_to, .. }, Draft::Import(draft)) =
            (&mut self.request, &mut self.draft)
        {
            *known_to = None;
            draft.segment = OwnSegment::fresh()?;
            self.fds = vec![draft.segment.file.clone()];
        }
        Ok(())
    }

    /// Leaves an import only what remains of its timeout.
    fn age(&mut self) {
        if let Request::Import { timeout_ms, .. } | Request::ImportFor { timeout_ms, .. } =
            &mut self.request
            && *timeout_ms != u32::MAX
        {
            let passed = u32::try_from(self.since.elapsed().as_millis()).unwrap_or(u32::MAX);
            *timeout_ms = timeout_ms.saturating_sub(passed);
        }
        self.since = Instant::now();
    }
}

impl Control {
    /// Connects and introduces this process.
    pub(crate) fn connect(
        config: &Config,
        local: &Local,
        role: Role,
        program: String,
    ) -> Result<(Control, Welcome), ConnectError> {
        let (connection, welcome) = introduce(config, local, role, &program, None)?;
        let state = State {
            connection: Some(Arc::new(post_for(connection)?)),
            welcome,
            pending: HashMap::new(),
            next_request: 1,
            shut: false,
            lost: None,
            waiting: 0,
        };
        let control = Control {
            state: Mutex::new(state),
            changed: Condvar::new(),
            reader: Mutex::default(),
            daemon_cpu: AtomicU32::new(u32::MAX),
            role,
            program,
        };
        Ok((control, welcome))
    }

    /// Connects again to whatever daemon there is now.
    pub(super) fn connect_again(
        &self,
        config: &Config,
        local: &Local,
    ) -> Result<(Post, Welcome), ConnectError> {
        let before = self.welcome();
        let resume = Resume { client: before.client, session: before.session };
        let (connection, welcome) =
            introduce(config, local, self.role, &self.program, Some(resume))?;
        Ok((post_for(connection)?, welcome))
    }

    pub(crate) fn welcome(&self) -> Welcome {
        self.state.lock().welcome
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().connection.is_some()
    }

    /// The connection, `None` while the daemon is lost.
    pub(super) fn connection(&self) -> Option<Arc<Post>> {
        self.state.lock().connection.clone()
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state.lock().shut
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.state.lock().pending.is_empty()
    }

    /// Ends the conversation: the daemon sees it at once, and so does the control thread.
    pub(crate) fn shut(&self) {
        let mut state = self.state.lock();
        state.shut = true;
        if let Some(connection) = state.connection.take() {
            let _ = rustix::net::shutdown(connection.connection(), rustix::net::Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Says something that has no answer. Lost with the daemon, which then forgets its subject too.
    /// Not for the reader; see [`Post`].
    pub(crate) fn tell(&self, request: Request) {
        if let Some(post) = self.connection() {
            post.send(request, Vec::new());
            post.see_off();
        }
    }

    /// Asks: enters the request into the table and sends it. Not for the reader; see [`Post`].
    pub(crate) fn ask(
        &self,
        node: &NodeInner,
        make: impl FnOnce(RequestId) -> Request,
        fds: Vec<Arc<Fd>>,
        draft: Draft,
    ) -> RequestId {
        let cpu = node.local.page.note_cpu(); // the daemon comes to us
        let id = self.ask_at_once(|id| make(id).sent_from(cpu), fds, draft);
        self.see_off();
        id
    }

    /// Taken by a caller before it asks and waits: see [`super::post`].
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        self.connection().map(|post| post.quiet())
    }

    /// Waits until what is queued for the daemon has gone.
    fn see_off(&self) {
        if let Some(post) = self.connection() {
            post.see_off();
        }
    }

    /// [`Control::ask`] for the reader.
    pub(super) fn ask_at_once(
        &self,
        make: impl FnOnce(RequestId) -> Request,
        fds: Vec<Arc<Fd>>,
        draft: Draft,
    ) -> RequestId {
        // What a draft owns is the program's, and is dropped behind the lock.
        let mut unsent = None;
        let mut state = self.state.lock();
        let id = RequestId(state.next_request);
        state.next_request += 1;
        let call = Box::new(Call { request: make(id), fds, draft, since: Instant::now() });
        // Sent under the lock, so that a resend after a reconnection cannot overtake it.
        let entry = match &state.connection {
            _ if !codec::fits(&call.request) => {
                let refusal = unsent.insert(call).request.too_long();
                Pending::Done(Box::new(Answer::Refused(refusal)))
            }
            Some(post) => {
                send_call(post, &call);
                Pending::Waiting(call)
            }
            // As in `lose`: a daemon that is gone need not be waited for. (Whether anybody has
            // imported the export is not known then.)
            None if matches!(call.request, Request::Unexport { .. }) => {
                Pending::Done(Box::new(Answer::Done))
            }
            None => Pending::Waiting(call),
        };
        state.pending.insert(id, entry);
        if state.connection.is_none() {
            self.changed.notify_all(); // the control thread tries again at once
        }
        drop(state);
        drop(unsent);
        id
    }

    /// The answer to a request, which is waited for. While the daemon is lost, waits for its return,
    /// [`SETUP_TIMEOUT`] at most.
    pub(crate) fn answer(&self, node: &NodeInner, id: RequestId) -> Answer {
        match self.answer_within(node, id, None, (Instant::now(), SETUP_TIMEOUT)) {
            Some(answer) => answer,
            None => unreachable!("no deadline was given"),
        }
    }

    /// [`Control::answer`], waiting until `deadline`: `None` when it is not there by then. A lost daemon is waited for
    /// no longer than `patience` since the request either.
    pub(crate) fn answer_within(
        &self,
        node: &NodeInner,
        id: RequestId,
        deadline: Option<Instant>,
        (asked, patience): (Instant, Duration),
    ) -> Option<Answer> {
        let patience = patience.min(SETUP_TIMEOUT);
        let answer = self.receive_answer(node, id, deadline, (asked, patience));
        // Messages that this thread has handled as the reader may have called for others.
        self.see_off();
        answer
    }

    fn receive_answer(
        &self,
        node: &NodeInner,
        id: RequestId,
        deadline: Option<Instant>,
        (asked, patience): (Instant, Duration),
    ) -> Option<Answer> {
        loop {
            let mut state = self.state.lock();
            if let Some(Pending::Done(_)) = state.pending.get(&id) {
                return match state.pending.remove(&id) {
                    Some(Pending::Done(answer)) => Some(*answer),
                    _ => None,
                };
            }
            if state.shut {
                let unanswered = state.pending.remove(&id);
                drop(state);
                drop(unanswered);
                let gone = DaemonError::Gone { waited: SETUP_TIMEOUT };
                return Some(Answer::Failed(gone.into()));
            }
            let give_up =
                state.lost.map(|since| (since + SETUP_TIMEOUT).min(since.max(asked) + patience));
            if give_up.is_some_and(|at| Instant::now() >= at) {
                let unanswered = state.pending.remove(&id);
                drop(state);
                drop(unanswered);
                let gone = DaemonError::Gone { waited: patience };
                return Some(Answer::Failed(gone.into()));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let connection = state.connection.clone();
            if let (Some(connection), Some(mut reader)) = (connection, self.reader.try_lock()) {
                drop(state);
                let reading = Reading::begin();
                self.receive_waiting(node, &connection, deadline, &mut reader);
                self.stop_reading(reader, reading);
                continue;
            }
            let until = match (deadline, give_up) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            state.waiting += 1;
            let mut state = self.changed.wait(state, until);
            state.waiting -= 1;
        }
    }

    /// Receives one message, unless the deadline is first. What follows the caller's answer is for whoever
    /// reads next: to see that there is nothing would be a system call.
    fn receive_waiting(
        &self,
        node: &NodeInner,
        connection: &Arc<Post>,
        deadline: Option<Instant>,
        reader: &mut MutexGuard<'_, Poller>,
    ) {
        let _quiet = connection.quiet();
        let first = match connection.poll(reader, self.poll_budget(node, deadline)) {
            Some(received) => {
                node.local.meter.add(count::ANSWERS_POLLED, 1);
                Some(received)
            }
            None => {
                node.local.meter.add(count::ANSWER_SLEEPS, 1);
                if deadline.is_none() { connection.receive() } else { None }
            }
        };
        let received = first.unwrap_or_else(|| {
            connection.wait(deadline);
            connection.connection().try_receive()
        });
        match received {
            Ok(incoming) => node.handle(connection, incoming),
            Err(LinkError::WouldBlock) => {}
            Err(_) => self.lose(connection),
        }
    }

    /// How long a caller polls for an answer before it sleeps: not at all while the daemon needs the
    /// caller's processor.
    fn poll_budget(&self, node: &NodeInner, deadline: Option<Instant>) -> Duration {
        let budget = node.policy.round_trip_budget();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if budget.is_zero() || self.daemon_cpu.load(Ordering::Relaxed) == sched::current_cpu() {
            return Duration::ZERO;
        }
        left.map_or(budget, |left| left.min(budget))
    }

    /// The daemon says where it runs.
    pub(super) fn daemon_was_on(&self, cpu: u32) {
        self.daemon_cpu.store(cpu, Ordering::Relaxed);
    }

    /// Lets another thread read: one that waits for an answer, or else the control thread.
    fn stop_reading(&self, reader: MutexGuard<'_, Poller>, reading: Reading) {
        drop(reader);
        // A caller looks for the reader lock under this one: it has found it free, or sleeps by now.
        if self.state.lock().waiting > 0 {
            self.changed.notify_all();
        }
        drop(reading);
    }

    /// Asks and waits for the answer.
    pub(crate) fn call(&self, node: &NodeInner, make: impl FnOnce(RequestId) -> Request) -> Answer {
        let _quiet = self.quiet();
        let id = self.ask(node, make, Vec::new(), Draft::Plain);
        self.answer(node, id)
    }

    /// Hears what the daemon has to tell of links that are granted by now, for `patience` at most.
    pub(crate) fn sync(&self, node: &NodeInner, patience: Duration) {
        let _quiet = self.quiet();
        let now = Instant::now();
        let request = |request| Request::Sync { request };
        let id = self.ask(node, request, Vec::new(), Draft::Plain);
        if self.answer_within(node, id, Some(now + patience), (now, patience)).is_none() {
            self.abandon(id);
        }
    }

    /// Forgets a request whose answer nobody waits for. Returns the answer if it is there.
    pub(crate) fn abandon(&self, id: RequestId) -> Option<Answer> {
        // What it owns is the program's, and is dropped behind the lock.
        let abandoned = self.state.lock().pending.remove(&id);
        match abandoned {
            Some(Pending::Done(answer)) => Some(*answer),
            _ => None,
        }
    }

    /// The call that an answer belongs to, to be completed unless it was an announcement. `None`: nobody
    /// waits for it any more.
    pub(super) fn take_call(&self, id: RequestId) -> Option<Call> {
        let mut state = self.state.lock();
        let pending = state.pending.get_mut(&id)?;
        match std::mem::replace(pending, Pending::Taken) {
            Pending::Waiting(call) => {
                if call.is_announcement() {
                    state.pending.remove(&id);
                }
                Some(*call)
            }
            other => {
                *pending = other;
                None
            }
        }
    }

    /// Sends a call again that was taken, changed, unless it has been abandoned meanwhile. For the reader.
    pub(super) fn ask_again(&self, id: RequestId, mut call: Call) {
        call.age();
        let mut state = self.state.lock();
        let State { connection, pending, .. } = &mut *state;
        let Some(pending) = pending.get_mut(&id) else { return };
        if let Some(post) = connection {
            send_call(post, &call);
        }
        *pending = Pending::Waiting(Box::new(call));
    }

    /// Whether somebody will take the answer. If not, the call was abandoned meanwhile, and what the answer stands
    /// for is the caller's to end.
    pub(super) fn complete(&self, id: RequestId, answer: Answer) -> bool {
        let mut state = self.state.lock();
        let Some(pending) = state.pending.get_mut(&id) else { return false };
        *pending = Pending::Done(Box::new(answer));
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        true
    }

    /// The control thread's turn: handles what has arrived, unless another thread is at it.
    pub(super) fn receive(&self, node: &NodeInner, connection: &Arc<Post>) {
        let reading = Reading::begin();
        let reader = self.reader.lock();
        self.receive_all(node, connection, &reader);
        self.stop_reading(reader, reading);
    }

    fn receive_all(
        &self,
        node: &NodeInner,
        connection: &Arc<Post>,
        _reader: &MutexGuard<'_, Poller>,
    ) {
        loop {
            match connection.connection().try_receive() {
                Ok(incoming) => node.handle(connection, incoming),
                Err(LinkError::WouldBlock) => return,
                Err(_) => return self.lose(connection),
            }
        }
    }

    /// The connection is at its end, or makes no sense: the daemon is lost.
    fn lose(&self, connection: &Arc<Post>) {
        let mut state = self.state.lock();
        if !state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            return; // noticed already
        }
        state.connection = None;
        state.lost = Some(Instant::now());
        // Withdrawing from a daemon that is gone is done: its successor never hears of the export.
        for pending in state.pending.values_mut() {
            if let Pending::Waiting(call) = pending
                && matches!(call.request, Request::Unexport { .. })
            {
                *pending = Pending::Done(Box::new(Answer::Done));
            }
        }
        self.changed.notify_all();
    }

    /// Announcements and claims that were not answered are no use to a daemon that knows nothing of us: it
    /// is told everything anew.
    pub(super) fn forget_announcements(&self) {
        let is_one = |pending: &mut Pending| matches!(pending, Pending::Waiting(call) if call.is_announcement());
        let mut state = self.state.lock();
        let forgotten: Vec<_> = state.pending.extract_if(|_, pending| is_one(pending)).collect();
        // An import that is nobody's any more is the program's to drop.
        drop(state);
        drop(forgotten);
    }

    /// Goes on with another connection: pending requests are sent again, in order.
    pub(super) fn found(&self, connection: Arc<Post>, welcome: Welcome) {
        let mut state = self.state.lock();
        let mut again: Vec<_> = state.pending.iter_mut().collect();
        again.sort_by_key(|(id, _)| **id);
        for (_, pending) in again {
            if let Pending::Waiting(call) = pending {
                call.age();
                send_call(&connection, call);
            }
        }
        if !state.shut {
            state.connection = Some(connection);
        }
        state.welcome = welcome;
        state.lost = None;
        self.changed.notify_all();
    }

    /// Sleeps until something changes or `deadline`, while the daemon is lost.
    pub(super) fn idle_until(&self, deadline: Instant) {
        let state = self.state.lock();
        if !state.shut && state.connection.is_none() {
            drop(self.changed.wait(state, Some(deadline)));
        }
    }
}

fn send_call(post: &Post, call: &Call) {
    post.send(call.request.clone(), call.fds.clone());
}

fn post_for(connection: Connection) -> Result<Post, ConnectError> {
    Post::new(connection).map_err(|errno| ConnectError::System { call: "epoll", errno })
}

fn introduce(
    config: &Config,
    local: &Local,
    role: Role,
    program: &str,
    resume: Option<Resume>,
) -> Result<(Connection, Welcome), ConnectError> {
    let connection = Connection::open(config)?;
    let hello = Hello { role, program: program.to_owned(), resume };
    let fds = [local.page.file().as_fd(), local.hub.bell().fd().as_fd()];
    let welcome = connection.hello(hello, &fds)?;
    Ok((connection, welcome))
}
