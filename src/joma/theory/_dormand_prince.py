"""An adaptive Runge-Kutta solver of order 8 with dense output: the method of Dormand and Prince.

A step from (t, y) evaluates the field at twelve points and lands at order 8. Two embedded results, of order 5 and 3,
give the error, and with it the length of the next step (Hairer, Norsett and Wanner, sections II.4 and II.10). Between
the ends of a step three more evaluations make a polynomial of order 7, so that the times asked for cost no steps.
The numbers are those of their program DOP853 (2nd edition, 1993, II.5 and II.6), which scipy has. Its solver is not
used: it takes more evaluations of the field where the last step ends at the last time, and its sums round otherwise, so
that recorded flows would move in their last digits.
"""

from collections.abc import Callable
from math import inf, nextafter, sqrt
from typing import NamedTuple

import numpy as np
from scipy.integrate import DOP853

Field = Callable[[float, np.ndarray], np.ndarray]  # (time, y) -> y', both (size,) in float64

POINTS, ALL_POINTS = 12, 16  # evaluated for a step, and for its inside as well
STAGES = np.zeros((ALL_POINTS, ALL_POINTS))
"""The point of stage i is y + h sum_j STAGES[i, j] k_j. Row 12 gives the new point, the rows after it its inside."""
STAGES[:POINTS, :POINTS], STAGES[POINTS, :POINTS], STAGES[POINTS + 1 :] = DOP853.A, DOP853.B, DOP853.A_EXTRA
TIMES = STAGES.sum(1).round(15)  # (16,): its time is t + h TIMES[i]
ERRORS = np.stack([DOP853.E5, DOP853.E3])
"""(2, 13): the new point less that of order 5, and less that of order 3, each over h."""
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0  # of a step: what it is tried with, and how much its length may change at most


class TooStiff(Exception):
    """The step has become too small to move the time."""


class Tolerance(NamedTuple):
    """An error counts as 1 if it is atol + rtol |y|, in the root of the mean square over the components."""

    rtol: float
    atol: float

    def scale(self, y: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.asarray(self.atol + self.rtol * np.maximum(np.abs(y), np.abs(other)))


def solve(field: Field, start: np.ndarray, times: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """y at the increasing `times`, (steps, size), from y(0) = start (size,)."""
    path = np.empty((len(times), len(start)))
    done = int(np.searchsorted(times, 0.0, side="right"))
    path[:done] = start
    if done == len(times) or len(start) == 0:
        return path
    with np.errstate(over="ignore", invalid="ignore"):  # a step that was too long is tried again
        step = Step(field, start, tolerance, end=float(times[-1]))
        while done < len(times):
            step.advance()
            reached = int(np.searchsorted(times, step.time, side="right"))
            if reached > done:
                path[done:reached] = step.at(times[done:reached])
                done = reached
    return path


class Step:
    """The last step taken, and the way to the next one."""

    def __init__(self, field: Field, start: np.ndarray, tolerance: Tolerance, *, end: float) -> None:
        self.field, self.tolerance, self.end = field, tolerance, end
        self.slopes = np.empty((ALL_POINTS, len(start)))  # k_j of the step
        # Rows of the table beside the slopes that they weigh: views, made once.
        self.weighed = [(STAGES[i, :i], self.slopes[:i]) for i in range(ALL_POINTS)]
        self.before, self.time = 0.0, 0.0  # its two ends
        self.y = self.y_before = start
        self.slope = field(0.0, start)
        self.length = self.first_length()

    def first_length(self) -> float:
        """As long as keeps an explicit Euler step small, then as long as its second derivative allows."""
        scale = self.tolerance.scale(self.y, self.y)

        def size(x: np.ndarray) -> float:
            return float(np.linalg.norm(x / scale)) / sqrt(len(x))

        height, speed = size(self.y), size(self.slope)
        trial = min(1e-6 if min(height, speed) < 1e-5 else 0.01 * height / speed, self.end)
        bend = size(self.field(trial, self.y + trial * self.slope) - self.slope) / trial
        guess = max(1e-6, 1e-3 * trial) if max(speed, bend) <= 1e-15 else (0.01 / max(speed, bend)) ** (1 / 8)
        return min(100 * trial, guess, self.end)

    def advance(self) -> None:
        """One step on, as often tried as it takes; raises TooStiff."""
        growth = GROW
        while True:
            if not self.length >= 10 * (nextafter(self.time, inf) - self.time):
                raise TooStiff(f"the step became too small at t = {self.time:g}")
            last = self.time + self.length >= self.end
            length = self.end - self.time if last else self.length
            self.slopes[0] = self.slope
            for i in range(1, POINTS + 1):
                y = self.visit(i, self.time, self.y, length)
            parts = ERRORS @ self.slopes[: POINTS + 1] / self.tolerance.scale(self.y, y)
            fifth, third = (float(part @ part) for part in parts)
            error = length * fifth / sqrt((fifth + 0.01 * third) * len(y)) if fifth else 0.0
            if error < 1:  # accurate enough
                break
            growth = 1.0  # after a failure the next step is not tried longer
            self.length = length * (max(SHRINK, SAFETY * error ** (-1 / 8)) if error < inf else SHRINK)
        self.length = length * (min(growth, SAFETY * error ** (-1 / 8)) if error > 0 else growth)
        self.before, self.time = self.time, self.end if last else self.time + length
        self.y_before, self.y, self.slope = self.y, y, self.slopes[POINTS].copy()

    def visit(self, i: int, time: float, y: np.ndarray, length: float) -> np.ndarray:
        """The point of stage i of the step from y; its slope is kept."""
        weights, slopes = self.weighed[i]
        point = weights @ slopes
        point *= length
        point += y
        self.slopes[i] = self.field(time + length * TIMES[i], point)
        return point

    def at(self, times: np.ndarray) -> np.ndarray:
        """y at times inside the last step, (times, size)."""
        if times[0] == self.time:
            return self.y
        length = self.time - self.before
        for i in range(POINTS + 1, ALL_POINTS):
            self.visit(i, self.before, self.y_before, length)
        moved, first, last = self.y - self.y_before, length * self.slopes[0], length * self.slopes[POINTS]
        terms = [moved, first - moved, 2 * moved - first - last, *(length * (DOP853.D @ self.slopes))]
        share = ((times - self.before) / length)[:, None]
        y = np.zeros((len(times), len(moved)))
        for i, term in reversed(list(enumerate(terms))):
            y = (y + term) * (1 - share if i % 2 else share)
        return self.y_before + y
