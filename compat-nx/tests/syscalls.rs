//! No system call per message while both sides are awake: a thread that may make none plays. Only what goes from user memory to
//! user memory asks the kernel, once at each end, whether that memory is what it was.
#![allow(unsafe_code)] // the engine's raw interface, and a filter of the kernel's

mod common;

use common::Daemon;
use nx::{Dest, Engine, Select, Source, Target};
use std::sync::atomic::{AtomicBool, Ordering};

/// From here on this thread's process is killed at any system call but those of `allowed`.
fn allow_only(allowed: &[libc::c_long]) {
    let step =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for &call in allowed {
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1));
        program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this thread.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: `filter` is a valid program for the call.
    let rc = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn ping_pong(engine: &Engine, bytes: &mut [u8]) {
    let data = Source { start: bytes.as_ptr(), len: bytes.len() };
    let room = Target { start: bytes.as_mut_ptr(), len: bytes.len() };
    let to = Dest { node: 1 - engine.node(), ptype: 0 };
    let send = || {
        // SAFETY: borrowed for the call.
        unsafe { engine.csend(1, data, to) }.expect("csend");
    };
    let receive = || {
        // SAFETY: borrowed for the call.
        unsafe { engine.crecv(Select::types(1), room) }.expect("crecv");
    };
    if engine.node() == 0 {
        send();
        receive();
    } else {
        receive();
        send();
    }
}

fn silent(engine: &Engine, long: &str) {
    let asks = long == "from user memory";
    let done = AtomicBool::new(false);
    // A thread that may make no call cannot end: it is left to the end of the process.
    let shared: (&Engine, &AtomicBool) = (engine, &done);
    // SAFETY: `engine` and `done` live until this process exits below, without returning.
    let (engine, done): (&'static Engine, &'static AtomicBool) =
        unsafe { std::mem::transmute(shared) };
    std::thread::spawn(move || {
        let mut bytes = vec![3; 200_000];
        for len in [0, 8, 4000, 200_000] {
            for _ in 0..20 {
                ping_pong(engine, &mut bytes[..len]);
            }
        }
        let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        // The clock and the processor's number are system calls on some machines.
        let mut allowed =
            vec![libc::SYS_write, libc::SYS_exit_group, libc::SYS_clock_gettime, libc::SYS_getcpu];
        if alone {
            // Nobody is awake beside this thread: it gives its processor away.
            allowed.push(libc::SYS_sched_yield);
        }
        allow_only(&allowed);
        for _ in 0..1000 {
            for len in [0, 8, 4000] {
                ping_pong(engine, &mut bytes[..len]);
            }
        }
        for _ in 0..if asks { 0 } else { 20 } {
            ping_pong(engine, &mut bytes);
        }
        done.store(true, Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    });
    while !done.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    engine.gsync().expect("gsync");
    engine.leave();
    std::process::exit(0);
}

#[test]
fn rank() {
    common::play(&[("silent", silent)]);
}

#[test]
fn messages_cross_without_a_system_call_while_both_sides_are_awake() {
    let daemon = Daemon::start();
    daemon.run(2, "silent", "", &[("VMMC_WAIT", "spin"), ("NX_SHARE", "off")]);
    daemon.run(2, "silent", "from user memory", &[("VMMC_WAIT", "spin")]);
}
