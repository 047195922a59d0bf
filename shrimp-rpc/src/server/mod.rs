//! The server's side: a service with a door, its clients' buffers, and threads that serve them.

mod accept;
mod budget;
mod call;
mod duty;
mod leaving;
mod left;
mod poll;
mod post;
mod slot;
mod tasks;
mod work;

pub use call::{
    Args, BulkOut, Cancelled, Context, DeferredCall, DeferredReply, Finished, ReplyWriter,
    ServerCall,
};

use crate::config::Settings;
use crate::error::{DispatchError, ServeError, TransportError};
use crate::layout;
use crate::name;
use crate::process;
use crate::reactor::Reactor;
use accept::{Key, Knock};
use budget::Budget;
use left::Left;
use poll::Poll;
use post::Post;
use slot::Slot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tasks::{Task, Tasks, accept_tasks};
use vmmc::sync::{AtomicBool, Ordering};
use vmmc::{Event, Export, Grant, Node, Region, Rights, Token, Who};

/// What a program does with calls. Generated from an interface file.
pub trait Service {
    /// Number of the program.
    const PROGRAM: u32;
    /// Version of the program.
    const VERSION: u32;
    /// Name of the program in the interface file.
    const NAME: &'static str;

    /// Serves one call.
    ///
    /// # Errors
    /// Whatever kept the call from a reply; the client is told.
    fn dispatch(&self, procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError>;
}

impl<S: Service + ?Sized> Service for Arc<S> {
    const PROGRAM: u32 = S::PROGRAM;
    const VERSION: u32 = S::VERSION;
    const NAME: &'static str = S::NAME;

    fn dispatch(&self, procedure: u32, call: ServerCall<'_>) -> Result<Finished, DispatchError> {
        (**self).dispatch(procedure, call)
    }
}

type Dispatch = dyn Fn(u32, ServerCall<'_>) -> Result<Finished, DispatchError> + Send + Sync;

/// A service with its numbers.
pub(crate) struct Program {
    number: u32,
    version: u32,
    dispatch: Box<Dispatch>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({:#x} version {})", self.number, self.version)
    }
}

/// A server in the making.
#[must_use]
pub struct ServerBuilder {
    service: String,
    node: Option<Node>,
    grants: Vec<Grant>,
    token: Option<Token>,
    settings: Settings,
    programs: Vec<Program>,
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("service", &self.service)
            .field("programs", &self.programs)
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    /// Adds a program. Several, and several versions of one, may share a service's name.
    pub fn program<S: Service + Send + Sync + 'static>(self, service: S) -> Self {
        self.raw_program(S::PROGRAM, S::VERSION, move |procedure, call| {
            service.dispatch(procedure, call)
        })
    }

    /// Adds a program that is a function.
    pub fn raw_program(
        mut self,
        number: u32,
        version: u32,
        dispatch: impl Fn(u32, ServerCall<'_>) -> Result<Finished, DispatchError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.programs.push(Program { number, version, dispatch: Box::new(dispatch) });
        self
    }

    /// Uses this node; otherwise one that all of this process shares.
    pub fn node(mut self, node: &Node) -> Self {
        self.node = Some(node.clone());
        self
    }

    /// Lets `who` bind. May be repeated; without any, processes of the same user may.
    pub fn allow(mut self, who: Who) -> Self {
        self.grants.push(Grant { who, rights: Rights::WRITE });
        self
    }

    /// Asks clients for a secret, besides.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Longest buffer for a client's calls, in bytes; clients that ask for less get less.
    pub fn buffer_max(mut self, bytes: usize) -> Self {
        self.settings.buffer_len = layout::buffer_len(bytes);
        self
    }

    /// Longest call and longest reply, in bytes: what one of a client can make this server allocate.
    pub fn call_max(mut self, bytes: usize) -> Self {
        self.settings.call_max = bytes;
        self
    }

    /// Most bindings at a time.
    pub fn bindings_max(mut self, bindings: usize) -> Self {
        self.settings.bindings_max = bindings;
        self
    }

    /// Most bindings of one client process at a time. As many of its buffers, or sixteen, may wait to be withdrawn besides.
    pub fn bindings_each(mut self, bindings: usize) -> Self {
        self.settings.bindings_each = bindings;
        self
    }

    /// Memory for calls and replies in pieces, in bytes, of which one client process may take half. It is never
    /// less than three times the longest call.
    pub fn pieces_max(mut self, bytes: usize) -> Self {
        self.settings.pieces_max = bytes;
        self
    }

    /// Threads that run handlers. With more than one, a handler that takes long, or waits, keeps no
    /// other client waiting.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers.max(1);
        self
    }

    /// Opens the door and starts serving, in threads of its own.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(self) -> Result<Server, ServeError> {
        if self.programs.is_empty() {
            return Err(ServeError::NoProgram);
        }
        name::check(&self.service)?;
        for (i, one) in self.programs.iter().enumerate() {
            let same =
                |other: &&Program| (other.number, other.version) == (one.number, one.version);
            if self.programs.iter().skip(i + 1).any(|other| same(&other)) {
                return Err(ServeError::Twice { program: one.number, version: one.version });
            }
        }
        let node = match self.node {
            Some(node) => node,
            None => process::shared_node()?,
        };
        process::name_counters(&node);
        let shared = Arc::new(Shared {
            budget: Budget::new(&self.settings),
            tasks: Arc::new(Tasks::new(self.settings.bindings_each)),
            node,
            programs: self.programs,
            settings: self.settings,
            stop: AtomicBool::new(false),
            slots: Mutex::default(),
            admission: Mutex::default(),
            left: Left::default(),
            fresh: Mutex::default(),
            changed: AtomicBool::new(false),
            post: Post::new(Poll::default()),
            staff: work::Staff::new(),
            reactor: Arc::new(Reactor::new("rpc-cancels")),
        });
        let door = open_door(&shared, &self.service, &self.grants, self.token)
            .map_err(|source| ServeError::Door { service: self.service.clone(), source })?;
        let process = std::process::id();
        let mut server = Server { process, shared, door: Some(door), threads: Vec::new() };
        server.start_threads()?;
        Ok(server)
    }
}

fn open_door(
    shared: &Arc<Shared>,
    service: &str,
    grants: &[Grant],
    token: Option<Token>,
) -> Result<Export, TransportError> {
    let weak = Arc::downgrade(shared);
    // Its bytes mean nothing; see the module comment of `accept`.
    let mut door = shared.node.export(Region::new(64)?).name(name::door(service)).handler(
        move |notification| {
            let (Some(shared), Event::Message { last_word, .. }) =
                (weak.upgrade(), notification.event)
            else {
                return;
            };
            if let Ok(number) = u32::try_from(last_word) {
                let node = shared.node.importer_node(notification.link).map(Arc::from);
                // Gone, and its number is not to be taken for one of this node's processes.
                if notification.from_elsewhere && node.is_none() {
                    return;
                }
                tasks::push_knock(&shared, Knock { node, peer: notification.from, number });
            }
        },
    );
    if grants.is_empty() {
        door = door.grant(Who::SameUser, Rights::WRITE);
    }
    for grant in grants {
        door = door.grant(grant.who, grant.rights);
    }
    if let Some(token) = token {
        door = door.token(token);
    }
    Ok(door.open()?)
}

/// What the threads of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    node: Node,
    programs: Vec<Program>,
    settings: Settings,
    budget: Arc<Budget>,
    stop: AtomicBool,
    tasks: Arc<Tasks>,
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
    /// Held from the look whether a further binding may be until it is one.
    admission: Mutex<()>,
    left: Left,
    /// Slots that the poller does not know yet.
    fresh: Mutex<Vec<Arc<Slot>>>,
    /// There are fresh slots, or ended ones.
    changed: AtomicBool,
    /// Held by the thread that polls, while it polls.
    post: Post<Poll>,
    staff: work::Staff,
    /// Wakes handlers that await the end of their caller's patience.
    reactor: Arc<Reactor>,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Slots came or went, or the server ends.
    #[inline]
    fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Key, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_fresh(&self, slot: Arc<Slot>) {
        self.fresh().push(slot);
        self.note_change();
    }

    /// The poller needs not know of one that has ended. It may be in a handler for long, and as many clients as like come
    /// and go meanwhile.
    fn forget_fresh(&self, slot: &Arc<Slot>) {
        self.fresh().retain(|fresh| !Arc::ptr_eq(fresh, slot));
    }

    /// The server ends, and nobody polls any more.
    fn end_all(&self) {
        let slots: Vec<_> = self.slots().drain().map(|(_, slot)| slot).collect();
        for slot in &slots {
            slot.end();
        }
        self.post.close(Poll::default());
        self.fresh().clear();
        // Whose slot has ended finds that without being woken.
        self.reactor.end(&self.node);
    }

    fn note_change(&self) {
        self.changed.store(true, Ordering::Release);
        self.node.wake_waiters();
    }
}

/// A service that runs. Dropping it ends it: calls that are being served are finished, later ones
/// find it gone. Who drops it waits for that, but for a handler of its own, which is one of those calls.
#[derive(Debug)]
pub struct Server {
    /// That made it: another one has been forked from it.
    process: u32,
    shared: Arc<Shared>,
    door: Option<Export>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts making a server, with the settings of the environment ([`crate::config::TABLE`]).
    pub fn builder(service: &str) -> ServerBuilder {
        ServerBuilder {
            service: service.to_owned(),
            node: None,
            grants: Vec::new(),
            token: None,
            settings: Settings::from_env(),
            programs: Vec::new(),
        }
    }

    fn start_threads(&mut self) -> Result<(), ServeError> {
        let thread = |error: std::io::Error| TransportError::Thread(error.kind());
        let shared = self.shared.clone();
        let acceptor = std::thread::Builder::new().name("rpc-accept".into());
        let acceptor = acceptor.spawn(move || accept_tasks(&shared)).map_err(thread)?;
        self.threads.push(acceptor);
        for number in 0..self.shared.settings.workers {
            let shared = self.shared.clone();
            let worker = std::thread::Builder::new().name(format!("rpc-worker-{number}"));
            let worker = worker.spawn(move || work::worker(&shared)).map_err(thread)?;
            self.threads.push(worker);
        }
        Ok(())
    }

    /// The node it works through.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.shared.node
    }

    /// Bindings now.
    #[must_use]
    pub fn bindings(&self) -> usize {
        self.shared.slots().len()
    }

    /// Serves until the process ends: for a program that does nothing else.
    pub fn run(mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Ends the service; see [`Server`].
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has none of the threads, and nobody to tell.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        drop(self.door.take());
        self.shared.stop.store(true, Ordering::Release);
        self.shared.node.wake_waiters();
        self.shared.staff.wake_all();
        let (shared, threads) = (self.shared.clone(), std::mem::take(&mut self.threads));
        let own = std::thread::current().id();
        if threads.iter().any(|thread| thread.thread().id() == own) {
            // A handler ends its server: its own call is answered before the buffers go, too.
            let apart = std::thread::Builder::new().name("rpc-end".into());
            // Without a thread the bindings stay until the process ends.
            let _ = apart.spawn(move || end(&shared, threads));
        } else {
            end(&shared, threads);
        }
    }
}

/// Waits for the workers, which are to leave, and then for the acceptor, the first thread, which withdraws all buffers together.
fn end(shared: &Shared, threads: Vec<JoinHandle<()>>) {
    let mut threads = threads.into_iter();
    let acceptor = threads.next();
    for worker in threads {
        let _ = worker.join();
    }
    shared.tasks.push(Task::Stop);
    if let Some(acceptor) = acceptor {
        let _ = acceptor.join();
    }
}
