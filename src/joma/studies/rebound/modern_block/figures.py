"""Figures of `modern-block`: entropy over training by arm, and what each arm does to the recovery and to sinks."""

from collections.abc import Sequence

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band, share_errors
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, Axes, depth_colours, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.runs import Run
from joma.studies.rebound._cases import Case
from joma.studies.rebound.modern_block import record
from joma.studies.rebound.modern_block.run import MADE_ARMS, MUON, PLAIN, POSITIONS

COLOURS = {
    PLAIN: INK, "QK-norm": BLUE, "VO-norm": GREY, "QK-clip": ORANGE, "VO-clip": RED, "gate": GREEN,
    "MLP gate": PURPLE, "learned positions": BLUE, "no positions": ORANGE, "rotary": GREEN, "ALiBi": PURPLE,
    "off-by-one": BLUE, "learned sink": RED,
}  # fmt: skip
GROUPS = (
    (PLAIN, "QK-norm", "VO-norm", "QK-clip", "VO-clip"),
    (PLAIN, "gate", "MLP gate", "off-by-one", "learned sink", MUON),
    (PLAIN, *POSITIONS),
)
TITLES = ("queries and keys", "gates, sinks, Muon", "positions")


def draw(run: Run) -> list[Drawing]:
    """Curves, and by arm the recovery of each layer and the sink of the made language; where it is alone, that."""
    return [_draw_curves(run), _draw_arms(run)] if record.families(run) else [_draw_sinks(run)]


def _layers(run: Run) -> list[Case]:
    every = [base for family in record.families(run) for base in record.bases(run, family)]
    return [Case(base, (n,)) for base in every for n in range(len(record.path(run, base).entropy))]


def _arms(run: Run, group: Sequence[str]) -> list[str]:
    every = record.arms(run)
    muons = [arm for arm in every if arm.startswith(MUON)]
    return [arm for arm in every if arm.partition(" at ")[0] in group and arm not in muons[1:]]


def _colour(arm: str) -> str:
    return COLOURS.get(arm, ORANGE)


def _draw_curves(run: Run) -> Drawing:
    cases = _layers(run)
    groups = [(title, _arms(run, group)) for title, group in zip(TITLES, GROUPS, strict=True)]
    groups = [(title, arms) for title, arms in groups if len(arms) > 1]
    figure, axes = panels(len(cases), len(groups), width=3.1, height=2.5)
    for row, (title, arms) in enumerate(groups):
        for column, case in enumerate(cases):
            axis = axes[row * len(cases) + column]
            for arm in reversed(arms):
                _curve(axis, run, case, arm)
            axis.set(title=_short(case), ylabel="attention entropy (nats)")
            step_axis(axis)
        last, small = axes[(row + 1) * len(cases) - 1], "small"  # beside the row: curves fill the panels
        last.legend(title=title, fontsize=small, title_fontsize=small, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing("entropy-by-block", f"{_in_words(run)} {_lines(run)}", figure)


def _short(case: Case) -> str:
    return record.label(case).replace(" layers", "L").replace(" layer,", "L,").replace("layer ", "L")


def _curve(axis: Axes, run: Run, case: Case, arm: str) -> None:
    found = record.path(run, case.base, arm)
    rows = case.mean(found.entropy)
    rows = rows[np.isfinite(rows).all(1)]
    if len(rows):
        mean_and_band(axis, found.steps, rows, over=0, shade=0.1, color=_colour(arm), label=arm)


def _lines(run: Run) -> str:
    return (
        f"Lines: means of {run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])}; bands: their "
        "range. L1 and L2 are the layers of a network."
    )


def _in_words(run: Run) -> str:
    ways = []
    for case in _layers(run):
        ends = [f"{compare(record.recovery(run, case, arm)).value:+.2f} with {arm}" for arm in _shown_arms(run)]
        ways.append(f"{record.label(case)}: {', '.join(ends)}".replace("-0", "−0"))
    return f"From its own minimum to the end entropy rises, in nats, {'; '.join(ways)}."


def _shown_arms(run: Run) -> list[str]:
    return [arm for arm in (PLAIN, "QK-norm", "QK-clip", "gate") if arm in record.arms(run)]


def _draw_arms(run: Run) -> Drawing:
    arms, cases = record.arms(run), _layers(run)
    figure, axes = panels(2, width=4.6, height=0.9 + 0.12 * len(arms) * max(2, len(cases)) ** 0.7)
    place = np.arange(len(arms))
    for i, (case, colour) in enumerate(zip(cases, depth_colours(len(cases)), strict=True)):
        shift = (i - (len(cases) - 1) / 2) * 0.7 / len(cases)
        for row, arm in enumerate(arms):
            found = compare(record.recovery(run, case, arm))
            hollow = record.late(run, case, arm)
            axes[0].errorbar(
                found.value, place[row] + shift, xerr=found.half_width, fmt="o", ms=3.5, lw=1, color=colour,
                mfc="white" if hollow else colour, label=_short(case) if row == 0 else None,
            )  # fmt: skip
    axes[0].axvline(0, color=INK, lw=0.6)
    axes[0].set_yticks(place, arms)
    axes[0].invert_yaxis()
    axes[0].set(title="Recovery by block", xlabel="rise from the own minimum (nats)", ylabel="block")
    axes[0].legend(fontsize="x-small")
    _sinks(axes[1], run)
    caption = (
        f"{_in_words(run)} Points: means of {run.config['seeds']} seeds with intervals (95 %; 99 % over four or "
        f"fewer); hollow ones have their minimum after 60 % of the run. Right: {_masses(run)}"
    )
    return Drawing("recovery-by-block", caption, figure)


def _draw_sinks(run: Run) -> Drawing:
    figure, (axis,) = panels(width=4.6, height=2.4)
    _sinks(axis, run)
    masses = _masses(run)
    caption = f"{masses[0].upper()}{masses[1:]} Bars: means of {run.config['seeds']} seeds, with intervals."
    return Drawing("sinks-by-block", caption, figure)


def _sinks(axis: Axes, run: Run) -> None:
    masses = [compare(record.sink(run, arm)) for arm in MADE_ARMS]
    axis.barh(
        range(len(MADE_ARMS)), [100 * one.value for one in masses], xerr=100 * share_errors(masses),
        color=BLUE, label="trained",
    )  # fmt: skip
    level = 100 * record.uniform(int(run.config["made_length"]))
    axis.axvline(level, color=RED, lw=0.8, ls=":", label="uniform attention")
    axis.set_yticks(range(len(MADE_ARMS)), MADE_ARMS)
    axis.invert_yaxis()
    axis.set(title="Sinks in the made language", xlabel="attention on the first key (%)", ylabel="block")
    axis.legend(fontsize="x-small")


def _masses(run: Run) -> str:
    gate, plain = (100 * record.known(record.sink(run, arm)) for arm in ("gate", PLAIN))
    return (
        "attention of late queries on the first key of the made language, "
        f"{plain:.1f} % in the plain block and {gate:.1f} % with a gate after attention."
    )
