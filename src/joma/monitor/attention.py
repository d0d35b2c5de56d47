"""One pass over the probe batch, watched by a probe and leaving no trace in the model."""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from joma.host.words import short
from joma.monitor.batch import ProbeBatch
from joma.monitor.errors import MonitorError
from joma.monitor.parallel import resharded
from joma.monitor.untouched import untouched
from joma.probes import Probe, ProbeError, collect, collect_plain
from joma.probes.adapters import Adapters

LOOKED_FOR = "transformers' attention, torch's scaled_dot_product_attention and nn.MultiheadAttention"


def watched_pass(
    model: nn.Module,
    batch: ProbeBatch,
    *,
    spread: bool,
    attention: Adapters | None = None,
    autocast: torch.dtype | None = None,
) -> Probe:
    """The probe of one pass. What torch.compile has compiled runs as it is written.

    attention: as in `joma.probes.collect_plain`. autocast: as in `untouched`.
    """
    with untouched(model, autocast), resharded(model):
        return quiet_pass(model, batch, spread=spread, attention=attention)


def quiet_pass(model: nn.Module, batch: ProbeBatch, *, spread: bool, attention: Adapters | None = None) -> Probe:
    """The same inside `untouched`, which leaves the model as it was."""
    with _probe_for(model, spread, attention) as probe, warnings.catch_warnings():
        # Of activation checkpointing: there are no gradients here, and none are missed.
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        batch.call(model)
    return probe


def first_pass(
    model: nn.Module,
    batch: ProbeBatch,
    *,
    spread: bool,
    attention: Adapters | None = None,
    autocast: torch.dtype | None = None,
) -> Probe:
    """The same, where everything that does not fit is refused in one sentence."""
    batch.must_suit(model)
    try:
        return watched_pass(model, batch, spread=spread, attention=attention, autocast=autocast)
    except MonitorError:
        raise
    except ProbeError as error:
        if attention:  # the sentence on what they gave is the one that helps
            raise MonitorError(str(error)) from error
        raise MonitorError(
            f"no attention that can be measured was found: {error}; looked for were {LOOKED_FOR}; the argument "
            "attention tells of others, and measures=['stable_rank', 'norm'] needs none"
        ) from error
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
        if isinstance(error, RuntimeError) and (sentence := _left_behind(model)):
            raise MonitorError(sentence) from error
        why = " ".join(str(error).split()) or type(error).__name__
        raise MonitorError(f"probe does not fit {type(model).__name__}: {short(why, 200)}") from error


def _left_behind(model: nn.Module) -> str | None:
    """Why a pass fails though the probe fits: a tensor stayed behind when the model moved. None if none did."""
    devices = {each.device for each in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if len(devices) == 1 and isinstance(value, Tensor) and value.ndim and value.device not in devices:
                return (
                    f"{type(model).__name__} is on {devices.pop()}, but its {path}{path and '.'}{name} is on "
                    f"{value.device}: it is no buffer, so it does not move with the model; "
                    f"register_buffer({name!r}, ...) makes it one"
                )
    return None


def _probe_for(model: nn.Module, spread: bool, attention: Adapters | None) -> AbstractContextManager[Probe]:
    if not attention and is_of_transformers(model):
        return collect(model, keep=False, single_pass=True, spread=spread)
    return collect_plain(model, keep=False, spread=spread, attention=attention)


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model of transformers is inside; where it was never loaded there is none."""
    library = sys.modules.get("transformers")
    kind = getattr(library, "PreTrainedModel", None)
    return kind is not None and any(isinstance(each, kind) for each in model.modules())
