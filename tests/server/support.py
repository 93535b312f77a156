"""Shared by the tests of `dsv4 serve`. Each *_test.py is run as

    http_test.py BINARY

Exit status 77: every test was skipped. DSV4_TEST_SERVE: flags for every server that the tests start, for example
"--device cuda". DSV4_TEST_THREADS: the number of threads of a server; default 2. DSV4_TEST_SLOWNESS: factor on all
waits, for a program under a sanitizer. Waits are long anyway: on a shared machine some tests get a tenth of a core.
CTest ends tests that hang.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
BINARY = os.path.abspath(sys.argv[1]) if len(sys.argv) == 2 else ""
SLOWNESS = float(os.environ.get("DSV4_TEST_SLOWNESS", "1"))
THREADS = int(os.environ.get("DSV4_TEST_THREADS", "2"))
HAS_NANO = any(NANO.glob("*.safetensors"))

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The name of the city."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
}
WEATHER_TOOL = {"type": "function", "function": WEATHER}
SUM = [{"role": "user", "content": "What is 27 + 48?"}]


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    def events(self):
        """[(event or None, data)] of a stream; data is parsed, except [DONE]."""
        found = []
        for block in self.body.decode().split("\n\n"):
            event, data = None, None
            for line in block.split("\n"):
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    data = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
            if data is not None:
                found.append((event, data))
        return found


class Server:
    """A live server on a free port; `popen`: more arguments for its process."""

    def __init__(self, *args, threads=THREADS, start_timeout=120, **popen):
        self.log = tempfile.TemporaryFile()
        command = [BINARY, "serve", "--port", "0", "--threads", str(threads), *os.environ.get("DSV4_TEST_SERVE", "").split(),
                   *map(str, args)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **{"stderr": self.log, **popen})
        end = time.time() + start_timeout * SLOWNESS
        while True:
            found = re.search(r"listening.*https?://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", self.read_log())
            if found:
                break
            if self.process.poll() is not None or time.time() > end:
                raise RuntimeError("the server did not start: " + self.read_log())
            time.sleep(0.05)
        self.port = int(found.group(1))

    def read_log(self):
        if self.log.closed:
            return self.last_log
        return os.pread(self.log.fileno(), 1 << 24, 0).decode()

    def connect(self, timeout=500):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOWNESS)

    def socket(self, timeout=120):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout * SLOWNESS)

    def request(self, method, path, body=None, headers={}):
        connection = self.connect()
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, headers)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, None, headers)

    def post(self, path, body, **headers):
        return self.request("POST", path, body, headers)

    def metric(self, name, **labels):
        """The sum of a metric's values over the series with these labels."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + "{") and all('%s="%s"' % kv in line for kv in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def wait_until_idle(self):
        wait_for(lambda: self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0, "sequences are still there")

    def wait_until_draining(self):
        wait_for(lambda: "draining" in self.read_log(), "it does not drain")

    def lines(self, *words):
        """The complete lines of the log that contain all of these words."""
        return [line for line in self.read_log().split("\n")[:-1] if all(word in line for word in words)]

    def whole_log(self):
        """The lines of the log, up to a line of now: a separate thread writes them, one after the other."""
        mark = "mark_%d" % time.monotonic_ns()
        self.get("/no/such/route", **{"X-Request-ID": mark})
        wait_for(lambda: self.lines(mark), "the log stands still")
        return [line for line in self.lines() if "mark_" not in line]

    def memory(self, field):
        """MiB of a field of /proc/PID/status, such as VmRSS or VmHWM, and its maximum so far."""
        status = Path("/proc/%d/status" % self.process.pid).read_text()
        return int(re.search(r"^%s:\s+(\d+) kB" % field, status, re.MULTILINE).group(1)) / 1024

    def stop(self, signal_number=signal.SIGTERM, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            status = self.process.wait(timeout * SLOWNESS)
            self.last_log = self.read_log()
            self.log.close()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return status


def wait_for(found, what="it did not come", seconds=120):
    """Waits for found() to return something and returns it. The time limit only ends a test that hangs."""
    end = time.time() + seconds * SLOWNESS
    while True:
        value = found()
        if value:
            return value
        if time.time() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.02)


def best_of(tries, good, measure):
    """The result of measure(), repeated if it is not good: another program may have used the machine. Slow code is slow
    each time."""
    for _ in range(tries):
        value = measure()
        if good(value):
            break
    return value


def in_parallel(calls):
    """Runs the calls in threads. Returns their results in order, or raises the first exception."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = (True, calls[i]())
        except Exception as error:  # raised again below
            results[i] = (False, error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for fine, value in results:
        if not fine:
            raise value
    return [value for _, value in results]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class ServerTestCase(unittest.TestCase):
    """One server for all tests of a class."""

    FLAGS = []

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        if status != 0:
            raise AssertionError("exit status %d:\n%s" % (status, cls.server.last_log[-4000:]))

    def refused(self, reply, status, *words):
        """Checks for an error in OpenAI's form that contains these words, and returns it."""
        self.assertEqual(reply.status, status, reply.body)
        error = reply.json["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        for word in words:
            self.assertIn(word, error["message"])
        return error

    def chat(self, messages=SUM, **fields):
        body = {"messages": messages, "temperature": 0, **fields}
        reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.events() if fields.get("stream") else reply.json

    def complete(self, prompt, **fields):
        reply = self.server.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.events() if fields.get("stream") else reply.json


def has_grammars():
    """Whether this build has XGrammar."""
    server = Server()
    try:
        reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_choice": ["a"]})
        return reply.status == 200 or b"does not have" not in reply.body
    finally:
        server.stop()


def main():
    if not BINARY:
        sys.exit("usage: %s BINARY" % sys.argv[0])
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        print("skipped: " + (result.skipped[0][1] if result.skipped else "nothing ran"))
        sys.exit(77)
