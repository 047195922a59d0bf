"""nginx with curl and wrk: a master that forks workers, edge-triggered epoll with a shared
listener, sendfile. Judged for correctness; whether its connections are upgraded is shown."""

import hashlib
import os
import random
import re
import signal

import harness

# A server may always answer over plain TCP; see SUPPORT.md for what keeps a connection there.
UPGRADES = False

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
    server {{ listen 127.0.0.1:{port}; root {directory}/www; }}
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


def serve(run, sendfile, large, result):
    port = harness.free_port()
    configuration = run.directory / f"nginx-{sendfile}.conf"
    configuration.write_text(CONFIGURATION.format(
        directory=run.directory, port=port, sendfile=sendfile,
        # Workers give up root, and then could not read a directory that only root may.
        user="user root;" if os.geteuid() == 0 else ""))
    nginx = "/usr/sbin/nginx" if os.path.exists("/usr/sbin/nginx") else "nginx"
    server = run.start("server", [nginx, "-c", configuration, "-e", "stderr"])
    run.wait_for_port(port, server)
    address = f"http://127.0.0.1:{port}"

    got = run.directory / "got"
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

    seconds = 2 if run.leg.measured else 1
    for connections in (1, 32):
        report = run.run("client", ["wrk", "-t", 1, "-c", connections, "-d", f"{seconds}s",
                                    f"{address}/small"]).decode()
        if "Non-2xx" in report or "Socket errors" in report:
            raise harness.Failure(f"wrk reports errors:\n{report}")
        rate = float(re.search(r"Requests/sec:\s*([\d.]+)", report)[1])
        result.rates[f"wrk -c {connections}, sendfile {sendfile}"] = (rate, "requests/s")

    # New workers take over, and the old ones leave, without an error for anybody.
    server.send_signal(signal.SIGHUP)
    run.run("client", ["curl", "-sS", "--fail", "-o", "/dev/null", f"{address}/small"])
    server.send_signal(signal.SIGQUIT)
    run.expect_exit(server)
