//! `shrimp doctor` on machines that lack something: system calls forbidden as by a container's profile,
//! /proc hidden, limits set low. Each is found, explained, and has a remedy.

mod common;
use common::{Finished, run, shrimp};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn report(ended: &Finished) -> Vec<serde_json::Value> {
    let report: serde_json::Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert_eq!(report["healthy"], ended.status.code() == Some(0));
    report["findings"].as_array().unwrap().clone()
}

/// The finding about `what` needs attention, and its remedy has the words.
#[track_caller]
fn needs_attention(ended: &Finished, what: &str, remedy: &[&str]) {
    let findings = report(ended);
    let about = |it: &&serde_json::Value| it["what"].as_str().unwrap().contains(what);
    let found = findings.iter().find(about).unwrap_or_else(|| panic!("no {what}: {findings:#?}"));
    assert_eq!(found["state"], "attention", "{found:#?}");
    for word in remedy {
        let text = found["remedy"].as_str().unwrap_or_default();
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
    assert_eq!(ended.status.code(), Some(1));
}

/// Lets one system call of the program fail.
fn forbid(command: &mut Command, call: libc::c_long, errno: i32) {
    let step =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let install = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: sets a flag of this process.
        let allowed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `filter` is a valid program for the call.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0) };
        if allowed == 0 && set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: two system calls between fork and exec; no memory is allocated.
    unsafe { command.pre_exec(install) };
}

#[test]
fn a_forbidden_system_call_is_found_with_its_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for (call, errno, what, remedy) in [
        (libc::SYS_memfd_create, libc::EPERM, "sealed memory files", &["memfd_create", "seccomp"]),
        (libc::SYS_membarrier, libc::ENOSYS, "membarrier", &["CONFIG_MEMBARRIER", "seccomp"]),
        (libc::SYS_pidfd_open, libc::ENOSYS, "pidfd", &["Linux 5.3", "pidfd_open"]),
    ] {
        let mut command = shrimp(dir.path());
        command.args(["doctor", "--json"]);
        forbid(&mut command, call, errno);
        needs_attention(&run(&mut command), what, remedy);
    }
    // The same in words.
    let mut command = shrimp(dir.path());
    command.arg("doctor");
    forbid(&mut command, libc::SYS_memfd_create, libc::EPERM);
    let said = run(&mut command).expect(1).out;
    assert!(said.contains("!!  sealed memory files: cannot be made"), "{said}");
    assert!(said.contains("do: run Linux") && said.contains("Needs attention:"), "{said}");
}

/// Runs doctor under a shell script that restricts it and ends in `exec "$0" "$@"`.
fn under(script: &str, dir: &std::path::Path) -> Finished {
    let plain = shrimp(dir);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(plain.get_program()).args(["doctor", "--json"]);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    run(&mut command)
}

#[test]
fn few_open_files_are_found_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let ended = under("ulimit -n 100; exec \"$0\" \"$@\"", dir.path());
    needs_attention(&ended, "RLIMIT_NOFILE", &["ulimit -n", "LimitNOFILE"]);
}

#[test]
fn a_machine_without_proc_is_found_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    // Root may do without a namespace of users, which some machines do not have.
    let script = "user='--user --map-root-user'; unshare --mount true 2>/dev/null && user=; \
                  exec unshare $user --mount \
                  /bin/sh -c 'mount -t tmpfs none /proc && exec \"$0\" \"$@\"' \"$0\" \"$@\"";
    needs_attention(&under(script, dir.path()), "/proc", &["mount /proc"]);
}

/// The daemon's socket belongs to a program that listens and is none.
#[test]
fn whatever_else_listens_at_the_socket_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmmcd.sock");
    let other = vmmc::sys::packet::socket().unwrap();
    rustix::net::bind(&other, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&other, 4).unwrap();
    std::thread::spawn(move || {
        let mut clients = Vec::new(); // none is hung up on
        while let Ok(client) = rustix::net::accept(&other) {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&client, b"220 ready", flags);
            clients.push(client);
        }
    });
    let ended = run(shrimp(dir.path()).args(["doctor", "--json"])).expect(1);
    let findings = report(&ended);
    let found = findings.iter().any(|it| {
        it["state"] == "attention"
            && it["found"].as_str().unwrap().contains("does not speak")
            && it["remedy"].is_string()
    });
    assert!(found, "{findings:#?}");
}
