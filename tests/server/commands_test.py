#!/usr/bin/env python3
"""Runs every command of the user pages: README.md, docs/*.md and docs/serving/*.md.

A command is a line of a code block that begins with `dsv4`, `build/release/dsv4`, `echo ... | dsv4` or
`curl http://127.0.0.1:8000`. Each must exit with status 0 in an empty folder with the bundled model. `dsv4 serve` runs
on a free port until it is healthy. curl talks to one server. A command that needs a GPU, a released checkpoint, a large
synthetic model or a folder of root is only parsed.
"""

import collections
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import BINARY, NANO, ROOT, SLOWNESS, Server, ServerTestCase, has_grammars, main

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "serving").glob("*.md"))]
COMMAND = re.compile(r"((echo .*\| *)?(build/release/)?dsv4 |curl .*http://127\.0\.0\.1:8000)")
# Files that commands of the pages read.
FILES = {"keys.txt": "laptop example-key\n"}
FEWEST = 20
TIMEOUT = 300 * SLOWNESS

Command = collections.namedtuple("Command", "place text")


def commands_of(page):
    """The commands of a page's plain and `sh` code blocks."""
    found, in_block, joined, first = [], False, "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            in_block = not in_block and line in ("```", "```sh")
            continue
        if not in_block:
            continue
        first = first if joined else number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        if COMMAND.match(joined):
            found.append(Command("%s:%d" % (page.relative_to(ROOT), first), runnable(joined)))
        joined = ""
    return found


def runnable(line):
    """The command as the test runs it: in the foreground, with the bundled model for DIR, without `source`."""
    line = re.sub(r"\s&$", "", line.replace("build/release/dsv4 ", "dsv4 ").rstrip())
    line = re.sub(r"\| source\b", "| cat", line)
    return re.sub(r"-m DIR\b", "-m " + shlex.quote(str(NANO)), line)


def has_amx():
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def kind(command):
    if command.text.startswith("curl "):
        return "request"
    words = words_of(command)
    if "--help" in words:
        return "run"
    needs = r"--device[ =]cuda|/models/|/path/to|/etc/|/var/"
    if re.search(needs, command.text) or ("--amx" in words and not has_amx()):
        return "parse"
    # `inspect` needs no memory for the weights.
    if words[1] != "inspect" and re.search(r"--synthetic[ =](flash|pro)", command.text):
        return "parse"
    return "serve" if words[1] == "serve" else "run"


def words_of(command):
    """The words of `dsv4 ...`, without `echo ... |` and a comment."""
    words = shlex.split(command.text, comments=True)
    return words[words.index("dsv4"):]


@functools.cache
def flags_of(command):
    """The flags that a command's help lists."""
    text = subprocess.run([BINARY, command, "--help"], capture_output=True, check=True, timeout=TIMEOUT).stdout.decode()
    return {flag for names in re.findall(r"^  (-\S+)", text, re.M) for flag in names.split(",")}


def without(words, flag):
    """The words without a flag and its value."""
    if flag in words:
        at = words.index(flag)
        return words[:at] + words[at + 2:]
    return words


class Commands(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.commands = [command for page in PAGES for command in commands_of(page)]
        cls.folder = Path(tempfile.mkdtemp())
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin" / "dsv4").symlink_to(BINARY)
        for name, text in FILES.items():
            (cls.folder / name).write_text(text)
        path = "%s:%s" % (cls.folder / "bin", os.environ["PATH"])
        cls.environment = {**os.environ, "PATH": path, "HOME": str(cls.folder)}
        cls.environment.pop("XDG_STATE_HOME", None)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)
        super().tearDownClass()

    def check_each(self, wanted, check):
        for command in self.commands:
            if kind(command) == wanted:
                with self.subTest(place=command.place, command=command.text):
                    check(command)

    def run_in_shell(self, text):
        stdin = b"/quit\n" if text.startswith("dsv4 chat") else b""
        done = subprocess.run(["bash", "-o", "pipefail", "-c", text], input=stdin, timeout=TIMEOUT, cwd=self.folder,
                              env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout.decode(errors="replace")[-2000:])

    def test_the_pages_have_commands(self):
        counts = collections.Counter(kind(command) for command in self.commands)
        print("commands of the pages:", ", ".join("%d %s" % (counts[name], name) for name in sorted(counts)))
        self.assertGreaterEqual(len(self.commands), FEWEST)
        self.assertGreaterEqual(counts["run"] + counts["serve"] + counts["request"], FEWEST)

    def start(self, command):
        words = words_of(command)[2:]
        for flag in ["--host", "--port", "--threads"]:  # the test chooses them
            words = without(words, flag)
        if "--metrics-port" in words:
            words[words.index("--metrics-port") + 1] = "0"
        server = Server(*words, cwd=self.folder, env=self.environment)
        try:
            self.assertEqual(server.get("/health").status, 200)
        finally:
            self.assertEqual(server.stop(), 0)

    def request(self, command):
        if "response_format" in command.text and not has_grammars():
            self.skipTest("this build has no XGrammar")
        text = command.text.replace("http://127.0.0.1:8000", "http://127.0.0.1:%d" % self.server.port)
        self.run_in_shell(text.replace("curl ", "curl --silent --show-error --fail-with-body ", 1))

    def parse(self, command):
        words = words_of(command)
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        self.assertEqual(used - flags_of(words[1]), set())
        # Before --help takes effect, the program checks values, but not names of flags.
        done = subprocess.run([BINARY, *words[1:], "--help"], capture_output=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_commands_run(self):
        self.check_each("run", lambda command: self.run_in_shell(command.text))

    def test_servers_start(self):
        self.check_each("serve", self.start)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_requests_succeed(self):
        self.check_each("request", self.request)

    def test_other_commands_are_parsed(self):
        self.check_each("parse", self.parse)


if __name__ == "__main__":
    main()
