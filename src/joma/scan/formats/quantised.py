"""Quantised weights, made floating numbers again: GPTQ, AWQ, bitsandbytes, FP8, MXFP4, NVFP4, compressed-tensors.

Each format is known by the names of its parts, and its layout by their shapes; config.json settles what these leave
open. What comes out is float32. A format that is not here is refused by name.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Parts, Recipe, Rows, Stored, cut

# The 16 numbers of FP4 (one bit of sign, two of exponent, one of mantissa).
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble k of a word of AWQ belongs to this one of its eight columns
_KNOWN = ("gptq", "awq", "bitsandbytes", "fp8", "fbgemm_fp8", "mxfp4", "compressed-tensors", "auto-round", "modelopt")
_SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_SCALES = ("{}_scale_inv", "{}_scale")  # of a tensor of that name
_MARKS = (".qweight", ".SCB", ".weight_packed", "_blocks", "_scale_inv", "_scale", "__nf4", "__fp4")
_STATE = re.compile(r"(.+)\.quant_state\.bitsandbytes__(nf4|fp4)")


def quantised_recipes(names: Collection[str], config: Mapping[str, Any]) -> dict[str, Recipe]:
    """The weights among `names` that are stored as integers or small floating numbers with scales."""
    settings = config.get("quantization_config") or config.get("compression_config") or {}
    settings = settings if isinstance(settings, dict) else {}
    method = settings.get("quant_method")
    if isinstance(method, str) and method.removeprefix("intel/") not in _KNOWN:
        how = "which joma cannot undo: save it in floating numbers (model.dequantize() in transformers)"
        what = f"its config.json says that it is quantised with {method[:40]!a}, {how}"
        raise CheckpointError(what, file="config.json")
    if not any(name.endswith(_MARKS) for name in names):
        return {}
    there = names if isinstance(names, dict) else set(names)
    return dict(made for name in names if (made := _recipe_at(name, there, settings)))


def _recipe_at(name: str, there: Collection[str], settings: Mapping[str, Any]) -> tuple[str, Recipe] | None:
    stem, _, last = name.rpartition(".")
    weight = f"{stem}.weight"

    def present(*parts: str) -> tuple[str, ...]:
        return tuple(part for part in parts if part in there)

    if last == "qweight":
        return weight, Packed(present(name, f"{stem}.qzeros", f"{stem}.scales", f"{stem}.g_idx"), settings)
    if last == "SCB" and weight in there:
        return weight, Int8(present(weight, name, f"{stem}.weight_format"))
    if (state := _STATE.fullmatch(name)) and state[1] in there:
        tables = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        return state[1], FourBit(present(state[1], name, *(f"{state[1]}.{part}" for part in tables)))
    if last in ("weight_packed", "weight") and (found := _nvfp4(name, stem, there, present)):
        return weight, found
    if last == "weight_packed":
        more = (f"{weight}_{part}" for part in ("scale", "shape", "zero_point", "g_idx"))
        return weight, Compressed(present(name, *more), settings)
    if name.endswith("_blocks") and (scales := name.removesuffix("_blocks") + "_scales") in there:
        return name.removesuffix("_blocks"), Mx((name, scales))
    for scale in (form.format(name) for form in _SCALES):
        if scale in there and name.endswith(("weight", "proj")):
            return name, Scaled(present(name, scale, f"{name}_zero_point"), settings)
    return None


@dataclass(frozen=True)
class _Quantised(Recipe):
    """A weight in parts. settings: what config.json says of the quantisation."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """What it was quantised as, for a note, and its shape; no words where it is stored plainly after all."""
        raise NotImplementedError

    def stored(self, parts: Parts) -> Stored:
        words, shape = self.described(parts)
        return Stored(shape, torch.float32) if words else parts.look(self.parts[0])

    def note(self, parts: Parts) -> str:
        words, _ = self.described(parts)
        return words and f"dequantised from {words}"

    def refused(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.parts[0]} cannot be dequantised: {why}", tensor=self.parts[0])

    def part(self, ending: str) -> str | None:
        return next((part for part in self.parts if part.endswith(f".{ending}")), None)

    def named(self, ending: str) -> str:
        if (part := self.part(ending)) is None:
            raise self.refused(f"it has no {ending} beside it")
        return part


class Packed(_Quantised):
    """GPTQ and AWQ: integers of a few bits, eight or so to a word, with scale and zero point per group of inputs."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        kind, bits, inputs, outputs = self._layout(parts)
        guessed = "" if kind == "awq" or self.settings else ", zero points as in its first format"
        guessed = guessed if self.part("qzeros") else ", symmetric, without zero points"
        return f"{kind.upper()} with {bits} bits{guessed}", (outputs, inputs)

    def made(self, parts: Parts) -> Tensor:
        kind, bits, inputs, outputs = self._layout(parts)
        words, scales = (parts.take(self.named(part)) for part in ("qweight", "scales"))
        zeros = parts.take(self.named("qzeros")) if self.part("qzeros") else None
        if zeros is None:  # symmetric: the middle of the integers is zero
            values, zero = unpacked(words, bits).T, torch.full(scales.shape, 2 ** (bits - 1))
        elif kind == "awq":
            values = in_awq_order(unpacked(words.T.contiguous(), 4))  # (outputs, inputs)
            zero = in_awq_order(unpacked(zeros.T.contiguous(), 4)).T
        else:
            values = unpacked(words, bits).T
            zero = unpacked(zeros.T.contiguous(), bits).T
            if self.settings.get("checkpoint_format") != "gptq_v2":  # that stores zero points as they are, not less one
                zero = (zero + 1) & (2**bits - 1)
        count, order = scales.shape[0], self._order(parts)
        group = torch.arange(inputs) // self._group_size(inputs, count) if order is None else parts.take(order).long()
        if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < count:
            raise self.refused(f"its g_idx names groups that are not among its {count}")
        found = torch.empty(outputs, inputs)
        for at in range(0, inputs, 1024):  # a piece at a time: integers and scales of all would take as much again
            piece = slice(at, at + 1024)
            of = group[piece]
            found[:, piece] = (values[:, piece] - zero[of].T).float() * scales[of].T.float()
        return found

    def _layout(self, parts: Parts) -> tuple[str, int, int, int]:
        symmetric = self.part("qzeros") is None
        for ending in ("qweight", "scales") if symmetric else ("qweight", "qzeros", "scales"):
            stored = parts.look(self.named(ending))
            words = ending == "scales" or stored.dtype is torch.int32
            if len(stored.shape) != 2 or 0 in stored.shape or not words:
                raise self.refused(f"its {ending} are {stored.dtype} {stored.shape}")
        (high, wide), (groups, outputs) = (parts.look(self.named(part)).shape for part in ("qweight", "scales"))
        zeros = self._zeros(high, groups, outputs) if symmetric else parts.look(self.named("qzeros")).shape
        kind = str(self.settings.get("packing_format") or self.settings.get("quant_method") or "")
        if outputs == 8 * wide and "gptq" not in kind and zeros == (groups, wide) and groups and high % groups == 0:
            return "awq", 4, high, outputs
        bits = zeros[1] * 32 // outputs if outputs else 0
        if wide != outputs or zeros[0] != groups or bits not in (2, 3, 4, 8) or zeros[1] * 32 != bits * outputs:
            raise self.refused("its parts have shapes that fit neither GPTQ nor AWQ (version gemm)")
        order = self._order(parts)
        inputs = high * 32 // bits
        if high * 32 % bits or not groups or (order is not None and parts.look(order).shape != (inputs,)):
            raise self.refused(f"{high} rows of words do not hold its inputs with {bits} bits")
        if "marlin" in str(self.settings.get("checkpoint_format")) or "awq" in kind:
            raise self.refused("it is in a layout for one kind of GPU; save it as gptq")
        return "gptq", bits, inputs, outputs

    def _zeros(self, high: int, groups: int, outputs: int) -> tuple[int, int]:
        """The shape that zero points would have; config.json tells the bits where there are none."""
        bits = self.settings.get("bits")
        if self.settings.get("sym") is False or not isinstance(bits, int) or bits < 1 or outputs * bits % 32:
            how = "they are the same for all if its config.json says so (bits, and sym, which is true or missing)"
            raise self.refused(f"it has no qzeros beside it; {how}")
        return groups, outputs * bits // 32

    def _group_size(self, inputs: int, count: int) -> int:
        """Inputs that share a scale, where no part says which do. The last group may have fewer."""
        said = self.settings.get("group_size", self.settings.get("q_group_size"))
        sizes: set[int] = set()
        if said is None:  # what divides the inputs, and what everybody uses
            sizes = {
                size for size in (inputs // count or 1, *(2**n for n in range(3, 14))) if -(-inputs // size) == count
            }
        elif _is_size(said) or said == -1:
            sizes = {inputs if said == -1 else said}
        if count == 1 and said is None:
            return inputs
        if len(sizes) != 1 or -(-inputs // min(sizes)) != count:
            how = f"group_size {said!r} in its config.json does" if said is not None else "its config.json does"
            raise self.refused(f"{count} groups of {inputs} inputs may be cut in several ways, and {how} not say which")
        return min(sizes)

    def _order(self, parts: Parts) -> str | None:
        """The part that says which group an input is in; there may be an empty one that says nothing."""
        order = self.part("g_idx")
        return order if order is not None and 0 not in parts.look(order).shape else None


class Int8(_Quantised):
    """LLM.int8 of bitsandbytes: bytes, and the largest absolute value of each row."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        stored = parts.look(self.parts[0])
        return "int8 (bitsandbytes)" if stored.dtype is torch.int8 else "", stored.shape

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        value = parts.take(self.parts[0], rows)
        if value.dtype is not torch.int8:
            return value
        layout = parts.take(self.parts[2]).reshape(-1).tolist() if len(self.parts) > 2 else [0]
        if layout != [0]:
            raise self.refused("its bytes are in the order of one kind of GPU; save it again with weights by row")
        most = cut(parts.take(self.parts[1]).float().reshape(-1), rows)
        if most.shape != value.shape[:1]:
            raise self.refused(f"it has {value.shape[0]} rows and {len(most)} scales")
        return value.float() * (most / 127)[:, None]


class FourBit(_Quantised):
    """NF4 and FP4 of bitsandbytes: two numbers to a byte, and a scale per block, which may be quantised itself."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        state = self._state(parts)
        return f"{str(state['quant_type'])[:8].upper()} (bitsandbytes)", tuple(state["shape"])

    def made(self, parts: Parts) -> Tensor:
        state, stored = self._state(parts), parts.look(self.parts[0])
        shape, count = tuple(state["shape"]), prod(stored.shape)
        numbers = prod(shape)
        absmax, table = parts.take(self.named("absmax")), parts.take(self.named("quant_map"))
        if count * 2 != numbers + numbers % 2 or table.shape != (16,) or stored.dtype is not torch.uint8:
            raise self.refused(f"it has {count:,} bytes, and its shape is {shape}")
        if absmax.dtype is torch.uint8:
            nested, most = (parts.take(self.named(f"nested_{part}")).float() for part in ("quant_map", "absmax"))
            block, offset = state.get("nested_blocksize"), state.get("nested_offset", 0.0)
            if type(block) is not int or block < 1 or not isinstance(offset, int | float) or nested.shape != (256,):
                raise self.refused("its quant_state does not say how its scales are stored")
            absmax = nested[absmax.long()] * self._each(most, block, len(absmax)) + offset
        scale = self._each(absmax.float(), state["blocksize"], numbers)
        values = table.float()[nibbles(parts.take(self.parts[0]).reshape(-1), high_first=True).long()][:numbers]
        return (values * scale).view(shape)

    def _each(self, scale: Tensor, block: int, count: int) -> Tensor:
        """The scale of each of `count` numbers in blocks."""
        if scale.shape != (-(-count // block),):
            raise self.refused(f"{scale.numel()} scales do not fit {count:,} numbers in blocks of {block}")
        return scale[torch.arange(count) // block]

    def _state(self, parts: Parts) -> dict[str, Any]:
        if prod(parts.look(self.parts[1]).shape) > 10_000:
            raise self.refused("its quant_state is too long")
        try:
            state = json.loads(bytes(parts.take(self.parts[1]).to(torch.uint8).tolist()))
            shape, block = state["shape"], state["blocksize"]
            sized = isinstance(shape, list) and 0 < len(shape) < 5 and all(map(_is_size, shape))
            if not sized or not _is_size(block) or "quant_type" not in state:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self.refused("its quant_state does not say what its shape and its blocks are") from None
        return dict(state)


class Scaled(_Quantised):
    """FP8 and int8 with scales: one for all, one per row, or one per block."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        stored = parts.look(self.parts[0])
        return str(stored.dtype).removeprefix("torch.") if stored.dtype in _SMALL else "", stored.shape

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        stored = parts.look(self.parts[0])
        if stored.dtype not in _SMALL:
            return parts.take(self.parts[0], rows)
        scale, *zero = (self._spread(parts.take(part), stored, rows) for part in self.parts[1:])
        value = parts.take(self.parts[0], rows).float()
        return (value - zero[0] if zero else value).mul_(scale)

    def _spread(self, scale: Tensor, stored: Stored, rows: Rows | None) -> Tensor:
        """Scales of some rows; one that stands for all rows does so for these."""
        size = self.settings.get("weight_block_size")
        sized = isinstance(size, list) and all(map(_is_size, size)) and len(size) <= len(stored.shape)
        try:
            out = spread(scale.float(), stored.shape, tuple(size) if sized and isinstance(size, list) else None)
        except ValueError as error:
            raise self.refused(str(error)) from None
        return out if out.shape[0] == 1 else cut(out, rows)


class Mx(_Quantised):
    """MXFP4 as gpt-oss stores its experts: (experts, outputs, blocks, 16) bytes and a power of two per block.

    It comes out as transformers keeps it in other number formats: (experts, inputs, outputs).
    """

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        experts, outputs, blocks, size = self._shape(parts)
        return "MXFP4", (experts, blocks * size * 2, outputs)

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        self._shape(parts)
        blocks, scales = (parts.take(part, rows) for part in self.parts)
        values = torch.tensor(FP4)[nibbles(blocks, high_first=False).long()]
        return torch.ldexp(values, scales.int()[..., None] - 127).flatten(-2).transpose(1, 2).contiguous()

    def _shape(self, parts: Parts) -> tuple[int, ...]:
        blocks, scales = (parts.look(part) for part in self.parts)
        if len(blocks.shape) != 4 or blocks.shape[:-1] != scales.shape or blocks.dtype is not torch.uint8:
            raise self.refused(f"its blocks have shape {blocks.shape} and its scales {scales.shape}")
        return blocks.shape


class Nv(_Quantised):
    """NVFP4: two numbers to a byte, a scale in FP8 per 16 inputs, and one for all, which multiplies or divides them."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        packed, scale, whole = (parts.look(part) for part in self.parts)
        if packed.dtype is not torch.uint8:
            return "", packed.shape
        shape = (*packed.shape[:-1], 2 * packed.shape[-1])
        if len(shape) not in (2, 3) or 0 in shape or scale.shape != (*shape[:-1], -(-shape[-1] // 16)):
            raise self.refused(f"its scales have shape {scale.shape}, and it has {shape} numbers")
        if scale.dtype is not torch.float8_e4m3fn or prod(whole.shape) not in (1, shape[0]):
            raise self.refused(f"its scales are {scale.dtype}, and {prod(whole.shape)} for all")
        return "NVFP4", shape

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        if not self.described(parts)[0]:
            return parts.take(self.parts[0], rows)
        packed, scale = (parts.take(part, rows) for part in self.parts[:2])
        whole = parts.take(self.parts[2]).float().reshape(-1)
        whole = whole if len(whole) == 1 else cut(whole, rows)
        whole = whole.reshape(-1, *[1] * (packed.ndim - 1))
        values = torch.tensor(FP4)[nibbles(packed, high_first=False).long()]
        each = scale.float() / whole if self.parts[2].endswith("_global_scale") else scale.float() * whole
        return values.mul_(each.repeat_interleave(16, -1)[..., : values.shape[-1]])


def _nvfp4(name: str, stem: str, there: Collection[str], present: Any) -> Nv | None:
    """Of modelopt, whose packed weight has the name of a plain one, and of compressed-tensors."""
    whole = f"{stem}.weight_{'global_scale' if name.endswith('_packed') else 'scale_2'}"
    found = present(name, f"{stem}.weight_scale", whole) if whole in there else ()
    return Nv(found) if len(found) == 3 else None


class Compressed(_Quantised):
    """compressed-tensors, "pack-quantized": integers of 4 or 8 bits in words along each row, scales per group."""

    def described(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        bits, shape = self._layout(parts)
        return f"compressed-tensors with {bits} bits", shape

    def made(self, parts: Parts) -> Tensor:
        bits, (outputs, inputs) = self._layout(parts)
        half = 2 ** (bits - 1)  # signed numbers are stored with this added
        value = unpacked(parts.take(self.parts[0]).T.contiguous(), bits)[:inputs].T - half
        scale = parts.take(self.named("weight_scale")).float()
        order, zero = self.part("weight_g_idx"), self.part("weight_zero_point")
        if zero and (len(parts.look(zero).shape) != 2 or parts.look(zero).dtype is not torch.int32):
            raise self.refused("its zero points are no words of 32 bits")
        offset = unpacked(parts.take(zero), bits)[:outputs] - half if zero else torch.zeros(1, 1)
        try:
            group = torch.full((1,), -1) if order is None else parts.take(order).long()
            if not (group < 0).any():  # -1: not set
                scale, offset = scale[:, group], offset[:, group] if zero else offset
            scale, offset = (spread(each.float(), (outputs, inputs)) for each in (scale, offset))
        except (ValueError, IndexError) as error:
            raise self.refused(" ".join(str(error).split())[:100]) from None
        weight: Tensor = (value.float() - offset) * scale
        return weight

    def _layout(self, parts: Parts) -> tuple[int, tuple[int, int]]:
        packed, shape = parts.look(self.parts[0]), self.named("weight_shape")
        matrix = len(packed.shape) == 2 and 0 not in packed.shape
        if packed.dtype is not torch.int32 or not matrix or parts.look(shape).shape != (2,):
            raise self.refused(f"it is {packed.dtype} {packed.shape}, which is not a pack-quantized weight")
        outputs, inputs = (int(n) for n in parts.take(shape).long().tolist())
        for bits in (4, 8):
            if packed.shape == (outputs, -(-inputs * bits // 32)):
                return bits, (outputs, inputs)
        raise self.refused(f"{packed.shape[1]} words per row do not hold {inputs} numbers of 4 or 8 bits")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def unpacked(words: Tensor, bits: int) -> Tensor:
    """(rows * 32 / bits, columns) integers of `bits` bits from (rows, columns) words of 32, the lowest bits first.

    Three bits run on from one word into the next: 32 integers take three words.
    """
    shared = gcd(bits, 32)
    height, count = bits // shared, 32 // shared
    if words.shape[0] % height:
        raise ValueError(f"{words.shape[0]} words do not hold whole numbers of {bits} bits")
    wide = (words.to(torch.int64) & 0xFFFFFFFF).view(-1, height, words.shape[1])
    found = torch.empty(wide.shape[0], count, words.shape[1], dtype=torch.int16)
    for at in range(count):
        word, shift = divmod(at * bits, 32)
        value = wide[:, word] >> shift
        if shift + bits > 32:
            value = value | wide[:, word + 1] << (32 - shift)
        found[:, at] = (value & (2**bits - 1)).to(torch.int16)
    return found.view(-1, words.shape[1])


def in_awq_order(values: Tensor) -> Tensor:
    """Rows that AWQ has put in another order within every eight, back in their own."""
    return values.view(-1, 8, values.shape[1])[:, torch.tensor(AWQ_ORDER).argsort()].reshape(values.shape)


def nibbles(packed: Tensor, *, high_first: bool) -> Tensor:
    """(..., 2 n) numbers from 0 to 15 from (..., n) bytes."""
    both = (packed >> 4, packed & 0xF)
    return torch.stack(both if high_first else both[::-1], -1).flatten(-2)


def spread(scale: Tensor, shape: tuple[int, ...], blocks: tuple[int, ...] | None = None) -> Tensor:
    """`scale` as it multiplies a tensor of that shape: one number for all, one per row, or one per block.

    blocks: the size of a block along the last dimensions. Where it is not known, it is 128 if that fits, as almost
    everywhere, else what divides the dimension. ValueError where nothing fits.
    """
    if scale.numel() == 1:
        return scale.reshape((1,) * len(shape))
    if scale.ndim == 1:
        scale = scale[:, None]
    if scale.ndim != len(shape):
        raise ValueError(f"its scales have shape {tuple(scale.shape)}, and it has {shape}")
    known = (None,) * (len(shape) - len(blocks or ())) + tuple(blocks or ())
    for dim, (count, length) in enumerate(zip(scale.shape, shape, strict=True)):
        if count in (1, length):
            continue
        sizes = (known[dim], 128, length // count if count else None)
        size = next((each for each in sizes if each and -(-length // each) == count), None)
        if size is None:
            raise ValueError(f"{count} scales do not fit {length} rows or columns")
        scale = scale.repeat_interleave(size, dim).narrow(dim, 0, length)
    return scale
