"""Every forecaster on what was recorded: what it says of entropy and of logits at step 2t, and how far off it is.

Kept by variant, forecaster and quantity: VARIANT/entropy/FORECASTER and VARIANT/logits/FORECASTER, squared errors
(seeds, layers, origins), of logits the mean over the words; VARIANT/told/FORECASTER, the entropy itself; VARIANT/at,
the steps t. A seed that diverged is NaN.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from joma.measure.forecast import Backtest, backtest, backtest_earlier_runs, linear, log_linear, persistence, value_at
from joma.recipes.language_curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.rebound._forecast_entropy import SCALES, equation_6
from joma.studies.rebound._forecast_theory import Form, Past, Way, known_shift, logit_shift

PERSISTENCE = "persistence"
CONTROLS = ("linear in t", "linear in log t", "earlier runs")
THEOREM: dict[Form, str] = {"printed": "Theorem 1, as printed", "corrected": "Theorem 1"}
EQUATION: dict[Form, str] = {"printed": "eq. 6, as printed", "corrected": "eq. 6"}
KNOWN: dict[Form, str] = {
    "printed": "Theorem 1 as printed, weights at 2t known",
    "corrected": "Theorem 1, weights at 2t known",
}
"""No forecast: what Theorem 1 would say if somebody knew the MLP's weights at step 2t."""
QUANTITIES = ("entropy", "logits")
WORDS = "words"
"""What the words' measure is recorded under."""


def keep_scores(run: Run, variant: str, first: float) -> None:
    """Make all forecasts of one variant and keep how far off they are."""
    if f"{variant}/at" in run:
        return
    kept = alive(run, variant)[0]
    if kept.sum() < 2:  # nobody to learn from
        return
    told = {
        "entropy": entropy_forecasts(run, variant, kept, first),
        "logits": logit_forecasts(run, variant, kept, first),
    }
    for quantity, forecasts in told.items():
        for name, one in forecasts.items():
            off = (one.made - one.truth).square()
            off = off.mean(2) if quantity == "logits" else off
            run.keep(f"{variant}/{quantity}/{name}", lambda off=off: _all_seeds(off, kept))  # type: ignore[misc]
            if quantity == "entropy":
                run.keep(f"{variant}/told/{name}", lambda one=one: _all_seeds(one.made, kept))  # type: ignore[misc]
    run.keep(f"{variant}/at", lambda: told["entropy"][PERSISTENCE].at.numpy())


def _all_seeds(values: Tensor, kept: np.ndarray) -> np.ndarray:
    whole = np.full((len(kept), *values.shape[1:]), np.nan)
    whole[kept] = values.numpy()
    return whole


def plain_forecasts(steps: np.ndarray, curves: np.ndarray, first: float) -> dict[str, Backtest]:
    """Those that need no theory, of (seeds, ..., points)."""
    ways = {PERSISTENCE: persistence, CONTROLS[0]: linear, CONTROLS[1]: log_linear}
    made = {name: backtest(steps, curves, way, first=first) for name, way in ways.items()}
    return made | {CONTROLS[2]: backtest_earlier_runs(steps, curves, first=first)}


def entropy_forecasts(run: Run, variant: str, kept: np.ndarray, first: float) -> dict[str, Backtest]:
    """By forecaster; made and truth are (seeds, layers, origins)."""
    steps, curves = steps_of(run, variant), _by_point(run, variant, "valid/entropy", kept).mean(-2)
    made = plain_forecasts(steps, curves, first)
    still = made[PERSISTENCE]
    places = np.isin(steps, still.at.numpy())
    for form in get_args(Form):
        told = _by_point(run, variant, f"{WORDS}/entropy, {form}", kept)[..., places]
        made[THEOREM[form]] = still._replace(made=torch.from_numpy(told))
        made[EQUATION[form]] = backtest(steps, curves, partial(equation_6, scale=SCALES[form]), first=first)
    return made


def logit_forecasts(run: Run, variant: str, kept: np.ndarray, first: float) -> dict[str, Backtest]:
    """By forecaster; made and truth are (seeds, layers, words, origins)."""
    steps, past = steps_of(run, variant), past_of_words(run, variant, kept)
    sizes, shares = (torch.from_numpy(run.value(f"{WORDS}/{name}").copy()) for name in ("sizes", "shares"))
    logits = past.logits.movedim(0, -1)[..., :-1, :]
    made = plain_forecasts(steps, logits.numpy(), first)
    still = made[PERSISTENCE]
    origins = [
        (int(np.flatnonzero(steps == t)[0]), float(to)) for t, to in zip(still.at.numpy(), still.to, strict=True)
    ]

    def by_theory(way: Way, form: Form) -> Backtest:
        shifts = [logit_shift(until(past, i), to, sizes, shares, way=way, form=form) for i, to in origins]
        return _moved(still, shifts)

    def if_known(form: Form) -> Backtest:
        ahead = [value_at(steps, past.squares.movedim(0, -1), to) for _, to in origins]
        pairs = zip(origins, ahead, strict=True)
        return _moved(still, [known_shift(until(past, i), then, sizes, shares, form=form) for (i, _), then in pairs])

    for form in get_args(Form):
        made[THEOREM[form]] = by_theory("theorem", form)
        made[EQUATION[form]] = by_theory("equation", form)
        made[KNOWN[form]] = if_known(form)
    return made


def _moved(still: Backtest, shifts: list[Tensor]) -> Backtest:
    return still._replace(made=still.made + torch.stack(shifts, -1)[..., :-1, :])


def past_of_words(run: Run, variant: str, members: np.ndarray) -> Past:
    """All that is recorded of the words so far, for some members; (points, members, layers, classes)."""
    names = [f"{variant}/{WORDS}/{name}" for name in ("logits", "squares", "attention")]
    parts = [torch.from_numpy(run.array(name)[:, members].astype(np.float64)) for name in names]
    return Past(torch.from_numpy(run.steps(names[0]).astype(np.float64)), *parts)


def until(past: Past, place: int) -> Past:
    """The past up to a point and that point, and nothing of what came after."""
    return Past(*(part[: place + 1] for part in past))


def _by_point(run: Run, variant: str, measure: str, kept: np.ndarray) -> np.ndarray:
    """(seeds, ..., points)."""
    return np.moveaxis(curve(run, variant, measure)[0][kept], 1, -1)
