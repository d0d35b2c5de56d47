"""Section 5 where it can fail: does training make hidden neurons stand for the latents of HBLT(ρ), on fresh samples?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_least
from joma.claims.verdicts import Numbers, not_run
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.hierarchy._hblt_figures import draw_gains, draw_scores
from joma.studies.hierarchy._hblt_networks import KINDS, Config, Members
from joma.studies.hierarchy._judging import Fates, at_paper_scale, beyond, check_device, of_learned
from joma.studies.hierarchy._latents import ALL_BLOCKS, BLOCKS, ensemble_of, mean_known, over_seeds
from joma.training import class_loss, train_all

MARGIN = 0.02  # of a correlation: smaller gains are not worth the name
EARLIER = 0.05  # of the final gain
ERRORS = 3  # a network learned if it tells classes better than luck by so many standard errors of its fresh samples
ANY, LAST = ALL_BLOCKS, BLOCKS - 1  # places


REPRESENT = Claim(
    "nodes-represent-latents",
    "JoMA Sec. 5",
    "While the hierarchy is learned, hidden nodes of the MLP come to stand for its latents.",
    matters=MARGIN,
    ceiling=1.0,
)
LOW = Claim(
    "lowest-latents-in-first-block",
    "JoMA Fig. 5",
    "Hidden nodes of the first block come to stand for the lowest latents.",
    matters=MARGIN,
    ceiling=1.0,
    uses=("hblt-alignment/nodes-represent-latents",),
)
HIGH = Claim(
    "higher-latents-above",
    "JoMA Fig. 5",
    "Higher blocks form features of a higher level: their hidden nodes come to stand for the latents above the lowest.",
    matters=MARGIN,
    ceiling=1.0,
    uses=("hblt-alignment/nodes-represent-latents",),
)
ORDER = Claim(
    "levels-follow-blocks",
    "JoMA Sec. 5",
    "Levels of latents correspond to blocks: a higher latent is represented in a later block.",
    matters=MARGIN,
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
READABLE = Claim(
    "hierarchy-is-learned",
    "JoMA Sec. 5",
    "The latent hierarchy is learned implicitly: hidden layers show the latents more clearly than the tokens do.",
    matters=MARGIN,
    ceiling=1.0,
)
CERTAIN = Claim(
    "alignment-without-noise",
    "JoMA Sec. 6",
    "Where the class determines all latents and tokens, the alignment of hidden nodes shows that the latents are "
    "learned.",
    matters=MARGIN,
    ceiling=1.0,
    uses=("table1/latents-are-learned",),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train the ensemble of each depth, measuring it on the way."""
    check_device(config.device, "hblt-alignment")
    members = {f"depth {depth}": Members(config, depth) for depth in config.depths}
    for name, who in members.items():
        run.keep(f"{name}/tokens", who.read_from_tokens)
    train_all({name: ensemble_of(who, class_loss) for name, who in members.items()}, run, progress=progress)


Pick = Callable[[int, Any], Any]
"""Of a depth, what a claim is about in (seeds, rhos, places, levels)."""


class Scores:
    """What a run recorded, by depth; level 0 stands right above the tokens.

    only_learned: scores of networks that diverged or did not learn their classes are NaN, before training too.
    """

    def __init__(self, run: Run, *, only_learned: bool = False) -> None:
        self.depths: list[int] = run.config["depths"]
        self.rhos = np.array(run.config["rhos"])
        self.noisy = self.rhos < 1
        self.steps = run.steps(f"depth {self.depths[0]}/scores")
        self.seeds = int(run.config["seeds"])
        self._all, self.tokens, self.fates = {}, {}, {}
        for depth in self.depths:
            scores = run.array(f"depth {depth}/scores")  # (steps, members, kinds, places, levels)
            self._all[depth] = scores.reshape(len(self.steps), len(self.rhos), self.seeds, *scores.shape[2:])
            self.tokens[depth] = run.value(f"depth {depth}/tokens").reshape(len(self.rhos), self.seeds, -1)
            self.fates[depth] = self._fates(run, depth)
            if only_learned:
                kept = self.fates[depth].kept[None, :, :, None, None, None]
                self._all[depth] = np.where(kept, self._all[depth], np.nan)

    def _fates(self, run: Run, depth: int) -> Fates:
        """(rhos, seeds)."""
        luck = 1 / run.config["classes"]
        error = np.sqrt(luck * (1 - luck) / run.config["samples"])
        shape = len(self.rhos), self.seeds
        told, diverged = (run.array(f"depth {depth}/{name}")[-1].reshape(shape) for name in ("accuracy", "diverged_at"))
        return Fates(diverged >= 0, told > luck + ERRORS * error)

    def of(self, rhos: Any) -> Fates:
        """What became of the networks with these rhos (a mask), at every depth."""
        some = [self.fates[depth].of(rhos) for depth in self.depths]
        return Fates(*(np.concatenate([fates[i] for fates in some]) for i in (0, 1)))

    def at(self, depth: int, kind: str, step: int) -> Any:
        """(seeds, rhos, places, levels); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self._all[depth][step, :, :, KINDS.index(kind)].swapaxes(0, 1)

    def picked(self, kind: str, pick: Pick, step: int) -> Any:
        """(seeds, all that `pick` takes of each depth)."""
        return np.concatenate([pick(d, self.at(d, kind, step)).reshape(self.seeds, -1) for d in self.depths], axis=1)

    def gain(self, kind: str, pick: Pick) -> Comparison:
        """Trained against untrained."""
        return over_seeds(*(self.picked(kind, pick, step) for step in (-1, 0)))

    def cells(self) -> list[tuple[int, int, float, list[Comparison]]]:
        """Depth, level, rho, and the neuron's gain in each block."""
        return [
            (depth, level, float(rho), [self.in_block(depth, level, r, block) for block in range(BLOCKS)])
            for depth in self.depths
            for level in range(depth - 1)
            for r, rho in enumerate(self.rhos)
        ]

    def gained(self, level: int, step: int) -> Any:
        """(seeds,) what one level of trees with several has gained by then, in any block, mean over trees and ρ < 1."""
        change = [self.at(d, "neuron", step) - self.at(d, "neuron", 0) for d in self.depths if d > 2]
        return mean_known(np.concatenate([x[:, self.noisy, ANY, level] for x in change], axis=1), 1)

    def in_block(self, depth: int, level: int, rho: Any, place: int, step: int = -1) -> Comparison:
        """Of the neuron; rho is an index or a mask."""
        return over_seeds(*(self.at(depth, "neuron", s)[:, rho, place, level] for s in (step, 0)))


def _represent(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    return _finding(REPRESENT, scores, lambda _, x: x[:, scores.noisy, ANY], details=_where(scores))


def _low(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    return _finding(LOW, scores, lambda _, x: x[:, scores.noisy, 0, 0])


def _high(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)

    def own_blocks(depth: int, x: Any) -> Any:
        """Levels above the lowest, each in the block that corresponds to it."""
        x = x[:, scores.noisy]
        return np.stack([x[:, :, min(level, LAST), level] for level in range(1, depth - 1)] or [x[:, :0, 0, 0]], -1)

    return _finding(HIGH, scores, own_blocks)


def _certain(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    return _finding(CERTAIN, scores, lambda _, x: x[:, ~scores.noisy, ANY], rhos=~scores.noisy)


def _finding(claim: Claim, scores: Scores, pick: Pick, *, rhos: Any = None, details: Numbers | None = None) -> Finding:
    """The best neuron against that of the untrained network, and against latents of other samples."""
    permuted = over_seeds(*(scores.picked(kind, pick, -1) for kind in ("neuron", "neuron, permuted latents")))
    return of_learned(
        claim,
        scores.gain("neuron", pick),
        fates=scores.of(scores.noisy if rhos is None else rhos),
        study="hblt-alignment",
        what="correlation of a latent with its best hidden neuron, on fresh samples",
        expected=(
            f"a correlation at least {MARGIN} above the untrained network, and above latents permuted between samples"
        ),
        controls=[beyond("the gain over permuted latents", permuted, matters=MARGIN)],
        details=details,
    )


def _order(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)

    def slope(depth: int, x: Any) -> Any:
        """How much more a top latent gains from the first to the last block than a lowest one."""
        x = x[:, scores.noisy] if depth > 2 else x[:, :0]
        rise = x[:, :, LAST] - x[:, :, 0]
        return rise[..., -1] - rise[..., 0]

    return of_learned(
        ORDER,
        scores.gain("neuron", slope),
        fates=scores.of(scores.noisy),
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
    return of_learned(FIRST, found, fates=fates, study="hblt-alignment", what=what, expected=expected)


def _readable(run: Run) -> Finding:
    """All neurons together against those of the untrained network and against the tokens themselves."""
    scores = Scores(run, only_learned=True)
    probes = scores.picked("linear probe", lambda _, x: x[:, scores.noisy, ANY], -1)
    tokens = [scores.tokens[d].swapaxes(0, 1)[:, scores.noisy].reshape(scores.seeds, -1) for d in scores.depths]
    beyond_tokens = over_seeds(probes, np.concatenate(tokens, 1))
    return of_learned(
        READABLE,
        scores.gain("linear probe", lambda _, x: x[:, scores.noisy, ANY]),
        fates=scores.of(scores.noisy),
        study="hblt-alignment",
        what="correlation of a latent with a linear probe of all hidden neurons",
        expected=f"a probe at least {MARGIN} above one of the untrained network and one of the tokens themselves",
        size=[
            at_least("gain over a probe of the tokens", beyond_tokens.difference, MARGIN),
            beyond("the gain over a probe of the tokens", beyond_tokens),
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


TITLES = ("L", "height", "ρ", *(f"untrained {b + 1}" for b in range(BLOCKS)), *(f"gain {b + 1}" for b in range(BLOCKS)))


def table(run: Run) -> list[tuple[str, ...]]:
    """Held-out score of the untrained network and gain by training with its 95 % interval, in each block."""
    return [
        (
            str(depth),
            str(level + 1),
            f"{rho:g}",
            *(f"{b.control:.2f}" for b in blocks),
            *(f"{b.difference:+.3f} ± {b.half_width:.3f}" for b in blocks),
        )
        for depth, level, rho, blocks in Scores(run).cells()
    ]


def draw(run: Run) -> list[Drawing]:
    """The scores against ρ, and the gain block by block and over training."""
    scores = Scores(run)
    return [draw_scores(scores), draw_gains(scores)]


STUDY = Study(
    name="hblt-alignment",
    title="Section 5: does training align neurons with latents?",
    version=2,
    claims=(REPRESENT, LOW, HIGH, ORDER, FIRST, READABLE, CERTAIN),
    quick=Config(),
    paper=Config(
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
    judge=each_claim(_represent, _low, _high, _order, _first, _readable, _certain),
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
