"""Attention entropy of a model on a text, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joma.host.devices import lacking
from joma.measure._arguments import as_tensor
from joma.probes._record import ProbeError, inner
from joma.probes._transformers import collect


def attention_entropy(
    model: nn.Module,
    tokens: Tensor | np.ndarray | Sequence[int],
    *,
    context: int = 512,
    batch: int = 8,
    device: torch.device | str | None = None,
    single_pass: bool = False,
) -> Tensor:
    """(layers, heads), float64: mean entropy in nats of a transformers text model's attention over a text.

    tokens (length,), a tensor or the list a tokenizer gives, are cut into windows of `context` tokens, `batch` of them
    a forward pass; what is left over at the end is not read. The mean runs over all queries, also the first ones of a
    window, which can only see a few keys: compare values of the same context. `device` moves the model there and
    leaves it there; by default it stays where it is. Runs in evaluation mode without gradients; the mode comes back
    afterwards.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> attention_entropy(GPT2Model(shape), torch.arange(40) % 9, context=8).shape
    torch.Size([2, 4])
    """
    model = inner(model)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ProbeError(f"{type(model).__name__} reads two texts: call it yourself inside joma.probes.collect")
    windows = _windows(model, tokens, context, batch)
    if device is not None:
        if missing := lacking(str(device)):
            raise ValueError(str(missing))
        model = model.to(device)
    # The base model leaves out the head over the vocabulary, which no attention depends on.
    base: Any = getattr(model, "base_model", model)
    options = {"use_cache": False} if "use_cache" in signature(base.forward).parameters else {}
    at, training = next(base.parameters()).device, model.training
    try:
        model.eval()
        with torch.inference_mode(), collect(base, keep=False, single_pass=single_pass) as probe:
            for ids in windows.split(batch):
                base(input_ids=ids.to(at), **options)
    finally:
        model.train(training)
    return probe.mean_entropy()


def _windows(model: nn.Module, tokens: Tensor | np.ndarray | Sequence[int], context: int, batch: int) -> Tensor:
    """(windows, context) of `tokens`, after checking that the model can read them."""
    tokens = as_tensor(tokens, "tokens")
    if tokens.ndim != 1 or tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be one row of token ids, got {tokens.dtype} {tuple(tokens.shape)}")
    if context < 1 or batch < 1:
        raise ValueError(f"context and batch must be at least 1, got {context} and {batch}")
    if len(tokens) < context:
        raise ValueError(f"the text has {len(tokens)} tokens, fewer than the context of {context}")
    config = getattr(model, "config", None)
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and context > longest:
        raise ValueError(f"{type(model).__name__} reads at most {longest} tokens at a time, context is {context}")
    vocabulary = getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int) and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary):
        raise ValueError(f"token ids must be from 0 to {vocabulary - 1} for {type(model).__name__}")
    count = len(tokens) // context
    return tokens[: count * context].long().view(count, context)
