#!/usr/bin/env python3
"""Finds writes to registers that a running wgmma still reads.

The compiler does not keep a wgmma's A registers until wgmma.wait_group, so the source has to (src/ops/gemm_sm90.cuh). A
mistake gives wrong sums in some runs. The input is the SASS of an object file:
  cuobjdump -sass wgmma_linear_sm90.cu.o | scripts/wgmma_hazards.py
Code is followed in the order of its addresses, each loop with wgmma twice. Exits 1 if there is a finding.
"""
import re
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\d\s+)?([A-Z0-9_.]+)\s*(.*?);")
NO_TARGET = ("ST", "BAR", "BRA", "SYNCS.ARR", "RED", "EXIT", "R2UR", "U")


def hazards(lines):
    code = [(int(m[1], 16), m[2], m[3]) for m in map(INSTRUCTION.search, lines) if m]
    at = {address: i for i, (address, _, _) in enumerate(code)}
    runs = [list(range(len(code)))]
    for i, (_, op, args) in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)", args) if op == "BRA" else None
        begin = at.get(int(target[1], 16)) if target else None
        if begin is not None and begin <= i and any(code[j][1].startswith("HGMMA") for j in range(begin, i)):
            runs.append(list(range(begin, i + 1)) * 2)
    found = set()
    for run in runs:
        groups, open_group = [], set()
        for i in run:
            address, op, args = code[i]
            if op.startswith("HGMMA"):
                registers = [int(r) for r in re.findall(r"\bR(\d+)", args)]
                if len(registers) > 1 and "gdesc" in args.split(",")[2]:
                    open_group |= set(range(registers[1], registers[1] + 4))
                if "gsb0" in args:
                    groups.append(open_group)
                    open_group = set()
            elif op.startswith("WARPGROUP.DEPBAR"):
                pending = int(re.search(r"0x(\d+)", args)[1])
                groups = groups[len(groups) - pending:] if pending else []
            elif not op.startswith(NO_TARGET):
                target = re.match(r"(?:P\d, |PT, )?R(\d+)", args)
                if target:
                    width = 4 if ".128" in op else 2 if ".64" in op or "WIDE" in op else 1
                    written = set(range(int(target[1]), int(target[1]) + width))
                    if written & set().union(open_group, *groups):
                        found.add(f"{address:05x}: {op} {args}")
    return sorted(found)


def main():
    functions, name = {}, None
    for line in sys.stdin:
        if "Function :" in line:
            name = line.split(":", 1)[1].strip()
            functions[name] = []
        elif name:
            functions[name].append(line)
    bad = 0
    for name, lines in functions.items():
        found = hazards(lines)
        bad += len(found)
        for f in found:
            print(f"{name}\n  {f}")
    print(f"{len(functions)} functions, {bad} hazards")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
