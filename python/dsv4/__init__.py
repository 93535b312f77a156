"""dsv4 runs DeepSeek-V4 checkpoints on CPUs and NVIDIA GPUs.

>>> import dsv4
>>> with dsv4.LLM() as llm:  # the bundled model
...     print(llm.generate("In the beginning", dsv4.SamplingParams(temperature=0, max_tokens=8)).text)
 of the reign of Jehoiakim the

LLM generates text for many requests at the same time. Engine and Session run steps and return logits. Every error is a
dsv4.Error with one line that says what to do.
"""

from __future__ import annotations

import atexit

from . import _dsv4
from ._chat import parse_output, render_chat
from ._dsv4 import Engine, Sampler, Session, Snapshot, StreamDecoder, Tokenizer
from ._errors import (
    CancelledError,
    DataLossError,
    Error,
    ForkError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnsupportedError,
)
from ._llm import LLM
from ._model import bundled as bundled_model
from ._outputs import ChatOutput, GenerateOutput, StreamPiece, TokenLogprob, Usage
from ._params import SamplingParams

__version__: str = _dsv4._build_info()["version"]

__all__ = [
    "CancelledError",
    "ChatOutput",
    "DataLossError",
    "Engine",
    "Error",
    "ForkError",
    "GenerateOutput",
    "InternalError",
    "InvalidArgumentError",
    "LLM",
    "NotFoundError",
    "ResourceExhaustedError",
    "Sampler",
    "SamplingParams",
    "Session",
    "Snapshot",
    "StreamDecoder",
    "StreamPiece",
    "TokenLogprob",
    "Tokenizer",
    "UnsupportedError",
    "Usage",
    "build_info",
    "bundled_model",
    "parse_output",
    "render_chat",
]


def build_info() -> dict[str, str]:
    """Returns version, commit, compiler, cpu_features and gpu_architectures of this build ('': no GPU)."""
    return _dsv4._build_info()


# Engines have threads, which must end before the interpreter does.
atexit.register(_dsv4._close_all)
