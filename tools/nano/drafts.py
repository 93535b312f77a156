"""The draft modules for training: MTP's block and DSpark's stages, which read the activations of the frozen model.

Both are transformers' decoder layers (window attention only, learned router) plus the tensors of a draft module, with
the names of the official checkpoint: `mtp.N.`. A draft reads a ring of rows of final positions and its own rows. Here
all drafts of a text are computed at once; each sees the true tokens before it.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
)

import model as nano
from model import WINDOW, fp8, linear, read_streams, rms_norm


@dataclass
class Seen:
    """The outputs of the frozen model for ids [B, S]; S is a multiple of 128."""

    ids: torch.Tensor
    logits: torch.Tensor  # [B, S, V] float32: row t predicts ids[t + 1]
    streams: torch.Tensor  # [B, S, 4, D] after the last layer
    main: torch.Tensor | None  # [B, S, n D]: means of the streams after the target layers


@torch.no_grad()
def look(trunk, ids, modes, targets):
    means, last = [], None
    for number, (streams, _, _) in enumerate(trunk.layers(ids, modes)):
        last = streams
        if number in targets:
            means.append(streams.float().mean(2).to(streams.dtype))
    logits = F.linear(nano.head(trunk, last).float(), trunk.lm_head.weight)
    return Seen(ids, logits, last, torch.cat(means, -1) if means else None)


def later(x, count):
    """Returns x [B, S, ...] moved `count` positions towards the end; the first rows are zero."""
    return x if count == 0 else torch.cat((torch.zeros_like(x[:, :count]), x[:, :-count]), 1)


def ring_mask(length, offsets, behind):
    """Returns [N, a, 256]: whether key j of (previous block, own block) is a ring row of the draft at `offsets`.

    The last ring row is `behind` rows before the draft's row; the first is the first row of its window.
    """
    at, j = offsets.unsqueeze(1), torch.arange(2 * WINDOW, device=offsets.device) - WINDOW
    mask = (j <= at - behind) & (j > at - WINDOW)
    return torch.cat(((mask & (j >= 0)).unsqueeze(0), mask.expand(length // WINDOW - 1, -1, -1)))


def attend(attn, q, ring, own, mask):
    """Returns the heads' sums [B, A, m, heads, dim] of A drafts with m queries each.

    A draft's queries see the rows of ring [B, S, dim] that mask [N, A / N, 256] selects, and all of own [B, A, c, dim].
    """
    batch, drafts, places, heads, dim = q.shape
    blocks = mask.shape[0]
    rows = ring.view(batch, blocks, WINDOW, dim)
    window = torch.cat((F.pad(rows[:, :-1], (0, 0, 0, 0, 1, 0)), rows), 2)  # [B, N, 256, dim]
    flat = q.reshape(batch, blocks, -1, dim)
    near = (flat @ window.transpose(2, 3)).float().view(batch, blocks, drafts // blocks, places * heads, -1)
    near = near.masked_fill(~mask.unsqueeze(2), nano.NEGATIVE).view(batch, drafts, places * heads, -1)
    beside = (q.flatten(2, 3) @ own.transpose(2, 3)).float()
    sinks = attn.sinks.float().repeat(places).view(1, 1, -1, 1).expand(batch, drafts, -1, 1)
    p = torch.cat((near * attn.scaling, beside * attn.scaling, sinks), -1).softmax(-1).to(q.dtype)
    width = near.shape[-1]
    out = (p[..., :width].reshape(batch, blocks, -1, 2 * WINDOW) @ window).view(batch, drafts, -1, dim)
    out = out + p[..., width:-1] @ own
    return out.view(batch, drafts, places, heads, dim)


def project(attn, x, angles, modes):
    """Returns (queries [B, S, heads, dim], rows [B, S, dim]) of x."""
    return nano.queries(attn, x, angles, modes)[0], nano.key_rows(attn, x, angles, modes)


def give_back(attn, out, angles, modes):
    return nano.attention_output(attn, out, angles, modes)


@dataclass
class Pieces:
    """The parts of a stage. They are compiled one by one, like the parts of the model."""

    rms_norm: object = rms_norm
    hyper_pre: object = nano.hyper_pre
    hyper_post: object = nano.hyper_post
    project: object = project
    key_rows: object = nano.key_rows
    attend: object = attend
    give_back: object = give_back
    mixture: object = nano.mixture

    @staticmethod
    def compiled():
        return Pieces(*(torch.compile(part, dynamic=False) for part in vars(Pieces()).values()))


class Drafter(torch.nn.Module):
    """Stages `mtp.N`, initialised from the layers `sources` of the model, with head and norm in the last stage."""

    def __init__(self, trunk, sources):
        super().__init__()
        count = len(sources)
        self.config = copy.deepcopy(trunk.config)
        self.config.layer_types, self.config.mlp_layer_types = ["sliding_attention"] * count, ["moe"] * count
        self.mtp = torch.nn.ModuleList(DeepseekV4DecoderLayer(self.config, i) for i in range(count))
        for stage, source in zip(self.mtp, sources):
            stage.load_state_dict(trunk.model.layers[source].state_dict(), strict=False)
        last = self.mtp[-1]
        last.hc_head, last.norm = DeepseekV4HyperHead(self.config), self.norm()
        last.hc_head.load_state_dict(trunk.model.hc_head.state_dict())
        last.norm.load_state_dict(trunk.model.norm.state_dict())
        self.pieces = Pieces()

    def norm(self):
        return DeepseekV4RMSNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)

    def mix(self, stage, h, modes):
        """Returns (streams after the stage's experts, load)."""
        x, post, comb = self.pieces.hyper_pre(stage.ffn_hc, h)
        x = self.pieces.rms_norm(x, stage.post_attention_layernorm.weight)
        out, load = self.pieces.mixture(stage.mlp, x, None, modes)
        return self.pieces.hyper_post(out, h, post, comb), load

    def read(self, h):
        """Returns (the head's mix of the streams, the same after the norm)."""
        y = read_streams(self.mtp[-1].hc_head, h)
        return y, rms_norm(y, self.mtp[-1].norm.weight)


class Mtp(Drafter):
    """One block; row i joins the streams of position i with the token at i + 1 and predicts the one at i + 2."""

    def __init__(self, trunk):
        super().__init__(trunk, [trunk.config.num_hidden_layers - 1])
        block, d = self.mtp[0], self.config.hidden_size
        block.enorm, block.hnorm = self.norm(), self.norm()
        block.e_proj, block.h_proj = (torch.nn.Linear(d, d, bias=False) for _ in range(2))
        torch.nn.init.eye_(block.h_proj.weight)
        torch.nn.init.normal_(block.e_proj.weight, std=0.02)

    def forward(self, trunk, seen, modes, steps=3):
        """Returns normalised states [B, S, D] for each step s = 0 .. steps-1, and loads.

        Row i of step s predicts token s + 1 of the draft after position i - s; the first s rows have no meaning.
        Later steps read the block's own streams of the previous row.
        """
        block, pieces, length = self.mtp[0], self.pieces, seen.ids.shape[1]
        positions = torch.arange(length, device=seen.ids.device)
        angles = nano.layer_angles(trunk.model.rotary_emb, "main", positions.float())
        following = F.pad(seen.ids[:, 1:], (0, 1))
        embedded = trunk.model.embed_tokens(following).to(seen.streams.dtype)
        e = linear(pieces.rms_norm(embedded, block.enorm.weight), fp8(block.e_proj.weight, modes))
        streams, ring, drafted, states, loads = seen.streams, None, [], [], []
        for step in range(steps):
            hidden = linear(pieces.rms_norm(streams, block.hnorm.weight), fp8(block.h_proj.weight, modes))
            h = e.unsqueeze(2) + hidden
            x, post, comb = pieces.hyper_pre(block.attn_hc, h)
            x = pieces.rms_norm(x, block.input_layernorm.weight)
            q, rows = pieces.project(block.self_attn, x, angles, modes)
            # The first row of a draft is a ring row; the rows of later steps are its own.
            ring = rows if step == 0 else ring
            drafted = [rows] if step < 2 else [*(later(r, 1) for r in drafted), rows]
            mask = ring_mask(length, positions[:WINDOW], max(step, 1))
            own = torch.stack(drafted, 2)
            out = pieces.attend(block.self_attn, q.unsqueeze(2), ring, own, mask).squeeze(2)
            out = pieces.give_back(block.self_attn, out, angles, modes)
            h, load = self.mix(block, pieces.hyper_post(out, h, post, comb), modes)
            states.append(self.read(h)[1])
            loads.append(load)
            streams = later(h, 1)
        return states, [torch.stack(loads).mean(0)]


class MarkovHead(torch.nn.Module):
    def __init__(self, vocab, rank):
        super().__init__()
        self.markov_w1, self.markov_w2 = torch.nn.Embedding(vocab, rank), torch.nn.Linear(rank, vocab, bias=False)


class ConfidenceHead(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = torch.nn.Linear(width, 1, bias=False)


class Dspark(Drafter):
    """Stages that draft a block at once. A bigram head links its positions, a confidence head rates them."""

    def __init__(self, trunk, block, noise, rank, targets):
        super().__init__(trunk, targets)
        self.block, self.noise, self.targets = block, noise, targets
        first, last, d = self.mtp[0], self.mtp[-1], self.config.hidden_size
        first.main_proj, first.main_norm = torch.nn.Linear(len(targets) * d, d, bias=False), self.norm()
        last.markov_head = MarkovHead(self.config.vocab_size, rank)
        last.confidence_head = ConfidenceHead(d + rank)
        torch.nn.init.normal_(first.main_proj.weight, std=0.02)
        torch.nn.init.normal_(last.markov_head.markov_w1.weight, std=0.5)
        torch.nn.init.zeros_(last.markov_head.markov_w2.weight)
        torch.nn.init.zeros_(last.confidence_head.proj.weight)

    def forward(self, trunk, seen, modes, anchors):
        """Drafts after the positions `anchors` [A]. Each 128 positions of S have the same offsets of anchors.

        Returns normalised states [B, A, block, D], bigram states [B, A, block, rank], confidences [B, A, block] and
        loads. The token before each draft position is the text's.
        """
        pieces, length, batch = self.pieces, seen.ids.shape[1], seen.ids.shape[0]
        places = anchors.unsqueeze(1) + 1 + torch.arange(self.block, device=anchors.device)  # [A, block]
        rotary, everywhere = trunk.model.rotary_emb, torch.arange(length, device=anchors.device)
        ring_angles = nano.layer_angles(rotary, "main", everywhere.float())
        angles = nano.layer_angles(rotary, "main", places.flatten().float())
        before = seen.ids[:, places.clamp(max=length - 1)]
        tokens = torch.where(torch.arange(self.block, device=anchors.device) == 0, before, self.noise)
        x = trunk.model.embed_tokens(tokens.flatten(1)).to(seen.main.dtype)
        h = x.unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
        mask = ring_mask(length, anchors[: len(anchors) * WINDOW // length], 0)
        main = linear(seen.main, fp8(self.mtp[0].main_proj.weight, modes))
        main = pieces.rms_norm(main, self.mtp[0].main_norm.weight)
        loads = []
        for stage in self.mtp:
            attn = stage.self_attn
            ring = pieces.key_rows(attn, main, ring_angles, modes)
            x, post, comb = pieces.hyper_pre(stage.attn_hc, h)
            x = pieces.rms_norm(x, stage.input_layernorm.weight)
            q, own = pieces.project(attn, x, angles, modes)
            q, own = (rows.unflatten(1, (-1, self.block)) for rows in (q, own))
            out = pieces.attend(attn, q, ring, own, mask).flatten(1, 2)
            out = pieces.give_back(attn, out, angles, modes)
            h, load = self.mix(stage, pieces.hyper_post(out, h, post, comb), modes)
            loads.append(load)
        y, state = self.read(h)
        last = self.mtp[-1]
        bigram = last.markov_head.markov_w1(before)
        joined = torch.cat((y.view(batch, len(anchors), self.block, -1).float(), bigram), -1)
        return state.view(batch, len(anchors), self.block, -1), bigram, last.confidence_head.proj(joined)[..., 0], loads
