//! Bad input by the entries of Fortran. The cases are a table, `tests/fortran/bad.txt`, of which the programs are made.

mod build;

use build::{Job, SIZES, fortran_text, nobody_is_left, run, shrimp_run};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A statement, or several of which the last one counts, and what comes of it.
#[derive(Clone, Copy, Debug)]
struct Case {
    statement: &'static str,
    expected: &'static str,
}

impl Case {
    /// The call of the last statement, as the library names it.
    fn call(&self) -> String {
        let last = self.statement.rsplit("; ").next().unwrap_or_default();
        let name = last.strip_prefix("CALL ").or(last.strip_prefix("IRES = "));
        let name = name.and_then(|rest| rest.split('(').next());
        name.unwrap_or_else(|| panic!("no call: {last}")).to_lowercase()
    }
}

/// A part of the table.
fn part(name: &str) -> Vec<Case> {
    let table = include_str!("fortran/bad.txt");
    let begin = format!("\n[{name}]\n");
    let (_, rest) = table.split_once(&begin).unwrap_or_else(|| panic!("no part {name}"));
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let cases = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let (statement, expected) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
        Case { statement, expected }
    });
    cases.collect()
}

/// In free form, which the include file may be in as well.
const DECLARED: &str = "\
  include 'fnx.h'
  external onmsg, iadd
  integer i, n, ires, number, ibuf(16), iwork(16), info(8), izero(8), ibelow(8), ibad(1)
  double precision dx(8), dw(8)
  real sx(8), sw(8)
  logical lx(8), lw(8), wrong
  character*8 text
  izero = 0
  ibelow = -1
  ibad = 99
  n = 0
";

const ROUTINES: &str = "\
subroutine onmsg(ktype, kcount, knode, kptype)
  integer ktype, kcount, knode, kptype
end
integer function iadd(ix, iy)
  integer ix, iy
  ix = ix + iy
  iadd = 0
end
subroutine longer
  integer ilong(8)
  ilong = 0
  call csend(2, ilong, 32, 0, 0)
end
subroutine allids
  include 'fnx.h'
  integer i, mid
  integer, save :: iroom(2)
  do i = 1, 1024
    mid = irecv(5, iroom, 8)
  end do
end
";

const FLAGS: [&str; 4] =
    ["-std=legacy", "-w", "-fallow-argument-mismatch", "-ffree-line-length-none"];

/// A program whose first argument is the number of the case. With a second one, only that node makes the call, and the others
/// wait for ever. It goes on with `behind`.
fn that_ends(name: &str, cases: &[Case], behind: &str) -> PathBuf {
    let mut text =
        format!("program bad\n{DECLARED}  call getarg(1, text)\n  read (text, *) number\n");
    text += "  if (iargc() > 1) then\n    call getarg(2, text)\n    read (text, *) n\n";
    text += "    if (mynode() /= n) call crecv(7, ibuf, 4)\n  end if\n  select case (number)\n";
    for (number, case) in cases.iter().enumerate() {
        writeln!(text, "  case ({number})\n    {}", case.statement).unwrap();
    }
    writeln!(text, "  end select\n  {behind}\nend\n{ROUTINES}").unwrap();
    fortran_text(&format!("{name}.f90"), &text, &FLAGS)
}

/// Each case names the call and says who and why, and ends the program with code 1. `wrong` collects what differs: all of it is told at once.
fn each_ends(program: &Path, cases: &[Case], change: &dyn Fn(&mut Command), who: &str) {
    let job = Job::new();
    let mut wrong = String::new();
    for (number, case) in cases.iter().enumerate() {
        let mut command = job.command(program);
        change(command.arg(number.to_string()));
        let done = run(&mut command);
        let told = done.err.lines().find_map(|line| line.strip_prefix("nx: "));
        let told = told.and_then(|line| line.split_once(&format!(": {}: ", case.call())));
        let well =
            told.is_some_and(|(by, why)| by.starts_with(who) && why.starts_with(case.expected));
        if !well || done.code != Some(1) || done.out.contains("goes on") {
            writeln!(wrong, "{number}, {case:?}: {done}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn bad_input_by_every_entry_says_who_what_and_why_and_ends_the_application() {
    let cases = part("started");
    let program = that_ends("started", &cases, "print *, 'goes on'");
    each_ends(&program, &cases, &|_| {}, "node 0, ptype 0");
    // The others end, too: by a subroutine, a function, a unit.
    let job = Job::new();
    for call in ["csend", "msgdone", "cread"] {
        let at = cases.iter().position(|case| case.call() == call).unwrap();
        for node in 0..3 {
            let done = shrimp_run(&job, 3, &program, &[&at.to_string(), &node.to_string()]);
            assert_eq!(done.code, Some(1), "{call}: {done}");
            let told = format!("nx: node {node}, ptype 0: {call}: {}", cases[at].expected);
            assert!(done.err.contains(&told), "{call}: {done}");
            assert!(done.err.contains("ended the application"), "{call}: {done}");
        }
    }
    nobody_is_left(&program);
}

#[test]
fn a_message_too_long_for_a_handler_ends_the_application_while_it_computes() {
    let cases = part("later");
    let program = that_ends("later", &cases, "do while (.true.)\n  end do");
    each_ends(&program, &cases, &|_| {}, "node 0, ptype 0");
}

#[test]
fn every_entry_before_the_start_says_so_and_ends_the_program() {
    let cases = part("unstarted");
    let program = that_ends("unstarted", &cases, "print *, 'goes on'");
    let unstarted = |command: &mut Command| {
        command.env("NX_START", "program");
    };
    each_ends(&program, &cases, &unstarted, "process ");
}

#[test]
fn entries_that_answer_do_so_with_minus_one_and_errno() {
    let number = |name: &str| match name {
        "ENOENT" => 2,
        "ECHILD" => 10,
        "EACCES" => 13,
        "ENOSYS" => 38,
        "EQPID" => 156,
        "EQNODE" => 157,
        "EQUSEPID" => 162,
        "EQNOACT" => 163,
        "EQPARAM" => 165,
        other => panic!("{other}"),
    };
    let checks = |name: &str| {
        part(name).iter().fold(String::new(), |text, case| {
            let Case { statement, expected } = case;
            // Asked at once: a WRITE may change it.
            let quoted = statement.replace('\'', "''");
            text + &format!(
                "  {statement}\n  number = ierrno()\n  if (ires /= -1 .or. number /= {}) then\n    \
                 print *, '{name}: {quoted}', ires, number\n    wrong = .true.\n  end if\n",
                number(expected)
            )
        })
    };
    let text = format!(
        "program refused\n{DECLARED}  wrong = .false.\n{}  n = nx_initve(' ', 0, ' ')\n  if (n < 1) stop 2\n{}  \
         if (nx_nfork(izero, -1, 0, iwork) == 0) then\n{}    if (wrong) stop 1\n    call gsync\n    stop\n  end if\n  \
         if (nx_waitall() /= 0 .or. wrong) stop 1\n  print *, 'refused: all good'\nend\n{ROUTINES}",
        checks("refused"),
        checks("host"),
        checks("node")
    );
    let program = fortran_text("refused.f90", &text, &FLAGS);
    let job = Job::new();
    for size in SIZES {
        let own = run(job.command(&program).env("NX_DFLT_SIZE", size.to_string()));
        for done in [own, shrimp_run(&job, size, &program, &[])] {
            assert_eq!(done.code, Some(0), "{size} nodes: {done}");
            assert!(done.out.contains("refused: all good"), "{size} nodes: {done}");
        }
    }
    nobody_is_left(&program);
}

#[test]
fn killcube_of_all_ends_all() {
    let case = Case { statement: "CALL KILLCUBE(-1, -1)", expected: "" };
    let program = that_ends("killcube", &[case], "print *, 'goes on'");
    let done = shrimp_run(&Job::new(), 2, &program, &["0"]);
    assert_eq!(done.code, Some(137), "{done}");
    assert!(done.err.contains("killed the application"), "{done}");
    assert!(!done.out.contains("goes on"), "{done}");
    nobody_is_left(&program);
}

/// What no argument that can be written in Fortran makes wrong, before the start neither.
const CANNOT_FAIL: [&str; 15] = [
    "dclock",
    "mclock",
    "hwclock",
    "gray",
    "ginv",
    "led",
    "nx_perror",
    "eadd",
    "eadd1",
    "esub",
    "esub1",
    "emul",
    "ecmp",
    "ediv",
    "emod",
];

#[test]
fn every_entry_that_can_fail_has_a_case() {
    let parts = ["started", "later", "unstarted", "refused", "host", "node"].map(part);
    let held: BTreeSet<String> = parts.iter().flatten().map(Case::call).collect();
    let symbols = include_str!("../symbols.txt").lines();
    let entries = symbols.filter(|symbol| symbol.ends_with('_') && *symbol != "_gopf_");
    let mut known: BTreeSet<&str> = CANNOT_FAIL.into_iter().collect();
    for entry in entries.map(|symbol| symbol.trim_end_matches('_')) {
        assert!(known.remove(entry) ^ held.contains(entry), "{entry} has no case, or one too many");
    }
    assert!(known.is_empty(), "no entries: {known:?}");
}
