"""Chain of thought in decoders: does a network that knows A -> B and B -> C know A ~> C, at once or step by step?"""

from joma.studies.reversal.chain_of_thought_decoder.study import STUDY

__all__ = ["STUDY"]
