"""The library has exactly the functions of include/dsv4.h, and the test program calls each of them.

    names_test.py include/dsv4.h libdsv4_c.a capi_test.c
"""

import re
import subprocess
import sys
from pathlib import Path


def main():
    header, library, program = sys.argv[1:]
    text = re.sub(r"/\*.*?\*/", "", Path(header).read_text(encoding="utf-8"), flags=re.DOTALL)
    declared = set(re.findall(r"\b(dsv4_\w+)\s*\(", text))
    lines = subprocess.run(["nm", "--defined-only", "--extern-only", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    # C names only: names of C++ begin with _Z. DW.ref is the compiler's.
    defined = {line.split()[-1] for line in lines if re.search(r" [TDBRVW] ", line)}
    defined = {name for name in defined if not name.startswith(("_Z", "DW.ref"))}
    calls = set(re.findall(r"\b(dsv4_\w+)\s*\(", Path(program).read_text(encoding="utf-8")))
    problems = [f"{name}: declared and not defined" for name in sorted(declared - defined)]
    problems += [f"{name}: defined and not declared" for name in sorted(defined - declared)]
    problems += [f"{name}: not called by the test program" for name in sorted(declared - calls)]
    print("\n".join(problems) or f"{len(declared)} functions")
    return 1 if problems or len(declared) < 48 else 0


if __name__ == "__main__":
    sys.exit(main())
