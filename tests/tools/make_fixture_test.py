"""Tests tools/golden: formats are exact; the reference agrees with an independent one and with dsv4's logits.

    make_fixture_test.py DSV4
"""

import importlib.util
import json
import sys
import tempfile
import unittest
from pathlib import Path

from golden import ROOT, dsv4_logits, go_on_with

import install_transformers  # golden adds tools/golden to the path

if not importlib.util.find_spec("numpy"):
    python = install_transformers.PYTHON if install_transformers.is_installed() else ROOT / ".venv" / "bin" / "python"
    go_on_with(python, "numpy is not installed: run scripts/fixtures")

import make_fixture  # noqa: E402  (it sets environment variables that numpy reads)
import formats  # noqa: E402
import numpy as np  # noqa: E402
from reference import Reference  # noqa: E402
from tensor_file import read_tensors, write_tensors  # noqa: E402

DSV4 = sys.argv.pop(1)
GOLDEN = ROOT / "tests" / "golden" / "flash-nvfp4"
PACKERS = (formats.pack_bf16, formats.pack_fp8, formats.pack_mxfp4, formats.pack_nvfp4)


def stored(pack, x, rng):
    """Returns the values of x after packing."""
    return formats.unpack({"m" + suffix: tensor for suffix, tensor in pack(x, rng).items()}, "m")


class Formats(unittest.TestCase):
    def test_e4m3_rounds_to_nearest_even_and_saturates(self):
        self.assertEqual(len(formats.E4M3), 127)
        for x, expected in ((0, 0), (2.0**-10, 0), (1.5 * 2.0**-9, 2.0**-8), (17, 16), (19, 20), (18.9, 18), (448, 448),
                            (1e9, 448), (-17, -16)):
            self.assertEqual(formats.round_to(np.array(float(x)), formats.E4M3), expected, x)

    def test_e2m1_rounds_to_nearest_even_and_saturates(self):
        for x, expected in ((0.25, 0), (0.26, 0.5), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4),
                            (5.1, 6), (99, 6), (-2.6, -3)):
            self.assertEqual(formats.round_to(np.array(float(x)), formats.E2M1), expected, x)

    def test_powers_of_two(self):
        for amax, exponent in ((448.0, 0), (448.1, 1), (224.0, -1), (1.0, -8)):
            self.assertEqual(formats.power_of_two(np.array(amax), 448.0), exponent, amax)

    def test_packing_what_was_unpacked_changes_nothing(self):
        rng = np.random.default_rng(3)
        for pack in PACKERS:
            with self.subTest(pack.__name__):
                x = stored(pack, rng.normal(0, 1, (160, 192)), rng)
                np.testing.assert_array_equal(x, stored(pack, x, rng))

    def test_packing_is_close(self):
        rng = np.random.default_rng(4)
        x = rng.normal(0, 1, (256, 256))
        for pack, limit in zip(PACKERS, (0.002, 0.03, 0.15, 0.12)):
            self.assertLess(np.sqrt(np.mean((x - stored(pack, x, rng))**2)), limit, pack.__name__)


class Golden(unittest.TestCase):
    def test_an_independent_reference_agrees(self):
        self.assertTrue(make_fixture.check(GOLDEN))

    def test_a_changed_weight_is_noticed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tensors = read_tensors(GOLDEN / "model.safetensors")
            dtype, shape, data = tensors["layers.2.attn.attn_sink"]
            tensors["layers.2.attn.attn_sink"] = (dtype, shape, bytes(4) + data[4:])
            write_tensors(folder / "model.safetensors", tensors)
            for part in ("config.json", "reference.safetensors"):
                (folder / part).write_bytes((GOLDEN / part).read_bytes())
            self.assertFalse(make_fixture.check(folder))


class Made(unittest.TestCase):
    """A fixture of each kind, and so of each format, with a prompt just longer than the window."""

    def test_pieces_give_the_rows_of_the_whole(self):
        tensors = read_tensors(GOLDEN / "model.safetensors")
        config = json.loads((GOLDEN / "config.json").read_text())
        ids = formats.unpack_plain(read_tensors(GOLDEN / "reference.safetensors")["prompt_ids"])[:150]
        whole = Reference(config, tensors).append(ids)[0]
        pieces = Reference(config, tensors)
        rows = [pieces.append(ids[:100])[0], pieces.append(ids[100:141])[0]]
        pieces.append(ids[:5])
        pieces.truncate(141)
        rows.append(pieces.append(ids[141:])[0])
        np.testing.assert_allclose(np.concatenate(rows), whole, rtol=0, atol=1e-9)

    def test_dsv4_computes_what_the_reference_says(self):
        for kind in make_fixture.KINDS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                make_fixture.make(folder, kind, seed=5, greedy_tokens=2, length=141)
                reference = read_tensors(folder / "reference.safetensors")
                ids = formats.unpack_plain(reference["prompt_ids"])
                self.assertEqual(len(ids), 141)
                difference = dsv4_logits(DSV4, folder, ids) - formats.unpack_plain(reference["logits"])
                self.assertLess(np.abs(difference).max(), 2e-3)  # docs/dev/numerics.md, 7


if __name__ == "__main__":
    unittest.main()
