#!/usr/bin/env python3
"""Compiles every header of include/ alone, with strict warnings: headers_test.py SOURCES CXX."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

SOURCES, CXX = Path(sys.argv[1]), sys.argv[2]
FLAGS = ["-Wall", "-Wextra", "-Wconversion", "-Wold-style-cast", "-Wshadow", "-Wnon-virtual-dtor", "-Werror", "-fsyntax-only"]
HEADERS = sorted(str(path.relative_to(SOURCES / "include")) for path in (SOURCES / "include").rglob("*.h"))


def compile_text(compiler, standard, text):
    result = subprocess.run([compiler, "-std=" + standard, *FLAGS, "-I", SOURCES / "include", "-x", "c++", "-"], input=text,
                            capture_output=True, text=True)
    return result.stderr if result.returncode != 0 else ""


# Declarations of functions at the beginning of a line, and classes. Inline ones need no mark.
FUNCTION = re.compile(r"(?!inline|constexpr|using|class|struct|enum|template|namespace|typedef|friend|return|extern|static|DSV4_API )"
                      r"[A-Za-z][\w:<>,\s*&]*?[\s*&]\w+\(", re.M)
CLASS = re.compile(r"^class (?!DSV4_API |\[\[nodiscard\]\] )\w+ [^;]*\{", re.M)


class Headers(unittest.TestCase):
    def test_what_libdsv4_shows_is_marked(self):
        for name in HEADERS:
            if name == "dsv4.h":  # installed_test.py compares its names
                continue
            text = (SOURCES / "include" / name).read_text(encoding="utf-8")
            text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            for line in text.splitlines():
                self.assertFalse(FUNCTION.match(line) or CLASS.match(line), "%s: %s: DSV4_API is missing" % (name, line))

    def check(self, compiler, standards, groups):
        jobs = [(standard, "".join('#include "%s"\n' % name for name in group)) for standard in standards
                for group in groups]
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("DSV4_TEST_JOBS", "2"))) as pool:
            for (standard, text), errors in zip(jobs, pool.map(lambda job: compile_text(compiler, *job), jobs)):
                self.assertEqual(errors, "", "%s %s %s" % (compiler, standard, text))

    def test_each_alone(self):
        self.assertGreater(len(HEADERS), 15)
        self.check(CXX, ["c++20"], [[name] for name in HEADERS])

    def test_all_in_a_later_standard(self):
        self.check(CXX, ["c++2b"], [HEADERS])

    def test_all_with_clang(self):
        clang = shutil.which("clang++")
        if clang is None:
            self.skipTest("no clang++")
        self.check(clang, ["c++20", "c++2b"], [HEADERS])


if __name__ == "__main__":
    unittest.main(argv=["headers", "-v"])
