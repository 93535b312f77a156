#!/usr/bin/env python3
"""By hand: what batching gains and what the server costs, with the nano model.

    measure.py BINARY [TOKENS] [THREADS] [ROUNDS]

Tokens a second of 1, 2, 4, 8 and 16 streams. Then a token of `dsv4 serve` (one stream) beside one of `dsv4 generate`: both
write the same TOKENS tokens at the same time, but only one of them is let run, in turns of 20 ms, so that whatever else the
machine does, and where the text is, meets both alike. Processor time of all threads, and of the server's engine thread; medians
of the rounds. One JSON object.
"""

import json
import os
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
SLICE = 0.02

from support import BINARY, Server, in_parallel

PROMPT = "And it came to pass"


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def generate(tokens):
    return subprocess.Popen([BINARY, "generate", "-p", PROMPT, "-n", str(tokens), "--temperature", "0", "--ignore-eos",
                             "--threads", str(THREADS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def thread_seconds(server):
    """Processor time by thread."""
    folder = "/proc/%d/task" % server.process.pid
    return {task: float(open("%s/%s/schedstat" % (folder, task)).read().split()[0]) / 1e9 for task in os.listdir(folder)}


def total_seconds(server):
    return sum(thread_seconds(server).values())


def stream(server, tokens, prompt=PROMPT):
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True})
    assert reply.status == 200 and reply.body.endswith(b"[DONE]\n\n"), reply.body[-200:]


def one_round(server):
    """Milliseconds of a token: (generate, server, server's busiest thread)."""
    begin = children_seconds()
    assert generate(1).wait() == 0
    load = children_seconds() - begin  # and the prompt
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
    server = Server("--prefix-cache", "off", threads=THREADS)
    stream(server, 8)
    rates, cpu = {}, {}
    for streams in [1, 2, 4, 8, 16]:
        begin, used = time.monotonic(), total_seconds(server)
        in_parallel([lambda i=i: stream(server, TOKENS, PROMPT + " " + str(i)) for i in range(streams)])
        rates[streams] = streams * TOKENS / (time.monotonic() - begin)
        cpu[streams] = 1000 * (total_seconds(server) - used) / (streams * TOKENS)
    rounds = [one_round(server) for _ in range(ROUNDS)]
    server.stop()

    def overhead(of):
        return round(100 * (statistics.median(r[of] / r[0] for r in rounds) - 1), 1)

    print(json.dumps({"tokens": TOKENS, "threads": THREADS, "rounds": ROUNDS,
                      "tokens_per_second": {k: round(v, 1) for k, v in rates.items()},
                      "cpu_ms_per_token": {k: round(v, 3) for k, v in cpu.items()},
                      "gain_16_by_cpu_time": round(cpu[1] / cpu[16], 2), "gain_16_by_clock": round(rates[16] / rates[1], 2),
                      "generate_serve_and_its_engine_thread_ms": [[round(x, 3) for x in r] for r in rounds],
                      "overhead_percent": overhead(1), "overhead_of_the_engine_thread_percent": overhead(2)}))


if __name__ == "__main__":
    main()
