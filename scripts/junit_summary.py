#!/usr/bin/env python3
"""Prints '<passed> <failed> <skipped>' for a JUnit file of ctest, and the names of the failures on stderr.

A test counts as skipped only if it reports itself that it cannot run here. A test that ctest could not start (no
executable, a failed fixture) counts as failed, although ctest records it as skipped.
"""

import sys
import xml.etree.ElementTree as ElementTree


def verdict(case):
    if case.get("status") == "run":
        return "passed"
    if case.get("status") == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    if case.get("status") == "notrun" and skipped is not None and skipped.get("message", "").startswith("SKIP_"):
        return "skipped"
    return "failed"


def count(path):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        counts[verdict(case)] += 1
        if verdict(case) == "failed":
            failures.append(case.get("name"))
    return counts, failures


def main():
    counts, failures = count(sys.argv[1])
    for name in failures:
        print(f"failed: {name}", file=sys.stderr)
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main()
