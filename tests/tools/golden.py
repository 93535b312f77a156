"""What the tests of tools/golden share: a Python that has the packages, dsv4's logits."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
BESIDE = ROOT.parent / "shared" / "fixtures"  # may be there: more fixtures (tests/support/fixture.h)
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "golden"))


def skip(reason):
    """ctest shows the test as skipped."""
    print(f"skipped: {reason}")
    sys.exit(77)


def go_on_with(python, reason):
    """Runs the test once more with this Python; skips it, with the reason, where there is none."""
    if "DSV4_OTHER_PYTHON" in os.environ or not os.path.exists(python):
        skip(reason)
    os.environ["DSV4_OTHER_PYTHON"] = "1"
    os.execv(python, [str(python), "-B", *sys.argv])  # whole: the interpreter finds its folder by its name


def dsv4_logits(dsv4, folder, ids):
    """Of every row, nothing rounded."""
    import formats
    from tensor_file import read_tensors

    (folder / "ids.txt").write_text(" ".join(map(str, ids)))
    subprocess.run([dsv4, "logits", "-m", folder, "--kv-dtype", "f32", "--index-dtype", "f32", "--threads", "1",
                    "--token-ids", folder / "ids.txt", "-o", folder / "logits.safetensors"],
                   check=True, capture_output=True, timeout=600)
    return formats.unpack_plain(read_tensors(folder / "logits.safetensors")["logits"])
