#!/usr/bin/env python3
"""The folder of --kv-disk: damaged, swapped and foreign files, no room, no rights, and a server killed while it
writes."""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from campaign import HAS_NANO, Server, cases, main

PROMPTS = ["Chapter %d. " % i + "And it came to pass in the days of the king that they went out. " * 12 for i in range(4)]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class Disk(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.disk = Path(folder.name) / "kv"

    def serve(self, **popen):
        return Server("--kv-budget", "24MiB", "--kv-disk", str(self.disk), "--kv-disk-bytes", "64MiB", "--drain-timeout", "20", **popen)

    def ask(self, server):
        """The model's reply to each prompt."""
        texts = []
        for prompt in PROMPTS:
            reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 6, "temperature": 0})
            self.assertEqual(reply.status, 200, reply.body)
            texts.append(reply.json["choices"][0]["text"])
        return texts

    def fill(self):
        server = self.serve()
        texts = self.ask(server)
        self.assertEqual(server.stop(), 0)
        self.assertTrue(self.files())
        return texts

    def files(self):
        return sorted(path for path in self.disk.rglob("*") if path.is_file() and not path.is_symlink())

    def check(self, texts):
        server = self.serve()
        try:
            self.assertEqual(self.ask(server), texts)
            self.assertEqual(server.get("/health").status, 200)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_damage(self):
        texts = self.fill()
        whole = self.disk.with_name("whole")
        shutil.copytree(self.disk, whole)
        for number, generator in cases("damage", 8):
            shutil.rmtree(self.disk)
            shutil.copytree(whole, self.disk)
            for path in self.files():
                data = bytearray(path.read_bytes() or b"\0")
                kind = generator.randrange(6)
                if kind == 0:
                    for _ in range(generator.randint(1, 20)):
                        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
                elif kind == 1:
                    del data[generator.randrange(len(data)):]
                elif kind == 2:
                    data += os.urandom(100)
                elif kind == 3:
                    begin = generator.randrange(len(data))
                    data[begin:begin + 64] = bytes(64)
                elif kind == 4:
                    data = bytearray(generator.choice(self.files()).read_bytes())  # another file under this name
                path.write_bytes(bytes(data))
            with self.subTest(number=number):
                self.check(texts)

    def test_what_is_no_file(self):
        texts = self.fill()
        for number, path in enumerate(self.files()):
            data = path.read_bytes()
            path.unlink()
            if number % 4 == 0:
                os.mkfifo(path)
            elif number % 4 == 1:
                path.mkdir()
            elif number % 4 == 2:
                path.symlink_to("/dev/zero")
            else:
                path.with_name("elsewhere").write_bytes(data)
                path.symlink_to("elsewhere")
        (self.disk / "a\x1b[2J\nb").write_bytes(b"x")
        self.check(texts)

    def test_no_room(self):
        # Files of more than 100 kB cannot be written, as on a full disk.
        texts = None
        for limit in [100_000, resource.RLIM_INFINITY]:
            server = self.serve(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            found = self.ask(server)
            texts = texts or found
            self.assertEqual(found, texts)
            self.assertEqual(server.stop(), 0)

    def test_a_folder_without_rights(self):
        texts = self.fill()
        self.disk.chmod(0o500)
        self.addCleanup(self.disk.chmod, 0o700)
        self.check(texts)

    def test_killed_again_and_again(self):
        texts = self.fill()
        for number, generator in cases("kill", 4):
            server = self.serve()
            self.ask(server)
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(generator.random() * 0.3)
            except subprocess.TimeoutExpired:
                server.process.kill()
            server.process.wait()
            server.log.close()
        self.check(texts)


if __name__ == "__main__":
    main()
