"""The methods of the table: which network each one trains, and with which optimizers."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from joma.models.llama import Llama
from joma.optim import GaLore
from joma.optim.projector import Kind
from joma.studies.galore._table_config import FULL, GALORE, LORA, LOW, MUON, RANDOM, RELORA, SCALED, Config
from joma.studies.galore._table_layers import Adapted, Factored, replace_matrices
from joma.studies.galore._table_muon import Muon

WARM_UP, LAST = 0.1, 0.1  # of the steps, and of the rate: the recipe of the paper


class Method(NamedTuple):
    """How a network is made and trained. Methods with the same network share its compiled code."""

    network: str
    optimizers: Callable[[Llama, Config, float, int], list[Optimizer]]
    """From network, config, rate and seed."""
    restarts: bool = False
    """Whether factors are merged and begun anew."""


def network_of(kind: str, config: Config) -> Llama:
    """A network without sensible weights yet; `_table_layers.start` gives it some."""
    network = Llama(config.shape)
    if kind == "factored":
        replace_matrices(network, lambda plain: Factored(plain, config.rank))
    elif kind == "adapted":
        replace_matrices(network, lambda plain: Adapted(plain, config.rank, config.alpha))
    return network.to(config.device)


def trained(network: Llama) -> list[Tensor]:
    return [weight for weight in network.parameters() if weight.requires_grad]


def _options(rate: float) -> dict[str, Any]:
    """Of AdamW; without weight decay, as in the paper."""
    return {"lr": rate, "weight_decay": 0.0, "fused": True}


def _full(network: Llama, config: Config, rate: float, seed: int) -> list[Optimizer]:
    return [AdamW(trained(network), **_options(rate))]


def _scaled(network: Llama, config: Config, rate: float, seed: int) -> list[Optimizer]:
    """Full rank with GaLore's smaller rate in the blocks: what GaLore would be if its rank were full."""
    blocks, others = _apart(network)
    groups: list[dict[str, Any]] = [{"params": blocks, "share": config.share}, {"params": others}]
    return [AdamW(groups, **_options(rate))]


def _galore(projector: Kind) -> Callable[[Llama, Config, float, int], list[Optimizer]]:
    """A step with a gradient that is not finite is skipped; such a network learns nothing and does not count."""

    def optimizers(network: Llama, config: Config, rate: float, seed: int) -> list[Optimizer]:
        own: dict[str, Any] = {"rank": config.rank, "refresh": config.refresh, "scale": config.share, "seed": seed}
        return [GaLore(network, AdamW, projector=projector, nonfinite="skip", **own, **_options(rate))]

    return optimizers


def _muon(network: Llama, config: Config, rate: float, seed: int) -> list[Optimizer]:
    """Muon for the matrices of the blocks, Adam for the rest."""
    blocks, others = _apart(network)
    return [Muon(blocks, rate), AdamW(others, **_options(rate))]


def _apart(network: Llama) -> tuple[list[Tensor], list[Tensor]]:
    """The matrices of the blocks; embedding, head and norms."""
    blocks = [part.weight for part in network.blocks.modules() if isinstance(part, nn.Linear)]
    known = {id(weight) for weight in blocks}
    return blocks, [weight for weight in trained(network) if id(weight) not in known]


OF = {
    FULL: Method("plain", _full),
    SCALED: Method("plain", _scaled),
    GALORE: Method("plain", _galore("randomized")),
    RANDOM: Method("plain", _galore("random")),
    LORA: Method("adapted", _full),
    RELORA: Method("adapted", _full, restarts=True),
    LOW: Method("factored", _full),
    MUON: Method("plain", _muon),
}


def rate_share(step: int, steps: int) -> float:
    """Of the rate at a step: linear warm-up, then a cosine down to a tenth.

    >>> [round(rate_share(step, 100), 3) for step in (0, 9, 54, 99)]
    [0.1, 1.0, 0.55, 0.1]
    """
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    way = (step + 1 - warm) / max(1, steps - warm)
    return LAST + (1 - LAST) * (1 + cos(pi * way)) / 2


def rewarmed(step: int, steps: int, restarts: int) -> float:
    """ReLoRA: the share again, times a new linear warm-up after every restart."""
    length = -(-steps // restarts)
    since = step % length
    warm = max(1, round(WARM_UP * length))
    return rate_share(step, steps) * (1.0 if step < length else min(1.0, (since + 1) / warm))


def restarts_at(steps: int, restarts: int) -> set[int]:
    """The steps before which ReLoRA merges and begins anew; never at the start."""
    length = -(-steps // restarts)
    return set(range(length, steps, length))


def set_rates(optimizers: list[Optimizer], rate: float) -> None:
    """Of all groups; a group may have a share of the rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
