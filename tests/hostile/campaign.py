"""Shared by the suites of the hostile campaign. Each *_test.py is run as

    http_test.py BINARY [--long N]

and sends input that no honest client or user sends: bytes, files, arguments, grammars, too much, too slowly. The
program must answer or refuse with one line, in bounded time and memory. The next honest request must get the reply
that it would have got anyway. Random cases come from fixed seeds; --long N makes N times as many. Traffic goes to
127.0.0.1 only.

Exit status 77: every test was skipped. DSV4_TEST_SLOWNESS: factor on all waits, for a program under a sanitizer.
"""

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

LONG = 1
if "--long" in sys.argv:
    at = sys.argv.index("--long")
    LONG = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from support import BINARY, HAS_NANO, NANO, SLOWNESS, Server, ServerTestCase, best_of, main, wait_for  # noqa: E402

SANITIZED = SLOWNESS > 1
MIB = 1 << 20


def cases(seed, count):
    """Yields `count` times LONG random generators; the number of a failing case finds it again."""
    for number in range(count * LONG):
        yield number, random.Random("%s %d" % (seed, number))


def address_space(limit):
    """For Server(preexec_fn=...): `ulimit -v`. A sanitizer's shadow memory fits no limit, so there is none then."""
    return None if SANITIZED else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_all(sock, most=1 << 24):
    """Returns what arrives until the server ends the connection, even by a reset."""
    data = b""
    try:
        while len(data) < most:
            piece = sock.recv(65536)
            if not piece:
                break
            data += piece
    except (ConnectionResetError, BrokenPipeError):
        pass
    return data


def send_all(sock, data):
    """Returns False if the server took only a part."""
    try:
        sock.sendall(data)
        return True
    except (ConnectionResetError, BrokenPipeError):
        return False


def status_of(reply):
    return int(reply[9:12]) if reply.startswith(b"HTTP/1.1 ") else None


def run(*args, stdin=subprocess.DEVNULL, timeout=60, **kwargs):
    """Runs the program: it must end in time and not by a signal, and its standard error must be printable."""
    result = subprocess.run([BINARY, *args], stdin=stdin, capture_output=True, timeout=timeout * SLOWNESS, **kwargs)
    assert result.returncode in (0, 1, 2), (args, result.returncode, result.stderr[-2000:])
    errors = result.stderr.decode()  # valid UTF-8
    assert all(c == "\n" or (c >= " " and not "\x7f" <= c <= "\x9f") for c in errors), (args, errors)
    if result.returncode != 0:
        assert errors.count("dsv4: error: ") == 1 and errors.endswith("\n"), (args, errors)
    return result


class HostileTestCase(ServerTestCase):
    """A server that must be unharmed after every test."""

    LIMIT_MIB = 0         # limit of its address space; 0: none
    GROWTH_MIB = 200      # limit for the growth of its resident memory, over the tests of the class

    @classmethod
    def setUpClass(cls):
        popen = {"preexec_fn": address_space(cls.LIMIT_MIB * MIB)} if cls.LIMIT_MIB else {}
        cls.server = Server("--kv-budget", "32MiB", *cls.FLAGS, **popen)
        cls.answer = cls.honest()
        cls.before = cls.resident()

    @classmethod
    def resident(cls):
        with open("/proc/%d/statm" % cls.server.process.pid) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB

    @classmethod
    def honest(cls):
        body = {"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}
        reply = cls.server.post("/v1/completions", body, **cls.HEADERS)
        assert reply.status == 200, reply.body
        return reply.json["choices"][0]["text"]

    HEADERS = {}

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), self.server.read_log()[-4000:])

        def health():
            begin = time.time()
            self.assertEqual(self.server.get("/health").status, 200)
            return time.time() - begin

        self.assertLess(best_of(5, lambda seconds: seconds < 5 * SLOWNESS, health), 5 * SLOWNESS)
        self.assertEqual(self.honest(), self.answer)
        if not SANITIZED:  # freed memory returns to the system
            wait_for(lambda: self.resident() - self.before < self.GROWTH_MIB,
                     lambda: "%d MiB more than before are held" % (self.resident() - self.before))
