"""The benchmark of forecasts: anybody's `forecast(history, t)` on training runs that no constant was fitted on.

The first seeds of the kept runs are open: whole histories, to look at and to fit on. The other seeds are sealed: an
entry gets their past alone, and their file has a hash. That keeps accidents away and no one who wants to cheat: the
file can be read by anybody.

Skill is that of the study: the part of the squared error of "no change" that a forecast avoids, over all layers,
networks and t. Its interval is over the sealed seeds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from joma.host.errors import BadInput
from joma.host.named_code import one_line
from joma.host.words import short
from joma.measure.forecast import backtest
from joma.measure.intervals import Comparison, compare
from joma.studies.rebound.forecast.entries import LATE, Constants, Entry, came, fitted, made, no_change
from joma.studies.rebound.forecast.history import History
from joma.studies.rebound.forecast.kept_runs import Networks, seal_of, sealed_runs

MOST = 1e6  # Nats. That of a million keys is 14; the squared error of a forecast far beyond would overflow
_NUMBERS = "iufO"  # kinds of array that hold real numbers, or objects that turn into them


class Score(NamedTuple):
    """How well an entry foretells the sealed runs: skill over no change, with its interval over seeds."""

    name: str
    skill: Comparison
    late: Comparison
    """The same from t = LATE on."""

    def as_json(self) -> dict[str, Any]:
        parts = {"skill": self.skill, f"skill from t = {LATE} on": self.late}
        numbers = {
            key: {"value": one.value, "low": one.low, "high": one.high, "level": one.level, "seeds": one.seeds}
            for key, one in parts.items()
        }
        return {"name": self.name, **numbers}


def score(entry: Entry, name: str = "", runs: Networks | None = None, *, first: float | None = None) -> Score:
    """Judge an entry on the sealed runs.

    - entry: `entry(history, t)` gives the entropy of every layer at step 2t, (layers,)
    - name: what it is called in messages; the function's own if it is empty
    - runs, first: of your own, in place of the sealed ones and their first t

    >>> score(lambda history, t: history.entropy[:, -1], "no change").skill.value
    0.0
    """
    name = name or getattr(entry, "__name__", type(entry).__name__)
    networks = sealed_runs() if runs is None else runs
    if len(counts := {len(seeds) for seeds in networks.values()}) != 1 or counts == {0}:
        raise BadInput("runs must hold one or more networks with the same number of seeds each, from one on")
    start = float(seal_of()["first"]) if first is None else first
    errors: list[np.ndarray] = []
    still: list[np.ndarray] = []
    for network, seeds in networks.items():
        truth = np.stack([came(one, start) for one in seeds])
        for way, into in ((_checked(entry, name, network), errors), (no_change, still)):
            into.append((np.stack([made(way, one, start) for one in seeds]) - truth) ** 2)
    late = [_late(seeds[0], start) for seeds in networks.values()]
    later = [[part[..., after] for part, after in zip(some, late, strict=True)] for some in (errors, still)]
    return Score(name, _skill(errors, still), _skill(*later))


def standing(constants: Sequence[float]) -> dict[str, Entry]:
    """joma's own entries by name. constants: as `Constants` has them, fitted on the open runs; the seal holds them."""
    return {"no change": no_change, **fitted(Constants(*constants))}


def _checked(entry: Entry, name: str, network: str) -> Entry:
    """The same, whose answers are numbers of the right shape, or are refused in one sentence."""

    def call(history: History, t: float) -> np.ndarray:
        where = f"for {network} at t = {t:g}"
        try:
            given = np.asarray(entry(history, t))
            answer = given.astype(np.float64) if given.dtype.kind in _NUMBERS else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit: it is the forecast that failed
            raise BadInput(f"{name} failed {where}: {one_line(error)}") from error
        if answer is None:
            raise BadInput(f"{name} gave numbers of type {given.dtype} {where}; an entropy is a real number")
        if answer.shape != (history.n_layers,):
            wanted = f"{(history.n_layers,)}, one entropy per layer"
            raise BadInput(f"{name} gave shape {answer.shape} {where}; expected {wanted}")
        if not (abs(answer) <= MOST).all():  # nor NaN, and none whose squared error overflows
            wanted = f"every entropy must be a finite number of at most {MOST:,.0f} nats"
            raise BadInput(f"{name} gave {short(answer.tolist(), 80)} {where}; {wanted}")
        return answer

    return call


def _late(history: History, first: float) -> np.ndarray:
    return backtest(history.steps, history.entropy, first=first).at.numpy() >= LATE


def _skill(errors: Sequence[np.ndarray], still: Sequence[np.ndarray]) -> Comparison:
    ours, plain = (np.concatenate([one.reshape(len(one), -1) for one in some], 1) for some in (errors, still))
    if not plain.any():
        return compare([])
    return compare((plain.mean(1) - ours.mean(1)) / plain.mean())
