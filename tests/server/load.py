#!/usr/bin/env python3
"""Load by hand: many clients that stream, leave, read slowly or send too much, against a fresh server.

    load.py BINARY [SECONDS] [CLIENTS]

Prints one line of JSON: what was answered, gaps between tokens, resident memory after the first quarter and at the end.
Exit status 1 when something is left behind or a reply was neither complete nor refused.
"""

import json
import random
import socket
import sys
import threading
import time

SECONDS = float(sys.argv.pop(2)) if len(sys.argv) > 2 else 60.0
CLIENTS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 64

from support import Server

STORY = "And it came to pass in the days of the king that "


class Client(threading.Thread):
    def __init__(self, server, number, end):
        super().__init__()
        self.server, self.random, self.end = server, random.Random(number), end
        self.counts, self.gaps, self.faults = {}, [], []

    def run(self):
        while time.time() < self.end:
            kind = self.random.choice(["stream", "stream", "stream", "whole", "leave", "reset", "slow", "huge", "wrong"])
            try:
                result = getattr(self, kind)()
            except (OSError, AssertionError) as error:
                self.faults.append("%s: %r" % (kind, error))
                result = "fault"
            key = kind + ":" + str(result)
            self.counts[key] = self.counts.get(key, 0) + 1

    def body(self, **fields):
        r = self.random
        return {"prompt": STORY * r.choice([0, 1, 1, 5, 40]) + str(r.random()), "max_tokens": r.choice([1, 10, 40, 120]),
                "seed": r.randrange(1000), "ignore_eos": True, **fields}

    def send(self, body):
        data = json.dumps(body).encode()
        sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return sock

    def read(self, sock, pause=0.0, timed=False):
        data, last = b"", None
        while True:
            piece = sock.recv(1 << 16)
            if not piece:
                return data
            data += piece
            if timed and b"data: " in piece:
                now = time.time()
                if last is not None:
                    self.gaps.append(now - last)
                last = now
            if pause:
                time.sleep(pause)

    def stream(self):
        with self.send(self.body(stream=True)) as sock:
            data = self.read(sock, timed=True)
        if data.startswith(b"HTTP/1.1 429 "):
            return 429
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), data[-200:]
        return 200

    def whole(self):
        with self.send(self.body()) as sock:
            data = self.read(sock)
        assert data[:13] in (b"HTTP/1.1 200 ", b"HTTP/1.1 429 "), data[:200]
        return int(data[9:12])

    def leave(self):
        with self.send(self.body(stream=True, max_tokens=100000)) as sock:
            sock.recv(1000)
            time.sleep(self.random.random())
        return "left"

    def reset(self):
        with self.send(self.body(stream=self.random.random() < 0.5, max_tokens=100000)) as sock:
            time.sleep(self.random.random() / 2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return "left"

    def slow(self):
        with self.send(self.body(stream=True, logprobs=20, max_tokens=60)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.read(sock, pause=0.02)
        return "read"

    def huge(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=120) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 200000)
            assert self.read(sock).startswith(b"HTTP/1.1 413 ")
        return 413

    def wrong(self):
        with self.send({"prompt": self.random.choice([None, 5, [], [-1], {}]), "max_tokens": 1}) as sock:
            assert self.read(sock).startswith(b"HTTP/1.1 400 ")
        return 400


def main():
    server = Server("--max-queue", "64", "--max-body", "1MiB", "--max-concurrent", "64", "--kv-budget", "160MiB")
    begin = time.time()
    clients = [Client(server, i, begin + SECONDS) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(SECONDS / 4)
    resident_early = server.metric("process_resident_memory_bytes")
    for client in clients:
        client.join()
    server.wait_until_idle(60)
    counts = {}
    for client in clients:
        for key, n in client.counts.items():
            counts[key] = counts.get(key, 0) + n
    gaps = sorted(gap for client in clients for gap in client.gaps)
    faults = [fault for client in clients for fault in client.faults]
    report = {"seconds": SECONDS, "clients": CLIENTS, "requests": counts, "faults": faults[:5],
              "tokens": server.metric("vllm:generation_tokens_total"), "preemptions": server.metric("vllm:num_preemptions_total"),
              "gap_p50_ms": round(1000 * gaps[len(gaps) // 2]), "gap_p99_ms": round(1000 * gaps[len(gaps) * 99 // 100]),
              "resident_early_mib": round(resident_early / 2**20, 1),
              "resident_end_mib": round(server.metric("process_resident_memory_bytes") / 2**20, 1),
              "kv_running_end": server.metric("dsv4:kv_bytes", use="running"), "connections_end": server.metric("dsv4:connections")}
    status = server.stop()
    print(json.dumps(report))
    sys.exit(1 if faults or status != 0 or report["kv_running_end"] else 0)


if __name__ == "__main__":
    main()
