"""Shared by the tests of tools/golden: a Python that has the packages, dsv4's logits."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
BESIDE = ROOT.parent / "shared" / "fixtures"  # more fixtures, if the folder exists (tests/support/fixture.h)
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "golden"))


def skip(reason):
    """Ends the test; ctest shows it as skipped."""
    print(f"skipped: {reason}")
    sys.exit(77)


def go_on_with(python, reason):
    """Starts the test again with this Python. Skips it with the reason if that Python does not exist or was used."""
    if "DSV4_OTHER_PYTHON" in os.environ or not os.path.exists(python):
        skip(reason)
    os.environ["DSV4_OTHER_PYTHON"] = "1"
    os.execv(python, [str(python), "-B", *sys.argv])  # not resolved: Python finds its packages by this path


def dsv4_logits(dsv4, folder, ids):
    """Returns the logits of every row, without rounding of KV and index rows."""
    import formats
    from tensor_file import read_tensors

    (folder / "ids.txt").write_text(" ".join(map(str, ids)))
    subprocess.run([dsv4, "logits", "-m", folder, "--kv-dtype", "f32", "--index-dtype", "f32", "--threads", "1",
                    "--token-ids", folder / "ids.txt", "-o", folder / "logits.safetensors"],
                   check=True, capture_output=True, timeout=600)
    return formats.unpack_plain(read_tensors(folder / "logits.safetensors")["logits"])
