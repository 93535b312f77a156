#!/usr/bin/env python3
"""Model folders with changed files: the program reports what is wrong with them, or runs."""

import json
import os
import shutil
import struct
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign import HAS_NANO, NANO, SLOWNESS, Server, cases, main, run, wait_for

SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = Path(folder.name)

    def model(self, name):
        """A folder whose files are links to the nano model's files."""
        folder = self.tmp / name
        folder.mkdir()
        for path in NANO.iterdir():
            if path.is_file():
                (folder / path.name).symlink_to(path)
        return folder

    def replace(self, folder, name, content):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)

    def load(self, folder):
        """Reads everything that a start reads, and generates a token if that succeeds."""
        return run("generate", "-m", str(folder), "-p", "Hi", "-n", "1", "--threads", "1")

    def weights(self):
        return next(NANO.glob("*.safetensors"))

    def irregular(self, name, kind):
        """A folder whose file `name` is empty or not a regular file."""
        folder = self.model(name.replace("/", "_") + kind)
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)
        elif kind == "dangling":
            path.symlink_to("nothing")
        elif kind == "zero":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(b"")
        return folder

    # The program waits ten seconds for data from a pipe; these cases wait together.
    def test_what_is_no_regular_file(self):
        names = SMALL + ["model.safetensors.index.json", self.weights().name, "encoding/encoding_dsv4.py"]
        with ThreadPoolExecutor(len(names)) as pool:
            loads = {(name, "fifo"): pool.submit(self.load, self.irregular(name, "fifo")) for name in names}
        for kind in ["fifo", "folder", "loop", "dangling", "zero", "empty"]:
            for name in names:
                with self.subTest(name=name, kind=kind):
                    waited = loads.get((name, kind))
                    result = waited.result() if waited else self.load(self.irregular(name, kind))
                    if name in ["config.json", "tokenizer.json"]:
                        self.assertEqual(result.returncode, 1)

    def test_serve_does_not_wait_for_a_pipe_either(self):
        folders = [self.irregular(name, "fifo") for name in ["config.json", "tokenizer.json"]]
        with ThreadPoolExecutor(len(folders)) as pool:
            results = list(pool.map(lambda folder: run("serve", "-m", str(folder), "--port", "0"), folders))
        self.assertEqual([result.returncode for result in results], [1, 1])

    def test_numbers_in_the_config(self):
        config = json.loads((NANO / "config.json").read_text())
        numbers = [key for key, value in config.items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
        odd = [0, -1, 1, 3, 2**31, 2**62, 2**63, 1e300, 0.5, "8", None, [], {}, True]
        for number, generator in cases("config", 60):
            folder = self.model("config%d" % number)
            changed = dict(config)
            for key in generator.sample(numbers, generator.randint(1, 2)):
                changed[key] = generator.choice(odd)
            self.replace(folder, "config.json", json.dumps(changed).encode())
            run("inspect", "-m", str(folder), "--plan")
            self.load(folder)
            shutil.rmtree(folder)

    def test_bytes_of_small_files(self):
        for number, generator in cases("bytes", 40):
            name = generator.choice(SMALL[:3])
            data = bytearray((NANO / name).read_bytes())
            for _ in range(generator.randint(1, 5)):
                at = generator.randrange(len(data))
                kind = generator.randrange(4)
                if kind == 0:
                    data[at] = generator.randrange(256)
                elif kind == 1:
                    del data[at:at + generator.randint(1, 1000)]
                elif kind == 2:
                    data[at:at] = generator.choice([b"\0", b"[" * 2000, b'"', b"\xff", b"9" * 400, b"\x1b[2J", b"\\u0000"])
                else:
                    del data[at:]
                if not data:
                    data = bytearray(b"x")
            folder = self.model("bytes%d" % number)
            self.replace(folder, name, bytes(data))
            run("tokenize", "-m", str(folder))
            self.load(folder)
            shutil.rmtree(folder)

    def test_headers_of_weights(self):
        data = self.weights().read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
        names = [name for name in header if name != "__metadata__"]
        for number, generator in cases("header", 40):
            changed = json.loads(json.dumps(header))
            name = generator.choice(names)
            length = size
            kind = generator.randrange(6)
            if kind == 0:
                changed[name]["shape"] = generator.choice([[], [0], [-1], [2**40, 2**40], [2**63], ["a"], changed[name]["shape"][::-1]])
            elif kind == 1:
                changed[name]["data_offsets"] = generator.choice([[0, 2**62], [5, 1], [-8, 0], [0], [0, 0], [2**63, 2**64 - 1]])
            elif kind == 2:
                changed[name]["dtype"] = generator.choice(["F64", "", "F4", "BOOL", 5])
            elif kind == 3:
                del changed[name]
            elif kind == 4:
                length = generator.choice([0, 1, 2**63, 2**64 - 1, size + 1, size - 1])
            text = json.dumps(changed).encode()
            if kind < 4:
                length = len(text)
            body = data[8 + size:]
            if kind == 5:
                body = body[:generator.randrange(len(body))]
            folder = self.model("header%d" % number)
            self.replace(folder, self.weights().name, struct.pack("<Q", length) + text + body)
            self.load(folder)
            shutil.rmtree(folder)


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class InUse(unittest.TestCase):
    """Weights that are changed while a server uses them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "model"
        shutil.copytree(NANO, self.folder)
        self.weights = next(self.folder.glob("*.safetensors"))
        self.server = Server("-m", str(self.folder), "--kv-budget", "32MiB")
        self.addCleanup(self.end)
        self.answer = self.ask()

    def end(self):
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()
        self.server.log.close()

    def ask(self, words="In the beginning"):
        reply = self.server.post("/v1/completions", {"prompt": words, "max_tokens": 8, "temperature": 0})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["choices"][0]["text"]

    def test_a_file_that_becomes_shorter_is_named(self):
        os.truncate(self.weights, 100000)
        with self.assertRaises(OSError):
            self.ask("Something else")
        self.assertEqual(self.server.process.wait(120 * SLOWNESS), 1)
        errors = [line for line in self.server.read_log().splitlines() if line.startswith("dsv4: error: ")]
        self.assertEqual(len(errors), 1)
        self.assertIn("'%s' cannot be read: it became shorter" % self.weights, errors[0])

    def test_a_file_that_is_written_to_ends_readiness(self):
        self.assertEqual(self.server.get("/health/ready").status, 200)
        os.utime(self.weights, (1, 1))
        wait_for(lambda: self.server.get("/health/ready").status != 200)
        reply = self.server.get("/health")
        self.assertEqual((reply.status, reply.json), (503, {"status": "model changed", "live": True, "ready": False}))
        self.assertEqual(self.server.get("/health/live").status, 200)
        time.sleep(6)  # the server has checked the file again
        lines = [line for line in self.server.read_log().splitlines() if " model-changed " in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(str(self.weights), lines[0])

    def test_a_file_that_another_takes_the_place_of_does_no_harm(self):
        other = self.folder / "other"
        shutil.copy(self.weights, other)
        os.truncate(other, 100000)
        os.rename(other, self.weights)
        self.assertEqual(self.ask(), self.answer)
        time.sleep(6)
        self.assertEqual(self.server.get("/health/ready").status, 200)


if __name__ == "__main__":
    main()
