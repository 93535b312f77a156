"""Checks of the training forward pass. Needs no GPU.

    python3 check.py FIXTURE_DIR     a folder with config.json, model.safetensors (official NVFP4 + FP8) and
                                     reference.safetensors (prompt_ids, logits, sim_logits)

1. Logits without KV rounding equal the fixture's float64 reference, and with it the simulated one.
2. Logits equal those of transformers' own forward with the same parameters.
3. A pack / unpack round trip reproduces the fake-quantised weights exactly.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM

import checkpoint
import quant
from model import NanoForCausalLM, load_config


def difference(name, a, b):
    print(f"{name}: largest difference {(a - b).abs().max():.2e}, arg-max agreement {(a.argmax(-1) == b.argmax(-1)).float().mean():.4f}")


@torch.no_grad()
def main():
    folder = Path(sys.argv[1])
    config = load_config(folder / "config.json")
    model = NanoForCausalLM(config, torch.float32).eval()
    checkpoint.load_quantised(model, folder / "model.safetensors")
    reference = load_file(folder / "reference.safetensors")
    ids = reference["prompt_ids"].long().unsqueeze(0)

    plain = model(ids, model.modes(0, 1))[0]
    difference("float64 reference", plain, reference["logits"])
    difference("simulated KV and index rounding", model(ids, model.modes(1, 1))[0], reference["sim_logits"])
    theirs = DeepseekV4ForCausalLM.forward(model, ids).logits[0].float()
    difference("transformers' forward", plain, theirs)

    w = torch.randn(48, 256) * torch.rand(48, 1)
    scale_2 = w.abs().max() / quant.NVFP4_RANGE
    packed = quant.nvfp4_unpack(*quant.nvfp4_pack(w, scale_2), scale_2)
    print("NVFP4 round trip equal:", torch.equal(packed, quant.nvfp4_round(w, scale_2)))
    w = torch.randn(200, 300)
    print("FP8 round trip equal:", torch.equal(quant.fp8_unpack(*quant.fp8_pack(w)), quant.fp8_round(w)))


if __name__ == "__main__":
    main()
