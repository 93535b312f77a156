#!/usr/bin/env python3
"""Compares `dsv4 serve` with many streams at once to `dsv4 bench` in one session. Needs only the standard library.

    serve_load.py BINARY [--streams 1,8,32,64,128] [--prompts 512,4000] [--tokens 128,16] [--goal throughput]
                  [--bench FILE] [--seconds 0] MODEL FLAGS ...
    e.g. bench/serve_load.py build/release/dsv4 --device cuda --synthetic flash --layers 36 --kv-budget 5GiB

Prints one JSON object per line. The first has the figures of the bench (prefill of each length and of a full chunk,
decode of each number of streams); --bench takes them from the output of an earlier run. Then comes an object for each
prompt length and each number of streams that arrive at once. No prompt was sent before.

    first_token_s     median, P99 and last of the times to the first token
    gap_ms            median and P99 of the times between two tokens
    tokens_per_s      of all streams while all generate (null: never), and of_bench, its share of the bench's decode
    prefill_per_s     prompt tokens per second up to the last first token, and of_bench
    times_of_prefill  the median and last time to the first token, divided by the time of the prefill of all prompts
    bars              the requirements for this row, and whether each holds

The time of the prefill of all prompts follows from the bench's rate for a step of the same size and regime
(docs/dev/decisions/0008-regimes.md). --seconds: cases that would begin later are skipped, and named at the end. Exits 1
if a bar does not hold.
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
from pathlib import Path

VOCABULARY = 4096  # ids that every model has
HERE = Path(__file__).resolve().parent
BEGIN = time.monotonic()
DECODE, PREFILL, MEDIAN, LAST = 0.97, 0.80, 0.8, 1.4  # bars; MEDIAN and LAST only for AT_ONCE prompts
AT_ONCE = 64
SHORT = 1024  # prompts up to here are computed with --prompt-inputs two on a GPU
SERVE_ONLY = {"--kv-budget", "--max-concurrent", "--max-gap"}  # flags that `dsv4 bench` does not have


def numbers(text):
    return [int(n) for n in text.split(",")]


def say(*words):
    print("[%6.1f s]" % (time.monotonic() - BEGIN), *words, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32, 64, 128])
    parser.add_argument("--prompts", type=numbers, default=[512, 4000])
    parser.add_argument("--tokens", type=numbers, default=[128, 16],
                        help="output tokens of each stream, for each prompt length (default 128,16)")
    parser.add_argument("--chunk", type=int, default=None, help="--prefill-chunk (default: that of the device)")
    parser.add_argument("--goal", default="throughput")
    parser.add_argument("--bench", help="file with the output of an earlier run: its bench figures are used")
    parser.add_argument("--seconds", type=float, default=0, help="time limit for starting cases (default 0: none)")
    options, flags = parser.parse_known_args()
    if options.chunk is None:
        options.chunk = 4096 if any(flag.startswith("cuda") for flag in flags) else 512
    options.tokens += options.tokens[-1:] * (len(options.prompts) - len(options.tokens))
    return options, [*flags, "--prefill-chunk", str(options.chunk)]


class Exchange:
    """A streamed completion: when it was sent, and the times at which its tokens arrived."""

    def __init__(self, ids, tokens):
        self.prompt, self.times, self.head, self.start_time = len(ids), [], b"", None
        self.body = {"prompt": ids, "max_tokens": tokens, "temperature": 0.7, "seed": ids[0], "ignore_eos": True, "stream": True,
                     "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # in each chunk

    def run(self, sock, before_it=lambda: None):
        """Sends the request and reads the reply to its end."""
        data = json.dumps(self.body).encode()
        before_it()
        self.start_time = time.monotonic()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                     % len(data) + data)
        rest = b""
        while piece := sock.recv(1 << 16):
            now, rest = time.monotonic(), rest + piece
            self.head = self.head or rest[:300]
            *whole, rest = rest.split(b"\n")
            for total in re.findall(rb'"completion_tokens":(\d+)', b"\n".join(whole)):  # a chunk may hold several
                self.times += [now] * (int(total) - len(self.times))

    def is_complete(self):
        return len(self.times) == self.body["max_tokens"]


class Stream(threading.Thread):
    """A client with one request, which begins when every client is ready."""

    def __init__(self, server, ids, tokens, begin):
        super().__init__(daemon=True)
        self.server, self.begin, self.exchange = server, begin, Exchange(ids, tokens)

    def run(self):
        with self.server.socket(timeout=600) as sock:
            self.exchange.run(sock, self.begin.wait)


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
    streams = [stream.exchange for stream in streams]
    for stream in streams:
        if not stream.is_complete():
            sys.exit("a stream ended early: %r\n%s" % (stream.head, server.read_log()[-2000:]))
    start = min(s.start_time for s in streams)
    first = [s.times[0] - start for s in streams]
    gaps = [b - a for s in streams for a, b in zip(s.times, s.times[1:])]
    all_write, one_ends = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    together = sum(all_write < t <= one_ends for s in streams for t in s.times)
    return {"streams": count, "prompt": length, "tokens": tokens,
            "first_token_s": {"median": statistics.median(first), "p99": percentile(first, 0.99), "last": max(first)},
            "gap_ms": {"median": 1e3 * statistics.median(gaps), "p99": 1e3 * percentile(gaps, 0.99)},
            "tokens_per_s": together / (one_ends - all_write) if one_ends > all_write else None,
            "prefill_per_s": count * length / max(first)}


def run_bench(options, flags, *more):
    known = [f for i, f in enumerate(flags) if f not in SERVE_ONLY and (i == 0 or flags[i - 1] not in SERVE_ONLY)]
    command = [options.binary, "bench", *known, "--json", "--no-ops", "--repeat", "3", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            say("bench", line.strip()[:110])
            yield json.loads(line)
    if process.returncode != 0:
        sys.exit("%s: exit status %d" % (" ".join(command), process.returncode))


class Bench:
    """Tokens per second of decode, by number of streams, and of prefill, by regime and tokens of a pass."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, {int(k): v for k, v in decode.items()}

    def json(self, flags):
        return {"bench": {"prefill_per_s": self.prefill, "decode_per_s": self.decode}, "flags": flags}

    @classmethod
    def read(cls, path):
        found = json.loads(Path(path).read_text().splitlines()[0])["bench"]
        return cls(found["prefill_per_s"], found["decode_per_s"])

    @staticmethod
    def key(length, tokens, flags):
        """Returns the regime of such a prompt and the tokens of a pass, as one string."""
        short = length <= SHORT and "--prompt-inputs" not in flags and any(f.startswith("cuda") for f in flags)
        return "%s %d" % ("short" if short else "long", tokens)

    @classmethod
    def run(cls, options, flags):
        keys = {cls.key(length, min(length * count, options.chunk), flags)
                for length in options.prompts for count in options.streams}
        prefill, decode = {}, {}
        for kind in ["long", "short"]:
            lengths = sorted({int(key.split()[1]) for key in keys if key.startswith(kind)})
            # Decode runs with the first kind, because each run loads a model.
            first = not decode
            if not lengths and not first:
                continue
            context = options.prompts[0] + options.tokens[0] // 2
            more = ["--prompt-inputs", "two"] if kind == "short" else []
            for row in run_bench(options, flags, *more, "--prompts", ",".join(map(str, lengths)), "--contexts",
                                 str(context) if first else "", "--batches", ",".join(map(str, options.streams)) if first else ""):
                if row.get("phase") == "prefill":
                    prefill["%s %d" % (kind, row["tokens"])] = row["tokens_per_s"]
                elif row.get("phase") == "decode":
                    decode[row["batch"]] = row["tokens_per_s"]
        return cls(prefill, decode)

    def compare(self, row, chunk, first_length, flags):
        """Adds of_bench, times_of_prefill and bars to a row."""
        count, length = row["streams"], row["prompt"]
        rate = self.prefill[self.key(length, min(count * length, chunk), flags)]
        alone = count * length / rate
        decode = row["tokens_per_s"] / self.decode[count] if row["tokens_per_s"] else None
        row["of_bench"] = {"prefill": row["prefill_per_s"] / rate, "decode": decode}
        row["times_of_prefill"] = {k: row["first_token_s"][k] / alone for k in ("median", "last")}
        bars = {"prefill": row["of_bench"]["prefill"] >= PREFILL}
        if decode is not None and length == first_length:  # the bench decodes at that context
            bars["decode"] = decode >= DECODE
        if count == AT_ONCE:
            bars["median"] = row["times_of_prefill"]["median"] <= MEDIAN
            bars["last"] = row["times_of_prefill"]["last"] <= LAST
        row["bars"] = bars


def measure(server, bench, options, flags):
    """Prints a row for each case. Returns the failed bars and the skipped cases."""
    failed, left = [], []
    for count in options.streams:
        load(server, count, 8, 6, count)  # warm-up: captures the CUDA graphs of that size
    for length, tokens in zip(options.prompts, options.tokens):
        for count in options.streams:
            name = "%d streams of %d tokens" % (count, length)
            if 0 < options.seconds < time.monotonic() - BEGIN:
                left.append(name)
                continue
            say(name)
            row = {"goal": options.goal, **load(server, count, length, tokens, count * 100003 + length)}
            bench.compare(row, options.chunk, options.prompts[0], flags)
            print(json.dumps(row), flush=True)
            failed += [name + ": " + bar for bar, holds in row["bars"].items() if not holds]
    return failed, left


def main():
    options, flags = arguments()
    sys.argv[1:] = [options.binary]  # tests/server/support.py reads it
    sys.path.insert(0, str(HERE.parent / "tests" / "server"))
    from support import Server

    bench = Bench.read(options.bench) if options.bench else Bench.run(options, flags)
    print(json.dumps(bench.json(flags)), flush=True)
    threads = flags[flags.index("--threads") + 1] if "--threads" in flags else "2"
    server = Server("--prefix-cache", "off", "--goal", options.goal, *flags, threads=threads, start_timeout=600)
    say("the server runs:", server.read_log().splitlines()[-1][:110])
    failed, left = measure(server, bench, options, flags)
    server.stop()
    say("failed bars: " + ("; ".join(failed) or "none"))
    if left:
        say("skipped: " + "; ".join(left))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
