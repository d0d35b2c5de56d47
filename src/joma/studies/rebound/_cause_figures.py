"""Three figures of what brings attention back: the parts over training, the parts of both ways, and the twins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language_curves import fall_and_rise, steps_of
from joma.runs import Run
from joma.studies.rebound._cause_networks import BLOCK, FROZEN, TWO, base_name, twin_name
from joma.studies.rebound._cause_record import (
    KINDS,
    Case,
    Way,
    altered,
    altered_cases,
    bar,
    bases,
    changes,
    comes_back,
    depths,
    entropies,
    first_layers,
    higher_layers,
    parts,
    rises,
    told_parts,
    valley_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = dict(zip(KINDS, (BLUE, ORANGE, RED, GREEN, PURPLE, GREY), strict=True))
NAMES = {
    "own QK": "own queries and keys",
    "embeddings": "embeddings",
    "lower MLP": "MLPs below",
    "lower value and output": "values and outputs below",
    "lower norms": "norms below",
    "lower QK": "queries and keys below",
}
TWINS = {"": INK, "QK": BLUE, BLOCK: RED, "embeddings": ORANGE}
"""What is frozen, and its colour; first the network in which nothing is."""
WAYS: dict[Way, str] = {"down": "Way down: start to valley", "back": "Way back: valley to end"}
BAR = 0.8
"""The height of a bar; a case stands apart from the next by half of it."""


def draw_parts(run: Run) -> Drawing:
    """For one and two layers: the parts of the change, one above the other, since the start and since the valley."""
    cases = [Case(base_name(n), (layer,)) for n in depths(run) if n <= TWO for layer in range(n)]
    cases = cases or [Case(bases(run)[0], (0,))]
    figure, axes = panels(len(cases), 2, width=3.4, height=2.6)
    for row, since in enumerate(("start", "valley")):
        here = axes[row * len(cases) : (row + 1) * len(cases)]
        for axis, case in zip(here, cases, strict=True):
            _stack(axis, run, case, 0 if since == "start" else valley_of(run, case.base))
            axis.set_title(f"{_titled(case)}, since the {since}")
        _same_height(here)
        here[0].set_ylabel("change of entropy (nats)")
    seen = [kind for kind in KINDS if any(_moves(run, case, kind) for case in cases)]
    named = [("the whole change", INK), *((NAMES[kind], COLOURS[kind]) for kind in seen)]
    _legend(figure, named, columns=len(cases) + 1)
    return Drawing("parts-over-training", _parts_caption(run, cases), figure, _parts_alt(run, cases))


def _same_height(axes: Sequence[Axes]) -> None:
    ends = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _titled(case: Case) -> str:
    return case.name[0].upper() + case.name[1:]


def _moves(run: Run, case: Case, kind: str) -> bool:
    return bool(np.nan_to_num(parts(run, case.base)[kind][list(case.layers)]).any())


def _so_far(run: Run, case: Case, since: int = 0) -> dict[str, np.ndarray]:
    """By kind, its part of the change since a step, the mean over seeds, (points,); "" is the whole change."""
    values = {kind: case.mean(some) for kind, some in parts(run, case.base).items() if kind in KINDS}
    later = steps_of(run, case.base) > since
    return {
        kind: (np.nanmean(some, axis=0) * later).cumsum()[steps_of(run, case.base) >= since]
        for kind, some in (values | {"": case.mean(changes(run, case.base))}).items()
    }


def _stack(axis: Axes, run: Run, case: Case, since: int) -> None:
    steps = steps_of(run, case.base)
    steps = steps[steps >= since]
    up, down, so_far = np.zeros(len(steps)), np.zeros(len(steps)), _so_far(run, case, since)
    for kind in KINDS:
        for side, sign in ((up, 1), (down, -1)):
            part = np.maximum(sign * so_far[kind], 0.0) * sign
            axis.fill_between(steps, side, side + part, color=COLOURS[kind], alpha=0.75, lw=0)
            side += part
    axis.plot(steps, so_far[""], color=INK, lw=1.8)
    axis.axhline(0, color=INK, lw=0.6)
    if since == 0:
        axis.axvline(valley_of(run, case.base), color=INK, lw=0.9, ls=":")
    step_axis(axis)


def _legend(figure: Figure, named: Iterable[tuple[str, str]], columns: int) -> None:
    """One legend below all panels: names with their colours."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _parts_caption(run: Run, cases: Sequence[Case]) -> str:
    told = "; ".join(f"{case.name}: {_way_told(told_parts(run, case))}" for case in cases)
    return (
        f"{_main_told(run, cases)} On the way back, from step {valley_of(run, cases[0].base):,} on, in nats: "
        f"{told}. Coloured areas are the parts of the change of entropy by group of weights, since the start (above) "
        "and since the valley (below). Parts that raise entropy are stacked above zero, parts that lower it below "
        "zero. The black line is the whole change, the dotted line is the valley. Means of "
        f"{run.config['seeds']} seeds on held-out text of {called(run.config['corpus'])}."
    )


def _main_told(run: Run, cases: Sequence[Case]) -> str:
    """Through which group of weights entropy rises most, by case; of those that rise."""
    by_kind: dict[str, list[str]] = {}
    for case in cases:
        split = told_parts(run, case)
        if split.pop("change") > 0:
            by_kind.setdefault(max(split, key=split.__getitem__), []).append(case.name)
    if not by_kind:
        return "Entropy does not rise after the valley."
    told = [f"through {NAMES[kind]} in {listing(names)}" for kind, names in by_kind.items()]
    return f"After the valley entropy rises most {', and '.join(told)}."


def _way_told(told: Mapping[str, float]) -> str:
    """The change of a way and its parts, with signs."""
    some = [f"{NAMES[kind]} {_signed(value)}" for kind, value in told.items() if kind != "change"]
    return f"{_signed(told['change'])} ({', '.join(some)})"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.2f}" if np.isfinite(value) else "unknown"


def _parts_alt(run: Run, cases: Sequence[Case]) -> str:
    words = [f"Two rows of {len(cases)} panel{'s' if len(cases) > 1 else ''} of stacked areas."]
    for case in cases:
        ends = {kind: values[-1] for kind, values in _so_far(run, case).items() if kind and values.any()}
        lines = [f"{NAMES[kind]} end at {number(end, 'nats')} since the start" for kind, end in ends.items()]
        total = np.nanmean(entropies(run, case.base)[case.layers[0]], axis=0)
        words.append(f"{_titled(case)}: entropy {fall_and_rise(steps_of(run, case.base), total)}; {listing(lines)}.")
    return " ".join(words)


def shown_cases(run: Run) -> list[Case]:
    """All layers of one and two, of deeper networks those that come back, and second layers of altered networks."""
    few = [Case(base_name(n), (layer,)) for n in depths(run) if n <= TWO for layer in range(n)]
    many = [case for case in first_layers(run) + higher_layers(run) if case.base not in {one.base for one in few}]
    return (
        few
        + sorted(many, key=lambda case: (bases(run).index(case.base), case.layers))
        + [case for case in altered_cases(run) if case.layers == (TWO - 1,)]
    )


def draw_bars(run: Run) -> Drawing:
    """By case, the parts of both ways as bars with their intervals over seeds."""
    cases = shown_cases(run)
    kinds = {case: [kind for kind in KINDS if _moves(run, case, kind)] for case in cases}
    rows = sum(len(some) + 2 for some in kinds.values())
    figure, axes = panels(2, width=4.6, height=1.2 + 0.17 * rows)
    for axis, (way, title) in zip(axes, WAYS.items(), strict=True):
        _bars(axis, run, kinds, way)
        axis.set_title(title)
        axis.set_xlabel("part of the change of entropy (nats)")
    axes[1].set_yticklabels([])
    seen = [kind for kind in KINDS if any(kind in some for some in kinds.values())]
    _legend(figure, [("the whole change", INK), *((NAMES[kind], COLOURS[kind]) for kind in seen)], columns=3)
    return Drawing("parts-of-both-ways", _bars_caption(run, cases), figure, _bars_alt(run, cases))


def _bars(axis: Axes, run: Run, kinds: Mapping[Case, Sequence[str]], way: Way) -> None:
    place, ticks = 0.0, []
    for case, some in kinds.items():
        ticks.append(place + len(some) / 2)
        for kind in ("", *some):
            found = bar(run, case, kind, way)
            reach = found.half_width if np.isfinite(found.half_width) else 0.0
            axis.barh(place, found.value, BAR, color=COLOURS[kind] if kind else INK)
            axis.errorbar(found.value, place, xerr=reach, fmt="none", ecolor=INK, lw=0.9, capsize=1.5)
            place += 1
        place += 0.7
        axis.axhline(place - 0.85, color=INK, lw=0.4, alpha=0.4)
    axis.axvline(0, color=INK, lw=0.7)
    axis.set_ylim(place - 0.9, -0.75)
    axis.set_yticks(ticks, [_broken(case) for case in kinds])
    axis.tick_params(axis="y", length=0)


def _broken(case: Case) -> str:
    return case.name.replace(": ", ":\n")


def _bars_caption(run: Run, cases: Sequence[Case]) -> str:
    back = first_layers(run) + higher_layers(run)
    return (
        f"{_input_told(run, back)} Bars are the parts of the change of entropy, by group of weights, "
        f"means of {run.config['seeds']} seeds with 95 % intervals; left from the start to the valley, right from the "
        "valley to the end. Of networks with more than two layers the mean over those layers is shown that come back, "
        "or over all higher ones if only their mean does."
        + "".join(f" {_later_told(run, name)}" for name in altered(run))
    )


def _later_told(run: Run, name: str) -> str:
    """Where an altered network has another valley, and how many seeds it has."""
    seeds, valley = len(run.value(f"{name}/seeds")), valley_of(run, name)
    return f"{name}: {seeds} seeds, valley at step {valley:,}."


def _input_told(run: Run, cases: Sequence[Case]) -> str:
    """How much of the rebound came through own weights, by case."""
    if not cases:
        return "No layer comes back here."
    told = []
    for case in cases:
        split = told_parts(run, case)
        told.append(f"{_signed(split['own QK'])} of {_signed(split['change'])} in {case.name}")
    return f"On the way back, a layer's own queries and keys bring, in nats: {'; '.join(told)}."


def _bars_alt(run: Run, cases: Sequence[Case]) -> str:
    words = [f"Two panels of horizontal bars, {len(cases)} groups of them."]
    for case in cases:
        both = [f"on the way {way} {_way_told(told_parts(run, case, way))}" for way in WAYS]
        words.append(f"{_titled(case)}: {', '.join(both)}.")
    return " ".join(words)


def draw_twins(run: Run) -> Drawing:
    """How far entropy moves from the valley on, with nothing frozen and in the twins."""
    cases = [case for case in shown_cases(run) if case.base in bases(run)]
    columns = min(len(cases), 3)
    figure, axes = panels(columns, -(-len(cases) // columns), width=3.2, height=2.5 if columns > 1 else 3.2)
    for axis, case in zip(axes, cases, strict=False):
        for frozen, variant in _lines(run, case):
            mean_and_band(axis, *_since_the_valley(run, case, variant), over=0, color=TWINS[frozen])
        axis.axhline(0, color=INK, lw=0.6)
        axis.set_title(_titled(case))
        axis.set_ylabel("change of entropy (nats)")
        step_axis(axis)
    for axis in axes[len(cases) :]:
        axis.remove()
    seen = [frozen for frozen in TWINS if any(frozen in dict(_lines(run, case)) for case in cases)]
    named = [(f"{frozen or 'nothing'} frozen", TWINS[frozen]) for frozen in seen]
    _legend(figure, named, columns=(1, 2, 4)[columns - 1])
    return Drawing("twins-from-the-valley", _twins_caption(run, cases), figure, _twins_alt(run, cases))


def _since_the_valley(run: Run, case: Case, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and how far entropy has moved since the valley, (seeds, points)."""
    steps = steps_of(run, variant)
    later = steps >= valley_of(run, case.base)
    rows = case.mean(entropies(run, variant))[:, later]
    rows = rows[np.isfinite(rows).all(1)]
    return steps[later], rows - rows[:, :1]


def _lines(run: Run, case: Case) -> list[tuple[str, str]]:
    """What is frozen, and in which network, the one with nothing frozen last: it is drawn on top."""
    twins = [(frozen, twin_name(case.base, frozen)) for frozen in FROZEN]
    return [*((frozen, name) for frozen, name in twins if f"{name}/valid/entropy" in run), ("", case.base)]


def _twins_caption(run: Run, cases: Sequence[Case]) -> str:
    told = "; ".join(f"{case.name}: {', '.join(_rises_told(run, case))}" for case in cases)
    return (
        f"{_stopped_told(run, cases)} From the valley, step {valley_of(run, cases[0].base):,}, twins go on with one "
        f"group of weights frozen in all layers. Changes of entropy from there to the end, in nats: {told}. Lines: "
        f"means of {run.config['seeds']} seeds; bands: their range."
    )


def _stopped_told(run: Run, cases: Sequence[Case]) -> str:
    """In how many cases entropy comes back although something is frozen."""
    told = []
    for frozen in FROZEN:
        names = [(case, dict(_lines(run, case))[frozen]) for case in cases if frozen in dict(_lines(run, case))]
        back = sum(comes_back(case.mean(rises(run, name))) for case, name in names)
        told += [f"in {back} of {len(names)} panels with {frozen} frozen"] if names else []
    return f"Entropy comes back beyond chance {listing(told)}." if told else "Nothing was frozen."


def _rises_told(run: Run, case: Case) -> list[str]:
    rows = reversed(_lines(run, case))
    return [
        f"{_signed(compare(case.mean(rises(run, variant))).value)} with {frozen or 'nothing'} frozen"
        for frozen, variant in rows
    ]


def _twins_alt(run: Run, cases: Sequence[Case]) -> str:
    words = [f"{len(cases)} panel{'s' if len(cases) > 1 else ''} of curves: the change of entropy since the valley."]
    for case in cases:
        lines = []
        for frozen, variant in reversed(_lines(run, case)):
            steps, rows = _since_the_valley(run, case, variant)
            lines.append(f"with {frozen or 'nothing'} frozen it {course(steps, rows.mean(0), 'nats')}")
        words.append(f"{_titled(case)}: {'; '.join(lines)}.")
    return " ".join(words)
