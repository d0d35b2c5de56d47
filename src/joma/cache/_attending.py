"""How a model's attention comes to see only what a policy keeps.

transformers looks attention functions up by name, and the functions that build masks under the same name. Both are
registered here. The mask function builds none: it only refuses what is not plain causal attention. Causality, and what
is evicted, come from the policy, one mask per key-value head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from joma.cache.errors import CacheError
from joma.cache.policies import FUNCTIONS, Call, Choice

NAME = "joma_cache"  # neither "flash", "flex" nor "sdpa" may be part of it: transformers would take it for those


Turn = Callable[[Tensor, Tensor], Tensor]
"""x (batch, heads, tokens, width) turned by so many positions (tokens,)."""


class Job(Protocol):
    """Who attends for the modules of a model."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """(batch, queries, heads, width) of query (batch, heads, queries, width)."""


_ACTIVE: list[tuple[set[nn.Module], Job]] = []
"""Found by the module that attends, so that models in several threads do not mix; the last one is the innermost."""


@contextmanager
def attending(model: nn.Module, job: Job) -> Iterator[None]:
    """Inside the block, every attention of `model` is the job's; the model's own setting comes back afterwards."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    configs = _configs(model)
    before = [config._attn_implementation_internal for config in configs]
    entry = (set(model.modules()), job)
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        _ACTIVE.append(entry)
        yield
    finally:
        _ACTIVE[:] = [one for one in _ACTIVE if one is not entry]
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def attend(module: nn.Module, call: Call, value: Tensor, turn: Turn | None) -> tuple[Tensor, Choice]:
    """The output (batch, queries, heads, width) of one call, and what the policy chose.

    turn: how queries are rotated for sinks, where positions are counted inside the cache. Where nothing is evicted, the
    call is the one that the model makes without a policy.
    """
    choice = FUNCTIONS[call.rule.policy](call)
    query, key, mask = call.query, call.key, choice.seen
    if mask is None:
        mask = None if call.held == 0 or call.queries == 1 else call.causal
    else:
        mask = mask.expand(len(query), -1, -1, -1) if mask.ndim == 4 else mask.expand(len(query), 1, -1, -1)
        if mask.shape[1] > 1:
            mask = mask.repeat_interleave(query.shape[1] // key.shape[1], 1)
        if call.rule.policy == "sinks" and turn is not None:
            query, key = _recounted(call, turn)
    return as_ever(module, query, key, value, mask, call.scale), choice


def _recounted(call: Call, turn: Turn) -> tuple[Tensor, Tensor]:
    """Queries and keys twice as wide, whose products count positions inside the cache.

    Between a query and a recent key nothing changes. A sink is as far from the query as its place in the cache is from
    the last one, so sinks meet the query as it would be there: in the second half of the width, where other keys are 0.
    """
    position = call.seen + call.own[:, 0] - call.held
    shifted = turn(call.query, position.clamp(max=call.rule.budget - 1) - position)
    first = (call.place < call.rule.sinks)[:, None]
    return torch.cat([call.query, shifted], -1), torch.cat([call.key * ~first, call.key * first], -1)


def as_ever(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """What the model does without a policy."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output, _ = sdpa_attention_forward(module, query, key, value, mask, dropout=0.0, scaling=scale, is_causal=True)
    result: Tensor = output
    return result


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What every attention layer calls in place of sdpa."""
    job = next((job for modules, job in reversed(_ACTIVE) if module in modules), None)
    name = type(module).__name__
    if job is None:
        raise CacheError(f"{name} is set to {NAME!r} outside the block of joma.cache that did so")
    for what in ("softcap", "s_aux", "position_bias", "indices", "cu_seq_lens_q"):
        if kwargs.get(what) is not None:
            raise CacheError(f"{name} passes {what!r} to its attention, and eviction does not know that")
    if attention_mask is not None:
        raise CacheError(f"{name} brings a mask of its own: eviction needs plain causal attention without padding")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return job.attend(module, query, key, value, scale), None


def _mask(*_: Any, **kwargs: Any) -> None:
    """No mask where attention is causal and nothing else; else a refusal."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    function, local, padding = (kwargs.get(key) for key in ("mask_function", "local_size", "attention_mask"))
    if function is bidirectional_mask_function:
        raise CacheError("a model that attends in both directions has no cache: give one that reads from left to right")
    if padding is not None and not bool(padding.all()):
        raise CacheError("padded batches cannot be read with eviction: give sequences of one length")
    length = int(kwargs["q_offset"]) + int(kwargs["q_length"])
    if local is not None and local < length:
        raise CacheError(f"the model already forgets what is {local} tokens away, and is asked to read {length}")
    if local is None and function is not causal_mask_function:
        raise CacheError("the model's attention is not plain causal attention: eviction cannot be added to it")


def _configs(model: nn.Module) -> list[Any]:
    from transformers import PreTrainedModel

    found = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    return list({id(config): config for config in found}.values())
