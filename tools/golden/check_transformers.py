#!/usr/bin/env python3
"""By hand: compares fixtures with transformers' DeepSeek-V4 in float64. Needs numpy, torch, transformers 5.17 or later.

    tools/golden/check_transformers.py DIR ...

Prints the largest difference of a logit. transformers computes a few things in float32 whatever the model's dtype
(RoPE, router, hyper-connections), so 2e-5 is what may be expected of logits of deviation 1.3.
"""

import json
import sys
from pathlib import Path

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM

import formats
from tensor_file import read_tensors

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nano"))
import checkpoint  # noqa: E402  (names; found through the line above)
from model import load_config  # noqa: E402

LIMIT = 2e-5


def values(tensors, official):
    """A parameter of the checkpoint by its official name."""
    name = official.removesuffix(".weight")
    return formats.unpack(tensors, name) if name != official else formats.unpack_plain(tensors[official])


def expert_stack(tensors, name, shape):
    """gate_up_proj: w1 above w3; down_proj: w2."""
    layer = name.split(".")[2]
    parts = ("w2",) if "down_proj" in name else ("w1", "w3")
    stack = [torch.cat([torch.from_numpy(formats.unpack(tensors, f"layers.{layer}.ffn.experts.{e}.{part}"))
                        for part in parts]) for e in range(shape[0])]
    return torch.stack(stack)


@torch.no_grad()
def load(folder):
    tensors = read_tensors(folder / "model.safetensors")
    config = load_config(folder / "config.json")
    config._experts_implementation = config._attn_implementation = "eager"  # the others know no float64
    model = DeepseekV4ForCausalLM(config).double().eval()
    for name, target in model.state_dict().items():
        if ".mlp.experts." in name:
            source = expert_stack(tensors, name, target.shape)
        else:
            source = torch.from_numpy(values(tensors, checkpoint.official_name(name)).copy())
        target.copy_(source.reshape(target.shape))
    return model


@torch.no_grad()
def main():
    worst = 0.0
    for folder in map(Path, sys.argv[1:]):
        reference = read_tensors(folder / "reference.safetensors")
        ids = torch.from_numpy(formats.unpack_plain(reference["prompt_ids"]).copy()).long()
        logits = load(folder)(ids.unsqueeze(0)).logits[0].double()
        difference = (logits - torch.from_numpy(formats.unpack_plain(reference["logits"]))).abs().max().item()
        print(f"{folder}: largest difference {difference:.2e}")
        worst = max(worst, difference)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
