#!/usr/bin/env python3
"""generate, chat and perplexity: with random weights, and with models/nano if its weights exist."""

import json
import resource
import signal
import subprocess
import time
from pathlib import Path

from support import BINARY, CliTestCase, HAS_GOLDEN, HAS_NANO, HAS_TOKENIZER, NANO, SLOWNESS, main, make_text_model, run, soon


class Generate(CliTestCase):
    """Random weights: the text is noise, with broken characters."""

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

    def test_drafts_change_nothing(self):
        log = self.tmp / "drafts.jsonl"
        args = ["generate", *self.model, "-p", "one two three four. " * 6, "-n", "40", "--ignore-eos"]
        proposed = 0
        repeats = ["--logit-bias", "42=30"]  # random weights do not repeat themselves
        for sampling in [["--temperature", "0", *repeats], ["--seed", "5", *repeats], ["--seed", "6", "--repeat-penalty", "1.1"]]:
            text = self.ok(*args, *sampling)
            self.assertEqual(self.ok(*args, *sampling, "--speculate", "lookup"), text)
            self.assertEqual(self.ok(*args, *sampling, "--speculate", "auto", "--draft-threshold", "0", "--draft-tokens", "4",
                                     "--draft-log", log), text)
            for line in log.read_text().splitlines():
                step = json.loads(line)
                self.assertEqual(set(step), {"p", "proposed", "accepted"})
                self.assertTrue(0 <= step["accepted"] <= len(step["proposed"]) <= 4)
                proposed += len(step["proposed"])
            steps = [json.loads(line) for line in log.read_text().splitlines()]
            # Every step has a line: its drafts that were right, and one more token.
            self.assertEqual(steps[-1]["p"] + steps[-1]["accepted"] + 1 - steps[0]["p"],
                             sum(step["accepted"] + 1 for step in steps))
            for step, after in zip(steps, steps[1:]):
                self.assertEqual(step["p"] + step["accepted"] + 1, after["p"])
        self.assertGreater(proposed, 0)
        self.assertIn(b"--speculate auto: drafts by lookup", run(*args, "--speculate", "auto").stderr)
        self.fails(1, "has no MTP module", "generate", *self.model, "-p", "x", "--speculate", "mtp")
        self.fails(2, "--speculate", "generate", *self.model, "-p", "x", "--speculate", "maybe")
        self.fails(2, "--draft-tokens", "generate", *self.model, "-p", "x", "--draft-tokens", "8")
        self.fails(2, "--draft-threshold", "generate", *self.model, "-p", "x", "--draft-threshold", "1.5")

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
            self.assertEqual(streamed, expected)

    def test_stop_ids_end_like_eos(self):
        ids = json.loads(self.generate("--temperature", "0", "--json"))["ids"]
        stop = next(i for i in range(3, len(ids)) if ids[i] not in ids[:i])
        for extra in ((), ("--ignore-eos",)):
            out = json.loads(self.generate("--temperature", "0", "--json", "--stop-id", str(ids[stop]), *extra))
            self.assertEqual((out["ids"], out["finish_reason"]), (ids[:stop], "stop"))
        self.fails(2, "--stop-id", "generate", *self.model, "-p", "x", "--stop-id", "x")
        self.fails(1, "--stop-id is '99999999'; accepted:", "generate", *self.model, "-p", "x", "--stop-id", "99999999")
        self.fails(1, "--stop-id is '99999999'; accepted:", "chat", *self.model, "--stop-id", "99999999")

    def test_a_chat_beyond_the_models_context_is_refused(self):
        self.fails(1, ["--ctx is 1048577", "model's limit of 1048576 tokens"], "chat", *self.model, "--ctx", 1048577)

    def test_streamed_text_is_the_json_text(self):
        text = json.loads(self.generate("--temperature", "0", "--json"))["text"]
        self.assertEqual(self.generate("--temperature", "0").decode(), text)

    def test_timing_summary_is_on_stderr(self):
        result = run("generate", *self.model, "-p", "x", "-n", "2")
        self.assertEqual(result.stderr.count(b"\n"), 1)
        for word in [b"load ", b"prompt ", b"generated ", b"tok/s", b"first token"]:
            self.assertIn(word, result.stderr)
        both = subprocess.run([BINARY, "generate", *map(str, self.model), "-p", "x", "-n", "2", "--temperature", "0"], timeout=60 * SLOWNESS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout
        self.assertIn(b"\nload ", both)  # in one pipe the summary begins a new line
        one = run("generate", *self.model, "-p", "x", "-n", "1").stderr.decode()
        self.assertRegex(one, r"generated 1 token \| first token after ")  # and no rate for 0 steps
        none = run("generate", *self.model, "-p", "x", "-n", "0").stderr.decode()
        self.assertIn("generated 0 tokens", none)
        self.assertNotIn("first token", none)

    def test_ids_on_standard_output_leave_what_is_in_its_file(self):
        path = self.file("all.txt", "before\n")
        with open(path, "ab") as out:
            subprocess.run([BINARY, "generate", *map(str, self.model), "-p", "x", "-n", "2", "--temperature", "0", "--output-ids", "/dev/stdout"],
                           stdout=out, stderr=subprocess.DEVNULL, check=True, timeout=60 * SLOWNESS)
        text = self.generate("-p", "x", "-n", "2", "--temperature", "0", "--output-ids", self.tmp / "ids").decode()
        self.assertEqual(path.read_text(), "before\n" + text + (self.tmp / "ids").read_text())

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
        self.fails(1, "too short", "perplexity", *self.model, "-f", self.file("empty.txt", ""))

    def test_chat_through_pipes(self):
        result = run("chat", *self.model, "--temperature", "0", "-n", "16", stdin="Hello\n/help\nWhat is 2+2?\n/reset\n\n/quit\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"/reset", result.stderr)
        self.assertNotIn(b"\033", result.stdout)
        again = run("chat", *self.model, "--temperature", "0", "-n", "16", stdin="Hello\nWhat is 2+2?")
        self.assertEqual(again.stdout, result.stdout)

    def test_names_of_chat_commands(self):
        path = self.tmp / "saved.json"
        commands = ["/?", "/clear", "/thnik", "/frobnicate", "/think  off ", "/save  %s  " % path, "/bye", "Hi"]
        result = run("chat", *self.model, stdin="\n".join(commands))
        self.assertEqual((result.returncode, result.stdout), (0, b""))
        said = result.stderr.decode()
        for words in ["  /load FILE", "new conversation", "unknown command /thnik; did you mean /think? (/help lists them)",
                      "unknown command /frobnicate (/help lists them)", "reasoning is off", "saved to %s\n" % path]:
            self.assertIn(words, said)
        self.assertEqual(json.loads(path.read_text())["messages"], [])

    def test_chat_remembers(self):
        # The second prompt continues the first: a conversation equals the same turns replayed after /reset.
        one = run("chat", *self.model, "--temperature", "0", "-n", "8", stdin="Hello\nAnd now?\n").stdout
        two = run("chat", *self.model, "--temperature", "0", "-n", "8", stdin="Hello\n/reset\nHello\nAnd now?\n").stdout
        self.assertTrue(two.endswith(one))

    def test_chat_options(self):
        self.ok("chat", *self.model, "-n", "4", "--thinking", "--system", "Be brief.", stdin="Hi\n/think\nHi\n/system You are Bob.\nHi\n")
        self.assertIn(b"<think>", self.ok("chat", *self.model, "-n", "1", stdin="Hi\n"))  # as dsv4 serve does
        self.assertNotIn(b"<think>", self.ok("chat", *self.model, "-n", "1", "--no-thinking", stdin="Hi\n"))
        self.assertNotIn(b"<think>", self.ok("chat", *self.model, "-n", "1", stdin="/think off\nHi\n"))
        self.fails(2, "effort", "chat", *self.model, "--effort", "low", "--encoding", "v4", stdin="Hi\n")
        self.fails(1, "tools", "chat", *self.model, "--tools", self.file("tools.json", "{}"), stdin="Hi\n")

    def test_chat_is_saved_and_loaded(self):
        path = self.tmp / "saved.json"
        flags = ["--temperature", "0", "-n", "8", "--no-thinking"]
        whole = self.ok("chat", *self.model, *flags, stdin="Hello\nAnd now?\n")
        first = self.ok("chat", *self.model, *flags, "--system", "", stdin="Hello\n/save %s\n" % path)
        saved = json.loads(path.read_text())
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])
        second = self.ok("chat", *self.model, *flags, stdin="/load %s\nAnd now?\n" % path)
        self.assertEqual(first + second, whole)
        # A loaded conversation that ends with a user's message gets a reply.
        path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}))
        self.assertEqual(self.ok("chat", *self.model, *flags, stdin="/load %s\n" % path), first)
        self.assertEqual(json.loads(self.ok("encode", "--ids", "-m", self.model[1], stdin=path.read_bytes()))[0], 0)

    def test_chat_refuses_files_and_goes_on(self):
        notes = self.file("notes.txt", "not a conversation")
        commands = ["/save", "/load", "/save %s" % notes, "/load %s" % notes, "/load %s" % (self.tmp / "absent"),
                    "/load %s" % self.tmp, "/save %s" % (self.tmp / "no" / "folder"), "/think maybe"]
        result = run("chat", *self.model, "--temperature", "0", "-n", "8", stdin="\n".join(commands) + "\nHi\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        messages = result.stderr.decode().splitlines()
        self.assertEqual(len(messages), len(commands), messages)
        for word, message in zip(["/save", "/load", "not a conversation", "notes.txt", "not a file", "not a file", "no/folder",
                                  "/think"], messages):
            self.assertIn(word, message)
        self.assertEqual(notes.read_text(), "not a conversation")
        self.assertTrue(result.stdout)

    def test_a_conversation_on_a_full_disk_is_an_error(self):
        def few_bytes():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

        path = self.tmp / "saved.json"
        result = run("chat", *self.model, "-n", "2", stdin="Hi\n/save %s\nOn\n" % path, preexec_fn=few_bytes)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(b"File too large", result.stderr)
        self.assertFalse(path.exists())

    def test_files_of_a_run_on_a_full_disk_are_errors(self):
        repeats = ["--logit-bias", "42=100", "--temperature", "0", "--ignore-eos", "-p", "one two " * 9, "-n", "40"]
        for flags in (["--draft-log", "/dev/full", "--speculate", "lookup", "--draft-threshold", "0"], ["--output-ids", "/dev/full"]):
            self.fails(1, ["/dev/full", "No space left on device"], "generate", *self.model, *repeats, *flags)

    def model_with(self, name, **fields):
        folder = make_text_model(self.tmp / name)
        (folder / "generation_config.json").write_text(json.dumps(fields))
        return ["-m", folder, "-p", "In the beginning", "-n", "24", "--json"]

    def test_generation_config_gives_defaults_and_eos(self):
        def ids(model, *args):
            return json.loads(self.ok("generate", *model, *args))["ids"]

        greedy = ids(self.model_with("plain"), "--temperature", "0")
        one = self.model_with("one", top_k=1, temperature=0.5)
        self.assertEqual(ids(one, "--seed", "1"), greedy)
        self.assertEqual(ids(one, "--seed", "2"), greedy)
        self.assertNotEqual(ids(one, "--seed", "1", "--top-k", "0", "--temperature", "1"), greedy)  # flags win
        cold = self.model_with("cold", temperature=0)
        self.assertEqual(ids(cold), greedy)
        hot = self.model_with("hot", temperature=1.5)
        self.assertEqual(ids(hot, "--temperature", "0"), greedy)
        stops = self.model_with("stops", eos_token_id=[1, greedy[3]])
        run_of = json.loads(self.ok("generate", *stops, "--temperature", "0"))
        self.assertEqual((run_of["finish_reason"], run_of["ids"]), ("stop", greedy[: greedy.index(greedy[3])]))
        broken = self.model_with("broken")
        (broken[1] / "generation_config.json").write_text("[]")
        self.fails(1, "generation_config.json", "generate", *broken)

    def test_chat_takes_the_models_sampling(self):
        folder = self.model_with("one", top_k=1)[1]
        replies = {run("chat", "-m", folder, "-n", "12", "--seed", seed, stdin="Hello\n").stdout for seed in "123"}
        self.assertEqual(len(replies), 1)

    def test_interrupt_prints_what_there_is(self):
        def seconds():
            with subprocess.Popen([BINARY, "generate", *map(str, self.model), "-p", "In the beginning", "-n", "-1", "--ignore-eos"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as p:
                out = p.stdout.read(10)
                start = time.monotonic()
                p.send_signal(signal.SIGINT)
                out += p.communicate(timeout=120 * SLOWNESS)[0]
                took = time.monotonic() - start
                self.assertEqual(p.returncode, 130)
                out.decode()  # complete characters, and no added line end: a pipe gets only the text
            return took

        self.assertTrue(soon(seconds))


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

    def test_its_drafts_are_mostly_right_about_sums_and_tools(self):
        for prompt in "sum", "tool-call":
            text = self.ok("encode", stdin=(NANO / "prompts" / f"{prompt}.json").read_bytes())
            args = ["generate", "--prompt-file", self.file("prompt.txt", text), "-n", "200", "--temperature", "0", "--json"]
            ids = json.loads(self.ok(*args))["ids"]
            for drafter in "mtp", "dspark":
                j = json.loads(self.ok(*args, "--speculate", drafter, "--draft-threshold", "0", "--draft-tokens", "3"))
                self.assertEqual(j["ids"], ids)
                self.assertGreater(len(ids) / j["drafts"]["steps"], 2.5, j["drafts"])  # the model card: 3.8

    def test_inspect_tells_of_its_draft_modules(self):
        plain = json.loads(self.ok("inspect", "--json"))
        self.assertNotIn("draft_module", plain["config"])
        for drafter, module in ("mtp", "MTP"), ("dspark", "DSpark"), ("auto", "DSpark"):
            j = json.loads(self.ok("inspect", "--json", "--speculate", drafter))
            self.assertEqual(j["config"]["draft_module"], module)
            beside = [Path(path).parts[-2:] for path in j["files"] if path not in plain["files"]]
            self.assertEqual(beside, [(module.lower(), "model.safetensors")])
            self.assertGreater(j["plan"]["weight_bytes"], plain["plan"]["weight_bytes"])

    def test_predicts_text(self):
        text = self.file("t.txt", "In the beginning God created the heaven and the earth.\n" * 8)
        j = json.loads(self.ok("perplexity", "-f", text, "--json"))
        self.assertLess(j["perplexity"], 100)
        short = json.loads(self.ok("perplexity", "-f", text, "--json", "--ctx", "16"))
        self.assertEqual(short["tokens"], j["tokens"])
        self.assertGreater(short["perplexity"], j["perplexity"])

    def test_chat(self):
        self.assertTrue(self.ok("chat", "--temperature", "0", "-n", "16", stdin="What is 2+2?\n").strip())


if __name__ == "__main__":
    main()
