#!/usr/bin/env python3
"""Shows how the time of a pass divides among kernels, from the records of bench/cuda/kernel_times.cc.

    kernel_times.py FILE LAYERS [--holds KERNEL] [--rows N] [--json]

A pass begins with EmbedKernel. The script takes the passes that contain KERNEL (default: SampleKernel, so decode steps)
and prints the median pass of each GPU. For each kernel it prints the microseconds per layer by which the kernel moves
the end of the pass, and the number of runs per layer. A kernel that overlaps a longer one counts nothing.
"""

import argparse
import collections
import json
import re
import sys

FIRST = "EmbedKernel"


def short_name(mangled):
    """Returns OneTokenKernel for _ZN4dsv411tile_linear14OneTokenKernelILNS..."""
    names = re.findall(r"\d([A-Z][A-Za-z0-9]*?Kernel)", mangled)
    return names[0] if names else mangled[:40]


def read(path):
    """Returns {GPU: [(begin, end, name)]}, sorted by begin."""
    records = collections.defaultdict(list)
    with open(path) as file:
        for number, line in enumerate(file, 1):
            words = line.split(None, 3)
            if len(words) != 4 or not all(word.isdigit() for word in words[:3]):
                sys.exit("%s:%d: no record: %r" % (path, number, line[:80]))
            records[int(words[0])].append((int(words[1]), int(words[2]), short_name(words[3].strip())))
    return {gpu: sorted(rows) for gpu, rows in sorted(records.items())}


def median_pass(rows, holds):
    """Returns, of the passes that contain kernel `holds`, the one of median time and the number of passes."""
    cuts = [i for i, row in enumerate(rows) if row[2] == FIRST] + [len(rows)]
    passes = [rows[a:b] for a, b in zip(cuts, cuts[1:])]
    passes = [p for p in passes if any(name == holds for _, _, name in p)]
    passes.sort(key=lambda p: max(end for _, end, _ in p) - p[0][0])
    return (passes[len(passes) // 2] if passes else None), len(passes)


def shares(rows):
    """Returns ({kernel: nanoseconds by which it moves the end}, {kernel: number of runs})."""
    moved, times, last = collections.Counter(), collections.Counter(), rows[0][0]
    for begin, end, name in rows:
        times[name] += 1
        if end > last:
            moved[name] += end - last
            last = end
    return moved, times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("layers", type=int)
    parser.add_argument("--holds", default="SampleKernel")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.layers < 1:
        parser.error("LAYERS is the number of layers of the model: at least 1")
    found = False
    for gpu, rows in read(options.file).items():
        one, count = median_pass(rows, options.holds)
        if one is None:
            print("GPU %d: no pass holds %s" % (gpu, options.holds), file=sys.stderr)
            continue
        found = True
        moved, times = shares(one)
        span = max(end for _, end, _ in one) - one[0][0]
        table = [(name, nanoseconds / 1e3 / options.layers, times[name] / options.layers)
                 for name, nanoseconds in moved.most_common(options.rows)]
        if options.json:
            print(json.dumps({"gpu": gpu, "passes": count, "us": span / 1e3, "us_a_layer": span / 1e3 / options.layers,
                              "kernels": [{"name": n, "us_a_layer": us, "times_a_layer": t} for n, us, t in table]}))
            continue
        print("GPU %d: median of %d passes %.0f us, %.1f a layer, %d kernels" %
              (gpu, count, span / 1e3, span / 1e3 / options.layers, len(one)))
        for name, us, t in table:
            print("  %8.1f us %5.1f x %s" % (us, t, name))
    sys.exit(0 if found else 1)


if __name__ == "__main__":
    main()
