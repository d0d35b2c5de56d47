"""Section 5 where it can fail: does training make hidden neurons stand for the latents of HBLT(ρ), on fresh samples?"""

from joma.studies.hierarchy.hblt_alignment.study import STUDY

__all__ = ["STUDY"]
