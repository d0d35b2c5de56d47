"""Are the gradients of real decoders of low rank, do they become so, and does their subspace stay?"""

from joma.studies.galore.galore_lowrank.study import STUDY

__all__ = ["STUDY"]
