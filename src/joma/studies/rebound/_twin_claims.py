"""What twins show that hold something from the valley on: the claim, its judge and the figure.

The bounds stood before any run at paper scale.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding
from joma.claims.guards import at_paper_scale
from joma.claims.verdicts import at_least, at_most, by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.style import INK, Axes, panels, step_axis
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import called
from joma.recipes.language.curves import alive, diverged, learned_nothing, steps_of
from joma.runs import Run
from joma.studies.rebound import _twins
from joma.studies.rebound._cases import MATTERS, Case
from joma.studies.rebound._twins import Twins, both_names, twin_name

NEEDED, ALLOWED, APART = 0.6, 0.2, 0.4
"""Shares of the rise: what a twin must remove at least to make the rebound, what its control may remove, and how far
apart the two must be."""
LOOSE = 0.1
"""What is held may be off by this share of its value at the valley, in the mean over points, or nothing was held."""
NOTHING = "nothing held"


def twin_claim(name: str, says: str) -> Claim:
    """That something makes the rebound."""
    says = f"After it was sparse, attention becomes dense again. Tested here: {says}"
    uses = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")
    return Claim(name, "JoMA Fig. 6", says, matters=APART, unit="%", uses=uses)


def judge_hold(twins: Twins, claim: Claim, held: str, run: Run) -> Finding:
    """The share of the rise that a twin removes beside what its control removes, seed by seed."""
    expected = (
        f"with {held} held from the valley on, at least {NEEDED:.0%} of the rise is gone, and less than {ALLOWED:.0%} "
        f"with a push of the same size elsewhere; the difference is at least {APART:.0%}, beyond chance"
    )
    cases = _twins.judged_layers(run)
    if finding := _tells_nothing(claim, expected, held, run, cases):
        return finding
    shares = {case: [_twins.removed(run, case, name) for name in both_names(case.base, held)] for case in cases}
    return by_effect(
        claim,
        {case.name: compare(*share) for case, share in shares.items()},
        expected=expected,
        what="share of the rise that is gone; control: pushed elsewhere",
        size=[at_least(f"{c.name}, share gone", compare(share[0]), NEEDED, "%") for c, share in shares.items()],
        controls=[
            at_most(f"{case.name}, share gone with the control", compare(share[1]), ALLOWED, "%")
            for case, share in shares.items()
        ],
        details=_details(twins, run, held, cases)
        | diverged(run, [name for c in cases for name in both_names(c.base, held)]),
    )


def _details(twins: Twins, run: Run, held: str, cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    found = {}
    for case in cases:
        rise = {"rise of the base (nats)": compare(case.mean(_twins.rises(run, case.base))).value}
        twin, control = both_names(case.base, held)
        off = {"held thing off by": _twins.misses(run, case, twin)}
        off["held thing off by, control"] = _twins.misses(run, case, control)
        gone = {f"gone with {name} held": share_removed(run, case, name) for name in twins.holds}
        found[f"{case.name}, valley to end"] = rise | off | gone
    return found


def share_removed(run: Run, case: Case, held: str) -> float:
    """The share of the rise that a twin lacks, over seeds."""
    return compare(_twins.removed(run, case, twin_name(case.base, held))).value


def _tells_nothing(claim: Claim, expected: str, held: str, run: Run, cases: Sequence[Case]) -> Finding | None:
    networks = [name for base in _twins.bases(run) for name in (base, *both_names(base, held))]
    for name in networks:
        if (left := int(alive(run, name).sum())) < FEWEST_SEEDS:
            reason = f"too many runs of {name} diverged: {left} are left"
            return not_run(claim, expected, reason, rate=run.config["rate"] / 3)
        if reason := learned_nothing(run, name):
            return not_run(claim, expected, reason, steps=2 * run.config["steps"])
    if not cases:
        return not_run(claim, expected, _nothing_rises(run), at_paper_scale(run.study))
    for case in cases:
        if not (off := _twins.misses(run, case, twin_name(case.base, held))) <= LOOSE:
            reason = f"{held} was not held in {case.name}: it was off by {off:.0%}, and {LOOSE:.0%} is allowed"
            return not_run(claim, expected, reason, refresh=max(1, run.config["refresh"] // 5))
    return None


def _nothing_rises(run: Run) -> str:
    each = {name: enumerate(_twins.rises(run, name), start=1) for name in _twins.bases(run)}
    found = {f"{name}, layer {n}": compare(rise) for name, rises in each.items() for n, rise in rises}
    most = max(found, key=lambda name: found[name].value)
    return (
        f"no layer that the claim is about comes back by {MATTERS:g} nats beyond chance; the largest rebound, from the "
        f"minimum to the end, is {found[most].value:.3f} nats ({found[most].low:.3f} to {found[most].high:.3f}), {most}"
    )


def draw_twins(twins: Twins, colours: Mapping[str, str], leads: str, run: Run) -> Drawing:
    """How far entropy moves from the valley on, by layer: above with something held, below the controls."""
    layers = [Case(name, (n,)) for name in _twins.bases(run) for n in range(len(_twins.rises(run, name)))]
    figure, axes = panels(len(layers), 2, width=3.2 if len(layers) > 1 else 4.6, height=2.5)
    for row, elsewhere in enumerate((False, True)):
        for axis, case in zip(axes[row * len(layers) :], layers, strict=False):
            _lines(axis, run, case, _shown(twins, run, case, elsewhere=elsewhere), colours)
            title = case.name[0].upper() + case.name[1:]
            axis.set(title=f"{title}, {'controls' if elsewhere else 'held'}", ylabel="change of entropy (nats)")
    for column in range(len(layers)):
        ends = [axis.get_ylim() for axis in (axes[column], axes[column + len(layers)])]
        for axis in (axes[column], axes[column + len(layers)]):
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    from matplotlib.patches import Patch

    drawn = {name for case in layers for name in _shown(twins, run, case, elsewhere=False)}
    named = {NOTHING: INK} | {name: colours[name] for name in twins.holds}
    handles = [Patch(color=colour, label=name) for name, colour in named.items() if name in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, 2 * len(layers) + 1))
    return Drawing("held-from-the-minimum", _caption(twins, leads, run, layers), figure)


def _shown(twins: Twins, run: Run, case: Case, *, elsewhere: bool) -> Mapping[str, str]:
    held = [name for name in twins.holds if not (elsewhere and name in twins.uncontrolled)]
    held = [name for name in held if not _slipped(run, case, name)]
    return {NOTHING: case.base} | {name: twin_name(case.base, name, elsewhere=elsewhere) for name in held}


def _slipped(run: Run, case: Case, held: str) -> float:
    off = _twins.misses(run, case, twin_name(case.base, held))
    return off if off > LOOSE else 0.0


def _lines(axis: Axes, run: Run, case: Case, shown: Mapping[str, str], colours: Mapping[str, str]) -> None:
    for held, variant in reversed(list(shown.items())):  # nothing held is drawn on top
        steps = steps_of(run, variant)
        later = steps >= int(run.config["valley"])
        rows = case.mean(_twins.entropies(run, variant))[:, later]
        rows = rows[np.isfinite(rows).all(1)]
        if len(rows):
            colour = colours.get(held, INK)
            mean_and_band(axis, steps[later], rows - rows[:, :1], over=0, shade=0.1, color=colour)
    axis.axhline(0, color="0.6", lw=0.6, label="no change")
    step_axis(axis)


def _caption(twins: Twins, leads: str, run: Run, layers: Sequence[Case]) -> str:
    ways = []
    for case in layers:
        ends = []
        for held, variant in _shown(twins, run, case, elsewhere=False).items():
            one = f"{_signed(run, case, variant)} with {held}{'' if held == NOTHING else ' held'}"
            if held not in (NOTHING, *twins.uncontrolled):
                one += f" ({_signed(run, case, twin_name(case.base, held, elsewhere=True))} pushed elsewhere)"
            ends.append(one)
        ways.append(f"{case.name}: {', '.join(ends)}")
    judged = {one: share_removed(run, one, leads) for one in _twins.judged_layers(run) if not _slipped(run, one, leads)}
    gone = " and ".join(f"{share:.0%} of the rise in {case.name}" for case, share in judged.items())
    loose = {f"{held} in {case.name}": _slipped(run, case, held) for held in twins.holds for case in layers}
    slipped = ", ".join(f"{name} (off by {off:.0%})" for name, off in loose.items() if off)
    finding = f"Holding {leads} as at the minimum removes {gone}." if gone else "No judged layer recovers here."
    return (
        f"{finding} Changes of entropy from the minimum, step {run.config['valley']:,}, to the end, in nats: "
        f"{'; '.join(ways)}. Above: branches with something held as at the minimum. Below: the same push elsewhere. "
        f"Lines: means of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])}; bands: their "
        f"range.{f' Not drawn, because it could not be held: {slipped}.' if slipped else ''}"
    )


def _signed(run: Run, case: Case, variant: str) -> str:
    value = compare(case.mean(_twins.rises(run, variant))).value
    return f"{'+' if value > 0 else '−'}{abs(value):.2f}" if np.isfinite(value) else "unknown"
