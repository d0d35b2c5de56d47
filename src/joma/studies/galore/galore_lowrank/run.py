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

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, check_config
from joma.claims.contract import Progress
from joma.claims.guards import needs_device
from joma.data.text import Corpus, cut_vocabulary
from joma.host.words import counted
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, frequency_loss, recipe
from joma.recipes.language.curves import alive, curve, steps_of
from joma.recipes.language.text import epoch_steps, remember_corpus
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, next_token_loss, train_all

STATISTICS = (
    "stable rank", "stable rank of the rest", "effective dimension", "energy 1", "energy 4", "energy m/16", "energy m/4"
)  # fmt: skip
"""What `statistics` gives, in this order."""
BALANCING = 20
"""Rounds that give a random matrix the wanted norms: both are then right to 1e-3 on matrices of real gradients."""


def projector_ranks(side: int) -> tuple[int, int, int, int]:
    """The ranks whose captured energy is recorded."""
    return 1, 4, side // 16, side // 4


def gram(matrices: Tensor) -> Tensor:
    """Of the shorter side, (..., side, side), float64, trace 1 (0 for a zero matrix); rows where both are equal."""
    wide = matrices.double()
    wide = wide if wide.shape[-2] <= wide.shape[-1] else wide.mT
    found = wide @ wide.mT
    trace = found.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return found / torch.where(trace > 0, trace, 1.0)


def spectrum_of(grams: Tensor, *, vectors: bool = False) -> tuple[Tensor, Tensor]:
    """Shares of energy (..., side), largest first, and with `vectors` the directions (..., side, side // 4).

    In float64 and on the processor, by as many threads as torch has: in float32 some solvers give up on gradients that
    are nearly of rank one, and a GPU takes one matrix after the other. A network that diverged has NaN everywhere and
    disturbs no other.
    """
    fine = grams.isfinite().all(-1).all(-1)[..., None]
    safe, threads = torch.where(fine[..., None], grams, 0.0).double(), torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            solved = list(pool.map(partial(_solve, vectors=vectors), safe.reshape(-1, *grams.shape[-2:]).cpu()))
    finally:
        torch.set_num_threads(threads)
    flat, directions = (torch.stack(column).to(grams.device) for column in zip(*solved, strict=True))
    values = torch.where(fine, flat.view(grams.shape[:-1]).clamp_min(0.0).flip(-1), torch.nan)
    kept = directions.view(*grams.shape[:-1], -1)[..., -(grams.shape[-1] // 4) :].flip(-1)
    return values / values.sum(-1, keepdim=True), kept


def _solve(gram: Tensor, *, vectors: bool) -> tuple[Tensor, Tensor]:
    """Ascending, as eigh has them; by an SVD where eigh gives up: of a Gram matrix it is the same."""
    try:
        if vectors:
            values, directions = torch.linalg.eigh(gram)
            return values, directions
        return torch.linalg.eigvalsh(gram), gram[:, :0]
    except RuntimeError:  # torch.linalg.LinAlgError is one
        if vectors:
            directions, values, _ = torch.linalg.svd(gram)
            return values.flip(-1), directions.flip(-1)
        return torch.linalg.svdvals(gram).flip(-1), gram[:, :0]


def statistics(shares: Tensor) -> Tensor:
    """STATISTICS of a spectrum's shares of energy (..., side), (..., 7).

    The rest is the matrix without its first direction. The effective dimension is 1 / sum of squared shares: n where n
    directions have equal energy.
    """
    kept = shares.cumsum(-1)
    energies = [kept[..., rank - 1] for rank in projector_ranks(shares.shape[-1])]
    rest = (1 - shares[..., 0]) / shares[..., 1]
    return torch.stack([1 / shares[..., 0], rest, 1 / shares.square().sum(-1), *energies], -1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """The share of one subspace that lies in the other, (...): 1 if equal, r / side for random ones of dimension r."""
    shared: Tensor = (one.mT.double() @ other.double()).square().sum((-2, -1))
    return shared / one.shape[-1]


def captured(grams: Tensor, directions: Tensor) -> Tensor:
    """The share of energy that the projector onto these directions keeps, (...)."""
    wide = directions.double()
    return (wide * (grams @ wide)).sum((-2, -1))


def same_norms(matrices: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian matrices whose rows and columns have the norms of the given ones, (..., rows, columns)."""
    rows = matrices.norm(dim=-1, keepdim=True)
    columns = matrices.norm(dim=-2, keepdim=True)
    made: Tensor = torch.randn(matrices.shape, generator=generator, device=matrices.device, dtype=matrices.dtype)
    made = made * rows * columns
    for _ in range(BALANCING):
        for wanted, dim in ((columns, -2), (rows, -1)):
            have = made.norm(dim=dim, keepdim=True)
            made = made * (wanted / torch.where(have > 0, have, 1.0))
    return made


SERIES = "Figure 7's size"  # the decoder of the size of Figure 7's series
TEXT, SHUFFLED = 0, 1  # where the two stand in what is recorded
MATRICES = ("query", "key", "value", "output", "up", "down")
WORDS = ("embedding", "output matrix")
NODE_WORDS = 1_000  # most frequent words, the rows of V
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class GaloreLowrankConfig(LanguageModelConfig):
    """Decoders of Figure 6 at several depths, and one of Figure 7's size, each with twins that get shuffled targets."""

    width: Annotated[int, Least(16, "to have a sixteenth")] = 32
    layers: tuple[int, ...] = (1, 3)
    rate: float = 3e-3
    refresh: int = 200
    """Steps between two neighbouring points at which subspaces are compared; GaLore renews its projector as often."""
    pairs: Annotated[int, Least(2, "one at the beginning and one at the end")] = 5
    """How many such pairs of points there are, closer together at the beginning."""
    batches: int = 8
    """Training batches in the large batch that gradients are taken of; a second one has as many others."""
    series_layers: int = 3
    series_width: Annotated[int, Least(16, "to have a sixteenth")] = 32
    series_heads: int = 4
    series_length: int = 64
    series_streams: int = 8
    series_batches: int = 4
    series_vocabulary: int = 600
    series_steps: int = 300
    series_rate: float = 3e-3

    def __post_init__(self) -> None:
        check_config(self)
        super().__post_init__()
        for name, steps in (("steps", self.steps), ("series_steps", self.series_steps)):
            if steps % self.refresh or steps < 2 * self.refresh:
                raise ValueError(f"{name} must be a multiple of refresh, {self.refresh}, from twice on, got {steps}")


def points(steps: int, refresh: int, pairs: int) -> list[int]:
    """Pairs of steps that are `refresh` apart: the first at 0, the last at the end, more of them early."""
    later = np.geomspace(refresh, steps - refresh, pairs - 1)
    starts = {0, steps - refresh, *(round(start / refresh) * refresh for start in later[:-1])}
    return sorted(starts | {start + refresh for start in starts})


def run(config: GaloreLowrankConfig, run: Run, progress: Progress) -> None:
    """Train all decoders and their twins, recording what the head of this file lists. Resumes by itself."""
    text = corpus(config, progress)
    needs_device(config.device, device="cpu")
    remember_corpus(text, run)
    rates = (config.rate, config.rate)  # of the text, and of its twin with shuffled targets
    made = {counted(layers, "layer"): recipe(config, text, layers=layers, rates=rates) for layers in config.layers}
    ensembles = {}
    for name, one in (made | {SERIES: _series(config, text)}).items():
        words = one.decoder.vocabulary
        own = cut_vocabulary(text, words) if words < len(text.vocabulary) else text
        run.keep(f"{name}/rates", lambda: np.array(one.rates))  # noqa: B023 - called at once
        run.keep(f"{name}/seeds", lambda: np.array(one.seeds))  # noqa: B023
        run.keep(f"{name}/loss by frequency", lambda: frequency_loss(one, own))  # noqa: B023
        ensembles[name] = _ensemble(config, name, one, own, run)
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def _series(config: GaloreLowrankConfig, text: Corpus) -> Recipe:
    """Pre-norm, GELU, an MLP four times as wide, AdamW: as the networks of Figure 7, but for positions and words."""
    sizes: dict[str, Any] = {
        "width": config.series_width, "mlp": 4 * config.series_width, "heads": config.series_heads, "dropout": 0.0,
        "length": config.series_length, "streams": config.series_streams, "steps": config.series_steps, "sequence": 0,
        "every": config.series_steps // 2,
        "valid_sequences": max(1, config.valid_sequences * config.length // config.series_length),
    }  # fmt: skip
    base = recipe(replace(config, **sizes), text, layers=config.series_layers, rates=(config.series_rate,) * 2)
    words = min(config.series_vocabulary, len(text.vocabulary))
    base = base.with_decoder(norm="pre-layer", activation="gelu", copies=False, vocabulary=words)
    optimizer = make_optimizer("adamw", config.series_rate, betas=(0.9, 0.95), weight_decay=0.01, clip=1.0)
    return base.with_(optimizer=optimizer, precision="float32" if config.precision == "float32" else "half")


def _ensemble(config: GaloreLowrankConfig, name: str, made: Recipe, text: Corpus, run: Run) -> Ensemble:
    train = text.tokens["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed))
    own, mixed = ensemble(made, text), ensemble(made, replace(text, tokens=text.tokens | {"train": train[order]}))

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
    several = [own.batch(step, [0]) for step in chosen[::2]]
    for size, part in (("large", several), ("small", several[:1])):  # what limits the rank of a gradient from outside
        read, told = (torch.cat([one[i].flatten() for one in part]) for i in range(2))
        sizes = [read.numel(), read.unique().numel(), told.unique().numel()]
        run.keep(f"{name}/batch/{size}", lambda: np.array(sizes))  # noqa: B023 - called at once

    def networks(members: Sequence[int]) -> Decoder:
        decoder: Decoder = own.networks(members)
        shape = made.decoder
        space = (len(members), shape.layers, len(MATRICES), shape.width, shape.width // 4)
        decoder.register_buffer("before", torch.zeros(space))  # in the checkpoint, so that a killed run goes on with it
        return decoder

    frequency = torch.bincount(train.long(), minlength=len(text.vocabulary)).to(made.device)
    often = frequency.topk(min(NODE_WORDS, int((frequency > 0).sum()))).indices

    def measure(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        first, second = ([batch(step, members) for step in chosen[start::2]] for start in (0, 1))
        return _look(decoder, first, second, [batch(step, members, swap=True) for step in chosen[::2]], often)

    measures = {"valid": own.measures["valid"], "probe": measure}
    at = points(made.steps, config.refresh, config.pairs)
    return replace(own, networks=networks, batch=batch, measures=measures, measure_at=tuple(at))


def gradients(decoder: Decoder, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Of the mean loss over these batches, without dropout: MATRICES (members, layers, in, out) and WORDS."""
    weights = [decoder.get_parameter(name) for name in ("qkv", "projection", "up", "down", "embedding", "out")]
    total = [torch.zeros_like(weight) for weight in weights]
    with torch.enable_grad():
        for batch in batches:
            found = torch.autograd.grad(next_token_loss(decoder, batch).sum(), weights)
            torch._foreach_add_(total, found, alpha=1 / len(batches))
    query, key, value = total[0].split(decoder.config.width, dim=-1)
    return dict(zip((*MATRICES, *WORDS), (query, key, value, *total[1:]), strict=True))


def _grams(matrices: Iterable[Tensor]) -> Tensor:
    """(members, layers, matrices, side, side); of word matrices, which have no layers, without these."""
    return torch.stack([gram(matrix) for matrix in matrices], dim=-3)


def _look(
    decoder: Decoder, first: list[Batch], second: list[Batch], swapped: list[Batch], often: Tensor
) -> dict[str, Tensor]:
    generator = torch.Generator(often.device).manual_seed(0)
    large = gradients(decoder, first)
    small, other, targets = (
        _grams(found[name] for name in MATRICES)
        for found in (gradients(decoder, batches) for batches in (first[:1], second, swapped))
    )

    def measured(matrices: Tensor) -> Tensor:
        return statistics(spectrum_of(matrices)[0])

    return {
        "gradient/small": measured(small),
        "gradient/gaussian": measured(_grams(same_norms(large[name], generator) for name in MATRICES)),
        **_subspaces(decoder, _grams(large[name] for name in MATRICES), other, targets),
        "words/large": measured(_grams(large[name] for name in WORDS)),
        "words/gaussian": measured(_grams(same_norms(large[name], generator) for name in WORDS)),
        **_nodes(decoder, large["up"][:, 0], often, generator),
    }


def _subspaces(decoder: Decoder, one: Tensor, other: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Spectra of both large batches, and how their leading directions overlap with others and keep others' energy."""
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


def _nodes(decoder: Decoder, up: Tensor, often: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """V of the talk in the lowest layer, (members,) each: how the MLP's nodes see a word that is attended to.

    V = U^T W with one row per frequent word and one column per node; U^T holds the words' vectors as attention passes
    them on. V' is the same with the gradient of W. Stable ranks of both, of Gaussian matrices with the norms of V' and
    with equal norms, and the ratio of a large (90 %) to a small (10 %) row of V', the growth rates of the slide.
    """
    value = decoder.get_parameter("qkv").detach()[:, 0].split(decoder.config.width, dim=-1)[2]
    through = value @ decoder.get_parameter("projection").detach()[:, 0]
    scaled = decoder.get_parameter("mlp_scale" if decoder.config.norm.startswith("pre") else "attention_scale")
    words = decoder.embedding.detach()[:, often] @ (through * scaled.detach()[:, 0, None])  # (members, words, width)
    v, growth = words @ decoder.get_parameter("up").detach()[:, 0], words @ up
    plain = torch.randn(growth.shape, generator=generator, device=growth.device)
    parts = {"V": v, "V'": growth, "V' by its norms": same_norms(growth, generator), "V' of equal norms": plain}
    found = {f"nodes/{name}": 1 / spectrum_of(gram(part))[0][..., 0] for name, part in parts.items()}
    high, low = (growth.norm(dim=-1).double().quantile(level, dim=-1) for level in (0.9, 0.1))
    return found | {"nodes/spread": high / low}


def variants(run: Run) -> dict[str, int]:
    """The names of all decoders, with the shorter side m of all their matrices."""
    config = run.config
    return {counted(layers, "layer"): int(config["width"]) for layers in config["layers"]} | {
        SERIES: int(config["series_width"])
    }


def gradient(run: Run, name: str, batch: str, statistic: str, *, text: int = TEXT) -> np.ndarray:
    """A statistic of gradients, (seeds, points, layers, matrices); batch: large, other, small, gaussian."""
    return np.asarray(probe(run, name, f"gradient/{batch}", text=text)[..., STATISTICS.index(statistic)])


def probe(run: Run, name: str, measure: str, *, text: int = TEXT) -> np.ndarray:
    """One recorded series of the text or of the twins, (seeds, points, ...)."""
    found: np.ndarray = curve(run, name, f"probe/{measure}")[text].astype(float)
    found[~alive(run, name)[text]] = np.nan
    return found


def rank(run: Run, name: str, batch: str = "large", *, text: int = TEXT) -> np.ndarray:
    """Stable rank, the geometric mean over layers, (seeds, points, matrices)."""
    return np.asarray(np.exp(np.log(gradient(run, name, batch, "stable rank", text=text)).mean(2)))


def after_refresh(run: Run, name: str) -> np.ndarray:
    """Which points have one before them that is `refresh` steps away, as indices."""
    return np.flatnonzero(np.diff(steps_of(run, name), prepend=-1) == int(run.config["refresh"]))
