#!/usr/bin/env python3
"""Runs the programs named on the command line, or all, and prints what they measured.

    run.py [--legs LEG,...] [--json FILE] [PROGRAM...]

Rates are printed and not judged: this machine may be busy. Answers are judged.
"""

import argparse
import json
import sys

import haproxy
import harness
import http_server
import iperf3
import memcached
import nginx
import no_part
import nuttcp
import postgres
import redis_server
import rsync
import sockperf

PROGRAMS = {
    "redis": redis_server,
    "memcached": memcached,
    "http": http_server,
    "nginx": nginx,
    "haproxy": haproxy,
    "postgres": postgres,
    "iperf3": iperf3,
    "nuttcp": nuttcp,
    "sockperf": sockperf,
    "rsync": rsync,
    "no-part": no_part,
}


def table(results):
    """Lines of a table of all rates: plain, ours, ratio."""
    rows = [("program", "measure", "plain", "ours", "ratio", "unit")]
    for name, legs in results.items():
        plain = legs.get(harness.PLAIN, harness.Result()).rates
        ours = legs.get(harness.OURS, harness.Result()).rates
        for measure in {**plain, **ours}:
            before, unit = plain.get(measure) or (None, ours[measure][1])
            after, _ = ours.get(measure) or (None, unit)
            ratio = f"{after / before:.2f}" if before and after else "-"
            number = lambda value: "-" if value is None else f"{value:,.0f}"
            rows.append((name, measure, number(before), number(after), ratio, unit))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths)]
        right = [cell.rjust(width) for cell, width in zip(row[2:5], widths[2:])]
        yield "  ".join([*left, *right, row[5]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--legs", help="comma-separated; default all: " + ", ".join(
        leg.name for leg in harness.LEGS))
    parser.add_argument("--json", metavar="FILE", help="also write the rates there")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    legs = harness.LEGS
    if options.legs:
        by_name = {leg.name: leg for leg in harness.LEGS}
        try:
            legs = tuple(by_name[name.strip()] for name in options.legs.split(","))
        except KeyError as error:
            parser.error(f"no such leg: {error}")

    results, failures = {}, {}
    for name in options.programs or PROGRAMS:
        try:
            results[name] = harness.exercise(name, PROGRAMS[name], legs)
        except harness.Failure as failure:
            print(f"{failure}\n", file=sys.stderr)
            failures[name] = failure

    print()
    for line in table(results):
        print(line)
    if options.json:
        rates = {
            name: {leg.name: result.rates for leg, result in by_leg.items()}
            for name, by_leg in results.items()
        }
        with open(options.json, "w") as file:
            json.dump(rates, file, indent=2)
    if failures:
        # Again, and last, where one looks first.
        for name, failure in failures.items():
            print(f"\nfailed: {name}: {failure}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
