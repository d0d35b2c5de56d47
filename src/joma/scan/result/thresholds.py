"""Thresholds for continuous integration: `stable_rank<5`, `entropy@0<0.1`, `spectral_norm/mlp>100`."""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from joma.host.errors import BadInput
from joma.host.words import brief_repr, counted
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve, Scan

_FORM = re.compile(
    r"\s*(?P<measure>[A-Za-z_][\w.]*)(?:/(?P<group>\w+))?(?:@(?P<layer>\d{1,9}))?"
    r"\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*"
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


@brief_repr
@dataclass(frozen=True)
class Threshold:
    """What must not be found: a measure, of one group or all, in one layer or all, beyond a number."""

    text: str
    measure: str
    group: str | None
    layer: int | None
    sign: str
    number: float

    @classmethod
    def read(cls, text: str) -> Self:
        """MEASURE[/GROUP][@LAYER] and <, <=, > or >= and a number."""
        found = _FORM.fullmatch(text)
        if found is None:
            form = "MEASURE[/GROUP][@LAYER], one of < <= > >=, and a number, as in stable_rank/mlp@3<5"
            raise BadInput(f"a threshold is {form}, got {text!r}", argument="fail_if")
        layer = None if found["layer"] is None else int(found["layer"])
        number = float(found["number"])
        return cls(text.strip(), found["measure"], found["group"], layer, found["sign"], number)

    def speaks_of(self, curve: Curve, row: Row, column: str) -> bool:
        """Whether a number of that place is meant. Of several quantities the first has the measure's own name."""
        named = curve.quantity(column) == self.measure
        first = self.measure == curve.measure and (curve.by_head or column == curve.columns[0])
        here = self.group in (None, curve.group) and self.layer in (None, row.layer)
        return here and (named or first)

    def is_broken_by(self, value: float) -> bool:
        return _SIGNS[self.sign](value, self.number)


@brief_repr
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

    def __str__(self) -> str:
        return f"{self.threshold}: {self.place}: {self.curve} is {self.value:.6g}"

    @property
    def place(self) -> str:
        """The moment, the layer, and the head where there is one."""
        return f"{self.moment}, {self.row}" + ("" if self.head is None else f", head {self.head}")


def read_thresholds(texts: Sequence[str], measures: Sequence[str]) -> list[Threshold]:
    """Thresholds as a user gives them. One on what is not measured is refused: it could never fail."""
    found = [Threshold.read(text) for text in texts]
    for each in found:
        if not any(each.measure == name or each.measure.startswith(f"{name}_") for name in measures):
            what = f"speaks of {each.measure}, but the measures are {','.join(measures)}"
            raise BadInput(f"the threshold {each.text} {what}", argument="measures")
    return found


def violations(thresholds: Sequence[Threshold | str], scan: Scan) -> list[Violation]:
    """Every number that a threshold forbids, in the order of thresholds, curves and steps.

    Refuses a threshold that speaks of nothing that was measured: no number of the scan could break it.

    >>> import numpy as np
    >>> curve = Curve("stable_rank", "mlp", (Row(0, None, "h.0"),), ("stable rank",), np.array([[4.0], [6.0]]))
    >>> print(*violations(["stable_rank<5"], Scan("out/trainer", [0, 10], [], {curve.name: curve})))
    stable_rank<5: step 0, layer 0: stable_rank/mlp is 4
    """
    read = [Threshold.read(each) if isinstance(each, str) else each for each in thresholds]
    return [found for threshold in read for found in _broken(threshold, scan)]


def summaries(thresholds: Sequence[Threshold], scan: Scan) -> list[str]:
    """One sentence for every threshold that is broken: how often, where, and the number that is furthest beyond it."""
    return [_summary(threshold, scan, broken) for threshold in thresholds if (broken := [*_broken(threshold, scan)])]


def _summary(threshold: Threshold, scan: Scan, broken: Sequence[Violation]) -> str:
    spoken = [
        (step, row.layer, threshold.is_broken_by(value))
        for step, curve, row, column, value in scan.numbers()
        if threshold.speaks_of(curve, row, column)
    ]
    steps, layers = ({one[at] for one in spoken if one[at] is not None} for at in (0, 1))
    bad_steps, bad_layers = ({one[at] for one in spoken if one[2] and one[at] is not None} for at in (0, 1))
    where = f"{len(bad_steps)} of {counted(len(steps), scan.axis.removesuffix('s'))}"
    if layers:
        where += f" and {len(bad_layers)} of {counted(len(layers), 'layer')}"
    furthest, name = (min, "lowest") if threshold.sign.startswith("<") else (max, "highest")
    worst = furthest(broken, key=lambda one: one.value)
    count = f"{len(broken):,} of {counted(len(spoken), 'number')}"
    return f"{threshold.text}: {count}, in {where}; the {name} is {worst.value:.6g} ({worst.place})"


def _broken(threshold: Threshold, scan: Scan) -> Iterator[Violation]:
    spoken = False
    for step, curve, row, column, value in scan.numbers():
        if threshold.speaks_of(curve, row, column):
            spoken = True
            if threshold.is_broken_by(value):
                head = column if curve.by_head else None
                yield Violation(threshold.text, f"{scan.axis} {step}", curve.name, row.label, head, value)
    if not spoken and threshold.measure.partition("_")[0] not in {name.partition("_")[0] for name in scan.refused}:
        places = []
        for curve in scan.curves.values():
            layers = [row.layer for row in curve.rows if row.layer is not None]
            places.append(f"{curve.name}@{min(layers)} to @{max(layers)}" if layers else curve.name)
        what = f"speaks of nothing that was measured; there are {', '.join(places) or 'no numbers'}"
        raise BadInput(f"the threshold {threshold.text} {what}", argument="fail_if")
