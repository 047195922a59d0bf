"""iperf3 in both directions: bulk by non-blocking writes and select, and a control connection
that is idle meanwhile. With a number of bytes the reports must say the same in all legs."""

import json

import harness

UPGRADES = True
# What iperf3 sends at a time, unless told otherwise.
BLOCK = 128 << 10


def names_in(report):
    """The names of all fields, whatever they are of; of a list's items, of all together."""
    if isinstance(report, dict):
        return {name: names_in(value) for name, value in sorted(report.items())}
    if isinstance(report, list):
        names = [names_in(item) for item in report]
        return [name for at, name in enumerate(names) if name not in names[:at]]
    return None


def exercise(run):
    port = harness.free_port()
    server = run.start("server", ["iperf3", "-s", "-B", "127.0.0.1", "-p", port, "--forceflush"])
    result = harness.Result()

    def measure(name, *options, asked=None):
        # The server says so each time that it listens: it closes its listening socket after a
        # test and opens another, and who connects before that is told "busy", or is refused.
        test = f"(test #{len(result.rates) + len(result.answers) + 1})".encode()
        run.wait_until(lambda: test in run.output(server), f"free for {name}")
        client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-J", *(("-n", asked) if asked else ("-t", 1)), *options]
        with run.by_ring(name):
            report = json.loads(run.run("client", client, codes=(0, 1)))
        if "error" in report:
            raise harness.Failure(f"iperf3 {name}: {report['error']}")
        ends = report["end"]
        if asked:
            # So many bytes went, and the report tells all that it tells of TCP. The receiver counts until it is
            # told that the test is over, with bytes under way; but a client that receives ends the test when it
            # has them all. Who sends may send another block: by plain TCP too, by its count of blocks in a row.
            sent, received = (ends[way]["bytes"] for way in ("sum_sent", "sum_received"))
            all_went = received >= asked if "-R" in options else sent in (asked, asked + BLOCK)
            if not all_went or not 0 < received <= sent:
                raise harness.Failure(f"iperf3 {name}: {sent} bytes sent, {received} received, {asked} asked for")
            result.answers[name] = names_in(report)
            return
        rate = 0
        for suffix in ("", "_bidir_reverse"):
            if f"sum_sent{suffix}" not in ends:
                continue
            sent = ends[f"sum_sent{suffix}"]["bytes"]
            received = ends[f"sum_received{suffix}"]["bytes"]
            if not 0 < received <= sent:
                raise harness.Failure(f"iperf3 {name}: {sent} bytes sent, {received} received")
            rate += ends[f"sum_received{suffix}"]["bits_per_second"] / 1e6
        result.rates[name] = (rate, "Mbit/s")

    measure("client to server")
    measure("server to client (-R)", "-R")
    measure("4 streams (-P 4)", "-P", "4")
    measure("both ways at once (--bidir)", "--bidir")
    # A whole number of its blocks.
    measure("64 MiB", asked=64 << 20)
    measure("64 MiB from the server", "-R", asked=64 << 20)
    return result
