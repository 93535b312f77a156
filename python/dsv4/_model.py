"""Model folders and sizes in bytes."""

from __future__ import annotations

import os
import re
from pathlib import Path

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {_letter + "B": 1000**_power, _letter + "IB": 1024**_power, _letter: 1024**_power}


def bundled() -> Path:
    """Returns the folder of the bundled model. Raises NotFoundError if this wheel was built without it."""
    from ._errors import NotFoundError

    folder = Path(__file__).parent / "share" / "dsv4" / "models" / "nano"
    if not folder.is_dir():
        raise NotFoundError("this build of the package has no bundled model: give the folder of a model")
    return folder


def folder(model: str | os.PathLike[str] | None) -> str:
    """Returns the folder of `model` as text; None: the bundled model."""
    return str(bundled()) if model is None else os.fsdecode(model)


def num_bytes(size: int | str) -> int:
    """Returns the number of bytes of 1000, '1000', '20GB' (1000**3) or '20GiB', '20G' (1024**3).

    >>> num_bytes("1.5GiB")
    1610612736
    """
    from ._errors import InvalidArgumentError

    if isinstance(size, int) and size >= 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size) if isinstance(size, str) else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InvalidArgumentError(f"the size is {size!r}; accepted: a number of bytes, or for example '20GB', '512MiB'")
    return int(float(match[1]) * unit)
