"""The cache that transformers is handed: one layer of it holds the keys and values that its policy keeps.

Apart from `stream`, since it needs transformers to be imported.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from joma.cache.policies import Call, Choice
from joma.cache.rules import CacheError, Rule


class EvictingCache(Cache):  # type: ignore[misc]
    """A cache of transformers that holds what its policy keeps; `joma.cache.evicting` makes it and says how to use it.

    `positions(layer)` tells which tokens are held in each key-value head.
    """

    def __init__(self, rule: Rule, prompt: int | None) -> None:
        """Not for callers: `evicting` makes it. prompt: of `snapkv`; None for the first tokens that come together."""
        super().__init__(layer_class_to_replicate=partial(HeldLayer, rule, prompt, self._must_be_open))
        self.rule = rule
        self.open = True

    def __repr__(self) -> str:
        held = self.layers[0].held if self.layers else 0
        return f"EvictingCache({self.rule.policy}, budget {self.rule.budget}: {held} keys of {self.get_seq_length()})"

    def positions(self, layer: int = 0) -> Tensor:
        """(batch, key-value heads, keys held): their places in the text, from 0."""
        return self.layers[layer].positions  # type: ignore[no-any-return]

    def crop(self, *_: Any) -> None:
        raise CacheError("a cache that evicts cannot go back: what it dropped is gone, so decode without assistants")

    def _must_be_open(self) -> None:
        if not self.open:
            raise CacheError("this cache was made by a `with joma.cache.evicting(...)` block that is over")


class HeldLayer(DynamicLayer):  # type: ignore[misc]
    """Keys, values, and what the policy remembers of them. Between calls it holds no more than the policy keeps."""

    is_croppable = False
    is_initialized: bool
    keys: Tensor
    values: Tensor

    def __init__(self, rule: Rule, prompt: int | None, check: Callable[[], None]) -> None:
        super().__init__()
        self.given, self.rule, self.prompt, self.check = rule, rule, prompt, check
        self.seen = self.held = self.coming = 0
        self.scores = self.positions = torch.empty(0)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.check()
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            batch, heads, length = key_states.shape[:3]
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self.scores = self.keys.new_zeros(batch, heads, 0, dtype=torch.promote_types(self.dtype, torch.float32))
            self.positions = torch.zeros(batch, heads, 0, dtype=torch.long, device=self.device)
            if self.given.policy == "snapkv":
                prompt = length if self.prompt is None else self.prompt
                self.rule = replace(self.given, prompt=prompt, recent=min(self.given.recent, prompt))
            elif self.given.function is not None:
                self.rule = replace(self.given, prompt=length if self.prompt is None else self.prompt)
        self._append(key_states, value_states)
        return self.keys, self.values

    def _append(self, keys: Tensor, values: Tensor) -> None:
        self.coming = keys.shape[-2]
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)

    def calls(
        self, query: Tensor, key: Tensor, scale: float, layer: int, *, at_once: int
    ) -> Iterator[tuple[Call, Tensor]]:
        """What the policy is asked after `update`, so many queries at once, with the values of the call's keys.

        Each call is to be answered by `settle` before the next: later queries meet what it left.
        """
        length = self.coming
        if length != query.shape[2] or key is not self.keys:
            raise CacheError("inside a `with joma.cache.evicting(...)` block, give its cache as past_key_values")
        if at_once >= length:
            yield Call(self.rule, query, key, scale, self.scores, self.seen, layer), self.values
            return
        new_keys, new_values = self.keys[:, :, -length:], self.values[:, :, -length:]
        self.keys, self.values = self.keys[:, :, :-length], self.values[:, :, :-length]
        for start in range(0, length, at_once):
            some = slice(start, start + at_once)
            self._append(new_keys[:, :, some], new_values[:, :, some])
            yield Call(self.rule, query[:, :, some], self.keys, scale, self.scores, self.seen, layer), self.values

    def settle(self, choice: Choice) -> None:
        batch, heads = self.keys.shape[:2]
        new = torch.arange(self.seen, self.seen + self.coming, device=self.keys.device).expand(batch, heads, -1)
        self.positions = torch.cat([self.positions, new], -1)
        self.scores = self.positions.to(self.scores.dtype) if choice.scores is None else choice.scores
        self.seen += self.coming
        self.coming = 0
        if choice.kept is not None:
            kept = choice.kept.expand(batch, heads, -1)  # as many in every head
            self._each(lambda value: value[kept].view(batch, heads, -1, *value.shape[3:]))
        self.held = self.keys.shape[-2]

    def get_seq_length(self) -> int:
        """Tokens read, also those that are no longer held: the next one has this position."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.held + query_length, self.seen - self.held

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        super().reset()
        self.__init__(self.given, self.prompt, self.check)  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda value: value.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda value: value[indices.to(value.device)])

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            for name in ("keys", "values", "positions", "scores"):
                setattr(self, name, change(getattr(self, name)))
