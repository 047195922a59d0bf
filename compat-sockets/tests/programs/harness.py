"""Running real programs with and without us.

A program under test is a pair: a server and its clients, both ordinary programs that know
nothing of us. It is exercised several times, in the legs of LEGS below, and must answer the
same in all of them. In the legs where both ends are ours, bytes of each of its cases must have gone through
shared memory (`Run.by_ring`): the daemon's own count says so, otherwise the leg would prove nothing.

Nothing here sleeps to wait for something: readiness is a listening socket, and the time limits
are watchdogs that end a hang and show where it was.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
RELEASE = ROOT / "target" / "release"
LIBRARY = RELEASE / "libvmmc_sockets.so"
DAEMON = RELEASE / "vmmcd"
SHRIMP = RELEASE / "shrimp"

# Ends a hang; long enough for a loaded machine.
WATCHDOG_S = 300


class Failure(Exception):
    """A program did not do what it does without us."""


@dataclasses.dataclass(frozen=True)
class Leg:
    """One way of running a pair of programs."""

    name: str
    server_preloaded: bool
    client_preloaded: bool
    daemon: bool
    # Whether its rates are worth measuring: else programs exercise correctness only.
    measured: bool

    @property
    def both_ours(self):
        return self.server_preloaded and self.client_preloaded and self.daemon


PLAIN = Leg("plain", False, False, False, True)
NO_DAEMON = Leg("no daemon", True, True, False, False)
OURS = Leg("ours", True, True, True, True)
SERVER_ONLY = Leg("server only", True, False, True, False)
CLIENT_ONLY = Leg("client only", False, True, True, False)
LEGS = (PLAIN, NO_DAEMON, OURS, SERVER_ONLY, CLIENT_ONLY)


@dataclasses.dataclass
class Result:
    """What a program answered, which must not depend on the leg, and how fast it was."""

    answers: dict = dataclasses.field(default_factory=dict)
    # Name of a measure -> (value, unit). More is better.
    rates: dict = dataclasses.field(default_factory=dict)


def free_ports(count):
    """The first of so many consecutive free ports, none of which the kernel gives to clients."""
    while True:
        # Not of the numbers that a program's test has sown, which are the same everywhere.
        first = random.SystemRandom().randrange(10_000, 30_000)
        probes = []
        try:
            for port in range(first, first + count):
                probes.append(socket.socket())
                probes[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()


def free_port():
    """A port that nobody listens at just now, and that the kernel gives to no client meanwhile."""
    return free_ports(1)


def is_root():
    """Whether processes run as root: some servers refuse to, unless told."""
    return os.geteuid() == 0


def find(program):
    """The path of a program; servers live in sbin, which is not on everybody's path."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Failure(f"{program} is not installed; run ci/deps")
    return path


def seconds_of(action):
    """How long something takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


class Run:
    """One leg of one program: a directory, a daemon where the leg has one, and every process
    that was started, all gone when the context ends."""

    def __init__(self, leg, user=None):
        self.leg = leg
        # Whom every process runs as, the daemon included; None: who we are.
        self.user = user if os.geteuid() == 0 else None
        self.failed = False
        # Bytes through rings, by case.
        self.moved = {}
        self._processes = []  # (name, Popen, log file)

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vmmc-programs-"))
        if self.user:
            shutil.chown(self.directory, self.user)
        try:
            if self.leg.daemon:
                self._start_daemon()
        except BaseException:
            self.failed = True
            self._end()
            raise
        return self

    def __exit__(self, kind, _value, _traceback):
        self.failed = kind is not None
        self._end()

    # --- processes

    def start(self, side, argv, **more):
        """Starts a process of a side, "server" or "client", with its output in a log."""
        return self._spawn(os.path.basename(argv[0]), argv, self._environment(side), **more)

    def run(self, side, argv, stdin=b"", codes=(0,), **more):
        """Runs a process of a side to its end and returns what it wrote to standard output. It must
        end with one of the codes."""
        argv = [str(word) for word in argv]
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
            argv,
            env=self._environment(side),
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            user=self.user,
            **more,
        ) as process:
            try:
                output, _ = process.communicate(stdin, timeout=WATCHDOG_S)
            except subprocess.TimeoutExpired:
                where = self._where_everybody_is(process)
                _kill_group(process)
                raise Failure(f"{argv} hangs for {WATCHDOG_S} s\n{where}") from None
            except BaseException:
                _kill_group(process)
                raise
            if process.returncode not in codes:
                errors.seek(0)
                text = (output[-2000:] + errors.read()[-4000:]).decode(errors="replace")
                raise Failure(f"{argv} ended with {process.returncode}:\n{text}")
            return output

    def wait_for_port(self, port, process):
        """Returns when something listens at the port. The kernel's table is asked, and nothing
        connected: some servers take a connection that says nothing for a failed client."""

        def listens():
            listening = f":{port:04X} 00000000:0000 0A "
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                for line in pathlib.Path(table).read_text().splitlines():
                    if listening in line.replace("0" * 24, "", 2):
                        return
            raise OSError(f"nobody listens at port {port}")

        self._wait(process, listens)

    def wait_until(self, condition, what):
        """Returns when the condition holds; it is asked again and again."""
        deadline = time.monotonic() + WATCHDOG_S
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(f"still not {what} after {WATCHDOG_S} s\n{self._where_everybody_is()}")
            time.sleep(0.02)

    def expect_exit(self, process, code=0):
        """Waits for a started process to end by itself."""
        try:
            actual = process.wait(WATCHDOG_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"{process.args[0]} does not end\n{self._where_everybody_is()}") from None
        if actual != code:
            raise Failure(f"{process.args[0]} ended with {actual}, expected {code}")

    def output(self, process):
        """What a started process has written so far."""
        log = next(log for _, started, log in self._processes if started is process)
        # By its name: the process writes where the file that both share stands.
        return pathlib.Path(log.name).read_bytes()

    # --- what the daemon says

    def stat(self):
        """The daemon's view, as `shrimp stat --json` prints it."""
        output = subprocess.run(
            [SHRIMP, "stat", "--json"],
            env=self._environment(None),
            check=True,
            capture_output=True,
            timeout=WATCHDOG_S,
        ).stdout
        return json.loads(output)

    def ring_bytes(self):
        """Bytes that went through rings instead of TCP, closed connections included."""
        return ring_bytes(self.stat())

    @contextlib.contextmanager
    def by_ring(self, case):
        """What is done within goes through rings, at least in part, where both ends are ours."""
        if not self.leg.both_ours:
            yield
            return
        before = self.ring_bytes()
        yield
        self.moved[case] = self.ring_bytes() - before
        if self.moved[case] <= 0:
            raise Failure(f"{case}: no byte went through shared memory")

    # --- inside

    def _environment(self, side):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("VMMC_")
        }
        preload = {
            "server": self.leg.server_preloaded,
            "client": self.leg.client_preloaded,
            None: False,
        }[side]
        if preload:
            before = environment.get("LD_PRELOAD")
            environment["LD_PRELOAD"] = f"{LIBRARY}:{before}" if before else str(LIBRARY)
        # Without a daemon the library must find none, and start none.
        environment["VMMC_SOCKET"] = str(self._socket)
        environment["VMMC_DAEMON"] = "none"
        for name in PASSED_ON:
            if name in os.environ:
                environment[name] = os.environ[name]
        return environment

    @property
    def _socket(self):
        return self.directory / "vmmcd.sock"

    def _start_daemon(self):
        process = self._spawn(
            "vmmcd", [DAEMON, "--socket", self._socket], self._environment(None)
        )

        def connect():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.connect(str(self._socket))

        self._wait(process, connect)

    def _spawn(self, name, argv, environment, **more):
        log = open(self.directory / f"{name}-{len(self._processes)}.log", "w+b")
        process = subprocess.Popen(
            [str(word) for word in argv],
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=self.user,
            **more,
        )
        self._processes.append((name, process, log))
        return process

    def _wait(self, process, connect):
        deadline = time.monotonic() + WATCHDOG_S
        while True:
            try:
                return connect()
            except OSError as error:
                if process.poll() is not None:
                    raise Failure(f"{process.args[0]} ended with {process.returncode}") from None
                if time.monotonic() > deadline:
                    raise Failure(f"{process.args[0]} cannot be reached: {error}") from None
                time.sleep(0.01)

    def _where_everybody_is(self, *others):
        lines = []
        for process in [*others, *(process for _, process, _ in self._processes)]:
            for task in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
                try:
                    state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    call = (task / "syscall").read_text().strip()
                    name = (task / "comm").read_text().strip()
                    lines.append(f"  {name} {task.name}: state {state}, system call {call}")
                except OSError:
                    pass
        return "\n".join(lines)

    def _end(self):
        # The daemon was started first and goes last: it may have to notice the others' end.
        for name, process, log in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    print(f"  {name} ({process.pid}) did not end when asked to", file=sys.stderr)
            _kill_group(process)
            process.wait()
            if self.failed:
                log.seek(0)
                text = log.read()[-6000:].decode(errors="replace").rstrip()
                print(f"--- output of {name}\n{text}\n---", file=sys.stderr)
            log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


# Settings of ours that a person who runs this by hand may want to reach the programs.
PASSED_ON = ("VMMC_LOG", "VMMC_WAIT", "VMMC_SPIN_US", "VMMC_SOCKETS_AFTER")


def ring_bytes(stat):
    """Bytes through rings in what `shrimp stat --json` printed."""
    live = sum(connection["ring_bytes"] for connection in stat["connections"])
    return live + stat["daemon"]["counters"]["ended_ring_bytes"]


def _kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _interrupted(number, _frame):
    sys.exit(128 + number)


# Ended from outside: leave through the contexts, so that nothing started here stays behind.
signal.signal(signal.SIGTERM, _interrupted)
signal.signal(signal.SIGHUP, _interrupted)


def exercise(name, program, legs):
    """Runs one program in all legs and returns {leg: Result}; raises Failure."""
    results = {}
    for leg in legs:
        print(f"{name}: {leg.name} ...", end=" ", flush=True)
        started = time.monotonic()
        try:
            with Run(leg, getattr(program, "USER", None)) as run:
                result = program.exercise(run)
                ring = run.ring_bytes() if leg.daemon else 0
                if leg.both_ours and program.UPGRADES and not run.moved:
                    raise Failure("nobody looked what went through shared memory")
                if leg.daemon and not leg.both_ours and ring != 0 and leg not in getattr(
                    program, "SERVERS_TALK_IN", ()
                ):
                    raise Failure(f"{ring} bytes went into a ring that has no other end")
        except Failure as failure:
            print("FAILED")
            raise Failure(f"{name}, {leg.name}: {failure}") from None
        print(f"ok, {time.monotonic() - started:.1f} s" + (f", {ring} ring bytes" if ring else ""))
        for case, moved in run.moved.items():
            print(f"    {case}: {moved} ring bytes")
        results[leg] = result
        expected = results[legs[0]].answers
        for question in {**expected, **result.answers}:
            if expected.get(question) != result.answers.get(question):
                raise Failure(
                    f"{name}, {leg.name}: {question}: {result.answers.get(question)!r}, "
                    f"but {legs[0].name} {expected.get(question)!r}"
                )
    return results
