"""Matrices of layers that no group takes: their names are not known, and nobody should have to guess that.

Routers, tables of positions, norms and biases are known, and belong to no group. Everything else that has the shape of
a matrix, or of a stack of them, and lies in a layer, is told.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import torch

from joma.host.words import counted
from joma.scan.formats.checkpoint import tensor_of
from joma.scan.formats.tensor_file import Stored
from joma.scan.names.architecture import layers_of
from joma.scan.names.roles import is_number
from joma.scan.names.roots import choose_root, in_root, weights_of

_KINDS = 4  # of names in a sentence
# One word of a name at a time: a stranger's name may be long.
_OTHER = re.compile(r"norm|^ln(_|\d|$)|rotary|rope_freqs|(cos|sin)_cached$|^rel(ative)?_(att|pos)", re.I)
_ROUTERS = {"router", "gate", "shared_expert_gate", "ffn_gate_inp", "ffn_gate_inp_shexp"}
_EXPERTS = ("expert", "_exps", "moe")


def not_taken(
    names: Iterable[str],
    groups: Mapping[str, Collection[str]],
    stored: Callable[[str], Stored],
    root: str | None = None,
) -> dict[str, tuple[str, ...]]:
    """Tensors of layers that look like matrices and are in no group, by their names with a star for each number.

    names: all of the checkpoint. groups: what `find_groups` made of them. stored: how each is stored. root: as there.

    >>> names = ["h.0.mlp.c_fc.weight", "h.0.mlp.wild.weight", "h.1.mlp.wild.weight", "h.0.ln_1.weight", "wte.weight"]
    >>> not_taken(names, {"mlp": names[:1]}, lambda name: Stored((4, 4), torch.float32))
    {'h.*.mlp.wild.weight': ('h.0.mlp.wild.weight', 'h.1.mlp.wild.weight')}
    """
    everything = list(names)
    mine = in_root(weights_of(everything), choose_root(everything, root))
    taken = {tensor for group in groups.values() for name in group for tensor in (name, tensor_of(name))}
    routed = any(word in name for name in mine for word in _EXPERTS)  # without experts a gate is no router
    found: dict[str, list[str]] = {}
    for name, layer in layers_of(mine).items():
        if layer is None or name in taken or _is_known(name[len(layer) + 1 :].split("."), routed=routed):
            continue
        if _looks_like_matrices(stored(name)):
            found.setdefault(_kind(name), []).append(name)
    return {kind: tuple(several) for kind, several in found.items()}


def not_taken_notes(found: Mapping[str, Collection[str]], stored: Callable[[str], Stored]) -> tuple[str, ...]:
    """A sentence on what `not_taken` found, if it found anything.

    >>> not_taken_notes({"h.*.wild": ("h.0.wild", "h.1.wild")}, lambda name: Stored((4, 8), torch.float32))
    ('not taken: 2 matrices of layers, because their names are not known: h.*.wild (4 x 8, 2 times)',)
    """
    if not found:
        return ()
    count = sum(map(len, found.values()))
    shown = [f"{kind} ({_shapes(several, stored)})" for kind, several in list(found.items())[:_KINDS]]
    more = f" and {counted(len(found) - _KINDS, 'more kind')} of names" if len(found) > _KINDS else ""
    why = f"because {'its name is' if count == 1 else 'their names are'} not known"
    return (f"not taken: {counted(count, 'matrix', 'matrices')} of layers, {why}: {', '.join(shown)}{more}",)


def _is_known(words: list[str], *, routed: bool) -> bool:
    """Whether the words of a name behind its layer mean something that no group is for.

    Only the module itself can be a norm: DBRX has attention in `norm_attn_norm`, diffusion models have a matrix in
    `norm1.linear`. The gate of an expert is no router.
    """
    if words[-1].endswith("bias") or any(map(_OTHER.search, words[-2:])):
        return True
    before_experts = words[: words.index("experts")] if "experts" in words else words
    return routed and not _ROUTERS.isdisjoint(before_experts)


def _looks_like_matrices(stored: Stored) -> bool:
    """A mask of true and false is no matrix, nor is a kernel of a convolution along one channel."""
    return len(stored.shape) in (2, 3) and min(stored.shape[-2:]) > 1 and stored.dtype is not torch.bool


def _kind(name: str) -> str:
    return ".".join("*" if is_number(word) else word for word in name.split("."))


def _shapes(names: Collection[str], stored: Callable[[str], Stored]) -> str:
    (shape, _), *others = Counter(stored(name).shape for name in names).most_common(2)
    times = f", {len(names)} times" if len(names) > 1 else ""
    return f"{' x '.join(map(str, shape))}{' and others' if others else ''}{times}"
