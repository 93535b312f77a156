#!/usr/bin/env python3
"""Makes the tables of measured figures in the documents from bench/results, or says where they differ.

    tools/docs/tables.py [--write] [--root DIR]

A document says where a table stands and which file it shows:

    <!-- table decode_h200 grid limit="byte floor" -->
    (what this script writes)
    <!-- end -->

`decode_h200` is bench/results/decode_h200.jsonl, one figure a line (the fields: bench/results/README.md). Without
`grid` a figure is a row. With it `what` reads "row @ column". `limit` names what figures are compared with; a share of
it stands beside each figure, but not for limit="bar", which is a promise and not a limit of the machine. Below the
table stand the commands.

Without --write nothing is changed. Exits 1 and prints `path:line: message` for every figure that does not follow the
schema, every table that differs from its file, and every file that no table shows.
"""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path

FIELDS = ("commit", "machine", "command", "what", "value", "unit", "limit")
TIMES = ("us", "ms", "s")  # smaller is better: the share of a limit is limit / value
UNITS = TIMES + ("%", "times", "GB/s", "TB/s", "TFLOP/s", "GFLOP/s", "G products/s", "tokens/s", "cycles", "MiB", "GB",
                 "")
BEGIN = re.compile(r'^<!-- table (\w+)( grid)?(?: limit="([^"]+)")? -->$')
END = "<!-- end -->"
WIDTH = 118  # of the lines behind a table


def read_figures(path, machines):
    """The figures of one file and what is wrong with it."""
    figures, errors = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            figure = json.loads(line)
        except ValueError as error:
            errors.append((number, f"not JSON: {error}"))
            continue
        problem = problem_of(figure, machines)
        if problem:
            errors.append((number, problem))
        else:
            figures.append(figure)
    return figures, errors


def problem_of(figure, machines):
    """Why this is no figure, or None."""
    if not isinstance(figure, dict) or tuple(figure) != FIELDS:
        return f"fields are {', '.join(FIELDS)}, in this order"
    for name in ("machine", "command", "what", "unit"):
        if not isinstance(figure[name], str):
            return f"{name} is a text"
    if not re.fullmatch(r"[0-9a-f]{7,40}", str(figure["commit"])):
        return f"commit '{figure['commit']}' is no commit"
    if figure["machine"] not in machines:
        return f"bench/results/README.md has no machine '{figure['machine']}'"
    if figure["unit"] not in UNITS:
        return f"unit '{figure['unit']}' is none of {', '.join(UNITS)}"
    if not is_number(figure["value"]):
        return "value is a number"
    if figure["limit"] is not None and not is_number(figure["limit"]):
        return "limit is a number or null"
    return None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_text(value):
    """Whole numbers as they are, others to three digits."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.2g}"
    digits = 2 - len(str(int(abs(value)))) + 1 if abs(value) >= 1 else 3
    return f"{value:.{max(0, digits)}f}"


def value_text(value, unit):
    return f"{number_text(value)} {unit}".rstrip()


def share_text(figure):
    value, limit = figure["value"], figure["limit"]
    share = limit / value if figure["unit"] in TIMES else value / limit
    return f"{100 * share:.1f} %"


class Commands:
    """The commands of a table: a letter for each."""

    def __init__(self):
        self.known = []

    def letter(self, figure):
        key = (figure["command"], figure["commit"][:7], figure["machine"])
        if key not in self.known:
            self.known.append(key)
        return chr(ord("a") + self.known.index(key))

    def lines(self):
        if not self.known:
            return []
        lines = [""]
        for i, (command, commit, machine) in enumerate(self.known):
            lines += textwrap.wrap(f"- {chr(ord('a') + i)}: `{command}` ({commit}, {machine})", WIDTH,
                                   subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        return lines


def list_table(figures, limit):
    commands = Commands()
    rows = [f"| | figure |{f' {limit} |' if limit else ''} how |", f"|---|---|{'---|' if limit else ''}---|"]
    for figure in figures:
        cells = [figure["what"], value_text(figure["value"], figure["unit"])]
        if limit and figure["limit"] is None:
            cells.append("")
        elif limit:
            text = value_text(figure["limit"], figure["unit"])
            cells.append(text if limit == "bar" else f"{text}, {share_text(figure)}")
        rows.append("| " + " | ".join(cells + [commands.letter(figure)]) + " |")
    return rows + commands.lines()


def grid_table(figures, limit):
    commands = Commands()
    names, columns, cells, letters = [], [], {}, {}
    for figure in figures:
        row, _, column = figure["what"].partition(" @ ")
        names += [row] if row not in names else []
        columns += [column] if column not in columns else []
        text = value_text(figure["value"], figure["unit"])
        if limit and figure["limit"] is not None:
            text += f", {share_text(figure)}"
        cells[row, column] = text
        letter = commands.letter(figure)
        letters.setdefault(row, [])
        letters[row] += [letter] if letter not in letters[row] else []
    rows = ["| | " + " | ".join(columns) + " | how |", "|---|" + "---|" * len(columns) + "---|"]
    for row in names:
        texts = [row] + [cells.get((row, column), "") for column in columns] + [", ".join(letters[row])]
        rows.append("| " + " | ".join(texts) + " |")
    if limit:
        rows += ["", f"The share is that of the {limit}."]
    return rows + commands.lines()


def remake(text, tables, used, complain):
    """The document with its tables made anew."""
    lines, out, i = text.splitlines(), [], 0
    while i < len(lines):
        out.append(lines[i])
        match = BEGIN.match(lines[i])
        i += 1
        if not match:
            continue
        name, grid, limit = match.groups()
        begin = i
        while i < len(lines) and lines[i] != END:
            i += 1
        if i == len(lines):
            complain(begin, f"this table has no '{END}'")
            return text
        used.add(name)
        if name not in tables:
            complain(begin, f"there is no bench/results/{name}.jsonl")
            out += lines[begin:i]
            continue
        made = (grid_table if grid else list_table)(tables[name], limit)
        if made != lines[begin:i]:
            complain(begin, f"the table differs from bench/results/{name}.jsonl: tools/docs/tables.py --write makes it")
        out += made
    return "\n".join(out) + "\n"


def run(root, write):
    """Checks and, with `write`, makes all tables; the complaints that are left."""
    complaints = []
    results = root / "bench" / "results"
    readme = (results / "README.md").read_text(encoding="utf-8")
    machines = set(re.findall(r"^\| `([^`]+)` \|", readme, re.MULTILINE))
    tables, used = {}, set()
    for path in sorted(results.iterdir()):
        where = path.relative_to(root).as_posix()
        if path.suffix == ".jsonl":
            tables[path.stem], errors = read_figures(path, machines)
            complaints += [f"{where}:{number}: {message}" for number, message in errors]
        elif path.suffix != ".md":
            complaints.append(f"{where}:1: figures are in .jsonl files, tables in .md files")
    pages = [*sorted((root / "docs").rglob("*.md")), *sorted((root / "bench").rglob("*.md"))]
    for path in pages:
        where = path.relative_to(root).as_posix()
        text, found = path.read_text(encoding="utf-8"), []
        made = remake(text, tables, used, lambda number, message: found.append((number, message)))
        if write and made != text:
            path.write_text(made, encoding="utf-8")
            found = [entry for entry in found if "differs" not in entry[1]]
        complaints += [f"{where}:{number}: {message}" for number, message in found]
    for name in sorted(set(tables) - used):
        complaints.append(f"bench/results/{name}.jsonl:1: no document shows this file")
    return complaints


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the tables of figures in docs/.")
    parser.add_argument("--write", action="store_true", help="write the tables that differ")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    args = parser.parse_args()
    complaints = run(args.root.resolve(), args.write)
    print("\n".join(complaints + [f"tables: {len(complaints)} errors"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
