"""Can JoMA foretell a training? Attention at step 2t from what is known at step t, beside forecasts without theory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Study
from joma.claims.declare import Claims
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect
from joma.figures.beyond import mark_beyond
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, Axes, panels
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import curve, diverged, learned_nothing, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound.forecast import entries, record
from joma.studies.rebound.forecast.by_theory import Form
from joma.studies.rebound.forecast.run import ForecastConfig, run

MATTERS = 0.1
"""Of the squared error of persistence. Who plans by a forecast that avoids less than a tenth of it gains nothing that
another seed would not take away."""
CLAIMS = Claims(matters=MATTERS, unit="%", ceiling=1.0)


def _judge_skill(run: Run, claim: Claim, names: dict[Form, str]) -> Finding:
    """The skill of the forecaster that has these names, printed and corrected, of entropy and of logits.

    It is compared with that of its hardest control: "no change", whose skill is 0, or a straight line. Earlier runs
    saw the futures of other seeds, which nobody has who forecasts a first run: they are a ceiling, and stand beside.
    They were a control until all records had been seen.
    """
    by_optimizer, everyone = record.variants_of(run), _everyone(run)
    details = {}
    for quantity in record.QUANTITIES:
        ours = compare(record.skill_of(run, everyone, quantity, names["corrected"]))
        numbers = {"skill": ours.value, "from": ours.low, "to": ours.high}
        details[f"corrected form against no change, {quantity}"] = numbers
    for optimizer, variants in by_optimizer.items():
        for quantity in record.QUANTITIES if variants else ():
            known = (record.KNOWN["corrected"],) if names == record.THEOREM and quantity == "logits" else ()
            forecasters = (*record.CONTROLS, record.EARLIER, *names.values(), *known)
            details[f"skill with {optimizer}, {quantity}"] = {
                name: mean_over_seeds(record.skill_of(run, variants, quantity, name)) for name in forecasters
            }
    return by_effect(
        claim,
        _cases(claim, run, everyone, names["printed"]),
        corrected=_cases(claim, run, everyone, names["corrected"]),
        what="skill over persistence",
        details=details | diverged(run, _trained(run)),
    )


@CLAIMS.declare("theorem-1-foretells", "JoMA Thm 1", uses=("fig6/logits-of-a-language-model",))
def judge_theorem(run: Run, claim: Claim) -> Finding:
    """Attention follows from the MLP's weights. Tested as a forecast: from step t, attention at step 2t is foretold
    better than by no change or by a straight line.

    Corrected: The same, with the mean attention b̄ of the time in place of that of the start.
    Expected: entropy and logits at step 2t are foretold with a skill above that of no change and of every other
    control, by at least 10 % of the squared error of persistence and by more than seeds differ
    """
    return _judge_skill(run, claim, record.THEOREM)


@CLAIMS.declare("equation-6-foretells", "JoMA eq. 6", uses=("eq6/entropy-drops", "eq6/entropy-rebounds"))
def judge_equation(run: Run, claim: Claim) -> Finding:
    """The MLP's weights grow towards a target μ, at a speed that attention multiplies. Tested as a forecast with a
    fitted μ: from step t, attention at step 2t is foretold better than by no change or by a straight line.

    Corrected: The same with attention softmax(v²/2), which follows from eq. 6 and Theorem 1, in place of softmax(v²).
    Expected: entropy and logits at step 2t are foretold with a skill above that of no change and of every other
    control, by at least 10 % of the squared error of persistence and by more than seeds differ
    """
    return _judge_skill(run, claim, record.EQUATION)


@CLAIMS.declare("focus-and-dilution-foretells", "joma.theory.spread eq. gain")
def judge_law(run: Run, claim: Claim) -> Finding:
    """Attention reads what it has stored through its present input: shared logits through the mean of the input, the
    others through the rest. Tested as a forecast: from step t, entropy at step 2t is foretold better than by no change
    and by damped trends whose constants are fitted on the same runs.

    Expected: entropy at step 2t is foretold with a skill above that of no change, of both lines and of both damped
    trends, by at least 10 % of the squared error of persistence and by more than seeds differ

    The law and the trends have constants, which are fitted on the open seeds. Only the other seeds are judged.
    """
    by_optimizer = record.variants_of(run)
    everyone = _everyone(run)
    ours = record.skill_of(run, everyone, "entropy", entries.LAW)
    controls = (*record.CONTROLS, *record.FITTED)
    against = {"no change": compare(ours, 0.0)}
    against |= {name: compare(ours, record.skill_of(run, everyone, "entropy", name)) for name in controls}
    details = {"constants": dict(zip(entries.Constants._fields, run.value(record.CONSTANTS).tolist(), strict=True))}
    details |= _late_skill(run, everyone, (*controls, entries.LAW, *record.THEOREM.values(), *record.EQUATION.values()))
    for optimizer, variants in by_optimizer.items():
        for name in (*controls, record.EARLIER, entries.LAW) if variants else ():
            mean = mean_over_seeds(record.skill_of(run, variants, "entropy", name))
            details.setdefault(f"skill with {optimizer}", {})[name] = mean
    return by_effect(
        claim,
        {f"against {name}": one for name, one in hardest(claim, against).items()},
        what="skill over persistence",
        details=details | diverged(run, _trained(run)),
    )


def _late_skill(run: Run, variants: list[str], names: Sequence[str]) -> dict[str, dict[str, float]]:
    at = run.value(f"{variants[0]}/at")
    found = {}
    for when, chosen in {"": at > 0, f" from t = {entries.LATE} on": at >= entries.LATE}.items():
        if not chosen.any():
            continue
        skills = {name: record.skill_of(run, variants, "entropy", name, origins=chosen) for name in names}
        found[f"skill{when}"] = {name: mean_over_seeds(skill) for name, skill in skills.items()}
        for control in record.FITTED:
            above = compare(skills[entries.LAW] - skills[control])
            found[f"above {control}{when}"] = {"skill": above.value, "from": above.low, "to": above.high}
    return found


def _trained(run: Run) -> list[str]:
    return [name.removesuffix("/rates") for name in run.names() if name.endswith("/rates")]


def _everyone(run: Run) -> list[str]:
    if everyone := [name for variants in record.variants_of(run).values() for name in variants]:
        return everyone
    raise NotRun("; ".join(learned_nothing(run, name) for name in _trained(run)), steps=2 * run.config["steps"])


def _cases(claim: Claim, run: Run, variants: list[str], forecaster: str) -> dict[str, Comparison]:
    found: dict[str, Comparison] = {}
    for quantity in record.QUANTITIES:
        ours = record.skill_of(run, variants, quantity, forecaster)
        against = {"no change": compare(ours, 0.0)}
        lines = record.CONTROLS
        against |= {name: compare(ours, record.skill_of(run, variants, quantity, name)) for name in lines}
        found |= {f"{quantity}, against {name}": one for name, one in hardest(claim, against).items()}
    return found


def draw(run: Run) -> list[Drawing]:
    """Skill over t by forecaster, and what three of them say on the way."""
    learned = {optimizer: variants for optimizer, variants in record.variants_of(run).items() if variants}
    return [draw_skill(run, learned), draw_paths(run, learned)]


LINES: dict[str, tuple[str, str, str]] = {
    record.EARLIER: ("earlier runs", GREEN, "-"),
    entries.TREND: ("damped trend", CONTROL, ":"),
    record.CONTROLS[1]: ("line in log t", CONTROL, "-"),
    record.CONTROLS[0]: ("line in t", CONTROL, "--"),
    entries.LAW: ("focus and dilution", PURPLE, "-"),
    record.THEOREM["corrected"]: ("Theorem 1", BLUE, "-"),
    record.EQUATION["corrected"]: ("eq. 6", ORANGE, "-"),
}
"""Name, colour and dashes of every forecaster that is drawn; of logits there are fewer."""
PATHS = (entries.TREND, entries.LAW, record.THEOREM["corrected"], record.EQUATION["corrected"])
LINEAR = 1.0
"""Down to minus this the axis of skill is linear; below, where a forecast may be worse without limit, logarithmic."""
BEST = 1.0  # no forecast can be better: an interval that reaches beyond is cut here
NAMES = {"entropy": "entropy of every layer", "logits": "logits of frequent words"}
Learned = Mapping[str, Sequence[str]]  # by optimizer, the variants that learned; no optimizer without any


def _lines(run: Run, quantity: str) -> dict[str, tuple[str, str, str]]:
    return {name: line for name, line in LINES.items() if quantity == "entropy" or name not in record.OF_ENTROPY}


def draw_skill(run: Run, learned: Learned) -> Drawing:
    """One panel per quantity and optimizer."""
    figure, axes = panels(max(len(learned), 1), len(record.QUANTITIES), width=4.3, height=2.6)
    places = [(quantity, optimizer) for quantity in record.QUANTITIES for optimizer in learned]
    for axis, (quantity, optimizer) in zip(axes, places, strict=False):
        at = run.value(f"{learned[optimizer][0]}/at")
        for name, (label, colour, dashes) in _lines(run, quantity).items():
            found = [compare(column) for column in record.skill_by_step(run, learned[optimizer], quantity, name).T]
            if colour != CONTROL:  # bands of all would hide each other
                low, high = (np.minimum([getattr(one, end) for one in found], BEST) for end in ("low", "high"))
                axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
            axis.plot(at, [one.value for one in found], color=colour, ls=dashes, label=label)
        axis.axhline(0, color=INK, lw=0.9, ls=":", label="no change")
        axis.set(xscale="log", ylabel="skill over persistence", xlabel="forecast made at step (for twice that step)")
        _step_ticks(axis, at)
        axis.set_title(f"{optimizer}: {NAMES[quantity]}")
    # One scale with room for every value: a forecast may be many times worse than no change, never above perfect.
    lowest = min([-LINEAR, *(axis.dataLim.y0 for axis in axes[: len(places)])])
    powers = [-(10.0**power) for power in range(1, 9) if -(10.0**power) > lowest]
    ticks = [*reversed(powers), -1.0, -0.5, 0.0, 0.5, 1.0]
    for axis in axes[: len(places)]:
        axis.set_yscale("symlog", linthresh=LINEAR, linscale=1.2)
        axis.set_ylim(1.15 * lowest, 1.08 * BEST)
        axis.set_yticks(ticks, [number(tick, "%") for tick in ticks], minor=False)
        axis.yaxis.minorticks_off()
    return Drawing("forecast-skill", _skill_caption(run, learned), figure)


def _judged(run: Run) -> int:
    return int(run.config["seeds"]) - int(run.config["open_seeds"])


def _step_ticks(axis: Axes, at: np.ndarray) -> None:
    ticks = at[::4] if len(at) > 6 else at[::2]
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.minorticks_off()


def _skill_caption(run: Run, learned: Learned) -> str:
    if not learned:
        return "No network learned more than how frequent words are, so nothing was predicted."
    everyone = [name for variants in learned.values() for name in variants]
    parts = []
    for quantity in record.QUANTITIES:
        means = {one: mean_over_seeds(record.skill_of(run, everyone, quantity, one)) for one in _lines(run, quantity)}
        scores = listing(f"{LINES[name][0]} {number(mean, '%')}" for name, mean in means.items())
        parts.append(f"{NAMES[quantity].capitalize()}: {scores}.")
    return (
        f"Skill of forecasts of attention at step 2t, over all t and all networks. {' '.join(parts)} Skill is the part "
        "of the squared error of no change (persistence) that a forecast avoids: 100 % is perfect, 0 % is no change, "
        f"less is worse. Lines: mean over {_judged(run)} seeds on {called(run.config['corpus'])}; bands (not of "
        f"the straight lines): interval (95 %; 99 % over four seeds or fewer), cut at {number(BEST, '%')}. "
        f"Below {number(-LINEAR, '%')} the axis is "
        "logarithmic."
    )


def draw_paths(run: Run, learned: Learned) -> Drawing:
    """The entropy of one layer of one seed, and where four forecasters saw it going."""
    variant = next((name for variants in learned.values() for name in variants), None)
    figure, axes = panels(2, 2, width=4.3, height=2.5)
    if variant is None:
        return Drawing("forecast-paths", "Nothing was predicted.", figure)
    first = int(run.config["open_seeds"])
    steps, entropy = steps_of(run, variant), curve(run, variant, "valid/entropy")[0, first, :, 0].mean(-1)
    at, spread = run.value(f"{variant}/at"), np.ptp(entropy)
    now, errors = np.interp(at, steps, entropy), []
    for axis, name in zip(axes, PATHS, strict=True):
        label, colour, _ = LINES[name]
        axis.plot(steps[1:], entropy[1:], color=INK, lw=1.2, label="what came")
        style: Any = {"color": colour, "lw": 1.3, "marker": "o", "ms": 3, "markevery": [1], "label": label}
        for t, start, end in zip(at, now, run.value(f"{variant}/told/{name}")[0, 0], strict=True):
            axis.plot([t, 2 * t], [start, end], **style)
        axis.set(xscale="log", xlabel="training step", ylabel="attention entropy (nats)")
        axis.set_ylim(entropy.min() - 0.5 * spread, entropy.max() + 0.35 * spread)
        axis.set_title(f"{label[0].upper()}{label[1:]}")
        _step_ticks(axis, at)
        mark_beyond(axis)
        error = float(np.sqrt(run.value(f"{variant}/entropy/{name}")[0, 0].mean()))
        errors.append(f"{number(error, 'nats')} ({label})")
    caption = (
        f"What four forecasters say of one network ({variant}, the first judged seed, layer 1). Each line goes from "
        f"the entropy at step t to what is predicted for step 2t. The root mean square error is {listing(errors)}. An "
        "arrow at an edge marks an end beyond the panel, with its value."
    )
    return Drawing("forecast-paths", caption, figure, labels=False)


STUDY = Study(
    name="forecast",
    title="Forecast: what JoMA predicts of a real training",
    version=2,
    claims=CLAIMS,
    # Two seeds are open and six judge, which from 3000 on was enough to rule out what matters for two of three claims.
    quick=ForecastConfig(seeds=8),
    paper=ForecastConfig(
        **PAPER | {"length": 35, "valid_sequences": 100, "steps": 11_585, "every": 8, "seeds": 12, "seed": 20},
        rate=1e-4, sgd_rate=3.0, words=100, first=64, open_seeds=4,
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Decoders are trained and measured at steps that are √2 apart. From each step t, the attention at step 2t is "
        "predicted: the entropy of each layer, and the logits of the most frequent words. Theorem 1 gives logits from "
        "the MLP's weights, which go on as they did since step t/2. Eq. 6 gives the growth of these weights, with μ "
        "fitted to the past. For entropy, the curve of eq. 6 is fitted to the entropy's past. The controls are: no "
        "change, and a straight line in t and in log t through the past since t/2. The law of focus and dilution is "
        "held against damped trends, too. The law and the trends have constants, which are fitted on the first seeds; "
        "only the other seeds are judged. The mean curve of the first seeds, moved to the present value, is shown "
        "as a ceiling. Skill is the part of the squared error of no change that a forecast avoids. No forecast sees "
        "anything of its own run after step t."
    ),
)  # fmt: skip
