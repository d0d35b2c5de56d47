"""Section 5 on real code: do hidden nodes come to stand for Python's syntax, and its lower levels first?"""

from joma.studies.syntax.python_hierarchy.study import STUDY

__all__ = ["STUDY"]
