#![allow(clippy::zombie_processes)] // the supervisor reaps them

use super::super::control;
use super::*;
use std::os::fd::AsFd;
use std::process::Command;

/// The long wait of a process that is to be ended; it only ends a hang.
const LONG: &str = "600";

fn quick() -> Supervisor {
    let settings = Settings { grace: Duration::ZERO, ..Settings::default() };
    Supervisor::new(settings).unwrap()
}

/// A shell as a node; `reap` is the supervisor's, so the handle is forgotten.
fn node(node: u32, script: &str) -> (Member, Fd) {
    let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let (own, theirs) = control::pair().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    (Member::child(Some(node), 0, pid, Some(theirs)).unwrap(), own)
}

fn sleeper(number: u32) -> (Member, Fd) {
    node(number, &format!("exec sleep {LONG}"))
}

#[test]
fn exit_code_0_of_all_is_a_good_end() {
    let mut supervisor = quick();
    let (one, _a) = node(0, "exit 0");
    let (other, _b) = node(1, "exit 0");
    supervisor.add(one);
    supervisor.add(other);
    let outcome = supervisor.run();
    assert_eq!((outcome.cause.clone(), outcome.code(), outcome.ended), (None, 0, 0));
}

#[test]
fn a_signal_that_kills_one_ends_all_and_is_the_reason() {
    let mut supervisor = quick();
    let (idle, _a) = sleeper(0);
    let (dying, _b) = node(1, "kill -SEGV $$");
    supervisor.add(idle);
    supervisor.add(dying);
    let outcome = supervisor.run();
    let text = outcome.to_string();
    assert_eq!(outcome.code(), 128 + 11);
    assert!(text.contains("node 1") && text.contains("SIGSEGV"), "{text}");
    assert!(text.ends_with("the other process was ended"), "{text}");
}

#[test]
fn another_exit_code_ends_the_others_after_the_grace_and_is_the_exit_code() {
    let mut supervisor = quick();
    let (idle, _a) = sleeper(0);
    let (failing, _b) = node(1, "exit 3");
    supervisor.add(idle);
    supervisor.add(failing);
    let outcome = supervisor.run();
    assert!(matches!(&outcome.cause, Some(Cause::Exited { who, code: 3 }) if who.node == Some(1)));
    assert_eq!((outcome.code(), outcome.ended), (3, 1));
}

#[test]
fn within_the_grace_the_others_come_to_their_own_end() {
    let settings = Settings { grace: Duration::from_secs(3600), ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let waiting = Command::new("sh").args(["-c", "read x; exit 0"]).stdin(reader).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&waiting);
    let (failing, _b) = node(1, "exit 3");
    supervisor.add(failing);
    while supervisor.cause.is_none() {
        supervisor.wait();
        supervisor.serve_members();
    }
    supervisor.add(Member::child(Some(0), 0, pid, None).unwrap());
    drop(writer); // only now can the other one end
    let outcome = supervisor.run();
    assert_eq!((outcome.code(), outcome.ended), (3, 0));
}

#[test]
fn who_ignores_sigterm_is_killed() {
    let settings = Settings { patience: Duration::from_millis(1), ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let (stubborn, _a) = node(0, &format!("trap '' TERM; exec sleep {LONG}"));
    let (other, control) = sleeper(1);
    supervisor.add(stubborn);
    supervisor.add(other);
    control::tell(&control, &Message::Abort { code: 9, text: "no".into() }, &[]).unwrap();
    let outcome = supervisor.run();
    assert_eq!(outcome.code(), 9);
    assert!(outcome.to_string().contains("node 1") && outcome.to_string().contains("no"));
}

#[test]
fn a_survivors_complaint_waits_for_the_end_that_it_is_about() {
    // The end comes in time, however long the machine takes over it.
    let settings = Settings { patience: Duration::from_secs(3600), ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let (victim, _a) = sleeper(0);
    let (survivor, control) = sleeper(1);
    supervisor.add(victim);
    supervisor.add(survivor);
    control::tell(&control, &Message::Lost { node: 0, code: 1 }, &[]).unwrap();
    // The complaint is heard, and the survivor has ended by it, while the victim still runs.
    supervisor.serve_members();
    supervisor.members[1].kill(Signal::KILL);
    supervisor.members[1].request = Some(0);
    while supervisor.members[1].is_running() {
        supervisor.wait();
        supervisor.serve_members();
        supervisor.serve_missed();
    }
    assert!(supervisor.cause.is_none());
    supervisor.members[0].kill(Signal::SEGV);
    let outcome = supervisor.run();
    let text = outcome.to_string();
    assert_eq!(outcome.code(), 128 + 11, "{text}");
    assert!(text.contains("node 0") && text.contains("SIGSEGV"), "{text}");
}

/// Both have parents of their own, which have reaped the survivor and say that they are about to reap the other one.
#[test]
fn an_end_that_nobody_can_tell_of_is_not_the_cause_where_the_process_had_said_why() {
    let settings =
        Settings { patience: Duration::from_secs(3600), reap: false, ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let start = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
    let watch = |node, child: &std::process::Child| {
        let pid = rustix::process::Pid::from_child(child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let (own, theirs) = control::pair().unwrap();
        let pid = pid.as_raw_nonzero().get();
        (Member::relative(Some(node), 0, pid, pidfd.into(), Some(theirs)), own)
    };
    let (mut survivor, mut victim) = (start("exit 1"), start("kill -SEGV $$"));
    let (first, of_survivor) = watch(0, &survivor);
    let (second, _of_victim) = watch(1, &victim);
    supervisor.add(first);
    supervisor.add(second);
    control::tell(&of_survivor, &Message::Lost { node: 1, code: 1 }, &[]).unwrap();
    survivor.wait().unwrap();
    let (looked, answer) = packet::pair().unwrap();
    control::tell(&of_survivor, &Message::Reaping, &[answer.as_fd()]).unwrap();
    drop(answer);
    let outcome = supervisor.run();
    victim.wait().unwrap();
    let text = outcome.to_string();
    assert!(text.contains("node 1") && text.contains("SIGSEGV"), "{text}");
    assert_eq!(rustix::io::read(looked, &mut [1; 8]), Ok(1));
}

#[test]
fn a_complaint_about_the_host_process_waits_for_its_end_too() {
    let settings = Settings { patience: Duration::from_secs(3600), ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let (host, is_host) = sleeper(0);
    let (survivor, control) = node(1, "exit 1");
    control::tell(&is_host, &Message::Host, &[]).unwrap();
    control::tell(&control, &Message::Lost { node: 2, code: 1 }, &[]).unwrap();
    supervisor.add(host);
    supervisor.add(survivor);
    while supervisor.members[1].is_running() {
        supervisor.wait();
        supervisor.serve_members();
        supervisor.serve_missed();
    }
    assert!(supervisor.cause.is_none());
    supervisor.members[0].kill(Signal::SEGV);
    assert_eq!(supervisor.run().code(), 128 + 11);
}

#[test]
fn a_complaint_about_a_node_whose_end_is_no_cause_is_the_cause() {
    // One that has ended with exit code 0, and one that never ends.
    for script in ["exit 0", &format!("exec sleep {LONG}")] {
        let settings = Settings { patience: Duration::from_millis(50), ..Settings::default() };
        let mut supervisor = Supervisor::new(settings).unwrap();
        let (missed, _a) = node(0, script);
        let (survivor, control) = sleeper(1);
        supervisor.add(missed);
        supervisor.add(survivor);
        control::tell(&control, &Message::Lost { node: 0, code: 1 }, &[]).unwrap();
        let outcome = supervisor.run();
        let text = outcome.to_string();
        assert_eq!(outcome.code(), 1, "{text}");
        assert!(text.contains("node 1") && text.contains("node 0 died"), "{text}");
    }
}

#[test]
fn killproc_of_one_ends_that_one_and_of_all_ends_all() {
    let mut supervisor = quick();
    let (victim, _a) = sleeper(0);
    let (caller, control) = sleeper(1);
    supervisor.add(victim);
    supervisor.add(caller);
    control::tell(&control, &Message::Kill { node: 0, ptype: -1 }, &[]).unwrap();
    until_ended(&mut supervisor, 0);
    assert!(supervisor.members[1].is_running() && supervisor.cause.is_none());
    control::tell(&control, &Message::Kill { node: -1, ptype: -1 }, &[]).unwrap();
    let outcome = supervisor.run();
    assert!(matches!(outcome.cause, Some(Cause::KilledAll { .. })));
    assert_eq!(outcome.code(), 137);
}

#[test]
fn a_process_that_a_node_started_is_watched_like_the_others() {
    let mut supervisor = quick();
    let (idle, _a) = sleeper(0);
    let (parent, control) = sleeper(1);
    supervisor.add(idle);
    supervisor.add(parent);
    let mut extra = Command::new("sleep").arg(LONG).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&extra);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let message = Message::Add { node: 1, ptype: 5, pid: extra.id() as i32 };
    control::tell(&control, &message, &[std::os::fd::AsFd::as_fd(&pidfd)]).unwrap();
    while supervisor.members.len() < 3 {
        supervisor.wait();
        supervisor.serve_members();
    }
    extra.kill().unwrap();
    let outcome = supervisor.run();
    let text = outcome.to_string();
    assert!(text.contains("node 1 (ptype 5") && text.contains("SIGKILL"), "{text}");
    let _ = extra.wait();
}

#[test]
fn a_signal_is_passed_on_and_the_second_one_kills() {
    let mut supervisor = quick();
    let (one, _a) = sleeper(0);
    supervisor.add(one);
    supervisor.inbox().signal(Signal::TERM);
    let outcome = supervisor.run();
    assert_eq!((outcome.cause.clone(), outcome.code()), (Some(Cause::Signal(Signal::TERM)), 143));

    let mut supervisor = quick();
    let (stubborn, _b) = node(0, &format!("trap '' TERM; exec sleep {LONG}"));
    supervisor.add(stubborn);
    supervisor.inbox().signal(Signal::TERM);
    supervisor.inbox().signal(Signal::TERM);
    assert_eq!(supervisor.run().code(), 143);
}

#[test]
fn who_is_ended_on_request_is_told_of_once_however_often_that_is_asked() {
    let mut supervisor = quick();
    let (asks, asking) = sleeper(0);
    let (one, _b) = sleeper(1);
    let (two, _c) = sleeper(2);
    let pids = [one.who().pid, two.who().pid];
    for member in [asks, one, two] {
        supervisor.add(member);
    }
    // More than its channel would hold; the second request does not make the first one a death.
    for _ in 0..5000 {
        supervisor.kill_some(supervisor.members[0].who(), 1, -1);
    }
    supervisor.kill_some(supervisor.members[0].who(), 2, 0);
    for pid in pids {
        assert!(
            matches!(hear(&asking), Heard::Message(Message::Ending { pid: told, .. }, _) if told == pid)
        );
    }
    assert!(matches!(hear(&asking), Heard::Nothing));
    while supervisor.members.iter().filter(|member| member.is_running()).count() > 1 {
        supervisor.wait();
        supervisor.serve_members();
    }
    assert_eq!((supervisor.cause.clone(), supervisor.phase), (None, Phase::Running));
    supervisor.kill_some(supervisor.members[0].who(), HOST, -1);
    assert!(matches!(supervisor.run().cause, Some(Cause::KilledAll { .. })));
}

/// Serves until one has ended.
fn until_ended(supervisor: &mut Supervisor, index: usize) {
    while supervisor.members[index].is_running() {
        supervisor.wait();
        supervisor.serve_members();
    }
}

/// What a supervisor says to those of other hosts.
fn others(supervisor: &mut Supervisor) -> std::sync::mpsc::Receiver<Up> {
    let (sender, said) = std::sync::mpsc::channel();
    supervisor.join_others(move |up| {
        let _ = sender.send(up);
    });
    said
}

#[test]
fn who_is_ended_for_another_host_ends_when_all_have_heard_of_it() {
    let mut supervisor = quick();
    let said = others(&mut supervisor);
    let (stays, staying) = sleeper(3);
    let (one, _b) = sleeper(4);
    let pid = one.who().pid;
    supervisor.add(stays);
    supervisor.add(one);
    let word = Word::Kill { node: 4, ptype: -1 };
    supervisor.hear_others(Down::Tell { from: 0, id: 7, word });
    let ending = vec![(4, pid)];
    assert_eq!(said.try_recv(), Ok(Up::Tell { id: 1, word: Word::Ending(ending) }));
    assert_eq!(said.try_recv(), Ok(Up::Heard { from: 0, id: 7 }));
    assert!(matches!(hear(&staying), Heard::Message(Message::Ending { node: 4, .. }, _)));
    supervisor.hear_others(Down::AllHeard { id: 2 }); // something else
    supervisor.serve_members();
    assert!(supervisor.members[1].is_running());
    supervisor.hear_others(Down::AllHeard { id: 1 });
    until_ended(&mut supervisor, 1);
    assert!(supervisor.cause.is_none() && supervisor.members[0].is_running());
    // And the other way round: those here hear of an end elsewhere.
    supervisor.hear_others(Down::Tell { from: 1, id: 2, word: Word::Ending(vec![(0, 55)]) });
    let told = hear(&staying);
    assert!(matches!(told, Heard::Message(Message::Ending { node: 0, pid: 55 }, _)), "{told:?}");
    assert_eq!(said.try_recv(), Ok(Up::Heard { from: 1, id: 2 }));
    supervisor.end(Cause::Orphaned);
    supervisor.run();
}

#[test]
fn what_the_others_have_not_heard_is_asked_for_once_and_then_once_more() {
    let mut supervisor = quick();
    let said = others(&mut supervisor);
    let (caller, _a) = sleeper(0);
    supervisor.add(caller);
    for _ in 0..1000 {
        supervisor.kill_some(supervisor.members[0].who(), 4, 5);
    }
    let kill = |id| Ok(Up::Tell { id, word: Word::Kill { node: 4, ptype: 5 } });
    assert_eq!(said.try_recv(), kill(1));
    assert!(said.try_recv().is_err());
    supervisor.hear_others(Down::AllHeard { id: 1 });
    assert_eq!(said.try_recv(), kill(2));
    supervisor.hear_others(Down::AllHeard { id: 2 });
    assert!(said.try_recv().is_err());
    supervisor.end(Cause::Orphaned);
    supervisor.run();
}

#[test]
fn one_of_several_hosts_stays_without_processes_until_nobody_has_any() {
    let mut supervisor = quick();
    let said = others(&mut supervisor);
    let (brief, _a) = node(1, "exit 0");
    supervisor.add(brief);
    let inbox = supervisor.inbox();
    let leave = std::thread::spawn(move || {
        let idle = said.recv();
        inbox.down(Down::Leave);
        idle
    });
    assert_eq!(supervisor.run().code(), 0);
    assert_eq!(leave.join().unwrap(), Ok(Up::Idle));
}

#[test]
fn one_host_waits_for_what_another_says_of_a_node_that_all_here_miss() {
    // What is awaited comes in time, however long the machine takes over it.
    let settings =
        Settings { patience: Duration::from_secs(3600), elsewhere: true, ..Settings::default() };
    let mut supervisor = Supervisor::new(settings).unwrap();
    let _said = others(&mut supervisor);
    let (survivor, control) = node(0, "exit 1");
    control::tell(&control, &Message::Lost { node: 4, code: 1 }, &[]).unwrap();
    supervisor.add(survivor);
    // A host process that misses it, too, takes its nodes with it.
    let (host, control) = node(0, "exit 1");
    control::tell(&control, &Message::Host, &[]).unwrap();
    control::tell(&control, &Message::Lost { node: 4, code: 1 }, &[]).unwrap();
    let (its, _control) = node(1, "kill -9 $$");
    supervisor.add(its);
    supervisor.add(host);
    (0..3).for_each(|index| until_ended(&mut supervisor, index));
    assert!(supervisor.stays());
    supervisor.inbox().end(Cause::Orphaned);
    assert_eq!(supervisor.run().cause, Some(Cause::Orphaned));
}
