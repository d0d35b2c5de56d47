"""What the study `galore-table` trains: sizes, rates, horizons, seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from joma.claims.config import Above, OneOf, Several, StudyConfig
from joma.data.python_source import PACKAGE
from joma.models.llama import LlamaConfig

FULL, SCALED, GALORE, RANDOM, LORA, RELORA, LOW, MUON = METHODS = (
    "full rank", "full rank, scaled", "GaLore", "random projection", "LoRA", "ReLoRA", "low rank", "Muon"
)  # fmt: skip
PYTHON, INSTALLED = TEXTS = (PACKAGE, "wikitext-2 and installed python")


def shown(method: str) -> str:
    """How figures and findings call a method: its own name has a comma, which spoils lists."""
    return "scaled full rank" if method == SCALED else method


@dataclass(frozen=True)
class GaloreTableConfig(StudyConfig):
    """LLaMAs trained by several methods. Each method first finds its best rate at a short horizon."""

    methods: Annotated[tuple[str, ...], OneOf(*METHODS)] = METHODS[:-1]
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
    share: float = 0.25
    """Of GaLore's update, and of the rate of the blocks in `full rank, scaled`."""
    alpha: float = 3.0
    """LoRA adds alpha / rank times the product of its factors."""
    restarts: int = 2
    """How often ReLoRA starts its factors anew, the first time included."""
    rates: Annotated[tuple[float, ...], Above(0), Several()] = (0.02, 0.005)
    sweep_steps: int = 8
    """The horizon at which each method finds its rate."""
    steps: int = 24
    """The horizon of the comparison."""
    looks: int = 1
    """How often the held-out loss is measured in a long run."""
    seeds: int = 3
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
        """Of the network."""
        return LlamaConfig(self.vocabulary, self.width, self.mlp, self.heads, self.layers, self.context)
