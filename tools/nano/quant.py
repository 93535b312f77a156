"""Number formats of the checkpoint and of the KV state: exact quantisers, and a straight-through form for training.

NVFP4: E2M1 values, one E4M3 scale per 16 along K, one F32 scale per tensor. FP8: E4M3 values, one power-of-two scale
per 128 x 128 block (weights) or per 64 channels (KV). Index keys and queries: Hadamard, then E2M1 with a power-of-two
scale per 32.
"""

import torch
import torch.nn.functional as F

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LIMITS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
FP8_MAX, FP4_MAX = 448.0, 6.0
NVFP4_RANGE = FP8_MAX * FP4_MAX


def e2m1_codes(x):
    """Returns codes 0..7 of |x|, ties to the even code: a tie goes up only if the upper code is even."""
    a = x.abs()
    code = torch.zeros_like(a, dtype=torch.uint8)
    for upper, limit in enumerate(E2M1_LIMITS, start=1):
        code += (a >= limit) if upper % 2 == 0 else (a > limit)
    return code


def round_e2m1(x):
    """Returns the nearest E2M1 value without branches: steps of 0.5 below 2, 1 below 4, 2 above; ties to even."""
    a = x.abs().clamp(max=FP4_MAX)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, x)


def round_e4m3(x):
    """Returns the nearest E4M3 value of |x| <= 448. It avoids the float8 type, so that compiled graphs can fuse it."""
    bits = x.float().abs().clamp(min=2.0**-6).contiguous().view(torch.int32)
    step = ((bits & 0x7F800000) - (3 << 23)).view(torch.float32)  # 2^(exponent - 3)
    return torch.round(x / step) * step


def power_of_two_scale(amax, top):
    """Returns 2^ceil(log2(amax / top)). It uses the bits of the float, so that it is exact at powers of two."""
    bits = (amax / top).float().contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def nvfp4_scales(w, scale_2):
    """Returns the E4M3 block scales [..., K / 16] as float32. `scale_2` is the tensor's scale."""
    amax = w.unflatten(-1, (-1, 16)).abs().amax(-1)
    scale = (amax / (FP4_MAX * scale_2)).clamp(2.0**-9, FP8_MAX)
    return torch.where(amax == 0, torch.ones_like(scale), round_e4m3(scale))


def nvfp4_round(w, scale_2):
    """Returns w rounded to NVFP4. scale_2 broadcasts against [..., K / 16]."""
    scale = (nvfp4_scales(w, scale_2) * scale_2).unsqueeze(-1)
    blocks = w.unflatten(-1, (-1, 16))
    return (round_e2m1(blocks / scale) * scale).flatten(-2)


def nvfp4_pack(w, scale_2):
    """Returns (weight U8 [N, K / 2] with the even index in the low nibble, weight_scale E4M3 [N, K / 16])."""
    scales = nvfp4_scales(w, scale_2)
    x = w.unflatten(-1, (-1, 16)) / (scales * scale_2).unsqueeze(-1)
    codes = (e2m1_codes(x) | (torch.signbit(x).to(torch.uint8) << 3)).flatten(-2)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales.to(torch.float8_e4m3fn)


def e2m1_values(packed):
    """Returns the values [N, K] of bytes [N, K / 2]."""
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1))
    return table[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]


def nvfp4_unpack(packed, scales, scale_2):
    return (e2m1_values(packed).unflatten(-1, (-1, 16)) * (scales.float() * scale_2).unsqueeze(-1)).flatten(-2)


def mxfp4_unpack(packed, scales):
    """Returns the values of the official release's experts: bytes of type I8, E8M0 scales per 32."""
    blocks = e2m1_values(packed.view(torch.uint8)).unflatten(-1, (-1, 32))
    return (blocks * scales.float().unsqueeze(-1)).flatten(-2)


def fp8_block_scales(w):
    """Returns power-of-two scales [ceil(N / 128), ceil(K / 128)]."""
    rows, columns = w.shape
    padded = F.pad(w, (0, -columns % 128, 0, -rows % 128))
    amax = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).abs().amax((1, 3))
    return power_of_two_scale(amax.clamp(min=1e-4), FP8_MAX)


def expand_blocks(scales, shape):
    return scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]


def fp8_round(w):
    """Returns w rounded to FP8 128 x 128."""
    scale = expand_blocks(fp8_block_scales(w), w.shape)
    return round_e4m3(w / scale) * scale


def fp8_pack(w):
    """Returns (weight E4M3, scale E8M0)."""
    scales = fp8_block_scales(w)
    return (w / expand_blocks(scales, w.shape)).to(torch.float8_e4m3fn), scales.to(torch.float8_e8m0fnu)


def fp8_unpack(weight, scales):
    return weight.float() * expand_blocks(scales.float(), weight.shape)


def kv_round(x):
    """Returns a KV row rounded to FP8: the first channels in blocks of 64; the last 64 (RoPE) keep their values."""
    nope = x[..., :-64].float().unflatten(-1, (-1, 64))
    scale = power_of_two_scale(nope.abs().amax(-1, keepdim=True).clamp(min=1e-4), FP8_MAX)
    rounded = (round_e4m3(nope / scale) * scale).flatten(-2)
    return torch.cat((rounded.to(x.dtype), x[..., -64:]), -1)


def hadamard(size):
    """Returns Sylvester's matrix, scaled to be orthogonal."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix * size**-0.5


def index_round(x):
    """Returns index queries or keys (after the Hadamard matrix) rounded to FP4 in blocks of 32."""
    blocks = x.float().unflatten(-1, (-1, 32))
    scale = power_of_two_scale(blocks.abs().amax(-1, keepdim=True).clamp(min=FP4_MAX * 2.0**-126), FP4_MAX)
    return (round_e2m1(blocks / scale) * scale).flatten(-2).to(x.dtype)


def straight_through(x, rounded, on):
    """Returns x blended into its rounded value by `on` in 0..1. The gradient is that of x."""
    return x + on * (rounded - x).detach()
