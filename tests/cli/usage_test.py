#!/usr/bin/env python3
"""Help, version, completions, flags and their errors."""

import os
import re
import shutil
import subprocess
import tempfile

from support import BENCH_PARTS, BINARY, COMMANDS, NANO, CliTestCase, main, run


class Usage(CliTestCase):
    def test_help_of_each_command_has_an_example(self):
        for command in COMMANDS:
            out = self.ok(command, "--help").decode()
            self.assertIn("Example:", out, command)
            self.assertIn("dsv4 " + command, out)
        out = self.ok("--help").decode()
        for command in COMMANDS:
            self.assertIn(command, out)

    def test_help_may_be_asked_for_as_a_command(self):
        self.assertEqual(self.ok("help"), self.ok("--help"))
        self.assertEqual(self.ok("help", "chat"), self.ok("chat", "--help"))

    def test_help_groups_flags_and_begins_with_the_commands_own(self):
        out = self.ok("generate", "--help").decode()
        titles = re.findall(r"^(\S.*):$", out, re.MULTILINE)
        self.assertEqual(titles, ["Options", "Model and machine", "Models larger than the memory", "Precision and kernels", "Several ranks",
                                  "Drafts", "Sampling and stops", "Example"])
        blocks = dict(zip(titles, re.split(r"^\S.*:$", out, flags=re.MULTILINE)[1:]))
        for title, flag in [("Options", "--prompt-file"), ("Model and machine", "--threads"), ("Drafts", "--speculate"),
                            ("Sampling and stops", "--top-p")]:
            self.assertRegex(blocks[title], "(?m)^ .*%s " % flag)
        out = self.ok("serve", "--help").decode()
        self.assertLess(out.index("--port"), out.index("--threads"))

    def test_version_tells_commit_compiler_and_instruction_sets(self):
        out = self.ok("--version").decode()
        self.assertEqual(self.ok("-V").decode(), out)
        for word in ["dsv4 ", "commit: ", "compiler: ", "build type: ", "cpu: ", "compiled for: "]:
            self.assertIn(word, out)

    def test_no_command(self):
        result = self.fails(2, ["no command", "dsv4 generate", "dsv4 --help"])  # a script gets one line
        self.assertEqual(result.stdout, b"")

    def test_unknown_command_suggests_the_nearest(self):
        self.fails(2, ["genrate", "did you mean generate?"], "genrate")
        self.fails(2, ["tokenise", "did you mean tokenize?"], "tokenise")
        result = self.fails(2, "xyzzy", "xyzzy")
        self.assertNotIn(b"did you mean", result.stderr)
        self.fails(2, "did you mean --version?", "version")

    def test_commands_of_other_programs_lead_to_ours(self):
        for word in ["pull", "download", "list"]:
            self.fails(2, [f"'{word}'", "hf", "docs/models.md"], word, "some/model")
        self.fails(2, ["'run'", "did you mean chat?"], "run")
        self.fails(2, ["'convert'", "without conversion"], "convert")
        self.fails(2, ["'-v'", "did you mean --version?"], "-v")
        self.fails(2, ["'models/none'", "a model's folder follows -m"], "inspect", "models/none")

    def test_unknown_flag_suggests_the_nearest(self):
        self.fails(2, ["--temprature", "did you mean --temperature?"], "generate", "--temprature", "1")
        self.fails(2, ["--topk=3", "did you mean --top-k?"], "generate", "--topk=3")
        self.fails(2, "--frobnicate", "--frobnicate")
        self.fails(2, ["--temp", "did you mean --temperature?"], "generate", "--temp", "1")
        result = self.fails(2, "--version", "generate", "--version")
        self.assertNotIn(b"did you mean", result.stderr)  # no name is similar

    def test_flags_of_other_engines_lead_to_ours(self):
        for command, theirs, ours in [("serve", "--max-model-len", "--ctx"), ("serve", "--tensor-parallel-size", "--device"),
                                      ("serve", "--max-num-seqs", "--max-concurrent"), ("generate", "--n-predict", "--max-tokens"),
                                      ("chat", "-c", "--ctx"), ("bench", "--mem-fraction-static", "--gpu-memory")]:
            self.fails(2, [f"'{theirs}'", f"did you mean {ours}?"], command, theirs, "1")
        result = self.fails(2, "--max-num-seqs", "generate", "--max-num-seqs", "1")  # generate has no such flag
        self.assertNotIn(b"--max-concurrent", result.stderr)

    def test_unexpected_argument(self):
        self.fails(2, ["'hello'", "a prompt follows -p"], "generate", "-p", "x", "hello")
        self.fails(2, [f"'{self.tmp}'", "a model's folder follows -m"], "inspect", self.tmp)
        self.fails(2, ["'some/model'", "a model's folder follows -m"], "serve", "some/model")
        self.fails(2, "'hello' (see dsv4 tokenize --help)", "tokenize", "hello")

    def test_a_flag_without_its_value(self):
        self.fails(2, "--temperature needs a value; see", "generate", "--temperature")
        self.fails(2, "--max-tokens needs a value; see", "generate", "-n")

    def test_renamed_flags_work_and_print_a_note_once(self):
        new = self.ok("generate", "-p", "x", "-n", "1", "--temperature", "0", "--collectives", "auto", "--collective-timeout", "5")
        for old, now, value in [("--exchange", "--collectives", "auto"), ("--exchange-timeout", "--collective-timeout", "5")]:
            result = run("generate", "-p", "x", "-n", "1", "--temperature", "0", old, value, old, value)
            self.assertEqual((result.returncode, result.stdout), (0, new))
            note = f"dsv4: note: {old} is now {now}; the old flag works until 0.3\n".encode()
            self.assertEqual(result.stderr.count(note), 1, result.stderr)
        self.fails(2, ["--collectives is 'x'", "auto, events"], "chat", "--exchange", "x")
        self.fails(2, ["--prefix-interval is '-1'"], "serve", "--cut-interval", "-1")
        result = run("serve", "--cut-interval", "64", "--host", "192.0.2.1")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"--cut-interval is now --prefix-interval", result.stderr)

    def test_renamed_flags_are_in_no_help_and_no_completion(self):
        shown = b"".join(self.ok(*words, "--help") for words in [["serve"], ["bench"], ["generate"], ["bench", "linears"]])
        shown += b"".join(self.ok("completions", shell) for shell in ["bash", "zsh", "fish"])
        for flag in [b"--exchange", b"--exchange-timeout", b"--cut-interval", b"--draft-rows", b"--first-token", b"--disk-overflow"]:
            self.assertNotRegex(shown, flag + rb"\b")
        self.assertIn(b"--collectives", shown)
        result = self.fails(2, "--exchang", "generate", "--exchang", "auto")
        self.assertNotIn(b"did you mean --exchange", result.stderr)

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
            (["--pin", "yes"], ["--pin", "auto, on, off"]),
            (["--prefill-chunk", "0"], ["--prefill-chunk"]),
            (["--ctx", "0"], ["--ctx"]),
            (["--kv-dtype", "int8"], ["--kv-dtype", "fp8, bf16, f32"]),
            (["--index-dtype", "fp8"], ["--index-dtype", "fp4, bf16, f32"]),
            (["--activation-dtype", "int4"], ["--activation-dtype", "native, f32, fp8, nvfp4, int24, int16, int8"]),
            (["--device", "tpu"], ["--device", "cpu"]),
            (["--device", "cuda:0;1"], ["cuda:0;1", "cuda:N", "cuda:0,1"]),
            (["--device", "cuda:"], ["cuda:N"]),
            (["--device", "cpu*"], ["cpu*", "cpu*N"]),
            (["--device", "cpu*x"], ["cpu*x", "cpu*N"]),
            (["--logprobs", "2"], ["--logprobs", "--json"]),
            (["--logprobs", "-1", "--json"], ["--logprobs"]),
            (["--draft-log", "f"], ["--draft-log", "--speculate"]),
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

    def test_the_memory_of_a_gpu_is_no_matter_of_the_cpu(self):
        for command in (["generate", "-p", "x"], ["inspect"], ["bench", "--synthetic", "nano"]):
            self.fails(2, ["--gpu-memory", "--device cuda"], *command, "--gpu-memory", "4GiB")
            self.fails(2, ["--expert-slots", "--device cuda"], *command, "--expert-slots", "2")
            self.fails(2, ["--expert-compute", "--device cuda"], *command, "--expert-compute", "cpu")
        self.fails(2, ["--expert-compute", "'both'", "gpu, cpu, auto"], "bench", "--expert-compute", "both")
        self.fails(1, ["cuda:0,1", "--expert-compute"],
                   "bench", "--synthetic", "nano", "--device", "cuda:0,1", "--expert-compute", "auto")
        self.fails(2, ["--gpu-memory", "'much'"], "generate", "-p", "x", "--gpu-memory", "much")
        for bytes in (2**63 - 1, 2**50 + 1, "1025TiB"):
            self.fails(2, ["--kv-room", f"'{bytes}'", "up to 1024TiB"], "generate", "-p", "x", "--kv-room", bytes)
        self.ok("generate", "-p", "x", "-n", "1", "--kv-room", "1024TiB")
        self.fails(2, ["--routing", "--synthetic"], "bench", "--routing", "zipf")

    def test_model_folder(self):
        for command in [["generate", "-p", "x"], ["chat"], ["tokenize"], ["detokenize"], ["inspect"]]:
            self.fails(1, ["no such folder", "/nowhere/at/all"], *command, "-m", "/nowhere/at/all")
        self.fails(1, "is not a folder", "inspect", "-m", __file__)
        self.fails(1, ["config.json"], "inspect", "-m", self.tmp)
        self.fails(1, ["tokenizer.json"], "tokenize", "-m", self.tmp)
        for name, command in [("config.json", ["inspect"]), ("tokenizer.json", ["tokenize"])]:
            (self.tmp / name).symlink_to(self.tmp / name)
            self.fails(1, [name, "Too many levels of symbolic links"], *command, "-m", self.tmp)

    def test_a_checkpoint_whose_files_were_not_fetched(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 20910764\n" % ("4d" * 32)
        for name in ["model.safetensors", "tokenizer.json"]:
            with tempfile.TemporaryDirectory() as folder:
                for path in NANO.glob("*.json"):
                    shutil.copy(path, folder)
                shutil.copy(NANO / "model.safetensors", folder)
                with open(os.path.join(folder, name), "w") as file:
                    file.write(pointer)
                self.fails(1, [name, "Git LFS pointer", "git lfs pull"], "generate", "-m", folder, "-p", "x", "-n", "1")

    def completions(self, script, *words):
        """Returns the completions of bash for the last word."""
        command = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsv4; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-euc", command, "bash", script, "dsv4", *words], capture_output=True, cwd=self.tmp)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode().split("\n")[:-1]

    def test_bash_completes(self):
        script = self.file("dsv4.bash", self.ok("completions", "bash"))
        self.file("a file.txt", "")
        (self.tmp / "a folder").mkdir()
        self.assertEqual(set(self.completions(script, "")), {*COMMANDS, "--help", "--version"})
        self.assertEqual(self.completions(script, "perp"), ["perplexity"])
        self.assertEqual(self.completions(script, "chat", "--thin"), ["--thinking"])
        self.assertEqual(self.completions(script, "chat", "--kv-dtype", ""), ["fp8", "bf16", "f32"])
        self.assertEqual(self.completions(script, "serve", "--encoding", ""), ["v4", "v4-0731"])
        self.assertEqual(self.completions(script, "generate", "-m", "a"), ["a folder"])
        self.assertEqual(set(self.completions(script, "generate", "--prompt-file", "a")), {"a file.txt", "a folder"})
        self.assertEqual(self.completions(script, "generate", "--temperature", ""), [""])
        self.assertEqual(self.completions(script, "completions", "z"), ["zsh"])
        self.assertEqual(self.completions(script, "bench", "pre"), ["prefill"])
        self.assertEqual(self.completions(script, "bench", "drafts", "--acc"), ["--acceptance"])
        self.assertEqual(self.completions(script, "bench", "--acc"), [""])
        self.assertEqual(self.completions(script, "bench", "linears", "--routing", ""), ["uniform", "zipf"])

    def test_completions_have_every_flag(self):
        for shell in ["bash", "zsh", "fish"]:
            script = self.ok("completions", shell).decode()
            for command in [*COMMANDS, *("bench " + part for part in BENCH_PARTS)]:
                flags = re.findall(r"^ +(?:-\w,)?--([a-z0-9-]+)", self.ok(*command.split(), "--help").decode(), re.MULTILINE)
                label = "'%s'" % command if " " in command else command
                if shell == "bash":
                    words = re.search(r"^    %s\) words '(.*)' ;;$" % label, script, re.MULTILINE).group(1).split()
                elif shell == "zsh":
                    block = re.search(r"^    %s\)\n(.*?);;$" % label, script, re.MULTILINE | re.DOTALL).group(1)
                    words = re.findall(r"'\*(-[a-zA-Z0-9-]+)\[", block)
                else:
                    seen = "; and ".join("__fish_seen_subcommand_from " + word for word in command.split())
                    end = "; and not" if command == "bench" else "'"
                    lines = [x for x in script.splitlines() if f"-n '{seen}{end}" in x]
                    words = ["--" + x for line in lines for x in re.findall(r" -l ([a-z0-9-]+)", line)]
                self.assertEqual({"--" + flag for flag in flags} - set(words), set(), (shell, command))
                self.assertGreater(len(words), 0)

    def test_other_shells_read_their_completions(self):
        for shell in ["zsh", "fish"]:
            if not shutil.which(shell):
                continue
            script = self.file("dsv4." + shell, self.ok("completions", shell))
            self.assertEqual(subprocess.run([shell, "-n", script], capture_output=True, timeout=60).stderr, b"", shell)
        if shutil.which("fish"):
            offered = subprocess.run(["fish", "-c", "source %s; complete -C 'dsv4 chat --kv-dtype '" % script],
                                     capture_output=True, timeout=60, cwd=self.tmp).stdout.decode().split("\n")
            self.assertEqual([x.split("\t")[0] for x in offered if x], ["bf16", "f32", "fp8"])

    def test_completions_of_no_shell(self):
        self.fails(2, ["completions", "bash, zsh, fish"], "completions")
        self.fails(2, ["completions", "bash, zsh, fish"], "completions", "tcsh")

    def test_help_on_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "--help"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1)


if __name__ == "__main__":
    main()
