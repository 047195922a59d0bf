//! Applications that a program starts itself (table 1.7).

use super::process::{self, part};
use super::start::{Arguments, be_node, default_size, lookup};
use super::{Failure, Ints};
use crate::job::control::{self, Message};
use crate::job::supervise::{Inbox, Member, Settings, Supervisor};
use crate::job::switches::Shape;
use crate::job::{Job, env};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmmc::sys::Fd;

/// What a program that starts its own nodes has done so far.
#[derive(Debug, Default)]
struct App {
    /// Rows and columns, also of nodes that did not start themselves.
    shape: Option<Shape>,
    /// The application, once `nx_initve` was called, from the view of the host.
    job: Option<Job>,
    /// Nodes that have a process.
    taken: Vec<u32>,
    /// Our children.
    pids: Vec<i32>,
    /// Who watches them, if that is a thread of ours.
    watcher: Option<Inbox>,
}

static APP: Mutex<App> =
    Mutex::new(App { shape: None, job: None, taken: Vec::new(), pids: Vec::new(), watcher: None });

fn app() -> MutexGuard<'static, App> {
    APP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A string of C.
///
/// # Safety
/// Null or a string.
pub(super) unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A string of Fortran, without the blanks at its end.
///
/// # Safety
/// Null, or `len` characters.
pub(super) unsafe fn fortran_string(text: *const c_char, len: c_long) -> String {
    let len = usize::try_from(len).unwrap_or(0);
    if text.is_null() || len == 0 {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).trim_end_matches([' ', '\0']).to_owned()
}

pub(super) fn set_shape(shape: Shape) {
    app().shape = Some(shape);
}

/// Rows and columns of the application.
pub(super) fn shape() -> Option<Shape> {
    let size = process::place().map(|job| job.size)?;
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
    app().shape = Some(Shape::row(job.size));
    part().control = control;
    Ok(())
}

/// One process of the application, as its parent knows it.
enum Forked {
    Parent { pid: Pid, control: Fd },
    Child { control: Fd },
}

/// Forks. The child ends with its parent.
fn fork() -> Result<Forked, Failure> {
    let (own, theirs) = control::pair()
        .map_err(|errno| Failure::System(errno.raw_os_error(), "control channel".into()))?;
    // What is buffered would be written twice.
    // SAFETY: null means every stream.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    flush_fortran();
    let parent = rustix::process::getpid();
    let by_main_thread = rustix::thread::gettid() == parent;
    // SAFETY: the child goes on in this thread alone, and uses no lock that another thread of the
    // parent may have held: see `process::forget`.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::last("fork")),
        0 => {
            drop(theirs);
            if by_main_thread {
                // The kernel signals the end of the *thread* that forked.
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                if rustix::process::getppid() != Some(parent) {
                    // SAFETY: the application has gone; nothing is left to do.
                    unsafe { libc::_exit(1) };
                }
            }
            process::forget();
            Ok(Forked::Child { control: own })
        }
        pid => match Pid::from_raw(pid) {
            Some(pid) => Ok(Forked::Parent { pid, control: theirs }),
            None => Err(Failure::System(libc::EIO, "fork".into())),
        },
    }
}

/// gfortran's units have buffers of their own.
fn flush_fortran() {
    // SAFETY: any name may be asked for.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_gfortran_flush_i4".as_ptr()) };
    if !function.is_null() {
        type Flush = unsafe extern "C" fn(*const i32);
        // SAFETY: libgfortran's function of this name has this type.
        let flush = unsafe { std::mem::transmute::<*mut c_void, Flush>(function) };
        // SAFETY: null means every unit.
        unsafe { flush(std::ptr::null()) };
    }
}

/// Node 0 owns the standard input.
fn standard_input(node: u32) {
    if node == 0 {
        return;
    }
    // SAFETY: opening a file that is always there.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
    if null >= 0 {
        // SAFETY: both are open.
        unsafe { libc::dup2(null, 0) };
        // SAFETY: opened above, and no longer used.
        unsafe { libc::close(null) };
    }
}

/// `prog -sz N`: forks the nodes. Returns in each of them; the parent exits as they do.
pub(super) fn control_nodes(job: &Job) -> Result<(), Failure> {
    let system = |errno: rustix::io::Errno| {
        Failure::System(errno.raw_os_error(), "starting the nodes".into())
    };
    let mut supervisor = Supervisor::new(Settings::default()).map_err(system)?;
    for node in 0..job.size {
        match fork()? {
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
        eprintln!("nx: {outcome}");
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
    if let Some(watcher) = &app.watcher {
        watcher.add(member);
        return Ok(());
    }
    let settings = Settings { reap: false, ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).map_err(system)?;
    let inbox = supervisor.inbox();
    inbox.add(member);
    app.watcher = Some(inbox);
    let work = move || {
        loop {
            supervisor.wait_for_members();
            let outcome = supervisor.run();
            if outcome.cause.is_some() {
                eprintln!("nx: {outcome}");
                // SAFETY: the application has ended, and this process is part of it.
                unsafe { libc::_exit(outcome.code().into()) };
            }
        }
    };
    std::thread::Builder::new().name("nx-watch".into()).spawn(work).map(|_| ()).map_err(|error| {
        Failure::System(error.raw_os_error().unwrap_or(libc::EAGAIN), "thread".into())
    })
}

fn parameter(why: impl Into<String>) -> Failure {
    Failure::System(super::errno::EQPARAM, why.into())
}

/// Common to all forms of `nx_initve`.
fn init(wanted: Option<Shape>, arguments: Option<&mut Arguments>) -> Result<i32, Failure> {
    if let Some(job) = process::place() {
        // The nodes exist already (automatic start).
        return Ok(job.size as i32);
    }
    let switches = match arguments {
        Some(arguments) => arguments.take()?,
        None => crate::job::switches::Switches::default(),
    };
    let mut app = app();
    if let Some(job) = &app.job {
        return Ok(job.size as i32);
    }
    let shape = match switches.size.or(wanted).or(app.shape) {
        Some(shape) => shape,
        None => default_size()?,
    };
    let mut job = Job::new(shape.nodes())
        .map_err(|errno| Failure::System(errno.raw_os_error(), "making a job".into()))?;
    job.host = true;
    job.node = job.size;
    job.ptype = None;
    app.shape = Some(shape);
    app.job = Some(job.clone());
    Ok(job.size as i32)
}

/// The nodes that a call names: all, if the list is null or the number is -1.
fn chosen(job: &Job, nodes: Ints, nnodes: i32) -> Result<Vec<u32>, Failure> {
    if nodes.is_null() || nnodes < 0 {
        return Ok((0..job.size).collect());
    }
    let mut all = Vec::new();
    for index in 0..nnodes as usize {
        // SAFETY: as many as told.
        let node = unsafe { nodes.get(index) };
        match u32::try_from(node) {
            Ok(node) if node < job.size => all.push(node),
            _ => {
                let last = job.size - 1;
                return Err(crate::error::NxError::BadNode { node, last }.into());
            }
        }
    }
    Ok(all)
}

/// What the new processes are to be.
enum Become {
    /// The caller, twice.
    Copy,
    /// Another program.
    Program(Program),
}

struct Program {
    path: std::ffi::CString,
    argv: *mut *mut c_char,
    envp: *mut *mut c_char,
}

/// Starts processes on nodes; answers how many, 0 in each new process that is a copy.
fn start(nodes: Ints, nnodes: i32, ptype: i32, pids: Ints, what: &Become) -> Result<i32, Failure> {
    if ptype < 0 {
        return Err(crate::error::NxError::BadPtype { ptype }.into());
    }
    let Some(job) = app().job.clone() else {
        if process::place().is_some() {
            return Err(Failure::System(
                libc::ENOSYS,
                "a node cannot add processes to its application yet".into(),
            ));
        }
        return Err(crate::error::NxError::NotStarted.into());
    };
    let list = chosen(&job, nodes, nnodes)?;
    if let Some(node) = list.iter().find(|&node| app().taken.contains(node)) {
        return Err(Failure::System(
            162, // EQUSEPID
            format!("node {node} has a process already; one process type per node is possible yet"),
        ));
    }
    let mut started = 0;
    for node in list {
        let place = Job { node, ptype: Some(ptype), ..job.clone() };
        let pid = match what {
            Become::Copy => match fork()? {
                Forked::Child { control } => {
                    let mut app = app();
                    *app = App { shape: app.shape, ..App::default() };
                    drop(app);
                    standard_input(node);
                    be_node(place, Some(control))?;
                    return Ok(0);
                }
                Forked::Parent { pid, control } => {
                    watch(&mut app(), node, ptype, pid, control)?;
                    pid
                }
            },
            Become::Program(program) => match load(&place, program) {
                Ok((pid, control)) => {
                    watch(&mut app(), node, ptype, pid, control)?;
                    pid
                }
                // The count tells how far it went.
                Err(_) if started > 0 => return Ok(started),
                Err(failure) => return Err(failure),
            },
        };
        let pid = pid.as_raw_nonzero().get();
        if !pids.is_null() {
            // SAFETY: one for each node started.
            unsafe { pids.set(started as usize, pid) };
        }
        let mut app = app();
        app.taken.push(node);
        app.pids.push(pid);
        started += 1;
    }
    let complete = app().taken.len() == job.size as usize;
    if complete {
        // The host is one of the processes that the nodes wait for.
        process::join(job, false)?;
    }
    Ok(started)
}

/// Forks and becomes a program; an exec that fails is told through a pipe.
fn load(place: &Job, program: &Program) -> Result<(Pid, Fd), Failure> {
    let system = |errno: rustix::io::Errno| Failure::System(errno.raw_os_error(), "pipe".into());
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system)?;
    match fork()? {
        Forked::Child { control } => {
            standard_input(place.node);
            let errno = exec(place, program, &control);
            let _ = rustix::io::write(&writer, &errno.to_ne_bytes());
            // SAFETY: the child has nothing else to do.
            unsafe { libc::_exit(127) }
        }
        Forked::Parent { pid, control } => {
            drop(writer);
            let mut errno = [0; 4];
            match rustix::io::read(&reader, &mut errno) {
                Ok(4) => {
                    let _ =
                        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                    let path = program.path.to_string_lossy().into_owned();
                    Err(Failure::System(i32::from_ne_bytes(errno), path))
                }
                _ => Ok((pid, control)),
            }
        }
    }
}

fn exec(place: &Job, program: &Program, control: &Fd) -> c_int {
    use std::os::fd::AsRawFd;
    let _ = rustix::io::fcntl_setfd(control, rustix::io::FdFlags::empty());
    let mut variables: Vec<std::ffi::CString> = Vec::new();
    let own: Vec<(&str, String)> = place
        .to_env()
        .into_iter()
        .chain([(env::CONTROL, control.as_raw_fd().to_string())])
        .collect();
    if program.envp.is_null() {
        for (name, value) in std::env::vars_os() {
            use std::os::unix::ffi::OsStrExt;
            let pair = [name.as_bytes(), b"=", value.as_bytes()].concat();
            variables.extend(std::ffi::CString::new(pair));
        }
    } else {
        let mut at = program.envp;
        // SAFETY: an array of strings that ends with null.
        loop {
            // SAFETY: as above.
            let text = unsafe { at.read() };
            if text.is_null() {
                break;
            }
            // SAFETY: as above.
            variables.push(unsafe { CStr::from_ptr(text) }.to_owned());
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
    }
    for (name, value) in own {
        variables.extend(std::ffi::CString::new(format!("{name}={value}")));
    }
    let mut envp: Vec<*const c_char> = variables.iter().map(|text| text.as_ptr()).collect();
    envp.push(std::ptr::null());
    let alone = [program.path.as_ptr(), std::ptr::null()];
    let argv: *const *const c_char =
        if program.argv.is_null() { alone.as_ptr() } else { program.argv.cast() };
    // SAFETY: both arrays end with null.
    unsafe { libc::execvpe(program.path.as_ptr(), argv, envp.as_ptr()) };
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Waits for every process that this one started; one that the program has waited for itself does
/// not matter.
fn wait_all() -> Result<i32, Failure> {
    let pids = std::mem::take(&mut app().pids);
    for pid in pids {
        let mut status = 0;
        // SAFETY: `status` is ours.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
    Ok(0)
}

fn path_of(path: Option<String>) -> Result<std::ffi::CString, Failure> {
    let path = path.filter(|path| !path.is_empty()).ok_or_else(|| parameter("no program named"))?;
    std::ffi::CString::new(path).map_err(|_| parameter("a path with a zero byte"))
}

fn shape_of(rows: i32, columns: i32) -> Result<Option<Shape>, Failure> {
    match (rows, columns) {
        (0, 0) => Ok(None),
        _ => {
            let text = format!("{rows}x{columns}");
            let shape = Shape::parse(&text);
            shape.map(Some).ok_or_else(|| parameter(format!("{text} nodes; give 1 to 4096")))
        }
    }
}

fn size_of_nodes(size: i32) -> Result<Option<Shape>, Failure> {
    if size == 0 { Ok(None) } else { shape_of(1, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve(
    _partition: *mut c_char,
    size: c_long,
    _account: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
) -> c_long {
    super::under(|| {
        // SAFETY: as main has them, or null.
        let mut arguments = unsafe { Arguments::new(argc, argv) };
        let given = (!argc.is_null()).then_some(&mut arguments);
        init(size_of_nodes(size as i32)?, given)
    })
}

/// Fortran has no arguments to take switches from: size alone counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_(
    _partition: *mut c_char,
    size: *const i32,
    _account: *mut c_char,
) -> i32 {
    // SAFETY: Fortran passes the address of an INTEGER.
    let size = unsafe { super::deref(size) };
    super::under(|| init(size_of_nodes(size)?, None)) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_rect(
    _partition: *mut c_char,
    _anchor: c_long,
    rows: c_long,
    columns: c_long,
    _account: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
) -> c_long {
    super::under(|| {
        // SAFETY: as main has them, or null.
        let mut arguments = unsafe { Arguments::new(argc, argv) };
        let given = (!argc.is_null()).then_some(&mut arguments);
        init(shape_of(rows as i32, columns as i32)?, given)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_rect_(
    _partition: *mut c_char,
    _anchor: *const i32,
    rows: *const i32,
    columns: *const i32,
    _account: *mut c_char,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let rows = unsafe { super::deref(rows) };
    // SAFETY: as above.
    let columns = unsafe { super::deref(columns) };
    super::under(|| init(shape_of(rows, columns)?, None)) as i32
}

/// The shape that a list of attributes asks for.
fn attributes(words: &[c_long]) -> Result<Option<Shape>, Failure> {
    let mut wanted = None;
    for pair in words.chunks_exact(2) {
        match pair[0] as i32 {
            -1 => return Ok(wanted),
            1 => wanted = size_of_nodes(pair[1] as i32)?, // NX_ATTR_SZ
            2 => {
                // NX_ATTR_RECT: two integers, rows and columns.
                let at = pair[1] as *const i32;
                if at.is_null() {
                    return Err(crate::error::NxError::NullBuffer { len: 8 }.into());
                }
                // SAFETY: the attribute's value is an array of two.
                let rows = unsafe { at.read() };
                // SAFETY: as above.
                let second = unsafe { at.add(1) };
                // SAFETY: as above.
                let columns = unsafe { second.read() };
                wanted = shape_of(rows, columns)?;
            }
            3..=22 => {}
            other => return Err(parameter(format!("attribute {other} is not known"))),
        }
    }
    Err(parameter("no NX_ATTR_END after twelve attributes"))
}

/// As [`nx_initve`], with pairs of attribute and value after `argv`, up to `NX_ATTR_END`.
///
/// Variadic in C. Declared with twelve pairs' worth of words, the register and stack passing is
/// the same on x86-64 and AArch64; words after the end are never looked at.
#[allow(clippy::too_many_arguments)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_initve_attr(
    _partition: *mut c_char,
    argc: *mut c_int,
    argv: *mut *mut c_char,
    w0: c_long,
    w1: c_long,
    w2: c_long,
    w3: c_long,
    w4: c_long,
    w5: c_long,
    w6: c_long,
    w7: c_long,
    w8: c_long,
    w9: c_long,
    w10: c_long,
    w11: c_long,
    w12: c_long,
    w13: c_long,
    w14: c_long,
    w15: c_long,
    w16: c_long,
    w17: c_long,
    w18: c_long,
    w19: c_long,
    w20: c_long,
    w21: c_long,
    w22: c_long,
    w23: c_long,
) -> c_long {
    let words = [
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19,
        w20, w21, w22, w23,
    ];
    super::under(|| {
        let wanted = attributes(&words)?;
        // SAFETY: as main has them, or null.
        let mut arguments = unsafe { Arguments::new(argc, argv) };
        let given = (!argc.is_null()).then_some(&mut arguments);
        init(wanted, given)
    })
}

macro_rules! starts {
    ($($nfork:ident $load:ident $loadve:ident $int:ty, $kind:ident;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $nfork(nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int) -> c_long {
            let (nodes, pids) = (Ints::$kind(nodes), Ints::$kind(pids));
            super::under(|| start(nodes, nnodes as i32, ptype as i32, pids, &Become::Copy))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $load(nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int, path: *mut c_char) -> c_long {
            let null = std::ptr::null_mut();
            // SAFETY: passed on.
            unsafe { $loadve(nodes, nnodes, ptype, pids, path, null, null) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $loadve(
            nodes: *mut $int, nnodes: c_long, ptype: c_long, pids: *mut $int, path: *mut c_char,
            argv: *mut *mut c_char, envp: *mut *mut c_char,
        ) -> c_long {
            let (nodes, pids) = (Ints::$kind(nodes), Ints::$kind(pids));
            super::under(|| {
                // SAFETY: a string or null.
                let path = path_of(unsafe { string(path) })?;
                let program = Become::Program(Program { path, argv, envp });
                start(nodes, nnodes as i32, ptype as i32, pids, &program)
            })
        }
    )* };
}

starts! {
    nx_nfork nx_load nx_loadve c_long, Long;
    nx32_nx_nfork nx32_nx_load nx32_nx_loadve i32, Int;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_nfork_(
    nodes: *mut i32,
    nnodes: *const i32,
    ptype: *const i32,
    pids: *mut i32,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let nnodes = unsafe { super::deref(nnodes) };
    // SAFETY: as above.
    let ptype = unsafe { super::deref(ptype) };
    super::under(|| start(Ints::Int(nodes), nnodes, ptype, Ints::Int(pids), &Become::Copy)) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_load_(
    nodes: *mut i32,
    nnodes: *const i32,
    ptype: *const i32,
    pids: *mut i32,
    path: *const c_char,
    len: c_long,
) -> i32 {
    // SAFETY: Fortran passes addresses of INTEGERs.
    let nnodes = unsafe { super::deref(nnodes) };
    // SAFETY: as above.
    let ptype = unsafe { super::deref(ptype) };
    // SAFETY: Fortran passes the string's own length.
    let path = unsafe { fortran_string(path, len) };
    super::under(|| {
        let null = std::ptr::null_mut();
        let program = Program { path: path_of(Some(path))?, argv: null, envp: null };
        start(Ints::Int(nodes), nnodes, ptype, Ints::Int(pids), &Become::Program(program))
    }) as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_waitall() -> c_long {
    super::under(wait_all)
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_waitall_() -> i32 {
    super::under(wait_all) as i32
}

/// Priorities are the kernel's business: accepted, without effect.
#[unsafe(no_mangle)]
pub extern "C" fn nx_pri(_group: c_long, _priority: c_long) -> c_long {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nx_pri_(_group: *const i32, _priority: *const i32) -> i32 {
    0
}

fn known_size() -> Result<u32, Failure> {
    let started = process::place().or_else(|| app().job.clone());
    started.map(|job| job.size).ok_or_else(|| crate::error::NxError::NotStarted.into())
}

/// The nodes of the application in an array that the caller frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_nodes(
    _pid: libc::pid_t,
    list: *mut *mut c_int,
    count: *mut c_ulong,
) -> c_long {
    super::under(|| {
        let size = known_size()? as usize;
        if list.is_null() || count.is_null() {
            return Err(crate::error::NxError::NullBuffer { len: size }.into());
        }
        // SAFETY: any size may be asked for.
        let array = unsafe { libc::malloc(size * size_of::<c_int>()) }.cast::<c_int>();
        if array.is_null() {
            return Err(Failure::last("malloc"));
        }
        for node in 0..size {
            // SAFETY: within the array.
            let place = unsafe { array.add(node) };
            // SAFETY: as above.
            unsafe { place.write(node as c_int) };
        }
        // SAFETY: the caller's variable.
        unsafe { list.write(array) };
        // SAFETY: as above.
        unsafe { count.write(size as c_ulong) };
        Ok(0)
    })
}

fn rectangle(rows: Ints, columns: Ints) -> Result<i32, Failure> {
    let size = known_size()?;
    let shape = shape().unwrap_or(Shape::row(size));
    if rows.is_null() || columns.is_null() {
        return Err(crate::error::NxError::NullBuffer { len: 1 }.into());
    }
    // SAFETY: the caller's variables.
    unsafe { rows.set(0, shape.rows as i32) };
    // SAFETY: as above.
    unsafe { columns.set(0, shape.columns as i32) };
    Ok(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_rect(rows: *mut c_long, columns: *mut c_long) -> c_long {
    super::under(|| rectangle(Ints::Long(rows), Ints::Long(columns)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx32_nx_app_rect(rows: *mut i32, columns: *mut i32) -> c_long {
    super::under(|| rectangle(Ints::Int(rows), Ints::Int(columns)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_app_rect_(rows: *mut i32, columns: *mut i32) -> i32 {
    super::under(|| rectangle(Ints::Int(rows), Ints::Int(columns))) as i32
}

/// Rows and columns, for `mypart`.
pub(super) fn my_rectangle(rows: Ints, columns: Ints) -> Result<i32, Failure> {
    rectangle(rows, columns)
}

/// Whether people want to hear of what has no effect.
pub(super) fn debug(what: &str) {
    if lookup("NX_DEBUG").is_some() {
        eprintln!("nx: {what} has no effect on this machine");
    }
}
