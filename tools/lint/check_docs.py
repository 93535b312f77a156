#!/usr/bin/env python3
"""Checks the documents, and what comments and messages refer to.

    tools/lint/check_docs.py [--root DIR]

Prints one line for each finding, `path:line: [rule] message`, and exits 1 when there is one. Rules:

  reference   no page, comment or message names an issue or a job by its number, or a file outside the repository
              (only OUTSIDE may look for test data beside it)
  link        a link between pages leads to a file that exists and, with #, to one of its headings
  path        a path in `code` that begins with a folder of the repository exists
  name        a function, type, flag, metric or variable in `code` (CamelCase, --flag, dsv4_*, DSV4_*) stands in a
              source, but for what a page of HISTORY says of the past and names of OTHERS
  line        a line of a page has at most 120 characters, a row of a table in docs/ 200; code and lines of one word
              may be longer
"""

import argparse
import re
import sys
from pathlib import Path

TEXT_SUFFIXES = {".md", ".h", ".hpp", ".cuh", ".inc", ".cc", ".cpp", ".cu", ".py", ".sh", ".cmake", ".txt", ".json",
                 ".jsonl", ".html", ".js", ".css", ".yaml", ".service", ".keys", ""}
FOLDERS = ("bench", "cli", "cmake", "deploy", "docs", "include", "models", "scripts", "server", "src", "tests", "tools")
SKIPPED_PARTS = {"__pycache__", "corpus", "data"}
LINE, ROW = 120, 200

# Where tests, and the scripts that run them, look for test data beside the repository.
OUTSIDE = {"tests/support/fixture.h", "tests/text/support.h", "scripts/test", "scripts/common.sh"}

# Pages that name what is gone, and names in pages that no source has: those of other programs, and of spelling itself.
HISTORY = ("CHANGELOG.md", "bench/notes/")
OTHERS = {"PascalCase"}

# The words are put together so that this file does not find itself.
NUMBERED = re.compile(r"\b(?:iss" r"ues?\s+#?\d+|jo" r"bs?\s+[A-Za-z]+\d*-\d+)", re.IGNORECASE)
BESIDE = re.compile(r"\.\./shar" r"ed\b")

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE_PATH = re.compile(r"`((?:%s)/[A-Za-z0-9_./-]+)`" % "|".join(FOLDERS))
CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(r"(?<![\w/-])([A-Z][a-z0-9]+[A-Z]\w*|DSV4_\w+|dsv4_\w+|--[a-z][a-z0-9-]+)(?![\w*.-])")
WORD = re.compile(r"--[a-z][a-z0-9-]+|\w+")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")


def text_files(root):
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix == ".md":
            yield path
    for folder in FOLDERS:
        base = root / folder
        for path in sorted(base.rglob("*")) if base.is_dir() else []:
            inside = path.relative_to(base).parts
            if path.is_file() and path.suffix in TEXT_SUFFIXES and not any(
                    part.startswith(".") or part in SKIPPED_PARTS for part in inside):
                yield path


def anchor(heading):
    """The name that a heading gets, as GitHub makes it: code marks and links go, blanks become dashes."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.lower())
    return text.replace(" ", "-")


def outside_fences(text):
    """(number, line) of the lines that are not in a block of code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors_of(path, cache):
    if path not in cache:
        text = path.read_text(encoding="utf-8", errors="replace")
        cache[path] = {anchor(m.group(1)) for _, line in outside_fences(text) if (m := HEADING.match(line))}
    return cache[path]


def check_references(rel, text, errors):
    for number, line in enumerate(text.splitlines(), 1):
        if match := NUMBERED.search(line):
            errors.append(f"{rel}:{number}: [reference] '{match.group(0)}': say what is meant, not its number")
        if rel not in OUTSIDE and BESIDE.search(line):
            errors.append(f"{rel}:{number}: [reference] a file outside the repository")


def check_link(root, path, target, cache):
    """What is wrong with a link of a page, or None."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _, part = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists() or not file.is_relative_to(root):
        return f"there is no {name}"
    if part and file.suffix == ".md" and part not in anchors_of(file, cache):
        return f"{name or 'this page'} has no heading '#{part}'"
    return None


def unknown_names(line, words):
    """Names in the code of a line that stand in no source."""
    for code in CODE.findall(line):
        for name in NAME.findall(code):
            if name not in words and name not in OTHERS:
                yield name


def check_page(root, path, text, words, cache, errors):
    rel = path.relative_to(root).as_posix()
    for number, line in outside_fences(text):
        for name in [] if rel.startswith(HISTORY) else unknown_names(line, words):
            errors.append(f"{rel}:{number}: [name] no source has {name}")
        for match in LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            if problem := check_link(root, path, match.group(1) or match.group(2), cache):
                errors.append(f"{rel}:{number}: [link] {problem}")
        for match in CODE_PATH.finditer(line):
            name = match.group(1).rstrip("/.")
            if not (root / name).exists():
                errors.append(f"{rel}:{number}: [path] there is no {name}")
        limit = LINE if not line.startswith("|") else ROW if rel.startswith("docs/") else len(line)
        if len(line) > limit and len(line.split()) > 1:
            errors.append(f"{rel}:{number}: [line] {len(line)} characters; the limit is {limit}")


def run(root):
    """Every finding in the tree."""
    root = root.resolve()
    errors, cache, words, pages = [], {}, set(), []
    for path in text_files(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        check_references(path.relative_to(root).as_posix(), text, errors)
        if path.suffix == ".md":
            pages.append((path, text))
        else:
            words.update(WORD.findall(text))
    for path, text in pages:
        check_page(root, path, text, words, cache, errors)
    return errors


def main():
    parser = argparse.ArgumentParser(description="Checks links, lines and references of the documents.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="top of the repository (default: the one this script lies in)")
    errors = run(parser.parse_args().root)
    print("\n".join(errors + [f"check_docs: {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
