"""DeepSeek-V4's forward pass in float64, a direct translation of the equations in docs/dev/model.md.

A text may be appended in pieces; the rows do not depend on the division. With `simulate`, cached rows are rounded to
FP8 and index queries and keys to FP4, as in the official code. `margin` is the smallest difference, in the last piece,
between the scores of the last chosen and the first rejected expert or index row.
"""

import math

import numpy as np

from formats import E2M1, E4M3, round_blocks, unpack, unpack_plain

HC = ("attn", "ffn")


def rms_norm(x, weight=1.0, eps=1e-6):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def silu(x):
    return x * sigmoid(x)


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix * size**-0.5


def frequencies(config, ratio):
    """Returns the frequencies of RoPE's channel pairs: plain for sliding layers, with YaRN's ramp for others."""
    size = config["qk_rope_head_dim"]
    i = np.arange(size // 2)
    if ratio == 0:
        return config["rope_theta"] ** (-2 * i / size)
    theta, yarn = config["compress_rope_theta"], config["rope_scaling"]
    base = theta ** (-2 * i / size)

    def channel(turns):
        return size * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = math.floor(channel(yarn["beta_fast"])), math.ceil(channel(yarn["beta_slow"]))
    ramp = np.clip((i - max(low, 0)) / (min(high, size - 1) - max(low, 0)), 0, 1)
    return base * (1 - ramp) + base / yarn["factor"] * ramp


def rope(x, positions, f, direction=1):
    """Returns x [T, ..., channels] with its last channels rotated in pairs."""
    angle = positions[:, None].astype(np.float32) * f.astype(np.float32)  # rounded, as in the official code
    angle = angle.astype(np.float64).reshape(len(x), *[1] * (x.ndim - 2), -1) * direction
    head, tail = np.split(x, [x.shape[-1] - 2 * len(f)], -1)
    a, b = tail[..., 0::2], tail[..., 1::2]
    turned = np.stack((a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)), -1)
    return np.concatenate((head, turned.reshape(tail.shape)), -1)


def round_row(x, rope_size):
    """Returns x with the channels before RoPE's rounded to FP8 in blocks of 64."""
    head, tail = np.split(x, [x.shape[-1] - rope_size], -1)
    return np.concatenate((round_blocks(head, 64, E4M3, 1e-4), tail), -1)


def round_index(x):
    return round_blocks(x, 32, E2M1, 6 * 2.0**-126)


class Compressor:
    """Pools every `ratio` tokens into a row. With ratio 4 a row also reads the 4 tokens before them."""

    def __init__(self, tensors, name, ratio, f, finish):
        self.wkv, self.wgate = unpack(tensors, name + ".wkv"), unpack(tensors, name + ".wgate")
        self.ape = unpack_plain(tensors[name + ".ape"])
        self.norm = unpack_plain(tensors[name + ".norm.weight"])
        self.ratio, self.f, self.finish = ratio, f, finish
        self.size = len(self.norm)
        self.values = self.gates = np.zeros((0, len(self.wkv)))
        self.rows = np.zeros((0, self.size))

    def append(self, x, start):
        ape = self.ape[(start + np.arange(len(x))) % self.ratio]
        self.values = np.concatenate((self.values, x @ self.wkv.T))
        self.gates = np.concatenate((self.gates, x @ self.wgate.T + ape))
        new = [self.row(w) for w in range(len(self.rows), len(self.values) // self.ratio)]
        self.rows = np.concatenate((self.rows, *new)) if new else self.rows

    def row(self, w):
        own = slice(w * self.ratio, (w + 1) * self.ratio)
        values, gates = self.values[own, -self.size:], self.gates[own, -self.size:]
        if self.ratio == 4 and w > 0:
            before = slice((w - 1) * self.ratio, w * self.ratio)
            values = np.concatenate((self.values[before, :self.size], values))
            gates = np.concatenate((self.gates[before, :self.size], gates))
        pooled = (softmax(gates, 0) * values).sum(0, keepdims=True)
        return self.finish(rope(rms_norm(pooled, self.norm), np.array([w * self.ratio]), self.f))

    def truncate(self, length):
        self.values, self.gates = self.values[:length], self.gates[:length]
        self.rows = self.rows[:length // self.ratio]


class Attention:
    def __init__(self, config, tensors, name, ratio, simulate):
        self.config, self.ratio, self.simulate = config, ratio, simulate
        self.w = {part: unpack(tensors, f"{name}.{part}") for part in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")}
        self.q_norm = unpack_plain(tensors[name + ".q_norm.weight"])
        self.kv_norm = unpack_plain(tensors[name + ".kv_norm.weight"])
        self.sink = unpack_plain(tensors[name + ".attn_sink"])
        self.f = frequencies(config, ratio)
        self.rope_size = config["qk_rope_head_dim"]
        self.rows = np.zeros((0, config["head_dim"]))
        self.compressor = self.keys = None
        self.margin = math.inf
        if ratio:
            self.compressor = Compressor(tensors, name + ".compressor", ratio, self.f, self.finish_row)
        if ratio == 4:
            self.hadamard = hadamard(config["index_head_dim"])
            self.index_q = unpack(tensors, name + ".indexer.wq_b")
            self.index_weights = unpack(tensors, name + ".indexer.weights_proj")
            self.keys = Compressor(tensors, name + ".indexer.compressor", ratio, self.f, self.finish_index)

    def finish_row(self, x):
        return round_row(x, self.rope_size) if self.simulate else x

    def finish_index(self, x):
        x = x @ self.hadamard
        return round_index(x) if self.simulate else x

    def append(self, x, start):
        c, positions = self.config, start + np.arange(len(x))
        compressed = rms_norm(x @ self.w["wq_a"].T, self.q_norm)
        q = (compressed @ self.w["wq_b"].T).reshape(len(x), c["num_attention_heads"], -1)
        q = rope(rms_norm(q), positions, self.f)
        row = self.finish_row(rope(rms_norm(x @ self.w["wkv"].T, self.kv_norm), positions, self.f))
        self.rows = np.concatenate((self.rows, row))
        if self.compressor:
            self.compressor.append(x, start)
        chosen = self.choose(x, compressed, positions, start)
        out = np.stack([self.attend(q[i], t, chosen[i]) for i, t in enumerate(positions)])
        out = rope(out, positions, self.f, -1).reshape(len(x), c["o_groups"], -1)
        w = self.w["wo_a"].reshape(c["o_groups"], -1, out.shape[-1])
        return np.einsum("tgk,gnk->tgn", out, w).reshape(len(x), -1) @ self.w["wo_b"].T

    def choose(self, x, compressed, positions, start):
        """Returns the compressed rows that each token attends to."""
        self.margin = math.inf
        visible = [(t + 1) // self.ratio if self.ratio else 0 for t in positions]
        if self.keys is None:
            return [np.arange(n) for n in visible]
        c, heads = self.config, self.config["index_n_heads"]
        self.keys.append(x, start)
        q = (compressed @ self.index_q.T).reshape(len(x), heads, -1)
        q = self.finish_index(rope(q, positions, self.f))
        weights = x @ self.index_weights.T * (c["index_head_dim"] * heads) ** -0.5
        chosen = []
        for i, n in enumerate(visible):
            scores = weights[i] @ np.maximum(q[i] @ self.keys.rows[:n].T, 0)
            order = np.argsort(-scores, kind="stable")
            k = c["index_topk"]
            if n > k:
                self.margin = min(self.margin, scores[order[k - 1]] - scores[order[k]])
            chosen.append(order[:k])
        return chosen

    def attend(self, q, t, chosen):
        rows = self.rows[max(0, t + 1 - self.config["sliding_window"]):t + 1]
        if self.compressor:
            rows = np.concatenate((rows, self.compressor.rows[chosen]))
        scores = np.column_stack((q @ rows.T * q.shape[-1] ** -0.5, self.sink))
        return softmax(scores, 1)[:, :-1] @ rows

    def truncate(self, length):
        self.rows = self.rows[:length]
        for part in (self.compressor, self.keys):
            if part:
                part.truncate(length)


class Experts:
    def __init__(self, config, tensors, name):
        self.config = config
        self.gate = unpack(tensors, name + ".gate")
        table, bias = tensors.get(name + ".gate.tid2eid"), tensors.get(name + ".gate.bias")
        self.table = None if table is None else unpack_plain(table)
        self.bias = 0.0 if bias is None else unpack_plain(bias)
        names = [f"{name}.experts.{e}" for e in range(config["n_routed_experts"])] + [name + ".shared_experts"]
        self.w = [[unpack(tensors, f"{expert}.{part}") for part in ("w1", "w2", "w3")] for expert in names]
        self.margin = math.inf

    def run(self, expert, x, weight):
        w1, w2, w3 = self.w[expert]
        limit = self.config["swiglu_limit"]
        up = np.clip(x @ w3.T, -limit, limit)
        return silu(np.minimum(x @ w1.T, limit)) * up * weight @ w2.T

    def append(self, x, ids):
        scores = np.sqrt(np.log1p(np.exp(x @ self.gate.T)))
        count, self.margin = self.config["num_experts_per_tok"], math.inf
        if self.table is not None:
            chosen = self.table[ids]
        else:
            biased = scores + self.bias
            order = np.argsort(-biased, 1, kind="stable")
            chosen = order[:, :count]
            edge = np.take_along_axis(biased, order[:, count - 1:count + 1], 1)
            self.margin = (edge[:, 0] - edge[:, 1]).min()
        weights = np.take_along_axis(scores, chosen, 1)
        weights = weights / weights.sum(1, keepdims=True) * self.config["routed_scaling_factor"]
        out = self.run(-1, x, 1.0)
        for expert in np.unique(chosen):
            tokens, slots = np.nonzero(chosen == expert)
            out[tokens] += self.run(expert, x[tokens], weights[tokens, slots][:, None])
        return out


class Site:
    """One hyper-connection: reads the streams for a sublayer, and writes its output to the streams."""

    def __init__(self, config, tensors, name):
        self.config = config
        self.fn, self.base, self.scale = (unpack_plain(tensors[f"{name}_{part}"]) for part in ("fn", "base", "scale"))

    def mixes(self, h):
        flat = h.reshape(len(h), -1)
        return rms_norm(flat, eps=self.config["rms_norm_eps"]) @ self.fn.T

    def read(self, h):
        n, eps = self.config["hc_mult"], self.config["hc_eps"]
        m = self.mixes(h)
        pre = sigmoid(m[:, :n] * self.scale[0] + self.base[:n]) + eps
        if m.shape[1] == n:  # the head's
            return np.einsum("tj,tjd->td", pre, h)
        self.post = 2 * sigmoid(m[:, n:2 * n] * self.scale[1] + self.base[n:2 * n])
        comb = softmax((m[:, 2 * n:] * self.scale[2] + self.base[2 * n:]).reshape(-1, n, n), 2) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        self.comb = comb
        return np.einsum("tj,tjd->td", pre, h)

    def write(self, out, h):
        return self.post[:, :, None] * out[:, None] + np.einsum("tjk,tjd->tkd", self.comb, h)


class Reference:
    def __init__(self, config, tensors, simulate=False):
        self.config = config
        self.embed, self.head = unpack(tensors, "embed"), unpack(tensors, "head")
        self.norm = unpack_plain(tensors["norm.weight"])
        self.last = Site(config, tensors, "hc_head")
        self.layers = []
        for i in range(config["num_hidden_layers"]):
            name = f"layers.{i}"
            blocks = (Attention(config, tensors, name + ".attn", config["compress_ratios"][i], simulate),
                      Experts(config, tensors, name + ".ffn"))
            sites = [Site(config, tensors, f"{name}.hc_{part}") for part in HC]
            norms = [unpack_plain(tensors[f"{name}.{part}_norm.weight"]) for part in HC]
            self.layers.append((blocks, sites, norms))
        self.length = 0

    def append(self, ids):
        """Returns (logits [T, V], streams after each layer [L][T, H, D]) of the next tokens."""
        ids = np.asarray(ids)
        h = np.repeat(self.embed[ids][:, None], self.config["hc_mult"], 1)
        streams = []
        for (attention, experts), sites, norms in self.layers:
            h = sites[0].write(attention.append(rms_norm(sites[0].read(h), norms[0]), self.length), h)
            h = sites[1].write(experts.append(rms_norm(sites[1].read(h), norms[1]), ids), h)
            streams.append(h)
        self.length += len(ids)
        return rms_norm(self.last.read(h), self.norm) @ self.head.T, streams

    @property
    def margin(self):
        return min(block.margin for blocks, _, _ in self.layers for block in blocks)

    def truncate(self, length):
        """Forgets all tokens after the first `length`."""
        self.length = length
        for (attention, _), _, _ in self.layers:
            attention.truncate(length)
