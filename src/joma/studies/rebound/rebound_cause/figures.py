"""Figures of what brings attention back: the parts over training, the parts of both ways, and the twins.

Twins with nothing but MLPs frozen have a figure of their own, by layer, where there are any.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.reading import listing
from joma.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, depth_colours, panels, step_axis
from joma.figures.types import Axes, Figure
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language.curves import steps_of
from joma.runs import Run
from joma.studies.rebound.rebound_cause import run as cause

COLOURS = dict(zip(cause.KINDS, (BLUE, ORANGE, RED, GREEN, PURPLE, GREY), strict=True))
CHANGE = "the whole change"
NAMES = {
    "own QK": "own queries and keys",
    "embeddings": "embeddings",
    "lower MLP": "MLPs below",
    "lower value and output": "values and outputs below",
    "lower norms": "norms below",
    "lower QK": "queries and keys below",
}
TWINS = {"": INK, "QK": BLUE, cause.BLOCK: RED, "embeddings": ORANGE, cause.MLP: GREEN}
"""What is frozen, and its colour; first the network in which nothing is."""
WAYS: dict[cause.Way, str] = {"down": "Way down: start to minimum", "back": "Way back: minimum to end"}
BAR = 0.8  # the height of a bar; a case stands off the next by half of it


def draw_parts(run: Run) -> Drawing:
    """For one and two layers: the parts of the change, one above the other, since the start and since the valley."""
    cases = _shallow(run) or [cause.Case(cause.bases(run)[0], (0,))]
    figure, axes = panels(len(cases), 2, width=3.4, height=2.6)
    for row, since in enumerate(("start", "minimum")):
        here = axes[row * len(cases) : (row + 1) * len(cases)]
        for axis, case in zip(here, cases, strict=True):
            _stack(axis, run, case, 0 if since == "start" else cause.valley_of(run, case.base))
            axis.set(title=f"{_titled(case)}, since the {since}", ylabel="change of entropy (nats)")
        ends = [axis.get_ylim() for axis in here]
        for axis in here:
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    _legend(figure, _kinds_shown(run, cases), columns=len(cases) + 1)
    by_kind: dict[str, list[str]] = {}  # through which group of weights entropy rises most, of cases in which it rises
    for case in cases:
        split = cause.mean_parts(run, case)
        if split.pop("change") > 0:
            by_kind.setdefault(max(split, key=split.__getitem__), []).append(case.name)
    most = ", and ".join(f"through {NAMES[kind]} in {listing(names)}" for kind, names in by_kind.items())
    finding = f"After the minimum entropy rises most {most}." if most else "Entropy does not rise after the minimum."
    ways = []  # the change of each way and its parts, with signs
    for case in cases:
        signed = {kind: _signed(value) for kind, value in cause.mean_parts(run, case).items()}
        some = [f"{NAMES[kind]} {value}" for kind, value in signed.items() if kind != "change"]
        ways.append(f"{case.name}: {signed['change']} ({', '.join(some)})")
    caption = (
        f"{finding} On the way back, from step {cause.valley_of(run, cases[0].base):,} on, in nats: {'; '.join(ways)}. "
        "Coloured areas are the parts of the change of entropy by group of weights, since the start (above) and since "
        "the minimum (below). Parts that raise entropy are stacked above zero, parts that lower it below zero. The "
        f"black line is the whole change, the dotted line is the minimum. Means of {run.config['seeds']} seeds on "
        f"held-out text of {called(run.config['corpus'])}."
    )
    return Drawing("parts-over-training", caption, figure)


def _shallow(run: Run) -> list[cause.Case]:
    return [cause.Case(cause.base_name(n), (layer,)) for n in cause.depths(run) if n <= cause.TWO for layer in range(n)]


def _titled(case: cause.Case) -> str:
    return case.name[0].upper() + case.name[1:]


def _moves(run: Run, case: cause.Case, kind: str) -> bool:
    return bool(np.nan_to_num(cause.parts(run, case.base)[kind][list(case.layers)]).any())


def _kinds_shown(run: Run, cases: Sequence[cause.Case]) -> list[tuple[str, str]]:
    seen = [kind for kind in cause.KINDS if any(_moves(run, case, kind) for case in cases)]
    return [(CHANGE, INK), *((NAMES[kind], COLOURS[kind]) for kind in seen)]


def _stack(axis: Axes, run: Run, case: cause.Case, since: int) -> None:
    steps = steps_of(run, case.base)
    shown = steps >= since

    def so_far(values: np.ndarray) -> np.ndarray:
        return np.asarray((np.nanmean(case.mean(values), axis=0) * (steps > since)).cumsum()[shown])

    up, down = np.zeros(shown.sum()), np.zeros(shown.sum())
    for kind in cause.KINDS:
        change = so_far(cause.parts(run, case.base)[kind])
        for side, sign in ((up, 1), (down, -1)):
            part = np.maximum(sign * change, 0.0) * sign
            axis.fill_between(steps[shown], side, side + part, color=COLOURS[kind], alpha=0.75, lw=0)
            side += part
    axis.plot(steps[shown], so_far(cause.changes(run, case.base)), color=INK, lw=1.8, label=CHANGE)
    axis.axhline(0, color=INK, lw=0.6, label="no change")
    if since == 0:
        axis.axvline(cause.valley_of(run, case.base), color=INK, lw=0.9, ls=":", label="the minimum")
    step_axis(axis)


def _legend(figure: Figure, named: Iterable[tuple[str, str]], columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.2f}" if np.isfinite(value) else "unknown"


def shown_cases(run: Run) -> list[cause.Case]:
    """All layers of one and two, of deeper networks those that come back, and second layers of altered networks."""
    few = _shallow(run)
    back = cause.first_layers(run) + cause.higher_layers(run)
    many = [case for case in back if case.base not in {one.base for one in few}]
    many.sort(key=lambda case: (cause.bases(run).index(case.base), case.layers))
    return few + many + [case for case in cause.altered_cases(run) if case.layers == (cause.TWO - 1,)]


def draw_bars(run: Run) -> Drawing:
    """By case, the parts of both ways as bars with their intervals over seeds."""
    cases = shown_cases(run)
    kinds = {case: [kind for kind in cause.KINDS if _moves(run, case, kind)] for case in cases}
    figure, axes = panels(2, width=4.6, height=1.2 + 0.17 * sum(len(some) + 2 for some in kinds.values()))
    for axis, (way, title) in zip(axes, WAYS.items(), strict=True):
        _bars(axis, run, kinds, way)
        axis.set(title=title, xlabel="part of the change of entropy (nats)")
    axes[1].tick_params(labelleft=False)
    _legend(figure, _kinds_shown(run, cases), columns=3)
    own = []  # how much of the rebound came through own weights
    for case in cause.first_layers(run) + cause.higher_layers(run):
        split = cause.mean_parts(run, case)
        own.append(f"{_signed(split['own QK'])} of {_signed(split['change'])} in {case.name}")
    off = [case.mean(cause.error_of_way(run, case.base, way)) for case in cases for way in WAYS]
    finding = f"On the way back, a layer's own queries and keys bring, in nats: {'; '.join(own)}."
    caption = (
        f"{finding if own else 'No layer recovers here.'} Bars are the parts of the change of entropy, by group of "
        f"weights, means of {run.config['seeds']} seeds with intervals (95 %; 99 % over four or fewer); left "
        "from the start to the minimum, right "
        "from the minimum to the end. Of networks with more than two layers the mean over those layers is shown that "
        "come back, or over all higher ones if only their mean does. Numerical errors of the parts of a case are at "
        f"most {max(compare(error).value for error in off):.2g} nats together."
    )
    for name in cause.altered(run):
        caption += f" {name}: {len(run.value(f'{name}/seeds'))} seeds, minimum at step {cause.valley_of(run, name):,}."
    return Drawing("parts-of-both-ways", caption, figure)


def _bars(axis: Axes, run: Run, kinds: Mapping[cause.Case, Sequence[str]], way: cause.Way) -> None:
    place, ticks = 0.0, []
    for case, some in kinds.items():
        ticks.append(place + len(some) / 2)
        split = cause.parts_of_way(run, case.base, way)
        for kind in ("", *some):
            found = compare(case.mean(split[kind] if kind else cause.change_of_way(run, case.base, way)))
            reach = found.half_width if np.isfinite(found.half_width) else 0.0
            axis.barh(place, found.value, BAR, color=COLOURS[kind] if kind else INK)
            axis.errorbar(found.value, place, xerr=reach, fmt="none", ecolor=INK, lw=0.9, capsize=1.5)
            place += 1
        place += 0.7
        axis.axhline(place - 0.85, color="0.6", lw=0.4)
    axis.axvline(0, color=INK, lw=0.7, label="no change")
    axis.set_ylim(place - 0.9, -0.75)
    axis.set_yticks(ticks, [case.name.replace(": ", ":\n") for case in kinds])
    axis.tick_params(axis="y", length=0)


def draw_twins(run: Run) -> Drawing:
    """How far entropy moves from the valley on, with nothing frozen and in the twins."""
    cases = [case for case in shown_cases(run) if case.base in cause.bases(run)]
    columns = min(len(cases), 3)
    figure, axes = panels(columns, -(-len(cases) // columns), width=3.2, height=2.5 if columns > 1 else 3.2)
    networks = {}  # by case and by what is frozen, the name of the network: first the one in which nothing is
    for case in cases:
        frozen_there = [frozen for frozen in reversed(cause.frozen_in(run, case.base)) if frozen in TWINS]
        networks[case] = {"": case.base} | {frozen: cause.twin_name(case.base, frozen) for frozen in frozen_there}
    for axis, (case, variants) in zip(axes, networks.items(), strict=False):
        for frozen, variant in reversed(variants.items()):  # nothing frozen is drawn on top
            steps = steps_of(run, variant)
            later = steps >= cause.valley_of(run, case.base)
            rows = case.mean(cause.entropies(run, variant))[:, later]
            rows = rows[np.isfinite(rows).all(1)]
            rows = rows - rows[:, :1]
            mean_and_band(axis, steps[later], rows, over=0, color=TWINS[frozen], label=_frozen(frozen))
        axis.axhline(0, color=INK, lw=0.6, label="no change")
        axis.set(title=_titled(case), ylabel="change of entropy (nats)")
        step_axis(axis)
    for axis in axes[len(cases) :]:
        axis.remove()
    seen = [frozen for frozen in TWINS if any(frozen in variants for variants in networks.values())]
    _legend(figure, [(_frozen(name), TWINS[name]) for name in seen], columns=(1, 2, 3)[columns - 1])
    return Drawing("frozen-from-the-minimum", _twins_caption(run, networks), figure)


def _frozen(name: str) -> str:
    return f"{name or 'nothing'} frozen"


def _twins_caption(run: Run, networks: Mapping[cause.Case, Mapping[str, str]]) -> str:
    back, rose = [], []
    for frozen in (*cause.FROZEN, cause.MLP):  # in how many cases entropy comes back although this is frozen
        chosen = [case.mean(cause.rises(run, names[frozen])) for case, names in networks.items() if frozen in names]
        count = sum(cause.comes_back(rise) for rise in chosen)
        back += [f"in {count} of {len(chosen)} panels with {_frozen(frozen)}"] if chosen else []
    for case, names in networks.items():
        ends = {frozen: compare(case.mean(cause.rises(run, name))).value for frozen, name in names.items()}
        rose.append(f"{case.name}: {', '.join(f'{_signed(end)} with {_frozen(name)}' for name, end in ends.items())}")
    finding = f"Entropy recovers beyond chance {listing(back)}." if back else "Nothing was frozen."
    valley = cause.valley_of(run, next(iter(networks)).base)
    return (
        f"{finding} From the minimum, step {valley:,}, branches train with one "
        f"group of weights frozen in all layers. Changes of entropy from there to the end, in nats: {'; '.join(rose)}. "
        f"Lines: means of {run.config['seeds']} seeds; bands: their range."
    )


def with_mlp_twins(run: Run) -> list[str]:
    """The bases that have twins with nothing but MLPs frozen."""
    return [base for base in cause.bases(run) if cause.MLP in cause.frozen_in(run, base)]


def draw_mlp_twins(run: Run) -> Drawing:
    """By layer, how far entropy rises with the MLP of one layer frozen, with all of them, with queries and keys."""
    bases = with_mlp_twins(run)
    figure, axes = panels(len(bases), width=4.2, height=3.0)
    colours = _mlp_colours(run, bases)
    for axis, base in zip(axes, bases, strict=True):
        for frozen in ("", *(frozen for frozen in colours if frozen in cause.frozen_in(run, base))):
            rises = cause.rises(run, cause.twin_name(base, frozen) if frozen else base)
            _by_layer(axis, rises, color=colours[frozen], label=_frozen(frozen), alone=frozen not in TWINS)
        axis.axhline(0, color=INK, lw=0.6, label="no change")
        axis.set(title=base, xlabel="layer", ylabel="change of entropy (nats)")
    _legend(figure, [(_frozen(frozen), colour) for frozen, colour in colours.items()], columns=3)
    left = []  # of higher layers that come back
    for case in cause.higher_layers(run):
        if case.base in bases:
            names = (cause.twin_name(case.base, cause.MLP), case.base)
            twin, base = (_signed(compare(case.mean(cause.rises(run, name))).value) for name in names)
            left.append(f"{twin} nats instead of {base} in {case.name}")
    finding = f"With all MLPs frozen from the minimum on, entropy changes by {listing(left)}." if left else ""
    caption = (
        f"{finding or 'No higher layer recovers here.'} By layer, the change of entropy from the minimum to the end, "
        "with nothing frozen and in branches with the MLP of one layer, all MLPs, or all queries and keys frozen. "
        f"Points: means of {run.config['seeds']} seeds; bands, not drawn for single layers: their range."
    )
    return Drawing("mlps-frozen", caption, figure)


def _mlp_colours(run: Run, bases: Sequence[str]) -> dict[str, str]:
    alone = max(([one for one in cause.frozen_in(run, base) if one not in TWINS] for base in bases), key=len)
    single = dict(zip(alone, depth_colours(len(alone) + 1)[1:], strict=True))  # the first is near that of QK
    return {frozen: TWINS[frozen] for frozen in ("", "QK", cause.MLP)} | single


def _by_layer(axis: Axes, rises: np.ndarray, *, alone: bool, **style: str) -> None:
    rows, layers = rises.T[np.isfinite(rises).all(0)], np.arange(1, len(rises) + 1)
    shade, line = (0.0, ":") if alone else (0.2, "-")
    mean_and_band(axis, layers, rows, over=0, shade=shade, ls=line, marker="o", ms=4, **style)
    axis.set_xticks(layers, [str(layer) for layer in layers])
