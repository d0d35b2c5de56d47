"""How a monitor takes its measures, and how often. What each of them is stands in `joma.measure.registry`.

An attention measure is taken from the probe that has watched one pass, any other from the weights alone, or from
their gradients.
"""

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, as_bad_input
from joma.host.words import did_you_mean
from joma.measure.registry import Measure, measures_of
from joma.measure.spread import Factors, Spread
from joma.probes import Probe

Taken = dict[str, dict[str, Tensor]]
"""Series by name; of each, the numbers of every layer (heads,) or of every matrix ()."""

MONITORED: Mapping[str, Measure] = measures_of("monitor")  #: All that a monitor can take, by name.
DEFAULT = ("entropy", "largest_logit", "sink_mass", "effective_keys", "stable_rank", "norm")
"""What is taken unless asked otherwise; `update_ratio` is not, since it holds a copy of the matrices."""


def intervals_of(measures: Iterable[str] | Mapping[str, int | None], every: int) -> dict[str, int]:
    """The interval of each measure, in steps: `every`, unless a mapping gives it one of its own.

    >>> intervals_of({"entropy": 10, "norm": None}, 100)
    {'entropy': 10, 'norm': 100}
    """
    with as_bad_input():
        usual = integer(every, "every", 1)
    names = [measures] if isinstance(measures, str) else list(measures)
    for name in names:
        if name not in MONITORED:
            otherwise = f"there are {', '.join(MONITORED)}"
            near = did_you_mean(name, MONITORED, otherwise) if isinstance(name, str) else otherwise
            raise BadInput(f"measures has no {shown(name)}: {near}", argument="measures")
    if not names:
        raise BadInput(f"measures must name at least one of {', '.join(MONITORED)}", argument="measures")
    own = measures if isinstance(measures, Mapping) else {}
    with as_bad_input():
        return {
            name: usual if own.get(name) is None else integer(own[name], f"the interval of {name}", 1)  # type: ignore[arg-type]
            for name in names
        }


def take(name: str, source: Any) -> Taken:
    """The series of one measure.

    - name: of a measure in `MONITORED`
    - source: the `Probe` of a pass for attention, else `Matrices`
    """
    measure = MONITORED[name]
    if name == "spread":
        return _spread(measure, source)
    if measure.needs == "attention":
        return {curve: source.by_layer(statistic) for curve, statistic in measure.curves.items()}
    found = getattr(source, name)()
    return {name: found} if found else {}


def _spread(measure: Measure, probe: Probe) -> Taken:
    """The parts of the variance of logits, and the size of the weights behind it."""
    each = {name: probe.spread[name].spread for name in probe.layers}
    parts = {
        curve: {name: found[Spread._fields.index(part)] for name, found in each.items()}
        for curve, part in measure.curves.items()
    }
    return parts | sizes_of_weights(probe)


GROWTH, NORMS = f"spread/{Factors._fields[0]}", "spread/norms"
_PAIRS = (("q_proj", "k_proj"), ("query", "key"), ("wq", "wk"), ("to_q", "to_k"), ("q_lin", "k_lin"))
_FUSED = ("c_attn", "qkv", "Wqkv")
"""Layers whose rows are those of all queries, then of all keys, then of all values."""
_PRODUCTS = {"GPT2Attention", "OPTAttention", "BertSelfAttention", "RobertaSelfAttention", "ViTAttention"}
"""Attention of transformers whose logits are x' A y, with positions in x and y."""


class _Weights(NamedTuple):
    q: Tensor  # (heads, width, inputs)
    k: Tensor  # (kv_heads, width, inputs)
    scale: float


@torch.no_grad()
def sizes_of_weights(probe: Probe) -> dict[str, dict[str, Tensor]]:
    """One series with the numbers of every layer that attended, each (heads,); none where weights are not found.

    How large the weights behind the logits are tells weights that grew from inputs that aligned: the spread of logits
    is s2 = growth x alignment x context (`joma.measure.spread.factors`). Growth is |A|^2 with A = scale W_Q' W_K, so it
    follows from the weights alone, and s2 / growth is what the inputs do. Rotary positions and norms of queries and
    keys leave no single A. There, and wherever we do not know, |W_Q|^2 |W_K|^2 takes its place: the series is called
    `spread/growth` where every layer has one A, else `spread/norms`.
    """
    modules = {name: module for module, name in probe.names.items()}
    heads = {name: len(each) for name, each in probe.by_layer("entropy").items()}
    found = {name: _weights_of(modules[name], count) for name, count in heads.items()}
    known = {name: each for name, each in found.items() if each is not None}
    if len(known) < len(found):
        return {}
    if all(_is_a_product(modules[name]) for name in known):
        return {GROWTH: {name: _growth(each) for name, each in known.items()}}
    return {NORMS: {name: _norms(each) for name, each in known.items()}}


def _growth(weights: _Weights) -> Tensor:
    """|scale W_Q' W_K|^2 from products as wide as a head."""
    q, k = (each @ each.mT for each in _in_pairs(weights))
    return weights.scale**2 * (q * k).sum((1, 2))


def _norms(weights: _Weights) -> Tensor:
    q, k = (each.square().sum((1, 2)) for each in _in_pairs(weights))
    return weights.scale**2 * q * k


def _in_pairs(weights: _Weights) -> tuple[Tensor, Tensor]:
    """Queries and keys of every head; several heads may share their keys."""
    wide = torch.promote_types(weights.q.dtype, torch.float32)
    return weights.q.to(wide), weights.k.to(wide).repeat_interleave(len(weights.q) // len(weights.k), 0)


def _is_a_product(module: nn.Module) -> bool:
    ours = type(module).__module__.startswith("transformers.") and type(module).__name__ in _PRODUCTS
    return ours or isinstance(module, nn.MultiheadAttention)


def _weights_of(module: nn.Module, heads: int) -> _Weights | None:
    """Those of queries and keys, if they are found and plain: a layer with adapters has more than its matrix."""
    matrices = _matrices(module)
    if matrices is None or len(matrices[0]) % heads:
        return None
    q, k = matrices
    width = len(q) // heads
    if len(k) % width or heads % max(1, len(k) // width):
        return None
    own = getattr(module, "scaling", None)
    scale = own if isinstance(own, float) else 1 / sqrt(width)
    return _Weights(q.unflatten(0, (heads, width)), k.unflatten(0, (-1, width)), scale)


def _matrices(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """(outputs, inputs) of queries and of keys."""
    if isinstance(module, nn.MultiheadAttention):
        whole: Tensor | None = module._parameters["in_proj_weight"]
        if whole is not None:
            return _first_two_thirds(whole)
        return module.q_proj_weight.detach(), module.k_proj_weight.detach()
    for names in _PAIRS:
        q, k = (_matrix(getattr(module, name, None)) for name in names)
        if q is not None and k is not None:
            return q, k
    for name in _FUSED:
        if (whole := _matrix(getattr(module, name, None))) is not None and len(whole) == 3 * whole.shape[1]:
            return _first_two_thirds(whole)
    return None


def _first_two_thirds(whole: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _ = whole.detach().chunk(3)
    return q, k


def _matrix(layer: object) -> Tensor | None:
    """Of a linear layer, which transformers also writes the other way round; None of anything else, and of shards."""
    turned = type(layer).__name__ == "Conv1D"
    if type(layer) is not nn.Linear and not turned:
        return None
    weight: Tensor = layer.weight.detach()  # type: ignore[attr-defined]
    if type(weight) is not Tensor:
        return None
    return weight.mT if turned else weight
