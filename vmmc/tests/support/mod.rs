//! For the tests of crashes, hostile peers, restarts and scale: what a process holds, a watchdog
//! that says where a test hung, a copy that stops half way, clients that speak the bare protocol.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::common::{PATIENCE, until};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use vmmc::Node;
use vmmc::mem::View;

pub mod impostor;
pub mod raw;
pub mod stage;

/// Descriptors of a process by kind, and its mappings of our memory files.
///
/// Only mappings of memory files are counted: the heap and the stacks of threads come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    pub fds: BTreeMap<String, usize>,
    pub mappings: BTreeMap<String, usize>,
}

impl Footprint {
    pub fn fd_count(&self) -> usize {
        self.fds.values().sum()
    }
    pub fn mapping_count(&self) -> usize {
        self.mappings.values().sum()
    }
}

/// What a living process holds now.
pub fn footprint(pid: u32) -> Footprint {
    let mut found = Footprint::default();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten() {
        // One that is closed between the two calls is not counted.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        // Without inode numbers and directories, which differ from daemon to daemon.
        let kind = target.split_once(":[").map_or(&*target, |(kind, _)| kind);
        let kind = kind.rsplit_once('/').map_or(kind, |(_, name)| name);
        *found.fds.entry(kind.to_owned()).or_default() += 1;
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    for line in maps.lines() {
        if let Some((_, name)) = line.split_once("/memfd:") {
            *found.mappings.entry(name.to_owned()).or_default() += 1;
        }
    }
    found
}

/// What it holds when it is done with what it began: what it would hold for ever if nobody asked for more.
pub fn footprint_at_rest(pid: u32, is_it: impl Fn(&Footprint) -> bool) -> Footprint {
    let mut found = Footprint::default();
    until("the process is at rest", || {
        // Descriptors go one by one: before the second look, whoever was closing has gone to sleep.
        let before = footprint(pid);
        let at_rest = is_it(&before) && every_thread(pid, 'S');
        found = footprint(pid);
        at_rest && found == before
    });
    found
}

/// Waits until a process holds exactly what it held then.
pub fn settles(who: &str, pid: u32, baseline: &Footprint) {
    let mut now = Footprint::default();
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE.unwrap_or_default() {
        now = footprint(pid);
        if now == *baseline {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{who} ({pid}) does not come back to\n  {baseline:?}\nit holds\n  {now:?}");
}

/// What a daemon holds for so many clients, once it is done with those that only looked.
pub fn at_rest(pid: u32, clients: usize) -> Footprint {
    footprint_at_rest(pid, |found| {
        // Its listening socket, the one by which it asks the kernel about others, and one for each.
        found.fds.get("socket") == Some(&(clients + 2)) && found.mappings.is_empty()
    })
}

/// No name of ours in the memory file system.
pub fn nothing_in_dev_shm() {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        assert!(!name.to_string_lossy().contains("vmmc"), "left behind: /dev/shm/{name:?}");
    }
}

/// Waits until the daemon knows no client, export or link of a process.
pub fn daemon_forgets(watcher: &Node, pid: u32) {
    until("the daemon has forgotten the dead", || {
        let now = watcher.snapshot().expect("a snapshot");
        let clients: Vec<_> =
            now.clients.iter().filter(|it| it.peer.pid == pid).map(|it| it.peer.client).collect();
        clients.is_empty()
            && now.exports.iter().all(|it| it.exporter.pid != pid)
            && now.links.iter().all(|link| {
                // A link is of the dead when one of its ends is no client any more.
                let importer = now.clients.iter().any(|it| it.peer.client == link.importer);
                let export = now.exports.iter().any(|it| it.export == link.export);
                importer && export
            })
    });
}

/// Waits until every thread of a process sleeps in the kernel.
pub fn until_asleep(pid: u32) {
    until_every_thread(pid, 'S', "every thread sleeps");
}

/// Waits until a process has been stopped, as by SIGSTOP.
pub fn until_stopped(pid: u32) {
    until_every_thread(pid, 'T', "every thread is stopped");
}

fn until_every_thread(pid: u32, state: char, what: &str) {
    until(what, || every_thread(pid, state));
}

fn every_thread(pid: u32, state: char) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: the state.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state))
    })
}

/// The end of this process with that of its parent: no test that is killed leaves any behind.
pub fn die_with_parent() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .expect("prctl");
}

/// Ends a test program that hangs, and says where. Not a limit that a test is measured by.
pub struct Watchdog {
    step: Arc<Mutex<String>>,
    _done: mpsc::Sender<()>,
}

impl Watchdog {
    pub fn new(test: &str) -> Watchdog {
        // Longer than any one step of it waits.
        Watchdog::after(test, 3 * PATIENCE.unwrap_or_default())
    }

    pub fn after(test: &str, patience: Duration) -> Watchdog {
        let (done, ended) = mpsc::channel::<()>();
        let step = Arc::new(Mutex::new("start".to_owned()));
        let (test, at) = (test.to_owned(), step.clone());
        std::thread::spawn(move || {
            if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(patience) {
                let step = at.lock().map(|step| step.clone()).unwrap_or_default();
                eprintln!("{test} hangs at: {step}");
                kill_children();
                std::process::exit(101);
            }
        });
        Watchdog { step, _done: done }
    }

    pub fn step(&self, step: impl Into<String>) {
        *self.step.lock().expect("not poisoned") = step.into();
    }
}

/// The children of this process only.
fn kill_children() {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

// ---- a transfer that stops half way ----

/// Memory whose middle page cannot be read until [`Tripwire`] says so: a copy of it, upwards or
/// downwards as the C library likes it on this processor, stops in the middle, says so, and goes on when
/// the first process lets it (or is killed there).
pub struct Tripwire {
    start: NonNull<u8>,
    len: usize,
}

const PAGE: usize = 4096;
static WIRE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Says "SAYS midway", waits for a line, and makes the memory readable. Only what a signal
/// handler may do.
extern "C" fn tripped(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let (start, len) = (WIRE[0].load(Ordering::Relaxed), WIRE[1].load(Ordering::Relaxed));
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo.
    let info = unsafe { &*info };
    // SAFETY: the signal is SIGSEGV, which fills in the address.
    let at = unsafe { info.si_addr() } as usize;
    if at < start || at >= start + len {
        // SAFETY: ends the process; a fault that is not ours.
        unsafe { libc::abort() };
    }
    let said = b"SAYS midway\n";
    // SAFETY: a write of a constant.
    unsafe { libc::write(1, said.as_ptr().cast(), said.len()) };
    let mut byte = 0u8;
    // SAFETY: one byte of our own is read into; ends at a line or at end of file.
    while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } == 1 && byte != b'\n' {}
    // SAFETY: our own mapping, never unmapped.
    unsafe { libc::mprotect(start as *mut _, len, libc::PROT_READ | libc::PROT_WRITE) };
}

impl Tripwire {
    /// `len` bytes of `fill`, a multiple of two pages. One per process.
    pub fn new(len: usize, fill: u8) -> Tripwire {
        let start = vmmc::sys::mmap::map_private_anonymous(len).expect("memory");
        // SAFETY: mapped just now, for ever.
        unsafe { start.as_ptr().write_bytes(fill, len) };
        let half = start.as_ptr() as usize + len / 2;
        WIRE[0].store(half, Ordering::Relaxed);
        WIRE[1].store(PAGE, Ordering::Relaxed);
        // SAFETY: an all-zero sigaction is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = tripped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is valid, and the handler does only what one may.
        let rc = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
        assert_eq!(rc, 0);
        // SAFETY: a page of the mapping above.
        let rc = unsafe { libc::mprotect(half as *mut _, PAGE, libc::PROT_NONE) };
        assert_eq!(rc, 0);
        Tripwire { start, len }
    }

    /// Sends all of it to offset 0.
    pub fn send(&self, import: &vmmc::Import) -> Result<(), vmmc::error::SendError> {
        // SAFETY: mapped for ever; the handler makes it readable when it is read.
        unsafe { import.send_raw(0, self.start, self.len) }
    }
}

/// Runs `work` in a thread that is another user, by the kernel's word. Needs root.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The raw call changes this thread alone; that of the C library changes all threads.
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// All bytes of a view.
pub fn bytes_of(view: View<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    view.read(0, &mut bytes).expect("its own length");
    bytes
}

/// Lets a system call fail in all threads of this process, as a kernel without it or a seccomp profile
/// would. For good; several add up.
pub fn forbid(call: libc::c_long, errno: i32) {
    let step =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let answer = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, answer, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: `filter` is a valid program for the call.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, mode, all, &raw const filter) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Kills this process at the next system call of this thread other than `exit_group`.
pub fn only_exit_from_here() {
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    let step =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit_group as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, kill, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: `filter` is a valid program for the call.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0) }, 0);
}

/// Ends the process by `exit_group` alone.
pub fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    unreachable!("exit_group returned")
}
