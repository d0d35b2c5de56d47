"""Of many cases of one test, some in every run and the others in long ones.

@pytest.mark.parametrize("shape", some_now(SHAPES, every=4))

For cases that run the same code on other numbers: one of them tells of a fault, the others of a rare one.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def some_now(cases: Iterable[Any], *, every: int) -> list[ParameterSet]:
    """The first case and every so many after it as they are, the others marked as long.

    >>> [bool(case.marks) for case in some_now("abcde", every=2)]
    [False, True, False, True, False]
    """
    return [_now_or_later(case, later=place % every > 0) for place, case in enumerate(cases)]


def _now_or_later(case: Any, *, later: bool) -> ParameterSet:
    marks = [pytest.mark.long] * later
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, *marks])
    values = case if isinstance(case, tuple | list) else (case,)
    return pytest.param(*values, marks=marks)
