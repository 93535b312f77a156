#!/usr/bin/env python3
"""tools/docs/models.jsonl has the plans of the program. Run as

    plan_models_test.py BINARY [--all]

Without --all: one checkpoint and the bundled model. Planning all checkpoints takes a minute.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "docs"))
import models  # noqa: E402  (found through the line above)
import published  # noqa: E402

BINARY = sys.argv[1]
ALL = "--all" in sys.argv


class Plans(unittest.TestCase):
    maxDiff = None

    def test_the_data_is_what_the_program_plans(self):
        stored = {line["repository"]: line for line in models.read_data()}
        for checkpoint in published.CHECKPOINTS if ALL else published.CHECKPOINTS[:1]:
            with self.subTest(checkpoint=checkpoint.repository), tempfile.TemporaryDirectory() as folder:
                self.assertEqual(models.plan_checkpoint(BINARY, checkpoint, Path(folder)), stored[checkpoint.repository])
        self.assertEqual(models.plan_nano(BINARY), stored[models.NANO])

    def test_another_architecture_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            published.write_file(Path(folder) / "model.safetensors", published.bf16("embed", 8, 8))
            config = {**published.config(published.CHECKPOINTS[0]), "model_type": "deepseek_v41"}
            (Path(folder) / "config.json").write_text(json.dumps(config))
            with self.assertRaisesRegex(SystemExit, "model_type is .deepseek_v41"):
                models.inspect(BINARY, "-m", folder)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
