"""Exports a training state as an official-layout NVFP4 checkpoint.

    python3 export.py --state RUN/state.pt --model models/nano --heldout heldout.txt --out DIR

Routed experts become NVFP4 (w1 and w3 of an expert share weight_scale_2), other linears FP8 128 x 128, the rest BF16
or F32. input_scale is the largest input on calibration text, divided by 2688. The input of w2 includes the routing
weight.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

import checkpoint
import model as model_module
import probes
from model import NanoForCausalLM, load_config
from prose import DOCUMENT_BREAK


@torch.no_grad()
def input_amax(model, rows):
    """Returns {("layers.N", "w1" or "w2"): [E]}: the largest absolute expert inputs over the rows of ids."""
    found = {}
    block_of = {id(layer.mlp.experts): f"layers.{i}" for i, layer in enumerate(model.model.layers)}
    plain = model_module.expert_hidden

    def recording(experts, flat, weights, modes):
        y = plain(experts, flat, weights, modes)
        x = torch.where(weights > 0, flat.float().abs().amax(-1, keepdim=True), 0.0).amax(0)
        for part, amax in (("w1", x), ("w2", y.float().abs().amax((0, 2)))):
            key = (block_of[id(experts)], part)
            found[key] = torch.maximum(found.get(key, torch.zeros_like(amax)), amax)
        return y

    model_module.expert_hidden = recording
    try:
        for row in rows:
            model(torch.tensor([row], device=model.hadamard.device))
    finally:
        model_module.expert_hidden = plain
    return {key: value.cpu() for key, value in found.items()}


def calibration_rows(tokenizer, heldout_text):
    """Returns rows of held-out prose and of the evaluation's conversations."""
    items = list(probes.two_digit_sums(40, True)) + list(probes.tool_calls(40))
    texts = ["".join(item["prompt"] + item["expected"] for item in items[i : i + 8]) for i in range(0, len(items), 8)]
    ids = tokenizer.encode(heldout_text.replace(DOCUMENT_BREAK, "\n\n"), add_special_tokens=False).ids
    rows = [ids[i : i + 1024] for i in range(0, min(len(ids), 32768), 1024)]
    return rows + [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", required=True)
    parser.add_argument("--model", required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    folder, out = Path(args.model), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = torch.load(args.state, map_location="cpu")
    model = NanoForCausalLM(load_config(folder / "config.json"), torch.float32).eval()
    model.load_state_dict(saved["model"])
    model.to(device)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = calibration_rows(tokenizer, Path(args.heldout).read_text(encoding="utf-8"))
    tensors = checkpoint.pack(model.state_dict(), input_amax(model, rows))
    checkpoint.save(tensors, out / "model.safetensors")
    print(f"{len(tensors)} tensors, {(out / 'model.safetensors').stat().st_size} bytes, step {saved['step']}")


if __name__ == "__main__":
    main()
