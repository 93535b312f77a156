#!/usr/bin/env python3
"""Makes small random checkpoints of every kind with reference values, or checks the reference of one. Needs numpy.

    tools/golden/make_fixture.py OUT [KIND ...]     writes OUT/KIND for each kind (default: all)
    tools/golden/make_fixture.py --check DIR ...    computes DIR/reference.safetensors again and compares

A fixture is config.json, model.safetensors (official names) and reference.safetensors. The reference is computed in
float64 from the decoded weights. It has

- prompt_ids, and the logits of every row
- sim_logits: the logits with the cache's rows in FP8 and index rows in FP4
- hidden.L: the streams after layer L for the last 64 tokens
- greedy_ids, and greedy_margin: the difference between the two best logits

The scores of the last chosen and the first rejected expert or index row differ by at least 1e-4: tokens with a closer
choice are drawn again.

The values come from transformers' model (transformers_model.py) if this Python has torch and transformers
(install_transformers.py), else from our own in numpy (reference.py); --reference selects one. The file's metadata names
it. sim_logits are always ours, because transformers does not round cached rows.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # numpy and torch read them at the import
    os.environ.setdefault(name, "1")  # more threads make such small products slower

import numpy as np

import formats
from reference import Reference
from tensor_file import read_metadata, read_tensors, write_tensors

MARGIN = 1e-4
# Shares of the largest value. References are float32 numbers; transformers computes parts of the model in float32.
TOLERANCES = {"numpy": 1e-6, "transformers": 3e-6}
HIDDEN_ROWS = 64
BASE = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 512, "hidden_size": 256,
    "moe_intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_groups": 2, "o_lora_rank": 64,
    "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0, "sliding_window": 128, "index_n_heads": 16, "index_head_dim": 128, "index_topk": 24,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "compress_rope_theta": 160000, "max_position_embeddings": 1048576, "num_nextn_predict_layers": 0,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16", "compress_ratios": [4, 128],
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
       "weight_block_size": [128, 128]}
MIXED = {**FP8, "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16,
         "kv_cache_quant_algo": None, "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
         "ignore": ["*compressor*", "*indexer.weights_proj", "*gate", "embed", "head"]}
FLASH = {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4], "n_routed_experts": 12, "num_experts_per_tok": 3}

# kind: (changes to BASE, packer of routed experts, packer of other large matrices, tokens of the prompt)
KINDS = {
    "mini-bf16": ({}, formats.pack_bf16, formats.pack_bf16, 300),
    "flash-nvfp4": ({**FLASH, "quantization_config": MIXED, "expert_dtype": "fp4"}, formats.pack_nvfp4,
                    formats.pack_fp8, 333),
    "pro-official": ({"num_hidden_layers": 3, "compress_ratios": [128, 4, 128], "num_attention_heads": 16,
                      "o_groups": 4, "n_routed_experts": 24, "num_experts_per_tok": 6, "routed_scaling_factor": 2.5,
                      "index_topk": 40, "vocab_size": 640, "quantization_config": FP8, "expert_dtype": "fp4"},
                     formats.pack_mxfp4, formats.pack_fp8, 390),
    "flash-all-nvfp4": ({**FLASH, "quantization_config": NVFP4}, formats.pack_nvfp4, formats.pack_nvfp4, 270),
    "flash-8-groups": ({"num_attention_heads": 16, "o_groups": 8, "o_lora_rank": 128, "moe_intermediate_size": 1024,
                        "quantization_config": MIXED, "expert_dtype": "fp4"}, formats.pack_nvfp4, formats.pack_fp8,
                       270),
}


class Writer:
    """Makes the random tensors of a checkpoint, as bytes of the file."""

    def __init__(self, rng, pack_expert, pack_dense):
        self.rng, self.pack_expert, self.pack_dense = rng, pack_expert, pack_dense
        self.tensors = {}

    def values(self, *shape, mean=0.0, deviation=1.0):
        return self.rng.normal(mean, deviation, shape)

    def matrix(self, name, rows, columns, pack=formats.pack_bf16, gain=1.0):
        w = self.values(rows, columns, deviation=gain * columns**-0.5)
        self.tensors |= {name + suffix: tensor for suffix, tensor in pack(w, self.rng).items()}

    def dense(self, name, rows, columns):
        self.matrix(name, rows, columns, self.pack_dense)

    def norm(self, name, size):
        self.tensors[name + ".weight"] = formats.plain(self.values(size, mean=1.0, deviation=0.1), "BF16")

    def float32(self, name, *shape, mean=0.0, deviation=1.0):
        self.tensors[name] = formats.plain(self.values(*shape, mean=mean, deviation=deviation), "F32")

    def site(self, name, c, rows, scales):
        width = c["hc_mult"] * c["hidden_size"]
        self.float32(name + "_fn", rows, width, deviation=width**-0.5)
        self.float32(name + "_base", rows, deviation=0.5)
        self.float32(name + "_scale", scales, mean=1.0, deviation=0.2)

    def compressor(self, name, c, ratio, size):
        width = (2 if ratio == 4 else 1) * size
        self.matrix(name + ".wkv", width, c["hidden_size"])
        self.matrix(name + ".wgate", width, c["hidden_size"])
        self.float32(name + ".ape", ratio, width)
        self.norm(name + ".norm", size)

    def attention(self, name, c, ratio):
        heads, size, groups = c["num_attention_heads"], c["head_dim"], c["o_groups"]
        self.dense(name + ".wq_a", c["q_lora_rank"], c["hidden_size"])
        self.norm(name + ".q_norm", c["q_lora_rank"])
        self.dense(name + ".wq_b", heads * size, c["q_lora_rank"])
        self.dense(name + ".wkv", size, c["hidden_size"])
        self.norm(name + ".kv_norm", size)
        self.dense(name + ".wo_a", groups * c["o_lora_rank"], heads * size // groups)
        self.dense(name + ".wo_b", c["hidden_size"], groups * c["o_lora_rank"])
        self.float32(name + ".attn_sink", heads)
        if ratio:
            self.compressor(name + ".compressor", c, ratio, size)
        if ratio == 4:
            self.dense(name + ".indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            self.matrix(name + ".indexer.weights_proj", c["index_n_heads"], c["hidden_size"], gain=4.0)
            self.compressor(name + ".indexer.compressor", c, ratio, c["index_head_dim"])

    def expert(self, name, c, pack):
        self.matrix(name + ".w1", c["moe_intermediate_size"], c["hidden_size"], pack, 2.0)
        self.matrix(name + ".w2", c["hidden_size"], c["moe_intermediate_size"], pack)
        self.matrix(name + ".w3", c["moe_intermediate_size"], c["hidden_size"], pack)

    def experts(self, name, c, hashed):
        count = c["n_routed_experts"]
        self.matrix(name + ".gate", count, c["hidden_size"])
        if hashed:
            table = np.argsort(self.values(c["vocab_size"], count), 1)[:, :c["num_experts_per_tok"]]
            self.tensors[name + ".gate.tid2eid"] = formats.plain(table, "I64")
        else:
            self.float32(name + ".gate.bias", count, deviation=0.1)
        for e in range(count):
            self.expert(f"{name}.experts.{e}", c, self.pack_expert)
        self.expert(name + ".shared_experts", c, self.pack_dense)

    def model(self, c):
        mixes = c["hc_mult"] * (c["hc_mult"] + 2)
        self.matrix("embed", c["vocab_size"], c["hidden_size"], gain=c["hidden_size"]**0.5)
        self.matrix("head", c["vocab_size"], c["hidden_size"], gain=1.3)
        self.norm("norm", c["hidden_size"])
        self.site("hc_head", c, c["hc_mult"], 1)
        for i in range(c["num_hidden_layers"]):
            name = f"layers.{i}"
            for part in ("attn", "ffn"):
                self.norm(f"{name}.{part}_norm", c["hidden_size"])
                self.site(f"{name}.hc_{part}", c, mixes, 3)
            self.attention(name + ".attn", c, c["compress_ratios"][i])
            self.experts(name + ".ffn", c, i < c["num_hash_layers"])
        return self.tensors


def draw_token(model, rng):
    """Appends a random token without a close choice; returns (token, the logits after it)."""
    length = model.length
    while True:
        token = int(rng.integers(model.config["vocab_size"]))
        logits = model.append([token])[0][-1]
        if model.margin >= MARGIN:
            return token, logits
        model.truncate(length)


def draw_ids(model, rng, length, count):
    """Returns (ids of a prompt, ids of the most probable tokens after it)."""
    ids = [draw_token(model, rng)[0] for _ in range(length - 1)]
    while True:  # another last token gives another continuation
        last, logits = draw_token(model, rng)
        greedy, closest = greedy_ids(model, logits, count)
        if closest >= MARGIN:
            return ids + [last], greedy
        model.truncate(length - 1)


def greedy_ids(model, logits, count):
    """Returns (ids of the most probable tokens after the prompt, the margin of the closest choice)."""
    ids, closest = [], model.margin
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits = model.append(ids[-1:])[0][-1]
        closest = min(closest, model.margin)
    return ids, closest


def usual_reference():
    """Returns the independent reference if it is installed."""
    return "transformers" if all(map(importlib.util.find_spec, ("torch", "transformers"))) else "numpy"


def run(reference, config, tensors, ids):
    """Returns (logits [T, V], streams after each layer [L][T, H, D], name of the reference) of a text."""
    if reference == "numpy":
        return *Reference(config, tensors).append(ids), "numpy"
    import transformers_model  # takes seconds; may not be installed
    return *transformers_model.TransformersModel(config, tensors).run(ids), transformers_model.NAME


def reference_values(reference, config, tensors, prompt, greedy):
    """Returns (the arrays of a reference, its name). greedy_ids equals `greedy` if that is the most probable text."""
    logits, streams, author = run(reference, config, tensors, np.array([*prompt, *greedy]))
    count = len(prompt)
    behind = logits[count - 1:count - 1 + len(greedy)]
    best = np.sort(behind, 1)[:, -2:]
    values = {"prompt_ids": np.array(prompt), "logits": logits[:count], "greedy_ids": behind.argmax(1),
              "greedy_margin": best[:, 1] - best[:, 0]}
    return values | {f"hidden.{i}": h[:count][-HIDDEN_ROWS:] for i, h in enumerate(streams)}, author


def simulated(config, tensors, prompt):
    return Reference(config, tensors, simulate=True).append(prompt)[0]


def make(folder, kind, seed, greedy_tokens, length=None, reference="numpy"):
    """Writes a fixture of this kind. `length`: tokens of the prompt (default: the kind's)."""
    fields, pack_expert, pack_dense, usual = KINDS[kind]
    config = {**BASE, **fields}
    rng = np.random.default_rng(seed)
    tensors = Writer(rng, pack_expert, pack_dense).model(config)
    prompt, greedy = draw_ids(Reference(config, tensors), rng, length or usual, greedy_tokens)
    values, author = reference_values(reference, config, tensors, prompt, greedy)
    if values["greedy_ids"].tolist() != greedy:
        sys.exit(f"{folder}: numpy and {author} differ in the most probable tokens after the prompt")
    values["sim_logits"] = simulated(config, tensors, prompt)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(folder / "model.safetensors", tensors)
    write_tensors(folder / "reference.safetensors",
                  {name: formats.plain(x, "I32" if name.endswith("_ids") else "F32") for name, x in values.items()},
                  reference=author)


def check_simulated(folder, ours, theirs):
    """Compares arg-max and median, because rounding makes some differences larger."""
    agree, median = np.mean(ours.argmax(1) == theirs.argmax(1)), np.median(np.abs(ours - theirs))
    print(f"{folder}: sim_logits: arg-max agreement {agree:.4f}, median difference {median:.2e}")
    return bool(agree >= 0.97 and median <= 0.02)


def check(folder, reference="numpy"):
    """Computes a fixture's reference again; returns whether it is equal within the tolerance."""
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(folder / "model.safetensors")
    path = folder / "reference.safetensors"
    theirs = {name: formats.unpack_plain(t) for name, t in read_tensors(path).items()}
    made_by = read_metadata(path).get("reference", "another implementation")
    ours, author = reference_values(reference, config, tensors, theirs["prompt_ids"], theirs.get("greedy_ids", []))
    tolerance = TOLERANCES["transformers" if "transformers" in made_by else reference]
    print(f"{folder}: made by {made_by}, checked by {author}")
    limits = {name: tolerance * np.abs(x).max() for name, x in theirs.items()}
    limits |= {"greedy_ids": 0, "greedy_margin": 2 * limits.get("logits", 0)}  # the difference of two logits
    good = True
    for name in sorted(set(ours) & set(theirs) - {"prompt_ids"}):
        worst = np.abs(ours[name] - theirs[name]).max()
        good &= bool(worst <= limits[name])
        print(f"{folder}: {name}: largest difference {worst:.1e}, limit {limits[name]:.1e}")
    if "sim_logits" in theirs and reference == "numpy":
        good &= check_simulated(folder, simulated(config, tensors, theirs["prompt_ids"]), theirs["sim_logits"])
    print(f"{folder}: {'good' if good else 'FAILED'}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare references of existing fixtures")
    parser.add_argument("--reference", choices=["auto", *TOLERANCES], default="auto", help="implementation that computes the values (default auto)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--greedy", type=int, default=48, help="tokens after the prompt (default 48)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="KIND or DIR")
    args = parser.parse_args()
    reference = usual_reference() if args.reference == "auto" else args.reference
    if args.check:
        return 0 if all([check(folder, reference) for folder in (args.folder, *map(Path, args.names))]) else 1
    for kind in args.names or KINDS:
        if kind not in KINDS:
            parser.error(f"unknown kind '{kind}': use one of {', '.join(KINDS)}")
        begin = time.monotonic()
        make(args.folder / kind, kind, args.seed, args.greedy, reference=reference)
        print(f"{args.folder / kind}: made with {reference} in {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
