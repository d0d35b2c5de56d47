"""The study `dilution`: four claims on what makes the rebound, their judge, and the figure of the twins.

All were written before any run at paper scale, with the bounds that stand here.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import at_least, at_most
from joma.claims.guards import at_paper_scale
from joma.claims.verdicts import by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, RED, panels, step_axis
from joma.figures.types import Axes
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import alive, diverged, learned_nothing, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import MATTERS, Case
from joma.studies.rebound.dilution import run as dilution
from joma.studies.rebound.dilution.run import DilutionConfig, run, twin_name

NEEDED, ALLOWED, APART = 0.6, 0.2, 0.4
"""Shares of the rise: what a twin must remove at least to make the rebound, what its control may remove, and how far
apart the two must be."""
LOOSE = 0.1
"""What is held may be off by this share of its value at the valley, in the mean over points, or nothing was held."""
PAPER_SEED = 60
COLOURS = {
    dilution.BOTH: BLUE, dilution.SHARED: ORANGE, dilution.SPECIFIC: GREY, dilution.WORDS: GREEN, dilution.MEAN: RED,
}  # fmt: skip
NOTHING = "nothing held"


def judge_hold(claim: Claim, held: str, run: Run) -> Finding:
    """The share of the rise that a twin removes beside what its control removes, seed by seed."""
    expected = (
        f"with {held} held from the valley on, at least {NEEDED:.0%} of the rise is gone, and less than {ALLOWED:.0%} "
        f"with a push of the same size elsewhere; the difference is at least {APART:.0%}, beyond chance"
    )
    cases = dilution.judged_layers(run)
    if finding := _tells_nothing(claim, expected, held, run, cases):
        return finding
    shares = {case: [dilution.removed(run, case, name) for name in _both(case.base, held)] for case in cases}
    return by_effect(
        claim,
        {case.name: compare(*share) for case, share in shares.items()},
        expected=expected,
        what="share of the rise that is gone; control: pushed elsewhere",
        size=[at_least(f"{c.name}, share gone", compare(share[0]).value, NEEDED, "%") for c, share in shares.items()],
        controls=[
            at_most(f"{case.name}, share gone with the control", compare(share[1]).value, ALLOWED, "%")
            for case, share in shares.items()
        ],
        details=_details(run, held, cases) | diverged(run, [name for c in cases for name in _both(c.base, held)]),
    )


def _both(base: str, held: str) -> tuple[str, str]:
    return twin_name(base, held), twin_name(base, held, elsewhere=True)


def _details(run: Run, held: str, cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """By case: the base's rise, how far the hold was off, and what every hold removes, for the reader."""
    found = {}
    for case in cases:
        rise = {"rise of the base (nats)": compare(case.mean(dilution.rises(run, case.base))).value}
        twin, control = _both(case.base, held)
        off = {"held thing off by": dilution.misses(run, case, twin)}
        off["held thing off by, control"] = dilution.misses(run, case, control)
        gone = {f"gone with {name} held": _gone(run, case, twin_name(case.base, name)) for name in dilution.HOLDS}
        found[f"{case.name}, valley to end"] = rise | off | gone
    return found


def _gone(run: Run, case: Case, variant: str) -> float:
    return compare(dilution.removed(run, case, variant)).value


def _tells_nothing(claim: Claim, expected: str, held: str, run: Run, cases: Sequence[Case]) -> Finding | None:
    networks = [name for base in dilution.bases(run) for name in (base, *_both(base, held))]
    for name in networks:
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            reason = f"too many runs of {name} diverged: {left} are left"
            return not_run(claim, expected, reason, f"joma run dilution --rate {run.config['rate'] / 3:g}")
        if reason := learned_nothing(run, name):
            return not_run(claim, expected, reason, f"joma run dilution --steps {2 * run.config['steps']}")
    if not cases:
        return not_run(claim, expected, _nothing_rises(run), at_paper_scale("dilution"))
    for case in cases:
        if not (off := dilution.misses(run, case, twin_name(case.base, held))) <= LOOSE:
            reason = f"{held} was not held in {case.name}: it was off by {off:.0%}, and {LOOSE:.0%} is allowed"
            return not_run(claim, expected, reason, f"joma run dilution --refresh {max(1, run.config['refresh'] // 5)}")
    return None


def _nothing_rises(run: Run) -> str:
    each = {name: enumerate(dilution.rises(run, name), start=1) for name in dilution.bases(run)}
    found = {f"{name}, layer {n}": compare(rise) for name, rises in each.items() for n, rise in rises}
    most = max(found, key=lambda name: found[name].value)
    return (
        f"no layer that the claim is about comes back by {MATTERS:g} nats beyond chance; the largest rebound, from the "
        f"valley to the end, is {found[most].value:.3f} nats ({found[most].low:.3f} to {found[most].high:.3f}), {most}"
    )


def draw_twins(run: Run) -> Drawing:
    """How far entropy moves from the valley on, by layer: above with something held, below the controls."""
    layers = [Case(name, (n,)) for name in dilution.bases(run) for n in range(len(dilution.rises(run, name)))]
    figure, axes = panels(len(layers), 2, width=3.2 if len(layers) > 1 else 4.6, height=2.5)
    for row, elsewhere in enumerate((False, True)):
        for axis, case in zip(axes[row * len(layers) :], layers, strict=False):
            _lines(axis, run, case, elsewhere=elsewhere)
            title = case.name[0].upper() + case.name[1:]
            axis.set(title=f"{title}, {'controls' if elsewhere else 'held'}", ylabel="change of entropy (nats)")
    for column in range(len(layers)):
        ends = [axis.get_ylim() for axis in (axes[column], axes[column + len(layers)])]
        for axis in (axes[column], axes[column + len(layers)]):
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    from matplotlib.patches import Patch

    named = {NOTHING: INK} | COLOURS
    drawn = {name for case in layers for name in _shown(run, case, elsewhere=False)}
    handles = [Patch(color=colour, label=name) for name, colour in named.items() if name in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, 2 * len(layers) + 1))
    return Drawing("twins-that-hold", _caption(run, layers), figure)


def _shown(run: Run, case: Case, *, elsewhere: bool) -> Mapping[str, str]:
    """Networks of a panel by what is held. What slipped is left out, twin and control: nothing was held there."""
    held = [name for name in dilution.HOLDS if not (elsewhere and name in dilution.UNCONTROLLED)]
    held = [name for name in held if not _slipped(run, case, name)]
    return {NOTHING: case.base} | {name: twin_name(case.base, name, elsewhere=elsewhere) for name in held}


def _slipped(run: Run, case: Case, held: str) -> float:
    """How far the held thing was off, if that is more than is allowed; else 0."""
    off = dilution.misses(run, case, twin_name(case.base, held))
    return off if off > LOOSE else 0.0


def _lines(axis: Axes, run: Run, case: Case, *, elsewhere: bool) -> None:
    for held, variant in reversed(list(_shown(run, case, elsewhere=elsewhere).items())):  # nothing held is drawn on top
        steps = steps_of(run, variant)
        later = steps >= int(run.config["valley"])
        rows = case.mean(dilution.entropies(run, variant))[:, later]
        rows = rows[np.isfinite(rows).all(1)]
        if len(rows):
            mean_and_band(axis, steps[later], rows - rows[:, :1], over=0, shade=0.1, color=COLOURS.get(held, INK))
    axis.axhline(0, color="0.6", lw=0.6, label="no change")
    step_axis(axis)


def _caption(run: Run, layers: Sequence[Case]) -> str:
    ways = []
    for case in layers:
        ends = []
        for held, variant in _shown(run, case, elsewhere=False).items():
            one = f"{_signed(run, case, variant)} with {held}"
            if held not in (NOTHING, *dilution.UNCONTROLLED):
                one += f" held ({_signed(run, case, twin_name(case.base, held, elsewhere=True))} pushed elsewhere)"
            ends.append(one if held != dilution.SPECIFIC else f"{one} held")
        ways.append(f"{case.name}: {', '.join(ends)}")
    judged = {case: _gone(run, case, twin_name(case.base, dilution.BOTH)) for case in dilution.judged_layers(run)}
    gone = "; ".join(f"{share:.0%} of the rise in {case.name}" for case, share in judged.items())
    loose = {f"{held} in {case.name}": _slipped(run, case, held) for held in dilution.HOLDS for case in layers}
    slipped = ", ".join(f"{name} (off by {off:.0%})" for name, off in loose.items() if off)
    finding = f"Both sizes of logits held at the valley remove {gone}." if gone else "No judged layer comes back here."
    return (
        f"{finding} Changes of entropy from the valley, step {run.config['valley']:,}, to the end, in nats: "
        f"{'; '.join(ways)}. Above: twins with something held as it was at the valley. Below: the same push elsewhere. "
        f"Lines: means of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])}; bands: their "
        f"range.{f' Not drawn, because it could not be held: {slipped}.' if slipped else ''}"
    )


def _signed(run: Run, case: Case, variant: str) -> str:
    value = compare(case.mean(dilution.rises(run, variant))).value
    return f"{'+' if value > 0 else '−'}{abs(value):.2f}" if np.isfinite(value) else "unknown"


def _claim(name: str, says: str) -> Claim:
    says = f"After it was sparse, attention becomes dense again. Tested here: {says}"
    uses = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")
    return Claim(name, "JoMA Fig. 6", says, matters=APART, unit="%", uses=uses)


LOGITS = _claim(
    "logits-shrink",
    "because its logits shrink. With the size of their shared and of their specific part held, it does not.",
)
PREFERENCE = _claim(
    "shared-preference-shrinks",
    "because the preference for keys that all queries share shrinks. With the size of this part held, it does not.",
)
LOSE = _claim(
    "words-lose-their-logits",
    "because words lose the mean logits that they have as keys. With these held, it does not.",
)
INPUT = _claim(
    "input-loses-its-mean",
    "because the mean of what attention reads fades. With this mean held, it does not.",
)

STUDY = Study(
    name="dilution",
    title="What makes the rebound: twins that hold their logits, their words or their input",
    version=1,
    claims={
        LOGITS: partial(judge_hold, LOGITS, dilution.BOTH),
        PREFERENCE: partial(judge_hold, PREFERENCE, dilution.SHARED),
        LOSE: partial(judge_hold, LOSE, dilution.WORDS),
        INPUT: partial(judge_hold, INPUT, dilution.MEAN),
    },
    quick=DilutionConfig(),
    paper=DilutionConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 250, "seeds": 5, "seed": PAPER_SEED}, dropout=0.2,
        length=35, layers=(1, 2), rate=1e-4, valley=2_000, batches=10, refresh=50,
    ),
    run=run,
    draw=lambda run: [draw_twins(run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained. From the valley on, twins of them hold something in all layers as it "
        "was there: the size of logits through the mean query (shared), through the rest of queries (specific), or "
        "both; the mean logit of every word as key; the mean of what attention reads. What is held is measured on a "
        "fixed batch of training text every few steps, and pushed back. Controls are pushed as far elsewhere: queries "
        "along a random rotation, words permuted, inputs in a random direction. Compared is the share of the rise of "
        "entropy, from the valley to the end, that a twin does not have, in one layer and in the second of two. Quick "
        "scale trains small models on Python source, which hardly come back."
    ),
)  # fmt: skip
