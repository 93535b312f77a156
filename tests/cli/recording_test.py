#!/usr/bin/env python3
"""docs/recording.svg shows what the commands of scripts/record print."""

import html
import os
import re
import subprocess
from pathlib import Path

from support import BINARY, HAS_NANO, ROOT, SLOWNESS, CliTestCase, main

PICTURE = ROOT / "docs" / "recording.svg"
COLUMNS, CELL = 88, 8  # of the terminal; pixels per column


def last_frame():
    """The rows of the terminal at the end of the recording."""
    text = PICTURE.read_text()
    rows = {}
    for name, group in re.findall(r'<g id="(g\d+)">(.*?)</g>', text):
        row = ""
        for x, part in re.findall(r'<text x="(\d+)"[^>]*>([^<]*)</text>', group):
            row = row.ljust(int(x) // CELL) + html.unescape(part).replace("\xa0", " ")
        rows[name] = row.rstrip()
    top = -int(re.findall(r"translateY\((-?\d+)px\)", text)[-1])
    found = re.findall(r'<use xlink:href="#(g\d+)" y="(\d+)"/>', text)
    return [rows[name] for name, y in found if int(y) >= top]


def as_shown(output):
    """The rows of a terminal that show the text."""
    lines = output.rstrip("\n").split("\n")
    return [line[at:at + COLUMNS].rstrip() for line in lines for at in range(0, max(1, len(line)), COLUMNS)]


class Recording(CliTestCase):
    def setUp(self):
        super().setUp()
        if not HAS_NANO:
            self.skipTest("models/nano is absent")
        (self.tmp / "dsv4").symlink_to(BINARY)
        self.environment = {**os.environ, "PATH": f"{self.tmp}:{os.environ['PATH']}", "HOME": str(self.tmp)}

    def test_the_commands_print_what_it_shows(self):
        rows = last_frame()
        commands = [(number, row[2:]) for number, row in enumerate(rows) if row.startswith("$ ")]
        script = (ROOT / "scripts" / "record").read_text()
        self.assertGreaterEqual(len(commands), 3)
        for number, command in commands:
            with self.subTest(command=command):
                self.assertIn(command, script)
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120 * SLOWNESS,
                                      cwd=ROOT, env=self.environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                expected = as_shown(done.stdout)
                self.assertEqual(rows[number + 1:number + 1 + len(expected)], expected)

    def test_it_is_small_and_runs_no_script(self):
        text = PICTURE.read_text()
        self.assertLess(len(text.encode()), 60_000)
        self.assertNotIn("<script", text)
        self.assertIn("animation-iteration-count:infinite", text)
        self.assertIn("docs/recording.svg", Path(ROOT / "README.md").read_text())


if __name__ == "__main__":
    main()
