#!/usr/bin/env python3
"""By hand: what batching gains and what the server costs, with the nano model.

    measure.py BINARY [TOKENS] [THREADS]

Tokens a second of 1, 2, 4, 8 and 16 streams; and the processor time of a token of `dsv4 serve` (one stream) beside
that of `dsv4 generate`, alternating, with medians. Processor time does not depend on what else runs, but for caches. One JSON
object.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

TOKENS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 300
THREADS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 1
ROUNDS = 5

from support import BINARY, Server, in_parallel

PROMPT = "And it came to pass"


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def generate_ms():
    """Of one token: a long run less a short one."""
    def run(tokens):
        begin = children_seconds()
        subprocess.run([BINARY, "generate", "-p", PROMPT, "-n", str(tokens), "--temperature", "0", "--ignore-eos",
                        "--threads", str(THREADS)], check=True, capture_output=True)
        return children_seconds() - begin
    return 1000 * (run(TOKENS + 1) - run(1)) / TOKENS


def thread_seconds(server):
    folder = "/proc/%d/task" % server.process.pid
    return sum(float(open("%s/%s/schedstat" % (folder, task)).read().split()[0]) for task in os.listdir(folder)) / 1e9


def stream(server, tokens, prompt=PROMPT):
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True})
    assert reply.status == 200 and reply.body.endswith(b"[DONE]\n\n"), reply.body[-200:]


def serve_ms(server):
    before = thread_seconds(server)
    stream(server, 1)
    between = thread_seconds(server)
    stream(server, TOKENS + 1)
    return 1000 * (thread_seconds(server) - between - (between - before)) / TOKENS


def main():
    server = Server("--prefix-cache", "off", threads=THREADS)
    stream(server, 8)
    rates, cpu = {}, {}
    for streams in [1, 2, 4, 8, 16]:
        begin, used = time.monotonic(), thread_seconds(server)
        in_parallel([lambda i=i: stream(server, TOKENS, PROMPT + " " + str(i)) for i in range(streams)])
        rates[streams] = streams * TOKENS / (time.monotonic() - begin)
        cpu[streams] = 1000 * (thread_seconds(server) - used) / (streams * TOKENS)
    pairs = [(generate_ms(), serve_ms(server)) for _ in range(ROUNDS)]
    server.stop()
    generate, serve = (statistics.median(values) for values in zip(*pairs))
    print(json.dumps({"tokens": TOKENS, "threads": THREADS,
                      "tokens_per_second": {k: round(v, 1) for k, v in rates.items()},
                      "cpu_ms_per_token": {k: round(v, 3) for k, v in cpu.items()},
                      "gain_16_by_cpu_time": round(cpu[1] / cpu[16], 2), "gain_16_by_clock": round(rates[16] / rates[1], 2),
                      "generate_ms": [round(g, 3) for g, _ in pairs], "serve_ms": [round(s, 3) for _, s in pairs],
                      "overhead_percent": round(100 * (serve / generate - 1), 1)}))


if __name__ == "__main__":
    main()
