"""redis-server with redis-cli and redis-benchmark: an epoll loop that sets its descriptors
non-blocking after accept, forks to save, and clients that block (redis-cli) or run an epoll
loop of their own (redis-benchmark)."""

import csv
import hashlib
import io
import random
import sys

import harness

UPGRADES = True

# Around sizes where buffers of the program, the socket and the ring end.
VALUE_LENGTHS = (1, 2, 16, 1000, 4095, 4096, 4097, 16384, 65535, 65536, 65537, 300_000)


# Hears so many messages and prints the digest of all. Reads by recv of a few bytes at a time.
SUBSCRIBER = r"""
import hashlib, socket, sys
port, command, channel, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
connection = socket.create_connection(("127.0.0.1", port))
connection.sendall(f"{command} {channel}\r\n".encode())
file = connection.makefile("rb", buffering=512)

def value():
    line = file.readline()
    if line[:1] == b"*":
        return [value() for _ in range(int(line[1:]))]
    if line[:1] == b"$":
        return file.read(int(line[1:]) + 2)[:-2]
    return line[1:-2]

assert value()[0] in (b"subscribe", b"psubscribe")
digest = hashlib.sha256()
for _ in range(count):
    digest.update(value()[-1])
print(digest.hexdigest())
"""


def command(*words):
    """A command in the protocol of redis."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def exercise(run):
    port = harness.free_port()
    server = run.start(
        "server",
        ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
         "--dir", run.directory, "--daemonize", "no", "--enable-debug-command", "yes"],
    )
    run.wait_for_port(port, server)
    result = harness.Result()

    def cli(*words, stdin=b""):
        return run.run("client", ["redis-cli", "-h", "127.0.0.1", "-p", port, *words], stdin)

    def same(what, actual, expected):
        digests = [hashlib.sha256(data).hexdigest() for data in (actual, expected)]
        if digests[0] != digests[1]:
            raise harness.Failure(
                f"{what}: {len(actual)} bytes, sha256 {digests[0]}; "
                f"expected {len(expected)} bytes, sha256 {digests[1]}"
            )
        result.answers[what] = digests[0]

    # One large value, every byte value in it, there and back.
    random.seed(2)
    big = random.randbytes(8 << 20)
    # redis-cli sends it in one call, which begins by TCP and goes on so; most of the answer is in the kernel's buffers
    # before the daemon has answered.
    same("set of 8 MiB", cli("-x", "set", "big", stdin=big), b"OK\n")
    same("get of 8 MiB", cli("--raw", "get", "big"), big + b"\n")

    # Many values in one pipelined connection, then read back one by one over another, which
    # goes on across a fork of the server (BGSAVE).
    values = {f"key:{i}": random.randbytes(VALUE_LENGTHS[i % len(VALUE_LENGTHS)]) for i in range(600)}
    with run.by_ring("600 values in a pipeline"):
        answer = cli("--pipe", "--pipe-timeout", "0",
                     stdin=b"".join(command("set", key, value) for key, value in values.items()))
    if b"errors: 0, replies: 600" not in answer:
        raise harness.Failure(f"redis-cli --pipe says {answer.decode(errors='replace')}")
    keys = list(values)
    asked = "".join(f"get {key}\n" for key in keys[:300])
    asked += "bgsave\n" + "".join(f"get {key}\n" for key in keys[300:])
    expected = b"".join(values[key] + b"\n" for key in keys[:300])
    expected += b"Background saving started\n" + b"".join(values[key] + b"\n" for key in keys[300:])
    with run.by_ring("600 values across a fork"):
        same("600 values across a fork", cli("--raw", stdin=asked.encode()), expected)
    run.wait_until(
        lambda: b"rdb_bgsave_in_progress:0" in cli("info", "persistence"), "saved in the background"
    )
    same("number of keys", cli("dbsize"), b"601\n")
    # The server's own digest over all it holds.
    result.answers["digest of the data set"] = cli("debug", "digest").decode()

    # Somebody waits in one connection for what another sends (both sides asleep meanwhile).
    waiting = run.start("client", ["redis-cli", "-h", "127.0.0.1", "-p", port, "blpop", "list", "0"])
    run.wait_until(lambda: b"blocked_clients:1" in cli("info", "clients"), "blocked in BLPOP")
    same("rpush", cli("rpush", "list", "element"), b"1\n")
    run.expect_exit(waiting)

    # Published to two subscribers, one of which listens for a pattern: idle connections that the
    # server writes to without being asked, in order and nothing missing.
    messages = [b"message-%d" % i * (1 + i % 700) for i in range(300)]
    subscribers = [
        run.start("client", [sys.executable, "-c", SUBSCRIBER, port, command_name, channel,
                             len(messages)])
        for command_name, channel in (("SUBSCRIBE", "news"), ("PSUBSCRIBE", "ne*"))
    ]
    run.wait_until(lambda: cli("pubsub", "numsub", "news") == b"news\n1\n"
                   and cli("pubsub", "numpat") == b"1\n", "subscribed to")
    with run.by_ring("published messages"):
        # One after the other: the server sends each by a call of its own.
        cli("--raw", stdin=b"".join(b"publish news %s\n" % message for message in messages))
        for subscriber in subscribers:
            run.expect_exit(subscriber)
    for subscriber in subscribers:
        digest = run.output(subscriber).strip().decode()
        expected = hashlib.sha256(b"".join(messages)).hexdigest()
        if digest != expected:
            raise harness.Failure(f"a subscriber heard {digest}, expected {expected}")

    def benchmark(clients, requests, pipeline=1, length=3):
        with run.by_ring(f"redis-benchmark -c {clients} -P {pipeline} -d {length}"):
            report = run.run("client", [
                "redis-benchmark", "-h", "127.0.0.1", "-p", port, "-t", "set,get", "--csv",
                "-c", clients, "-n", requests, "-P", pipeline, "-d", length])
        rows = csv.reader(io.StringIO(report.decode()))
        for test, rate, *_ in rows:
            if test != "test":
                name = f"{test} -c {clients}" + (f" -P {pipeline}" if pipeline > 1 else "")
                name += f" -d {length}" if length > 3 else ""
                result.rates[name] = (float(rate), "requests/s")

    scale = 1 if run.leg.measured else 0.1
    benchmark(1, int(30_000 * scale))
    benchmark(50, int(100_000 * scale))
    benchmark(1, int(200_000 * scale), pipeline=16)
    benchmark(50, int(400_000 * scale), pipeline=16)
    benchmark(500, int(50_000 * scale))
    benchmark(4, int(10_000 * scale), length=100_000)

    run.run("client", ["redis-cli", "-h", "127.0.0.1", "-p", port, "shutdown", "nosave"])
    run.expect_exit(server)
    return result
