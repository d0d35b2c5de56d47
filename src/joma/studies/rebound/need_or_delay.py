"""Does the rebound of attention entropy need a part of the network to learn, or is it only delayed without it?

Twins of Figure 6's language models go on from the valley with queries and keys, or MLPs, or embeddings frozen, alone
and in pairs, more than twice as long as in `rebound-cause`. In the control the output matrix is frozen: as many weights
as the embeddings, forty times as many as the MLPs or the queries and keys, and none that attention reads. One more twin
has its queries and keys frozen and the mean and covariance of what attention reads held as they were.

What was fixed when: everything, before any run at paper scale. A first one was cut by the clock at step 23,500, and its
curves were known when the run of all 40,000 steps began. No rule was changed. One size was: the input that is held was
renewed every 50 steps, was off by 14 %, and is renewed every 10.

- A network's valley is its own: the lowest point of its curve, the way down of its base included. The rise ends in the
  mean over the last `window` steps, about one reading of the text, and is read at the valley of the other seeds' mean,
  so that a seed's own noise chooses nothing. Each seed begins the text at a place of its own, so that no bump of the
  text is shared. When the valley was is read from each seed by itself.
- Need: with the part frozen entropy rises by less than what matters (0.05 nats) until the last step, while more of the
  rise is lost by what matters than in the control. Delay: it rises by at least what matters, from a valley that comes
  later by half a doubling of the steps (`LATER`), both beyond chance. Neither: it rises, and its valley is not later.
- Both are read once at the last step, and once at equal loss: where the validation loss of each of the two networks
  first is as low as the lowest that both reach.
- The valley at which twins leave, step 2,000, is that of `rebound-cause`. The seeds, 90 to 97, had not been looked at.
  A sketch with one seed had been seen: with MLPs frozen the second layer rose by 0.15 of 0.27 nats by 10,000 steps and
  by 0.42 of 0.49 by 30,000; with queries and keys frozen it rose further than with nothing frozen.

Cost at paper scale: 1,425 s of an H200 that other runs shared in part. One layer would take two thirds more; the first
layer of two has nothing below it but the embeddings either, and is read in its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, clears, no_more
from joma.claims.verdicts import Test, at_least, by_effect, not_run
from joma.data.text import Corpus
from joma.figures.bands import mean_and_band
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, Axes, panels, step_axis
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import PAPER, Recipe, called, corpus, recipe, same_text, train_variants
from joma.recipes.language.curves import alive, curve, diverged, learned_nothing, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import MATTERS, Case, base_name, comes_back, points
from joma.studies.rebound._held import Held
from joma.studies.rebound._paths import Path, equal_loss, rises, valley_steps, valleys
from joma.studies.rebound._twins import TwinsConfig, bases, entropies, fixed_batch, misses
from joma.studies.rebound.reading import Moments
from joma.training import Ensemble

LATER = 0.5  # doublings of the steps by which a valley must come later to be delayed
LOOSE = 0.1
"""What is held may be off by this share of its value at the valley, in the mean over points, or nothing was held."""
SINGLE = ("QK", "MLP", "embeddings")
ARMS: dict[str, tuple[str, ...]] = {
    **{part: (part,) for part in SINGLE},
    **{f"{one} and {other}": (one, other) for one, other in (SINGLE[:2], SINGLE[::2], SINGLE[1:])},
    "output": ("output",),
}
"""What twins have frozen, by groups of `joma.models.groups.parameter_groups`."""
CONTROL = "output"
NOTHING, HELD = "nothing", "QK frozen, input held"
COLOURS = dict(
    zip((NOTHING, *ARMS, HELD), (INK, BLUE, GREEN, ORANGE, *(BLUE, ORANGE, GREEN), GREY, PURPLE), strict=True)
)


@dataclass(frozen=True)
class NeedOrDelayConfig(TwinsConfig):
    """Twins of `TwinsConfig`, and how their ends are read."""

    window: Annotated[int, Least(1)] = 40
    """Steps over whose measuring points the end of a curve is averaged: about one reading of the text."""
    pairs: bool = False
    """Whether there are twins with two parts frozen, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valley + self.window > self.steps:
            most = f"{self.steps - self.valley}, the steps after the valley"
            raise ValueError(f"window must be at most {most}, got {self.window}")


def arm_name(base: str, arm: str) -> str:
    """The network of an arm."""
    return {NOTHING: base, HELD: f"{base}, {HELD}"}.get(arm, f"{base}, {arm} frozen")


def plan(config: NeedOrDelayConfig, text: Corpus) -> dict[str, Recipe]:
    """All networks by their names."""
    found = {}
    for layers in config.layers:
        base, plain = base_name(layers), recipe(config, text, layers=layers, rates=(config.rate,))
        plain = plain.with_(own_start=True)
        found[base] = plain.with_(keep_at=(config.valley,))
        for arm, groups in {**ARMS, HELD: ("QK",)}.items():
            if len(groups) > 1 and not config.pairs:
                continue
            found[arm_name(base, arm)] = plain.with_(frozen=groups, branch_of=base, branch_at=config.valley)
    return found


def run(config: NeedOrDelayConfig, run: Run, progress: Progress) -> None:
    """Train all networks, measured at their points: loss and entropy, and how far off what is held is."""
    text = corpus(config, progress)
    variants = plan(config, text)

    def measured(name: str, plain: Ensemble) -> Ensemble:
        one, measures = variants[name], {"valid": plain.measures["valid"]}
        at = tuple(point for point in points(config.valley, one.steps, one.every) if point >= one.branch_at)
        if not name.endswith(HELD):
            return replace(plain, measures=measures, measure_at=at)
        tokens = fixed_batch(config, plain)

        def networks(members: Sequence[int]) -> Held:
            seeds = [one.members[member][1] for member in members]
            return Held(one.decoder, seeds, Moments(), tokens.cpu(), at=config.valley, every=config.refresh)

        measures["held"] = lambda decoder, members: {"miss": decoder.miss()}
        return replace(plain, networks=networks, tend=Held.tend, measures=measures, measure_at=at)

    train_variants(variants, text, run, progress, share=0.95, adapt=measured)


# ---- what is read from the record


def path(run: Run, base: str, arm: str = NOTHING) -> Path:
    """The path of an arm."""
    parts = []
    for name in dict.fromkeys((base, arm_name(base, arm))):
        steps = steps_of(run, name)
        chosen = steps < run.config["valley"] if name == base and arm != NOTHING else steps >= 0
        parts.append((steps[chosen], entropies(run, name)[..., chosen], curve(run, name, "valid/loss")[0][:, chosen]))
    return Path(*(np.concatenate(part, -1) for part in zip(*parts, strict=True)))


def rise(run: Run, case: Case, arm: str = NOTHING) -> np.ndarray:
    """Of a case, until the last step, (seeds,)."""
    return case.mean(rises(path(run, case.base, arm), int(run.config["window"])))


def lost(run: Run, case: Case, arm: str, than: str = NOTHING, *, at_equal_loss: bool = False) -> np.ndarray:
    """How much less than another arm an arm rises, (seeds,)."""
    both = path(run, case.base, than), path(run, case.base, arm)
    ends = equal_loss(*both) if at_equal_loss else (None, None)
    first, second = (case.mean(rises(one, int(run.config["window"]), end)) for one, end in zip(both, ends, strict=True))
    return np.asarray(first - second)


def doublings_later(run: Run, case: Case, arm: str) -> np.ndarray:
    """How much later than with nothing frozen the valley is, in doublings of the steps, (seeds,)."""
    steps = [case.mean(valley_steps(path(run, case.base, one))) for one in (NOTHING, arm)]
    return np.asarray(np.log2(np.maximum(steps[1], 1.0) / np.maximum(steps[0], 1.0)))


def cases(run: Run, than: str = NOTHING) -> list[Case]:
    """Each layer that comes back with nothing frozen, or in another arm, by itself."""
    return [case for case in _layers(run) if comes_back(rise(run, case, than))]


def _arms(run: Run) -> list[str]:
    return [arm for arm in COLOURS if run.config["pairs"] or " and " not in arm]


def _layers(run: Run) -> list[Case]:
    return [Case(base, (n,)) for base in bases(run) for n in range(len(entropies(run, base)))]


# ---- claims


def _tells_nothing(run: Run) -> tuple[str, str | dict[str, float]] | None:
    for name in (arm_name(base, arm) for base in bases(run) for arm in _arms(run)):
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            return f"too many runs of {name} diverged: {left} are left", {"rate": run.config["rate"] / 3}
        if reason := learned_nothing(run, name):
            return reason, {"steps": 2 * run.config["steps"]}
    if cases(run):
        return None
    most, name = max(((compare(rise(run, case)), case.name) for case in _layers(run)), key=lambda one: one[0].value)
    return (
        f"no layer comes back by {MATTERS:g} nats beyond chance with nothing frozen; the largest rebound is "
        f"{most.value:.3f} nats ({most.low:.3f} to {most.high:.3f}), {name}"
    ), at_paper_scale(run.study)


CLAIMS = Claims(unit="nats", matters=MATTERS, guard=_tells_nothing)
USES = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")


def judge_need(arm: str, run: Run, claim: Claim) -> Finding:
    """What a twin loses of the rise, beside what the control loses; and that what is left is too small to matter."""
    judged, found = cases(run), {}
    if arm not in _arms(run):
        return not_run(claim, claim.expected, f"no copy has {arm} frozen", at_paper_scale(run.study))
    for case in judged:
        for at, equal in (("by the last step", False), ("at equal loss", True)):
            less, control = (lost(run, case, one, at_equal_loss=equal) for one in (arm, CONTROL))
            found[f"{case.name}, {at}"] = compare(less, control)
    what = "rise that is lost; control: output frozen"
    return by_effect(claim, found, what=what, size=_left(run, judged, arm), details=_details(run, judged, arm))


def _left(run: Run, judged: Sequence[Case], arm: str) -> list[Test]:
    return [no_more(f"{one.name}, rise that is left", compare(rise(run, one, arm)), MATTERS, "nats") for one in judged]


def judge_delay(arm: str, run: Run, claim: Claim) -> Finding:
    """That a twin rises from its own valley, and that this valley comes later."""
    judged, later = cases(run), []
    for case in judged:
        gap = compare(doublings_later(run, case, arm))
        later += [
            clears(f"{case.name}, minimum later, in doublings of the steps", gap, matters=LATER),
            at_least(f"{case.name}, minimum later, in doublings of the steps", gap.value, LATER),
        ]
    found = {case.name: compare(rise(run, case, arm)) for case in judged}
    return by_effect(claim, found, what="rise from the own minimum", size=later, details=_details(run, judged, arm))


def _details(run: Run, judged: Sequence[Case], *arms: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for case in judged:
        base = path(run, case.base)
        for arm in (NOTHING, *arms, CONTROL):
            one = path(run, case.base, arm)
            at = np.take_along_axis(one.loss[None], valleys(one)[..., None], -1)[..., 0]  # (layers, seeds)
            pairs = zip((one, base), equal_loss(one, base), strict=True)
            ends = [rises(network, int(run.config["window"]), end) for network, end in pairs]
            found[f"{case.name}, {_label(arm)}"] = {
                "rise (nats)": compare(rise(run, case, arm)).value,
                "step of the minimum": compare(case.mean(valley_steps(one))).value,
                "loss at the minimum (nats)": compare(case.mean(at)).value,
                "rise at equal loss (nats)": compare(case.mean(ends[0])).value,
                "rise with nothing frozen at equal loss (nats)": compare(case.mean(ends[1])).value,
                "last loss (nats)": compare(one.loss[:, -1]).value,
            }
    return found | diverged(run, [arm_name(base, arm) for base in bases(run) for arm in _arms(run)])


NAMES = {"QK": "queries and keys", "MLP": "MLPs", "embeddings": "embeddings"}
SOURCES = {"QK": "JoMA Sec. 4", "MLP": "JoMA Sec. 5", "embeddings": "JoMA Sec. 2"}


NEEDS = (
    "Attention becomes dense again only if {named} go on to learn. Tested here: with {frozen} frozen from the valley "
    "on, it does not by the last step.\n\n"
    "Expected: with {arm} frozen at least {{MATTERS:g}} nats more of the rise are lost than with the output matrix "
    "frozen, by step {{steps:,}} and at equal loss, beyond chance, and what is left is below that."
)
DELAYS = (
    "Where {named} stop to learn, attention becomes dense again later. Tested here: with them frozen from the valley "
    "on, entropy falls further to a later valley and rises from there.\n\n"
    "Expected: with {arm} frozen entropy rises by at least {{MATTERS:g}} nats from a valley that comes at least "
    "{{LATER:g}} doublings of the steps later, beyond chance, by step {{steps:,}}."
)
for _arm, _parts in ARMS.items():
    if _arm == CONTROL:
        continue
    _said = {"named": " or ".join(NAMES[part] for part in _parts), "arm": _arm,
             "frozen": "all of them" if len(_parts) == 1 else "both"}  # fmt: skip
    _name = _arm.lower().replace(" and ", "-or-")
    CLAIMS.declare(f"needs-{_name}", SOURCES[_parts[0]], NEEDS.format(**_said), uses=USES)(partial(judge_need, _arm))
    if len(_parts) == 1:
        _delay = CLAIMS.declare(f"delayed-by-{_name}", SOURCES[_arm], DELAYS.format(**_said), uses=USES)
        _delay(partial(judge_delay, _arm))


@CLAIMS.declare("input-raises-frozen-logits", "JoMA Fig. 6", uses=(*USES, "reading/input-spreads"))
def _input_raises(run: Run, claim: Claim) -> Finding:
    """With queries and keys frozen, attention becomes dense again because what it reads moves and spreads.

    Expected: with the mean and covariance of what attention reads held as well, at least {MATTERS:g} nats of the rise
    with QK frozen are lost by step {steps:,}, beyond chance, and what is left is below that.
    """
    judged = cases(run, "QK")
    if not judged:
        reason = f"with QK frozen no layer comes back by {MATTERS:g} nats beyond chance, so nothing is left to explain"
        return not_run(claim, claim.expected, reason, at_paper_scale(run.study))
    off = {case.name: misses(run, case, arm_name(case.base, HELD)) for case in judged}
    for case in judged:
        if not off[case.name] <= LOOSE:
            reason = (
                f"the input was not held in {case.name}: it was off by {off[case.name]:.0%}, and {LOOSE:.0%} is allowed"
            )
            return not_run(claim, claim.expected, reason, refresh=max(1, run.config["refresh"] // 5))
    found = {case.name: compare(rise(run, case, "QK"), rise(run, case, HELD)) for case in judged}
    details = _details(run, judged, "QK", HELD) | {"held input off by": off}
    return by_effect(
        claim,
        found,
        what="rise with QK frozen; control: input held too",
        size=_left(run, judged, HELD),
        details=details,
    )


# ---- figures


def draw(run: Run) -> list[Drawing]:
    """Entropy over steps by layer, and by arm when the valley is and how far entropy rises from it."""
    return [_draw_curves(run), _draw_outcomes(run)]


def _title(case: Case) -> str:
    return case.name[0].upper() + case.name[1:]


def _label(arm: str) -> str:
    return arm if arm == HELD else f"{arm} frozen"


def _draw_curves(run: Run) -> Drawing:
    layers = _layers(run)
    figure, axes = panels(len(layers), 2, width=4.2, height=2.8)
    rows = [[NOTHING, *SINGLE, CONTROL], [NOTHING, *(arm for arm in _arms(run) if " and " in arm), HELD]]
    for row, arms in enumerate(rows):
        for axis, case in zip(axes[row * len(layers) :], layers, strict=False):
            _curves(axis, run, case, arms)
            axis.set(title=_title(case), ylabel="attention entropy (nats)")
            step_axis(axis)
        axis.legend(fontsize="x-small")
    caption = (
        f"{_in_words(run)} Above: with one part frozen from the minimum, step {run.config['valley']:,}, on, and with "
        "the output matrix frozen. Below: with two parts frozen, and with queries and keys frozen while the mean and "
        f"covariance of what attention reads are held. Lines: means of {run.config['seeds']} seeds on held-out text of "
        f"{called(run.config['corpus'])}; bands: their range."
    )
    return Drawing("entropy-by-what-is-frozen", caption, figure)


def _curves(axis: Axes, run: Run, case: Case, arms: Sequence[str]) -> None:
    for arm in reversed(arms):  # nothing frozen is drawn on top
        found = path(run, case.base, arm)
        rows = case.mean(found.entropy)
        rows = rows[np.isfinite(rows).all(1)]
        later = found.steps >= (0 if arm == NOTHING else int(run.config["valley"]))
        if len(rows):
            style = {"color": COLOURS[arm], "label": _label(arm)}
            mean_and_band(axis, found.steps[later], rows[:, later], over=0, shade=0.12, **style)


def _in_words(run: Run) -> str:
    ways = []
    for case in cases(run):
        ends = [f"{compare(rise(run, case, arm)).value:+.2f} with {_label(arm)}" for arm in (NOTHING, *SINGLE)]
        ways.append(f"{case.name}: {', '.join(ends)}".replace("-", "−"))
    return f"From its own minimum to the end entropy rises, in nats, {'; '.join(ways)}." if ways else "No layer rises."


def _draw_outcomes(run: Run) -> Drawing:
    layers = _layers(run)
    figure, axes = panels(len(layers), 1, width=4.6, height=3.4)
    for axis, case in zip(axes, layers, strict=True):
        for arm in _arms(run):
            when, back = compare(doublings_later(run, case, arm)), compare(rise(run, case, arm))
            inside = "white" if " and " in arm else COLOURS[arm]
            axis.errorbar(
                when.value,
                back.value,
                xerr=when.half_width,
                yerr=back.half_width,
                fmt="o",
                ms=5,
                capsize=2,
                lw=1,
                color=COLOURS[arm],
                mfc=inside,
                label=_label(arm),
            )
        axis.axhline(MATTERS, color=RED, lw=0.8, ls=":", label="what matters")
        axis.axvline(LATER, color=RED, lw=0.8, ls=":", label="later")
        later = "minimum later than with nothing frozen (doublings of the steps)"
        axis.set(title=_title(case), xlabel=later, ylabel="rise from the own minimum (nats)")
    axes[-1].legend(fontsize="x-small")
    caption = (
        f"{_in_words(run)} Below the horizontal line no rebound is left: the part is needed until step "
        f"{run.config['steps']:,}. Above it and right of the vertical line it is delayed. Points: means of "
        f"{run.config['seeds']} seeds, with intervals (95 %; 99 % over four or fewer)."
    )
    return Drawing("need-or-delay", caption, figure)


STUDY = Study(
    name="need-or-delay",
    title="Whether the rebound needs a part of the network to learn, or is only delayed without it",
    version=1,
    claims=CLAIMS,
    quick=NeedOrDelayConfig(  # sizes at which seeds 700 to 704 and 800 to 804 came back; judged on others
        width=24, mlp=24, streams=64, steps=480, every=60, seeds=5, seed=20, valley=180, batches=2, refresh=12,
        window=120,  # pushed every 60 steps, what is held was off by 14 %; every 12, on seeds 700 to 704, it held
    ),
    paper=NeedOrDelayConfig(
        **PAPER | {"valid_sequences": 40, "steps": 40_000, "every": 250, "seeds": 8, "seed": 90}, dropout=0.2,
        length=35, layers=(2,), rate=1e-4, valley=2_000, batches=10, refresh=10, window=3_000, pairs=True,
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Figure 6's language models are trained. From the minimum on, copies of them have queries and keys, or MLPs, "
        "or embeddings frozen in all layers, alone and in pairs; in the control the output matrix, which attention "
        "does not read. In one more copy queries and keys are frozen and the mean and covariance of what attention "
        "reads are held. A part is needed if with it frozen entropy does not rise from its own, perhaps later minimum "
        "by the last step, and the rebound is delayed if it rises from a later minimum. Both are also read at equal "
        "loss. Every seed begins the text at a place of its own. Quick scale trains small models on Python source."
    ),
)  # fmt: skip
