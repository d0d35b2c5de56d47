"""Contextual sparsity: which heads and neurons each token needs, and whether the layer before tells.

The sizes of the quick scale were tuned until it decided something.
"""

from joma.studies.sparsity.deja_vu.study import STUDY

__all__ = ["STUDY"]
