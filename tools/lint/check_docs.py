#!/usr/bin/env python3
"""Checks the pages, and the references in comments and messages.

    tools/lint/check_docs.py [--root DIR]

Prints one line per finding, `path:line: [rule] message`, and exits 1 if there is one. Rules:

  reference   no page, comment or message contains the number of an issue or a job, or a file outside the repository
              (only the files of OUTSIDE may look for test data next to the repository)
  link        a link leads to a file of the repository and, with #, to one of its headings
  path        a path in `code` that begins with a folder of the repository exists
  name        a function, type, flag, metric or variable in `code` (CamelCase, --flag, dsv4_*, DSV4_*) occurs in a
              source file; except in pages of HISTORY and for names of OTHERS
  line        a line of a page has at most 120 characters, a row of a table in docs/ at most 200; code blocks and
              lines of one word may be longer
"""

import argparse
import re
import sys
from pathlib import Path

TEXT_SUFFIXES = {".md", ".h", ".hpp", ".cuh", ".inc", ".cc", ".cpp", ".cu", ".py", ".sh", ".cmake", ".txt", ".json",
                 ".jsonl", ".html", ".js", ".css", ".yaml", ".service", ".in", ".keys", ""}
FOLDERS = ("bench", "cli", "cmake", "deploy", "docs", "include", "models", "python", "scripts", "server", "src", "tests", "tools")
SKIPPED_PARTS = {"__pycache__", "corpus", "data"}
LINE, ROW = 120, 200

# Files that look for test data next to the repository: tests, and the scripts that run them.
OUTSIDE = {"tests/support/fixture.h", "tests/text/support.h", "scripts/test", "scripts/common.sh"}

# Pages that may name removed things, and names that occur in no source file.
HISTORY = ("CHANGELOG.md", "bench/notes/")
OTHERS = {"PascalCase"}

# The words are split so that the rule does not fire on this file.
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
        if path.is_file() and (path.suffix == ".md" or path.name == "CMakeLists.txt"):
            yield path
    for folder in FOLDERS:
        base = root / folder
        for path in sorted(base.rglob("*")) if base.is_dir() else []:
            inside = path.relative_to(base).parts
            if path.is_file() and path.suffix in TEXT_SUFFIXES and not any(
                    part.startswith(".") or part in SKIPPED_PARTS for part in inside):
                yield path


def anchor(heading):
    """The anchor that GitHub makes from a heading: without code marks and links, with dashes for blanks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.lower())
    return text.replace(" ", "-")


def outside_fences(text):
    """(number, line) of the lines outside code blocks."""
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
            errors.append(f"{rel}:{number}: [reference] '{match.group(0)}': describe it instead of giving its number")
        if rel not in OUTSIDE and BESIDE.search(line):
            errors.append(f"{rel}:{number}: [reference] a file outside the repository: name a file of the repository")


def check_link(root, path, target, cache):
    """Returns what is wrong with a link of a page, or None."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _, part = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists() or not file.is_relative_to(root):
        return f"{name} does not exist in the repository"
    if part and file.suffix == ".md" and part not in anchors_of(file, cache):
        return f"{name or 'this page'} has no heading '#{part}'"
    return None


def unknown_names(line, words):
    """Yields the names in code spans of a line that occur in no source file."""
    for code in CODE.findall(line):
        for name in NAME.findall(code):
            if name not in words and name not in OTHERS:
                yield name


def check_page(root, path, text, words, cache, errors):
    rel = path.relative_to(root).as_posix()
    for number, line in outside_fences(text):
        for name in [] if rel.startswith(HISTORY) else unknown_names(line, words):
            errors.append(f"{rel}:{number}: [name] {name} occurs in no source file")
        for match in LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            if problem := check_link(root, path, match.group(1) or match.group(2), cache):
                errors.append(f"{rel}:{number}: [link] {problem}")
        for match in CODE_PATH.finditer(line):
            name = match.group(1).rstrip("/.")
            if not (root / name).exists():
                errors.append(f"{rel}:{number}: [path] {name} does not exist")
        limit = LINE if not line.startswith("|") else ROW if rel.startswith("docs/") else len(line)
        if len(line) > limit and len(line.split()) > 1:
            errors.append(f"{rel}:{number}: [line] {len(line)} characters; the limit is {limit}")


def run(root):
    """Returns all findings of the tree."""
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
    parser = argparse.ArgumentParser(description="Checks links, line lengths and references of the pages.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="top of the repository (default: the repository of this script)")
    errors = run(parser.parse_args().root)
    print("\n".join(errors + [f"check_docs: {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
