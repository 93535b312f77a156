#!/usr/bin/env python3
"""Commands on token ids, with the checkpoint tests/golden/flash-nvfp4."""

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import time
import unittest

from support import BINARY, CliTestCase, GOLDEN, HAS_GOLDEN, SLOWNESS, handles_interrupts, main, read_safetensors, run, soon, wait_for


def obey_modes_of_files():
    """Makes root obey file modes: drops CAP_DAC_OVERRIDE after the next exec."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


class Engine(CliTestCase):
    """A checkpoint without a tokenizer: commands on token ids."""

    def setUp(self):
        super().setUp()
        if not HAS_GOLDEN:
            self.skipTest("tests/golden/flash-nvfp4 is absent")
        self.model = ["-m", GOLDEN]
        self.ids = self.file("ids.txt", "1, 2 3\n4 5 6 7 8 9 10 11\t12,13 14 15 16 17")
        self.vocab_size = json.loads((GOLDEN / "config.json").read_text())["vocab_size"]

    def logits(self, *args):
        out = self.tmp / "out.safetensors"
        self.ok("logits", *self.model, "--token-ids", self.ids, "-o", out, *args)
        tensors = read_safetensors(out)
        self.assertEqual(list(tensors), ["logits"])
        return tensors["logits"]

    def test_logits_file(self):
        dtype, shape, data = self.logits()
        self.assertEqual((dtype, shape), ("F32", [17, self.vocab_size]))
        self.assertEqual(len(data), 17 * self.vocab_size * 4)

    def test_decode_equals_prefill_in_every_bit(self):
        expected = self.logits()
        for args in [("--prefill-chunk", "1"), ("--prefill-chunk", "3"), ("--decode-from", "0"), ("--decode-from", "5"),
                     ("--decode-from", "17"), ("--threads", "1"), ("--threads", "4")]:
            self.assertEqual(self.logits(*args), expected, args)

    def test_decode_from_beyond_the_tokens(self):
        self.fails(2, ["--decode-from", "18", "17"], "logits", *self.model, "--token-ids", self.ids, "-o",
                   self.tmp / "x", "--decode-from", "18")

    def test_generate_prints_ids_without_a_tokenizer(self):
        out = self.tmp / "out.txt"
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "8", "--ignore-eos", "--output-ids", out]
        text = self.ok(*args, "--temperature", "0").decode()
        self.assertEqual(len(text.split()), 8)
        self.assertEqual(out.read_text(), text)
        again = self.ok(*args, "--temperature", "0", "--threads", "1").decode()
        self.assertEqual(again, text)

    def test_seeds_do_not_depend_on_threads(self):
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "12", "--ignore-eos", "--seed", "5"]
        texts = {self.ok(*args, "--threads", n) for n in ["1", "2", "4"]}
        self.assertEqual(len(texts), 1)
        self.assertNotEqual(texts, {self.ok(*args[:-1], "6")})

    def test_generate_json(self):
        j = json.loads(self.ok("generate", *self.model, "--token-ids", self.ids, "-n", "3", "--ignore-eos", "--json",
                               "--logprobs", "2", "--temperature", "0"))
        self.assertEqual(len(j["ids"]), 3)
        self.assertEqual(j["finish_reason"], "length")
        self.assertEqual(j["prompt_tokens"], 17)
        for id_, entry in zip(j["ids"], j["logprobs"]):
            self.assertEqual(entry["id"], id_)
            self.assertEqual(entry["top"][0]["id"], id_)
            self.assertEqual(len(entry["top"]), 2)
            self.assertLess(entry["logprob"], 0)

    def test_bias_bans_and_forces(self):
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "4", "--ignore-eos", "--temperature", "0"]
        self.assertEqual(self.ok(*args, "--logit-bias", "7=inf").split(), [b"7"] * 4)
        first = self.ok(*args).split()[0].decode()
        self.assertNotIn(first.encode(), self.ok(*args, "--logit-bias", first + "=-inf").split())
        self.fails(2, ["logit_bias", str(self.vocab_size)], *args, "--logit-bias", "%d=1" % self.vocab_size)

    def test_bad_token_ids(self):
        for content, words in [("1 two 3", "two"), ("1 %d" % self.vocab_size, [str(self.vocab_size), "vocabulary"]),
                               ("", ""), ("-1", "-1"), ("99999999999999999999", ""), (b"\xff\xfe", "")]:
            ids = self.file("bad.txt", content)
            with self.subTest(content=content):
                self.fails(1, words, "logits", *self.model, "--token-ids", ids, "-o", self.tmp / "x")
                self.fails(1, words, "generate", *self.model, "--token-ids", ids)
        self.fails(1, "/no/such/file", "generate", *self.model, "--token-ids", "/no/such/file")
        self.fails(1, "", "generate", *self.model, "--token-ids", self.tmp)

    def test_output_that_cannot_be_written_fails_at_once(self):
        self.fails(1, "/no/such", "logits", *self.model, "--token-ids", self.ids, "-o", "/no/such/folder/x")
        self.fails(1, "folder", "logits", *self.model, "--token-ids", self.ids, "-o", self.tmp)
        self.fails(1, "/no/such", "generate", *self.model, "--token-ids", self.ids, "--output-ids", "/no/such/x")

    @unittest.skipIf(SLOWNESS > 1, "a sanitizer needs memory for each thread, too")
    def test_threads_that_cannot_be_started_are_an_error(self):
        said = b""
        for megabytes in range(100, 500, 40):  # 64 threads have stacks of 512
            most = megabytes << 20
            result = run("generate", *self.model, "--token-ids", self.ids, "-n", "1", "--threads", "64",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
            self.assertIn(result.returncode, (0, 1), (megabytes, result.stderr))
            said += result.stderr
        self.assertIn(b"cannot start 64 threads; use fewer --threads", said)

    def test_pipes_and_links_are_not_replaced(self):
        fifo = self.tmp / "fifo"
        os.mkfifo(fifo)
        self.fails(1, "not a regular file", "logits", *self.model, "--token-ids", self.ids, "-o", fifo)
        self.assertTrue(fifo.is_fifo())
        target = self.file("target", "old")
        link = self.tmp / "link"
        link.symlink_to(target)
        self.ok("logits", *self.model, "--token-ids", self.ids, "-o", link)
        self.assertTrue(link.is_symlink())
        self.assertIn("logits", read_safetensors(target))
        self.ok("generate", *self.model, "--token-ids", self.ids, "-n", "1", "--ignore-eos", "--output-ids", link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(len(target.read_text().split()), 1)

    def test_context_limit(self):
        self.fails(1, ["17", "context", "16"], "generate", *self.model, "--token-ids", self.ids, "--ctx", "16")
        self.fails(1, ["17 tokens", "context of 16"], "logits", *self.model, "--token-ids", self.ids, "-o",
                   self.tmp / "x", "--ctx", "16", "--decode-from", "3")  # at once, not after decoding 16 tokens
        args = ["--token-ids", self.ids, "--ctx", "20", "-n", "-1", "--ignore-eos", "--temperature", "0"]
        result = run("generate", *self.model, *args)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stdout.split()), 4)  # three more positions, and the token after the last
        self.assertIn(b"context is full", result.stderr)

    def test_a_context_beyond_the_models_is_refused(self):
        own = json.loads(self.ok("inspect", *self.model, "--json"))["max_context"]
        ids = ["--token-ids", self.ids]
        for command in (["generate", *ids, "-n", "1"], ["logits", *ids, "-o", self.tmp / "x"], ["perplexity", *ids],
                        ["bench"], ["inspect"], ["inspect", "--plan"]):
            self.fails(1, [f"--ctx is {own + 1}", f"above the model's limit of {own} tokens"], *command, *self.model,
                       "--ctx", own + 1)
        self.assertFalse((self.tmp / "x").exists())
        self.ok("generate", *self.model, *ids, "-n", "1", "--ignore-eos", "--ctx", own)
        self.assertEqual(json.loads(self.ok("perplexity", *self.model, *ids, "--json", "--ctx", own))["windows"], 1)

    def test_what_only_ranks_do_is_refused_without_them(self):
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "1"]
        self.fails(2, "--device cpu names one", *args, "--check-ranks")
        self.fails(1, "--collectives events needs GPUs", *args, "--device", "cpu*2", "--collectives", "events")

    def test_perplexity_of_token_ids(self):
        args = ["perplexity", *self.model, "--token-ids", self.ids, "--json"]
        j = json.loads(self.ok(*args))
        self.assertEqual(j["tokens"], 17 if j["bos"] else 16)
        self.assertGreater(j["perplexity"], 1)
        cut = json.loads(self.ok(*args, "--ctx", "5", "--no-bos"))
        self.assertEqual(cut["windows"], 4)  # 5 + 5 + 5 + 2 tokens
        self.assertEqual(cut["tokens"], 4 + 4 + 4 + 1)
        self.assertEqual(cut, json.loads(self.ok(*args, "--ctx", "5", "--no-bos", "--prefill-chunk", "2")))

    def test_counts_of_experts_are_written_and_read(self):
        counts = self.tmp / "counts.json"
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "4", "--ignore-eos", "--temperature", "0"]
        text = self.ok(*args, "--count-experts", counts)
        j = json.loads(counts.read_text())
        config = json.loads((GOLDEN / "config.json").read_text())
        self.assertEqual(len(j["chosen"]), config["num_hidden_layers"])
        tokens = 17 + 3  # the last drawn token is not computed
        for layer in j["chosen"]:
            self.assertEqual(len(layer), config["n_routed_experts"])
            self.assertEqual(sum(layer), tokens * config["num_experts_per_tok"])
        self.assertEqual(self.ok(*args, "--expert-counts", counts), text)
        j["chosen"].pop()
        counts.write_text(json.dumps(j))
        self.fails(1, [str(counts), "experts in"], *args, "--expert-counts", counts)
        self.fails(1, [str(self.tmp / "none")], *args, "--expert-counts", self.tmp / "none")
        self.fails(1, ["cannot write"], *args, "--count-experts", self.tmp / "no/such/file")
        for text in ("", "[", "[" * 1000, "{}", " " * (3 << 20), "chosen"):
            counts.write_text(text)
            for command in (args, ["bench", *self.model]):
                self.fails(1, ["--expert-counts: ", str(counts), "--count-experts FILE"], *command, "--expert-counts", counts)

    def test_counts_of_experts_that_are_read_are_added_to(self):
        counts, link, same = self.tmp / "counts.json", self.tmp / "link", self.tmp / "same"
        args = ["generate", *self.model, "--token-ids", self.ids, "--ignore-eos", "--temperature", "0"]
        read = lambda: json.loads(counts.read_text())["chosen"]
        self.ok(*args, "-n", "4", "--count-experts", counts)
        once = read()
        link.symlink_to(counts)
        # A link is not followed to counts; another name of the same file is one.
        self.fails(1, [str(link), "is a link", "name the file itself"], *args, "-n", "4", "--expert-counts", link)
        same.hardlink_to(counts)
        self.ok(*args, "-n", "4", "--count-experts", counts, "--expert-counts", same)
        self.assertEqual(read(), [[2 * n for n in layer] for layer in once])
        self.ok(*args, "-n", "4", "--count-experts", link)
        self.assertEqual(read(), once, "replaced: nothing is read")
        self.assertTrue(link.is_symlink())

    def test_a_file_that_cannot_take_counts_is_refused_before_the_model_is_loaded(self):
        dangling, fifo, closed = self.tmp / "dangling", self.tmp / "fifo", self.tmp / "closed"
        dangling.symlink_to(self.tmp / "nothing")
        os.mkfifo(fifo)
        closed.mkdir()
        (closed / "counts").write_text("old")
        closed.chmod(0o555)
        for command in (["generate", "-p", "x"], ["bench"], ["serve", "--port", "0"]):
            command += self.model
            for path in (dangling, fifo, "/dev/full"):
                self.fails(1, [str(path), "not a regular file", "name a file"], *command, "--count-experts", path)
            self.fails(1, [f"folder {closed}"], *command, "--count-experts", closed / "counts",
                       preexec_fn=obey_modes_of_files)
        self.assertEqual((closed / "counts").read_text(), "old")

    def test_weights_that_memory_does_not_hold_are_warned_of(self):
        args = ["generate", *self.model, "--token-ids", self.ids, "-n", "4", "--ignore-eos", "--temperature", "0"]
        plain = run(*args)
        self.assertEqual(plain.returncode, 0)
        self.assertNotIn("warning", plain.stderr.decode())
        short = run(*args, "--host-memory", "1KiB")
        self.assertEqual((short.returncode, short.stdout), (0, plain.stdout))
        self.assertRegex(short.stderr.decode(), r"warning: .* do not fit in memory \(.*GB/s, measured now")

    def test_inspect_tells_of_other_gpus(self):
        j = json.loads(self.ok("inspect", "--synthetic", "flash", "--json"))
        cards = {(c["gigabytes"], c["count"]): c for c in j["cards"]}
        self.assertEqual(set(cards), {(g, n) for g in (24, 32, 48, 80, 96, 141, 192) for n in (1, 2, 4, 8)})
        for c in cards.values():
            self.assertTrue(c["fits"])
            self.assertEqual(c["host_bytes"] == 0, c["resident"] == 1)
        for n in (1, 2, 4, 8):  # more memory holds more experts
            shares = [cards[g, n]["resident"] for g in (24, 32, 48, 80, 96, 141, 192)]
            self.assertEqual(shares, sorted(shares))
        one = cards[141, 1]
        self.assertTrue(0.85 < one["resident"] < 0.95, one)  # 156 GB of experts
        self.assertGreater(cards[192, 1]["tokens_per_s_extrapolated"], 2 * one["tokens_per_s_extrapolated"])
        small = json.loads(self.ok("inspect", "--synthetic", "nano", "--json"))
        for c in small["cards"]:  # the latency of its kernels limits the rate, not their reads
            self.assertTrue(1000 < c["tokens_per_s_extrapolated"] < 1 / (0.061e-3 * small["num_layers"]), c)
        text = self.ok("inspect", "--synthetic", "flash", "--plan").decode()
        self.assertIn("other GPUs", text)
        self.assertIn("extrapolated", text)
        self.assertRegex(text, r"80 GB \(H100\)")
        self.assertIn("the rates need that much free host memory", text)
        short = self.ok("inspect", "--synthetic", "flash", "--plan", "--host-memory", "1G").decode()
        marks = {c for c in cards if re.search(rf"^ *{c[0]} GB \([^)]*\) +{c[1]} .* \* ", short, re.M)}
        self.assertEqual(marks, {c for c in cards if cards[c]["host_bytes"] > 1 << 30})
        self.assertTrue(marks)
        self.assertIn("*: more than 1.00 GiB", short)

    def test_inspect_tells_of_the_disk_and_of_limits(self):
        plain = self.ok("inspect", *self.model, "--plan").decode()
        self.assertIn("free on this machine", plain)
        self.assertNotIn("read from the disk when", plain)
        short = self.ok("inspect", *self.model, "--plan", "--host-memory", "1KiB").decode()
        self.assertRegex(short, r"limit of --host-memory +1\.00 KiB")
        self.assertNotIn("free on this machine", short)
        self.assertRegex(short, r"longest context that fits +any, weights are read from the disk")
        plan = json.loads(self.ok("inspect", *self.model, "--json", "--host-memory", "1KiB"))["plan"]
        self.assertGreater(plan["disk_bytes"], 0)
        self.assertRegex(short, r"read from the disk when tokens choose it\n +weights that do not fit in memory +\d")

    def test_inspect(self):
        out = self.ok("inspect", *self.model, "--plan").decode()
        for word in ["layers", "NVFP4", "KV per 1,000 tokens", "longest context", "forward pass", "sparse_attention"]:
            self.assertIn(word, out)
        j = json.loads(self.ok("inspect", *self.model, "--json"))
        self.assertEqual(j["vocab_size"], self.vocab_size)
        self.assertGreater(j["plan"]["kv_bytes_per_1k_tokens"], 0)
        self.assertTrue(j["ops"])
        self.assertEqual({op["steps"] for op in j["forward"]}, {"all"})

    def interrupt(self, *args):
        with subprocess.Popen([BINARY, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, bufsize=0) as p:
            if "-o" in args:
                wait_for(lambda: handles_interrupts(p))
                time.sleep(0.5)  # it computes now, or soon
                out = b""
            else:
                out = p.stdout.read(20)
            start = time.monotonic()
            p.send_signal(signal.SIGINT)
            rest, err = p.communicate(timeout=120 * SLOWNESS)
            self.took = time.monotonic() - start
            self.assertEqual(p.returncode, 130)
            self.assertEqual(err, b"")
            return out + rest

    def test_interrupt_ends_generation(self):
        def seconds():
            out = self.interrupt("generate", *self.model, "--token-ids", self.ids, "-n", "-1", "--ignore-eos")
            self.assertTrue(out.endswith(b"\n"))
            return self.took

        self.assertTrue(soon(seconds))

    def test_interrupt_leaves_no_file(self):
        long_ids = self.file("long.txt", "1 2 3 " * 10000)  # takes minutes
        target = self.tmp / "logits.safetensors"

        def seconds():
            self.interrupt("logits", *self.model, "--token-ids", long_ids, "-o", target, "--prefill-chunk", "16")
            self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["ids.txt", "long.txt"])
            return self.took

        self.assertTrue(soon(seconds))

    def test_little_address_space_is_an_error(self):
        loads = False
        for mib in range(32, 256, 8):  # the loader of programs, binding, the engine and the tokenizer each fail somewhere
            def limit():
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

            result = run("generate", *self.model, "--token-ids", self.ids, "-n", "1", "--threads", "1", preexec_fn=limit)
            if result.returncode in (-signal.SIGSEGV, 127) and not result.stderr.startswith(b"dsv4"):
                continue  # the system could not start the program
            self.assertIn(result.returncode, (0, 1), (mib, result.stderr))
            loads = loads or result.returncode == 0
        self.assertTrue(loads)

    def test_host_memory_reports_what_it_bounds(self):
        result = run("generate", *self.model, "--token-ids", self.ids, "-n", "1", "--host-memory", "1MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"note: --host-memory bounds the weights that loading reads into memory (1.00 MiB), not the process", result.stderr)
        self.assertNotIn(b"--host-memory", run("generate", *self.model, "--token-ids", self.ids, "-n", "1").stderr)

    def test_closed_pipe_ends_quietly(self):
        with subprocess.Popen([BINARY, "generate", *map(str, self.model), "--token-ids", str(self.ids), "-n", "2000",
                               "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as p:
            p.stdout.read(10)
            p.stdout.close()
            self.assertEqual(p.stderr.read(), b"")
            self.assertEqual(p.wait(120 * SLOWNESS), 141)

    def test_full_disk_is_reported(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "generate", *map(str, self.model), "--token-ids", str(self.ids), "-n", "3"],
                                    stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)


if __name__ == "__main__":
    main()
