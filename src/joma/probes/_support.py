"""Which models a probe can measure, told from a config alone: nothing is loaded, nothing is built."""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from inspect import getsource
from typing import Any

from joma.host.extras import how_to_install
from joma.probes._own import ATTENDING, ON_SDPA, no_queries
from joma.probes._record import MIXERS, STATE

INTERFACE, OWN = "interface", "own"
_ATTENTION = re.compile(r"ALL_ATTENTION_FUNCTIONS|AutoModel|^class \w*Attention\w*\(", re.MULTILINE)
"""Attention in the code of a model, or models of other kinds made there that may attend."""
_SELECTED = re.compile(r"attention_interface\([^()]*\bblock_indices=")


def can_probe(config: Any, *, gradients: bool = False, spread: bool = False) -> str | None:
    """Why `attention_entropy` cannot measure models of a transformers config, in one sentence; None where it can.

    Only the config and transformers' own code are read, no weights. gradients: whether the entropy must have one too.
    spread: whether the spread of logits is asked for.

    >>> from transformers import GPT2Config, MambaConfig
    >>> can_probe(GPT2Config()) is None
    True
    >>> can_probe(MambaConfig())
    'mamba models have no softmax to read; joma.probes.state_decay reads how long their state keeps a token'
    """
    try:
        classes = list(_classes(config))
    except ImportError:
        return f"transformers is not installed: {how_to_install('hf')}"
    kind = getattr(config, "model_type", None) or type(config).__name__
    if not classes:
        return f"transformers has no model for a config of type {kind!r}: it cannot be measured"
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} models read two texts: call the model yourself inside joma.probes.collect"
    ways = {way(each) for each in classes}
    if None in ways or (OWN in ways and len(ways) > 1):
        return unseen(kind)
    if gradients and OWN in ways:
        return no_gradient(kind)
    if spread and OWN in ways and kind not in ON_SDPA:
        return no_queries(kind)
    code = []
    for each in classes:
        try:
            code.append(getsource(sys.modules[each.__module__]))
        except (KeyError, OSError, TypeError):  # a file that cannot be read is taken for one that attends
            code.append("AutoModel")
    if not any(_ATTENTION.search(each) for each in code):
        states = any(re.search(rf"\b({'|'.join(MIXERS)})\b", each) for each in code)
        return f"{kind} models have {STATE if states else 'no attention: there is no entropy to measure'}"
    if any(_SELECTED.search(each) for each in code):
        return f"{kind} models attend to blocks of keys that they select as they go: they cannot be measured"
    return None


def unseen(name: str) -> str:
    """The sentence on a model whose attention no probe can see."""
    return (
        f"{name} models do not send attention through transformers' AttentionInterface, "
        "and their own way to attend is not known to joma: they cannot be measured"
    )


def no_gradient(name: str) -> str:
    """The sentence on a model whose logits are only looked at."""
    return f"{name} models compute attention by themselves, so that joma has no gradient of their entropy"


def way(model: Any) -> str | None:
    """How the attention of a transformers model (or its class) can be seen: INTERFACE, OWN, or not at all."""
    return _way(model if isinstance(model, type) else type(model))


@lru_cache(256)  # transformers may read the source of the class to answer
def _way(model: Any) -> str | None:
    switched = getattr(model, "_can_set_attn_implementation", None)
    if switched is not None and switched():
        return INTERFACE
    kind = getattr(getattr(model, "config_class", None), "model_type", None)
    return OWN if kind in ATTENDING else None


def _classes(config: Any) -> Iterator[Any]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    try:
        found = MODEL_MAPPING.get(type(config), None)
    except (ValueError, AttributeError):  # a class that this version of transformers names and does not have
        found = None
    yield from found if isinstance(found, tuple | list) else [found] if found is not None else []
    for key in getattr(config, "sub_configs", {}):
        if (inside := getattr(config, key, None)) is not None:
            yield from _classes(inside)
