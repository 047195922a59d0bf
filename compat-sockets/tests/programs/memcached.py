"""memcached with a client of our own and with memcslap: worker threads with an epoll set each,
connections handed between threads by a pipe, sendmsg with many vectors, requests in pipelines."""

import hashlib
import sys

import harness

UPGRADES = True

# Run as a program of its own, so that it is preloaded like any client.
CLIENT = r"""
import hashlib, random, socket, sys, threading
port, seed = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
lengths = (0, 1, 100, 4096, 16384, 65536, 131072, 500_000)

def connect():
    connection = socket.create_connection(("127.0.0.1", port))
    return connection, connection.makefile("rb")

def answer(file, expected):
    line = file.readline()
    assert line == expected, (line, expected)

digests = [None] * 4
def client(number):
    rng = random.Random(seed + number)
    values = {f"{number}:{i}": rng.randbytes(lengths[i % len(lengths)]) for i in range(64)}
    connection, file = connect()
    # One by one, then all together in one pipeline, then many keys in one request.
    for key, value in values.items():
        connection.sendall(b"set %s 7 0 %d\r\n%s\r\n" % (key.encode(), len(value), value))
        answer(file, b"STORED\r\n")
    digest = hashlib.sha256()
    def value_of(key):
        answer(file, b"VALUE %s 7 %d\r\n" % (key.encode(), len(values[key])))
        data = file.read(len(values[key]) + 2)
        assert data == values[key] + b"\r\n", key
        digest.update(data)
    connection.sendall(b"".join(b"get %s\r\n" % key.encode() for key in values))
    for key in values:
        value_of(key)
        answer(file, b"END\r\n")
    connection.sendall(b"get " + " ".join(values).encode() + b"\r\n")
    for key in values:
        value_of(key)
    answer(file, b"END\r\n")
    connection.sendall(b"set counter%d 0 0 1\r\n0\r\n" % number)
    answer(file, b"STORED\r\n")
    for i in range(1, 500):
        connection.sendall(b"incr counter%d 1\r\n" % number)
        answer(file, b"%d\r\n" % i)
    digests[number] = digest.hexdigest()

threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all(digests), digests
print(*digests)
"""


def exercise(run):
    port = harness.free_port()
    as_root = ["-u", "root"] if harness.is_root() else []
    server = run.start("server", ["memcached", "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 2,
                                  "-m", 128, *as_root])
    run.wait_for_port(port, server)
    result = harness.Result()
    with run.by_ring("four threads"):
        digests = run.run("client", [sys.executable, "-c", CLIENT, port, 5])
    result.answers["values of four threads"] = hashlib.sha256(digests).hexdigest()

    for test, clients in (("set", 8), ("get", 8)):
        number = 2000 if run.leg.measured else 200
        with run.by_ring(f"memcslap {test}"):
            seconds = harness.seconds_of(lambda: run.run("client", [
                "memcslap", "--servers", f"127.0.0.1:{port}", "--test", test,
                "--concurrency", clients, "--execute-number", number]))
        result.rates[f"memcslap {test}, {clients} clients"] = (
            clients * number / seconds, "requests/s")
    return result
