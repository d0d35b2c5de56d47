"""Table 1: do hidden neurons of a trained Transformer stand for the latents of its data more than untrained ones?"""

from joma.studies.hierarchy.table1.study import STUDY

__all__ = ["STUDY"]
