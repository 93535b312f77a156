"""scripts/gtest_summary.py reports the result of each test of several runs, also of runs that were killed."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHOLE = """[==========] Running 3 tests from 2 test suites.
[ RUN      ] A.One
[       OK ] A.One (3 ms)
[ RUN      ] All/A.Two/x
a.cc:5: Failure
[  FAILED  ] All/A.Two/x, where GetParam() = "x" (0 ms)
[ RUN      ] B.Three
[  SKIPPED ] B.Three (0 ms)
[==========] 3 tests from 2 test suites ran. (3 ms total)
[  PASSED  ] 1 test.
[  FAILED  ] 1 test, listed below:
[  FAILED  ] All/A.Two/x, where GetParam() = "x"
"""
KILLED = """[==========] Running 4 tests from 1 test suite.
[ RUN      ] C.One
[       OK ] C.One (1 ms)
[ RUN      ] C.Two
"""


class GtestSummary(unittest.TestCase):
    def summary(self, *outputs):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, "tests.%d.txt" % i) for i in range(len(outputs))]
            for path, output in zip(paths, outputs):
                path.write_text(output)
            result = subprocess.run([sys.executable, "-B", ROOT / "scripts/gtest_summary.py", *paths], capture_output=True, text=True)
            return result.returncode, json.loads(result.stdout), result.stderr

    def test_counts_and_names(self):
        status, found, shown = self.summary(WHOLE, KILLED)
        self.assertEqual(status, 1)
        self.assertEqual((found["passed"], found["skipped"], found["not_reached"]), (2, 1, 2))
        self.assertEqual((found["failed"], found["unfinished"]), (["All/A.Two/x"], ["C.Two"]))
        self.assertIn("a.cc:5: Failure", shown)

    def test_a_whole_run_is_good(self):
        good = KILLED.replace("Running 4", "Running 2") + "[       OK ] C.Two (1 ms)\n"
        self.assertEqual(self.summary(good)[0], 0)

    def test_a_run_that_said_nothing_is_not(self):
        good = KILLED.replace("Running 4", "Running 2") + "[       OK ] C.Two (1 ms)\n"
        status, found, _ = self.summary(good, "cannot open shared object file\n")
        self.assertEqual((status, len(found["unfinished"])), (1, 1))


if __name__ == "__main__":
    unittest.main()
