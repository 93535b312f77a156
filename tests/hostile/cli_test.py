#!/usr/bin/env python3
"""The command line with hostile arguments, standard streams and files."""

import json
import os
import resource
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from campaign import BINARY, HAS_NANO, MIB, SANITIZED, SLOWNESS, Server, cases, main, run, wait_for

COMMANDS = ["generate", "chat", "logits", "perplexity", "tokenize", "detokenize", "encode", "parse", "inspect", "bench",
            "synthesize", "serve"]
ODD = ["", "-", "--", "-1", "0", "99999999999999999999", "1e9", "nan", "\x1b[31mred\x1b[0m", "\x07", "a\nb", "\u009b31m", "é" * 3000, "/dev/null",
       "/dev/zero", "/", ".", "no/such/file", "%s%n", "--model", "-m", "cuda:99999999999", "18446744073709551616TiB", "-0", "+", "=", "--port=="]


class CommandLine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = Path(folder.name)

    def test_control_characters_do_not_reach_the_terminal(self):
        for argument in ["\x1b]0;title\x07", "\x1b[2J", "a\rb", "\u009b31m", "\x7f", b"\x9b31m", b"\xff\xfe"]:
            for args in [[argument], ["generate", argument], ["generate", "--", argument], ["generate", "-m", argument, "-p", "x"],
                         ["generate", "--threads", argument], ["serve", "--port", argument], ["inspect", "-m", argument],
                         ["generate", "--prompt-file", argument], ["serve", "--api-key-file", argument], ["chat", "--encoding", argument]]:
                with self.subTest(args=args):
                    self.assertNotEqual(run(*args).returncode, 0)

    def test_random_arguments(self):
        help_text = {c: run(c, "--help").stdout.decode() for c in COMMANDS}
        flags = {c: [w.rstrip(",") for w in t.split() if w.startswith("--")] for c, t in help_text.items()}
        for number, generator in cases("arguments", 150):
            command = generator.choice(COMMANDS)
            args = [command]
            for _ in range(generator.randint(1, 4)):
                args.append(generator.choice(flags[command]))
                if generator.random() < 0.7:
                    args.append(generator.choice(ODD))
            # These commands would run for long, or print text that this test cannot judge.
            if "--help" in args or command in ("serve", "generate", "chat", "perplexity", "logits", "bench"):
                args += ["-m", "no/such/folder"]
            run(*args, cwd=self.tmp)

    def test_standard_streams_that_are_closed_or_full(self):
        for shell in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", "</", "0>/dev/null"]:
            for command in ["generate -n 1", "generate -p Hi -n 1", "tokenize", "detokenize", "encode", "parse", "chat", "inspect", "--help",
                            "perplexity -f -", "logits --token-ids - -o out"]:
                if not HAS_NANO and command != "--help":
                    continue
                with self.subTest(shell=shell, command=command):
                    result = subprocess.run(["sh", "-c", "exec \"$0\" %s %s" % (command, shell), BINARY], stdin=subprocess.DEVNULL,
                                            capture_output=True, timeout=60 * SLOWNESS, cwd=self.tmp)
                    self.assertIn(result.returncode, [0, 1, 2, 141], result.stderr)

    @unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
    def test_a_closed_stdin_is_named(self):
        result = subprocess.run(["sh", "-c", "exec \"$0\" generate -n 1 <&-", BINARY], capture_output=True, timeout=60 * SLOWNESS)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"standard input is closed", result.stderr)

    @unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
    def test_key_files(self):
        for content, fine in [(b"\xef\xbb\xbfkey\r\n", True), (b"", False), (b"\n# none\n", False), (b"k\x1by\n", False), ("schlüssel".encode(), False),
                              (b"a\0b\n", False)]:
            path = self.tmp / "keys"
            path.write_bytes(content)
            if not fine:
                self.assertEqual(run("serve", "--port", "0", "--api-key-file", str(path)).returncode, 1)
                continue
            server = Server("--api-key-file", str(path), "--kv-budget", "32MiB")
            try:
                self.assertEqual(server.get("/v1/models", **{"X-Api-Key": "key"}).status, 200)
            finally:
                server.stop()

    def test_lines_on_standard_input(self):
        lines = [b"", b"{}", b"[", b"\0", b"\xff", b"[1e400]", b"[-1]", b"[99999999999]", b'"' + b"\\ud800" * 100 + b'"', b"[" * 10000,
                 json.dumps({"messages": [{"role": "x"}]}).encode(), b'{"messages": 5}', b"null"]
        for command in ["tokenize", "detokenize", "encode", "parse"]:
            if not HAS_NANO and command != "parse":
                continue
            for line in lines:
                path = self.tmp / "in"
                path.write_bytes(line + b"\n")
                with open(path, "rb") as file:
                    run(command, "--jsonl", stdin=file)

    @unittest.skipUnless(HAS_NANO and not SANITIZED, "needs the nano model, and a program without a sanitizer's memory")
    def test_little_address_space(self):
        for mib in (*range(24, 64, 4), 39.75, 40.25, 40.5, 41, 72, 80, 96):
            size = int(mib * MIB)

            def limit():
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (size, size))

            for command in ("serve --port 0 --threads 1", "chat --no-history --threads 1", "inspect", "perplexity -f - --threads 1"):
                with self.subTest(mib=mib, command=command):
                    process = subprocess.Popen([BINARY, *command.split()], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                               stderr=subprocess.PIPE, preexec_fn=limit)
                    try:
                        errors = process.communicate(b"a\n", timeout=3 * SLOWNESS)[1]
                    except subprocess.TimeoutExpired:  # it serves
                        process.kill()
                        process.communicate()
                        continue
                    if process.returncode in (-signal.SIGSEGV, 127) and not errors.startswith(b"dsv4"):
                        continue  # the system could not start the program
                    self.assertIn(process.returncode, (0, 1), errors)

    @unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
    def test_few_file_descriptors(self):
        for most in (*range(8, 15), 31, 32):
            with self.subTest(most=most), open(self.tmp / "log", "w+b") as log:
                server = subprocess.Popen([BINARY, "serve", "--port", "0", "--threads", "1"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
                self.addCleanup(server.kill)
                logged = (self.tmp / "log").read_text
                if most >= 32:
                    wait_for(lambda: "listening" in logged(), logged)
                    server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(60 * SLOWNESS), 0 if most >= 32 else 1, logged())
                self.assertEqual("(ulimit -n 4096)" in logged().splitlines()[-1], most < 32, logged())

    def test_places_that_cannot_be_written(self):
        if not HAS_NANO:
            self.skipTest("the nano model is not in models/nano")
        ids = self.tmp / "ids"
        ids.write_text("1 2 3")
        os.mkfifo(self.tmp / "pipe")
        (self.tmp / "loop").symlink_to("loop")
        for target in ["no/such/file", "/", ".", "/proc/self/mem", "/dev/full", "loop", "x" * 5000]:
            with self.subTest(target=target):
                self.assertNotEqual(run("logits", "--token-ids", str(ids), "-o", target, cwd=self.tmp).returncode, 0)


if __name__ == "__main__":
    main()
