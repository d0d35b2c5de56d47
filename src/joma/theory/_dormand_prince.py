"""An adaptive Runge-Kutta solver of order 8 with dense output: the method of Dormand and Prince, in numpy alone.

A step from (t, y) evaluates the field at twelve points and lands at order 8. Two embedded results, of order 5 and 3,
give the error, and with it the length of the next step (Hairer, Norsett and Wanner, sections II.4 and II.10). Between
the ends of a step three more evaluations make a polynomial of order 7, so that the times asked for cost no steps.
The numbers are those of their program DOP853 (2nd edition, 1993, II.5 and II.6); the tests check the order conditions.
"""

from collections.abc import Callable
from math import inf, nextafter, sqrt
from typing import NamedTuple

import numpy as np

Field = Callable[[float, np.ndarray], np.ndarray]
"""(time, y) -> y', both (size,) in float64."""

POINTS, ALL_POINTS = 12, 16  # evaluated for a step, and for its inside as well
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
        terms = [moved, first - moved, 2 * moved - first - last, *(length * (CONTINUATION @ self.slopes))]
        share = ((times - self.before) / length)[:, None]
        y = np.zeros((len(times), len(moved)))
        for i, term in reversed(list(enumerate(terms))):
            y = (y + term) * (1 - share if i % 2 else share)
        return self.y_before + y


def _table(columns: int, *rows: dict[int, float]) -> np.ndarray:
    """Each row is {stage: factor}, with zeros left out."""
    table = np.zeros((len(rows), columns))
    for i, row in enumerate(rows):
        table[i, list(row)] = list(row.values())
    return table


# fmt: off
# Row 12 gives the new point, rows 13 to 15 are evaluated for the continuation only.
STAGES = _table(
    16,
    {},
    {0: 0.05260015195876773},
    {0: 0.0197250569845379, 1: 0.0591751709536137},
    {0: 0.02958758547680685, 2: 0.08876275643042054},
    {0: 0.2413651341592667, 2: -0.8845494793282861, 3: 0.924834003261792},
    {0: 0.037037037037037035, 3: 0.17082860872947386, 4: 0.12546768756682242},
    {0: 0.037109375, 3: 0.17025221101954405, 4: 0.06021653898045596, 5: -0.017578125},
    {0: 0.03709200011850479, 3: 0.17038392571223998, 4: 0.10726203044637328, 5: -0.015319437748624402,
     6: 0.008273789163814023},
    {0: 0.6241109587160757, 3: -3.3608926294469414, 4: -0.868219346841726, 5: 27.59209969944671, 6: 20.154067550477894,
     7: -43.48988418106996},
    {0: 0.47766253643826434, 3: -2.4881146199716677, 4: -0.590290826836843, 5: 21.230051448181193,
     6: 15.279233632882423, 7: -33.28821096898486, 8: -0.020331201708508627},
    {0: -0.9371424300859873, 3: 5.186372428844064, 4: 1.0914373489967295, 5: -8.149787010746927, 6: -18.52006565999696,
     7: 22.739487099350505, 8: 2.4936055526796523, 9: -3.0467644718982196},
    {0: 2.273310147516538, 3: -10.53449546673725, 4: -2.0008720582248625, 5: -17.9589318631188, 6: 27.94888452941996,
     7: -2.8589982771350235, 8: -8.87285693353063, 9: 12.360567175794303, 10: 0.6433927460157636},
    {0: 0.054293734116568765, 5: 4.450312892752409, 6: 1.8915178993145003, 7: -5.801203960010585,
     8: 0.3111643669578199, 9: -0.1521609496625161, 10: 0.20136540080403034, 11: 0.04471061572777259},
    {0: 0.056167502283047954, 6: 0.25350021021662483, 7: -0.2462390374708025, 8: -0.12419142326381637,
     9: 0.15329179827876568, 10: 0.00820105229563469, 11: 0.007567897660545699, 12: -0.008298},
    {0: 0.03183464816350214, 5: 0.028300909672366776, 6: 0.053541988307438566, 7: -0.05492374857139099,
     10: -0.00010834732869724932, 11: 0.0003825710908356584, 12: -0.00034046500868740456, 13: 0.1413124436746325},
    {0: -0.42889630158379194, 5: -4.697621415361164, 6: 7.683421196062599, 7: 4.06898981839711, 8: 0.3567271874552811,
     12: -0.0013990241651590145, 13: 2.9475147891527724, 14: -9.15095847217987},
)
"""(16, 16): the point of stage i is y + h sum_j STAGES[i, j] k_j."""
TIMES = STAGES.sum(1).round(15)
"""(16,): its time is t + h TIMES[i]."""
ERRORS = _table(
    13,
    {0: 0.01312004499419488, 5: -1.2251564463762044, 6: -0.4957589496572502, 7: 1.6643771824549864,
     8: -0.35032884874997366, 9: 0.3341791187130175, 10: 0.08192320648511571, 11: -0.022355307863886294},
    {0: -0.18980075407240762, 5: 4.450312892752409, 6: 1.8915178993145003, 7: -5.801203960010585,
     8: -0.4226823213237919, 9: -0.1521609496625161, 10: 0.20136540080403034, 11: 0.02265179219836082},
)
"""(2, 13): the new point less that of order 5, and less that of order 3, each over h."""
CONTINUATION = _table(
    16,
    {0: -8.428938276109013, 5: 0.5667149535193777, 6: -3.0689499459498917, 7: 2.38466765651207, 8: 2.117034582445028,
     9: -0.871391583777973, 10: 2.2404374302607883, 11: 0.6315787787694688, 12: -0.08899033645133331,
     13: 18.148505520854727, 14: -9.194632392478356, 15: -4.436036387594894},
    {0: 10.427508642579134, 5: 242.28349177525817, 6: 165.20045171727028, 7: -374.5467547226902,
     8: -22.113666853125306, 9: 7.733432668472264, 10: -30.674084731089398, 11: -9.332130526430229,
     12: 15.697238121770845, 13: -31.139403219565178, 14: -9.35292435884448, 15: 35.81684148639408},
    {0: 19.985053242002433, 5: -387.0373087493518, 6: -189.17813819516758, 7: 527.8081592054236, 8: -11.57390253995963,
     9: 6.8812326946963, 10: -1.0006050966910838, 11: 0.7777137798053443, 12: -2.778205752353508,
     13: -60.19669523126412, 14: 84.32040550667716, 15: 11.99229113618279},
    {0: -25.69393346270375, 5: -154.18974869023643, 6: -231.5293791760455, 7: 357.6391179106141, 8: 93.40532418362432,
     9: -37.45832313645163, 10: 104.0996495089623, 11: 29.8402934266605, 12: -43.53345659001114, 13: 96.32455395918828,
     14: -39.17726167561544, 15: -149.72683625798564},
)
"""(4, 16): the higher terms of the continuation, over h."""
# fmt: on
