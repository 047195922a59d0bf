//! Starting and ending: programs that start their own nodes, and every way in which one node or
//! the launcher can go.

mod build;

use build::{
    Job, Options, SIZES, compile, launcher, nobody_is_left, nodes, processes_of, run, run_with,
    shrimp_run,
};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn plain(name: &str) -> std::path::PathBuf {
    compile(name, Options { flags: &["-w"], ..Options::default() })
}

#[test]
fn a_program_starts_its_nodes_itself_and_talks_to_them_as_host() {
    let program = plain("early.c");
    let job = Job::new();
    let sum = |n: u32| format!("sum {}", 100 * n + n * (n - 1) / 2);
    for n in SIZES {
        let number = n.to_string();
        let own = run(job.command(&program).args(["keep", "-sz", &number]));
        assert_eq!(own.code, Some(0), "{own}");
        assert!(own.out.contains(&sum(n)), "{own}");
        let launched = shrimp_run(&job, n, &program, &["-pn", "part", "keep"]);
        assert_eq!(launched.code, Some(0), "{launched}");
        assert!(launched.out.contains(&sum(n)), "{launched}");
        assert!(launched.out.contains(&format!("host of {n}")), "{launched}");
    }
    for (form, n) in [("rect", 4), ("attr", 3)] {
        let done = run(job.command(&program).arg0(form).arg("keep"));
        assert_eq!(done.code, Some(0), "{form}: {done}");
        assert!(done.out.contains(&sum(n)), "{form}: {done}");
    }
    nobody_is_left(&program);
}

#[test]
fn a_host_knows_its_place_and_takes_a_type_before_its_nodes_begin() {
    let text = "#include \"check.h\"
        int main(int argc, char **argv) {
            nx_int_t first[1] = {0}, rest[2] = {1, 2}, rows, columns;
            long n = nx_initve(NULL, 3, \"\", &argc, argv), part, value;
            CHECK(n == 3);
            for (part = 0; part < 2; part++) {
                CHECK(numnodes() == 3 && mynode() == 3 && myhost() == 3 && _myhost() == 3);
                CHECK(nodedim() == 2 && mypart(&rows, &columns) == 0 && rows * columns == 3);
                CHECK(myptype() == (part ? 4 : -1) && mypid() == myptype());
                CHECK(_csend(1, NULL, 0, 0, 0) == -1 && errno == EQNOACT);
                CHECK(_setptype(-1) == -1 && errno == EQPID);
                setptype(4 + part);
                CHECK(myptype() == 4 + part);
                if (nx_nfork(part ? rest : first, part ? 2 : 1, 0, NULL) == 0) {
                    CHECK(numnodes() == 3 && mynode() < 3 && _myhost() == 3 && myptype() == 0);
                    crecv(1, &value, sizeof value);
                    CHECK(infonode() == 3 && infoptype() == 5);
                    csend(2, &value, sizeof value, myhost(), 5);
                    return 0;
                }
            }
            CHECK(myptype() == 5 && mynode() == 3 && numnodes() == 3);
            csend(1, &n, sizeof n, -1, 0);
            for (part = 0; part < 3; part++) crecv(2, &value, sizeof value);
            CHECK(nx_waitall() == 0);
            printf(\"host: all good\\n\");
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("before.c", text, options);
    let job = Job::new();
    for done in [run(&mut job.command(&program)), shrimp_run(&job, 3, &program, &[])] {
        assert_eq!(done.code, Some(0), "{done}");
        assert!(done.out.contains("host: all good"), "{done}");
    }
}

#[test]
fn a_process_that_cannot_join_says_so_at_its_first_call() {
    let text = "#include <nx.h>\nint main(void) { return myptype() != 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("alone.c", text, options);
    let job = Job::new();
    let done = run(&mut job.command(&program));
    assert_eq!(done.code, Some(0), "{done}");
    let done = run(job.command(&program).env("VMMC_SOCKET", "/nowhere"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("myptype: joining the application"), "{done}");
}

#[test]
fn a_fortran_program_starts_its_nodes_itself_and_its_output_comes_once() {
    let program = build::fortran("fortran/nfork.f", &["-std=legacy", "-w"]);
    let job = Job::new();
    for size in SIZES {
        let own = run(job.command(&program).env("NX_DFLT_SIZE", size.to_string()));
        for done in [own, shrimp_run(&job, size, &program, &[])] {
            assert_eq!(done.code, Some(0), "{size} nodes: {done}");
            assert!(done.out.contains("nfork: all good"), "{size} nodes: {done}");
            // Buffers are not written twice by a fork.
            assert_eq!(done.out.matches("controlling process").count(), 1, "{size} nodes: {done}");
            let count = done.out.matches(" done").count();
            assert_eq!(count, size as usize, "{size} nodes: {done}");
        }
    }
}

#[test]
fn a_fortran_program_loads_another_onto_a_rectangle() {
    let program = build::fortran("fortran/load.f", &["-std=legacy", "-w"]);
    let (ring, job) = (plain("ring.c"), Job::new());
    for (rows, columns) in [(1, 1), (2, 1), (1, 3), (2, 2), (2, 3), (4, 2), (2, 8)] {
        let shape = [rows, columns].map(|side: u32| side.to_string());
        let done = run(job.command(&program).arg(&ring).args(shape));
        assert_eq!(done.code, Some(0), "{rows} by {columns}: {done}");
        let size = rows * columns;
        let says = format!("ring of {size}: {}", size * (size - 1) / 2);
        assert!(done.out.contains(&says), "{rows} by {columns}: {done}");
    }
}

#[test]
fn hosts_and_loading_with_int_arrays() {
    let narrow = Options { flags: &["-w", "-DNX_INT_ARRAYS"], ..Options::default() };
    let (early, load, ring) =
        (compile("early.c", narrow), compile("load.c", narrow), plain("ring.c"));
    let job = Job::new();
    let done = run(job.command(&early).args(["keep", "-sz", "3"]));
    assert_eq!(done.code, Some(0), "{done}");
    let done = run(job.command(&load).arg(&ring).arg("3"));
    assert_eq!(done.code, Some(0), "{done}");
}

#[test]
fn old_mains_that_leave_any_exit_code_print_all_they_have() {
    let text = "main() { int n = numnodes(); gsync(); printf(\"%d of %d\\n\", mynode(), n); \
                return 1 + mynode(); }";
    let program = build::compile_text("codes.c", text, Options { flags: &["-w"], libraries: &[] });
    let done = shrimp_run(&Job::new(), 4, &program, &[]);
    assert!(done.code.is_some_and(|code| (1..=4).contains(&code)), "{done}");
    assert_eq!(done.out.lines().count(), 4, "{done}");
}

#[test]
fn exit_codes_of_forked_nodes_are_for_the_program_that_waits() {
    let text = "#include \"check.h\"
        #include <sys/wait.h>
        int main(int argc, char **argv) {
            int status, sum = 0;
            if (nx_initve(NULL, 3, \"\", &argc, argv) != 3) return 1;
            if (nx_nfork(NULL, -1, 0, NULL) == 0) { gsync(); return 10 + mynode(); }
            while (wait(&status) > 0) sum += WEXITSTATUS(status);
            printf(\"sum %d\\n\", sum);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("waited.c", text, options);
    let job = Job::new();
    for done in
        [run(&mut job.command(&program)), nodes(&job, &["--grace", "0", "-n", "3"], &program, &[])]
    {
        assert_eq!(done.code, Some(0), "{done}");
        assert!(done.out.contains("sum 33"), "{done}");
    }
}

#[test]
fn what_is_wrong_with_lengths_hosts_and_beginnings_is_said_with_its_remedy() {
    let text = "#include \"check.h\"
        static void says(const char *what) {
            if (mynode() == 0) nx_perror((char *)what);
            gsync();
        }
        int main(void) {
            double x[4] = {0}, work[4];
            char y[5];
            nx_int_t all;
            CHECK(_gdsum(x, mynode() == 0 ? 4 : 3, work) == -1 && errno == EQMSGLONG);
            says(\"sum\");
            CHECK(_gcol(x, 3, y, 5, &all) == -1 && errno == EQMSGLONG);
            says(\"col\");
            CHECK(_csend(1, x, 8, myhost(), 0) == -1 && errno == EQNODE);
            says(\"host\");
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("remedies.c", text, options);
    let job = Job::new();
    let done = shrimp_run(&job, 2, &program, &[]);
    assert_eq!(done.code, Some(0), "{done}");
    for says in [
        "node 1 gave 3 elements, and this node 4; all nodes must give the same n",
        "the nodes gave 6 bytes in all, for a buffer of 5 bytes",
        "node 2 is the number of the host, and this application has no host process",
    ] {
        assert!(done.err.contains(says), "{says}: {done}");
    }
    let text = "#include <nx.h>
        int main(int argc, char **argv) {
            nx_initve(0, 2, \"\", &argc, argv);
            csend(1, 0, 0, 0, 0);
            return 0; }";
    let program = build::compile_text("unforked.c", text, options);
    let done = run(&mut job.command(&program));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("call nx_nfork or nx_load first"), "{done}");
}

#[test]
fn a_silent_truncation_can_be_chosen() {
    let text = "#include \"check.h\"
        int main(void) {
            char big[100], small[10];
            csend(1, big, 100, mynode(), 0);
            crecv(1, small, 10);
            CHECK(infocount() == 100);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("silent.c", text, options);
    let job = Job::new();
    let done = run(job.command(&program).env("NX_TRUNCATE", "silent"));
    assert_eq!(done.code, Some(0), "{done}");
    let done = run(&mut job.command(&program));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("crecv: message of 100 bytes"), "{done}");
}

#[test]
fn nodes_that_end_at_once_wait_until_the_others_have_met_them() {
    let text = "#include <nx.h>\nint main(void) { return mynode() < 0; }";
    let options = Options { flags: &[], libraries: &[] };
    let program = build::compile_text("brief.c", text, options);
    let job = Job::new();
    for size in [2, 5, 16] {
        let done = shrimp_run(&job, size, &program, &[]);
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        assert_eq!(done.err, "", "{size} nodes: {done}");
    }
}

#[test]
fn programs_that_a_host_loads_know_its_rectangle() {
    let program = plain("rectangle.c");
    let job = Job::new();
    for done in [
        run(job.command(&program).arg("3")),
        run(&mut launcher(&job, &["-n", "6"], &program, &["3"])),
    ] {
        assert_eq!(done.code, Some(0), "{done}");
        for node in 0..6 {
            assert!(done.out.contains(&format!("node {node}: 2 x 3\n")), "{done}");
        }
    }
}

#[test]
fn nodes_and_hosts_add_processes_of_other_types_and_each_message_finds_its_process() {
    let program = plain("ptypes.c");
    let job = Job::new();
    for size in [1, 2, 3, 4, 5, 8, 16] {
        let number = size.to_string();
        let mut added = launcher(&job, &["-n", &number], &program, &[]);
        let ways = [
            run(added.env("NX_START", "auto")),
            run(job.command(&program).env("NX_START", "auto").args(["-sz", &number])),
            shrimp_run(&job, size, &program, &["host"]),
            run(job.command(&program).args(["host", "-sz", &number])),
        ];
        for (way, done) in ways.into_iter().enumerate() {
            assert_eq!(done.code, Some(0), "{size} nodes, way {way}: {done}");
            assert!(done.out.contains("ptypes: all good"), "{size} nodes, way {way}: {done}");
            assert_eq!(done.err, "", "{size} nodes, way {way}: {done}");
        }
    }
    nobody_is_left(&program);
}

#[test]
fn wrong_arguments_of_what_starts_applications_are_refused_in_words_and_leave_nothing() {
    let (program, ring) = (plain("starts.c"), plain("ring.c"));
    let job = Job::new();
    let host = run(job.command(&program).arg(&ring));
    let nodes = run(launcher(&job, &["-n", "3"], &program, &[ring.to_str().unwrap(), "node"])
        .env("NX_START", "auto"));
    for (done, says) in [(host, "starts: all good"), (nodes, "starts: node 2: all good")] {
        assert_eq!(done.code, Some(0), "{done}");
        assert!(done.out.contains(says), "{done}");
        // Each says who, the call, and why, with the number that errno has.
        for line in done.err.lines() {
            let (who, what) = line.split_once(") ").unwrap_or_default();
            assert!(who.starts_with('(') && what.contains(" ["), "{line}: {done}");
        }
        for why in [
            "bad parameter [165]: 0 nodes; give 1 or more, or -1 for all",
            "bad node number [157]: node 99: there are nodes 0 to 2",
            "process type in use [162]: process type 5 is in use on node 1",
            "bad buffer [151]: a null pointer for the list of 3 nodes (all: -1)",
            "No such file or directory [2]",
            "Exec format error [8]",
        ] {
            assert!(done.err.contains(why), "{why}: {done}");
        }
        assert!(done.err.contains(") bad node number [157]"), "{done}");
    }
    nobody_is_left(&program);
    nobody_is_left(&ring);
}

#[test]
fn programs_are_loaded_onto_nodes_and_a_missing_one_is_an_error() {
    let (program, worker) = (plain("load.c"), plain("ring.c"));
    let job = Job::new();
    for size in SIZES {
        let done = run(job.command(&program).arg(&worker).arg(size.to_string()));
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        let says = format!("ring of {size}: {}", size * (size - 1) / 2);
        assert!(done.out.contains(&says), "{size} nodes: {done}");
    }
}

#[test]
fn a_host_process_may_load_the_very_program_that_it_is() {
    let text = "#include \"check.h\"
        int main(int argc, char **argv) {
            long n = nx_initve(NULL, 3, \"\", &argc, argv);
            CHECK(n == 3);
            if (mynode() < n) { gsync(); printf(\"node %ld\\n\", mynode()); return 0; }
            CHECK(nx_load(NULL, -1, 0, NULL, argv[0]) == 3);
            CHECK(nx_waitall() == 0);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("itself.c", text, options);
    let job = Job::new();
    for done in [run(&mut job.command(&program)), shrimp_run(&job, 3, &program, &[])] {
        assert_eq!(done.code, Some(0), "{done}");
        assert_eq!(done.out.lines().count(), 3, "{done}");
    }
}

#[test]
fn however_one_node_ends_all_end_with_the_reason_and_nothing_is_left() {
    let program = plain("dying.c");
    let job = Job::new();
    for (how, code, reason) in [
        ("k", 137, "node 2 (ptype 0"),
        ("c", 137, "killed the application"),
        ("d", 137, "killed the application"),
        ("9", 137, "was killed by signal 9 (SIGKILL)"),
        ("h", 137, "was killed by signal 9 (SIGKILL)"),
        ("s", 139, "was killed by signal 11 (SIGSEGV)"),
        ("g", 137, "killed by signal 9"),
    ] {
        let done = shrimp_run(&job, 3, &program, &[how]);
        assert_eq!(done.code, Some(code), "{how}: {done}");
        assert!(done.err.contains(reason), "{how}: {done}");
        nobody_is_left(&program);
        // The same without a launcher: the program is its own.
        let done = run(job.command(&program).args(["-sz", "3", how]));
        assert_ne!(done.code, Some(0), "{how}: {done}");
        nobody_is_left(&program);
    }
    // Another exit code ends the others after the grace.
    let done = nodes(&job, &["-n", "3", "--grace", "0"], &program, &["e"]);
    assert_eq!(done.code, Some(5), "{done}");
    assert!(done.err.contains("exited with code 5"), "{done}");
    nobody_is_left(&program);
}

#[test]
fn a_node_that_is_ended_on_request_leaves_the_others_in_peace() {
    let program = plain("dying.c");
    let job = Job::new();
    for done in
        [shrimp_run(&job, 4, &program, &["o"]), run(job.command(&program).args(["-sz", "4", "o"]))]
    {
        assert_eq!(done.code, Some(0), "{done}");
        assert_eq!(done.err, "", "{done}");
    }
    nobody_is_left(&program);
}

#[test]
fn processes_ended_one_by_one_by_type_and_by_node_leave_the_others_in_peace() {
    let program = plain("kills.c");
    let job = Job::new();
    let mut launched = launcher(&job, &["-n", "3"], &program, &["node"]);
    let mut own = job.command(&program);
    for command in
        [launched.env("NX_START", "auto"), own.env("NX_START", "auto").args(["-sz", "3", "node"])]
    {
        let done = run(command);
        assert_eq!(done.code, Some(0), "{done}");
        let mut said: Vec<&str> = done.out.lines().collect();
        said.sort_unstable();
        assert_eq!(said, ["kills: node 0 is done", "kills: node 2 is done"], "{done}");
        assert_eq!(done.err, "", "{done}");
    }
    for done in [shrimp_run(&job, 3, &program, &["host"]), run(job.command(&program).arg("host"))] {
        assert_eq!(done.code, Some(0), "{done}");
        assert_eq!((&done.out[..], &done.err[..]), ("kills: host is done\n", ""), "{done}");
    }
    nobody_is_left(&program);
}

/// In order, and with nothing to say.
#[track_caller]
fn ends_well(command: &mut Command) {
    let done = run(command);
    assert_eq!((done.code, &done.err[..]), (Some(0), ""), "{command:?}: {done}");
}

#[test]
fn who_leaves_in_order_is_not_ended_by_its_own_handlers_and_threads() {
    let program = plain("leaving.c");
    let job = Job::new();
    for what in ["handler", "exits", "thread"] {
        let mut launched = launcher(&job, &["-n", "2"], &program, &[what]);
        let mut mpi = job.command("mpiexec.hydra");
        mpi.args(["-n", "2"]).arg(&program).arg(what);
        for command in [&mut launched, &mut mpi] {
            for _ in 0..5 {
                ends_well(command.env("NX_START", "auto"));
            }
        }
    }
    nobody_is_left(&program);
}

#[test]
fn calls_in_handlers_of_signals_look_end_or_are_refused_and_never_wait_for_themselves() {
    let program = plain("signals.c");
    let job = Job::new();
    let cases = [
        ("looks", 0, "signals: all good"),
        ("tries", 0, "signals: all good"),
        ("kills", 137, "killproc"),
        ("exits", 3, "exited with code 3"),
        (
            "sends",
            1,
            "node 1, ptype 0: csend: called by a handler of a signal that interrupted an NX call",
        ),
    ];
    for (what, code, says) in cases {
        for _ in 0..3 {
            let done = shrimp_run(&job, 2, &program, &[what]);
            assert_eq!(done.code, Some(code), "{what}: {done}");
            assert!(done.out.contains(says) || done.err.contains(says), "{what}: {done}");
        }
    }
    nobody_is_left(&program);
}

#[test]
fn what_was_sent_before_the_end_is_received_after_it_however_much_it_is() {
    let program = plain("leaving.c");
    ends_well(Job::new().command(&program).arg("letters"));
    nobody_is_left(&program);
}

#[test]
fn processes_of_a_type_may_be_added_again_when_those_before_have_ended() {
    let program = plain("leaving.c");
    ends_well(Job::new().command(&program).arg("again"));
    nobody_is_left(&program);
}

#[test]
fn a_process_that_begins_when_the_first_of_its_node_has_left_joins() {
    let program = plain("leaving.c");
    ends_well(Job::new().command(&program).arg("belated"));
    nobody_is_left(&program);
}

#[test]
fn processes_that_each_start_the_next_and_leave_find_each_other() {
    let program = plain("leaving.c");
    let job = Job::new();
    for nodes in ["1", "2"] {
        let mut command = launcher(&job, &["-n", nodes], &program, &["relay"]);
        let done = run(command.env("NX_START", "auto"));
        assert_eq!((done.code, &*done.err), (Some(0), ""), "{nodes} nodes: {done}");
        assert_eq!(done.out.lines().count(), nodes.parse().expect("a number"), "{done}");
    }
    nobody_is_left(&program);
}

#[test]
fn processes_that_several_nodes_add_at_once_and_that_are_soon_gone_get_numbers_of_their_own() {
    let program = plain("leaving.c");
    let job = Job::new();
    for _ in 0..3 {
        let mut command = launcher(&job, &["-n", "4"], &program, &["crowd"]);
        ends_well(command.env("NX_START", "auto"));
    }
    nobody_is_left(&program);
}

#[test]
fn a_receive_of_a_handler_is_taken_back_at_any_point() {
    let program = plain("leaving.c");
    let job = Job::new();
    for _ in 0..5 {
        let mut command = launcher(&job, &["-n", "2"], &program, &["cancel"]);
        ends_well(command.env("NX_START", "auto"));
    }
    nobody_is_left(&program);
}

#[test]
fn a_node_is_ended_by_the_type_that_a_switch_gave_it() {
    let program = plain("leaving.c");
    let job = Job::new();
    let mut command = launcher(&job, &["-n", "2"], &program, &["typed", "-pt", "5"]);
    ends_well(command.env("NX_START", "auto"));
    nobody_is_left(&program);
}

#[test]
fn sizes_of_buffers_are_switches_under_every_launcher() {
    let program = plain("leaving.c");
    let job = Job::new();
    let mut launched = launcher(&job, &["-n", "2"], &program, &["packets", "-pkt", "4096"]);
    let mut mpi = job.command("mpiexec.hydra");
    mpi.args(["-n", "2"]).arg(&program).args(["packets", "-pkt", "4096"]);
    for command in [&mut launched, &mut mpi] {
        let done = run(command.env("NX_START", "auto"));
        assert_eq!((done.code, &done.out[..]), (Some(0), "4096\n4096\n"), "{done}");
    }
}

/// The receiver of a long message is stopped with a piece of it in its hand, and then ended on request: the sender, which
/// waits for that piece, goes on.
#[test]
fn the_end_of_a_node_that_copies_a_part_of_a_message_holds_nobody_up() {
    let text = "#include \"check.h\"
        #include <unistd.h>
        static char bytes[1 << 20];
        int main(void) {
            long pid = getpid();
            setptype(0);
            gsync();
            if (mynode() == 0) {
                do csend(1, bytes, sizeof bytes, 1, 0); while (!iprobe(2));
                crecv(2, NULL, 0);
            }
            if (mynode() == 1) {
                csend(3, &pid, sizeof pid, 2, 0);
                for (;;) crecv(1, bytes, sizeof bytes);
            }
            if (mynode() == 2) {
                crecv(3, &pid, sizeof pid);
                while (state_of(pid) != 'T') flick();
                while (_killproc(1, -1) == 0) flick();
                csend(2, NULL, 0, 0, 0);
            }
            return 0; }";
    let program = build::compile_text("piece.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    let mut command = launcher(&job, &["-n", "3"], &program, &[]);
    let command = command.env("NX_START", "auto").env("NX_FAILPOINT", "piece-taken@1=stop");
    let done = run(command);
    assert_eq!((done.code, &done.err[..]), (Some(0), ""), "{done}");
    nobody_is_left(&program);
}

/// The receiver of a long message is about to read a piece of it in the sender's memory, and the sender, which has made its safe copy
/// meanwhile, gives that memory back and sends from what is there then.
#[test]
fn memory_that_is_given_back_while_a_piece_of_it_is_read_ends_nobody() {
    let text = "#include \"check.h\"
        #include <signal.h>
        #include <unistd.h>
        #include <sys/mman.h>
        enum { LEN = 1 << 20, PARTS = 4 };
        static char *memory(char *place, int byte) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
            char *there = mmap(place, LEN, PROT_READ | PROT_WRITE, flags, -1, 0);
            CHECK(there != MAP_FAILED);
            return memset(there, byte, LEN);
        }
        static void receive(char *room, int byte) {
            crecv(1, room, LEN);
            for (long i = 0; i < LEN; i++) CHECK(room[i] == byte);
        }
        int main(void) {
            long pid = getpid();
            setptype(0);
            gsync();
            if (mynode() == 0) {
                char *place = memory(NULL, 'a');
                csend(2, &pid, sizeof pid, 2, 0);
                csend(1, place, LEN, 1, 0); /* stopped when a part is copied, four times */
                csend(1, memory(place, 'b'), LEN, 1, 0); /* the same */
                csend(5, NULL, 0, 2, 0);
            }
            if (mynode() == 1) {
                char *room = memory(NULL, 0);
                csend(3, &pid, sizeof pid, 2, 0);
                crecv(4, NULL, 0);
                receive(room, 'a'); /* stopped with each piece in its hand */
                receive(room, 'b');
                csend(6, NULL, 0, 2, 0);
            }
            if (mynode() == 2) {
                long sender, receiver;
                crecv(2, &sender, sizeof sender);
                crecv(3, &receiver, sizeof receiver);
                for (int part = 0; part < PARTS; part++) {
                    if (part > 0) kill(sender, SIGCONT);
                    while (state_of(sender) != 'T') flick();
                    if (part < PARTS - 1) continue;
                    csend(4, NULL, 0, 1, 0);
                    while (state_of(receiver) != 'T') flick();
                }
                while (!iprobe(5)) { kill(sender, SIGCONT); flick(); }
                while (!iprobe(6)) { kill(receiver, SIGCONT); flick(); }
                crecv(5, NULL, 0);
                crecv(6, NULL, 0);
            }
            return 0; }";
    let program = build::compile_text("given.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    let mut command = launcher(&job, &["-n", "3"], &program, &[]);
    let command = command.env("NX_START", "auto").env("NX_DIRECT_AFTER", "0");
    let points = "part-written@0=stop,piece-taken@1=stop";
    let done = run(command.env("NX_STAGE_CHUNK", "1048576").env("NX_FAILPOINT", points));
    assert_eq!((done.code, &done.err[..]), (Some(0), ""), "{done}");
    nobody_is_left(&program);
}

/// A long message whose sender is ended on request before it is fetched is nobody's: a receive gets the next one, also one that
/// had begun to fetch it.
#[test]
fn a_long_message_of_a_node_that_was_ended_is_not_waited_for() {
    let text = "#include \"check.h\"
        static char bytes[1 << 20];
        int main(int argc, char **argv) {
            long posted = strcmp(argv[1], \"posted\") == 0, pid = 0, id = 0;
            setptype(0);
            if (mynode() == 0 && posted) id = irecv(1, bytes, sizeof bytes);
            gsync();
            if (mynode() == 0) {
                crecv(4, NULL, 0);
                /* Until this one knows, the whole message may still be received. */
                while (!posted && (!iprobe(1) || infonode() == 1)) flick();
                if (posted) msgwait(id); else crecv(1, bytes, sizeof bytes);
                CHECK(infocount() == 4 && infonode() == 2 && strcmp(bytes, \"two\") == 0);
            }
            if (mynode() == 1) {
                if (posted) csend(3, NULL, 0, 2, 0);
                csend(1, bytes, sizeof bytes, 0, 0); /* posted: stopped within */
                csend(3, NULL, 0, 2, 0);
                crecv(9, NULL, 0);
            }
            if (mynode() == 2) {
                crecv(3, NULL, 0);
                if (posted) sleep(1); /* until it is there, or soon */
                while (_killproc(1, -1) == 0) flick();
                csend(4, NULL, 0, 0, 0);
                csend(1, \"two\", 4, 0, 0);
            }
            return 0; }";
    let program = build::compile_text("ended.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    for (how, point) in [("late", ""), ("posted", "stage-half@1=stop")] {
        let mut command = launcher(&job, &["-n", "3"], &program, &[how]);
        let done = run(command.env("NX_START", "auto").env("NX_FAILPOINT", point));
        assert_eq!((done.code, &done.err[..]), (Some(0), ""), "{how}: {done}");
    }
    nobody_is_left(&program);
}

#[test]
fn a_host_that_is_killed_takes_its_nodes_with_it() {
    let text = "#include \"check.h\"
        #include <signal.h>
        int main(int argc, char **argv) {
            long n = nx_initve(NULL, 3, \"\", &argc, argv);
            if (nx_nfork(NULL, -1, 0, NULL) == 0) {
                csend(2, NULL, 0, myhost(), 1);
                crecv(1, NULL, 0);
                return 0;
            }
            setptype(1);
            while (n-- > 0) crecv(2, NULL, 0);
            raise(SIGKILL);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("hosted.c", text, options);
    let job = Job::new();
    assert_eq!(run(&mut job.command(&program)).code, None, "killed, as whoever waits for it sees");
    nobody_is_left(&program);
    let done = shrimp_run(&job, 3, &program, &[]);
    assert_eq!(done.code, Some(137), "{done}");
    // Its nodes are killed with it, and one of them may be noticed first.
    assert!(done.err.contains("was killed by signal 9"), "{done}");
    nobody_is_left(&program);
}

#[test]
fn ending_the_host_ends_all() {
    let program = plain("kills.c");
    let job = Job::new();
    for done in
        [shrimp_run(&job, 3, &program, &["orphans"]), run(job.command(&program).arg("orphans"))]
    {
        assert_eq!(done.code, Some(137), "{done}");
        assert!(
            done.err.contains("node 1 (ptype 0") && done.err.contains("killed the application"),
            "{done}"
        );
    }
    nobody_is_left(&program);
}

#[test]
fn under_mpiexec_one_process_cannot_be_ended_alone_and_all_can() {
    let program = plain("kills.c");
    let job = Job::new();
    let mut command = job.command("mpiexec.hydra");
    let done = run(command.env("NX_START", "auto").args(["-n", "2"]).arg(&program).arg("mpi"));
    assert_eq!(done.code, Some(137), "{done}");
    assert!(!done.err.contains("kills.c"), "{done}");
    nobody_is_left(&program);
}

#[test]
fn a_node_killed_under_mpiexec_ends_all() {
    let program = plain("dying.c");
    let job = Job::new();
    for how in ["9", "k", "s"] {
        let done = run(job.command("mpiexec.hydra").args(["-n", "3"]).arg(&program).arg(how));
        assert_ne!(done.code, Some(0), "{how}: {done}");
        nobody_is_left(&program);
    }
}

/// Starts a program that says one line, and waits; what else it prints there comes from the reader.
fn first_line(command: &mut Command) -> (Child, impl Read + use<>, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    (child, out, line)
}

/// Starts nodes that never end, and waits until they have all met.
fn endless(job: &Job, program: &Path) -> Child {
    let (child, _, line) = first_line(&mut launcher(job, &["-n", "3"], program, &["w"]));
    assert_eq!(line, "ready\n");
    child
}

fn children_of(pid: u32) -> Vec<Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

#[test]
fn whichever_process_of_the_launcher_is_killed_no_node_is_left() {
    let program = plain("dying.c");
    let job = Job::new();
    for victim in ["outer", "inner", "both"] {
        let mut outer = endless(&job, &program);
        let inner = children_of(outer.id());
        assert_eq!(inner.len(), 1, "{inner:?}");
        if victim != "inner" {
            outer.kill().unwrap();
        }
        if victim != "outer" {
            let _ = rustix::process::kill_process(inner[0], Signal::KILL);
        }
        let _ = outer.wait();
        nobody_is_left(&program);
    }
}

/// The nodes of a program that says which processes they are, and waits; and it, to be waited for.
fn told_nodes(command: &mut Command) -> (Child, impl Read + use<>, Vec<Pid>) {
    let (child, out, line) = first_line(command);
    let pids = line.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    (child, out, pids.collect())
}

/// A program that says which processes are its nodes, and waits. With `BY_ITSELF` it starts them itself.
const TOLD: &str = "#include \"check.h\"
    int main(int argc, char **argv) {
        int own, pids[3], i;
        nx_int_t total;
    #ifdef BY_ITSELF
        CHECK(nx_initve(NULL, 3, \"\", &argc, argv) == 3);
        if (nx_nfork(NULL, -1, 0, NULL) != 0) return nx_waitall() != 0;
    #endif
        own = getpid();
        gcol(&own, sizeof own, pids, sizeof pids, &total);
        CHECK(total == sizeof pids);
        gsync();
        if (mynode() == 0) {
            for (i = 0; i < 3; i++) printf(\"%d \", pids[i]);
            printf(\"\\n\");
            fflush(stdout);
        }
        crecv(99, NULL, 0);
        return 0; }";

#[test]
fn every_node_may_be_the_one_that_is_killed_however_the_program_was_started() {
    let program =
        |flags: &[&str]| build::compile_text("told.c", TOLD, Options { flags, libraries: &[] });
    let (plain, host) = (program(&["-w"]), program(&["-w", "-DBY_ITSELF"]));
    let job = Job::new();
    let by_us = |program: &Path| launcher(&job, &["-n", "3"], program, &[]);
    let own = |program: &Path, arguments: &[&str]| {
        let mut command = job.command(program);
        command.args(arguments);
        command
    };
    let mpi = || {
        let mut command = job.command("mpiexec.hydra");
        command.args(["-n", "3"]).arg(&plain);
        command
    };
    // How it is started, and what is said of who was killed: by a supervisor of ours, or by the others and the launcher.
    let ways: [(&str, &Path, &dyn Fn() -> Command); 5] = [
        ("shrimp run", &plain, &|| by_us(&plain)),
        ("-sz", &plain, &|| own(&plain, &["-sz", "3"])),
        ("nx_initve", &host, &|| own(&host, &[])),
        ("nx_initve, shrimp run", &host, &|| by_us(&host)),
        ("mpiexec.hydra", &plain, &mpi),
    ];
    for (way, program, start) in ways {
        for victim in 0..3 {
            let (child, mut out, nodes) = told_nodes(&mut start());
            assert_eq!(nodes.len(), 3, "{way}");
            rustix::process::kill_process(nodes[victim], Signal::KILL).unwrap();
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap(); // where mpiexec speaks
            let output = child.wait_with_output().unwrap();
            let code = output.status.code();
            text += &String::from_utf8_lossy(&output.stderr);
            if way == "mpiexec.hydra" {
                assert_ne!(code, Some(0), "{way}, {victim}: {text}");
                let told = text.contains(&format!("node {victim} died"))
                    || text.contains("BAD TERMINATION");
                assert!(told, "{way}, {victim}: {text}");
            } else {
                assert_eq!(code, Some(137), "{way}, {victim}: {text}");
                let pid = nodes[victim].as_raw_nonzero();
                let says = format!("node {victim} (ptype 0, pid {pid}) was killed by signal 9");
                assert!(text.contains(&says), "{way}, {victim}: {text}");
            }
            nobody_is_left(program);
        }
    }
}

/// The supervisor gets no time on a processor until all that the killed node drags with it is over.
#[test]
fn how_a_node_ended_is_known_to_a_supervisor_that_comes_late() {
    let program = build::compile_text(
        "late.c",
        TOLD,
        Options { flags: &["-w", "-DBY_ITSELF"], libraries: &[] },
    );
    let job = Job::new();
    let (mut child, out, nodes) = told_nodes(&mut launcher(&job, &["-n", "3"], &program, &[]));
    let tell = |pid, signal| rustix::process::kill_process(pid, signal);
    let supervisor = children_of(child.id())[0];
    tell(supervisor, Signal::STOP).unwrap();
    tell(nodes[1], Signal::KILL).unwrap();
    let has_ended = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
    };
    while !nodes.iter().all(has_ended) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100)); // nobody is to reap them now, which takes a moment
    tell(supervisor, Signal::CONT).unwrap();
    while child.try_wait().unwrap().is_none() {
        // As the supervisor's parent it stops whenever that one is seen to have stopped.
        tell(Pid::from_child(&child), Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(out);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let says = format!("node 1 (ptype 0, pid {}) was killed by signal 9", nodes[1]);
    assert!(text.contains(&says), "{text}");
    nobody_is_left(&program);
}

#[test]
fn any_of_16_nodes_may_be_killed_at_any_time_under_traffic() {
    let program = plain("traffic.c");
    let job = Job::new();
    // While they start, meet, and talk.
    for (round, delay) in [0, 5, 20, 50, 100, 200, 400, 800].into_iter().enumerate() {
        let outer = launcher(&job, &["-n", "16"], &program, &["1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        while processes_of(&program).is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay));
        let nodes = processes_of(&program);
        let victim = nodes[(7 * round + 3) % nodes.len()];
        rustix::process::kill_process(victim, Signal::KILL).unwrap();
        let output = outer.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(137), "after {delay} ms: {text}");
        assert!(text.contains("was killed by signal 9"), "after {delay} ms: {text}");
        nobody_is_left(&program);
    }
}

#[test]
fn a_signal_to_the_launcher_reaches_the_nodes() {
    let program = plain("dying.c");
    let job = Job::new();
    for signal in [Signal::TERM, Signal::INT, Signal::USR1] {
        let mut outer = endless(&job, &program);
        let pid = Pid::from_child(&outer);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = outer.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{signal:?}");
        nobody_is_left(&program);
    }
}

#[test]
fn what_nodes_leave_behind_is_killed() {
    let job = Job::new();
    let shell = Path::new("/bin/sh");
    // That nobody else's has, who tests on this machine at the same time.
    let marker = format!("600.{:07}1", std::process::id());
    let script = format!("setsid sleep {marker} & setsid sleep {marker} & exit 0");
    let done = shrimp_run(&job, 2, shell, &["-c", &script]);
    assert_eq!(done.code, Some(0), "{done}");
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(
            !line.windows(marker.len()).any(|part| part == marker.as_bytes()),
            "a sleep is left"
        );
    }
}

#[test]
fn node_0_has_the_input_and_lines_of_all_arrive_whole() {
    let program = plain("stdio.c");
    let job = Job::new();
    let done = run_with(&mut launcher(&job, &["-n", "4", "-l"], &program, &[]), "one\ntwo\n");
    assert_eq!(done.code, Some(0), "{done}");
    assert!(done.out.contains("[0] read one\n[0] read two\n"), "{done}");
    for node in 0..4 {
        let prefix = format!("[{node}] ");
        let lines: Vec<_> = done
            .out
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .filter(|line| line.starts_with("node "))
            .collect();
        let expected: Vec<_> = (0..200).map(|i| format!("node {node} line {i}")).collect();
        assert_eq!(lines, expected);
        assert!(done.out.contains(&format!("[{node}] no newline\n")), "{done}");
    }
    assert_eq!(done.out.lines().count(), 2 + 4 * 201);
    let bare = run_with(&mut launcher(&job, &["-n", "2"], &program, &[]), "");
    assert!(!bare.out.contains('['), "{bare}");
}

#[test]
fn what_a_program_printed_before_a_call_that_ends_it_is_written() {
    let text = "#include \"check.h\"
        int main(void) {
            FILE *file = fopen(\"/dev/stdout\", \"a\");
            fprintf(file, \"printed to a file\\n\");
            printf(\"printed before\");
            msgwait(12345);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let c = build::compile_text("fails.c", text, options);
    let fortran = build::fortran("fortran/fails.f", &["-std=legacy", "-w"]);
    let job = Job::new();
    for program in [&c, &fortran] {
        for mut command in [job.command(program), launcher(&job, &["-n", "1"], program, &[])] {
            // On a machine as busy as it may be.
            let done = run(command.env("NX_FLUSH_MS", "240000"));
            assert_eq!(done.code, Some(1), "{done}");
            assert!(done.err.contains("msgwait: "), "{done}");
            for line in ["printed to a file", "printed before"] {
                assert!(done.out.contains(line), "{line}: {done}");
            }
        }
    }
    // The call is inside a WRITE, which has locked its unit: the end does not wait for it for ever.
    let done = run(job.command(&fortran).arg("within").env("NX_FLUSH_MS", "50"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("msgdone: "), "{done}");
    // Nobody reads: the failure is told all the same.
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let status = job.command(&c).stdout(writer).stderr(Stdio::null()).status().expect("runs");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn what_a_program_printed_is_not_written_again_by_a_child_that_a_call_ends() {
    let text = "#include \"check.h\"
        #include <sys/wait.h>
        int main(int argc, char **argv) {
            int status;
            if (argc > 1) nx_initve(NULL, 3, \"\", &argc, argv);
            printf(\"printed once\");
            if (fork() == 0) { msgwait(12345); _exit(0); }
            CHECK(wait(&status) > 0 && WEXITSTATUS(status) == 1);
            if (argc == 1) nx_initve(NULL, 3, \"\", &argc, argv);
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("child.c", text, options);
    let job = Job::new();
    for when in [&["before"][..], &[]] {
        let done = run(job.command(&program).args(when));
        assert_eq!(done.code, Some(0), "{done}");
        assert!(done.err.contains("msgwait: "), "{done}");
        assert_eq!(done.out.matches("printed once").count(), 1, "{done}");
    }
}

#[test]
fn exit_codes_and_messages_of_the_launcher_itself() {
    let job = Job::new();
    let missing = nodes(&job, &["-n", "2"], Path::new("no-such-program-here"), &[]);
    assert_eq!(missing.code, Some(127), "{missing}");
    assert!(missing.err.contains("no-such-program-here"), "{missing}");
    let plain = nodes(&job, &["-n", "2"], Path::new("/etc/passwd"), &[]);
    assert_eq!(plain.code, Some(126), "{plain}");
    for options in [&["-n", "0"][..], &["-n", "x"], &["-n", "5000"]] {
        assert_eq!(nodes(&job, options, Path::new("true"), &[]).code, Some(2));
    }
    let bad = nodes(&job, &[], Path::new("true"), &["-sz", "none"]);
    assert_eq!(bad.code, Some(1), "{bad}");
    assert!(bad.err.contains("-sz") && bad.err.contains("none"), "{bad}");
    assert_eq!(shrimp_run(&job, 3, Path::new("true"), &[]).code, Some(0));
}

#[test]
fn ranks_of_a_launcher_that_is_not_understood_do_not_run_alone() {
    let program = plain("ring.c");
    let job = Job::new();
    for (rank, says) in [("0", "use shrimp run -n 4"), ("1", "")] {
        let mut command = job.command(&program);
        command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "4");
        let done = run(&mut command);
        assert_eq!((done.code, &done.out[..]), (Some(1), ""), "{done}");
        assert!(done.err.contains(says) && says.is_empty() == done.err.is_empty(), "{done}");
        // One that is alone may be.
        assert_eq!(run(command.env("OMPI_COMM_WORLD_SIZE", "1")).code, Some(0));
    }
}

/// Each would start all nodes.
#[test]
fn ranks_of_a_program_that_starts_its_nodes_itself_do_not_run() {
    let text = "#include <nx.h>\n#include <stdio.h>\nint main(int argc, char **argv) { \
                nx_initve(0, 1, 0, &argc, argv); puts(\"ran\"); return 0; }";
    let program = build::compile_text("own.c", text, Options { flags: &[], libraries: &[] });
    for [rank, size] in [["PMI_RANK", "PMI_SIZE"], ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]]
    {
        for number in ["0", "2"] {
            let job = Job::new();
            let mut command = job.command(&program);
            command.env(rank, number).env(size, "3");
            if rank == "PMI_RANK" {
                command.env("PMI_FD", "0"); // that launcher is spoken with
            }
            let done = run(&mut command);
            assert_eq!((done.code, &done.out[..]), (Some(1), ""), "{done}");
            assert!(done.err.contains("started as one of 3 ranks"), "{done}");
        }
    }
}

#[test]
fn the_last_words_of_a_node_that_kills_its_group_are_passed_on() {
    let text = "#include <nx.h>\n#include <signal.h>\n#include <stdio.h>
        int main(void) {
            gsync();
            if (mynode() == 1) {
                fprintf(stderr, \"matrix is singular\\n\");
                printf(\"last word\\n\");
                kill(0, 9);
            }
            gsync();
            return 0; }";
    let options = Options { flags: &["-w"], libraries: &[] };
    let program = build::compile_text("group.c", text, options);
    let job = Job::new();
    for _ in 0..5 {
        let done = nodes(&job, &["-l", "-n", "2"], &program, &[]);
        assert_eq!(done.code, Some(137), "{done}");
        assert!(done.err.contains("[1] matrix is singular\n"), "{done}");
        assert!(done.out.contains("[1] last word\n"), "{done}");
    }
    nobody_is_left(&program);
}

#[test]
fn bad_switches_and_settings_are_named() {
    let program = plain("ring.c");
    let job = Job::new();
    let done = run(job.command(&program).args(["-sz", "many"]));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("-sz") && done.err.contains("many"), "{done}");
    let done = run(job.command(&program).env("NX_DFLT_SIZE", "-3"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("NX_DFLT_SIZE"), "{done}");
    let done = shrimp_run(&job, 3, &program, &["-sz", "4"]);
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("-sz asks for 4 nodes, and the launcher has started 3"), "{done}");
    assert_eq!(shrimp_run(&job, 4, &program, &["-sz", "2x2"]).code, Some(0));
    let done = run(job.command(&program).env("SHRIMP_NX_JOB", "a/b"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.err.contains("SHRIMP_NX_JOB"), "{done}");
}
