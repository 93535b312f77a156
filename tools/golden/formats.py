"""The number formats of checkpoints in numpy: values to bytes and back, exact in float64.

A byte holds two E2M1 codes, the even column in the low half. FP8 has a power of two per block of 128 x 128, MXFP4 a
power of two per 32 columns. NVFP4 has an E4M3 scale per 16 columns and a float32 scale per tensor.
"""

import numpy as np

FP8_MAX, FP4_MAX = 448.0, 6.0
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3_values():
    """Returns the 127 finite values of E4M3 that are not negative, ascending. The index is the code."""
    code = np.arange(127)
    exponent, fraction = code >> 3, code & 7
    return np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))


E4M3 = e4m3_values()


def nearest_code(x, values):
    """Returns the codes of the values nearest to |x|. Ties go to the even code; larger values get the last code."""
    x = np.abs(x)
    upper = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    middle = (values[upper - 1] + values[upper]) / 2
    return np.where((x > middle) | ((x == middle) & (upper % 2 == 0)), upper, upper - 1)


def round_to(x, values):
    return np.copysign(values[nearest_code(x, values)], x)


def power_of_two(amax, top):
    """Returns the exponent of the smallest power of two s with amax / s <= top."""
    mantissa, exponent = np.frexp(amax / top)
    return np.where(mantissa == 0.5, exponent - 1, exponent)


def blocks(x, size):
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def round_blocks(x, size, values, smallest):
    """Returns x with every block of `size` channels rounded to `values` times a power of two."""
    b = blocks(x, size)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), smallest)
    scale = np.ldexp(1.0, power_of_two(amax, values[-1]))
    return (round_to(b / scale, values) * scale).reshape(x.shape)


# bytes <- values: {suffix of the tensor's name: (dtype, shape, bytes)}


def plain(x, dtype):
    """Returns x as F32, I32, I64 or BF16 (rounded to nearest even)."""
    if dtype == "BF16":
        bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
        data = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    else:
        data = np.asarray(x).astype({"F32": "<f4", "I32": "<i4", "I64": "<i8"}[dtype])
    return dtype, list(np.shape(x)), data.tobytes()


def pack_bf16(x, _):
    return {".weight": plain(x, "BF16")}


def pack_fp8(x, _):
    rows, columns = x.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-columns // 128) * 128))
    padded[:rows, :columns] = np.abs(x)
    amax = padded.reshape(padded.shape[0] // 128, 128, -1, 128).max((1, 3))
    exponent = power_of_two(np.maximum(amax, 1e-4), FP8_MAX)
    scaled = x / np.ldexp(1.0, exponent).repeat(128, 0).repeat(128, 1)[:rows, :columns]
    codes = nearest_code(scaled, E4M3) | (np.signbit(x) << 7)
    return {".weight": ("F8_E4M3", list(x.shape), codes.astype(np.uint8).tobytes()),
            ".scale": ("F8_E8M0", list(amax.shape), (exponent + 127).astype(np.uint8).tobytes())}


def nibbles(scaled):
    codes = (nearest_code(scaled, E2M1) | (np.signbit(scaled) << 3)).astype(np.uint8).reshape(len(scaled), -1)
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def pack_mxfp4(x, _):
    b = blocks(x, 32)
    exponent = power_of_two(np.maximum(np.abs(b).max(-1), FP4_MAX * 2.0**-126), FP4_MAX)
    packed = nibbles(b / np.ldexp(1.0, exponent)[..., None])
    return {".weight": ("I8", list(packed.shape), packed.tobytes()),
            ".scale": ("F8_E8M0", list(exponent.shape), (exponent + 127).astype(np.uint8).tobytes())}


def pack_nvfp4(x, rng):
    b = blocks(x, 16)
    whole = np.float64(np.float32(np.abs(x).max() / (FP4_MAX * FP8_MAX)))
    scale = nearest_code(np.maximum(np.abs(b).max(-1) / FP4_MAX / whole, E4M3[1]), E4M3)
    packed = nibbles(b / (E4M3[scale] * whole)[..., None])
    return {".weight": ("U8", list(packed.shape), packed.tobytes()),
            ".weight_scale": ("F8_E4M3", list(scale.shape), scale.astype(np.uint8).tobytes()),
            ".weight_scale_2": plain(np.float32(whole), "F32"),
            ".input_scale": plain(np.float32(rng.uniform(0.001, 0.01)), "F32")}  # readers must not use it


# values <- bytes


def unpack_plain(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64).reshape(shape)
    kind = {"F32": "<f4", "I32": "<i4", "I64": "<i8"}[dtype]
    x = np.frombuffer(data, kind).reshape(shape)
    return x.astype(np.float64) if dtype == "F32" else x


def e4m3_numbers(tensor):
    codes = np.frombuffer(tensor[2], np.uint8).reshape(tensor[1])
    return np.where(codes & 128, -1.0, 1.0) * E4M3[codes & 127]


def e8m0_numbers(tensor):
    return np.ldexp(1.0, np.frombuffer(tensor[2], np.uint8).reshape(tensor[1]).astype(int) - 127)


def e2m1_numbers(tensor):
    packed = np.frombuffer(tensor[2], np.uint8).reshape(tensor[1])
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(len(packed), -1)
    return np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]


def unpack(tensors, name):
    """Returns the values of a matrix in any format, from its tensor and its scales."""
    weight = tensors[name + ".weight"]
    if weight[0] == "F8_E4M3":
        x = e4m3_numbers(weight)
        scale = e8m0_numbers(tensors[name + ".scale"]).repeat(128, 0).repeat(128, 1)
        return x * scale[:x.shape[0], :x.shape[1]]
    if weight[0] == "I8":
        return e2m1_numbers(weight) * e8m0_numbers(tensors[name + ".scale"]).repeat(32, 1)
    if weight[0] == "U8":
        scale = e4m3_numbers(tensors[name + ".weight_scale"]) * unpack_plain(tensors[name + ".weight_scale_2"])
        return e2m1_numbers(weight) * scale.repeat(16, 1)
    return unpack_plain(weight)
