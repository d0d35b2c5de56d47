"""Section 5: are tokens with a low common ancestor learned first? Attention and weights by height, over training."""

from joma.studies.hierarchy.shallow_first.study import STUDY

__all__ = ["STUDY"]
