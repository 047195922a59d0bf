//! Applications that a program starts itself: what `nx_initve`, `nx_nfork` and `nx_load` do.

use super::inside::Inside;
use super::process::{self, part};
use super::spawn::{self, Forked, Program, standard_input};
use super::start::{Arguments, be_node, default_size, lookup};
use super::{Failure, Ints};
use crate::engine::Engine;
use crate::engine::types::{INVALID_PTYPE, NORMAL_LAST};
use crate::error::NxError;
use crate::job::control::{self, Message};
use crate::job::supervise::{Inbox, Member, Settings, Supervisor, Who};
use crate::job::switches::Shape;
use crate::job::{Job, Late, MAX_NODES, env};
use crate::unconfirmed::{WAITALL_NEEDS_CHILDREN, host_number};
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmmc::sys::Fd;
use vmmc::sys::thread::spawn_quiet;

/// What a program that starts its own nodes has done so far.
#[derive(Debug, Default)]
struct App {
    /// Rows and columns, also of nodes that did not start themselves.
    shape: Option<Shape>,
    /// The application, once `nx_initve` was called, from the view of the host.
    job: Option<Job>,
    /// Nodes and types of the processes that we have started.
    taken: Vec<(u32, i32)>,
    /// Those that join later, and wait for the job to begin.
    joining: Vec<Joining>,
    /// Our children.
    pids: Vec<i32>,
    /// Who watches them, if that is a thread of ours, and of which process.
    watcher: Option<(u32, Inbox)>,
    /// The hosts that a launcher offers for nodes, ours first; empty: this machine.
    hosts: Vec<String>,
}

/// A process that was started, and joins an application that has a process on its node already.
#[derive(Debug)]
struct Joining {
    /// Its own process id, on its host.
    pid: u32,
    /// Our child that ends with it: itself, if it is on this host.
    child: Pid,
    node: u32,
}

impl App {
    /// Whether a node has a process.
    fn has_first(&self, node: u32) -> bool {
        self.taken.iter().any(|(taken, _)| *taken == node)
    }
}

static APP: Mutex<App> = Mutex::new(App {
    shape: None,
    job: None,
    taken: Vec::new(),
    joining: Vec::new(),
    pids: Vec::new(),
    watcher: None,
    hosts: Vec::new(),
});

fn app() -> MutexGuard<'static, App> {
    APP.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn set_shape(shape: Shape) {
    app().shape = Some(shape);
}

/// Rows and columns of the application, for its host before there are nodes, too.
pub(super) fn shape() -> Option<Shape> {
    let size = process::seat().ok()?.size;
    let shape = app().shape.filter(|shape| shape.nodes() == size);
    Some(shape.unwrap_or(Shape::row(size)))
}

/// `shrimp run` started a program that starts its own nodes: its node 0 becomes the host, the
/// other processes are not needed.
pub(super) fn begin_under_launcher(job: Job, control: Option<Fd>) -> Result<(), Failure> {
    if job.node != 0 {
        if let Some(control) = &control {
            let _ = control::tell(control, &Message::Finished, &[]);
        }
        // SAFETY: nothing has begun in this process.
        unsafe { libc::_exit(0) };
    }
    if let Some(control) = &control {
        process::follow(control);
        let _ = control::tell(control, &Message::Host, &[]);
    }
    let mut hosts = job.hosts.to_vec();
    hosts.dedup(); // those of one host follow each other
    let mut app = app();
    app.shape = Some(Shape::row(job.size));
    app.hosts = hosts;
    drop(app);
    part().control = control;
    Ok(())
}

/// `prog -sz N`: forks the nodes. Returns in each of them; the parent exits as they do.
pub(super) fn control_nodes(job: &Job) -> Result<(), Failure> {
    let system = |errno: rustix::io::Errno| {
        Failure::System(errno.raw_os_error(), "starting the nodes".into())
    };
    let mut supervisor = Supervisor::new(Settings::default()).map_err(system)?;
    for node in 0..job.size {
        match spawn::fork(true)? {
            Forked::Child { control } => {
                // The parent's list of the other nodes' channels is a copy: close it.
                drop(supervisor);
                standard_input(node);
                return be_node(Job { node, ..job.clone() }, Some(control));
            }
            Forked::Parent { pid, control } => {
                let member = Member::child(Some(node), job.ptype.unwrap_or(0), pid, Some(control));
                supervisor.add(member.map_err(system)?);
            }
        }
    }
    let outcome = supervisor.run();
    if outcome.cause.is_some() {
        super::say(&format!("nx: {outcome}"));
    }
    // SAFETY: the program's own destructors have nothing to destroy: it never began.
    unsafe { libc::_exit(outcome.code().into()) }
}

/// Who watches the processes that this program starts: the launcher, or a thread of ours.
fn watch(app: &mut App, node: u32, ptype: i32, pid: Pid, channel: Fd) -> Result<(), Failure> {
    let system =
        |errno: rustix::io::Errno| Failure::System(errno.raw_os_error(), "watching a node".into());
    if let Some(control) = &part().control {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(system)?;
        let number = pid.as_raw_nonzero().get();
        let message = Message::Add { node: node as i32, ptype, pid: number };
        return control::tell(control, &message, &[pidfd.as_fd(), channel.as_fd()]).map_err(system);
    }
    let member = Member::child(Some(node), ptype, pid, Some(channel)).map_err(system)?;
    if let Some((_, watcher)) = &app.watcher {
        watcher.add(member);
        return Ok(());
    }
    let settings = Settings { reap: false, ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).map_err(system)?;
    supervisor.on_ending(process::ending);
    let inbox = supervisor.inbox();
    inbox.add(member);
    app.watcher = Some((std::process::id(), inbox));
    let work = move || {
        loop {
            supervisor.wait_for_members();
            let outcome = supervisor.run();
            if outcome.cause.is_some() {
                super::say(&format!("nx: {outcome}"));
                // SAFETY: the application has ended, and this process is part of it.
                unsafe { libc::_exit(outcome.code().into()) };
            }
        }
    };
    let system = |errno: rustix::io::Errno| Failure::System(errno.raw_os_error(), "thread".into());
    spawn_quiet("nx-watch", work).map(|_| ()).map_err(system)
}

/// Asks the supervisor in this process to end some processes, or all; false: there is none.
pub(super) fn kill(by: Who, node: i32, ptype: i32) -> bool {
    app().watcher.as_ref().map(|(_, watcher)| watcher.kill(by, node, ptype)).is_some()
}

/// Leaves it to the supervisor in this process to say why a node has gone, and to end the process; false: there is none.
pub(super) fn lost(by: Who, node: u32, code: u8) -> bool {
    // Whoever has the lock is starting processes.
    let watcher = APP.try_lock().ok().and_then(|app| app.watcher.clone());
    watcher.map(|(_, watcher)| watcher.lost(by, node, code)).is_some()
}

pub(super) fn parameter(why: impl Into<String>) -> Failure {
    Failure::System(super::errno::EQPARAM, why.into())
}

/// Common to all forms of `nx_initve`.
pub(super) fn init(
    wanted: Option<Shape>,
    arguments: Option<&mut Arguments>,
) -> Result<i32, Failure> {
    // The nodes may exist already (automatic start).
    if let Some(job) = process::place() {
        return again(&job, wanted);
    }
    let switches = match arguments {
        Some(arguments) => arguments.take()?,
        None => crate::job::switches::Switches::default(),
    };
    let mut app = app();
    if let Some(job) = &app.job {
        return again(job, switches.size.or(wanted));
    }
    let shape = match switches.size.or(wanted).or(app.shape) {
        Some(shape) => shape,
        None => default_size()?,
    };
    let mut job = Job::new(shape.nodes())
        .map_err(|errno| Failure::System(errno.raw_os_error(), "making a job".into()))?;
    job.host = true;
    job.node = host_number(job.size);
    job.ptype = None;
    if let Some(own) = app.hosts.first() {
        let mut hosts = Job::spread(&app.hosts, job.size);
        hosts.push(own.clone());
        job.hosts = hosts.into();
    }
    app.shape = Some(shape);
    process::sit(&job);
    app.job = Some(job.clone());
    Ok(job.size as i32)
}

/// An application that there is, asked for once more: as it is, and not with another number of nodes.
fn again(job: &Job, wanted: Option<Shape>) -> Result<i32, Failure> {
    match wanted.map(Shape::nodes) {
        Some(wanted) if wanted != job.size => {
            Err(parameter(format!("the application has {} nodes already, not {wanted}", job.size)))
        }
        _ => Ok(job.size as i32),
    }
}

/// The nodes that a call names: all, if the number is -1.
fn chosen(job: &Job, nodes: Ints, nnodes: i32) -> Result<Vec<u32>, Failure> {
    match nnodes {
        -1 => return Ok((0..job.size).collect()),
        // 0 would be taken for the answer that a child gets.
        ..=0 => return Err(parameter(format!("{nnodes} nodes; give 1 or more, or -1 for all"))),
        _ if nodes.is_null() => {
            return Err(super::null(&format!("the list of {nnodes} nodes (all: -1)")));
        }
        _ => {}
    }
    let mut all = Vec::new();
    for index in 0..nnodes as usize {
        // SAFETY: as many as told.
        let node = unsafe { nodes.get(index) };
        match u32::try_from(node) {
            Ok(node) if node < job.size => all.push(node),
            _ => {
                let last = job.size - 1;
                return Err(NxError::BadNode { node, last }.into());
            }
        }
    }
    Ok(all)
}

/// What the new processes are to be.
pub(super) enum Become {
    /// The caller, twice.
    Copy,
    /// Another program.
    Program(Program),
}

/// Starts processes on nodes; answers how many, 0 in each new process that is a copy.
pub(super) fn start(
    nodes: Ints,
    nnodes: i32,
    ptype: i32,
    pids: Ints,
    what: &Become,
) -> Result<i32, Failure> {
    if !(0..=NORMAL_LAST).contains(&ptype) {
        return Err(NxError::BadPtype { ptype }.into());
    }
    let _inside = Inside::begin()?;
    let job = match app().job.clone().or_else(process::place) {
        Some(job) => job,
        None => return Err(NxError::NotStarted.into()),
    };
    let engine = process::running();
    // What a host starts ends with it. What a node starts goes on when that exits, and the launcher ends it with the rest.
    let tied = app().job.is_some() || part().control.is_none();
    let list = chosen(&job, nodes, nnodes)?;
    for (at, &node) in list.iter().enumerate() {
        let known = match engine {
            Some(engine) => engine.has_process(node, ptype),
            None => app().taken.contains(&(node, ptype)),
        };
        if known || list[..at].contains(&node) {
            return Err(NxError::PtypeInUse { node, ptype }.into());
        }
    }
    for &node in &list {
        check_across(&job, node, what)?;
        let host = |node: u32| job.hosts.get(node as usize);
        let here = list.iter().filter(|&&other| host(other) == host(node)).count();
        if engine.is_some_and(|engine| engine.places_left(node) < here) {
            let why = "no number is left for another process of this host: so many have joined since the start";
            return Err(Failure::System(super::errno::EQNOPROC, why.into()));
        }
    }
    let mut started = 0;
    let mut joining = Vec::new();
    for node in list {
        let late = match engine {
            Some(engine) => Some(Late::Begun { by: engine.number() }),
            None if app().has_first(node) => Some(Late::Starting),
            None => None,
        };
        let place = Job { node, ptype: Some(ptype), late, ..job.clone() };
        let (child, pid) = match what {
            Become::Copy => match spawn::fork(tied) {
                // The count tells how far it went.
                Err(_) if started > 0 => break,
                Err(failure) => return Err(failure),
                Ok(Forked::Child { control }) => {
                    let mut app = app();
                    *app = App { shape: app.shape, ..App::default() };
                    drop(app);
                    standard_input(node);
                    if let Err(failure) = be_node(place, Some(control)) {
                        // Not an answer for the program, which would take it for its parent's.
                        process::fatal("nx_nfork", &failure);
                    }
                    return Ok(0);
                }
                Ok(Forked::Parent { pid, control }) => {
                    watch(&mut app(), node, ptype, pid, control)?;
                    (pid, process_id(pid))
                }
            },
            Become::Program(program) => match load(&job, &place, program, tied) {
                Ok(started) => started,
                Err(_) if started > 0 => break,
                Err(failure) => return Err(failure),
            },
        };
        let number = child.as_raw_nonzero().get();
        if !pids.is_null() {
            // SAFETY: one for each node started.
            unsafe { pids.set(started as usize, number) };
        }
        let mut app = app();
        app.taken.push((node, ptype));
        app.pids.push(number);
        drop(app);
        started += 1;
        let process = Joining { pid, child, node };
        if late.is_some() {
            joining.push(process);
        }
    }
    let engine = match engine {
        Some(engine) => engine,
        None => {
            app().joining.append(&mut joining);
            if !(0..job.size).all(|node| app().has_first(node)) {
                return Ok(started);
            }
            // The host is one of the processes that the nodes wait for.
            process::join(job, false)?;
            joining = std::mem::take(&mut app().joining);
            let Some(engine) = process::running() else { return Ok(started) };
            engine.wait_for_all()?;
            engine
        }
    };
    for process in &joining {
        wait_for(engine, process)?;
    }
    Ok(started)
}

fn wait_for(engine: &Engine, &Joining { pid, child, node }: &Joining) -> Result<(), Failure> {
    engine
        .wait_for_process(pid, node, || lives(child))
        .map_err(|error| Failure::System(super::errno::EQNOPROC, error.to_string()))
}

fn process_id(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// What a program that becomes a process of the application finds in its environment.
pub(super) fn environment(place: &Job) -> Vec<(&'static str, String)> {
    let mut variables = place.to_env();
    if let Some(Shape { rows, columns }) = shape() {
        variables.push((env::SHAPE, format!("{rows}x{columns}")));
    }
    variables
}

/// Starts a program as a process of a node, wherever that is. Answers our child, and the process's own id, as [`Joining`] has them.
fn load(own: &Job, place: &Job, program: &Program, tied: bool) -> Result<(Pid, u32), Failure> {
    if let Some(host) = elsewhere(own, place.node) {
        let control = part().control.as_ref().map(Fd::try_clone);
        return match control {
            Some(Ok(control)) => super::elsewhere::load(place, host, program, &control),
            Some(Err(errno)) => {
                Err(Failure::System(errno.raw_os_error(), "control channel".into()))
            }
            None => Err(Failure::System(libc::ENOSYS, format!("host {host} without a launcher"))),
        };
    }
    let (pid, control) = spawn::load(place, program, tied)?;
    watch(&mut app(), place.node, place.ptype.unwrap_or(0), pid, control)?;
    Ok((pid, process_id(pid)))
}

/// The host of a node, if it is not that of the process whose place is `own`.
fn elsewhere(own: &Job, node: u32) -> Option<&str> {
    let here = own.hosts.get(own.node as usize)?;
    own.hosts.get(node as usize).filter(|host| *host != here).map(String::as_str)
}

/// What cannot be in an application on several hosts: memory that goes from one to another.
fn check_across(own: &Job, node: u32, what: &Become) -> Result<(), Failure> {
    match (what, elsewhere(own, node)) {
        (Become::Copy, Some(host)) => {
            let why = format!(
                "node {node} is on host {host}, and no copy of this process can be made there; \
                 nx_load and nx_loadve start a program there"
            );
            Err(Failure::System(libc::ENOSYS, why))
        }
        _ => Ok(()),
    }
}

/// Whether a child still runs. It is not reaped: that is for the program.
fn lives(pid: Pid) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), look), Ok(None))
}

/// Waits for every process that this one started; one that the program has waited for itself does
/// not matter.
pub(super) fn wait_all() -> Result<i32, Failure> {
    if WAITALL_NEEDS_CHILDREN && app().taken.is_empty() {
        let why = "this process has started none; nx_nfork, nx_load and nx_loadve do";
        return Err(Failure::System(libc::ECHILD, why.into()));
    }
    let pids = std::mem::take(&mut app().pids);
    for pid in &pids {
        until_ended(*pid);
    }
    // The supervisor looks at how they ended, which nobody can once they are reaped.
    settle();
    super::process::about_to_reap();
    for pid in pids {
        let mut status = 0;
        // SAFETY: `status` is ours.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
    Ok(0)
}

/// Waits for the end of a child, which is still to be waited for then.
fn until_ended(pid: i32) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(pid) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
}

/// Lets the supervisor in this process, if there is one, look at all that has happened to the nodes: if something ends the
/// application, this process ends with it, and does not go on.
pub(super) fn settle() {
    // Whoever has the lock is starting processes; in a child of a plain fork nobody gives it back.
    let watcher = APP.try_lock().ok().and_then(|app| app.watcher.clone());
    if let Some((_, watcher)) = watcher.filter(|(pid, _)| *pid == std::process::id()) {
        watcher.settle();
    }
}

pub(super) fn path_of(path: Option<String>) -> Result<std::ffi::CString, Failure> {
    let path = path.filter(|path| !path.is_empty()).ok_or_else(|| parameter("no program named"))?;
    std::ffi::CString::new(path).map_err(|_| parameter("a path with a zero byte"))
}

pub(super) fn shape_of(rows: i32, columns: i32) -> Result<Option<Shape>, Failure> {
    match (rows, columns) {
        (0, 0) => Ok(None),
        _ => {
            let text = format!("{rows}x{columns}");
            let shown = if rows == 1 { columns.to_string() } else { text.clone() };
            let bad = || parameter(format!("{shown} nodes; give 1 to {MAX_NODES}"));
            Shape::parse(&text).map(Some).ok_or_else(bad)
        }
    }
}

pub(super) fn size_of_nodes(size: i32) -> Result<Option<Shape>, Failure> {
    if size == 0 { Ok(None) } else { shape_of(1, size) }
}

/// The type that the host will join its nodes with, -1 before it has one; `None` if it has joined, or this is no host.
pub(super) fn first_ptype() -> Option<i32> {
    if process::place().is_some() {
        return None;
    }
    app().job.as_ref().map(|job| job.ptype.unwrap_or(INVALID_PTYPE))
}

/// Sets the type that the host will join its nodes with. False when that is too late, or this is no host.
pub(super) fn set_first_ptype(ptype: i32) -> Result<bool, Failure> {
    if process::place().is_some() {
        return Ok(false);
    }
    match &mut app().job {
        Some(_) if !(0..=NORMAL_LAST).contains(&ptype) => Err(NxError::BadPtype { ptype }.into()),
        Some(job) => {
            job.ptype = Some(ptype);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Rows and columns, for `mypart` too.
pub(super) fn rectangle(rows: Ints, columns: Ints) -> Result<i32, Failure> {
    let size = process::seat()?.size;
    let shape = shape().unwrap_or(Shape::row(size));
    if rows.is_null() || columns.is_null() {
        return Err(super::null("rows and columns"));
    }
    // SAFETY: the caller's variables.
    unsafe { rows.set(0, shape.rows as i32) };
    // SAFETY: as above.
    unsafe { columns.set(0, shape.columns as i32) };
    Ok(0)
}

/// Whether people want to hear of what has no effect.
pub(super) fn debug(what: &str) {
    if lookup("NX_DEBUG").is_some() {
        super::say(&format!("nx: {what} has no effect on this machine"));
    }
}
