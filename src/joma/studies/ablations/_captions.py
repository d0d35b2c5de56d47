"""Words for the figures of ablations, made from the record: which variants drop and rebound, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from joma.figures.reading import listing, number
from joma.measure.intervals import Comparison
from joma.recipes.language_curves import alive, curve, fall_and_rise, steps_of
from joma.runs import Run
from joma.studies.ablations._twins import Part, Quantity, by_layer, curves_of

PARTS: tuple[Part, Part] = ("drop", "rebound")


def curves_caption(run: Run, variants: Sequence[str], of: Quantity, text: str) -> str:
    """Which variants drop and rebound, their numbers, and what the panels are; text: what the networks read."""
    seeds, several = run.config["seeds"], int(run.config["layers"]) > 1
    sizes = "; ".join(_sizes(run, variant, of) for variant in variants)
    return (
        f"{_who_rebounds(run, variants, of)} Drop and rebound{' (means over layers)' if several else ''}: {sizes}. "
        f"Lines: mean of {seeds} seeds while training on {text}; bands: their range. The last panel shows the loss on "
        "held-out text; its dotted line is the loss of predicting each word by its frequency. Colours are the same in "
        "all panels; grey is the network that the others differ from in one thing."
    )


def _who_rebounds(run: Run, variants: Sequence[str], of: Quantity) -> str:
    """The finding: in which variants every layer drops and comes back beyond chance."""
    back = [variant for variant in variants if _rebounds(run, variant, of)]
    if not back:
        nobody = "Neither variant" if len(variants) == 2 else f"None of the {len(variants)} variants"
        return f"{nobody} shows a drop and a rebound of {of.brief} in every layer beyond chance (99 %)."
    what = f"{_raised(of.brief)} drops and rebounds in every layer, beyond chance (99 %), in"
    if len(back) == len(variants):
        return f"{what} {'both' if len(back) == 2 else f'all {len(back)}'} variants."
    others = listing(map(_quoted, (variant for variant in variants if variant not in back)))
    return f"{what} {len(back)} of {len(variants)} variants: {listing(map(_quoted, back))}; not in {others}."


def _rebounds(run: Run, variant: str, of: Quantity) -> bool:
    found = [one for part in PARTS for one in by_layer(run, variant, part, of, level=0.99).values()]
    return all(one.low > 0 for one in found)


def _sizes(run: Run, variant: str, of: Quantity) -> str:
    drop, back = (_mean(by_layer(run, variant, part, of)) for part in PARTS)
    if not np.isfinite(drop):
        return f"{_quoted(variant)} not measured"
    return f"{_quoted(variant)} {number(drop, '%' if of.relative else '')} and {of.told(back)}"


def _mean(found: Mapping[str, Comparison]) -> float:
    return float(np.mean([one.value for one in found.values()]))


def curves_alt(run: Run, groups: Mapping[str, Sequence[str]], of: Quantity) -> str:
    """Every line of every panel: where it begins, turns and ends."""
    layers = int(run.config["layers"])
    parts = [f"{len(groups) * (layers + 1)} panels."]
    for group, variants in groups.items():
        place = f"{group}: " if group else ""
        for layer in range(layers):
            lines = [_line(run, variant, curves_of(run, variant, of)[layer], of.unit) for variant in variants]
            parts.append(f"{place}{of.short} of layer {layer + 1}: {'; '.join(lines)}.")
        losses = {name: curve(run, name, "valid/loss")[0][alive(run, name)[0]] for name in variants}
        parts.append(f"{place}Validation loss: {'; '.join(_line(run, *each, 'nats') for each in losses.items())}.")
    return " ".join(parts)


def _line(run: Run, variant: str, curves: np.ndarray, unit: str) -> str:
    if not len(curves):
        return f"{_quoted(variant)} diverged"
    return f"{_quoted(variant)} {fall_and_rise(steps_of(run, variant), curves.mean(0), unit)}"


def summary_caption(run: Run, variants: Sequence[str], of: Quantity) -> str:
    """The largest and the smallest rebound, and what the bars are."""
    bars = {where: one.value for where, one in _bars(run, variants, "rebound", of) if np.isfinite(one.value)}
    finding = "No rebound was measured: too few seeds are left."
    if bars:
        most, least = max(bars, key=lambda bar: bars[bar]), min(bars, key=lambda bar: bars[bar])
        finding = (
            f"The rebound of {of.brief} is largest in {most} ({of.told(bars[most])}) and smallest in {least} "
            f"({of.told(bars[least])})."
        )
    return (
        f"{finding} Bars: means over {run.config['seeds']} seeds of the drop to the lowest point and of the rebound "
        "after it; thin lines: 95 % intervals. Each seed is read at the lowest point of the other seeds, so noise "
        "alone gives a rebound below zero as often as above."
    )


def summary_alt(run: Run, variants: Sequence[str], of: Quantity) -> str:
    """The length of every bar."""
    parts = [f"Two panels of bars, {len(variants)} variants each."]
    for part in PARTS:
        bars = [f"{where}: {_length(one, of)}" for where, one in _bars(run, variants, part, of)]
        parts.append(f"{part.capitalize()} of {of.brief}: {'; '.join(bars)}.")
    return " ".join(parts)


def _length(bar: Comparison, of: Quantity) -> str:
    if not np.isfinite(bar.half_width):
        return "not measured"
    return f"{number(bar.value, of.unit)} (± {number(bar.half_width, of.unit)})"


def _bars(run: Run, variants: Sequence[str], part: Part, of: Quantity) -> Iterator[tuple[str, Comparison]]:
    """Every bar with the name of its variant and layer."""
    for variant in variants:
        for layer, found in by_layer(run, variant, part, of).items():
            yield f"{_quoted(variant)}, {layer}", found


def _quoted(variant: str) -> str:
    """A name such as “no MLP” would be read as part of the sentence without its marks."""
    return f"“{variant}”"


def _raised(words: str) -> str:
    """With a capital letter, as at the start of a sentence."""
    return words[:1].upper() + words[1:]
