"""What a state space keeps of a text. Mamba's mixers have no softmax: each token shrinks their state by its own factor.

h_t = a_t h_(t-1) + what token t adds, with a_t = exp(dt_t A), A = -exp(A_log) < 0, and the step dt_t > 0 that the mixer
projects from what it reads. The projection is watched, so the model runs as it is, on whatever kernels.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.arguments import Number
from joma.host.words import brief_repr
from joma.measure._gram import wide_dtype
from joma.probes._record import MIXERS, ProbeError, inner
from joma.probes._text import batches_of, run_on


@brief_repr
class StateDecay(NamedTuple):
    """What every state-space layer keeps, as means over the tokens of a text."""

    layers: list[str]
    """The mixers, in the order of the model."""
    decay: Tensor
    """(layers, channels) a_t, the factor by which one token shrinks the state; channels are heads in Mamba 2."""
    length: Tensor
    """(layers, channels) effective length L_t = 1 + a_t L_(t-1): how many tokens the state holds, each counted by the
    share that is left of it. It is 1 / (1 - a) far into a text if a is constant."""


def state_decay(
    model: nn.Module, tokens: Number, *, context: int | None = None, batch: int = 8,
    device: torch.device | str | None = None,
) -> StateDecay:  # fmt: skip
    """How fast the state of Mamba mixers decays over a text, and how many tokens it holds.

    - model: of transformers, with mixers of Mamba 1 or 2: Mamba, Falcon Mamba, Jamba, Mamba 2, Falcon-H1, Bamba,
      Zamba 2, Nemotron-H or Granite 4. Mamba 1 has several states for each channel, and their mean is given
    - tokens, context, batch, device: as in `attention_entropy`. Every window begins with an empty state, so that no
      length exceeds the context

    >>> from transformers import MambaConfig, MambaModel
    >>> model = MambaModel(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, state_size=4))
    >>> found = state_decay(model, torch.arange(40) % 9, context=20)
    >>> found.decay.shape, bool((found.decay < 1).all()), bool((found.length < 20).all())
    (torch.Size([2, 16]), True, True)
    """
    model = inner(model)
    if not any(type(module).__name__ in MIXERS for module in model.modules()):
        raise ProbeError(f"{type(model).__name__} has no state space that is known: {', '.join(sorted(MIXERS))}")
    model, windows = batches_of(model, tokens, context, batch, device)
    sums = run_on(model, windows, _watching)
    tokens_read = sum(map(torch.numel, windows))
    tables = [(torch.stack(parts).sum(0) / tokens_read).mT for parts in sums.values()]
    padded = nn.utils.rnn.pad_sequence(tables, batch_first=True, padding_value=torch.nan)
    return StateDecay(list(sums), *padded.unbind(-1))


_Sums = dict[str, list[Tensor]]  # of each mixer, one (2, channels) per call: decays and lengths, summed over tokens


@contextmanager
def _watching(model: nn.Module) -> Iterator[_Sums]:
    sums: _Sums = {}
    with ExitStack() as hooks:
        for name, mixer in model.named_modules():
            if type(mixer).__name__ in MIXERS:
                projection: Any = mixer.x_proj if _is_first(mixer) else mixer.in_proj
                hooks.callback(projection.register_forward_hook(partial(_add, sums, name, mixer)).remove)
        yield sums


def _is_first(mixer: Any) -> bool:
    """Whether a mixer is Mamba 1, whose A has a row for each channel."""
    return bool(mixer.A_log.ndim == 2)


def _add(sums: _Sums, name: str, mixer: Any, projection: nn.Module, inputs: Any, projected: Tensor) -> None:
    wide = wide_dtype(projected)
    steps = _steps(mixer, projected.detach().to(wide))  # (batch, tokens, channels)
    rate = mixer.A_log.detach().to(wide).exp().reshape(steps.shape[-1], -1)  # (channels, states)
    held = torch.zeros(len(steps), *rate.shape, dtype=wide, device=steps.device)
    decays, lengths = torch.zeros_like(rate), torch.zeros_like(rate)
    for step in steps.unbind(1):  # a table of all tokens would not fit
        factor = torch.exp(-step[..., None] * rate)
        held = 1 + factor * held
        decays += factor.sum(0)
        lengths += held.sum(0)
    sums.setdefault(name, []).append(torch.stack([decays, lengths]).mean(-1).cpu().double())


def _steps(mixer: Any, projected: Tensor) -> Tensor:
    """dt of every token, (batch, tokens, channels), from what the mixer projects."""
    if _is_first(mixer):
        low = projected[..., : mixer.time_step_rank]
        if type(mixer).__name__ != "MambaMixer":  # Falcon Mamba and Jamba norm it
            low = mixer.dt_layernorm(low)
        bias = mixer.dt_proj.bias
        return F.softplus(F.linear(low, mixer.dt_proj.weight.to(low), None if bias is None else bias.to(low)))
    steps = projected[..., -mixer.num_heads :]
    if (scale := getattr(mixer, "mup_vector", None)) is not None:  # Falcon-H1
        steps = steps * scale[..., -mixer.num_heads :]
    return F.softplus(steps + mixer.dt_bias).clamp(*mixer.time_step_limit)
