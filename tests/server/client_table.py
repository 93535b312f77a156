#!/usr/bin/env python3
"""Runs clients of OpenAI's and Anthropic's APIs against `dsv4 serve` with the bundled model, and checks the table in
docs/serving/clients.md, or writes it.

    client_table.py BINARY [--write] [CLIENT...]

The clients are pinned packages of PyPI in environments in build/ (clients_venv.TABLE: 560 MB to download, once;
suites_test.py has the same environment for lm-evaluation-harness). Requests of clients that PyPI does not have are replayed
(client_replays.py). Prints a line for each client. Exits 1 if a client does not work, or if the table differs and --write
is not given; 77 if all is well but a client is not there and PyPI cannot be reached.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import client_base
import client_replays
import client_rows
import clients_venv
import support

PAGE = support.ROOT / "docs" / "serving" / "clients.md"
BEGIN, END = "<!-- clients -->", "<!-- end -->"
HEAD = ["| client | version | chat | stream | tools | note |", "|---|---|---|---|---|---|"]
SECONDS = 900  # for the clients of one environment


class Skipped(Exception):
    pass


def line_of(row):
    cells = ["–" if row[cell] == client_base.NONE else "yes" if row[cell] is None else "fails" for cell in client_base.CELLS]
    return "| " + " | ".join([row["client"], row["version"], *cells, row["note"]]) + " |"


def failures(row):
    return ["%s: %s: %s" % (row["client"], cell, row[cell]) for cell in client_base.CELLS if row[cell] not in (None, client_base.NONE)]


def merge(text, rows):
    """Returns the page with these rows in its table. Rows of clients that were not run stay as they are."""
    before, _, rest = text.partition(BEGIN + "\n")
    table, found, after = rest.partition(END + "\n")
    if not found:
        raise ValueError("the page has no table: add the lines '%s' and '%s'" % (BEGIN, END))
    names = [client.NAME for client in [*client_rows.classes(), *client_replays.REPLAYED]]
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    lines.update({row["client"]: line_of(row) for row in rows})
    known = [lines[name] for name in names if name in lines]
    return before + BEGIN + "\n" + "\n".join([*HEAD, *known]) + "\n" + END + "\n" + after


def run_group(group, url, names):
    """Yields the rows of the clients of one environment."""
    clients = [client.NAME for client in client_rows.classes() if client.GROUP == group and (not names or client.NAME in names)]
    if not clients:
        return
    folder = "suites-venv" if group == "suites" else "table-%s-venv" % group
    try:
        python = clients_venv.make(clients_venv.TABLE[group], folder, uv=True)
    except clients_venv.Unreachable as error:
        raise Skipped("%s: %s" % (", ".join(clients), error)) from error
    done = subprocess.run([str(python), "-B", client_rows.__file__, group, url, *clients], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=SECONDS * support.SLOWNESS)
    for line in done.stdout.splitlines():
        if line.startswith('{"client": '):
            clients.remove(json.loads(line)["client"])
            yield json.loads(line)
    if done.returncode != 0 or clients:
        raise RuntimeError("%s: no row for %s, exit status %d:\n%s" % (group, ", ".join(clients), done.returncode, done.stderr[-2000:]))


def run_all(names=()):
    """Returns the rows, and the reasons why clients were skipped."""
    server = support.Server()
    url = "http://127.0.0.1:%d" % server.port
    rows, skipped = [], []

    def packages():
        for group in clients_venv.TABLE:
            try:
                for row in run_group(group, url, names):
                    told(row)
            except Skipped as reason:
                skipped.append(str(reason))

    def replays():
        for client in client_replays.REPLAYED:
            if not names or client.NAME in names:
                told(client(url).row())

    def told(row):
        rows.append(row)
        print("%s %s: %s (%.0f s)" % (row["client"], row["version"], "; ".join(failures(row)) or "works", row["seconds"]), flush=True)

    try:
        support.in_parallel([packages, replays])
    finally:
        status = server.stop()
    if status != 0:
        raise RuntimeError("the server ended with status %d: %s" % (status, server.last_log[-2000:]))
    return rows, skipped


def problems(rows, text):
    """Returns what is wrong, a line each: clients that do not work, and a page that does not say so."""
    errors = [failure for row in rows for failure in failures(row)]
    if not errors and merge(text, rows) != text:
        errors.append("%s differs: run tests/server/client_table.py BINARY --write" % PAGE.relative_to(support.ROOT))
    return errors


def main():
    parser = argparse.ArgumentParser(description="Runs clients against dsv4 serve and checks docs/serving/clients.md.")
    parser.add_argument("binary", help="the program dsv4")
    parser.add_argument("--write", action="store_true", help="write the table if every client works")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="only these rows of the table")
    args = parser.parse_intermixed_args()
    support.BINARY = os.path.abspath(args.binary)
    rows, skipped = run_all(args.clients)
    text = PAGE.read_text(encoding="utf-8")
    if args.write and not any(failures(row) for row in rows):
        text = merge(text, rows)
        PAGE.write_text(text, encoding="utf-8")
    errors = problems(rows, text)
    print("\n".join(errors + ["skipped: " + reason for reason in skipped] + ["%d clients, %d errors" % (len(rows), len(errors))]))
    sys.exit(1 if errors else 77 if skipped else 0)


if __name__ == "__main__":
    main()
