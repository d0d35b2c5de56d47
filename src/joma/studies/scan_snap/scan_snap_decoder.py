"""Attention in the lowest layer of decoders that are trained with SGD: does it become sparse, and does it freeze?"""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_most
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, not_run
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, corpus, same_text
from joma.recipes.language_curves import alive, best_loss, layer_curves, mean_over_seeds, steps_of
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.scan_snap._decoder_figures import draw_entropy, draw_maps
from joma.studies.scan_snap._decoders import SHUFFLED, TEXT, Config, depths, layers_of, moved, train

STILL = 0.1  # of what attention moved while it became sparse: what moves by less is frozen

SPARSE = Claim(
    "attention-becomes-sparse",
    "JoMA talk slide WikiText2",
    "Attention in the lowest layer becomes sparse over the first 1500 steps of SGD at rate 5, in 1 and in 3 layers.",
    matters=0.05,  # of the untrained entropy: as in Figure 8, a layer that drops by less has not dropped
    unit="%",
    ceiling=1.0,
)
FROZEN = Claim(
    "attention-freezes",
    "JoMA talk slide Frozen",
    "Once attention is sparse it is frozen: later training hardly moves it.",
    matters=0.1,  # of all attention: a map that moved by less looks the same to the eye
    unit="%",
    ceiling=1.0,
    uses=("scan-snap/attention-frozen",),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all depths on the text and on its words in random order."""
    train(config, corpus(config, progress), run, progress)


def _unlearned(claim: Claim, expected: str, run: Run) -> Finding | None:
    for layers in depths(run.config):
        if reason := learned_nothing(run, layers_of(layers), rate=TEXT):
            return not_run(claim, expected, reason, f"joma run {STUDY.name} with more --steps or another --rate")
    return None


def _judged_at(run: Run) -> int:
    """The step at which the slide's last map is taken."""
    return int(run.config["maps_at"][-1])


def _lost(run: Run, layers: int, text: int, step: int) -> np.ndarray:
    """Which share of the untrained lowest layer's entropy is lost at `step`, (seeds,); NaN for runs that diverged."""
    name = layers_of(layers)
    curves, kept = layer_curves(run, name, rate=text)[0], alive(run, name)[text]  # (seeds, points)
    at = int(np.flatnonzero(steps_of(run, name) == step)[0])
    found = np.full(len(kept), np.nan)
    found[kept] = 1 - curves[:, at] / curves[:, 0]
    return found


def _sparse(run: Run) -> Finding:
    """What is lost of the untrained network's entropy, against what the twin loses that reads words in random order."""
    step = _judged_at(run)
    expected = (
        f"At step {step:,} the lowest layer has lost at least {show(0.05, '%')} more of its untrained entropy than the "
        "untrained network (nothing) and than a twin that reads the same words in random order."
    )
    if untold := _unlearned(SPARSE, expected, run):
        return untold
    cases: dict[str, Comparison] = {}
    beside: dict[str, dict[str, float]] = {}
    for layers in depths(run.config):
        own, twin = (_lost(run, layers, text, step) for text in (TEXT, SHUFFLED))
        controls = {"nothing": compare(own), "twin": compare(own, twin)}
        (cases[layers_of(layers)],) = hardest(SPARSE, controls).values()
        beside[f"share lost with {layers_of(layers)}"] = {
            f"at step {step:,}": mean_over_seeds(own),
            f"by the twin at step {step:,}": mean_over_seeds(twin),
            "at the end": mean_over_seeds(_lost(run, layers, TEXT, int(run.config["steps"]))),
        }
    return by_effect(
        SPARSE, cases, expected=expected, what="share of the entropy that is lost", details=beside | _context(run)
    )


def _frozen(run: Run) -> Finding:
    """How far the map moves in the first steps against as many of the last, on one held-out sequence."""
    step, end = _judged_at(run), int(run.config["steps"])
    expected = (
        f"The attention map moves far in the first {step:,} steps, and in the last {step:,} of {end:,} by at most "
        f"{show(STILL, '%')} of that."
    )
    if untold := _unlearned(FROZEN, expected, run):
        return untold
    cases: dict[str, Comparison] = {}
    late_share, beside = [], {}
    for layers in depths(run.config):
        kept, spans = alive(run, layers_of(layers))[TEXT], ((0, step), (end - step, end))
        early, late = (np.where(kept, moved(run, layers, *span)[TEXT], np.nan) for span in spans)
        cases[layers_of(layers)] = compare(early, late)
        late_share.append(mean_over_seeds(late) / mean_over_seeds(early))
        beside[f"share of attention that moves with {layers_of(layers)}"] = {
            f"in the first {step:,} steps": mean_over_seeds(early),
            f"in the last {step:,}": mean_over_seeds(late),
        }
    return by_effect(
        FROZEN,
        cases,
        expected=expected,
        what="share of attention that moves",
        size=[at_most("largest late movement as a share of the early one", max(late_share), STILL, "%")],
        details=beside | _context(run),
    )


def _context(run: Run) -> dict[str, dict[str, float]]:
    """Losses, and what diverged."""
    names = [layers_of(layers) for layers in depths(run.config)]
    losses = {
        f"{name}{', words in random order' * text}": mean_over_seeds(best_loss(run, name)[text])
        for name in names
        for text in (TEXT, SHUFFLED)
    }
    finite = {name: loss for name, loss in losses.items() if np.isfinite(loss)}
    return {"best validation loss": finite} | diverged(run, names)


def draw(run: Run) -> list[Drawing]:
    """The maps of the slide, and the entropy over training."""
    return [draw_maps(run), draw_entropy(run)]


STUDY = Study(
    name="scan-snap-decoder",
    title="Attention maps of decoders trained with SGD: sparse, then frozen?",
    version=1,
    claims=(SPARSE, FROZEN),
    quick=Config(
        vocabulary=200, width=16, mlp=16, dropout=0.0, streams=4, valid_sequences=3, sequence=5, steps=180, every=45,
        maps_at=(30, 60, 90),
        seeds=5,
    ),
    paper=Config(**PAPER | {"steps": 10_000, "every": 500, "valid_sequences": 60}, seeds=5),
    run=run,
    judge=each_claim(_sparse, _frozen),
    draw=draw,
    check=same_text,
    about=(
        "Decoders of one and of three layers read a text with SGD at rate 5, the recipe of Figures 6 and 8 otherwise. "
        "The lowest layer's attention is recorded on one held-out sequence at the steps of the slide, and its mean "
        "entropy on held-out text. Twins read the same words in random order: what they lose of their entropy needs no "
        "context. A network that learns no more than how frequent words are does not count."
    ),
)  # fmt: skip
