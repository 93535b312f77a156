#!/usr/bin/env python3
"""The expert counts of a server and the file that keeps them."""

import json
import tempfile
import unittest
from pathlib import Path

from support import HAS_NANO, Server, main


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class ExpertCounts(unittest.TestCase):
    def test_counts_outlast_restarts(self):
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder) / "counts.json"
            read = lambda: json.loads(counts.read_text())["chosen"]
            total = lambda: sum(map(sum, read()))

            def serve(*flags, requests=1):
                server = Server("--count-experts", counts, *flags)
                self.assertIn("dsv4_expert_choices_total", server.get("/metrics").body.decode(), "from the start")
                for _ in range(requests):
                    body = {"prompt": "Once", "temperature": 0, "max_tokens": 5}
                    self.assertEqual(server.post("/v1/completions", body).status, 200)
                self.assertEqual(server.stop(), 0, server.last_log)

            serve(requests=0)
            self.assertFalse(counts.exists(), "no request, no counts")
            serve()
            once = total()
            self.assertGreater(once, 0)
            serve(requests=0)
            self.assertEqual(total(), once)
            serve("--expert-counts", counts, requests=0)
            self.assertEqual(total(), once)
            serve("--expert-counts", counts)
            self.assertEqual(total(), 2 * once)
            serve()
            self.assertEqual(total(), once, "replaced: nothing was read")


if __name__ == "__main__":
    main()
