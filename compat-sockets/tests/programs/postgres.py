"""PostgreSQL with psql and pgbench over TCP: a server that forks for every connection after it was
accepted, and closes it in the parent; the child waits with epoll and reads without blocking."""

import atexit
import contextlib
import glob
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time

import harness

UPGRADES = True
# The server refuses to run as root.
USER = "postgres"

_template = None


def program(name):
    """A program of the newest PostgreSQL that is installed, from where Debian keeps it."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else harness.find(name)


def template(run):
    """A fresh database directory, made once and copied for each leg."""
    global _template
    if _template is None:
        _template = tempfile.mkdtemp(prefix="vmmc-programs-")
        atexit.register(shutil.rmtree, _template, ignore_errors=True)
        if run.user:
            shutil.chown(_template, run.user)
        subprocess.run(
            [program("initdb"), "-D", f"{_template}/data", "-A", "trust", "-U", "postgres",
             "--no-sync", "--no-locale", "-E", "UTF8"],
            user=run.user, check=True, stdout=subprocess.DEVNULL, cwd=_template)
    return f"{_template}/data"


def exercise(run):
    data = run.directory / "data"
    subprocess.run(["cp", "-r", template(run), data], user=run.user, check=True)
    port = harness.free_port()
    server = run.start("server", [
        program("postgres"), "-D", data, "-p", port, "-h", "127.0.0.1", "-k", run.directory,
        "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "autovacuum=off"])
    run.wait_for_port(port, server)
    # It listens before it answers questions.
    ready = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + harness.WATCHDOG_S
    while subprocess.run(ready, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise harness.Failure("PostgreSQL does not come to be ready")
        time.sleep(0.02)
    common = ["-h", "127.0.0.1", "-p", port, "-U", "postgres"]
    result = harness.Result()

    def psql(sql):
        return run.run("client", [program("psql"), *common, "-X", "-A", "-t", "-v",
                                  "ON_ERROR_STOP=1", "-c", sql, "postgres"])

    # Many rows out, a large value both ways, and COPY in both directions.
    result.answers["rows"] = hashlib.sha256(psql(
        "select i, repeat(md5(i::text), i % 50) from generate_series(1, 20000) i")).hexdigest()
    psql("create table t (i int primary key, v text)")
    rows = b"".join(b"%d\t%s\n" % (i, b"value" * (i % 400)) for i in range(20_000))
    with run.by_ring("COPY from the client"):
        run.run("client", [program("psql"), *common, "-X", "-v", "ON_ERROR_STOP=1", "-c",
                           "copy t from stdin", "postgres"], stdin=rows)
    with run.by_ring("COPY to the client"):
        got = psql("copy (select * from t order by i) to stdout")
    if got != rows:
        raise harness.Failure("COPY gives other rows back than it got")
    result.answers["sum"] = psql("select count(*), sum(length(v)), md5(string_agg(v, '' order by i))"
                                 " from t").decode()
    if b"FATAL" in psql("select pg_backend_pid()"):
        raise harness.Failure("a backend failed")

    run.run("client", [program("pgbench"), *common, "-i", "-q", "-s", 1, "postgres"])
    for clients, more in ((1, ["-S"]), (8, ["-S"]), (4, []), (2, ["-S", "-C"])):
        # With -C each connection makes some ten calls: it ends before it is offered.
        with contextlib.nullcontext() if "-C" in more else run.by_ring(" ".join(["pgbench -c", str(clients), *more])):
            report = run.run("client", [program("pgbench"), *common, "-n", "-c", clients, "-j", 1,
                                        "-T", 1, *more, "postgres"]).decode()
        failed = re.search(r"number of failed transactions: (\d+)", report)
        if failed and failed[1] != "0":
            raise harness.Failure(f"pgbench reports failures:\n{report}")
        # None when no transaction came to its end in that second.
        if rate := re.search(r"tps = ([\d.]+)", report):
            name = " ".join(["pgbench", *more, "-c", str(clients)])
            result.rates[name] = (float(rate[1]), "transactions/s")
    balances = psql("select (select sum(abalance) from pgbench_accounts) ="
                    " (select sum(bbalance) from pgbench_branches)")
    result.answers["balances agree"] = balances.decode()

    # Fast shutdown: ends the connections that are left, and the server with them.
    server.send_signal(2)
    run.expect_exit(server)
    return result
