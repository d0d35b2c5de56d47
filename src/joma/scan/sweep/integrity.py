"""Is a step what it claims to be? Fingerprints of what was read, and rules over all of a series.

A fingerprint has a checksum (the sum of all 64-bit words of the tensor, modulo 2^64) and a sketch (values at 1024
places that depend on the size alone). Two tensors with equal sketches and equal checksums are taken as identical;
between checkpoints of a training run the chance of an error is below 2^-64.

Identical: a tensor equals that of another step, and the rest of the two does not: a file of one came into the other.
The earliest of its kind is kept, unless the last usable step F is among them, which is then kept. Three cases are no
fault:

- All that was read of two steps is equal, as after a warm-up from rate zero, or of a checkpoint that was saved twice:
  both are kept, and `equal_steps` names them.
- A tensor that is the same at all steps was frozen, and says nothing.
- A tensor that is the same from the first step up to some later one, while others have changed, is not yet trained:
  layers are unfrozen one after the other. A tensor that has moved and then equals an earlier one is a copy, and so is
  one that stays at its last value from some step on.

Jumps: training moves away from the first step and towards F. A contradiction is a pair of steps, s before t before F,
where s is less than half as far from F as t is (distances between sketches; the farther one must be more than a
twentieth of the longest way to F, so that rounding in a tensor that hardly moves is no fault). One of them is wrong:

- t is off the path if it alone contradicts two or more earlier steps and nothing else is contradictory; or if, for most
  of the steps that it contradicts, it is also farther from the first step than they are. (The first step here is the
  first that at most one later step contradicts: step 0 may itself be a wrong one.)
- Otherwise s has jumped ahead: it holds final-era weights.

F itself cannot be judged, and neither can the step before it, to which no later one can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

SAMPLES = 1024
NEAR = 0.5  # a distance counts as a jump below this share of the distance it is compared with
FLOOR = 0.05  # and only if that is more than this share of the longest distance to the last step
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiples spread evenly and never align with rows


def sketch(w: Tensor) -> Tensor:
    """(1024,) values of `w` at fixed places, float64 if `w` is, else float32."""
    flat = w.reshape(-1) if w.is_contiguous() else w.contiguous().reshape(-1)
    sample = flat[_places(flat.numel()).to(flat.device)]
    return sample.double() if w.dtype is torch.float64 else sample.float()


def checksum(w: Tensor) -> int:
    """The sum of the tensor's bytes as 64-bit words, modulo 2^64 and signed."""
    raw = w.contiguous().reshape(-1).view(torch.uint8)
    raw = raw.clone() if raw.storage_offset() % 8 else raw  # part of a larger tensor: words must begin at its start
    end = raw.numel() // 8 * 8
    rest = torch.zeros(8, dtype=torch.uint8, device=raw.device)
    rest[: raw.numel() - end] = raw[end:]
    return int((raw[:end].view(torch.int64).sum() + rest.view(torch.int64)[0]).item())


Prints = tuple[Sequence[int], Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
"""Ascending steps, and of every tensor that was read at all of them its sketches (steps, 1024) and checksums (steps,).
"""


def suspicions(prints: Prints, equal: Mapping[int, int] | None = None) -> list[tuple[int, str, str]]:
    """(step, tensor, what is wrong) by the rules above.

    equal: what `equal_steps` gives for all prints of the series; None: these are all.
    """
    found: list[tuple[int, str, str]] = []
    steps, sketches, _ = prints
    equal = equal_steps([prints]) if equal is None else equal
    twins, whole = _twins(prints), [equal[step] for step in steps]
    for name, first in twins.items():
        if not any(first):  # frozen, or the series is one checkpoint under many names
            continue
        untrained = range(_untouched(first))
        same = {at: what for at, what in _identical(steps, first, whole).items() if at not in untrained}
        found += [(steps[at], name, what) for at, what in same.items()]
        left = [at for at in range(len(steps)) if at not in same]
        jumps = _jumps([steps[at] for at in left], sketches[name][left].astype(np.float64))
        found += [(steps[left[at]], name, what) for at, what in jumps.items()]
    return sorted(found, key=lambda fault: fault[0])


def equal_steps(several: Iterable[Prints]) -> dict[int, int]:
    """For every step the first at which the same tensors were read, and all of them are equal."""
    keys: dict[int, tuple[Any, ...]] = {}
    for at, prints in enumerate(several):
        for step, twins in zip(prints[0], zip(*_twins(prints).values(), strict=True), strict=True):
            keys[step] = (*keys.get(step, ()), at, twins)
    steps = sorted(keys)
    return {step: steps[first] for step, first in zip(steps, _first_equal(map(keys.get, steps)), strict=True)}


def not_yet_trained(prints: Prints) -> dict[str, int]:
    """The last step at which a tensor still is what it was at the first, for those that move later than others."""
    twins = _twins(prints)
    still = _untouched(_first_equal(zip(*twins.values(), strict=True)))  # so long nothing has moved at all
    untouched = {name: _untouched(first) for name, first in twins.items()}
    return {name: prints[0][count - 1] for name, count in untouched.items() if count > max(1, still)}


def _untouched(twins: Sequence[int]) -> int:
    """How many steps from the first on are identical; 0 for a tensor that has its first value again at the end."""
    if not twins or not twins[-1]:
        return 0
    return next(at for at, first in enumerate(twins) if first)


def _twins(prints: Prints) -> dict[str, list[int]]:
    _, sketches, checksums = prints
    bits = {name: [each.tobytes() for each in several] for name, several in sketches.items()}
    return {name: _first_equal(zip(checksums[name], several, strict=True)) for name, several in bits.items()}


def _first_equal(each: Iterable[Any]) -> list[int]:
    first: dict[Any, int] = {}
    return [first.setdefault(item, at) for at, item in enumerate(each)]


def _identical(steps: Sequence[int], twins: Sequence[int], whole: Sequence[int]) -> dict[int, str]:
    last = len(steps) - 1
    kept = [last if twins[last] == first else first for first in twins]
    final = {last: ", the last one"}
    return {at: f"identical to step {steps[k]}{final.get(k, '')}" for at, k in enumerate(kept) if whole[at] != whole[k]}


def _jumps(steps: Sequence[int], points: np.ndarray) -> dict[int, str]:
    """What is wrong with the steps that contradict others. points: (steps, samples)."""
    to_last = np.linalg.norm(points - points[-1], axis=1)
    nearer = to_last[:, None] < NEAR * to_last[None, :]  # row s, column t
    pairs = np.triu(nearer, 1) & (to_last > FLOOR * to_last.max())
    first = int(np.argmax(pairs.sum(1) <= 1))
    to_first = np.linalg.norm(points - points[first], axis=1)
    found: dict[int, str] = {}
    for t in np.flatnonzero(pairs.any(0)):
        against = np.flatnonzero(pairs[:, t])
        alone = len(against) > 1 and pairs.any(0).sum() == 1
        if alone or (to_first[t] >= to_first[against]).mean() > 0.5:
            nearest = int(against[np.argmin(to_last[against])])
            found[int(t)] = (
                f"off the path: {_times(to_last[t], to_last[nearest])} as far from step {steps[-1]}, the last one, as "
                f"the earlier step {steps[nearest]} is"
            )
    pairs[:, list(found)] = False
    for s in np.flatnonzero(pairs.any(1)):
        farthest = int(np.argmax(np.where(pairs[s], to_last, -1.0)))
        found[int(s)] = (
            f"final-era weights: the later step {steps[farthest]} is {_times(to_last[farthest], to_last[s])} as far "
            f"from step {steps[-1]}, the last one"
        )
    return found


def _times(far: float, near: float) -> str:
    return f"{far / near:.1f} times" if far < 1e6 * near else "more than a million times"


@lru_cache(maxsize=64)
def _places(size: int) -> Tensor:
    """1024 places in a tensor of `size` entries, the same in every process."""
    return torch.tensor([((at * _GOLDEN) % 2**64) * size >> 64 for at in range(SAMPLES)], dtype=torch.int64)
