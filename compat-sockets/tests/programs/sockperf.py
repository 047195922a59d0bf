"""sockperf over TCP: a ping-pong of one connection and a stream, by blocking calls and by epoll."""

import re

import harness

UPGRADES = True


def exercise(run):
    result = harness.Result()
    kinds = (("recvfrom", []), ("epoll", ["-F", "epoll"]), ("select", ["-F", "select"]))
    for how, options in kinds if run.leg.measured else kinds[:1]:
        port = harness.free_port()
        more = []
        if options:
            feed = run.directory / f"feed-{how}"
            feed.write_text(f"T:127.0.0.1:{port}\n")
            more = ["-f", feed, *options]
        else:
            more = ["-i", "127.0.0.1", "-p", port, "--tcp"]
        server = run.start("server", [harness.find("sockperf"), "server", *more])
        run.wait_for_port(port, server)
        # Its own check that every answer is the echo of its question.
        with run.by_ring(f"server by {how}"):
            report = run.run("client", [
                harness.find("sockperf"), "ping-pong", "-i", "127.0.0.1", "-p", port, "--tcp",
                # Its tables are for at most so many messages a second, which we exceed otherwise.
                "--mps", 100_000,
                "-t", 1, "-m", 64, "--data-integrity"]).decode()
        errors = re.search(r"dropped messages = (\d+); # duplicated messages = (\d+); "
                           r"# out-of-order messages = (\d+)", report)
        if not errors or any(count != "0" for count in errors.groups()):
            raise harness.Failure(f"sockperf with {how} reports:\n{report}")
        # Measures aside, it says the same.
        words = re.sub(r"\d[\d.]*", "#", report[report.index("Summary") if "Summary" in report else 0:])
        if not options: # which every leg runs
            result.answers["what the report tells"] = sorted({
                " ".join(line.split()) for line in words.splitlines()
                if "dropped" in line or "observations" in line or "percentile" in line})
        latency = float(re.search(r"avg-latency=([\d.]+)", report)[1])
        result.rates[f"ping-pong 64 B, server by {how}"] = (1e6 / (2 * latency), "round trips/s")
        server.send_signal(2)
        server.wait(harness.WATCHDOG_S)
    return result
