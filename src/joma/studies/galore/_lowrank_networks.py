"""Decoders that train on a text, twins that get shuffled targets, and the gradients that are looked at on the way.

Recorded under the name of a decoder and `probe/`, over steps, members first (those of the text, then their twins). L
stands for layers, M for the six MATRICES:

    gradient/large, other, small    (members, L, M, 7)   STATISTICS of the gradient of the large batch, of a second one
                                                         as large, of one training batch
    gradient/gaussian               (members, L, M, 7)   of Gaussian matrices with the norms of the large batch's
    words/large, words/gaussian     (members, 2, 7)      the same of embedding and output matrix
    subspace/before                 (members, L, M)      overlap with the subspace of the point before; NaN at step 0
    subspace/batches                (members, L, M)      overlap of the two large batches
    subspace/targets                (members, L, M)      overlap with that of the other targets, in the same network
    kept/own, batch, before         (members, L, M)      energy of the second large batch that a projector keeps: its
                                                         own, that of the first, that of the point before
    kept/targets                    (members, L, M)      energy of the large batch in the first direction of the other
                                                         targets' gradient, in the same network
    nodes/...                       (members,)           V of the talk, see `_nodes`

and valid/loss (members,), of the text for twins too. Once: batch/large, batch/small (positions, distinct words read,
distinct targets), rates, seeds, loss by frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress
from joma.data.text import Corpus, cut_vocabulary
from joma.host.devices import lacking
from joma.models.decoder import Decoder
from joma.recipes.language import Recipe, ensemble, frequency_loss
from joma.recipes.language.text import epoch_steps, remember_corpus
from joma.runs import Run
from joma.studies.galore._lowrank_config import SERIES, Config, points, recipes
from joma.studies.galore._lowrank_spectra import (
    captured,
    gram,
    overlap,
    same_norms,
    spectrum_of,
    statistics,
)
from joma.training import Ensemble, next_token_loss, train_all

TEXT, SHUFFLED = 0, 1
"""Where the two stand in what is recorded."""
MATRICES = ("query", "key", "value", "output", "up", "down")
WORDS = ("embedding", "output matrix")
NODE_WORDS = 1_000
"""Most frequent words, the rows of V."""
Batch = tuple[Tensor, Tensor]


def train(config: Config, text: Corpus, run: Run, progress: Progress) -> None:
    """Train all decoders and their twins, recording what the head of this file lists. Resumes by itself."""
    if gap := lacking(config.device):
        raise NotRun(str(gap), f"the same command on a machine that has one, or joma run {run.study} with --device cpu")
    remember_corpus(text, run)
    ensembles = {}
    for name, made in recipes(config, text).items():
        words = made.decoder.vocabulary
        own = cut_vocabulary(text, words) if words < len(text.vocabulary) else text
        _remember(run, name, made, own)
        ensembles[name] = _ensemble(config, name, made, own, run)
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def _remember(run: Run, name: str, made: Recipe, text: Corpus) -> None:
    run.keep(f"{name}/rates", lambda: np.array(made.rates))
    run.keep(f"{name}/seeds", lambda: np.array(made.seeds))
    run.keep(f"{name}/loss by frequency", lambda: frequency_loss(made, text))


def shuffled(text: Corpus, seed: int) -> Corpus:
    """The same corpus with the words of its training text in random order."""
    train = text.tokens["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return replace(text, tokens=text.tokens | {"train": train[order]})


def _ensemble(config: Config, name: str, made: Recipe, text: Corpus, run: Run) -> Ensemble:
    own, mixed = ensemble(made, text), ensemble(made, shuffled(text, config.seed))

    @lru_cache  # a list as index would make a GPU wait at every step
    def texts(members: tuple[int, ...]) -> Tensor:
        return torch.tensor([member // len(made.seeds) for member in members], device=made.device)

    def batch(step: int, members: Sequence[int], *, swap: bool = False) -> Batch:
        """All read the text; the twins are told to expect words drawn from anywhere in it. swap: the others are."""
        tokens, following = own.batch(step, members)
        pair = torch.stack([following, mixed.batch(step, members)[1]])
        return tokens, (pair.flip(0) if swap else pair)[texts(tuple(members))]

    count = config.series_batches if name == SERIES else config.batches
    epoch = epoch_steps(text, made.streams, made.decoder.context)
    chosen = [round(place * epoch / (2 * count)) for place in range(2 * count)]
    _remember_batch(run, f"{name}/batch", own, chosen[::2])

    def networks(members: Sequence[int]) -> Decoder:
        decoder: Decoder = own.networks(members)
        shape = made.decoder
        size = (len(members), shape.layers, len(MATRICES), shape.width, shape.width // 4)
        decoder.register_buffer("before", torch.zeros(size))  # in the checkpoint, so that a killed run goes on with it
        return decoder

    frequency = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).to(made.device)
    often = frequency.topk(min(NODE_WORDS, int((frequency > 0).sum()))).indices

    def measure(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        first, second = ([batch(step, members) for step in chosen[start::2]] for start in (0, 1))
        swapped = [batch(step, members, swap=True) for step in chosen[::2]]
        return _look(decoder, first, second, swapped, often)

    measures = {"valid": own.measures["valid"], "probe": measure}
    at = points(made.steps, config.refresh, config.pairs)
    return replace(own, networks=networks, batch=batch, measures=measures, measure_at=tuple(at))


def _remember_batch(run: Run, place: str, own: Ensemble, chosen: Sequence[int]) -> None:
    """What limits the rank of a gradient from outside: positions, words read, words to predict."""
    several = [own.batch(step, [0]) for step in chosen]
    for name, part in (("large", several), ("small", several[:1])):
        tokens, following = (torch.cat([one[i].flatten() for one in part]) for i in range(2))
        sizes = [tokens.numel(), tokens.unique().numel(), following.unique().numel()]
        run.keep(f"{place}/{name}", lambda sizes=sizes: np.array(sizes))  # type: ignore[misc]


Named = dict[str, Tensor]


def gradients(decoder: Decoder, batches: Sequence[Batch]) -> Named:
    """Of the mean loss over these batches, without dropout: MATRICES (members, layers, in, out) and WORDS."""
    weights = [decoder.get_parameter(name) for name in ("qkv", "projection", "up", "down", "embedding", "out")]
    total = [torch.zeros_like(weight) for weight in weights]
    with torch.enable_grad():
        for batch in batches:
            found = torch.autograd.grad(next_token_loss(decoder, batch).sum(), weights)
            torch._foreach_add_(total, found, alpha=1 / len(batches))
    query, key, value = total[0].split(decoder.config.width, dim=-1)
    return dict(zip((*MATRICES, *WORDS), (query, key, value, *total[1:]), strict=True))


def _grams(found: Named, names: Sequence[str]) -> Tensor:
    """(members, layers, names, side, side); of word matrices, which have no layers, (members, names, side, side)."""
    return torch.stack([gram(found[name]) for name in names], dim=-3)


def _look(
    decoder: Decoder, first: list[Batch], second: list[Batch], swapped: list[Batch], often: Tensor
) -> dict[str, Tensor]:
    """All that is recorded of gradients at one point."""
    generator = torch.Generator(often.device).manual_seed(0)
    large = gradients(decoder, first)
    random = torch.stack([gram(same_norms(large[name], generator)) for name in MATRICES], dim=-3)
    small = _grams(gradients(decoder, first[:1]), MATRICES)
    found = {
        "gradient/small": statistics(spectrum_of(small)[0]),
        "gradient/gaussian": statistics(spectrum_of(random)[0]),
    }
    words = {name: statistics(spectrum_of(grams)[0]) for name, grams in _word_grams(large, generator).items()}
    nodes = _nodes(decoder, large["up"][:, 0], often, generator)
    return found | _subspaces(decoder, _grams(large, MATRICES), second, swapped) | words | nodes


def _subspaces(decoder: Decoder, one: Tensor, second: list[Batch], swapped: list[Batch]) -> dict[str, Tensor]:
    """Spectra of both large batches, and how their leading directions overlap with others and keep others' energy."""
    other, targets = (_grams(gradients(decoder, batches), MATRICES) for batches in (second, swapped))
    (shares, space), (other_shares, other_space) = (spectrum_of(part, vectors=True) for part in (one, other))
    target_space, before = spectrum_of(targets, vectors=True)[1], decoder.get_buffer("before")
    known = (before != 0).flatten(1).any(1)[:, None, None]  # not at the first point
    found = {
        "gradient/large": statistics(shares),
        "gradient/other": statistics(other_shares),
        "subspace/before": torch.where(known, overlap(before, space), torch.nan),
        "subspace/batches": overlap(space, other_space),
        "subspace/targets": overlap(space, target_space),
        "kept/targets": captured(one, target_space[..., :1]),
        "kept/own": captured(other, other_space),
        "kept/batch": captured(other, space),
        "kept/before": torch.where(known, captured(other, before), torch.nan),
    }
    before.copy_(space)
    return found


def _word_grams(large: Named, generator: torch.Generator) -> Named:
    random = torch.stack([gram(same_norms(large[name], generator)) for name in WORDS], dim=-3)
    return {"words/large": _grams(large, WORDS), "words/gaussian": random}


def _nodes(decoder: Decoder, up: Tensor, often: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """V of the talk in the lowest layer, (members,) each: how the MLP's nodes see a word that is attended to.

    V = U^T W with one row per frequent word and one column per node; U^T holds the words' vectors as attention passes
    them on. V' is the same with the gradient of W. Stable ranks of both, of Gaussian matrices with the norms of V' and
    with equal norms, and the ratio of a large (90 %) to a small (10 %) row of V', the growth rates of the slide.
    """
    words = _passed_on(decoder, often)
    weights = decoder.get_parameter("up").detach()[:, 0]
    v, growth = words @ weights, words @ up
    plain = torch.randn(growth.shape, generator=generator, device=growth.device)
    parts = {"V": v, "V'": growth, "V' by its norms": same_norms(growth, generator), "V' of equal norms": plain}
    found = {f"nodes/{name}": 1 / spectrum_of(gram(part))[0][..., 0] for name, part in parts.items()}
    high, low = (growth.norm(dim=-1).double().quantile(level, dim=-1) for level in (0.9, 0.1))
    return found | {"nodes/spread": high / low}


def _passed_on(decoder: Decoder, often: Tensor) -> Tensor:
    """Vectors of frequent words after the lowest layer's value and output matrices, (members, words, width)."""
    value = decoder.get_parameter("qkv").detach()[:, 0].split(decoder.config.width, dim=-1)[2]
    through = value @ decoder.get_parameter("projection").detach()[:, 0]
    scaled = decoder.get_parameter("mlp_scale" if decoder.config.norm.startswith("pre") else "attention_scale")
    passed: Tensor = decoder.embedding.detach()[:, often] @ (through * scaled.detach()[:, 0, None])
    return passed
