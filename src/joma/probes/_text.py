"""Attention entropy, sparsity and spread of a model on text, in bounded memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from joma.host.arguments import Number, as_tensor
from joma.host.devices import lacking
from joma.host.words import counted
from joma.measure.spread import Spread, SpreadSums
from joma.models.decoder import Decoder
from joma.probes._own import ATTENDING
from joma.probes._record import Probe, ProbeError, inner, must_be_keys
from joma.probes._sparsity import KEEP, AttentionSparsity
from joma.probes._transformers import collect
from joma.probes.decoder import ensemble_entropy, ensemble_sparsity, layer_sums, spread_of_layers
from joma.probes.lengths import SEQ_LEN, default_seq_len, lengths_of

_Found = TypeVar("_Found")
LOGITS = 1 << 26
"""Logits at a time, of all heads of one layer, where a model forms them itself: 256 MiB in float32."""
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")


def attention_entropy(
    model: nn.Module, tokens: Number, *, context: int | None = None, batch: int = 8,
    device: torch.device | str | None = None,
) -> Tensor:  # fmt: skip
    """Mean entropy in nats of a model's attention over text: (layers, heads), float64.

    Every text is cut into windows; what is left over at its end is not read. The mean runs over all queries, also the
    first ones of a window, which can only see a few keys: compare values of the same context. Models that compute
    attention by themselves read fewer windows at a time where `LOGITS` would be exceeded. Runs in evaluation mode
    without gradients; the mode comes back afterwards.

    - model: a text model of transformers, or a `joma.models.Decoder`, which gives (members, layers, heads)
    - tokens: the ids of one text (length,), or of a batch of texts (texts, length); a list or an array will do
    - context: tokens per window; None: 512, or less where the texts are shorter or the model was trained on fewer. A
      longer one is read where positions have no end; `joma.probes.lengths` says whether it goes beyond training
    - batch: windows per forward pass
    - device: moves the model there and leaves it there; None: it stays where it is

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> attention_entropy(GPT2Model(shape), torch.arange(40) % 9).shape
    torch.Size([2, 4])
    """
    model, batches = batches_of(model, tokens, context, batch, device)
    if isinstance(model, Decoder):
        return _mean_of_members(batches, lambda some: (ensemble_entropy(model, some),))[0]
    return _of_transformers(model, batches, None).mean_entropy()


def attention_sparsity(
    model: nn.Module, tokens: Number, *, keep: int = KEEP, context: int | None = None, batch: int = 8,
    device: torch.device | str | None = None,
) -> AttentionSparsity:  # fmt: skip
    """How sparse a model's attention is over text: six means over queries, each (layers, heads), float64.

    keep: the number of keys of `top_keys`. Everything else is as in `attention_entropy`, also which models can be
    measured; of a `Decoder` each is (members, layers, heads). No queries x keys tensor is made beside those that a
    model makes itself. 10 % of the few keys that first queries see is one key: compare values of the same context.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> attention_sparsity(GPT2Model(shape), torch.arange(40) % 9, keep=2).top_keys.shape
    torch.Size([2, 4])
    """
    return attention_means(model, tokens, sparsity=keep, context=context, batch=batch, device=device)[1]


def attention_means(
    model: nn.Module, tokens: Number, *, sparsity: int, context: int | None = None, batch: int = 8,
    device: torch.device | str | None = None,
) -> tuple[Tensor, AttentionSparsity]:  # fmt: skip
    """What `attention_entropy` and `attention_sparsity` give, from one reading of the text.

    sparsity: the number of keys of `top_keys`.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> entropy, sparsity = attention_means(GPT2Model(shape), torch.arange(40) % 9, sparsity=2)
    >>> entropy.shape == sparsity.first_key.shape
    True
    """
    if sparsity is None:
        raise ValueError("sparsity must be a number of keys, at least 1, got None")
    must_be_keys(sparsity)
    model, batches = batches_of(model, tokens, context, batch, device)
    if isinstance(model, Decoder):
        entropy, *others = _mean_of_members(batches, lambda some: ensemble_sparsity(model, some, keep=sparsity))
        return entropy, AttentionSparsity(*others)
    probe = _of_transformers(model, batches, sparsity)
    return probe.mean_entropy(), probe.mean_sparsity()


def attention_spread(
    model: nn.Module, tokens: Number, *, context: int | None = None, batch: int = 8,
    device: torch.device | str | None = None,
) -> Spread:  # fmt: skip
    """How far a model's logits spread over keys on a text, and how much of that all queries share: (layers, heads).

    The fields are those of `joma.measure.spread.spread`, in float64; of a `Decoder` each is (members, layers, heads).
    The mean query is that of the whole text. Everything else is as in `attention_entropy`. Models that compute
    attention by themselves are refused, because their queries are not seen.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> found = attention_spread(GPT2Model(shape), torch.arange(40) % 9)
    >>> torch.allclose(found.shared + found.specific + found.cross, found.variance)
    True
    """
    model, batches = batches_of(model, tokens, context, batch, device)
    if isinstance(model, Decoder):
        total: list[SpreadSums] = []
        with torch.inference_mode():
            for some in batches:
                each = layer_sums(model, some)
                total = [a.joined(b) for a, b in zip(total, each, strict=True)] if total else each
        return Spread(*(part.cpu() for part in spread_of_layers(model, total)))
    return _of_transformers(model, batches, None, spread=True).mean_spread()


def probe_text(
    model: nn.Module, tokens: Number, *, sparsity: int | None = None, spread: bool = False, context: int | None = None,
    batch: int = 8, device: torch.device | str | None = None,
) -> Probe:  # fmt: skip
    """A probe that has read a text: everything that is asked for, from one reading.

    sparsity, spread: as in `collect`. Everything else is as in `attention_entropy`, for a model of transformers.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> probe = probe_text(GPT2Model(shape), torch.arange(40) % 9, spread=True)
    >>> probe.mean_entropy().shape, probe.mean_spread().shared.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """
    if isinstance(inner(model), Decoder):
        raise ValueError("probe_text reads with models of transformers; a Decoder has attention_entropy and its like")
    model, batches = batches_of(model, tokens, context, batch, device)
    return _of_transformers(model, batches, sparsity, spread=spread)


def batches_of(
    model: nn.Module, tokens: Number, context: int | None, batch: int, device: Any
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model where it is to run, and its windows, as many at a time as it may read, beside it."""
    model = inner(model)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ProbeError(f"{type(model).__name__} reads two texts: call it yourself inside joma.probes.collect")
    windows = _windows(model, tokens, context, batch)
    if device is not None:
        if missing := lacking(str(device)):
            raise ValueError(str(missing))
        model = model.to(device)
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) in ATTENDING:  # its own attention forms the queries x keys matrix
        heads = next((n for key in _HEADS if isinstance(n := getattr(config, key, None), int)), 1)
        batch = min(batch, max(1, LOGITS // (heads * windows.shape[1] ** 2)))
    return model, windows.to(next(model.parameters()).device).split(batch)


def _mean_of_members(
    batches: tuple[Tensor, ...], measure: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    total = sum(len(some) for some in batches)
    with torch.inference_mode():
        found = [[each * (len(some) / total) for each in measure(some)] for some in batches]
    return tuple(torch.stack(parts).sum(0).cpu() for parts in zip(*found, strict=True))


def _of_transformers(
    model: nn.Module, batches: tuple[Tensor, ...], sparsity: int | None, *, spread: bool = False
) -> Probe:
    # No logits are handed back, so the pass that computes the output may give the statistics too.
    return run_on(model, batches, partial(collect, keep=False, single_pass=True, sparsity=sparsity, spread=spread))


def run_on(
    model: nn.Module, batches: tuple[Tensor, ...], watched: Callable[[nn.Module], AbstractContextManager[_Found]]
) -> _Found:
    """What `watched` gives of a model of transformers that reads all batches inside of it, in evaluation mode."""
    # The base model leaves out the head over the vocabulary, which no attention depends on.
    base: Any = getattr(model, "base_model", model)
    options = {"use_cache": False} if "use_cache" in signature(base.forward).parameters else {}
    at, training = next(base.parameters()).device, model.training
    try:
        model.eval()
        with torch.inference_mode(), watched(base) as found:
            for ids in batches:
                base(input_ids=ids.to(at), **options)
    finally:
        model.train(training)
    return found


def _windows(model: nn.Module, tokens: Number, context: int | None, batch: int) -> Tensor:
    """(windows, context) of `tokens`, after checking that the model can read them."""
    ids = as_tensor(tokens, "tokens")
    if ids.ndim not in (1, 2) or ids.numel() == 0 or ids.dtype.is_floating_point or ids.dtype == torch.bool:
        wanted = "token ids, (length,) of one text or (texts, length)"
        raise ValueError(f"tokens must be {wanted}, got {ids.dtype} {tuple(ids.shape)}")
    length = ids.shape[-1]
    config: Any = getattr(model, "config", None)
    if isinstance(model, Decoder):
        usual, longest, vocabulary = min(SEQ_LEN, config.context), config.context, config.vocabulary
    else:
        usual, longest = default_seq_len(config), lengths_of(config).most
        vocabulary = getattr(config, "vocab_size", None)
    width = min(length, usual) if context is None else context
    if width < 1 or batch < 1:
        raise ValueError(f"context and batch must be at least 1, got {context} and {batch}")
    if length < width:
        raise ValueError(f"the text has {counted(length, 'token')}, fewer than the context of {width}")
    if longest is not None and width > longest:
        raise ValueError(f"{type(model).__name__} reads at most {longest} tokens at a time, context is {width}")
    known = isinstance(vocabulary, int) and vocabulary > 0
    if known and not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
        raise ValueError(f"token ids must be from 0 to {vocabulary - 1} for {type(model).__name__}")
    return ids[..., : length // width * width].long().reshape(-1, width)
