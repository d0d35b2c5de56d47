"""The networks of the study `deja-vu`: who is trained, and which heads and neurons its tokens need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.contract import Least, OneOf, Progress, Within
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device
from joma.claims.verdicts import Numbers
from joma.measure import active as activity
from joma.measure.active import Predictor, active, carried, carrying, fit_predictor, typical
from joma.models.decoder import Decoder
from joma.models.decoder_config import Activation, DecoderConfig
from joma.models.parts import compiled_parts
from joma.recipes.copying import Reading, sequences_of
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.sparsity._readings import TextConfig, known_mean, read_text, recorded_config
from joma.training import Ensemble, next_token_loss, train_all
from joma.training.ensemble import Precision

COMMAND = at_paper_scale("deja-vu")
NEURONS, HEADS = "neurons", "heads"
UNITS = (NEURONS, HEADS)
CARRIED = ("best", "predicted", "static", "permuted", "random", "from the token")
"""What is recorded of sets of one size: the share of the output that each carries."""
KEPT = ("all", "none", "best", "predicted", "static", "permuted", "random")
"""What is recorded of networks that compute these units only, in all layers but the first: their loss."""


@dataclass(frozen=True)
class DejaVuConfig(TextConfig):
    """Decoders with several activations. Quick scale: small ones, on Python source."""

    activations: Annotated[tuple[str, ...], OneOf(*get_args(Activation))] = ("relu", "gelu")
    layers: Annotated[int, Least(2, "for one that is predicted from another")] = 3
    width: int = 32
    heads: Annotated[int, Least(2, "to choose from")] = 4
    mlp: Annotated[int, Least(2, "to choose from")] = 128
    length: int = 32
    """Tokens per sequence."""
    batch: int = 4
    steps: int = 100
    measure_at: tuple[int, ...] = (30,)
    """Steps after which heads and neurons are looked at, besides the first and the last."""
    rate: float = 7e-3
    share: Annotated[float, Within(0, 1, open=True)] = 0.9
    """Of the output, that the fewest units are asked to carry."""
    budget: Annotated[float, Within(0, 1, open=True)] = 0.2
    """Share of the neurons that a set may hold."""
    head_budget: Annotated[float, Within(0, 1, open=True)] = 0.5
    """Share of the heads."""
    ridge: float = 0.01
    """Of the predictor, in units of the mean variance of a feature."""
    sequences: int = 12
    """Sequences that predictors are fitted on, and as many others that they are asked about."""
    seeds: Annotated[int, Least(2, "for an interval")] = 3
    seed: int = 0
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 0 < step < self.steps for step in self.measure_at):
            raise ValueError(f"measure_at must lie between 0 and {self.steps}, the last step, got {self.measure_at}")
        self.shape(2, "relu")  # what cannot be built is refused now

    def shape(self, words: int, activation: Activation) -> DecoderConfig:
        return DecoderConfig(
            words, layers=self.layers, width=self.width, heads=self.heads, mlp=self.mlp, context=self.length,
            norm="pre-layer", activation=activation,
        )  # fmt: skip

    def of(self, units: str) -> float:
        return self.budget if units == NEURONS else self.head_budget


def run(config: DejaVuConfig, run: Run, progress: Progress) -> None:
    """Train networks of every activation, and look on the way which heads and neurons tokens need."""
    needs_device(config.device, COMMAND)
    reading = read_text(config, run, progress, config.length, 2 * config.sequences)
    run.keep("words", lambda: reading.words)
    train_all(
        {one: Members(config, one, reading).ensemble() for one in config.activations},  # type: ignore[arg-type]
        run,
        progress=lambda share, doing: progress(0.02 + 0.97 * share, doing),
    )


class Members:
    """All networks of one activation. Networks of all activations begin with the same weights and read the same."""

    def __init__(self, config: DejaVuConfig, activation: Activation, reading: Reading) -> None:
        self.config, self.activation, self.words = config, activation, reading.words
        self.train = reading.train.to(config.device)
        # Predictors are fitted on the first half and asked about the second.
        self.fitted, self.asked = reading.valid.to(config.device).split(config.sequences)

    def ensemble(self) -> Ensemble:
        return ensemble(
            self.config,
            self.config.seeds,
            networks=self.networks,
            batch=self.batch,
            loss=next_token_loss,
            optimizer=make_optimizer("adam", rate=self.config.rate, betas=(0.9, 0.95), clip=1.0),
            measures={"active": self.active},
            measure_at=(0, *self.config.measure_at),
        )

    def networks(self, members: Sequence[int]) -> Decoder:
        return Decoder(self.config.shape(self.words, self.activation), [self.config.seed + m for m in members])

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        read = sequences_of(self.train, step, self.config.batch)
        return read[:, :-1].contiguous(), read[:, 1:].contiguous()

    def active(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Of heads and of neurons, as `NEURONS` and `HEADS` name them."""
        with compiled_parts(None):  # what is looked at is changed in place, which no compiler should see
            before, now = (_seen(decoder, text[:, :-1]) for text in (self.fitted, self.asked))
            found = {}
            for units in UNITS:
                fitted = [self._fit(units, layer, before, now) for layer in range(1, self.config.layers)]
                needed = [carrying(each, self.config.share).mean(-1) for each in now.contributions[units]]
                found[f"{units} needed"] = torch.stack(needed, 1)
                found[f"{units} carried"] = torch.stack([one.carried for one in fitted], 1)
                found[f"{units} loss"] = self._losses(decoder, units, fitted)
        return found

    def _fit(self, units: str, layer: int, before: _Seen, now: _Seen) -> _Fitted:
        """How well a layer's set is known: from the input of the layer before, and from the token alone."""
        budget, ridge = self.config.of(units), self.config.ridge
        known, happened = (seen.contributions[units][layer] for seen in (before, now))
        predictor = fit_predictor(before.inputs[layer - 1], known, ridge=ridge)
        usual = typical(known)
        found = activity.agreement(happened, predictor(now.inputs[layer - 1]), usual, budget)
        token = fit_predictor(before.inputs[0], known, ridge=ridge)(now.inputs[0])
        alone = carried(happened, active(token, budget)).mean(-1)
        return _Fitted(predictor, active(usual, budget), torch.stack([*found, alone], -1))

    def _losses(self, decoder: Decoder, units: str, fitted: list[_Fitted]) -> Tensor:
        """With each kind of set in all layers but the first; what is not kept is not computed."""
        budget = self.config.of(units)
        generator = torch.Generator(self.config.device).manual_seed(0)

        def kept(how: str, layer: int, each: Tensor, features: Tensor) -> Tensor:
            if how in ("all", "none"):
                return torch.full_like(each, how == "all", dtype=torch.bool)
            if how == "static":
                return fitted[layer - 1].static
            if how == "best":
                return active(each, budget)
            if how == "random":
                return active(torch.rand(each.shape, generator=generator, device=each.device), budget)
            chosen = active(fitted[layer - 1].predictor(features), budget)
            return chosen if how == "predicted" else chosen.roll(-(-chosen.shape[-2] // 2), -2)

        return torch.stack([_loss(decoder, self.asked, units, partial(kept, how)) for how in KEPT], -1)


class _Fitted(NamedTuple):
    predictor: Predictor
    static: Tensor
    carried: Tensor


class _Seen(NamedTuple):
    """By layer: what went in (members, tokens, width), and what each unit gave (members, tokens, units)."""

    inputs: list[Tensor]
    contributions: dict[str, list[Tensor]]


def _seen(decoder: Decoder, tokens: Tensor) -> _Seen:
    seen = _Seen([_embedded(decoder, tokens)], {units: [] for units in UNITS})

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "stream":
            seen.inputs.append(value.flatten(1, 2))
        elif units := _WHERE.get(name):
            seen.contributions[units].append(_contributions(decoder, layer, units, value))

    decoder.features(tokens, look=look)
    return seen


Kept = Callable[[int, Tensor, Tensor], Tensor]
"""Given a layer, its contributions and the input of the layer before, the units to keep."""


def _loss(decoder: Decoder, text: Tensor, units: str, kept: Kept) -> Tensor:
    tokens = text[:, :-1]
    inputs = [_embedded(decoder, tokens)]

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "stream":
            inputs.append(value.flatten(1, 2))
        elif _WHERE.get(name) == units and layer > 0:
            chosen = kept(layer, _contributions(decoder, layer, units, value), inputs[layer - 1])
            chosen = chosen.expand(len(value), tokens.numel(), -1).unflatten(1, tokens.shape)
            value.mul_(chosen if units == NEURONS else chosen.transpose(2, 3)[..., None])

    logits = decoder(tokens, look=look)
    wanted = text[:, 1:].flatten().expand(len(logits), -1)
    return F.cross_entropy(logits.flatten(1, 2).mT, wanted, reduction="none").mean(-1)


_WHERE = {"hidden": NEURONS, "mixed": HEADS}


def _contributions(decoder: Decoder, layer: int, units: str, value: Tensor) -> Tensor:
    """(members, tokens, units); a network that diverged gives nothing."""
    if units == NEURONS:
        found = activity.neuron_contributions(value.flatten(1, 2), decoder.get_parameter("down")[:, layer])
    else:
        found = activity.head_contributions(value, decoder.get_parameter("projection")[:, layer, None]).flatten(1, 2)
    return found.nan_to_num(0.0, 0.0, 0.0)


def _embedded(decoder: Decoder, tokens: Tensor) -> Tensor:
    x = decoder.embedding[:, tokens] * sqrt(decoder.config.width) + decoder.sinusoids[: tokens.shape[-1]]
    return x.flatten(1, 2)


NATS = 0.02  # of a loss: units that are worth less are not missed, whichever are left out; as in Figures 6 and 8


class Active:
    """What a run recorded. Every number is a row over seeds; networks that did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, recorded_config(DejaVuConfig, run)
        self.learned = {
            one: beats_guessing(self.over_steps(one, NEURONS, "loss")[-1, :, 0], int(run.value("words")))
            for one in self.config.activations
        }
        """By activation, (seeds,) bool."""
        self.trained = [one for one, learned in self.learned.items() if learned.sum() >= 2]
        """Activations with two networks that learned, or more."""
        count = sum(int((~learned).sum()) for learned in self.learned.values())
        self.lost: Numbers = {"left out because they did not learn": {"networks": float(count)}} if count else {}
        """How many networks do not count; empty where all do."""

    def steps(self, activation: str) -> Any:
        return self.run.steps(f"{activation}/active/{NEURONS} needed")

    def over_steps(self, activation: str, units: str, what: str) -> Any:
        found = self.run.array(f"{activation}/active/{units} {what}")
        return found if what == "loss" else found.mean(2)

    def _of_learned(self, activation: str, rows: Any) -> Any:
        return np.where(self.learned[activation], rows, np.nan)

    def needed(self, activation: str, units: str = NEURONS, step: int = -1) -> Any:
        return self._of_learned(activation, self.over_steps(activation, units, "needed")[step])

    def carried(self, activation: str, units: str, by: str, step: int = -1) -> Any:
        return self._of_learned(activation, self.over_steps(activation, units, "carried")[step][:, CARRIED.index(by)])

    def worth(self, activation: str, units: str, by: str) -> Any:
        """(seeds,): the share that is left of what the units are worth, which is what the loss lacks without any."""
        loss = self.over_steps(activation, units, "loss")[-1]
        none, everything = loss[:, KEPT.index("none")], loss[:, KEPT.index("all")]
        worth = np.where(none - everything >= NATS, none - everything, np.nan)
        return self._of_learned(activation, (none - loss[:, KEPT.index(by)]) / worth)

    def cost(self, activation: str, units: str, by: str) -> float:
        loss = self.over_steps(activation, units, "loss")[-1]
        return known_mean(self._of_learned(activation, loss[:, KEPT.index(by)] - loss[:, KEPT.index("all")]))
