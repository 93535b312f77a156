"""The tensors of the published DeepSeek-V4 checkpoints: names, types and shapes, without data.

`tensors(checkpoint)` lists them, and `write_sparse(checkpoint, folder)` writes a folder that a loader can bind and
plan: true headers, and a hole for the data of each file.
"""

import json
import struct
from dataclasses import dataclass

SIZES = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
VOCABULARY, WINDOW, STREAMS, HASH_LAYERS = 129280, 128, 4, 3
MIXES = (2 + STREAMS) * STREAMS  # rows of hc_*_fn
TRUNK, DRAFT = "layers", "mtp"


@dataclass(frozen=True)
class Shape:
    """The sizes in which Flash and Pro differ."""

    hidden: int
    layers: int
    heads: int
    query_rank: int
    groups: int
    expert_width: int
    experts: int
    index_topk: int
    route_scale: float
    markov_rank: int
    first_ratios: tuple  # compress_ratios of the first two layers; 4 and 128 alternate after them
    target_layers: tuple  # layers that the DSpark module reads

    def ratios(self):
        return [*self.first_ratios, *(4 if layer % 2 == 0 else 128 for layer in range(2, self.layers))]


FLASH = Shape(4096, 43, 64, 1024, 8, 2048, 256, 512, 1.5, 256, (0, 0), (40, 41, 42))
PRO = Shape(7168, 61, 128, 1536, 16, 3072, 384, 1024, 2.5, 512, (128, 128), (58, 59, 60))


@dataclass(frozen=True)
class Checkpoint:
    repository: str
    model: str  # "Flash", "Pro"
    experts: str  # format of the trunk's experts: "MXFP4", "NVFP4"
    draft: str  # "MTP", "DSpark"
    num_experts: int = 0  # if fewer than the model has

    def shape(self):
        return FLASH if self.model == "Flash" else PRO

    def experts_per_layer(self):
        return self.num_experts or self.shape().experts


CHECKPOINTS = [
    Checkpoint("deepseek-ai/DeepSeek-V4-Flash-0731", "Flash", "MXFP4", "DSpark"),
    Checkpoint("nvidia/DeepSeek-V4-Flash-0731-NVFP4", "Flash", "NVFP4", "DSpark"),
    Checkpoint("deepseek-ai/DeepSeek-V4-Flash", "Flash", "MXFP4", "MTP"),
    Checkpoint("nvidia/DeepSeek-V4-Flash-NVFP4", "Flash", "NVFP4", "MTP"),
    Checkpoint("0xSero/DeepSeek-V4-Flash-0731-REAP", "Flash", "MXFP4", "DSpark", num_experts=160),
    Checkpoint("deepseek-ai/DeepSeek-V4-Pro-0813", "Pro", "MXFP4", "DSpark"),
    Checkpoint("nvidia/DeepSeek-V4-Pro-0813-NVFP4", "Pro", "NVFP4", "DSpark"),
    Checkpoint("deepseek-ai/DeepSeek-V4-Pro", "Pro", "MXFP4", "MTP"),
    Checkpoint("nvidia/DeepSeek-V4-Pro-NVFP4", "Pro", "NVFP4", "MTP"),
]


def bf16(name, *dims):
    return [(name + ".weight", "BF16", dims)]


def f32(name, *dims):
    return [(name, "F32", dims)]


def fp8(name, rows, cols):
    return [(name + ".weight", "F8_E4M3", (rows, cols)), (name + ".scale", "F8_E8M0", (-(-rows // 128), -(-cols // 128)))]


def mxfp4(name, rows, cols):
    return [(name + ".weight", "I8", (rows, cols // 2)), (name + ".scale", "F8_E8M0", (rows, cols // 32))]


def nvfp4(name, rows, cols):
    return [(name + ".weight", "U8", (rows, cols // 2)), (name + ".weight_scale", "F8_E4M3", (rows, cols // 16)),
            (name + ".weight_scale_2", "F32", ()), (name + ".input_scale", "F32", ())]


def head_of_streams(prefix, s):
    wide = STREAMS * s.hidden
    return f32(prefix + "hc_head_fn", STREAMS, wide) + f32(prefix + "hc_head_base", STREAMS) + f32(prefix + "hc_head_scale", 1)


def compressor(name, s, ratio, width):
    """Ratio 4 compresses overlapping windows, which takes twice the width."""
    rows = 2 * width if ratio == 4 else width
    return (f32(name + ".ape", ratio, rows) + bf16(name + ".norm", width) + bf16(name + ".wkv", rows, s.hidden) +
            bf16(name + ".wgate", rows, s.hidden))


def attention(prefix, s, ratio):
    heads = s.heads * 512
    out = f32(prefix + "attn_sink", s.heads) + bf16(prefix + "q_norm", s.query_rank) + bf16(prefix + "kv_norm", 512)
    out += fp8(prefix + "wq_a", s.query_rank, s.hidden) + fp8(prefix + "wq_b", heads, s.query_rank)
    out += fp8(prefix + "wkv", 512, s.hidden) + fp8(prefix + "wo_a", 1024 * s.groups, heads // s.groups)
    out += fp8(prefix + "wo_b", s.hidden, 1024 * s.groups)
    if ratio > 0:
        out += compressor(prefix + "compressor", s, ratio, 512)
    if ratio == 4:
        out += fp8(prefix + "indexer.wq_b", 64 * 128, s.query_rank) + bf16(prefix + "indexer.weights_proj", 64, s.hidden)
        out += compressor(prefix + "indexer.compressor", s, ratio, 128)
    return out


def feed_forward(prefix, s, num_experts, expert, by_hash):
    out = bf16(prefix + "gate", num_experts, s.hidden)
    out += [(prefix + "gate.tid2eid", "I64", (VOCABULARY, 6))] if by_hash else f32(prefix + "gate.bias", num_experts)
    names = [(f"{prefix}shared_experts.", fp8)] + [(f"{prefix}experts.{e}.", expert) for e in range(num_experts)]
    for name, make in names:
        out += make(name + "w1", s.expert_width, s.hidden) + make(name + "w3", s.expert_width, s.hidden)
        out += make(name + "w2", s.hidden, s.expert_width)
    return out


def block(prefix, s, ratio, num_experts, expert, by_hash=False):
    out = bf16(prefix + "attn_norm", s.hidden) + bf16(prefix + "ffn_norm", s.hidden)
    for part in ("attn", "ffn"):
        name = f"{prefix}hc_{part}_"
        out += f32(name + "fn", MIXES, STREAMS * s.hidden) + f32(name + "base", MIXES) + f32(name + "scale", 3)
    return (out + attention(prefix + "attn.", s, ratio) +
            feed_forward(prefix + "ffn.", s, num_experts, expert, by_hash))


def mtp(s):
    out = bf16("mtp.0.enorm", s.hidden) + bf16("mtp.0.hnorm", s.hidden) + bf16("mtp.0.norm", s.hidden)
    return out + fp8("mtp.0.e_proj", s.hidden, s.hidden) + fp8("mtp.0.h_proj", s.hidden, s.hidden) + head_of_streams("mtp.0.", s)


def dspark(s):
    out = fp8("mtp.0.main_proj", s.hidden, 3 * s.hidden) + bf16("mtp.0.main_norm", s.hidden)
    out += bf16("mtp.2.norm", s.hidden) + head_of_streams("mtp.2.", s)
    out += bf16("mtp.2.markov_head.markov_w1", VOCABULARY, s.markov_rank)
    out += bf16("mtp.2.markov_head.markov_w2", VOCABULARY, s.markov_rank)
    return out + bf16("mtp.2.confidence_head.proj", 1, s.hidden + s.markov_rank)


def files_of(checkpoint):
    """Lists of tensors as (name, dtype, dims): one list for each file of the checkpoint."""
    s, num_experts = checkpoint.shape(), checkpoint.experts_per_layer()
    expert = nvfp4 if checkpoint.experts == "NVFP4" else mxfp4
    yield bf16("embed", VOCABULARY, s.hidden)
    for layer, ratio in enumerate(s.ratios()):
        yield block(f"{TRUNK}.{layer}.", s, ratio, num_experts, expert, by_hash=layer < HASH_LAYERS)
    yield head_of_streams("", s) + bf16("head", VOCABULARY, s.hidden) + bf16("norm", s.hidden)
    stages = 3 if checkpoint.draft == "DSpark" else 1
    drafts = [block(f"{DRAFT}.{stage}.", s, 0, num_experts, mxfp4) for stage in range(stages)]
    for tensor in dspark(s) if checkpoint.draft == "DSpark" else mtp(s):
        drafts[int(tensor[0].split(".")[1])].append(tensor)
    yield from drafts


def tensors(checkpoint):
    return [tensor for file in files_of(checkpoint) for tensor in file]


def num_bytes(tensor):
    size = SIZES[tensor[1]]
    for dim in tensor[2]:
        size *= dim
    return size


def config(checkpoint):
    """The fields of the published config.json that a loader reads."""
    s = checkpoint.shape()
    stages = 3 if checkpoint.draft == "DSpark" else 1
    fields = {
        "model_type": "deepseek_v4", "vocab_size": VOCABULARY, "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
        "q_lora_rank": s.query_rank, "o_groups": s.groups, "o_lora_rank": 1024, "sliding_window": WINDOW,
        "moe_intermediate_size": s.expert_width, "n_routed_experts": checkpoint.experts_per_layer(), "n_shared_experts": 1,
        "num_experts_per_tok": 6, "num_hash_layers": HASH_LAYERS, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": s.route_scale, "swiglu_limit": 10.0, "index_n_heads": 64,
        "index_head_dim": 128, "index_topk": s.index_topk, "hc_mult": STREAMS, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 1048576,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                         "beta_slow": 1},
        "compress_ratios": s.ratios() + stages * [0], "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
        "expert_dtype": "fp4",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                                "weight_block_size": [128, 128]},
    }
    if checkpoint.draft == "DSpark":
        fields.update(dspark_block_size=5, dspark_noise_token_id=128799, dspark_markov_rank=s.markov_rank,
                      dspark_target_layer_ids=list(s.target_layers))
    return fields


def write_file(path, file):
    header, end = {}, 0
    for tensor in file:
        begin, end = end, end + num_bytes(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": tensor[2], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(out.tell() + end)


def write_sparse(checkpoint, folder):
    """Writes the checkpoint with holes for its data: every byte of it reads as 0. `folder` must be empty."""
    (folder / "config.json").write_text(json.dumps(config(checkpoint)))
    files, index = list(files_of(checkpoint)), {}
    for number, file in enumerate(files, 1):
        name = "model-%05d-of-%05d.safetensors" % (number, len(files))
        write_file(folder / name, file)
        index.update((tensor[0], name) for tensor in file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
