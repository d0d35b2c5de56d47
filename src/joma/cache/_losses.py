"""The loss of a model whose cache is cut, on full sequences at once: eviction becomes one mask per key-value head."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.cache import _memory
from joma.cache._attention import attend, attending
from joma.cache._positions import rotations
from joma.cache.models import must_be_cached, must_be_tokens, without_attention
from joma.cache.own import Policy
from joma.cache.policies import Call
from joma.cache.rules import CacheError, Rule, rule
from joma.host.memory import free_memory
from joma.host.progress import Progress, silent


def losses(
    model: nn.Module, tokens: Any, policy: str | Policy = "full", keep: float = 1.0, *, sinks: int | None = None,
    recent: float = 0.5, prompt: float = 0.5, seed: int = 0, progress: Progress = silent,
) -> Tensor:  # fmt: skip
    """Loss in nats per token of a causal language model that keeps only part of its cache: (sequences, seq_len - 1).

    Entry t of the answer is the loss of token t + 1, read by a query that sees at most `budget` keys in each key-value
    head, its own included. Queries before that number see everything.

    - model: one of transformers, with its head
    - tokens: (sequences, seq_len), or (seq_len,) of one
    - policy: one of `joma.cache.POLICIES`, see `joma.cache.policies`; or a function of your own, see `joma.cache.own`
    - keep: the budget is ceil(keep * seq_len) where keep is a share, or `keep` itself where it is an integer: 1.0 keeps
      all, and 1 a single key
    - sinks: the first tokens that are never evicted; None: 4 in `sinks` and `random`, none in the others
    - recent: the share of the budget that goes to the last tokens in `h2o`, `h2o-oracle`, `snapkv` and `random`; in
      `sinks` and `window` all that is left does
    - prompt: the share of the sequence, or the number of tokens, that `snapkv` reads at full attention before it
      chooses: only losses from entry `prompt` on feel its choice
    - seed: of `random`
    - progress: hears after each layer how far it is

    What is computed is what the model would say with such a cache, token by token (`joma.cache.evicting` does that),
    and where nothing is evicted it is what the model says, bit for bit. A sequence may be longer than those of training
    where positions have no end; `joma.probes.lengths.beyond_training` says whether it is. A very long one is read in
    blocks of queries, so memory grows with its length and not with the square of it. Runs in evaluation mode without
    gradients; the answer is on the CPU, in float32 at least.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> losses(GPT2LMHeadModel(shape), torch.arange(16).view(2, 8) % 9, "window", 0.5).shape
    torch.Size([2, 7])
    """
    must_be_cached(model)
    ids = must_be_tokens(model, tokens)
    seq_len = ids.shape[1]
    settled = rule(policy, keep, seq_len, sinks=sinks, recent=recent, prompt=prompt, seed=seed)
    if settled.budget >= seq_len:
        settled = replace(settled, policy="full", function=None)
    first, config = next(model.parameters()), model.config
    heads, words = getattr(config, "num_attention_heads", 1), getattr(config, "vocab_size", None) or 1
    needed = seq_len * words * (first.element_size() + 8)  # the model's own, a copy in float32, and their logarithms
    free = free_memory(first.device) if seq_len * words > _memory.NUMBERS else None
    if free is not None and needed > free:
        raise CacheError(
            f"one sequence of {seq_len:,} tokens needs {needed / 1e9:.1f} GB for its logits over {words:,} words, and "
            f"{free / 1e9:.1f} GB are free: read shorter sequences"
        )
    ids = ids.to(first.device)
    rows = max(1, _memory.NUMBERS // (seq_len * max(heads * seq_len, words)))  # sequences at a time
    training = model.training
    try:
        model.eval()
        with torch.inference_mode():
            job = _FullSequences(model, settled, -(-len(ids) // rows), progress)
            return torch.cat([_losses(model, part, job, at * rows) for at, part in enumerate(ids.split(rows))])
    finally:
        model.train(training)


class _FullSequences:
    """Attends over full sequences; nothing is kept afterwards."""

    def __init__(self, model: Any, settled: Rule, batches: int, progress: Progress) -> None:
        self.rule, self.row, self.done = settled, 0, 0
        self.rotations = rotations(model) if settled.policy == "sinks" else {}
        self.layers: dict[nn.Module, int] = {}
        self.calls, self.progress = batches * max(1, getattr(model.config, "num_hidden_layers", 1)), progress

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        from joma.cache._layers import HeldLayer

        layer = self.layers.setdefault(module, len(self.layers))
        at_once = query.shape[2] if self.rule.policy == "full" else _memory.queries_at_once(query, key)
        held = HeldLayer(self.rule, self.rule.prompt, lambda: None)
        keys, _ = held.update(key, value)
        oracle = self.rule.policy == "h2o-oracle" and at_once < query.shape[2]  # else the queries to come are there
        weights = _weights(query, key, scale, at_once) if oracle else None
        outputs = []
        for call, values in held.calls(query, keys, scale, layer, at_once=at_once):
            known = None if weights is None else weights[..., call.seen : call.seen + call.q_len]
            call = replace(call, row=self.row, weights=known)
            output, choice = attend(module, call, values, self.rotations.get(module))
            held.settle(choice)
            outputs.append(output)
        self.done += 1
        self.progress(min(1.0, self.done / self.calls), self.rule.policy)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _weights(query: Tensor, key: Tensor, scale: float, block: int) -> Tensor:
    """The attention that every key gets from all queries, (batch, key-value heads, keys)."""
    everything = rule("full", 1.0, key.shape[2])
    found = key.new_zeros(key.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    for at in range(0, query.shape[2], block):
        end = min(at + block, query.shape[2])
        call = Call(everything, query[:, :, at:end], key[:, :, :end], scale, found[..., :0])
        found[..., :end] += call.logits.softmax(-1).sum((2, 3))
    return found


def _losses(model: nn.Module, ids: Tensor, job: _FullSequences, row: int) -> Tensor:
    job.row = row
    with attending(model, job.attend):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    if not job.layers:
        raise CacheError(without_attention(type(model).__name__))
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1).cpu()
