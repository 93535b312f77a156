#!/usr/bin/env python3
"""tokenize, detokenize, encode and parse: needs models/nano/tokenizer.json."""

import json
import signal
import subprocess

from support import BINARY, CliTestCase, HAS_TOKENIZER, handles_interrupts, main, run, wait_for


class Text(CliTestCase):
    """Commands that need only the tokenizer; encode and parse need no file."""

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

    def test_ids_may_be_the_array_that_encode_prints(self):
        request = '{"messages": [{"role": "user", "content": "Hi"}]}'
        self.assertEqual(self.ok("detokenize", stdin=self.ok("encode", "--ids", stdin=request)), self.ok("encode", stdin=request))
        self.fails(1, '"[1"', "detokenize", stdin="[1, 2")

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

    def test_encode_is_the_official_encoder_or_as_served(self):
        request = json.dumps({"messages": [{"role": role, "content": text} for role, text in
                                           [("system", "A"), ("user", "q"), ("system", "B"), ("assistant", "x"), ("system", "C")]]})
        official = "<｜begin▁of▁sentence｜>A<｜User｜>qBx<｜end▁of▁sentence｜>C"
        served = ("<｜begin▁of▁sentence｜>A<｜User｜>q\n\nB<｜Assistant｜></think>x<｜end▁of▁sentence｜>"
                  "<｜User｜>C<｜Assistant｜></think>")
        self.assertEqual(self.ok("encode", stdin=request).decode(), official)
        self.assertEqual(self.ok("encode", "--as-served", stdin=request).decode(), served)

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
                self.assertEqual(p.wait(60), 141)

    def test_full_disk_is_reported(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([BINARY, "tokenize"], input=b"x", stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left on device", result.stderr)

    def test_interrupt_while_waiting_for_input(self):
        with subprocess.Popen([BINARY, "tokenize"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            wait_for(lambda: handles_interrupts(p))
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(60), 130)
            self.assertEqual(p.stderr.read(), b"")


if __name__ == "__main__":
    main()
