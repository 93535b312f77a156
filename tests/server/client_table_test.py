#!/usr/bin/env python3
"""Every client of docs/serving/clients.md works with a live server, and the page says so (client_table.py). Clients that
are not there and cannot be fetched from PyPI are skipped; the replayed ones always run."""

import json
import sys
import unittest

import client_base
import client_replays
import client_table
import support

FINE = {"client": "openai", "version": "1.0", "chat": None, "stream": None, "tools": client_base.NONE, "note": "a note", "seconds": 1}
PAGE = "# Clients\n\n<!-- clients -->\n%s<!-- end -->\n\nMore.\n"


class Table(unittest.TestCase):
    def test_a_row_replaces_its_line_and_others_stay(self):
        other = "| Codex | 1 | yes | yes | yes | recorded |\n"
        made = client_table.merge(PAGE % (other + "| openai | 0.9 | yes | yes | yes | |\n"), [FINE])
        self.assertEqual(made, PAGE % ("\n".join(client_table.HEAD) + "\n| openai | 1.0 | yes | yes | – | a note |\n" + other))
        self.assertEqual(client_table.problems([FINE], made), [])
        (problem,) = client_table.problems([{**FINE, "version": "1.1"}], made)
        self.assertIn("differs", problem)

    def test_a_client_that_does_not_work_is_an_error_even_if_the_page_says_so(self):
        broken = {**FINE, "stream": "AssertionError: it is empty"}
        made = client_table.merge(PAGE % "", [broken])
        self.assertIn("| yes | fails | – |", made)
        self.assertEqual(client_table.problems([broken], made), ["openai: stream: AssertionError: it is empty"])

    def test_a_client_that_is_no_longer_known_leaves_the_page(self):
        self.assertNotIn("Gone", client_table.merge(PAGE % "| Gone | 1 | yes | yes | yes | |\n", []))

    def test_a_page_without_a_table_is_named(self):
        with self.assertRaisesRegex(ValueError, "no table"):
            client_table.merge("# Clients\n", [FINE])


class Checks(unittest.TestCase):
    """A client fails if its replies are empty or contain marks of the template, or if its calls are wrong."""

    class Said(client_replays.ChatShape):
        NAME, SYSTEM = "said", "Be brief."

        def __init__(self, message):
            super().__init__("")
            self.said = message

        def deltas(self, messages, **fields):
            return [self.said]

        def chat(self):
            return self.said["content"]

        def stream(self):
            return [self.said["content"][:2], self.said["content"][2:]]

    def test_replies(self):
        for text, fine in [("Well.", True), ("", False), (" \n", False), ("a <｜Assistant｜>", False)]:
            row = self.Said({"content": text}).row()
            self.assertEqual((row["chat"] is None, row["stream"] is None), (fine, fine), row)

    def test_calls(self):
        def call(city):
            return {"index": 0, "id": "1", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}

        fine = self.Said({"content": "18 degrees", "tool_calls": [call("Paris")]})
        self.assertIsNone(fine.row()["tools"])
        for message in [{"content": "18"}, {"content": "18", "tool_calls": [call("Rome")]},
                        {"content": "cold", "tool_calls": [call("Paris")]}]:
            self.assertIsNotNone(self.Said(message).row()["tools"], message)

    def test_a_header_is_missing_if_the_thinking_is(self):
        client = client_replays.ClaudeCode("")
        client.accept([{"type": "thinking", "thinking": "So."}, {"type": "text", "text": "Well."}])
        for blocks in [[], [{"type": "text", "text": "goes on"}], [{"type": "thinking", "thinking": ""}]]:
            with self.assertRaises(AssertionError):
                client.accept(blocks)


@unittest.skipUnless(support.HAS_NANO, "the nano model is not in models/nano")
class Clients(unittest.TestCase):
    skipped = []

    def test_every_client_works_and_the_page_says_so(self):
        rows, self.skipped[:] = client_table.run_all()
        self.assertEqual(client_table.problems(rows, client_table.PAGE.read_text(encoding="utf-8")), [])
        self.assertGreaterEqual(len(rows), len(client_replays.REPLAYED))


if __name__ == "__main__":
    support.main()
    if Clients.skipped:
        print("\n".join("skipped: " + reason for reason in Clients.skipped))
        sys.exit(77)
