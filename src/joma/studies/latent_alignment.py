"""Section 5 where it can fail: does training make hidden neurons stand for the latents of HBLT(ρ), on fresh samples?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies._hblt_networks import KINDS, Config, Members
from joma.studies._latent_networks import BLOCKS, Gain, check_device, ensemble_of, gain, mean_known
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, ORANGE, depth_colours, panels
from joma.studies.verdicts import by_effect
from joma.training import class_loss, train_all

MARGIN = 0.02  # of a correlation: smaller gains are not worth the name
EARLIER = 0.05  # of the final gain
ANY, LAST = BLOCKS, BLOCKS - 1  # places: the blocks, and one more for all of them together


REPRESENT = Claim(
    "nodes-represent-latents",
    "JoMA Sec. 5",
    "As the hierarchy is learned, hidden nodes of the MLP come to stand for its latents.",
    empirical=True,
)
LOW = Claim(
    "lowest-latents-in-first-block",
    "JoMA Fig. 5",
    "Hidden nodes of the first block come to stand for the lowest latents.",
    empirical=True,
)
HIGH = Claim(
    "higher-latents-above",
    "JoMA Fig. 5",
    "Blocks above form features of a higher level: their hidden nodes come to stand for the latents above the lowest.",
    empirical=True,
)
ORDER = Claim(
    "levels-follow-blocks",
    "JoMA Sec. 5",
    "Levels of latents correspond to blocks: the higher the latent, the later the block that stands for it.",
    empirical=True,
)
FIRST = Claim(
    "lowest-latents-first",
    "JoMA Fig. 5",
    "The lowest latents are learned first, then the ones above them.",
    empirical=True,
)
READABLE = Claim(
    "hierarchy-is-learned",
    "JoMA Sec. 5",
    "The latent hierarchy is learned implicitly: hidden layers make the latents plainer than the tokens do.",
    empirical=True,
)
CERTAIN = Claim(
    "alignment-without-noise",
    "JoMA Sec. 6",
    "Where the class determines all latents and tokens, the alignment of hidden nodes verifies that they are learned.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train the ensemble of each depth, measuring it on the way."""
    check_device(config.device, "hblt-alignment")
    members = {f"depth {depth}": Members(config, depth) for depth in config.depths}
    for name, who in members.items():
        run.keep(f"{name}/tokens", who.read_from_tokens)
    train_all({name: ensemble_of(who, class_loss) for name, who in members.items()}, run, progress=progress)


class Scores:
    """What a run recorded, by depth; level 0 stands right above the tokens."""

    def __init__(self, run: Run) -> None:
        self.depths: list[int] = run.config["depths"]
        self.rhos = np.array(run.config["rhos"])
        self.noisy = self.rhos < 1
        self.steps = run.steps(f"depth {self.depths[0]}/scores")
        seeds = self.seeds = int(run.config["seeds"])
        self._all, self.tokens, self.diverged = {}, {}, 0
        for depth in self.depths:
            scores = run.array(f"depth {depth}/scores")  # (steps, members, kinds, places, levels)
            self._all[depth] = scores.reshape(len(self.steps), len(self.rhos), seeds, *scores.shape[2:])
            self.tokens[depth] = run.value(f"depth {depth}/tokens").reshape(len(self.rhos), seeds, -1)
            self.diverged += int((run.array(f"depth {depth}/diverged_at")[-1] >= 0).sum())

    def at(self, depth: int, kind: str, step: int) -> Any:
        """(seeds, rhos, places, levels); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self._all[depth][step, :, :, KINDS.index(kind)].swapaxes(0, 1)

    def gain(self, kind: str, pick: Callable[[int, Any], Any]) -> Gain:
        """Trained against untrained in all that `pick` takes from (seeds, rhos, places, levels) of each depth."""
        both = (
            np.concatenate([pick(d, self.at(d, kind, s)).reshape(self.seeds, -1) for d in self.depths], axis=1)
            for s in (-1, 0)
        )
        return gain(*both)

    def cells(self) -> list[tuple[int, int, float, list[Gain]]]:
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

    def in_block(self, depth: int, level: int, rho: Any, place: int, step: int = -1) -> Gain:
        """Of the neuron; rho is an index or a mask."""
        return gain(*(self.at(depth, "neuron", s)[:, rho, place, level] for s in (step, 0)))


def judge(run: Run) -> list[Finding]:
    """Every score of trained networks against the same score of the same networks before training."""
    scores = Scores(run)
    noisy, certain = scores.noisy, ~scores.noisy

    def own_blocks(depth: int, x: Any) -> Any:
        """Levels above the lowest, each in the block that corresponds to it."""
        return np.stack([x[:, noisy, min(level, LAST), level] for level in range(1, depth - 1)] or [x[:, :0, 0, 0]], -1)

    def slope(depth: int, x: Any) -> Any:
        """How much more a top latent gains from the first to the last block than a lowest one."""
        x = x[:, noisy] if depth > 2 else x[:, :0]
        rise = x[:, :, LAST] - x[:, :, 0]
        return rise[..., -1] - rise[..., 0]

    return [
        _finding(REPRESENT, scores, lambda _, x: x[:, noisy, ANY], _where(scores)),
        _finding(LOW, scores, lambda _, x: x[:, noisy, 0, 0]),
        _finding(HIGH, scores, own_blocks),
        _finding(ORDER, scores, slope, "the rise from the first to the last block, top minus lowest latents"),
        _first_finding(scores),
        _readable_finding(scores),
        _finding(CERTAIN, scores, lambda _, x: x[:, certain, ANY]),
    ]


def _finding(claim: Claim, scores: Scores, pick: Callable[[int, Any], Any], remark: str = "") -> Finding:
    found = scores.gain("neuron", pick)
    chance = scores.gain("neuron, permuted latents", pick).trained
    return by_effect(
        claim,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        expected=f"above the untrained network by {MARGIN} and by more than the 95 % interval over seeds",
        shown=f"{found.trained:.3f}, {found} against untrained" + (f"; {remark}" if remark else "") + _lost(scores),
        control_shown=f"untrained {found.control:.3f}; permuted latents {chance:.3f}",
    )


def _readable_finding(scores: Scores) -> Finding:
    """All neurons together against those of the untrained network and against the tokens themselves."""
    found = scores.gain("linear probe", lambda _, x: x[:, scores.noisy, ANY])
    probes = [scores.at(d, "linear probe", -1)[:, scores.noisy, ANY].reshape(scores.seeds, -1) for d in scores.depths]
    tokens = [scores.tokens[d].swapaxes(0, 1)[:, scores.noisy].reshape(scores.seeds, -1) for d in scores.depths]
    beyond = gain(np.concatenate(probes, 1), np.concatenate(tokens, 1))
    return by_effect(
        READABLE,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        quantitative=beyond.mean > beyond.margin(MARGIN),
        expected=f"a linear probe of all neurons above that of the untrained network, and above one of the tokens "
        f"themselves, each by {MARGIN} and by more than the 95 % interval over seeds",
        shown=f"{found.trained:.3f}, {found} against untrained, {beyond} against the tokens" + _lost(scores),
        control_shown=f"untrained {found.control:.3f}; tokens {beyond.control:.3f}",
    )


def _lost(scores: Scores) -> str:
    return f"; {scores.diverged} networks diverged and are left out" if scores.diverged else ""


def _first_finding(scores: Scores) -> Finding:
    """Of what a level gains in the end, how much has it gained on the way, in the mean over the measuring points?"""

    def share(level: int) -> Any:
        """(seeds,); NaN where there is nothing to gain."""
        gained = np.stack([scores.gained(level, step) for step in range(1, len(scores.steps))])  # (steps, seeds)
        return np.where(gained[-1] > MARGIN, gained[:-1].mean(0) / np.maximum(gained[-1], MARGIN), np.nan)

    found = gain(share(0), share(-1))
    too_little = f"one of them gains less than {MARGIN} in the end" if np.isnan(found.mean) else None
    return by_effect(
        FIRST,
        measured=found.trained,
        control=found.control,
        margin=found.margin(EARLIER),
        expected=f"on the way the lowest latents have more of their final gain than the top ones, by {EARLIER} and by "
        "more than the 95 % interval over seeds",
        shown=too_little or f"{found.trained:.0%} of the final gain of the lowest latents",
        control_shown=too_little or f"{found.control:.0%} of that of the top latents",
    )


def _where(scores: Scores) -> str:
    """In how many places training does something, and where most."""
    cells = [
        (found, f"block {block + 1}, height {level + 1} of depth {depth}, ρ = {rho:g}")
        for depth, level, rho, blocks in scores.cells()
        if rho < 1
        for block, found in enumerate(blocks)
    ]
    above = sum(found.mean > found.margin(MARGIN) for found, _ in cells)
    most, place = max(cells, key=lambda cell: np.nan_to_num(cell[0].mean, nan=-np.inf))
    return f"above in {above} of {len(cells)} places, most in {place}: {most}"


TITLES = ("L", "height", "ρ", *(f"untrained {b + 1}" for b in range(BLOCKS)), *(f"gain {b + 1}" for b in range(BLOCKS)))


def table(run: Run) -> list[tuple[str, ...]]:
    """Held-out score of the untrained network and gain by training with its 95 % interval, in each block."""
    return [
        (str(depth), str(level + 1), f"{rho:g}", *(f"{b.control:.2f}" for b in blocks), *map(str, blocks))
        for depth, level, rho, blocks in Scores(run).cells()
    ]


def draw(run: Run) -> list[Drawing]:
    """The scores against ρ, and the gain block by block and over training."""
    scores = Scores(run)
    return [_draw_scores(scores), _draw_gains(scores)]


def _draw_scores(scores: Scores) -> Drawing:
    levels = [(depth, level) for depth in scores.depths for level in range(depth - 1)]
    columns = min(len(levels), 3)
    figure, axes = panels(columns, -(-len(levels) // columns), width=8.25 / columns, height=2.5)
    order = np.argsort(scores.rhos)
    for axis, (depth, level) in zip(axes, levels, strict=False):
        for step, style, kind in ((-1, "o-", "trained"), (0, ":", "untrained")):
            for block, colour in enumerate(depth_colours(BLOCKS)):
                mean = mean_known(scores.at(depth, "neuron", step)[:, order, block, level], 0)
                axis.plot(scores.rhos[order], mean, style, ms=3, color=colour, label=f"{kind}, block {block + 1}")
        chance = mean_known(scores.at(depth, "neuron, permuted latents", -1)[:, order, ANY, level], 0)
        axis.plot(scores.rhos[order], chance, "--", lw=1.2, color=CONTROL, label="permuted latents")
        probe = mean_known(scores.tokens[depth][order, :, level], 1)
        axis.plot(scores.rhos[order], probe, "-.", lw=1.2, color=ORANGE, label="linear probe of the tokens")
        axis.set(xlabel="ρ", ylabel="held-out correlation", ylim=(-0.1, 1.05))
        axis.set_xticks(scores.rhos[order])
        axis.set_title(f"depth {depth}, latents at height {level + 1}")
    for axis in axes[len(levels) :]:
        axis.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=3)
    caption = (
        "Correlation of a latent with its best hidden neuron, chosen on some samples and scored on fresh ones, mean "
        "over latents and seeds: trained against untrained networks, block by block; and what the tokens alone tell."
    )
    return Drawing("alignment-by-rho", caption, figure)


def _draw_gains(scores: Scores) -> Drawing:
    depth = max(scores.depths)
    figure, (left, right) = panels(2)
    for level, colour in enumerate(depth_colours(depth - 1)):
        label = f"height {level + 1}"
        blocks = [scores.in_block(depth, level, scores.noisy, block) for block in range(BLOCKS)]
        place = np.arange(1, BLOCKS + 1) + 0.06 * (level - (depth - 2) / 2)
        left.errorbar(place, [b.mean for b in blocks], [b.half_width for b in blocks], fmt="o-", ms=4, capsize=2,
                      color=colour, label=label)  # fmt: skip
        over = [scores.in_block(depth, level, scores.noisy, ANY, step).mean for step in range(len(scores.steps))]
        right.plot(scores.steps, over, "o-", ms=3, color=colour, label=label)
    for axis in (left, right):
        axis.axhline(0, ls="--", lw=1, color=CONTROL)
        axis.set_ylabel("gain over the untrained network")
        axis.legend(title=f"latents, depth {depth}", title_fontsize=8.5)
    left.set(xlabel="block", title="After training")
    left.set_xticks(range(1, BLOCKS + 1))
    right.set(xlabel="training steps", title="Over training, any block")
    caption = (
        "Held-out correlation gained by training, mean over ρ < 1; bars: 95 % intervals over seeds, paired with the "
        "untrained network."
    )
    return Drawing("gain-by-block", caption, figure)


STUDY = Study(
    name="hblt-alignment",
    title="Section 5: what training adds to the alignment of neurons and latents",
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
    judge=judge,
    draw=draw,
    about=(
        "Three-block Transformers learn to tell the classes of HBLT(ρ) trees of several depths, every batch fresh. "
        "Each latent gets the hidden neuron that correlates with it most on some samples, and that neuron is scored on "
        "other samples; a linear probe of all neurons is scored likewise. Training must beat the same network before "
        "training, seed by seed, since an untrained network already holds many random features of its input; latents "
        "permuted between samples show that luck plays no part."
    ),
)
