//! Programs that are linked with the library, before libtirpc, instead of being preloaded; by a compiler that leaves
//! libraries out of which nothing is asked for (Debian's), or one that does not. And programs linked before there was
//! libtirpc.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Process, Server, Side, artefacts, finish, programs};
use std::path::Path;
use std::process::Command;

/// How the dynamic linker finds the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finds {
    ByRpath,
    ByEnvironment,
}

/// Links a program of `tests/c`, in this order of libraries.
fn link(dir: &Path, program: &str, stubs: &str, libraries: [&str; 2], finds: Finds) -> Command {
    let made = programs(Mode::Default);
    let own = artefacts().library.parent().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let output = dir.join(program);
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-O1", "-w", "-I/usr/include/tirpc", "-I"]).arg(&made);
    cc.arg("-I").arg(&sources).arg("-o").arg(&output);
    cc.arg(sources.join(format!("{program}.c")));
    cc.args([made.join(stubs), made.join("types_xdr.c")]);
    cc.arg("-L").arg(own).args(libraries).arg("-pthread");
    let mut command = Command::new(output);
    match finds {
        Finds::ByRpath => _ = cc.arg(format!("-Wl,-rpath,{}", own.display())),
        Finds::ByEnvironment => _ = command.env("LD_LIBRARY_PATH", own),
    }
    assert!(cc.status().unwrap().success(), "{cc:?}");
    command
}

#[test]
fn programs_linked_with_the_library_use_rings() {
    for finds in [Finds::ByRpath, Finds::ByEnvironment] {
        for (libraries, rings) in [(["-lvrpc", "-ltirpc"], true), (["-ltirpc", "-lvrpc"], false)] {
            let (daemon, dir) = (Daemon::start(), tempfile::tempdir().unwrap());
            let mut server = link(dir.path(), "server", "types_svc.c", libraries, finds);
            let server = Process::start_plain(server.arg("run"), &daemon, &[]);
            let server = Server::of_process(server, Mode::Default);
            let mut client = link(dir.path(), "client", "types_clnt.c", libraries, finds);
            client.args([server.port.to_string().as_str(), "types"]);
            let client = Process::start_plain(&mut client, &daemon, &[]);
            let (said, counted) = finish(client, "a linked client");
            assert!(said.contains("same") && !said.contains("DIFFERENT"), "{said}");
            let served = server.quit(&daemon);
            let over_rings = [counted.get("calls_ring") > 0, served.get("served_ring") > 0];
            assert_eq!(over_rings, [rings; 2], "{libraries:?} {finds:?} {counted:?} {served:?}");
        }
    }
}

/// A linker that leaves out libraries of which nothing is asked keeps ours for each way to make a client.
#[test]
fn a_client_made_by_any_function_keeps_the_library() {
    let (own, dir) = (artefacts().library.parent().unwrap(), tempfile::tempdir().unwrap());
    let (source, output) = (dir.path().join("one.c"), dir.path().join("one"));
    for name in [
        "clnt_create",
        "clnt_create_timed",
        "clnt_create_vers",
        "clnt_create_vers_timed",
        "clnt_dg_create",
        "clnt_tli_create",
        "clnt_tp_create",
        "clnt_tp_create_timed",
        "clnt_vc_create",
        "clnttcp_create",
        "clntudp_bufcreate",
        "clntudp_create",
    ] {
        let asks = format!(
            "void {name}(void); void (*at)(void) = {name}; int main(void) {{ return !at; }}"
        );
        std::fs::write(&source, asks).unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-o").arg(&output).arg(&source).arg("-Wl,--as-needed,--allow-shlib-undefined");
        cc.arg("-L").arg(own).args(["-lvrpc", "-ltirpc"]);
        assert!(cc.status().unwrap().success(), "{cc:?}");
        let needs = Command::new("readelf").arg("-dW").arg(&output).output().unwrap().stdout;
        assert!(String::from_utf8(needs).unwrap().contains("[libvrpc.so]"), "{name}");
    }
}

/// They ask for names that glibc keeps for them alone, which `dlsym` does not find.
#[test]
fn a_client_linked_with_glibcs_own_rpc_has_that_behind_the_library() {
    let (daemon, dir) = (Daemon::start(), tempfile::tempdir().unwrap());
    let server = Server::start(Mode::Default, "run", Side::Ours, &daemon);
    let output = dir.path().join("old");
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-w", "-I/usr/include/tirpc", "-I"]).arg(programs(Mode::Default));
    cc.arg("-o").arg(&output);
    cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/old.c"));
    assert!(cc.status().unwrap().success(), "{cc:?}");
    for side in [Side::Stock, Side::Ours] {
        let mut old = Command::new(&output);
        old.args([server.port.to_string(), server.udp.to_string()]);
        let (said, _) = finish(Process::start(&mut old, side, &daemon), "an old client");
        assert_eq!(said, "tcp 0\nudp 0\nudp with lengths 0\nserved\n", "{side:?}");
    }
    server.quit(&daemon);
}

/// The kernel lengthens the table in some microseconds for a process with one thread, and in 10 ms for one with more.
#[test]
fn the_place_for_our_descriptors_is_made_before_a_program_has_threads() {
    // As many descriptors as there may be, which is 1024 often.
    let script = "ulimit -n $(ulimit -Hn); ulimit -n; exec grep FDSize /proc/self/status";
    let places = |preload: &Path| -> (u64, u64) {
        let mut grep = Command::new("sh");
        grep.args(["-c", script]).env("LD_PRELOAD", preload);
        let said = String::from_utf8(grep.output().unwrap().stdout).unwrap();
        let (limit, places) = said.split_once("FDSize:").unwrap();
        (limit.trim().parse().unwrap_or(u64::MAX), places.trim().parse().unwrap())
    };
    let (limit, alone) = places(Path::new(""));
    assert!(alone <= 1024, "grep has {alone} places by itself");
    let (_, with_library) = places(&artefacts().library);
    assert!(with_library > 1024 || limit <= 1024, "{with_library} places, limit {limit}");
}
