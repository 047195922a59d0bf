"""haproxy in front of nginx with curl and wrk: a proxy whose two sides are upgraded separately,
non-blocking in both directions, with keep-alive, splicing and connections taken from a pool."""

import hashlib
import random

import harness
import nginx

UPGRADES = True
# nginx and haproxy are both servers here, with connections between them.
SERVERS_TALK_IN = (harness.SERVER_ONLY,)

CONFIGURATION = """
global
    nbthread 2
    maxconn 1000
defaults
    mode {mode}
    option splice-auto
    timeout connect 60s
    timeout client 60s
    timeout server 60s
listen front
    bind 127.0.0.1:{port}
    server back 127.0.0.1:{back}
"""


def exercise(run):
    large = random.Random(6).randbytes(10_000_000)
    www = run.directory / "www"
    www.mkdir()
    (www / "large").write_bytes(large)
    (www / "small").write_bytes(b"x" * 512)
    result = harness.Result()
    server, back = nginx.start(run, "back", "on")
    for mode in ("http", "tcp"):
        port = harness.free_port()
        configuration = run.directory / f"haproxy-{mode}.cfg"
        configuration.write_text(CONFIGURATION.format(mode=mode, port=port, back=back))
        haproxy = run.start("server", [harness.find("haproxy"), "-db", "-f", configuration])
        run.wait_for_port(port, haproxy)
        address = f"http://127.0.0.1:{port}"
        with run.by_ring(f"10 MB, mode {mode}"):
            got = run.run("client", ["curl", "-sS", "--fail", f"{address}/large", "--next", "-sS",
                                     "--fail", f"{address}/small"])
        if got != large + b"x" * 512:
            raise harness.Failure(f"download by {mode} differs, {len(got)} bytes came")
        result.answers[f"download by {mode}"] = hashlib.sha256(got).hexdigest()
        for connections in (1, 32) if run.leg.measured else (32,):
            with run.by_ring(f"wrk -c {connections}, mode {mode}"):
                result.rates[f"wrk -c {connections}, mode {mode}"] = (
                    nginx.wrk(run, connections, f"{address}/small"), "requests/s")
        haproxy.terminate()
        haproxy.wait(harness.WATCHDOG_S)
    nginx.stop(run, server)
    return result
