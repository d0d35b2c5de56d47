"""The study `hblt-alignment`: its claims, which effects matter, and what was found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import at_least
from joma.claims.guards import at_paper_scale, clears
from joma.claims.sentences import show
from joma.claims.verdicts import not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.hierarchy._networks import ALL_BLOCKS, BLOCKS, over_seeds
from joma.studies.hierarchy.hblt_alignment.figures import draw
from joma.studies.hierarchy.hblt_alignment.record import Pick, Scores
from joma.studies.hierarchy.hblt_alignment.run import HBLTAlignmentConfig, run

MARGIN = 0.02  # of a correlation: smaller gains are not worth the name
EARLIER = 0.05  # of the final gain
ANY, LAST = ALL_BLOCKS, BLOCKS - 1  # places

_claim = partial(Claim, matters=MARGIN, ceiling=1.0)
REPRESENT = _claim(
    "nodes-represent-latents",
    "JoMA Sec. 5",
    "While the hierarchy is learned, hidden nodes of the MLP come to stand for its latents.",
)
LOW = _claim(
    "lowest-latents-in-first-block",
    "JoMA Fig. 5",
    "Hidden nodes of the first block come to stand for the lowest latents.",
    uses=("hblt-alignment/nodes-represent-latents",),
)
HIGH = _claim(
    "higher-latents-above",
    "JoMA Fig. 5",
    "Higher blocks form features of a higher level: their hidden nodes come to stand for the latents above the lowest.",
    uses=("hblt-alignment/nodes-represent-latents",),
)
ORDER = _claim(
    "levels-follow-blocks",
    "JoMA Sec. 5",
    "Levels of latents correspond to blocks: a higher latent is represented in a later block.",
    ceiling=None,
    uses=("hblt-alignment/lowest-latents-in-first-block", "hblt-alignment/higher-latents-above"),
)
FIRST = Claim(
    "lowest-latents-first",
    "JoMA Fig. 5",
    "The lowest latents are learned first, then the latents above them.",
    matters=EARLIER,
    unit="%",
    uses=("hblt-alignment/nodes-represent-latents", "thm5/shallow-means-often"),
)
READABLE = _claim(
    "hierarchy-is-learned",
    "JoMA Sec. 5",
    "The latent hierarchy is learned implicitly: hidden layers show the latents more clearly than the tokens do.",
)
CERTAIN = _claim(
    "alignment-without-noise",
    "JoMA Sec. 6",
    "Where the class determines all latents and tokens, the alignment of hidden nodes shows that the latents are "
    "learned.",
    uses=("table1/latents-are-learned",),
)


def _finding(claim: Claim, pick: Pick, run: Run, *, noisy: bool = True) -> Finding:
    """The best neuron against that of the untrained network, and against latents of other samples.

    noisy: of the networks with ρ < 1, else of those with ρ = 1; `pick` gets theirs alone.
    """
    scores = Scores(run, only_learned=True)
    rhos = scores.noisy if noisy else ~scores.noisy
    mine: Pick = lambda depth, x: pick(depth, x[:, rhos])
    permuted = over_seeds(*(scores.picked(kind, mine, -1) for kind in ("neuron", "neuron, permuted latents")))
    return scores.of(rhos).judged(
        claim,
        scores.gain("neuron", mine),
        study="hblt-alignment",
        what="correlation of a latent with its best hidden neuron, on fresh samples",
        expected=(
            f"a correlation at least {MARGIN} above the untrained network, and above latents permuted between samples"
        ),
        controls=[clears("the gain over permuted latents", permuted, matters=MARGIN)],
        details=_where(scores) if claim is REPRESENT else None,
    )


def _own_blocks(depth: int, x: Any) -> Any:
    """Levels above the lowest, each in the block that corresponds to it."""
    return np.stack([x[:, :, min(level, LAST), level] for level in range(1, depth - 1)] or [x[:, :0, 0, 0]], -1)


def _order(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)

    def slope(depth: int, x: Any) -> Any:
        """How much more a top latent gains from the first to the last block than a lowest one."""
        x = x[:, scores.noisy] if depth > 2 else x[:, :0]
        rise = x[:, :, LAST] - x[:, :, 0]
        return rise[..., -1] - rise[..., 0]

    return scores.of(scores.noisy).judged(
        ORDER,
        scores.gain("neuron", slope),
        study="hblt-alignment",
        what="rise of the correlation from the first to the last block, top latents minus lowest latents",
        expected=f"training makes this rise larger for top latents than for lowest latents, by at least {MARGIN}",
    )


def _first(run: Run) -> Finding:
    """Of what a level gains in the end, how much has it gained on the way, in the mean over the measuring points?"""
    scores = Scores(run, only_learned=True)
    expected = (
        "during training, the lowest latents have a larger share of their final gain than the top latents, by at "
        f"least {show(EARLIER, '%')}"
    )

    def share(level: int) -> Any:
        """(seeds,); NaN where there is nothing to gain."""
        gained = np.stack([scores.gained(level, step) for step in range(1, len(scores.steps))])  # (steps, seeds)
        return np.where(gained[-1] > MARGIN, gained[:-1].mean(0) / np.maximum(gained[-1], MARGIN), np.nan)

    found, fates = compare(share(0), share(-1)), scores.of(scores.noisy)
    if not found.seeds and fates.kept.any():
        reason = f"no network gained {MARGIN} at both levels, so there is no order to measure"
        return not_run(FIRST, expected, reason, at_paper_scale("hblt-alignment"))
    what = "share of their final gain that the lowest latents have during training (control: the top latents)"
    return fates.judged(FIRST, found, study="hblt-alignment", what=what, expected=expected)


def _readable(run: Run) -> Finding:
    """All neurons together against those of the untrained network and against the tokens themselves."""
    scores = Scores(run, only_learned=True)
    probes = scores.picked("linear probe", lambda _, x: x[:, scores.noisy, ANY], -1)
    tokens = [scores.tokens[d].swapaxes(0, 1)[:, scores.noisy].reshape(scores.seeds, -1) for d in scores.depths]
    beyond_tokens = over_seeds(probes, np.concatenate(tokens, 1))
    return scores.of(scores.noisy).judged(
        READABLE,
        scores.gain("linear probe", lambda _, x: x[:, scores.noisy, ANY]),
        study="hblt-alignment",
        what="correlation of a latent with a linear probe of all hidden neurons",
        expected=f"a probe at least {MARGIN} above one of the untrained network and one of the tokens themselves",
        size=[
            at_least("gain over a probe of the tokens", beyond_tokens.difference, MARGIN),
            clears("the gain over a probe of the tokens", beyond_tokens),
        ],
        details={"a probe of the tokens": {"correlation": beyond_tokens.control}},
    )


def _where(scores: Scores) -> dict[str, dict[str, float]]:
    """In how many places training does something, and where most."""
    cells = [
        (found, f"largest in block {block + 1}, height {level + 1} of depth {depth}, ρ = {rho:g}")
        for depth, level, rho, blocks in scores.cells()
        if rho < 1
        for block, found in enumerate(blocks)
    ]
    clear = sum(found.low > found.control and found.difference >= MARGIN for found, _ in cells)
    most, place = max(cells, key=lambda cell: np.nan_to_num(cell[0].difference, nan=-np.inf))
    return {
        "places with a clear gain": {"number": float(clear), "of": float(len(cells))},
        place: {"gain": most.difference, "half of its interval": most.half_width},
    }


STUDY = Study(
    name="hblt-alignment",
    title="Section 5: does training align neurons with latents?",
    version=2,
    claims={
        REPRESENT: partial(_finding, REPRESENT, lambda _, x: x[:, :, ANY]),
        LOW: partial(_finding, LOW, lambda _, x: x[:, :, 0, 0]),
        HIGH: partial(_finding, HIGH, _own_blocks),
        ORDER: _order,
        FIRST: _first,
        READABLE: _readable,
        CERTAIN: partial(_finding, CERTAIN, lambda _, x: x[:, :, ANY], noisy=False),
    },
    quick=HBLTAlignmentConfig(),
    paper=HBLTAlignmentConfig(
        depths=(2, 3, 4),
        rhos=(1.0, 0.9, 0.8, 0.6, 0.4),
        seeds=5,
        classes=10,
        tokens=5,
        width=256,
        steps=3000,
        look_at=(100, 300, 1000, 2000),
        rate=1e-4,
        batch=128,
        samples=2000,
        device="cuda",
        precision="tf32",
    ),
    run=run,
    draw=draw,
    about=(
        "Three-block Transformers learn to tell the classes of HBLT(ρ) trees apart, for several depths. Every batch "
        "is fresh. For each latent, the hidden neuron that correlates with it most is chosen on some samples and "
        "scored on other samples. A linear probe of all neurons is scored in the same way. An untrained network "
        "already holds many random features of its input. Therefore a verdict comes from the interval over seeds of "
        "trained minus untrained. Latents permuted between samples measure what chance alone gives. A network that "
        "tells classes no better than chance at the end did not learn and does not count."
    ),
)
