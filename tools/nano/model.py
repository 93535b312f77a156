"""DeepSeek-V4 for training: the parameters of transformers' classes with a forward pass that is fast on one GPU.

`NanoForCausalLM` is transformers' `DeepseekV4ForCausalLM` (same modules, names, initialisation) with another `forward`:
block-local window attention, dense experts that the router weights, fused Sinkhorn and fake quantisation. An auxiliary
loss trains the indexer, because transformers' top-k passes it no gradient. `check.py` compares the logits with
transformers' own forward pass and with the float64 reference of a fixture.

It has no cache: it computes whole prompts from position 0. It pads sequences to multiples of 128.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM

import quant
from sinkhorn import sinkhorn

WINDOW = 128
NEGATIVE = -1e30


def load_config(path):
    """Returns transformers' configuration of an official config.json."""
    fields = json.loads(Path(path).read_text())
    fields.pop("quantization_config", None)
    fields["compress_ratios"] = fields["compress_ratios"][: fields["num_hidden_layers"]]
    return DeepseekV4Config(**fields)


@dataclass
class Modes:
    """Blends of the training phases: tensors in 0..1, so that all phases use one compiled graph."""

    weights: torch.Tensor  # rounded as in the checkpoint
    cache: torch.Tensor  # KV rows, index keys and queries rounded as the engine keeps them
    sparse: torch.Tensor  # CSA sees only the indexer's picks


def fp8(weight, modes):
    return quant.straight_through(weight, quant.fp8_round(weight.detach()), modes.weights)


def nvfp4(weight, modes):
    """Blends expert stacks [E, N, K] into their NVFP4 values, with one global scale per expert."""
    w = weight.detach()
    scale_2 = w.abs().amax((1, 2), keepdim=True) / quant.NVFP4_RANGE
    return quant.straight_through(weight, quant.nvfp4_round(w, scale_2), modes.weights)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rms_norm(x, weight=None, eps=1e-6):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def rope(x, angles, inverse=False):
    """Rotates the last 64 channels in neighbouring pairs; angles [S, 32], x [B, S, ..., channels]."""
    cos, sin = angles.cos(), angles.sin()
    if inverse:
        sin = -sin
    while cos.dim() < x.dim() - 1:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    size = 2 * angles.shape[-1]
    pairs = x[..., -size:].float().unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((x[..., :-size], rotated.to(x.dtype)), -1)


def hyper_pre(hc, h):
    """Returns (x, post, comb) of one bridge; h [B, S, 4, D]."""
    n = hc.hc_mult
    flat = h.flatten(2).float()
    rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    mix = F.linear(flat, hc.fn) * rho
    pre = torch.sigmoid(mix[..., :n] * hc.scale[0] + hc.base[:n]) + hc.hc_eps
    post = 2 * torch.sigmoid(mix[..., n : 2 * n] * hc.scale[1] + hc.base[n : 2 * n])
    logits = (mix[..., 2 * n :] * hc.scale[2] + hc.base[2 * n :]).unflatten(-1, (n, n))
    comb = sinkhorn(logits, hc.hc_sinkhorn_iters, hc.hc_eps)
    x = (pre.unsqueeze(-1) * h.float()).sum(2).to(h.dtype)
    return x, post, comb


def hyper_post(out, h, post, comb):
    mixed = (comb.unsqueeze(-1) * h.float().unsqueeze(3)).sum(2)  # sum over comb's first index
    return (post.unsqueeze(-1) * out.float().unsqueeze(2) + mixed).to(h.dtype)


def compress(module, x, ratio, angles):
    """Returns the rows [B, S // ratio, d] of a main or index compressor; RoPE is that of the first pooled position."""
    c = linear(x, module.kv_proj.weight).unflatten(1, (-1, ratio))
    g = linear(x, module.gate_proj.weight).unflatten(1, (-1, ratio)).float() + module.position_bias
    if ratio == 4:  # overlap: the first half of the channels goes to the next row
        d = c.shape[-1] // 2
        first_c = F.pad(c[:, :-1, :, :d], (0, 0, 0, 0, 1, 0))
        first_g = F.pad(g[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=NEGATIVE)
        c, g = torch.cat((first_c, c[..., d:]), 2), torch.cat((first_g, g[..., d:]), 2)
    pooled = (c.float() * g.softmax(2)).sum(2).to(x.dtype)
    return rope(rms_norm(pooled, module.kv_norm.weight), angles[::ratio])


def index_scores(indexer, x, qr, angles, hadamard, modes):
    """Returns the float32 scores [B, S, E] of the indexer."""
    batch, length, _ = x.shape
    keys = compress(indexer, x, 4, angles) @ hadamard.to(x.dtype)
    queries = linear(qr, fp8(indexer.q_b_proj.weight, modes)).view(batch, length, -1, indexer.head_dim)
    queries = rope(queries, angles) @ hadamard.to(x.dtype)
    keys = quant.straight_through(keys, quant.index_round(keys.detach()), modes.cache.to(x.dtype))
    queries = quant.straight_through(queries, quant.index_round(queries.detach()), modes.cache.to(x.dtype))
    weights = linear(x, indexer.scorer.weights_proj.weight).float()
    weights = weights * (indexer.head_dim * indexer.num_heads) ** -0.5
    dots = torch.relu(queries.flatten(1, 2) @ keys.transpose(1, 2)).view(batch, length, indexer.num_heads, -1)
    return (dots.float() * weights.unsqueeze(-1)).sum(2)


def window_mask(length, device):
    """Returns [N, 128, 256]: whether query i sees key j of (previous block, own block) in its window."""
    i = torch.arange(WINDOW, device=device).unsqueeze(1)
    j = torch.arange(2 * WINDOW, device=device)
    mask = (j > i) & (j <= i + WINDOW)
    first = mask & (j >= WINDOW)
    return torch.cat((first.unsqueeze(0), mask.expand(length // WINDOW - 1, -1, -1)))


def queries(attn, x, angles, modes):
    """Returns (queries [B, S, heads, dim], their low-rank form [B, S, Rq])."""
    qr = rms_norm(linear(x, fp8(attn.q_a_proj.weight, modes)), attn.q_a_norm.weight)
    q = linear(qr, fp8(attn.q_b_proj.weight, modes)).unflatten(-1, (attn.num_heads, attn.head_dim))
    return rope(rms_norm(q), angles), qr


def round_rows(rows, modes):
    return quant.straight_through(rows, quant.kv_round(rows.detach()), modes.cache.to(rows.dtype))


def key_rows(attn, x, angles, modes):
    """Returns the window rows [B, S, dim], each key and value."""
    kv = rms_norm(linear(x, fp8(attn.kv_proj.weight, modes)), attn.kv_norm.weight)
    return round_rows(rope(kv, angles), modes)


def attention_output(attn, out, angles, modes):
    """Returns the output [B, S, D] of the heads' sums [B, S, heads, dim]."""
    groups = attn.config.o_groups
    out = rope(out, angles, inverse=True).flatten(2).unflatten(-1, (groups, -1))
    w = fp8(attn.o_a_proj.weight, modes).to(out.dtype).unflatten(0, (groups, -1))
    return linear(torch.einsum("bsgi,goi->bsgo", out, w).flatten(2), fp8(attn.o_b_proj.weight, modes))


def attention(attn, x, angles, hadamard, modes):
    """Returns (output, index loss) of one attention sublayer; x [B, S, D], S a multiple of 128."""
    batch, length, _ = x.shape
    heads, dim, blocks = attn.num_heads, attn.head_dim, length // WINDOW
    q, qr = queries(attn, x, angles, modes)
    kv = key_rows(attn, x, angles, modes)

    own = kv.view(batch, blocks, WINDOW, dim)
    window = torch.cat((F.pad(own[:, :-1], (0, 0, 0, 0, 1, 0)), own), 2)  # [B, N, 256, 512]
    logits = (q.view(batch, blocks, WINDOW * heads, dim) @ window.transpose(2, 3)).float() * attn.scaling
    mask = window_mask(length, x.device)
    logits = logits.view(batch, blocks, WINDOW, heads, -1).masked_fill(~mask[:, :, None], NEGATIVE)
    logits = logits.view(batch, length, heads, -1)
    width = logits.shape[-1]

    entries, index_loss = None, x.new_zeros((), dtype=torch.float32)
    if attn.compressor is not None:
        ratio = attn.compressor.compress_rate
        entries = round_rows(compress(attn.compressor, x, ratio, angles), modes)
        far = (q.view(batch, length * heads, dim) @ entries.transpose(1, 2)).float() * attn.scaling
        far = far.view(batch, length, heads, -1)
        ready = (torch.arange(length, device=x.device) + 1) // ratio
        hidden = torch.arange(entries.shape[1], device=x.device) >= ready.unsqueeze(1)  # [S, E]
        far = far.masked_fill(hidden[:, None], NEGATIVE)
        seen = far
        if ratio == 4:
            scores = index_scores(attn.compressor.indexer, x.detach(), qr.detach(), angles, hadamard, modes)
            scores = scores.masked_fill(hidden, NEGATIVE)
            top_k = attn.compressor.indexer.index_topk
            if top_k < scores.shape[-1]:
                threshold = scores.detach().topk(top_k, -1).values[..., -1:]
                dropped = (scores.detach() < threshold) & (modes.sparse > 0)
                seen = far.masked_fill(dropped.unsqueeze(2), NEGATIVE)
        logits = torch.cat((logits, seen), -1)

    sinks = attn.sinks.view(1, 1, heads, 1).float()
    top = torch.maximum(logits.amax(-1, keepdim=True), sinks).detach()
    p = torch.exp(logits - top)
    total = p.sum(-1, keepdim=True) + torch.exp(sinks - top)
    p = p.to(x.dtype)
    near = p[..., :width].reshape(batch, blocks, WINDOW * heads, width) @ window
    out = near.view(batch, length, heads, dim)
    if entries is not None:
        out = out + (p[..., width:].reshape(batch, length * heads, -1) @ entries).view(batch, length, heads, dim)
    out = (out.float() / total).to(x.dtype)
    if entries is not None and ratio == 4:
        # Trains the indexer to predict the heads' summed attention (cross-entropy).
        target = (torch.exp((far - top).clamp(max=0)) / total).sum(2).detach()
        index_loss = -(target * F.log_softmax(scores, -1).masked_fill(hidden, 0)).sum() / (batch * length * heads)

    return attention_output(attn, out, angles, modes), index_loss


def swiglu(gate, up, limit):
    return F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)


def expert_hidden(experts, flat, weights, modes):
    """Returns the inputs of w2 [T, E, I]: SwiGLU of every expert times its routing weight."""
    up = linear(flat, nvfp4(experts.gate_up_proj, modes).flatten(0, 1))
    up = up.view(-1, experts.num_experts, 2, experts.intermediate_dim)
    y = swiglu(up[:, :, 0], up[:, :, 1], experts.limit) * weights.unsqueeze(-1)
    return y.to(flat.dtype)


def mixture(moe, x, ids, modes):
    """Returns (output, load of every expert). Computes all experts; experts that are not chosen have weight 0."""
    gate, experts, shared = moe.gate, moe.experts, moe.shared_experts
    flat = x.flatten(0, 1)
    scores = torch.sqrt(F.softplus(F.linear(flat.float(), gate.weight.float())))
    if moe.is_hash:
        chosen = gate.tid2eid[ids.flatten()]
    else:
        chosen = (scores.detach() + gate.e_score_correction_bias).topk(gate.top_k, -1).indices
    mask = torch.zeros_like(scores).scatter(1, chosen, 1.0)
    weights = scores * mask
    weights = weights / weights.sum(-1, keepdim=True) * gate.routed_scaling_factor

    y = expert_hidden(experts, flat, weights, modes)
    down = nvfp4(experts.down_proj, modes).transpose(0, 1).flatten(1)  # [D, E I]
    routed = linear(y.flatten(1), down)

    g, u = linear(flat, fp8(shared.gate_proj.weight, modes)), linear(flat, fp8(shared.up_proj.weight, modes))
    always = linear(swiglu(g, u, shared.limit).to(x.dtype), fp8(shared.down_proj.weight, modes))
    return (routed + always).view_as(x), mask.mean(0)


@dataclass
class Pieces:
    """The parts of a block. They are compiled one by one, because a block compiled as a whole is less exact."""

    rms_norm: Callable = rms_norm
    hyper_pre: Callable = hyper_pre
    hyper_post: Callable = hyper_post
    attention: Callable = attention
    mixture: Callable = mixture

    @staticmethod
    def compiled():
        parts = (rms_norm, hyper_pre, hyper_post, attention, mixture)
        return Pieces(*(torch.compile(part, dynamic=False) for part in parts))


def block(layer, h, ids, angles, hadamard, modes, pieces):
    x, post, comb = pieces.hyper_pre(layer.attn_hc, h)
    x = pieces.rms_norm(x, layer.input_layernorm.weight)
    out, index_loss = pieces.attention(layer.self_attn, x, angles, hadamard, modes)
    h = pieces.hyper_post(out, h, post, comb)
    x, post, comb = pieces.hyper_pre(layer.ffn_hc, h)
    out, load = pieces.mixture(layer.mlp, pieces.rms_norm(x, layer.post_attention_layernorm.weight), ids, modes)
    return pieces.hyper_post(out, h, post, comb), index_loss, load


def read_streams(hc, h):
    """Returns a head's mix [B, S, D] of the streams."""
    flat = h.flatten(2).float()
    rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    pre = torch.sigmoid(F.linear(flat, hc.hc_fn) * rho * hc.hc_scale + hc.hc_base) + hc.eps
    return (pre.unsqueeze(-1) * h.float()).sum(2).to(h.dtype)


def head(model, h):
    """Returns the normalised hidden states before the output matrix."""
    return rms_norm(read_streams(model.model.hc_head, h), model.model.norm.weight)


def layer_angles(rotary, kind, positions):
    """Returns the angles [S, 32] of a kind of layers ("main" or "compress"); positions are float32."""
    return positions.unsqueeze(1) * getattr(rotary, f"{kind}_inv_freq").float()


class NanoForCausalLM(DeepseekV4ForCausalLM):
    """transformers' model with the fast forward pass. Activations have `activation_dtype`, parameters are float32."""

    def __init__(self, config, activation_dtype=torch.bfloat16):
        super().__init__(config)
        self.activation_dtype = activation_dtype
        self.hadamard = torch.nn.Buffer(quant.hadamard(config.index_head_dim), persistent=False)
        self.pieces = Pieces()

    def modes(self, quantised, sparse, weights=None):
        """`quantised` applies to the cache, and to the weights unless `weights` is set."""
        values = quantised if weights is None else weights, quantised, sparse
        return Modes(*(torch.tensor(float(value), device=self.hadamard.device) for value in values))

    def layers(self, ids, modes):
        """Yields (streams [B, S, 4, D], index loss, expert load) after each layer; S a multiple of 128."""
        positions = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        x = self.model.embed_tokens(ids).to(self.activation_dtype)
        h = x.unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
        for layer in self.model.layers:
            angles = layer_angles(self.model.rotary_emb, layer.self_attn.rope_layer_type, positions)
            h, index_loss, load = block(layer, h, ids, angles, self.hadamard, modes, self.pieces)
            yield h, index_loss, load

    def hidden(self, ids, modes):
        """Returns (normalised hidden states, sum of index losses, expert loads [layers, E]) of ids [B, S]."""
        length = ids.shape[1]
        losses, loads = [], []
        for h, index_loss, load in self.layers(F.pad(ids, (0, -length % WINDOW)), modes):
            losses.append(index_loss)
            loads.append(load)
        return head(self, h)[:, :length], torch.stack(losses).sum(), torch.stack(loads)

    def forward(self, ids, modes=None):
        """Returns the logits of every position. Default: the quantised, sparse model."""
        y, _, _ = self.hidden(ids, modes or self.modes(1, 1))
        return linear(y, self.lm_head.weight).float()
