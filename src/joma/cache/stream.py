"""The real thing: a cache that stays small while a model reads or writes token by token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from joma.cache._attention import attend, attending, setting
from joma.cache._memory import queries_at_once
from joma.cache._positions import rotations
from joma.cache.models import must_be_cached
from joma.cache.own import Policy
from joma.cache.rules import CacheError, is_integer, rule
from joma.host.errors import BadInput

if TYPE_CHECKING:
    from joma.cache._layers import EvictingCache


@contextmanager
def evicting(
    model: nn.Module, policy: str | Policy, keep: int, *, sinks: int | None = None, recent: float = 0.5,
    prompt: int | None = None, seed: int = 0,
) -> Iterator[EvictingCache]:  # fmt: skip
    """A cache for `model` that keeps `keep` keys in each key-value head, to be given as past_key_values in the block.

    - model: a causal language model of transformers
    - policy: one of `joma.cache.POLICIES`, but not `h2o-oracle`, which would need the future; or a function of your own
    - keep: a number of keys, since nobody knows how long the text will get
    - sinks: the first tokens that are never evicted; None: 4 in `sinks` and `random`, none in the others
    - recent: the share of the budget that goes to the last tokens
    - prompt: the tokens that `snapkv`, or a function of yours, reads before it chooses; None for those of the first
      call, as in `generate`
    - seed: of `random`

    Tokens may come one by one or many at a time: each is read with the cache as it stands when its turn comes, and the
    answer is the same. Between calls a layer holds `keep` keys per head, during a call those and the ones that come;
    `snapkv` holds its prompt until that ends. A long prompt is read in blocks of queries, so that no tensor has all
    queries and all keys. `top-k` and `full` hold everything. Sequences of a batch must have one
    length, without padding.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> shape = GPT2Config(vocab_size=9, n_positions=64, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> model = GPT2LMHeadModel(shape).eval()
    >>> options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    >>> with evicting(model, "h2o", 8) as cache:
    ...     ids = model.generate(torch.tensor([[1, 2, 3]]), past_key_values=cache, **options)
    >>> ids.shape, cache
    (torch.Size([1, 23]), EvictingCache(h2o, budget 8: 8 keys of 22))
    """
    must_be_cached(model)
    if policy == "h2o-oracle":
        raise CacheError("h2o-oracle knows the attention of queries yet to come: only joma.cache.losses can have it")
    config: Any = model.config
    if shared := getattr(config.get_text_config(), "num_kv_shared_layers", 0):
        raise CacheError(
            f"the last {shared} layers of {type(model).__name__} read the keys of earlier layers, so each layer cannot "
            "evict for itself: only joma.cache.losses can have it"
        )
    if not is_integer(keep) or keep < 1:
        raise BadInput(f"keep must be a number of keys, at least 1, since the text's length is not known, got {keep}")
    if prompt is not None and not is_integer(prompt):
        raise BadInput(f"prompt must be a number of tokens, since the text's length is not known, got {prompt}")
    asked = sys.maxsize - 1 if prompt is None else prompt
    settled = rule(policy, keep, sys.maxsize, sinks=sinks, recent=recent, prompt=asked, seed=seed)
    from joma.cache._layers import EvictingCache

    cache = EvictingCache(settled, prompt)
    rotated = rotations(model) if policy == "sinks" else {}

    def attend_and_drop(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        index: Any = getattr(module, "layer_idx", None)
        if index is None or index >= len(cache.layers):
            raise CacheError("inside a `with joma.cache.evicting(...)` block, give its cache as past_key_values")
        layer, outputs = cache.layers[index], []
        with torch.no_grad():
            for call, values in layer.calls(query, key, scale, index, at_once=queries_at_once(query, key)):
                output, choice = attend(module, call, values, rotated.get(module))
                layer.settle(choice)
                outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    # `generate` is to hand over new tokens alone: a model saved with use_cache=False would read all anew each time.
    configs = [config, getattr(model, "generation_config", None)]
    try:
        with attending(model, attend_and_drop), setting(configs, "use_cache", True):
            yield cache
    finally:
        cache.open = False
