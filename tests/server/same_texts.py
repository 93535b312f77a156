#!/usr/bin/env python3
"""Texts under load, by hand: one server answers one client at a time, another one answers many at once; texts must be
equal.

    same_texts.py BINARY record FILE [FLAGS OF dsv4 serve ...]
    same_texts.py BINARY compare FILE SECONDS CLIENTS [FLAGS ...]

Both use the same model, the second one with less GPU memory, for example `--expert-slots 2`. Clients of the second
server repeat the recorded requests, as whole replies and as streams, and some leave. Give both servers --prompt-inputs
two (or one): then no bit depends on the part of a prompt that came from the prefix cache. Progress goes to standard
error, one JSON object to standard output. Exit status 1 if a text differs, a reply is missing, or the server is not
well at the end.
"""

import collections
import json
import random
import sys
import threading
import time

arguments, sys.argv[2:] = sys.argv[2:], []

from support import Server

REQUESTS = 48
VOCABULARY = 4096  # every model has these ids
METRICS = ("choices_total", "hits_total", "fetched_bytes_total", "wait_seconds_total", "evictions_total", "moved_bytes_total")


def body(number):
    r = random.Random(number)
    length = r.choice([3, 20, 100, 100, 400, 1500])
    fields = {"logprobs": 1} if number % 4 == 0 else {}
    return {"prompt": [r.randrange(2, VOCABULARY) for _ in range(length)], "max_tokens": r.choice([1, 30, 100, 200]),
            "temperature": 1, "seed": number, "ignore_eos": True, **fields}


def answer(server, number, stream):
    """The text of a reply, or the text with its log-probabilities; None: refused because too many requests wait."""
    request = body(number)
    reply = server.post("/v1/completions", {**request, "stream": stream and "logprobs" not in request})
    if reply.status == 429:
        return None
    assert reply.status == 200, reply.body[:200]
    if "logprobs" in request:
        choice = reply.json["choices"][0]
        return [choice["text"], choice["logprobs"]["token_logprobs"]]
    if not stream:
        return reply.json["choices"][0]["text"]
    events = [data for _, data in reply.events()]
    assert events and events[-1] == "[DONE]", reply.body[-200:]
    return "".join(choice["text"] for data in events[:-1] for choice in data.get("choices", []))


def leave(server, number):
    with server.socket() as sock:
        data = json.dumps({**body(number), "stream": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        sock.recv(100)


def record(path, flags):
    server = Server(*flags, start_timeout=600)
    texts = [answer(server, number, stream=False) for number in range(REQUESTS)]
    with open(path, "w") as file:
        json.dump(texts, file)
    print(json.dumps({"recorded": len(texts), "exit_status": server.stop()}))
    return True


def client(server, number, texts, end, counts, faults):
    r = random.Random(number)
    while time.monotonic() < end:
        n, kind = r.randrange(REQUESTS), r.choice(["stream", "stream", "whole", "leave"])
        try:
            if kind == "leave":
                leave(server, n)
                counts["left"] += 1
                continue
            text = answer(server, n, kind == "stream")
            if text is not None and text != texts[n]:
                faults.append("request %d: %r, not %r" % (n, str(text)[:200], str(texts[n])[:200]))
            counts["refused" if text is None else "compared"] += 1
        except (OSError, AssertionError, ValueError, KeyError) as error:
            faults.append("request %d, %s: %r" % (n, kind, error))


def compare(path, seconds, clients, flags):
    with open(path) as file:
        texts = json.load(file)
    server = Server(*flags, start_timeout=600)
    counts, faults, end = collections.Counter(), [], time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(server, i, texts, end, counts, faults)) for i in range(clients)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end and server.process.poll() is None and len(faults) < 100:
        time.sleep(min(10, max(0.1, end - time.monotonic())))
        print("%4.0f s left: %s, %d faults" % (end - time.monotonic(), dict(counts), len(faults)), file=sys.stderr, flush=True)
    for thread in threads:
        thread.join()
    server.wait_until_idle()
    report = {"requests": dict(counts), "faults": len(faults), "first_faults": faults[:5],
              **{name: server.metric("dsv4_expert_" + name) for name in METRICS},
              "tokens": server.metric("vllm:generation_tokens_total"), "exit_status": server.stop()}
    print(json.dumps(report))
    return not faults and counts["compared"] > 0 and report["exit_status"] == 0


if __name__ == "__main__":
    if arguments[0] == "record":
        good = record(arguments[1], arguments[2:])
    else:
        good = compare(arguments[1], float(arguments[2]), int(arguments[3]), arguments[4:])
    sys.exit(0 if good else 1)
