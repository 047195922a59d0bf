"""python3 -m http.server with curl: a plain blocking server that closes each connection when
it has answered, so that the last bytes and the end of file travel together."""

import hashlib
import random
import sys

import harness

UPGRADES = True

SMALL_LENGTHS = (0, 1, 100, 4096, 65536, 65537, 1_000_000)
LARGE_LENGTH = 100_000_000


def exercise(run):
    port = harness.free_port()
    files = run.directory / "files"
    files.mkdir()
    random.seed(3)
    for length in SMALL_LENGTHS:
        (files / f"{length}").write_bytes(random.randbytes(length))
    # Random blocks in random order: a block lost, doubled or moved changes the sum.
    large = hashlib.sha256()
    blocks = [random.randbytes(1_000_000) for _ in range(10)]
    with open(files / "large", "wb") as file:
        for _ in range(LARGE_LENGTH // 1_000_000):
            block = random.choice(blocks)
            large.update(block)
            file.write(block)

    server = run.start(
        "server",
        [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", files],
    )
    run.wait_for_port(port, server)
    address = f"http://127.0.0.1:{port}"
    result = harness.Result()

    speeds = []
    for _ in range(3 if run.leg.measured else 1):
        got = run.directory / "got"
        with run.by_ring("100 MB"):
            speed = run.run("client", ["curl", "-sS", "--fail", "-o", got, "-w", "%{speed_download}",
                                       f"{address}/large"])
        speeds.append(float(speed))
        digest = hashlib.sha256(got.read_bytes()).hexdigest()
        if digest != large.hexdigest():
            raise harness.Failure(
                f"download of {got.stat().st_size} bytes has sha256 {digest}, "
                f"expected {LARGE_LENGTH} bytes with {large.hexdigest()}"
            )
        result.answers["100 MB"] = digest
    result.rates["download 100 MB"] = (max(speeds) / 1e6, "MB/s")

    for length in SMALL_LENGTHS:
        got = run.run("client", ["curl", "-sS", "--fail", f"{address}/{length}"])
        if got != (files / f"{length}").read_bytes():
            raise harness.Failure(f"download of {length} bytes differs, {len(got)} bytes came")
    listing = run.run("client", ["curl", "-sS", "--fail", f"{address}/"])
    result.answers["listing"] = hashlib.sha256(listing).hexdigest()
    status = run.run("client", ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
                                f"{address}/absent"])
    result.answers["status of a file that is not there"] = status.decode()
    return result
