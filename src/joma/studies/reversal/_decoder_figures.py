"""The pictures of `reversal-decoder`: probabilities over training, what cures do, and logits between entities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound, share_errors
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, RED, depth_colours, panels
from joma.measure.intervals import compare
from joma.studies.reversal._decoder_conditions import BASE, Condition
from joma.studies.reversal._decoder_judging import NOBODY, layers_of, mean_of
from joma.studies.reversal._decoder_scores import Scores, asymmetry, blocks, excess

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-5
"""Probabilities below it are drawn at it."""
LINES = {"one way": BLUE, "reverse": RED, "shuffled reverse": GREEN, "unseen": CONTROL}
LABELS = {"one way": "A → B, trained", "reverse": "its reverse", "shuffled reverse": "shuffled reverses",
          "unseen": "unseen facts"}  # fmt: skip


def known_mean(values: Any, axis: int) -> Any:
    """The mean of what is not NaN; NaN where all is."""
    known = np.isfinite(values)
    count = known.sum(axis)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)


def over_steps(axis: Axes, steps: Any, values: Any, **style: Any) -> None:
    """The mean of (points, seeds) as a line on log axes; step 0 is drawn at 1."""
    axis.plot(np.maximum(steps, 1), np.maximum(known_mean(values, 1), FLOOR), "o-", ms=2.5, **style)


def log_axes(axis: Axes, steps: Any, title: str) -> None:
    """Probability against training steps, both on log axes."""
    axis.set_xlim(0.8, 1.4 * float(np.max(steps)))
    axis.set(xscale="log", yscale="log", ylim=(FLOOR / 2, 2), title=title, xlabel="training step (0 is drawn at 1)")
    axis.set_ylabel("probability of the answer")


def rows_of_panels(count: int) -> tuple[Figure, list[Axes], int]:
    """A figure of `count` panels or a few more, its axes, and how many stand in a row."""
    columns = 2 if count in (2, 4) else min(3, count)
    return *panels(columns, -(-count // columns), width=9.6 / columns, height=2.5), columns


def draw_training(scores: Scores) -> Drawing:
    """One panel per depth, one with frozen embeddings, one at the smallest rate."""
    first, slowest = scores.cured[0], f"rate {min(scores.run.config['slower']):g}"
    shown = {layers_of(depth): scores.base(depth) for depth in scores.depths[:4]}
    shown[f"{layers_of(first)}, frozen embeddings"] = scores.named("frozen", first)
    shown[f"{layers_of(first)}, {slowest}"] = scores.named(slowest, first)
    figure, axes, columns = rows_of_panels(len(shown))
    for index, (axis, (title, condition)) in enumerate(zip(axes, shown.items(), strict=False)):
        for kind, colour in LINES.items():
            over_steps(axis, scores.steps, scores.over_training(condition, kind), color=colour, label=LABELS[kind])
        bound(axis, scores.uniform, "uniform guess")
        log_axes(axis, scores.steps, title)
        if index % columns == columns - 1 or index == len(shown) - 1:
            label_lines(axis)
    for axis in axes[len(shown) :]:
        axis.remove()
    return Drawing("reversal-over-training", _training_caption(scores), figure, _training_alt(scores, shown))


def _training_caption(scores: Scores) -> str:
    deepest = scores.base(max(scores.depths))
    known, reverse = (mean_of(scores.probability(deepest, kind)) for kind in ("one way", "reverse"))
    if not np.isfinite(known):
        return NOBODY
    return (
        f"With {layers_of(deepest.layers)}, the trained direction has probability {number(known)} in the end and its "
        f"untrained reverse {number(reverse)}. The uniform guess is {number(scores.uniform)}. Green: the same "
        "questions with the answers of others. Grey: facts of entities that were never seen. Lines are means over "
        f"networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )


def _training_alt(scores: Scores, shown: dict[str, Condition]) -> str:
    parts = [f"{len(shown)} panels on log axes; the uniform guess is at {number(scores.uniform)}."]
    for title, condition in shown.items():
        told = [
            f"{LABELS[kind]} {course(scores.steps, known_mean(scores.over_training(condition, kind), 1), log=True)}"
            for kind in ("one way", "reverse")
        ]
        parts.append(f"{title}: {'; '.join(told)}.")
    return " ".join(parts)


def draw_cures(scores: Scores, names: Sequence[str]) -> Drawing:
    """Probability of the untrained reverse, and share of rivals it beats, one row per condition."""
    figure, (left, right) = panels(2, width=4.6, height=0.26 * len(names) * max(1, len(scores.cured) / 1.5) + 1.2)
    for place, (depth, colour) in enumerate(zip(scores.cured, depth_colours(len(scores.cured)), strict=True)):
        shift = (place - (len(scores.cured) - 1) / 2) * 0.36
        for axis, values in ((left, scores.probability), (right, scores.rank)):
            found = [compare(values(scores.named(name, depth), "reverse")) for name in names]
            rows = np.arange(len(names)) + shift
            means = [one.value for one in found]
            axis.barh(rows, means, height=0.7 / len(scores.cured), color=colour, alpha=0.75, label=layers_of(depth))
            axis.errorbar(means, rows, xerr=share_errors(found), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    left.axvline(scores.uniform, ls=":", lw=1, color=INK)
    right.axvline(0.5, ls=":", lw=1, color=INK)
    for axis in (left, right):
        axis.set_yticks(range(len(names)), names if axis is left else [""] * len(names))
        axis.set_ylabel("condition" if axis is left else "same conditions")
        axis.set_xlim(0, 1.05)
        axis.invert_yaxis()
    left.set(xlabel="probability of the untrained reverse", title="Dotted: uniform guess")
    right.set(xlabel="share of rival answers beaten by it", title="Dotted: chance")
    if len(scores.cured) > 1:
        right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Drawing("reversal-cures", _cures_caption(scores, names), figure, _cures_alt(scores, names))


def _cures_caption(scores: Scores, names: Sequence[str]) -> str:
    depth = scores.cured[0]
    best = max(names, key=lambda name: float(np.nan_to_num(_reverse(scores, name, depth), nan=-1.0)))
    if not np.isfinite(_reverse(scores, BASE, depth)):
        return NOBODY
    return (
        f"With {layers_of(depth)}, the reverse has probability {number(_reverse(scores, BASE, depth))} as published "
        f"and {number(_reverse(scores, best, depth))} with '{best}'. As published, the right reverse beats "
        f"{number(_beaten(scores, BASE, depth), '%')} of its rivals, which are the answers to other untrained reverses "
        "of the same relation; chance is 50 %. Bars are means over networks that learned, lines their 95 % "
        "intervals, cut at 0 and 100 %."
    )


def _reverse(scores: Scores, name: str, depth: int) -> float:
    return mean_of(scores.probability(scores.named(name, depth), "reverse"))


def _beaten(scores: Scores, name: str, depth: int) -> float:
    return mean_of(scores.rank(scores.named(name, depth)))


def _cures_alt(scores: Scores, names: Sequence[str]) -> str:
    parts = [f"Two panels of bars, one row for each of {len(names)} conditions."]
    for depth in scores.cured:
        told = [
            f"{name} {number(_reverse(scores, name, depth))} and {number(_beaten(scores, name, depth), '%')}"
            for name in names
            if np.isfinite(_reverse(scores, name, depth))
        ]
        parts.append(f"{layers_of(depth)}, probability and share of rivals beaten: {listing(told)}." if told else "")
    return " ".join(part for part in parts if part)


def draw_matrices(scores: Scores) -> Drawing:
    """Next-token logits and attention logits between the entities of one-way pairs, one network of one layer."""
    seed = int(np.argmax(scores.learned(scores.base(1))))
    figure, axes = panels(2, width=4.4, height=3.9)
    logits, attention = (scores.matrix(what, -1)[seed] for what in ("logits", "attention"))
    titles = ("Logit of the column's entity", "Attention logit on the column's entity")
    for axis, matrix, title in zip(axes, (logits, attention), titles, strict=True):
        halves = np.split(matrix, 2, axis=-1)
        _draw_blocks(axis, np.concatenate([half - half.mean(-1, keepdims=True) for half in halves], -1), title)
    return Drawing("reversal-logits", _matrix_caption(scores), figure, _matrix_alt(scores))


def _draw_blocks(axis: Axes, matrix: Any, title: str) -> None:
    """A diverging picture: white is the mean of a block's row."""
    matrix = np.nan_to_num(matrix)
    most = float(np.abs(matrix).max()) or 1.0
    axis.imshow(matrix, cmap="PuOr", vmin=-most, vmax=most)
    half = len(matrix) / 2
    for line in (axis.axhline, axis.axvline):
        line(half - 0.5, color="black", lw=0.8)
    places, names = [half / 2 - 0.5, 1.5 * half - 0.5], ["subjects", "answers"]
    axis.set_xticks(places, names)
    axis.set_yticks(places, names, rotation=90, va="center")
    axis.set(title=title, xlabel=f"entity (colours reach ± {number(most)})", ylabel="entity in the row")


def _matrix_numbers(scores: Scores) -> tuple[float, float, float, float]:
    """Excess logits in both directions; asymmetry of attention, trained and untrained."""
    ahead, back = (mean_of(excess(block)) for block in blocks(scores.matrix("logits", -1)))
    return ahead, back, *(mean_of(asymmetry(scores.matrix("attention", point))) for point in (-1, 0))  # type: ignore[return-value]


def _matrix_caption(scores: Scores) -> str:
    ahead, back, trained, untrained = _matrix_numbers(scores)
    if not np.isfinite(ahead):
        return NOBODY
    return (
        f"In the trained direction (top right) a partner's logit lies {number(ahead)} nats above its rivals, in the "
        f"reverse (bottom left) {number(back)} nats. The asymmetry of attention logits is {number(trained)}, that of "
        f"the untrained network {number(untrained)} (0: symmetric, 0.5: independent entries). Left: logits after the "
        "entity of the row with its relation, minus the mean of the block's row. Right: the entity of the row "
        "looks at that of the column. One network of one layer; the numbers are means over networks."
    )


def _matrix_alt(scores: Scores) -> str:
    ahead, back, *_ = _matrix_numbers(scores)
    size = scores.matrix("logits", -1).shape[-1]
    seen = f"Two square pictures of {size} by {size} entities, each cut into four blocks of subjects and answers."
    if not np.isfinite(ahead):
        return seen
    looks = [mean_of(excess(block)) for block in blocks(scores.matrix("attention", -1))]
    return (
        f"{seen} On the left the diagonal of the top right block stands out by {number(ahead)}, and that of the bottom "
        f"left block by {number(back)}. On the right these diagonals stand out by {number(looks[0])} and "
        f"{number(looks[1])}."
    )
