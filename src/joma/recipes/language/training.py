"""Training language models as ensembles: their recipes, and what is measured on the way.

All members of a variant (rates x seeds) train as one ensemble. Recorded under the variant's name, over steps, with the
members first (`joma.recipes.language.curves.curve` gives them back as (rates, seeds, points, ...)):

    valid/loss                (members,)                  on the whole validation text, as is
    valid/entropy             (members, layers, heads)    attention entropy
    sequence/entropy          (members, layers, heads)    on the one sequence that the paper's curves come from
    rank/up, rank/gradient    (members, layers)           stable rank of the MLP's lower matrix, of its gradient
    rank/query_key            (members, layers, heads)    of W_q W_k^T
    coherence                 (members,)                  mean |cos| between word vectors
    estimate/...              (members,)                  logits by Theorem 1, see `joma.probes.decoder.logit_estimate`
    train_loss                (members,)                  mean over the steps since the measuring point before; NaN at
                                                          step 0, because no step was taken yet
    diverged_at               (members,)                  first step with a loss that is not finite; -1 if none
    allocation/parts          (members, groups, layers)   with `Recipe.allocate`: the change of each layer's entropy
                                                          since the measuring point before, by groups of parameters
    allocation/part_errors    (members, groups, layers)   each part's numerical error: how far the nodes that
                                                          were added last moved it
    allocation/change, /gap   (members, layers)           that change, and what the parts lack of it

and once: <variant>/rates, <variant>/seeds, <variant>/loss by frequency (see `frequency_loss`), corpus/sizes (words,
training tokens, validation tokens), corpus/sha256.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress
from joma.claims.guards import needs_device
from joma.data.text import Corpus, CorpusError, cut_vocabulary, streams, windows
from joma.models.decoder import Decoder, DecoderConfig
from joma.probes import decoder as probe
from joma.recipes import grid
from joma.recipes.language.allocation import allocation, frozen_parts, group_names
from joma.recipes.language.config import LanguageModelConfig
from joma.recipes.language.reuse import reuse
from joma.recipes.language.text import (
    PIECE,
    epoch_steps,
    from_own_start,
    in_own_order,
    remember_corpus,
    steps_to_read,
)
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, Optimizer, branch, cross_entropy, next_token_loss, train_all
from joma.training.ensemble import Precision

KEY_WORDS = 1_000  # most frequent words over which logits are compared with what Theorem 1 says


@dataclass(frozen=True)
class Recipe:
    """How one variant is trained: a decoder, an optimizer, the reading of the text, and the members."""

    decoder: DecoderConfig
    """Its vocabulary may be smaller than the corpus's: the text is then cut to the most frequent words."""
    optimizer: Optimizer
    """Its rate is that of `rates`. See `with_optimizer` for what depends on the length of an epoch."""
    rates: tuple[float, ...] = (1e-4,)
    seeds: tuple[int, ...] = (1, 2, 3)
    """Every rate is trained with every seed."""
    streams: int = 20
    valid_streams: int = 10
    sequence: int = 100
    valid_sequences: int = 1_000_000
    steps: int = 58_580
    every: int = 1_000
    device: str = "cpu"
    precision: Precision = "float32"
    keep_at: tuple[int, ...] = ()
    """Steps whose whole state is kept beside the run, for branches."""
    branch_of: str = ""
    """The variant that this one branches off; empty: it begins at the beginning."""
    branch_at: int = 0
    """At which step: one of that variant's `keep_at`."""
    frozen: tuple[str, ...] = ()
    """What does not learn: names of `joma.models.groups.parameter_groups`, as QK or layer 2 MLP."""
    allocate: int = 0
    """Validation sequences on which the change of each layer's entropy, from measuring point to measuring point, is
    split by groups of parameters; 0: it is not."""
    own_order: bool = False
    """Whether every seed reads the training text in its own order, the same in every epoch: see
    `joma.recipes.language.text.in_own_order`. If not, all read it from its beginning, as the original runs did."""
    own_start: bool = False
    """Whether every seed begins at a place of its own and reads round: see
    `joma.recipes.language.text.from_own_start`."""

    @property
    def members(self) -> list[tuple[float, int]]:
        """(rate, seed) of every member, the seeds of one rate together."""
        return [(rate, seed) for rate in self.rates for seed in self.seeds]

    @property
    def stands_alone(self) -> bool:
        """Whether all of it is in its record: no state that a branch needs, and no numbers that depend on a GPU."""
        return not self.branch_of and not self.keep_at and self.device == "cpu"

    def with_(self, **changes: Any) -> Self:
        """A copy with some options changed."""
        return replace(self, **changes)

    def with_decoder(self, **changes: Any) -> Self:
        """A copy with some options of the decoder changed."""
        return replace(self, decoder=replace(self.decoder, **changes))

    def with_optimizer(self, **changes: Any) -> Self:
        """A copy with some options of the optimizer changed."""
        return replace(self, optimizer=replace(self.optimizer, **changes))


def recipe(config: LanguageModelConfig, text: Corpus, *, layers: int = 1, rates: Sequence[float] = (1e-4,)) -> Recipe:
    """The recipe of Figures 6 and 8 at the sizes of `config`: post-norm blocks that start as copies of one."""
    epoch = epoch_steps(text, config.streams, config.length)
    shape = {name: getattr(config, name) for name in ("width", "heads", "mlp", "dropout")}
    optimizer = make_optimizer(
        "adam",
        rates[0],
        clip=config.clip,
        renew_every=epoch if config.renew_each_epoch else None,
        decay=config.decay,
        decay_every=epoch if config.decay < 1 else None,
    )
    as_given = ("streams", "valid_streams", "sequence", "valid_sequences", "steps", "every", "device", "precision")
    return Recipe(
        DecoderConfig(len(text.vocabulary), layers=layers, context=config.length, copies=True, **shape),
        optimizer,
        rates=tuple(rates),
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
        **{name: getattr(config, name) for name in as_given},
    )


def train_variants(
    variants: Mapping[str, Recipe],
    text: Corpus,
    run: Run,
    progress: Progress,
    *,
    share: float = 0.98,
    adapt: Callable[[str, Ensemble], Ensemble] | None = None,
) -> None:
    """Train every variant on `text`, recording under its name what the head of this file lists. Resumes by itself.

    On a GPU all variants train side by side. share: the part of the study's progress that this is, from 0 on. adapt:
    changes a variant's ensemble, its measures say; without it, what another study of this folder has trained is taken
    from there (`joma.recipes.language.reuse`).
    """
    for variant in variants.values():
        needs_its_device(variant)
    remember_corpus(text, run)
    for name, variant in variants.items():
        run.keep(f"{name}/rates", lambda variant=variant: np.array(variant.rates))  # type: ignore[misc]
        run.keep(f"{name}/seeds", lambda variant=variant: np.array(variant.seeds))  # type: ignore[misc]
        run.keep(f"{name}/loss by frequency", lambda variant=variant: frequency_loss(variant, text))  # type: ignore[misc]
        if variant.allocate:
            run.keep(f"{name}/groups", lambda variant=variant: group_names(variant.decoder))  # type: ignore[misc]
    whole = {name: repr(one) for name, one in variants.items() if one.stands_alone} if adapt is None else {}
    if taken := reuse(whole, run):
        progress(0.0, f"{', '.join(taken)}: trained by another study")
    ensembles = {name: ensemble(variant, text) for name, variant in variants.items()}
    if adapt is not None:
        ensembles = {name: adapt(name, plain) for name, plain in ensembles.items()}
    train_all(ensembles, run, progress=lambda done, doing: progress(share * done, doing))


def needs_its_device(variant: Recipe) -> None:
    """Raise `NotRun` where this machine lacks the variant's device, with what it takes on a CPU."""
    precision = {"precision": "float32"} if variant.precision != "float32" else {}
    needs_device(variant.device, device="cpu", **precision)


def with_words(text: Corpus, words: int) -> Corpus:
    """The text with at most so many words."""
    return cut_vocabulary(text, words) if words < len(text.vocabulary) else text


def frequency_loss(variant: Recipe, text: Corpus) -> float:
    """Loss on the validation text of the words' frequencies in the training text, each counted once more."""
    text = with_words(text, variant.decoder.vocabulary)
    counts = torch.bincount(text.tokens["train"].long(), minlength=variant.decoder.vocabulary).double() + 1
    _, following = windows(streams(text.tokens["valid"], variant.valid_streams), variant.decoder.context)
    return float(-(counts / counts.sum()).log()[following[: variant.valid_sequences].long()].mean())


def ensemble(variant: Recipe, text: Corpus) -> Ensemble:
    """The members of one variant and what is measured on them."""
    shape, text = variant.decoder, with_words(text, variant.decoder.vocabulary)
    read = _training_streams(variant, text)
    epoch, last = steps_to_read(read, shape.context), read.shape[-1] - 1 - shape.context

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        first = min(step % epoch * shape.context, last)
        theirs = read[members[0] : members[-1] + 1] if read.ndim == 3 else read  # members of a group are neighbours
        inputs, targets = (theirs[..., at : at + shape.context].contiguous() for at in (first, first + 1))
        return inputs, targets

    def networks(members: Sequence[int]) -> Decoder:
        return Decoder(shape, [variant.members[member][1] for member in members])

    plain = grid.ensemble(
        variant,
        len(variant.members),
        networks=networks,
        batch=batch,
        loss=next_token_loss,
        optimizer=replace(variant.optimizer, rate=tuple(rate for rate, _ in variant.members)),
        measures=_measures(variant, text, networks),
        between=allocation(shape, validation_sequences(variant, text)[0], variant.allocate) if variant.allocate else {},
        measure_at=tuple(range(0, variant.steps + 1, variant.every)),
        keep_at=(variant.branch_at,) if variant.branch_of else variant.keep_at,
        frozen=frozen_parts(shape, variant.frozen),
    )
    if not variant.branch_of:
        return plain
    later = tuple(step for step in variant.keep_at if step > variant.branch_at)
    return branch(plain, of=variant.branch_of, at=variant.branch_at, frozen=plain.frozen, keep_at=later)


def _training_streams(variant: Recipe, text: Corpus) -> Tensor:
    tokens = text.tokens["train"].long()
    if not (variant.own_order or variant.own_start):
        return streams(tokens, variant.streams).to(variant.device)

    def theirs(seed: int) -> Tensor:
        begun = from_own_start(tokens, seed) if variant.own_start else tokens
        return in_own_order(begun, PIECE * variant.decoder.context, seed) if variant.own_order else begun

    by_seed = {seed: streams(theirs(seed), variant.streams) for seed in variant.seeds}
    return torch.stack([by_seed[seed] for _, seed in variant.members]).to(variant.device)


def _windows(variant: Recipe, text: Corpus) -> tuple[Tensor, Tensor]:
    spoken = streams(text.tokens["valid"], variant.valid_streams).long().to(variant.device)
    inputs, targets = windows(spoken, variant.decoder.context)
    if (most := len(inputs)) <= (one := variant.sequence):
        raise CorpusError(f"sequence must be below {most}, the number of sequences in the validation text, got {one}")
    return inputs, targets


def validation_sequences(variant: Recipe, text: Corpus) -> tuple[Tensor, ...]:
    """What is read at a measuring point, (sequences, length), and what follows; the text has the variant's words."""
    return tuple(part[: variant.valid_sequences].flatten(0, 1).contiguous() for part in _windows(variant, text))


Measure = Callable[[Decoder, Sequence[int]], Tensor | Mapping[str, Tensor]]


def _measures(variant: Recipe, text: Corpus, networks: Callable[[Sequence[int]], Decoder]) -> dict[str, Measure]:
    inputs, targets = _windows(variant, text)
    single = inputs[variant.sequence, :1].contiguous()
    first = inputs[0].contiguous(), targets[0].contiguous()
    inputs, targets = validation_sequences(variant, text)
    frequency = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double().to(variant.device)
    often = min(KEY_WORDS, int((frequency > 0).sum()))
    frequency = frequency / frequency.sum()
    starts: dict[tuple[int, ...], tuple[Tensor, Tensor] | None] = {}

    def estimate(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        key = tuple(members)
        if key not in starts:
            starts[key] = probe.logit_terms(networks(members).to(variant.device), frequency)
        start = starts[key]
        return {} if start is None else probe.logit_estimate(decoder, start, frequency, words=often)

    measures: dict[str, Measure] = {
        "valid": lambda decoder, members: probe.validation(decoder, inputs, targets, cross_entropy),
        "sequence": lambda decoder, members: {"entropy": probe.ensemble_entropy(decoder, single)},
        "rank": lambda decoder, members: probe.weight_ranks(decoder),
        "coherence": lambda decoder, members: probe.embedding_coherence(decoder),
        "estimate": estimate,
    }
    if variant.decoder.mlp:
        measures["rank/gradient"] = lambda decoder, members: probe.gradient_rank(
            decoder, lambda decoder: next_token_loss(decoder, first)
        )
    return measures
