"""What `sinks` and `deja-vu` share: a text to read, and their configs."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from joma.claims.contract import Progress, StudyConfig
from joma.data.text import Corpus, CorpusError
from joma.recipes.copying import Reading
from joma.recipes.language import PYTHON, LanguageModelConfig, corpus, same_text
from joma.recipes.language.text import remember_corpus
from joma.runs import Run

COPY, TEXT = "copying", "text"
"""The readings. In the first, attention helps at few tokens, so that a head has nothing to do at all others."""


@dataclass(frozen=True)
class TextConfig(StudyConfig):
    """A config that names a text. Quick scale: Python source."""

    corpus: str = PYTHON
    """The text: sympy, wikitext-2 or wikitext-103, or a text file."""
    data: str = ""
    """The folder that holds the folder of the corpus; empty: JOMA_DATA."""
    tokens: int = 100_000
    """Tokens of the text to read at most."""
    vocabulary: int = 300
    """Words of the text at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text  # an unknown corpus is refused now

    @property
    def text(self) -> LanguageModelConfig:
        return LanguageModelConfig(corpus=self.corpus, data=self.data, tokens=self.tokens, vocabulary=self.vocabulary)


C = TypeVar("C", bound=TextConfig)


def recorded_config(kind: type[C], run: Run) -> C:
    """The config that a run was made with."""
    names = kind.__dataclass_fields__.keys() & run.config.keys()
    given: dict[str, Any] = {name: run.config[name] for name in names}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return kind(**given)


def known_mean(values: Any) -> float:
    """Of what is a number, in the precision of the record; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def check_text(config: TextConfig, run: Run) -> None:
    """A study's `check`: the text of a finished run is still the one that is found, or none is found."""
    same_text(config.text, run)


def read_text(config: TextConfig, run: Run, progress: Progress, length: int, valid: int) -> Reading:
    """The text that the config names; the run remembers which one it was."""
    found = corpus(config.text, progress)
    remember_corpus(found, run)
    return of_text(found, length, valid)


def of_text(text: Corpus, length: int, valid: int) -> Reading:
    """Pieces of a text that follow one another."""
    parts = []
    for split in ("train", "valid"):
        tokens = text.tokens[split].long()
        count = len(tokens) // (length + 1)
        if count < (valid if split == "valid" else 1):
            raise CorpusError(
                f"the {split} text has {len(tokens):,} tokens, too few for sequences of {length + 1} tokens: give a "
                "longer text, or a shorter length"
            )
        parts.append(tokens[: count * (length + 1)].view(count, length + 1))
    return Reading(parts[0], parts[1][:valid].contiguous(), len(text.vocabulary))
