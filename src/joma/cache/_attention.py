"""How a model's attention comes to see only what a policy keeps.

transformers looks attention functions up by name, and the functions that build masks under the same name. Both are
registered here. The mask function builds none: it only refuses what is not plain causal attention. Causality, and what
is evicted, come from the policy, one mask per key-value head.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma.cache.own import choose
from joma.cache.policies import Call, Choice
from joma.cache.rules import CacheError

NAME = "joma_cache"  # neither "flash", "flex" nor "sdpa" may be part of it: transformers would take it for those
Rotation = Callable[[Tensor, Tensor], Tensor]  # x (batch, heads, tokens, width) rotated by so many positions (tokens,)


Job = Callable[[nn.Module, Tensor, Tensor, Tensor, float], Tensor]
"""Attends for a module: (batch, queries, heads, width) of query (batch, heads, queries, width), key, value, scale."""
_ACTIVE: list[tuple[set[nn.Module], Job]] = []
"""Found by the module that attends, so that models in several threads do not mix; the last one is the innermost."""


@contextmanager
def setting(configs: list[Any], name: str, value: object) -> Iterator[None]:
    """Inside the block, the configs that have an attribute have this value of it."""
    before = [(config, getattr(config, name)) for config in configs if hasattr(config, name)]
    try:
        for config, _ in before:
            setattr(config, name, value)
        yield
    finally:
        for config, old in before:
            setattr(config, name, old)


@contextmanager
def attending(model: nn.Module, job: Job) -> Iterator[None]:
    """Inside the block, every attention of `model` is the job's; the model's own setting comes back afterwards."""
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    found: list[Any] = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    configs = list({id(config): config for config in found}.values())
    entry = (set(model.modules()), job)
    with setting(configs, "_attn_implementation_internal", NAME):
        _ACTIVE.append(entry)
        try:
            yield
        finally:
            _ACTIVE[:] = [one for one in _ACTIVE if one is not entry]


def attend(module: nn.Module, call: Call, value: Tensor, rotate: Rotation | None) -> tuple[Tensor, Choice]:
    """The output (batch, queries, heads, width) of one call, and what the policy chose."""
    choice = choose(call)
    call.__dict__.pop("logits", None)  # as large as all that follows
    query, key, mask = call.query, call.key, choice.seen
    if mask is None:
        mask = None if call.n_kept == 0 or call.q_len == 1 else call.causal
    else:
        mask = mask.expand(len(query), -1, -1, -1) if mask.ndim == 4 else mask.expand(len(query), 1, -1, -1)
        if mask.shape[1] > 1:
            mask = mask.repeat_interleave(query.shape[1] // key.shape[1], 1)
        if call.rule.policy == "sinks" and rotate is not None:
            # Between a query and a recent key nothing changes. A sink is as far from the query as its place in the
            # cache is from the last one, so sinks meet the query as it would be there: in the second half of a width
            # twice as large, where other keys are 0.
            position = call.seen + call.own[:, 0] - call.n_kept
            shifted = rotate(query, position.clamp(max=call.rule.budget - 1) - position)
            first = (call.place < call.rule.sinks)[:, None]
            query, key = torch.cat([query, shifted], -1), torch.cat([key * ~first, key * first], -1)
    return plain_attention(module, query, key, value, mask, call.scale), choice


def plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """What the model does without a policy."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor
    output, _ = sdpa_attention_forward(module, query, key, value, mask, dropout=0.0, scaling=scale, is_causal=True)
    return output


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
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
    return job(module, query, key, value, scale), None


def _mask(*_: Any, **kwargs: Any) -> None:
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
