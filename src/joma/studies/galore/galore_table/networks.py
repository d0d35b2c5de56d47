"""The methods of the table: which network each one trains, with which optimizers, and at which share of the rate.

Linear layers may have factors: W = B A (low rank), or W = W0 + scale B A with W0 held fast (LoRA, ReLoRA).
"""

from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from joma.claims.config import Above, OneOf, StudyConfig, Values
from joma.data.python_source import PACKAGE
from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, Muon, Projected
from joma.optim.projector import Kind

FULL, SCALED, GALORE, RANDOM, LORA, RELORA, LOW, MUON, UNSCALED = METHODS = (
    "full rank", "full rank, scaled", "GaLore", "random projection", "LoRA", "ReLoRA", "low rank", "Muon",
    "GaLore, unscaled",
)  # fmt: skip
PYTHON, INSTALLED = TEXTS = (PACKAGE, "wikitext-2 and installed python")


def shown(method: str) -> str:
    """How figures and findings call a method: its own name has a comma, which spoils lists."""
    return {SCALED: "scaled full rank", UNSCALED: "unscaled GaLore"}.get(method, method)


@dataclass(frozen=True)
class GaloreTableConfig(StudyConfig):
    """LLaMAs trained by several methods. Each method first finds its best rate at a short horizon."""

    methods: Annotated[tuple[str, ...], OneOf(*METHODS)] = METHODS[:-2]
    """Which are trained."""
    text: Annotated[str, OneOf(*TEXTS)] = PYTHON
    """`sympy`: the source of sympy, cut by Python's lexer. Or `wikitext-2 and installed python`, as byte pairs."""
    data: str = ""
    """The folder that holds wikitext-2; JOMA_DATA unless given."""
    source: int = 120_000
    """At most so many tokens (python) or bytes (installed python) of Python source."""
    vocabulary: int = 256
    width: int = 48
    mlp: int = 128
    heads: int = 4
    layers: int = 1
    context: int = 32
    batch: int = 4
    """Sequences per step."""
    at_once: int = 4
    """Sequences per forward and backward pass; a whole part of the batch."""
    rank: int = 12
    """Of GaLore, random projection, LoRA, ReLoRA and low rank."""
    refresh: int = 10
    """Steps between two subspaces of GaLore."""
    stagger: bool = False
    """Spread the refreshes of GaLore's matrices over the steps between them. GaLore's source makes all at one step."""
    share: float = 0.25
    """Of GaLore's update, and of the rate of the blocks in `full rank, scaled`."""
    alpha: float = 3.0
    """LoRA adds alpha / rank times the product of its factors."""
    restarts: int = 2
    """How often ReLoRA starts its factors anew, the first time included."""
    rates: Annotated[tuple[float, ...], Above(0), Values()] = (0.02, 0.005)
    sweep_steps: int = 8
    """The horizon at which each method finds its rate."""
    steps: int = 24
    """The horizon of the comparison."""
    looks: int = 1
    """How often the held-out loss is measured in a long run."""
    seeds: int = 3
    close_seeds: int = 1
    """Of the methods in `close`, if more than `seeds`."""
    close: Annotated[tuple[str, ...], OneOf(*METHODS)] = (GALORE, SCALED)
    """Methods that end so near to each other that few seeds do not tell them apart."""
    neighbours: Annotated[tuple[str, ...], OneOf(*METHODS)] = (FULL,)
    """Methods that try the next lower rate at the long horizon too."""
    held_out: int = 64
    """Held-out sequences per source."""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch % self.at_once:
            raise ValueError(f"at_once must divide the batch of {self.batch} sequences, got {self.at_once}")
        if self.held_out % self.at_once:
            raise ValueError(f"held_out must be a multiple of at_once, {self.at_once}, got {self.held_out}")
        if self.rank > min(self.width, self.mlp):
            raise ValueError(f"rank must be at most {min(self.width, self.mlp)}, the shorter side, got {self.rank}")
        if self.restarts > (most := min(self.steps, self.sweep_steps)):
            raise ValueError(f"restarts must lie between 1 and {most}, the steps, got {self.restarts}")
        if self.looks > self.steps:
            raise ValueError(f"looks must be at most {self.steps}, the steps, got {self.looks}")
        self.shape  # noqa: B018 - refuses an impossible width

    @property
    def shape(self) -> LlamaConfig:
        return LlamaConfig(self.vocabulary, self.width, self.mlp, self.heads, self.layers, self.context)


KIND = {LORA: "adapted", RELORA: "adapted", LOW: "factored"}
"""Of networks; those of other methods are plain. Methods with the same kind share its compiled code."""
PROJECTORS: dict[str, Kind] = {GALORE: "randomized", RANDOM: "random", UNSCALED: "randomized"}
GALORE_OPTIONS: dict[str, Any] = {  # with PROJECTED, all that could decide numbers and is no option of the study
    "on_move": "keep", "skip": ("embedding", "head"), "nonfinite": "skip", "clip": None, "per_layer": False,
}  # fmt: skip
PROJECTED: dict[str, Any] = {"conv": False, "experts": False, "basis_dtype": None, "state_dtype": None}
MUON_OPTIONS: dict[str, Any] = {"momentum": 0.95, "weight_decay": 0.0, "rounds": 5}
WARM_UP, LAST = 0.1, 0.1  # of the steps, and of the rate: the recipe of the paper


class Factored(nn.Module):
    """W = up down. Its initial entries have the spread of those of the matrix that it stands for."""

    def __init__(self, plain: nn.Linear, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(plain.out_features, rank))
        self.down = nn.Parameter(torch.empty(rank, plain.in_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def restart(self, source: torch.Generator) -> None:
        spread = sqrt(0.02 / sqrt(self.up.shape[1]))
        for factor in (self.up, self.down):
            factor.copy_(spread * torch.randn(factor.shape, generator=source))


class Adapted(Factored):
    """W = weight + scale up down, where only the factors are trained; up starts at zero."""

    def __init__(self, plain: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # not that of Factored: the weight comes first, as initial values are drawn in order
        self.weight = nn.Parameter(plain.weight.detach(), requires_grad=False)
        self.up = nn.Parameter(torch.empty(plain.out_features, rank))
        self.down = nn.Parameter(torch.empty(rank, plain.in_features))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + self.scale * super().forward(x)

    @torch.no_grad()
    def restart(self, source: torch.Generator) -> None:
        self.up.zero_()
        spread = 1 / sqrt(self.down.shape[1])
        self.down.copy_(spread * (2 * torch.rand(self.down.shape, generator=source) - 1))


def network_of(kind: str, config: GaloreTableConfig) -> Llama:
    """A network without sensible weights yet, which `start` gives it. Embedding, head and norms have no factors."""
    network = Llama(config.shape)
    for block in network.blocks if kind != "plain" else ():
        for name, part in list(block.named_children()):
            if isinstance(part, nn.Linear):
                made = Factored(part, config.rank) if kind == "factored" else Adapted(part, config.rank, config.alpha)
                setattr(block, name, made)
    return network.to(config.device)


def start(network: Llama, seed: int) -> None:
    """Initial weights, in place. The same seed gives every kind of network the same embedding."""
    network.initialise(seed)
    source = torch.Generator().manual_seed(seed)
    for part in network.modules():
        if isinstance(part, Factored):
            part.restart(source)


def merge_and_restart(network: Llama, source: torch.Generator) -> None:
    """ReLoRA's restart: what the factors learned moves into the weights, and new factors begin."""
    for part in network.modules():
        if isinstance(part, Adapted):
            part.weight.data.add_(part.up.data @ part.down.data, alpha=part.scale)
            part.restart(source)


class Together(GaLore):
    """Finds all subspaces at one step, as GaLore's source does."""

    staggered = False


def trained(network: Llama) -> list[Tensor]:
    """The weights that are not held fast."""
    return [weight for weight in network.parameters() if weight.requires_grad]


def optimizers_of(method: str, network: Llama, config: GaloreTableConfig, rate: float, seed: int) -> list[Optimizer]:
    """What trains a network by a method. A group of parameters may have a share of the rate."""
    options: dict[str, Any] = {"lr": rate, "weight_decay": 0.0, "fused": True}  # no weight decay, as in the paper
    if method in PROJECTORS:  # a step with a gradient that is not finite is skipped: nothing is learned, nothing counts
        scale = 1.0 if method == UNSCALED else config.share  # 1: one rate for all weights, as full rank has it
        own: dict[str, Any] = {
            "rank": config.rank,
            "refresh": config.refresh,
            "seed": seed,
        }
        own |= {"projector": PROJECTORS[method], "scale": scale, **GALORE_OPTIONS, "projected": Projected(**PROJECTED)}
        return [(GaLore if config.stagger else Together)(network, AdamW, **own, **options)]
    if method not in (SCALED, MUON):
        return [AdamW(trained(network), **options)]
    blocks = [part.weight for part in network.blocks.modules() if isinstance(part, nn.Linear)]
    known = {id(weight) for weight in blocks}
    rest = [weight for weight in trained(network) if id(weight) not in known]  # embedding, head and norms
    if method == MUON:
        return [Muon(blocks, rate, **MUON_OPTIONS), AdamW(rest, **options)]
    # GaLore's smaller rate in the blocks: what GaLore would be if its rank were full
    groups: list[dict[str, Any]] = [{"params": blocks, "share": config.share}, {"params": rest}]
    return [AdamW(groups, **options)]


def rate_share(step: int, steps: int) -> float:
    """Of the rate at a step: linear warm-up, then a cosine down to a tenth."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return LAST + (1 - LAST) * (1 + cos(pi * ((step + 1 - warm) / max(1, steps - warm)))) / 2


def rewarmed(step: int, steps: int, restarts: int) -> float:
    """ReLoRA: the share again, times a new linear warm-up after every restart."""
    length = -(-steps // restarts)
    warm = max(1, round(WARM_UP * length))
    return rate_share(step, steps) * (1.0 if step < length else min(1.0, (step % length + 1) / warm))


def restarts_at(steps: int, restarts: int) -> set[int]:
    """The steps before which ReLoRA merges and begins anew; never at the start."""
    length = -(-steps // restarts)
    return set(range(length, steps, length))


def set_rates(optimizers: list[Optimizer], rate: float) -> None:
    """Of all groups; a group may have a share of the rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
