"""Forecasts of attention at step 2t from what is known at step t, and how far off each was.

Kept by variant, forecaster and quantity: VARIANT/entropy/FORECASTER and VARIANT/logits/FORECASTER, squared errors
(judged seeds, layers, origins), of logits the mean over the words; VARIANT/told/FORECASTER, the entropy itself;
VARIANT/at, the steps t. The first seeds of a run are open: constants are fitted on them, and the mean of their curves
is what "earlier runs" knows. They are not judged. A seed that diverged is NaN. Skill over persistence is read from the
squared errors.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.measure.forecast import Backtest, backtest, earlier_runs, linear, log_linear, persistence, value_at
from joma.recipes.language.curves import alive, curve, learned_at, steps_of
from joma.runs import Run
from joma.studies.rebound.forecast.by_theory import SCALES, Form, Past, Way, equation_6, known_shift, logit_shift, until
from joma.studies.rebound.forecast.entries import LAW, LINE, TREND, Constants, Entry, fit, fitted, made
from joma.studies.rebound.forecast.history import histories, open_and_sealed

PERSISTENCE = "persistence"
CONTROLS = ("linear in t", "linear in log t")
FITTED = (LINE, TREND)  # controls that have constants, fitted on open seeds
OF_ENTROPY = (*FITTED, LAW)  # the others are of the words' logits, too
EARLIER = "earlier runs"  # the mean of the open seeds, which are known to their ends: a ceiling, and no control
CONSTANTS = "constants"
THEOREM: dict[Form, str] = {"printed": "Theorem 1, as printed", "corrected": "Theorem 1"}
EQUATION: dict[Form, str] = {"printed": "eq. 6, as printed", "corrected": "eq. 6"}
KNOWN: dict[Form, str] = {
    "printed": "Theorem 1 as printed, weights at 2t known",
    "corrected": "Theorem 1, weights at 2t known",
}
"""No forecast: what Theorem 1 would say if somebody knew the MLP's weights at step 2t."""
QUANTITIES = ("entropy", "logits")
OPTIMIZERS = ("Adam", "SGD")
WORDS = "words"  # what the words' measure is recorded under


def keep_scores(run: Run, variants: Sequence[str], first: float) -> None:
    """Fit what has constants on the open seeds of all variants, make all forecasts, and keep how far off they are."""
    seeds = {variant: open_and_sealed(run, variant) for variant in variants}
    known = {variant: pair for variant, pair in seeds.items() if all(pair)}  # else nobody to learn from, or to judge
    if not known:
        return
    runs = [one for variant, (learned, _) in known.items() for one in histories(run, variant, learned)]
    constants = run.keep(CONSTANTS, lambda: np.array(fit(runs, first)))
    entries = fitted(Constants(*constants.tolist()))
    for variant, (learned, judged) in known.items():
        if f"{variant}/at" not in run:
            _keep_scores_of(run, variant, first, entries, (learned, judged))


def _keep_scores_of(
    run: Run, variant: str, first: float, entries: dict[str, Entry], seeds: tuple[list[int], list[int]]
) -> None:
    n_open = int(run.config["open_seeds"])
    places = np.array(seeds[1]) - n_open

    def keep(name: str, values: Tensor) -> None:
        every = np.full((alive(run, variant).shape[1] - n_open, *values.shape[1:]), np.nan)
        every[places] = values.numpy()
        run.keep(f"{variant}/{name}", lambda: every)

    entropy = entropy_forecasts(run, variant, seeds, first, entries)
    logits = logit_forecasts(run, variant, seeds, first)
    for name, one in entropy.items():
        keep(f"entropy/{name}", (one.made - one.truth).square())
        keep(f"told/{name}", one.made)
    for name, one in logits.items():
        keep(f"logits/{name}", (one.made - one.truth).square().mean(2))
    run.keep(f"{variant}/at", lambda: entropy[PERSISTENCE].at.numpy())


def plain_forecasts(steps: np.ndarray, curves: np.ndarray, earlier: np.ndarray, first: float) -> dict[str, Backtest]:
    """Those that need no theory and have no constants, of (seeds, ..., points); earlier: whole runs, of other seeds."""
    ways = {PERSISTENCE: persistence, CONTROLS[0]: linear, CONTROLS[1]: log_linear}
    made = {name: backtest(steps, curves, way, first=first) for name, way in ways.items()}
    each = [backtest(steps, one, partial(earlier_runs, runs_steps=steps, runs=earlier), first=first) for one in curves]
    return made | {EARLIER: made[PERSISTENCE]._replace(made=torch.stack([one.made for one in each]))}


def entropy_forecasts(
    run: Run, variant: str, seeds: tuple[list[int], list[int]], first: float, entries: dict[str, Entry]
) -> dict[str, Backtest]:
    """Of the judged seeds, by forecaster; made and truth are (seeds, layers, origins). seeds: open and judged ones."""
    steps = steps_of(run, variant)
    earlier, curves = (_by_point(run, variant, "valid/entropy", members).mean(-2) for members in seeds)
    told = plain_forecasts(steps, curves, earlier, first)
    still = told[PERSISTENCE]
    places = np.isin(steps, still.at.numpy())
    for form in get_args(Form):
        measured = _by_point(run, variant, f"{WORDS}/entropy, {form}", seeds[1])[..., places]
        told[THEOREM[form]] = still._replace(made=torch.from_numpy(measured))
        told[EQUATION[form]] = backtest(steps, curves, partial(equation_6, scale=SCALES[form]), first=first)
    judged = histories(run, variant, seeds[1])
    for name, entry in entries.items():
        told[name] = still._replace(made=torch.from_numpy(np.stack([made(entry, one, first) for one in judged])))
    return told


def logit_forecasts(run: Run, variant: str, seeds: tuple[list[int], list[int]], first: float) -> dict[str, Backtest]:
    """Of the judged seeds, by forecaster; made and truth are (seeds, layers, words, origins)."""
    steps = steps_of(run, variant)
    earlier, past = (past_of_words(run, variant, np.array(members)) for members in seeds)
    sizes, shares = (torch.from_numpy(run.value(f"{WORDS}/{name}").copy()) for name in ("sizes", "shares"))
    before, logits = (one.logits.movedim(0, -1)[..., :-1, :] for one in (earlier, past))
    told = plain_forecasts(steps, logits.numpy(), before.numpy(), first)
    still = told[PERSISTENCE]
    places = [int(np.flatnonzero(steps == t)[0]) for t in still.at.numpy()]
    origins = list(zip(places, map(float, still.to), strict=True))

    def moved(shifts: list[Tensor]) -> Backtest:
        return still._replace(made=still.made + torch.stack(shifts, -1)[..., :-1, :])

    ahead = [value_at(steps, past.squares.movedim(0, -1), to) for _, to in origins]
    ways: dict[Way, dict[Form, str]] = {"theorem": THEOREM, "equation": EQUATION}
    for form in get_args(Form):
        for way, names in ways.items():
            told[names[form]] = moved(
                [logit_shift(until(past, i), to, sizes, shares, way=way, form=form) for i, to in origins]
            )
        pairs = zip(places, ahead, strict=True)
        told[KNOWN[form]] = moved([known_shift(until(past, i), then, sizes, shares, form=form) for i, then in pairs])
    return told


def past_of_words(run: Run, variant: str, members: np.ndarray) -> Past:
    """All that is recorded of the words so far, for some members; (points, members, layers, classes)."""
    names = [f"{variant}/{WORDS}/{name}" for name in ("logits", "squares", "attention")]
    parts = [torch.from_numpy(run.array(name)[:, members].astype(np.float64)) for name in names]
    return Past(torch.from_numpy(run.steps(names[0]).astype(np.float64)), *parts)


def _by_point(run: Run, variant: str, measure: str, members: list[int]) -> np.ndarray:
    return np.moveaxis(curve(run, variant, measure)[0][members], 1, -1)


def variants_of(run: Run) -> dict[str, list[str]]:
    """By optimizer the variants that learned more than the words' frequencies and of which something was foretold."""
    names = [name.removesuffix("/at") for name in run.names() if name.endswith("/at")]
    return {
        optimizer: [name for name in names if name.startswith(optimizer) and learned_at(run, name)[0]]
        for optimizer in OPTIMIZERS
    }


def skill_of(
    run: Run, variants: Sequence[str], quantity: str, forecaster: str, *, origins: np.ndarray | None = None
) -> np.ndarray:
    """Over all layers and all t, one number per seed, as `joma.measure.forecast.skill` has it; NaN of diverged ones."""
    return _skill(run, variants, quantity, forecaster, (1, 2), slice(None) if origins is None else origins)


def skill_by_step(run: Run, variants: Sequence[str], quantity: str, forecaster: str) -> np.ndarray:
    """The same for every t, (seeds, origins)."""
    return _skill(run, variants, quantity, forecaster, 1)


def _skill(
    run: Run, variants: Sequence[str], quantity: str, forecaster: str, over: Any, origins: Any = slice(None)
) -> np.ndarray:
    error, still = (
        np.concatenate([run.value(f"{variant}/{quantity}/{name}")[..., origins] for variant in variants], 1).mean(over)
        for name in (forecaster, PERSISTENCE)
    )
    known = np.isfinite(still[:, 0] if still.ndim > 1 else still)
    mean = still[known].mean(0)
    return np.asarray((still - error) / np.where(mean > 0, mean, np.nan))
