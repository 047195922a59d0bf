//! Three processes: a test that looks on, a *survivor*, and a *victim* that is killed. After that,
//! whoever waited for the dead is awake with a clear error, the daemon knows nothing of the dead any
//! more, and the daemon and the survivor hold exactly the descriptors and mappings that they held
//! before.

use super::{
    Footprint, Watchdog, at_rest, daemon_forgets, die_with_parent, footprint_at_rest,
    nothing_in_dev_shm, settles, until_stopped,
};
use crate::common::{Daemon, Second, export, import, open, pause, say, signal};
use rustix::process::Signal;
use std::time::Duration;
use vmmc::config::Config;
use vmmc::error::{SendError, WaitError};
use vmmc::{Node, Region};

/// Longer than any test: one in which only such a limit helps is seen to hang.
pub const FOR_LONG: Duration = Duration::from_secs(3600);

pub fn connect() -> Node {
    die_with_parent();
    let config = Config { drain: FOR_LONG, ..Config::from_env().unwrap() };
    Node::builder().config(config).connect().unwrap()
}

pub struct Stage {
    pub daemon: Daemon,
    pub watcher: Node,
    pub survivor: Second,
    daemon_before: Footprint,
    survivor_before: Footprint,
    pub dog: Watchdog,
}

impl Stage {
    /// A daemon, and a survivor that is connected and has nothing else.
    pub fn new(test: &str, survivor: &str) -> Stage {
        Stage::armed(test, survivor, "")
    }

    /// The same with a daemon that is armed with a failpoint.
    pub fn armed(test: &str, survivor: &str, failpoint: &str) -> Stage {
        let dog = Watchdog::new(test);
        let daemon = Daemon::start_with(&[], &[("VMMCD_FAILPOINT", failpoint)]);
        let watcher = daemon.node();
        let mut survivor = daemon.second(survivor, &[]);
        survivor.expect("connected");
        let (daemon_before, survivor_before) =
            (at_rest(daemon.pid(), 2), footprint_at_rest(survivor.pid(), |_| true));
        survivor.go_on();
        Stage { daemon, watcher, survivor, daemon_before, survivor_before, dog }
    }

    pub fn victim(&self, part: &str) -> Second {
        self.dog.step(format!("the victim plays {part}"));
        self.daemon.second(part, &[])
    }

    pub fn hears(&mut self, word: &str) -> String {
        self.dog.step(format!("the survivor says {word}"));
        self.survivor.expect(word)
    }

    /// Kills, and checks all that must be so afterwards. `end` is what the survivor must report.
    pub fn kill(self, mut victim: Second, end: &str) {
        victim.kill();
        self.ends(victim.pid(), end);
    }

    /// Waits until the daemon (the one with this number, of two) stands at the point, kills the
    /// victim, lets the daemon go on, and checks as [`Stage::kill`] does.
    pub fn kill_while_stopped(self, daemon: u32, mut victim: Second, end: &str) {
        self.dog.step("the daemon stands at the point");
        until_stopped(daemon);
        victim.kill();
        signal(daemon, Signal::CONT);
        self.ends(victim.pid(), end);
    }

    fn ends(mut self, dead: u32, end: &str) {
        self.dog.step("the survivor ends what it does");
        assert_eq!(self.survivor.skip_to("ended"), end);
        self.dog.step("the daemon forgets the dead");
        daemon_forgets(&self.watcher, dead);
        self.dog.step("nothing is left");
        settles("the survivor", self.survivor.pid(), &self.survivor_before);
        let now = self.watcher.snapshot().unwrap();
        assert!(now.exports.is_empty() && now.links.is_empty(), "left: {now:?}");
        settles("the daemon", now.pid, &self.daemon_before);
        nothing_in_dev_shm();
        self.dog.step("the survivor leaves");
        self.survivor.finish();
    }
}

/// In the survivor: what it does, and what it reports. All handles are dropped by then.
pub fn survive(body: impl FnOnce(&Node) -> String) {
    let node = connect();
    say("connected");
    pause();
    let end = body(&node);
    assert!(node.exports().is_empty() && node.imports().is_empty());
    say(&format!("ended {end}"));
    pause();
}

pub fn of_wait<T: std::fmt::Debug>(result: Result<T, WaitError>) -> String {
    match result {
        Err(WaitError::Closed(closed)) => format!("WaitError::Closed {:?}", closed.reason),
        other => format!("{other:?}"),
    }
}

pub fn of_send(result: Result<(), SendError>) -> String {
    match result {
        Err(SendError::Closed(closed)) => format!("SendError::Closed {:?}", closed.reason),
        other => format!("{other:?}"),
    }
}

// ---- parts that several files have ----

/// Length of the large buffer: a message, then a page with its flag.
pub const LARGE: usize = 4 << 20;
pub const LARGE_FLAG: usize = LARGE;

pub fn victim_connects(_: &[String]) {
    let _node = connect();
    say("there");
    pause();
}

pub fn victim_exports(_: &[String]) {
    let node = connect();
    let region = Region::new(LARGE + 4096).unwrap();
    let _export = open(node.export(region).name("x").queue());
    say("there");
    pause();
}

pub fn victim_waits_for_import(_: &[String]) {
    let node = connect();
    say("there");
    let _import = node.import("later").timeout(FOR_LONG).open();
}

pub fn victim_imports(_: &[String]) {
    let node = connect();
    let _import = import(&node, "x");
    say("there");
    pause();
}

pub fn import_waits(_: &[String]) {
    survive(|node| {
        let mut pending = node.import("x").timeout(FOR_LONG).start().unwrap();
        say("there");
        pause();
        let granted = pending.poll().unwrap();
        pending.cancel();
        (if granted { "granted" } else { "still waiting" }).to_owned()
    });
}

pub fn exporter_of_later(_: &[String]) {
    survive(|node| {
        pause();
        let export = export(node, "later", 4096);
        // The daemon would have told us of a link before it answers this.
        node.list().unwrap();
        format!("{} importers", export.importers().len())
    });
}
