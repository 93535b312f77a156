#!/usr/bin/env python3
"""End-to-end tests of the dsv4 binary.

    cli_test.py BINARY [CLASS ...]

Exit status 77: every test of the chosen classes was skipped (their model is absent).
Text needs models/nano/tokenizer.json, Engine the checkpoint tests/golden/flash-nvfp4, Generate and Terminal both (they join them to
a model of random weights that reads and writes text), Nano the weights of models/nano.
"""

import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
GOLDEN = ROOT / "tests" / "golden" / "flash-nvfp4"
BINARY = ""
COMMANDS = ["generate", "chat", "logits", "perplexity", "tokenize", "detokenize", "encode", "parse", "inspect"]

HAS_TOKENIZER = (NANO / "tokenizer.json").exists()
HAS_NANO = HAS_TOKENIZER and any(NANO.glob("*.safetensors"))
HAS_GOLDEN = (GOLDEN / "config.json").exists()


def run(*args, stdin=b"", timeout=120, **kwargs):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True, timeout=timeout, **kwargs)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def make_text_model(folder):
    """The golden checkpoint with a tokenizer of its vocabulary size: the nano model's, cut to its first tokens."""
    folder.mkdir()
    for path in GOLDEN.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "tokenizer_config.json").symlink_to(NANO / "tokenizer_config.json")
    tokenizer = json.loads((NANO / "tokenizer.json").read_text())
    size = json.loads((GOLDEN / "config.json").read_text())["vocab_size"]
    vocab = tokenizer["model"]["vocab"]
    late = [t for t in tokenizer["added_tokens"] if t["id"] >= len(vocab)]
    num_kept = size - len(late)
    kept = {token: i for token, i in vocab.items() if i < num_kept}
    tokenizer["model"]["vocab"] = kept
    tokenizer["model"]["merges"] = [
        m for m in tokenizer["model"]["merges"] if all(t in kept for t in (*m.split(" "), m.replace(" ", "")))]
    for i, token in enumerate(late):
        token["id"] = num_kept + i
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


class CliTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = Path(folder.name)

    def file(self, name, content):
        path = self.tmp / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def ok(self, *args, **kwargs):
        result = run(*args, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout

    def fails(self, status, words, *args, **kwargs):
        """The exit status, exactly one line on stderr, its prefix, and what it names."""
        result = run(*args, **kwargs)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, status, message)
        self.assertTrue(message.startswith("dsv4: error: "), message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertTrue(message.endswith("\n"))
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, message)
        return result


class Usage(CliTestCase):
    def test_help_of_each_command_has_an_example(self):
        for command in COMMANDS:
            out = self.ok(command, "--help").decode()
            self.assertIn("Example:", out, command)
            self.assertIn("dsv4 " + command, out)
        out = self.ok("--help").decode()
        for command in COMMANDS:
            self.assertIn(command, out)

    def test_version_tells_commit_compiler_and_instruction_sets(self):
        out = self.ok("--version").decode()
        for word in ["dsv4 ", "commit: ", "compiler: ", "build type: ", "cpu: ", "compiled for: "]:
            self.assertIn(word, out)

    def test_no_command(self):
        self.fails(2, "no command")

    def test_unknown_command_suggests_the_nearest(self):
        self.fails(2, ["genrate", "did you mean generate?"], "genrate")
        self.fails(2, ["tokenise", "did you mean tokenize?"], "tokenise")
        result = self.fails(2, "xyzzy", "xyzzy")
        self.assertNotIn(b"did you mean", result.stderr)

    def test_unknown_flag_suggests_the_nearest(self):
        self.fails(2, ["--temprature", "did you mean --temperature?"], "generate", "--temprature", "1")
        self.fails(2, ["--topk=3", "did you mean --top-k?"], "generate", "--topk=3")
        self.fails(2, "--frobnicate", "--frobnicate")

    def test_unexpected_argument(self):
        self.fails(2, "hello", "generate", "-p", "x", "hello")

    def test_a_flag_without_its_value(self):
        self.fails(2, "--temperature", "generate", "--temperature")

    def test_values_out_of_range_name_flag_value_and_what_is_accepted(self):
        for args, words in [
            (["--temperature", "-1"], ["temperature", "-1"]),
            (["--temperature", "warm"], ["--temperature", "'warm'", "a number"]),
            (["--temperature", "nan"], ["temperature", "nan"]),
            (["--top-p", "0"], ["top_p"]),
            (["--top-p", "2"], ["top_p", "2"]),
            (["--top-k", "-3"], ["--top-k", "'-3'"]),
            (["--top-k", "1.5"], ["--top-k", "'1.5'"]),
            (["--min-p", "1.5"], ["min_p"]),
            (["--repeat-penalty", "0"], ["repeat_penalty"]),
            (["--presence-penalty", "3"], ["presence_penalty", "-2 to 2"]),
            (["--frequency-penalty", "-2.5"], ["frequency_penalty"]),
            (["--seed", "-1"], ["--seed", "'-1'"]),
            (["--logit-bias", "5"], ["--logit-bias", "ID=VALUE"]),
            (["--logit-bias", "-5=1"], ["logit_bias", "-5"]),
            (["--logit-bias", "5=1", "--logit-bias", "5=2"], ["logit_bias", "5", "twice"]),
            (["--stop", ""], ["--stop"]),
            (["-n", "-2"], ["--max-tokens", "'-2'"]),
            (["-n", "99999999999999999999"], ["--max-tokens"]),
            (["--threads", "-1"], ["--threads"]),
            (["--threads", "many"], ["--threads", "'many'"]),
            (["--prefill-chunk", "0"], ["--prefill-chunk"]),
            (["--ctx", "0"], ["--ctx"]),
            (["--kv-dtype", "int8"], ["--kv-dtype", "fp8, bf16, f32"]),
            (["--index-dtype", "fp8"], ["--index-dtype", "fp4, bf16, f32"]),
            (["--activation-dtype", "int8"], ["--activation-dtype", "native, f32, fp8, nvfp4"]),
            (["--device", "tpu"], ["--device", "cpu"]),
            (["--device", "cuda"], ["no CUDA"]),
            (["--device", "cuda:0,1"], ["no CUDA"]),
            (["--logprobs", "2"], ["--logprobs", "--json"]),
            (["--logprobs", "-1", "--json"], ["--logprobs"]),
            (["--prompt-file", "f"], ["--prompt-file", "one of"]),
            (["-m", ""], ["--model"]),
        ]:
            with self.subTest(args=args):
                self.fails(2, words, "generate", "-p", "x", *args)

    def test_missing_flags(self):
        self.fails(2, "--token-ids", "logits", "-o", "x")
        self.fails(2, "-o", "logits", "--token-ids", "x")
        self.fails(2, "-f", "perplexity")
        self.fails(2, "--encoding", "encode", "--encoding", "v5")

    def test_model_folder(self):
        for command in [["generate", "-p", "x"], ["chat"], ["tokenize"], ["detokenize"], ["inspect"]]:
            self.fails(1, ["no such folder", "/nowhere/at/all"], *command, "-m", "/nowhere/at/all")
        self.fails(1, "is not a folder", "inspect", "-m", __file__)
        self.fails(1, ["config.json"], "inspect", "-m", self.tmp)
        self.fails(1, ["tokenizer.json"], "tokenize", "-m", self.tmp)

    def test_help_on_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "--help"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1)


class Text(CliTestCase):
    """Needs only the tokenizer (and encode and parse nothing at all)."""

    def setUp(self):
        super().setUp()
        if not HAS_TOKENIZER:
            self.skipTest("models/nano/tokenizer.json is absent")

    def test_round_trip_through_pipes(self):
        for text in ["", "Hello, world!\n", "  two\n\n\tlines  ", "naïve 漢字 🙂 e\u0301 <think>", "\0\x01\x7f"]:
            ids = self.ok("tokenize", stdin=text)
            self.assertEqual(self.ok("detokenize", stdin=ids), text.encode(), repr(text))

    def test_jsonl_round_trip(self):
        texts = ["", "one", "two\nlines", 'quotes " and \\', "漢字 🙂", "\u2028"]
        lines = "".join(json.dumps(t) + "\n" for t in texts)
        ids = self.ok("tokenize", "--jsonl", stdin=lines)
        self.assertEqual(len(ids.splitlines()), len(texts))
        self.assertTrue(all(isinstance(json.loads(l), list) for l in ids.splitlines()))
        back = self.ok("detokenize", "--jsonl", stdin=ids)
        self.assertEqual([json.loads(l) for l in back.decode().split("\n")[:-1]], texts)

    def test_jsonl_answers_each_line_at_once(self):
        with subprocess.Popen([BINARY, "tokenize", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            for _ in range(3):
                p.stdin.write(b'"hello"\n')
                p.stdin.flush()
                self.assertTrue(json.loads(p.stdout.readline()))
            p.stdin.close()
            self.assertEqual(p.wait(10), 0)

    def test_bad_lines_name_their_number(self):
        self.fails(1, "line 2: ", "tokenize", "--jsonl", stdin='"a"\nnot json\n')
        self.fails(1, "line 3: ", "detokenize", "--jsonl", stdin="[]\n[1]\n[1, -1]\n")
        self.fails(1, "line 1: ", "detokenize", "--jsonl", stdin="[99999999]\n")
        self.fails(1, "line 1: ", "encode", "--jsonl", stdin="{}\n")
        self.fails(1, "line 2: ", "parse", "--jsonl", stdin='{"completion": "x"}\n\n')
        self.fails(1, "line 1: ", "tokenize", "--jsonl", stdin=b'"\xff"\n')

    def test_bad_ids(self):
        self.fails(1, "12x", "detokenize", stdin="1 2 12x")
        self.fails(1, "", "detokenize", stdin="1 2 99999999")
        self.fails(1, "", "detokenize", stdin="-1")

    def test_ids_may_be_separated_by_commas(self):
        ids = self.ok("tokenize", stdin="one two three").decode().split()
        self.assertEqual(self.ok("detokenize", stdin=", ".join(ids)), b"one two three")

    def test_invalid_utf8_is_read_as_replacement_characters_and_noted(self):
        result = run("tokenize", stdin=b"a\xff b")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"dsv4: note: ", result.stderr)
        self.assertIn(b"byte 1", result.stderr)
        self.assertEqual(self.ok("detokenize", stdin=result.stdout).decode(), "a\ufffd b")

    def test_added_tokens_can_be_read_as_text(self):
        special = self.ok("tokenize", stdin="<think>").split()
        plain = self.ok("tokenize", "--no-special", stdin="<think>").split()
        self.assertEqual(len(special), 1)
        self.assertGreater(len(plain), 1)
        self.assertEqual(self.ok("detokenize", stdin=b" ".join(plain)), b"<think>")

    def test_encode_and_parse(self):
        request = {"messages": [{"role": "user", "content": "Hi"}], "thinking": True}
        prompt = self.ok("encode", stdin=json.dumps(request)).decode()
        self.assertTrue(prompt.endswith("<think>"), prompt)
        line = self.ok("encode", "--jsonl", stdin=json.dumps(request) + "\n").decode()
        self.assertEqual(json.loads(line), prompt)
        message = json.loads(self.ok("parse", "--thinking", stdin="Two.</think>Four."))
        self.assertEqual((message["reasoning_content"], message["content"]), ("Two.", "Four."))
        line = json.dumps({"completion": "Two.</think>Four.", "thinking": True}) + "\n"
        self.assertEqual(json.loads(self.ok("parse", "--jsonl", stdin=line)), message)
        self.fails(1, "", "encode", stdin="not json")
        self.fails(1, "messages", "encode", stdin="{}")

    def test_closed_pipe_ends_quietly(self):
        many = "".join(json.dumps("line %d" % i) + "\n" for i in range(50000))
        for command in [["tokenize", "--jsonl"]]:
            source = self.file("many.jsonl", many)
            with open(source, "rb") as f, subprocess.Popen(
                [BINARY, *command], stdin=f, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as p:
                self.assertEqual(len(p.stdout.read(10)), 10)
                p.stdout.close()
                self.assertEqual(p.stderr.read(), b"")
                self.assertEqual(p.wait(10), 141)

    def test_full_disk_is_reported(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "tokenize"], input=b"x", stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)

    def test_interrupt_while_waiting_for_input(self):
        with subprocess.Popen([BINARY, "tokenize"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            time.sleep(0.5)
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(5), 130)
            self.assertEqual(p.stderr.read(), b"")


class Engine(CliTestCase):
    """A checkpoint without tokenizer: everything that works on token ids."""

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
        args = ["--token-ids", self.ids, "--ctx", "20", "-n", "-1", "--ignore-eos", "--temperature", "0"]
        result = run("generate", *self.model, *args)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stdout.split()), 4)  # three more positions, and the token after the last
        self.assertIn(b"context is full", result.stderr)

    def test_perplexity_of_token_ids(self):
        args = ["perplexity", *self.model, "--token-ids", self.ids, "--json"]
        j = json.loads(self.ok(*args))
        self.assertEqual(j["tokens"], 17 if j["bos"] else 16)
        self.assertGreater(j["perplexity"], 1)
        cut = json.loads(self.ok(*args, "--ctx", "5", "--no-bos"))
        self.assertEqual(cut["windows"], 4)  # 5 + 5 + 5 + 2 tokens
        self.assertEqual(cut["tokens"], 4 + 4 + 4 + 1)
        self.assertEqual(cut, json.loads(self.ok(*args, "--ctx", "5", "--no-bos", "--prefill-chunk", "2")))

    def test_inspect(self):
        out = self.ok("inspect", *self.model, "--plan").decode()
        for word in ["layers", "NVFP4", "KV per 1,000 tokens", "longest context"]:
            self.assertIn(word, out)
        j = json.loads(self.ok("inspect", *self.model, "--json"))
        self.assertEqual(j["vocab_size"], self.vocab_size)
        self.assertGreater(j["plan"]["kv_bytes_per_1k_tokens"], 0)
        self.assertTrue(j["ops"])

    def interrupt(self, *args):
        with subprocess.Popen([BINARY, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as p:
            if "-o" in args:
                time.sleep(0.5)
                out = b""
            else:
                out = p.stdout.read(20)
            start = time.monotonic()
            p.send_signal(signal.SIGINT)
            rest, err = p.communicate(timeout=20)
            self.assertLess(time.monotonic() - start, 1)
            self.assertEqual(p.returncode, 130)
            self.assertEqual(err, b"")
            return out + rest

    def test_interrupt_ends_generation(self):
        out = self.interrupt("generate", *self.model, "--token-ids", self.ids, "-n", "-1", "--ignore-eos")
        self.assertTrue(out.endswith(b"\n"))

    def test_interrupt_leaves_no_file(self):
        long_ids = self.file("long.txt", "1 2 3 " * 3000)
        target = self.tmp / "logits.safetensors"
        self.interrupt("logits", *self.model, "--token-ids", long_ids, "-o", target, "--prefill-chunk", "16")
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["ids.txt", "long.txt"])

    def test_closed_pipe_ends_quietly(self):
        with subprocess.Popen([BINARY, "generate", *map(str, self.model), "--token-ids", str(self.ids), "-n", "2000",
                               "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            p.stdout.read(10)
            p.stdout.close()
            self.assertEqual(p.stderr.read(), b"")
            self.assertEqual(p.wait(20), 141)

    def test_full_disk_is_reported(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "generate", *map(str, self.model), "--token-ids", str(self.ids), "-n", "3"],
                                    stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)


class Generate(CliTestCase):
    """Text in, text out, with random weights: the text is noise, broken characters included."""

    def setUp(self):
        super().setUp()
        if not (HAS_GOLDEN and HAS_TOKENIZER):
            self.skipTest("tests/golden/flash-nvfp4 or models/nano/tokenizer.json is absent")
        self.model = ["-m", make_text_model(self.tmp / "model")]

    def generate(self, *args, **kwargs):
        return self.ok("generate", *self.model, "-p", "In the beginning", "-n", "24", *args, **kwargs)

    def test_greedy_is_deterministic(self):
        text = self.generate("--temperature", "0")
        self.assertTrue(text.strip())
        self.assertEqual(text, self.generate("--temperature", "0", "--threads", "1"))
        self.assertEqual(text, self.generate("--temperature", "0", "--prefill-chunk", "1"))

    def test_seeds(self):
        texts = {self.generate("--seed", "3", "--threads", n) for n in ["1", "2", "4"]}
        self.assertEqual(len(texts), 1)
        self.assertNotEqual(texts, {self.generate("--seed", "4")})

    def test_prompt_sources_agree(self):
        text = self.generate("--temperature", "0")
        path = self.file("prompt.txt", "In the beginning")
        for args, stdin in [(["--prompt-file", path], b""), ([], b"In the beginning"), (["--prompt-file", "-"], b"In the beginning")]:
            self.assertEqual(self.ok("generate", *self.model, "-n", "24", "--temperature", "0", *args, stdin=stdin), text)

    def test_empty_prompt(self):
        self.ok("generate", *self.model, "-p", "", "-n", "4")
        self.ok("generate", *self.model, "-n", "4", stdin=b"")
        self.fails(1, "empty", "generate", *self.model, "-p", "", "-n", "4", "--no-bos")

    def test_stop_strings_split_over_tokens_are_not_printed(self):
        j = json.loads(self.generate("--temperature", "0", "--json"))
        text = j["text"]
        for begin in range(2, min(len(text) - 8, 40), 5):
            stop = text[begin : begin + 7]
            if "\0" in stop:  # cannot be an argument
                continue
            expected = text[: text.index(stop)]
            out = json.loads(self.generate("--temperature", "0", "--json", "--stop", stop, "--stop", "\x07never"))
            self.assertEqual((out["text"], out["finish_reason"]), (expected, "stop"))
            streamed = self.generate("--temperature", "0", "--stop", stop).decode()
            self.assertEqual(streamed.rstrip("\n"), expected.rstrip("\n"))

    def test_streamed_text_is_the_json_text(self):
        text = json.loads(self.generate("--temperature", "0", "--json"))["text"]
        self.assertEqual(self.generate("--temperature", "0").decode().rstrip("\n"), text.rstrip("\n"))

    def test_timing_summary_is_on_stderr(self):
        result = run("generate", *self.model, "-p", "x", "-n", "2")
        self.assertEqual(result.stderr.count(b"\n"), 1)
        for word in [b"load ", b"prompt ", b"generated ", b"tok/s", b"first token"]:
            self.assertIn(word, result.stderr)

    def test_invalid_utf8_prompt(self):
        result = run("generate", *self.model, "-n", "2", stdin=b"a\xffb")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"dsv4: note: the prompt is not valid UTF-8", result.stderr)
        result.stdout.decode()

    def test_perplexity(self):
        text = self.file("t.txt", "In the beginning God created the heaven and the earth.\n" * 8)
        j = json.loads(self.ok("perplexity", *self.model, "-f", text, "--json"))
        self.assertGreater(j["perplexity"], 1)
        more = json.loads(self.ok("perplexity", *self.model, "-f", text, "--json", "--ctx", "16"))
        self.assertEqual(more["tokens"], j["tokens"])
        self.assertGreater(more["windows"], j["windows"])
        self.fails(1, "too little", "perplexity", *self.model, "-f", self.file("empty.txt", ""))

    def test_chat_through_pipes(self):
        result = run("chat", *self.model, "--temperature", "0", "-n", "16", stdin="Hello\n/help\nWhat is 2+2?\n/reset\n\n/quit\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"/reset", result.stderr)
        self.assertNotIn(b"\033", result.stdout)
        again = run("chat", *self.model, "--temperature", "0", "-n", "16", stdin="Hello\nWhat is 2+2?")
        self.assertEqual(again.stdout, result.stdout)

    def test_chat_remembers(self):
        # The second prompt goes on from the first: one conversation equals the same turns replayed after /reset.
        one = run("chat", *self.model, "--temperature", "0", "-n", "8", stdin="Hello\nAnd now?\n").stdout
        two = run("chat", *self.model, "--temperature", "0", "-n", "8", stdin="Hello\n/reset\nHello\nAnd now?\n").stdout
        self.assertTrue(two.endswith(one))

    def test_chat_options(self):
        self.ok("chat", *self.model, "-n", "4", "--thinking", "--system", "Be brief.", stdin="Hi\n/think\nHi\n/system You are Bob.\nHi\n")
        self.fails(2, "effort", "chat", *self.model, "--effort", "low", "--encoding", "v4", stdin="Hi\n")
        self.fails(1, "tools", "chat", *self.model, "--tools", self.file("tools.json", "{}"), stdin="Hi\n")

    def test_interrupt_prints_what_there_is(self):
        with subprocess.Popen([BINARY, "generate", *map(str, self.model), "-p", "In the beginning", "-n", "-1", "--ignore-eos"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            out = p.stdout.read(10)
            start = time.monotonic()
            p.send_signal(signal.SIGINT)
            out += p.communicate(timeout=20)[0]
            self.assertLess(time.monotonic() - start, 1)
            self.assertEqual(p.returncode, 130)
            self.assertTrue(out.endswith(b"\n"))
            out.decode()


class Nano(CliTestCase):
    """The bundled model, found without -m."""

    def setUp(self):
        super().setUp()
        if not HAS_NANO:
            self.skipTest("the weights of models/nano are absent")

    def test_is_the_default(self):
        args = ["generate", "-p", "In the beginning", "-n", "24", "--temperature", "0"]
        text = self.ok(*args)
        self.assertTrue(text.strip())
        self.assertEqual(text, self.ok(*args, "-m", NANO, "--threads", "1", "--prefill-chunk", "1"))

    def test_predicts_text(self):
        text = self.file("t.txt", "In the beginning God created the heaven and the earth.\n" * 8)
        j = json.loads(self.ok("perplexity", "-f", text, "--json"))
        self.assertLess(j["perplexity"], 100)
        short = json.loads(self.ok("perplexity", "-f", text, "--json", "--ctx", "16"))
        self.assertEqual(short["tokens"], j["tokens"])
        self.assertGreater(short["perplexity"], j["perplexity"])

    def test_chat(self):
        self.assertTrue(self.ok("chat", "--temperature", "0", "-n", "16", stdin="What is 2+2?\n").strip())


class Terminal(CliTestCase):
    """What a person at a terminal sees, through a pseudo-terminal."""

    def setUp(self):
        super().setUp()
        if not (HAS_GOLDEN and HAS_TOKENIZER):
            self.skipTest("tests/golden/flash-nvfp4 or models/nano/tokenizer.json is absent")
        self.model = ["-m", make_text_model(self.tmp / "model")]

    def start(self, *args):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.execv(BINARY, [BINARY, *map(str, args)])
        self.addCleanup(os.close, self.terminal)
        self.seen = b""
        return pid

    def wait_for(self, text, timeout=20):
        end = time.monotonic() + timeout
        while text not in self.seen:
            self.assertLess(time.monotonic(), end, self.seen)
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 4096)
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def send(self, text):
        os.write(self.terminal, text)

    def ends(self, pid, status):
        start = time.monotonic()
        while time.monotonic() < start + 5:
            try:  # a full terminal would block the process
                if select.select([self.terminal], [], [], 0.05)[0]:
                    os.read(self.terminal, 4096)
            except OSError:
                pass
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                self.assertEqual(os.waitstatus_to_exitcode(code), status)
                return
        os.kill(pid, signal.SIGKILL)
        self.fail("still running")

    def test_ctrl_c_stops_a_reply_and_ctrl_d_ends(self):
        pid = self.start("chat", *self.model, "--thinking", "--logit-bias", "1=-inf")  # EOS is banned: it never ends
        self.wait_for(b"> ")
        self.send(b"Hello\n")
        self.wait_for(b"\x1b[2m")  # reasoning is dim
        self.send(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.send(b"/think\n")
        self.wait_for(b"reasoning is off")
        self.wait_for(b"> ")
        self.send(b"two\\\n")
        self.wait_for(b". ")
        self.send(b"lines\n")
        self.wait_for(b"lines\r\n")
        time.sleep(0.5)  # the reply has begun, and without EOS it goes on
        self.send(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.send(b"\x04")
        self.ends(pid, 0)

    def test_ctrl_c_at_the_prompt_ends(self):
        pid = self.start("chat", *self.model)
        self.wait_for(b"> ")
        self.send(b"\x03")
        self.ends(pid, 130)

    def test_generate_without_a_prompt_does_not_wait(self):
        pid = self.start("generate", *self.model)
        self.wait_for(b"dsv4: error: no prompt")
        self.ends(pid, 2)

    def test_progress_of_a_long_prompt(self):
        ids = self.file("ids.txt", "1 2 3 " * 4000)
        pid = self.start("generate", *self.model, "--token-ids", ids, "-n", "1", "--prefill-chunk", "64")
        self.wait_for(b"reading the prompt [")
        self.send(b"\x03")
        self.ends(pid, 130)


def main():
    global BINARY
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BINARY = os.path.abspath(sys.argv[1])
    os.environ.pop("LC_ALL", None)
    classes = sys.argv[2:] or ["Usage", "Text", "Engine", "Generate", "Terminal", "Nano"]
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.loadTestsFromName(name, sys.modules[__name__]) for name in classes)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        print("skipped: " + result.skipped[0][1])
        sys.exit(77)


if __name__ == "__main__":
    main()
