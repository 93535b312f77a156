"""Checks of the training forward pass. Needs no GPU.

    python3 check.py FIXTURE_DIR     a folder with config.json, model.safetensors (official NVFP4 + FP8) and
                                     reference.safetensors (prompt_ids, logits, sim_logits)
    python3 check.py --engine DIR IDS LOGITS
                                     a model folder, token ids, and what `dsv4 logits -m DIR --token-ids IDS -o LOGITS
                                     --kv-dtype f32 --index-dtype f32 --activation-dtype f32` wrote

Prints the differences of these pairs:

1. Logits without KV rounding and the fixture's float64 reference; logits with KV rounding and its simulated reference.
2. These logits and the logits of transformers' own forward pass with the same parameters.
3. Weights after a pack / unpack round trip and the fake-quantised weights. They must be equal.
4. If the fixture has a draft module: its logits (MTP's first step; DSpark's blocks and confidences) and the fixture's.
   The module's tensors also make a round trip through the names of the checkpoint.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM

import checkpoint
import drafts
import quant
from model import NanoForCausalLM, linear, load_config


def difference(name, a, b):
    print(f"{name}: largest difference {(a - b).abs().max():.2e}, arg-max agreement {(a.argmax(-1) == b.argmax(-1)).float().mean():.4f}")


def loaded(drafter, tensors):
    drafter.load_state_dict(checkpoint.unpack(tensors, drafter.state_dict()))
    names = {name for name in checkpoint.pack(drafter.state_dict()) if ".experts." not in name}
    wanted = {name for name in tensors if name.startswith("mtp.") and ".experts." not in name}
    print("draft module: names that differ:", sorted(names ^ wanted))
    return drafter.eval()


def check_mtp(model, ids, tensors, reference):
    mtp = loaded(drafts.Mtp(model), tensors)
    modes = model.modes(0, 1)
    seen = drafts.look(model, ids, modes, ())
    states, _ = mtp(model, seen, modes, 3)
    count = len(reference["mtp_logits"])
    difference("MTP", linear(states[0], model.lm_head.weight)[0, :count], reference["mtp_logits"])
    # Position j of the draft after p is row p + j of step j, if the text holds the drafted tokens.
    for j in range(1, 3):
        logits = linear(states[j], model.lm_head.weight)[0]
        found = [
            (logits[p + j] - reference["draft_logits"][d, j]).abs().max().item()
            for d, p in enumerate(reference["draft_positions"].tolist())
            if p + j < count and torch.equal(ids[0, p + 2 : p + 2 + j], reference["draft_ids"][d, :j].long())
        ]
        print(f"MTP, position {j + 1}: {len(found)} drafts, largest difference {max(found):.2e}")


def check_dspark(model, ids, tensors, reference, fields):
    rank, targets = fields["dspark_markov_rank"], fields["dspark_target_layer_ids"]
    dspark = loaded(
        drafts.Dspark(model, fields["dspark_block_size"], fields["dspark_noise_token_id"], rank, targets), tensors
    )
    modes = model.modes(0, 1)
    seen = drafts.look(model, ids, modes, targets)
    anchors = torch.arange(ids.shape[1])
    states, bigrams, confidences, _ = dspark(model, seen, modes, anchors)
    logits = linear(states, model.lm_head.weight) + linear(bigrams, dspark.mtp[-1].markov_head.markov_w2.weight)
    for j in range(dspark.block):
        rows = [
            (d, p)
            for d, p in enumerate(reference["draft_positions"].tolist())
            if torch.equal(ids[0, p + 2 : p + 2 + j], reference["draft_ids"][d, :j].long())
        ]
        error = max((logits[0, p, j] - reference["draft_logits"][d, j]).abs().max().item() for d, p in rows)
        rated = max(abs(confidences[0, p, j] - reference["draft_confidence"][d, j]).item() for d, p in rows)
        print(f"DSpark, position {j + 1}: {len(rows)} drafts, largest difference {error:.2e}, confidence {rated:.2e}")


def check_engine(folder, ids_path, logits_path):
    model = NanoForCausalLM(load_config(folder / "config.json"), torch.float32).eval()
    checkpoint.load_quantised(model, folder / "model.safetensors")
    ids = torch.tensor([[int(word) for word in Path(ids_path).read_text().replace(",", " ").split()]])
    difference("dsv4 logits", model(ids, model.modes(0, 1))[0], load_file(logits_path)["logits"])


@torch.no_grad()
def main():
    if sys.argv[1] == "--engine":
        return check_engine(Path(sys.argv[2]), *sys.argv[3:])
    folder = Path(sys.argv[1])
    config = load_config(folder / "config.json")
    model = NanoForCausalLM(config, torch.float32).eval()
    checkpoint.load_quantised(model, folder / "model.safetensors")
    reference = load_file(folder / "reference.safetensors")
    ids = reference["prompt_ids"].long().unsqueeze(0)

    plain = model(ids, model.modes(0, 1))[0]
    difference("float64 reference", plain, reference["logits"])
    difference("simulated KV and index rounding", model(ids, model.modes(1, 1, weights=0))[0], reference["sim_logits"])
    theirs = DeepseekV4ForCausalLM.forward(model, ids).logits[0].float()
    difference("transformers' forward", plain, theirs)

    tensors = load_file(folder / "model.safetensors")
    text = torch.cat((reference["prompt_ids"], reference["greedy_ids"])).long()
    text = torch.nn.functional.pad(text, (0, -len(text) % drafts.WINDOW)).unsqueeze(0)
    if "mtp_logits" in reference:
        check_mtp(model, text, tensors, reference)
    if "draft_confidence" in reference:
        check_dspark(model, text, tensors, reference, json.loads((folder / "config.json").read_text()))

    w = torch.randn(48, 256) * torch.rand(48, 1)
    scale_2 = w.abs().max() / quant.NVFP4_RANGE
    packed = quant.nvfp4_unpack(*quant.nvfp4_pack(w, scale_2), scale_2)
    print("NVFP4 round trip equal:", torch.equal(packed, quant.nvfp4_round(w, scale_2)))
    w = torch.randn(200, 300)
    print("FP8 round trip equal:", torch.equal(quant.fp8_unpack(*quant.fp8_pack(w)), quant.fp8_round(w)))


if __name__ == "__main__":
    main()
