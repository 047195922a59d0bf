"""A peer for tests/c/types.x, of RFC 5531 and 4506 alone and without a line of ours: plain sockets, record marking,
AUTH_SYS.

    types.py client PORT   calls a server, checks what comes back, and prints how many calls that were
    types.py server        prints its port, and serves until its input ends
"""
import socket
import struct
import sys
import threading
import time

PROGRAM, VERSION = 0x20001234, 1
ECHOES = range(1, 14)
NOTHING, ECHO_INT, ECHO_RUN, ECHO_BULK, COUNT, SLEEP, WHO = 0, 1, 6, 11, 14, 16, 17
NONE, SYS = (0, b""), 1
SUCCESS, PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL, GARBAGE_ARGS = range(5)
RPC_MISMATCH, AUTH_ERROR, REJECTEDCRED = 0, 1, 2
RUN_BYTES = 4 * 21
LAST = 1 << 31


def words(*them):
    return b"".join(struct.pack(">I", word & 0xFFFFFFFF) for word in them)


def opaque(body):
    return words(len(body)) + body + bytes(-len(body) % 4)


class Reader:
    """Takes values out of a record; `struct.error` when there are not so many."""

    def __init__(self, record):
        self.record, self.at = record, 0

    def word(self):
        self.at += 4
        return struct.unpack_from(">I", self.record, self.at - 4)[0]

    def opaque(self):
        length = self.word()
        if self.at + length > len(self.record):
            raise struct.error("too short")
        body = self.record[self.at:self.at + length]
        self.at += length + -length % 4
        return body

    def auth(self):
        return self.word(), self.opaque()

    def rest(self):
        return self.record[self.at:]


def exactly(stream, length):
    got = b""
    while len(got) < length:
        some = stream.recv(length - len(got))
        if not some:
            raise EOFError
        got += some
    return got


def receive(stream):
    """The next record, of however many fragments."""
    record, last = b"", False
    while not last:
        mark = struct.unpack(">I", exactly(stream, 4))[0]
        last = mark & LAST != 0
        record += exactly(stream, mark & ~LAST)
    return record


def send(stream, record, most=1000):
    """A record in fragments of at most so many bytes."""
    parts = [record[at:at + most] for at in range(0, len(record), most)]
    stream.sendall(b"".join(
        words(len(part) | (LAST if at == len(parts) - 1 else 0)) + part for at, part in enumerate(parts)))


def auth_sys(uid, gid, gids, machine=b"python"):
    return SYS, words(7) + opaque(machine) + words(uid, gid, len(gids), *gids)


def who(flavor, body):
    """What WHO says of these credentials."""
    if flavor != SYS:
        return -1
    sys_ = Reader(body)
    sys_.word()
    machine, uid, gid, count = sys_.opaque(), sys_.word(), sys_.word(), sys_.word()
    return uid + 1000 * gid + len(machine) + sum(sys_.word() * (at + 3) for at in range(count))


# As a client.

class Client:
    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.xid = self.calls = 0

    def call(self, procedure, arguments=b"", credential=NONE, program=PROGRAM, version=VERSION, rpc=2):
        """What the reply says behind its number."""
        self.xid += 1
        self.calls += 1
        head = words(self.xid, 0, rpc, program, version, procedure, credential[0]) + opaque(credential[1])
        send(self.stream, head + words(0, 0) + arguments)
        reply = Reader(receive(self.stream))
        assert (reply.word(), reply.word()) == (self.xid, 1), reply.record
        return reply.rest()

    def results(self, *arguments, **how):
        said = self.call(*arguments, **how)
        assert said[:16] == words(0, 0, 0, SUCCESS), said
        return said[16:]


def client(port):
    server = Client(port)
    assert server.results(NOTHING) == b""
    assert server.results(ECHO_INT, words(-5)) == words(-5)
    run = words(-5, 7, -3, 65535, 120, 200, -1000000, 4000000000, 1, -5, *range(11))
    assert len(run) == RUN_BYTES and server.results(ECHO_RUN, run) == run
    for length in (0, 1, 3, 999, 1000, 70000, 1000001):
        bulk = opaque(bytes(at * 7 % 251 for at in range(length)))
        assert server.results(ECHO_BULK, bulk) == bulk, length
        assert server.results(COUNT, bulk) == words(length)
    sys_ = auth_sys(1234, 56, [100, 101])
    assert server.results(WHO) == words(-1)
    assert server.results(WHO, credential=sys_) == words(who(*sys_))
    full = auth_sys(0, 0, range(16), b"m" * 255)
    assert server.results(WHO, credential=full) == words(who(*full))
    refusals = [
        (server.call(999), words(0, 0, 0, PROC_UNAVAIL)),
        (server.call(NOTHING, version=7), words(0, 0, 0, PROG_MISMATCH, VERSION, VERSION)),
        (server.call(NOTHING, program=PROGRAM + 1), words(0, 0, 0, PROG_UNAVAIL)),
        (server.call(ECHO_RUN, run[:-4]), words(0, 0, 0, GARBAGE_ARGS)),
        (server.call(NOTHING, credential=(77, b"body")), words(1, AUTH_ERROR, REJECTEDCRED)),
        (server.call(NOTHING, rpc=3), words(1, RPC_MISMATCH, 2, 2)),
    ]
    for said, expected in refusals:
        assert said == expected, (said, expected)
    assert server.results(ECHO_INT, words(7)) == words(7)
    print(f"all as expected, {server.calls} calls")


# As a server.

def answer(record):
    """The reply to a call; of flavors but two it knows nothing."""
    call = Reader(record)
    xid, kind, rpc, program, version, procedure = (call.word() for _ in range(6))
    assert (kind, rpc) == (0, 2), record
    credential, _ = call.auth(), call.auth()
    if credential[0] not in (0, SYS):
        return words(xid, 1, 1, AUTH_ERROR, REJECTEDCRED)
    accepted = words(xid, 1, 0, 0, 0)
    if program != PROGRAM:
        return accepted + words(PROG_UNAVAIL)
    if version != VERSION:
        return accepted + words(PROG_MISMATCH, VERSION, VERSION)
    arguments = call.rest()
    if procedure == ECHO_RUN and len(arguments) != RUN_BYTES:
        return accepted + words(GARBAGE_ARGS)
    if procedure == NOTHING:
        results = b""
    elif procedure in ECHOES:
        results = arguments
    elif procedure == COUNT:
        results = words(len(call.opaque()))
    elif procedure == SLEEP:
        results = arguments
        time.sleep(call.word() / 1000)
    elif procedure == WHO:
        results = words(who(*credential))
    else:
        return accepted + words(PROC_UNAVAIL)
    return accepted + words(SUCCESS) + results


def serve(stream):
    try:
        while True:
            send(stream, answer(receive(stream)), 60000)
    except (EOFError, ConnectionError):
        stream.close()


def accept(listener):
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=serve, args=(stream,), daemon=True).start()


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if sys.argv[1] == "client":
    client(int(sys.argv[2]))
else:
    server()
