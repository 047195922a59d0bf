//! Jobs that span two nodes of a cluster, each with a daemon of its own: on loopback addresses, or in two
//! network namespaces (`ci/net`). `shrimp run --hosts` starts them, and reaches the "hosts" by a shell that
//! does no more than choose the daemon, and the namespace if there is one.

mod build;
#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use build::{Done, Options, compile, compile_text, fortran, nobody_is_left, run_with};
use cluster::Place;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Two nodes, and where the shell finds their daemons.
struct World {
    a: Place,
    b: Place,
    sockets: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        build::target(); // the daemon too
        let (a, b) = cluster::pair();
        let sockets = tempfile::tempdir().unwrap();
        for place in [&a, &b] {
            symlink(place.daemon.socket(), sockets.path().join(&place.name)).unwrap();
        }
        World { a, b, sockets }
    }

    /// `shrimp run --hosts a,b`.
    fn launcher(&self, options: &[&str], program: &Path, arguments: &[&str]) -> Command {
        let enter = match self.a.starter().as_slice() {
            [] => String::new(),
            words => format!("{}{{}} ", words.join(" ").trim_end_matches('a')),
        };
        let directory = self.sockets.path().display();
        let shell = format!("{enter}env VMMC_DAEMON=none VMMC_SOCKET={directory}/{{}}");
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(build::target().join("shrimp"));
        command.args(["run", "--hosts", "a,b"]).args(options).env("SHRIMP_RSH", shell);
        command.arg("--").arg(program).args(arguments);
        command.env("LD_LIBRARY_PATH", build::target()).env("VMMC_SOCKET", "/nowhere");
        command
    }

    /// The same by an MPI launcher of its own, whose remote shell is ours.
    fn hydra(&self, size: &str, program: &Path, arguments: &[&str]) -> Command {
        let starter = self.a.starter();
        let (enter, address) = match starter.as_slice() {
            [] => (String::new(), "127.0.0.1"),
            words => (format!("{}$host", words.join(" ").trim_end_matches('a')), cluster::HOST_A),
        };
        let (directory, shell) = (self.sockets.path(), self.sockets.path().join("shell"));
        let text = format!(
            "#!/bin/sh\nhost=$1; shift\nexec {enter} env NX_HOST=$host VMMC_DAEMON=none \
             VMMC_SOCKET={}/$host sh -c \"$*\"\n",
            directory.display()
        );
        std::fs::write(&shell, text).unwrap();
        std::fs::set_permissions(&shell, PermissionsExt::from_mode(0o700)).unwrap();
        let words =
            ["env", "--default-signal", "mpiexec.hydra", "-launcher", "rsh"].map(String::from);
        let mut words = starter.into_iter().chain(words);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("-launcher-exec").arg(shell).args(["-localhost", address]);
        command.args(["-hosts", "a,b", "-n", size]).arg(program).args(arguments);
        command.env("LD_LIBRARY_PATH", build::target());
        for name in ["VMMC_SOCKET", "VMMC_DAEMON", "NX_HOST"] {
            command.env_remove(name); // it would pass them on
        }
        command
    }

    #[track_caller]
    fn run(&self, options: &[&str], program: &Path, arguments: &[&str]) -> Done {
        build::run(&mut self.launcher(options, program, arguments))
    }
}

#[track_caller]
fn at_all_sizes(program: &Path, arguments: &[&str], says: &str) {
    let world = World::new();
    for size in ["2", "3", "4", "8"] {
        let done = world.run(&["-n", size], program, arguments);
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        assert!(done.out.contains(says), "{size} nodes: {done}");
    }
}

#[test]
fn messages_of_every_call_cross_between_nodes() {
    at_all_sizes(&compile("messages.c", Options::default()), &[], "messages: all good");
}

#[test]
fn handlers_run_for_messages_of_other_nodes() {
    at_all_sizes(&compile("handlers.c", Options::default()), &[], "handlers: all good");
}

#[test]
fn global_operations_span_nodes() {
    at_all_sizes(&compile("globals.c", Options::default()), &[], "globals: all good");
}

#[test]
fn who_is_where_is_the_same_on_all_nodes() {
    let arguments = ["-pn", "part", "one", "-pri", "3", "-two", "-plk"];
    at_all_sizes(&compile("who.c", Options::default()), &arguments, "who: all good");
}

#[test]
fn fortran_programs_span_nodes() {
    let legacy = ["-std=legacy"];
    at_all_sizes(&fortran("fortran/calls.f", &legacy), &[], "fortran: all good");
    at_all_sizes(&fortran("fortran/cube.f", &legacy), &[], "cube: all good");
    let heat = fortran("../examples/heat.f", &["-O2", "-std=legacy"]);
    at_all_sizes(&heat, &[], "heat: right");
}

#[test]
fn modes_of_files_hold_between_nodes() {
    let program = compile("modes.c", Options::default());
    let world = World::new();
    for size in [2, 5] {
        let dir = tempfile::tempdir().unwrap();
        let arguments = [dir.path().to_str().unwrap(), "several"];
        let done = world.run(&["-n", &size.to_string()], &program, &arguments);
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        let lines: String = (0..size).map(|node| format!("from node {node}\n")).collect();
        assert_eq!(done.out, lines + "modes: all good\n", "{done}");
    }
}

#[test]
fn random_traffic_between_nodes_keeps_order_and_contents() {
    at_all_sizes(&compile("traffic.c", Options::default()), &["200"], "all good");
}

#[test]
fn an_mpi_launcher_starts_ranks_on_both_hosts_and_they_find_each_other() {
    let world = World::new();
    let (globals, traffic) =
        (compile("globals.c", Options::default()), compile("traffic.c", Options::default()));
    for size in ["2", "4"] {
        let done = build::run(&mut world.hydra(size, &globals, &[]));
        assert_eq!(done.code, Some(0), "{size}: {done}");
        assert!(done.out.contains("globals: all good"), "{size}: {done}");
        let done = build::run(&mut world.hydra(size, &traffic, &["100"]));
        assert_eq!(done.code, Some(0), "{size}: {done}");
        assert!(done.out.contains("all good"), "{size}: {done}");
    }
}

#[test]
fn an_mpi_launcher_passes_input_output_and_the_end_of_its_ranks() {
    let world = World::new();
    let text = "#include \"check.h\"
        int main(void) {
            char line[100] = \"\";
            if (mynode() == 0 && fgets(line, sizeof line, stdin)) printf(\"read %s\", line);
            printf(\"%ld on %s\\n\", mynode(), getenv(\"NX_HOST\"));
            gsync();
            return mynode() == 1 ? 7 : 0; }";
    let program = compile_text("input.c", text, Options { flags: &["-w"], libraries: &[] });
    let mut command = world.hydra("2", &program, &[]);
    let done = run_with(&mut command, "a line\n");
    assert_eq!(done.code, Some(7), "{done}");
    for line in ["read a line", "0 on a", "1 on b"] {
        assert!(done.out.contains(line), "{done}");
    }
    let program = dying();
    for victim in ["0", "1"] {
        let done = build::run(&mut world.hydra("2", &program, &[victim]));
        assert!(done.code.is_some_and(|code| code != 0), "{done}");
        nobody_is_left(&program);
    }
}

/// Six large messages each way; the receive buffer is used again and again.
const LARGE: &str = "#include \"check.h\"
    static char in[2000000], out[2000000];
    int main(void) {
        long other = 1 - mynode(), round, i;
        for (round = 0; round < 6; round++) {
            long id = irecv(round, in, sizeof in);
            for (i = 0; i < sizeof out; i++) out[i] = i * 7 + round + mynode();
            gsync();
            csend(round, out, sizeof out - round, other, 0);
            msgwait(id);
            CHECK(infocount() == sizeof in - round);
            for (i = 0; i < sizeof in - round; i++) CHECK(in[i] == (char)(i * 7 + round + other));
        }
        gsync();
        if (mynode() == 0) printf(\"large: all good\\n\");
        return 0; }";

#[test]
fn large_messages_go_straight_into_the_buffer_of_another_node() {
    let program = compile_text("large.c", LARGE, Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    for direct in ["1000000", "100000000"] {
        let mut command = world.launcher(&["-n", "2"], &program, &[]);
        let done = build::run(command.env("NX_DIRECT", direct));
        assert_eq!(done.code, Some(0), "NX_DIRECT={direct}: {done}");
        assert!(done.out.contains("large: all good"), "{done}");
    }
}

#[test]
fn lines_of_all_nodes_are_merged_and_the_first_has_the_input() {
    let text = "#include \"check.h\"
        int main(void) {
            char line[100] = \"\";
            int had = fgets(line, sizeof line, stdin) != NULL;
            printf(\"node %ld: %s\", mynode(), had ? line : \"nothing\\n\");
            fprintf(stderr, \"err %ld\\n\", mynode());
            gsync();
            return 0; }";
    let program = compile_text("lines.c", text, Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    let done = run_with(&mut world.launcher(&["-l", "-n", "4"], &program, &[]), "a question\n");
    assert_eq!(done.code, Some(0), "{done}");
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    let expected = [
        "[0@a] node 0: a question",
        "[1@a] node 1: nothing",
        "[2@b] node 2: nothing",
        "[3@b] node 3: nothing",
    ];
    assert_eq!(lines, expected);
    assert!(done.err.contains("[3@b] err 3"), "{done}");
}

/// The others wait for a message that nobody sends.
const DYING: &str = "#include \"check.h\"
    #include <signal.h>
    int main(int argc, char **argv) {
        char c;
        gsync();
        if (mynode() == atoi(argv[1])) raise(SIGKILL);
        if (mynode() == 0) { printf(\"waiting\\n\"); fflush(stdout); }
        crecv(99, &c, 1);
        return 0; }";

fn dying() -> std::path::PathBuf {
    compile_text("dying.c", DYING, Options { flags: &["-w"], libraries: &[] })
}

#[test]
fn the_death_of_a_node_ends_all_on_every_host_and_nothing_is_left() {
    let program = dying();
    let world = World::new();
    for victim in ["0", "3"] {
        let done = world.run(&["-n", "4"], &program, &[victim]);
        assert_eq!(done.code, Some(137), "{done}");
        let says = format!("node {victim} (ptype 0, pid ");
        assert!(done.err.contains(&says) && done.err.contains("killed by signal 9"), "{done}");
        nobody_is_left(&program);
    }
}

/// As on one machine: who has come to its own end takes nobody along before the grace is over.
#[test]
fn old_mains_that_leave_any_exit_code_print_all_they_have_on_every_host() {
    let text = "main() { int n = numnodes(); gsync(); if (mynode() == 0) return 23; sleep(1); \
                printf(\"%d of %d\\n\", mynode(), n); return 0; }";
    let program = compile_text("late.c", text, Options { flags: &["-w"], libraries: &[] });
    let done = World::new().run(&["-n", "4"], &program, &[]);
    assert_eq!((done.code, done.out.lines().count()), (Some(23), 3), "{done}");
}

#[test]
fn processes_that_are_ended_on_request_from_another_host_leave_the_others_in_peace() {
    let program = compile("kills_across.c", Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    for _ in 0..3 {
        let done = world.run(&["-n", "6"], &program, &[]);
        assert_eq!(done.code, Some(0), "{done}");
        assert_eq!((&done.out[..], &done.err[..]), ("kills: node 0 is done\n", ""), "{done}");
        nobody_is_left(&program);
    }
    let done = world.run(&["-n", "6"], &program, &["all"]);
    assert_eq!(done.code, Some(137), "{done}");
    assert!(done.err.contains("node 4 (ptype 5"), "{done}");
    assert!(done.err.contains("killed the application"), "{done}");
    nobody_is_left(&program);
}

#[test]
fn input_that_nobody_reads_and_output_that_nobody_wants_hold_nothing_up() {
    let text = "#include \"check.h\"
        int main(void) {
            gsync();
            if (mynode() == 0) while (puts(\"a line that is thrown away\") >= 0) fflush(stdout);
            if (mynode() == 1) { crecv(1, NULL, 0); CHECK(!\"it goes on\"); }
            csend(1, NULL, 0, 0, 0);
            while (_killproc(1, -1) == 0) flick();
            killproc(-1, -1);
            return 0; }";
    let program = compile_text("unread.c", text, Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    let mut command = world.launcher(&["-n", "3"], &program, &[]);
    command.stdin(std::fs::File::open("/dev/zero").unwrap());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "a line that is thrown away\n");
    // The reader has gone: SIGPIPE ends node 0, and with it all, unless the other node was faster.
    let code = child.wait().unwrap().code();
    assert!([Some(137), Some(128 + 13)].contains(&code), "{code:?}");
    nobody_is_left(&program);
}

#[test]
fn a_process_is_ended_on_request_from_behind_output_that_nobody_reads() {
    let text = "#include \"check.h\"
        int main(int argc, char **argv) {
            gsync();
            if (mynode() == 2) while (puts(\"much output\") >= 0);
            if (mynode() == 3) {
                sleep(1);
                while (_killproc(1, -1) == 0) flick();
                fclose(fopen(argv[1], \"w\"));
                killproc(-1, -1);
            }
            crecv(1, NULL, 0); }";
    let program = compile_text("behind.c", text, Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    let done = world.sockets.path().join("done");
    let mut command = world.launcher(&["-n", "4"], &program, &[done.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    common::until("node 1 has been ended", || done.exists());
    // What was on its way is there.
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.all(|line| line.unwrap() == "much output"));
    assert_eq!(child.wait().unwrap().code(), Some(137));
    nobody_is_left(&program);
}

fn loading() -> std::path::PathBuf {
    compile("load_across.c", Options { flags: &["-w"], libraries: &[] })
}

#[test]
fn a_host_process_loads_nodes_on_both_hosts_and_hears_how_they_end() {
    let program = loading();
    let world = World::new();
    for (size, how) in [("2", "wait"), ("4", "wait"), ("5", "waitall"), ("4", "killproc")] {
        let done = world.run(&["-l", "-n", size, "--grace", "0"], &program, &[how]);
        assert_eq!(done.code, Some(0), "{size}, {how}: {done}");
        assert!(done.out.contains("host: all good"), "{size}, {how}: {done}");
        let last = size.parse::<u32>().unwrap() - 1;
        assert!(done.out.contains("[0@a] node 0 on a\n"), "{size}, {how}: {done}");
        let says = format!("[{last}@b] node {last} on b\n");
        assert!(done.out.contains(&says), "{size}, {how}: {done}");
        let says =
            "is on host b, and no copy of this process can be made there; nx_load and nx_loadve";
        assert!(done.err.contains(says), "{size}, {how}: {done}");
        nobody_is_left(&program);
    }
}

#[test]
fn programs_that_are_loaded_on_both_hosts_know_the_rectangle() {
    let program = compile("rectangle.c", Options::default());
    let done = World::new().run(&["-n", "6"], &program, &["3"]);
    assert_eq!(done.code, Some(0), "{done}");
    for node in 0..6 {
        assert!(done.out.contains(&format!("node {node}: 2 x 3\n")), "{done}");
    }
}

#[test]
fn processes_of_other_types_join_on_every_host_several_at_once() {
    let program = compile("ptypes_across.c", Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    for size in ["2", "3", "5"] {
        for (start, arguments) in [("auto", &[][..]), ("program", &["host"])] {
            let mut command = world.launcher(&["-n", size], &program, arguments);
            let done = build::run(command.env("NX_START", start));
            assert_eq!(done.code, Some(0), "{size} nodes, {start}: {done}");
            assert!(done.out.contains("types: all good"), "{size} nodes, {start}: {done}");
            assert_eq!(done.err, "", "{size} nodes, {start}: {done}");
        }
    }
    nobody_is_left(&program);
}

#[test]
fn processes_that_nodes_of_several_hosts_add_at_once_and_that_are_soon_gone_get_numbers_of_their_own()
 {
    let program = compile("leaving.c", Options { flags: &["-w"], libraries: &[] });
    let world = World::new();
    for size in ["2", "4", "5"] {
        let mut command = world.launcher(&["-n", size], &program, &["crowd"]);
        let done = build::run(command.env("NX_START", "auto"));
        assert_eq!((done.code, &*done.err), (Some(0), ""), "{size} nodes: {done}");
    }
    nobody_is_left(&program);
}

#[test]
fn however_a_host_process_or_its_node_elsewhere_ends_nobody_is_left() {
    let program = loading();
    let world = World::new();
    for (how, code, says) in [
        ("die", 137, "was killed by signal 9"),
        ("leave", 137, "was killed by signal 9"), // its nodes, with it
        ("signal", 137, "node 3 (ptype 3, pid "),
        ("orphans", 137, "killed the application"),
        ("crash", 139, "was killed by signal 11"),
    ] {
        let done = world.run(&["-n", "4"], &program, &[how]);
        assert_eq!(done.code, Some(code), "{how}: {done}");
        assert!(done.err.contains(says), "{how}: {done}");
        nobody_is_left(&program);
    }
}

#[test]
fn the_death_of_a_launcher_or_a_share_leaves_nobody_whom_a_host_process_loaded() {
    let program = loading();
    let world = World::new();
    let mut child = waiting_for(&world, &program, "stay");
    child.kill().unwrap();
    child.wait().unwrap();
    nobody_is_left(&program);
    // Each share in turn: that of the host process, and the other one.
    for which in 0..2 {
        let mut child = waiting_for(&world, &program, "stay");
        let shares = shares_of(child.id());
        assert_eq!(shares.len(), 2, "{shares:?}");
        let _ = rustix::process::kill_process(shares[which], rustix::process::Signal::KILL);
        assert!(!child.wait().unwrap().success());
        nobody_is_left(&program);
    }
}

/// The `shrimp __run-share` processes below a launcher.
fn shares_of(pid: u32) -> Vec<rustix::process::Pid> {
    let mut all = Vec::new();
    let mut below = vec![pid];
    while let Some(pid) = below.pop() {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if words.split(|&byte| byte == 0).any(|word| word == b"__run-share") {
            all.extend(rustix::process::Pid::from_raw(pid as i32));
            continue;
        }
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            below.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    all
}

/// A job whose nodes all wait.
fn waiting(world: &World, program: &Path) -> Child {
    waiting_for(world, program, "9")
}

/// The same for a program that is to be told how to wait.
fn waiting_for(world: &World, program: &Path, how: &str) -> Child {
    let mut command = world.launcher(&["-n", "4"], program, &[how]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.any(|line| line.unwrap() == "waiting"));
    child
}

#[test]
fn the_death_of_a_daemon_ends_the_job_with_a_reason() {
    let program = dying();
    let mut world = World::new();
    let child = waiting(&world, &program);
    world.b.daemon.kill();
    let done = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{err}");
    // Who hears first from another node hears who is missed, and not how.
    assert!(err.contains("out of reach") || err.contains("died"), "{err}");
    nobody_is_left(&program);
}

#[test]
fn the_death_of_the_launcher_leaves_nobody_on_any_host() {
    let program = dying();
    let world = World::new();
    let mut child = waiting(&world, &program);
    child.kill().unwrap();
    child.wait().unwrap();
    nobody_is_left(&program);
}

#[test]
fn a_signal_to_the_launcher_reaches_the_nodes_of_all_hosts() {
    let program = dying();
    let world = World::new();
    let mut child = waiting(&world, &program);
    common::signal(child.id(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    nobody_is_left(&program);
}

#[test]
fn what_cannot_be_is_said_before_anything_is_started() {
    let world = World::new();
    let program = Path::new("/bin/true");
    for (options, says) in [
        (&["--hosts", "a", "-n", "2"][..], "twice"),
        (&["--rsh", "", "-n", "2"], "--rsh"),
        (&["--rsh", "/nonexistent-shell", "-n", "2"], "/nonexistent-shell"),
    ] {
        let done = world.run(options, program, &[]);
        assert!(done.code.is_some_and(|code| code != 0), "{done}");
        assert!(done.err.contains(says), "{says}: {done}");
    }
    let done = world.run(&["-n", "2"], Path::new("/nonexistent-program"), &[]);
    assert_eq!(done.code, Some(127), "{done}");
    assert!(done.err.contains("not found"), "{done}");
}
