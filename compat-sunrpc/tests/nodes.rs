//! rpcgen programs on two nodes, each with a daemon of its own, unmodified: on loopback addresses, or in two network
//! namespaces (`ci/net`). Their daemons carry what they put into rings.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;
#[path = "../../vmmc/tests/support/restart.rs"]
mod restart;
#[path = "common/mod.rs"]
mod rpc;

use cluster::{Place, pair_in, starter_of};
use restart::restart;
use rpc::{Counted, Daemon, Mode, Process, Server, Side, finish, go_on, line};
use std::process::Command;

const CARRIED: &str = "[streams]\nbetween-nodes = \"on\"\n";

/// A server's node and a client's.
struct World {
    a: Place,
    b: Place,
    server_daemon: Daemon,
    client_daemon: Daemon,
}

/// The same command on a node.
fn on(node: &str, command: &Command) -> Command {
    let starter = starter_of(node);
    let Some((first, words)) = starter.split_first() else {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return same;
    };
    let mut there = Command::new(first);
    there.args(words).arg(command.get_program()).args(command.get_args());
    there
}

impl World {
    fn new(more: &str) -> World {
        // Where both ends come they are waited for however long a busy machine stands still.
        let wait = if more.contains("streams") { "60000" } else { "1000" };
        let (a, b) = pair_in(more, &[("VMMC_PAIR_MS", wait)]);
        let daemon = |place: &Place| Daemon::of_another(place.daemon.socket());
        let (server_daemon, client_daemon) = (daemon(&a), daemon(&b));
        World { a, b, server_daemon, client_daemon }
    }

    fn server(&self, waits: &str, side: Side) -> Server {
        let mut command = Command::new(rpc::programs(Mode::Default).join("server"));
        command.arg(waits);
        let process = Process::start(&mut on("a", &command), side, &self.server_daemon);
        Server::of_process(process, Mode::Default)
    }

    fn start(&self, server: &Server, case: &str, argument: &str, side: Side) -> Process {
        let host = |place: &Place| place.address.rsplit_once(':').unwrap().0.to_owned();
        let mut command = on("b", &server.client_command(case, argument));
        command.env("CLIENT_HOST", host(&self.a)).env("CLIENT_FROM", host(&self.b));
        Process::start(&mut command, side, &self.client_daemon)
    }

    fn client(&self, server: &Server, case: &str, argument: &str, side: Side) -> (String, Counted) {
        finish(self.start(server, case, argument, side), case)
    }

    /// Makes the server leave its loop.
    fn quit(&self, server: Server) -> Counted {
        assert_eq!(self.client(&server, "quit", "", Side::Stock).0, "quit 0\n");
        server.ended(true)
    }
}

/// The same lines as over TCP alone, and every call over rings.
fn says_the_same(waits: &str, case: &str, argument: &str) {
    let world = World::new(CARRIED);
    let stock = world.server(waits, Side::Stock);
    let (expected, _) = world.client(&stock, case, argument, Side::Stock);
    world.quit(stock);
    let server = world.server(waits, Side::Ours);
    let (said, counted) = world.client(&server, case, argument, Side::Ours);
    assert_eq!(said, expected);
    assert!(counted.get("calls_ring") > 0 && counted.get("channels") > 0, "{counted:?}");
    let served = world.quit(server);
    assert!(served.get("served_ring") > 0, "{counted:?} {served:?}");
}

macro_rules! cases {
    ($($name:ident: $waits:literal, $case:literal, $argument:literal;)*) => {$(
        #[test]
        fn $name() {
            says_the_same($waits, $case, $argument);
        }
    )*};
}

cases! {
    types: "run", "types", "";
    types_in_a_loop_of_select: "select", "types", "";
    types_in_a_loop_of_epoll: "epoll", "types", "";
    errors: "run", "errors", "";
    auth: "run", "auth", "";
    timeouts: "run", "timeouts", "";
    batched_calls: "run", "batch", "";
    a_client_used_after_a_fork: "run", "fork", "";
    threads_on_one_client: "run", "threads", "";
    records_many_times_as_long_as_the_ring: "run", "large", "";
    the_same_in_a_loop_of_poll: "poll", "large", "";
    many_connections: "run", "many", "50";
}

/// Between nodes too everything that a process has put into its ring arrives before its end does, however late its
/// daemon sends it.
#[test]
fn calls_of_a_client_that_leaves_at_once_are_all_served() {
    let world = World::new(CARRIED);
    let server = world.server("run", Side::Ours);
    let mut client = world.start(&server, "batch_and_leave", "2000", Side::Ours);
    assert!(line(&mut client).contains("same"));
    common::signal(world.b.daemon.pid(), rustix::process::Signal::STOP);
    go_on(&mut client);
    assert_eq!(finish(client, "batch_and_leave").0, "called\n");
    common::signal(world.b.daemon.pid(), rustix::process::Signal::CONT);
    common::until("all are served", || {
        world.client(&server, "ticks", "", Side::Stock).0 == "2000\n"
    });
    assert_eq!(world.quit(server).get("served_ring"), 2001);
}

#[test]
fn a_server_that_dies_in_a_call_is_cantrecv_and_later_calls_fail_at_once() {
    for waits in ["run", "select"] {
        let world = World::new(CARRIED);
        let server = world.server(waits, Side::Ours);
        let (said, counted) = world.client(&server, "server_dies", "", Side::Ours);
        assert!(said.ends_with("died: RPC_CANTRECV\nafterwards: cannot\n"), "{said}");
        assert!(counted.get("calls_ring") > 0, "{counted:?}");
    }
}

/// A client that dies is forgotten by its server and by both daemons, and others are served.
#[test]
fn a_client_killed_inside_a_record_leaves_nothing() {
    let world = World::new(CARRIED);
    let server = world.server("run", Side::Ours);
    let files = |place: &Place| {
        std::fs::read_dir(format!("/proc/{}/fd", place.daemon.pid())).unwrap().count()
    };
    // What daemons keep after the first connection.
    world.client(&server, "ticks", "", Side::Ours);
    let mut settled = [0; 2];
    for round in 0..3 {
        for _ in 0..5 {
            let mut command = world.start(&server, "killed_in_a_record", "100", Side::Ours);
            assert!(line(&mut command).contains("same"));
            rpc::ended_by_kill(command);
        }
        let (said, counted) = world.client(&server, "types", "", Side::Ours);
        assert!(!said.contains("DIFFERENT") && counted.get("calls_ring") > 0, "{said}");
        common::until("the daemons have let go", || {
            world.a.daemon.node().snapshot().unwrap().connections.iter().all(|it| !it.alive)
        });
        if round == 0 {
            settled = [files(&world.a), files(&world.b)];
        }
    }
    common::until("no descriptor is left", || {
        files(&world.a) <= settled[0] && files(&world.b) <= settled[1]
    });
}

/// Either daemon's death ends what it carries: an error at the next call, and new connections stay with TCP.
#[test]
fn a_daemon_that_dies_is_an_error_of_the_calls_it_carried() {
    for dies in ["a", "b"] {
        let mut world = World::new(CARRIED);
        let server = world.server("run", Side::Ours);
        let mut client = world.start(&server, "restart", "", Side::Ours);
        assert!(line(&mut client).contains("same"));
        if dies == "a" {
            world.a.daemon.kill()
        } else {
            world.b.daemon.kill()
        }
        go_on(&mut client);
        let (said, counted) = finish(client, dies);
        assert!(said.starts_with("old: cannot\n") && said.contains("same"), "{dies}: {said}");
        assert_eq!(counted.get("channels"), 1, "{dies}: {counted:?}");
    }
}

/// A server that has lost its daemon finds the next one when a connection comes, and is carried again.
#[test]
fn a_daemon_that_comes_back_carries_again() {
    let mut world = World::new(CARRIED);
    let server = world.server("run", Side::Ours);
    let calls = |world: &World| world.client(&server, "ticks", "", Side::Ours).1.get("calls_ring");
    assert_eq!(calls(&world), 1);
    world.a.daemon.kill();
    assert_eq!(calls(&world), 0);
    restart(&mut world.a);
    common::until("it is carried again", || calls(&world) == 1);
}

/// What is not carried goes by TCP as ever: without the setting, and where one side is stock.
#[test]
fn calls_stay_with_tcp_unless_both_daemons_carry() {
    for (more, server_side, client_side) in [
        ("", Side::Ours, Side::Ours),
        (CARRIED, Side::Stock, Side::Ours),
        (CARRIED, Side::Ours, Side::Stock),
    ] {
        let world = World::new(more);
        let server = world.server("run", server_side);
        let (said, counted) = world.client(&server, "auth", "", client_side);
        assert!(!said.is_empty() && !said.contains("DIFFERENT"), "{said}");
        assert_eq!((counted.get("calls_ring"), counted.get("channels")), (0, 0), "{more}");
        assert_eq!(world.quit(server).get("served_ring"), 0, "{more}");
    }
}

/// The same over libfabric: what is carried goes the way of everything between nodes.
#[test]
fn over_a_fabric() {
    let world = World::new(&format!("[fabric]\nprovider = \"tcp;ofi_rxm\"\n{CARRIED}"));
    let server = world.server("run", Side::Ours);
    for case in ["types", "large"] {
        let (said, counted) = world.client(&server, case, "", Side::Ours);
        assert!(!said.contains("DIFFERENT") && counted.get("calls_ring") > 0, "{said} {counted:?}");
    }
    world.quit(server);
}
