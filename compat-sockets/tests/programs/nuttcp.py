"""nuttcp: bulk by blocking calls in both directions and several streams, steered over a control
connection that the server forks for."""

import re

import harness

UPGRADES = True


def exercise(run):
    port = harness.free_port()
    server = run.start("server", ["nuttcp", "-S", "--nofork", "-P", port])
    run.wait_for_port(port, server)
    result = harness.Result()
    for name, options in (("transmit", ["-t"]), ("receive", ["-r"]), ("4 streams", ["-N", "4"])):
        # One port a stream; those of the runs before may not be free again yet.
        data_port = harness.free_ports(4)
        with run.by_ring(name):
            report = run.run("client", ["nuttcp", *options, "-P", port, "-p", data_port, "-n", "512m",
                                        "-fparse", "127.0.0.1"]).decode()
        megabytes = float(re.search(r"megabytes=([\d.]+)", report)[1])
        rate = float(re.search(r"rate_Mbps=([\d.]+)", report)[1])
        result.answers[f"{name}, megabytes"] = round(megabytes)
        result.rates[name] = (rate, "Mbit/s")
    return result
