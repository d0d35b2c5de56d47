"""Figure 6: attention entropy while language models of several depths train from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from joma.measure.rebound import FEWEST_SEEDS
from joma.runs import Run
from joma.studies._language_model_curves import (
    Interval,
    alive,
    best_loss,
    curve,
    layer_curves,
    layer_rebounds,
    over_seeds,
    steps_of,
)
from joma.studies._language_model_findings import (
    WITH_RANGE,
    differs,
    diverged,
    layers_rebound,
    learned_nothing,
    near_stored,
    not_run,
    not_wikitext_2,
    plot_layers,
)
from joma.studies._language_models import PAPER, LanguageModelConfig, called, corpus, recipe, same_text, train_variants
from joma.studies._stored_curves import distances, find_stored
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CONTROL, GREEN, depth_colours, panels, step_axis
from joma.studies.verdicts import by_effect, by_test

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
class Config(LanguageModelConfig):
    """Models that differ in depth alone, one rate for all."""

    layers: tuple[int, ...] = (1, 2)
    rate: float = 3e-3


ONE = Claim(
    "fig6-one-layer",
    "JoMA Fig. 6",
    "With one layer, attention entropy first drops and then rebounds, as eq. 6 predicts.",
    empirical=True,
)
TOP = Claim(
    "fig6-top-layers",
    "JoMA Fig. 6",
    "With several layers, the entropy of the top ones first drops and then rebounds.",
    empirical=True,
)
BOTTOM = Claim(
    "fig6-bottom-layers",
    "JoMA Fig. 6",
    "With several layers, entropy is suppressed in the bottom ones: it ends lower than in the top ones.",
    empirical=True,
)
DEEPER = Claim(
    "fig6-deeper-is-better",
    "JoMA Fig. 6",
    "Deeper models reach a lower validation loss.",
    empirical=True,
)
LOSSES = {
    name: Claim(
        f"fig6-losses-{name}",
        "JoMA Fig. 6",
        f"The best validation losses on {name} are {', '.join(f'{loss:.3f}' for loss in printed.values())} "
        f"with {', '.join(map(str, printed))} layers.",
        empirical=True,
    )
    for name, printed in PRINTED.items()
}
CURVES = Claim(
    "fig6-curves",
    "JoMA Fig. 6",
    "On WikiText-2, the entropy of every layer follows the curves of the runs that the figure shows.",
    empirical=True,
)
LOGITS = Claim(
    "logits-of-a-language-model",
    "JoMA Thm 1",
    "Softmax logits follow from the MLP's weights as ½Σ(v² − ‖v‖² b̄) + c; asked here of a real model's first layer.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train one ensemble of seeds a depth; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    run.keep("layers", lambda: np.array(config.layers))
    variants = {_name(layers): recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.layers}
    train_variants(variants, text, run, progress)
    if stored is not None:
        run.keep("stored", lambda: distances(run, {_name(layers): layers for layers in config.layers}, stored))


def _name(layers: int) -> str:
    return f"L{layers}"


def _variants(run: Run) -> dict[int, str]:
    return {int(layers): _name(int(layers)) for layers in run.value("layers")}


def judge(run: Run) -> list[Finding]:
    """Rebounds against chance over seeds; losses against the paper's, and against each other."""
    variants = _variants(run)
    deep = {layers: name for layers, name in variants.items() if layers > 1}
    findings = []
    if 1 in variants:
        findings.append(_rebound(ONE, run, {1: variants[1]}))
    else:
        findings.append(not_run(ONE, "a model of one layer", "layers has no 1", "joma verify fig6"))
    if deep:
        findings += [
            _rebound(TOP, run, deep, which=lambda layers: slice(layers // 2, None), beside="lower"),
            _bottom(run, deep),
        ]
    else:
        findings += [
            not_run(claim, "a model of several layers", "layers has only 1", "joma verify fig6")
            for claim in (TOP, BOTTOM)
        ]
    if len(variants) > 1:
        findings.append(_deeper(run, variants))
    else:
        findings.append(not_run(DEEPER, "two depths", "layers has only one depth", "joma verify fig6"))
    return [*findings, *(_losses(run, name) for name in PRINTED), near_stored(CURVES, run), _logits(run, variants)]


def _left(run: Run, name: str) -> int:
    """How many runs did not diverge."""
    return int(alive(run, name)[0].sum())


def _too_few(claim: Claim, expected: str, run: Run, variants: dict[int, str]) -> Finding:
    names = list(variants.values())
    reason = f"all runs of {', '.join(names)} diverged"
    if any(_left(run, name) for name in names):
        reason = f"too few runs are left{diverged(run, names)}"
    return not_run(claim, expected, reason, f"a lower --rate than {run.config['rate']:g}")


def _said(one: Interval) -> str:
    """With one run left there is a mean and no interval, with none neither."""
    if np.isfinite(one.half_width):
        return str(one)
    return f"{one.mean:.3f}, one run," if np.isfinite(one.mean) else "unknown"


def _rebound(claim: Claim, run: Run, variants: dict[int, str], **options: Any) -> Finding:
    if all(_left(run, name) < FEWEST_SEEDS for name in variants.values()):
        return _too_few(claim, f"{FEWEST_SEEDS} runs of one depth that do not diverge", run, variants)
    found = {f"L = {layers}": layer_rebounds(run, name) for layers, name in variants.items()}
    idle = {f"L = {layers}": why for layers, name in variants.items() if (why := learned_nothing(run, name))}
    return layers_rebound(claim, found, idle=idle, **options)


def _bottom(run: Run, variants: dict[int, str]) -> Finding:
    """Top half minus bottom half, at the end and before training, which is the control."""
    expected = "at every depth the top half ends above the bottom half by more than it did untrained"
    if all(_left(run, name) < 2 for name in variants.values()):
        return _too_few(BOTTOM, expected, run, variants)
    gaps, idle = {}, {}
    for layers, name in variants.items():
        curves = layer_curves(run, name)  # (layers, seeds, points)
        gaps[layers] = (curves[layers // 2 :].mean(0) - curves[: layers // 2].mean(0))[:, [0, -1]]
        if why := learned_nothing(run, name):
            idle[layers] = why
    before, ends = ({layers: over_seeds(gap[:, i]) for layers, gap in gaps.items()} for i in (0, 1))
    grown = {layers: over_seeds(gap[:, 1] - gap[:, 0]) for layers, gap in gaps.items()}
    surplus = [0.0 if layers in idle else one.mean - one.half_width for layers, one in grown.items()]
    return by_effect(
        BOTTOM,
        measured=max(surplus),
        control=0.0,
        margin=0.0,
        expected=expected,
        quantitative=all(one > 0 for one in surplus) and all(one.mean > one.half_width for one in ends.values()),
        shown="top above bottom by "
        + ", ".join(f"{_said(end)} (L = {layers})" for layers, end in ends.items())
        + "".join(f"; L = {layers}: {why}" for layers, why in idle.items() if _left(run, variants[layers]))
        + diverged(run, list(variants.values())),
        control_shown="untrained: "
        + ", ".join(f"{gap.mean:.3f}" if np.isfinite(gap.mean) else "unknown" for gap in before.values()),
    )


def _deeper(run: Run, variants: dict[int, str]) -> Finding:
    """The control of a depth is the one before it. Significantly worse: fails; undecided: not above its control."""
    expected = "each depth below the one before, by more than seeds differ (95 %)"
    if sum(_left(run, name) > 1 for name in variants.values()) < 2:
        return _too_few(DEEPER, expected, run, variants)
    losses = {layers: best_loss(run, variants[layers])[0] for layers in sorted(variants)}
    first = {layers: curve(run, variants[layers], "valid/loss")[0, :, 0] for layers in losses}
    learned = not any((losses[layers] >= first[layers].min()).any() for layers in losses)
    depths = list(losses)
    steps = [over_seeds(losses[shallow] - losses[deep]) for shallow, deep in pairwise(depths)]
    whole = over_seeds(losses[depths[0]] - losses[depths[-1]])
    shown = (
        "best validation loss "
        + ", ".join(f"{_said(over_seeds(loss))} (L = {layers})" for layers, loss in losses.items())
        + f"; seed by seed the deepest is below the shallowest by {_said(whole)}"
        + diverged(run, list(variants.values()))
    )
    control = "below the depth before by " + ", ".join(
        f"{_said(gain)} (L = {layers})" for layers, gain in zip(depths[1:], steps, strict=True)
    )
    if learned and whole.mean < -whole.half_width:
        return by_test(DEEPER, measured=shown, expected=expected, as_printed=False, control=control)
    return by_effect(
        DEEPER,
        measured=whole.mean - whole.half_width if learned else 0.0,
        control=0.0,
        margin=0.0,
        expected=expected,
        quantitative=all(gain.mean > gain.half_width for gain in steps),
        shown=shown,
        control_shown=control,
    )


def _losses(run: Run, name: str) -> Finding:
    printed = PRINTED[name]
    expected = ", ".join(f"{loss:.3f} (L = {layers})" for layers, loss in printed.items())
    wanted: dict[str, Any] = {"corpus": name, "layers": list(printed), "rate": 1e-4}
    config = run.config if name == "wikitext-2" else {**run.config, "steps": PAPER["steps"]}  # five epochs, not twenty
    if reason := differs(config, **wanted) or (name == "wikitext-2" and not_wikitext_2(run)):
        command = "JOMA_DATA=FOLDER joma verify fig6 --scale paper"
        if name != "wikitext-2":
            command = f"JOMA_DATA=FOLDER joma run fig6 --scale paper --corpus {name} --steps {STEPS_103}"
        return not_run(LOSSES[name], expected, reason, command)
    ours = {layers: over_seeds(best_loss(run, variant)[0]) for layers, variant in _variants(run).items()}
    off = float(np.max([abs(one.mean - printed[layers]) for layers, one in ours.items()]))  # NaN if a depth diverged
    return by_test(
        LOSSES[name],
        measured=", ".join(f"{one} (L = {layers})" for layers, one in ours.items()) + f"; off by {off:.3f} at most",
        expected=expected,
        as_printed=off <= CLOSE,
        tolerance=CLOSE,
        control=f"the loss printed for another depth is off by {_nearest_other(ours, printed):.3f} at least",
    )


def _nearest_other(ours: dict[int, Interval], printed: dict[int, float]) -> float:
    """How far our losses are from those printed for other depths, at least: what the tolerance must be below."""
    off = [abs(one.mean - loss) for layers, one in ours.items() for other, loss in printed.items() if other != layers]
    return float(np.min(off))


def _logits(run: Run, variants: dict[int, str]) -> Finding:
    expected = f"a correlation of at least {HIGH} over the most frequent words, at the end of training"
    name = variants[min(variants)]
    if f"{name}/estimate/theorem" not in run:
        return not_run(
            LOGITS, expected, "with several heads the theorem does not say which logits it means", "joma verify fig6"
        )
    kept = alive(run, name)[0]
    if not kept.any():
        return _too_few(LOGITS, expected, run, {min(variants): name})
    theorem, squares, frequency = (
        over_seeds(curve(run, name, f"estimate/{part}")[0, kept, -1]) for part in ("theorem", "squares", "frequency")
    )
    if not np.isfinite([theorem.mean, frequency.mean]).all():
        reason = (
            "a correlation cannot be worked out: the logits' moves, or what predicts them, are alike for all words or "
            "not finite"
        )
        return not_run(LOGITS, expected, reason, "joma verify fig6")
    return by_effect(
        LOGITS,
        measured=theorem.mean,
        control=abs(frequency.mean),
        margin=MARGIN,
        expected=expected,
        quantitative=theorem.mean >= HIGH,
        shown=f"correlation {_said(theorem)}; of ½Σv² alone {_said(squares)} (L = {min(variants)})",
        control_shown=f"the words' log frequency: {_said(frequency)}",
    )


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer for every depth beside the losses, and what else was recorded of the deepest model."""
    return [_draw_entropy(run), _draw_weights(run)]


def _draw_entropy(run: Run) -> Drawing:
    variants = _variants(run)
    figure, axes = panels(len(variants) + 1, width=2.3 if len(variants) > 2 else 2.9)
    entropies = [layer_curves(run, name).mean(1) for name in variants.values() if alive(run, name).any()]
    for axis, (layers, name) in zip(axes, variants.items(), strict=False):
        plot_layers(axis, run, name)
        step_axis(axis)
        axis.set_title(f"L = {layers}, loss {over_seeds(best_loss(run, name)).mean:.3f}")
        if entropies:
            axis.set_ylim(0.6 * min(part.min() for part in entropies), 1.05 * max(part.max() for part in entropies))
        if layers > 1 and alive(run, name).any():
            axis.legend(fontsize=7, loc="lower right", ncols=2, handlelength=1.2, columnspacing=1.0)
    axes[0].set_ylabel("attention entropy (nats)")
    printed = {} if differs(run.config, rate=1e-4) or not_wikitext_2(run) else PRINTED.get(run.config["corpus"], {})
    late = list(printed.values())
    for (layers, name), colour in zip(variants.items(), depth_colours(len(variants)), strict=True):
        losses = curve(run, name, "valid/loss")[0][alive(run, name)[0]]
        axes[-1].plot(steps_of(run, name), losses.T, color=colour, lw=1)
        axes[-1].plot([], color=colour, label=f"L = {layers}")
        if layers in printed:
            axes[-1].axhline(printed[layers], color=colour, lw=0.8, ls=":")
        late += losses[:, losses.shape[1] // 20 + 1 :].flatten().tolist()
    step_axis(axes[-1])
    axes[-1].set_ylabel("validation loss")
    if late:  # the fall from ln(vocabulary) would flatten all that follows
        axes[-1].set_ylim(min(late) - 0.05, max(late) + 0.05)
    axes[-1].set_title("Loss")
    axes[-1].legend(fontsize=7)
    range_shown = "their range" if max(variants) <= WITH_RANGE else f"with up to {WITH_RANGE} layers their range"
    caption = (
        f"Attention entropy on held-out text of {called(run.config['corpus'])}, mean of {run.config['seeds']} seeds "
        f"and {range_shown}, layers dark to light from the input upwards; and the loss on that text, one line a seed, "
        "without its first fall" + ("; dotted, the best losses that the paper prints." if printed else ".")
    )
    return Drawing("entropy-over-training", caption, figure)


def _draw_weights(run: Run) -> Drawing:
    variants = _variants(run)
    layers, name = max(variants), variants[max(variants)]
    shown = {
        "rank/up": "MLP's lower matrix",
        "rank/gradient": "its gradient",
        "rank/query_key": "query-key product",
    }
    figure, axes = panels(4, width=2.4)
    for axis, (measure, title) in zip(axes, shown.items(), strict=False):
        plot_layers(axis, run, name, measure)
        step_axis(axis)
        axis.set_ylim(0, None)
        axis.set_title(f"L = {layers}, {title}")
    axes[0].set_ylabel("stable rank")
    if alive(run, name).any():
        axes[0].legend(fontsize=7)
    first = variants[min(variants)]
    if f"{first}/estimate/theorem" in run:
        parts = (
            ("theorem", "Theorem 1", BLUE),
            ("squares", "½Σv² alone", GREEN),
            ("frequency", "log frequency", CONTROL),
        )
        for part, label, colour in parts:
            values = curve(run, first, f"estimate/{part}")[0, :, 1:][alive(run, first)[0]]
            axes[3].plot(steps_of(run, first)[1:], values.T, color=colour, lw=1)
            axes[3].plot([], color=colour, label=label)
        axes[3].axhline(0, color=CONTROL, lw=0.5)
        axes[3].axhline(HIGH, color=BLUE, lw=0.8, ls=":")
        axes[3].legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, 0.93))
    step_axis(axes[3])
    axes[3].set(ylabel="correlation with logits", ylim=(None, 1))
    axes[3].set_title(f"L = {min(variants)}, logits")
    caption = (
        f"Stable ranks in the model of {layers} layers, dark to light from the input upwards: mean of seeds"
        + (" and their range" if layers <= WITH_RANGE else "")
        + ". Last: how well Theorem 1, its first term alone and the words' frequency tell how the first layer's "
        f"logits moved, over the most frequent words, one line a seed; dotted, the {HIGH} that is asked for."
    )
    return Drawing("weights-over-training", caption, figure)


STUDY = Study(
    name="fig6",
    title="Figure 6: attention entropy over the training of language models",
    version=3,
    claims=(ONE, TOP, BOTTOM, DEEPER, *LOSSES.values(), CURVES, LOGITS),
    quick=Config(),
    paper=Config(**PAPER, layers=(1, 2, 5, 10), rate=1e-4, seeds=5),
    run=run,
    judge=judge,
    draw=draw,
    check=same_text,
    about=(
        "Decoders of several depths are trained from scratch by the recipe of the paper's runs, the seeds of one depth "
        "as one ensemble. A layer drops and rebounds if the mean over seeds does so by more than the seeds' own "
        "spread allows. Quick scale trains small models on Python source; paper scale trains 58,580 steps on "
        "WikiText-2 and compares with the losses and, where they are at hand, the curves of the published runs."
    ),
)
