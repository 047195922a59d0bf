"""The rsync daemon, without ssh: both ends fork, give the connection to a child, and talk both ways
at once by select; a second run must find nothing to do."""

import hashlib
import os
import random

import harness

UPGRADES = True

CONFIGURATION = """
use chroot = no
{user}
[files]
    path = {directory}/files
    read only = no
"""


def tree(directory):
    """One digest over all names and contents."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(str(path.relative_to(directory)).encode() + b"\0")
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def exercise(run):
    rng = random.Random(7)
    source = run.directory / "source"
    (source / "deep").mkdir(parents=True)
    for number in range(200):
        (source / "deep" / f"{number}").write_bytes(rng.randbytes(rng.randrange(20_000)))
    (source / "large").write_bytes(rng.randbytes(20_000_000))
    files = run.directory / "files"
    files.mkdir()
    port = harness.free_port()
    configuration = run.directory / "rsyncd.conf"
    configuration.write_text(CONFIGURATION.format(
        directory=run.directory, user="uid = root\ngid = root" if os.geteuid() == 0 else ""))
    server = run.start("server", ["rsync", "--daemon", "--no-detach", "--address=127.0.0.1",
                                  f"--port={port}", f"--config={configuration}"])
    run.wait_for_port(port, server)
    address = f"rsync://127.0.0.1:{port}/files/"
    result = harness.Result()
    rsync = ["rsync", "-rt", "--stats"]

    with run.by_ring("push"):
        seconds = harness.seconds_of(lambda: run.run("client", [*rsync, f"{source}/", address]))
    result.rates["push 22 MB"] = (22 / seconds, "MB/s")
    result.answers["pushed"] = tree(files)
    # Parts of a file that both have, compared by checksums.
    changed = bytearray((source / "large").read_bytes())
    changed[5_000_000:5_000_100] = rng.randbytes(200)
    (source / "large").write_bytes(changed)
    run.run("client", ["rsync", "-r", "--ignore-times", "--no-whole-file", f"{source}/", address])
    result.answers["changed"] = tree(files)
    if tree(files) != tree(source):
        raise harness.Failure("the pushed files differ from their source")

    target = run.directory / "target"
    with run.by_ring("pull"):
        seconds = harness.seconds_of(lambda: run.run("client", [*rsync, address, f"{target}/"]))
    result.rates["pull 22 MB"] = (22 / seconds, "MB/s")
    if tree(target) != tree(source):
        raise harness.Failure("the pulled files differ from their source")
    return result
