"""Section 5 on real code: do hidden nodes come to stand for Python's syntax, and its lower levels first?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, beyond, hardest, mean_known
from joma.claims.verdicts import Numbers, at_least, by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.labels import end_label
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, depth_colours, panels
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.syntax.python_hierarchy.run import (
    FEWEST,
    LEVELS,
    VERSIONS,
    PythonHierarchyConfig,
    Scores,
    mean,
    run,
    slope,
)

MARGIN = 0.02  # of correlation: the smallest gain over a control that matters
SHARE = 0.05  # of what all hidden nodes together tell: the smallest gain of the best one that matters
HIGH = 0.8  # of what all hidden nodes together tell: what one node must tell to stand for a latent
LATER = 0.1  # octaves of training time a level: by how much higher levels must come later
DEEPER = 0.01  # of correlation a level: by how much higher levels must gain more in the last block than in the first


def _unlearned(run: Run) -> tuple[str, str] | None:
    reason = Scores(run).unlearned
    return (reason, COMMAND) if reason else None


COMMAND = at_paper_scale("python-hierarchy")
CLAIMS = Claims(source="JoMA Sec. 5", guard=_unlearned)


def _gain(run: Run, claim: Claim, version: str, what: str = "") -> Finding:
    scores = Scores(run)
    trained, found = scores.of("neuron", version)[-1], scores.against_controls("neuron", version)
    controls = {name.removeprefix("beside "): one.control for name, one in found.items()}
    if version == "labels":
        controls["the current token alone, for comparison"] = float(scores.token.mean())
    return by_effect(
        claim,
        hardest(claim, found),
        what=f"correlation of the best hidden node with a label{what}",
        details=_and_lost(scores, {"by level": _by_level(trained), "controls": controls}),
    )


@CLAIMS.declare("nodes-align-with-syntax", matters=MARGIN, ceiling=1.0)
def _align(run: Run, claim: Claim) -> Finding:
    """Training makes hidden nodes of the MLP stand for the latent variables behind the tokens. Here these are kinds of
    syntax.

    Expected: the best hidden node, chosen on other files, correlates with the label more than every control
    """
    return _gain(run, claim, "labels")


@CLAIMS.declare("nodes-hold-combinations", "JoMA Sec. 1", matters=MARGIN, ceiling=1.0)
def _beyond(run: Run, claim: Claim) -> Finding:
    """Hidden nodes learn combinations of tokens, not single tokens.

    Expected: the best hidden node correlates more than every control with the part of the label that the token does
    not tell
    """
    return _gain(run, claim, "beyond", ", beyond the token")


@CLAIMS.declare(
    "one-node-each",
    "JoMA Sec. 6",
    matters=SHARE,
    unit="%",
    ceiling=1.0,
    uses=("python-hierarchy/nodes-align-with-syntax",),
)
def _one_node(run: Run, claim: Claim) -> Finding:
    """For every latent there is one hidden node that correlates highly with it.

    Expected: one node reaches at least 80 % of the correlation of all hidden nodes together, and more than before
    training

    The share in what all nodes tell, against the untrained one; the best node must also exceed its own controls.
    """
    scores, align = Scores(run), next(one for one in CLAIMS if one.name == "nodes-align-with-syntax")
    best, all_nodes = (scores.of(place, "labels").mean(-1) for place in ("neuron", "hidden"))
    share = best / all_nodes
    (gain,) = hardest(align, scores.against_controls("neuron", "labels")).values()
    return by_effect(
        claim,
        {"beside the untrained network": compare(share[-1], share[0])},
        what="correlation of the best hidden node, as a share of that of all nodes together",
        size=[at_least("lower end of this share", compare(share[-1]).low, HIGH, "%")],
        controls=[beyond(align, "gain of the best node's correlation over its hardest control", gain)],
        details=_and_lost(scores, {}),
    )


@CLAIMS.declare("lower-levels-first", matters=LATER, unit="octaves", uses=("thm5/shallow-means-often",))
def _order(run: Run, claim: Claim) -> Finding:
    """Low levels of the hierarchy are learned before higher levels. Their tokens occur together most often.

    Expected: the higher the level, the later all hidden nodes together gain what they tell beyond the token

    Compared with 0 octaves, which is the mean over all orders of the levels.
    """
    scores = Scores(run)
    learned = int(np.isfinite(scores.rise()).sum())
    if scores.written.shape[1] > 1 and learned < FEWEST:  # of one network alone it is undecided
        levels = f"only {learned} of {len(LEVELS)} levels of syntax were learned"
        return not_run(claim, claim.expected, f"{levels}, and {FEWEST} are needed for an order", COMMAND)
    steps = {level: float(2**octave) for level, octave in zip(LEVELS, scores.rise(), strict=True)}
    return by_effect(
        claim,
        compare(scores.order()),
        what="delay of each level behind the one below it",
        details=_and_lost(scores, {"step at the middle of the gain": steps}),
    )


@CLAIMS.declare("higher-levels-in-later-blocks", matters=DEEPER)
def _depth(run: Run, claim: Claim) -> Finding:
    """Later blocks build higher levels from what earlier blocks have learned.

    Expected: the higher the level, the larger the lead of the last block's best node over the first block's
    """
    scores = Scores(run)
    after, before, rank = scores.deepening(-1), scores.deepening(0), np.arange(len(LEVELS))
    return by_effect(
        claim,
        {"beside the untrained network": compare(slope(after, rank), slope(before, rank))},
        what="growth per level of the last block's lead over the first block, in correlation",
        details=_and_lost(scores, {"lead of the last block": _by_level(after)}),
    )


def _by_level(values: Any) -> dict[str, float]:
    return {level: float(value) for level, value in zip(LEVELS, values.mean(0), strict=True)}


def _and_lost(scores: Scores, details: dict[str, dict[str, float]]) -> Numbers:
    lost = {"diverged and left out": {"networks": float(scores.diverged)}} if scores.diverged else {}
    return details | lost


TITLES = {
    "neuron": "Best hidden node",
    "beyond": "Best hidden node, beyond the token",
    "hidden": "All hidden nodes, beyond the token",
}
"""What is drawn over training."""
_SHUFFLED = {"neuron": ("neuron", "labels"), "beyond": ("neuron", "beyond"), "hidden": ("hidden", "beyond")}


def draw(run: Run) -> list[Drawing]:
    """Alignment over training, by block, and label by label."""
    scores = Scores(run)
    curves: Mapping[str, Any] = {
        "neuron": scores.of("neuron", "labels"),
        "rotated": scores.of("neuron", "rotated"),
        "beyond": scores.of("neuron", "beyond"),
        "hidden": scores.of("hidden", "beyond"),
        "rise": scores.rise(),
    }
    ends = {key: scores.of(*place, shuffled=True)[-1] for key, place in _SHUFFLED.items()}
    blocks = {
        kind: np.stack([scores.of(f"{kind} {i + 1}", "beyond")[[0, -1]] for i in range(scores.layers)])
        for kind in ("neuron", "stream")
    }
    labels = {
        "rotated": scores.written[-1, :, scores.row["neuron"], VERSIONS.index("rotated")],
        "untrained": scores.written[0, :, scores.row["neuron"], 0],
        "trained": scores.written[-1, :, scores.row["neuron"], 0],
        "together": scores.written[-1, :, scores.row["hidden"], 0],
        "token": run.value("token"),
    }
    return [
        _draw_training(scores.steps, curves, ends),
        _draw_blocks(blocks),
        _draw_labels(scores.names, run.value("share"), {name: mean(value.T) for name, value in labels.items()}),
    ]


def _draw_training(steps: Any, curves: Mapping[str, Any], shuffled: Mapping[str, Any]) -> Drawing:
    figure, axes = panels(3, width=3.4, height=2.9)
    back = np.log2(steps[-1] / steps[1:])
    octaves = 1 if back[0] < 5 else 2
    ticks = [0, *steps[1:][np.abs(back - octaves * np.round(back / octaves)) < 0.1]]
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        # before the lines: the margins of a linear axis would stay
        axis.set_xscale("symlog", linthresh=steps[1], linscale=0.4)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("training step (log scale)")
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            label = LEVELS[level] if name == "hidden" else "_"
            mean_and_band(axis, steps, curves[name][..., level], over=1, color=colour, label=label)
            end = shuffled[name][:, level]
            axis.plot([steps[-1]] * len(end), end, "x", ms=5, color=colour, clip_on=False)
            if name == "neuron":
                axis.plot(steps, curves["rotated"][..., level].mean(1), ":", lw=1, color=colour)
            if name == "hidden" and np.isfinite(at := curves["rise"][level]):
                axis.plot(2**at, np.interp(2**at, steps, curves[name][..., level].mean(1)), "o", ms=5, color=colour)
        axis.axhline(0, lw=0.6, color=INK)
        axis.set_title(title)
        axis.set_ylabel("correlation on fresh files")
    end_label(axes[0], "rotated\nlabels", ls=":")
    end_label(axes[2], "middle of\nthe gain", ls="", marker="o")
    end_label(axes[2], "trained on\nshuffled text", ls="", marker="x")
    return Drawing("alignment-over-training", _training_caption(curves), figure)


def _training_caption(curves: Mapping[str, Any]) -> str:
    start, end = (float(curves["neuron"][at].mean()) for at in (0, -1))
    middles = {level: 2**octave for level, octave in zip(LEVELS, curves["rise"], strict=True) if np.isfinite(octave)}
    order = "No level of syntax was clearly learned beyond the token."
    if middles:
        steps_of = (f"{number(float(middles[m]))} for {m}" for m in sorted(middles, key=lambda m: middles[m]))
        order = f"The middle of the gain beyond the token comes at step {listing(steps_of)}."
    return (
        f"The best hidden node's correlation with a syntax label goes from {number(start)} before training to "
        f"{number(end)} after it (mean over levels). {order} Lines: means over the labels of a level and over seeds, "
        "on held-out files; bands: all seeds. Beyond the token: the label minus its mean given the current token. "
        "Dots mark the middle of the gain in log time. Dotted lines and crosses are controls: labels rotated within "
        "their file, and networks trained on shuffled tokens."
    )


def _draw_blocks(scores: Mapping[str, Any]) -> Drawing:
    figure, axes = panels(2, width=4.2, height=3.0)
    for axis, name in zip(axes, ("neuron", "stream"), strict=True):
        blocks = np.arange(1, len(scores[name]) + 1)
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            for i, style in enumerate((":", "-")):
                values = scores[name][:, i, :, level]
                middle = values.mean(1)
                place = blocks + 0.04 * (level - 1.5)
                axis.plot(place, middle, color=colour, ls=style, lw=1.4, label=LEVELS[level] if i else "_")
                reach = (middle - values.min(1), values.max(1) - middle)
                axis.errorbar(place, middle, reach, fmt="none", ecolor=colour, elinewidth=1)
        axis.axhline(0, lw=0.6, color=INK)
        axis.set_xticks(blocks)
        axis.set(xlabel="block", ylabel="correlation, beyond the token")
        end_label(axis, "untrained", ls=":")
    axes[0].set_title("Best hidden node of a block")
    axes[1].set_title("Linear probe on the stream behind a block")
    lead = scores["neuron"][-1, 1].mean(0) - scores["neuron"][0, 1].mean(0)  # (levels,)
    gains = listing(f"{level} {number(round(float(gain), 3))}" for level, gain in zip(LEVELS, lead, strict=True))
    caption = (
        f"From the first to the last block, the correlation of the best hidden node changes by: {gains}. If later "
        "blocks held higher levels, the change would grow from expression to definition. Measured on fresh files, "
        "beyond what the current token tells. Lines: means over seeds; bars: all seeds; dotted: the networks before "
        "training."
    )
    return Drawing("alignment-by-block", caption, figure)


LOOKS = {
    "rotated": ("|", CONTROL, "trained, rotated labels"),
    "untrained": ("o", CONTROL, "untrained, best node"),
    "trained": ("o", BLUE, "trained, best node"),
    "together": ("D", GREEN, "trained, all nodes"),
    "token": ("x", ORANGE, "current token alone"),
}
"""Markers of `draw_labels`."""


def _draw_labels(names: Sequence[Sequence[str]], share: Any, scores: Mapping[str, Any]) -> Drawing:
    levels = [level for level, _ in names]
    rows = np.arange(len(names)) + 0.8 * np.array([LEVELS.index(level) for level in levels])
    figure, (axis,) = panels(width=7.0, height=0.19 * (rows[-1] + 1) + 1.1)
    for name, (marker, colour, label) in LOOKS.items():
        axis.plot(scores[name], rows, marker, ms=5, color=colour, label=label, mfc="none" if marker == "D" else None)
    for low, high, row in zip(scores["untrained"], scores["trained"], rows, strict=True):
        axis.plot([low, high], [row, row], lw=1, color=BLUE, alpha=0.5, zorder=0)
    axis.set_yticks(rows, [f"{label}  {100 * part:.0f} %" for (_, label), part in zip(names, share, strict=True)])
    for level in LEVELS:
        mine = [row for row, of in zip(rows, levels, strict=True) if of == level]
        if mine:
            place: Any = {"transform": axis.get_yaxis_transform(), "rotation": 90, "ha": "center", "va": "center"}
            axis.text(-0.29, float(np.mean(mine)), level, fontsize=8.5, fontweight="bold", **place)
    axis.axvline(0, lw=0.6, color=INK)
    axis.set(ylim=(rows[-1] + 0.8, -0.8), xlabel="correlation on fresh files")
    axis.set_title("Syntax labels with their share of the tokens")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    means = {name: number(mean_known(values)) for name, values in scores.items()}
    better = int(np.sum(scores["trained"] > scores["token"]))
    caption = (
        f"One hidden node tells more of a label than the current token does for {better} of {len(scores['trained'])} "
        f"labels. Mean correlations: best node {means['untrained']} before and {means['trained']} after training, all "
        f"nodes together (a linear probe) {means['together']}, current token alone {means['token']}, rotated labels "
        f"{means['rotated']}. All numbers are means over seeds, on held-out files."
    )
    return Drawing("alignment-by-label", caption, figure)


STUDY = Study(
    name="python-hierarchy",
    title="Section 5 on real code: hidden nodes and the syntax of Python",
    version=3,
    claims=CLAIMS,
    # Four seeds of 0 on left four claims open, at 99 %. With eight others intervals are a third as wide.
    quick=PythonHierarchyConfig(seeds=8, shuffled=4, seed=100),
    paper=PythonHierarchyConfig(
        tokens=2_000_000, held_out=0.2, vocabulary=4096, layers=4, width=256, heads=4, mlp=1024, context=256,
        dropout=0.2, batch=16, steps=3000, rate=5e-4, points=16, seeds=5, shuffled=5, windows=128, device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Decoders learn to predict the next token of the source of sympy. They are tested on files they never saw. "
        "Every frequent label of the syntax tree (expressions, statements, blocks, definitions) is a latent. The best "
        "hidden node for a label is chosen on one half of these files and scored on the other half, "
        "over training. There are three controls: the same network before training, networks trained on shuffled "
        "tokens, and labels rotated within their file. Much of the syntax can be read from the current token. "
        "Therefore the part of the label that the token does not tell is scored too: the label minus its mean given "
        "the token. Every seed has its own weights, its own batches and its own halves of the files."
    ),
)  # fmt: skip
