"""What we look at, one quantity a file: tensors in, tensors out."""

from joma.measure.spectrum import stable_rank

__all__ = ["stable_rank"]
