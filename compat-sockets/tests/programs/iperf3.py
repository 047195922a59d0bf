"""iperf3 in both directions: bulk by non-blocking writes and select, and a control connection
that is idle meanwhile."""

import json

import harness

UPGRADES = True


def exercise(run):
    port = harness.free_port()
    server = run.start("server", ["iperf3", "-s", "-B", "127.0.0.1", "-p", port, "--forceflush"])
    result = harness.Result()

    def measure(name, *options):
        # The server says so each time that it listens: it closes its listening socket after a
        # test and opens another, and who connects before that is told "busy", or is refused.
        test = f"(test #{len(result.rates) + 1})".encode()
        run.wait_until(lambda: test in run.output(server), f"free for {name}")
        client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-J", "-t", 1, *options]
        report = json.loads(run.run("client", client, codes=(0, 1)))
        if "error" in report:
            raise harness.Failure(f"iperf3 {name}: {report['error']}")
        ends = report["end"]
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
    return result
