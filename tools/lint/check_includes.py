#!/usr/bin/env python3
"""Checks rules that a compiler does not check: the order of the folders, file sizes, rules of CONTRIBUTING.md.

    tools/lint/check_includes.py [--root DIR]

Prints one line per finding, `path:line: [rule] message`, and exits 1 if there is an error (warnings do not count).
Rules:

  include        a folder of src/ includes only the folders that ALLOWED lists for it; the folders within src/engine/,
                 src/model/deepseek_v4/ and server/ include only the folders before them (FOLDERS_OF); cli/, server/
                 and capi/ include only include/ and their own files; public headers include only the standard library and
                 each other
  seam           src/engine/ includes only model.h of src/model/; each family of models implements that header
  include-path   a quoted include names an existing file: from src/ in src/, with the prefix server/ in server/, or
                 with the prefix dsv4/
  size           a file has at most 1,000 lines (error) and should have at most 500 (warning)
  columns        a line of C++ has at most 120 columns, except in raw strings
  pragma-once    every header has `#pragma once`
  getenv         only src/base/env.h reads the environment
  using          no `using namespace` in a header
  marker         no marker of unfinished work in the code
  exit           the library does not end the process with exit()
  device-word    no name of a device API or architecture above src/ops/, and no preprocessor switch there
  contract       no preprocessor switch in the contract of an op, src/ops/<op>/<op>.h, or in a header of src/ops/ that
                 contracts or higher folders include: an op supports the same things in every build
  op             every src/ops/<op>/ has <op>.h, <op>_ref.cc, tests/ops/<op>_test.cc and bench/ops/<op>_bench.cc,
                 except folders that several ops share (SHARED_BY_OPS)
"""

import argparse
import re
import sys
from pathlib import Path

# The dependency line. A folder may include itself, the folders listed here, and include/dsv4/.
#   base <- tensor <- device <- kv <- ops <- layers <- model <- engine <- cli, server
#           tensor <- io <------------------------- model
#   base <- text <----------------------------------------------- cli, server
ALLOWED = {
    "base": set(),
    "text": {"base"},
    "tensor": {"base"},
    "io": {"base", "tensor"},
    "device": {"base", "tensor"},
    "kv": {"base", "tensor", "device"},
    "ops": {"base", "tensor", "device", "kv"},
    "layers": {"base", "tensor", "device", "kv", "ops"},
    "model": {"base", "tensor", "device", "kv", "ops", "layers", "io"},
    "engine": {"base", "tensor", "device", "kv", "ops", "layers", "io", "model"},
}
MODEL_SEAM = "model/model.h"  # the only header of src/model/ that engine/ may include
PROGRAMS = ("cli", "server", "capi")  # may include include/ only
# Each folder includes only the folders before it. Files directly in the parent folder may include all of them.
FOLDERS_OF = {
    "engine": ("setup", "ranks", "sampling", "sessions", "decode", "drafts", "memory"),
    "model/deepseek_v4": ("config", "schema", "load", "experts", "pass"),
    "server": ("base", "metrics", "http", "cache", "structured", "schedule", "observe", "api", "service", "page"),
}
ABOVE_OPS = ("layers", "model", "engine")

CODE_FOLDERS = ("src", "include", "cli", "server", "capi", "python", "tests", "bench", "tools", "scripts", "cmake")
CPP_SUFFIXES = {".h", ".hpp", ".cuh", ".inc", ".cc", ".cpp", ".cu"}
HEADER_SUFFIXES = {".h", ".hpp", ".cuh"}
TEXT_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake", ".txt", ""}

SOFT_LINES = 500
HARD_LINES = 1000
COLUMNS = 120
# Generated tables: exempt from the size rule only. Each names its script in its first lines.
GENERATED = {
    "src/text/unicode_tables.cc",
}
# Headers that CMake generates in the build folder.
CONFIGURED_HEADERS = {
    "dsv4_commit.h",
}
# Folders of src/ops/ that are no op: several ops share their files.
SHARED_BY_OPS = {"weight_formats"}
# Reports how this binary was compiled, so it needs preprocessor switches.
BUILD_DESCRIPTION = "src/engine/version.cc"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
USING_NAMESPACE = re.compile(r"\busing\s+namespace\b")
GETENV = re.compile(r"\b(?:secure_)?getenv\b")
MARKER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")
EXIT = re.compile(r"\b(?:_exit|_Exit|quick_exit|exit)\s*\(")
DEVICE_WORD = re.compile(
    r"\w*(?:cuda|nccl|cublas)\w*|\bsm_?(?:70|75|80|86|89|90|100|103|110|120|121)[af]?\b"
    r"|\w*[a-z]_sm(?:90|100|103|120)\w*|__(?:global|device|host|shared)__|\bavx\w*|\b__m(?:128|256|512)\w*",
    re.IGNORECASE)
RAW_STRING = re.compile(r'R"([^\s()\\]{0,16})\((?:.|\n)*?\)\1"')
CONDITIONAL = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b")
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$|^[a-z_0-9]+\.h$")  # <vector>, <stdint.h>; <sys/mman.h> is not portable API


class Report:
    def __init__(self):
        self.errors = []
        self.warnings = []

    def error(self, path, line, rule, message):
        self.errors.append(f"{path}:{line}: [{rule}] {message}")

    def warning(self, path, line, rule, message):
        self.warnings.append(f"{path}:{line}: [{rule}] warning: {message}")


def strip_comments_and_strings(text):
    """Returns the C++ text without comments and contents of literals; line numbers do not change."""
    token = re.compile(
        r'R"([^\s()\\]{0,16})\((?:.|\n)*?\)\1"'       # raw string
        r'|"(?:\\.|[^"\\\n])*"'                       # string
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"       # character, but not the separator of 1'000
        r"|//(?:\\\n|[^\n])*|/\*(?:.|\n)*?\*/")       # comments

    def blank(match):
        kept = "\n" * match.group(0).count("\n")
        return '""' + kept if match.group(0)[0] in "\"'R" else kept

    return token.sub(blank, text)


def source_files(root):
    for folder in CODE_FOLDERS:
        base = root / folder
        if not base.is_dir():
            continue
        for path in sorted(base.rglob("*")):
            inside = path.relative_to(base).parts
            if path.is_file() and path.suffix in TEXT_SUFFIXES and not any(
                    part.startswith(".") or part in ("__pycache__", "corpus", "data", "fixtures", "golden")
                    for part in inside):
                yield path


def folder_of(parts):
    """('src', 'ops', 'rms_norm', 'rms_norm.h') -> 'ops'; ('cli', 'main.cc') -> 'cli'; None if no rule applies."""
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] in PROGRAMS:
        return parts[0]
    if parts[0] == "include":
        return "include"
    return None


def check_folders_within(inside, rel, number, name, report):
    """Checks the order within FOLDERS_OF. `inside` is the path of the including file, in the same form as `name`."""
    for top, order in FOLDERS_OF.items():
        if inside.startswith(top + "/") and name.startswith(top + "/"):
            break
    else:
        return
    own, other = (path[len(top) + 1:].rpartition("/")[0].partition("/")[0] for path in (inside, name))
    for folder in (own, other):
        if folder and folder not in order:
            report.error(rel, number, "include", f"{top}/{folder}/ is not in the order of folders: "
                         "add it to FOLDERS_OF in tools/lint/check_includes.py")
            return
    if own and (not other or order.index(other) > order.index(own)):
        before = ", ".join(order[:order.index(own)]) or "only itself"
        report.error(rel, number, "include", f"{top}/{own}/ may not include {name} (it may include {before})")


def check_include(root, path, number, bracket, name, report):
    rel = path.relative_to(root)
    folder = folder_of(rel.parts)
    if folder is None:
        return
    if name.startswith("dsv4/") or name == "dsv4.h":
        if not (root / "include" / name).is_file():
            report.error(rel, number, "include-path", f"include/{name} does not exist")
        return
    if folder == "include":
        if bracket == '"' or not STANDARD_HEADER.match(name):
            report.error(rel, number, "include", f"a public header includes only the standard library and dsv4/, "
                         f"not {name}")
        return
    if bracket == "<" and not (root / "src" / name).is_file():
        return  # standard library or third party
    if name in CONFIGURED_HEADERS:
        return

    if folder == "server" and not (root / "src" / name).is_file():
        if name.startswith("server/") and (root / name).is_file():
            check_folders_within(rel.as_posix(), rel, number, name, report)
        else:
            report.error(rel, number, "include-path", f"\"{name}\" is no header of server/: write the path with "
                         "the prefix server/")
        return
    target = root / "src" / name
    if target.is_file():
        owner = Path(name).parts[0] if len(Path(name).parts) > 1 else None
    else:
        target = (path.parent / name).resolve()
        if not target.is_file() or root not in target.parents:
            report.error(rel, number, "include-path", f"\"{name}\" exists neither in src/ nor in include/")
            return
        owner = folder_of(target.relative_to(root).parts)
        if rel.parts[0] == "src":
            report.error(rel, number, "include-path", f"write the path of \"{name}\" from src/: "
                         f"\"{target.relative_to(root / 'src') if root / 'src' in target.parents else name}\"")
    if folder in PROGRAMS:
        if owner != folder:
            report.error(rel, number, "include", f"{folder}/ may include only include/dsv4/, not {name}")
    elif folder not in ALLOWED:
        report.error(rel, number, "include", f"src/{folder}/ is not in the order of folders: "
                     "add it to ALLOWED in tools/lint/check_includes.py")
    elif folder == "engine" and owner == "model" and name != MODEL_SEAM:
        report.error(rel, number, "seam", f"src/engine/ may include only {MODEL_SEAM} of src/model/, not {name}")
    elif owner != folder and owner not in ALLOWED[folder]:
        may = ", ".join(sorted(ALLOWED[folder])) or "only itself"
        report.error(rel, number, "include", f"src/{folder}/ may not include {name} (it may include {may})")
    elif owner == folder:
        check_folders_within(rel.relative_to("src").as_posix(), rel, number, name, report)


def check_columns(rel, text, report):
    literal = set()  # lines of raw strings, without their first lines
    for match in RAW_STRING.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        literal.update(range(first + 1, first + match.group(0).count("\n") + 1))
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS and number not in literal:
            report.error(rel, number, "columns", f"{len(line)} columns; the limit is {COLUMNS}")


def check_cpp(root, path, text, report):
    rel = path.relative_to(root)
    header = path.suffix in HEADER_SUFFIXES
    if header and not re.search(r"^#pragma once$", text, re.MULTILINE):
        report.error(rel, 1, "pragma-once", "the header has no #pragma once: add it")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            check_include(root, path, number, match.group(1), match.group(2), report)

    check_columns(rel, text, report)
    folder = folder_of(rel.parts)
    in_library = rel.parts[0] in ("src", "include")
    above_ops = folder in ABOVE_OPS or folder in PROGRAMS or folder in ("text", "include")
    for number, line in enumerate(strip_comments_and_strings(text).splitlines(), 1):
        if GETENV.search(line) and rel.as_posix() != "src/base/env.h":
            report.error(rel, number, "getenv", "only src/base/env.h may read the environment")
        if header and USING_NAMESPACE.search(line):
            report.error(rel, number, "using", "a header must not contain `using namespace`")
        if in_library and EXIT.search(line):
            report.error(rel, number, "exit", "the library must not end the process: return a Status")
        word = DEVICE_WORD.search(line) if above_ops and not INCLUDE.match(line) else None
        if word:
            report.error(rel, number, "device-word", f"`{word.group(0)}`: only src/ops/ and lower folders name devices")
        if folder in ABOVE_OPS and CONDITIONAL.match(line) and rel.as_posix() != BUILD_DESCRIPTION:
            report.error(rel, number, "device-word", "a folder above src/ops/ must not contain a preprocessor switch")


def check_file(root, path, report):
    rel = path.relative_to(root)
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.count("\n") + (0 if text.endswith("\n") or not text else 1)
    if rel.as_posix() not in GENERATED:
        if lines > HARD_LINES:
            report.error(rel, lines, "size", f"{lines} lines; the limit is {HARD_LINES}")
        elif lines > SOFT_LINES:
            report.warning(rel, lines, "size", f"{lines} lines; aim for {SOFT_LINES} at most")
    for number, line in enumerate(text.splitlines(), 1):
        if MARKER.search(line):
            report.error(rel, number, "marker", "finish the work, or open an issue and remove the marker")
    if path.suffix in CPP_SUFFIXES:
        check_cpp(root, path, text, report)


def check_ops(root, report):
    ops = root / "src" / "ops"
    if not ops.is_dir():
        return
    for folder in sorted(ops.iterdir()):
        if not folder.is_dir() or folder.name in SHARED_BY_OPS:
            continue
        op = folder.name
        wanted = (f"src/ops/{op}/{op}.h", f"src/ops/{op}/{op}_ref.cc", f"tests/ops/{op}_test.cc",
                  f"bench/ops/{op}_bench.cc")
        for name in wanted:
            if not (root / name).is_file():
                report.error(f"src/ops/{op}", 1, "op", f"{name} does not exist: every op needs it")


def included_ops(root, path):
    """Returns the headers of src/ops/ that a file includes."""
    names = (INCLUDE.match(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [root / "src" / m.group(2) for m in names
            if m and m.group(2).startswith("ops/") and (root / "src" / m.group(2)).is_file()]


def check_contracts(root, report):
    """Checks the headers of src/ops/ that higher folders include, directly or through other headers."""
    seen = {root / "src" / "ops" / folder.name / f"{folder.name}.h" for folder in (root / "src" / "ops").glob("*/")}
    seen = {path for path in seen if path.is_file()}
    for folder in ABOVE_OPS:
        for path in (root / "src" / folder).rglob("*"):
            if path.suffix in CPP_SUFFIXES:
                seen.update(included_ops(root, path))
    left = list(seen)
    while left:
        for path in included_ops(root, left.pop()):
            if path not in seen:
                seen.add(path)
                left.append(path)
    for path in sorted(seen):
        text = strip_comments_and_strings(path.read_text(encoding="utf-8", errors="replace"))
        for number, line in enumerate(text.splitlines(), 1):
            if CONDITIONAL.match(line):
                report.error(path.relative_to(root), number, "contract", "a contract has no preprocessor switch")


def run(root):
    report = Report()
    root = root.resolve()
    for path in source_files(root):
        check_file(root, path, report)
    check_contracts(root, report)
    check_ops(root, report)
    return report


def main():
    parser = argparse.ArgumentParser(description="Checks the order of includes, file sizes and other rules.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2],
                        help="top of the repository (default: the repository of this script)")
    args = parser.parse_args()
    report = run(args.root)
    for line in report.warnings + report.errors:
        print(line)
    print(f"check_includes: {len(report.errors)} errors, {len(report.warnings)} warnings")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
