"""In what a recorded run differs from the paper's recipe: only runs that do not are held against its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joma.recipes.language import PAPER
from joma.runs import Run

AS_THE_PAPER = {
    **{name: value for name, value in PAPER.items() if name not in ("device", "precision", "every", "seed")},
    "heads": 1, "dropout": 0.2, "valid_streams": 10, "length": 35, "clip": 0.5, "renew_each_epoch": True, "decay": 1.0,
}  # fmt: skip
"""What must not be changed if results are to be compared with the paper's numbers."""
SIZES = (28_782, 2_049_990, 214_417)
"""Words of WikiText-2, tokens to train on, tokens to validate."""


def differs(config: Mapping[str, Any], **changes: Any) -> str:
    """In what a recorded config differs from the paper's recipe, in words; empty if in nothing.

    changes: what else is wanted, or wanted otherwise.
    """
    wanted = AS_THE_PAPER | changes
    found = [f"{name} is {config[name]}, not {value}" for name, value in wanted.items() if config[name] != value]
    return found[0] + (f" (and {len(found) - 1} more options differ)" if found[1:] else "") if found else ""


def not_wikitext_2(run: Run) -> str:
    """Why a run's text, in a folder of that name, is not WikiText-2; empty if it is."""
    words, train, valid = (int(size) for size in run.value("corpus/sizes"))
    if (words, train, valid) == SIZES:
        return ""
    wanted = f"{SIZES[0]} and {SIZES[1]} + {SIZES[2]}"
    return f"the text is not WikiText-2: it has {words} words and {train} + {valid} tokens instead of {wanted}"
