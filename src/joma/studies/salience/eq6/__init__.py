"""Equation 6, Figure 4 and the remark on rank: entropy and stable rank drop, then recover."""

from joma.studies.salience.eq6.study import STUDY

__all__ = ["STUDY"]
