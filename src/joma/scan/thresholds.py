"""Thresholds for continuous integration: `stable_rank<5`, `entropy@0<0.1`, `spectral_norm/mlp>100`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from joma.host.errors import BadInput
from joma.host.words import brief
from joma.scan.curves import Curve, Scan
from joma.scan.names.rows import Row
from joma.scan.tidy import quantity

_FORM = re.compile(
    r"\s*(?P<measure>[A-Za-z_][\w.]*)(?:/(?P<group>\w+))?(?:@(?P<layer>\d{1,9}))?"
    r"\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*"
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Threshold:
    """What must not be found: a measure, of one group or all, in one layer or all, beyond a number.

    >>> Threshold.read("stable_rank/mlp@3 < 5").layer
    3
    """

    text: str
    measure: str
    group: str | None
    layer: int | None
    sign: str
    number: float

    def __repr__(self) -> str:
        return brief(self)

    @staticmethod
    def read(text: str) -> Threshold:
        """MEASURE[/GROUP][@LAYER] and <, <=, > or >= and a number."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise BadInput(
                f"--fail-if takes MEASURE[/GROUP][@LAYER], one of < <= > >=, and a number, as in stable_rank/mlp@3<5, "
                f"got {text!r}"
            )
        layer = None if found["layer"] is None else int(found["layer"])
        number = float(found["number"])
        return Threshold(text.strip(), found["measure"], found["group"], layer, found["sign"], number)

    def speaks_of(self, curve: Curve, row: Row, column: str) -> bool:
        """Whether a number of that place is meant. Of several quantities the first has the measure's own name."""
        named = quantity(curve, column) == self.measure
        first = self.measure == curve.measure and (curve.by_head or column == curve.columns[0])
        here = self.group in (None, curve.group) and self.layer in (None, row.layer)
        return here and (named or first)

    def is_broken_by(self, value: float) -> bool:
        return _SIGNS[self.sign](value, self.number)


@dataclass(frozen=True)
class Violation:
    """A number that a threshold forbids, and where it is.

    >>> str(Violation("stable_rank<5", "step 100", "stable_rank/mlp", "layer 3", None, 4.25))
    'stable_rank<5: step 100, layer 3: stable_rank/mlp is 4.25'
    """

    threshold: str
    moment: str
    curve: str
    row: str
    head: str | None
    value: float

    def __repr__(self) -> str:
        return brief(self)

    def __str__(self) -> str:
        head = "" if self.head is None else f", head {self.head}"
        return f"{self.threshold}: {self.moment}, {self.row}{head}: {self.curve} is {self.value:.6g}"


def must_be_measured(thresholds: Sequence[Threshold], measures: Sequence[str], text: str) -> None:
    """Refuse a threshold on what is not measured: it could never fail. text: the measures as the user gave them."""
    for each in thresholds:
        if not any(each.measure == name or each.measure.startswith(f"{name}_") for name in measures):
            raise BadInput(f"--fail-if {each.text} speaks of {each.measure}, but --measures has {text}")


def violations(thresholds: Sequence[Threshold], scan: Scan) -> list[Violation]:
    """Every number that a threshold forbids, in the order of thresholds, curves and steps.

    Refuses a threshold that speaks of nothing that was measured: no number of the scan could break it.
    """
    return [found for threshold in thresholds for found in _broken(threshold, scan)]


def _broken(threshold: Threshold, scan: Scan) -> Iterator[Violation]:
    spoken = False
    for step, curve, row, column, value in scan.numbers():
        if threshold.speaks_of(curve, row, column):
            spoken = True
            if threshold.is_broken_by(value):
                head = column if curve.by_head else None
                yield Violation(threshold.text, f"{scan.axis} {step}", curve.name, row.label, head, value)
    if not spoken and threshold.measure.partition("_")[0] not in {name.partition("_")[0] for name in scan.refused}:
        raise BadInput(f"--fail-if {threshold.text} speaks of nothing that was measured; there are {_places(scan)}")


def _places(scan: Scan) -> str:
    said = []
    for curve in scan.curves.values():
        layers = [row.layer for row in curve.rows if row.layer is not None]
        said.append(f"{curve.name}@{min(layers)} to @{max(layers)}" if layers else curve.name)
    return ", ".join(said) or "no numbers"
