#!/usr/bin/env python3
"""bench/closed_loop.py: its arithmetic on a known run, and a small load against nano."""

import json
import subprocess
import sys
import unittest

from support import BINARY, HAS_NANO, ROOT, SLOWNESS, THREADS, main

sys.path.insert(0, str(ROOT / "bench"))
from closed_loop import figures_of
from serve_load import Exchange

SCRIPT = ROOT / "bench" / "closed_loop.py"


def exchange(prompt, start, times):
    known = Exchange([10] * prompt, len(times))
    known.start_time, known.times = start, times
    return known


class Arithmetic(unittest.TestCase):
    def test_only_the_counted_part_counts(self):
        run = [exchange(1000, 0.0, [9.0, 9.5, 10.5, 11.5]),      # the first token is too early, two tokens count
               exchange(100, 9.0, [12.0, 13.0, 13.2]),           # counts
               exchange(300, 10.0, [14.0, 14.1, 16.0, 20.0]),    # the last token is too late
               exchange(5000, 15.0, [20.0, 21.0])]               # too late
        found = figures_of(run, 10.0, 20.0)
        self.assertEqual(found["replies"], 2)
        self.assertEqual(found["tokens_in_per_s"], 40.0)
        self.assertEqual(found["tokens_out_per_s"], 0.8)
        self.assertEqual(found["tokens_per_s"], 40.8)
        self.assertEqual(found["first_token_s"], {"median": 3.5, "p90": 4.0, "max": 4.0})
        self.assertEqual(found["gap_ms"], {"median": 1000.0, "p99": 1900.0, "max": 1900.0})
        self.assertIsNone(figures_of(run, 30.0, 40.0))


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class Load(unittest.TestCase):
    def run_script(self, *flags):
        command = [sys.executable, "-B", str(SCRIPT), BINARY, *map(str, flags), "--threads", str(THREADS)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300 * SLOWNESS)

    def test_a_loop_and_bursts(self):
        done = self.run_script("--clients", 4, "--prompt", 60, "--reply", 12, "--seconds", 3 * SLOWNESS, "--counted", 0.6,
                               "--burst", "6x40", "--runs", 2, "--machine", "here", "--bar", "first_token_s.max<=1000")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        reports = {line["load"]: line for line in lines if "load" in line}
        burst, loop = reports["6 x 40 at once"], reports["4 clients, 60 in, 12 out"]
        self.assertEqual(len(burst["burst_s"]["last_runs"]), 2)
        self.assertLessEqual(0, burst["burst_s"]["median"])
        self.assertLessEqual(burst["burst_s"]["median"], burst["burst_s"]["last"])
        self.assertGreater(loop["requests"], loop["replies"])
        self.assertGreaterEqual(loop["replies"], 4)
        # lengths vary by a quarter
        self.assertLess(abs(loop["tokens_in_per_s"] * loop["counted_s"] / loop["replies"] - 60), 15.1)
        self.assertLess(0, loop["tokens_out_per_s"])
        self.assertAlmostEqual(loop["tokens_per_s"], loop["tokens_in_per_s"] + loop["tokens_out_per_s"], delta=0.2)
        self.assertLessEqual(loop["gap_ms"]["median"], loop["gap_ms"]["p99"])
        results = [line for line in lines if "what" in line]
        self.assertEqual(len(results), 11)
        for line in results:
            self.assertEqual(list(line), ["commit", "machine", "command", "what", "value", "unit", "limit"])
        limits = {line["what"]: line["limit"] for line in results}
        self.assertEqual(limits["first_token_s.max @ 4 clients, 60 in, 12 out"], 1000)

    def test_a_bar_that_does_not_hold_is_an_error(self):
        done = self.run_script("--seconds", 0, "--burst", "2x20", "--runs", 1, "--bar", "burst_s.last<=0.0")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("failed bars: burst_s.last is", done.stderr)

    def test_wrong_flags_are_refused_before_a_server_starts(self):
        for flags, words in [(["--seconds", 0], "nothing to measure"), (["--bar", "speed>=1"], "there is no figure 'speed'"),
                             (["--bar", "tokens_per_s=1"], "is no bar"), (["--bar", "burst_s.last<=1"], "there is no figure"),
                             (["--counted", 2], "share between 0 and 1")]:
            done = self.run_script(*flags)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertNotIn("the server runs", done.stderr)

    def test_requests_that_fail_end_the_run(self):
        done = self.run_script("--clients", 2, "--prompt", 5000, "--reply", 4, "--seconds", 1, "--ctx", 512)
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 of 2 clients failed", done.stderr)


if __name__ == "__main__":
    main()
