#!/usr/bin/env python3
"""Tests bench/kernel_times.py with invented records."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "kernel_times.py"
EMBED, EXPERTS, LINEAR, SAMPLE = ("_ZN4dsv411EmbedKernelEv", "_ZN4dsv47experts15ExpertOneKernelILNS_12WeightFormatE4ELb1EEEvNS0_8GemmArgsE",
                                  "_ZN4dsv411tile_linear14OneTokenKernelILNS_12WeightFormatE4EEEv", "_ZN4dsv46sample12SampleKernelILi8EEEv")


def step(gpu, begin, experts, ends=True):
    """Returns a pass of two layers: a linear of 10 us, then experts, and a copy that overlaps the experts."""
    lines, at = ["%d %d %d %s" % (gpu, begin, begin + 1000, EMBED)], begin + 1000
    for _ in range(2):
        lines.append("%d %d %d %s" % (gpu, at, at + 10000, LINEAR))
        lines.append("%d %d %d memcpy1" % (gpu, at + 10500, at + 11000))
        lines.append("%d %d %d %s" % (gpu, at + 10000, at + 10000 + experts, EXPERTS))
        at += 10000 + experts
    return lines + (["%d %d %d %s" % (gpu, at, at + 5000, SAMPLE)] if ends else [])


class KernelTimes(unittest.TestCase):
    def run_on(self, lines, *flags):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write("".join(line + "\n" for line in lines))
        try:
            return subprocess.run([sys.executable, "-B", str(PROGRAM), file.name, "2", *flags], capture_output=True, text=True)
        finally:
            os.unlink(file.name)

    def test_the_median_step_of_each_gpu(self):
        lines = []
        for gpu in [0, 1]:
            for i, experts in enumerate([20000, 30000, 90000]):
                lines += step(gpu, 1000000 * i, experts + 1000 * gpu)
            lines += step(gpu, 9000000, 500000, ends=False)  # a prompt: no token is sampled
        done = self.run_on(reversed(lines), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([f["gpu"] for f in found], [0, 1])
        self.assertEqual([f["passes"] for f in found], [3, 3])
        self.assertEqual(found[0]["us"], 1 + 2 * (10 + 30) + 5)
        self.assertEqual(found[1]["us"], 1 + 2 * (10 + 31) + 5)
        self.assertEqual([(k["name"], k["us_a_layer"], k["times_a_layer"]) for k in found[0]["kernels"]],
                         [("ExpertOneKernel", 30, 1), ("OneTokenKernel", 10, 1), ("SampleKernel", 2.5, 0.5), ("EmbedKernel", 0.5, 0.5)])
        self.assertIn("ExpertOneKernel", self.run_on(lines).stdout)

    def test_what_is_not_there_is_said(self):
        done = self.run_on(step(0, 0, 1000), "--holds", "OtherKernel")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no pass holds OtherKernel", done.stderr)
        done = self.run_on(["0 1 x name"])
        self.assertEqual(done.returncode, 1)
        self.assertIn(":1: no record", done.stderr)


if __name__ == "__main__":
    unittest.main()
