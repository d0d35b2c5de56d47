"""Every forecaster on what was recorded: what it says of entropy and of logits at step 2t, and how far off it is.

Kept by variant, forecaster and quantity: VARIANT/entropy/FORECASTER and VARIANT/logits/FORECASTER, squared errors
(seeds, layers, origins), of logits the mean over the words; VARIANT/told/FORECASTER, the entropy itself; VARIANT/at,
the steps t. A seed that diverged is NaN. Skill over persistence is read from the squared errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.measure.forecast import Backtest, backtest, backtest_earlier_runs, linear, log_linear, persistence, value_at
from joma.recipes.language.curves import alive, curve, learned_at, steps_of
from joma.runs import Run
from joma.studies.rebound.forecast.theory import SCALES, Form, Past, Way, equation_6, known_shift, logit_shift

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
OPTIMIZERS = ("Adam", "SGD")
WORDS = "words"
"""What the words' measure is recorded under."""


def keep_scores(run: Run, variant: str, first: float) -> None:
    """Make all forecasts of one variant and keep how far off they are."""
    if f"{variant}/at" in run:
        return
    kept = alive(run, variant)[0]
    if kept.sum() < 2:  # nobody to learn from
        return

    def keep(name: str, values: Tensor) -> None:
        every = np.full((len(kept), *values.shape[1:]), np.nan)
        every[kept] = values.numpy()
        run.keep(f"{variant}/{name}", lambda: every)

    entropy, logits = (make(run, variant, kept, first) for make in (entropy_forecasts, logit_forecasts))
    for name, one in entropy.items():
        keep(f"entropy/{name}", (one.made - one.truth).square())
        keep(f"told/{name}", one.made)
    for name, one in logits.items():
        keep(f"logits/{name}", (one.made - one.truth).square().mean(2))
    run.keep(f"{variant}/at", lambda: entropy[PERSISTENCE].at.numpy())


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
        measured = _by_point(run, variant, f"{WORDS}/entropy, {form}", kept)[..., places]
        made[THEOREM[form]] = still._replace(made=torch.from_numpy(measured))
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

    def moved(shifts: list[Tensor]) -> Backtest:
        return still._replace(made=still.made + torch.stack(shifts, -1)[..., :-1, :])

    ahead = [value_at(steps, past.squares.movedim(0, -1), to) for _, to in origins]
    ways: dict[Way, dict[Form, str]] = {"theorem": THEOREM, "equation": EQUATION}
    for form in get_args(Form):
        for way, names in ways.items():
            shifts = [logit_shift(until(past, i), to, sizes, shares, way=way, form=form) for i, to in origins]
            made[names[form]] = moved(shifts)
        pairs = zip(origins, ahead, strict=True)
        known = [known_shift(until(past, i), then, sizes, shares, form=form) for (i, _), then in pairs]
        made[KNOWN[form]] = moved(known)
    return made


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


def variants_of(run: Run) -> dict[str, list[str]]:
    """By optimizer the variants that learned more than the words' frequencies and of which something was foretold."""
    names = [name.removesuffix("/at") for name in run.names() if name.endswith("/at")]
    return {
        optimizer: [name for name in names if name.startswith(optimizer) and learned_at(run, name)[0]]
        for optimizer in OPTIMIZERS
    }


def skill_of(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """Over all layers and all t, one number per seed, as `joma.measure.forecast.skill` has it; NaN of diverged ones."""
    return _skill(run, variants, quantity, forecaster, (1, 2))


def skill_by_step(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """The same for every t, (seeds, origins)."""
    return _skill(run, variants, quantity, forecaster, 1)


def _skill(run: Run, variants: Sequence[str], quantity: str, forecaster: str, over: Any) -> np.ndarray:
    """From squared errors (seeds, layers of all variants, origins)."""
    error, still = (
        np.concatenate([run.value(f"{variant}/{quantity}/{name}") for variant in variants], axis=1).mean(over)
        for name in (forecaster, PERSISTENCE)
    )
    known = np.isfinite(still[:, 0] if still.ndim > 1 else still)
    mean = still[known].mean(0)
    return np.asarray((still - error) / np.where(mean > 0, mean, np.nan))
