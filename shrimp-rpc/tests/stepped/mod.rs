//! One thread of a child process, followed instruction by instruction, and killed between any two (ptrace(2)).
//!
//! A step takes 25 us in a virtual machine. So an act is stepped through once, and then run at full speed, in a fresh process,
//! to each of the places seen, by a hardware breakpoint: that is the thread's own, whatever else runs there.

#![allow(unreachable_pub)] // not a library

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// What [`mark`] says it by.
const MARK: libc::c_int = libc::SIGSTOP;

/// In the child: where the calling thread stands until it is stepped further, if it is traced.
pub fn mark() {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("of this thread");
    if status.lines().any(|line| line == "TracerPid:\t0") {
        return; // it would stop the whole process
    }
    // SAFETY: a signal to this thread, of which its tracer alone is told.
    assert_eq!(unsafe { libc::raise(MARK) }, 0);
}

/// The number of the calling thread.
pub fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The number of the thread of that name.
pub fn thread_named(pid: u32, name: &str) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let is_it = |tid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    };
    let mut tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.find(is_it).unwrap_or_else(|| panic!("no thread {name:?}"))
}

/// Of a loop: how many rounds are places of their own.
const ROUNDS_MAX: usize = 40;

/// How many instructions are followed when all is over.
const AFTERWARDS: usize = 500;

/// Before an instruction of a file, the how-manieth time that it runs; or in the middle of it, if it repeats itself.
#[derive(Clone, Debug)]
pub struct Place {
    file: String,
    offset: usize,
    time: usize,
    repeats: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        let Place { offset, time, repeats, .. } = self;
        write!(f, "{file}+{offset:#x}, time {time}, {repeats} repeats")
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It stands where it was to.
    Done,
    /// The thread's [`mark`].
    Mark,
    /// It sleeps, and nobody is going to wake it.
    Asleep,
    /// The thread has ended, of itself.
    Ended,
}

/// A thread that is traced by the thread that made this, and stands still between two steps. Killed with its process when this
/// is dropped.
#[derive(Debug)]
pub struct Stepped {
    pid: u32,
    tid: u32,
}

impl Stepped {
    fn seize(pid: u32, tid: u32) -> Stepped {
        ptrace(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_EXITKILL as usize);
        Stepped { pid, tid }
    }

    /// A thread of the child that is about to [`mark`], which it does once `go_on` lets it.
    pub fn at_mark(pid: u32, tid: u32, go_on: impl FnOnce()) -> Stepped {
        let it = Stepped::seize(pid, tid);
        go_on();
        assert_eq!(it.outcome(&|| false), Step::Mark);
        it
    }

    /// A thread of the child where it is: in the system call in which it sleeps, if it does.
    pub fn anywhere(pid: u32, tid: u32) -> Stepped {
        let it = Stepped::seize(pid, tid);
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0);
        assert_eq!(it.outcome(&|| false), Step::Done);
        it
    }

    /// Runs it for one instruction. A system call is one, and takes as long as it takes; but one that sleeps is not waited for
    /// when `is_over` says that nothing comes any more.
    fn step(&mut self, is_over: &dyn Fn() -> bool) -> Step {
        ptrace(libc::PTRACE_SINGLESTEP, self.tid, 0, 0);
        self.outcome(is_over)
    }

    /// All places where it comes by, in that order, until its mark, its end, or a little after `is_over`.
    pub fn places(&mut self, is_over: &dyn Fn() -> bool) -> Vec<Place> {
        let code = self.code();
        let mut times: HashMap<usize, usize> = HashMap::new();
        let mut places = Vec::new();
        let (mut last, mut repeats, mut left) = (0, 0, AFTERWARDS);
        while left > 0 {
            left -= usize::from(is_over());
            let at = self.instruction();
            // Not in what belongs to no file.
            if let Some((file, offset)) = code.iter().find_map(|it| it.offset(at)) {
                let time = times.entry(at).or_default();
                // One that comes again at once has not been left: a copy of many bytes.
                repeats = if at == last { repeats + 1 } else { 0 };
                *time += usize::from(at != last);
                last = at;
                let (file, time) = (file.to_owned(), *time);
                if time <= ROUNDS_MAX && repeats <= ROUNDS_MAX {
                    places.push(Place { file, offset, time, repeats });
                }
            }
            if self.step(is_over) != Step::Done {
                break;
            }
        }
        places
    }

    /// Runs it to that place, at full speed. Not [`Step::Done`]: it did not come by.
    pub fn run_to(&mut self, place: &Place, is_over: &dyn Fn() -> bool) -> Step {
        let at = self.code().iter().find_map(|it| it.address(place)).expect("the same program");
        let register = |n: usize| offset_of!(libc::user, u_debugreg) + n * size_of::<usize>();
        ptrace(libc::PTRACE_POKEUSER, self.tid, register(0), at);
        // The first breakpoint, when the instruction is about to run.
        ptrace(libc::PTRACE_POKEUSER, self.tid, register(7), 1);
        for _ in 0..place.time {
            ptrace(libc::PTRACE_CONT, self.tid, 0, 0);
            let step = self.outcome(is_over);
            if step != Step::Done {
                return step;
            }
            assert_eq!(self.instruction(), at, "stopped elsewhere");
        }
        ptrace(libc::PTRACE_POKEUSER, self.tid, register(7), 0);
        let mut again = (0..place.repeats).map(|_| self.step(is_over));
        again.find(|step| *step != Step::Done).unwrap_or(Step::Done)
    }

    /// Where its next instruction lies.
    fn instruction(&self) -> usize {
        let at = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, rip);
        ptrace(libc::PTRACE_PEEKUSER, self.tid, at, 0) as usize
    }

    /// What of its memory is code of files.
    fn code(&self) -> Vec<Code> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).expect("it lives");
        maps.lines().filter_map(Code::of_line).collect()
    }

    /// Waits until it stands still, has ended, or sleeps for good.
    fn outcome(&self, is_over: &dyn Fn() -> bool) -> Step {
        loop {
            let over = is_over(); // before the look: what was to wake it has been done then
            match self.look(libc::WNOHANG) {
                Some(status) if libc::WIFSTOPPED(status) => match libc::WSTOPSIG(status) {
                    libc::SIGTRAP => return Step::Done,
                    MARK => return Step::Mark,
                    other => panic!("a signal that nobody sent: {other}"),
                },
                Some(0) => return Step::Ended,
                Some(status) => panic!("it has died: {}", ExitStatus::from_raw(status)),
                None if over && self.sleeps() => return Step::Asleep,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Whether it sleeps in the kernel.
    fn sleeps(&self) -> bool {
        self.state() == Some('S')
    }

    /// The kernel's word for what it does.
    fn state(&self) -> Option<char> {
        let path = format!("/proc/{}/task/{}/stat", self.pid, self.tid);
        let stat = std::fs::read_to_string(path).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// What there is to say of it.
    fn look(&self, how: libc::c_int) -> Option<libc::c_int> {
        let mut status = 0;
        // For a thread that did not begin its process, too.
        let how = how | libc::__WALL;
        // SAFETY: `status` is ours.
        let found = unsafe { libc::waitpid(self.tid as libc::pid_t, &raw mut status, how) };
        (found > 0).then_some(status)
    }

    /// Lets it go on for itself, from where it stands or sleeps.
    pub fn let_go(self) {
        if self.state() != Some('t') {
            ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0);
            assert!(self.look(0).is_some_and(|status| libc::WIFSTOPPED(status)));
        }
        let control = offset_of!(libc::user, u_debugreg) + 7 * size_of::<usize>();
        ptrace(libc::PTRACE_POKEUSER, self.tid, control, 0);
        ptrace(libc::PTRACE_DETACH, self.tid, 0, 0);
        std::mem::forget(self);
    }

    /// `kill -9` where it stands. The process may still be waited for afterwards, unless the thread is its first.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        // To its end, which is the tracer's to hear: a step that was under way may be told of before.
        while self.look(0).is_some_and(|status| libc::WIFSTOPPED(status)) {}
    }
}

/// A mapping of a program's or a library's code.
struct Code {
    range: Range<usize>,
    offset: usize,
    file: String,
}

impl Code {
    /// As `/proc/PID/maps` has it: range, rights, offset, device, inode, path.
    fn of_line(line: &str) -> Option<Code> {
        let mut words = line.split_ascii_whitespace();
        let mut word = || words.next();
        let (start, end) = word()?.split_once('-')?;
        let is_code = word()?.contains('x');
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let offset = hex(word()?)?;
        let (_device, _inode, file) = (word(), word(), word()?);
        let range = hex(start)?..hex(end)?;
        (is_code && file.starts_with('/')).then(|| Code { range, offset, file: file.to_owned() })
    }

    fn offset(&self, at: usize) -> Option<(&str, usize)> {
        self.range.contains(&at).then(|| (&*self.file, at - self.range.start + self.offset))
    }

    fn address(&self, place: &Place) -> Option<usize> {
        let at = self.range.start + place.offset.checked_sub(self.offset)?;
        (self.file == place.file && self.range.contains(&at)).then_some(at)
    }
}

/// None of the requests made here reads or writes memory of ours. What `PTRACE_PEEKUSER` finds is returned.
fn ptrace(request: libc::c_uint, tid: u32, at: usize, data: usize) -> libc::c_long {
    let (tid, at, data) = (tid as libc::pid_t, at as *mut c_void, data as *mut c_void);
    // SAFETY: as above; `at` is an offset in what the kernel knows of the thread, or nothing.
    let found = unsafe { libc::ptrace(request, tid, at, data) };
    let failed = found == -1 && request != libc::PTRACE_PEEKUSER;
    assert!(!failed, "ptrace {request}: {}", std::io::Error::last_os_error());
    found
}
