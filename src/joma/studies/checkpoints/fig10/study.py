"""The study `fig10`: its claims with their judge, its sizes and its pictures."""

import json
from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.verdicts import by_effect, not_run
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, panels
from joma.figures.types import Axes
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, networks, prefix
from joma.studies.checkpoints.fig10.run import NETWORKS, SPAN, Fig10Config, run

MARGIN = 0.05  # of all neurons: the smallest difference from a control that matters

_claim = partial(Claim, matters=MARGIN, unit="%", ceiling=1.0)
UNRELATED = _claim(
    "neurons-hold-unrelated-patterns",
    "JoMA Fig. 10",
    "One MLP neuron is switched on by several combinations of tokens that are unrelated to each other.",
)
LEARNED = _claim(
    "superposition-is-learned",
    "JoMA App. A.4",
    "Training makes a neuron hold several queries with their patterns.",
    uses=("fig10/neurons-hold-unrelated-patterns",),
)


def _more_neurons(claim: Claim, case: str, control: str, than: str, run: Run) -> Finding:
    """The share of neurons with two patterns or more, network by network, compared with the same in a control."""
    kept, expected = learned(run, "losses"), f"more neurons with two or more groups of related contexts than {than}"
    if not kept:
        return not_run(claim, expected, UNLEARNED, "joma verify fig10")

    def shares(series: str) -> list[float]:
        return [float((run.value(prefix(number) + series) >= 2).mean()) for number in kept]

    def alike(network: str) -> float:
        return -float(np.median([np.median(run.value(f"{prefix(number)}{network}/z")) for number in kept]))

    return by_effect(
        claim,
        {f"beside {case}": compare(shares("trained/patterns"), shares(control))},
        what="share of neurons that hold two or more patterns",
        expected=expected,
        details={
            "neurons": {"of each network": float(run.value("trained/patterns").size)},
            "contexts more alike than shuffled contexts, in standard deviations": {n: alike(n) for n in NETWORKS},
            **left_out(run, kept),
        },
    )


COLUMNS = 98  # characters in a printed line
COLOURS = {"trained": BLUE, "untrained": CONTROL, "shuffled contexts": ORANGE}
MOST = 5  # patterns of a neuron: those with more are counted with it


def _draw_scores(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    count = networks(run)

    def every(series: str) -> Any:
        return np.concatenate([run.value(prefix(number) + series) for number in range(count)])

    z = {network: every(f"{network}/z") for network in NETWORKS}
    both = np.concatenate(list(z.values()))
    bins = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 40)
    for network, values in z.items():
        share = 100 * np.histogram(values, bins)[0] / len(values)
        left.step(bins, [*share, 0.0], where="post", color=COLOURS[network], label=network)
    left.axvline(0, ls="--", lw=1, color=ORANGE, label="shuffled\ncontexts: 0")
    left.set(xlabel="z of 1 − mean cosine between contexts", ylabel="neurons (%)", ylim=(0, None))
    left.set_title("A neuron's contexts are related: z < 0")
    patterns = {n: every(f"{n}/patterns") for n in NETWORKS}
    patterns["shuffled contexts"] = every("trained/shuffled_patterns")
    most = min(max(int(values.max()) for values in patterns.values()), MOST)
    for i, (name, values) in enumerate(patterns.items()):
        height = [100 * float((np.minimum(values, most) == n).mean()) for n in range(most + 1)]
        right.bar(np.arange(most + 1) + 0.27 * (i - 1), height, 0.25, color=COLOURS[name], label=name)
        end_label(right, name.replace(" ", "\n"), color=COLOURS[name], lw=4)
    right.set_xticks(range(most + 1), [f"{n}+" if n == most == MOST else str(n) for n in range(most + 1)])
    right.set(xlabel="unrelated patterns of one neuron", ylabel="neurons (%)", title="Number of patterns per neuron")
    for axis in (left, right):
        label_lines(axis)
    two = {name: number(float((values >= 2).mean()), "%") for name, values in patterns.items()}
    caption = (
        f"{two['trained']} of the neurons hold two or more unrelated patterns after training. The share is "
        f"{two['untrained']} before training and {two['shuffled contexts']} with contexts shuffled between neurons. "
        "Left: how alike the strongest contexts of a neuron are, in standard deviations from shuffled contexts. "
        f"Right: groups of at least three related contexts per neuron. All neurons of {count} "
        f"network{'s' if count > 1 else ''} are counted."
    )
    return Drawing("unrelated-contexts", caption, figure)


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
    parts = []
    for (layer, neuron), own, contexts in zip(neurons, groups, words, strict=True):
        # in quotation marks: a token may be a word of the sentence, too
        ends = [f"“{w}”" if (w := context[-1].strip()) else "a space or a line's end" for context in contexts]
        of = [" and ".join(end for end, g in zip(ends, own, strict=True) if g == group) for group in range(2)]
        parts.append(f"Layer {layer + 1}, neuron {neuron}: pattern A ends with {of[0]}; pattern B ends with {of[1]}.")
    return f"Lines of source text for {len(neurons)} neurons. {' '.join(parts)}"


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


STUDY = Study(
    name="fig10",
    title="Figure 10: pattern superposition in MLP neurons",
    version=2,
    claims={
        claim: partial(_more_neurons, claim, case, control, than)
        for claim, case, control, than in (
            (UNRELATED, "contexts shuffled between neurons", "trained/shuffled_patterns", "with shuffled contexts"),
            (LEARNED, "the untrained network", "untrained/patterns", "before training"),
        )
    },
    quick=Fig10Config(),
    paper=Fig10Config(
        characters=10_000_000, texts=3000, length=128, batch=64, steps=2000, width=256, layers=4, vocabulary=8000,
        device="cuda", seeds=8,
    ),
    run=run,
    draw=lambda run: [_draw_scores(run), *([_draw_contexts(run)] if len(run.value("shown/neuron")) else [])],
    about=(
        "For every MLP neuron, the 20 contexts that switch it on most are taken, each from another text. A context is "
        "described by a tf-idf vector of the tokens that its query attends to. Two contexts are related when they are "
        "closer than 99 % of the pairs from different neurons. Three or more contexts that are connected by triangles "
        "of related pairs form a pattern. A neuron with two patterns fires on unrelated combinations of tokens. There "
        "are two controls: contexts shuffled between neurons, and the same network before training. Shares of neurons "
        "are compared over networks of several seeds. A single given model has no interval, so its findings are "
        "undecided."
    ),
)  # fmt: skip
