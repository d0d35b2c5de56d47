"""MobileLLM's point: at equal parameter count, is a deep and thin network better than a shallow and wide one?"""

from joma.studies.depth_width.depth_width.study import STUDY

__all__ = ["STUDY"]
