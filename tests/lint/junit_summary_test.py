"""scripts/junit_summary.py counts the results in files of ctest. The samples come from CMake 3.25.1."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import junit_summary  # noqa: E402  (found through the line above)

CASES = {
    "passes": ('status="run"', ""),
    "fails": ('status="fail"', '<failure message=""/>'),
    "missing executable": ('status="notrun"', '<skipped message="Unable to find executable"/>'),
    "fixture failed": ('status="notrun"', '<skipped message="Fixture dependency failed"/>'),
    "skips by return code": ('status="notrun"', '<skipped message="SKIP_RETURN_CODE=77"/>'),
    "skips by output": ('status="notrun"', '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'),
    "disabled": ('status="disabled"', ""),
}


class JunitSummary(unittest.TestCase):
    def count(self, names):
        cases = "".join(f'<testcase name="{n}" {CASES[n][0]}>{CASES[n][1]}<system-out/></testcase>' for n in names)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "junit.xml"
            path.write_text(f'<?xml version="1.0"?><testsuite name="x">{cases}</testsuite>', encoding="utf-8")
            return junit_summary.count(path)

    def test_counts(self):
        counts, failures = self.count(CASES)
        self.assertEqual(counts, {"passed": 1, "failed": 3, "skipped": 3})
        self.assertEqual(failures, ["fails", "missing executable", "fixture failed"])

    def test_nothing_ran(self):
        self.assertEqual(self.count([]), ({"passed": 0, "failed": 0, "skipped": 0}, []))


if __name__ == "__main__":
    unittest.main()
