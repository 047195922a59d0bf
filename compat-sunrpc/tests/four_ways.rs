//! Programs made by rpcgen, unmodified, four ways: server and client each stock or with the library.
//! The lines that they print must be the same; calls go over rings in the fourth way, and only
//! there (R1, R2, R12).
//!
//! A failure names the mode, loop and case; the programs are in `target/tmp/rpc-*` to be run by
//! hand.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Mode, Process, Server, Side, finish};

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident: $mode:ident, $waits:literal, $case:literal, $argument:literal;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            common::four_ways(Mode::$mode, $waits, $case, $argument);
        }
    )*};
}

cases! {
    /// Every XDR type, old-style stubs.
    types_by_default: Default, "run", "types", "";
    /// Thread-safe stubs (`-M`).
    types_mt_safe: MtSafe, "run", "types", "";
    /// Arguments by value (`-N`).
    types_new_style: NewStyle, "run", "types", "";
    types_new_style_mt_safe: Both, "run", "types", "";
    /// A server that inetd starts, with its listening socket as descriptor 0 (`-I`).
    types_inetd: Inetd, "run", "types", "";
    /// PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL, GARBAGE_ARGS, SYSTEM_ERR, AUTH_ERROR, local ones.
    errors: Default, "run", "errors", "";
    /// AUTH_NONE and AUTH_SYS with 0 to 16 groups reach the service.
    auth: Default, "run", "auth", "";
    /// Timeouts, stale replies, CLSET_TIMEOUT, timeout 0.
    timeouts: Default, "run", "timeouts", "";
    batched_calls: Default, "run", "batch", "";
    client_control: Default, "run", "control", "";
    /// A child uses the client while its parent waits; both go on.
    fork: Default, "run", "fork", "";
    daemon_after_create: Default, "run", "daemon", "";
    threads_on_one_client: Default, "run", "threads", "";
    signals_during_calls: Default, "run", "signals", "";
    /// Records many times as long as the ring, each way (R4).
    large_records: Default, "run", "large", "";
    replies_that_nobody_fetches: Default, "run", "slow_reader", "";

    /// A server's own loop: `select` and `svc_getreqset` (rpc.statd, yppush).
    loop_select: Default, "select", "types", "";
    /// `select` and `svc_getreq_common` (rpc.mountd).
    loop_common: Default, "common", "types", "";
    /// `poll` over `svc_pollfd` (libnsl).
    loop_poll: Default, "poll", "types", "";
    loop_epoll: Default, "epoll", "types", "";
    loop_select_large: Default, "select", "large", "";
    loop_poll_batch: Default, "poll", "batch", "";
    loop_select_many: Default, "select", "many", "300";
    loop_epoll_threads: Default, "epoll", "threads", "";
    loop_common_fork: Default, "common", "fork", "";
    loop_common_timeouts: Default, "common", "timeouts", "";
}

/// R3, R7: a record that fits into the ring is encoded there and decoded there; no byte of it is
/// copied once more, at either end. R10: a call and its reply are a record each, and at most one
/// doorbell each.
#[test]
fn records_that_fit_are_copied_by_nobody_and_only_decoded() {
    for waits in ["run", "select"] {
        let (client, served) = common::four_ways(Mode::Default, waits, "types", "");
        for counted in [&client, &served] {
            assert_eq!(counted.get("spilled_bytes"), 0, "{counted:?}");
            assert_eq!(counted.get("assembled_bytes"), 0, "{counted:?}");
            assert!(counted.get("doorbells") <= counted.get("sent_records"), "{counted:?}");
        }
        assert_eq!(client.get("sent_records"), client.get("calls_ring"));
        assert_eq!(client.get("received_bytes"), served.get("sent_bytes"));
    }
}

/// Objective 1: while both sides are awake, a call is stores and loads. Both processes forbid
/// themselves every system call, but to look whether the connection lives.
#[test]
fn two_that_spin_make_no_system_call() {
    let daemon = Daemon::start();
    let spin = [("VMMC_WAIT", "spin")];
    let server = Server::start_set(Mode::Default, "run", Side::Ours, &daemon, &[], &spin);
    let client = server.client_command("quiet", "");
    let client = Process::start_with(&mut { client }, Side::Ours, &daemon, &spin);
    let (said, _) = finish(client, "quiet");
    assert_eq!(said, "right 300\n");
}
