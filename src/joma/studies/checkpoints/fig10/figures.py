"""The pictures of Figure 10: how many patterns a neuron holds beside controls, and a few neurons' contexts to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, panels
from joma.runs import Run
from joma.studies.checkpoints._seeds import networks, prefix
from joma.studies.checkpoints.fig10.run import NETWORKS, SPAN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 98  # characters in a printed line
COLOURS = {"trained": BLUE, "untrained": CONTROL, "shuffled contexts": ORANGE}
MOST = 5  # patterns of a neuron: those with more are counted with it


def draw(run: Run) -> list[Drawing]:
    """The scores beside their controls, and a few neurons' contexts to read."""
    drawings = [_draw_scores(run)]
    if len(run.value("shown/neuron")):
        drawings.append(_draw_contexts(run))
    return drawings


def _draw_scores(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    z = {network: _all(run, f"{network}/z") for network in NETWORKS}
    patterns = {**{n: _all(run, f"{n}/patterns") for n in NETWORKS}}
    patterns["shuffled contexts"] = _all(run, "trained/shuffled_patterns")
    _draw_likeness(left, z)
    _draw_patterns(right, patterns)
    return Drawing("unrelated-contexts", _caption(run, patterns), figure)


def _all(run: Run, series: str) -> Any:
    """Of the neurons of all networks."""
    return np.concatenate([run.value(prefix(number) + series) for number in range(networks(run))])


def _draw_likeness(axis: Axes, z: Mapping[str, Any]) -> None:
    both = np.concatenate(list(z.values()))
    bins = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 40)
    for network, values in z.items():
        share = 100 * np.histogram(values, bins)[0] / len(values)
        axis.step(bins, [*share, 0.0], where="post", color=COLOURS[network], label=network)
    axis.axvline(0, ls="--", lw=1, color=ORANGE, label="shuffled\ncontexts: 0")
    axis.set(xlabel="z of 1 − mean cosine between contexts", ylabel="neurons (%)", ylim=(0, None))
    axis.set_title("A neuron's contexts are related: z < 0")
    label_lines(axis)


def _draw_patterns(axis: Axes, patterns: Mapping[str, Any]) -> None:
    most = min(max(int(values.max()) for values in patterns.values()), MOST)
    for i, (name, values) in enumerate(patterns.items()):
        height = [100 * float((np.minimum(values, most) == n).mean()) for n in range(most + 1)]
        axis.bar(np.arange(most + 1) + 0.27 * (i - 1), height, 0.25, color=COLOURS[name], label=name)
        end_label(axis, name.replace(" ", "\n"), color=COLOURS[name], lw=4)
    axis.set_xticks(range(most + 1), [f"{n}+" if n == most == MOST else str(n) for n in range(most + 1)])
    axis.set(xlabel="unrelated patterns of one neuron", ylabel="neurons (%)")
    axis.set_title("Number of patterns per neuron")
    label_lines(axis)


def _caption(run: Run, patterns: Mapping[str, Any]) -> str:
    """The share of neurons with two patterns or more beside its controls; then what is drawn."""
    two = {name: number(float((values >= 2).mean()), "%") for name, values in patterns.items()}
    count = networks(run)
    return (
        f"{two['trained']} of the neurons hold two or more unrelated patterns after training. The share is "
        f"{two['untrained']} before training and {two['shuffled contexts']} with contexts shuffled between neurons. "
        "Left: how alike the strongest contexts of a neuron are, in standard deviations from shuffled contexts. "
        f"Right: groups of at least three related contexts per neuron. All neurons of {count} "
        f"network{'s' if count > 1 else ''} are counted."
    )


def _draw_contexts(run: Run) -> Drawing:
    neurons, groups, weight = (run.value(f"shown/{name}") for name in ("neuron", "group", "weight"))
    words = json.loads(run.value("shown/words").tobytes().decode())
    lines = len(neurons) * (groups.shape[1] + 1.5) - 0.5
    figure, (axis,) = panels(width=7.4, height=0.17 * lines + 0.1)
    axis.set(xlim=(-4, COLUMNS + 1), ylim=(lines - 0.2, -0.8))
    axis.axis("off")
    row = 0.0
    for i, (layer, neuron) in enumerate(neurons):
        axis.text(-4, row, f"Layer {layer + 1}, neuron {neuron}", fontsize=8.5, fontweight="bold", va="center")
        row += 1
        for j, group in enumerate(groups[i]):
            axis.text(-3.5, row, "AB"[group], fontsize=8.5, va="center", color=(BLUE, GREEN)[group])
            _write_context(axis, row, words[i][j], weight[i, j][SPAN - len(words[i][j]) :])
            row += 1
        row += 0.5
    caption = (
        f"One neuron fires on unrelated contexts: here are {len(neurons)} neurons of the first trained network, each "
        "with contexts from two of its patterns, A and B. The last token, underlined, is the query. The three tokens "
        "that it attends to most are bold."
    )
    return Drawing("pattern-superposition", caption, figure, _contexts_alt(neurons, groups, words))


def _contexts_alt(neurons: Any, groups: Any, words: Any) -> str:
    """For every neuron the queries of its contexts."""
    parts = []
    for (layer, neuron), own, contexts in zip(neurons, groups, words, strict=True):
        ends = [_query(context[-1]) for context in contexts]
        of = [" and ".join(end for end, g in zip(ends, own, strict=True) if g == group) for group in range(2)]
        parts.append(f"Layer {layer + 1}, neuron {neuron}: pattern A ends with {of[0]}; pattern B ends with {of[1]}.")
    return f"Lines of source text for {len(neurons)} neurons. {' '.join(parts)}"


def _query(word: str) -> str:
    """A token in quotation marks: it may be a word of the sentence, too."""
    return f"“{word.strip()}”" if word.strip() else "a space or a line's end"


def _write_context(axis: Axes, row: float, words: list[str], weight: Any) -> None:
    """One line of text that ends with the query, cut at its left to the width of the figure."""
    bold = {i for i in np.argsort(-weight)[:3] if weight[i] > 0}
    shown = [_visible(word) for word in words]
    while sum(map(len, shown)) > COLUMNS:
        shown = shown[1:]
    column = 0
    for i, word in enumerate(shown, start=len(words) - len(shown)):
        style: dict[str, Any] = {"fontweight": "bold"} if i in bold else {"alpha": 0.75}
        text = axis.text(column, row, word, family="monospace", fontsize=8, va="center", parse_math=False, **style)
        if i == len(words) - 1:
            axis.plot([column, column + len(word)], [row + 0.45] * 2, lw=1, color=text.get_color())
        column += len(word)


def _visible(word: str) -> str:
    """A token on one line: a mark for a line's end, one column for anything that does not print.

    Spaces do not break: a picture's text would lose them at its ends.
    """
    shown = "".join("↵" if c == "\n" else c if c.isprintable() else "·" for c in word.replace("    ", " "))
    return shown.replace(" ", "\N{NO-BREAK SPACE}")
