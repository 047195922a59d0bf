//! Before `main`: who are we, and who else must there be.
//!
//! The dynamic loader runs [`load`] before the program's first instruction, with the arguments that
//! the program is going to see. What it does depends on how the process was started:
//!
//! | started by | the process becomes |
//! |---|---|
//! | `shrimp run -n 4 -- prog` | a node, which joins the others before `main` |
//! | `mpiexec -n 4 prog`, `srun --mpi=pmi2` | the same |
//! | `prog -sz 4` | the controlling process: it forks the nodes, never reaches `main`, and exits as they do |
//! | `prog` | node 0 of 1, as `NX_DFLT_SIZE` is 1 |
//! | any of these, if `prog` calls `nx_initve` | itself: the program starts its nodes (the `-lnx` form) |
//!
//! The loader leaves the argument count on the stack, just below the arguments, and the program's
//! entry point reads it there after we have run: so switches can be taken out of both.

use super::process::{self, part};
use super::{Failure, app};
use crate::job::control::Message;
use crate::job::switches::{self, Shape, Switches};
use crate::job::{Job, control, env, pmi};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::FromRawFd;
use vmmc::sys::Fd;

#[cfg(all(not(test), feature = "abi"))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = load;

#[cfg(all(not(test), feature = "abi"))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

/// Whether this code is part of a program (a Rust program that uses the crate) and not of a
/// shared library: then it has no business before `main`.
fn linked_into_program() -> bool {
    // SAFETY: an all-zero Dl_info is a valid value to fill in.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    let known = unsafe { libc::dladdr(load as *const () as *const _, &raw mut info) } != 0;
    // SAFETY: AT_PHDR is always there, or 0 is answered.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    // A program's headers are in its first page.
    !known || headers & !0xfff == info.dli_fbase as usize
}

unsafe extern "C" fn load(argc: c_int, argv: *mut *mut c_char, _envp: *mut *mut c_char) {
    process::loaded();
    if linked_into_program() {
        return;
    }
    // SAFETY: the loader passes the program's own arguments.
    let mut arguments = unsafe { Arguments::of_program(argc, argv) };
    if let Err(failure) = super::run(|| before_main(&mut arguments)) {
        process::fatal("start", &failure);
    }
}

extern "C" fn unload() {
    if linked_into_program() {
        return;
    }
    let _ = super::run(|| {
        process::leave();
        Ok(())
    });
}

/// The arguments of a program, to take switches from.
pub(super) struct Arguments {
    count: *mut c_int,
    /// The count on the stack, a whole word, if that is where it is.
    stack: *mut usize,
    argv: *mut *mut c_char,
}

impl Arguments {
    /// # Safety
    /// As `main` has them; `argc` and the strings must stay.
    pub(super) unsafe fn new(argc: *mut c_int, argv: *mut *mut c_char) -> Arguments {
        Arguments { count: argc, stack: std::ptr::null_mut(), argv }
    }

    /// # Safety
    /// `argv` must be the array that the kernel made.
    unsafe fn of_program(argc: c_int, argv: *mut *mut c_char) -> Arguments {
        // SAFETY: the kernel puts the count there; another loader may not have.
        let stack = unsafe { argv.sub(1) }.cast::<usize>();
        // SAFETY: the word below the arguments is part of the stack.
        let found = unsafe { *stack } == argc as usize;
        let stack = if found { stack } else { std::ptr::null_mut() };
        Arguments { count: std::ptr::null_mut(), stack, argv }
    }

    fn count(&self) -> usize {
        if !self.count.is_null() {
            // SAFETY: the caller's count.
            return usize::try_from(unsafe { *self.count }).unwrap_or(0);
        }
        // SAFETY: null, or the count on the stack.
        if self.stack.is_null() { 0 } else { unsafe { *self.stack } }
    }

    /// Takes the NX switches out.
    pub(super) fn take(&mut self) -> Result<Switches, Failure> {
        let count = self.count();
        if self.argv.is_null() || count == 0 {
            return Ok(Switches::default());
        }
        // SAFETY: argv has `count` strings.
        let words: Vec<*mut c_char> =
            (0..count).map(|at| unsafe { *self.argv.wrapping_add(at) }).collect();
        if words.iter().any(|word| word.is_null()) {
            return Ok(Switches::default());
        }
        // SAFETY: arguments are strings, and stay.
        let texts: Vec<&[u8]> =
            words.iter().map(|&word| unsafe { CStr::from_ptr(word) }.to_bytes()).collect();
        let (switches, kept) = switches::take(&texts)
            .map_err(|error| Failure::System(super::errno::EQPARAM, error.to_string()))?;
        if kept.len() < count {
            for (place, &index) in kept.iter().enumerate() {
                // SAFETY: no more are left than there were.
                unsafe { *self.argv.wrapping_add(place) = words[index] };
            }
            // SAFETY: argv has a place for the null after its last string.
            unsafe { *self.argv.wrapping_add(kept.len()) = std::ptr::null_mut() };
            if !self.count.is_null() {
                // SAFETY: the caller's count.
                unsafe { *self.count = kept.len() as c_int };
            } else if !self.stack.is_null() {
                // SAFETY: the count on the stack, which nobody has read yet.
                unsafe { *self.stack = kept.len() };
            }
        }
        debug_ignored(&switches);
        Ok(switches)
    }
}

fn debug_ignored(switches: &Switches) {
    if lookup("NX_DEBUG").is_some() {
        for ignored in &switches.ignored {
            super::say(&format!("nx: switch {ignored} has no effect on this machine"));
        }
    }
}

pub(super) fn lookup(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The size that nobody has said.
pub(super) fn default_size() -> Result<Shape, Failure> {
    match lookup("NX_DFLT_SIZE").filter(|text| !text.is_empty()) {
        None => Ok(Shape::row(1)),
        Some(text) => Shape::parse(&text).ok_or_else(|| {
            let why = format!("NX_DFLT_SIZE={text:?}: expected 1 to 4096, or HxW; unset it");
            Failure::System(super::errno::EQPARAM, why)
        }),
    }
}

/// Sizes of message buffers, as switches ask for them: what is set in the environment goes first.
fn apply_sizes(switches: &Switches, size: u32) {
    /// Packet buffers of each pair and direction.
    const PER_PAIR: u64 = 32;
    let each = switches.each.or(switches.buffers.map(|all| all / u64::from(size)));
    if let Some(bytes) = switches.packet.or(each.map(|each| each / PER_PAIR)) {
        set_default("NX_SLOT_BYTES", bytes.clamp(256, 65536));
    }
    if let Some(bytes) = switches.threshold {
        set_default("NX_LARGE", bytes);
    }
    if let Some(number) = switches.correspondents
        && lookup("NX_DEBUG").is_some()
    {
        super::say(&format!(
            "nx: switch -noc {number} has no effect: every node has every other as a peer"
        ));
    }
}

fn set_default(name: &str, value: u64) {
    if lookup(name).is_none() {
        // SAFETY: before main there is no other thread of the program.
        unsafe { std::env::set_var(name, value.to_string()) };
    }
}

/// Every node of an application has a process here: `-on` may name them all, or nothing works.
fn check_nodes(switches: &Switches, size: u32) -> Result<(), Failure> {
    match &switches.on {
        Some(on) if on.len() != size as usize || on.last() != Some(&(size - 1)) => {
            let why = format!(
                "-on names {} of {size} nodes; every node needs a process: leave it out, or use -sz",
                on.len()
            );
            Err(Failure::System(super::errno::EQPARAM, why))
        }
        _ => Ok(()),
    }
}

/// The launcher has made as many nodes as it was told of, and the switch says which rectangle they are: not more of them, or fewer.
fn know_shape(switches: &Switches, size: u32) -> Result<(), Failure> {
    match switches.size {
        Some(shape) if shape.nodes() != size => {
            let why = format!(
                "-sz asks for {} nodes, and the launcher has started {size}; give the same number, or one of the two",
                shape.nodes()
            );
            return Err(Failure::System(super::errno::EQPARAM, why));
        }
        Some(shape) => app::set_shape(shape),
        None => {}
    }
    Ok(())
}

/// Ranks of a launcher that we do not speak with would each be an application of one node, and nobody be told.
fn check_launcher() -> Result<(), Failure> {
    let ranks = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", "SLURM_NTASKS")];
    refuse_ranks(&ranks, |size| {
        format!(
            "started as one of {size} ranks by Open MPI's mpirun, or by PMIx, which is not understood; \
             use shrimp run -n {size}, mpiexec.hydra, or srun --mpi=pmi2"
        )
    })
}

/// The same of a launcher that we do speak with, for programs that start their nodes themselves.
fn check_ranks() -> Result<(), Failure> {
    refuse_ranks(&[("PMI_RANK", "PMI_SIZE")], |size| {
        format!(
            "started as one of {size} ranks by an MPI launcher, and starts its nodes itself (nx_initve): {size} \
             applications would run; start it once, without the launcher, or without PMI_SIZE in its environment"
        )
    })
}

/// The first of several ranks says why, and all end.
fn refuse_ranks(ranks: &[(&str, &str)], why: impl Fn(u32) -> String) -> Result<(), Failure> {
    let number = |name| lookup(name)?.parse::<u32>().ok();
    let found = ranks.iter().find_map(|(rank, size)| number(rank).zip(number(size)));
    match found {
        // The first one says it; what a rank has started may be alone, and says it, too.
        Some((rank, size @ 2..)) if rank == 0 || starts_its_own_nodes() => {
            Err(Failure::System(super::errno::EQNOACT, why(size)))
        }
        // SAFETY: nothing has begun in this process.
        Some((_, 2..)) => unsafe { libc::_exit(1) },
        _ => Ok(()),
    }
}

fn start_failure(error: impl std::fmt::Display) -> Failure {
    Failure::System(super::errno::EQNOACT, error.to_string())
}

fn before_main(arguments: &mut Arguments) -> Result<(), Failure> {
    let given = Job::from_env().map_err(start_failure)?;
    let own_start = starts_its_own_nodes();
    if own_start {
        make_room();
    }
    if let Some(job) = given {
        let control = inherited_control();
        if let Some(shape) = lookup(env::SHAPE).and_then(|text| Shape::parse(&text)) {
            app::set_shape(shape);
        }
        remove_variables();
        // What a host process has started is a node, also if it could be a host itself.
        if own_start && !job.host {
            return app::begin_under_launcher(job, control);
        }
        let switches = arguments.take()?;
        check_nodes(&switches, job.size)?;
        apply_sizes(&switches, job.size);
        if !job.host {
            know_shape(&switches, job.size)?;
        }
        if let (Some(control), Some(ptype)) = (&control, switches.ptype) {
            // Who started us does not read the program's switches.
            let _ = control::tell(control, &Message::Ptype(ptype), &[]);
        }
        return be_node(Job { ptype: switches.ptype.or(job.ptype), ..job }, control);
    }
    if let Some(way) = pmi::find(&lookup).map_err(start_failure)? {
        if own_start {
            return check_ranks();
        }
        let switches = arguments.take()?;
        return join_mpi(&way, &switches);
    }
    check_launcher()?;
    if own_start {
        return Ok(());
    }
    let switches = arguments.take()?;
    let shape = match switches.size {
        Some(shape) => shape,
        None => default_size()?,
    };
    check_nodes(&switches, shape.nodes())?;
    apply_sizes(&switches, shape.nodes());
    app::set_shape(shape);
    let mut job = Job::new(shape.nodes()).map_err(start_failure)?;
    job.ptype = switches.ptype.or(Some(0));
    if job.size == 1 {
        // Nobody waits for us: the engine can wait for the first call.
        return process::join(job, true);
    }
    app::control_nodes(&job)
}

/// A node: line by line, and together with the others.
pub(super) fn be_node(job: Job, control: Option<Fd>) -> Result<(), Failure> {
    write_by_lines();
    make_room();
    if let Some(control) = &control {
        process::follow(control);
    }
    part().control = control;
    process::join(job, false)
}

fn join_mpi(way: &pmi::Way, switches: &Switches) -> Result<(), Failure> {
    let inherited = match way {
        pmi::Way::Fd { fd, .. } => {
            // SAFETY: the launcher gave us this descriptor, and nobody else here uses it.
            let own = unsafe { std::os::fd::OwnedFd::from_raw_fd(*fd) };
            // What the program starts has no use of it, and would keep the launcher waiting for its end.
            let _ = rustix::io::fcntl_setfd(&own, rustix::io::FdFlags::CLOEXEC);
            Some(Fd::from(own))
        }
        pmi::Way::Port { .. } => None,
    };
    let version = pmi::choose(&lookup);
    let (mut job, launcher) =
        pmi::join(way, version, inherited, &pmi::host(&lookup)).map_err(start_failure)?;
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID"] {
        // SAFETY: before main there is no other thread of the program.
        unsafe { std::env::remove_var(name) };
    }
    part().launcher = Some(launcher);
    know_shape(switches, job.size)?;
    check_nodes(switches, job.size)?;
    apply_sizes(switches, job.size);
    job.ptype = switches.ptype.or(Some(0));
    be_node(job, None)
}

/// Makes room for the engine's descriptor while this process has one thread: later it takes the kernel milliseconds.
fn make_room() {
    vmmc::sys::fd::lengthen_table(crate::engine::mappings::FLOOR);
}

/// The control channel that a launcher of ours left open for us, close-on-exec from here on.
fn inherited_control() -> Option<Fd> {
    let number: i32 = lookup(env::CONTROL)?.parse().ok()?;
    // SAFETY: only looked at, and not after this line if it is closed.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    if !control::is_channel(borrowed) {
        return None;
    }
    let _ = rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC);
    // SAFETY: it is the launcher's gift to this process.
    Some(unsafe { std::os::fd::OwnedFd::from_raw_fd(number) }.into())
}

fn remove_variables() {
    for name in env::ALL {
        // SAFETY: before main there is no other thread of the program.
        unsafe { std::env::remove_var(name) };
    }
}

/// Whole lines of several nodes can be merged; parts of lines cannot.
fn write_by_lines() {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's own stream, before anything was written to it.
    let stream = unsafe { stdout };
    // SAFETY: as above.
    unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IOLBF, 0) };
}

/// Whether the program calls `nx_initve` or one of its kind: then it starts its nodes itself.
/// `NX_START=auto` or `program` decides instead.
fn starts_its_own_nodes() -> bool {
    match lookup("NX_START").as_deref() {
        Some("auto") => return false,
        Some("program") => return true,
        _ => {}
    }
    let Ok(program) = std::fs::File::open("/proc/self/exe") else { return false };
    let cache = object::ReadCache::new(program);
    let Ok(file) = object::File::parse(&cache) else { return false };
    use object::{Object, ObjectSymbol};
    file.dynamic_symbols().any(|symbol| {
        symbol.is_undefined()
            && symbol.name().is_ok_and(|name| {
                matches!(
                    name,
                    "nx_initve"
                        | "nx_initve_"
                        | "nx_initve_rect"
                        | "nx_initve_rect_"
                        | "nx_initve_attr"
                )
            })
    })
}
