#!/usr/bin/env python3
"""Runs CPython's own test suite of sockets without us, with the library but no daemon, and with both, and compares
test by test.

    cpython.py [all | MODULE...]

The interpreter is the first of PYTHONS that has its tests (Debian keeps them in a package of
their own, libpython3-testsuite). All runs are of the same interpreter; two modules go at a time. Servers and clients of
these tests are threads or processes of one program, so both ends of each connection are ours.
"""

import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import harness

PYTHONS = ("/usr/bin/python3", sys.executable)
# Module -> further arguments. VSOCK tests hang on some machines, with or without us.
MODULES = {
    "test_socket": ["-i", "*VSOCK*"],
    "test_asyncio": [],
    "test_selectors": [],
    "test_ssl": [],
    "test_httplib": [],
    "test_socketserver": ["-u", "network"],
    "test_epoll": [],
    "test_poll": [],
    "test_select": [],
    "test_subprocess": [],
}
# Patterns of tests for every run in CI, by module: the streams, and what waits for them.
QUICK = {
    "test_socket": ["*TCP*", "*Sendfile*", "*Timeout*", "*FileObject*", "*Recvmsg*Stream*",
                    "*SendmsgStream*", "*SocketConnected*", "*Blocking*"],
    "test_asyncio": ["*test_sendfile*", "*test_streams*", "*test_server*", "*test_sock_lowlevel*",
                     "*test_buffered_proto*"],
    "test_selectors": ["*Epoll*", "*Poll*", "*Select*"],
    "test_httplib": [],
    "test_socketserver": [],
    "test_epoll": [],
    "test_poll": [],
    "test_select": [],
    "test_ssl": [],
    # Children by every way: pipes, descriptors closed and kept, vfork and posix_spawn.
    "test_subprocess": ["*ProcessTestCase*", "*RunFuncTestCase*", "*POSIXProcessTestCase*", "*ContextManager*"],
}
# Modules of which bytes must go through rings. Those of the others are a few bytes (epoll; httplib, a few thousand as a rule), and
# pairs of Unix sockets or pipes (selectors, poll, select, subprocess).
MOVING = ("test_socket", "test_ssl", "test_asyncio", "test_socketserver")
# Calls after which a connection is offered: at once, because most of these connections make a few calls and end.
AFTER = "1"
PLAIN, NO_DAEMON, OURS = harness.PLAIN, harness.NO_DAEMON, harness.OURS
# Modules at a time: most of their time is waiting.
AT_ONCE = 2
WATCHDOG_S = 600


def interpreter():
    """A Python that can run its own tests."""
    for python in PYTHONS:
        found = subprocess.run([python, "-c", "import test.test_socket"], capture_output=True)
        if found.returncode == 0:
            return python
    raise harness.Failure("no Python has its own tests; run ci/deps")


# How often a test is run again alone that passed without us and not with us.
TRIES = 5


def passes_alone(leg, python, module, test):
    """Whether a test passes in a leg more often than not when it is run by itself: these tests are full of time
    limits, and this machine may be busy."""
    passed = 0
    for _ in range(TRIES):
        with harness.Run(leg) as run:
            passed += outcomes(run, python, module, [test]).get(test) == "passed"
    print(f"{module} {test}, {leg.name}: failed once, then passed {passed} of {TRIES} times by itself")
    return 2 * passed > TRIES


def outcomes(run, python, module, patterns):
    """{test: outcome} of one run of a module."""
    report = run.directory / f"{module}.xml"
    arguments = [*MODULES[module], *(word for it in patterns for word in ("-m", it))]
    # The code tells that some failed, which the report does too, test by test. One more try for
    # each: these tests are full of time limits, and this machine may be busy.
    output = run.run("server", [python, "-m", "test", "-w", "--junit-xml", report, *arguments, module],
                     codes=range(256))
    if not report.exists():
        raise harness.Failure(f"{module} gave no report:\n{output[-4000:].decode(errors='replace')}")
    result = {}
    again = re.search(rb"Re-running .*", output)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name")
        found = {child.tag for child in case} & {"failure", "error", "skipped"}
        # A test that was tried again is there twice; the better one counts.
        outcome = "passed" if case.get("result") == "completed" and not found else (
            "skipped" if "skipped" in found else "failed")
        if not (again and result.get(name) == "passed"):
            result[name] = outcome
    return result


def main():
    harness.WATCHDOG_S = WATCHDOG_S
    os.environ.setdefault("VMMC_SOCKETS_AFTER", AFTER)
    words = sys.argv[1:]
    chosen = {name: [] for name in MODULES} if words == ["all"] else (
        {name: [] for name in words} if words else QUICK)
    if unknown := set(chosen) - set(MODULES):
        sys.exit(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    python = interpreter()

    def legs_of(module, patterns):
        results, ring = {}, 0
        for leg in (PLAIN, NO_DAEMON, OURS):
            with harness.Run(leg) as run:
                results[leg] = outcomes(run, python, module, patterns)
                ring += run.ring_bytes() if leg.daemon else 0
        counts = ["%d passed of %d" % (collections.Counter(it.values())["passed"], len(it)) for it in results.values()]
        print(f"{module}: {', '.join(counts)}, {ring} ring bytes", flush=True)
        return results, ring

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {module: pool.submit(legs_of, module, patterns) for module, patterns in chosen.items()}
        done = {module: it.result() for module, it in begun.items()}
    different = []
    for module, (results, ring) in done.items():
        for test, plain in results[PLAIN].items():
            for leg in (NO_DAEMON, OURS):
                found = results[leg].get(test, "absent")
                if plain == "passed" != found and not passes_alone(leg, python, module, test):
                    different.append(f"{module} {test}, {leg.name}: {found}, but passed without us")
        if not any(outcome == "passed" for outcome in results[PLAIN].values()):
            different.append(f"{module}: nothing passed, which proves nothing")
        if module in MOVING and ring == 0:
            different.append(f"{module}: no byte went through shared memory")
    if different:
        sys.exit("\n".join(different))


if __name__ == "__main__":
    try:
        main()
    except harness.Failure as failure:
        sys.exit(str(failure))
