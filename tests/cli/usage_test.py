#!/usr/bin/env python3
"""Help, version, flags and their errors: no model needed."""

import json
import os
import subprocess
import tempfile

from support import BINARY, COMMANDS, CliTestCase, main


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
            (["--activation-dtype", "int4"], ["--activation-dtype", "native, f32, fp8, nvfp4, int24, int16, int8"]),
            (["--device", "tpu"], ["--device", "cpu"]),
            (["--device", "cuda:0,1"], ["cuda:0,1", "cuda:N"]),
            (["--device", "cuda:"], ["cuda:N"]),
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

    def test_a_synthetic_checkpoint_is_written_inspected_and_never_overwritten(self):
        self.fails(2, ["--disk", "--synthetic"], "bench", "--disk", "x")
        with tempfile.TemporaryDirectory() as temp:
            folder = os.path.join(temp, "m")
            arguments = ["bench", "--synthetic", "nano", "--layers", "1", "--disk", folder, "--json"]
            line = json.loads(self.ok(*arguments))
            self.assertEqual(line["bytes"], sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)))
            self.assertEqual(json.loads(self.ok("inspect", "-m", folder, "--json"))["num_layers"], 1)
            self.fails(1, [folder, "there already"], *arguments)
            start = json.loads(self.ok("bench", "-m", folder, "--first-token", "--prompts", "8", "--json"))
            self.assertGreater(start["first_token_s"], start["loaded_s"])

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


if __name__ == "__main__":
    main()
