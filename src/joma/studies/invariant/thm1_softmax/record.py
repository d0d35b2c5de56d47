"""The record of trained networks: how well estimates from V meet their logits. Networks are paired by their seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.measure.correlation import pearson
from joma.runs import Run
from joma.studies.invariant.thm1_softmax.run import Kind, three

TOP = 0.2  # the fastest fifth of the components
MOVED = 0.5  # of the final logits: a network whose logits moved by less has not learned to attend


def relative(estimate: Any, truth: Any) -> Any:
    """Relative error, norms over the last axis."""
    return np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


class Networks:
    """The networks of one kind of classes that learned: their logits are finite and moved."""

    def __init__(self, run: Run, kind: Kind) -> None:
        self._run, self._kind = run, kind
        z, step = run.value(f"{kind}/z"), run.value("step")
        self.learned = relative(z[:, 0], z[:, -1]) > MOVED  # (seeds,)
        self._moments = np.searchsorted(step, three(int(step[-1])))
        self._z, self._start = self.at_three("z"), self.series("z")[:, :1]

    def series(self, name: str) -> Any:
        """A series of the networks that learned, networks first."""
        return self._run.value(f"{self._kind}/{name}")[self.learned]

    def at_three(self, name: str) -> Any:
        """The series at the three moments. (networks, 3, tokens)."""
        return self.series(name)[:, self._moments]

    def correlation(self, method: str, *, roll: int = 0) -> Any:
        """With z of the same seed or, for `roll` = 1, of the next one. (networks, 3)."""
        return pearson(np.roll(self.at_three(method), roll, 0), self._z)

    def error(self, method: str, *, roll: int = 0) -> Any:
        """The relative error of an estimate of z, in the same way."""
        return relative(np.roll(self.at_three(method), roll, 0), self._z)

    @property
    def never_moves(self) -> tuple[Any, Any]:
        """Correlation and relative error of the guess that z stays where it was. (networks, 3) each."""
        return pearson(self._start, self._z), relative(self._start, self._z)


def concentration(v: Any) -> Any:
    """v (networks, [start, half, end], tokens, nodes) -> the share of the late movement that the fastest fifth of the
    tokens holds, mean over nodes. (networks,).
    """
    late = np.sort(np.abs(v[:, 2] - v[:, 1]), axis=1)
    fastest = max(round(TOP * late.shape[1]), 1)
    return (late[:, -fastest:].sum(1) / late.sum(1)).mean(-1)
