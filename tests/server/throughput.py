#!/usr/bin/env python3
"""By hand: tokens per second of 1, 2, 4, 8, 16 and 32 streams, and the cost of one structured request for 8 streams
that run at the same time. For a GPU; needs only the standard library.

    throughput.py BINARY TOKENS MODEL FLAGS ...      e.g. 400 --device cuda --synthetic flash --layers 8

Prints one JSON object.
"""

import json
import re
import statistics
import sys
import threading
import time

TOKENS = int(sys.argv.pop(2))
FLAGS = [sys.argv.pop(2) for _ in sys.argv[2:]]

from support import Server

SCHEMA = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}, "minItems": 400}}, "required": ["items"]}


class Stream(threading.Thread):
    def __init__(self, server, number, tokens, **fields):
        super().__init__()
        self.server, self.times = server, []
        self.body = {"prompt": "And it came to pass %d" % number, "max_tokens": tokens, "temperature": 0.7, "seed": number,
                     "ignore_eos": True, "stream": True,
                     "stream_options": {"include_usage": True, "continuous_usage_stats": True},  # a chunk per token
                     **fields}

    def run(self):
        data = json.dumps(self.body).encode()
        with self.server.socket(timeout=60) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            rest = b""
            while piece := sock.recv(1 << 16):
                now, rest = time.monotonic(), (rest + piece)
                lines = rest.split(b"\n")
                rest = lines.pop()
                self.times += [now] * sum(b'"text":' in line and b'"finish_reason":null' in line for line in lines)
            assert b"[DONE]" in rest or self.times, rest


def run(server, count, tokens, structured=False):
    """Tokens per second while all streams run: from the start of the last one to the end of the first one."""
    before = server.metric("vllm:generation_tokens_total")
    streams = [Stream(server, i, tokens) for i in range(count)]
    held = Stream(server, 99, 4 * tokens, structured_outputs={"json": SCHEMA}) if structured else None
    if held:
        held.start()
        while len(held.times) < 3:
            time.sleep(0.01)
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    begin, end = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    rate = sum(sum(begin < t <= end for t in s.times) for s in streams) / (end - begin)
    if held:
        assert held.is_alive(), "the structured reply ended before its neighbours"
        held.join()
    assert structured or server.metric("vllm:generation_tokens_total") - before == count * tokens, "tokens are missing"
    return rate


def main():
    server = Server("--prefix-cache", "off", *FLAGS)
    run(server, 1, 20)
    rates = {}
    for count in [1, 2, 4, 8, 16, 32, 1]:
        rates.setdefault(count, []).append(run(server, count, TOKENS))
    beside = [run(server, 8, TOKENS, structured) for structured in [False, True, False, True]]
    log = server.read_log()
    server.stop()
    one = statistics.mean(rates[1])
    print(json.dumps({"flags": FLAGS, "tokens": TOKENS, "tokens_per_second": {k: [round(r, 1) for r in v] for k, v in rates.items()},
                      "gain_16": round(rates[16][0] / one, 2), "one_stream_ms": round(1000 / one, 3),
                      "eight_alone_and_beside_a_structured_one": [round(b, 1) for b in beside],
                      "server": re.findall(r"(?m)^.*(?:memory|model).*$", log)[:4]}))


if __name__ == "__main__":
    main()
