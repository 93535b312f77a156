#!/usr/bin/env python3
"""What the pages say is what the program has: flags with their defaults, routes, metrics, errors' statuses, and tests that are named."""

import re
import subprocess
import unittest

from support import BINARY, ROOT, ServerTestCase, main

DOCS = ROOT / "docs"
REFERENCE, OPERATIONS = DOCS / "serving" / "routes.md", DOCS / "serving" / "operations.md"
# Metrics that a server has only where experts leave a GPU.
OFFLOAD = r"dsv4_expert"


def section(page, heading):
    text = page.read_text()
    begin = text.index("\n## " + heading + "\n")
    end = text.find("\n## ", begin + 1)
    return text[begin:end if end > 0 else len(text)]


def rows(text):
    """The cells of the tables' rows, without their heads."""
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in found if not re.fullmatch(r"[-| ]+", row[0])]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def help_of(command):
    """{flag: what its help says}"""
    text = subprocess.run([BINARY, command, "--help"], capture_output=True, check=True, timeout=60).stdout.decode()
    return {m[1]: " ".join(m[2].split()) for m in re.finditer(r"^  (?:-\w,)?(--[a-z0-9-]+)(.*(?:\n {10,}.*)*)", text, re.M)}


class Flags(unittest.TestCase):
    """Of the table of `dsv4 serve`'s own: those of the engine are also `dsv4 generate`'s and `dsv4 bench`'s."""

    @classmethod
    def setUpClass(cls):
        cls.help = help_of("serve")
        cls.table = {}
        for row in rows(section(REFERENCE, "Flags")):
            flags = [code for code in codes(row[0]) if code.startswith("--")]
            cls.table.update((flag, (flags, row)) for flag in flags)

    def test_each_has_a_row(self):
        own = set(self.help) - set(help_of("generate")) - set(help_of("bench")) | {"--count-experts"}
        self.assertGreater(len(own), 40)
        told = " ".join(row[2] for _, row in self.table.values())
        self.assertEqual({flag for flag in own if flag not in self.table and f"`{flag}`" not in told}, set())

    def test_each_row_is_a_flag(self):
        self.assertLessEqual(set(self.table), set(self.help))

    def test_defaults(self):
        compared = 0
        for flag, (flags, row) in self.table.items():
            defaults = row[1].split(", ")
            found = re.search(r"\(default ([\w.]+)", self.help[flag])  # a word, where it is no sentence
            if len(defaults) != len(flags) or not found:
                continue
            said = re.sub(r" (s|ms)$", "", defaults[flags.index(flag)]).strip("`")
            with self.subTest(flag=flag):
                self.assertEqual(found[1], {"--max-prompt": "0", "--store-responses": "0"}.get(flag, said))
            compared += 1
        self.assertGreater(compared, 25)


class Pages(ServerTestCase):
    def test_routes(self):
        said = set()
        for row in rows(section(REFERENCE, "Routes")):
            said |= {re.sub(r"^(GET|POST|DELETE) ", "", code) for code in codes(row[0]) if "/" in code}
        said = {re.sub(r"/(ID|NAME)$", "/{}", route) for route in said}
        there = {re.sub(r"\{\w+\}", "{}", path) for path in self.server.get("/openapi.json").json["paths"]}
        self.assertEqual(said, there - {"/favicon.ico"})

    def test_metrics(self):
        page = self.server.get("/metrics").body.decode()
        there = set(re.findall(r"^# TYPE (\S+) ", page, re.M))
        said = {re.sub(r"\{.*", "", code) for row in rows(section(OPERATIONS, "Metrics")) for code in codes(" ".join(row))}
        said.discard("engine")
        whole = set()
        for name in said:
            found = {t for t in there if re.fullmatch(r"(vllm:)?" + re.escape(name).replace(r"\*", ".*"), t)}
            if name.startswith("_"):
                found = {t for t in there if t.startswith("vllm:") and t.endswith(name)}
            self.assertTrue(found or re.match(OFFLOAD, name), name)
            whole |= found
        self.assertEqual(there - whole, set())


class Security(unittest.TestCase):
    """Each bound of the table is held by a test, which is there."""

    def test_the_tests_of_the_limits(self):
        sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cc"))
        suites = {path.name[:-len("_test.py")] for path in (ROOT / "tests" / "hostile").glob("*_test.py")}
        table = [row for row in rows(section(DOCS / "security.md", "Limits")) if row[0] != "what"]
        self.assertGreater(len(table), 30)
        for row in table:
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

    def test_its_flags_are_the_programs(self):
        there = help_of("serve")
        for row in rows(section(DOCS / "security.md", "Limits")):
            for flag in codes(row[2]):
                self.assertTrue(flag in there or flag.startswith("ulimit"), flag)


if __name__ == "__main__":
    main()
