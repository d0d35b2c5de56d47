"""Figure 6: attention entropy while language models of several depths train from scratch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, by_effect
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, Axes, depth_colours, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import (
    PAPER,
    QUICK,
    LanguageModelConfig,
    called,
    corpus,
    curves,
    recipe,
    same_text,
    train_variants,
)
from joma.runs import Run
from joma.studies.language._figures import WITH_RANGE, plot_layers
from joma.studies.language._judges import FLAT, NOTHING, Depths, judge_halves, judge_rebounds, must_learn, tells
from joma.studies.language._published import (
    EXPECTED,
    NEARER,
    differs,
    find_stored,
    keep_distances,
    must_be_the_papers,
    near_stored,
    not_wikitext_2,
)

RANKS = {
    "rank/up": "the MLP's lower matrix",
    "rank/gradient": "that matrix's gradient",
    "rank/query_key": "the query-key product",
}
"""Whose stable rank is drawn."""
ESTIMATES = {"theorem": ("Theorem 1", BLUE), "squares": ("½Σv² alone", GREEN), "frequency": ("log frequency", CONTROL)}
"""What is correlated with the changes of the logits."""


def draw_entropy(run: Run, variants: Depths, printed: Mapping[int, float]) -> Drawing:
    """One panel per depth, and the losses; printed: the paper's best losses by depth, where they can be compared."""
    columns = min(len(variants) + 1, 3)
    figure, axes = panels(columns, -(-(len(variants) + 1) // columns), width=3.2, height=2.5)
    entropies = [curves.layer_curves(run, name).mean(1) for name in variants.values() if curves.alive(run, name).any()]
    for axis, (layers, name) in zip(axes, variants.items(), strict=False):
        plot_layers(axis, run, name)
        axis.set(title=f"{_depth(layers)}: entropy by layer", ylabel="attention entropy (nats)")
        if entropies:
            axis.set_ylim(0.9 * min(part.min() for part in entropies), 1.03 * max(part.max() for part in entropies))
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    _draw_losses(axes[len(variants)], run, variants, printed)
    for axis in axes[len(variants) + 1 :]:
        axis.remove()
    return Drawing("entropy-over-training", _entropy_caption(run, variants, printed), figure)


def _draw_losses(axis: Axes, run: Run, variants: Depths, printed: Mapping[int, float]) -> None:
    late = list(printed.values())
    for (layers, name), colour in zip(variants.items(), depth_colours(len(variants)), strict=True):
        losses = curves.curve(run, name, "valid/loss")[0][curves.alive(run, name)[0]]
        axis.plot([], color=colour, label=_depth(layers)) if not len(losses) else None
        for seed, loss in enumerate(losses):
            axis.plot(curves.steps_of(run, name), loss, color=colour, lw=1, label=_depth(layers) if seed == 0 else None)
        if layers in printed:
            axis.axhline(printed[layers], color=colour, lw=0.8, ls=":")
        late += losses[:, losses.shape[1] // 20 + 1 :].flatten().tolist()
    step_axis(axis)
    if late:  # the fall from ln(vocabulary) would flatten all that follows
        axis.set_ylim(min(late) - 0.05, max(late) + 0.05)
    axis.set(title="Validation loss by depth", ylabel="validation loss (nats)")
    if printed:
        end_label(axis, "printed best", ls=":")
    label_lines(axis)


def _depth(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _entropy_caption(run: Run, variants: Depths, printed: Mapping[int, float]) -> str:
    each = [pair for name in variants.values() for pair in zip(*curves.drops_and_rebounds(run, name), strict=True)]
    back = sum(all(compare(part, level=0.99).low > 0 for part in pair) for pair in each)
    best = {layers: curves.mean_over_seeds(curves.best_loss(run, name)) for layers, name in variants.items()}
    losses = listing(f"{loss:.3f} with {_depth(layers)}" for layers, loss in best.items())
    layers, name = min(variants.items())
    drop, rise = (curves.mean_over_seeds(part[-1]) for part in curves.drops_and_rebounds(run, name))
    which = "bands" if max(variants) <= WITH_RANGE else f"bands up to {WITH_RANGE} layers"
    return (
        f"Attention entropy drops and then comes back, beyond chance (99 %), in {back} of {len(each)} layers. With "
        f"{_depth(layers)}, the top layer drops by {number(drop, 'nats')} and comes back by {number(rise, 'nats')}. "
        f"The best validation losses are {losses} (nats). Lines: mean of {run.config['seeds']} seeds on held-out text "
        f"of {called(run.config['corpus'])}; {which}: their range. Layer 1 is the one next to the input. The loss "
        "panel has one line per seed and leaves out the first fall"
        + ("; its dotted lines are the best losses that the paper prints." if printed else ".")
    )


def draw_weights(run: Run, variants: Depths, high: float) -> Drawing:
    """Stable ranks in the deepest model, and how Theorem 1 tells the logits of the shallowest; high: what is asked."""
    layers, name = max(variants.items())
    figure, axes = panels(2, 2, width=4.4, height=2.5)
    for axis, (measure, title) in zip(axes, RANKS.items(), strict=False):
        plot_layers(axis, run, name, measure)
        axis.set(ylim=(0, None), ylabel="stable rank", title=f"{_depth(layers)}: rank of {title}")
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    ends = _draw_estimates(axes[3], run, variants[min(variants)], high)
    axes[3].set_title(f"{_depth(min(variants))}: predicting the logits of layer 1")
    ranks = curves.layer_curves(run, name, "rank/up")
    finding = "all runs diverged"
    if ranks.shape[1]:
        moved = course(curves.steps_of(run, name)[[0, -1]], ranks.mean((0, 1))[[0, -1]])
        finding = f"the stable rank of the MLP's lower matrix {moved} (mean over layers)"
    if ends:
        finding += (
            f". Theorem 1 predicts the changes of the first layer's logits with a correlation of "
            f"{number(ends['theorem'])} at the end; {high:g} is asked for. Log frequency reaches "
            f"{number(ends['frequency'])}"
        )
    caption = (
        f"With {_depth(layers)}, {finding}. Lines of the first three panels: mean over seeds"
        + ("; bands: their range" if layers <= WITH_RANGE else "")
        + ". Last panel: correlations over the most frequent words, one line per seed."
    )
    return Drawing("weights-over-training", caption, figure)


def _draw_estimates(axis: Axes, run: Run, name: str, high: float) -> dict[str, float]:
    ends, kept = {}, curves.alive(run, name)[0]
    for part, (label, colour) in ESTIMATES.items() if f"{name}/estimate/theorem" in run and kept.any() else ():
        found: np.ndarray = curves.curve(run, name, f"estimate/{part}")[0, :, 1:][kept]
        for seed, values in enumerate(found):
            axis.plot(curves.steps_of(run, name)[1:], values, color=colour, lw=1, label=label if seed == 0 else None)
        ends[part] = float(found[:, -1].mean())
    axis.axhline(0, color=INK, lw=0.5)
    axis.axhline(high, color=INK, lw=0.9, ls=":", label="asked for")
    axis.set(ylabel="correlation over words", ylim=(None, 1))
    step_axis(axis)
    label_lines(axis)
    return ends


CLOSE = 0.02  # nats between our best validation loss and the paper's
HIGH = 0.9  # a Pearson correlation that counts as high, here as under softmax attention in the block
MARGIN = 0.05  # by how much a correlation must exceed its control
PRINTED = {
    "wikitext-2": {1: 5.357, 2: 5.255, 5: 5.169, 10: 5.110},
    "wikitext-103": {1: 5.047, 2: 4.912, 5: 4.762, 10: 4.679},
}
"""The best validation losses in the titles of the figure's panels, by layers."""
STEPS_103 = 724_000  # five epochs of WikiText-103: 101.4 million words, 35 at a time from 20 streams


@dataclass(frozen=True)
class Fig6Config(LanguageModelConfig):
    """Models that differ in depth alone, one rate for all."""

    layers: tuple[int, ...] = (1, 2)
    rate: float = 3e-3


CLAIMS = Claims(source="JoMA Fig. 6", matters=FLAT, unit="nats")


def run(config: Fig6Config, run: Run, progress: Progress) -> None:
    """Train one ensemble of seeds per depth; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    run.keep("layers", lambda: np.array(config.layers))
    variants = {f"L{layers}": recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.layers}
    train_variants(variants, text, run, progress)
    if stored is not None:
        keep_distances(run, {f"L{layers}": layers for layers in config.layers}, stored)


def _variants(run: Run, fewest: int = 1) -> dict[int, str]:
    return {int(layers): f"L{layers}" for layers in sorted(run.value("layers")) if layers >= fewest}


@CLAIMS.declare("fig6-one-layer", uses=("eq6/entropy-drops", "eq6/entropy-rebounds"))
def judge_one(run: Run, claim: Claim) -> Finding:
    """With one layer, attention entropy first drops and then rebounds, as eq. 6 predicts.

    Expected: in each of these layers entropy drops and comes back, both by at least {FLAT:g} nats and by more than
    seeds differ by chance (99 %); more than 2 % of the drop comes back
    """
    return judge_rebounds(run, claim, {n: name for n, name in _variants(run).items() if n == 1})


@CLAIMS.declare("fig6-top-layers", uses=("fig6/fig6-one-layer",))
def judge_top(run: Run, claim: Claim) -> Finding:
    """With several layers, the attention entropy of the top layers first drops and then rebounds.

    Expected: in each of these layers entropy drops and comes back, both by at least {FLAT:g} nats and by more than
    seeds differ by chance (99 %); more than 2 % of the drop comes back
    """
    return judge_rebounds(run, claim, _variants(run, fewest=2))


@CLAIMS.declare("fig6-bottom-layers")
def judge_bottom(run: Run, claim: Claim) -> Finding:
    """With several layers, attention entropy is suppressed in the bottom layers: it ends lower there than in the top
    layers.

    Expected: at every depth the top half of the layers ends above the bottom half; this gap is at least {FLAT:g} nats
    larger than before training, and larger by more than seeds differ
    """
    return judge_halves(run, claim, _variants(run, fewest=2))


# losses that are nearer than CLOSE are the same loss to this study
@CLAIMS.declare("fig6-deeper-is-better", matters=CLOSE)
def judge_deeper(run: Run, claim: Claim) -> Finding:
    """Deeper models reach a lower validation loss.

    Expected: each depth has a loss at least {CLOSE:g} nats below the depth before, and by more than seeds differ

    The control of a depth is the one before it, seed by seed; and the deepest must be below the shallowest.
    """
    variants = _variants(run)
    must_learn(run, variants, fewest=2)
    losses = {layers: curves.best_loss(run, name)[0] for layers, name in variants.items()}
    known = {layers: loss if tells(run, variants[layers]) else loss * nan for layers, loss in losses.items()}
    depths = list(losses)
    fall = compare(known[depths[0]] - known[depths[-1]]).low
    return by_effect(
        claim,
        {f"L = {deep} against {shallow}": compare(known[shallow] - known[deep]) for shallow, deep in pairwise(depths)},
        what="fall of the best validation loss",
        controls=[above("fall from shallowest to deepest, lower end", fall, 0.0, "nats")] if len(depths) > 2 else (),
        details={
            "best validation loss": {f"L = {layers}": curves.mean_over_seeds(loss) for layers, loss in losses.items()},
            **curves.diverged(run, variants.values()),
        },
    )


def judge_losses(run: Run, claim: Claim, name: str) -> Finding:
    """A loss must lie nearer to its own printed one than to the middle between that and the next printed one."""
    printed, own = PRINTED[name], name == "wikitext-2"
    command = "JOMA_DATA=FOLDER joma verify fig6 --scale paper"
    if not own:
        command = f"JOMA_DATA=FOLDER joma run fig6 --scale paper --corpus {name} --steps {STEPS_103}"
    config = run.config if own else {**run.config, "steps": PAPER["steps"]}  # five epochs, not twenty
    wanted: dict[str, Any] = {"corpus": name, "layers": list(printed), "rate": 1e-4}
    must_be_the_papers(run, command, on_wikitext_2=own, config=config, **wanted)
    variants = _variants(run)
    must_learn(run, variants)
    cases, means = {}, {}
    for layers, wants in printed.items():
        loss = curves.best_loss(run, variants[layers])[0]
        means[f"L = {layers}"] = curves.mean_over_seeds(loss)
        middle = min(abs(wants - other) for others, other in printed.items() if others != layers) / 2
        learned = tells(run, variants[layers])
        cases[f"L = {layers}"] = compare(middle - np.abs(loss - wants)) if learned else NOTHING
    off = float(np.max(np.abs([*means.values()] - np.array([*printed.values()]))))  # NaN if a depth diverged
    return by_effect(
        claim,
        cases,
        what="margin: half the distance between two printed losses, minus the distance from its own",
        size=[at_most("largest distance from a printed loss", off, CLOSE, "nats")],
        details={"best validation loss": means},
    )


for name, printed in PRINTED.items():
    CLAIMS.declare(
        f"fig6-losses-{name}",
        text=f"The best validation losses on {name} are {', '.join(f'{loss:.3f}' for loss in printed.values())} "
        f"with {', '.join(map(str, printed))} layers.\n\n"
        f"Expected: {', '.join(f'{loss:.3f} (L = {layers})' for layers, loss in printed.items())}; each loss is within "
        f"{CLOSE:g} nats of its own printed one, and nearer to it than to any other, beyond chance",
        # The nearest two printed losses have their middle 0.03 from either: one that is off by CLOSE has 0.01 to spare.
        matters=0.01,
    )(partial(judge_losses, name=name))
CLAIMS.declare(
    "fig6-curves",
    text="On WikiText-2, the attention entropy of every layer follows the curves of the runs that the figure shows.\n\n"
    f"Expected: {EXPECTED}",
    matters=NEARER,
)(near_stored)


# A correlation has no unit: these claims do not share that of the others.
ESTIMATED = Claims(source="JoMA Thm 1", matters=MARGIN, ceiling=1.0)


@ESTIMATED.declare("logits-of-a-language-model", uses=("thm1-softmax/softmax-published",))
def judge_logits(run: Run, claim: Claim) -> Finding:
    """Softmax logits follow from the MLP's weights as ½Σ(v² − ‖v‖² b̄) + c. This is tested in a real model's first
    layer.

    Expected: at the end of training, a correlation of at least {HIGH} over the most frequent words

    Theorem 1 beside the words' log frequency, each by its correlation with the changes of the logits.
    """
    layers, name = min(_variants(run).items())
    must_learn(run, {layers: name})
    if f"{name}/estimate/theorem" not in run:
        raise NotRun("with several heads the theorem does not say which logits it means", "joma verify fig6")
    theorem, squares, frequency = (
        np.where(curves.alive(run, name)[0], curves.curve(run, name, f"estimate/{part}")[0, :, -1], nan)
        for part in ("theorem", "squares", "frequency")
    )
    found = compare(theorem, frequency * np.sign(curves.mean_over_seeds(frequency)))  # a negative one tells as much
    if not found.seeds:
        reason = (
            "a correlation cannot be computed: the changes of the logits, or their predictions, are the same for all "
            "words or not finite"
        )
        raise NotRun(reason, "joma verify fig6")
    others = {"½Σv² alone": squares, "log frequency, with its sign": frequency}
    means = {part: curves.mean_over_seeds(values) for part, values in others.items()}
    return by_effect(
        claim,
        found,
        what="correlation of the logits' changes with Theorem 1",
        size=[at_least("mean correlation", found.value, HIGH)],
        details={f"L = {layers}": {part: value for part, value in means.items() if np.isfinite(value)}}
        | curves.diverged(run, [name]),
    )


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer for every depth beside the losses, and what else was recorded of the deepest model."""
    printed = {} if differs(run.config, rate=1e-4) or not_wikitext_2(run) else PRINTED.get(run.config["corpus"], {})
    return [draw_entropy(run, _variants(run), printed), draw_weights(run, _variants(run), HIGH)]


STUDY = Study(
    name="fig6",
    title="Figure 6: attention entropy over the training of language models",
    version=3,
    claims=CLAIMS | ESTIMATED,
    quick=Fig6Config(**QUICK, seeds=8),
    paper=Fig6Config(**PAPER, layers=(1, 2, 5, 10), rate=1e-4, seeds=5),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Decoders of several depths are trained from scratch with the recipe of the paper's runs. All seeds of one "
        "depth train together as one ensemble. A layer drops and rebounds if the mean over seeds does so by more than "
        "the seeds differ by chance. Networks that learn only how frequent words are show nothing and are not judged. "
        "Quick scale trains small models on Python source. Paper scale trains for 58,580 steps on WikiText-2. It "
        "compares the losses with the printed ones, and the curves with the published ones where they are available."
    ),
)
