"""What the studies of networks share: the Transformer of Table 1, hidden neurons, means over seeds, and who learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims import guards
from joma.claims.contract import Claim, Finding
from joma.claims.verdicts import Compared, Numbers
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.training import Ensemble

BLOCKS = 3
ALL_BLOCKS = BLOCKS  # scores are kept by place: the blocks, and at this index all of them together
SAMPLES_AT_ONCE = 256  # sequences a member reads at once while it is measured: hidden layers of all positions are large


def transformer(*, vocabulary: int, outputs: int, width: int, context: int) -> DecoderConfig:
    """Table 1's network: 3 post-norm blocks, one head, no output projection, a ReLU MLP of four times the width."""
    return DecoderConfig(
        vocabulary=vocabulary, outputs=outputs, layers=BLOCKS, width=width, mlp=4 * width, context=context,
        projection=False,
    )  # fmt: skip


def ensemble_of(who: Any, loss: Callable[..., Tensor]) -> Ensemble:
    """All members of a study, trained by Adam as their config says and measured before, on the way and after."""
    config = who.config
    return ensemble(
        config, len(who.number), networks=who.networks, batch=who.batch, loss=loss,
        optimizer=make_optimizer("adam", rate=config.rate, weight_decay=config.weight_decay),
        measures={"scores": who.scores, "accuracy": who.accuracy}, measure_at=(0, *config.look_at),
        together=config.together,
    )  # fmt: skip


def read(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Every hidden neuron's largest activation over positions, and the logits at the last position."""
    activity, logits = [], []
    for some in tokens.split(SAMPLES_AT_ONCE, dim=1):
        hidden: list[Tensor] = []

        def look(layer: int, name: str, value: Tensor, hidden: list[Tensor] = hidden) -> None:
            if name == "hidden":
                hidden.append(value.amax(-2))  # (members, samples, neurons)

        logits.append(decoder.read(decoder.features(some, look=look)[:, :, -1]))
        activity.append(torch.stack(hidden, dim=1))
    return torch.cat(activity, dim=2), torch.cat(logits, dim=1)


def finite(activity: Tensor) -> tuple[Tensor, Tensor]:
    """The activity with zeros for members that diverged, and 1 for a sound member, NaN for another, (members,)."""
    sound = activity.isfinite().flatten(1).all(-1)
    return torch.where(sound.view(-1, *[1] * (activity.ndim - 1)), activity, 0.0), torch.where(sound, 1.0, torch.nan)


def by_level(per_latent: Tensor, sizes: list[int]) -> Tensor:
    """Means over the latents of each level that count, (..., levels), of values (..., all latents), lowest first."""
    return torch.stack([part.nanmean(-1) for part in per_latent.split(sizes, dim=-1)], dim=-1)


def mean_over(values: Any, axis: int | tuple[int, ...]) -> Any:
    """The mean of what is not NaN (networks that do not count), NaN where all is."""
    known = np.isfinite(values)
    count = known.sum(axis)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan)


def over_seeds(trained: Any, control: Any) -> Comparison:
    """Compare arrays (seeds, ...): what differs within a seed is averaged first, then seeds are the repetitions."""
    pair = np.stack([np.asarray(x, dtype=float).reshape(len(x), -1) for x in (trained, control)])
    return compare(*mean_over(np.where(np.isfinite(pair).all(0), pair, np.nan), -1))


class Fates(NamedTuple):
    """What became of the networks that a finding is about, (networks,) each, of any shape."""

    diverged: Any
    learned: Any  # whether a network does better at its task than one that knows nothing of it

    @property
    def kept(self) -> Any:
        return self.learned & ~self.diverged

    def of(self, chosen: Any) -> Fates:
        return Fates(self.diverged[chosen], self.learned[chosen])

    @staticmethod
    def joined(several: list[Fates]) -> Fates:
        return Fates(*(np.concatenate([one[i] for one in several]) for i in (0, 1)))

    @property
    def reason(self) -> str:
        counts = f"{self.kept.sum()} of {self.kept.size} networks learned their task ({np.sum(self.diverged)} diverged)"
        return f"only {counts}: too few to judge"

    def judged(
        self, claim: Claim, found: Compared, *, study: str, details: Numbers | None = None, **evidence: Any
    ) -> Finding:
        lost = {"diverged": self.diverged, "did not learn": ~self.learned & ~self.diverged}
        counts = {why: float(np.sum(those)) for why, those in lost.items() if np.any(those)}
        shown = {**(details or {}), **({"networks left out": counts} if counts else {})}
        command = guards.at_paper_scale(study)
        return guards.of_learned(claim, found, reason=self.reason, command=command, details=shown, **evidence)
