//! Root's daemon is the machine's: what root starts goes on as other users, and takes part all the same.
//!
//! As root, in namespaces of their own with an empty `/run`, so that a daemon of this machine is neither met nor made.

mod common;

use common::{Finished, run, without_settings};
use std::process::Command;

/// Runs a script of `sh`, in which `shrimp` is a program that every user can run.
fn inside(script: &str) -> Finished {
    common::prepare();
    let begin = "mount -t tmpfs -o mode=755 tmpfs /run && unset XDG_RUNTIME_DIR && set -e
        as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"; }
        shrimp() { \"$SHRIMP\" \"$@\"; }\n";
    let mut command = without_settings(Command::new("unshare"));
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]);
    run(command.arg(format!("{begin}{script}")).env("SHRIMP", env!("CARGO_BIN_EXE_shrimp")))
}

const SERVER: &str = r#"
import os, socket
assert os.getuid() == 65534
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
while data := connection.recv(4096):
    connection.sendall(data)
"#;

const CLIENT: &str = r#"
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.stdin.readline())))
turn = 0
while turn < 2000 or not os.path.exists("/run/paired"):
    connection.sendall(b"%d" % turn)
    assert connection.recv(4096) == b"%d" % turn
    turn += 1
connection.close()
"#;

/// Exchanges messages between a server that is nobody by now and a client, and says how many pairs the daemon has made.
/// They go on until it has made one, or for a minute or so: a busy machine's daemon may be late.
fn exchange(start: &str) -> Finished {
    inside(&format!(
        "export SERVER='{SERVER}' CLIENT='{CLIENT}' VMMC_PAIR_MS=60000
        pairs() {{
            shrimp stat --json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)[\"daemon\"][\"counters\"][\"pairs\"])'
        }}
        mkfifo /run/port
        {start}
        shrimp exec --sockets -- /usr/bin/python3 -c \"$CLIENT\" </run/port &
        client=$!
        for try in $(seq 300); do
            [ \"$(pairs)\" != 1 ] || break
            sleep 0.1
        done
        touch /run/paired
        wait $client
        wait
        pairs
        shrimp daemon stop
        ls /run/vmmc"
    ))
}

#[test]
fn a_server_that_root_starts_as_another_user_takes_part() {
    let ended = exchange(
        "\"$SHRIMP\" exec --sockets -- setpriv --reuid=65534 --regid=65534 --clear-groups \\
            /usr/bin/python3 -c \"$SERVER\" >/run/port &",
    )
    .expect(0);
    assert!(ended.out.starts_with("1\n"), "{ended:?}");
    assert!(ended.out.contains("stopped the daemon at /run/vmmc/vmmcd.sock"), "{ended:?}");
}

#[test]
fn a_worker_that_gives_its_rights_up_takes_part() {
    let ended = exchange(
        "\"$SHRIMP\" exec --sockets -- /usr/bin/python3 -c \"import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
$SERVER\" >/run/port &",
    )
    .expect(0);
    assert!(ended.out.starts_with("1\n"), "{ended:?}");
}

#[test]
fn others_find_roots_daemon_and_root_alone_replaces_and_ends_it() {
    let ended = inside(
        "shrimp daemon start
        as_nobody \"$SHRIMP\" daemon status
        if as_nobody \"$SHRIMP\" daemon stop; then echo 'nobody ended it'; fi
        shrimp daemon restart
        kill -9 \"$(shrimp daemon status | sed 's/.*process \\([0-9]*\\),.*/\\1/')\"
        if as_nobody env VMMC_SOCKET=/run/vmmc/vmmcd.sock \"$SHRIMP\" daemon status; then
            echo 'a dead one answers'
        fi
        install -d -o 65534 -m 700 /run/nobody
        as_nobody env XDG_RUNTIME_DIR=/run/nobody \"$SHRIMP\" daemon start
        as_nobody env XDG_RUNTIME_DIR=/run/nobody \"$SHRIMP\" daemon stop
        shrimp exec -- true
        as_nobody \"$SHRIMP\" daemon status",
    )
    .expect(0);
    assert_eq!(ended.out.matches("user 0, ").count(), 4, "{ended:?}");
    assert!(ended.out.contains("replaced: "), "{ended:?}");
    // What a dead one left does not keep others from their own.
    assert!(ended.out.contains("stopped the daemon at /run/nobody/vmmc/vmmcd.sock"), "{ended:?}");
    assert!(!ended.out.contains("nobody ended it"), "{ended:?}");
    assert!(!ended.out.contains("a dead one answers"), "{ended:?}");
    assert!(ended.err.contains("as root"), "{ended:?}");
}

#[test]
fn who_may_not_use_a_daemon_is_told_what_its_owner_can_do() {
    let ended = inside(
        "install -d -m 755 /run/own
        export VMMC_SOCKET=/run/own/vmmcd.sock
        shrimp daemon start
        as_nobody \"$SHRIMP\" doctor || true
        shrimp daemon stop
        shrimp daemon start -- --all-users
        as_nobody \"$SHRIMP\" daemon status
        shrimp daemon stop",
    )
    .expect(0);
    let remedy = "do: have its owner start it for all users";
    assert!(ended.out.contains(remedy), "{ended:?}");
    assert!(ended.out.contains("running: vmmcd"), "{ended:?}");
}
