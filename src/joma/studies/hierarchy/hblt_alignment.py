"""Networks that read HBLT(ρ): who is in the ensemble of one depth, what each reads, how it is scored, what is found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Values, Within
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, clears, needs_device
from joma.claims.sentences import show
from joma.claims.verdicts import at_least, not_run
from joma.data.ahead import Ahead
from joma.data.hierarchy import HBLT
from joma.data.samples import Sample, streams
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, GREEN, INK, Axes, depth_colours, panels, step_axis
from joma.measure.alignment import held_out_correlation, linear_probe
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.runs import Run
from joma.studies.hierarchy import _networks as nets
from joma.studies.hierarchy._networks import ALL_BLOCKS, BLOCKS, mean_over, over_seeds
from joma.training import class_loss, train_all
from joma.training.ensemble import Precision

KINDS = ("neuron", "neuron, permuted latents", "linear probe")  # scores that are recorded, all of them on fresh samples
LONGEST = 4096  # tokens of a sequence: attention has the square of it


@dataclass(frozen=True)
class HBLTAlignmentConfig(StudyConfig):
    """Transformers that learn to tell the classes of latent trees, for several uncertainties ρ, depths and seeds.

    Each class has a top latent of its own, every latent above the lowest two children, every lowest one `tokens`
    tokens; all edges have the same ρ. All networks of one depth are one ensemble, each with its own order of tokens.
    """

    depths: Annotated[tuple[int, ...], Values(), Least(2)] = (3,)
    """L of Theorem 5: the levels of latents and one more."""
    rhos: Annotated[tuple[float, ...], Values(), Above(0), Within(0, 1)] = (1.0, 0.8)
    seeds: Annotated[int, Least(2, "for an interval")] = 5
    classes: Annotated[int, Least(2, "to be told apart")] = 4
    tokens: int = 3
    """Of each lowest latent."""
    width: int = 32
    steps: int = 100
    look_at: tuple[int, ...] = (40,)
    """Measure after so many steps, besides the beginning and the end."""
    rate: float = 1e-3
    weight_decay: float = 1e-4
    batch: int = 32
    samples: Annotated[int, Least(10)] = 300
    """On which neurons are chosen; as many fresh ones are scored."""
    device: str = "cpu"
    precision: Precision = "float32"
    together: int = 25
    """Networks trained at the same time."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.depths) < 3:
            raise ValueError(f"depths must hold one of at least 3, with latents above the lowest, got {self.depths}")
        if 1.0 not in self.rhos or min(self.rhos) == 1:
            both = "1, where the tokens are certain given the class, and one below 1"
            raise ValueError(f"rhos must hold {both}, got {self.rhos}")
        longest = self.classes * 2 ** (max(self.depths) - 2) * self.tokens
        if longest > LONGEST:
            made = f"sequences of {longest} tokens, at most {LONGEST} can be read"
            raise ValueError(f"depths, classes and tokens make {made}")
        nets.transformer(vocabulary=2, outputs=2, width=self.width, context=1)  # refuses an impossible width
        if any(step >= self.steps for step in self.look_at):
            raise ValueError(f"look_at must lie below {self.steps}, the end, got {self.look_at}")


class Members:
    """All networks of one depth, ρ after ρ, each with its seeds: what they are, read, and are measured on."""

    def __init__(self, config: HBLTAlignmentConfig, depth: int) -> None:
        self.config = config
        # What names a member for its streams of random numbers: networks, orders and luck are paired between ρ.
        self.number = [1000 * depth + seed for _ in config.rhos for seed in range(config.seeds)]
        rho = torch.tensor(config.rhos, dtype=torch.float64).repeat_interleave(config.seeds)[:, None]
        tree = HBLT.one_per_class(config.classes, (*(2,) * (depth - 2), config.tokens), rho)
        self.tree = tree.permuted(streams(config.seed, self.number, step=-1)).to(config.device)
        self.batch = Ahead(self._draw, steps=config.steps, device=config.device)

    def networks(self, members: Sequence[int]) -> Decoder:
        shape = nets.transformer(
            vocabulary=self.tree.vocabulary, outputs=self.config.classes, width=self.config.width,
            context=self.tree.length,
        )  # fmt: skip
        own = streams(self.config.seed, [self.number[m] for m in members], step=-2)
        return Decoder(shape, [source.initial_seed() for source in own])

    def sample(self, steps: range, members: Sequence[int], count: int) -> Sample:
        """One step after the other: a member at a step draws what it would draw alone."""
        numbers, device = [self.number[m] for m in members], self.config.device
        source = [one for step in steps for one in streams(self.config.seed, numbers, step, device=device)]
        return self.tree.select([*members] * len(steps)).sample((len(source), count), generator=source)

    def _draw(self, steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens (steps, members, batch, length) and classes."""
        sample = self.sample(steps, members, self.config.batch)
        own = (len(steps), len(members))
        return sample.tokens.unflatten(0, own), sample.labels.unflatten(0, own)

    def fresh(self, members: Sequence[int]) -> tuple[Sample, Sample]:
        one, other = (self.sample(range(step, step + 1), members, self.config.samples) for step in (-3, -4))
        return one, other

    def scores(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        """(members, kinds, places, levels). The places are the blocks, and the neurons of all blocks together."""
        one, other = self.fresh(members)
        known, wanted = (torch.cat(sample.latents, dim=-1)[:, None] for sample in (one, other))
        activity, sound = nets.finite(nets.read(decoder, one.tokens)[0])
        fresh, again = nets.finite(nets.read(decoder, other.tokens)[0])
        sizes = [latents.shape[-1] for latents in one.latents]
        # (members, 1, samples, neurons of all blocks)
        both, fresh_both = (one.transpose(1, 2).flatten(2)[:, None] for one in (activity, fresh))
        found = [_three_kinds(*at, known, wanted, sizes) for at in ((activity, fresh), (both, fresh_both))]
        return torch.cat(found, dim=2) * (sound * again)[:, None, None, None].to(activity)

    def accuracy(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        fresh = self.fresh(members)[1]
        return (nets.read(decoder, fresh.tokens)[1].argmax(-1) == fresh.labels).float().mean(-1)

    def read_from_tokens(self) -> Tensor:
        """(members, levels): a linear probe of the tokens themselves, without a network."""
        one, other = self.fresh(range(len(self.number)))
        known, wanted = (torch.cat(sample.latents, dim=-1) for sample in (one, other))
        probe = linear_probe(one.on.float(), known, fresh_activity=other.on.float(), fresh_latents=wanted)
        return nets.by_level(probe.per_latent, [latents.shape[-1] for latents in one.latents])


def _three_kinds(activity: Tensor, fresh: Tensor, known: Tensor, wanted: Tensor, sizes: list[int]) -> Tensor:
    true, permuted = (
        held_out_correlation(
            activity, known.roll(by, -2), fresh_activity=fresh, fresh_latents=wanted.roll(by, -2)
        ).per_latent
        for by in (0, 1)
    )
    probe = linear_probe(activity, known, fresh_activity=fresh, fresh_latents=wanted).per_latent
    return torch.stack([nets.by_level(each, sizes) for each in (true, permuted, probe)], dim=1)


def run(config: HBLTAlignmentConfig, run: Run, progress: Progress) -> None:
    """Train the ensemble of each depth, measuring it on the way."""
    needs_device(config.device, at_paper_scale("hblt-alignment"))
    members = {f"depth {depth}": Members(config, depth) for depth in config.depths}
    for name, who in members.items():
        run.keep(f"{name}/tokens", who.read_from_tokens)
    train_all({name: nets.ensemble_of(who, class_loss) for name, who in members.items()}, run, progress=progress)


ERRORS = 3  # a network learned if it tells classes better than luck by so many standard errors of its fresh samples

Pick = Callable[[int, Any], Any]  # of a depth, what a claim is about in (seeds, rhos, places, levels)


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
        luck, shape = 1 / run.config["classes"], (len(self.rhos), self.seeds)
        enough = luck + ERRORS * np.sqrt(luck * (1 - luck) / run.config["samples"])
        for depth in self.depths:
            scores = run.array(f"depth {depth}/scores")  # (steps, members, kinds, places, levels)
            scores = scores.reshape(len(self.steps), *shape, *scores.shape[2:])
            self.tokens[depth] = run.value(f"depth {depth}/tokens").reshape(*shape, -1)
            last = [run.array(f"depth {depth}/{name}")[-1] for name in ("accuracy", "diverged_at")]
            accuracy, diverged = (each.reshape(shape) for each in last)
            self.fates[depth] = nets.Fates(diverged >= 0, accuracy > enough)
            kept = self.fates[depth].kept[None, :, :, None, None, None]
            self._all[depth] = np.where(kept, scores, np.nan) if only_learned else scores

    def of(self, rhos: Any) -> nets.Fates:
        return nets.Fates.joined([self.fates[depth].of(rhos) for depth in self.depths])

    def at(self, depth: int, kind: str, step: int) -> Any:
        """(seeds, rhos, places, levels); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self._all[depth][step, :, :, KINDS.index(kind)].swapaxes(0, 1)

    def picked(self, kind: str, pick: Pick, step: int) -> Any:
        return np.concatenate([pick(d, self.at(d, kind, step)).reshape(self.seeds, -1) for d in self.depths], axis=1)

    def gain(self, kind: str, pick: Pick) -> Comparison:
        return nets.over_seeds(*(self.picked(kind, pick, step) for step in (-1, 0)))

    def cells(self) -> list[tuple[int, int, float, list[Comparison]]]:
        return [
            (depth, level, float(rho), [self.in_block(depth, level, r, block) for block in range(nets.BLOCKS)])
            for depth in self.depths
            for level in range(depth - 1)
            for r, rho in enumerate(self.rhos)
        ]

    def gained(self, level: int, step: int) -> Any:
        """(seeds,) what one level of trees with several has gained by then, in any block, mean over trees and ρ < 1."""
        change = [self.at(d, "neuron", step) - self.at(d, "neuron", 0) for d in self.depths if d > 2]
        return nets.mean_over(np.concatenate([x[:, self.noisy, nets.ALL_BLOCKS, level] for x in change], axis=1), 1)

    def in_block(self, depth: int, level: int, rho: Any, place: int, step: int = -1) -> Comparison:
        """Of the neuron; rho is an index or a mask."""
        return nets.over_seeds(*(self.at(depth, "neuron", s)[:, rho, place, level] for s in (step, 0)))


MARGIN = 0.02  # of a correlation: smaller gains are not worth the name
EARLIER = 0.05  # of the final gain
ANY, LAST = ALL_BLOCKS, BLOCKS - 1  # places

CLAIMS = Claims(source="JoMA Sec. 5", matters=MARGIN)


def _finding(run: Run, claim: Claim, pick: Pick, *, noisy: bool = True) -> Finding:
    """The best neuron against that of the untrained network, and against latents of other samples."""
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
        details=_where(scores) if claim.name == "nodes-represent-latents" else None,
    )


def _own_blocks(depth: int, x: Any) -> Any:
    """Levels above the lowest, each in the block that corresponds to it."""
    return np.stack([x[:, :, min(level, LAST), level] for level in range(1, depth - 1)] or [x[:, :0, 0, 0]], -1)


@CLAIMS.declare("nodes-represent-latents", ceiling=1.0)
def _nodes_represent_latents(run: Run, claim: Claim) -> Finding:
    """While the hierarchy is learned, hidden nodes of the MLP come to stand for its latents."""
    return _finding(run, claim, lambda _, x: x[:, :, ANY])


@CLAIMS.declare(
    "lowest-latents-in-first-block", "JoMA Fig. 5", ceiling=1.0, uses=("hblt-alignment/nodes-represent-latents",)
)
def _lowest_latents_in_first_block(run: Run, claim: Claim) -> Finding:
    """Hidden nodes of the first block come to stand for the lowest latents."""
    return _finding(run, claim, lambda _, x: x[:, :, 0, 0])


@CLAIMS.declare("higher-latents-above", "JoMA Fig. 5", ceiling=1.0, uses=("hblt-alignment/nodes-represent-latents",))
def _higher_latents_above(run: Run, claim: Claim) -> Finding:
    """Higher blocks form features of a higher level: their hidden nodes come to stand for the latents above the
    lowest.
    """
    return _finding(run, claim, _own_blocks)


@CLAIMS.declare(
    "levels-follow-blocks",
    ceiling=None,
    uses=("hblt-alignment/lowest-latents-in-first-block", "hblt-alignment/higher-latents-above"),
)
def _order(run: Run, claim: Claim) -> Finding:
    """Levels of latents correspond to blocks: a higher latent is represented in a later block."""
    scores = Scores(run, only_learned=True)

    def slope(depth: int, x: Any) -> Any:
        x = x[:, scores.noisy] if depth > 2 else x[:, :0]
        rise = x[:, :, LAST] - x[:, :, 0]
        return rise[..., -1] - rise[..., 0]

    return scores.of(scores.noisy).judged(
        claim,
        scores.gain("neuron", slope),
        study="hblt-alignment",
        what="rise of the correlation from the first to the last block, top latents minus lowest latents",
        expected=f"training makes this rise larger for top latents than for lowest latents, by at least {MARGIN}",
    )


@CLAIMS.declare(
    "lowest-latents-first",
    "JoMA Fig. 5",
    matters=EARLIER,
    unit="%",
    uses=("hblt-alignment/nodes-represent-latents", "thm5/shallow-means-often"),
)
def _first(run: Run, claim: Claim) -> Finding:
    """The lowest latents are learned first, then the latents above them.

    Of what a level gains in the end, how much has it gained on the way, in the mean over the measuring points?
    """
    scores = Scores(run, only_learned=True)
    expected = (
        "during training, the lowest latents have a larger share of their final gain than the top latents, by at "
        f"least {show(EARLIER, '%')}"
    )

    def share(level: int) -> Any:
        gained = np.stack([scores.gained(level, step) for step in range(1, len(scores.steps))])  # (steps, seeds)
        return np.where(gained[-1] > MARGIN, gained[:-1].mean(0) / np.maximum(gained[-1], MARGIN), np.nan)

    found, fates = compare(share(0), share(-1)), scores.of(scores.noisy)
    if not found.seeds and fates.kept.any():
        reason = f"no network gained {MARGIN} at both levels, so there is no order to measure"
        return not_run(claim, expected, reason, at_paper_scale("hblt-alignment"))
    what = "share of their final gain that the lowest latents have during training (control: the top latents)"
    return fates.judged(claim, found, study="hblt-alignment", what=what, expected=expected)


@CLAIMS.declare("hierarchy-is-learned", ceiling=1.0)
def _readable(run: Run, claim: Claim) -> Finding:
    """The latent hierarchy is learned implicitly: hidden layers show the latents more clearly than the tokens do."""
    scores = Scores(run, only_learned=True)
    probes = scores.picked("linear probe", lambda _, x: x[:, scores.noisy, ANY], -1)
    tokens = [scores.tokens[d].swapaxes(0, 1)[:, scores.noisy].reshape(scores.seeds, -1) for d in scores.depths]
    beyond_tokens = over_seeds(probes, np.concatenate(tokens, 1))
    return scores.of(scores.noisy).judged(
        claim,
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


@CLAIMS.declare("alignment-without-noise", "JoMA Sec. 6", ceiling=1.0, uses=("table1/latents-are-learned",))
def _alignment_without_noise(run: Run, claim: Claim) -> Finding:
    """Where the class determines all latents and tokens, the alignment of hidden nodes shows that the latents are
    learned.
    """
    return _finding(run, claim, lambda _, x: x[:, :, ANY], noisy=False)


def _where(scores: Scores) -> dict[str, dict[str, float]]:
    cells = [
        (found, f"largest in block {block + 1}, height {level + 1} of depth {depth}, ρ = {rho:g}")
        for depth, level, rho, blocks in scores.cells()
        if rho < 1
        for block, found in enumerate(blocks)
    ]
    clear = sum(found.difference_low > 0 and found.difference >= MARGIN for found, _ in cells)
    most, place = max(cells, key=lambda cell: np.nan_to_num(cell[0].difference, nan=-np.inf))
    return {
        "places with a clear gain": {"number": float(clear), "of": float(len(cells))},
        place: {"gain": most.difference, "half of its interval": most.half_width},
    }


def _draw_scores(scores: Scores) -> Drawing:
    levels = [(depth, level) for depth in scores.depths for level in range(depth - 1)]
    columns = min(len(levels), 3)
    figure, axes = panels(columns, -(-len(levels) // columns), width=8.6 / columns, height=2.5)
    for index, (axis, (depth, level)) in enumerate(zip(axes, levels, strict=False)):
        _draw_level(axis, scores, depth, level)
        axis.set(title=f"Depth {depth}, latents at height {level + 1}", ylabel="held-out correlation")
        if index % columns == columns - 1:
            label_lines(axis)
    for axis in axes[len(levels) :]:
        axis.remove()
    depth = max(scores.depths)
    lowest, top = (scores.in_block(depth, level, scores.noisy, ALL_BLOCKS) for level in (0, -1))
    caption = (
        f"In trees of depth {depth} with ρ < 1, training moves the best neuron's correlation from {lowest.control:.2f} "
        f"to {lowest.value:.2f} for the lowest latents and from {top.control:.2f} to {top.value:.2f} for the top ones. "
        "The neuron is chosen on some samples and scored on fresh ones; lines are means over latents and seeds. Green: "
        "what a linear probe of the tokens alone tells. Grey: latents permuted between samples."
    )
    return Drawing("alignment-by-rho", caption, figure)


def _draw_level(axis: Axes, scores: Scores, depth: int, level: int) -> None:
    order = np.argsort(scores.rhos)
    rhos = scores.rhos[order]
    for step, style in ((-1, "o-"), (0, ":")):
        for block, colour in enumerate(depth_colours(BLOCKS)):
            mean = mean_over(scores.at(depth, "neuron", step)[:, order, block, level], 0)
            axis.plot(rhos, mean, style, ms=3, color=colour, label=f"trained, block {block + 1}" if step else None)
    end_label(axis, "untrained", ls=":")
    probe = mean_over(scores.tokens[depth][order, :, level], 1)
    axis.plot(rhos, probe, "-.", lw=1.2, color=GREEN, label="probe of tokens")
    chance = mean_over(scores.at(depth, "neuron, permuted latents", -1)[:, order, ALL_BLOCKS, level], 0)
    axis.plot(rhos, chance, "--", lw=1.2, color=CONTROL, label="permuted latents")
    axis.set(xlabel="ρ (1: certain)", ylim=(-0.1, 1.05))
    axis.set_xticks(rhos)
    axis.invert_xaxis()  # lines lie apart where latents are noisy: there they are named


def _draw_gains(scores: Scores) -> Drawing:
    depth = max(scores.depths)
    figure, (left, right) = panels(2, width=4.0)
    found: dict[tuple[int, int], Comparison] = {}
    for level, colour in enumerate(depth_colours(depth - 1)):
        blocks = [scores.in_block(depth, level, scores.noisy, block) for block in range(BLOCKS)]
        found |= {(level, block): one for block, one in enumerate(blocks) if np.isfinite(one.difference)}
        over = [scores.in_block(depth, level, scores.noisy, ALL_BLOCKS, step) for step in range(len(scores.steps))]
        place = np.arange(1, BLOCKS + 1) + 0.06 * (level - (depth - 2) / 2)
        gains, reach = [b.difference for b in blocks], [b.half_width for b in blocks]
        left.plot(place, gains, "o-", ms=4, color=colour, label=f"height {level + 1}")
        left.errorbar(place, gains, reach, fmt="none", capsize=2, ecolor=colour)
        right.plot(scores.steps, [x.difference for x in over], "o-", ms=3, color=colour, label=f"height {level + 1}")
    for axis in (left, right):
        axis.axhline(0, ls="--", lw=1, color=INK)
        axis.set_ylabel("gain in correlation")
        label_lines(axis)
    left.set(xlabel="block", title=f"Depth {depth}: gain at the end, by block")
    left.set_xticks(range(1, BLOCKS + 1))
    right.set_title(f"Depth {depth}: gain over training, any block")
    step_axis(right)
    finding = "No gain was measured."
    if found:
        ends = [(at, found[at]) for at in (pick(found, key=lambda at: found[at].difference) for pick in (max, min))]
        most, least = (
            f"{number(one.difference)} (± {number(one.half_width)}) in block {block + 1} for latents at height {h + 1}"
            for (h, block), one in ends
        )
        finding = f"Training adds most, {most}, and least, {least}."
    caption = (
        f"{finding} The gain is the held-out correlation of the best neuron minus that of the untrained network, mean "
        "over ρ < 1. Bars: intervals over seeds (95 %; 99 % over four or fewer), paired with the untrained "
        "network. Height 1 is next to the "
        "tokens."
    )
    return Drawing("gain-by-block", caption, figure)


STUDY = Study(
    name="hblt-alignment",
    title="Section 5: does training align neurons with latents?",
    version=2,
    claims=CLAIMS,
    quick=HBLTAlignmentConfig(),
    paper=HBLTAlignmentConfig(
        depths=(2, 3, 4), rhos=(1.0, 0.9, 0.8, 0.6, 0.4), seeds=5, classes=10, tokens=5, width=256, steps=3000,
        look_at=(100, 300, 1000, 2000), rate=1e-4, batch=128, samples=2000, device="cuda", precision="tf32",
    ),
    run=run,
    draw=lambda run: [_draw_scores(Scores(run)), _draw_gains(Scores(run))],
    about=(
        "Three-block Transformers learn to tell the classes of HBLT(ρ) trees apart, for several depths. Every batch "
        "is fresh. For each latent, the hidden neuron that correlates with it most is chosen on some samples and "
        "scored on other samples. A linear probe of all neurons is scored in the same way. An untrained network "
        "already holds many random features of its input. Therefore a verdict comes from the interval over seeds of "
        "trained minus untrained. Latents permuted between samples measure what chance alone gives. A network that "
        "tells classes no better than chance at the end did not learn and does not count."
    ),
)  # fmt: skip
