//! One application, one end: watches its processes and ends them together.
//!
//! The supervisor runs in the process that started the nodes (`shrimp run`, the controlling
//! process of `prog -sz N`, or a thread of the program that called `nx_nfork`). It waits in one
//! `poll` for
//!
//! * the pidfd of each process: its end;
//! * the [control channel](super::control) of each process: what it has to say;
//! * an [`Inbox`], through which other threads of the supervising process speak to it.
//!
//! # When one ends
//! | how | the others |
//! |---|---|
//! | exit code 0 | go on |
//! | killed by a signal | are ended at once |
//! | said `Abort`, or `Kill` for all | are ended at once |
//! | was the object of a `Kill` | go on; they are told before, so that they do not take it for a death |
//! | said `Lost`, and has then exited | wait with it for the end of the node that it misses, which is the cause |
//! | another exit code | have [`Settings::grace`], and are then ended |
//! | another exit code, of a process that `nx_nfork` or `nx_load` made | go on: its parent waits for it |
//!
//! The row of another exit code is not "at once" because old C programs that run off the end of `main` leave an
//! exit code that nobody chose, and their other nodes may still be printing.
//!
//! A process notices the death of another one by their link, often before the pidfd of the dead one
//! tells: the end of that node is then awaited for [`Settings::patience`]. Only when it stays away,
//! or was nobody's fault, what the survivors said is the cause.
//!
//! To be ended means SIGTERM, and SIGKILL after [`Settings::patience`].
//!
//! An application on several machines has a supervisor on each: see [`others`].

mod cause;
mod member;
pub mod others;

pub use cause::{Cause, Outcome, Who};
pub use member::{Ended, Member};
use others::{Down, Others, Up, Word};

use super::control::{self, Answer, HOST, Heard, MAX_ORDER, Message, Order, hear};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;
use rustix::process::Signal;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmmc::sys::{Fd, packet};

/// What a supervisor may be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long the others may go on after one has exited with a code other than 0.
    pub grace: Duration,
    /// How long after SIGTERM comes SIGKILL.
    pub patience: Duration,
    /// Whether to reap children. A program that called `nx_nfork` reaps its own.
    pub reap: bool,
    /// Whether the application has nodes that others watch, on other machines: who misses one of those waits for
    /// [`Settings::patience`], so that the one who knows more can end us.
    pub elsewhere: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            grace: Duration::from_secs(5),
            patience: Duration::from_secs(2),
            reap: true,
            elsewhere: false,
        }
    }
}

/// What other threads ask of the supervisor.
#[derive(Debug)]
enum Request {
    Add(Member),
    /// Pass the signal on; a second one that asks to end, ends.
    Signal(Signal),
    /// The processes got this signal too, from the terminal.
    Noted(Signal),
    End(Cause),
    /// As [`Message::Kill`].
    Kill {
        by: Who,
        node: i32,
        ptype: i32,
    },
    /// As [`Message::Lost`].
    Lost {
        by: Who,
        node: u32,
        code: u8,
    },
    /// The launcher of an application on several machines says this.
    Down(Down),
    /// Who asks goes on when all that has happened was looked at, and has ended nothing.
    Settle(Sender<()>),
}

/// How other threads of this process speak to the supervisor.
#[derive(Clone, Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requests: Mutex<Vec<Request>>,
    /// An eventfd: readable while there is a request.
    wake: Fd,
}

impl Inbox {
    fn new() -> rustix::io::Result<Inbox> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared { requests: Mutex::new(Vec::new()), wake: wake.into() };
        Ok(Inbox { shared: Arc::new(shared) })
    }

    fn put(&self, request: Request) {
        // A list is whole whatever thread panicked with it.
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        // Full is as good as written: the counter is not 0.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Request> {
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        std::mem::take(&mut *self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One more process to watch.
    pub fn add(&self, member: Member) {
        self.put(Request::Add(member));
    }

    /// Passes a signal on to every process. The second signal that asks to end (HUP, INT, QUIT,
    /// TERM) is the last: who is left after it is killed.
    pub fn signal(&self, signal: Signal) {
        self.put(Request::Signal(signal));
    }

    /// Tells that every process got this signal by itself (a key on the terminal).
    pub fn noted(&self, signal: Signal) {
        self.put(Request::Noted(signal));
    }

    /// Ends some processes, or all, as [`Message::Kill`] does: for the process that the supervisor runs in.
    pub fn kill(&self, by: Who, node: i32, ptype: i32) {
        self.put(Request::Kill { by, node, ptype });
    }

    /// The process that the supervisor runs in cannot go on without a node, as [`Message::Lost`] says of others. The outcome ends it.
    pub fn lost(&self, by: Who, node: u32, code: u8) {
        self.put(Request::Lost { by, node, code });
    }

    /// Passes on what the launcher of an application on several machines says.
    pub fn down(&self, down: Down) {
        self.put(Request::Down(down));
    }

    /// Ends the application.
    pub fn end(&self, cause: Cause) {
        self.put(Request::End(cause));
    }

    /// Returns when the supervisor has looked at all that has happened to its processes. If that ends the application it does
    /// not return: the outcome ends this process.
    pub fn settle(&self) {
        let (answer, settled) = channel();
        self.put(Request::Settle(answer));
        let _ = settled.recv();
    }
}

/// What happens to those that still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// They may come to their own end until then.
    Grace(Instant),
    /// They have SIGTERM, and get SIGKILL then.
    Ending(Instant),
    /// They have SIGKILL.
    Killed,
}

/// Watches the processes of one application.
#[derive(Debug)]
pub struct Supervisor {
    settings: Settings,
    inbox: Inbox,
    members: Vec<Member>,
    phase: Phase,
    /// Why it ends; the first cause is the one that counts.
    cause: Option<Cause>,
    /// A node that another process misses, and the cause if its end tells none.
    missed: Option<(u32, Cause)>,
    /// The last signal that asked the whole application to end.
    asked: Option<Signal>,
    /// How many processes were ended by us.
    ended: usize,
    /// For the process that the supervisor runs in.
    on_ending: Option<OnEnding>,
    /// Those of the other hosts.
    others: Option<Others>,
    /// Who waits until it is known that nothing ends the application.
    settling: Vec<Sender<()>>,
    /// The sockets of those who wait until all that have ended were looked at, to reap them.
    reaping: Vec<Fd>,
}

/// Hears node and id of a process that is about to be ended on request.
struct OnEnding(Box<dyn Fn(u32, i32) + Send>);

impl std::fmt::Debug for OnEnding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnEnding")
    }
}

impl Supervisor {
    /// One that watches nobody yet.
    ///
    /// # Errors
    /// As eventfd(2): no descriptors left.
    pub fn new(settings: Settings) -> rustix::io::Result<Supervisor> {
        Ok(Supervisor {
            settings,
            inbox: Inbox::new()?,
            members: Vec::new(),
            phase: Phase::Running,
            cause: None,
            missed: None,
            asked: None,
            ended: 0,
            on_ending: None,
            others: None,
            settling: Vec::new(),
            reaping: Vec::new(),
        })
    }

    /// There are others on other hosts, which `say` reaches. This one then stays until they say that it may leave,
    /// or something has ended the application.
    pub fn join_others(&mut self, say: impl Fn(Up) + Send + 'static) {
        self.others = Some(Others::new(say));
    }

    /// The process that this runs in takes part, and has no channel to itself: `tell` hears what others hear by
    /// [`Message::Ending`].
    pub fn on_ending(&mut self, tell: impl Fn(u32, i32) + Send + 'static) {
        self.on_ending = Some(OnEnding(Box::new(tell)));
    }

    /// For other threads.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    /// One more process to watch. Who joins an application that is ending is ended too.
    pub fn add(&mut self, member: Member) {
        match self.phase {
            Phase::Running | Phase::Grace(_) => {}
            Phase::Ending(_) | Phase::Killed => member.kill(Signal::KILL),
        }
        self.members.push(member);
    }

    /// Watches until no process is left, on several hosts on none of them, and tells how it came.
    pub fn run(&mut self) -> Outcome {
        self.serve_inbox();
        loop {
            let left = self.members.iter().any(Member::is_running);
            if !left && !self.stays() {
                break;
            }
            if let Some(others) = &mut self.others {
                others.are_left(left || self.missed.is_some());
            }
            self.wait();
            self.serve_inbox();
            self.serve_members();
            if let Some(others) = &mut self.others {
                others.drop_unawaited();
            }
            self.serve_missed();
            self.serve_clock();
        }
        // All have ended because one is missed that others watch.
        let complaint = self.missed.take().map(|(_, complaint)| complaint);
        self.cause = self.cause.take().or(complaint);
        Outcome { cause: self.cause.clone(), ended: self.ended }
    }

    /// Whether there may be processes on other hosts, and nothing is wrong here; or all here miss one of those, and what its
    /// end was may still be told.
    fn stays(&self) -> bool {
        self.others.as_ref().is_some_and(|others| !others.leave) && self.cause.is_none()
    }

    /// Waits until there is somebody to watch, or a cause to end. For a supervisor that lives as long as its
    /// process.
    pub fn wait_for_members(&mut self) {
        while !self.members.iter().any(Member::is_running)
            && self.cause.is_none()
            && self.missed.is_none()
        {
            self.members.clear();
            self.settle();
            let mut fds = [PollFd::new(&self.inbox.shared.wake, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, None);
            self.serve_inbox();
        }
    }

    /// Waits for anything to happen.
    fn wait(&self) {
        let mut fds = vec![PollFd::new(&self.inbox.shared.wake, PollFlags::IN)];
        for member in &self.members {
            fds.extend(member.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        for fd in self.others.iter().flat_map(Others::fds) {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::empty()));
        }
        let timeout = match self.phase {
            Phase::Running | Phase::Killed => None,
            Phase::Grace(until) | Phase::Ending(until) => {
                // A clock that has passed is served after an immediate return.
                let left = until.saturating_duration_since(Instant::now());
                Timespec::try_from(left).ok()
            }
        };
        // Interrupted or not: everything is looked at again.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    fn serve_inbox(&mut self) {
        for request in self.inbox.take() {
            match request {
                Request::Add(member) => self.add(member),
                Request::End(cause) => self.end(cause),
                Request::Kill { by, node, ptype } => self.kill_some(by, node, ptype),
                Request::Lost { by, node, code } => self.miss(by, node, code),
                Request::Down(down) => self.hear_others(down),
                Request::Settle(answer) => {
                    self.settling.push(answer);
                    self.serve_members();
                    self.settle();
                }
                Request::Noted(signal) => {
                    let _ = self.asks_to_end(signal);
                }
                Request::Signal(signal) => {
                    if self.asks_to_end(signal) {
                        self.end(Cause::Signal(signal));
                        self.kill_all();
                    } else {
                        for member in self.members.iter().filter(|member| member.is_running()) {
                            member.kill(signal);
                        }
                    }
                }
            }
        }
    }

    /// Notes a signal; whether it is the second that asks to end.
    fn asks_to_end(&mut self, signal: Signal) -> bool {
        if ![Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal) {
            return false;
        }
        self.asked.replace(signal).is_some()
    }

    /// Lets go who waits for the end that does not come.
    fn settle(&mut self) {
        if self.cause.is_none() && self.missed.is_none() {
            for waiting in self.settling.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    fn serve_members(&mut self) {
        loop {
            let reaping = std::mem::take(&mut self.reaping);
            (0..self.members.len()).for_each(|index| self.serve_member(index));
            for socket in reaping {
                // Who has gone meanwhile does not reap.
                let _ = packet::send(socket, &[0], &[], SendFlags::DONTWAIT);
            }
            if self.reaping.is_empty() {
                return;
            }
        }
    }

    fn serve_member(&mut self, index: usize) {
        // What it said before it ended comes first.
        self.serve_channel(index);
        if self.members[index].is_running()
            && let Some(ended) = self.members[index].look(self.settings.reap)
        {
            self.serve_channel(index);
            if let (Some(ticket), Some(others)) = (self.members[index].ticket, &self.others) {
                others.say(Up::Answer { ticket, answer: Answer::Ended(ended) });
            }
            self.judge(index, ended);
        }
    }

    fn serve_channel(&mut self, index: usize) {
        while let Some(channel) = self.members[index].control() {
            match hear(channel) {
                Heard::Nothing => return,
                Heard::Closed => self.members[index].close_control(),
                Heard::Message(message, fds) => self.obey(index, message, fds),
            }
        }
    }

    fn obey(&mut self, index: usize, message: Message, mut fds: packet::Fds) {
        match message {
            Message::Host => self.members[index].node = None,
            Message::Ptype(ptype) => self.members[index].ptype = ptype,
            Message::Finished => self.members[index].finished = true,
            Message::Add { node, ptype, pid } => {
                let node = u32::try_from(node).ok();
                if let Some(pidfd) = fds.take() {
                    self.add(Member::relative(node, ptype, pid, pidfd, fds.take()));
                }
            }
            Message::Abort { code, text } => {
                let by = self.members[index].who();
                self.end(Cause::Aborted { by, code, text });
            }
            Message::Lost { node, code } => {
                self.members[index].bereaved = true;
                self.miss(self.members[index].who(), node, code);
            }
            Message::Kill { node, ptype } => {
                self.kill_some(self.members[index].who(), node, ptype);
            }
            Message::Load { len } => {
                if let (Some(file), Some(answers)) = (fds.take(), fds.take()) {
                    self.load(&file, len as usize, answers);
                }
            }
            Message::Reaping => self.reaping.extend(fds.take()),
            Message::Ending { .. } => {} // is for us to say
        }
    }

    /// A process here wants a program started on another host.
    fn load(&mut self, file: &Fd, len: usize, answers: Fd) {
        match (read_order(file, len), &mut self.others) {
            (Ok(order), Some(others)) => others.load(order, answers),
            (Ok(_), None) => others::answer_to(&answers, Answer::Failed(libc::ENOSYS)),
            (Err(errno), _) => others::answer_to(&answers, Answer::Failed(errno.raw_os_error())),
        }
    }

    /// One cannot go on because `node` has gone: the end of that one is the cause, if it comes.
    fn miss(&mut self, by: Who, node: u32, code: u8) {
        if self.cause.is_none() && self.missed.is_none() {
            let text = format!("node {node} died");
            self.missed = Some((node, Cause::Aborted { by, code, text }));
            self.phase = Phase::Grace(Instant::now() + self.settings.patience);
        }
    }

    /// The missed node has ended and was not the cause: what the others said is.
    fn serve_missed(&mut self) {
        let Some((missed, complaint)) = &self.missed else { return };
        let has_node = self.members.iter().any(|member| member.node == Some(*missed));
        if self.settings.elsewhere && !has_node {
            return;
        }
        // Whose number no node has is the host process.
        let is_missed = |member: &Member| match has_node {
            true => member.node == Some(*missed),
            false => member.node.is_none(),
        };
        let runs = |member: &Member| is_missed(member) && member.is_running();
        if self.cause.is_none() && !self.members.iter().any(runs) {
            self.end(complaint.clone());
        }
    }

    fn kill_some(&mut self, by: Who, node: i32, ptype: i32) {
        // Nodes end with the host that started them.
        if node == HOST || (node == -1 && ptype <= 0) {
            return self.end(Cause::KilledAll { by });
        }
        if let Some(others) = &mut self.others {
            others.kill(node, ptype);
        }
        self.kill_here(node, ptype);
    }

    /// Ends those of this host that are meant, once all that are left can know of it.
    fn kill_here(&mut self, node: i32, ptype: i32) {
        let mut ending = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.is_running()) {
            let Some(own) = member.node.filter(|&own| node == -1 || own as i32 == node) else {
                continue;
            };
            // Each is told of once, however often somebody asks: who hears it reads it when the link ends, and not before.
            if (ptype < 0 || member.ptype == ptype) && member.request.is_none() {
                member.request = Some(0);
                ending.push((own, member.who().pid));
            }
        }
        if ending.is_empty() {
            return;
        }
        self.tell_of_ending(&ending);
        let told = |member: &&mut Member| ending.iter().any(|&(_, pid)| pid == member.who().pid);
        let members = self.members.iter_mut().filter(|member| member.is_running()).filter(told);
        match &mut self.others {
            None => members.for_each(|member| member.kill(Signal::KILL)),
            Some(others) => {
                let id = others.tell(Word::Ending(ending.clone()));
                members.for_each(|member| member.request = Some(id));
            }
        }
    }

    /// The processes here hear of the end of others before they can notice it.
    fn tell_of_ending(&self, ending: &[(u32, i32)]) {
        for (OnEnding(tell), &(node, pid)) in
            self.on_ending.iter().flat_map(|tell| ending.iter().map(move |one| (tell, one)))
        {
            tell(node, pid);
        }
        // Also those who are about to be ended: on another host it may be done before.
        for member in self.members.iter().filter(|member| member.is_running()) {
            for &(node, pid) in ending {
                if let Some(channel) = member.control() {
                    control::try_tell(channel, &Message::Ending { node, pid });
                }
            }
        }
    }

    fn hear_others(&mut self, down: Down) {
        match down {
            Down::Tell { from, id, word } => {
                match word {
                    Word::Kill { node, ptype } => self.kill_here(node, ptype),
                    Word::Ending(ending) => self.tell_of_ending(&ending),
                }
                if let Some(others) = &self.others {
                    others.say(Up::Heard { from, id });
                }
            }
            Down::AllHeard { id } => {
                if let Some(others) = &mut self.others {
                    others.all_heard(id);
                }
                for member in self.members.iter().filter(|member| member.request == Some(id)) {
                    member.kill(Signal::KILL);
                }
            }
            Down::Answer { number, answer } => {
                if let Some(others) = &mut self.others {
                    others.answer(number, answer);
                }
            }
            Down::Drop { ticket } => {
                for member in self.members.iter().filter(|it| it.ticket == Some(ticket)) {
                    member.kill(Signal::KILL);
                }
            }
            Down::Load { .. } => {} // is for whoever has started us
            Down::Leave => {
                if let Some(others) = &mut self.others {
                    others.leave = true;
                }
            }
        }
    }

    /// One has ended: what that means for the others.
    fn judge(&mut self, index: usize, ended: Ended) {
        if ended == Ended::Signal(Signal::KILL.as_raw()) && self.bereaved_host_has_ended() {
            return; // and so have the nodes that it had started
        }
        let member = &mut self.members[index];
        let who = member.who();
        if member.request.is_some() || matches!(self.phase, Phase::Ending(_) | Phase::Killed) {
            return;
        }
        match ended {
            Ended::Code(0) => {}
            // Who left by `exit` and has a parent of its own that waits for it: its code is for that.
            Ended::Code(_)
                if member.finished
                    && (member.ticket.is_some() || !(member.child && self.settings.reap)) => {}
            Ended::Unknown if member.finished => {}
            Ended::Code(_) | Ended::Unknown if member.bereaved => {}
            Ended::Code(code) => {
                if self.cause.is_none() {
                    self.cause = Some(Cause::Exited { who, code });
                    self.phase = Phase::Grace(Instant::now() + self.settings.grace);
                }
            }
            Ended::Signal(signal) if self.asked.is_some_and(|asked| asked.as_raw() == signal) => {
                let asked = self.asked.unwrap_or(Signal::TERM);
                self.end(Cause::Signal(asked));
            }
            Ended::Signal(signal) => self.end(Cause::Killed { who, signal }),
            Ended::Unknown => self.end(Cause::Died { who }),
        }
    }

    /// Whether a host process has said that it cannot go on without a node. It did so before its end, and that comes before those of
    /// its nodes.
    fn bereaved_host_has_ended(&mut self) -> bool {
        (0..self.members.len()).for_each(|index| self.serve_channel(index));
        self.members.iter().any(|member| member.node.is_none() && member.bereaved)
    }

    fn end(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
        if matches!(self.phase, Phase::Ending(_) | Phase::Killed) {
            return;
        }
        self.phase = Phase::Ending(Instant::now() + self.settings.patience);
        let culprit = self.cause.as_ref().and_then(Cause::who).map(|who| who.pid);
        for member in self.members.iter().filter(|member| member.is_running()) {
            member.kill(Signal::TERM);
            // A stopped process ends only once it goes on.
            member.kill(Signal::CONT);
            self.ended += usize::from(Some(member.who().pid) != culprit);
        }
    }

    fn kill_all(&mut self) {
        self.phase = Phase::Killed;
        for member in self.members.iter().filter(|member| member.is_running()) {
            member.kill(Signal::KILL);
        }
    }

    fn serve_clock(&mut self) {
        let now = Instant::now();
        match self.phase {
            Phase::Grace(until) if now >= until => {
                let complaint = self.missed.as_ref().map(|(_, complaint)| complaint);
                if let Some(cause) = self.cause.as_ref().or(complaint).cloned() {
                    self.end(cause);
                }
            }
            Phase::Ending(until) if now >= until => self.kill_all(),
            _ => {}
        }
    }
}

/// The order that a process has written to a file.
fn read_order(file: &Fd, len: usize) -> rustix::io::Result<Order> {
    use rustix::io::Errno;
    if len > MAX_ORDER {
        return Err(Errno::TOOBIG);
    }
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(file, &mut bytes[done..], done as u64) {
            Ok(0) => return Err(Errno::INVAL),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    postcard::from_bytes(&bytes).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests;
