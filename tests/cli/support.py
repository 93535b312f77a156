"""Shared code of the end-to-end tests of the dsv4 binary. Run each *_test.py as

    usage_test.py BINARY

Exit status 77: every test was skipped because its model is missing.
DSV4_TEST_SLOWNESS: factor for all timeouts (for a program under a sanitizer).
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SLOWNESS = float(os.environ.get("DSV4_TEST_SLOWNESS", "1"))
ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
GOLDEN = ROOT / "tests" / "golden" / "flash-nvfp4"
BINARY = os.path.abspath(sys.argv[1]) if len(sys.argv) == 2 else ""
COMMANDS = ["generate", "chat", "logits", "perplexity", "tokenize", "detokenize", "encode", "parse", "inspect",
            "bench", "synthesize", "serve", "health", "completions", "man"]
BENCH_PARTS = ["decode", "prefill", "batch", "ops", "linears", "drafts", "start", "errors"]

HAS_TOKENIZER = (NANO / "tokenizer.json").exists()
HAS_NANO = HAS_TOKENIZER and any(NANO.glob("*.safetensors"))
HAS_GOLDEN = (GOLDEN / "config.json").exists()


def run(*args, stdin=b"", timeout=120, **kwargs):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True, timeout=timeout * SLOWNESS, **kwargs)


def wait_for(found, what="it did not come", seconds=120):
    """Waits until `found` returns something, and returns it. Fails after `seconds`."""
    end = time.monotonic() + seconds * SLOWNESS
    while not (value := found()):
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.02)
    return value


def handles_interrupts(process):
    """Returns true after the program has installed its handler. Before that, a signal ends it."""
    status = Path("/proc/%d/status" % process.pid).read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) & 1 << (signal.SIGINT - 1)


def soon(seconds_of, tries=5):
    """Returns true if one of several tries takes less than a second. Another program may have used the machine."""
    return any(seconds_of() < SLOWNESS for _ in range(tries))


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def make_text_model(folder):
    """Makes the golden checkpoint with a tokenizer of its vocabulary size: the first tokens of the nano model's tokenizer."""
    folder.mkdir()
    for path in GOLDEN.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "tokenizer_config.json").symlink_to(NANO / "tokenizer_config.json")
    tokenizer = json.loads((NANO / "tokenizer.json").read_text())
    size = json.loads((GOLDEN / "config.json").read_text())["vocab_size"]
    vocab = tokenizer["model"]["vocab"]
    late = [t for t in tokenizer["added_tokens"] if t["id"] >= len(vocab)]
    num_kept = size - len(late)
    kept = {token: i for token, i in vocab.items() if i < num_kept}
    tokenizer["model"]["vocab"] = kept
    tokenizer["model"]["merges"] = [
        m for m in tokenizer["model"]["merges"] if all(t in kept for t in (*m.split(" "), m.replace(" ", "")))]
    for i, token in enumerate(late):
        token["id"] = num_kept + i
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


class CliTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = Path(folder.name)

    def file(self, name, content):
        path = self.tmp / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def ok(self, *args, **kwargs):
        result = run(*args, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout

    def fails(self, status, words, *args, **kwargs):
        """Checks the exit status, and that stderr is one error line with all of `words`."""
        result = run(*args, **kwargs)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, status, message)
        self.assertTrue(message.startswith("dsv4: error: "), message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertTrue(message.endswith("\n"))
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, message)
        return result


def main():
    if not BINARY:
        sys.exit("usage: %s BINARY" % sys.argv[0])
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        print("skipped: " + (result.skipped[0][1] if result.skipped else "nothing ran"))
        sys.exit(77)
