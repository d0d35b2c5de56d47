"""The reversal curse in decoders: does a network that was taught A -> B know B <- A, and what would cure it?"""

from joma.studies.reversal.reversal_decoder.study import STUDY

__all__ = ["STUDY"]
