"""Compares the references of fixtures, and dsv4's logits, with transformers' independent DeepSeek-V4.

    transformers_test.py DSV4

Skipped if tools/golden/install_transformers.py has not installed it ("scripts/test all" runs that script).
"""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from golden import BESIDE, GOLDEN, dsv4_logits, go_on_with

import install_transformers  # golden adds tools/golden to the path

if sys.prefix != str(install_transformers.TARGET):
    python = install_transformers.PYTHON if install_transformers.is_installed() else ""
    go_on_with(python, "transformers is not installed: run tools/golden/install_transformers.py")

import make_fixture  # noqa: E402
import formats  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM  # noqa: E402
from tensor_file import read_metadata, read_tensors, write_tensors  # noqa: E402

DSV4 = sys.argv.pop(1)
WHOLE_MODEL = 2e-3  # docs/dev/numerics.md, 7


class Made(unittest.TestCase):
    def test_transformers_numpy_and_dsv4_agree_on_every_kind(self):
        for kind in make_fixture.KINDS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                make_fixture.make(folder, kind, seed=6, greedy_tokens=2, length=141, reference="transformers")
                self.assertIn("transformers", read_metadata(folder / "reference.safetensors")["reference"])
                self.assertTrue(make_fixture.check(folder, "numpy"))
                reference = read_tensors(folder / "reference.safetensors")
                ids = formats.unpack_plain(reference["prompt_ids"])
                difference = dsv4_logits(DSV4, folder, ids) - formats.unpack_plain(reference["logits"])
                self.assertLess(np.abs(difference).max(), WHOLE_MODEL)


class There(unittest.TestCase):
    """Fixtures that another implementation made, in the repository and in the folder next to it."""

    def test_transformers_agrees_with_them(self):
        for kind in (*make_fixture.KINDS, "pro-official-cut", "flash-mtp", "flash-dspark"):
            for folder in (GOLDEN / kind, BESIDE / kind):
                if (folder / "reference.safetensors").exists():
                    with self.subTest(str(folder)):
                        self.assertTrue(make_fixture.check(folder, "transformers"))

    def test_a_changed_weight_is_noticed(self):
        tensors = read_tensors(GOLDEN / "flash-nvfp4" / "model.safetensors")
        dtype, shape, data = tensors["layers.2.attn.attn_sink"]
        tensors["layers.2.attn.attn_sink"] = (dtype, shape, bytes(4) + data[4:])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_tensors(folder / "model.safetensors", tensors)
            for part in ("config.json", "reference.safetensors"):
                (folder / part).write_bytes((GOLDEN / "flash-nvfp4" / part).read_bytes())
            self.assertFalse(make_fixture.check(folder, "transformers"))


class Saved(unittest.TestCase):
    """Checkpoints that save_pretrained writes: other names, other fields of config.json, the same bits."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.official = Path(folder.name) / "official"
        self.saved = Path(folder.name) / "saved"
        self.official.mkdir()
        make_fixture.make(self.official, "mini-bf16", seed=6, greedy_tokens=2, length=141)
        self.ids = formats.unpack_plain(read_tensors(self.official / "reference.safetensors")["prompt_ids"])

    def model(self):
        return DeepseekV4ForCausalLM.from_pretrained(self.official, dtype=torch.bfloat16)

    def logits(self, folder):
        return dsv4_logits(DSV4, folder, self.ids).tobytes()

    def test_both_forms_of_names_give_the_same_bits(self):
        want = self.logits(self.official)
        for options in {}, {"save_original_format": False}, {"max_shard_size": "500KB"}:
            with self.subTest(options):
                self.model().save_pretrained(self.saved, **options)
                config = json.loads((self.saved / "config.json").read_text())
                self.assertIn("rope_parameters", config)
                self.assertNotIn("compress_ratios", config)
                self.assertEqual(self.logits(self.saved), want)
                shutil.rmtree(self.saved)

    def test_weights_that_were_cast_load(self):
        self.model().to(torch.bfloat16).save_pretrained(self.saved)
        self.assertEqual({dtype for dtype, _, _ in read_tensors(self.saved / "model.safetensors").values()},
                         {"BF16", "I64"})
        self.assertEqual(len(self.logits(self.saved)), len(self.logits(self.official)))


if __name__ == "__main__":
    unittest.main()
