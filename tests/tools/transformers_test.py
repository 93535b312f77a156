"""Compares the references of fixtures, and dsv4's logits, with transformers' independent DeepSeek-V4.

    transformers_test.py DSV4

Skipped if tools/golden/install_transformers.py has not installed it ("scripts/test all" runs that script).
"""

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


if __name__ == "__main__":
    unittest.main()
