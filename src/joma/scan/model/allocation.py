"""Which parameters made attention change between two checkpoints: `joma.measure.allocation` on models of transformers.

Entropies come from queries and keys as logsumexp minus the expected logit, whose gradient is finite at masked keys.
"""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.words import brief_repr
from joma.probes.lengths import default_seq_len
from joma.scan.errors import CheckpointError
from joma.scan.model.loading import loaded_model
from joma.scan.model.running import Between, must_attend, must_be_finite, one_model, strangers_break
from joma.scan.names.parameters import parameter_groups

if TYPE_CHECKING:
    from joma.measure.allocation import Allocation

Function = Callable[[dict[str, Tensor]], Tensor]
TOLERANCE = 1e-3
"""Closing error of an interval, relative to its change."""
ABSOLUTE = 1e-4
"""Closing error in nats that never matters: entropies are printed with three digits."""
MOST = 128
"""Nodes per interval and batch, at most."""
TOGETHER = 4096
"""Tokens at a time: the graph of all of them is in memory."""
LOGITS = 1 << 28
"""Logits over the vocabulary at a time, 1 GiB in float32: the loss keeps them about three times."""
CHANGE, ERROR = "change", "error"
"""Columns before those of the groups: the change of all, and the error of a part: what all of them miss of the change,
or how far the part that moved most did so when nodes were last added, if that is more (never negative)."""


@brief_repr
class Pair(NamedTuple):
    """What two checkpoints gave: values (rows, columns) of every curve, and which curves have a row per layer."""

    values: Mapping[str, np.ndarray]
    columns: tuple[str, ...]
    by_layer: tuple[str, ...]
    line: str
    """For a line of progress."""
    notes: tuple[str, ...] = ()


def must_have_gradients(config: Any, name: str) -> None:
    """Refuse a model whose entropies have no gradient, or that has no loss of its own on a text."""
    must_attend(config, name)
    from joma.probes import can_probe

    if why := can_probe(config, gradients=True):
        raise CheckpointError(f"{name}: {why}")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    causal, masked = (type(config) in found for found in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING))
    if not causal or (masked and not getattr(config, "is_decoder", False)):
        what = f"allocation is of models that predict the next token, and {name} ({config.model_type}) does not"
        raise CheckpointError(what)


def loaded_whole(folder: Path, device: torch.device, between: Between) -> Any:
    """The model in a folder with its head, in float32 on the device."""
    with one_model:
        between("about to load the model")
        model = loaded_model(folder, device, with_head=True)
        must_be_finite(model)
        for module in model.modules():
            # The vector of a padding token has no gradient, though a text may hold the token.
            if isinstance(module, nn.Embedding):
                module.padding_idx = None
        return model.to(device)


def allocated(earlier: Any, later: Any, tokens: Tensor, between: Between, seq_len: int | None = None) -> Pair:
    """How much of the change of every layer's entropy, and of the loss, came through each group of parameters.

    earlier, later: what `loaded_whole` gives. The means run over all windows of the tokens. seq_len: tokens per window;
    None: 512, or fewer where the text is shorter or the model was trained on fewer.
    """
    from joma.measure.allocation import allocate

    width = seq_len or min(default_seq_len(later.config), len(tokens))
    windows = tokens[: len(tokens) // width * width].view(-1, width).to(next(later.parameters()).device)
    states = [{name: one.detach() for name, one in model.named_parameters()} for model in (earlier, later)]
    groups = parameter_groups(later)
    found: list[tuple[float, Allocation]] = []
    with one_model:
        for batch in windows.split(_at_once(later.config, width)):
            of = f"{len(batch):,} of {len(windows):,} windows"
            function = _watched(entropies_and_loss(later, batch), between, of)
            how: dict[str, Any] = {"tolerance": TOLERANCE, "absolute": ABSOLUTE, "most": MOST}
            how["each"] = True  # errors of groups may cancel in their sum
            with strangers_break():  # NaN on the way, other parameters
                found.append((len(batch) / len(windows), allocate(function, states, groups, **how)))
    parts, change = (sum(share * getattr(one, name)[0] for share, one in found) for name in ("parts", "change"))
    moved = sum(share * one.moved[0] for share, one in found)
    reasons = dict.fromkeys(reason for _, one in found for reason in one.reasons)
    nodes = int(sum(one.nodes[0] for _, one in found))
    return _pair(found[0][1].groups, parts, change, moved, nodes, tuple(reasons))


def _at_once(config: Any, seq_len: int) -> int:
    words = getattr(config, "vocab_size", None) or 1
    return max(1, min(TOGETHER, LOGITS // words) // seq_len)


def entropies_and_loss(model: Any, ids: Tensor) -> Function:
    """A function of the parameters: the mean entropy of every layer in nats, then the loss.

    ids: token ids (batch, length). It has a gradient by every parameter. The model must be in evaluation mode.
    """
    from joma.probes import collect

    def function(parameters: dict[str, Tensor]) -> Tensor:
        given = {"input_ids": ids, "use_cache": False}
        with collect(model, gradients=True) as probe:
            logits = torch.func.functional_call(model, parameters, (), given).logits
        layers = [torch.stack([one.entropy.mean() for one in probe.stats[name]]).mean() for name in probe.layers]
        wide = torch.promote_types(logits.dtype, torch.float32)
        loss = F.cross_entropy(logits[:, :-1].to(wide).flatten(0, 1), ids[:, 1:].flatten())
        return torch.stack([*layers, loss])

    return function


def _watched(function: Function, between: Between, of: str) -> Function:
    passes = count(1)

    def watched(parameters: dict[str, Tensor]) -> Tensor:
        between(f"pass {next(passes)} over {of}")
        return function(parameters)

    return watched


def _pair(groups: tuple[str, ...], parts: Any, change: Any, moved: Any, nodes: int, reasons: tuple[str, ...]) -> Pair:
    """parts and moved (groups, measures), change (measures): the last measure is the loss."""
    error = torch.maximum((parts.sum(0) - change).abs(), moved.amax(0))
    table = torch.cat([change[None], error[None], parts]).T.numpy()  # (measures, columns)
    moved = ", ".join(f"{x:+.3g}" for x in change[:-1][:4].tolist()) + (", ..." if len(change) > 5 else "")
    line = f"entropy {moved}; loss {float(change[-1]):+.3g}; each part to {float(error.max()):.1g} with {nodes} nodes"
    columns = (CHANGE, ERROR, *groups)
    values = {"allocation/entropy": table[:-1], "allocation/loss": table[-1:]}
    notes = tuple(f"not closed: {reason.partition(', ')[2] or reason}" for reason in reasons)
    return Pair(values, columns, ("allocation/entropy",), line, notes)
