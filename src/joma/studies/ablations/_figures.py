"""Two figures for every ablation: curves of all variants, layer by layer, and their drops and rebounds side by side."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, Axes, depth_colours, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language.curves import alive, curve, steps_of
from joma.runs import Run
from joma.studies.ablations._twins import ENTROPY, Part, Quantity, by_layer, curves_of

COLOURS = (CONTROL, BLUE, ORANGE, GREEN, PURPLE)  # the first variant is the one that the others are twins of
PARTS: tuple[Part, Part] = ("drop", "rebound")


def draws(variants: Collection[str], name: str) -> Callable[[Run], list[Drawing]]:
    """A study's `draw`: the curves of all variants, and their drops and rebounds."""

    def draw(run: Run) -> list[Drawing]:
        return [draw_curves(run, {"": list(variants)}, name), draw_summary(run, list(variants), f"{name}-summary")]

    return draw


def draw_curves(run: Run, groups: Mapping[str, Sequence[str]], name: str, of: Quantity = ENTROPY) -> Drawing:
    """One row per group of variants that read the same text, named where there are several: layers, then the loss."""
    layers = int(run.config["layers"])
    figure, axes = panels(layers + 1, len(groups), width=2.6 + 1.2 / (layers + 1), height=2.5)
    for row, (group, variants) in enumerate(groups.items()):
        here = axes[row * (layers + 1) : (row + 1) * (layers + 1)]
        for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):  # the first on top
            for axis, curves in zip(here, curves_of(run, variant, of), strict=False):
                _band(axis, steps_of(run, variant), curves, colour, variant)
            losses = curve(run, variant, "valid/loss")[0][alive(run, variant)[0]]
            _band(here[-1], steps_of(run, variant), losses, colour, variant)
        for layer, axis in enumerate(here[:-1]):
            axis.set_title(f"{of.short}, layer {layer + 1}" + (f" ({group})" if group else ""))
            axis.sharey(here[0])
            axis.set_ylabel(of.axis)
            step_axis(axis)
        frequencies = float(run.value(f"{variants[0]}/loss by frequency"))
        here[-1].axhline(frequencies, color=INK, ls=":", lw=1, label="word frequency\nalone")
        lowest = min(float(np.nanmin(curve(run, variant, "valid/loss"))) for variant in variants)
        if lowest < frequencies:  # the fall from ln(vocabulary) would flatten all that follows
            spare = 0.1 * (frequencies - lowest)
            here[-1].set_ylim(lowest - spare, frequencies + spare)
        here[-1].set_ylabel("validation loss (nats)")
        step_axis(here[-1])
        here[-1].set_title("Validation loss")
        label_lines(here[-1])
    every = [variant for variants in groups.values() for variant in variants]
    return Drawing(name, _curves_caption(run, every, of), figure)


def _band(axis: Axes, steps: np.ndarray, curves: np.ndarray, colour: str, label: str) -> None:
    """Mean and range of (seeds, points); of a variant whose seeds all diverged only the name is shown."""
    if not len(curves):
        axis.plot([], [], color=colour, label=f"{label} (diverged)")
        return
    axis.plot(steps, curves.mean(0), color=colour, label=label)
    axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.18, lw=0)


def draw_summary(run: Run, variants: Sequence[str], name: str, of: Quantity = ENTROPY) -> Drawing:
    """Bars of drop and rebound by variant and layer, with intervals over seeds."""
    layers = int(run.config["layers"])
    figure, axes = panels(2, width=4.3, height=0.8 + (0.1 + 0.17 * layers) * len(variants))
    places = [[row * (layers + 0.6) + layer for layer in range(layers)] for row in range(len(variants))]
    for axis, part in zip(axes, PARTS, strict=True):
        for variant, rows in zip(variants, places, strict=True):
            bars = list(by_layer(run, variant, part, of).values())
            values = [bar.value for bar in bars]
            reach = [bar.half_width if np.isfinite(bar.half_width) else 0.0 for bar in bars]
            axis.barh(rows, values, 0.85, color=depth_colours(layers), label=variant)
            axis.errorbar(values, rows, xerr=reach, fmt="none", ecolor=INK, lw=1, capsize=2)
        axis.axvline(0, color=INK, lw=0.7)
        axis.invert_yaxis()
        axis.set_title(f"{part.capitalize()} of {of.short.lower()}")
        axis.set_xlabel(f"{part} ({of.scale})")
    ticks = [place for rows in places for place in rows]
    names = [f"{v},  layer 1" if i == 0 else f"layer {i + 1}" for v in variants for i in range(layers)]
    axes[0].set_yticks(ticks, names)
    axes[1].set_yticks(ticks, [""] * len(ticks))
    return Drawing(name, _summary_caption(run, variants, of), figure)


def _curves_caption(run: Run, variants: Sequence[str], of: Quantity) -> str:
    seeds, several, text = run.config["seeds"], int(run.config["layers"]) > 1, called(run.config["corpus"])
    sizes = "; ".join(_sizes(run, variant, of) for variant in variants)
    return (
        f"{_who_rebounds(run, variants, of)} Drop and rebound{' (means over layers)' if several else ''}: {sizes}. "
        f"Lines: mean of {seeds} seeds while training on {text}; bands: their range. The last panel shows the loss on "
        "held-out text; its dotted line is the loss of predicting each word by its frequency. Colours are the same in "
        "all panels; grey is the network that the others differ from in one thing."
    )


def _who_rebounds(run: Run, variants: Sequence[str], of: Quantity) -> str:
    found = {v: [by_layer(run, v, part, of, level=0.99).values() for part in PARTS] for v in variants}
    back = [v for v, parts in found.items() if all(one.low > 0 for layers in parts for one in layers)]
    if not back:
        nobody = "Neither variant" if len(variants) == 2 else f"None of the {len(variants)} variants"
        return f"{nobody} shows a drop and a rebound of {of.brief} in every layer beyond chance (99 %)."
    what = f"{of.brief[:1].upper()}{of.brief[1:]} drops and rebounds in every layer, beyond chance (99 %), in"
    if len(back) == len(variants):
        return f"{what} {'both' if len(back) == 2 else f'all {len(back)}'} variants."
    others = listing(map(_quoted, (variant for variant in variants if variant not in back)))
    return f"{what} {len(back)} of {len(variants)} variants: {listing(map(_quoted, back))}; not in {others}."


def _sizes(run: Run, variant: str, of: Quantity) -> str:
    found = [by_layer(run, variant, part, of).values() for part in PARTS]
    drop, back = (float(np.mean([one.value for one in layers])) for layers in found)
    if not np.isfinite(drop):
        return f"{_quoted(variant)} not measured"
    return f"{_quoted(variant)} {number(drop, '%' if of.relative else '')} and {of.show(back)}"


def _summary_caption(run: Run, variants: Sequence[str], of: Quantity) -> str:
    every = {
        f"{_quoted(variant)}, {layer}": found.value
        for variant in variants
        for layer, found in by_layer(run, variant, "rebound", of).items()
    }
    bars = {where: value for where, value in every.items() if np.isfinite(value)}
    finding = "No rebound was measured: too few seeds are left."
    if bars:
        most, least = max(bars, key=lambda bar: bars[bar]), min(bars, key=lambda bar: bars[bar])
        finding = (
            f"The rebound of {of.brief} is largest in {most} ({of.show(bars[most])}) and smallest in {least} "
            f"({of.show(bars[least])})."
        )
    return (
        f"{finding} Bars: means over {run.config['seeds']} seeds of the drop to the lowest point and of the rebound "
        "after it; thin lines: intervals (95 %; 99 % over four seeds or fewer). Each seed is read at the lowest "
        "point of the other seeds, so noise "
        "alone gives a rebound below zero as often as above."
    )


def _quoted(variant: str) -> str:
    """A name such as “no MLP” would be read as part of the sentence without its marks."""
    return f"“{variant}”"
