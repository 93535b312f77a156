#!/usr/bin/env python3
"""Writes a reference checkpoint with only the first layers, for the test data in the repository.

The result has embedding, head, final norm, hc_head and layers [0, N). Its reference has prompt_ids and hidden.0 ..
hidden.N-1, but no logits, which belong to the whole model. All bytes are copies.

  tools/golden/cut_fixture.py FIXTURES/pro-official tests/golden/pro-official-cut --layers 2
"""
import argparse
import json
import pathlib
import re

from tensor_file import read_tensors, write_tensors


def layer_of(name):
    match = re.match(r"layers\.(\d+)\.", name)
    return int(match.group(1)) if match else -1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--layers", type=int, required=True, help="how many layers to keep")
    args = parser.parse_args()

    config = json.loads((args.source / "config.json").read_text())
    if not 1 <= args.layers <= config["num_hidden_layers"]:
        parser.error(f"{args.source} has {config['num_hidden_layers']} layers")
    config["num_hidden_layers"] = args.layers
    config["compress_ratios"] = config["compress_ratios"][:args.layers]
    config["num_hash_layers"] = min(config["num_hash_layers"], args.layers)

    model = read_tensors(args.source / "model.safetensors")
    kept = {name: t for name, t in model.items() if layer_of(name) < args.layers}
    reference = read_tensors(args.source / "reference.safetensors")
    wanted = ["prompt_ids"] + [f"hidden.{layer}" for layer in range(args.layers)]

    args.target.mkdir(parents=True, exist_ok=True)
    (args.target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(args.target / "model.safetensors", kept)
    write_tensors(args.target / "reference.safetensors", {name: reference[name] for name in wanted})
    print(f"{args.target}: {len(kept)} of {len(model)} tensors,",
          sum(f.stat().st_size for f in args.target.iterdir()), "bytes")


if __name__ == "__main__":
    main()
