"""Quantised weights, packed in plain numpy by the public definitions of their formats; each with what it stands for."""

import json

import numpy as np
import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP4 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def words(values, bits):
    """(n, columns) small integers as 32-bit words along the first dimension: one stream of bits, lowest first."""
    stream = (values[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    stream = stream.reshape(-1, 32, values.shape[1])  # 32 bits a word
    packed = (stream.astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]).sum(1)
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32).copy())


def gptq(rng, inputs=64, outputs=32, bits=4, group=16, *, second=False, shuffled=False, order=True):
    """(parts, weight in float64)."""
    groups = -(-inputs // group)
    values = rng.integers(0, 2**bits, (inputs, outputs))
    zeros = rng.integers(0, 2**bits, (groups, outputs))
    zeros[0, 0], zeros[-1, -1] = 0, 2**bits - 1  # less one, the first is stored as the largest
    scales = rng.uniform(0.01, 0.1, (groups, outputs)).astype(np.float16)
    of = np.arange(inputs) // group
    of = rng.permutation(of) if shuffled else of
    parts = {
        "qweight": words(values, bits),
        "qzeros": words((zeros if second else (zeros - 1) % 2**bits).T, bits).T.contiguous(),
        "scales": torch.from_numpy(scales),
    }
    if order:
        parts["g_idx"] = torch.from_numpy(of.astype(np.int32))
    return parts, ((values - zeros[of]) * scales[of].astype(np.float64)).T


def awq(rng, inputs=64, outputs=32, group=16):
    values = rng.integers(0, 16, (inputs, outputs))
    zeros = rng.integers(0, 16, (-(-inputs // group), outputs))
    scales = rng.uniform(0.01, 0.1, (-(-inputs // group), outputs)).astype(np.float16)

    def packed(numbers):
        eight = numbers.reshape(len(numbers), -1, 8).astype(np.uint32)
        found = sum(eight[:, :, column] << np.uint32(4 * at) for at, column in enumerate(AWQ_ORDER))
        return torch.from_numpy(found.astype(np.uint32).view(np.int32).copy())

    parts = {"qweight": packed(values), "qzeros": packed(zeros), "scales": torch.from_numpy(scales)}
    of = np.arange(inputs) // group
    return parts, ((values - zeros[of]) * scales[of].astype(np.float64)).T


def int8_by_row(rng, outputs=32, inputs=24, layout=0):
    values = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    most = rng.uniform(0.1, 3.0, outputs).astype(np.float32)
    parts = {
        "weight": torch.from_numpy(values),
        "SCB": torch.from_numpy(most),
        "weight_format": torch.tensor(layout, dtype=torch.uint8),
    }
    return parts, values * (most.astype(np.float64) / 127)[:, None]


def four_bit(rng, kind="nf4", shape=(16, 24), block=64, nested=False):
    count = shape[0] * shape[1]
    codes = rng.integers(0, 16, count).astype(np.uint8)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    blocks = -(-count // block)
    state = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(shape)}
    absmax = rng.uniform(0.1, 2.0, blocks).astype(np.float32)
    parts = {"weight.quant_map": torch.from_numpy(table)}
    if nested:
        indices = rng.integers(0, 256, blocks).astype(np.uint8)
        inner = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        most = rng.uniform(0.1, 1.0, -(-blocks // 4)).astype(np.float32)
        state |= {"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": 1.25}
        absmax = inner[indices].astype(np.float64) * np.repeat(most, 4)[:blocks] + 1.25
        parts |= {"weight.nested_absmax": torch.from_numpy(most), "weight.nested_quant_map": torch.from_numpy(inner)}
        parts["weight.absmax"] = torch.from_numpy(indices)
    else:
        parts["weight.absmax"] = torch.from_numpy(absmax)
    parts["weight"] = torch.from_numpy((codes[::2] << 4 | codes[1::2])[:, None].copy())
    text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
    weight = table[codes].astype(np.float64) * np.repeat(absmax.astype(np.float64), block)[:count]
    return parts, weight.reshape(shape)


def fp8(rng, shape=(300, 200), blocks=None, dtype=torch.float8_e4m3fn, ending="weight_scale_inv"):
    """blocks: None: one scale; 0: one per row; (rows, columns): one per block."""
    values = torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)
    exact = values.double().numpy()
    if blocks is None:
        scale = np.float32(0.37).reshape(())
        weight = exact * float(scale)
    elif blocks == 0:
        scale = rng.uniform(0.1, 1, (shape[0], 1)).astype(np.float32)
        weight = exact * scale.astype(np.float64)
    else:
        scale = rng.uniform(0.1, 1, tuple(-(-n // b) for n, b in zip(shape, blocks, strict=True))).astype(np.float32)
        rows, columns = (np.arange(n) // b for n, b in zip(shape, blocks, strict=True))
        weight = exact * scale[rows][:, columns].astype(np.float64)
    return {"weight": values, ending: torch.from_numpy(np.array(scale))}, weight


def compressed(rng, outputs=16, inputs=64, bits=4, group=16, *, zero=False, shuffled=False):
    half = 2 ** (bits - 1)
    values = rng.integers(-half, half, (outputs, inputs))
    scale = rng.uniform(0.01, 0.1, (outputs, inputs // group)).astype(np.float32)
    of = np.arange(inputs) // group
    parts = {
        "weight_packed": words((values + half).T, bits).T.contiguous(),
        "weight_scale": torch.from_numpy(scale),
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    if shuffled:
        of = rng.permutation(of)
        parts["weight_g_idx"] = torch.from_numpy(of.astype(np.int32))
    offset = np.zeros((outputs, inputs // group), np.int64)
    if zero:
        offset = rng.integers(-half, half, offset.shape)
        parts["weight_zero_point"] = words(offset + half, bits)
    return parts, (values - offset[:, of]) * scale[:, of].astype(np.float64)


def mxfp4(rng, experts=3, outputs=8, blocks=2):
    """Weights as transformers keeps them: (experts, inputs, outputs)."""
    codes = rng.integers(0, 16, (experts, outputs, blocks, 32)).astype(np.uint8)
    scales = rng.integers(120, 132, (experts, outputs, blocks)).astype(np.uint8)
    weight = FP4[codes] * 2.0 ** (scales.astype(np.int64) - 127)[..., None]
    parts = {"_blocks": torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4), "_scales": torch.from_numpy(scales)}
    return parts, weight.reshape(experts, outputs, -1).transpose(0, 2, 1)


def nvfp4(rng, shape=(6, 40), *, divides=False):
    """Of modelopt, whose scale for all multiplies, or of compressed-tensors, whose scale for all divides."""
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    blocks = (*shape[:-1], -(-shape[-1] // 16))
    scale = torch.from_numpy(rng.uniform(0.5, 4, blocks).astype(np.float32)).to(torch.float8_e4m3fn)
    whole = np.float32(0.3)
    each = np.repeat(scale.double().numpy(), 16, -1)[..., : shape[-1]]
    weight = FP4[codes] * (each / float(whole) if divides else each * float(whole))
    names = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
    packed = torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4)
    return {names[0]: packed, "weight_scale": scale, names[1]: torch.tensor([whole])}, weight
