#!/usr/bin/env python3
"""Makes the tables of measured figures in the documents from bench/results, or reports where they differ.

    tools/docs/tables.py [--write] [--root DIR]

A document marks the place of a table and names the file that it shows:

    <!-- table decode_h200 grid limit="byte floor" -->
    (what this script writes)
    <!-- end -->

`decode_h200` is bench/results/decode_h200.jsonl with one figure per line (fields: bench/results/README.md). Without
`grid` a figure is a row. With `grid` the field `what` reads "row @ column". `limit` names the value that figures are
compared with. Each figure shows its share of the limit, except with limit="bar", which is a requirement and not a limit
of the machine. The commands follow the table.

Without --write nothing is changed. Prints `path:line: message` for each figure that does not follow the schema, each
table that differs from its file, and each file that no table shows. Exits 1 if it printed any.
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
WIDTH = 118  # of the lines after a table


def read_figures(path, machines):
    """Returns the figures of one file, and its errors as (line, message)."""
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
    """Returns why this is not a valid figure, or None."""
    if not isinstance(figure, dict) or tuple(figure) != FIELDS:
        return f"the fields must be {', '.join(FIELDS)}, in this order"
    for name in ("machine", "command", "what", "unit"):
        if not isinstance(figure[name], str):
            return f"{name} must be a string"
    if not re.fullmatch(r"[0-9a-f]{7,40}", str(figure["commit"])):
        return f"commit '{figure['commit']}' must be 7 to 40 hex digits"
    if figure["machine"] not in machines:
        return f"bench/results/README.md has no machine '{figure['machine']}'"
    if figure["unit"] not in UNITS:
        return f"unit '{figure['unit']}' must be one of {', '.join(UNITS)}"
    if not is_number(figure["value"]):
        return "value must be a number"
    if figure["limit"] is not None and not is_number(figure["limit"]):
        return "limit must be a number or null"
    return None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_text(value):
    """Returns integers and values from 1,000 without decimals, others with up to three digits."""
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
    """The commands of a table, with a letter for each."""

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
        rows += ["", f"Percentages are shares of the {limit}."]
    return rows + commands.lines()


def remake(text, tables, used, complain):
    """Returns the document with its tables made from the figures."""
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
            complain(begin, f"this table has no '{END}': add it after the table")
            return text
        used.add(name)
        if name not in tables:
            complain(begin, f"there is no bench/results/{name}.jsonl")
            out += lines[begin:i]
            continue
        made = (grid_table if grid else list_table)(tables[name], limit)
        if made != lines[begin:i]:
            complain(begin, f"the table differs from bench/results/{name}.jsonl: run tools/docs/tables.py --write")
        out += made
    return "\n".join(out) + "\n"


def run(root, write):
    """Checks all tables and, with `write`, makes them. Returns the remaining complaints."""
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
            complaints.append(f"{where}:1: unknown suffix: figures are in .jsonl files, tables in .md files")
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
        complaints.append(f"bench/results/{name}.jsonl:1: no document shows this file: add a table marker for it")
    return complaints


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the tables of figures in docs/ and bench/.")
    parser.add_argument("--write", action="store_true", help="write the tables that differ")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    args = parser.parse_args()
    complaints = run(args.root.resolve(), args.write)
    print("\n".join(complaints + [f"tables: {len(complaints)} errors"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
