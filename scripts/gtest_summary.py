#!/usr/bin/env python3
"""Summarises the output of several runs of a GoogleTest program as one JSON line.

    gtest_summary.py OUTPUT...

A run may have been killed. A test that had begun is then "unfinished", planned tests after it are "not_reached". The
output of failed tests is printed on stderr. Exits 0 if at least one test passed and none failed, was unfinished or was
not reached.
"""

import json
import re
import sys
from pathlib import Path

LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*|)(?: \(\d+ ms\))?$")
COUNT = re.compile(r"^\[=+\] Running (\d+) tests? from")


def read(text):
    """Returns ({name: result}, number of planned tests) of one run."""
    ended, begun, wanted = {}, None, 0
    for line in text.splitlines():
        if match := COUNT.match(line):
            wanted = int(match.group(1))
        match = LINE.match(line)
        if not match:
            continue
        how, name = match.groups()
        if how == "RUN":
            begun = name
            ended[name] = "UNFINISHED"
        elif name == begun:
            ended[name] = how
    return ended, wanted


def main(paths):
    ended, missing = {}, 0
    for path in paths:
        text = Path(path).read_text(errors="replace")
        of_run, wanted = read(text)
        missing += max(0, wanted - len(of_run)) if wanted else 0
        if not wanted:
            ended[path] = "UNFINISHED"  # the run has no output
        ended.update(of_run)
        for name in [n for n, how in of_run.items() if how in ("FAILED", "UNFINISHED")]:
            begin = text.find("RUN      ] " + name + "\n")
            print(text[begin:begin + 4000].split("\n[ RUN")[0], file=sys.stderr)

    def names(how):
        return sorted(name for name, its in ended.items() if its == how)

    passed, skipped, failed, unfinished = (names(how) for how in ("OK", "SKIPPED", "FAILED", "UNFINISHED"))
    print(json.dumps({"part": "tests", "passed": len(passed), "skipped": len(skipped), "failed": failed, "unfinished": unfinished,
                      "not_reached": missing}))
    return 0 if passed and not failed and not unfinished and not missing else 1


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: gtest_summary.py OUTPUT...")
    sys.exit(main(sys.argv[1:]))
