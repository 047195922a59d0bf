"""nginx with curl and wrk: a master that forks workers, edge-triggered epoll with a shared
listener, sendfile, reload under load."""

import hashlib
import random
import re
import signal

import harness

UPGRADES = True

CONFIGURATION = """
daemon off;
{user}
worker_processes 2;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile {sendfile};
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{ listen 127.0.0.1:{port}; root {www}; }}
}}
"""


def exercise(run):
    www = run.directory / "www"
    www.mkdir()
    random.seed(4)
    large = random.randbytes(30_000_000)
    (www / "large").write_bytes(large)
    (www / "small").write_bytes(b"x" * 512)
    result = harness.Result()
    for sendfile in ("on", "off"):
        serve(run, sendfile, large, result)
    return result


def start(run, name, sendfile):
    """Starts nginx over the files of `www` with two workers; returns its process and port."""
    port = harness.free_port()
    directory = run.directory / f"nginx-{name}"
    directory.mkdir()
    configuration = directory / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(
        directory=directory, www=run.directory / "www", port=port, sendfile=sendfile,
        # Workers give up root, and then could not read a directory that only root may.
        user="user root;" if harness.is_root() else ""))
    server = run.start("server", [harness.find("nginx"), "-c", configuration, "-e", "stderr"])
    run.wait_for_port(port, server)
    return server, port


def stop(run, server):
    """Ends nginx as `nginx -s quit` does: what is being served is served to its end."""
    server.send_signal(signal.SIGQUIT)
    run.expect_exit(server)


def wrk(run, connections, address):
    """Requests per second by wrk, none of which may fail."""
    return judged(run.run("client", ["wrk", "-t", 1, "-c", connections, "-d", "1s", "--timeout", "60s",
                                     address]))


def judged(report):
    """The rate in a report of wrk."""
    report = report.decode()
    if "Non-2xx" in report or "Socket errors" in report:
        raise harness.Failure(f"wrk reports errors:\n{report}")
    return float(re.search(r"Requests/sec:\s*([\d.]+)", report)[1])


def serve(run, sendfile, large, result):
    server, port = start(run, sendfile, sendfile)
    address = f"http://127.0.0.1:{port}"

    got = run.directory / "got"
    with run.by_ring(f"30 MB, sendfile {sendfile}"):
        speed = run.run("client", ["curl", "-sS", "--fail", "-o", got, "-w", "%{speed_download}",
                                   f"{address}/large"])
    if got.read_bytes() != large:
        raise harness.Failure(f"download with sendfile {sendfile} differs")
    result.answers[f"30 MB, sendfile {sendfile}"] = hashlib.sha256(large).hexdigest()
    result.rates[f"download 30 MB, sendfile {sendfile}"] = (float(speed) / 1e6, "MB/s")

    # Several requests over one kept connection, parts of a file among them.
    parts = run.run("client", ["curl", "-sS", "--fail", f"{address}/small", "--next", "-sS",
                               "--fail", "-r", "1000-200000", f"{address}/large"])
    if parts != b"x" * 512 + large[1000:200001]:
        raise harness.Failure(f"parts of files with sendfile {sendfile} differ")

    for connections in (1, 32) if run.leg.measured else (32,):
        with run.by_ring(f"wrk -c {connections}, sendfile {sendfile}"):
            result.rates[f"wrk -c {connections}, sendfile {sendfile}"] = (
                wrk(run, connections, f"{address}/small"), "requests/s")

    with run.by_ring(f"reload under load, sendfile {sendfile}"):
        reload_under_load(run, server, port, large)
    stop(run, server)


def reload_under_load(run, server, port, large):
    """New workers take over again and again while every connection is busy; the old ones finish
    what they serve. wrk counts a connection that a leaving worker closes between two requests as
    an error, as it does without us: no answer may be wrong or missing in the middle."""
    address = f"http://127.0.0.1:{port}"
    load = run.start("client", ["wrk", "-t", 1, "-c", 16, "-d", "1s", f"{address}/small"])
    downloads = [
        run.start("client", ["curl", "-sS", "--fail", "-o", run.directory / f"reload-{number}",
                             "--limit-rate", "60M", f"{address}/large"])
        for number in range(2)
    ]
    for _ in range(3):
        server.send_signal(signal.SIGHUP)
        run.run("client", ["curl", "-sS", "--fail", "-o", "/dev/null", f"{address}/small"])
    for number, download in enumerate(downloads):
        run.expect_exit(download)
        if (run.directory / f"reload-{number}").read_bytes() != large:
            raise harness.Failure("a download across a reload differs")
    run.expect_exit(load)
