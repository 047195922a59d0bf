"""Programs that nothing can be preloaded into, at either end: static Go programs, and
set-user-id ones. The other end is preloaded and must not notice, nor be noticed."""

import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import atexit

import harness

UPGRADES = False

GO = r"""
package main

import (
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	if os.Args[1] == "serve" {
		listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
		if err != nil {
			panic(err)
		}
		panic(http.Serve(listener, http.FileServer(http.Dir(os.Args[3]))))
	}
	for _, url := range os.Args[2:] {
		answer, err := http.Get(url)
		if err != nil {
			panic(err)
		}
		if _, err = io.Copy(os.Stdout, answer.Body); err != nil {
			panic(err)
		}
		answer.Body.Close()
	}
}
"""

_go = None


def go_program():
    """The Go program, built once, static."""
    global _go
    if _go is None:
        directory = tempfile.mkdtemp(prefix="vmmc-programs-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        source = os.path.join(directory, "web.go")
        with open(source, "w") as file:
            file.write(GO)
        _go = os.path.join(directory, "web")
        environment = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off",
                       "GOCACHE": os.environ.get("GOCACHE", os.path.join(directory, "cache"))}
        subprocess.run(["go", "build", "-o", _go, source], check=True, env=environment)
    return _go


def set_user_id(run, program):
    """A copy that runs as somebody else than its caller, so that the loader drops what is preloaded."""
    copy = run.directory / program
    shutil.copy(harness.find(program), copy)
    shutil.chown(copy, "nobody")
    copy.chmod(copy.stat().st_mode | stat.S_ISUID | 0o755)
    return copy


def transferred(run, server, client):
    """What iperf3 says that came of 32 MiB each way."""
    port = harness.free_port()
    process = run.start("server", [server, "-s", "-B", "127.0.0.1", "-p", port, "--forceflush"])
    counts = []
    for number, way in enumerate(([], ["-R"]), 1):
        run.wait_until(lambda: f"(test #{number})".encode() in run.output(process), "free for the next test")
        report = json.loads(run.run("client", [client, "-c", "127.0.0.1", "-p", port, "-J", "-n", 32 << 20, *way]))
        sent, received = (report["end"][end]["bytes"] for end in ("sum_sent", "sum_received"))
        # The receiver counts until it is told that the test is over.
        counts.append(sent if 0 < received <= sent else -1)
    if set(counts) != {32 << 20}:
        raise harness.Failure(f"{server} and {client}: {counts} bytes")
    process.terminate()
    process.wait(harness.WATCHDOG_S)
    return counts


def exercise(run):
    go = go_program()
    rng = random.Random(8)
    files = run.directory / "files"
    files.mkdir()
    contents = {"small": b"s" * 700, "large": rng.randbytes(5_000_000)}
    for name, data in contents.items():
        (files / name).write_bytes(data)
    names = ["small"] * 40 + ["large"]
    expected = b"".join(contents[name] for name in names)
    result = harness.Result()

    def fetched(what, client, port):
        got = run.run("client", [*client, *(f"http://127.0.0.1:{port}/{name}" for name in names)])
        if got != expected:
            raise harness.Failure(f"{what}: {len(got)} bytes came, expected {len(expected)}")
        result.answers[what] = hashlib.sha256(got).hexdigest()

    port = harness.free_port()
    server = run.start("server", [go, "serve", port, files])
    run.wait_for_port(port, server)
    fetched("a Go server", ["curl", "-sS", "--fail"], port)
    fetched("a Go server and a Go client", [go, "get"], port)
    if os.geteuid() == 0:
        run.directory.chmod(0o755)
        fetched("a set-user-id client", [set_user_id(run, "curl"), "-sS", "--fail"], port)
        for what, server, client in (
            ("a set-user-id server", set_user_id(run, "iperf3"), "iperf3"),
            ("a set-user-id server and client", set_user_id(run, "iperf3"), set_user_id(run, "iperf3")),
        ):
            result.answers[what] = transferred(run, server, client)

    port = harness.free_port()
    server = run.start("server", [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1",
                                  "--directory", files])
    run.wait_for_port(port, server)
    fetched("a Go client", [go, "get"], port)
    return result
