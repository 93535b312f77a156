#!/usr/bin/env python3
"""Makes small random checkpoints of every kind with reference values, or checks the reference of one. Needs numpy.

    tools/golden/make_fixture.py OUT [KIND ...]     OUT/KIND for each kind that is named (default: all)
    tools/golden/make_fixture.py --check DIR ...    recomputes DIR/reference.safetensors and compares

A fixture is config.json, model.safetensors (official names) and reference.safetensors, computed in float64 from what
the checkpoint holds: prompt_ids; logits of every row; sim_logits with the cache's rows in FP8 and index rows in FP4;
hidden.L, the streams after layer L for the last 64 tokens; greedy_ids, and greedy_margin, the gap between the two best
logits. No choice of experts or index rows is closer than 1e-4 to falling the other way: tokens for which one would be
are drawn again. tools/golden/check_transformers.py compares a fixture with transformers' implementation.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products this small are slower with more; read at the import

import numpy as np

import formats
from reference import Reference
from tensor_file import read_tensors, write_tensors

MARGIN = 1e-4
TOLERANCE = 1e-6  # of the largest value: references are float32 numbers
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

# kind: (config beside BASE, how routed experts are stored, how other large matrices are, tokens of the prompt)
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
    """Random tensors of a checkpoint, in the bytes of the file."""

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
    """Appends a random token none of whose choices is close; (token, the logits behind it)."""
    length = model.length
    while True:
        token = int(rng.integers(model.config["vocab_size"]))
        logits = model.append([token])[0][-1]
        if model.margin >= MARGIN:
            return token, logits
        model.truncate(length)


def draw_ids(model, rng, length, count):
    """(ids of a prompt, ids and gaps of the likeliest tokens behind it)."""
    ids = [draw_token(model, rng)[0] for _ in range(length - 1)]
    while True:  # the last token decides how the text goes on
        last, logits = draw_token(model, rng)
        greedy, gaps, closest = greedy_ids(model, logits, count)
        if closest >= MARGIN:
            return ids + [last], greedy, gaps
        model.truncate(length - 1)


def greedy_ids(model, logits, count):
    """(ids, gaps to the second, closest choice of experts or rows) of the likeliest tokens behind the prompt."""
    ids, gaps, closest = [], [], model.margin
    for _ in range(count):
        best = np.argsort(-logits)[:2]
        ids.append(int(best[0]))
        gaps.append(logits[best[0]] - logits[best[1]])
        logits = model.append(ids[-1:])[0][-1]
        closest = min(closest, model.margin)
    return ids, gaps, closest


def reference_values(config, tensors, prompt):
    """What a reference holds of a prompt, as arrays."""
    model = Reference(config, tensors)
    logits, streams = model.append(prompt)
    values = {"prompt_ids": np.array(prompt), "logits": logits,
              "sim_logits": Reference(config, tensors, simulate=True).append(prompt)[0]}
    return model, values | {f"hidden.{i}": h[-HIDDEN_ROWS:] for i, h in enumerate(streams)}


def make(folder, kind, seed, greedy_tokens, length=None):
    """Writes a fixture of this kind; `length` tokens instead of the kind's."""
    fields, pack_expert, pack_dense, usual = KINDS[kind]
    config = {**BASE, **fields}
    rng = np.random.default_rng(seed)
    tensors = Writer(rng, pack_expert, pack_dense).model(config)
    prompt, greedy, gaps = draw_ids(Reference(config, tensors), rng, length or usual, greedy_tokens)
    values = reference_values(config, tensors, prompt)[1]
    values |= {"greedy_ids": np.array(greedy), "greedy_margin": np.array(gaps)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(folder / "model.safetensors", tensors)
    write_tensors(folder / "reference.safetensors",
                  {name: formats.plain(x, "I32" if name.endswith("_ids") else "F32") for name, x in values.items()})


def check(folder):
    """Recomputes a fixture's reference; False where it differs."""
    config = json.loads((folder / "config.json").read_text())
    theirs = {name: formats.unpack_plain(t) for name, t in read_tensors(folder / "reference.safetensors").items()}
    model, ours = reference_values(config, read_tensors(folder / "model.safetensors"), theirs["prompt_ids"])
    margin, good = model.margin, True
    for name in sorted(set(ours) & set(theirs) - {"prompt_ids"}):
        difference = np.abs(ours[name] - theirs[name])
        if name == "sim_logits":  # roundings amplify: arg-max and median
            agree = np.mean(ours[name].argmax(1) == theirs[name].argmax(1))
            good &= bool(agree >= 0.97 and np.median(difference) <= 0.02)
            print(f"{folder}: {name}: arg-max agreement {agree:.4f}, median difference {np.median(difference):.2e}")
        else:
            good &= bool(difference.max() <= TOLERANCE * np.abs(theirs[name]).max())
            print(f"{folder}: {name}: largest difference {difference.max():.2e}")
    if "greedy_ids" in theirs:
        equal = greedy_ids(model, ours["logits"][-1], len(theirs["greedy_ids"]))[0] == theirs["greedy_ids"].tolist()
        good &= equal
        print(f"{folder}: greedy_ids: {'equal' if equal else 'different'}")
    print(f"{folder}: closest choice of the prompt {margin:.1e}: {'good' if good else 'NOT as it should be'}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare references instead of making fixtures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--greedy", type=int, default=48, help="tokens behind the prompt (default 48)")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="KIND or DIR")
    args = parser.parse_args()
    if args.check:
        return 0 if all([check(folder) for folder in (args.folder, *map(Path, args.names))]) else 1
    for kind in args.names or KINDS:
        if kind not in KINDS:
            parser.error(f"no kind '{kind}'; kinds: {', '.join(KINDS)}")
        begin = time.monotonic()
        make(args.folder / kind, kind, args.seed, args.greedy)
        print(f"{args.folder / kind}: made in {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
