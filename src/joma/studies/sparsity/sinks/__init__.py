"""Attention sinks: when the first token comes to draw attention, and whether that needs softmax.

The sizes of the quick scale were tuned until it decided something. The made language was chosen after trials
(`_readings`). For the text at paper scale, depth, rate and length were changed once, after a trial without a
sink.
"""

from joma.studies.sparsity.sinks.study import STUDY

__all__ = ["STUDY"]
