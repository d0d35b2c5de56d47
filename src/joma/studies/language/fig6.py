"""Figure 6: attention entropy while language models of several depths train from scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_effect, not_run
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, same_text, train_variants
from joma.recipes.language_curves import (
    alive,
    best_loss,
    curve,
    drops_and_rebounds,
    layer_curves,
    learned_at,
    mean_over_seeds,
)
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.language._as_the_paper import differs, not_wikitext_2
from joma.studies.language._fig6_figures import draw_entropy, draw_weights
from joma.studies.language._stored_curves import NEARER, find_stored, keep_distances, near_stored

CLOSE = 0.02  # nats between our best validation loss and the paper's
FLAT = 0.05  # nats of entropy: what curves of single runs of one recipe were seen to differ by (RMS)
SHARE = 0.02  # of its drop: what comes back must be more than that
HIGH = 0.9  # a Pearson correlation that counts as high, here as under softmax attention in the block
MARGIN = 0.05  # by how much a correlation must exceed its control
PRINTED = {
    "wikitext-2": {1: 5.357, 2: 5.255, 5: 5.169, 10: 5.110},
    "wikitext-103": {1: 5.047, 2: 4.912, 5: 4.762, 10: 4.679},
}
"""The best validation losses in the titles of the figure's panels, by layers."""
STEPS_103 = 724_000  # five epochs of WikiText-103: 101.4 million words, 35 at a time from 20 streams
NOTHING = compare([])
"""The comparison of a depth that tells nothing."""


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Models that differ in depth alone, one rate for all."""

    layers: tuple[int, ...] = (1, 2)
    rate: float = 3e-3


ONE = Claim(
    "fig6-one-layer",
    "JoMA Fig. 6",
    "With one layer, attention entropy first drops and then rebounds, as eq. 6 predicts.",
    matters=FLAT,
    unit="nats",
    uses=("eq6/entropy-drops", "eq6/entropy-rebounds"),
)
TOP = Claim(
    "fig6-top-layers",
    "JoMA Fig. 6",
    "With several layers, the attention entropy of the top layers first drops and then rebounds.",
    matters=FLAT,
    unit="nats",
    uses=("fig6/fig6-one-layer",),
)
BOTTOM = Claim(
    "fig6-bottom-layers",
    "JoMA Fig. 6",
    "With several layers, attention entropy is suppressed in the bottom layers: it ends lower there than in the top "
    "layers.",
    matters=FLAT,
    unit="nats",
)
DEEPER = Claim(
    "fig6-deeper-is-better",
    "JoMA Fig. 6",
    "Deeper models reach a lower validation loss.",
    matters=CLOSE,  # losses that are nearer than that are the same loss to this study
    unit="nats",
)
LOSSES = {
    name: Claim(
        f"fig6-losses-{name}",
        "JoMA Fig. 6",
        f"The best validation losses on {name} are {', '.join(f'{loss:.3f}' for loss in printed.values())} "
        f"with {', '.join(map(str, printed))} layers.",
        # The nearest two printed losses have their middle 0.03 from either: one that is off by CLOSE has 0.01 to spare.
        matters=0.01,
        unit="nats",
    )
    for name, printed in PRINTED.items()
}
CURVES = Claim(
    "fig6-curves",
    "JoMA Fig. 6",
    "On WikiText-2, the attention entropy of every layer follows the curves of the runs that the figure shows.",
    matters=NEARER,
    unit="nats",
)
LOGITS = Claim(
    "logits-of-a-language-model",
    "JoMA Thm 1",
    "Softmax logits follow from the MLP's weights as ½Σ(v² − ‖v‖² b̄) + c. This is tested in a real model's first "
    "layer.",
    matters=MARGIN,
    ceiling=1.0,
    uses=("thm1-softmax/softmax-published",),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train one ensemble of seeds per depth; keep the distance to the stored curves where there are any."""
    stored = None if differs(run.config) else find_stored(config.data)  # before the training: it may be damaged
    text = corpus(config, progress)
    run.keep("layers", lambda: np.array(config.layers))
    variants = {_name(layers): recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.layers}
    train_variants(variants, text, run, progress)
    if stored is not None:
        keep_distances(run, {_name(layers): layers for layers in config.layers}, stored)


def _name(layers: int) -> str:
    return f"L{layers}"


Depths = Mapping[int, str]
"""The variants by their number of layers."""


def _variants(run: Run, fewest: int = 1) -> dict[int, str]:
    return {int(layers): _name(int(layers)) for layers in sorted(run.value("layers")) if layers >= fewest}


def _tells(run: Run, name: str) -> bool:
    """Whether the networks of a depth learned more than the words' frequencies; not if all diverged."""
    return bool(learned_at(run, name)[0])


def _untold(claim: Claim, expected: str, run: Run, variants: Depths, *, fewest: int = 1) -> Finding | None:
    """The finding on a claim of which fewer than `fewest` of these depths tell anything; None if enough do."""
    if len(variants) < fewest:
        reason = f"the record has too few depths for this claim: {run.config['layers']} layers"
        return not_run(claim, expected, reason, "joma verify fig6")
    silent = [name for name in variants.values() if not _tells(run, name)]
    if len(variants) - len(silent) >= fewest:
        return None
    lost = [name for name in silent if not alive(run, name).any()]
    reasons = [f"all runs of {', '.join(lost)} diverged"] if lost else []
    reasons += [learned_nothing(run, name) for name in silent if name not in lost]
    remedy = f"a lower --rate than {run.config['rate']:g}" if lost else f"more --steps than {run.config['steps']}"
    return not_run(claim, expected, "; ".join(reasons), f"joma run fig6 with {remedy}")


def _one(run: Run) -> Finding:
    return _rebounds(ONE, run, {layers: name for layers, name in _variants(run).items() if layers == 1})


def _top(run: Run) -> Finding:
    """The top half of the layers; beside it, how many of the bottom half do the same."""
    return _rebounds(TOP, run, _variants(run, fewest=2), first=lambda layers: layers // 2)


def _rebounds(claim: Claim, run: Run, variants: Depths, first: Callable[[int], int] = lambda layers: 0) -> Finding:
    """Every layer from the first on must drop and come back; the control is entropy that stays where it is."""
    expected = (
        f"in each of these layers entropy drops and comes back, both by at least {FLAT:g} nats and by more than seeds "
        f"differ by chance (99 %); more than {show(SHARE, '%')} of the drop comes back"
    )
    if untold := _untold(claim, expected, run, variants):
        return untold
    cases, beside, shares, below = {}, {}, [], []
    for layers, name in variants.items():
        told = _tells(run, name)
        for layer, (drop, back) in enumerate(zip(*drops_and_rebounds(run, name), strict=True)):
            found = _less_certain(drop, back) if told else NOTHING
            if layer < first(layers):
                below.append(found.low > 0)
                continue
            down, up = mean_over_seeds(drop), mean_over_seeds(back)
            cases[case := f"L = {layers}, layer {layer + 1}"] = found
            beside[case] = {"drop": down, "rebound": up}
            shares.append(up / down if down > 0 else nan)
    if below:
        beside["lower layers"] = {"that drop and come back": float(sum(below)), "of": float(len(below))}
    return by_effect(
        claim,
        cases,
        expected=expected,
        what="rebound after a drop",
        size=[above("smallest share of a drop that comes back", float(np.min(shares)), SHARE, "%")],
        details=beside | diverged(run, variants.values()),
    )


def _less_certain(drop: np.ndarray, back: np.ndarray) -> Comparison:
    """A layer that does not drop has nothing to come back from: the one of the two with the lower interval decides."""
    return min((compare(part, 0.0, level=0.99) for part in (drop, back)), key=lambda one: one.low)


def _bottom(run: Run) -> Finding:
    """Top half minus bottom half, at the end; before training it is the control."""
    expected = (
        f"at every depth the top half of the layers ends above the bottom half; this gap is at least {FLAT:g} nats "
        "larger than before training, and larger by more than seeds differ (95 %)"
    )
    variants = _variants(run, fewest=2)
    if untold := _untold(BOTTOM, expected, run, variants):
        return untold
    cases, ends = {}, []
    for layers, name in variants.items():
        curves = layer_curves(run, name)  # (layers, seeds, points)
        gap = curves[layers // 2 :].mean(0) - curves[: layers // 2].mean(0)
        told = _tells(run, name)
        cases[f"L = {layers}"] = compare(gap[:, -1], gap[:, 0]) if told else NOTHING
        ends.append(compare(gap[:, -1]).low if told else nan)
    return by_effect(
        BOTTOM,
        cases,
        expected=expected,
        what="entropy of the top half minus the bottom half, at the end",
        size=[above("smallest lower end of the gap, control not subtracted", float(np.min(ends)), 0.0, "nats")],
        details=diverged(run, variants.values()),
    )


def _deeper(run: Run) -> Finding:
    """The control of a depth is the one before it, seed by seed; and the deepest must be below the shallowest."""
    expected = (
        f"each depth has a loss at least {CLOSE:g} nats below the depth before, and by more than seeds differ (95 %)"
    )
    variants = _variants(run)
    if untold := _untold(DEEPER, expected, run, variants, fewest=2):
        return untold
    losses = {layers: best_loss(run, name)[0] for layers, name in variants.items()}
    compared = {layers: loss if _tells(run, variants[layers]) else loss * nan for layers, loss in losses.items()}
    depths = list(losses)
    cases = {
        f"L = {deep} against {shallow}": compare(compared[shallow] - compared[deep])
        for shallow, deep in pairwise(depths)
    }
    whole = compare(compared[depths[0]] - compared[depths[-1]]).low
    return by_effect(
        DEEPER,
        cases,
        expected=expected,
        what="fall of the best validation loss",
        controls=[above("fall from shallowest to deepest, lower end", whole, 0.0, "nats")] if len(depths) > 2 else (),
        details={
            "best validation loss": {f"L = {layers}": mean_over_seeds(loss) for layers, loss in losses.items()},
            **diverged(run, variants.values()),
        },
    )


def _losses(name: str, run: Run) -> Finding:
    """A loss must lie nearer to its own printed one than to the middle between that and the next printed one."""
    claim, printed = LOSSES[name], PRINTED[name]
    expected = (
        ", ".join(f"{loss:.3f} (L = {layers})" for layers, loss in printed.items())
        + f"; each loss is within {CLOSE:g} nats of its own printed one, and nearer to it than to any other (95 %)"
    )
    wanted: dict[str, Any] = {"corpus": name, "layers": list(printed), "rate": 1e-4}
    config = run.config if name == "wikitext-2" else {**run.config, "steps": PAPER["steps"]}  # five epochs, not twenty
    if reason := differs(config, **wanted) or (name == "wikitext-2" and not_wikitext_2(run)):
        command = "JOMA_DATA=FOLDER joma verify fig6 --scale paper"
        if name != "wikitext-2":
            command = f"JOMA_DATA=FOLDER joma run fig6 --scale paper --corpus {name} --steps {STEPS_103}"
        return not_run(claim, expected, reason, command)
    variants = _variants(run)
    if untold := _untold(claim, expected, run, variants):
        return untold
    losses = {layers: best_loss(run, variants[layers])[0] for layers in printed}
    means = {layers: mean_over_seeds(loss) for layers, loss in losses.items()}
    return by_effect(
        claim,
        {
            f"L = {layers}": compare(_middle(layers, printed) - np.abs(loss - printed[layers]))
            if _tells(run, variants[layers])
            else NOTHING
            for layers, loss in losses.items()
        },
        expected=expected,
        what="margin: half the distance between two printed losses, minus the distance from its own",
        size=[at_most("largest distance from a printed loss", _farthest(means, printed), CLOSE, "nats")],
        details={"best validation loss": {f"L = {layers}": mean for layers, mean in means.items()}},
    )


def _middle(layers: int, printed: Mapping[int, float]) -> float:
    """How far the middle between a depth's printed loss and the nearest one of another depth is."""
    return min(abs(printed[layers] - loss) for other, loss in printed.items() if other != layers) / 2


def _farthest(means: Mapping[int, float], printed: Mapping[int, float]) -> float:
    return float(np.max([abs(mean - printed[layers]) for layers, mean in means.items()]))  # NaN if a depth diverged


def _curves(run: Run) -> Finding:
    return near_stored(CURVES, run)


def _logits(run: Run) -> Finding:
    """Theorem 1 beside the words' log frequency, each by its correlation with the changes of the logits."""
    expected = f"at the end of training, a correlation of at least {HIGH} over the most frequent words"
    layers, name = min(_variants(run).items())
    if untold := _untold(LOGITS, expected, run, {layers: name}):
        return untold
    if f"{name}/estimate/theorem" not in run:
        reason = "with several heads the theorem does not say which logits it means"
        return not_run(LOGITS, expected, reason, "joma verify fig6")
    theorem, squares, frequency = (
        np.where(alive(run, name)[0], curve(run, name, f"estimate/{part}")[0, :, -1], nan)
        for part in ("theorem", "squares", "frequency")
    )
    found = compare(theorem, frequency * np.sign(mean_over_seeds(frequency)))  # a negative one tells as much
    if not found.seeds:
        reason = (
            "a correlation cannot be computed: the changes of the logits, or their predictions, are the same for all "
            "words or not finite"
        )
        return not_run(LOGITS, expected, reason, "joma verify fig6")
    return by_effect(
        LOGITS,
        found,
        expected=expected,
        what="correlation of the logits' changes with Theorem 1",
        size=[at_least("mean correlation", found.value, HIGH)],
        details={f"L = {layers}": _beside_the_theorem(squares, frequency), **diverged(run, [name])},
    )


def _beside_the_theorem(squares: np.ndarray, frequency: np.ndarray) -> dict[str, float]:
    numbers = {"½Σv² alone": mean_over_seeds(squares), "log frequency, with its sign": mean_over_seeds(frequency)}
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer for every depth beside the losses, and what else was recorded of the deepest model."""
    printed = {} if differs(run.config, rate=1e-4) or not_wikitext_2(run) else PRINTED.get(run.config["corpus"], {})
    return [draw_entropy(run, _variants(run), printed), draw_weights(run, _variants(run), HIGH)]


STUDY = Study(
    name="fig6",
    title="Figure 6: attention entropy over the training of language models",
    version=3,
    claims=(ONE, TOP, BOTTOM, DEEPER, *LOSSES.values(), CURVES, LOGITS),
    quick=Config(),
    paper=Config(**PAPER, layers=(1, 2, 5, 10), rate=1e-4, seeds=5),
    run=run,
    judge=each_claim(_one, _top, _bottom, _deeper, *(partial(_losses, name) for name in PRINTED), _curves, _logits),
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
