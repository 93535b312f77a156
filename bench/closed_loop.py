#!/usr/bin/env python3
"""The speed of `dsv4 serve` in a closed loop: each client sends a new prompt when its reply ends. Needs only the
standard library.

    closed_loop.py BINARY [--clients 64] [--prompt 5120] [--reply 640] [--seconds 250] [--counted 0.4]
                   [--burst 64x512] [--runs 3] [--bar FIGURE<=VALUE] [--machine NAME] MODEL FLAGS ...
    e.g. bench/closed_loop.py build/release/dsv4 --device cuda --synthetic flash --layers 36
         bench/closed_loop.py build/release/dsv4 --seconds 0 --burst 64x512 --device cuda --synthetic flash --layers 36

Lengths of prompts and replies vary by up to a quarter, so that clients do not keep step. Prompts are random ids, no two
have a common beginning. Only the middle of the run counts: --counted is its share of --seconds. All requests end before
the program does. It counts the tokens of all replies and compares the sums with the server's metrics.

Prints one JSON object for the loop and one for the bursts:

    tokens_per_s       prompt and output tokens; tokens_in_per_s, tokens_out_per_s: each of them
    first_token_s      median, p90 and max of the times from sending to the first token, for first tokens that count
    gap_ms             median, p99 and max of the times between two tokens of a reply
    burst_s            of prompts that are sent at once to an idle server: median and last first token, for each run;
                       spread is the difference of the runs divided by their median

A prompt counts when its first token arrives. --bar checks a figure and may be repeated, for example
`--bar "tokens_per_s>=7300" --bar "first_token_s.median<=2"`. The exit status is 1 if a bar does not hold. --machine
also prints a line of bench/results for each figure.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time

from serve_load import HERE, VOCABULARY, Exchange, load, percentile, say

SPREAD = 0.25      # of lengths, to both sides
BURST_TOKENS = 16  # output tokens of each prompt of a burst
BAR = re.compile(r"^([a-z0-9_.]+)(<=|>=)([0-9.]+)$")
FIGURES = {"tokens_per_s": "tokens/s", "tokens_in_per_s": "tokens/s", "tokens_out_per_s": "tokens/s",
           "first_token_s.median": "s", "first_token_s.p90": "s", "first_token_s.max": "s",
           "gap_ms.median": "ms", "gap_ms.p99": "ms", "gap_ms.max": "ms"}
BURST_FIGURES = {"burst_s.median": "s", "burst_s.last": "s", "burst_s.median_spread": "", "burst_s.last_spread": ""}


def bar_of(text):
    found = BAR.match(text)
    if not found:
        raise argparse.ArgumentTypeError("%r is no bar: write a figure, <= or >=, and a number" % text)
    return found[1], found[2], float(found[3])


def burst_of(text):
    count, length = text.split("x")
    return int(count), int(length)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("binary")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=5120, help="mean number of prompt tokens (default 5120)")
    parser.add_argument("--reply", type=int, default=640, help="mean number of output tokens (default 640)")
    parser.add_argument("--seconds", type=float, default=250, help="time in which requests begin (default 250; 0: no loop)")
    parser.add_argument("--counted", type=float, default=0.4, help="share of the time that counts, its middle (default 0.4)")
    parser.add_argument("--burst", type=burst_of, help="prompts x tokens that are sent at once, such as 64x512")
    parser.add_argument("--runs", type=int, default=3, help="bursts (default 3)")
    parser.add_argument("--bar", type=bar_of, action="append", default=[], metavar="FIGURE<=VALUE")
    parser.add_argument("--machine", help="print lines of bench/results for this machine")
    options, flags = parser.parse_known_args()
    if options.seconds <= 0 and options.burst is None:
        parser.error("nothing to measure: --seconds is 0 and there is no --burst")
    if not 0 < options.counted <= 1:
        parser.error("--counted is a share between 0 and 1")
    known = [*(FIGURES if options.seconds > 0 else {}), *(BURST_FIGURES if options.burst else {})]
    for name, _, _ in options.bar:
        if name not in known:
            parser.error("--bar: there is no figure %r; use one of %s" % (name, ", ".join(known)))
    return options, flags


class Client(threading.Thread):
    """Sends a new prompt whenever its reply ends, until `end`."""

    def __init__(self, server, options, number, end):
        super().__init__(daemon=True)
        self.server, self.options, self.random, self.end = server, options, random.Random(number), end
        self.exchanges, self.fault = [], None

    def about(self, mean):
        return max(1, round(mean * self.random.uniform(1 - SPREAD, 1 + SPREAD)))

    def run(self):
        while time.monotonic() < self.end and self.fault is None:
            ids = self.random.choices(range(10, VOCABULARY), k=self.about(self.options.prompt))
            exchange = Exchange(ids, self.about(self.options.reply))
            try:
                with self.server.socket(timeout=600) as sock:
                    exchange.run(sock)
            except OSError as error:
                self.fault = repr(error)
            exchange.body = {"max_tokens": exchange.body["max_tokens"]}  # the ids are not needed any more
            if not exchange.is_complete():
                self.fault = self.fault or "%d of %d tokens: %r" % (len(exchange.times), exchange.body["max_tokens"], exchange.head)
            self.exchanges.append(exchange)


def of(values, scale, **shares):
    """The median, the maximum, and the percentiles with these names."""
    figures = {"median": statistics.median(values), "max": max(values), **{k: percentile(values, v) for k, v in shares.items()}}
    return {k: round(scale * v, 4) for k, v in figures.items()}


def figures_of(exchanges, begin, end):
    """The figures of the time from `begin` to `end`; None: no reply began and continued in it."""
    counts = lambda t: begin <= t < end
    began = [e for e in exchanges if counts(e.times[0])]
    gaps = [b - a for e in exchanges for a, b in zip(e.times, e.times[1:]) if counts(b)]
    if not began or not gaps:
        return None
    read = sum(e.prompt for e in began) / (end - begin)
    written = sum(counts(t) for e in exchanges for t in e.times) / (end - begin)
    return {"counted_s": round(end - begin, 3), "replies": len(began), "tokens_per_s": round(read + written, 1),
            "tokens_in_per_s": round(read, 1), "tokens_out_per_s": round(written, 1),
            "first_token_s": of([e.times[0] - e.start_time for e in began], 1, p90=0.9), "gap_ms": of(gaps, 1e3, p99=0.99)}


def run_loop(server, options):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [server.metric(name) for name in names]
    start = time.monotonic()
    end = start + options.seconds
    clients = [Client(server, options, i, end) for i in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    faults = [client.fault for client in clients if client.fault]
    if faults:
        sys.exit("%d of %d clients failed: %s\n%s" % (len(faults), len(clients), faults[0], server.read_log()[-2000:]))
    exchanges = [e for client in clients for e in client.exchanges]
    server.wait_until_idle()
    sums = [sum(e.prompt for e in exchanges), sum(len(e.times) for e in exchanges)]
    counted = [server.metric(name) - b for name, b in zip(names, before)]
    if sums != counted:
        sys.exit("the clients have %d prompt and %d output tokens, the server counts %d and %d" % (*sums, *counted))
    margin = options.seconds * (1 - options.counted) / 2
    figures = figures_of(exchanges, start + margin, end - margin)
    if figures is None:
        sys.exit("no reply began in the %.1f s that count: use more --seconds" % (options.seconds - 2 * margin))
    return {"clients": options.clients, "prompt": options.prompt, "reply": options.reply, "seconds": options.seconds,
            "requests": len(exchanges), **figures}


def run_bursts(server, options):
    count, length = options.burst
    load(server, count, 8, 6, 1)  # warm-up: captures the CUDA graphs of that size
    runs = [load(server, count, length, BURST_TOKENS, 1000 + run)["first_token_s"] for run in range(options.runs)]
    found = {}
    for name in ("median", "last"):
        values = [run[name] for run in runs]
        middle = statistics.median(values)
        found.update({name: round(middle, 4), name + "_runs": [round(v, 4) for v in values],
                      name + "_spread": round((max(values) - min(values)) / middle, 4)})
    return {"burst": "%dx%d" % options.burst, "burst_s": found}


def value_of(figures, name):
    """The figure with that name, such as gap_ms.p99; None: there is none."""
    for part in name.split("."):
        figures = figures.get(part) if isinstance(figures, dict) else None
    return figures


def result_lines(figures, load_name, options, command):
    version = subprocess.run([options.binary, "--version"], capture_output=True, text=True).stdout
    commit = re.search(r"commit: ([0-9a-f]*)", version)[1][:7]
    limits = {name: limit for name, _, limit in options.bar}
    for name, unit in {**FIGURES, **BURST_FIGURES}.items():
        value = value_of(figures, name)
        if value is not None and unit:
            yield {"commit": commit, "machine": options.machine, "command": command, "what": name + " @ " + load_name,
                   "value": value, "unit": unit, "limit": limits.get(name)}


def measure(server, options, flags, command):
    """Prints the figures of each load. Returns them together."""
    loads = []
    if options.burst:
        loads.append(("%d x %d at once" % options.burst, lambda: run_bursts(server, options)))
    if options.seconds > 0:
        name = "%d clients, %d in, %d out" % (options.clients, options.prompt, options.reply)
        loads.append((name, lambda: run_loop(server, options)))
    figures = {}
    for name, run in loads:
        found = run()
        figures.update(found)
        print(json.dumps({"load": name, **found, "flags": flags}), flush=True)
        for line in result_lines(found, name, options, command) if options.machine else []:
            print(json.dumps(line), flush=True)
    return figures


def main():
    command = "bench/closed_loop.py " + " ".join(sys.argv[1:])
    options, flags = arguments()
    sys.argv[1:] = [options.binary]  # tests/server/support.py reads it
    sys.path.insert(0, str(HERE.parent / "tests" / "server"))
    from support import Server

    threads = flags[flags.index("--threads") + 1] if "--threads" in flags else "2"
    server = Server(*flags, threads=threads, start_timeout=600)
    say("the server runs:", server.read_log().splitlines()[-1][:110])
    try:
        figures = measure(server, options, flags, command)
    except BaseException:  # its process would outlive this one
        server.process.kill()
        raise
    if server.stop() != 0:
        sys.exit("the server did not end well: " + server.last_log[-2000:])
    failed = []
    for name, relation, limit in options.bar:
        value = value_of(figures, name)
        if value > limit if relation == "<=" else value < limit:
            failed.append("%s is %s, and must be %s %s" % (name, value, relation, limit))
    say("failed bars: " + ("; ".join(failed) or "none"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
