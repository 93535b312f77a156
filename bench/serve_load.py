#!/usr/bin/env python3
"""What `dsv4 serve` makes of the engine's speed: many streams at once, beside `dsv4 bench` in the same job. Needs the standard
library only.

    serve_load.py BINARY [--streams 1,8,32,64,128] [--prompts 512,4000] [--tokens 128] [--goal throughput] MODEL FLAGS ...
    e.g. bench/serve_load.py build/release/dsv4 --device cuda --synthetic flash --layers 38

A JSON object a line: of the bench (prefill of each length, decode of each number of streams), then for each number of streams
and each length that arrive at once, with prompts that nobody has sent before:

    first_token_s     median, P99 and last of the times to the first token
    gap_ms            median and P99 of the times between two tokens
    tokens_per_s      of all streams while all of them write, and `of_bench`, its share of the bench's decode
    prefill_per_s     prompt tokens a second up to the last first token, and `of_bench`
    times_of_prefill  the median and the last first token, in times of what the prefill of all prompts takes by itself
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

VOCABULARY = 4096  # ids that every model has
HERE = Path(__file__).resolve().parent


def numbers(text):
    return [int(n) for n in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32, 64, 128])
    parser.add_argument("--prompts", type=numbers, default=[512, 4000])
    parser.add_argument("--tokens", type=int, default=128, help="that each stream writes")
    parser.add_argument("--goal", default="throughput")
    return parser.parse_known_args()


class Stream(threading.Thread):
    """One request; the times at which its tokens arrived."""

    def __init__(self, server, ids, tokens, begin):
        super().__init__()
        self.server, self.begin, self.times = server, begin, []
        self.body = {"prompt": ids, "max_tokens": tokens, "temperature": 0.7, "seed": ids[0], "ignore_eos": True, "stream": True,
                     "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # a chunk for each token

    def run(self):
        data = json.dumps(self.body).encode()
        with self.server.socket(timeout=600) as sock:
            self.begin.wait()
            self.start_time = time.monotonic()
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            rest = b""
            while piece := sock.recv(1 << 16):
                now, rest = time.monotonic(), rest + piece
                lines = rest.split(b"\n")
                rest = lines.pop()
                self.times += [now] * sum(b'"text":' in line and b'"finish_reason":null' in line for line in lines)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def load(server, count, length, tokens, seed):
    random.seed(seed)
    begin = threading.Barrier(count)
    streams = [Stream(server, [random.randrange(10, VOCABULARY) for _ in range(length)], tokens, begin) for _ in range(count)]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    if any(len(s.times) < tokens - 1 for s in streams):  # the last one comes with the finish
        sys.exit("a stream broke off: " + server.read_log()[-2000:])
    start = min(s.start_time for s in streams)
    first = [s.times[0] - start for s in streams]
    gaps = [b - a for s in streams for a, b in zip(s.times, s.times[1:])]
    all_write, one_ends = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    together = sum(all_write < t <= one_ends for s in streams for t in s.times)
    return {"streams": count, "prompt": length,
            "first_token_s": {"median": statistics.median(first), "p99": percentile(first, 0.99), "last": max(first)},
            "gap_ms": {"median": 1e3 * statistics.median(gaps), "p99": 1e3 * percentile(gaps, 0.99)},
            "tokens_per_s": together / (one_ends - all_write) if one_ends > all_write else None,
            "prefill_per_s": count * length / max(first)}


def run_bench(options, flags):
    command = [options.binary, "bench", *flags, "--json", "--prompts", ",".join(map(str, options.prompts)),
               "--contexts", str(options.prompts[0] + options.tokens // 2), "--batches", ",".join(map(str, options.streams))]
    rows = [json.loads(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.splitlines()]
    prefill = {row["tokens"]: row["tokens_per_s"] for row in rows if row.get("phase") == "prefill"}
    decode = {row["batch"]: row["tokens_per_s"] for row in rows if row.get("phase") == "decode"}
    return prefill, decode


def main():
    options, flags = arguments()
    sys.argv[1:] = [options.binary]  # as the tests' helpers read it
    sys.path.insert(0, str(HERE.parent / "tests" / "server"))
    from support import Server

    prefill, decode = run_bench(options, flags)
    print(json.dumps({"bench": {"prefill_per_s": prefill, "decode_per_s": decode}, "flags": flags}), flush=True)
    server = Server("--prefix-cache", "off", "--goal", options.goal, *flags, start_timeout=600)
    load(server, 2, 64, 8, 0)  # warms up
    for length in options.prompts:
        for count in options.streams:
            row = load(server, count, length, options.tokens, count * 100003 + length)
            alone = count * length / prefill[length]
            row["times_of_prefill"] = {k: row["first_token_s"][k] / alone for k in ("median", "last")}
            row["of_bench"] = {"prefill": row["prefill_per_s"] / prefill[length],
                               "decode": row["tokens_per_s"] / decode[count] if row["tokens_per_s"] else None}
            print(json.dumps(row), flush=True)
    server.stop()


if __name__ == "__main__":
    main()
