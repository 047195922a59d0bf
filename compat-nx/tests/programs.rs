//! C and Fortran programs, built by cc and gfortran against libnx.so, as real processes: every
//! call, at 1 to 16 nodes.

mod build;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use build::{Job, Options, SIZES, compile, fortran, launcher, nodes, run, shrimp_run};

#[track_caller]
fn at_all_sizes(program: &Path, arguments: &[&str], says: &str) {
    let job = Job::new();
    for size in SIZES {
        let done = shrimp_run(&job, size, program, arguments);
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        assert!(done.out.contains(says), "{size} nodes: {done}");
    }
}

#[test]
fn every_message_call_in_both_forms() {
    at_all_sizes(&compile("messages.c", Options::default()), &[], "messages: all good");
}

#[test]
fn every_handler_call_in_both_forms() {
    let program = compile("handlers.c", Options::default());
    at_all_sizes(&program, &[], "handlers: all good");
    // What its handlers and the program beside them print comes whole, each line once.
    let done = shrimp_run(&Job::new(), 3, &program, &[]);
    for said in ["served", "asked"] {
        let lines = done.out.lines().filter_map(|line| line.strip_prefix(said));
        let mut numbers: Vec<u32> = lines.map(|line| line.trim().parse().unwrap()).collect();
        numbers.sort_unstable();
        let expected: Vec<u32> = (0..3).flat_map(|node| node * 1000..node * 1000 + 50).collect();
        assert_eq!(numbers, expected, "{said}: {done}");
    }
}

#[test]
fn what_programs_do_that_know_nothing_of_threads_ids_and_processors() {
    at_all_sizes(&compile("plain.c", Options::default()), &[], "plain: all good");
}

/// What a node starts is not ended by the node's own end.
#[test]
fn a_process_that_a_node_forks_outlives_it() {
    let text = "#include \"check.h\"
        int main(void) {
            int x;
            long q;
            if (mynode() == 0) {
                if (nx_nfork(NULL, -1, 7, NULL) == 0) {
                    x = mynode();
                    csend(9, &x, sizeof x, 0, 0);
                    usleep(300000);
                    printf(\"%d is done\\n\", x);
                    return 0;
                }
                for (q = 0; q < numnodes(); q++) crecv(9, &x, sizeof x);
            }
            gsync();
            return 0; }";
    let program =
        build::compile_text("outlives.c", text, Options { flags: &["-w"], ..Options::default() });
    let done = shrimp_run(&Job::new(), 2, &program, &[]);
    let said: BTreeSet<&str> = done.out.lines().collect();
    assert_eq!((done.code, said), (Some(0), BTreeSet::from(["0 is done", "1 is done"])), "{done}");
}

#[test]
fn every_global_operation_in_both_forms_and_widths() {
    at_all_sizes(&compile("globals.c", Options::default()), &[], "globals: all good");
    let narrow = Options { flags: &["-DNX_INT_ARRAYS"], ..Options::default() };
    at_all_sizes(&compile("globals.c", narrow), &[], "globals: all good");
}

#[test]
fn message_calls_with_int_arrays() {
    let narrow = Options { flags: &["-DNX_INT_ARRAYS"], ..Options::default() };
    at_all_sizes(&compile("messages.c", narrow), &[], "messages: all good");
}

#[test]
fn identity_clocks_files_partitions_and_switches_that_are_gone() {
    let switches = ["-pn", "part", "one", "-pri", "3", "-two", "-plk"];
    for flags in [&[][..], &["-DNX_INT_ARRAYS"]] {
        let program = compile("who.c", Options { flags, ..Options::default() });
        at_all_sizes(&program, &switches, "who: all good");
    }
}

#[test]
fn every_node_and_its_host_know_the_rectangle_in_both_widths() {
    let text = "#include \"check.h\"
        static long rows, columns;
        static void look(void) {
            nx_int_t at[4] = {-7, -7, -7, -7};
            CHECK(mypart(&at[1], &at[2]) == 0 && at[1] == rows && at[2] == columns);
            at[1] = at[2] = -7;
            CHECK(_mypart(&at[1], &at[2]) == 0 && at[1] == rows && at[2] == columns);
            at[1] = at[2] = -7;
            CHECK(nx_app_rect(&at[1], &at[2]) == 0 && at[1] == rows && at[2] == columns);
            CHECK(at[0] == -7 && at[3] == -7);
            CHECK(nodedim() >= 0 && numnodes() == rows * columns);
        }
        int main(int argc, char **argv) {
            rows = atol(argv[1]);
            columns = atol(argv[2]);
            if (argc == 3) {
                CHECK(nx_initve_rect(NULL, -1, rows, columns, NULL, &argc, argv) == rows * columns);
                look();
                if (nx_nfork(NULL, -1, 0, NULL) != 0) {
                    look();
                    CHECK(nx_waitall() == 0);
                    return 0;
                }
            }
            look();
            gsync();
            if (mynode() == 0) printf(\"rectangle: all good\\n\");
            return 0; }";
    let job = Job::new();
    for flags in [&["-w"][..], &["-w", "-DNX_INT_ARRAYS"]] {
        let options = Options { flags, ..Options::default() };
        let program = build::compile_text("rectangle.c", text, options);
        for (rows, columns) in [(1, 1), (2, 1), (1, 3), (2, 2), (4, 2)] {
            let shape = [rows, columns].map(|side: u32| side.to_string());
            let size = format!("{rows}x{columns}");
            let ways = [
                run(job.command(&program).args(&shape)),
                run(job
                    .command(&program)
                    .env("NX_START", "auto")
                    .args(&shape)
                    .args(["by", "-sz", &size])),
                run(launcher(&job, &[], &program, &[&shape[0], &shape[1], "by", "-sz", &size])
                    .env("NX_START", "auto")),
                run(job
                    .command("mpiexec.hydra")
                    .env("NX_START", "auto")
                    .args(["-n", &(rows * columns).to_string()])
                    .arg(&program)
                    .args(&shape)
                    .args(["by", "-sz", &size])),
            ];
            for (way, done) in ways.into_iter().enumerate() {
                assert_eq!(done.code, Some(0), "{size}, way {way}: {done}");
                assert!(done.out.contains("rectangle: all good"), "{size}, way {way}: {done}");
            }
        }
    }
}

#[test]
fn old_c_without_header_prototypes_and_types() {
    let old = Options { flags: &["-std=gnu89", "-w", "-fcommon"], ..Options::default() };
    at_all_sizes(&compile("oldstyle.c", old), &[], "oldstyle: all good");
    let fixed =
        Options { flags: &["-std=gnu89", "-w", "-no-pie", "-fno-pie"], ..Options::default() };
    at_all_sizes(&compile("oldstyle.c", fixed), &[], "oldstyle: all good");
}

#[test]
fn msginfo_of_a_program_at_a_fixed_address_is_the_librarys() {
    // The program then has a copy of msginfo in its own data, and the library must use that.
    let fixed = Options { flags: &["-no-pie", "-fno-pie"], ..Options::default() };
    at_all_sizes(&compile("messages.c", fixed), &[], "messages: all good");
}

#[test]
fn a_programs_own_functions_of_nx_names_do_not_catch_the_librarys_calls() {
    let program = compile("interposed.c", Options { flags: &["-w"], ..Options::default() });
    at_all_sizes(&program, &[], "interposed: all good");
}

/// jemalloc tells the kernel that it needs pages no more, and gives them to the program as zero afterwards.
#[test]
fn an_allocator_that_counts_on_zero_pages_gets_them() {
    let text = "#include \"check.h\"
        enum { LEN = 1 << 20 };
        int main(void) {
            for (int round = 1; round <= 60; round++) {
                char *room = malloc(LEN), *zero;
                gsync();
                if (mynode() == 0) csend(1, memset(room, round, LEN), LEN, 1, 0);
                if (mynode() == 1) crecv(1, room, LEN);
                for (long i = 0; i < LEN; i++) CHECK(room[i] == round);
                free(room);
                zero = calloc(1, LEN);
                for (long i = 0; i < LEN; i++) CHECK(zero[i] == 0);
                free(zero);
            }
            return 0; }";
    let program = build::compile_text("zero.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    let mut command = job.command(&program);
    let command = command.args(["-sz", "2"]).env("LD_PRELOAD", "libjemalloc.so.2");
    let command = command.env("NX_DIRECT", "65536").env("NX_DIRECT_AFTER", "0");
    let done = run(command.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"));
    assert_eq!((done.code, &done.err[..]), (Some(0), ""), "{done}");
}

#[test]
fn every_call_from_fortran_77() {
    at_all_sizes(&fortran("fortran/calls.f", &["-std=legacy"]), &[], "fortran: all good");
}

#[test]
fn a_fortran_program_of_the_ipsc_with_its_include_file() {
    at_all_sizes(&fortran("fortran/cube.f", &["-std=legacy"]), &[], "cube: all good");
}

/// At each size with a new directory.
fn with_directories(program: &Path, look: impl Fn(u32, &str, &build::Done)) {
    let job = Job::new();
    for size in SIZES {
        let dir = tempfile::tempdir().unwrap();
        let done = shrimp_run(&job, size, program, &[dir.path().to_str().unwrap()]);
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        look(size, &done.out, &done);
    }
}

#[test]
fn fortran_reads_and_writes_files_by_unit() {
    with_directories(&fortran("fortran/units.f", &["-std=legacy"]), |size, out, done| {
        assert!(out.contains("units: all good"), "{size} nodes: {done}");
        assert_eq!(out.matches("from all nodes\n").count(), size as usize, "{done}");
    });
}

#[test]
fn files_of_all_nodes_are_read_and_written_as_their_mode_has_it() {
    with_directories(&compile("modes.c", Options::default()), |size, out, done| {
        let lines: String = (0..size).map(|node| format!("from node {node}\n")).collect();
        assert_eq!(out, lines + "modes: all good\n", "{done}");
    });
    with_directories(&fortran("fortran/modes.f", &["-std=legacy"]), |size, out, done| {
        assert!(out.contains("modes: all good"), "{size} nodes: {done}");
    });
}

/// A shell goes on where its program has written, so a mode must not take standard output from it.
#[test]
fn what_is_written_behind_the_nodes_to_the_same_file_does_not_overwrite_theirs() {
    let text = "#include \"check.h\"
        int main(void) {
            char line[40];
            for (int mode = M_LOG; mode <= M_GLOBAL; mode++) {
                setiomode(1, mode);
                cwrite(1, line, sprintf(line, \"mode %d\\n\", mode));
                gsync();
            }
            return 0; }";
    let program = build::compile_text("behind.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut shell = job.command("sh");
    shell.args(["-c", "(\"$0\" -sz 3; echo behind) > \"$1\""]).arg(&program).arg(out.path());
    let done = run(&mut shell);
    assert_eq!(done.code, Some(0), "{done}");
    let (three, one) = (|mode| format!("mode {mode}\n").repeat(3), "mode 4\nbehind\n");
    let expected = three(1) + &three(2) + &three(3) + one;
    assert_eq!(std::fs::read_to_string(out.path()).unwrap(), expected, "{done}");
}

#[test]
fn a_file_that_one_node_cannot_open_ends_all_and_is_named() {
    let text = "#include \"check.h\"
        #include <fcntl.h>
        int main(int argc, char **argv) {
            long mode = mynode() == 2 && argc > 2 ? M_SYNC : M_RECORD;
            gopen(mynode() == 1 ? argv[1] : \"/dev/null\", O_RDONLY, mode, 0);
            printf(\"goes on\\n\");
            return 0; }";
    let program = build::compile_text("absent.c", text, Options { flags: &["-w"], libraries: &[] });
    let job = Job::new();
    let done = shrimp_run(&job, 3, &program, &["/no/such/file"]);
    assert_eq!((done.code, &done.out[..]), (Some(1), ""), "{done}");
    let says = "nx: node 1, ptype 0: gopen: /no/such/file: No such file or directory\n";
    assert!(done.err.contains(says), "{done}");
    let done = shrimp_run(&job, 3, &program, &["/dev/null", "other"]);
    assert_eq!((done.code, &done.out[..]), (Some(1), ""), "{done}");
    assert!(done.err.contains("all nodes must have the same"), "{done}");
}

#[test]
fn fortran_with_implicit_types() {
    let flags = ["-std=legacy", "-w", "-fallow-argument-mismatch"];
    at_all_sizes(&fortran("fortran/implicit.f", &flags), &[], "implicit: all good");
}

#[test]
fn the_headers_serve_every_dialect() {
    let job = Job::new();
    for standard in ["gnu89", "c99", "gnu17", "gnu2x"] {
        let flag = format!("-std={standard}");
        for flags in [&[flag.as_str(), "-Wall", "-Werror"][..], &[&flag, "-DNX_INT_ARRAYS"]] {
            let program = compile("headers_std.c", Options { flags, ..Options::default() });
            assert_eq!(shrimp_run(&job, 2, &program, &[]).code, Some(0), "{flags:?}");
        }
    }
    let program = compile("headers.cc", Options { flags: &["-Wall"], ..Options::default() });
    assert_eq!(shrimp_run(&job, 3, &program, &[]).code, Some(0));
}

#[test]
fn bad_input_to_every_underscore_call_is_minus_one_with_errno() {
    let job = Job::new();
    for flags in [&["-w"][..], &["-w", "-DNX_INT_ARRAYS"]] {
        let program = compile("errors.c", Options { flags, ..Options::default() });
        for size in [1, 2] {
            let done = shrimp_run(&job, size, &program, &[]);
            assert_eq!(done.code, Some(0), "{flags:?}: {done}");
            assert!(done.out.contains("errors: all good"), "{flags:?}: {done}");
        }
    }
}

/// Runs the plain form of each case of a program, `expected` of them at least: it names itself, says why and ends
/// all with code 1. Returns the names, by case.
#[track_caller]
fn every_plain_form_ends_all(
    program: &Path,
    expected: u32,
    change: &dyn Fn(&mut Command),
) -> Vec<String> {
    every_case_ends_all(program, &[], expected, change)
}

/// Each case of a program, asked for by its number after `arguments`, prints the name of a call, which is to end the application.
fn every_case_ends_all(
    program: &Path,
    arguments: &[&str],
    expected: u32,
    change: &dyn Fn(&mut Command),
) -> Vec<String> {
    let job = Job::new();
    let case = |argument: &str| {
        let mut command = job.command(program);
        change(command.args(arguments).arg(argument));
        run(&mut command)
    };
    let count: u32 = case("count").out.trim().parse().unwrap();
    assert!(count >= expected, "{count} cases");
    let mut calls = Vec::new();
    for number in 0..count {
        let done = case(&number.to_string());
        let call = done.out.split_whitespace().next().unwrap_or_default().to_owned();
        assert_eq!(done.code, Some(1), "case {number}: {done}");
        let told = done.err.lines().find_map(|line| line.strip_prefix("nx: "));
        let told = told.unwrap_or_else(|| panic!("case {number}: {done}"));
        let (who, why) = told.split_once(&format!(": {call}: ")).unwrap_or_default();
        assert!(who == "node 0, ptype 0" || who.starts_with("process "), "case {number}: {done}");
        assert!(why.len() > 10, "case {number}: {done}");
        calls.push(call);
    }
    calls
}

#[test]
fn bad_input_to_every_plain_call_says_who_what_and_why_and_ends_the_application() {
    let program = compile("errors.c", Options { flags: &["-w"], ..Options::default() });
    let of_cases = every_plain_form_ends_all(&program, 236, &|_| {});
    every_case_ends_all(&program, &["later"], 6, &|_| {});
    // The others end too, whichever call it was: a case of each, on one node of three.
    let job = Job::new();
    let mut calls = BTreeSet::new();
    for (number, call) in of_cases.into_iter().enumerate() {
        if calls.insert(call.clone()) {
            let done = shrimp_run(&job, 3, &program, &["alone", &number.to_string()]);
            assert_eq!(done.code, Some(1), "{done}");
            let told = format!("node 1, ptype 0: {call}: ");
            assert!(done.err.contains(&told), "{done}");
            assert!(done.err.contains("ended the application"), "{done}");
        }
    }
    assert!(calls.len() > 50, "{} calls", calls.len());
}

#[test]
fn every_call_before_the_start_is_refused_in_both_forms() {
    let program = compile("unstarted.c", Options { flags: &["-w"], ..Options::default() });
    let done = run(Job::new().command(&program).env("NX_START", "program"));
    assert_eq!(done.code, Some(0), "{done}");
    assert!(done.out.contains("unstarted: all good"), "{done}");
    every_plain_form_ends_all(&program, 60, &|command| {
        command.env("NX_START", "program");
    });
}

/// unverified: what the manuals of then would have to settle.
#[test]
fn what_is_unconfirmed_is_as_we_believe_it_to_be() {
    let program = compile("unverified.c", Options { flags: &["-w"], ..Options::default() });
    let job = Job::new();
    for size in SIZES {
        let arguments = ["-n", &size.to_string()];
        let done = run(launcher(&job, &arguments, &program, &[]).env("NX_START", "auto"));
        assert_eq!(done.code, Some(0), "{size} nodes: {done}");
        assert!(done.out.contains("unverified: all good"), "{size} nodes: {done}");
        for node in 0..size {
            let line = format!("(node {node}, ptype 0) unverified: bad node number [157]");
            assert!(done.err.contains(&line), "{line}: {done}");
        }
    }
}

#[test]
fn the_heat_solver_finds_the_exact_answer_on_any_number_of_nodes() {
    at_all_sizes(&fortran("../examples/heat.f", &["-O2", "-std=legacy"]), &[], "heat: right");
}

#[test]
fn the_load_balancer_computes_every_piece_once() {
    let math = Options { flags: &["-O2"], libraries: &["-lm"] };
    at_all_sizes(&compile("../../examples/balance.c", math), &[], "balance: right");
}

#[test]
fn a_ring_by_each_way_of_starting() {
    let program = compile("ring.c", Options::default());
    let job = Job::new();
    let says = |size: u32| format!("ring of {size}: {}", size * (size - 1) / 2);
    for size in [1, 2, 5] {
        let number = size.to_string();
        let ways = [
            shrimp_run(&job, size, &program, &[]),
            run(job.command(&program).args(["-sz", &number])),
            run(job.command(&program).env("NX_DFLT_SIZE", &number)),
            nodes(&job, &[], &program, &["-sz", &number]),
            run(job.command("mpiexec.hydra").args(["-n", &number]).arg(&program)),
            run(job.command("mpiexec.hydra").args(["-pmi-port", "-n", &number]).arg(&program)),
            run(job
                .command("mpiexec.hydra")
                .env("NX_PMI", "2")
                .args(["-n", &number])
                .arg(&program)),
        ];
        for (way, done) in ways.into_iter().enumerate() {
            assert_eq!(done.code, Some(0), "way {way}: {done}");
            assert!(done.out.contains(&says(size)), "way {way}: {done}");
        }
    }
}

#[test]
fn random_traffic_keeps_order_and_contents() {
    let program = compile("traffic.c", Options::default());
    at_all_sizes(&program, &["300"], "all good");
    // The other ways of short messages, and long ones from user memory to user memory.
    let job = Job::new();
    for settings in [
        [("NX_SEND", "du1"), ("NX_DIRECT", "65536")],
        [("NX_SEND", "du2"), ("NX_DIRECT", "1048576")],
    ] {
        for size in ["2", "16"] {
            let done = run(launcher(&job, &["-n", size], &program, &["300"]).envs(settings));
            assert_eq!(done.code, Some(0), "{settings:?}, {size} nodes: {done}");
            assert!(done.out.contains("all good"), "{settings:?}, {size} nodes: {done}");
        }
    }
}

#[test]
fn who_polls_for_anything_sees_every_sender_in_the_end() {
    at_all_sizes(&compile("fair.c", Options::default()), &[], "fair: all good");
}

#[test]
#[ignore = "minutes"]
fn random_traffic_of_16_nodes_for_minutes() {
    let program = compile("traffic.c", Options::default());
    let done = shrimp_run(&Job::new(), 16, &program, &["40000"]);
    assert_eq!(done.code, Some(0), "{done}");
    assert!(done.out.contains("all good"), "{done}");
}
