#!/usr/bin/env python3
"""Compares the pages with the program: flags and their defaults, routes, metrics, and the names of tests."""

import re
import subprocess
import unittest

from support import BINARY, ROOT, ServerTestCase, main

DOCS = ROOT / "docs"
FLAGS, ROUTES, OPERATIONS = (DOCS / "serving" / name for name in ["flags.md", "routes.md", "operations.md"])
# Metrics that a server has only if some experts are not on the GPU.
OFFLOAD = r"dsv4_expert"


def section(page, heading):
    text = page.read_text()
    begin = text.index("\n## " + heading + "\n")
    end = text.find("\n## ", begin + 1)
    return text[begin:end if end > 0 else len(text)]


def rows(text):
    """The cells of all table rows of a text, header rows included."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in found if not re.fullmatch(r"[-| ]+", row[0])]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def help_of(command):
    """{flag: its help text}"""
    text = subprocess.run([BINARY, command, "--help"], capture_output=True, check=True, timeout=60).stdout.decode()
    flag = r"^  (?:-\w,)?(--[a-z0-9-]+)(.*(?:\n {10,}.*)*)"
    return {m[1]: " ".join(m[2].split()) for m in re.finditer(flag, text, re.M)}


class Flags(unittest.TestCase):
    """The tables of flags.md have every flag of `dsv4 serve` that `dsv4 generate` and `dsv4 bench` do not have."""

    @classmethod
    def setUpClass(cls):
        cls.help = help_of("serve")
        cls.table = {}
        for row in rows(FLAGS.read_text()):
            flags = [code for code in codes(row[0]) if code.startswith("--")]
            cls.table.update((flag, (flags, row)) for flag in flags)

    def test_each_has_a_row(self):
        own = set(self.help) - set(help_of("generate")) - set(help_of("bench")) | {"--count-experts"}
        self.assertGreater(len(own), 40)
        self.assertEqual(own - set(self.table), set())

    def test_each_row_is_a_flag(self):
        self.assertEqual(set(self.table) - set(self.help), set())

    def test_defaults(self):
        compared = 0
        for flag, (flags, row) in self.table.items():
            defaults = row[1].split(", ")
            found = re.search(r"\(default ([\w.]+)", self.help[flag])
            if len(defaults) != len(flags) or not found:
                continue
            on_page = re.sub(r" (s|ms)$", "", defaults[flags.index(flag)]).strip("`")
            with self.subTest(flag=flag):
                # The page says in words what 0 means.
                self.assertEqual(found[1], {"--max-prompt": "0", "--store-responses": "0"}.get(flag, on_page))
            compared += 1
        self.assertGreater(compared, 25)


class Pages(ServerTestCase):
    def test_routes(self):
        on_page = set()
        for row in rows(section(ROUTES, "Routes")):
            on_page |= {re.sub(r"^(GET|POST|DELETE) ", "", code) for code in codes(row[0]) if "/" in code}
        on_page = {re.sub(r"/(ID|NAME)(?=/|$)", "/{}", route) for route in on_page}
        served = {re.sub(r"\{\w+\}", "{}", path) for path in self.server.get("/openapi.json").json["paths"]}
        self.assertEqual(on_page, served - {"/favicon.ico"})

    def test_metrics(self):
        page = self.server.get("/metrics").body.decode()
        served = set(re.findall(r"^# TYPE (\S+) ", page, re.M))
        cells = [cell for row in rows(section(OPERATIONS, "Metrics")) for cell in row]
        on_page = {re.sub(r"\{.*", "", code) for cell in cells for code in codes(cell)}
        documented = set()
        for name in on_page:
            found = {t for t in served if re.fullmatch(r"(vllm:)?" + re.escape(name).replace(r"\*", ".*"), t)}
            if name.startswith("_"):
                found = {t for t in served if t.startswith("vllm:") and t.endswith(name)}
            self.assertTrue(found or re.match(OFFLOAD, name), name)
            documented |= found
        self.assertEqual(served - documented, set())


class Security(unittest.TestCase):
    """Each limit of the page for users is in the page for developers, which names a test for it. The test exists."""

    @classmethod
    def setUpClass(cls):
        cls.limits = [row for row in rows(section(DOCS / "security.md", "Limits")) if row[0] != "what"]
        page = DOCS / "dev" / "limits.md"
        cls.known = [row for row in rows(section(page, "Limits that clients and operators meet")) if row[0] != "limit"]
        cls.tests = [row for row in rows(page.read_text()) if row[0] != "limit"]

    def test_each_limit_has_a_row(self):
        self.assertGreater(len(self.tests), 50)
        self.assertEqual([row[0] for row in self.limits], [row[0] for row in self.known])

    def test_the_tests_of_the_limits(self):
        sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cc"))
        suites = {path.name[:-len("_test.py")] for path in (ROOT / "tests" / "hostile").glob("*_test.py")}
        for row in self.tests:
            names = codes(row[-1])
            hostile = re.findall(r"hostile/(\w+)", row[-1])
            self.assertTrue(names or hostile, row)
            self.assertLessEqual(set(hostile), suites)
            for name in names:
                if "/" in name:
                    self.assertTrue((ROOT / name).exists(), name)
                    continue
                suite, _, test = name.rpartition(".")
                pattern = r"TEST(_F|_P)?\(%s,\s*%s\)" % (suite or r"\w+", r"\w+" if test == "*" else test)
                self.assertTrue(re.search(pattern, sources), name)

    def test_the_flags_of_the_limits(self):
        flags = help_of("serve")
        found = [flag for row in self.limits for flag in re.findall(r"--[a-z-]+", row[1])]
        self.assertGreater(len(found), 15)
        for flag in found:
            self.assertIn(flag, flags)


if __name__ == "__main__":
    main()
