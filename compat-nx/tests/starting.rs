//! A process is killed at a named point of its start, or while it joins: all end with the reason, whoever
//! started them, nothing is left, and the daemon serves the next.

mod build;

use build::{Done, Job, Options, compile, compile_text, launcher, nobody_is_left, run, shrimp_run};
use nx::engine::points::{JOINING, Named, STARTING};
use std::path::Path;
use std::process::Command;

/// Runs with the point armed for the processes of a node.
#[track_caller]
fn killed_at((name, _): Named, node: u32, command: &mut Command, program: &Path) -> Done {
    let done = run(command.env("NX_FAILPOINT", format!("{name}@{node}")));
    assert_ne!(done.code, Some(0), "{name}@{node}: {done}");
    nobody_is_left(program);
    done
}

#[track_caller]
fn says_who((name, _): Named, node: u32, done: &Done) {
    assert_eq!(done.code, Some(137), "{name}@{node}: {done}");
    assert!(done.err.contains(&format!("node {node} (ptype")), "{name}@{node}: {done}");
    assert!(done.err.contains("was killed by signal 9 (SIGKILL)"), "{name}@{node}: {done}");
}

#[test]
fn a_node_killed_while_it_starts_ends_all_that_wait_for_it() {
    let text = "#include <nx.h>\nint main(void) { gsync(); return 0; }";
    let program = compile_text("brief.c", text, Options::default());
    let job = Job::new();
    for point in STARTING {
        for node in 0..3 {
            let mut by_us = launcher(&job, &["-n", "3"], &program, &[]);
            says_who(*point, node, &killed_at(*point, node, &mut by_us, &program));
            let own = killed_at(*point, node, job.command(&program).args(["-sz", "3"]), &program);
            says_who(*point, node, &own);
            let mut mpiexec = job.command("mpiexec.hydra");
            killed_at(*point, node, mpiexec.args(["-n", "3"]).arg(&program), &program);
        }
        let next = shrimp_run(&job, 3, &program, &[]);
        assert_eq!(next.code, Some(0), "{point:?}: {next}");
    }
}

#[test]
fn a_process_killed_while_it_joins_or_meets_one_that_joins_ends_all() {
    let program = compile("ptypes.c", Options { flags: &["-w"], ..Options::default() });
    let job = Job::new();
    let command = || {
        let mut command = launcher(&job, &["-n", "3"], &program, &[]);
        command.env("NX_START", "auto");
        command
    };
    for point in JOINING {
        for node in 0..3 {
            says_who(*point, node, &killed_at(*point, node, &mut command(), &program));
        }
        let next = run(&mut command());
        assert_eq!(next.code, Some(0), "{point:?}: {next}");
    }
}
