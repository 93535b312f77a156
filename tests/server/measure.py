#!/usr/bin/env python3
"""By hand: the gain of batching and the cost of the server, with the nano model.

    measure.py BINARY [TOKENS] [THREADS] [ROUNDS] [FLAGS ...]      FLAGS for both commands, e.g. --device cuda

Measures tokens per second of 1, 2, 4, 8 and 16 streams. Then compares a token of `dsv4 serve` (one stream) with a token
of `dsv4 generate`. Both write the same TOKENS tokens, in two ways; results are medians of the rounds:
- wall-clock time: alternately, each alone; time from the first to the last token (as `generate` reports it; as the
  client sees it).
- CPU time (without FLAGS): at the same time, but only one of them runs at any moment, in slices of 20 ms. So other work
  of the machine and the position in the text affect both equally. For all threads, and for the server's engine thread.
One JSON object.
"""

import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time

TOKENS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 300
THREADS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 1
ROUNDS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 7
FLAGS = [sys.argv.pop(2) for _ in sys.argv[2:]]
SLICE = 0.02

from support import BINARY, Server, in_parallel

PROMPT = "And it came to pass"


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def generate(tokens, stderr=subprocess.DEVNULL):
    return subprocess.Popen([BINARY, "generate", "-p", PROMPT, "-n", str(tokens), "--temperature", "0", "--ignore-eos",
                             "--threads", str(THREADS), *FLAGS], stdout=subprocess.DEVNULL, stderr=stderr, text=True)


def generate_by_the_clock():
    """Milliseconds per token after the first."""
    found = re.search(r"generated \d+ tokens, ([\d.]+) tok/s", generate(TOKENS, subprocess.PIPE).communicate()[1])
    return 1000 / float(found.group(1))


def stream_by_the_clock(server):
    """Milliseconds per token after the first, at the client."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    with server.socket(timeout=120) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        first = last = None
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
            if b'"text":' in piece:
                last = time.monotonic()
                first = first or last
    assert b"[DONE]" in received, received[-200:]
    return 1000 * (last - first) / (TOKENS - 1)


def thread_seconds(server):
    """CPU time by thread."""
    folder = "/proc/%d/task" % server.process.pid
    return {task: float(open("%s/%s/schedstat" % (folder, task)).read().split()[0]) / 1e9 for task in os.listdir(folder)}


def total_seconds(server):
    return sum(thread_seconds(server).values())


def stream(server, tokens, prompt=PROMPT):
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True})
    assert reply.status == 200 and reply.body.endswith(b"[DONE]\n\n"), reply.body[-200:]


def one_round(server):
    """Milliseconds per token: (generate, server, server's busiest thread)."""
    begin = children_seconds()
    assert generate(1).wait() == 0
    load = children_seconds() - begin  # including the prompt
    stream(server, 1)
    begin, before = children_seconds(), thread_seconds(server)
    child = generate(TOKENS + 1)
    client = threading.Thread(target=stream, args=(server, TOKENS + 1))
    client.start()
    pids = [child.pid, server.process.pid]
    os.kill(pids[1], signal.SIGSTOP)
    while child.poll() is None and client.is_alive():
        for running, waiting in (pids, pids[::-1]):
            os.kill(waiting, signal.SIGSTOP)
            os.kill(running, signal.SIGCONT)
            time.sleep(SLICE)
            if child.poll() is not None:
                break
    for pid in pids[1:] if child.poll() is not None else pids:
        os.kill(pid, signal.SIGCONT)
    client.join()
    assert child.wait() == 0
    used = [seconds - before.get(task, 0) for task, seconds in thread_seconds(server).items()]
    return tuple(1000 * seconds / TOKENS for seconds in (children_seconds() - begin - load, sum(used), max(used)))


def main():
    server = Server("--prefix-cache", "off", *FLAGS, threads=THREADS)
    stream(server, 8)
    rates, cpu = {}, {}
    for streams in [1, 2, 4, 8, 16]:
        begin, used = time.monotonic(), total_seconds(server)
        in_parallel([lambda i=i: stream(server, TOKENS, PROMPT + " " + str(i)) for i in range(streams)])
        rates[streams] = streams * TOKENS / (time.monotonic() - begin)
        cpu[streams] = 1000 * (total_seconds(server) - used) / (streams * TOKENS)
    clock = [(generate_by_the_clock(), stream_by_the_clock(server)) for _ in range(ROUNDS)]
    rounds = [] if FLAGS else [one_round(server) for _ in range(ROUNDS)]
    server.stop()

    def overhead(pairs):
        return round(100 * (statistics.median(b / a for a, b in pairs) - 1), 1) if pairs else None

    print(json.dumps({"tokens": TOKENS, "threads": THREADS, "rounds": ROUNDS, "flags": FLAGS,
                      "tokens_per_second": {k: round(v, 1) for k, v in rates.items()},
                      "cpu_ms_per_token": {k: round(v, 3) for k, v in cpu.items()},
                      "gain_16_by_cpu_time": round(cpu[1] / cpu[16], 2), "gain_16_by_clock": round(rates[16] / rates[1], 2),
                      "generate_and_serve_ms_by_the_clock": [[round(x, 3) for x in r] for r in clock],
                      "overhead_percent_by_the_clock": overhead(clock),
                      "generate_serve_and_its_engine_thread_cpu_ms": [[round(x, 3) for x in r] for r in rounds],
                      "overhead_percent_of_cpu_time": overhead([(r[0], r[1]) for r in rounds]),
                      "overhead_percent_of_the_engine_thread": overhead([(r[0], r[2]) for r in rounds])}))


if __name__ == "__main__":
    main()
