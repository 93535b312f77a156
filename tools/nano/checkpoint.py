"""Converts between transformers' parameters and the names and formats of official checkpoints."""

import re

import torch
from safetensors.torch import load_file, save_file

import quant

GLOBAL = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}
LAYER = (  # transformers' part -> official part, first match wins
    (r"input_layernorm\.", "attn_norm."),
    (r"post_attention_layernorm\.", "ffn_norm."),
    (r"(attn|ffn)_hc\.", r"hc_\1_"),
    (r"self_attn\.sinks", "attn.attn_sink"),
    (r"self_attn\.q_a_proj\.", "attn.wq_a."),
    (r"self_attn\.q_a_norm\.", "attn.q_norm."),
    (r"self_attn\.q_b_proj\.", "attn.wq_b."),
    (r"self_attn\.kv_proj\.", "attn.wkv."),
    (r"self_attn\.kv_norm\.", "attn.kv_norm."),
    (r"self_attn\.o_a_proj\.", "attn.wo_a."),
    (r"self_attn\.o_b_proj\.", "attn.wo_b."),
    (r"self_attn\.compressor\.indexer\.q_b_proj\.", "attn.indexer.wq_b."),
    (r"self_attn\.compressor\.indexer\.scorer\.weights_proj\.", "attn.indexer.weights_proj."),
    (r"self_attn\.compressor\.(indexer\.)?kv_proj\.", r"attn.\1compressor.wkv."),
    (r"self_attn\.compressor\.(indexer\.)?gate_proj\.", r"attn.\1compressor.wgate."),
    (r"self_attn\.compressor\.(indexer\.)?position_bias", r"attn.\1compressor.ape"),
    (r"self_attn\.compressor\.(indexer\.)?kv_norm\.", r"attn.\1compressor.norm."),
    (r"mlp\.gate\.e_score_correction_bias", "ffn.gate.bias"),
    (r"mlp\.gate\.", "ffn.gate."),
    (r"mlp\.shared_experts\.gate_proj\.", "ffn.shared_experts.w1."),
    (r"mlp\.shared_experts\.up_proj\.", "ffn.shared_experts.w3."),
    (r"mlp\.shared_experts\.down_proj\.", "ffn.shared_experts.w2."),
    (r"hc_head\.hc_", "hc_head_"),
    (r"(enorm|hnorm|norm|e_proj|h_proj|main_proj|main_norm|markov_head|confidence_head)\.", r"\1."),
)
BLOCK = r"(?:model\.)?((?:layers|mtp)\.\d+)\."
FP8_PARTS = re.compile(r"\.(wq_a|wq_b|wkv|wo_a|wo_b|w1|w2|w3|e_proj|h_proj|main_proj)\.weight$")
FLOAT32_PARTS = re.compile(r"(hc_|attn_sink|\.ape$|gate\.bias$)")


def official_name(name):
    """Returns the official name of a transformers parameter. Callers split expert stacks."""
    if name in GLOBAL:
        return GLOBAL[name]
    block, rest = re.match(BLOCK + "(.*)", name).groups()
    for pattern, replacement in LAYER:
        if re.match(pattern, rest):
            return f"{block}." + re.sub(pattern, replacement, rest, count=1)
    raise KeyError(name)


def is_fp8(name):
    return bool(FP8_PARTS.search(name)) and ".compressor." not in name


def pack(state, input_amax=None):
    """Returns the official tensors of a state dict of the model or of a draft module.

    input_amax: {(block, "w1" or "w2"): [E]}, the largest expert inputs; a block is "layers.0". None: no input_scale.
    """
    tensors = {}
    for name, value in state.items():
        value = value.detach().float().cpu() if value.is_floating_point() else value.cpu()
        stack = re.match(BLOCK + r"mlp\.experts\.(gate_up|down)_proj", name)
        if stack:
            pack_experts(tensors, stack[1], stack[2], value, input_amax)
            continue
        official = official_name(name)
        if is_fp8(official):
            tensors[official], tensors[official.replace(".weight", ".scale")] = quant.fp8_pack(value)
        elif value.is_floating_point() and not FLOAT32_PARTS.search(official):
            tensors[official] = value.to(torch.bfloat16)
        else:
            tensors[official] = value
    return tensors


def pack_experts(tensors, block, kind, stack, input_amax):
    parts = ("w1", "w3") if kind == "gate_up" else ("w2",)
    if input_amax is not None:
        amax = input_amax[block, parts[0]]
        amax = torch.where(amax > 0, amax, amax.max())  # the largest, if no token chose the expert
    for expert, matrix in enumerate(stack):
        scale_2 = matrix.abs().max() / quant.NVFP4_RANGE
        for part, rows in zip(parts, matrix.chunk(len(parts))):
            prefix = f"{block}.ffn.experts.{expert}.{part}."
            tensors[prefix + "weight"], tensors[prefix + "weight_scale"] = quant.nvfp4_pack(rows, scale_2)
            tensors[prefix + "weight_scale_2"] = scale_2.clone()
            if input_amax is not None:
                tensors[prefix + "input_scale"] = (amax[expert] / quant.NVFP4_RANGE).clone()


def unpack(tensors, state):
    """Returns the float32 state dict with the names and shapes of `state` and the values of the official tensors."""

    def dense(name):
        value = tensors[name]
        scale = tensors.get(name.replace(".weight", ".scale"))
        if value.dtype == torch.int8:
            return quant.mxfp4_unpack(value, scale)
        if value.dtype == torch.uint8:
            scales, scale_2 = tensors[name + "_scale"], tensors[name + "_scale_2"]
            return quant.nvfp4_unpack(value, scales, scale_2)
        if value.dtype == torch.float8_e4m3fn:
            return quant.fp8_unpack(value, scale)
        return value.float() if value.is_floating_point() else value

    out = {}
    for name, value in state.items():
        stack = re.match(BLOCK + r"mlp\.experts\.(gate_up|down)_proj", name)
        if stack:
            parts = ("w1", "w3") if stack[2] == "gate_up" else ("w2",)
            prefix = f"{stack[1]}.ffn.experts."
            out[name] = torch.stack(
                [torch.cat([dense(f"{prefix}{e}.{p}.weight") for p in parts]) for e in range(len(value))]
            )
        else:
            out[name] = dense(official_name(name))
    return out


def load_quantised(model, path):
    model.load_state_dict(unpack(load_file(path), model.state_dict()), strict=True)


def save(tensors, path):
    save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, path, metadata={"format": "pt"})
