#!/usr/bin/env python3
"""By hand, on a GPU: the memory used under load, compared with the plan.

    memory.py BINARY [FLAGS OF dsv4 serve ...]      default: --synthetic flash --layers 38

Three times, 64 streams of 512 + 256 tokens arrive at once: every third one with penalties and a logit_bias of 300
tokens, every third one with a grammar. Prints one JSON object. Exit status 1 if a stream failed, or if the memory used
on the GPU (the first of CUDA_VISIBLE_DEVICES) differs by 2 % or more from weights, activations, scratch and KV
together; the CUDA context of the process counts. ROUNDS, STREAMS and TOKENS in the environment change the numbers.
HOGS=N: N processes keep cores busy.
"""

import json
import os
import random
import re
import subprocess
import sys
import threading

FLAGS, sys.argv = sys.argv[2:], sys.argv[:2]
FLAGS = FLAGS or ["--synthetic", "flash", "--layers", "38"]

from support import Server, in_parallel

MIB = 1 << 20
ROUNDS, STREAMS, TOKENS, HOGS = (int(os.environ.get(n, d)) for n, d in
                                 (("ROUNDS", 3), ("STREAMS", 64), ("TOKENS", 256), ("HOGS", 0)))


def smi(field):
    gpu = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    return int(subprocess.check_output(
        ["nvidia-smi", "-i", gpu, "--query-gpu=memory." + field, "--format=csv,noheader,nounits"]).split()[0])


def planned_bytes(line):
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    sizes = (re.search(name + r" ([0-9.]+) (\w+)", line) for name in ("weights", "activations", "scratch"))
    return sum(float(size[1]) * units[size[2]] for size in sizes)


def stream(server, number):
    """The stream's error, or None."""
    r = random.Random(number)
    body = {"prompt": [r.randrange(300, 4000) for _ in range(512)], "max_tokens": TOKENS, "ignore_eos": True,
            "stream": True, "seed": number}
    if number % 3 == 1:
        body.update(presence_penalty=0.5, frequency_penalty=0.2,
                    logit_bias={str(r.randrange(4000)): 2 for _ in range(300)})
    if number % 3 == 2:
        body["structured_outputs"] = {"regex": "[a-z ]+"}
    try:
        reply = server.post("/v1/completions", body)
    except OSError as error:
        return repr(error)
    whole = reply.status == 200 and reply.body.rstrip().endswith(b"data: [DONE]") and b'"error"' not in reply.body
    return None if whole else "%d %r" % (reply.status, reply.body[-300:])


def main():
    before = smi("used")
    server = Server("-m", "models/nano", "--device", "cuda", "--max-concurrent", "64", *FLAGS, start_timeout=400)
    plan = next(line for line in server.read_log().splitlines() if line.startswith("memory on"))
    hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(HOGS)]
    used, kv, stop = [smi("used")], [0.0], threading.Event()

    def watch():
        while not stop.wait(0.3):
            used.append(smi("used"))
            try:
                kv.append(server.metric("dsv4_kv_bytes", use="running") + server.metric("dsv4_kv_bytes", use="kept"))
            except OSError:  # the server has died: the streams report it
                pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        failures = []
        for i in range(ROUNDS):
            numbers = [1000 * i + j for j in range(STREAMS)]
            failures += filter(None, in_parallel([lambda n=n: stream(server, n) for n in numbers]))
            print("round %d: %d failures so far, %d MiB used" % (i, len(failures), used[-1]), file=sys.stderr)
    finally:
        stop.set()
        watcher.join()
        for hog in hogs:
            hog.kill()
    status = server.stop()
    planned = planned_bytes(plan) + max(kv)
    given = (max(used) - before) * MIB
    beyond = 100 * (given - planned) / planned
    print(json.dumps({"flags": FLAGS, "rounds": ROUNDS, "failures": len(failures), "first_failures": failures[:5],
                      "used_mib": given // MIB, "planned_mib": int(planned / MIB), "kv_mib": int(max(kv) / MIB),
                      "beyond_plan_percent": round(beyond, 2), "exit_status": status, "plan": plan}))
    return 0 if status == 0 and not failures and abs(beyond) < 2 else 1


if __name__ == "__main__":
    sys.exit(main())
