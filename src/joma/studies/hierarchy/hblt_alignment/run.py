"""Networks that read HBLT(ρ): who is in the ensemble of one depth, what each reads, and how it is scored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Least, Several, StudyConfig, Within
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.ahead import Ahead
from joma.data.hierarchy import HBLT
from joma.data.samples import Sample, streams
from joma.measure.alignment import held_out_correlation, linear_probe
from joma.measure.intervals import Comparison
from joma.models.decoder import Decoder
from joma.runs import Run
from joma.studies.hierarchy import _networks as nets
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

    depths: Annotated[tuple[int, ...], Several(), Least(2)] = (3,)
    """L of Theorem 5: the levels of latents and one more."""
    rhos: Annotated[tuple[float, ...], Several(), Above(0), Within(0, 1)] = (1.0, 0.8)
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
        """One step after the other: a member at a step draws what it would draw alone.

        They depend on member and step; those of negative steps are never trained on.
        """
        numbers, device = [self.number[m] for m in members], self.config.device
        source = [one for step in steps for one in streams(self.config.seed, numbers, step, device=device)]
        return self.tree.select([*members] * len(steps)).sample((len(source), count), generator=source)

    def _draw(self, steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens (steps, members, batch, length) and classes."""
        sample = self.sample(steps, members, self.config.batch)
        own = (len(steps), len(members))
        return sample.tokens.unflatten(0, own), sample.labels.unflatten(0, own)

    def fresh(self, members: Sequence[int]) -> tuple[Sample, Sample]:
        """The samples on which neurons are chosen, and those on which they are scored."""
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
        """The share of fresh samples whose class is told right, (members,)."""
        fresh = self.fresh(members)[1]
        return (nets.read(decoder, fresh.tokens)[1].argmax(-1) == fresh.labels).float().mean(-1)

    def read_from_tokens(self) -> Tensor:
        """(members, levels): a linear probe of the tokens themselves, without a network."""
        one, other = self.fresh(range(len(self.number)))
        known, wanted = (torch.cat(sample.latents, dim=-1) for sample in (one, other))
        probe = linear_probe(one.on.float(), known, fresh_activity=other.on.float(), fresh_latents=wanted)
        return nets.by_level(probe.per_latent, [latents.shape[-1] for latents in one.latents])


def _three_kinds(activity: Tensor, fresh: Tensor, known: Tensor, wanted: Tensor, sizes: list[int]) -> Tensor:
    """(members, kinds, places, levels). Permuted: each sample is given the latents of another one."""
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
        """What became of the networks with these rhos (a mask), at every depth."""
        return nets.Fates.joined([self.fates[depth].of(rhos) for depth in self.depths])

    def at(self, depth: int, kind: str, step: int) -> Any:
        """(seeds, rhos, places, levels); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self._all[depth][step, :, :, KINDS.index(kind)].swapaxes(0, 1)

    def picked(self, kind: str, pick: Pick, step: int) -> Any:
        return np.concatenate([pick(d, self.at(d, kind, step)).reshape(self.seeds, -1) for d in self.depths], axis=1)

    def gain(self, kind: str, pick: Pick) -> Comparison:
        return nets.over_seeds(*(self.picked(kind, pick, step) for step in (-1, 0)))

    def cells(self) -> list[tuple[int, int, float, list[Comparison]]]:
        """Depth, level, rho, and the neuron's gain in each block."""
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
