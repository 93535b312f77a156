#!/usr/bin/env python3
"""Load test, by hand: many clients that stream, leave, read slowly or send too much, against a fresh server.

    load.py BINARY [SECONDS] [CLIENTS] [THREADS] [FLAGS OF dsv4 serve ...]

Always ends, at most 4 minutes after SECONDS: every wait is bounded. Requests that are still open after the grace time
are cut off and counted. Prints progress to standard error and one JSON object to standard output: the replies, the gaps
between tokens as the server and the clients saw them, resident memory and KV over time, and what remains at the end.
Exit status 1 if something remains, or if a reply was neither complete nor refused.
"""

import collections
import json
import os
import random
import socket
import sys
import threading
import time

SECONDS = float(sys.argv.pop(2)) if len(sys.argv) > 2 else 60.0
CLIENTS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 64
THREADS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 2
MORE_FLAGS = [sys.argv.pop(2) for _ in sys.argv[2:]]
REQUEST_SECONDS = max(90.0, SECONDS / 2)  # for one request of a client that reads the whole reply
GRACE = 140.0                              # for requests that are open at the end

from support import Server

STORY = "And it came to pass in the days of the king that "
FLAGS = ["--max-queue", "64", "--max-body", "1MiB", "--max-concurrent", "64", "--kv-budget", "160MiB"] + MORE_FLAGS


class Client(threading.Thread):
    def __init__(self, server, number, end):
        super().__init__(daemon=True)
        self.server, self.random, self.end = server, random.Random(number), end
        self.counts, self.gaps, self.faults = collections.Counter(), [], []
        self.current = None

    def run(self):
        while time.monotonic() < self.end:
            kind = self.random.choice(["stream", "stream", "stream", "whole", "leave", "reset", "slow", "huge", "wrong"])
            begin = time.monotonic()
            try:
                result = getattr(self, kind)()
            except (OSError, AssertionError, ValueError) as error:
                result = "late" if time.monotonic() > self.end + GRACE else "fault"
                if result == "fault":
                    self.faults.append("%s after %.1f s: %r" % (kind, time.monotonic() - begin, error))
            self.counts[kind + ":" + str(result)] += 1

    def body(self, **fields):
        r = self.random
        return {"prompt": STORY * r.choice([0, 1, 1, 5, 40]) + str(r.random()), "max_tokens": r.choice([1, 10, 40, 120]),
                "seed": r.randrange(1000), "ignore_eos": True, **fields}

    def open(self):
        self.current = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        self.deadline = time.monotonic() + REQUEST_SECONDS
        return self.current

    def send(self, body):
        data = json.dumps(body).encode()
        sock = self.open()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return sock

    def read(self, sock, pause=0.0, timed=False):
        data, last = b"", None
        while True:
            left = self.deadline - time.monotonic()
            assert left > 0, "no end of the reply after %.0f s; %d bytes" % (REQUEST_SECONDS, len(data))
            sock.settimeout(left)
            piece = sock.recv(1 << 16)
            if not piece:
                return data
            data += piece
            if timed and b"data: " in piece:
                now = time.monotonic()
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
            try:
                sock.recv(1000)
            except socket.timeout:
                return "left before the first byte"
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
            data = self.read(sock, pause=0.02)
        return 429 if data.startswith(b"HTTP/1.1 429 ") else "read"

    def huge(self):
        with self.open() as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 200000)
            assert self.read(sock).startswith(b"HTTP/1.1 413 ")
        return 413

    def wrong(self):
        with self.send({"prompt": self.random.choice([None, 5, [], [-1], {}]), "max_tokens": 1}) as sock:
            assert self.read(sock).startswith(b"HTTP/1.1 400 ")
        return 400


def resident_mib(pid):
    with open("/proc/%d/statm" % pid) as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def histogram(page, name):
    """[(upper bound, number of values up to it)] of a Prometheus histogram."""
    found = []
    for line in page.splitlines():
        if line.startswith(name + "_bucket{"):
            found.append((float(line.split('le="')[1].split('"')[0].replace("+Inf", "inf")), int(line.rsplit(" ", 1)[1])))
    return found


def quantile_ms(buckets, share):
    """Interpolated between the bounds of its bucket, as Prometheus does it."""
    below, before = 0.0, 0
    for bound, count in buckets:
        if count >= share * buckets[-1][1] and count > 0:
            if bound == float("inf"):
                return round(1000 * below)
            return round(1000 * (below + (bound - below) * (share * buckets[-1][1] - before) / (count - before)))
        below, before = bound, count
    return None


def percentile(values, share):
    return round(1000 * values[min(len(values) - 1, int(len(values) * share))]) if values else None


def main():
    server = Server(*FLAGS, threads=THREADS, start_timeout=600)
    pid, begin = server.process.pid, time.monotonic()
    end = begin + SECONDS
    clients = [Client(server, i, end) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    resident, kv = [], []
    crashed = False
    while time.monotonic() < end and not crashed:
        time.sleep(min(SECONDS / 20, max(0.0, end - time.monotonic())) or 0.01)
        crashed = server.process.poll() is not None
        if not crashed:
            resident.append(round(resident_mib(pid), 1))
            kv.append(round((server.metric("dsv4_kv_bytes", use="running") + server.metric("dsv4_kv_bytes", use="kept")) / 2**20, 1))
            done = sum(sum(client.counts.values()) for client in clients)
            print("%4.0f s: %d requests, %.1f MiB (%.1f of KV), %.0f s of CPU, clients %.0f s"
                  % (time.monotonic() - begin, done, resident[-1], kv[-1], cpu_seconds(pid), time.process_time()),
                  file=sys.stderr, flush=True)
    for client in clients:
        client.join(max(0.01, end + GRACE - time.monotonic()))
    unfinished = [client for client in clients if client.is_alive()]
    for client in unfinished:  # so that their reads end at once
        try:
            client.current.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            pass
    for client in unfinished:
        client.join(5)
    counts = sum((client.counts for client in clients), collections.Counter())
    gaps = sorted(gap for client in clients for gap in list(client.gaps))
    faults = [fault for client in clients for fault in client.faults]
    report = {"seconds": SECONDS, "clients": CLIENTS, "threads": THREADS, "flags": FLAGS, "requests": dict(sorted(counts.items())),
              "total": sum(counts.values()), "faults": len(faults), "first_faults": faults[:5], "unfinished": len(unfinished),
              "crashed": crashed, "gaps": len(gaps), "gap_p50_ms": percentile(gaps, 0.5), "gap_p99_ms": percentile(gaps, 0.99),
              "gap_max_ms": percentile(gaps, 1.0), "resident_mib": resident, "kv_mib": kv,
              "clients_cpu_share": round(time.process_time() / (time.monotonic() - begin), 2), "load_average": os.getloadavg()}
    left = True
    if not crashed:
        report["cpu_share"] = round(cpu_seconds(pid) / (time.monotonic() - begin), 2)
        try:
            page = server.get("/metrics").body.decode()
            inside = histogram(page, "vllm:inter_token_latency_seconds")
            report.update({"server_gaps": inside[-1][1], "server_gap_p50_ms": quantile_ms(inside, 0.5),
                           "server_gap_p99_ms": quantile_ms(inside, 0.99), "server_gap_p999_ms": quantile_ms(inside, 0.999)})
            decode = histogram(page, "dsv4_decode_step_seconds")
            if decode:
                report["decode_step_p99_ms"] = quantile_ms(decode, 0.99)
            server.wait_until_idle()
            time.sleep(0.5)
            names = {"tokens": "vllm:generation_tokens_total", "preemptions": "vllm:num_preemptions_total",
                     "running_end": "vllm:num_requests_running", "waiting_end": "vllm:num_requests_waiting",
                     "connections_end": "dsv4_connections"}
            report.update({key: server.metric(name) for key, name in names.items()})
            report["kv_running_end"] = server.metric("dsv4_kv_bytes", use="running")
            report["resident_end_mib"] = round(resident_mib(pid), 1)
            # One connection is the one that reads this page.
            left = report["kv_running_end"] != 0 or report["connections_end"] > 1
        except (AssertionError, OSError) as error:
            report["end_fault"] = repr(error)
        try:
            report["exit_status"] = server.stop(timeout=60)
        except Exception as error:  # the server did not stop and was killed
            report["exit_status"] = repr(error)
    print(json.dumps(report), flush=True)
    good = not (crashed or faults or unfinished or left) and report["exit_status"] == 0
    os._exit(0 if good else 1)


if __name__ == "__main__":
    main()
