#!/usr/bin/env python3
"""Tests scripts/times on a small build folder and on a command with two steps."""

import subprocess
import tempfile
import unittest
from pathlib import Path

TIMES = Path(__file__).resolve().parents[2] / "scripts" / "times"
# The command of hash 1 has two outputs; b.o was built twice.
LOG = """# ninja log v5
0\t2000\t1\tsrc/CMakeFiles/a.dir/a.o\t1
0\t2000\t1\tsrc/CMakeFiles/a.dir/a.d\t1
0\t9000\t1\tcli/CMakeFiles/b.dir/b.o\t2
10\t3010\t2\tcli/CMakeFiles/b.dir/b.o\t3
"""


def run(*arguments):
    result = subprocess.run([TIMES, *arguments], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr


class Times(unittest.TestCase):
    def test_a_build_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ".ninja_log").write_text(LOG)
            (Path(folder) / "junit.xml").write_text('<testsuite><testcase name="T.a" time="1.5"/></testsuite>')
            code, said = run(folder)
        self.assertEqual(code, 0, said)
        self.assertIn("5 s in 2 jobs", said)
        self.assertIn("3.0  cli/CMakeFiles/b.dir/b.o", said)
        self.assertIn("1.5  T.a", said)

    def test_the_steps_of_a_command_and_its_status(self):
        code, said = run("--", "sh", "-c", "echo == one; echo == two; exit 3")
        self.assertEqual(code, 3, said)
        self.assertRegex(said, r"\d\.\d  one\n +\d\.\d  two\n")

    def test_a_folder_without_a_build_is_named(self):
        code, said = run("/nonexistent")
        self.assertEqual((code, said.count("/nonexistent has no .ninja_log")), (1, 1), said)


if __name__ == "__main__":
    unittest.main()
