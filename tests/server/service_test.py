#!/usr/bin/env python3
"""The systemd unit, and what `dsv4 serve` and `dsv4 health` report. A socket of the test takes the place
of systemd's."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from support import BINARY, ROOT, SLOWNESS, SUM, Server, ServerTestCase, main, wait_for

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "dsv4.service.in"


def settings(text):
    """{setting: its values} of a unit."""
    found = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        found.setdefault(name, []).append(value)
    return found


class Manager:
    """The end of NOTIFY_SOCKET that belongs to systemd."""

    def __init__(self, abstract):
        self.folder = tempfile.TemporaryDirectory()
        path = self.folder.name + "/notify"
        self.name = "@" + path if abstract else path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + path if abstract else path)
        self.socket.settimeout(120 * SLOWNESS)
        self.messages = []

    def environment(self, **more):
        return {**os.environ, "NOTIFY_SOCKET": self.name, **more}

    def read_until(self, field):
        """The fields of the next message that has `field`."""
        while True:
            message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
            self.messages.append(message)
            if field in message:
                return message

    def waiting(self):
        """The messages that have arrived."""
        found = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            return found
        finally:
            self.socket.settimeout(120 * SLOWNESS)

    def close(self):
        self.socket.close()
        self.folder.cleanup()


class Notify(unittest.TestCase):
    def start(self, *flags, abstract=False, **environment):
        manager = Manager(abstract)
        self.addCleanup(manager.close)
        server = Server(*flags, env=manager.environment(**environment))
        self.addCleanup(server.stop)
        return manager, server

    def test_ready_means_that_requests_are_answered(self):
        for abstract in [False, True]:
            with self.subTest(abstract=abstract):
                manager, server = self.start(abstract=abstract)
                ready = manager.read_until("READY")
                self.assertEqual(server.get("/health/ready").status, 200)
                self.assertEqual(ready["READY"], "1")
                self.assertEqual(ready["STATUS"], "serving nano on port %d" % server.port)
                loading = [m for m in manager.messages if "EXTEND_TIMEOUT_USEC" in m]
                self.assertGreater(len(loading), 0)
                for message in loading:
                    self.assertRegex(message["STATUS"], r"^loading: \d+\.\d\d of \d+\.\d\d GB$")
                    self.assertGreaterEqual(int(message["EXTEND_TIMEOUT_USEC"]), 60_000_000)
                server.stop()

    def test_stopping_comes_before_the_drain(self):
        manager, server = self.start("--drain-timeout", "100")
        manager.read_until("READY")
        stream = server.connect()
        stream.request("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Tell me a story."}], "stream": true,'
                       b' "max_tokens": 100000, "ignore_eos": true}')
        reply = stream.getresponse()
        reply.readline()
        server.process.send_signal(signal.SIGTERM)
        stopping = manager.read_until("STOPPING")
        self.assertEqual(stopping["STOPPING"], "1")
        self.assertGreater(int(stopping["EXTEND_TIMEOUT_USEC"]), (100 + 60 + 20) * 1_000_000)
        self.assertIsNone(server.process.poll())
        stream.close()
        self.assertEqual(server.process.wait(120 * SLOWNESS), 0)

    def test_the_watchdog_hears_from_a_server_that_waits(self):
        manager, server = self.start(WATCHDOG_USEC="200000")
        manager.read_until("READY")
        for _ in range(3):
            self.assertEqual(manager.read_until("WATCHDOG"), {"WATCHDOG": "1"})
        server.stop()

    def test_the_watchdog_of_another_process_is_none_of_ours(self):
        manager, server = self.start(WATCHDOG_USEC="1000", WATCHDOG_PID="1")
        manager.read_until("READY")
        self.assertEqual(server.get("/health/ready").status, 200)
        self.assertEqual(manager.waiting(), [])
        server.stop()

    def test_a_step_that_hangs_ends_the_messages(self):
        """The second rank is late to a pass."""
        late = 8 * SLOWNESS
        manager, server = self.start("--device", "cpu*2", "--threads", "2", "--stall-timeout", "1", WATCHDOG_USEC="200000",
                                     DSV4_FAIL_DEVICE_AFTER="20:1:%g" % late)
        manager.read_until("READY")
        connection = server.connect()
        connection.request("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "ignore_eos": true}')
        wait_for(lambda: server.get("/health/live").status == 503, "no step hangs")
        manager.waiting()
        time.sleep(1)  # five times the interval of a server that lives
        messages = manager.waiting()
        self.assertEqual(server.get("/health/live").status, 503, "the step ended too early for this test")
        self.assertEqual(messages, [])
        connection.getresponse().read()
        connection.close()
        wait_for(lambda: server.get("/health/live").status == 200, "the step does not end")
        self.assertEqual(manager.read_until("WATCHDOG"), {"WATCHDOG": "1"})

    def test_a_wrong_address_is_a_note(self):
        server = Server(env={**os.environ, "NOTIFY_SOCKET": "vsock:2:9999"})
        self.addCleanup(server.stop)
        self.assertIn("NOTIFY_SOCKET is 'vsock:2:9999'", server.read_log())
        self.assertEqual(server.get("/health/ready").status, 200)


class Health(ServerTestCase):
    def run_health(self, *args):
        return subprocess.run([BINARY, "health", *args], capture_output=True, timeout=120 * SLOWNESS)

    def url(self, path=""):
        return "http://127.0.0.1:%d%s" % (self.server.port, path)

    def test_a_server_that_is_ready(self):
        for path in ["", "/", "/health/live", "/health"]:
            result = self.run_health(self.url(path))
            self.assertEqual((result.returncode, result.stderr), (0, b""), path)
            self.assertIn(b'"ready":true', result.stdout.replace(b" ", b""))
        self.assertEqual(self.run_health("http://localhost:%d" % self.server.port).returncode, 0)

    def failed(self, result, status, *words):
        self.assertEqual((result.returncode, result.stdout), (status, b""), result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr.decode())

    def test_what_is_not_ready(self):
        self.failed(self.run_health(self.url("/no/such/route")), 1, "status 404")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # no process listens
            self.failed(self.run_health("http://127.0.0.1:%d" % closed.getsockname()[1]), 1, "cannot connect", "refused")
        self.failed(self.run_health("http://no-such-host.invalid:1"), 1, "no-such-host.invalid")

    def answer(self, reply):
        """The result of a health check of a server that sends these bytes and never closes."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            check = subprocess.Popen([BINARY, "health", "http://127.0.0.1:%d" % silent.getsockname()[1], "--timeout", "1"],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            connection, _ = silent.accept()
            with connection:
                connection.sendall(reply)
                out, err = check.communicate(timeout=120 * SLOWNESS)
            return subprocess.CompletedProcess([], check.returncode, out, err)

    def test_a_server_that_does_not_answer_well(self):
        self.failed(self.answer(b""), 1, "does not answer")
        self.failed(self.answer(b"SSH-2.0-x\r\n"), 1, "no HTTP server")
        self.failed(self.answer(b"HTTP/1.1 503 \r\n\r\n\x1b[2J" + b"x" * 100000), 1, "status 503", "\\x1b")
        self.assertEqual(self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").returncode, 0)

    def test_wrong_addresses(self):
        for url in ["127.0.0.1:8000", "http://", "http://:8000", "http://h:0", "http://h:65536", "http://h:x", "http://a b"]:
            self.failed(self.run_health(url), 2, "http://HOST[:PORT][/PATH]")
        self.failed(self.run_health("https://127.0.0.1:8000"), 2, "--metrics-port")


class Keys(unittest.TestCase):
    """The default of the unit's credential, for a machine without /etc/dsv4/api-keys."""

    def setUp(self):
        (content,) = settings(UNIT.read_text())["SetCredential"]
        name, self.text = content.split(":", 1)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / name

    def refused(self, *flags):
        command = [BINARY, "serve", "--port", "0", "--api-key-file", str(self.file), *flags]
        result = subprocess.run(command, capture_output=True, timeout=120 * SLOWNESS)
        self.assertEqual(result.returncode, 1)
        return result.stderr.decode()

    def test_it_serves_this_machine_without_keys(self):
        self.file.write_text(self.text)
        server = Server("--api-key-file", self.file)
        self.addCleanup(server.stop)
        self.assertEqual(server.post("/v1/chat/completions", {"messages": SUM, "max_tokens": 1}).status, 200)

    def test_it_does_not_serve_others(self):
        self.file.write_text(self.text)
        self.assertIn("sets no keys", self.refused("--host", "0.0.0.0"))

    def test_a_file_that_lost_its_keys_is_an_error(self):
        for text in ["", "\n", "# keys of the team\n", self.text + "\n# more\n"]:
            self.file.write_text(text)
            self.assertIn("contains no API key", self.refused())


class Unit(unittest.TestCase):
    """deploy/dsv4.service.in, with a program at the place where it would be installed."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        prefix = Path(self.folder.name)
        (prefix / "bin").mkdir()
        (prefix / "bin" / "dsv4").symlink_to(BINARY)
        text = UNIT.read_text().replace("@DSV4_INSTALL_BINDIR@", str(prefix / "bin")).replace("@DSV4_INSTALL_DATADIR@", str(prefix / "share"))
        self.assertNotIn("@DSV4", text)
        self.file = prefix / "dsv4.service"
        self.file.write_text(text)
        self.settings = settings(text)

    def analyze(self, *args):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd is not installed")
        return subprocess.run(["systemd-analyze", *args], capture_output=True, timeout=120, text=True)

    def test_systemd_reads_it_without_complaint(self):
        result = self.analyze("--man=no", "verify", str(self.file))
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_systemd_reads_it_with_the_drop_in_for_a_gpu(self):
        dropin = self.file.parent / "dsv4.service.d"
        dropin.mkdir()
        shutil.copy(DEPLOY / "gpu.conf", dropin)
        result = self.analyze("--man=no", "verify", str(self.file))
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_its_exposure_is_small(self):
        result = self.analyze("security", "--offline=yes", "--no-pager", "--threshold=25", str(self.file))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_built_unit_names_the_prefix(self):
        built = Path(BINARY).parent / "deploy" / "dsv4.service"
        if not built.exists():
            self.skipTest("the build has no install rules")
        text = built.read_text()
        self.assertNotIn("@", text.replace("@system-service", ""))
        self.assertRegex(text, r"(?m)^ExecStart=/\S+/bin/dsv4 serve ")

    def test_there_is_time_to_drain(self):
        drain, save, hangs = 30, 60, 20
        self.assertGreater(int(self.settings["TimeoutStopSec"][0]), drain + save + hangs)

    def test_a_wrong_flag_is_not_tried_again(self):
        self.assertEqual(self.settings["RestartPreventExitStatus"], ["2"])
        (start,) = self.settings["ExecStart"]
        command = [BINARY, *start.split()[1:-1], "--no-such-flag"]
        self.assertEqual(subprocess.run(command, capture_output=True, timeout=120 * SLOWNESS).returncode, 2)


if __name__ == "__main__":
    main()
