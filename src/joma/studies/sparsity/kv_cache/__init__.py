"""What sparse attention buys: the loss of a network that keeps a part of its cache, over training.

The sizes of the quick scale were tuned until it decided something.
"""

from joma.studies.sparsity.kv_cache.study import STUDY

__all__ = ["STUDY"]
