#!/usr/bin/env python3
"""By hand: 32 streams while prompts of 2,000 tokens arrive at a fixed rate. For a GPU; needs only the standard library.

    mixed_load.py BINARY SECONDS PROMPTS_A_SECOND FLAGS ...    e.g. 20 4 --device cuda --synthetic flash --layers 8

Prints one JSON object: tokens per second of the streams, without and with the prompts, and the times of the prompts.
"""

import json
import random
import re
import statistics
import sys
import threading
import time

SECONDS, RATE = float(sys.argv.pop(2)), float(sys.argv.pop(2))
FLAGS = [sys.argv.pop(2) for _ in sys.argv[2:]]
STREAMS, PROMPT = 32, 2000

from support import Server


class Stream(threading.Thread):
    def __init__(self, server, number):
        super().__init__(daemon=True)
        self.server, self.number, self.times, self.over = server, number, [], False

    def run(self):
        body = json.dumps({"prompt": "And it came to pass %d" % self.number, "max_tokens": 100000, "temperature": 0.7, "seed": self.number,
                           "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True, "continuous_usage_stats": True}}).encode()
        with self.server.socket(timeout=60) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            rest = b""
            while not self.over and (piece := sock.recv(1 << 16)):
                now, lines = time.monotonic(), (rest + piece).split(b"\n")
                rest = lines.pop()
                self.times += [now] * sum(b'"text":' in line and b'"finish_reason":null' in line for line in lines)

    def rate(self, begin, end):
        return sum(begin < t <= end for t in self.times) / (end - begin)


def main():
    server = Server("--prefix-cache", "off", *FLAGS)
    streams = [Stream(server, i) for i in range(STREAMS)]
    for stream in streams:
        stream.start()
    while any(len(stream.times) < 30 for stream in streams):
        time.sleep(0.05)
    begin = time.monotonic()
    time.sleep(SECONDS / 2)
    alone = sum(stream.rate(begin, time.monotonic()) for stream in streams)

    took, errors, threads = [], [], []

    def ask(seed):
        ids = [random.Random(seed).randrange(10, 4000) for _ in range(PROMPT)]
        start = time.monotonic()
        reply = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1})
        (took if reply.status == 200 else errors).append(time.monotonic() - start)

    for i in range(8):  # the server first learns how long such steps take
        ask(1000 + i)
    took.clear()
    begin = time.monotonic()
    for i in range(int(SECONDS * RATE)):
        time.sleep(max(0, begin + i / RATE - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(i,), daemon=True))
        threads[-1].start()
    end = time.monotonic()
    mixed = sum(stream.rate(begin, end) for stream in streams)
    gaps = sorted(b - a for stream in streams for a, b in zip(stream.times, stream.times[1:]) if begin < a < end)
    for thread in threads:
        thread.join(60)
    for stream in streams:
        stream.over = True
    log = server.read_log()
    server.stop()
    print(json.dumps({"flags": FLAGS, "streams": STREAMS, "prompt_tokens": PROMPT, "prompts_per_second": RATE, "seconds": SECONDS,
                      "tokens_per_second_alone": round(alone, 1), "tokens_per_second": round(mixed, 1),
                      "prompts": len(took), "refused": len(errors), "prompt_ms_median": round(1000 * statistics.median(took), 1) if took else None,
                      "gap_ms_median": round(1000 * gaps[len(gaps) // 2], 2), "gap_ms_99": round(1000 * gaps[len(gaps) * 99 // 100], 2),
                      "warnings": re.findall(r"warning.*", log)[:3]}))


main()
