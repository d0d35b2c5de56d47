"""Settings of language models in studies: the text, the sizes, the training, and the paper's recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from joma.claims.config import Above, Least, StudyConfig, Within
from joma.data.python_source import PACKAGE
from joma.measure.rebound import FEWEST_SEEDS
from joma.models.decoder import DecoderConfig
from joma.recipes.optimizers import make_optimizer
from joma.training.ensemble import Precision

PYTHON = PACKAGE  # the corpus that needs no download: the source of sympy, which torch brings
TEXTS = {PYTHON: "Python source", "wikitext-2": "WikiText-2", "wikitext-103": "WikiText-103"}
"""Every corpus that has a name, as a caption calls it; a text file is called by its own."""


@dataclass(frozen=True)
class LanguageModelConfig(StudyConfig):
    """Settings of every study of language models. Defaults are the quick scale: small models of Python source."""

    corpus: str = PYTHON
    """python; wikitext-2 or wikitext-103, found under --data, JOMA_DATA, or where they were downloaded to; or a text
    file, FILE.txt or FOLDER/FILE."""
    data: str = ""
    """The folder that holds the folder of the corpus; empty: JOMA_DATA."""
    tokens: int = 200_000
    """Tokens of Python source to read at most; of other texts, tokens to train on."""
    vocabulary: int = 600
    """Words at most."""
    width: int = 32
    mlp: int = 32
    heads: int = 1
    dropout: float = 0.2
    streams: int = 8
    """Pieces of the training text that are read in parallel: the batch."""
    valid_streams: int = 10
    length: int = 35
    """Tokens in a sequence."""
    sequence: int = 20
    """Which sequence of the validation text's first stream the paper's single curves are measured on; from 0."""
    valid_sequences: int = 20
    """How many sequences of each validation stream are read at a measuring point; all if there are fewer."""
    steps: int = 400
    every: int = 20
    """Steps between two measuring points."""
    clip: Annotated[float, Above(0, "a large number to clip nothing")] = 0.5
    renew_each_epoch: bool = True
    """Forget Adam's state at the start of each epoch, as the original runs did."""
    decay: Annotated[float, Above(0), Within(0, 1)] = 1.0
    """The rate's factor from epoch to epoch; 1 is a constant rate, as in the original runs."""
    seeds: Annotated[int, Least(FEWEST_SEEDS, "to know what chance does")] = 3
    seed: int = 1
    """The first of the seeds."""
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus not in TEXTS and self.corpus == Path(self.corpus).stem:  # a text file may be gone by now
            raise ValueError(f"corpus must be one of {', '.join(TEXTS)}, or a text file, got {self.corpus!r}")
        if self.steps < 2 * self.every:
            raise ValueError(f"{self.steps} steps measured every {self.every} leave no valley between two points")
        # What is wrong with the network or its training is said now, by those who know, not when training starts.
        DecoderConfig(self.vocabulary, width=self.width, heads=self.heads, context=self.length, dropout=self.dropout)
        make_optimizer("adam", rate=getattr(self, "rates", getattr(self, "rate", 0.0)), clip=self.clip)


QUICK: dict[str, Any] = {
    "vocabulary": 80, "width": 24, "mlp": 24, "dropout": 0.0, "streams": 32, "length": 16, "sequence": 5, "steps": 480,
    "valid_sequences": 10, "every": 40, "rate": 1e-2,
}  # fmt: skip
"""Of Python source, the smallest networks found whose attention comes back: with one layer by 0.10 nats, with a spread
of 0.04 over 24 seeds from 2000 on. With 16 streams, or with a width of 16, it comes back by less or not at all; from a
width of 48 on one layer still falls at the end. 64 streams, a width of 28 or 32 and 150 words make it come back by 0.2
to 0.3 nats, for twice the time."""


PAPER: dict[str, Any] = {
    "corpus": "wikitext-2",
    "tokens": 1_000_000_000,
    "vocabulary": 1_000_000,
    "width": 200,
    "mlp": 200,
    "streams": 20,
    "sequence": 100,
    "valid_sequences": 1_000_000,
    "steps": 58_580,
    "every": 1_000,
    "seed": 3,
    "device": "cuda",
    "precision": "half-logits",
}
"""The recipe of Figures 6 and 8 on WikiText-2: 20 epochs of 2,929 steps, from the seeds of those runs on."""


def called(corpus: str) -> str:
    """A corpus as a caption calls it.

    >>> called("wikitext-2"), called("texts/song.txt")
    ('WikiText-2', 'song.txt')
    """
    return TEXTS.get(corpus, Path(corpus).name)
