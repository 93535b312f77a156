#!/usr/bin/env python3
"""dsv4 bench with its sub-commands and old flags, and dsv4 synthesize."""

import json
import os
import signal
import subprocess
import tempfile
import time

from support import BENCH_PARTS, BINARY, CliTestCase, handles_interrupts, main, run, wait_for

SMALL = ["--synthetic", "nano", "--layers", "1", "--threads", "1"]
STEPS = ["--contexts", "16", "--batches", "1", "--tokens", "1", "--repeat", "1"]


class Bench(CliTestCase):
    def rows(self, *args):
        return [json.loads(line) for line in self.ok("bench", *args, "--json").splitlines()]

    def phases(self, *args):
        return [row.get("phase") for row in self.rows(*args)]

    def test_both_phases_by_default(self):
        self.assertEqual(self.phases(*SMALL, *STEPS, "--prompts", "8", "--no-ops"), [None, "prefill", "decode"])

    def test_decode_and_prefill_measure_one_phase(self):
        self.assertEqual(self.phases("decode", *SMALL, *STEPS), [None, "decode"])
        self.assertEqual(self.phases("prefill", *SMALL, "--prompts", "8,16", "--repeat", "1"), [None, "prefill", "prefill"])
        for part, flag in [("decode", "--prompts"), ("prefill", "--batches"), ("linears", "--contexts"), ("start", "--repeat"),
                           ("errors", "--tokens"), ("batch", "--contexts"), ("ops", "--no-ops"), ("ops", "--linears")]:
            self.fails(2, [f"'{flag}'", f"dsv4 bench {part} --help"], "bench", part, flag, "1")

    def test_batch_compares_throughput(self):
        args = ["batch", *SMALL, "--batches", "1,2", "--context", "16", "--tokens", "1", "--repeat", "1"]
        rows = self.rows(*args)[1:]
        self.assertEqual([(row["phase"], row["batch"]) for row in rows], [("decode", 1), ("batch", 1), ("decode", 2), ("batch", 2)])
        self.assertEqual(rows[1]["times_first"], 1)
        self.assertAlmostEqual(rows[3]["times_first"], rows[2]["tokens_per_s"] / rows[0]["tokens_per_s"])
        self.assertIn(b"times the first", self.ok("bench", *args))

    def test_ops_reports_each_op(self):
        rows = self.rows("ops", *SMALL, *STEPS, "--prompts", "8")
        for of in ["prefill", "decode"]:
            self.assertIn("linear", {row["op"] for row in rows if row.get("of") == of})

    def test_start_measures_phases(self):
        (row,) = self.rows("start", *SMALL, "--prompt-tokens", "8")
        self.assertEqual((row["phase"], row["prompt"]), ("first token", 8))
        self.assertGreater(row["first_token_s"], row["loaded_s"])

    def test_drafts_have_a_default(self):
        rows = self.rows("drafts", *SMALL, "--contexts", "16", "--batches", "1", "--tokens", "8", "--repeat", "1")[1:]
        self.assertEqual([row["phase"] for row in rows], ["drafts_off", "drafts"])
        self.assertEqual(rows[1]["right"], 0.7)
        self.fails(2, ["bench drafts", "--speculate"], "bench", "drafts", "--speculate", "off")

    def test_errors_needs_a_gpu(self):
        self.fails(2, ["bench errors", "--device cuda"], "bench", "errors")

    def test_each_part_has_a_short_help_with_an_example(self):
        whole = self.ok("bench", "--help").decode()
        for part in BENCH_PARTS:
            out = self.ok("bench", part, "--help").decode()
            self.assertEqual(self.ok("help", "bench", part).decode(), out)
            self.assertIn(f"Example:\n  dsv4 bench {part} ", out)
            self.assertLess(out.count("\n  -"), whole.count("\n  -"))
            self.assertRegex(whole, rf"\n  {part} +[A-Z]")
        self.ok("bench", "decode", *SMALL, *STEPS, "--kv-dtype", "f32")  # a flag that only the help of bench lists

    def test_words_that_are_no_part(self):
        self.fails(2, ["'decod'", "did you mean decode?", "dsv4 bench --help"], "bench", "decod")
        self.fails(2, ["'x'", "dsv4 bench decode --help"], "bench", "decode", "x")
        self.fails(2, ["--json", "after 'dsv4 bench decode'"], "bench", "--json", "decode")

    def test_a_synthetic_checkpoint_is_written_inspected_and_never_overwritten(self):
        self.fails(2, ["synthesize", "DIR"], "synthesize", "--synthetic", "nano")
        self.fails(2, ["synthesize", "--synthetic"], "synthesize", "x")
        self.fails(2, "--layers", "synthesize", "x", "--layers", "1")
        with tempfile.TemporaryDirectory() as temp:
            folder = os.path.join(temp, "m")
            shape = ["--synthetic", "nano", "--layers", "1"]
            line = json.loads(self.ok("synthesize", folder, *shape, "--json"))
            self.assertEqual(line["bytes"], sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)))
            self.assertEqual(json.loads(self.ok("inspect", "-m", folder, "--json"))["num_layers"], 1)
            self.fails(1, folder, "synthesize", folder, *shape)
            self.fails(1, folder, "synthesize", os.path.join(temp, "n"), *shape, "--overflow", folder)
            self.assertEqual(os.listdir(temp), ["m"])
            (start,) = self.rows("start", "-m", folder, "--prompt-tokens", "8")
            self.assertGreater(start["first_token_s"], start["loaded_s"])

    def test_interrupt_ends_bench(self):
        for what in [["--prompts", "64", "--repeat", "1000", "--budget", "1000"],
                     ["--prompts", "", "--contexts", "16", "--batches", "1", "--tokens", "100000", "--budget", "1000"]]:
            with subprocess.Popen([BINARY, "bench", "--synthetic", "nano", *what], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL) as bench:
                bench.stdout.readline()
                wait_for(lambda: handles_interrupts(bench))
                time.sleep(0.5)  # it measures now, or soon
                bench.send_signal(signal.SIGINT)
                try:
                    self.assertEqual(bench.wait(60), 130)
                finally:
                    bench.kill()

    def test_bench_measures_steps_and_ops(self):
        rows = self.rows("--synthetic", "nano", "--prompts", "32", "--contexts", "16,300", "--batches", "1,3", "--tokens", "2",
                         "--repeat", "1", "--threads", "1")
        self.assertEqual((rows[0]["threads"], rows[0]["device"]), (1, "cpu"))
        self.assertGreater(rows[0]["fma_per_s"], 0)
        decode = [row for row in rows if row.get("phase") == "decode"]
        self.assertEqual([(row["context"], row["batch"]) for row in decode], [(16, 1), (16, 3), (300, 1), (300, 3)])
        self.assertEqual([row["computed_context"] for row in decode], [16, 16, 300, 256])
        for of in ["prefill", "decode"]:
            ops = {row["op"] for row in rows if row.get("of") == of}
            self.assertLessEqual({"linear", "experts", "sparse_attention", "outside of ops"}, ops)
        text = self.ok("bench", "--synthetic", "nano", "--prompts", "32", *STEPS)
        self.assertIn(b"% of FMA peak", text)
        text = self.ok("bench", "--synthetic", "nano", "--prompts", "", *STEPS, "--no-ops")
        self.assertNotIn(b"% of FMA peak", text)

    def test_bench_counts_experts(self):
        args = ["decode", "--synthetic", "nano", "--layers", "1", *STEPS]
        rows_of = lambda rows: [row for row in rows if row.get("phase") == "experts"]
        self.assertEqual(rows_of(self.rows(*args)), [], "not requested")
        with tempfile.TemporaryDirectory() as folder:
            experts = rows_of(self.rows(*args, "--count-experts", os.path.join(folder, "counts")))
        self.assertEqual(len(experts), 1)
        self.assertGreater(experts[0]["choices"], 0)
        self.assertEqual(experts[0]["hits"], experts[0]["choices"], "all are on the device")
        self.assertEqual((experts[0]["fetched_bytes"], experts[0]["swaps"]), (0, 0))

    def test_linears(self):
        rows = self.rows("linears", "--synthetic", "nano", "--shapes", "64x256", "--tokens", "1,3", "--threads", "1")[1:]
        self.assertEqual([(row["format"], row["tokens"]) for row in rows],
                         [(f, t) for f in ["NVFP4", "MXFP4", "FP8", "BF16"] for t in [1, 3]])
        self.assertTrue(all(row["us"] > 0 and row["rows"] == 64 for row in rows))

    def test_drafts_follow_the_expected_distribution(self):
        for _ in range(5):
            rows = self.rows("drafts", *SMALL, "--speculate", "mtp", "--draft-tokens", "2", "--draft-threshold", "0", "--rows", "1,3",
                             "--acceptance", "70,0", "--contexts", "16", "--batches", "1", "--tokens", "200", "--repeat", "1")[1:]
            self.assertEqual([r["rows"] for r in rows if r["phase"] == "verify"], [1, 3])
            right, wrong = [r for r in rows if r["phase"] == "drafts"]
            self.assertAlmostEqual(right["tokens_per_step"], 1 + 0.7 + 0.7 ** 2, delta=0.05)
            self.assertEqual((wrong["tokens_per_step"], wrong["accepted_per_step"]), (1, 0))
            for row in (right, wrong):
                self.assertGreater(row["gain_standard_error"], 0)
            if all(row["gain_standard_error"] < row["gain"] for row in (right, wrong)):
                return  # a machine that stops for a second makes any measurement uncertain
        self.fail("each time uncertain: %s" % rows)

    def test_bench_refuses(self):
        self.fails(2, ["bench linears", "--device cpu"], "bench", "linears", "--device", "cuda")
        self.fails(2, ["--budget"], "bench", "--budget", "0")
        for shape in ["64", "64x", "64x100", "0x128", "ax128"]:
            self.fails(2, ["--shapes", f"'{shape}'"], "bench", "linears", "--shapes", shape)
        self.fails(2, ["--contexts", "'x'"], "bench", "--contexts", "512,x")
        self.fails(1, ["1024"], "bench", "--synthetic", "nano", "--threads", "1024", "--pin", "on")

    def test_bench_refuses_sequences_that_have_no_room(self):
        for part, contexts, name in [([], "16,1048000", "--contexts"), (["decode"], "16,1048000", "--contexts")]:
            result = run("bench", *part, "--kv-dtype", "f32", "--contexts", contexts, "--batches", "1,1024", "--tokens", "16")
            plan, error = result.stderr.decode().splitlines()
            self.assertEqual(result.returncode, 1, error)
            self.assertTrue(plan.startswith("memory on CPU"), plan)
            for word in ["dsv4: error: 1024 sequences of 1,048,000 tokens", "of KV", "free", "--batches", name]:
                self.assertIn(word, error)
            self.assertEqual(len(result.stdout.splitlines()), 1, "nothing is measured first")

    def test_the_instruction_set_can_be_limited(self):
        arguments = ["bench", "prefill", "--synthetic", "nano", "--prompts", "8", "--repeat", "1", "--json"]
        head = json.loads(self.ok(*arguments, env={"DSV4_CPU_ISA": "generic"}).splitlines()[0])
        self.assertEqual(head["instructions"], "generic")
        self.fails(1, ["DSV4_CPU_ISA", "'sse9'", "avx2"], *arguments, env={"DSV4_CPU_ISA": "sse9"})


class OldFlags(CliTestCase):
    """Flags of dsv4 bench that have become sub-commands."""

    def rows(self, notes, *args):
        """Runs bench, checks its notes {old flag: new form}, and returns its JSON rows."""
        result = run("bench", *args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line for line in result.stderr.decode().splitlines() if line.startswith("dsv4: note: ")]
        self.assertEqual(lines, [f"dsv4: note: {old} is now '{now}'; the old flag works until 0.3" for old, now in notes.items()])
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_linears(self):
        notes = {"--linears": "dsv4 bench linears", "--shapes": "dsv4 bench linears --shapes"}
        rows = self.rows(notes, *SMALL, "--linears", "--shapes", "64x256", "--prompts", "3")[1:]
        self.assertEqual([row["tokens"] for row in rows], [1, 3] * 4)

    def test_drafts(self):
        notes = {"--draft-rows": "dsv4 bench drafts --rows", "--draft-right": "dsv4 bench drafts --acceptance",
                 "--draft-repeats": "dsv4 bench drafts --repeats"}
        rows = self.rows(notes, *SMALL, "--speculate", "lookup", "--draft-rows", "2", "--draft-right", "50", "--draft-repeats", "10",
                         "--contexts", "16", "--batches", "1", "--tokens", "4", "--repeat", "1")[1:]
        self.assertEqual([row["phase"] for row in rows], ["drafts_off", "verify", "drafts"])
        self.assertEqual((rows[1]["rows"], rows[1]["repeats"], rows[2]["right"]), (2, 0.1, 0.5))

    def test_first_token(self):
        (row,) = self.rows({"--first-token": "dsv4 bench start"}, *SMALL, "--first-token", "--prompts", "8")
        self.assertEqual((row["phase"], row["prompt"]), ("first token", 8))

    def test_disk(self):
        notes = {"--disk": "dsv4 synthesize", "--disk-overflow": "dsv4 synthesize --overflow"}
        folder = str(self.tmp / "m")
        (row,) = self.rows(notes, *SMALL, "--disk", folder, "--disk-overflow", self.tmp / "n")
        self.assertEqual((row["phase"], row["dir"]), ("write", folder))

    def test_errors(self):
        self.fails(2, ["--errors", "--device cuda"], "bench", "--errors", "--prompts", "64")
        result = run("bench", "--errors", "--device", "cuda:99", "--prompts", "64", *SMALL[:4])
        self.assertIn(b"dsv4: note: --errors is now 'dsv4 bench errors'", result.stderr)

    def test_refusals(self):
        self.fails(2, ["--linears", "--first-token"], "bench", "--linears", "--first-token")
        self.fails(2, ["--linears", "--device cpu"], "bench", "--linears", "--device", "cuda")
        self.fails(2, ["--shapes", "--linears"], "bench", "--shapes", "64x128")
        self.fails(2, ["--disk", "--synthetic"], "bench", "--disk", "x")
        self.fails(2, ["--disk-overflow", "--disk"], "bench", "--synthetic", "nano", "--disk-overflow", "x")
        self.fails(2, ["--draft-right", "--speculate"], "bench", "--draft-right", "70")
        self.fails(2, ["--count-experts", "--first-token"], "bench", "--count-experts", self.tmp / "x", "--first-token")


if __name__ == "__main__":
    main()
