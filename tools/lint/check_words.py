#!/usr/bin/env python3
"""Checks the English of comments, pages, help texts and messages against docs/style.md.

    tools/lint/check_words.py [--root DIR] [--write] [--counts] [--long WORDS] [--list [FOLDER]] [FILE ...]

Prints one line per finding, `path:line: [pattern] 'text': remedy`, and exits 1 if there is one. Two groups of patterns:

  A   no hit is allowed, except in the folders that BUDGETS lists with a number for A
  B   a few uses are correct, so each folder has a budget, which may only fall

--write lowers the budgets in BUDGETS to what the tree has; it never raises one. --counts prints the hits per folder.
--list prints every hit, of the tree or of one folder. --long prints sentences of more than this many words; they are no
error. With FILE (or a folder), only these files are read, every hit is printed, and budgets do not apply.
"""

import argparse
import bisect
import io
import json
import re
import sys
import tokenize
from pathlib import Path

BUDGETS = "tools/lint/word_budgets.json"
FOLDERS = ("bench", "cli", "cmake", "deploy", "docs", "include", "python", "scripts", "server", "src", "tests", "tools", ".ci",
           ".github")
C_LIKE = {".h", ".hpp", ".cuh", ".cc", ".cpp", ".cu", ".js", ".css"}
SHELL_LIKE = {".sh", ".cmake", ".txt", ""}
READABLE = C_LIKE | SHELL_LIKE | {".py", ".md", ".html"}
SKIPPED_PARTS = {"__pycache__", "corpus", "data", "recordings", "golden"}
# Files whose text is data: these patterns, their tests, tables, and pages that quote what not to write.
SKIPPED = {"tools/lint/check_words.py", "tests/lint/check_words_test.py", "src/text/unicode_tables.cc",
           "docs/style.md"}

I = re.IGNORECASE
# (name, pattern, flags, what to write instead). Tested on 416,894 words of comments of seven other projects: 114 hits.
PATTERNS = [
    ("A1", r"(?:^|[.:;!?] )Of (?!course)[a-z`]", 0, "put the subject first"),
    ("A2", r", of (?:which|whose|whom|these|those|them)", 0, "begin a new sentence"),
    ("A3", r"anew", I, "again"),
    ("A4", r"worth while", I, "pays"),
    ("A5", r"(?:errors? as of|as of (?:[A-Z]\w+::|those|that|one|every))", I, "same errors as"),
    ("A6", r"at hand", I, "available"),
    ("A7", r"lately", I, "recently"),
    ("A8", r"for ever", I, "without limit, always"),
    ("A9", r"likewise", I, "begin a new sentence; the same"),
    ("A10", r"so (?:many|much|often|long)(?! (?:that|as))", I, "N, up to N, this many"),
    ("A11", r"as many (?:at|as|of|in|more|rows|tokens|experts|ranks|bytes)", I, "N, the same number of"),
    ("A12", r"from (?:now|then|here|there) on", I, "afterwards"),
    ("A13", r"under way", I, "pending, running, in flight"),
    ("A14", r"on (?:its|their) way", I, "pending, in flight"),
    ("A15", r"nobody", I, "no client, no rank, none, unused"),
    ("A16", r"(?:heeds?|takes? turns)", I, "uses; alternate"),
    ("A17", r"stands?(?!-in| (?:for|in for|out|alone|by|up|still))", 0, "is"),
    ("A18", r"(?:[Ww]hat (?:becomes?|became|comes|came|makes?) of|makes? of (?:it|x|the|a))", 0, "the result of"),
    ("A19", r"meanwhile", I, "at the same time"),
    ("A20", r"but for", I, "except"),
    ("B1", r"behind(?! (?:the scenes|a (?:reverse |load )?proxy|a load balancer|TLS|NAT))", I,
     "after, at the end of"),
    ("B2", r"besides?", I, "next to, while, also"),
    ("B3", r"in front", I, "before"),
    ("B4", r"(?:lies|lie|lay|lain)", 0, "is, is stored"),
    ("B5", r"(?:tells?|told)(?! (?:you|apart))", 0, "reports, says, is known by"),
    ("B6", r"(?:^|[.:;] )What (?!(?:is|are|if|does|do|can))[a-z]", 0, "name the thing"),
    ("B7", r"(?:^|[.:;] )Who(?:ever)? (?!(?:is|are))[a-z]", 0, "name the thing"),
    ("B8", r"those (?:that|of|whose)", 0, "write the noun again"),
    ("B9", r"where (?:it|that|this|these|they|there) (?:is|are|was|does|do|has|have|can)", 0, "if, when"),
    ("B10", r"(?:goes|go|went|going) on", 0, "continues"),
    ("B11", r"alike", 0, "equal, the same"),
    ("B12", r"(?:is|are) to (?:be|come|have|lie|take|go)", 0, "must, will"),
    ("B13", r"(?:one|a line|a thread|a warp|an object|a rank|a row|a kernel|a file|an op) an? [a-z]+", 0, "per"),
    ("B14", r"(?:asks?|asked) for", 0, "requested, needed"),
    ("B15", r"[Bb]rings?", 0, "copies, loads"),
    ("B16", r"by (?:then|now)", 0, "already"),
    ("B17", r"(?:and|,|has|token) so (?:do|does|did|is|are|has|have)", 0, "also"),
]


def bounded(pattern):
    """The pattern with word boundaries, except where it begins with a place between words or ends inside one."""
    begin = "" if pattern.startswith(("(?:^", ",", "(?:and|,")) else r"\b"
    return begin + "(?:" + pattern + ")" + ("" if pattern.endswith(("[a-z]", "[a-z`]")) else r"\b")


COMPILED = [(name, re.compile(bounded(pattern), flags), remedy) for name, pattern, flags, remedy in PATTERNS]

C_TOKEN = re.compile(
    r'(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)|(?P<raw>R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)")'
    r'|(?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")|(?P<char>\'(?:[^\'\\\n]|\\.){1,8}\')|(?P<tick>`(?:[^`\\]|\\.)*`)', re.S)
CODE_SPAN = re.compile(r"`[^`\n]*`")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


class Passage:
    """Lines of running text joined with blanks, and the line of the file that each character came from."""

    def __init__(self):
        self.text, self.starts, self.lines = "", [], []

    def add(self, line, text):
        text = re.sub(r"\s+", " ", text.strip())
        if not text:
            return
        if self.text:
            self.text += " "
        self.starts.append(len(self.text))
        self.lines.append(line)
        self.text += text

    def line_at(self, offset):
        return self.lines[bisect.bisect_right(self.starts, offset) - 1]


def passages_of(pieces):
    """Passages of (line, text) pieces; a piece of None ends one."""
    current = Passage()
    for piece in pieces:
        if piece is None:
            if current.text:
                yield current
            current = Passage()
        else:
            current.add(*piece)
    if current.text:
        yield current


def is_prose(text):
    """Strings of several words; names, formats and paths are code."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text.strip()


def comment_pieces(line, text):
    """A comment's lines; an empty one, a list item or a table's row begins another passage."""
    for offset, row in enumerate(text.split("\n")):
        row = re.sub(r"^\s*(?:///?<?|/\*+|\*/?|#)", "", row)
        row = row.removesuffix("*/")
        if not row.strip() or re.match(r"\s{3,}\S|\s*[-*] |\s*\|", row):
            yield None
        yield line + offset, row


def c_pieces(text, javascript=False):
    """Comments, and texts that lie next to each other, of a C++ or JavaScript file."""
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    last_end, last_kind = 0, None
    for match in C_TOKEN.finditer(text):
        kind = match.lastgroup if match.lastgroup != "tag" else "raw"
        if kind in ("char", "raw") or (kind == "tick" and not javascript):
            continue
        line = bisect.bisect_right(starts, match.start())
        between = text[last_end:match.start()]
        if kind != last_kind or between.strip() or (kind == "line" and between.count("\n") > 1):
            yield None
        if kind in ("line", "block"):
            yield from comment_pieces(line, match.group())
        else:
            content = match.group().strip('"`')
            if is_prose(content) or last_kind == kind and not between.strip():
                yield line, content.replace("\\n", " ").replace('\\"', '"')
        last_end, last_kind = match.end(), kind


def python_pieces(text):
    """Comments and strings of a Python file."""
    last = None
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return
    for token in tokens:
        if token.type == tokenize.COMMENT:
            if last != token.start[0] - 1:
                yield None
            yield from comment_pieces(token.start[0], token.string)
            last = token.start[0]
        elif token.type == tokenize.STRING or getattr(tokenize, "FSTRING_MIDDLE", -1) == token.type:
            yield None
            content = token.string.strip("rbfuRBFU").strip("\"'")
            if is_prose(content):
                yield from comment_pieces(token.start[0], content)


def shell_pieces(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"(?:.*?\s)?#(?!!)(.*)$", line)
        yield from [(number, match.group(1))] if match and match.group(1).strip() else [None]


def html_pieces(text):
    for number, line in enumerate(text.split("\n"), 1):
        yield None
        yield number, re.sub(r"<[^>]*>", " ", line)


def markdown_pieces(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            yield None
        elif not fenced:
            if re.match(r"\s*(?:[-*|#>]|\d+\. |$)", line):
                yield None
            for cell in line.split("|") if line.startswith("|") else [re.sub(r"^\s*(?:[-*#>]+|\d+\.)\s", "", line)]:
                if line.startswith("|"):
                    yield None
                cell = re.sub(r"\]\([^)]*\)", "]", cell)
                yield number, re.sub(r"\*\*", "", cell)


def pieces_of(path, text):
    if path.suffix == ".md":
        return markdown_pieces(text)
    if path.suffix in C_LIKE:
        return c_pieces(text, javascript=path.suffix == ".js")
    if path.suffix == ".py":
        return python_pieces(text)
    if path.suffix == ".html":
        return html_pieces(text)
    return shell_pieces(text) if path.suffix in SHELL_LIKE else []


def without_code(text):
    """Code spans become one word, so that no name in them is a hit and offsets stay."""
    return CODE_SPAN.sub(lambda m: "`" + "x" * (len(m.group()) - 2) + "`", text)


def hits_of(path, text):
    """(line, pattern, text found, remedy) of one file."""
    for passage in passages_of(pieces_of(path, text)):
        prose = without_code(passage.text)
        for name, pattern, remedy in COMPILED:
            for match in pattern.finditer(prose):
                yield passage.line_at(match.start()), name, match.group().strip(), remedy


def long_sentences(path, text, limit):
    for passage in passages_of(pieces_of(path, text)):
        offset = 0
        for sentence in SENTENCE.split(passage.text):
            words = len(re.findall(r"[A-Za-z`][\w`'-]*", sentence))
            if words > limit:
                yield passage.line_at(passage.text.find(sentence, offset)), words, sentence
            offset += len(sentence)


def text_files(root):
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix == ".md":
            yield path
    for folder in FOLDERS:
        base = root / folder
        for path in sorted(base.rglob("*")) if base.is_dir() else []:
            rel = path.relative_to(root)
            if path.is_file() and path.suffix in READABLE and rel.as_posix() not in SKIPPED and not SKIPPED_PARTS & set(rel.parts):
                yield path


def is_contract(rel):
    """src/ops/<op>/<op>.h: counted with the headers that users of an op read, not with its kernels."""
    return rel.parts[:2] == ("src", "ops") and len(rel.parts) == 4 and rel.stem == rel.parts[2] and rel.suffix == ".h"


def folder_of(rel, budgets):
    """The longest entry of the budgets that holds the file; "." for pages at the top."""
    if is_contract(rel):
        return "src/ops/contracts"
    parents = ["/".join(rel.parts[:n]) for n in range(len(rel.parts) - 1, 0, -1)]
    return next((parent for parent in parents if parent in budgets), rel.parts[0] if len(rel.parts) > 1 else ".")


def files_of(paths):
    """The given files, and the readable files in the given folders."""
    for path in paths:
        yield from sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in READABLE) if path.is_dir() else [path]


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def collect(root, budgets):
    """{folder: [(rel, line, pattern, text, remedy)]}"""
    found = {folder: [] for folder in budgets}
    for path in text_files(root):
        rel = path.relative_to(root)
        for line, name, text, remedy in hits_of(path, read(path)):
            found.setdefault(folder_of(rel, budgets), []).append((rel.as_posix(), line, name, text, remedy))
    return found


def counts_of(hits):
    counts = {"A": 0, "B": 0}
    for hit in hits:
        counts[hit[2][0]] += 1
    return counts


def describe(hit):
    rel, line, name, text, remedy = hit
    return f"{rel}:{line}: [{name}] '{text}': {remedy}"


def load_budgets(root):
    path = root / BUDGETS
    return json.loads(read(path)) if path.is_file() else {}


def run(root):
    """Every finding that exceeds a budget, and every budget that is above what the tree has."""
    budgets = load_budgets(root)
    errors = []
    for folder, hits in sorted(collect(root, budgets).items()):
        counts = counts_of(hits)
        budget = {"A": 0, "B": 0, **budgets.get(folder, {})}
        for group in "AB":
            if counts[group] > budget[group]:
                errors += [describe(hit) for hit in hits if hit[2][0] == group]
                errors.append(f"{folder}: [budget] {counts[group]} hits of group {group}; the budget is "
                              f"{budget[group]}: rewrite what this change adds")
            elif counts[group] < budget[group]:
                errors.append(f"{BUDGETS}: [budget] {folder} has {counts[group]} hits of group {group}, less than its "
                              f"budget of {budget[group]}: run tools/lint/check_words.py --write")
    return errors


def write(root):
    """Lowers each budget to what the tree has. Returns the folders that have more than theirs."""
    budgets = load_budgets(root)
    above = []
    for folder, hits in collect(root, budgets).items():
        counts = counts_of(hits)
        old = budgets.get(folder, {"A": 0, "B": 0})
        above += [folder] if any(counts[g] > old[g] for g in "AB") else []
        budgets[folder] = {g: min(counts[g], old[g]) for g in "AB"}
    lines = [f'  {json.dumps(folder)}: {json.dumps(budgets[folder])}' for folder in sorted(budgets)]
    (root / BUDGETS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return above


def print_counts(root):
    total = {"A": 0, "B": 0}
    for folder, hits in sorted(collect(root, load_budgets(root)).items()):
        counts = counts_of(hits)
        print(f"{counts['A']:6} {counts['B']:6}  {folder}")
        total = {g: total[g] + counts[g] for g in "AB"}
    print(f"{total['A']:6} {total['B']:6}  all")


def main():
    parser = argparse.ArgumentParser(description="Checks the words of comments, pages, help texts and messages.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="top of the repository (default: the one that holds this script)")
    parser.add_argument("--write", action="store_true", help="lower the budgets to what the tree has")
    parser.add_argument("--counts", action="store_true", help="print the hits per folder")
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER", help="print every hit")
    parser.add_argument("--long", type=int, metavar="WORDS", help="print longer sentences of the given files")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="read only these files")
    args = parser.parse_args()
    root = args.root.resolve()
    if args.files:
        lines = []
        for path in files_of(args.files):
            rel = path.resolve().relative_to(root).as_posix()
            if args.long:
                lines += [f"{rel}:{line}: {words} words: {text}" for line, words, text in
                          long_sentences(path, read(path), args.long)]
            else:
                lines += [describe((rel, *hit)) for hit in hits_of(path, read(path))]
        print("\n".join(lines))
        return 1 if lines else 0
    if args.counts:
        print_counts(root)
        return 0
    if args.list is not None:
        for hits in collect(root, load_budgets(root)).values():
            for hit in hits:
                if hit[0].startswith(args.list):
                    print(describe(hit))
        return 0
    if args.write:
        above = write(root)
        print("\n".join([f"{folder}: has more hits than its budget" for folder in above]))
        return 1 if above else 0
    errors = run(root)
    print("\n".join(errors + [f"check_words: {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
